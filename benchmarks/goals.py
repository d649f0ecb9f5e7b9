"""MNIST end to end on images that no setting was chosen on.

All parts are training images, because settings were chosen on test images (`mnist:train`).

The rows are labels and students from self-trained clusters, by trust model and epsilon. Every row
asks the same ten clusters and gives each another class (`assignment`). The labels of two noise
draws therefore differ only by the classes' names, and so do the students that learn them. One
ensemble per split learns the clusters' numbers, and is scored by the names of every draw. Another
ensemble learns the true labels, which is the ceiling. `by hand` has no private record: a person
names the public image in the middle of each cluster. A mean over draws hides the one release that a
user gets, so each row has its worst release as well, and the worst class of that.
"""

import functools
import time
from typing import Any

import jax
import numpy as np

from benchmarks import _kept
from benchmarks._measure import mnist_folder, save, summary
from rknn_jax import data, postprocessing
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labelers import rknn
from rknn_jax.queries import kmeans
from rknn_jax.representations import self_trained
from rknn_jax.students import ensemble
from rknn_jax.students import fit as students

DATASET = "mnist:train"
SEEDS = (0, 1, 2)
DRAWS = 50
DELTA = 1e-6  # delta of shuffled messages
MEMBERS = 3
ROWS = {
    "central": ("discrete_laplace", (0.1, 0.01, 0.002)),
    "local": ("subset_selection", (0.4, 0.3, 0.2)),
    "shuffle": ("collision", (0.1,)),
}
MEASURED = ("label_accuracy", "test_accuracy", "one_student")


def measure(seed: int) -> list[dict[str, Any]]:
    """Return one split's rows, the ceiling of true labels first."""
    started = time.perf_counter()
    task = data.load(DATASET, seed, mnist_folder())
    root = jax.random.key(seed)
    encode = self_trained.fit(stage_key(root, Stage.ENCODER), task.public.images)
    public = encode(task.public.images)
    queries = kmeans.select(stage_key(root, Stage.QUERIES), public, 10)
    cells = rknn.vote_cells(
        encode(task.private.images), task.private.labels, queries, 10, rknn.ReverseKNN()
    )
    graph = postprocessing.public_graph(public, 10)
    number = postprocessing.public_labels(
        graph, np.eye(10, dtype=np.float32)[queries.cluster], 10
    ).argmax(axis=1)  # class of each record's cluster

    truth = task.public.true_labels

    def predictions(labels: np.ndarray) -> np.ndarray:
        """Return predictions of the ensemble and of each member, int `[1 + MEMBERS, n]`."""
        targets = np.eye(10, dtype=np.float32)[labels]
        trained = ensemble.fit(
            stage_key(root, Stage.STUDENT), task.public.images, targets, students.Config(), MEMBERS
        )
        each = np.stack([member.predict_proba(task.test.images) for member in trained.members])
        return np.stack([found.argmax(axis=1) for found in (each.mean(axis=0), *each)])

    def scored(number: np.ndarray, predicted: np.ndarray, names: np.ndarray) -> dict[str, float]:
        """Return accuracies of labels, the recall of their worst class, and those of students."""
        right = np.mean(names[predicted] == task.test.labels[None], axis=1)
        labels = names[number] == truth
        recalls = [float(np.mean(labels[truth == name])) for name in range(10)]
        return {
            "label_accuracy": float(np.mean(labels)),
            "worst_recall": min(recalls),
            "test_accuracy": float(right[0]),
            "one_student": float(right[1:].mean()),
        }

    ceiling = predictions(truth)
    predicted = predictions(number)
    best = scored(truth, ceiling, np.arange(10))
    rows: list[dict[str, Any]] = [
        {"trust": "true labels", "mechanism": None, "epsilon": None} | best | {"worst": best}
    ]
    by_hand = scored(number, predicted, truth[queries.index])
    rows.append({"trust": "by hand", "mechanism": None, "epsilon": 0.0} | by_hand)
    rows[-1]["worst"] = by_hand
    for trust, (mechanism, epsilons) in ROWS.items():
        for epsilon in epsilons:
            named: dict[str, Any] = {
                "mechanism": mechanism,
                "trust": trust,
                "amplification": "general",
            }
            config = rknn.ReverseKNN(epsilon=epsilon, delta=DELTA, decode="assignment", **named)
            keys = jax.random.split(stage_key(root, Stage.NOISE), DRAWS)
            draws = [
                scored(number, predicted, config.release(key, cells, queries, 10).labels)
                for key in keys
            ]
            means = {name: float(np.mean([draw[name] for draw in draws])) for name in MEASURED}
            worst = min(draws, key=lambda draw: draw["label_accuracy"])
            row = {"trust": trust, "mechanism": mechanism, "epsilon": epsilon}
            rows.append(row | means | {"worst": worst})
            print(seed, rows[-1], round(time.perf_counter() - started), flush=True)
    return rows


def averaged(splits: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return mean and standard deviation over the splits, and the worst release of any."""
    return [
        {name: value for name, value in rows[0].items() if name not in MEASURED}
        | {name: summary([row[name] for row in rows]) for name in MEASURED}
        | {"worst": min((row["worst"] for row in rows), key=lambda one: one["label_accuracy"])}
        for rows in zip(*splits.values(), strict=True)
    ]


if __name__ == "__main__":
    about: dict[str, Any] = {
        "dataset": DATASET,
        "draws": DRAWS,
        "members": MEMBERS,
        "queries": 10,
        "relation": "replace-one",
        "unit": "record",
    }
    about["delta"] = {"central": 0.0, "local": 0.0, "shuffle": DELTA}
    with _kept.parts("goals") as folder:
        splits = {
            str(seed): _kept.part(folder, f"split {seed}", functools.partial(measure, seed))
            for seed in SEEDS
        }
        save("goals", {"rows": averaged(splits), "splits": splits}, seeds=SEEDS, **about)
