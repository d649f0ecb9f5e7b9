"""Private choice of the classes: those that enough private records or persons have.

The set of classes is an input of a release, and public. Where nobody knows it but the owners of the
records, it is selected here first, at a cost of its own: every class that occurs gets a noisy
count, and is kept if the count reaches a threshold. A class of few records stays unknown. The name
of a record's class depends on this record alone (`records.class_names`).

**Guarantee.** Each record has one class; of each person one record with a class is drawn. Let b be
the scale of the discrete Laplace noise, with 1/b = epsilon/2 under replace-one and epsilon under
add-remove, and p the probability that the count of a single record reaches the threshold T,

    p = P[1 + noise >= T] = e^(-(T - 1)/b) / (1 + e^(-1/b)).

The selection is (epsilon, delta)-DP if p <= delta. `least_threshold` returns the least such T. The
proof is in docs/method/composition.md.

OpenDP 0.16 has the same mechanism (`make_laplace_threshold`), and states P[1 + noise > T] for it,
though it keeps counts that equal T. Its delta is too small by the factor e^(1/b). The noise here is
OpenDP's, and the threshold is ours.

References: Korolova et al., "Releasing Search Queries and Clicks Privately", 2009; Wilson et al.,
"Differentially Private SQL with Bounded User Contribution", 2020, section 3.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rknn_jax.privacy import contributions, exact_noise
from rknn_jax.privacy.guarantee import Guarantee, Relation, Unit
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.records.class_names import names_of
from rknn_jax.records.persons import person_names
from rknn_jax.release.shards import Shard
from rknn_jax.release.tables import ROWS_AT_ONCE

PURPOSE = "selection of the classes"

_NUMBER = re.compile(r"[1-9]\d{0,17}", re.ASCII)

_CHANGED = {"replace-one": 2, "add-remove": 1}  # counts that a neighbor changes


class Occurrences(NamedTuple):
    """Classes that occur: private.

    Attributes:
      counts: Number of records of each class, or of persons.
    """

    counts: dict[str, int]


class Selection(NamedTuple):
    """Classes that were selected. They may be published with their guarantee.

    Attributes:
      counts: Noisy number of records, or of persons, of each selected class, in order.
      guarantee: Guarantee of names and counts together.
    """

    counts: dict[str, int]
    guarantee: Guarantee


def occurrences(shards: Sequence[Shard], unit: Unit, seed: int = 0) -> Occurrences:
    """Count the records of each class, or the persons.

    Args:
      shards: Private records. Their labels are read, and for persons whose they are.
      unit: Privacy unit. Of each person, one record with a class is drawn.
      seed: Seed of the draw, public. Defaults to 0.

    Raises:
      ValueError: If the labels cannot be read, or a record may have several.
    """
    place: dict[str, int] = {}
    codes = [np.zeros(0, np.int64)]
    for shard in shards:
        _check_single(shard)
        for block in shard.labels(ROWS_AT_ONCE):
            names = names_of(block, shard.where)
            found = (place.setdefault(name, len(place)) for name in names)
            codes.append(np.fromiter(found, np.int64, len(names)))
    code = np.concatenate(codes)
    counted = code != place.get("", -1)
    if unit == "person":
        counted &= _drawn(shards, counted, seed)
    counts = np.bincount(code[counted], minlength=len(place)).tolist()
    return Occurrences({name: count for name, count in zip(place, counts, strict=True) if count})


def _check_single(shard: Shard) -> None:
    """Raise ValueError if a record of a shard may have no label or several, by the type alone."""
    empty = shard.layout().empty.labels
    if empty is None or empty.ndim != 1:
        found = "none" if empty is None else "lists or rows of labels"
        raise ValueError(
            f"Expected one label a record in {shard.where}, got {found}; save a column with the "
            "label that is to be counted, or name the classes yourself in a release."
        )
    names_of(empty, shard.where)


def select(
    found: Occurrences,
    epsilon: float,
    delta: float,
    ledger: Ledger,
    *,
    relation: Relation = "replace-one",
    unit: Unit = "record",
) -> Selection:
    """Charge the ledger, then select the classes with noise from the operating system's entropy.

    Args:
      found: Classes that occur.
      epsilon: Epsilon of the selection.
      delta: Delta of the selection, positive.
      ledger: Ledger of the private records.
      relation: Neighboring relation. Defaults to `replace-one`.
      unit: Privacy unit, as for `occurrences`. Defaults to `record`.

    Raises:
      LedgerError: If the budget does not allow the charge; nothing is drawn then.
      ValueError: If epsilon or delta is out of range.
    """
    guarantee = cost(epsilon, delta, relation, unit)
    scale = noise_scale(epsilon, relation)
    threshold = least_threshold(scale, delta)
    ledger.charge(guarantee, PURPOSE)
    names = sorted(found.counts)
    exact = np.array([found.counts[name] for name in names], np.int64)
    noisy = exact_noise.discrete_laplace(exact, scale) if names else exact
    kept = {
        name: int(count) for name, count in zip(names, noisy, strict=True) if count >= threshold
    }
    return Selection({name: kept[name] for name in in_order(kept)}, guarantee)


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of classes in order, by their values if all are numbers from 0 on.

    Nothing else may decide it: one record with text makes text of all labels of an array.
    """
    return sorted(names, key=int if all(map(_is_number, names)) else str)


def _is_number(name: str) -> bool:
    return name == "0" or bool(_NUMBER.fullmatch(name))


def cost(epsilon: float, delta: float, relation: Relation, unit: Unit) -> Guarantee:
    """Return the guarantee of a selection.

    Raises:
      ValueError: If epsilon or delta is out of range.
    """
    least_threshold(noise_scale(epsilon, relation), delta)
    return Guarantee(
        epsilon,
        delta,
        relation,
        trust="central",
        events=(),
        unit=unit,
        accountant="threshold",
        sampler="release",
    )


def noise_scale(epsilon: float, relation: Relation) -> float:
    """Return the scale of the noise, in records."""
    return exact_noise.safe_scale(_CHANGED[relation], epsilon)


def least_threshold(scale: float, delta: float) -> int:
    """Return the least threshold >= 1 that a class of one record reaches with delta at most.

    Args:
      scale: Scale b of the noise, in records.
      delta: Delta, in (0, 1).

    Raises:
      ValueError: If delta is outside (0, 1).

    >>> least_threshold(20.0, 1e-6)
    264
    """
    if not 0 < delta < 1:
        raise ValueError(
            f"Expected 0 < delta < 1, got delta={delta}; without one, no class could be kept that "
            "is not public. 1e-6 is a common choice."
        )
    allowed = delta * (1 - 1e-9)
    above = -scale * (math.log(allowed) + math.log1p(math.exp(-1 / scale)))
    return 1 + max(0, math.ceil(above))  # the law of p holds from 1 on


def _drawn(shards: Sequence[Shard], known: np.ndarray, seed: int) -> np.ndarray:
    """Return one record of each person, drawn among those with a class."""
    told = [(np.zeros((0, 2), np.uint64), np.zeros(0, bool))]
    told += [
        person_names(block, shard.where)
        for shard in shards
        for block in shard.persons(ROWS_AT_ONCE)
    ]
    names = np.ascontiguousarray(np.concatenate([name for name, _ in told]))
    votes = known & np.concatenate([has for _, has in told])
    persons = names[votes].view([("a", "<u8"), ("b", "<u8")]).ravel()
    _, person = np.unique(persons, return_inverse=True)
    drawn = np.zeros(len(known), bool)
    drawn[votes] = contributions.limited(person, persons["a"], 1, seed).units > 0
    return drawn
