"""Neighboring inputs of mechanisms, for audits.

Inputs are drawn at random over all cells. One record moves to other queries, gets other labels,
does both, loses some or all of its votes, or is absent. The record stands with a few others of the
same votes, in a crowd of the same votes, or in a crowd of any votes: a mechanism's behavior may
depend on a count.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

MOST_PAIRS = 24
"""Largest number of pairs of records that replace each other; each is played in every crowd.

Up to this limit, there are enough pairs for every cell to be voted for.
"""

SEVERAL = 4
"""Smallest number of pairs: one of each kind of change."""


def changes(rng: np.random.Generator, mechanism: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield pairs of votes of one record and of its replacement, int32 `[k·r]` each.

    In turn: other queries, other labels of the same queries, some votes of either, and none.
    Together they vote for every cell, or for as many as `MOST_PAIRS` pairs can.
    """
    s = mechanism.num_queries
    c = mechanism.num_classes
    left = list(rng.permutation(s * c))
    for number in range(MOST_PAIRS):
        if not left and number >= SEVERAL:
            return
        kind = number % 4
        first = _record(rng, mechanism, left.pop() if left else int(rng.integers(s * c)))
        second = np.full_like(first, -1)
        if kind == 1 and mechanism.labels_per_record < c:
            second = (first // c * c + (first % c + rng.integers(1, c)) % c).astype(np.int32)
        elif kind != 3:
            second = _record(rng, mechanism, left.pop() if left else int(rng.integers(s * c)))
        if kind == 2 and len(first) > 1:
            first = _thinned(rng, first)
            second = _thinned(rng, second)
        if (np.sort(first) == np.sort(second)).all():
            second = np.full_like(first, -1)
        left = [cell for cell in left if cell not in first and cell not in second]
        yield first, second


def inputs(mechanism: Any) -> list[np.ndarray]:
    """Return every input of up to k·r votes, int `[k·r]` each.

    Missing votes are last and negative.
    """
    most = mechanism.votes_per_record
    return [
        np.array([*cells, *[-1] * (most - count)])
        for count in range(most + 1)
        for cells in itertools.combinations(range(mechanism.num_cells), count)
    ]


def _record(rng: np.random.Generator, mechanism: Any, cell: int) -> np.ndarray:
    """Return the votes of a random record that votes for a cell, int32 `[k·r]`."""
    c = mechanism.num_classes
    r = mechanism.labels_per_record
    others = rng.permutation(np.delete(np.arange(mechanism.num_queries), cell // c))[
        : mechanism.num_neighbors - 1
    ]
    labels = np.append(rng.permutation(np.delete(np.arange(c), cell % c))[: r - 1], cell % c)
    near = np.append(others, cell // c)
    return np.sort(np.ravel(near[:, None] * c + labels[None])).astype(np.int32)


def _thinned(rng: np.random.Generator, votes: np.ndarray) -> np.ndarray:
    """Return votes of which about half are missing, but neither none nor all."""
    missing = rng.random(len(votes)) < 0.5
    missing[rng.permutation(len(votes))[:2]] = (True, False)
    return np.where(missing, -1, votes).astype(np.int32)


def crowds(
    rng: np.random.Generator, mechanism: Any, votes: np.ndarray, most: int
) -> list[np.ndarray]:
    """Return tables of other records: a few with the same votes, many with them, and any.

    Tables are int32 `[most, k·r]` each, of one shape, so that one program serves all. Rows of -1
    cast no vote.
    """
    few = int(rng.integers(1, 4))
    many = int(np.exp(rng.uniform(np.log(12), np.log(max(most, 13)))))
    rows = np.arange(most)[:, None]
    alike = [
        np.where(rows < min(size, most), votes[None], -1).astype(np.int32) for size in (few, many)
    ]
    cells = rng.integers(mechanism.num_cells, size=most)
    anything = np.stack([_record(rng, mechanism, int(cell)) for cell in cells[: min(most, many)]])
    thin = (
        rng.random(anything.shape) < 0.1
        if anything.shape[1] > 1
        else np.zeros(anything.shape, bool)
    )
    padding = np.full((most - len(anything), anything.shape[1]), -1, np.int32)
    return [*alike, np.concatenate([np.where(thin, -1, anything), padding]).astype(np.int32)]


def crowd_words(others: np.ndarray) -> str:
    """Return words for a table of other records."""
    voting = others[(others >= 0).any(axis=1)]
    alike = (voting == voting[:1]).all()
    return f"{len(voting)} for {cell_words(voting[0])}" if alike else f"{len(voting)} for any cells"


def cell_words(cells: np.ndarray) -> str:
    """Return words for the cells that a record votes for."""
    named = [str(cell) for cell in np.sort(cells) if cell >= 0]
    return (
        f"cells {', '.join(named)}" if len(named) > 1 else f"cell {named[0]}" if named else "none"
    )
