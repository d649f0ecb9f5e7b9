"""Labels of public rows by each labeler of `rknn label`, and by its choice `--labeler auto`.

    python -m benchmarks.choosing

All labelers have the same rows and splits, and the settings that `rknn label` gives them: a pure
guarantee, replace-one, smoothing, and for reverse k-NN the number of queries that n and epsilon
suit. The noise is simulated. `with delta` is the same with Gaussian noise for the class sums, which
`auto` does not choose. The data sets are those of `_decoding_cases`, three tables of scikit-learn
that are small, and two that are made.

Every second data set of `CASES` is for development (`DEVELOPMENT`), and the others judge. `fitted`
tries all rules of one form on the development data sets: one labeler instead of reverse k-NN if
there are few classes and n·epsilon/classes is within a range. Of the rules that lose no more than
`LOSS` to reverse k-NN in any development cell, it takes the one of highest mean accuracy. `judged`
then compares `rknn_jax.release.choosing` with the best labeler of each cell on the other data sets.

"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.datasets import load_iris

from benchmarks import _decoding_cases as cases
from benchmarks import _kept
from benchmarks._decoding_cases import NO_CLASS, Sides
from benchmarks._measure import save
from rknn_jax import postprocessing
from rknn_jax.answers import kernels
from rknn_jax.labelers._one_sum import OneSumLabeler
from rknn_jax.labelers._sum_labeler import PublicRows
from rknn_jax.labelers._votes import VoteNoise
from rknn_jax.labels import PublicSide
from rknn_jax.question import Question
from rknn_jax.records.classes import Classes
from rknn_jax.release import choosing, counting, inputs
from rknn_jax.release.choosing import Quantities
from rknn_jax.release.counting import Counter
from rknn_jax.release.inputs import Data
from rknn_jax.release.labeler_settings import labeler_of, usual_mechanism
from rknn_jax.release.questions import ask, calibrated, cluster
from rknn_jax.release.settings import Settings

EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
SEEDS = (30,)
DRAWS = 2
SMALL = 1000
"""Public rows below which a data set has more splits and draws, because they are cheap."""
MORE_SEEDS = (30, 31, 32)
MORE_DRAWS = 6
QUIET = 0.5
"""Epsilon from which on one draw is made of other data sets, because noise changes little."""
LOSS = 0.01
"""Accuracy that the rule may lose to reverse k-NN in a development cell."""
SIGNALS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Values of n·epsilon/classes between which a rule may take another labeler."""
MOST_CLASSES = (0, 2, 3, 5, 10, 20)

USUAL = "rknn"
OTHERS = ("prototypes", "least_squares", "public_prototypes")
WITH_DELTA = {"prototypes": 1e-5, "least_squares": 1e-5}


def directions(seed: int) -> Sides:
    """Return ten clusters in 20 dimensions, with 2 classes that a linear direction divides."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(10, 20))
    rows = centers[rng.integers(10, size=5000)] + rng.normal(size=(5000, 20))
    labels = (rows @ rng.normal(size=20) + 0.3 * rng.logistic(size=5000) > 0).astype(int)
    rows = rows.astype(np.float32)
    return Sides(rows[:2000], labels[:2000], rows[2000:], labels[2000:])


def clusters(seed: int) -> Sides:
    """Return 20 clusters in 50 dimensions that overlap, each of which is a class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(20, size=10_000)
    rows = (0.6 * rng.normal(size=(20, 50)))[labels] + rng.normal(size=(10_000, 50))
    rows = rows.astype(np.float32)
    return Sides(rows[:2000], labels[:2000], rows[2000:], labels[2000:])


class Case(NamedTuple):
    """Data set.

    Attributes:
      make: Function from the seed of a split to its rows.
      file: Name in `_decoding_cases.FILES` of the file that it needs. Defaults to none.
    """

    make: Callable[[int], Sides]
    file: str | None = None


part = functools.partial
CASES = {
    "breast cancer": Case(cases.breast_cancer),
    "breast cancer, not scaled": Case(part(cases.breast_cancer, scaled=False)),
    "digits": Case(cases.digits_table),
    "iris": Case(part(cases.table, load_iris, 50)),
    "wine": Case(cases.wine),
    "MNIST": Case(cases.components),
    "MNIST, 100 public images": Case(part(cases.components, num_public=100)),
    "MNIST, 25% junk": Case(part(cases.components, junk=True)),
    "MNIST, 600 records": Case(part(cases.components, num_private=600)),
    "MNIST, both long tail": Case(part(cases.tail, of_public=cases.TAIL)),
    "MNIST, odd or even": Case(cases.odd_or_even),
    "MNIST, one digit at 1%": Case(cases.one_digit),
    "MNIST, private long tail": Case(cases.tail),
    "linear directions": Case(cases.directions),
    "linear, two classes": Case(directions),
    "clusters": Case(clusters),
    "text": Case(cases.text, "text"),
    "CIFAR-10": Case(cases.cifar10, "cifar10"),
}
DEVELOPMENT = tuple(CASES)[::2]


