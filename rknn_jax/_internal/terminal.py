"""Terminal output of the command line, and parsing of whole numbers such as 1e6."""

import atexit
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import IO, NoReturn, TextIO, cast

from rich.console import Console
from rich.status import Status
from rich.text import Text

from rknn_jax._internal import progress
from rknn_jax._internal.option_names import as_flag, option, option_names
from rknn_jax._internal.progress import Event

STOPPED = 130
"""Exit status after Ctrl-C."""

UNFLUSHED = 120
"""Exit status if the last output cannot be written, as Python has it."""

SECONDS_IN_PLACE = 0.2
"""Time between two states of a phase that a terminal shows in place."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that command a terminal, begin a line, or turn the direction of the text."""

AGAIN = 1.0
"""Seconds after which Ctrl-C is raised again if it was lost."""


class Stream:
    """Standard output or error, which loses what cannot be written.

    A full disk or a closed pipe behind messages must not stop a release that is paid for. The
    program asks for the failure at its end.

    Args:
      name: Name of the stream in `sys`, which holds it when it is used.

    Attributes:
      failure: First error of the stream. None if all was written.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.failure: OSError | None = None

    @property
    def _file(self) -> TextIO:
        file = getattr(sys, self._name)
        # Rich puts a proxy in its place while it shows a status, which would print to this console.
        found: TextIO = getattr(file, "rich_proxied_file", file)
        return found

    def write(self, text: str) -> int:
        """Write what can be written, with escapes for letters that the encoding lacks."""
        encoding = self._file.encoding or "utf-8"
        with self.lossy():
            self._file.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with self.lossy():
            self._file.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    @contextmanager
    def lossy(self) -> Iterator[None]:
        """Note an error of what is printed inside, and lose all that comes."""
        try:
            yield
        except OSError as error:
            self.failure = self.failure or error
            silence(self._file)


def _console(stream: Stream) -> Console:
    # Markup is off because Rich would take "[n, f]" for a style.
    file = cast(IO[str], stream)
    return Console(file=file, markup=False, highlight=False, emoji=False, soft_wrap=True)


stdout = Stream("stdout")
err = _console(Stream("stderr"))
out = _console(stdout)


def tell(told: Console, name: str, text: str) -> None:
    """Print a line under a name."""
    told.print(Text.assemble((f"{name:<11} ", "bold cyan"), one_line(text)))


def one_line(text: str) -> str:
    """Return a text that is one line on a terminal, as its parts may be of a file or a server.

    Bytes of a file name that are not text appear as their numbers, and so do control characters,
    which would command the terminal. A line break would begin a line in the program's own voice.
    """
    plain = text.encode(errors="backslashreplace").decode()
    return CONTROL.sub(lambda one: f"\\x{ord(one.group()):02x}", plain)


class _InPlace:
    """Listener that shows the open phase in place, as long as there is one."""

    def __init__(self) -> None:
        self._status: Status | None = None

    def __call__(self, event: Event) -> None:
        shown = event.outer if event.state in ("done", "stopped") else event
        if self._status is not None and shown is not None:
            self._status.update(str(shown))
        elif self._status is not None:
            self._status.stop()
            self._status = None
        elif shown is not None:
            self._status = err.status(str(shown))
            self._status.start()


class _ByLine:
    """Listener that prints a line while a phase goes on, if it says something new."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, event: Event) -> None:
        if event.state == "running" and str(event) != self._said:
            self._said = str(event)
            tell(err, "working", self._said)


@contextmanager
def show_progress(listener: progress.Listener | None = None) -> Iterator[None]:
    """Show on stderr how far the work inside is.

    A terminal shows it in place. A pipe, a file or a notebook gets a line every five seconds. What
    is shown is for whoever runs the work, as it may be about private records.

        with rknn_jax.show_progress():
            labeler.fit(private, labels)

    Args:
      listener: Function that gets every event instead, such as one that logs it elsewhere. Defaults
        to stderr.
    """
    if listener is not None:
        shown = progress.listening(listener)
    elif err.is_terminal:
        shown = progress.listening(_InPlace(), SECONDS_IN_PLACE)
    else:
        shown = progress.listening(_ByLine(), progress.SECONDS_A_LINE)
    with shown:
        yield


def whole(name: str, number: float) -> int:
    """Return a whole number >= 1 that may be written as 1e6.

    Raises:
      ValueError: If the number is not whole or below 1.
    """
    if not 1 <= number < 2**62 or number != int(number):
        raise ValueError(
            f"Expected a whole number {option(name)} >= 1, got {option(name)} {number:g}."
        )
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


def open_closed_streams() -> None:
    """Open each standard stream that is closed, as by `>&-` in a shell, as one without room.

    The next file would get the stream's number otherwise, and what is printed would end up in it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            unwritable = os.open(os.devnull, os.O_RDONLY)
            setattr(sys, name, open(unwritable, "w", closefd=False))


def silence(stream: TextIO) -> None:
    """Let a stream that cannot be written lose what it holds, and all that comes."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def run_program(program: Callable[[], int]) -> NoReturn:
    """Run a program, and end the process with its exit status, as `leave` does.

    Its progress is shown. An exception that the program does not catch is shown with its traceback,
    and ends it with 1.
    """
    try:
        # On a terminal, a phase around all would be in the way of what is printed between others.
        whole = nullcontext() if err.is_terminal else progress.phase("running")
        with show_progress(), option_names(as_flag), whole:
            status = program()
    except SystemExit as end:
        status = status_of(end)
    except KeyboardInterrupt:
        status = STOPPED
    except BaseException:
        traceback.print_exc()
        status = 1
    leave(status)


def status_of(end: SystemExit) -> int:
    """Return the exit status of a SystemExit, and print its words if it has some instead."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    err.print(str(end.code))
    return 1


def leave(status: int) -> NoReturn:
    """End the process with this exit status, whatever threads still run.

    Threads of JAX and Arrow may still run, and C++ would abort the process if it tore one down.
    So nothing is torn down. Exit handlers run after success alone, not after Ctrl-C or an error.
    """
    if not status:
        with suppress(Exception):
            atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):  # full, or closed
            status = status or UNFLUSHED
    os._exit(status)
