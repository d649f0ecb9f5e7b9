"""A person as the unit: labels of MNIST by writers, and of made-up persons of unequal size.

    python -m benchmarks.persons
    python -m benchmarks.persons labelers

`mnist` labels the public images by the digits of 539 writers, each protected as a whole. In the
central model they share a vote, m of their digits are drawn, or their votes are clipped in L2 for
Gaussian noise, beside the digit as the unit. In the local and the shuffle model m digits are drawn
whose messages share epsilon. `skewed` gives 2,000 made-up persons 1 to 1,000 records each. In its
case `alike` every record is of any group. In `apart` a person's records are all of one group, and
persons with many favor the first groups.

`labelers` is written to a file of its own. It runs `train.distill --unit person`, without students,
by the methods of `train.compare --unit person` that need no network on images. Beside them are the
labels by hand of the same queries, which need no private record.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks._measure import mnist_folder, save, summary
from rknn_jax import data, postprocessing
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labelers import _vote_mechanism, rknn
from rknn_jax.labels import Labels
from rknn_jax.mechanisms.base import estimate_counts
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.mechanisms.gaussian import Gaussian
from rknn_jax.privacy import contributions
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.queries import kmeans
from rknn_jax.representations import spectral
from rknn_jax.types import Answers, Queries
from train import distill, stages, sweep
from train.compare.measure import jsonable
from train.compare.plan import Cell, Config, plan
from train.experiment import Experiment

SEEDS = (5, 6, 7)
SEEDS_OF_LABELERS = (5, 6, 7, 8, 9)
DRAWS = 20
NUM_CLASSES = 10
EPSILONS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LOCAL = (1.0, 2.0, 4.0, 8.0)
MOST = (1, 10, 30, 100)
DELTA = 1e-5


def bounds(person: np.ndarray, seed: int) -> Iterator[tuple[str, contributions.Weights]]:
    """Yield each bound with the weights of the records."""
    yield "shared", contributions.shared(person)
    for most in MOST:
        yield f"{most} drawn", contributions.limited(person, person.astype(np.uint64), most, seed)


def central(
    key: jax.Array,
    cells: np.ndarray,
    weights: contributions.Weights,
    shape: tuple[int, int],
    eps: float,
) -> Iterator[tuple[np.ndarray, DiscreteLaplace]]:
    """Yield simulated noisy counts of `DRAWS` releases, in votes of persons, and the mechanism."""
    units = contributions.weighed_votes(cells, weights, shape[0] * shape[1])
    mechanism = DiscreteLaplace(eps, *shape, unit="person", grid=weights.grid)
    for draw in jax.random.split(key, DRAWS):
        yield np.asarray(mechanism.estimate(draw, units, 1)), mechanism


def clipped(
    key: jax.Array, cells: np.ndarray, person: np.ndarray, shape: tuple[int, int], eps: float
) -> Iterator[tuple[np.ndarray, Gaussian]]:
    """Yield what `central` yields, with Gaussian noise on clipped votes."""
    units = contributions.clipped_votes(cells, person, shape[0] * shape[1])
    mechanism = Gaussian(eps, *shape, delta=DELTA, unit="person", grid=contributions.GRID)
    for draw in jax.random.split(key, DRAWS):
        yield np.asarray(mechanism.estimate(draw, units, 1)), mechanism


def mnist(seed: int) -> list[dict[str, Any]]:
    """Return the accuracy of the public labels for each unit, bound, trust and epsilon."""
    task, root = data.load("mnist", seed, mnist_folder()), jax.random.key(seed)
    config = spectral.Config(dimension=10)
    encode = spectral.fit(stage_key(root, Stage.ENCODER), task.public.images, config)
    public = np.asarray(encode(task.public.images))
    queries = kmeans.select(stage_key(root, Stage.QUERIES), public, 10)
    labels = task.private.labels
    features = encode(task.private.images)
    cells = np.asarray(rknn.vote_cells(features, labels, queries, NUM_CLASSES, rknn.ReverseKNN()))
    _, person = np.unique(task.private.clients, return_inverse=True)
    truth = task.public.true_labels
    noise = stage_key(root, Stage.NOISE)

    def row(about: dict[str, Any], counts: list[np.ndarray], stddev: float) -> dict[str, Any]:
        right = [
            float(np.mean(_labels(each, stddev, queries)[queries.cluster] == truth))
            for each in counts
        ]
        return about | {"writers": int(person.max()) + 1, "label_accuracy": right}

    rows = []
    shape = (10, NUM_CLASSES)
    for eps in EPSILONS:
        alone = np.arange(len(cells))
        given = [("none", contributions.limited(alone, alone.astype(np.uint64), 1))]
        for name, weights in [*given, *bounds(person, seed)]:
            counts, made = zip(*central(noise, cells, weights, shape, eps), strict=True)
            unit = "record" if name == "none" else "person"
            about = {"unit": unit, "bound": name, "trust": "central", "epsilon": eps}
            rows.append(row(about, list(counts), made[0].noise_stddev))
        counts, gaussian = zip(*clipped(noise, cells, person, shape, eps), strict=True)
        about = {"unit": "person", "bound": "clipped", "trust": "central", "epsilon": eps}
        rows.append(row(about, list(counts), gaussian[0].noise_stddev))
    for trust in ("local", "shuffle"):
        for eps in LOCAL:
            for most in (1, 4):
                about = {"unit": "person", "bound": f"{most} drawn"}
                about |= {"trust": trust, "epsilon": eps}
                counts, stddev = messages(noise, cells, person, trust, eps, most)
                rows.append(row(about, counts, stddev))
    return rows


def messages(
    key: jax.Array, cells: np.ndarray, person: np.ndarray, trust: Any, eps: float, most: int
) -> tuple[list[np.ndarray], float]:
    """Return the estimates of persons who send `most` messages at epsilon / `most` each.

    In the shuffle model each message hides among those of the other persons, and a person's
    messages compose to epsilon and delta.
    """
    drawn = contributions.limited(person, person.astype(np.uint64), most).units > 0
    config = rknn.ReverseKNN(
        epsilon=eps / most, delta=DELTA / most, trust=trust, mechanism="collision"
    )
    others = int(person.max()) + 1
    mechanism = _vote_mechanism.calibrated(10, NUM_CLASSES, others, config)
    keys = jax.random.split(key, DRAWS)
    counts = [np.asarray(estimate_counts(mechanism, each, cells[drawn])) for each in keys]
    return counts, float(np.mean(mechanism.stddev(counts[0], int(drawn.sum()))))


def _labels(counts: np.ndarray, stddev: float, queries: Queries) -> np.ndarray:
    spread = np.full(counts.shape, stddev, np.float32)
    return rknn.ReverseKNN().read(counts, spread, None, queries).labels  # type: ignore[arg-type]


def skewed(case: str, seed: int) -> list[dict[str, Any]]:
    """Return the share of queries with the right label, for 100 groups of queries in 10 classes."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(rng.zipf(1.3, 2000), 1000)
    person = np.repeat(np.arange(2000), sizes)
    group = rng.integers(0, 100, len(person))
    if case == "apart":
        favored = np.minimum(rng.exponential(3000 / (30 + 30 * sizes)), 99).astype(int)
        group = favored[person]
    noisy = rng.random(len(person)) < 0.3
    label = np.where(noisy, rng.integers(0, NUM_CLASSES, len(person)), group % NUM_CLASSES)
    cells = (group * NUM_CLASSES + label)[:, None]
    rows = []
    for eps in EPSILONS:
        key = stage_key(jax.random.key(seed), Stage.NOISE)
        for name, weights in bounds(person, seed):
            found = [
                float(np.mean(counts.argmax(axis=1) == np.arange(100) % NUM_CLASSES))
                for counts, _ in central(key, cells, weights, (100, NUM_CLASSES), eps)
            ]
            about = {"case": case, "bound": name, "epsilon": eps, "records": len(person)}
            rows.append(about | {"queries_right": found})
        counts_of = clipped(key, cells, person, (100, NUM_CLASSES), eps)
        found = [
            float(np.mean(counts.argmax(axis=1) == np.arange(100) % NUM_CLASSES))
            for counts, _ in counts_of
        ]
        about = {"case": case, "bound": "clipped", "epsilon": eps, "records": len(person)}
        rows.append(about | {"queries_right": found})
    return rows


