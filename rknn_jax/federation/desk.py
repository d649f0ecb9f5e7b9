"""Desk of a round: what HTTP clients bring and wait for, and the thread that judges it.

Clients' requests are handled in the event loop of the HTTP server. The round is counted in another
thread, which takes everything that has come in one batch. So thousands of answers a second share
one write to disk, and each client hears that its answer counts only after that write.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rknn_jax.federation.collector import Reply
from rknn_jax.federation.rounds import Round

MOST_AT_ONCE = 2**12
"""Arrivals of a batch."""

PRESENT_SECONDS = 30.0
"""Longest time between two requests of a client that waits."""

Kind = Literal["answer", "refusal", "sum"]
Stage = Literal["asking", "summing", "closed"]
TAKEN: dict[Stage, tuple[Kind, ...]] = {
    "asking": ("answer", "refusal"),
    "summing": ("refusal", "sum"),
    "closed": (),
}
"""Kinds of messages that are taken at each stage of a round."""


@dataclass
class Arrival:
    """Message of a client that waits for its fate.

    Attributes:
      kind: Kind of the message.
      reply: Number of the client, round and payload.
      late: True if it came after the end of the round.
      step: Number of the step, for a message of a sum.
      fate: Future of the fate, in the event loop of the HTTP server.
    """

    kind: Kind
    reply: Reply
    late: bool
    step: int
    fate: asyncio.Future[str]


@dataclass
class Desk:
    """State of a round that clients see. It changes in the event loop alone.

    Attributes:
      round: Round that is served.
      closes: End of the round, in seconds since 1970.
      has_counted: Function that returns True if a client's answer has been counted.
      stage: Stage of the round. Defaults to asking.
      statement: Statement of what was published. Defaults to None, nothing yet.
      failure: Reason for which nothing will be published. Defaults to None.
      step: Number of the step of a sum that runs. Defaults to -1, none yet.
      invited: Numbers of the clients that have a question in that step.
      question: Function that returns a client's question in that step.
      ready: Time of each client's last request for the first step of a sum, by number.
      seen: Time of each client's last request, by number.
      told: Numbers of the clients that have been told the statement or the failure.
      dismissed: True once the server ends, so that nobody waits any longer. Defaults to False.
    """

    round: Round
    closes: float
    has_counted: Callable[[int], bool] = lambda client: False
    stage: Stage = "asking"
    statement: str | None = None
    failure: str | None = None
    step: int = -1
    invited: frozenset[int] = frozenset()
    question: Callable[[int], bytes | None] = lambda client: None
    ready: dict[int, float] = field(default_factory=dict)
    seen: dict[int, float] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    dismissed: bool = False
    _arrivals: "queue.SimpleQueue[Arrival]" = field(default_factory=queue.SimpleQueue)
    _unjudged: set[asyncio.Future[str]] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self, **values: Any) -> None:
        """Set attributes from the round's thread, and wake all clients that wait for news."""
        done = threading.Event()

        def apply() -> None:
            for name, value in values.items():
                setattr(self, name, value)
            if self.dismissed:
                for fate in self._unjudged:
                    if not fate.done():  # its client may have left
                        fate.set_result("busy")  # to come again, as nobody judges it any more
            self._news.set()
            self._news = asyncio.Event()
            done.set()

        self._call(apply)
        done.wait()

    def take(self, seconds: float) -> list[Arrival]:
        """Return all messages that have come, after a wait of at most so many seconds."""
        came: list[Arrival] = []
        with contextlib.suppress(queue.Empty):
            came.append(self._arrivals.get(timeout=max(0.0, seconds)))
            while len(came) < MOST_AT_ONCE:
                came.append(self._arrivals.get_nowait())
        return came

    def judge(self, arrivals: Sequence[Arrival], fates: Sequence[str]) -> None:
        """Tell clients the fates of their messages, from the round's thread."""

        def apply() -> None:
            for arrival, fate in zip(arrivals, fates, strict=True):
                if not arrival.fate.done():  # its client may have left
                    arrival.fate.set_result(fate)

        self._call(apply)

    def _call(self, function: Callable[[], None]) -> None:
        if self._loop is None:
            raise RuntimeError("Expected a desk with an HTTP server, got none; attach it first.")
        self._loop.call_soon_threadsafe(function)

    def has_pulse(self, seconds: float) -> bool:
        """Return True if the event loop of the HTTP server takes up work in so many seconds."""
        taken_up = threading.Event()
        self._call(taken_up.set)
        return taken_up.wait(seconds)

    def attach(self) -> None:
        """Bind the desk to the running event loop."""
        self._loop = asyncio.get_running_loop()

    def follow(self, other: "Desk") -> None:
        """Bind the desk to the event loop of another one."""
        self._loop = other._loop

    def see(self, client: int) -> None:
        """Note that a client is there."""
        self.seen[client] = time.monotonic()

    def present(self) -> set[int]:
        """Return the numbers of the clients that were there a moment ago."""
        return _recent(self.seen)

    def waiting(self) -> set[int]:
        """Return the numbers of the clients that wait for the first step of a sum."""
        return _recent(self.ready)

    async def bring(self, kind: Kind, reply: Reply, step: int = 0) -> str:
        """Bring a client's message, and return its fate."""
        if self.dismissed:
            return "busy"
        if kind not in TAKEN[self.stage]:
            return "again" if kind == "answer" and self.has_counted(reply.client) else "late"
        fate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._unjudged.add(fate)
        fate.add_done_callback(self._unjudged.discard)
        self._arrivals.put(Arrival(kind, reply, time.time() >= self.closes, step=step, fate=fate))
        return await fate

    async def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is ready, for at most so many seconds."""
        ends = time.monotonic() + seconds
        while not ready():
            left = ends - time.monotonic()
            if self.dismissed or left <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), left)
        return True


def _recent(times: dict[int, float]) -> set[int]:
    since = time.monotonic() - PRESENT_SECONDS
    # A copy, because the event loop may add clients meanwhile.
    return {client for client, seen in times.copy().items() if seen >= since}
