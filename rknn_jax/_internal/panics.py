"""What ends code of others and is no `Exception`: an exit, or a panic of a package in Rust."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Made = TypeVar("Made")


def called(function: Callable[Given, Made], *args: Given.args, **kwargs: Given.kwargs) -> Made:
    """Return `function(*args, **kwargs)`, of whatever code.

    One record must not decide whether there is a release. So whoever calls code of others on
    records catches every `Exception`, and this makes one of the rest.

    Raises:
      RuntimeError: If the function exits or panics.
    """
    try:
        return function(*args, **kwargs)
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as end:
        raise RuntimeError(f"{type(end).__name__}: {end}") from end