def labelers() -> list[dict[str, Any]]:
    """Return the accuracy of the public labels for each method and epsilon, writers protected."""
    config = Config("mnist", mnist_folder(), seeds=SEEDS_OF_LABELERS, student="none", unit="person")
    chosen, cells = plan(config)
    cells = [cell for cell in cells if not chosen.methods[cell.method].slow]
    prepared = sweep.sharing(len(SEEDS_OF_LABELERS))
    stages.console.quiet = True
    found = dict[tuple[str, float], list[dict[str, float]]]()
    for cell in sorted(cells, key=lambda cell: (cell.experiment.seed, cell.method)):
        key = (cell.method, cell.epsilon)
        found.setdefault(key, []).append(_of_cell(cell, prepared))
        print(cell.experiment.seed, key, found[key][-1], file=sys.stderr, flush=True)
    rows = []
    for (method, epsilon), runs in found.items():
        about: dict[str, Any] = {"method": method, "title": chosen.methods[method].title}
        about |= {"epsilon": jsonable(epsilon)}
        rows.append(about | _joined(runs))
    alone = [
        _by_hand(replace(cells[0].experiment, seed=seed), prepared) for seed in SEEDS_OF_LABELERS
    ]
    return [*rows, *(_told_by_hand(alone, count) for count in alone[0])]


