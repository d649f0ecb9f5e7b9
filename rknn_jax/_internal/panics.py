"""Code of others: its ends that are no `Exception`, and what it does to the program's arithmetic.

Such an end is an exit, or a panic of a package in Rust.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from rknn_jax._internal.arithmetic import quiet

Given = ParamSpec("Given")
Made = TypeVar("Made")


def called(function: Callable[Given, Made], *args: Given.args, **kwargs: Given.kwargs) -> Made:
    """Return `function(*args, **kwargs)`, of whatever code.

    One record must not decide whether there is a release. So whoever calls code of others on
    records catches every `Exception`, and this makes one of the rest. Errors of rounding that the
    function turns on are off again afterwards.

    Raises:
      RuntimeError: If the function exits or panics.
    """
    try:
        with quiet():
            return function(*args, **kwargs)
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as end:
        raise RuntimeError(f"{type(end).__name__}: {end}") from end
