"""Settings of a comparison, and the runs that it consists of."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rknn_jax._internal.option_names import option
from rknn_jax._internal.ranges import AnyEpsilon, AnySeed, CheckShare, Seed
from rknn_jax.privacy.contributions import Protected
from rknn_jax.students.fit import Config as Network
from rknn_jax.students.supervised import Config as Supervised

from ..experiment import Experiment, plain_settings
from .methods import Plan, by_mechanism, digits, mnist, mnist_persons

DELTA = 1e-5
RELATION = "replace-one"


@dataclass(frozen=True)
class Config:
    """Settings of a comparison.

    Attributes:
      dataset: Data set, as for `train.distill`. digits has settings of its own, all others have
        those of mnist.
      data_dir: Folder of the data set; not needed for digits.
      methods: Names of the methods. METHOD:MECHANISM, such as rknn-local:collision, is a method of
        reverse k-NN with another mechanism. Defaults to all methods with their own mechanisms.
      epsilons: Values of epsilon for all methods, each with a student. Defaults to each method's
        own.
      seeds: Seeds for all methods, each of a split. Defaults to three for mnist and two for digits,
        and fewer for networks.
      student: Name of a file of rknn_jax/students/models, or none for no students.
      unit: Privacy unit of all methods: a record, or a person with all records, such as a writer of
        mnist. Settings are then those that suit a few hundred persons.
      check_share: Share of the private records that measure the labels instead of voting, or auto,
        as for `train.distill`. The table then has what they measured. Defaults to 0, as all
        published tables let every record vote.
      noise_seed: Seed of the simulated noise. Defaults to the operating system's entropy.
      out: Folder of all runs and of the page. Defaults to runs/compare-<dataset>, with -person at
        the end for that unit.
    """

    dataset: str = "digits"
    data_dir: Path | None = None
    methods: tuple[str, ...] = ()
    epsilons: tuple[AnyEpsilon, ...] = ()
    seeds: tuple[Seed, ...] = ()
    student: str = "cnn"
    unit: Protected = "record"
    check_share: CheckShare | Literal["auto"] = 0.0
    noise_seed: AnySeed | None = None
    out: Path | None = None

    @property
    def folder(self) -> Path:
        """Folder of all runs and of the page."""
        name = self.dataset.replace(":", "-").replace("/", "-")
        unit = "" if self.unit == "record" else f"-{self.unit}"
        return self.out or Path("runs") / f"compare-{name}{unit}"


class Cell(NamedTuple):
    """One run of a comparison: a method at an epsilon, with the experiment's settings."""

    method: str
    epsilon: float
    experiment: Experiment


def plan(config: Config) -> tuple[Plan, list[Cell]]:
    """Return the plan and its cells, in the order of the runs.

    Raises:
      ValueError: If a method does not exist, if a value is given twice, if persons are the unit of
        a data set that names none, and for the errors of `Experiment`.
    """
    for name in ("methods", "epsilons", "seeds"):
        given = getattr(config, name)
        if len({*given}) < len(given):
            raise ValueError(
                f"Expected each of {option(name)} once, got {' '.join(map(str, given))}; a run "
                "that is made once would count several times."
            )
    chosen = _plan_of(config)
    named = by_mechanism(chosen.methods, config.methods)
    chosen = chosen._replace(methods=chosen.methods | named)
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
            name: method._replace(epsilons=given, students=() if method.buys else given)
            for name, method in methods.items()
        }
    if config.seeds:
        methods = {name: method._replace(seeds=None) for name, method in methods.items()}
    chosen = chosen._replace(seeds=config.seeds or chosen.seeds, methods=methods)
    cells = [
        Cell(name, epsilon, experiment(config, chosen, name, epsilon=epsilon, seed=seed))
        for name, method in methods.items()
        for seed in chosen.seeds[: method.seeds]
        for epsilon in method.epsilons
    ]
    return chosen, sorted(cells, key=lambda cell: group(chosen, cell)[:2])


def _plan_of(config: Config) -> Plan:
    """Return the plan for a data set and a unit."""
    if config.dataset != "digits":
        return mnist() if config.unit == "record" else mnist_persons()
    if config.unit != "record":
        raise ValueError(
            f"Expected a data set that names the person of each record with unit={config.unit}, "
            "got dataset=digits; take mnist with its writers' files, or unit=record."
        )
    return digits()


def experiment(config: Config, chosen: Plan, name: str, epsilon: float, seed: int) -> Experiment:
    """Return the settings of one cell."""
    method = chosen.methods[name]
    settings: dict[str, Any] = {
        "dataset": config.dataset,
        "data_dir": config.data_dir,
        "epsilon": epsilon,
        "delta": DELTA,
    }
    settings |= {"relation": RELATION, "unit": config.unit, "check_share": config.check_share}
    settings |= {"seed": seed, "noise_seed": config.noise_seed}
    student = None
    if config.student != "none":
        student = Supervised(Network(model=config.student, epochs=chosen.epochs))
    settings |= {"student": student if epsilon in method.students else None}
    return Experiment(
        **settings | method.changes,
        out=config.folder / name.replace(":", "-") / f"epsilon={epsilon:g}-seed={seed}",
    )


def group(chosen: Plan, cell: Cell) -> tuple[bool, bool, str]:
    """Return the group of a cell: the page is written after each group.

    A group has one method, with or without students. Slow methods come last.
    """
    return chosen.methods[cell.method].slow, cell.experiment.student is not None, cell.method


def settings_of(config: Config, chosen: Plan, name: str) -> dict[str, Any]:
    """Return the settings of a method that differ from the defaults of `train.distill`."""
    method = chosen.methods[name]
    told_best = (*method.students, *method.epsilons)[0]  # with a student, if any epsilon has one
    own = experiment(config, chosen, name, epsilon=told_best, seed=chosen.seeds[0])
    plain = plain_settings(
        Experiment(
            delta=DELTA, labeler=type(own.labeler)(), representation=type(own.representation)()
        )
    )
    mine = plain_settings(own)
    varied = ("epsilon", "seed", "out", "student", "data_dir", "dataset", "delta", "noise_seed")
    named = {"labeler": mine["labeler"], "representation": mine["representation"]}
    told = named | {
        key: value for key, value in mine.items() if key not in varied and value != plain[key]
    }
    for key, value in told.items():
        if isinstance(value, dict):
            told[key] = {inner: each for inner, each in value.items() if each != plain[key][inner]}
    return {key: value for key, value in told.items() if value != {}}
