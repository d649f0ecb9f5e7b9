"""Methods that are compared on MNIST and on digits, with their settings."""

import math
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, NamedTuple

from rknn_jax import labelers, trust
from rknn_jax.labelers import Labeler, dpdfd
from rknn_jax.labelers.dpdfd import DPDFD
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.labelers.pate import PATE
from rknn_jax.labelers.private_knn import PrivateKNN
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.representations import pixels

from ..buy import Config as Buy

RECORD = "the whole record, to a curator who sees it"
VOTE = "its k votes, each the number of a cell, to a curator"
MESSAGE = "a randomized message, its hash's seed included, to anybody"
SHUFFLED = "a randomized message, its hash's seed included, to a shuffler"

# Setting of the results in docs/results.md.
BY_GENERAL = ReverseKNN(trust="shuffle", amplification="general")

INF = math.inf


# Chosen on made-up persons, by benchmarks.noisy_sgd_persons.
PERSON_CLIP = 0.1


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
    def labeler(self) -> Labeler[Any]:
        """Labeler of the method."""
        found: Labeler[Any] = self.changes.get("labeler", ReverseKNN())
        return found

    @property
    def buys(self) -> bool:
        """True if labels are bought."""
        return "buy" in self.changes

    @property
    def kind(self) -> str:
        """Name of the labeler, or `buy` if labels are bought."""
        return "buy" if self.buys else self.labeler.name

    @property
    def trust(self) -> str:
        """Trust model of the clients."""
        return self.labeler.trust

    @property
    def slow(self) -> bool:
        """True if a network is trained on images, which takes minutes."""
        return self.buys or self.labeler.slow


class Plan(NamedTuple):
    """Measurements of a data set.

    Attributes:
      epochs: Number of epochs of each student; 0 is the network's own.
      seeds: Seeds of the splits.
      methods: Methods by name.
    """

    epochs: int
    seeds: tuple[int, ...]
    methods: dict[str, Method]


