"""Compare all methods on the same splits over a grid of epsilon, on one page.

A stopped comparison resumes: finished runs are not repeated.

    python -m train.compare --dataset digits
    python -m train.compare --dataset mnist --data-dir DIR

One delta and one relation hold for all methods, and every cell is a run of `train.distill`. Labels
alone come first, then students, then methods that train networks. The page is written after each
group. So after an early stop it shows all measured cells, and lists the missing ones.

    OUT/<method>/epsilon=E-seed=S/   a run folder for every cell
    OUT/compare.html                 the page; it loads nothing
    OUT/compare.md, compare.json     the same content
"""

import io
import json
import math
import shlex
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
import tyro
from markupsafe import Markup
from matplotlib.axes import Axes

from rknn_jax._internal import compilation
from rknn_jax._internal.disk import write_text
from rknn_jax.federation import wire
from rknn_jax.labelers import dpdfd, rknn
from rknn_jax.labelers.dpdfd import DPDFD
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.labelers.pate import PATE
from rknn_jax.labelers.private_knn import PrivateKNN
from rknn_jax.mechanisms.local import LocalRandomizer
from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import Event
from train import distill, report, sweep
from train import experiment as runs
from train.buy import Config as Buy
from train.experiment import Experiment

DELTA = 1e-5
RELATION = "replace-one"
ACCURACIES = ("label_accuracy", "model_test_accuracy", "test_accuracy")
INFINITY = "infinity"
"""Infinity in JSON, which has no number for it."""

COLOURS = {
    "rknn": "#0072b2",
    "private_knn": "#009e73",
    "pate": "#d55e00",
    "noisy_sgd": "#cc79a7",
    "dpdfd": "#888888",
    "buy": "#e69f00",
}
"""Colors of the charts' lines, visible on a light page and on a dark one."""

RECORD = "the whole record, to a curator who sees it"


@dataclass(frozen=True)
class Config:
    """Settings of a comparison.

    Attributes:
      dataset: Data set, as for `train.distill`. digits has settings of its own, all others have
        those of mnist.
      data_dir: Folder of the data set; not needed for digits.
      methods: Names of the methods. Defaults to all.
      epsilons: Values of epsilon for all methods, each with a student. Defaults to each method's
        own.
      seeds: Seeds for all methods, each of a split. Defaults to three for mnist and two for digits,
        and fewer for networks.
      student: Name of a file of rknn_jax/students/models, or none for no students.
      noise_seed: Seed of the simulated noise. Defaults to the operating system's entropy.
      out: Folder of all runs and of the page. Defaults to runs/compare-<dataset>.
    """

    dataset: str = "digits"
    data_dir: Path | None = None
    methods: tuple[str, ...] = ()
    epsilons: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    student: str = "cnn"
    noise_seed: int | None = None
    out: Path | None = None

    @property
    def folder(self) -> Path:
        """Folder of all runs and of the page."""
        return (
            self.out or Path("runs") / f"compare-{self.dataset.replace(':', '-').replace('/', '-')}"
        )


class Method(NamedTuple):
    """Method of a comparison.

    Attributes:
      title: Name in tables.
      changes: Settings of the experiment that define the method.
      epsilons: Values of epsilon at which the method is run.
      students: Values among these at which a student is trained on the labels. Defaults to none.
      sends: Data that one client hands over, and their receiver. Defaults to the whole record.
      seeds: Number of the seeds that are used. Defaults to all.
      told: Name of the accuracy that the paper reports: that of the student, or of a network that
        is trained on private records itself.
    """

    title: str
    changes: dict[str, Any]
    epsilons: tuple[float, ...]
    students: tuple[float, ...] = ()
    sends: str = RECORD
    seeds: int | None = None
    told: str = "test_accuracy"

    @property
    def kind(self) -> str:
        """Name of the labeler, or `buy` if labels are bought."""
        return "buy" if "buy" in self.changes else self.changes.get("labeler", "rknn")

    @property
    def trust(self) -> str:
        """Trust model of the clients."""
        return self.changes.get("trust", "central")

    @property
    def slow(self) -> bool:
        """True if a network is trained on images, which takes minutes."""
        return self.kind in ("buy", "dpdfd")


class Plan(NamedTuple):
    """Measurements of a data set.

    Attributes:
      shared: Settings that all methods share.
      seeds: Seeds of the splits.
      methods: Methods by name.
    """

    shared: dict[str, Any]
    seeds: tuple[int, ...]
    methods: dict[str, Method]


class Cell(NamedTuple):
    """One run of a comparison: a method at an epsilon, with the experiment's settings."""

    method: str
    epsilon: float
    experiment: Experiment


class Measured(NamedTuple):
    """Measurements of a finished cell.

    Attributes:
      result: Content of its result.json.
      whole: Guarantee of the whole run.
      sent: Number of bytes that one client sends.
      student_seconds: Seconds of the student's epochs.
      where: Device, cores and versions.
      date: Date of the start.
    """

    result: dict[str, Any]
    whole: dict[str, Any]
    sent: int
    student_seconds: float
    where: dict[str, Any]
    date: str


