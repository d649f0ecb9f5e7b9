"""Several checks whose errors are told together."""

from collections.abc import Callable
from typing import Any


def check_together(*checks: Callable[[], Any], error: type[ValueError] = ValueError) -> list[Any]:
    """Return the results of all checks.

    Args:
      *checks: Functions that raise ValueError if something is wrong.
      error: Type of the error. Defaults to ValueError.

    Raises:
      ValueError: Of the type `error`, with the words of all checks that fail.
    """
    results = []
    failures: dict[str, None] = {}
    for check in checks:
        try:
            results.append(check())
        except ValueError as failure:
            failures[str(failure)] = None
    if failures:
        raise error(" ".join(failures))
    return results