def mnist(grid: tuple[float, ...] = (0.01, 0.04, 0.1, 0.4, 1.0, 4.0, INF)) -> Plan:
    """Return the plan for MNIST: 101 runs, 30 of them with a student."""
    network = NoisySGD(network="tanh_cnn", epochs=5, clip=0.3, learning_rate=1.0)

    def bought(select: Any) -> dict[str, Any]:
        how = Buy(labels=1000, oracle="benchmark", select=select)
        return {
            "labeler": network,
            "representation": pixels.Config(),
            "buy": how,
        }

    methods = {
        "rknn-central": Method(
            "reverse k-NN, central", {}, grid, students=(0.01, 0.04, 0.1, 1.0, INF), sends=VOTE
        ),
        "noisy-sgd": Method(
            "noisy SGD, linear head",
            {"labeler": NoisySGD()},
            grid,
            (1.0,),
            told="model_test_accuracy",
        ),
        "private-knn": Method(
            "Private-kNN, 1,000 queries",
            {"labeler": PrivateKNN(), "queries": 1000},
            (0.4, 0.89, INF),
            (0.89,),
        ),
        "private-knn-few": Method(
            "Private-kNN, 100 queries", {"labeler": PrivateKNN(), "queries": 100}, (0.04, 0.1, 0.4)
        ),
        "pate": Method(
            "PATE, Confident-GNMax, 1,000 queries",
            {"labeler": PATE(), "queries": 1000},
            (1.0, 2.5, INF),
            (2.5,),
        ),
        "pate-few": Method(
            "PATE, Confident-GNMax, 100 queries", {"labeler": PATE(), "queries": 100}, (0.4, 1.0)
        ),
        "rknn-shuffle": Method(
            "reverse k-NN, shuffled",
            {"labeler": BY_GENERAL},
            (0.01, 0.1, 1.0),
            students=(0.1,),
            sends=SHUFFLED,
        ),
        "rknn-local": Method(
            "reverse k-NN, local",
            {"labeler": ReverseKNN(trust="local")},
            (0.1, 0.4, 1.0, 4.0),
            students=(1.0,),
            sends=MESSAGE,
        ),
        "dpdfd": Method(
            "DPDFD, 4,000 teachers",
            {"labeler": DPDFD(), "representation": pixels.Config()},
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
    return Plan(0, (5, 6, 7), methods | others(methods, grid))


def mnist_persons(grid: tuple[float, ...] = (0.1, 0.2, 0.5, 1.0, 4.0, INF)) -> Plan:
    """Return the plan for MNIST with its 539 writers as the unit.

    It has everything that MNIST has, at sizes that a few hundred persons allow, but for choices of
    labels whose noise hides a single record.
    """
    private = {"labeler": PrivateKNN(num_neighbors=50, sampling_prob=0.2)}
    teachers = {"labeler": PATE()}
    small = tuple(epsilon for epsilon in grid if epsilon <= 0.5)
    large = tuple(epsilon for epsilon in grid if epsilon >= 0.5)
    without_curator = tuple(epsilon for epsilon in grid if 1 <= epsilon < INF)
    own: dict[str, tuple[str, dict[str, Any], tuple[float, ...]]] = {
        "noisy-sgd": ("noisy SGD, linear head", {"labeler": NoisySGD(clip=PERSON_CLIP)}, grid),
        "private-knn": ("Private-kNN, 100 queries", private | {"queries": 100}, large),
        "private-knn-few": ("Private-kNN, 20 queries", private | {"queries": 20}, small),
        "pate": ("PATE, Confident-GNMax, 100 queries", teachers | {"queries": 100}, large),
        "pate-few": ("PATE, Confident-GNMax, 20 queries", teachers | {"queries": 20}, small),
        "rknn-shuffle": (
            "reverse k-NN, shuffled",
            {"labeler": ReverseKNN(trust="shuffle")},
            without_curator,
        ),
        "rknn-local": (
            "reverse k-NN, local",
            {"labeler": ReverseKNN(trust="local")},
            without_curator,
        ),
        "dpdfd": ("DPDFD, 500 teachers", {"labeler": DPDFD(num_teachers=500)}, (10.0, INF)),
    }
    methods = {
        "rknn-gaussian": Method(
            "reverse k-NN, central, Gaussian noise",
            {"labeler": ReverseKNN(mechanism="gaussian")},
            tuple(epsilon for epsilon in grid if epsilon < INF),
            sends=VOTE,
        )
    }
    for name, method in mnist(grid).methods.items():
        changes = method.changes
        if method.buys:
            if changes["buy"].select == "near_private":
                continue
        title, given, epsilons = own.get(name, (method.title, {}, method.epsilons))
        students = (1.0,) if method.students else ()
        methods[name] = method._replace(
            title=title, changes=changes | given, epsilons=epsilons, students=students
        )
    return Plan(0, (5, 6, 7), methods)


def others(methods: dict[str, Method], grid: tuple[float, ...]) -> dict[str, Method]:
    """Return a method for every labeler and every trust model that has none.

    A labeler has its own settings, and reverse k-NN labels under the trust model.
    """
    known = {method.labeler.name for method in methods.values()}
    found = {
        name.replace("_", "-"): Method(name, {"labeler": labelers.named(name)()}, grid)
        for name in labelers.names()
        if name not in known
    }
    trusted = {method.trust for method in methods.values()}
    for name in trust.names(lambda model: model.labels):
        if name not in trusted:
            changes = {"labeler": ReverseKNN(trust=name)}
            found[f"rknn-{name.replace('_', '-')}"] = Method(
                f"reverse k-NN, {name.replace('_', ' ')}", changes, grid
            )
    return found


def by_mechanism(methods: dict[str, Method], names: Iterable[str]) -> dict[str, Method]:
    """Return the methods that are named METHOD:MECHANISM, such as `rknn-local:collision`.

    Args:
      methods: Methods with their own mechanisms.
      names: Names of methods; those without a mechanism, or of no reverse k-NN, are left out.

    Raises:
      ValueError: If the method's trust model has no such mechanism.
    """
    found = {}
    for name in names:
        base, _, mechanism = name.partition(":")
        if mechanism and base in methods and isinstance(methods[base].labeler, ReverseKNN):
            method = methods[base]
            labeler = replace(method.labeler, mechanism=mechanism)
            found[name] = method._replace(
                title=f"{method.title}, {mechanism.replace('_', ' ')}",
                changes=method.changes | {"labeler": labeler},
            )
    return found


def digits(grid: tuple[float, ...] = (1.0, 4.0, INF)) -> Plan:
    """Return the plan for scikit-learn's digits, which takes minutes.

    It has everything that MNIST has, at sizes that a thousand records allow.
    """
    images = NoisySGD(network="datalens", epochs=5)
    given: dict[str, Any] = {
        one.name: one.default for one in fields(DPDFD) if one.name in DPDFD.given
    }
    small = replace(dpdfd.SMALL, **given, num_teachers=40)
    private = {"labeler": PrivateKNN(num_neighbors=30, sampling_prob=0.5)}
    teachers = {"labeler": PATE(num_teachers=50)}
    buying = {
        name: Buy(200, "benchmark", name, candidates=100)
        for name in ("diverse_public", "near_private")
    }
    own: dict[str, tuple[str, dict[str, Any]]] = {
        "private-knn": ("Private-kNN, 200 queries", private | {"queries": 200}),
        "private-knn-few": ("Private-kNN, 50 queries", private | {"queries": 50}),
        "rknn-shuffle": ("reverse k-NN, shuffled", {"labeler": ReverseKNN(trust="shuffle")}),
        "pate": ("PATE, Confident-GNMax, 200 queries", teachers | {"queries": 200}),
        "pate-few": ("PATE, Confident-GNMax, 50 queries", teachers | {"queries": 50}),
        "dpdfd": ("DPDFD, 40 teachers", {"labeler": small}),
        "diverse-public": (
            "DiversePublic, 200 labels bought",
            {"labeler": images, "buy": buying["diverse_public"]},
        ),
        "near-private": (
            "NearPrivate, 200 labels bought",
            {"labeler": images, "buy": buying["near_private"]},
        ),
    }
    methods = {}
    for name, method in mnist(grid).methods.items():
        title, changes = own.get(name, (method.title, {}))
        usual = tuple(epsilon for epsilon in grid if epsilon < INF or INF in method.epsilons)
        epsilons = (4.0,) if method.buys else (4.0, INF) if method.slow else usual
        students = (1.0, INF) if name == "rknn-central" else (4.0,) if method.students else ()
        methods[name] = method._replace(
            title=title, changes=method.changes | changes, epsilons=epsilons, students=students
        )
    return Plan(10, (0, 1), methods)
