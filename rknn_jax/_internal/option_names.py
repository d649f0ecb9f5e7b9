"""Names of settings in messages, as the door writes them through which the user came.

A message names a setting by its field, `f"Expected {option('epsilon')} <= 50"`. In Python that
reads `epsilon`, on a command line `--epsilon`, and a door with other names brings its own. So a
message is written once, where it arises, and nobody edits it later.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_write: ContextVar[Callable[[str], str]] = ContextVar("write", default=str)


def option(field: str) -> str:
    """Return the name of a setting for a message.

    Args:
      field: Name of the settings' field, such as `private_labels`.
    """
    return _write.get()(field)


def current_names() -> Callable[[str], str]:
    """Return the function that writes names here, for other threads and processes."""
    return _write.get()


def as_flag(field: str) -> str:
    """Return the name of a field on a command line."""
    return f"--{field.replace('_', '-')}"


@contextmanager
def option_names(write: Callable[[str], str]) -> Iterator[None]:
    """Let a door write the names of settings, within this context and its thread.

    Args:
      write: Function from a field to its name at the door.
    """
    token = _write.set(write)
    try:
        yield
    finally:
        _write.reset(token)
