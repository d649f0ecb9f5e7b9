"""Ranges of the numbers that commands take, and paths that are URLs.

Every number of a command's settings has its range in its type, such as `epsilon: Epsilon`. `check`
refuses numbers out of range before the command begins, and URLs where a `Path` is meant: it would
take them for a folder named `s3:`, which nobody looks for.
"""

import math
import re
from dataclasses import dataclass, fields, is_dataclass
from numbers import Integral, Rational, Real
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import numpy as np

from rknn_jax._internal.option_names import option

_URL = re.compile(r"(\w+::)*[A-Za-z][A-Za-z0-9+.-]+:/")
"""Beginning of a URL, also of one behind a cache, whose slashes `Path` has made one."""


@dataclass(frozen=True)
class Range:
    """Range of a number.

    Attributes:
      low: Lower bound.
      high: Upper bound.
      remedy: Words for what to choose.
      above: True if the lower bound itself is out of range. Defaults to False.
      below: True if the upper bound itself is out of range. Defaults to False.
      whole: True if the number is whole. Defaults to False.
    """

    low: float
    high: float
    remedy: str
    above: bool = False
    below: bool = False
    whole: bool = False

    def has(self, number: float) -> bool:
        """Return whether a number is in range. NaN is in none."""
        if not self.low <= number <= self.high:
            return False
        if (self.above and number == self.low) or (self.below and number == self.high):
            return False
        return not self.whole or number == math.floor(number)

    def text(self, name: str) -> str:
        """Return the range of a number in words."""
        first = f"{self.low:g} {'<' if self.above else '<='} {name}"
        last = f"{'<' if self.below else '<='} {self.high:g}".replace("inf", "infinity")
        return f"{'a whole number ' if self.whole else ''}{first} {last}"


INFINITY = math.inf
MOST = 2**31 - 1
LEAST_EPSILON = 1e-9
"""Least epsilon of a release. Its noise, and sums of it, are far from the largest integer."""

ReleaseEpsilon = Annotated[
    float, Range(LEAST_EPSILON, INFINITY, "choose a privacy budget, such as 1", below=True)
]
Epsilon = Annotated[
    float,
    Range(0, INFINITY, "choose a finite privacy budget, such as 1", above=True, below=True),
]
ShuffledEpsilon = Annotated[float, Range(0, 50, "beyond, a message hides nothing", above=True)]
Delta = Annotated[float, Range(0, 1, "1e-5 is a common choice, 0 is pure privacy", below=True)]
PositiveDelta = Annotated[float, Range(0, 1, "1e-6 is a common choice", above=True, below=True)]
Spent = Annotated[float, Range(0, INFINITY, "name what was spent at most", below=True)]
Limit = Annotated[float, Range(0, INFINITY, "name the most that is allowed")]
Count = Annotated[int, Range(1, MOST, "choose one at least")]
CountOrNone = Annotated[int, Range(0, MOST, "choose 0 for none, or more")]
Size = Annotated[int, Range(1, 2**62, "choose one at least")]
Many = Annotated[float, Range(1, 2**62, "choose one at least, such as 1e6", below=True, whole=True)]
ManyOrNone = Annotated[float, Range(0, 2**62, "choose 0 for none, or more", below=True, whole=True)]
Runs = Annotated[float, Range(1, 1e9, "more takes days; 200000 is a common choice", whole=True)]
Votes = Annotated[int, Range(1, 20_000, "choose as many as vote")]
Threshold = Annotated[float, Range(-1e9, 1e9, "choose a number of votes")]
Noise = Annotated[float, Range(1e-6, 1e12, "no noise has no privacy, and more has no use")]
Probability = Annotated[float, Range(0, 1, "1 takes all", above=True)]
Confidence = Annotated[float, Range(0, 1, "0.9999 is a common choice", above=True, below=True)]
Deadline = Annotated[float, Range(0, 1e9, "give seconds, such as 3600", above=True)]
Seconds = Annotated[float, Range(0, INFINITY, "give seconds, such as 60; inf waits on")]
Seed = Annotated[int, Range(0, 2**32, "choose any in this range", below=True)]
AnyEpsilon = Annotated[
    float, Range(LEAST_EPSILON, INFINITY, "choose a privacy budget, such as 1; inf means none")
]
Clip = Annotated[float, Range(0, 1e9, "choose a bound above 0", above=True)]
CheckShare = Annotated[
    float, Range(0, 0.5, "choose 0 for none, or a share such as 0.05; half has to vote")
]
Share = Annotated[float, Range(0, 1, "choose a share, such as 0.1")]

ANY_WHOLE = Range(-MOST, MOST, "choose a number that a machine can use")
ANY_NUMBER = Range(-1e12, 1e12, "choose a finite number that is of use")
"""Ranges of numbers whose types have none."""

AnySeed = Annotated[int, Range(-(2**62), 2**62, "choose any in this range")]
Port = Annotated[int, Range(1, 2**16 - 1, "choose one that is free")]


