"""Course of a round on the server: count what clients bring to its desk, and tell them the end."""

import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rknn_jax._internal.disk import is_full
from rknn_jax.federation.collector import Collector, Sum
from rknn_jax.federation.desk import Arrival, Desk
from rknn_jax.federation.gate import Rarely
from rknn_jax.federation.round_folder import Tell
from rknn_jax.federation.secure_sum_keys import MOST_CLIENTS, STEPS
from rknn_jax.federation.secure_sum_server import Summation

TICK = 1.0
SHORT_TICK = 0.1
"""Longest wait for a batch, in seconds; the short one while clients come that send nothing."""

STEP_SECONDS = 120.0
"""Longest time of each step of a sum."""

GOODBYE = 10.0
"""Seconds that the server waits until all clients that are there know the end."""

POLL = 0.02
MOST_LINES = 8
"""Clients of a batch that are told one by one."""


def collect(desk: Desk, collector: Collector, clients: int, tell: Tell) -> None:
    """Count answers until enough clients have answered, or the round closes or is sealed.

    Args:
      desk: Desk of the round, closed to answers when this returns.
      collector: Collector of the round.
      clients: Number of clients to wait for.
      tell: Function that is called with each answer, refusal and rejection.
    """
    rarely = functools.cache(lambda fate: Rarely(functools.partial(tell, fate)))
    count = functools.partial(
        _count, desk, collector, clients, refused=set[int](), tell=tell, rarely=rarely
    )
    wanted = 0 if collector.is_sealed else clients
    while collector.num_clients < wanted and (left := desk.closes - time.time()) > 0:
        count(batch=desk.take(min(left, TICK)))
    desk.change(stage="closed", has_counted=collector.clients.__contains__)
    while batch := desk.take(0):
        count(batch=batch)


def _count(
    desk: Desk,
    collector: Collector,
    clients: int,
    refused: set[int],
    batch: Sequence[Arrival],
    tell: Tell,
    rarely: Callable[[str], Rarely],
) -> None:
    """Count a batch, which is on disk before any client hears of it."""
    for late in (False, True):
        answers = [come for come in batch if come.kind == "answer" and come.late == late]
        was_full = collector.full
        fates = collector.receive([come.reply for come in answers], late=late)
        _tell_room(collector, was_full, tell)
        desk.judge(answers, fates)
        _tell_fates(answers, fates, f"{collector.num_clients} of {clients} clients", tell, rarely)
    if fresh := _note_refusals(desk, batch, refused, tell):
        collector.reject("refused by the client", fresh)


def sum_up(
    desk: Desk,
    clients: int,
    threshold: int,
    begin: Callable[[], None],
    tell: Tell,
    *,
    is_last: bool = True,
) -> Sum:
    """Add up the clients' counts and noise by secure aggregation.

    Args:
      desk: Desk of a round with trust=central, closed when this returns.
      clients: Number of clients to wait for.
      threshold: Least number of clients for a sum to be opened.
      begin: Function that is called before clients spend anything.
      tell: Function that is called with each event.
      is_last: False if something is published without this sum, so that clients are not told of a
        failure. Defaults to True.

    Raises:
      ValueError: If too few clients are ready, or if the sum could not be opened.
    """
    refused = set[int]()
    invited: list[int] = []

    def noted() -> None:
        nonlocal invited
        invited = _wait_for_clients(desk, clients, refused, tell)
        if len(invited) < threshold:
            raise ValueError(
                f"Expected {threshold} clients to be ready, got {len(invited)} by the deadline; "
                "nothing was spent, nothing is published."
            )
        begin()

    when_there_is_room(noted, tell)
    round = desk.round
    summation = Summation(round.id, round.num_cells, invited, threshold)
    try:
        while summation.step < STEPS:
            _take_step(desk, summation, refused, tell)
    except ValueError as error:
        _close(desk)
        if is_last:
            give_up(desk, str(error))
        raise
    _close(desk)
    assert summation.result is not None
    rejected = Counter({"refused by the client": len(refused)} if refused else {})
    return Sum(round, *summation.result, rejected)


def _wait_for_clients(desk: Desk, clients: int, refused: set[int], tell: Tell) -> list[int]:
    """Return the clients that are ready, once they are enough or the round closes."""
    known = set[int]()
    while True:
        ready = desk.waiting() - refused
        if fresh := ready - known:
            tell("ready", f"{_names(fresh)}; {len(ready)} of {clients} clients")
        known = ready
        if len(ready) >= clients or time.time() >= desk.closes:
            return sorted(ready)[:MOST_CLIENTS]
        batch = desk.take(SHORT_TICK)
        _note_refusals(desk, batch, refused, tell)
        _turn_away(desk, batch, "malformed")