class Claim(NamedTuple):
    """Operating point of a paper.

    Attributes:
      method: Name of our method that is shown beside it.
      system: Name of the system in the paper.
      epsilon: Claimed epsilon, or None if it is not stated.
      delta: Claimed delta.
      label: Claimed accuracy of the labels, or None if it is not stated.
      student: Claimed accuracy of the student, or None if it is not stated.
      recomputed: Epsilon at this delta for a replaced record, recomputed from the paper's
        statements; None if they are too few.
      differs: Reason why our experiment is not the same.
    """

    method: str
    system: str
    epsilon: float | None
    delta: float
    label: float | None
    student: float | None
    recomputed: Callable[[], float] | None
    differs: str


class Section(NamedTuple):
    """Part of the page. Charts are on the page alone, and all else is in Markdown too."""

    title: str
    words: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    items: Sequence[str] = ()
    charts: Sequence[Markup] = ()


VOTE = "its k votes, each the number of a cell, to a curator"
MESSAGE = "a randomized message, its hash's seed included, to anybody"
SHUFFLED = "a randomized message, its hash's seed included, to a shuffler"
# Setting of the results in docs/results.md.
BY_GENERAL = {"trust": "shuffle", "amplification": "general"}
HEAD = NoisySGD(learning_rate=4.0, clip=0.3, epochs=10)
INF = math.inf


def mnist(grid: tuple[float, ...] = (0.01, 0.04, 0.1, 0.4, 1.0, 4.0, INF)) -> Plan:
    """Return the plan for MNIST: 101 runs, 30 of them with a student."""
    network = NoisySGD(network="tanh_cnn", epochs=5, clip=0.3, learning_rate=1.0)

    def bought(select: Any) -> dict[str, Any]:
        how = Buy(labels=1000, oracle="benchmark", select=select)
        return {
            "labeler": "noisy_sgd",
            "representation": "pixels",
            "noisy_sgd": network,
            "buy": how,
        }

    methods = {
        "rknn-central": Method(
            "reverse k-NN, central", {}, grid, (0.01, 0.04, 0.1, 1.0, INF), VOTE
        ),
        "noisy-sgd": Method(
            "noisy SGD, linear head",
            {"labeler": "noisy_sgd", "noisy_sgd": HEAD},
            grid,
            (1.0,),
            told="model_test_accuracy",
        ),
        "private-knn": Method(
            "Private-kNN, 1,000 queries",
            {"labeler": "private_knn", "queries": 1000},
            (0.4, 0.89, INF),
            (0.89,),
        ),
        "private-knn-few": Method(
            "Private-kNN, 100 queries", {"labeler": "private_knn", "queries": 100}, (0.04, 0.1, 0.4)
        ),
        "pate": Method(
            "PATE, Confident-GNMax, 1,000 queries",
            {"labeler": "pate", "queries": 1000},
            (1.0, 2.5, INF),
            (2.5,),
        ),
        "pate-few": Method(
            "PATE, Confident-GNMax, 100 queries", {"labeler": "pate", "queries": 100}, (0.4, 1.0)
        ),
        "rknn-shuffle": Method(
            "reverse k-NN, shuffled", BY_GENERAL, (0.01, 0.1, 1.0), (0.1,), SHUFFLED
        ),
        "rknn-local": Method(
            "reverse k-NN, local", {"trust": "local"}, (0.1, 0.4, 1.0, 4.0), (1.0,), MESSAGE
        ),
        "dpdfd": Method(
            "DPDFD, 4,000 teachers",
            {"labeler": "dpdfd", "representation": "pixels"},
            (1.0, 10.0, INF),
            seeds=1,
            told="model_test_accuracy",
        ),
        "diverse-public": Method(
            "DiversePublic, 1,000 labels bought", bought("diverse_public"), (1.0,), seeds=1
        ),
        "near-private": Method(
            "NearPrivate, 1,000 labels bought", bought("near_private"), (1.0,), seeds=1
        ),
    }
    return Plan({}, (5, 6, 7), methods)


