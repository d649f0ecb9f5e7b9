"""Labelers that simulation alone can run.

A release and a federation take one sum over private records and read it by the methods of
`SumLabeler`. They never call `contribute` and `release`, which need all records at once.
"""

from inspect import isabstract
from typing import Any

from rknn_jax._internal.option_names import option
from rknn_jax.labelers import Labeler, named, names, overridden
from rknn_jax.labelers._sum_labeler import SumLabeler


def check(name: str) -> None:
    """Raise ValueError if there is no labeler of a name that a federation can run."""
    try:
        reason = hindrance(named(name))
    except ValueError:
        reason = "is no file of rknn_jax/labelers"
    if reason:
        able = [other for other in names() if not hindrance(named(other))]
        raise ValueError(
            f"Expected {option('labeler')} to be one of {', '.join(able)}, got {option('labeler')} "
            f"{name}, which {reason}."
        )


def hindrance(kind: type[Labeler[Any]]) -> str:
    """Return why neither a release nor a federation can run a labeler, or "" if they can.

    Args:
      kind: Class of the labeler.
    """
    if not issubclass(kind, SumLabeler):
        return "needs the private records many times, or has no exact noise"
    if own := overridden(kind):
        return f"has its own {' and '.join(own)} in place of tally and read"
    if isabstract(kind):
        return f"lacks {' and '.join(sorted(kind.__abstractmethods__))}"
    return ""
