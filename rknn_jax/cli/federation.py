"""`rknn serve` and `rknn join`: messages of a federation; `rknn_jax.federation` does the work."""

import contextlib
import functools
import importlib.util
import ipaddress
import os
import shlex
import socket
import ssl
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rknn_jax._internal import progress, ranges
from rknn_jax._internal.checks import check_together
from rknn_jax._internal.disk import locked, make_folder
from rknn_jax._internal.terminal import err, tell
from rknn_jax.federation.settings import Join, Serve, asked, join_command, settled
from rknn_jax.privacy import ledger_index

if TYPE_CHECKING:
    from rknn_jax.federation.collector import Collector, Sum
    from rknn_jax.federation.desk import Desk
    from rknn_jax.federation.monitor import Monitor
    from rknn_jax.federation.request import Asked, Public
    from rknn_jax.federation.round_sequence import Step
    from rknn_jax.federation.rounds import Round
    from rknn_jax.federation.server import Resources

REFUSED = 3
"""Exit status of a client that did not take part."""


def serve(settings: Serve) -> dict[str, Any]:
    """Serve one round, or merge what servers have collected; return the statement of privacy."""
    with progress.phase("loading"):
        from rknn_jax.federation.inputs import read_public
        from rknn_jax.federation.round_folder import check_request
    settings = _with_test_certificates(settings)
    check_together(
        lambda: ranges.check(settings),
        lambda: _admitted(settings),
        lambda: read_public(settings.public, settings.test, settings.drop),
        lambda: asked(settings),
        lambda: _check_accounts(settings),
    )
    clients = _admitted(settings)
    mine = read_public(settings.public, settings.test, settings.drop)
    settings = _settle(settings, mine)
    wanted = asked(settings)
    if wanted.check_share and (settings.collect_only or settings.merge or settings.question):
        raise ValueError(
            f"Expected no --check-share with --collect-only, --merge or --question, got "
            f"--check-share {settings.check_share}; the labels of several servers are there when "
            "the clients have left."
        )
    if wanted.summed:
        _check_sum(settings, wanted)
    steps = _checked_rounds(settings, wanted)
    for step in steps:
        check_request(step.asked)
    if len(steps) > 1:
        shares = ", ".join(f"{step.asked.config.epsilon:g}" for step in steps)
        _say("rounds", f"{len(steps)}, at epsilon = {shares}; clients need a budget for all")
    if settings.dry_run:
        command = shlex.join(join_command(settings))
        own = "--private"
        if settings.make_test_certificates:
            own += f", and party0 to party{settings.clients - 1}"
        _say("clients", f"{command}  # at each of {settings.clients}, with its own {own}")
        _say("checked", "nobody was asked, and nothing was written")
        return {"dry_run": True, "join": command}
    make_folder(settings.out)
    busy = (
        f"Expected --out that no other server has, got --out {settings.out}; wait for it, or name "
        "a new folder."
    )
    with locked(settings.out, busy):
        if settings.merge:
            return _merge(settings, mine, wanted)
        if settings.make_test_certificates:
            clients = _made_test_certificates(settings, settings.make_test_certificates)
        return _serve_held(settings, mine, wanted, clients)


def _check_accounts(settings: Serve) -> None:
    """Check the file of clients' accounts, if there is one."""
    from rknn_jax.federation import client_accounts

    if settings.accounts is not None:
        client_accounts.check(settings.accounts)


def _with_test_certificates(settings: Serve) -> Serve:
    """Return the settings with the names of the test certificates that are to be made."""
    folder = settings.make_test_certificates
    if folder is None:
        return settings
    if settings.certificates or settings.keys or settings.merge:
        raise ValueError(
            "Expected --make-test-certificates alone, got it with --certificates, --keys or "
            "--merge; certificates that are there are not made anew."
        )
    return replace(settings, certificates=folder, keys=folder / "clients.pem")


def _made_test_certificates(settings: Serve, folder: Path) -> dict[bytes, int]:
    """Make certificates for tests, and return the numbers of the clients, by certificate."""
    from rknn_jax.federation import certificates, tls

    anywhere = settings.host in ("0.0.0.0", "::")
    hosts = (socket.gethostname(), "localhost", "127.0.0.1") if anywhere else (settings.host,)
    certificates.write_federation(folder, hosts, settings.clients)
    _say(
        "tests only",
        f"certificates of {', '.join(hosts)} and {settings.clients} clients in {folder}, which end "
        f"after {certificates.LIFE.days} days; beyond tests every client makes its own",
    )
    return tls.read_clients(folder / "clients.pem")