def digits(grid: tuple[float, ...] = (1.0, 4.0, INF)) -> Plan:
    """Return the plan for scikit-learn's digits, which takes minutes.

    It has everything that MNIST has, at sizes that a thousand records allow.
    """
    images = NoisySGD(network="datalens", batch_size=250, epochs=5)
    heads = replace(HEAD, batch_size=250)
    small = replace(
        dpdfd.SMALL, **{name: getattr(DPDFD, name) for name in runs.GIVEN}, num_teachers=40
    )
    private = {"private_knn": PrivateKNN(num_neighbors=30, sampling_prob=0.5)}
    teachers = {"pate": PATE(num_teachers=50)}
    buying = {
        name: Buy(200, "benchmark", name, candidates=100)
        for name in ("diverse_public", "near_private")
    }
    own: dict[str, tuple[str, dict[str, Any]]] = {
        "noisy-sgd": ("noisy SGD, linear head", {"noisy_sgd": heads}),
        "private-knn": ("Private-kNN, 200 queries", private | {"queries": 200}),
        "private-knn-few": ("Private-kNN, 50 queries", private | {"queries": 50}),
        "rknn-shuffle": ("reverse k-NN, shuffled", {"amplification": "variation ratio"}),
        "pate": ("PATE, Confident-GNMax, 200 queries", teachers | {"queries": 200}),
        "pate-few": ("PATE, Confident-GNMax, 50 queries", teachers | {"queries": 50}),
        "dpdfd": ("DPDFD, 40 teachers", {"dpdfd": small}),
        "diverse-public": (
            "DiversePublic, 200 labels bought",
            {"noisy_sgd": images, "buy": buying["diverse_public"]},
        ),
        "near-private": (
            "NearPrivate, 200 labels bought",
            {"noisy_sgd": images, "buy": buying["near_private"]},
        ),
    }
    methods = {}
    for name, method in mnist(grid).methods.items():
        title, changes = own.get(name, (method.title, {}))
        usual = tuple(epsilon for epsilon in grid if epsilon < INF or INF in method.epsilons)
        epsilons = (4.0,) if method.kind == "buy" else (4.0, INF) if method.slow else usual
        students = (1.0, INF) if name == "rknn-central" else (4.0,) if method.students else ()
        methods[name] = method._replace(
            title=title, changes=method.changes | changes, epsilons=epsilons, students=students
        )
    return Plan({"epochs": 10}, (0, 1), methods)


def private_knn_stated() -> float:
    """Return epsilon for the noise that the Private-kNN paper states for MNIST."""
    screen = Event("gaussian", 75.0, 1000, 0.15, True, (180.0, 300))
    return min(
        accounting.epsilons(
            [screen, Event("gaussian", 25 / math.sqrt(2), 735, 0.15, True)], DELTA
        ).values()
    )


def gnmax_stated() -> float:
    """Return epsilon for the noise that the second PATE paper states for MNIST, for any votes."""
    screen = Event("gaussian", 150.0, 640, screen=(200.0, 250))
    return min(
        accounting.epsilons([screen, Event("gaussian", 40 / math.sqrt(2), 286)], DELTA).values()
    )


def lnmax_stated() -> float:
    """Return epsilon for Laplace noise of scale 20 on 1,000 queries, for any votes."""
    return min(accounting.epsilons([Event("laplace", 20.0, 2000)], DELTA).values())


def rknn_stated(epsilon: float) -> float:
    """Return pure epsilon for Laplace noise of scale 2k/epsilon on the counts, at k = 1."""
    return (
        min(accounting.epsilons([Event("laplace", 2 / epsilon, 2)], 0.0).values())
        if epsilon < INF
        else INF
    )


def dpdfd_stated(epsilon: float) -> float:
    """Return the true epsilon of the noise for which Theorem 3 prints `epsilon`.

    It holds for one teacher, and our batches and steps.
    """
    return dpdfd.noise(
        DPDFD(epsilon=epsilon, delta=DELTA, clip=1e-3, as_published="single_teacher_per_sample")
    ).guarantee.epsilon


OTHERS = {
    "mnist": (
        Claim(
            *(
                "private-knn",
                "Private-kNN (Zhu et al. 2020)",
                0.47,
                1e-5,
                None,
                0.988,
                private_knn_stated,
            ),
            "Its epsilon does not follow from its noise. HOG and two rounds there, spectral "
            "features and one here; its samples are of one "
            "size and shared by both steps, ours Poisson and fresh; its code tests on 9,000 "
            "images.",
        ),
        Claim(
            *(
                "pate",
                "PATE, Confident-GNMax (Papernot et al. 2018)",
                1.97,
                1e-5,
                None,
                0.985,
                gnmax_stated,
            ),
            "Its epsilon depends on the votes, which are private, and leaves out what releasing "
            "it would cost; ours never does. "
            "Convolutional teachers there, small networks on features here.",
        ),
        Claim(
            *("pate", "PATE, LNMax (Papernot et al. 2017)", 8.03, 1e-5, None, 0.981, lnmax_stated),
            "Likewise, with Laplace noise and 1,000 queries, all answered; beside it stands "
            "Confident-GNMax.",
        ),
        Claim(
            *(
                "noisy-sgd",
                "noisy SGD, as Li et al. compare with",
                1.0,
                1 / 60000,
                None,
                0.812,
                None,
            ),
            "Features of a transformation network there, which tell little of classes, spectral "
            "ones here. The noise is not stated in "
            "the paper; its delta is 1/60,000.",
        ),
        Claim(
            *("noisy-sgd", "the same without noise", INF, 0.0, None, 0.911, None),
            "Likewise.",
        ),
        Claim(
            *(
                "diverse-public",
                "DiversePublic (Zhao et al. 2019), one of its networks before labels are bought",
                None,
                1e-5,
                None,
                0.97,
                None,
            ),
            "Ours is after labels were bought, of 5,000 public images, where the paper has "
            "50,000 of QMNIST; its epsilon is not told.",
        ),
        Claim(
            *(
                "near-private",
                "NearPrivate (Zhao et al. 2019), the other one",
                None,
                1e-5,
                None,
                0.975,
                None,
            ),
            "Likewise; its noise on votes has the scale epsilon where 2/epsilon is due, and its "
            "centre is private. Ours has neither fault.",
        ),
        Claim(
            *(
                "dpdfd",
                "DPDFD (Liu et al. 2023)",
                1.0,
                1e-5,
                None,
                0.9512,
                partial(dpdfd_stated, 1.0),
            ),
            "Its Theorem 3 is too small by orders of magnitude for its one teacher; recomputed "
            "for our batches and steps, as its own are "
            "not told. Ours has thousands of teachers on disjoint parts, so that epsilon holds.",
        ),
        Claim(
            *(
                "dpdfd",
                "DPDFD (Liu et al. 2023)",
                10.0,
                1e-5,
                None,
                0.9751,
                partial(dpdfd_stated, 10.0),
            ),
            "Likewise.",
        ),
    )
}
"""Claims of other papers. Those of Li et al. are in `report.PUBLISHED`."""

