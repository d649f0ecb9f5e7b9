"""Progress of long work: phases that count their steps, and listeners that are told of them.

Work opens a phase and counts its steps:

    with progress.phase("training dti", epochs, "epochs") as done:
        for epoch in range(epochs):
            ...
            done.advance()

Whoever listens gets an `Event` when a phase begins and ends, and every few seconds between. Without
a listener a phase only counts. A step is counted in memory and nothing else, so that a hot loop may
count, and a call that never returns to Python is still told of.

Events say how much work there is. Number the steps of a phase over private records only where
their number is public: under add-remove it is not, nor under persons. Such a phase has no steps.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rknn_jax._internal import memory

SECONDS_A_LINE = 5.0
"""Time between two events of a phase that goes on."""

MANY_SECONDS = 120
MANY_MINUTES = 120
"""From so many on, a time is told in minutes, and in hours."""


@dataclass(frozen=True)
class Event:
    """State of a phase.

    Attributes:
      phase: Name of the phase.
      state: Whether it has begun, goes on, is done, or was stopped by an error or Ctrl-C.
      step: Number of steps done.
      steps: Number of all steps. None if it is unknown, or private.
      unit: Name of the steps, such as epochs.
      seconds: Time since the phase began.
      left: Time that the other steps will take, in seconds. None if it cannot be told.
      checkpoint: Place from which the work resumes if it is stopped. None if there is none.
      memory: Bytes of memory that this process holds. None if the system does not tell.
      note: What else is to say, in place of times. None if there is nothing.
      outer: State of the phase that this one is a part of. None if there is none.
    """

    phase: str
    state: Literal["begun", "running", "done", "stopped"]
    step: int
    steps: int | None
    unit: str
    seconds: float
    left: float | None
    checkpoint: str | None
    memory: int | None
    note: str | None
    outer: "Event | None"

    def __str__(self) -> str:
        """Return the state in words, after that of the phases around it that count steps."""
        around = f"{self.outer} · " if self.outer is not None and self.outer._counts() else ""
        if self.note is not None:
            return f"{around}{self.phase}: {self.note}"
        if self.steps is None:
            return f"{around}{self.phase}, for {duration(self.seconds)}"
        share = f" ({self.step / self.steps:.0%})" if self.steps else ""
        told = f"{around}{self.phase}: {self.step:,} of {self.steps:,} {self.unit}{share}"
        if self.left is None:
            return f"{told}, for {duration(self.seconds)}"
        return f"{told}, {duration(self.left)} left"

    def _counts(self) -> bool:
        return self.steps is not None or (self.outer is not None and self.outer._counts())

    def asdict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values, with the names of the phases around it."""
        names: list[str] = []
        outer = self.outer
        while outer is not None:
            names.insert(0, outer.phase)
            outer = outer.outer
        return asdict(self) | {"outer": names}


Listener = Callable[[Event], None]


class Phase:
    """Part of long work.

    Args:
      name: Name of the phase.
      steps: Number of all steps. None if it is unknown, or private.
      unit: Name of the steps.
      done: Number of steps that an earlier run has done.
      note: Function to what else is to say. None if there is nothing.
      outer: Phase that this one is a part of. None if there is none.
    """

    def __init__(
        self,
        name: str,
        steps: int | None,
        unit: str,
        done: int,
        note: Callable[[], str] | None,
        outer: "Phase | None",
    ) -> None:
        self.name = name
        self._steps = steps
        self._unit = unit
        self._step = done
        self._note = note
        self._outer = outer
        self._began = time.monotonic()
        self._first: tuple[float, int] | None = None
        self._checkpoint: str | None = None

    def advance(self, steps: int = 1) -> None:
        """Count steps."""
        self._step += steps
        # The first steps compile, so that the others tell how long a step takes.
        self._first = self._first or (time.monotonic(), self._step)

    def kept(self, place: object) -> None:
        """Note that the work resumes here if it is stopped now."""
        self._checkpoint = str(place)

    def event(self, state: Literal["begun", "running", "done", "stopped"]) -> Event:
        """Return the state of the phase."""
        return Event(
            self.name,
            state,
            step=self._step,
            steps=self._steps,
            unit=self._unit,
            seconds=round(time.monotonic() - self._began, 3),
            left=self._left(),
            checkpoint=self._checkpoint,
            memory=memory.taken(),
            note=self._note and self._note(),
            outer=None if self._outer is None else self._outer.event("running"),
        )

    def _left(self) -> float | None:
        if self._steps is None or self._first is None or not self._step:
            return None
        since, counted = self._first
        pace = time.monotonic() - since
        if self._step == counted:  # nothing but the first steps
            since, counted = self._began, 0
            pace = time.monotonic() - since
        return round(max(self._steps - self._step, 0) * pace / (self._step - counted), 3)


class _Monitor:
    """Phases that are open, and those who listen to them."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.open: list[Phase] = []
        self.lock = threading.Lock()  # a listener is told nothing of a phase that has ended

    def tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)


_monitor: ContextVar[_Monitor | None] = ContextVar("monitor", default=None)


@contextmanager
def phase(
    name: str,
    steps: int | None = None,
    unit: str = "steps",
    *,
    done: int = 0,
    note: Callable[[], str] | None = None,
) -> Iterator[Phase]:
    """Open a phase for what runs inside.

    Args:
      name: Name of the phase, which says what is done: "clustering 1,000 public rows".
      steps: Number of all steps. Defaults to unknown.
      unit: Name of the steps, such as epochs. Defaults to steps.
      done: Number of steps that an earlier run has done. Defaults to 0.
      note: Function to what else is to say, in place of times, for work that waits for others. A
        line is printed when it changes. Defaults to none.

    Yields:
      The phase, to count its steps.
    """
    monitor = _monitor.get() or _Monitor()
    outer = monitor.open[-1] if monitor.open else None
    own = Phase(name, steps, unit, done=done, note=note, outer=outer)
    state: Literal["done", "stopped"] = "stopped"
    with monitor.lock:
        monitor.open.append(own)
        monitor.tell(own.event("begun"))
    try:
        yield own
        state = "done"
    finally:
        with monitor.lock:
            monitor.open.remove(own)
            monitor.tell(own.event(state))


@contextmanager
def hidden() -> Iterator[None]:
    """Tell nobody of the phases inside, whose steps say how many private records there are."""
    token = _monitor.set(None)
    try:
        yield
    finally:
        _monitor.reset(token)


@contextmanager
def listening(listener: Listener, seconds: float = SECONDS_A_LINE) -> Iterator[None]:
    """Tell a listener of all phases that this thread opens inside.

    Args:
      listener: Function of an event. It is called when a phase begins and ends, and by a thread of
        its own while a phase goes on.
      seconds: Time between two events of a phase that goes on. Defaults to `SECONDS_A_LINE`.
    """
    monitor = _monitor.get() or _Monitor()
    token = _monitor.set(monitor)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(seconds):
            with monitor.lock:
                if monitor.open:
                    listener(monitor.open[-1].event("running"))

    thread = threading.Thread(target=watch, daemon=True)
    monitor.listeners.append(listener)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        monitor.listeners.remove(listener)
        _monitor.reset(token)


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(90), duration(600), duration(9000)
    ('90 s', '10 min', '2.5 h')
    """
    if seconds < MANY_SECONDS:
        return f"{seconds:.0f} s"
    if seconds < 60 * MANY_MINUTES:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