def _of_cell(cell: Cell, prepared: Any) -> dict[str, float]:
    """Run a cell in a folder that is removed, and return the accuracy of its labels."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            distill.main(replace(cell.experiment, out=out), prepared, benchmark=False)
        except ValueError as error:
            # No query passed the screen, so nothing is labeled.
            if "answer" not in str(error):
                raise
            return {"label_accuracy": 0.0, "worst_class": 0.0, "units": 0}
        with np.load(out / "labels.npz") as saved:
            told = _accuracies(saved["label"], saved["true_label"])
        return told | {"units": json.loads((out / "result.json").read_text())["num_units"]}


def _accuracies(labels: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Return the share of labels that are right, of all and of the worst class."""
    right = labels == truth
    classes = [float(right[truth == one].mean()) for one in range(NUM_CLASSES)]
    return {"label_accuracy": float(right.mean()), "worst_class": min(classes)}


def _joined(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Return the mean over splits with the worst run, and the worst class of all runs."""
    values = [run["label_accuracy"] for run in runs]
    told = {"label_accuracy": summary(values) | {"worst": min(values)}}
    return told | {"worst_class": min(run["worst_class"] for run in runs)}


def _by_hand(experiment: Experiment, prepared: Any) -> dict[int, dict[str, float]]:
    """Return the accuracy of public labels from true labels of the queries, by their number."""
    task, encode, _ = prepared(experiment)
    features = encode(task.public.images)
    labeler = experiment.labeler_of_round()
    told = {}
    for count in (10, stages.default_num_queries(task, labeler, experiment), 100):
        key = stage_key(jax.random.key(experiment.seed), Stage.QUERIES, 0)
        queries = kmeans.select(key, features, count)
        named = np.eye(NUM_CLASSES, dtype=np.float32)[task.public.true_labels[queries.index]]
        nothing = Guarantee(0.0, 0.0, "replace-one", "central", (), unit="person")
        answers = Answers.predicted(named, nothing, None)  # type: ignore[arg-type]
        labels = Labels.none(len(features), NUM_CLASSES).updated(queries, answers, 0)
        graph = postprocessing.public_graph(features, count)
        labels = labels.spread(postprocessing.public_labels(graph, labels.probabilities, count))
        told[count] = _accuracies(labels.hard, task.public.true_labels)
    return told


def _told_by_hand(alone: list[dict[int, dict[str, float]]], count: int) -> dict[str, Any]:
    title = f"no private record: {count} labels by hand"
    about: dict[str, Any] = {"method": f"by-hand-{count}", "title": title, "epsilon": 0.0}
    return about | _joined([one[count] for one in alone])


def over_seeds(parts: list[list[dict[str, Any]]], measured: str) -> list[dict[str, Any]]:
    """Return rows with the mean over splits, and the worst release of all."""
    rows = []
    for same in zip(*parts, strict=True):
        values = [value for row in same for value in row[measured]]
        means = [float(np.mean(row[measured])) for row in same]
        rows.append(same[0] | {measured: summary(means) | {"worst": min(values)}})
    return rows


def main() -> None:
    """Measure both, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=("labelers",))
    if parser.parse_args().part:
        save(
            "persons_labelers",
            labelers(),
            seeds=SEEDS_OF_LABELERS,
            delta=DELTA,
            simulated_noise=True,
        )
        return
    made_up = [
        row
        for case in ("alike", "apart")
        for row in over_seeds([skewed(case, seed) for seed in SEEDS], "queries_right")
    ]
    print("skewed", file=sys.stderr)
    writers = over_seeds([mnist(seed) for seed in SEEDS], "label_accuracy")
    results = {"mnist": writers, "skewed": made_up}
    save("persons", results, seeds=SEEDS, draws=DRAWS, delta=DELTA, simulated_noise=True)


if __name__ == "__main__":
    main()