def missing(case: str) -> str | None:
    """Return the reason to skip a case, or None."""
    return cases.Case(CASES[case].make, 0, CASES[case].file).missing()


def settings_of(labeler: str, epsilon: float, delta: float = 0.0) -> Settings:
    """Return the settings of `rknn label` with this labeler and its usual mechanism."""
    given = Settings("P", "R", epsilon, labeler=labeler, delta=delta)
    return replace(given, mechanism=usual_mechanism(given))


class Public(NamedTuple):
    """Input of one split, with what all its questions share.

    Attributes:
      data: Public rows and private records.
      graph: Neighbor graph of the public rows.
      seed: Seed of the split.
    """

    data: Data
    graph: Any
    seed: int


KINDS = (
    *((name, name, 0.0) for name in OTHERS),
    *((f"{name}, with delta", name, delta) for name, delta in WITH_DELTA.items()),
)
"""Name, labeler and delta of each labeler of one sum."""


def asked(
    split: Public, kinds: Sequence[tuple[str, str, float]] = KINDS
) -> Iterator[tuple[str, float, Question, np.ndarray]]:
    """Yield the name, epsilon, question, and sum over the private records of each release."""
    found: dict[int, tuple[Question, np.ndarray]] = {}
    for epsilon in EPSILONS:
        settings = settings_of(USUAL, epsilon)
        mechanism = calibrated(settings, split.data)
        number = mechanism.num_queries
        if number not in found:
            queries = cluster(replace(settings, seed=split.seed), split.data.public, number)
            side = PublicSide(split.graph, kernels(queries, split.data.public, split.graph))
            labeler = labeler_of(settings)
            names = [split.data.classes.name(number) for number in range(split.data.classes.count)]
            rows = PublicRows(queries, split.data.public, names, side)
            votes = labeler.tally(queries, len(names))
            noise = VoteNoise(mechanism)
            one = Question(labeler, USUAL, rows, votes, noise, noise.guarantee)
            found[number] = one, total(one, split.data)
        question, votes = found[number]
        yield USUAL, epsilon, replace(question, noise=VoteNoise(mechanism)), votes
    for name, labeler, delta in kinds:
        first = ask(settings_of(labeler, 1.0, delta), split.data)
        sums = total(first, split.data)
        for epsilon in EPSILONS:
            at = replace(first.labeler, epsilon=epsilon)
            noise = at.exact(len(first.queries.index), split.data.classes.count)
            yield name, epsilon, replace(first, labeler=at, noise=noise), sums


def total(question: Question, data: Data) -> np.ndarray:
    """Return the sum over the private records."""
    return counting.count_all(data.private, Counter(question.tally, data.classes)).counts


def drawn(question: Question, totals: np.ndarray, key: jax.Array) -> np.ndarray:
    """Return what a release draws, in simulation."""
    if isinstance(question.noise, VoteNoise):
        noisy = question.noise.mechanism.estimate(key, totals.astype(np.int32), 1)
        return np.asarray(noisy).round().astype(np.int64)
    assert isinstance(question.labeler, OneSumLabeler)
    return question.labeler.simulated(key).draw(totals)


def measured(case: str, seed: int) -> dict[str, Any]:
    """Return the accuracy of each release of one split."""
    sides = CASES[case].make(seed)
    classes = Classes(int(max(sides.truth.max(), sides.labels.max())) + 1)
    data = inputs.data_of(sides.public, sides.private, sides.labels.astype(np.int32), classes)
    graph = postprocessing.public_graph(data.public, classes.count)
    known = sides.truth != NO_CLASS
    small = len(sides.public) < SMALL
    runs = []
    for number, (name, epsilon, question, totals) in enumerate(asked(Public(data, graph, seed))):
        draws = 1 if epsilon >= QUIET else DRAWS
        for draw in range(MORE_DRAWS if small else draws):
            key = jax.random.fold_in(jax.random.key(seed), 1000 * number + draw)
            labels = question.read(drawn(question, totals, key)).labels
            right = float((labels == sides.truth)[known].mean())
            runs.append({"labeler": name, "epsilon": epsilon, "right": right})
    return {
        "num_records": len(sides.labels),
        "num_public": len(sides.public),
        "num_classes": classes.count,
        "width": int(sides.public.shape[1]),
        "runs": runs,
    }


def seeds_of(case: str) -> tuple[int, ...]:
    """Return the splits of a data set."""
    few = len(CASES[case].make(SEEDS[0]).public) < SMALL
    return MORE_SEEDS if few else SEEDS


