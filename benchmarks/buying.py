"""Bought labels for a privately trained network on MNIST.

    python -m benchmarks.buying
    python -m benchmarks.buying --only labels pollution

The results are accuracy by number of labels, in a polluted pool, by settings, and by the epsilon of
the network, which the papers call a checkpoint. The networks of a split are trained by noisy SGD
and shared by all rows. Half of the training images are private and half public. The benchmark sells
the true labels of the public half.

In a polluted pool, records of no class replace a share of the public images. `glued` joins the
upper half of one digit and the lower half of another, which is close to digits. `quarters` swaps
the quarters of one digit, which is farther from digits. The oracle reports such records, and their
purchase is wasted.
"""

import argparse
import functools
import itertools
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np

from benchmarks import _kept
from benchmarks._measure import mnist_folder, save_part, summary
from rknn_jax import data
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labelers import noisy_sgd
from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.queries import sample
from rknn_jax.students import dpsgd
from rknn_jax.students import fit as students
from rknn_jax.types import Array, Public, Task
from train import buy

SEEDS = (0, 1, 2)
DELTA = 1e-5
SELECTORS: tuple[buy.Selector, ...] = get_args(buy.Selector)
EPSILON = 2.0
TRAINING = noisy_sgd.NoisySGD(
    epsilon=EPSILON, delta=DELTA, relation="replace-one", network="tanh_cnn", epochs=10
)
NUMBERS = (250, 500, 1000, 2000, 7000, 10_000)
"""Numbers of labels; DiversePublic's paper buys the last two."""
CHECKPOINTS = (0.5, 1.0, EPSILON, 4.0)
BUYING = buy.Config(labels=1000, oracle="benchmark")
ABLATIONS: dict[tuple[Any, float], dict[str, tuple[Any, ...]]] = {
    ("diverse_public", 0.0): {
        "per_cluster": (2, 5, 10, 20, 50),
        "components": (2, 4, 8, 16, 32),
        "candidates": (250, 4000),
    },
    ("near_private", 0.5): {
        "epsilon_pca": (0.01, 0.03, 0.1, 0.3, 1.0),
        "epsilon_support": (0.03, 0.1, 0.3, 0.7, 2.0),
        "components": (4, 16, 32),
        "candidates": (1000, 9000),
        "private_uncertain": ("threshold",),
    },
}
"""Varied settings, by the selector and the polluted share of the pool."""


class Setting(NamedTuple):
    """One row: what is bought, the polluted share of the pool, and the network's epsilon."""

    figure: str
    config: buy.Config
    polluted: float = 0.0
    pollution: Literal["glued", "quarters"] = "glued"
    checkpoint: float = EPSILON


@dataclass(frozen=True, eq=False)
class Remembering(students.Student):
    """A network that predicts every array of images once, which is most of the work of choosing."""

    seen: dict[Any, tuple[Array, np.ndarray]] = field(default_factory=dict)

    def predict_proba(self, images: Array) -> np.ndarray:
        """Return the class probabilities of images."""
        return self._once("predict_proba", images)

    def features(self, images: Array) -> np.ndarray:
        """Return the layer before the head of images."""
        return self._once("features", images)

    def _once(self, name: str, images: Array) -> np.ndarray:
        key = id(images), name
        if key not in self.seen:
            given = {part.name: getattr(self, part.name) for part in fields(students.Student)}
            found = getattr(students.Student(**given), name)(images)
            self.seen[key] = (images, found)  # the array too, so that its id stays unique
        return self.seen[key][1]


def settings() -> Iterator[Setting]:
    """Yield all rows; a row that several figures share is run once."""
    for select, labels in itertools.product(SELECTORS, NUMBERS):
        yield Setting("labels", replace(BUYING, select=select, labels=labels))
    for polluted, select in itertools.product((0.0, 0.25, 0.5, 0.75), SELECTORS):
        yield Setting("pollution", replace(BUYING, select=select), polluted)
    for select in SELECTORS:
        yield Setting("quarters", replace(BUYING, select=select), 0.5, "quarters")
    yield Setting(
        "quarters", replace(BUYING, select="near_private", candidates=9000), 0.5, "quarters"
    )
    for checkpoint, select in itertools.product(CHECKPOINTS, SELECTORS):
        yield Setting("checkpoint", replace(BUYING, select=select), checkpoint=checkpoint)
    for (select, polluted), varied in ABLATIONS.items():
        for name, values in varied.items():
            for value in values:
                yield Setting(
                    f"{select}: {name}", replace(BUYING, select=select, **{name: value}), polluted
                )


def polluted(task: Task, setting: Setting, seed: int) -> Task:
    """Return the task with a share of its public images polluted, whose label is -1.

    The module docstring states the two kinds of pollution.
    """
    random = np.random.RandomState(seed)
    images = task.public.images.copy()
    truth = task.public.true_labels.copy()
    place = random.permutation(len(truth))[: round(setting.polluted * len(truth))]
    half = images.shape[1] // 2
    if setting.pollution == "quarters":
        images[place] = np.roll(images[place], (half, half), (1, 2))
    else:
        other = random.randint(len(truth), size=len(place))
        while (same := task.public.true_labels[place] == task.public.true_labels[other]).any():
            other[same] = random.randint(len(truth), size=same.sum())
        images[place, half:] = task.public.images[other, half:]
    truth[place] = -1
    return replace(task, public=Public(images, truth))


