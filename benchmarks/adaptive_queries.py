"""Right labels by a second round whose queries adapt to the first, at the same epsilon in all.

Public rows where round 1 was unsure and heard votes get more queries, and those where it heard
nothing get fewer. Everything is read off released probabilities and noisy counts, so it costs no
privacy. There are as many queries as today, in the same learned features, and all forms of a split
see the same first rounds.

- `weights`: k-means in which a row weighs `FLOOR` plus its unsureness times how loudly its query
  was heard.
- `split and merge`: today's clusters; the one with the most wrong rows to expect is split, and one
  whose votes are within their noise is merged with its neighbor, as long as there are both.
- `the paper's`: half of the queries are clusters of the tenth of the rows with the greatest
  entropy, and half of the others (`rknn_jax.queries.uncertainty`).

The rule was set before any result: a form is adopted if it gains half a point over today's second
round in the mean of all cells of the data sets with a *, and no such cell, a data set and an
epsilon, loses more than a point. The others of `benchmarks.rounds` are unseen. `ONE_SIDED`
is beside the rule: classes have other shares among its private records than among its public rows,
in the first of them none for half of the rows.

Beside them, with `BOUND_EPSILON`, the truth tells `weights` which labels of round 1 are wrong, as
no release can: what a better measure of unsureness could gain.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import entr

from benchmarks import _kept
from benchmarks import _measured_cases as cases
from benchmarks import rounds as plain_rounds
from benchmarks._decoding_cases import Sides
from benchmarks._measure import save
from benchmarks.measured import Nobody, plan_of, right
from rknn_jax import lloyd
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labels import PublicLabels
from rknn_jax.queries import kmeans
from rknn_jax.question import Before
from rknn_jax.release import label, planning, rounds
from rknn_jax.release.planning import Plan
from rknn_jax.types import Queries

SEEDS, EPSILONS, LOOKED_AT = plain_rounds.SEEDS, plain_rounds.EPSILONS, plain_rounds.LOOKED_AT
FIRST_ROUNDS = 2
"""Draws of the first round's noise, each with one second round of every form."""

ONE_SIDED = ("open set", "clusters, other shares")
DATA: dict[str, Callable[[int], Sides]] = {
    **plain_rounds.DATA,
    **{name: cases.CASES[name].make for name in ONE_SIDED},
}

BOUND_EPSILON = 1.0
"""Epsilon of the cells in which the truth tells the weights."""

FLOOR = 0.25
"""Weight of a row whose label is sure, or whose query heard nothing. The greatest is 1 more."""

WITHIN = 2.0
"""Votes of a cluster that may be noise, in standard deviations of it in round 2."""

UNCERTAIN = 0.1
"""Share of the rows that get half of the queries of the paper's form."""

CONFIG = kmeans.Config()


class Heard(NamedTuple):
    """Votes heard and doubt at each public row, read off what a first round released.

    Attributes:
      unsure: 1 less the greatest probability, from 0 to 1 for equal ones, `[m]`.
      entropy: Entropy of the probabilities, `[m]`.
      loudness: Votes for a query of mean size at the row, z standard deviations of their noise, as
        z / (1 + z), `[m]`.
      votes: Noisy votes of the row's query, for each of its rows, `[m]`.
      noise: Standard deviation of a query's votes in round 2.
    """

    unsure: np.ndarray
    entropy: np.ndarray
    loudness: np.ndarray
    votes: np.ndarray
    noise: float

    @classmethod
    def of(cls, found: PublicLabels, size: np.ndarray) -> "Heard":
        """Return what round 1 heard.

        Args:
          found: Its labels, with their noisy counts.
          size: Number of rows of each of its queries.
        """
        assert found.counts is not None
        assert found.stddev is not None
        num_rows, num_classes = found.probabilities.shape
        votes = np.sum(found.counts, axis=1, dtype=np.float64)
        noise = float(np.sqrt(np.square(found.stddev, dtype=np.float64).sum(axis=1)).mean())
        each = votes / np.maximum(size, 1)
        units = np.maximum(each * num_rows / len(size), 0) / noise
        least = 1 - found.probabilities.max(axis=1).astype(np.float64)
        return cls(
            least / (1 - 1 / num_classes),
            np.sum(entr(found.probabilities), axis=1),
            (units / (1 + units))[found.query],
            each[found.query],
            noise / 2,  # round 2 has twice the epsilon
        )