NOT_COVERED = (
    "Simulation: noise is drawn by jax.random on benchmark data whose labels everybody knows. "
    "Nothing here is a private release.",
    "Settings: those of all methods were chosen on benchmark data, reverse k-NN's with the most "
    "care, and no epsilon covers that choice.",
    "Accuracies, and which epsilon is best: they are told by true labels that an owner of data "
    "would not have.",
    "All runs together: epsilon is that of one run. Were several released of one private data "
    "set, they would compose.",
    "The number of private records, which replace-one takes as public.",
    "The labels that DiversePublic and NearPrivate buy: an oracle tells the truth about public "
    "records, no privacy was paid for it, and "
    "these rows compare with no other.",
    "Chance: ± is one standard deviation over seeds, each with its own split and noise. A "
    "difference below it is no improvement, and one "
    "seed tells nothing of it.",
)


def plan(config: Config) -> tuple[Plan, list[Cell]]:
    """Return the plan and its cells, in the order of the runs.

    Raises:
      ValueError: If a method does not exist, and for the errors of `Experiment`.
    """
    chosen = digits() if config.dataset == "digits" else mnist()
    if unknown := set(config.methods) - set(chosen.methods):
        raise ValueError(
            f"Expected methods among {', '.join(chosen.methods)}, got {', '.join(sorted(unknown))}."
        )
    methods = {
        name: method
        for name, method in chosen.methods.items()
        if name in (config.methods or chosen.methods)
    }
    if config.epsilons:
        given = tuple(sorted(config.epsilons))
        methods = {
            name: method._replace(epsilons=given, students=() if method.kind == "buy" else given)
            for name, method in methods.items()
        }
    if config.seeds:
        methods = {name: method._replace(seeds=None) for name, method in methods.items()}
    chosen = chosen._replace(seeds=config.seeds or chosen.seeds, methods=methods)
    cells = [
        Cell(name, epsilon, experiment(config, chosen, name, epsilon, seed))
        for name, method in methods.items()
        for seed in chosen.seeds[: method.seeds]
        for epsilon in method.epsilons
    ]
    return chosen, sorted(cells, key=lambda cell: group(chosen, cell)[:2])


def experiment(config: Config, chosen: Plan, name: str, epsilon: float, seed: int) -> Experiment:
    """Return the settings of one cell."""
    method = chosen.methods[name]
    settings: dict[str, Any] = {
        "dataset": config.dataset,
        "data_dir": config.data_dir,
        "epsilon": epsilon,
        "delta": DELTA,
    }
    settings |= {"relation": RELATION, "seed": seed, "noise_seed": config.noise_seed}
    settings |= {"student": config.student if epsilon in method.students else "none"}
    return Experiment(
        **settings | chosen.shared | method.changes,
        out=config.folder / name / f"epsilon={epsilon:g}-seed={seed}",
    )


def group(chosen: Plan, cell: Cell) -> tuple[bool, bool, str]:
    """Return the group of a cell: the page is written after each group.

    A group has one method, with or without students. Slow methods come last.
    """
    return chosen.methods[cell.method].slow, cell.experiment.student != "none", cell.method


