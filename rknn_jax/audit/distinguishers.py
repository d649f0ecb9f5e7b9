"""Distinguishers: learned scores that tell two inputs of a mechanism apart by its outputs.

The candidates are single columns and differences of two, all columns as if they were independent,
their best linear combination, and a decision tree. If few distinct rows exist, whole rows are
candidates too. The columns for a closer look are those in which the two inputs differ most. A game
may also name columns that are always looked at, because they show rare events.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from sklearn.tree import DecisionTreeClassifier

SCREENED_RUNS = 4000
"""Number of runs of each input for the choice of columns."""

COLUMNS = 24
PAIRS = 8
ALONE = 6
"""Numbers of columns that are combined, of differences of two, and of columns used alone."""

CORRELATED = 64
MOST_CORRELATED = 1000
"""Numbers of pairs and of columns from which those differences are chosen."""

BINS = 32
OUTCOMES = 256
"""Largest number of distinct rows that are counted one by one."""

TREE_RUNS = 20_000
LEAVES = 64

Score = Callable[[np.ndarray], np.ndarray]
"""Map from views `[n, f]` to floats `[n]`, large if input 1 is likely."""


def distinguishers(
    first: np.ndarray, second: np.ndarray, names: Sequence[str] = (), always: Sequence[int] = ()
) -> list[tuple[str, Score]]:
    """Learn to tell two inputs apart.

    Args:
      first: Views of input 0, `[n, f]`.
      second: Views of input 1, `[n, f]`.
      names: Names of the columns. Defaults to "value 0" and so on.
      always: Columns to look at alone even if they seem to tell little. Defaults to none.

    Returns:
      Names and scores, large if input 1 is likely.
    """
    screened = first[:SCREENED_RUNS], second[:SCREENED_RUNS]
    ranked = _distinct(np.concatenate(screened), most_telling(*screened))
    columns = np.concatenate([np.array(always, int), ranked[~np.isin(ranked, always)][:COLUMNS]])
    a, b = correlated(*screened, ranked[:MOST_CORRELATED])
    telling = most_telling(*(rows[:, a] - rows[:, b] for rows in screened))[:PAIRS]
    pairs = a[telling], b[telling]

    def described(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([rows[:, columns], rows[:, pairs[0]] - rows[:, pairs[1]]], axis=1)

    called = [names[c] if len(names) else f"value {c}" for c in range(first.shape[1])]
    shown = [called[c] for c in columns]
    shown += [f"{called[i]} less {called[j]}" for i, j in zip(*pairs, strict=True)]
    worlds = described(first), described(second)
    laws = [_histogram(*(world[:, c] for world in worlds)) for c in range(len(shown))]
    others = most_telling(*(world[:SCREENED_RUNS] for world in worlds))
    order = [*range(len(always)), *others[others >= len(always)][:ALONE]]
    found: list[tuple[str, Score]] = []
    for c in order:
        found.append(
            (f"likelihood of {shown[c]}", partial(_likelihood, described, int(c), laws[c]))
        )
    direction = _linear(*worlds)
    tree = _tree(*(world[:TREE_RUNS] for world in worlds))
    apart = range(len(columns))
    found += [
        ("likelihood of all values apart", lambda rows: _summed(described(rows), laws, apart)),
        ("a linear combination", lambda rows: described(rows) @ direction),
        ("a decision tree", lambda rows: tree(described(rows))),
    ]
    outcomes = np.unique(np.concatenate(screened), axis=0)
    if len(outcomes) <= OUTCOMES:
        found.append(("likelihood of whole outcomes", _outcomes(first, second)))
    return found


def most_telling(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the columns by the inputs' difference in distribution function, largest first."""
    lows = np.minimum(first.min(axis=0), second.min(axis=0))
    highs = np.maximum(first.max(axis=0), second.max(axis=0))
    distance = np.abs(first.mean(axis=0) - second.mean(axis=0)) / np.where(
        highs > lows, highs - lows, 1
    )
    for c in np.flatnonzero((highs > lows) & ~_two_valued(first, second, lows, highs)):
        both = np.sort(np.concatenate([first[:, c], second[:, c]]))
        edges = both[:: max(1, len(both) // (4 * BINS))]
        shares = [
            np.searchsorted(np.sort(rows[:, c]), edges, side="right") / len(rows)
            for rows in (first, second)
        ]
        distance[c] = np.abs(shares[0] - shares[1]).max()
    return np.argsort(-distance, kind="stable")


def _distinct(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the columns without those that repeat an earlier column."""
    first_with = {rows[:, c].tobytes(): c for c in columns[::-1]}
    return np.array([c for c in columns if first_with[rows[:, c].tobytes()] == c], int)


def _two_valued(
    first: np.ndarray, second: np.ndarray, lows: np.ndarray, highs: np.ndarray
) -> np.ndarray:
    """Return a mask of the columns that hold only their smallest and their largest value."""
    either: np.ndarray = np.all(
        [((rows == lows[None]) | (rows == highs[None])).all(axis=0) for rows in (first, second)],
        axis=0,
    )
    return either


def _summed(rows: np.ndarray, laws: Sequence[Score], columns: Sequence[int]) -> np.ndarray:
    total: np.ndarray = np.sum([laws[c](rows[:, c]) for c in columns], axis=0)
    return total


def correlated(
    first: np.ndarray, second: np.ndarray, columns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of columns whose difference may tell more than either column.

    These are the most correlated pairs, as shared noise cancels; pairs that are more correlated
    under one input than under the other, such as two bits with a telling parity; and all pairs of
    the first few columns.
    """
    alike = [_alike(rows[:, columns]) for rows in (first, second)]
    chosen = [np.ravel_multi_index(np.triu_indices(min(len(columns), ALONE), 1), alike[0].shape)]
    for strength in (np.abs(alike[0] + alike[1]), np.abs(alike[0] - alike[1])):
        chosen.append(np.argsort(-strength, axis=None, kind="stable")[:CORRELATED])
    a, b = np.unravel_index(np.unique(np.concatenate(chosen)), alike[0].shape)
    return columns[a[a != b]], columns[b[a != b]]


def _alike(rows: np.ndarray) -> np.ndarray:
    """Return the correlation of each column with every later one, `[f, f]`; other entries are 0."""
    centered = rows - rows.mean(axis=0)
    length = np.linalg.norm(centered, axis=0)
    centered = centered / np.where(length > 0, length, 1)
    return np.triu(centered.T @ centered, 1)


def _likelihood(described: Score, column: int, law: Score, rows: np.ndarray) -> np.ndarray:
    return law(described(rows)[:, column])


def _histogram(first: np.ndarray, second: np.ndarray) -> Score:
    """Return the log ratio of the two inputs' frequencies, second to first, in a value's bin."""
    both = np.concatenate([first, second])
    values = np.unique(both)
    edges = (
        (values[1:] + values[:-1]) / 2
        if len(values) <= BINS
        else np.unique(np.quantile(both, np.linspace(0, 1, BINS + 1)[1:-1]))
    )
    counts = [
        np.bincount(np.searchsorted(edges, rows), minlength=len(edges) + 1) + 0.5
        for rows in (first, second)
    ]
    ratio = np.log(counts[1]) - np.log(counts[0])
    return lambda rows: ratio[np.searchsorted(edges, rows)]


def _linear(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return Fisher's direction.

    Noise that cancels in a combination leaves nearly no variance there, which makes the direction
    large.
    """
    spread = np.maximum(np.concatenate([first, second]).std(axis=0), 1e-12)
    scaled = [rows / spread for rows in (first, second)]
    within = sum(np.cov(rows, rowvar=False, ddof=0).reshape(rows.shape[1], -1) for rows in scaled)
    shift = scaled[1].mean(axis=0) - scaled[0].mean(axis=0)
    direction: np.ndarray = np.linalg.solve(within + 1e-9 * np.eye(len(shift)), shift) / spread
    return direction


def _tree(first: np.ndarray, second: np.ndarray) -> Score:
    """Return the share of input 1 in the leaf of a decision tree."""
    model = DecisionTreeClassifier(max_leaf_nodes=LEAVES, min_samples_leaf=20, random_state=0)
    model.fit(np.concatenate([first, second]), np.repeat([0, 1], [len(first), len(second)]))
    return lambda rows: model.predict_proba(rows)[:, 1]


def _outcomes(first: np.ndarray, second: np.ndarray) -> Score:
    """Return the log ratio of frequencies of whole rows; 0 for rows that were not seen."""
    rows, inverse = np.unique(np.concatenate([first, second]), axis=0, return_inverse=True)
    world = np.repeat([0, 1], [len(first), len(second)])
    counts = (
        np.array([np.bincount(inverse.ravel()[world == w], minlength=len(rows)) for w in (0, 1)])
        + 0.5
    )
    ratio = {
        row.tobytes(): value
        for row, value in zip(rows, np.log(counts[1]) - np.log(counts[0]), strict=True)
    }

    def score(seen: np.ndarray) -> np.ndarray:
        rows, inverse = np.unique(seen, axis=0, return_inverse=True)
        return np.array([ratio.get(row.tobytes(), 0.0) for row in rows])[inverse.ravel()]

    return score
