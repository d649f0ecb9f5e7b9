"""Neighboring inputs of the private selection of classes, and what is published of either.

The canary is a record, or a person with many records. Alone in its class, it must not make the
class show with a probability above delta. Among others, it moves a count by one. Every run is
`class_selection.occurrences` and `select`, on records and with a ledger of its own. The view holds,
of every class, its place among those that show, its noisy count and the count's parity, and how
many classes show.

`exact` compares the laws of the outcomes for the scale and the threshold that the code takes.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np

from rknn_jax.audit.finding import Bound, Finding
from rknn_jax.audit.folders import own_folder
from rknn_jax.audit.game import Game
from rknn_jax.privacy.contributions import Protected
from rknn_jax.privacy.guarantee import Guarantee, Relation
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release import class_selection
from rknn_jax.release.shards import ArrayShard

COMMON = ("common", "usual")
"""Classes of as many records each, so that a canary decides which one has more."""

CLASSES = (*COMMON, "first", "second", "absent")
"""Common classes, classes of the canary in either data set, and one without a record."""

MANY = 40
"""Number of other records of each common class."""

OF_CANARY = 300
"""Number of records of a person who is the canary."""

REACH = 40
"""Noisy counts beyond the true count that are enumerated, in units of the noise's scale."""

STEPS = 50
"""Number of halvings of the interval that holds an epsilon."""


def of_selection(
    epsilon: float, delta: float, relation: Relation, unit: Protected
) -> tuple[list[Game], Guarantee]:
    """Return games of the selection, and its guarantee.

    Args:
      epsilon: Epsilon of the selection.
      delta: Delta of the selection.
      relation: Neighboring relation.
      unit: Privacy unit.
    """
    guarantee = class_selection.cost(epsilon, delta, relation, unit)
    copies = 1 if unit == "record" else OF_CANARY
    nobody: tuple[str, ...] = () if relation == "add-remove" else ("",)
    worlds = {
        "alone in its class, or without one": (("first",) * copies, nobody),
        "in a common class, or without one": (("usual",) * copies, nobody),
    }
    if relation == "replace-one":
        worlds["alone in one class, or alone in another"] = (
            ("first",) * copies,
            ("second",) * copies,
        )
        worlds["in a common class, or alone in its class"] = (
            ("common",) * copies,
            ("first",) * copies,
        )
        worlds["in a common class, or in another"] = (("common",) * copies, ("usual",) * copies)
    if unit == "person":
        several = ("first", "second", "common") * (OF_CANARY // 3)
        worlds["with records of three classes, or without one"] = (several, nobody)
    return [
        _game(f"a {unit} {words}", labels, guarantee, with_persons=unit == "person")
        for words, labels in worlds.items()
    ], guarantee


def exact(epsilon: float, delta: float, relation: Relation) -> Finding:
    """Return the epsilon of the selection at its delta, from the laws of counts and threshold.

    Args:
      epsilon: Epsilon of the selection.
      delta: Delta of the selection.
      relation: Neighboring relation.
    """
    scale = class_selection.noise_scale(epsilon, relation)
    threshold = class_selection.least_threshold(scale, delta)
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]]
    pairs = [((1,), (0,)), ((threshold,), (threshold - 1,))]
    if relation == "replace-one":
        pairs += [((1, 0), (0, 1)), ((1, threshold), (0, threshold + 1))]
        pairs += [((threshold, threshold), (threshold - 1, threshold + 1))]
    found = {}
    for first, second in pairs:
        for mine, theirs in ((first, second), (second, first)):
            highest = max(mine + theirs) + threshold + int(REACH * scale)
            law, other = (_law(counts, scale, threshold, highest) for counts in (mine, theirs))
            found[mine, theirs] = _epsilon(law, other, delta * (1 + 1e-9))
    worst = max(found, key=lambda pair: found[pair])
    lower = found[worst]
    return Finding(
        epsilon,
        delta,
        lower,
        1.0,
        exact=True,
        broken=lower > epsilon * (1 + 1e-9),
        evidence=Bound(delta, epsilon, lower),
        inputs=f"classes of {worst[0]} records, or of {worst[1]}",
        event=f"noise of scale {scale:.4g}, threshold {threshold}",
        runs=0,
        games=len(found),
    )


def _game(
    words: str, labels: Sequence[Sequence[str]], guarantee: Guarantee, *, with_persons: bool
) -> Game:
    shards = []
    for canary in labels:
        others = list(COMMON) * MANY
        given = np.array([*others, *canary])
        persons = np.minimum(np.arange(len(given)), len(others)) if with_persons else None
        rows = np.zeros((len(given), 1), np.float32)
        shards.append(ArrayShard("records", rows, given, persons))

    def observe(key: jax.Array, world: int, runs: int) -> np.ndarray:
        del key  # The selection draws its own noise.
        return np.stack([_run(shards[world], guarantee) for _ in range(runs)])

    names = [f"{what} of {name}" for what in ("place", "count", "parity") for name in CLASSES]
    shown = tuple(range(len(CLASSES)))
    return Game(words, observe, (*names, "the number of classes"), shown)


def _run(shard: ArrayShard, guarantee: Guarantee) -> np.ndarray:
    """Select the classes once, and return the view, float64 `[f]`."""
    unit, relation = guarantee.unit, guarantee.relation
    amount = guarantee.epsilon, guarantee.delta
    with own_folder() as folder:
        ledger = Ledger.create(
            folder / "ledger.jsonl", "sha256:audit", *amount, relation=relation, unit=unit
        )
        found = class_selection.occurrences([shard], unit)
        selected = class_selection.select(found, *amount, ledger, relation=relation, unit=unit)
    order = {name: place for place, name in enumerate(selected.counts, 1)}
    places = np.array([order.get(name, 0) for name in CLASSES], np.float64)
    counts = np.array([selected.counts.get(name, 0) for name in CLASSES], np.float64)
    return np.concatenate([places, counts, counts % 2, [len(selected.counts)]])


def _law(counts: Sequence[int], scale: float, threshold: int, highest: int) -> np.ndarray:
    """Return the probabilities of all outcomes of some classes, flat; the last one hides each."""
    shown = np.arange(threshold, highest)
    law = np.ones(1)
    for count in counts:
        part = np.zeros(len(shown) + 1)
        if count:  # A class without a record has no count.
            a = math.exp(-1 / scale)
            part[:-1] = (1 - a) / (1 + a) * a ** np.abs(shown - count).astype(np.float64)
        part[-1] = 1 - part[:-1].sum()
        law = np.multiply.outer(law, part).ravel()
    return law


def _epsilon(first: np.ndarray, second: np.ndarray, delta: float) -> float:
    """Return the least epsilon at which the first law is within delta of the second."""

    def missed(epsilon: float) -> float:
        return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())

    high = 1.0
    while missed(high) > delta:
        high *= 2
        if high > 512:
            return math.inf
    low = 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if missed(middle) > delta else (low, middle)
    return high