def main(config: Config) -> dict[str, Any]:
    """Run all cells without a result, and write the page.

    Returns:
      Content of compare.json. A failed cell is listed under `failed`, and the others are run.

    Raises:
      ValueError: If a cell's folder holds a run of other settings, before anything is run.
      KeyboardInterrupt: If the comparison was stopped; the page is written.
    """
    chosen, cells = plan(config)
    before = [runs.find_result(cell.experiment) for cell in cells]
    measured = {
        cell: read(cell) for cell, result in zip(cells, before, strict=True) if result is not None
    }
    left = [cell for cell in cells if cell not in measured]
    failed = dict[Cell, str]()
    distill.console.print(f"{len(cells)} runs, {len(left)} of them to do")
    prepared = sweep.sharing(len(chosen.seeds))
    try:
        for number, cell in enumerate(left, 1):
            distill.console.print(f"\n{number} of {len(left)}: {cell.experiment.out}")
            try:
                distill.run(cell.experiment, prepared)
                measured[cell] = read(cell)
            # The other cells do not depend on a failed one, and the page reports it.
            except Exception as error:
                failed[cell] = f"{type(error).__name__}: {error}"
                distill.console.print(f"failed: {failed[cell]}")
            if number == len(left) or group(chosen, cell) != group(chosen, left[number]):
                write(config, chosen, cells, measured, failed)
    finally:
        found = write(config, chosen, cells, measured, failed)
    distill.console.print(f"\nThe comparison: {config.folder / 'compare.html'}")
    return found


def read(cell: Cell) -> Measured:
    """Return the measurements in a finished cell's folder."""
    run = report.read(Path(str(cell.experiment.out)))
    spent = report.time_spent(run)
    where = {name: run.config[name] for name in ("device", "cores", "python", "versions")}
    student = spent["student"] if spent else 0.0
    return Measured(
        run.result,
        run.privacy["whole"],
        bytes_sent(run, cell.experiment),
        student,
        where,
        run.config["date"],
    )


