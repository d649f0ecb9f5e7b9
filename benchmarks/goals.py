"""MNIST end to end on splits that no setting was chosen on: labels and students by self-trained clusters, by who is trusted and epsilon.

What every row shares is computed once a split: the representation, the ten queries, and one ensemble of students for each table of ten
labels that comes up, as students see nothing else. Label accuracies are averaged over draws of the noise, students are trained on the
first draw. Each split is written when it is done, and a later call goes on with the next.
"""

import json
import sys
import time
from typing import Any

import jax
import numpy as np

from benchmarks._measure import RESULTS, mnist_folder, save, summary
from rknn_jax import data
from rknn_jax.keys import Stage, stage_key
from rknn_jax.labelers import rknn
from rknn_jax.queries import kmeans
from rknn_jax.representations import self_trained
from rknn_jax.students import ensemble
from rknn_jax.students import fit as students

SEEDS = (5, 6, 7, 8, 9)
DRAWS = 20
MEMBERS = 3
ROWS = {
    "central": (("discrete_laplace", "assignment"), (0.1, 0.01, 0.002)),
    "local": (("subset_selection", "assignment"), (0.4, 0.3, 0.2)),
    "shuffle": (("collision", "assignment"), (0.1,)),
}


def measure(seed: int) -> list[dict[str, Any]]:
    """Return one split's rows, the ceiling of true labels first."""
    started = time.perf_counter()
    task, root = data.load("mnist", seed, mnist_folder()), jax.random.key(seed)
    encode = self_trained.fit(stage_key(root, Stage.ENCODER), task.public.images)
    public = encode(task.public.images)
    queries = kmeans.select(stage_key(root, Stage.QUERIES), public, 10)
    cells = rknn.votes(encode(task.private.images), task.private.labels, queries, 10, rknn.Config())
    graph = rknn.public_graph(public, 10, rknn.Config())
    seconds = time.perf_counter() - started
    accuracies_of: dict[bytes, dict[str, float]] = {}

    def student(labels: np.ndarray) -> dict[str, float]:
        if labels.tobytes() not in accuracies_of:
            targets = np.eye(10, dtype=np.float32)[labels]
            trained = ensemble.fit(stage_key(root, Stage.STUDENT), task.public.images, targets, students.Config(), MEMBERS)
            each = np.stack([member.predict_proba(task.test.images) for member in trained.members])
            right = [float(np.mean(found.argmax(axis=1) == task.test.labels)) for found in (each.mean(axis=0), *each)]
            accuracies_of[labels.tobytes()] = {"test_accuracy": right[0], "one_student": float(np.mean(right[1:]))}
        return accuracies_of[labels.tobytes()]

    rows: list[dict[str, Any]] = [
        {"trust": "none", "epsilon": None, "label_accuracy": 1.0, **student(task.public.true_labels), "seconds": seconds}
    ]
    for trust, ((mechanism, decode), epsilons) in ROWS.items():
        for epsilon in epsilons:
            config = rknn.Config(epsilon=epsilon, delta=1e-6, mechanism=mechanism, trust=trust, decode=decode)  # type: ignore[arg-type]
            found = []
            for draw in range(DRAWS):
                answers = rknn.tally(jax.random.fold_in(stage_key(root, Stage.NOISE), draw), cells, queries, 10, config)
                spread = rknn.public_labels(graph, answers.probabilities[queries.cluster], 10)
                found.append(spread.argmax(axis=1).astype(np.int32))
            right = [float(np.mean(labels == task.public.true_labels)) for labels in found]
            row = {"trust": trust, "mechanism": mechanism, "decode": decode, "epsilon": epsilon, "label_accuracy": float(np.mean(right))}
            rows.append(row | {"least_label_accuracy": min(right), **student(found[0])})
            print(seed, rows[-1], round(time.perf_counter() - started), file=sys.stderr, flush=True)
    return rows


def averaged(splits: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return mean and standard deviation over the splits."""
    measured = ("label_accuracy", "test_accuracy", "one_student")
    return [
        {name: value for name, value in rows[0].items() if name not in (*measured, "least_label_accuracy", "seconds")}
        | {name: summary([row[name] for row in rows]) for name in measured}
        for rows in zip(*splits.values(), strict=True)
    ]


if __name__ == "__main__":
    path = RESULTS / "goals.json"
    splits = json.loads(path.read_text())["results"]["splits"] if path.exists() and "--resume" in sys.argv else {}
    for seed in SEEDS:
        if str(seed) not in splits:
            splits[str(seed)] = measure(seed)
            about = {"seeds": sorted(map(int, splits)), "draws": DRAWS, "queries": 10, "members": MEMBERS}
            save("goals", {"rows": averaged(splits), "splits": splits}, **about)
