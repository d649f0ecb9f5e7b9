"""Bounds on the votes of one person, who may have any number of records.

A record casts k·r votes for different cells. A person's votes are weighted so that they move the
totals no more than a record's do. Then every mechanism, calibrated for records, protects persons,
with the number of persons in place of the number of records. There are three bounds:

- `shared`: all records of a person, j of them, count 1/j each.
- `limited`: at most m of a person's records are drawn, and count 1/m each.
- `clipped`: the votes of all records are scaled to the L2 norm of a record's, for Gaussian noise.

**Proof.** The weights of a person's records are at most 1 in sum. A record adds its weight to k·r
different cells. So a person adds at most 1 to a cell and at most k·r in all, which is what a record
of weight 1 adds at most: the L1 norm is at most k·r. As no cell gets more than 1, the squared L2
norm is at most the L1 norm. Both are the sensitivities of a record. A person's weights depend on
that person's records alone, so that a neighboring data set changes the votes of one person. But a
person may change many cells by fractions, where a record changes 2k·r cells by 1. So no accountant
may count single cells, and what is charged is known by its epsilon alone (`as_person`).

With `clipped`, a person's votes are nonnegative and have an L2 norm of at most √(k·r), a record's.
Two such vectors have a nonnegative product, so their difference has a norm of at most √(2k·r), as
the votes of two records that disagree. Gaussian noise needs no more (concentrated DP, whichever
cells change). j records at j different queries weigh 1/√j each, where sharing leaves them 1/j.

**Choice.** Sharing leaves at least as much of a person's vote: j records that agree on a query have
weight 1 in all, where min(j, m) drawn ones have min(j, m)/m. Clipping leaves at least as much
as sharing, so Gaussian noise takes it. Limiting is for comparison with other systems, and if a
person with many records should count for more than one with few.

Weights are integers on a public grid, because exact noise is drawn on integers.

Reference: Wilson et al., "Differentially Private SQL with Bounded User Contribution", 2020.
"""

import math
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import numpy as np

from rknn_jax.privacy.events import Concentrated, Event, Pure, known_of_all
from rknn_jax.privacy.guarantee import Guarantee

Protected = Literal["record", "person"]
"""Privacy unit of a labeler or a central mechanism."""

PROTECTED: tuple[Protected, ...] = get_args(Protected)

GRID = 720_720
"""Weight of a person who shares, in units; it is divisible by 1 to 16."""


SIMULATED_GRID = 5040
"""Weight of a person who shares, in simulations.

It is divisible by 1 to 10. float32 holds the sums of 3,000 persons exactly.
"""


class Weights(NamedTuple):
    """Weights of records.

    Attributes:
      units: int64 `[n]`.
      grid: Most units of a person, a public number.
    """

    units: np.ndarray
    grid: int


def shared(person: np.ndarray, grid: int = GRID) -> Weights:
    """Weigh all records of a person alike, up to one unit.

    Args:
      person: Number of each record's person, int `[n]`, from 0 on without gaps.
      grid: Units of a person, public. Defaults to `GRID`.
    """
    records = np.maximum(np.bincount(person), 1)[person]
    units = grid // records + (_place_within(person) < grid % records)
    return Weights(units.astype(np.int64), grid)


def limited(person: np.ndarray, names: np.ndarray, most: int, seed: int = 0) -> Weights:
    """Draw at most `most` records of each person.

    The draw depends on the seed, the person's name, and the order of that person's own records.
    Other persons' records change nothing in it.

    Args:
      person: Number of each record's person, int `[n]`, from 0 on without gaps.
      names: Name of each record's person as numbers, uint64 `[n]`, the same whatever other persons
        there are.
      most: Most records m of a person, public.
      seed: Seed of the draw, public. Defaults to 0.

    Raises:
      ValueError: If m is below 1.
    """
    if most < 1:
        raise ValueError(f"Expected at least 1 record of a person, got {most}.")
    place = _place_within(person)
    luck = _mixed(_mixed(names ^ _mixed(np.full(1, seed, np.uint64))) + place.astype(np.uint64))
    order = np.lexsort((place, luck, person))
    drawn = np.zeros(len(person), np.int64)
    drawn[order] = _place_within(person[order]) < most
    return Weights(drawn, most)