def private_network(
    folder: Path, task: Task, seed: int, epsilon: float
) -> tuple[Remembering, Guarantee]:
    """Train by noisy SGD, or read the saved network."""
    network = folder / f"network-{seed}-{epsilon}"
    training = replace(TRAINING, epsilon=epsilon)
    num_records = len(task.private.labels)
    guarantee = dpsgd.noise(dpsgd.settled(training, num_records, head=False), num_records)[1]
    if not network.exists():
        students.save(trained(training, task, seed), network)
    saved = students.load(network)
    given = {part.name: getattr(saved, part.name) for part in fields(saved)}
    return Remembering(**given), guarantee


def trained(training: noisy_sgd.NoisySGD, task: Task, seed: int) -> students.Student:
    """Train a network on the private images."""
    root = jax.random.key(seed)
    queries = sample.select(
        stage_key(root, Stage.QUERIES), np.zeros((len(task.public.images), 1), np.float32), 1
    )
    queries = replace(queries, images=task.public.images[queries.index])
    num_classes = task.card.num_classes
    votes = training.contribute(
        stage_key(root, Stage.SAMPLING), task.private, np.asarray, queries, num_classes
    )
    answers = training.release(stage_key(root, Stage.NOISE), votes, queries, num_classes)
    assert isinstance(answers.model, students.Student)  # networks on images are students
    return answers.model


def accuracy(student: students.Student, task: Task) -> float:
    """Return the accuracy on the test images."""
    return float(
        np.mean(student.predict_proba(task.test.images).argmax(axis=1) == task.test.labels)
    )


def run(
    seed: int, setting: Setting, task: Task, network: students.Student, trained: Guarantee
) -> dict[str, Any]:
    """Buy and fine-tune."""
    started = time.perf_counter()
    root = jax.random.key(seed)
    config = setting.config
    keys = stage_key(root, Stage.QUERIES, 1), stage_key(root, Stage.NOISE, 1)
    queries, price = buy.select(*keys, task, network, config, TRAINING.relation, DELTA)
    whole = accounting.compose([trained] if price is None else [trained, price], DELTA)
    labels = buy.bought_labels(task, queries.index, config)
    useful = labels >= 0
    said = network.predict_proba(task.public.images[queries.index]).argmax(axis=1)
    student = buy.fine_tune(
        stage_key(root, Stage.STUDENT), task, network, queries.index, labels, config
    )
    return {
        "test_accuracy": accuracy(student, task),
        "of_the_classes": float(useful.mean()),
        "network_right_on_them": float(np.mean(said[useful] == labels[useful])),
        "epsilon": whole.epsilon,
        "seconds": time.perf_counter() - started,
    }


def name_of(seed: int, setting: Setting) -> str:
    """Return the name of a run."""
    changed = [
        f"{name}={value}"
        for name, value in asdict(setting.config).items()
        if value != getattr(BUYING, name)
    ]
    pool = f"polluted={setting.polluted}"
    return ", ".join(
        [f"{seed}", f"epsilon={setting.checkpoint}", setting.pollution, pool, *changed]
    )


def measure(folder: Path, figures: list[str]) -> None:
    """Measure all runs of some figures, and write the results of each."""
    found: dict[Setting, list[dict[str, Any]]] = {
        setting: [] for setting in settings() if setting.figure in figures
    }
    alone: dict[float, list[float]] = {setting.checkpoint: [] for setting in found}
    for seed in SEEDS:
        task = data.load("mnist:half", seed, mnist_folder())
        networks = {one: private_network(folder, task, seed, one) for one in alone}
        for epsilon, (network, _) in networks.items():
            alone[epsilon].append(accuracy(network, task))
        print(f"{seed}: the networks tell {[each[-1] for each in alone.values()]}", flush=True)
        for _, same_pool in itertools.groupby(
            sorted(found, key=lambda setting: setting[2:]), lambda setting: setting[2:4]
        ):
            chosen = list(same_pool)
            pool = polluted(task, chosen[0], seed)
            for setting in chosen:
                one = functools.partial(run, seed, setting, pool, *networks[setting.checkpoint])
                found[setting].append(_kept.part(folder, name_of(seed, setting), one))
    about = {
        "seeds": SEEDS,
        "relation": TRAINING.relation,
        "training": asdict(TRAINING),
        "oracle": BUYING.oracle,
        "delta": DELTA,
    }
    for figure in figures:
        rows = [row(*each) for each in found.items() if each[0].figure == figure]
        save_part("buying", figure, rows, **about)
    if "checkpoint" in figures:
        told = {str(epsilon): summary(values) for epsilon, values in alone.items()}
        save_part("buying", "networks", told, **about)


def row(setting: Setting, same: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the runs of a setting found."""
    return (
        {
            "figure": setting.figure,
            "checkpoint": setting.checkpoint,
            "polluted": setting.polluted,
            "pollution": setting.pollution,
        }
        | {name: value for name, value in asdict(setting.config).items() if name != "oracle"}
        | {"epsilon": max(row["epsilon"] for row in same)}
        | {
            name: summary([row[name] for row in same])
            for name in ("test_accuracy", "of_the_classes", "network_right_on_them", "seconds")
        }
    )


def main() -> None:
    """Measure the chosen figures."""
    every = list(dict.fromkeys(setting.figure for setting in settings()))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=every, choices=every, metavar="FIGURE")
    figures = parser.parse_args().only
    with _kept.parts("buying") as folder:
        measure(folder, figures)


if __name__ == "__main__":
    main()
