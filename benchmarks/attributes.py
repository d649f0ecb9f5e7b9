"""Private-kNN on records of several attributes, on MNIST.

The attributes are: even, above 4, has a loop, and written by a student. The last one follows from
the writer's series. Numbers up to 2099 are NIST employees; later numbers are students of a school.
The queries are held-out images, in the features of `spectral` and of `pixels`. The clips lie around
and beyond a digit's average number of attributes.
"""

import sys
from dataclasses import replace

import jax
import numpy as np

from benchmarks._measure import mnist_folder, save, summary
from rknn_jax import data
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labelers import private_knn
from rknn_jax.queries import sample
from rknn_jax.representations import hog, spectral
from rknn_jax.types import Records

NAMES = ("even", "above 4", "has a loop", "by a student")
LOOPS = (0, 6, 8, 9)
FIRST_STUDENT = 2100
SEEDS = (5, 6, 7)
QUERIES = 800
EPSILONS = (0.2, 0.5, 1.0, 2.0, np.inf)
CLIPS = (1.0, 2.0, 4.0)
CONFIG = private_knn.PrivateKNN(num_neighbors=300, sampling_prob=0.1)


def attributes(records: Records) -> np.ndarray:
    """Return the attributes of each digit, int32 `[n, 4]`."""
    assert records.clients is not None
    digit = records.labels
    return np.stack(
        [digit % 2 == 0, digit > 4, np.isin(digit, LOOPS), records.clients >= FIRST_STUDENT], axis=1
    ).astype(np.int32)


def measure(seed: int) -> list[dict[str, object]]:
    """Return the accuracy of each attribute by representation, epsilon, and clip, on one split."""
    task = data.load("mnist", seed, mnist_folder())
    root = jax.random.key(seed)
    rows = []
    for name, module in (("spectral", spectral), ("hog", hog)):
        config = spectral.Config(dimension=10) if name == "spectral" else hog.Config()
        encode = module.fit(stage_key(root, Stage.ENCODER), task.public.images, config)  # type: ignore[attr-defined]
        private = encode(task.private.images)
        queries = sample.select(stage_key(root, Stage.QUERIES), encode(task.test.images), QUERIES)
        truth = attributes(task.test)[queries.index]
        for epsilon in EPSILONS:
            for clip in CLIPS:
                answers = private_knn.multi_label(
                    stage_key(root, Stage.NOISE),
                    private,
                    attributes(task.private),
                    queries,
                    replace(CONFIG, epsilon=epsilon),
                    clip,
                )
                right = (answers.present == truth).mean(axis=0)
                rows.append(
                    {
                        "representation": name,
                        "epsilon": epsilon,
                        "clip": clip,
                        "right": dict(zip(NAMES, right.tolist(), strict=True)),
                    }
                )
        print(seed, name, file=sys.stderr)
    return rows


if __name__ == "__main__":
    every = [measure(seed) for seed in SEEDS]
    results = [
        same[0] | {"right": {name: summary([row["right"][name] for row in same]) for name in NAMES}}  # type: ignore[index]
        for same in zip(*every, strict=True)
    ]
    save(
        "attributes",
        results,
        seeds=SEEDS,
        queries=QUERIES,
        delta=CONFIG.delta,
        relation=CONFIG.relation,
    )