def cells_of(case: str, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each epsilon: public quantities, and the mean accuracy of each labeler."""
    about = {name: parts[0][name] for name in ("num_public", "num_classes", "width")}
    about["num_records"] = round(np.mean([one["num_records"] for one in parts]))
    runs = [run for one in parts for run in one["runs"]]
    rows = []
    for epsilon in EPSILONS:
        found: dict[str, list[float]] = {}
        for run in runs:
            if run["epsilon"] == epsilon:
                found.setdefault(run["labeler"], []).append(run["right"])
        means = {name: round(float(np.mean(each)), 5) for name, each in found.items()}
        half = "development" if case in DEVELOPMENT else "judgement"
        about_draws = {"releases": len(found[USUAL]), "half": half}
        rows.append({"case": case, "epsilon": epsilon, **about, **about_draws, "right": means})
    return rows


class Rule(NamedTuple):
    """Rule: another labeler if there are few classes and the signal is within a range.

    Attributes:
      labeler: Labeler in place of reverse k-NN.
      most_classes: Most classes for which it is taken.
      weak: n·epsilon/classes from which on it is taken.
      strong: n·epsilon/classes from which on it is not.
    """

    labeler: str
    most_classes: int
    weak: float
    strong: float

    def chosen(self, cell: dict[str, Any]) -> str:
        """Return the labeler for one cell."""
        few = cell["num_classes"] <= self.most_classes
        fits = few and self.weak <= quantities(cell).signal < self.strong
        return self.labeler if fits else USUAL


def quantities(cell: dict[str, Any]) -> Quantities:
    """Return the public quantities of a cell."""
    return Quantities(cell["num_records"], cell["num_classes"], cell["epsilon"])


def fitted(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rule of highest mean accuracy that loses little to reverse k-NN anywhere."""
    found = []
    ranges = itertools.combinations(SIGNALS, 2)
    for labeler, most, (weak, strong) in itertools.product(OTHERS, MOST_CLASSES, ranges):
        rule = Rule(labeler, most, weak, strong)
        gains = [cell["right"][rule.chosen(cell)] - cell["right"][USUAL] for cell in cells]
        found.append((float(np.mean(gains)), min(gains), rule))
    allowed = [one for one in found if one[1] >= -LOSS]
    gain, loss, rule = max(allowed, key=_preference)
    free = max(found, key=lambda one: one[0])
    return {
        **rule._asdict(),
        "mean_gain": round(gain, 5),
        "largest_loss": round(-loss, 5),
        "without_bound": {
            **free[2]._asdict(),
            "mean_gain": round(free[0], 5),
            "largest_loss": round(-free[1], 5),
        },
    }


def _preference(found: tuple[float, float, Rule]) -> tuple[float, int, float]:
    """Order rules by gain, and rules that gain as much by how seldom they leave reverse k-NN."""
    gain, _, rule = found
    return round(gain, 6), -rule.most_classes, rule.weak / rule.strong


def judged(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how far below the best labeler of each cell the choice is, and each labeler."""
    names = (USUAL, *OTHERS)
    best = [max(cell["right"][name] for name in names) for cell in cells]
    told = {}
    for name in ("auto", *names):
        short = []
        for cell, most in zip(cells, best, strict=True):
            chosen = choosing.rule(quantities(cell)).labeler if name == "auto" else name
            short.append(most - cell["right"][chosen])
        worst = cells[int(np.argmax(short))]
        told[name] = {
            "mean": round(float(np.mean(short)), 5),
            "worst": round(max(short), 5),
            "worst_cell": f"{worst['case']}, {worst['epsilon']:g}",
            "within_1": round(float(np.mean([one <= 0.01 for one in short])), 5),
            "within_3": round(float(np.mean([one <= 0.03 for one in short])), 5),
        }
    return told


def left(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the cells in which the choice leaves reverse k-NN, and what that gains and loses."""
    gains = {}
    for cell in cells:
        chosen = choosing.rule(quantities(cell)).labeler
        if chosen != USUAL:
            gain = cell["right"][chosen] - cell["right"][USUAL]
            gains[f"{cell['case']}, {cell['epsilon']:g}"] = round(gain, 5)
    return gains


def main() -> None:
    """Measure all splits, fit, judge, and write the results."""
    with _kept.parts("choosing") as folder:
        rows = []
        for case in CASES:
            if reason := missing(case):
                print(f"skipped {case}: {reason}", flush=True)
                continue
            rows += cells_of(
                case,
                [
                    _kept.part(folder, f"{case}, {seed}", functools.partial(measured, case, seed))
                    for seed in seeds_of(case)
                ],
            )
        halves = {
            half: [row for row in rows if row["half"] == half]
            for half in ("development", "judgement")
        }
        save(
            "choosing",
            {
                "cells": rows,
                "rule": fitted(halves["development"]),
                **{half: judged(cells) for half, cells in halves.items()},
                "gain_over_rknn": {half: left(cells) for half, cells in halves.items()},
            },
            seeds={"few rows": MORE_SEEDS, "others": SEEDS},
            draws={"few rows": MORE_DRAWS, "others": DRAWS, f"others, epsilon >= {QUIET:g}": 1},
            cpu_seconds=_kept.cpu_seconds(folder),
            relation="replace-one",
            simulated_noise=True,
        )


if __name__ == "__main__":
    main()
