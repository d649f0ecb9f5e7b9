"""Rounds that `rknn serve` serves, one after the other, in a folder that its process holds."""

import contextlib
import functools
import gc
import ssl
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rknn_jax._internal import progress
from rknn_jax._internal.terminal import err, tell
from rknn_jax.federation.settings import Serve

if TYPE_CHECKING:
    from rknn_jax.federation.collector import Collector, Sum
    from rknn_jax.federation.desk import Desk
    from rknn_jax.federation.monitor import Monitor
    from rknn_jax.federation.request import Asked, Public
    from rknn_jax.federation.round_sequence import Step
    from rknn_jax.federation.rounds import Round
    from rknn_jax.federation.server import Resources

COLLECTIONS = 1_000
"""New objects between two garbage collections while clients come and go.

A closed connection is a cycle of objects with large buffers. The program's own number is for short
runs, and would leave thousands of them.
"""


def say(name: str, text: str) -> None:
    """Write a line on the terminal, a word and a text."""
    tell(err, name, text)


def merge_folders(settings: Serve, mine: "Public", wanted: "Asked") -> dict[str, Any]:
    """Count the answers of several folders in a new one, and publish the results."""
    with progress.phase("loading"):
        from rknn_jax.federation import publish, round_folder
        from rknn_jax.federation.collector import Collector
        from rknn_jax.federation.merge import merge
    merge(settings.merge, settings.out, wanted)
    round, queries = round_folder.prepare(settings.out, mine, wanted, say)
    with contextlib.closing(Collector(settings.out, round)) as collector:
        say("merged", f"{collector.num_clients:,} clients of {len(settings.merge)} folders")
        _note_clients(settings, round, collector)
        card = publish.publish(
            settings.out,
            mine,
            wanted,
            queries=queries,
            collector=collector,
            tell=say,
            accounts=settings.accounts,
        )
    round_folder.end(settings.out, round)
    return card


def serve_rounds(
    settings: Serve, mine: "Public", wanted: "Asked", clients: dict[bytes, int] | None
) -> dict[str, Any]:
    """Serve all rounds in a folder that this process holds, and return the last statement."""
    with progress.phase("loading"):
        from rknn_jax.federation import hosting, round_folder, round_sequence
    steps = round_sequence.of(settings.out, wanted, settings.rounds)
    round_sequence.begin(steps)
    with contextlib.ExitStack() as stack:
        place = _Place(settings, clients, stack)
        for step in steps:
            is_last = step is steps[-1]
            done = None if is_last else round_sequence.finished(step)
            if done is None:
                step = step.following(mine.former)
                collector, card = _serve_one(place, settings, mine, step, is_last=is_last)
                if is_last:
                    hosting.announce(place.desk, card["statement"], collector.num_clients)
                round_folder.end(step.folder, collector.round)
                done = None if is_last else round_sequence.finished(step)
            mine = replace(mine, former=done)
    return card


def _serve_one(
    place: "_Place", settings: Serve, mine: "Public", step: "Step", *, is_last: bool
) -> tuple["Collector | Sum", dict[str, Any]]:
    """Serve one round and publish its results; return its answers and its statement."""
    with progress.phase("loading"):
        from rknn_jax.federation import checking, publish, round_folder
        from rknn_jax.federation.desk import Desk
    folder, wanted = step
    round, queries = round_folder.prepare(
        folder,
        mine,
        wanted,
        tell=say,
        source=settings.question,
        collects=settings.collect_only,
    )
    begun = _begun(folder, round)
    closes = round_folder.closes_at(folder, settings.deadline)
    if closes < time.time():
        say(
            "deadline",
            f"it passed {time.time() - closes:,.0f} s ago: it counts from when the round began; "
            "pass a larger --deadline",
        )
    so_far = f"{begun.num_clients if begun else 0} of {wanted.clients} clients so far"
    say("round", f"{round.id[:12]}, {len(round.data):,} bytes to each client; {so_far}")
    desk = Desk(round, closes)
    place.serve(desk, begun)
    gc.collect()
    gc.freeze()  # what is there stays, and need not be looked at again
    gc.set_threshold(COLLECTIONS)
    try:
        with progress.phase("clients", note=lambda: _progress(desk, wanted, begun)):
            answers = _answers(folder, wanted, desk, begun)
    finally:
        _note_clients(settings, round, begun)
    if settings.collect_only:
        return answers, publish.collected(answers)
    checked = None
    if round.check_share and is_last:
        labeled = publish.labeled(folder, mine, wanted, queries=queries, collector=answers)
        shown = (folder, round, labeled, wanted, answers.num_clients)
        noted = functools.partial(_note_clients, settings, round)
        checked = checking.measure(*shown, place.serve, noted, say)
    card = publish.publish(
        folder,
        mine,
        wanted,
        queries=queries,
        collector=answers,
        tell=say,
        checked=checked,
        accounts=settings.accounts,
    )
    return answers, card


