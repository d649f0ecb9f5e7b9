"""Public columns that cannot be features by their values, or may be none, such as ids.

Private columns are never looked at. An id whose values are all different is refused. One that
repeats, as a person's does who has several rows, may be a count, so it is a warning.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from rknn_jax._internal.checks import check_together
from rknn_jax._internal.option_names import option
from rknn_jax.records.features import MOST_NAMED, embed_texts

FEWEST_IDS = 20
"""Fewest public rows among which different whole numbers are taken for an id."""

FEWEST_IN_INDEX = 5
"""Fewest public rows among which consecutive numbers are taken for an index."""

ROWS_AT_FIRST = 1000
"""Rows that are looked at first, so that most columns take no more time."""

MOST_ROWS = 10_000
"""Rows that are looked at, evenly chosen, to find an id that repeats."""

MOST_REPEATS = 10
"""Most rows a value, on average, of an id that repeats."""

FEWEST_REPEATS = 5
"""Fewest rows that repeat the one before them, if equal values stand together by no chance."""

FEWEST_EVEN = 100
"""Fewest different values, by their weights, of an id whose values are evenly spread."""

EVEN = 1.22
"""Most distance of an id's values from evenly spread ones, as Kolmogorov and Smirnov measure it.

Of evenly spread values, 10% are farther away.
"""

LAGS = 7
"""Steps within which numbers of chance are about as frequent as the same number: those of a week.
"""

BEYOND_CHANCE = 1.5
"""Times as often as by chance that the numbers of an id repeat. Days without weekends have 1.4."""

LEAST_SPREAD = 2.0
MOST_SPREAD = 3.0
"""Standard deviations by which numbers repeat less, or more numbers are there, than by chance."""

INEXACT = 2.0**24
"""Whole numbers from which on float32 does not tell all of them apart."""

LEAST_DIFFERENCE = 1e-15
"""Least distance from the mean of some value: squares of smaller float32 ones are 0 or inexact."""

FAR = 2.0
"""Times the range of all other values by which a value is far from them."""

FEWEST_OTHERS = 20
"""Fewest other values that a positive number is far from: pixels have few, and far ones."""

_TIME = re.compile(
    r"(^|.*[^a-z])(dates?|times?|timestamp|years?|months?|weeks?|days?|hours?|minutes?|seconds?|since)"
    r"([^a-z].*|$)"
)
"""Names of columns of times, whose whole numbers are measured."""

_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def no_feature() -> str:
    """Return the remedy for a column that looks like an id."""
    drop, embedding = option("drop"), option("embedding")
    return f"leave it out with {drop}, or name the features, as with {embedding}"


def refuse_values(
    rows: np.ndarray,
    names: Sequence[str],
    where: str,
    most: float,
    stored: Callable[[], Iterable[Any]],
    *,
    chosen: bool,
) -> None:
    """Raise ValueError for public columns that cannot be features by their values, all at once.

    Args:
      rows: float32 `[m, f]`, NaN for what is no number.
      names: Names of the f columns, or none if they have no names.
      where: Argument and name of the file, for the error.
      most: Largest distance from 0.
      stored: Function that returns the rows as they are stored, in blocks.
      chosen: Whether the user has named the features. Otherwise, an index or an id is refused.
    """
    finite = np.isfinite(rows)
    columns = [rows[finite[:, i], i] for i in range(len(names))]
    check_together(
        lambda: _refuse_texts(finite, names, where),
        lambda: _refuse_holes(finite, names, where),
        lambda: refuse_large(rows, names, where, most),
        lambda: refuse_small(rows, where, stored),
        lambda: None if chosen else refuse_ids(columns, names, where, no_feature()),
    )


def refuse_small(rows: np.ndarray, where: str, stored: Callable[[], Iterable[Any]]) -> None:
    """Raise ValueError for rows that differ by so little that all are as far from each other.

    Args:
      rows: float32 `[m, f]`; what is not finite is left out.
      where: Argument and name of the file, for the error.
      stored: Function that returns the rows as they are stored, in blocks.
    """
    if not len(rows):
        return
    with np.errstate(invalid="ignore"):
        ranges = np.fmax.reduce(rows, axis=0) - np.fmin.reduce(rows, axis=0)
    differ = float(np.max(ranges[np.isfinite(ranges)], initial=0.0))
    if 0 < differ < LEAST_DIFFERENCE:
        raise ValueError(
            f"Expected embeddings in {where} that differ by at least {LEAST_DIFFERENCE:g}, got "
            f"{differ:g} at most; multiply the public and the private ones by the same number."
        )
    if not differ and _differ(stored()):
        raise ValueError(
            f"Expected embeddings in {where} that differ in float32, got rows that do in their own "
            "type alone; subtract the same numbers from the public and the private ones, and "
            "multiply both by another."
        )


def _differ(blocks: Iterable[Any]) -> bool:
    """Return whether rows of any type are not all the same."""
    first = None
    for block in blocks:
        cells = np.asarray(block, np.float64)
        first = cells[:1] if first is None else first
        if (cells != first).any():
            return True
    return False


def _refuse_texts(finite: np.ndarray, names: Sequence[str], where: str) -> None:
    """Raise ValueError for columns without any number, which hold text."""
    holds = np.asarray(finite.any(axis=0))
    texts = [name for name, some in zip(names, holds, strict=False) if not some]
    if texts:
        raise ValueError(
            f"Expected numbers in {where}, got {texts[:MOST_NAMED]} without a number in any row; "
            f"{embed_texts()}."
        )


def _refuse_holes(finite: np.ndarray, names: Sequence[str], where: str) -> None:
    """Raise ValueError for rows with a value that is not finite."""
    some = np.asarray(finite.any(axis=0)) if names else np.ones(finite.shape[1], bool)
    holes = ~finite & some
    if holes.any():
        columns: np.ndarray = holes.any(axis=0)
        named = [name for name, hole in zip(names, columns, strict=False) if hole]
        what = f" in {named[:MOST_NAMED]}" if named else ""
        out = f", or leave the columns out with {option('drop')}" if named else ""
        raise ValueError(
            f"Expected finite embeddings in {where}, got NaN, infinity or text{what}, first in row "
            f"{int(np.argmax(holes.any(axis=1)))}; remove or repair such rows{out}."
        )


def refuse_large(rows: np.ndarray, names: Sequence[str], where: str, most: float) -> None:
    """Raise ValueError for finite values that are too far from 0.

    Args:
      rows: float32 `[m, f]`.
      names: Names of the f columns, or none if they have no names.
      where: Argument and name of the file, for the error.
      most: Largest distance from 0.
    """
    if np.fmax.reduce(rows, axis=None) <= most and np.fmin.reduce(rows, axis=None) >= -most:
        return
    with np.errstate(invalid="ignore"):
        large = np.isfinite(rows) & (np.abs(rows) > most)
    if large.any():
        named = [name for name, one in zip(names, large.any(axis=0), strict=False) if one]
        what = f" in {named[:MOST_NAMED]}" if named else ""
        raise ValueError(
            f"Expected embeddings within {most:g} of 0 in {where}, got larger{what}, first in row "
            f"{int(np.argmax(large.any(axis=1)))}; rescale them."
        )


def find_ids(columns: Iterable[np.ndarray], names: Sequence[str]) -> list[str]:
    """Return the names of public columns that look like an index or an id.

    An index is the numbers from one to another, each once, in any order. An id is another whole
    number in every row, in at most half of the columns, since counts of many things are all
    different too. A column that is named like one of times is none.

    Args:
      columns: Finite values of each column of numbers, at most one a row.
      names: Names of the columns.
    """
    held = list(columns)
    different = [_is_different(values) for values in held]
    ids = 2 * sum(different) <= len(names)
    return [
        name
        for name, values, is_different in zip(names, held, different, strict=True)
        if is_different
        and (
            np.ptp(values) == len(values) - 1
            or (ids and len(values) >= FEWEST_IDS and not _is_time(name))
        )
    ]


def _is_time(name: str) -> bool:
    """Return whether a column is named like one of times.

    >>> [name for name in ("days_since_2010", "admissionDate", "birthday", "a") if _is_time(name)]
    ['days_since_2010', 'admissionDate']
    """
    return _TIME.match(_CAPITAL.sub("_", name).lower()) is not None


def _is_different(values: np.ndarray) -> bool:
    """Return whether a column has another whole number in every row."""
    first = values[:ROWS_AT_FIRST]
    for some in (first, values) if len(values) > len(first) else (values,):
        if np.any(some != np.round(some)) or len(np.unique(some)) < len(some):
            return False
    return len(values) >= FEWEST_IN_INDEX


def refuse_ids(
    columns: Iterable[np.ndarray], names: Sequence[str], where: str, remedy: str
) -> None:
    """Raise ValueError if a public column looks like an index or an id among others.

    Args:
      columns: Finite values of each column of numbers.
      names: Names of the columns, or none if they have no names.
      where: Argument and name of the file, for the error.
      remedy: How to leave it out, and what to do if it is a feature, for the error.
    """
    ids = find_ids(columns, names) if len(names) > 1 else []
    if ids:
        raise ValueError(
            f"Expected features in {where}, got {ids[:MOST_NAMED]} with another whole number in "
            f"every row, as an id has or an index, which would decide every distance; {remedy}."
        )


def doubted(
    columns: Iterable[np.ndarray], names: Sequence[str], remedy: str | None = None
) -> Iterator[str]:
    """Yield which public columns may be ids that repeat, are inexact, or have a missing number.

    An id repeats in few rows, and its values are evenly spread, as numbers that are given in turn
    or at random, or its equal values stand together, as the rows of a person do. Measured numbers
    lie close to each other in the middle of their range, or repeat as by chance, as days do.

    Args:
      columns: Finite values of each column of numbers.
      names: Names of the columns, or none if they have no names.
      remedy: How to leave a column out, and what to do if it is a feature. Defaults to that of the
        commands.
    """
    if len(names) < 2:
        return
    held = dict(zip(names, columns, strict=True))
    for name in held:
        if text := stand_in(held[name], FEWEST_OTHERS):
            yield f"{[name]} {text}"
    why = {name: _doubt(values, is_time=_is_time(name)) for name, values in held.items()}
    told = {name: text for name, text in why.items() if text}
    if 2 * len(told) > len(names):  # columns of one kind are features
        return
    for text in dict.fromkeys(told.values()):
        same = [name for name, other in told.items() if other == text]
        yield f"{same[:MOST_NAMED]} {text}; if it is an id, {remedy or no_feature()}"


def stand_in(values: np.ndarray, fewest: int = 2) -> str:
    """Return that a number of a public column may stand for a missing one, or "" for nothing.

    Such a number, as -999, is the least or the greatest, repeats, and is far from all others.

    Args:
      values: Finite values of the column.
      fewest: Fewest different other values if the number is positive. Defaults to 2.
    """
    distinct, counts = np.unique(values, return_counts=True)
    for edge, others in ((0, distinct[1:]), (-1, distinct[:-1])):
        value = distinct[edge] if len(distinct) else 0
        if value == 0 or counts[edge] < 2 or len(others) < (2 if value < 0 else fewest):
            continue
        if np.abs(others - value).min() > FAR * (others[-1] - others[0]):
            return (
                f"is {value:g} in {counts[edge]:,} of {len(values):,} rows, far from all other "
                f"values ({others[0]:g} to {others[-1]:g}); if it stands for a missing number, "
                f"leave such fields empty on both sides{_lost_zeros(distinct) if edge == 0 else ''}"
            )
    return ""


def _lost_zeros(distinct: np.ndarray) -> str:
    """Return what to do if positive whole numbers are codes of which the least lost its zeros."""
    if distinct[0] <= 0 or np.any(distinct != np.round(distinct)):
        return ""
    short, long = (str(int(value)) for value in distinct[[0, -1]])
    if len(short) == len(long):
        return ""
    code = short.zfill(len(long))
    return (
        f"; if these are codes such as {code} that lost their zeros, read them as text, in pandas "
        "by dtype=str, and make categories of them by rknn embed --table"
    )


def _doubt(values: np.ndarray, *, is_time: bool) -> str:
    """Return what looks like an id in a public column, or "" for nothing."""
    some = values[:: 1 + len(values) // MOST_ROWS].astype(np.float64)
    if len(some) < FEWEST_IDS or np.any(some != np.round(some)):
        return ""
    if np.abs(some).min() >= INEXACT:
        return f"holds whole numbers beyond {INEXACT:,.0f}, of which float32 makes several one"
    distinct, counts = np.unique(some, return_counts=True)
    weight = len(some) ** 2 / np.square(counts).sum()
    if MOST_REPEATS * len(distinct) < len(some) or weight < FEWEST_IDS or is_time:
        return ""
    steps = np.diff(some)
    is_sorted = np.all(steps >= 0) or np.all(steps <= 0)
    if (is_sorted or weight >= FEWEST_EVEN) and _by_chance(distinct, counts):
        return ""
    if 1 + np.count_nonzero(steps) == len(distinct) <= len(some) - FEWEST_REPEATS:
        return "repeats whole numbers whose rows stand together, as an id of several rows does"
    if weight >= FEWEST_EVEN and _unevenness(distinct, counts) * np.sqrt(weight) <= EVEN:
        return "repeats whole numbers that are evenly spread, as an id of several rows does"
    return ""


def _by_chance(distinct: np.ndarray, counts: np.ndarray) -> bool:
    """Return whether whole numbers repeat as often as those drawn at random near each other.

    Of numbers drawn at random, two are equal about as often as they differ by one step. The rows of
    a person have one number, and that of another person is no more frequent for being near.
    """
    places = (distinct - distinct[0]).astype(np.int64)
    places //= np.gcd.reduce(np.diff(places))
    size = int(places[-1]) + 1
    equal = float(np.dot(counts, counts - 1))
    near = np.mean(
        [_pairs(places, counts, lag) * size / (size - lag) for lag in range(1, 1 + LAGS)]
    )
    spread = np.sqrt(2 * near)
    if not near - LEAST_SPREAD * spread <= equal <= BEYOND_CHANCE * near + MOST_SPREAD * spread:
        return False
    share = np.exp(-counts.sum() / size)  # of the numbers that chance leaves out
    variance = size * share * (1 - (1 - np.log(share)) * share)
    return bool(len(distinct) <= size * (1 - share) + MOST_SPREAD * np.sqrt(variance))


def _pairs(places: np.ndarray, counts: np.ndarray, lag: int) -> float:
    """Return how many pairs of numbers differ by so many steps."""
    _, first, second = np.intersect1d(places, places - lag, return_indices=True)
    return float(np.dot(counts[first], counts[second]))


def _unevenness(distinct: np.ndarray, counts: np.ndarray) -> float:
    """Return the most distance of a distribution of whole numbers from that of equal shares."""
    shares = np.cumsum(counts) / counts.sum()
    first, last = distinct[0], distinct[-1]
    even = (distinct - first + 1) / (last - first + 1)
    return float(np.abs(shares - even).max())