def range_of(hint: Any) -> Range | None:
    """Return the range in a type, such as `Epsilon | None`, or None if it has none."""
    for part in (*getattr(hint, "__metadata__", ()), *map(range_of, get_args(hint))):
        if isinstance(part, Range):
            return part
    return None


def check(settings: Any) -> None:
    """Check the numbers of a command.

    Args:
      settings: Settings of the command, a dataclass whose fields are its flags.

    Raises:
      ValueError: If numbers are out of range. The words name each flag, its value and a remedy.
    """
    _raise(_failures(settings))


def _failures(settings: Any) -> list[str]:
    hints = get_type_hints(type(settings), include_extras=True)
    failures = []
    for name, hint in hints.items():
        value = getattr(settings, name)
        is_part = is_dataclass(value)
        failures += _failures(value) if is_part else _out_of(range_of(hint), name, value)
        failures += _urls(name, value)
    return failures


def check_parts(settings: Any) -> None:
    """Check the numbers of a program and of the parts that it is made of.

    A number whose type has no range has to be finite, and no larger than any machine can use. What
    a part is given by the program, `given`, is left to the program.

    Args:
      settings: Settings of the program, a dataclass whose fields are flags or dataclasses.

    Raises:
      ValueError: If numbers are out of range. The words name each flag, its value and a remedy.
    """
    _raise(_failures_of_parts(settings, ""))


def make_plain(settings: Any) -> None:
    """Make numbers of NumPy, and fractions, Python's own, in a frozen dataclass.

    NumPy computes with its float32 in float32, and rounds noise by 1e-7. A float becomes what its
    shortest decimal says, as ledgers charge it: 0.3 of float32 is 3/10. An array without an axis,
    as a file of arrays holds a setting, is its number: in its own type 2·3·50 might be 44. Tracers
    stay as they are.

    Args:
      settings: Dataclass, before it is used.
    """
    for one in fields(settings):
        value = getattr(settings, one.name, None)
        if isinstance(value, int | float) and type(value).__module__ == "builtins":
            continue
        value = _unwrapped(value)
        if isinstance(value, Integral):
            object.__setattr__(settings, one.name, int(value))
        elif isinstance(value, Real):
            object.__setattr__(settings, one.name, _plain_float(value))


def _unwrapped(value: Any) -> Any:
    """Return the number in an array of NumPy or JAX without an axis, and anything else as it is."""
    if getattr(value, "shape", None) != () or not hasattr(value, "__array__"):
        return value
    try:
        return np.asarray(value)[()]
    except TypeError:  # a tracer has no number yet
        return value


def _plain_float(value: Real) -> float:
    """Return a number as a float; infinity for a fraction beyond floats, which ranges refuse."""
    if not isinstance(value, Rational):
        return float(str(value))
    try:
        return float(value)
    except OverflowError:
        return math.inf if int(value.numerator) > 0 else -math.inf


def check_number(name: str, number: float, hint: Any) -> None:
    """Raise ValueError if a number is not in the range of a type, such as `Confidence`."""
    _raise(_out_of(range_of(hint), name, number))


def check_local(name: str, path: Path | None) -> None:
    """Raise ValueError if a path was meant as a URL. None is no path, and is taken."""
    _raise(_urls(name, path))


def _raise(failures: list[str]) -> None:
    if failures:
        raise ValueError(" ".join(failures))


def _failures_of_parts(settings: Any, prefix: str) -> list[str]:
    failures = []
    hints = get_type_hints(type(settings), include_extras=True)
    for one in fields(settings):
        value = getattr(settings, one.name)
        if one.name in getattr(settings, "given", ()):
            continue
        if is_dataclass(value):
            # The settings of a student's network are flags of the student itself.
            inner = prefix if one.name == "student" and prefix else f"{prefix}{one.name}."
            failures += _failures_of_parts(value, inner)
            continue
        allowed = range_of(hints[one.name])
        if allowed is None:
            allowed = ANY_WHOLE if isinstance(value, int) else ANY_NUMBER
        failures += _out_of(allowed, prefix + one.name, value)
        failures += _urls(prefix + one.name, value)
    return failures


def _out_of(allowed: Range | None, name: str, value: Any) -> list[str]:
    """Return the error for a number, or one of several, that is out of range."""
    numbers = value if isinstance(value, tuple) else (value,)
    return [
        f"Expected {allowed.text(name)}, got {option(name)} {number}; {allowed.remedy}."
        for number in numbers
        if allowed is not None
        and isinstance(number, int | float)
        and not isinstance(number, bool)
        and not allowed.has(number)
    ]


def _urls(name: str, value: Any) -> list[str]:
    """Return the error for a path that was a URL before `Path` made one slash of two."""
    return [
        f"Expected {option(name)} on a disk of this machine, got {option(name)} "
        f"{str(path).replace(':/', '://', 1)}; name another, or {path.absolute()} if that is meant."
        for path in (value if isinstance(value, tuple) else (value,))
        if isinstance(path, Path) and _URL.match(str(path))
    ]