def _note_clients(settings: Serve, votes: "Round", answers: "Collector | Sum | None") -> None:
    """Write the clients that were counted in a round, or in its check, into the accounts."""
    from rknn_jax.federation import client_accounts
    from rknn_jax.federation.collector import Collector

    if settings.accounts is not None:
        assert isinstance(answers, Collector), "`settings.asked` refuses sums"
        of_round = votes.guarantee(votes.honest or None)  # without rounds before, which have lines
        client_accounts.add(settings.accounts, votes.id, of_round, answers.clients)


class _Place:
    """Place where clients find the rounds, one after the other.

    Args:
      settings: Settings of the server.
      clients: Numbers of the clients, by certificate; None if anybody is let in.
      stack: Stack that closes the place.
    """

    def __init__(
        self, settings: Serve, clients: dict[bytes, int] | None, stack: contextlib.ExitStack
    ) -> None:
        from rknn_jax.federation import tls

        self._settings = settings
        self._clients = clients
        self._stack = stack
        self._context: ssl.SSLContext | None = None
        if settings.certificates is not None and clients is not None:
            self._context = tls.server_context(settings.certificates, clients)
        self._resources: Resources | None = None
        self._monitor: Monitor | None = None

    @property
    def desk(self) -> "Desk":
        """Desk of the round that is served now."""
        assert self._resources is not None
        return self._resources.desk

    def serve(self, desk: "Desk", answers: "Collector | Sum | None" = None) -> None:
        """Serve a round, in place of the one before.

        Args:
          desk: Desk of the round.
          answers: Answers that are counted, for the metrics. Defaults to None, none of its own.
        """
        if self._resources is None:
            self._open(desk)
        else:
            self._resources.serve(desk)
        if self._monitor is not None:
            self._monitor.answers = answers

    def _open(self, desk: "Desk") -> None:
        from rknn_jax.federation.listener import listening
        from rknn_jax.federation.monitor import CONNECTIONS, LOOPBACK, Monitor
        from rknn_jax.federation.server import Resources

        settings, clients = self._settings, self._clients
        self._resources = resources = Resources(desk)
        served = listening(
            resources.app, settings.host, settings.port, context=self._context, clients=clients
        )
        gate = self._stack.enter_context(served)
        self._stack.callback(resources.dismiss)
        secured = f" with TLS, for {len(clients)} keys" if clients else " without TLS, on this host"
        say("listening", f"on {settings.host}:{gate.port}{secured}")
        if settings.metrics_port is not None:
            self._monitor = Monitor(settings.out, resources, gate)
            watched_at = listening(
                self._monitor.app, LOOPBACK, settings.metrics_port, most=CONNECTIONS
            )
            self._stack.enter_context(watched_at)
            say("metrics", f"at http://{LOOPBACK}:{settings.metrics_port}/metrics and /health")


def _progress(desk: "Desk", wanted: "Asked", answers: "Collector | Sum | None") -> str:
    """Return how far a round is. The time that is left is shown where it changes in place."""
    left = max(0.0, desk.closes - time.time())
    closes = time.strftime("%H:%M:%S", time.localtime(desk.closes))
    until = f"{left:,.0f} s until the deadline" if err.is_terminal else f"deadline {closes}"
    answered = f"{answers.num_clients if answers else 0} of {wanted.clients} answered"
    return f"{len(desk.seen)} clients joined, {answered}; {until}"


def _begun(folder: Path, round: "Round") -> "Collector | Sum | None":
    """Return what the folder holds of the round's answers."""
    from rknn_jax.federation import round_folder
    from rknn_jax.federation.collector import Collector

    if round.summed:
        return round_folder.kept_sum(folder, round)
    collector = Collector(folder, round)
    if collector.cut:
        say(
            "cut",
            f"{collector.cut:,} bytes of answers that were not whole; whoever is missing is "
            "asked again",
        )
    return collector


def _answers(
    folder: Path, wanted: "Asked", desk: Any, answers: "Collector | Sum | None"
) -> "Collector | Sum":
    """Wait for the clients, and return their answers."""
    from rknn_jax.federation import hosting, round_folder
    from rknn_jax.federation.collector import Collector

    if isinstance(answers, Collector):
        hosting.collect(desk, answers, wanted.clients, say)
    elif answers is None:
        begin = functools.partial(round_folder.begin_sum, folder)
        answers = hosting.sum_up(desk, wanted.clients, wanted.quorum, begin=begin, tell=say)
        keep = functools.partial(round_folder.keep_sum, folder, answers)
        hosting.when_there_is_room(keep, say)
    else:
        desk.change(stage="closed")
    return answers