def _settle(settings: Serve, mine: "Public") -> Serve:
    """Return the settings with what follows from the data, and tell the owner of each."""
    from rknn_jax.records import public_values
    from rknn_jax.records.features import MOST_NAMED
    from rknn_jax.release.public_rows import lists_alone

    for sentence in public_values.doubted(mine.inputs.T, mine.features):
        _say("warning", f"public columns {sentence}")
    if mine.features:
        more = f" and {len(mine.features) - MOST_NAMED:,} more" * (len(mine.features) > MOST_NAMED)
        named = f"{', '.join(mine.features[:MOST_NAMED])}{more}"
        _say("features", f"{named}; of a client whose columns have no names, their order decides")
    elif beside := lists_alone(mine.others, None):
        _say("warning", beside)
    found = settled(settings, images=mine.images)
    if settings.student is None and found.student == "none":
        _say("student", "none; a student learns from images, and one label of each")
    if settings.honest != found.honest:
        _say(
            "honest",
            f"{found.honest} clients, the quorum: the promise counts on each of them to add its "
            "share of the noise; pass --honest to count on fewer",
        )
    return found


def _checked_rounds(settings: Serve, wanted: "Asked") -> "list[Step]":
    """Return the rounds; raise ValueError if there are several that cannot follow each other."""
    from rknn_jax.federation import round_sequence

    alone = {
        "--collect-only": settings.collect_only,
        "--merge": settings.merge,
        "--question": settings.question,
        "--labels-per-record": settings.labels_per_record,
    }
    for flag, given in alone.items():
        if settings.rounds > 1 and given:
            raise ValueError(
                f"Expected no {flag} with --rounds {settings.rounds}, got {flag}; a later round "
                "needs labels, one of each public row, that this server has published. Leave out "
                "--rounds."
            )
    return round_sequence.of(settings.out, wanted, settings.rounds)


def _check_sum(settings: Serve, wanted: "Asked") -> None:
    """Check what a round with trust=central cannot do, before anybody is asked."""
    from rknn_jax.federation.secure_sum_keys import MOST_CLIENTS

    if settings.collect_only or settings.merge:
        raise ValueError(
            "Expected a round of messages with --collect-only or --merge, got --trust central; "
            "sums are taken by one server."
        )
    if not 2 <= wanted.quorum <= wanted.clients <= MOST_CLIENTS:
        raise ValueError(
            f"Expected 2 <= quorum <= clients <= {MOST_CLIENTS} with --trust central, got "
            f"--quorum {wanted.quorum} and --clients {wanted.clients}."
        )


def _merge(settings: Serve, mine: "Public", wanted: "Asked") -> dict[str, Any]:
    """Count the answers of several folders in a new one, and publish the results."""
    with progress.phase("loading"):
        from rknn_jax.federation import publish, round_folder
        from rknn_jax.federation.collector import Collector
        from rknn_jax.federation.merge import merge
    merge(settings.merge, settings.out, wanted)
    round, queries = round_folder.prepare(settings.out, mine, wanted, _say)
    with contextlib.closing(Collector(settings.out, round)) as collector:
        _say("merged", f"{collector.num_clients:,} clients of {len(settings.merge)} folders")
        card = publish.publish(
            settings.out,
            mine,
            wanted,
            queries=queries,
            collector=collector,
            tell=_say,
            accounts=settings.accounts,
        )
    round_folder.end(settings.out, round)
    return card


