"""Several labels a record on MNIST: digit, parity, stroke width and writer group at once.

Each image has four of 17 classes: one of ten digits, odd or even, a thin, middle or thick stroke,
and a writer of NIST's staff or of a school. Stroke width is twice the mean depth of the ink, cut at
terciles of the public images. Private records are MNIST's training images, and the rows to label
are held-out images, whose writers are known.

| row          | what is released                                                              |
|--------------|-------------------------------------------------------------------------------|
| `sets`       | one release of up to 4 labels a record, read by the decoder, class by class   |
| `sets plain` | the same counts, read from each row's own query                               |
| `attributes` | four releases of one label each, at a quarter of epsilon, read by the decoder |
| `product`    | one release of one label of 120, the combinations, read by the decoder        |
| `majority`   | the most frequent class of each attribute among the private records           |

F1 is micro and macro over the 17 classes.
"""

import math
import sys
from typing import Any

import jax
import numpy as np
from scipy.ndimage import distance_transform_edt
from sklearn.metrics import f1_score

from benchmarks._measure import mnist_folder, save, summary
from rknn_jax import answers, data, label_sets, postprocessing
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.bsvs import cells
from rknn_jax.mechanisms.base import estimate_counts
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.neighbors import nearest
from rknn_jax.queries import kmeans
from rknn_jax.representations import spectral
from rknn_jax.types import Records

SEEDS = (5, 6, 7)
EPSILONS = (0.1, 0.3, 1.0, 3.0, math.inf)
QUERIES = 100
ATTRIBUTES = (10, 2, 3, 2)
STARTS = (0, 10, 12, 15)
NUM_CLASSES = sum(ATTRIBUTES)
FIRST_STUDENT = 2100  # writers below are NIST employees, as in `benchmarks.attributes`


def widths(images: np.ndarray) -> np.ndarray:
    """Return the stroke width of each image in pixels, float64 `[n]`."""
    found = [distance_transform_edt(image[..., 0] > 127) for image in images]
    return np.array([2 * depth[depth > 0].mean() if depth.any() else 0.0 for depth in found])


def attributes(records: Records, terciles: np.ndarray) -> np.ndarray:
    """Return the class of each attribute, int32 `[n, 4]`."""
    assert records.clients is not None
    thick = np.searchsorted(terciles, widths(records.images))
    writer = records.clients >= FIRST_STUDENT
    return np.stack([records.labels, records.labels % 2, thick, writer], axis=1).astype(np.int32)


def mask_of(classes: np.ndarray) -> np.ndarray:
    """Return classes `[m, 4]` as a mask, bool `[m, 17]`."""
    mask = np.zeros((len(classes), NUM_CLASSES), bool)
    np.put_along_axis(mask, classes + np.array(STARTS), True, axis=1)
    return mask


def measure(seed: int) -> list[dict[str, Any]]:
    """Return the F1 of every row by epsilon, on one split."""
    task = data.load("mnist", seed, mnist_folder())
    root = jax.random.key(seed)
    terciles = np.quantile(widths(task.public.images), [1 / 3, 2 / 3])
    private = attributes(task.private, terciles)
    truth = mask_of(attributes(task.test, terciles))
    encode = spectral.Config(dimension=10).fit(stage_key(root, Stage.ENCODER), task.public.images)
    rows = np.asarray(encode(task.test.images))
    queries = kmeans.select(stage_key(root, Stage.QUERIES), rows, QUERIES)
    kernels = answers.kernels(queries, rows, postprocessing.public_graph(rows, QUERIES))
    assert kernels is not None
    near = nearest(encode(task.private.images), queries.features, 1)
    found = []
    for step, epsilon in enumerate(EPSILONS):
        key = jax.random.fold_in(stage_key(root, Stage.NOISE), step)
        for name, present in _rows(key, near, private, epsilon, queries, kernels).items():
            found.append(
                {"row": name, "epsilon": epsilon}
                | {kind: f1_score(truth, present, average=kind) for kind in ("micro", "macro")}
                | {
                    f"attribute {i}": f1_score(
                        truth[:, start : start + size],
                        present[:, start : start + size],
                        average="micro",
                    )
                    for i, (start, size) in enumerate(zip(STARTS, ATTRIBUTES, strict=True))
                }
            )
        print(seed, epsilon, file=sys.stderr, flush=True)
    return found


def _rows(
    key: jax.Array,
    near: jax.Array,
    private: np.ndarray,
    epsilon: float,
    queries: Any,
    kernels: answers.Kernels,
) -> dict[str, np.ndarray]:
    """Return what each row says of each public record, bool `[m, 17]`."""
    keys = jax.random.split(key, 6)
    cast = label_sets.ballots(private + np.array(STARTS), NUM_CLASSES, 4)
    fields = label_sets.sizes(QUERIES, NUM_CLASSES, 4)
    mechanism = DiscreteLaplace(epsilon, **fields)
    counts = estimate_counts(mechanism, keys[0], cells(near, cast, NUM_CLASSES + 1))
    stddev = mechanism.noise_stddev
    single = [
        _decoded(keys[1 + i], near, private[:, i], epsilon / 4, size, kernels)
        for i, size in enumerate(ATTRIBUTES)
    ]
    joint = np.ravel_multi_index(tuple(private.T), ATTRIBUTES)
    product = _decoded(keys[5], near, joint, epsilon, math.prod(ATTRIBUTES), kernels)
    split = product.reshape(-1, *ATTRIBUTES)
    margins = [
        split.sum(axis=tuple(j + 1 for j in range(4) if j != i)) for i in range(len(ATTRIBUTES))
    ]
    frequent = np.stack([np.bincount(column).argmax() for column in private.T])
    return {
        "sets": label_sets.read(counts, stddev, queries, kernels).present,
        "sets plain": label_sets.read(counts, stddev, queries).present,
        "attributes": _largest(single),
        "product": _largest(margins),
        "majority": mask_of(np.tile(frequent, (len(queries.cluster), 1))),
    }


def _decoded(
    key: jax.Array,
    near: jax.Array,
    labels: np.ndarray,
    epsilon: float,
    num_classes: int,
    kernels: answers.Kernels,
) -> np.ndarray:
    """Return the probabilities of one release of one label each, `[m, num_classes]`."""
    mechanism = DiscreteLaplace(epsilon, QUERIES, num_classes)
    counts = np.asarray(estimate_counts(mechanism, key, cells(near, labels, num_classes)))
    stddev = np.full(counts.shape, mechanism.noise_stddev)
    return answers.decode(counts, stddev, kernels).probabilities


def _largest(probabilities: list[np.ndarray]) -> np.ndarray:
    """Return the most probable class of each attribute as a mask, bool `[m, 17]`."""
    return mask_of(np.stack([one.argmax(axis=1) for one in probabilities], axis=1))


if __name__ == "__main__":
    every = [measure(seed) for seed in SEEDS]
    results = [
        {name: same[0][name] for name in ("row", "epsilon")}
        | {
            name: summary([row[name] for row in same]) | {"worst": min(row[name] for row in same)}
            for name in same[0]
            if name not in ("row", "epsilon")
        }
        for same in zip(*every, strict=True)
    ]
    save("label_sets", results, seeds=SEEDS, queries=QUERIES, labels_per_record=4)