def weighed_votes(cells: np.ndarray, weights: Weights, num_cells: int) -> np.ndarray:
    """Sum the records' votes by their weights.

    Args:
      cells: Votes of each record, int `[n, k·r]`, for different cells.
      weights: Weights of the records.
      num_cells: Number of cells d.

    Returns:
      int64 `[num_cells]`, in units of the weights' grid.

    Raises:
      OverflowError: If the sum is beyond 2^53.
    """
    if int(weights.units.sum(dtype=object)) * cells.shape[1] > 2**53:
        raise OverflowError("The sum of the votes is beyond 2^53; use a coarser grid.")
    units = np.repeat(weights.units.astype(np.float64), cells.shape[1])
    # float64 holds every partial sum exactly.
    return np.bincount(cells.ravel(), units, num_cells).astype(np.int64)


def shared_votes(
    cells: np.ndarray, person: np.ndarray, num_cells: int, grid: int = GRID
) -> np.ndarray:
    """Sum the votes of persons whose records share a vote.

    Only records that vote share. Records that miss some of their votes leave the rest unused.

    Args:
      cells: Votes of each record, int `[n, k·r]`, for different cells; negative if a vote is
        missing.
      person: Number of each record's person, int `[n]`, from 0 on.
      num_cells: Number of cells d.
      grid: Units of a person, public. Defaults to `GRID`.

    Returns:
      int64 `[num_cells]`, in units of the grid.
    """
    votes = (cells >= 0).any(axis=1)
    voter = np.unique(person[votes], return_inverse=True)[1]
    kept = np.where(cells[votes] < 0, num_cells, cells[votes])
    return weighed_votes(kept, shared(voter, grid), num_cells + 1)[:num_cells]


def clipped_votes(
    cells: np.ndarray, person: np.ndarray, num_cells: int, grid: int = GRID
) -> np.ndarray:
    """Sum the votes of persons, each scaled to the L2 norm of a record's votes.

    Args:
      cells: Votes of each record, int `[n, k·r]`, for different cells; negative if a vote is
        missing.
      person: Number of each record's person, int `[n]`, from 0 on.
      num_cells: Number of cells d.
      grid: Units of a vote, public. Defaults to `GRID`.

    Returns:
      int64 `[num_cells]`, in units of the grid.

    Raises:
      OverflowError: If the sum is beyond 2^53.
    """
    most_squared = cells.shape[1]
    given = cells.ravel() >= 0
    places = np.repeat(person.astype(np.int64), most_squared) * num_cells + cells.ravel()
    where, counts = np.unique(places[given], return_counts=True)
    owner, cell = np.divmod(where, num_cells)
    squared = np.bincount(owner, counts.astype(np.float64) ** 2)[owner]
    scale = np.minimum(1.0, np.sqrt(most_squared / squared))
    # Rounded down, so that no norm is passed; a person within the norm keeps whole votes.
    units = np.where(scale < 1, np.floor(grid * counts * scale * (1 - 1e-12)), grid * counts)
    if units.sum() > 2**53:
        raise OverflowError("The sum of the votes is beyond 2^53; use a coarser grid.")
    return np.bincount(cell, units, num_cells).astype(np.int64)


def as_person(guarantee: Guarantee) -> Guarantee:
    """Return a record's guarantee for persons whose votes are bounded by this module.

    A person may change many cells by fractions, so no event that names single cells is left.
    """
    return replace(as_one(guarantee), unit="person")


def as_one(guarantee: Guarantee) -> Guarantee:
    """Return the guarantee with one event in place of those that name single cells.

    It is known by its epsilon alone, or by its rho of concentrated DP if all have one, such as
    Gaussian ones. With a delta of other noise, no event is left.
    """
    events: tuple[Event, ...] = ()
    if not guarantee.delta or guarantee.epsilon == math.inf:
        events = (Pure(guarantee.epsilon),)
    elif rhos := known_of_all(map(_rho, guarantee.events)):
        events = (Concentrated((2 * sum(rhos)) ** -0.5),)
    return replace(guarantee, events=events)


def _rho(event: Event) -> float | None:
    """Return the rho of concentrated DP of an event, or None if it is not known."""
    return event.rho if event.precision is None else event.precision / 2


def _place_within(groups: np.ndarray) -> np.ndarray:
    """Return the number of earlier entries of the same group, int64 `[n]`."""
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups) if len(groups) else np.zeros(0, np.int64)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = np.empty(len(groups), np.int64)
    place[order] = np.arange(len(groups)) - starts
    return place


def _mixed(values: np.ndarray) -> np.ndarray:
    """Mix the bits of uint64 (SplitMix64's finalizer)."""
    with np.errstate(over="ignore"):
        mixed = np.asarray(values, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