Form = Callable[[np.ndarray, int, int, Heard], lloyd.Clusters]


def weighted(rows: np.ndarray, number: int, seed: int, heard: Heard) -> lloyd.Clusters:
    """Cluster rows that weigh more where round 1 was unsure and heard votes."""
    return lloyd.fit(
        rows,
        number,
        seed,
        num_starts=CONFIG.num_starts,
        max_iterations=CONFIG.max_iterations,
        weights=FLOOR + heard.loudness * heard.unsure,
    )


def split_and_merged(rows: np.ndarray, number: int, seed: int, heard: Heard) -> lloyd.Clusters:
    """Split the clusters with the most wrong rows, and merge those that may hear noise alone."""
    today = kmeans._fit(rows, number, seed, CONFIG)
    exact = rows.astype(np.float64)
    wrong_rows = heard.loudness * heard.unsure
    parts = [np.flatnonzero(today.labels == one) for one in range(number)]
    for _ in range(number // 2):
        wrong = np.array([wrong_rows[part].sum() for part in parts])
        votes = np.array([heard.votes[part].sum() for part in parts])
        centers = np.stack([exact[part].mean(axis=0) for part in parts])
        low = int(votes.argmin())
        apart = np.square(centers - centers[low]).sum(axis=1)
        apart[low] = np.inf
        near = int(apart.argmin())
        able = np.array([len(part) > 3 for part in parts])
        able[[low, near]] = False
        worst = int(np.where(able, wrong, -1).argmax())
        enough = able[worst] and votes[worst] >= 2 * WITHIN * heard.noise
        if (
            votes[low] >= WITHIN * heard.noise
            or not enough
            or wrong[worst] <= wrong[low] + wrong[near]
        ):
            break
        whole = parts[worst]
        half = lloyd.fit(rows[whole], 2, seed, num_starts=1).labels == 0
        if half.all() or not half.any():  # all its rows are one
            break
        merged = np.concatenate([parts[low], parts[near]])
        kept = [part for i, part in enumerate(parts) if i not in (low, near, worst)]
        parts = [*kept, merged, whole[half], whole[~half]]
    moved = np.stack([exact[part].mean(axis=0) for part in parts]).astype(rows.dtype)
    return lloyd.fit_from(rows, moved, 3)


def uncertain(rows: np.ndarray, number: int, seed: int, heard: Heard) -> lloyd.Clusters:
    """Spend half of the queries on the rows with the greatest entropy."""
    order = np.argsort(-heard.entropy, kind="stable")
    asked, others = np.split(order, [max(number, round(UNCERTAIN * len(rows)))])
    sides = (asked, number - number // 2), (others, number // 2)
    centers = np.concatenate(
        [kmeans._fit(rows[np.sort(side)], count, seed, CONFIG).centers for side, count in sides]
    )
    return lloyd.Clusters(centers, lloyd.assigned(rows, centers), 0.0)


FORMS: dict[str, Form] = {
    "weights": weighted,
    "split and merge": split_and_merged,
    "the paper's": uncertain,
}


def asked(plan: Plan, form: Form, heard: Heard) -> Plan:
    """Return the plan of a second round with other queries, as many as it has.

    Args:
      plan: Plan with today's queries.
      form: Form of the clustering.
      heard: What round 1 heard.
    """
    question, settings = plan.question, plan.settings
    labeler, rows = question.labeler, np.asarray(plan.data.public, np.float32)
    # The seed of today's queries: with equal weights, k-means would return the same ones.
    seed = int(kmeans._seed(stage_key(jax.random.key(settings.seed), Stage.QUERIES)))
    found = form(rows, len(question.queries.index), seed, heard)
    size = np.bincount(found.labels, minlength=len(found.centers))
    index = kmeans._medoids(found.centers, rows).astype(np.int32)
    queries = Queries(jnp.asarray(found.centers), index, found.labels, size)
    num_classes = plan.data.classes.count
    side = labeler.public_side(queries, rows, num_classes, settings.smoothing)
    tally = labeler.bounded_tally(queries, num_classes, settings.records_per_person, settings.seed)
    public = question.public._replace(queries=queries, side=side)
    return replace(plan, question=replace(question, public=public, tally=tally))


def released(plan: Plan) -> PublicLabels:
    """Return the labels of one release."""
    counted = label.count(plan)
    drawn = plan.question.draw(counted.counts, counted.units, Nobody(), "")
    return plan.question.read(drawn)


def second_rounds(single: Plan) -> Iterator[tuple[PublicLabels, Plan, Heard]]:
    """Yield labels of a first round, the plan of today's second one, and what the first heard.

    Args:
      single: Plan of a release in one round with the epsilon of both.
    """
    first, second = rounds.of(replace(single.settings, rounds=2))
    earlier = planning.plan(first, single.data)
    for _ in range(FIRST_ROUNDS):
        taught = released(earlier)
        before = Before(taught.probabilities, taught.answers.guarantee)
        plan = planning.plan(second, single.data, before)
        yield taught, plan, Heard.of(taught, earlier.question.queries.size)


def cell(name: str, seed: int, epsilon: float) -> dict[str, Any]:
    """Return the right labels of one split with an epsilon: in one round, and in each form."""
    sides = DATA[name](seed)
    single = plan_of(sides, epsilon, 0.0)
    found: dict[str, Any] = {"one round": [], "today": [], **{form: [] for form in FORMS}}
    for _, plan, heard in second_rounds(single):
        found["one round"].append(right(released(single).probabilities, sides))
        found["today"].append(right(released(plan).probabilities, sides))
        for form, make in FORMS.items():
            adapted = asked(plan, make, heard)
            found[form].append(right(released(adapted).probabilities, sides))
    print(name, seed, epsilon, {key: round(float(np.mean(one)), 4) for key, one in found.items()})
    return {"data": name, "seed": seed, "epsilon": epsilon, "right": found}


def bound(name: str, seed: int) -> dict[str, Any]:
    """Return the right labels of one split today, and if `weights` knew which rows are wrong."""
    sides = DATA[name](seed)
    found: dict[str, Any] = {"today": [], "the truth": []}
    for taught, plan, heard in second_rounds(plan_of(sides, BOUND_EPSILON, 0.0)):
        wrong = taught.probabilities.argmax(axis=1) != sides.truth
        told = heard._replace(unsure=wrong.astype(float), loudness=np.ones(len(wrong)))
        found["today"].append(right(released(plan).probabilities, sides))
        adapted = asked(plan, weighted, told)
        found["the truth"].append(right(released(adapted).probabilities, sides))
    print(name, seed, {key: round(float(np.mean(one)), 4) for key, one in found.items()})
    return {"data": name, "seed": seed, "epsilon": BOUND_EPSILON, "right": found}


def main() -> None:
    """Measure all cells and save them."""
    about = {"seeds": list(SEEDS), "looked_at": list(LOOKED_AT), "one_sided": list(ONE_SIDED)}
    with _kept.parts("adaptive_queries") as folder:
        rows = _kept.cells(folder, cell, DATA, SEEDS, EPSILONS)
        bounds = _kept.cells(folder, bound, LOOKED_AT, SEEDS)
        save("adaptive_queries", rows, bounds=bounds, first_rounds=FIRST_ROUNDS, **about)


if __name__ == "__main__":
    main()