def _serve_held(
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
        tell=_say,
        source=settings.question,
        collects=settings.collect_only,
    )
    begun = _begun(folder, round)
    closes = round_folder.closes_at(folder, settings.deadline)
    if closes < time.time():
        _say(
            "deadline",
            f"it passed {time.time() - closes:,.0f} s ago: it counts from when the round began; "
            "pass a larger --deadline",
        )
    so_far = f"{begun.num_clients if begun else 0} of {wanted.clients} clients so far"
    _say("round", f"{round.id[:12]}, {len(round.data):,} bytes to each client; {so_far}")
    desk = Desk(round, closes)
    place.serve(desk, begun)
    with progress.phase("clients", note=lambda: _progress(desk, wanted, begun)):
        answers = _answers(folder, wanted, desk, begun)
    if settings.collect_only:
        return answers, publish.collected(answers)
    checked = None
    if round.check_share and is_last:
        labeled = publish.labeled(folder, mine, wanted, queries=queries, collector=answers)
        shown = (folder, round, labeled, wanted, answers.num_clients)
        checked = publish.Checked(labeled, checking.measure(*shown, place.serve, _say))
    card = publish.publish(
        folder,
        mine,
        wanted,
        queries=queries,
        collector=answers,
        tell=_say,
        checked=checked,
        accounts=settings.accounts,
    )
    return answers, card


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
        _say("listening", f"on {settings.host}:{gate.port}{secured}")
        if settings.metrics_port is not None:
            self._monitor = Monitor(settings.out, resources, gate)
            watched_at = listening(
                self._monitor.app, LOOPBACK, settings.metrics_port, most=CONNECTIONS
            )
            self._stack.enter_context(watched_at)
            _say("metrics", f"at http://{LOOPBACK}:{settings.metrics_port}/metrics and /health")


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
        _say(
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
        hosting.collect(desk, answers, wanted.clients, _say)
    elif answers is None:
        begin = functools.partial(round_folder.begin_sum, folder)
        answers = hosting.sum_up(desk, wanted.clients, wanted.quorum, begin=begin, tell=_say)
        keep = functools.partial(round_folder.keep_sum, folder, answers)
        hosting.when_there_is_room(keep, _say)
    else:
        desk.change(stage="closed")
    return answers


def join(settings: Join) -> dict[str, Any]:
    """Take part in a round; return the server's statement and what is left in the ledger."""
    with progress.phase("loading"):
        from rknn_jax.federation import joining
    *_, context, agreement, records = check_together(
        _needs_libraries,
        lambda: ranges.check(settings),
        lambda: _check_server(settings),
        lambda: joining.check_budget(settings),
        lambda: _secured(settings),
        lambda: joining.agreed(settings),
        lambda: joining.read_records(settings),
    )
    from rknn_jax.federation.connection import Connection
    from rknn_jax.federation.participation import take_part

    path = joining.ledger_path(settings)
    if not os.path.lexists(path):
        _say("budget", ledger_index.notice(path))
    client = joining.opened(settings, agreement, records)
    ledger = client.ledger
    assert ledger
    _say("private", f"{len(client.inputs):,} records; {ledger.remaining} left in {ledger.path}")
    _say(
        "joining",
        f"{settings.server}; waiting {settings.wait:g} s for it if it does not answer. Ctrl-C "
        "leaves, and loses nothing",
    )
    server = _url(settings.server, secured=context is not None)
    said = ["waiting for the server"]
    with (
        progress.phase("joining", note=lambda: said[-1]),
        contextlib.closing(Connection(server, context, _say, settings.wait)) as connection,
    ):

        def told(name: str, text: str) -> None:
            _say(name, text)
            said.append(name)

        outcome = take_part(client, connection, told)
    if not outcome.took_part:
        _say(
            "apart",
            "this client did not take part; see above, and rknn budget raise if it is the budget",
        )
    names = ("budget", "spent", "remaining")
    amounts = {name: getattr(ledger, name)._asdict() for name in names}
    return {
        "statement": outcome.statement,
        "ledger": {"path": str(ledger.path), **amounts},
        "exit_status": 0 if outcome.took_part else REFUSED,
    }


def _say(name: str, text: str) -> None:
    tell(err, name, text)


def _secured(settings: Join) -> ssl.SSLContext | None:
    """Return the TLS settings of a client; None without certificates."""
    from rknn_jax.federation import tls

    given = (settings.ca, settings.certificate, settings.key)
    for name, path in zip(("ca", "certificate", "key"), given, strict=True):
        if path is not None and not path.is_file():
            raise ValueError(f"Expected a file as --{name}, got {path}, which is none.")
    if not all(given):
        return None
    return tls.client_context(*filter(None, given))


def _check_server(settings: Join) -> None:
    """Check the server's address, and that certificates are given if they are needed."""
    parts = urlsplit(_url(settings.server, secured=settings.ca is not None))
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port:
        raise ValueError(f"Expected --server host:port, got --server {settings.server}.")
    given = [getattr(settings, name) for name in ("ca", "certificate", "key")]
    secured = all(path is not None for path in given)
    if not secured and (any(given) or parts.scheme == "https" or not _on_this_host(parts.hostname)):
        raise ValueError(
            "Expected --ca, --certificate and --key for a server on another host, got --server "
            f"{settings.server} without all three."
        )
    if secured and parts.scheme == "http":
        raise ValueError(
            f"Expected https for a key, got --server {settings.server}; name it host:port."
        )


def _url(server: str, *, secured: bool) -> str:
    return server if "://" in server else f"{'https' if secured else 'http'}://{server}"


def _admitted(settings: Serve) -> dict[bytes, int] | None:
    """Return the numbers of the clients that may connect, by certificate; None without TLS."""
    if (settings.certificates is None) != (settings.keys is None):
        raise ValueError(
            "Expected --certificates and --keys together: clients are known by keys, over TLS only."
        )
    _needs_libraries()
    if settings.make_test_certificates:
        from rknn_jax.federation import certificates

        certificates.check_free(settings.make_test_certificates)
        return {}
    if settings.keys is None:
        if not _on_this_host(settings.host):
            raise ValueError(
                "Expected --certificates and --keys if others can connect, got --host "
                f"{settings.host} without them."
            )
        return None
    from rknn_jax.federation.tls import read_clients

    return read_clients(settings.keys)


def _on_this_host(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _needs_libraries() -> None:
    needed = ("cryptography", "httpx", "starlette", "uvicorn")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise ValueError(
            f"Expected {', '.join(missing)} for a federation, got none installed; pip install "
            "'rknn-jax[federation]'."
        )
