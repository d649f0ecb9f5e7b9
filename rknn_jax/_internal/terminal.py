"""Terminal output of the command line, and parsing of whole numbers such as 1e6."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rich.console import Console

STOPPED = 130
"""Exit status after Ctrl-C."""

AGAIN = 1.0
"""Seconds after which Ctrl-C is raised again if it was lost."""

# Markup is off because Rich would take "[n, f]" for a style.
err = Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)
out = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)


def tell(told: Console, name: str, text: str) -> None:
    """Print a line under a name. Bytes of a file name that are no text appear as their numbers."""
    told.print(f"{name:<11} ", style="bold cyan", end="")
    told.print(text.encode(errors="backslashreplace").decode())


def whole(name: str, number: float) -> int:
    """Return a whole number >= 1 that may be written as 1e6.

    Raises:
      ValueError: If the number is not whole or below 1.
    """
    if not 1 <= number < 2**62 or number != int(number):
        raise ValueError(f"Expected a whole number --{name} >= 1, got --{name} {number:g}.")
    return int(number)


@contextmanager
def sure_interrupts() -> Iterator[None]:
    """Make Ctrl-C stop what runs inside, also if the first exception is lost.

    Python drops an exception that is raised in a callback, such as JAX's of the garbage collector.
    The interrupt is therefore raised again after a second, until it leaves the block.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as in the background of a shell
    if ignored or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
        raise KeyboardInterrupt

    kinds = (signal.SIGINT, signal.SIGALRM)
    before = {kind: signal.signal(kind, interrupt) for kind in kinds}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for kind, handler in before.items():
            signal.signal(kind, handler)


def leave(status: int) -> NoReturn:
    """End the process. After Ctrl-C nothing is torn down, because threads of JAX may still run."""
    sys.stdout.flush()
    sys.stderr.flush()
    if status == STOPPED:
        os._exit(status)
    sys.exit(status)