def bytes_sent(run: report.Run, experiment: Experiment) -> int:
    """Return the number of bytes that one client with one record hands over.

    They are votes, a message, or an image with its label.
    """
    if experiment.labeler != "rknn":
        return math.prod(run.queries["image"].shape[1:]) + 1
    num_queries = int(run.config["resolved_queries"])
    num_classes = len(run.classes)
    if experiment.trust == "central":
        return -(-experiment.neighbors * math.ceil(math.log2(num_queries * num_classes)) // 8)
    mechanism = rknn.mechanism(
        num_queries, num_classes, run.result["num_private"], distill.reverse_knn(experiment)
    )
    # Other mechanisms send several messages, and none is used here.
    assert isinstance(mechanism, LocalRandomizer)
    return wire.message_bytes(mechanism)


def write(
    config: Config,
    chosen: Plan,
    cells: Sequence[Cell],
    measured: dict[Cell, Measured],
    failed: dict[Cell, str],
) -> dict[str, Any]:
    """Write the page as HTML, JSON and Markdown."""
    found = summary(config, chosen, cells, measured, failed)
    parts = sections(found)
    config.folder.mkdir(parents=True, exist_ok=True)
    runs.write_json(config.folder / "compare.json", found)
    for name, text in (
        ("compare.md", markdown(found, parts)),
        ("compare.html", page(found, parts)),
    ):
        write_text(config.folder / name, text)
    return found


def summary(
    config: Config,
    chosen: Plan,
    cells: Sequence[Cell],
    measured: dict[Cell, Measured],
    failed: dict[Cell, str],
) -> dict[str, Any]:
    """Return the content of the page, ready for JSON, from finished cells alone."""

    def by_method(name: str) -> list[Measured]:
        return [one for cell, one in measured.items() if cell.method == name]

    rows = []
    for name, method in chosen.methods.items():
        for epsilon in method.epsilons:
            mine = [cell for cell in cells if (cell.method, cell.epsilon) == (name, epsilon)]
            about: dict[str, Any] = {
                "method": name,
                "title": method.title,
                "kind": method.kind,
                "trust": method.trust,
            }
            about |= {"student": mine[0].experiment.student, "told": method.told, "runs": len(mine)}
            rows.append(
                about | joined(epsilon, [measured[cell] for cell in mine if cell in measured])
            )
    options: dict[str, Any] = {
        "dataset": config.dataset,
        "data-dir": config.data_dir and "DIR",
        "noise-seed": config.noise_seed,
    }
    options |= {"methods": config.methods, "epsilons": config.epsilons, "seeds": config.seeds}
    options |= {} if config.student == Config.student else {"student": config.student}
    words = [
        f"--{name} "
        f"""{
            " ".join(
                shlex.quote(f"{value:g}" if isinstance(value, float) else str(value))
                for value in many
            )
        }"""
        for name, given in options.items()
        if (many := given if isinstance(given, tuple) else () if given is None else (given,))
    ]
    return {
        "dataset": config.dataset,
        "delta": DELTA,
        "relation": RELATION,
        "seeds": list(chosen.seeds),
        "command": " ".join(["python -m train.compare", *words]),
        "machines": machines(measured.values()),
        "runs": len(cells),
        "measured": len(measured),
        "failed": {
            f"{cell.method}, epsilon {cell.epsilon:g}, seed {cell.experiment.seed}": why
            for cell, why in failed.items()
        },
        "rows": rows,
        "claims": [
            beside(claim, rows)
            for claim in claims(config.dataset)
            if claim.method in chosen.methods
        ],
        "costs": [
            cost(name, method, those)
            for name, method in chosen.methods.items()
            if (those := by_method(name))
        ],
        "settings": {name: settings_of(config, chosen, name) for name in chosen.methods},
    }


def joined(asked: float, found: Sequence[Measured]) -> dict[str, Any]:
    """Combine cells that differ by their seeds alone.

    Their epsilon is the requested one, or a higher one if a choice of labels costs extra.
    """
    if not found:
        return {
            "epsilon": jsonable(asked),
            "seeds": [],
            "guarantee": None,
            "statement": None,
        } | dict.fromkeys(ACCURACIES)
    whole = max((one.whole for one in found), key=lambda whole: float(whole["epsilon"]))
    return sweep.summary([one.result for one in found], ACCURACIES) | {
        "epsilon": jsonable(max(asked, float(whole["epsilon"]))),
        "guarantee": {
            name: whole[name] for name in ("epsilon", "delta", "relation", "accountant", "unit")
        },
        "statement": whole["statement"],
    }


def cost(name: str, method: Method, found: Sequence[Measured]) -> dict[str, Any]:
    """Return the seconds of a method's runs, student apart, and the bytes of one client."""
    rest = [one.result["seconds"] - one.student_seconds for one in found]
    students = [one.student_seconds for one in found if one.student_seconds]
    return {
        "method": name,
        "title": method.title,
        "runs": len(found),
        "labels_seconds": statistics.median(rest),
        "longest_seconds": max(rest),
        "student_seconds": statistics.median(students) if students else None,
        "bytes": max(one.sent for one in found),
        "sends": method.sends,
    }


def machines(found: Iterable[Measured]) -> list[dict[str, Any]]:
    """Return the machines on which cells were run, with the first and the last day of each."""
    days: dict[str, list[str]] = {}
    for one in found:
        days.setdefault(json.dumps(one.where), []).append(one.date[:10])
    return [
        json.loads(where) | {"first": min(dates), "last": max(dates)}
        for where, dates in days.items()
    ]


def settings_of(config: Config, chosen: Plan, name: str) -> dict[str, Any]:
    """Return the settings of a method that differ from the defaults of `train.distill`."""
    method = chosen.methods[name]
    plain = runs.settings(Experiment())
    mine = runs.settings(experiment(config, chosen, name, method.epsilons[0], chosen.seeds[0]))
    varied = ("epsilon", "seed", "out", "student", "data_dir", "dataset", "delta", "noise_seed")
    told = {key: value for key, value in mine.items() if key not in varied and value != plain[key]}
    return {
        key: {inner: each for inner, each in value.items() if each != plain[key][inner]}
        if isinstance(value, dict)
        else value
        for key, value in told.items()
    }


def claims(dataset: str) -> list[Claim]:
    """Return the claims of papers for a data set, Li et al. first."""
    name = dataset.removeprefix("tfds:")
    theirs = [
        Claim(
            "rknn-central",
            f"Li et al., {row.system}",
            row.epsilon,
            0.0,
            row.label,
            row.student,
            partial(rknn_stated, row.epsilon),
            "",
        )
        for row in report.PUBLISHED.get(name, ())
    ]
    return [claim._replace(differs=report.CAVEATS[name]) for claim in theirs] + list(
        OTHERS.get(name, ())
    )


def beside(claim: Claim, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a claim with its cost, and the comparable one of our rows.

    Among our rows that cost no more, this is the one of the epsilon nearest to the claimed one.
    """
    costs = claim.recomputed() if claim.recomputed else claim.epsilon or INF
    ours = [row for row in rows if row["method"] == claim.method and row[row["told"]]]
    if claim.epsilon == INF:
        ours = [row for row in ours if row["epsilon"] == INFINITY]
    ours = [row for row in ours if float(row["epsilon"]) <= costs * (1 + 1e-9)]
    best = min(
        ours,
        key=lambda row: abs(
            math.log(float(row["epsilon"])) - math.log(min(claim.epsilon or 1.0, 1e9))
        ),
        default=None,
    )
    return {
        "method": claim.method,
        "system": claim.system,
        "epsilon": jsonable(claim.epsilon),
        "delta": claim.delta,
        "label": claim.label,
        "student": claim.student,
        "recomputed": jsonable(claim.recomputed()) if claim.recomputed else None,
        "ours": best
        and {
            "epsilon": best["epsilon"],
            "label": best["label_accuracy"],
            "student": best[best["told"]],
        },
        "differs": claim.differs,
    }


def jsonable(epsilon: float | None) -> float | str | None:
    """Return an epsilon in the form that JSON can hold."""
    return INFINITY if epsilon == INF else epsilon


def sections(found: dict[str, Any]) -> list[Section]:
    """Return the parts of the page in order."""
    rows = found["rows"]
    done = [row for row in found["rows"] if row["seeds"]]
    missing = [
        f"{row['title']}, ε = {epsilon(row['epsilon'])}: {row['runs'] - len(row['seeds'])} of "
        f"{row['runs']} runs"
        for row in rows
        if len(row["seeds"]) < row["runs"]
    ]
    same = (
        f"δ = {found['delta']:g} and {found['relation']} for all; ε is of one record and one run."
    )
    table = Section(
        "Table 1, rebuilt",
        (
            f"Every method on the same splits, one for each seed; {same} Public, private and "
            "test records are disjoint, the last epoch "
            "counts, and ± is one standard deviation over seeds. ∞ is without noise: what each "
            "could reach. What noise costs to the last "
            "digit, which may be a little less than ε, is under Guarantees.",
            "Where a network is trained on private records, it is what predicts the public "
            "labels. A student learns public labels; "
            "in rows that buy labels it is the network, fine-tuned on true labels.",
        ),
        (
            "method",
            "trust",
            "ε",
            "δ",
            "seeds",
            "public labels right",
            "its network on test",
            "student on test",
        ),
        [line(row) for row in rows],
    )
    beside_them = Section(
        "What papers claim",
        (
            "Recomputed: what the stated noise costs at the claimed δ where one record is "
            "replaced, by this library's accountants. Ours "
            "is the measured row with the ε nearest to the claimed one, of those that are no "
            "more than the recomputed one. "
            "Protocols differ, so no claim is beaten or missed by a table.",
        ),
        (
            "system",
            "ε claimed",
            "ε recomputed",
            "labels claimed",
            "accuracy claimed",
            "ours at ε",
            "our labels",
            "our accuracy",
            "what differs",
        ),
        [claimed(claim) for claim in found["claims"]],
    )
    drawn = [("labels", None, "public labels right"), ("told", "told", "accuracy on the test set")]
    accuracy = Section(
        "Accuracy against ε",
        (
            "Bands are ± one standard deviation over seeds. The second chart has what each paper "
            "tells: student, or private network.",
        ),
        charts=[
            report.chart(name, partial(draw, done, told, what))
            for name, told, what in drawn
            if curves(done, told)
        ],
    )
    costs = Section(
        "Cost",
        (
            "Median seconds of a run on this machine, which others may share. Those for labels "
            "include, where votes are counted, the study "
            "of other epsilons that every run folder has; the longest run also compiles or "
            "learns features. Bytes are the most that "
            "one client with one record hands over: an image and its label where the curator "
            "sees the record itself, which is what such a "
            "method asks clients to trust it with.",
        ),
        (
            "method",
            "runs",
            "labels, s",
            "longest, s",
            "student, s",
            "bytes of a client",
            "what they are",
        ),
        [spent(told) for told in found["costs"]],
    )
    promised = Section("Guarantees", items=[f"{row['title']}: {row['statement']}" for row in done])
    parts = [
        Section("Failed", items=[f"{name}: {why}" for name, why in found["failed"].items()])
        if found["failed"]
        else None,
        table,
        Section("Not yet measured", items=missing) if missing else None,
        beside_them if found["claims"] else None,
        accuracy,
        costs,
        Section("What the numbers do not cover", items=NOT_COVERED),
        promised,
        Section(
            "Settings",
            (
                f"`{found['command']}`, seeds {', '.join(map(str, found['seeds']))}.",
                *map(machine, found["machines"]),
            ),
            items=[f"{name}: {json.dumps(told)}" for name, told in found["settings"].items()],
        ),
    ]
    return [part for part in parts if part]


def machine(told: dict[str, Any]) -> str:
    """Return a sentence that states where and when cells were run."""
    versions = ", ".join(f"{name} {version}" for name, version in told["versions"].items())
    days = told["first"] if told["first"] == told["last"] else f"{told['first']} to {told['last']}"
    return (
        f"Measured on {days}: {told['device']} with {told['cores']} cores, "
        f"Python {told['python']}, {versions}."
    )


def share(accuracy: dict[str, Any] | float | None) -> str:
    """Format an accuracy, or the mean and standard deviation of several."""
    if accuracy is None:
        return "–"
    if isinstance(accuracy, dict):
        return f"{accuracy['mean']:.2%}" + (
            "" if accuracy["stddev"] is None else f" ± {100 * accuracy['stddev']:.2f}"
        )
    return f"{accuracy:.1%}"


def epsilon(value: float | str | None) -> str:
    """Format an epsilon, rounded up."""
    return "not told" if value is None else report.epsilon_text(value)


def line(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of Table 1."""
    first = row["title"], row["trust"], epsilon(row["epsilon"])
    if not row["seeds"]:
        return (*first, "", "not yet", "", "", "")
    seeds = f"{len(row['seeds'])}" + (
        "" if len(row["seeds"]) == row["runs"] else f" of {row['runs']}"
    )
    delta = f"{row['guarantee']['delta']:.2g}" if row["guarantee"]["delta"] else "0"
    return (*first, delta, seeds, *(share(row[name]) for name in ACCURACIES))


def claimed(claim: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of the table of claims."""
    ours = claim["ours"]
    return (
        claim["system"],
        epsilon(claim["epsilon"]),
        "–" if claim["recomputed"] is None else epsilon(claim["recomputed"]),
        share(claim["label"]),
        share(claim["student"]),
        *(
            (epsilon(ours["epsilon"]), share(ours["label"]), share(ours["student"]))
            if ours
            else ("–", "–", "–")
        ),
        claim["differs"],
    )


def spent(told: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of the table of costs."""
    times = (told[name] for name in ("labels_seconds", "longest_seconds", "student_seconds"))
    return (
        told["title"],
        str(told["runs"]),
        *("–" if seconds is None else f"{seconds:.1f}" for seconds in times),
        f"{told['bytes']:,}",
        told["sends"],
    )


def curves(
    rows: Iterable[dict[str, Any]], name: str | None
) -> dict[str, list[tuple[float, float, float]]]:
    """Return epsilon, mean and standard deviation of every measured point, by method.

    Args:
      rows: Rows of the comparison.
      name: Key of a row that names its accuracy, or None for the accuracy of labels.
    """
    found: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows:
        accuracy = row[row[name] if name else "label_accuracy"]
        if accuracy:
            found.setdefault(row["title"], []).append(
                (float(row["epsilon"]), accuracy["mean"], accuracy["stddev"] or 0.0)
            )
    return {title: sorted(points) for title, points in found.items()}


def draw(rows: Sequence[dict[str, Any]], name: str | None, what: str, axes: Axes) -> None:
    """Draw accuracies over epsilon with bands of a standard deviation, a line for each method.

    Accuracy without noise is at the right edge.
    """
    lines = curves(rows, name)
    kinds = {row["title"]: row["kind"] for row in rows}
    place = report._epsilon_axis(axes, [point[0] for points in lines.values() for point in points])
    report._accuracy_axis(
        axes, [point[1] for points in lines.values() for point in points] or [0.5], what
    )
    for title, points in lines.items():
        alike = [other for other in kinds if kinds[other] == kinds[title]]
        place_among = alike.index(title) % 4
        style: dict[str, Any] = {
            "color": COLOURS[kinds[title]],
            "linestyle": ("-", "--", ":", "-.")[place_among],
        }
        handle = {
            "marker": "os^D"[place_among],
            "markersize": 3.5,
            "linewidth": 1.2,
            "label": title,
        }
        for part in (
            [point for point in points if point[0] < INF],
            [point for point in points if point[0] == INF],
        ):
            if part:
                x, mean, spread = np.array(
                    [(place(epsilon), mean, spread) for epsilon, mean, spread in part]
                ).T
                axes.plot(x, report._shown(mean), **style | handle)
                handle.pop("label", None)
                low = report._shown(mean - spread)
                high = report._shown(mean + spread)
                axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
                axes.vlines(x, low, high, color=style["color"], alpha=0.4, linewidth=0.8)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def markdown(found: dict[str, Any], parts: Sequence[Section]) -> str:
    """Return the text and tables of the page as Markdown."""
    text = io.StringIO()
    text.write(f"# {title(found)}\n")
    for part in parts:
        text.write(f"\n## {part.title}\n")
        for words in part.words:
            text.write(f"\n{words}\n")
        if part.header:
            text.write(
                "\n"
                + "\n".join(
                    "| " + " | ".join(row) + " |"
                    for row in (part.header, ["---"] * len(part.header), *part.rows)
                )
                + "\n"
            )
        if part.items:
            text.write("\n" + "\n".join(f"- {item}" for item in part.items) + "\n")
        if part.charts:
            text.write("\nThe curves are in compare.html, and their points in compare.json.\n")
    return text.getvalue()


def title(found: dict[str, Any]) -> str:
    """Return the heading."""
    whole = (
        ""
        if found["measured"] == found["runs"]
        else f", {found['measured']} of {found['runs']} runs so far"
    )
    return f"{found['dataset']}: {len(found['settings'])} methods on the same splits{whole}"


TEMPLATE = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
).get_template("compare.html.j2")
"""Template of the page, read once, so that a change during a run of an hour has no effect."""


def page(found: dict[str, Any], parts: Sequence[Section]) -> str:
    """Return the page, which loads nothing."""
    return TEMPLATE.render(title=title(found), found=found, parts=parts, colours=report.COLOURS)


def cli() -> int:
    """Run from the command line.

    Exit status 1 means that cells failed, 2 bad input, and 130 that it was stopped.
    """
    config = tyro.cli(Config, description=__doc__)
    compilation.keep()
    try:
        return 1 if main(config)["failed"] else 0
    except (ValueError, OSError) as error:
        distill.console.print(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        distill.console.print("Stopped; the same command goes on.")
        return 130


if __name__ == "__main__":
    sys.exit(cli())