def _take_step(desk: Desk, summation: Summation, refused: set[int], tell: Tell) -> None:
    """Ask a step of all clients, until all have answered or the time is over."""
    step = summation.step
    desk.change(
        stage="summing",
        step=step,
        invited=frozenset(summation.waiting()),
        question=summation.question,
    )
    ends = time.monotonic() + STEP_SECONDS
    while summation.waiting() - refused and (left := ends - time.monotonic()) > 0:
        batch = desk.take(min(left, TICK))
        _note_refusals(desk, batch, refused, tell)
        messages = [come for come in batch if come.kind == "sum"]
        received = [
            summation.receive(come.reply.client, come.step, come.reply.payload) for come in messages
        ]
        desk.judge(messages, received)
        _turn_away(desk, batch, "malformed")
    tell("step", f"{step + 1} of {STEPS}: {len(summation.waiting())} clients did not answer")
    # Nobody is asked while the sum advances.
    desk.change(step=step + 1, invited=frozenset())
    summation.advance()


def _close(desk: Desk) -> None:
    """Close a sum, and turn away what has come since its last step."""
    desk.change(stage="closed")
    while batch := desk.take(0):
        _turn_away(desk, batch, "late")


def _turn_away(desk: Desk, batch: Sequence[Arrival], fate: str) -> None:
    """Tell a fate to those of a sum's batch that nobody has judged, such as answers with messages.

    Otherwise they would wait until the end, and hold the room of others' messages.
    """
    desk.judge(batch, [fate] * len(batch))


def _tell_room(collector: Collector, was_full: Path | None, tell: Tell) -> None:
    """Tell the owner if the disk has become full, or has room again."""
    if collector.full and not was_full:
        tell("no room", f"for answers in {collector.full}: clients come again until there is some")
    elif was_full and not collector.full:
        tell("room", f"for answers in {was_full} again")


def when_there_is_room(write: Callable[[], None], tell: Tell) -> None:
    """Write what clients wait for or have paid for, as soon as the disk has room for it.

    Args:
      write: Function that writes a file, whole or not at all.
      tell: Function that is called if there is no room.
    """
    told = False
    while True:
        try:
            write()
        except OSError as error:
            if not is_full(error):
                raise
            if not told:
                tell("no room", f"for {error.filename}: make some; clients wait for it")
            told = True
            time.sleep(TICK)
        else:
            return


def _note_refusals(desk: Desk, batch: Sequence[Arrival], refused: set[int], tell: Tell) -> int:
    """Note refusals of a batch, and return the number of clients that had not refused before."""
    refusals = [come for come in batch if come.kind == "refusal"]
    fresh = {come.reply.client for come in refusals} - refused
    if fresh:
        refused |= fresh
        tell("refused", f"by {_names(fresh)}")
    desk.judge(refusals, ["refused"] * len(refusals))
    return len(fresh)


def announce(desk: Desk, statement: str, clients: int = 0) -> None:
    """Tell the clients the result of the round, and wait a little for them.

    Args:
      desk: Desk of the round.
      statement: Statement of what was published.
      clients: Number of clients to wait for, beside those that are there. After a restart, clients
        that were counted before are on their way back. Defaults to 0.
    """
    desk.change(statement=statement)
    _wait_until_told(desk, clients)


def give_up(desk: Desk, failure: str) -> None:
    """Tell all clients that are there that nothing will be published, and wait a little."""
    desk.change(failure=failure, stage="closed")
    _wait_until_told(desk, 0)


def _wait_until_told(desk: Desk, clients: int) -> None:
    there = desk.present()
    ends = time.monotonic() + GOODBYE
    while (there - desk.told or len(desk.told) < clients) and time.monotonic() < ends:
        time.sleep(POLL)


def _tell_fates(
    answers: Sequence[Arrival],
    fates: Sequence[str],
    so_far: str,
    tell: Tell,
    rarely: Callable[[str], Rarely],
) -> None:
    """Tell the fates of a batch: each client once that counts, and each rejection once a minute.

    A client may be rejected any number of times.
    """
    told = list(zip(answers, fates, strict=True))
    counted = [come for come, fate in told if fate == "counted"]
    if len(counted) > MOST_LINES:
        tell("counted", f"answers of {len(counted):,} clients; {so_far}")
    else:
        for come in counted:
            tell("counted", f"{_sender(come)}; {so_far}")
    for come, fate in told:
        if fate not in ("counted", "busy"):
            rarely(fate).warn(f"{_sender(come)}; {so_far}")


def _sender(come: Arrival) -> str:
    return f"client {come.reply.client}, {len(come.reply.payload):,} bytes"


def _names(clients: set[int]) -> str:
    named = ", ".join(str(client) for client in sorted(clients)[:MOST_LINES])
    more = f" and {len(clients) - MOST_LINES:,} more" if len(clients) > MOST_LINES else ""
    return f"{'client' if len(clients) == 1 else 'clients'} {named}{more}"
