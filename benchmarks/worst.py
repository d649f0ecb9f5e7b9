"""Worst single release of `benchmarks/goals.py`: its splits and draws of the noise, labels alone.

A mean over 50 draws hides the one release that a user gets. Each split is written when it is done.
With `--resume`, a later call goes on with the next.
"""

import json
import sys
from typing import Any

import jax
import numpy as np

from benchmarks._measure import RESULTS, mnist_folder, save
from benchmarks.goals import DELTA, DRAWS, ROWS, SEEDS
from rknn_jax import data, postprocessing
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labelers import rknn
from rknn_jax.queries import kmeans
from rknn_jax.representations import self_trained


def measure(seed: int) -> list[dict[str, Any]]:
    """Return the accuracy of the public labels for each draw of one split.

    The recall is that of the worst class in the worst draw.
    """
    task, root = data.load("mnist", seed, mnist_folder()), jax.random.key(seed)
    encode = self_trained.fit(stage_key(root, Stage.ENCODER), task.public.images)
    public = encode(task.public.images)
    queries = kmeans.select(stage_key(root, Stage.QUERIES), public, 10)
    cells = rknn.connect(
        encode(task.private.images), task.private.labels, queries, 10, rknn.ReverseKNN()
    )
    graph = postprocessing.public_graph(public, 10)
    # Every draw gives the clusters other names; which rows are of one cluster does not change.
    number = postprocessing.public_labels(
        graph, np.eye(10, dtype=np.float32)[queries.cluster], 10
    ).argmax(axis=1)
    truth = task.public.true_labels
    keys = jax.random.split(stage_key(root, Stage.NOISE), DRAWS)
    rows: list[dict[str, Any]] = []
    for trust, (mechanism, epsilons) in ROWS.items():
        for epsilon in epsilons:
            named: dict[str, Any] = {
                "mechanism": mechanism,
                "trust": trust,
                "amplification": "general",
            }
            config = rknn.ReverseKNN(epsilon=epsilon, delta=DELTA, decode="assignment", **named)
            labels = [config.release(key, cells, queries, 10).labels[number] for key in keys]
            right = np.array([np.mean(found == truth) for found in labels])
            worst = labels[int(right.argmin())]
            recalls = [float(np.mean(worst[truth == name] == name)) for name in range(10)]
            about = {"trust": trust, "mechanism": mechanism, "epsilon": epsilon}
            rows.append(about | {"label_accuracy": right.tolist(), "worst_recall": min(recalls)})
    return rows


if __name__ == "__main__":
    path = RESULTS / "worst.json"
    before = json.loads(path.read_text()) if path.exists() and "--resume" in sys.argv else {}
    splits = before.get("results", {})
    for seed in SEEDS:
        if str(seed) not in splits:
            splits[str(seed)] = measure(seed)
            save("worst", splits, draws=DRAWS)
