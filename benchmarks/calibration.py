"""Calibration of label confidences: the stated probability against the measured accuracy.

The confidence is the probability that noise left a label unchanged. The models of
`rknn_jax.labelers._confidence` were chosen on scikit-learn's digits, breast cancer and wine data,
and on synthetic blobs (`DEVELOPMENT`). The other data sets test the models. A label is true here if
the same votes, shared in the same way, give it without noise. `RKNN_MNIST_DIR` and
`RKNN_CIFAR10_DIR` name the folders of the images.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from sklearn import datasets
from sklearn.preprocessing import StandardScaler

from benchmarks._measure import mnist_folder, save
from rknn_jax import data, postprocessing
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labelers import rknn
from rknn_jax.queries import kmeans
from rknn_jax.representations import pca

EPSILONS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
RUNS = 40
BINS = np.linspace(0, 1, 11)
DEVELOPMENT = ("digits", "breast cancer", "wine", "blobs")
JUDGED = ("MNIST", "MNIST, 2,000 records", "CIFAR-10", "blobs of 40 classes", "iris")
DECODES = (("argmax", "none"), ("assignment", "none"))

Split = tuple[np.ndarray, np.ndarray, np.ndarray]


def split(rows: np.ndarray, labels: np.ndarray, share: float) -> Split:
    """Return public rows, private rows, and private labels."""
    order = np.random.default_rng(0).permutation(len(rows))
    public, private = np.split(order, [int(share * len(rows))])
    return (
        rows[public].astype(np.float32),
        rows[private].astype(np.float32),
        labels[private].astype(np.int32),
    )


def blobs(num_rows: int, num_classes: int, spread: float, seed: int) -> Split:
    """Return synthetic clusters that overlap."""
    rows, labels = datasets.make_blobs(
        num_rows, centers=num_classes, n_features=10, cluster_std=spread, random_state=seed
    )
    return split(rows, labels, 0.1)


def images(name: str, folder: Path, most: int | None = None) -> Split:
    """Return principal components, fitted on public images."""
    task = data.load(name, 0, folder)
    encode = pca.fit(stage_key(jax.random.key(0), Stage.ENCODER), task.public.images, pca.Config())
    features = np.asarray(encode(task.private.images[:most]))
    return np.asarray(encode(task.public.images)), features, task.private.labels[:most]


def load(name: str) -> Split:
    """Return a data set."""
    tables = {
        "breast cancer": datasets.load_breast_cancer,
        "wine": datasets.load_wine,
        "iris": datasets.load_iris,
    }
    if name in tables:
        rows, labels = tables[name](return_X_y=True)
        return split(StandardScaler().fit_transform(rows), labels, 0.3)
    if name == "digits":
        return split(*datasets.load_digits(return_X_y=True), 0.3)
    if name.startswith("MNIST"):
        return images("mnist", mnist_folder(), 2000 if "," in name else None)
    if name == "CIFAR-10":
        return images("cifar10", Path(os.environ["RKNN_CIFAR10_DIR"]))
    return blobs(20000, 20, 4.0, 0) if name == "blobs" else blobs(4000, 40, 3.0, 1)


def releases(
    split: Split, num_queries: int, decode: str, smoothing: str, epsilon: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each release's confidences, and a mask of the labels that noise left unchanged."""
    public, private, labels = split
    num_classes = int(labels.max()) + 1
    queries = kmeans.select(stage_key(jax.random.key(0), Stage.QUERIES), public, num_queries)
    config = rknn.ReverseKNN(epsilon=epsilon, decode=decode, smoothing=smoothing)  # type: ignore[arg-type]
    cells = rknn.vote_cells(private, labels, queries, num_classes, config)
    exact = np.bincount(np.asarray(cells).ravel(), minlength=num_queries * num_classes).reshape(
        num_queries, num_classes
    )
    for run in range(RUNS):
        answers = config.release(jax.random.key(run), cells, queries, num_classes)
        yield (
            answers.confidence,
            answers.labels == without_noise(exact, config),
        )


def without_noise(exact: np.ndarray, config: rknn.ReverseKNN) -> np.ndarray:
    """Return the labels of exact counts."""
    if config.decode == "assignment":
        return postprocessing.assignment(exact)
    return postprocessing.noisy_max(exact)


def calibration(said: np.ndarray, true: np.ndarray) -> dict[str, object]:
    """Return means, the expected calibration error, and its overconfident part."""
    where = np.clip(np.digitize(said, BINS) - 1, 0, len(BINS) - 2)
    errors = [
        np.sum(said[where == bin] - true[where == bin]) / len(said) for bin in range(len(BINS) - 1)
    ]
    return {
        "said": float(said.mean()),
        "true": float(true.mean()),
        "error": float(np.abs(errors).sum()),
        "too_much": float(np.maximum(errors, 0).sum()),
        "labels": len(said),
    }


def main() -> None:
    """Measure all data sets, or those whose names contain the argument."""
    rows = []
    for name in (*DEVELOPMENT, *JUDGED):
        found = load(name)
        num_classes = int(found[2].max()) + 1
        for decode, smoothing in DECODES:
            for num_queries in (
                (num_classes,) if decode == "assignment" else (num_classes, 4 * num_classes)
            ):
                for epsilon in EPSILONS:
                    pairs = list(releases(found, num_queries, decode, smoothing, epsilon))
                    said, true = (np.concatenate(part) for part in zip(*pairs, strict=True))
                    about = {
                        "data": name,
                        "development": name in DEVELOPMENT,
                        "queries": num_queries,
                        "epsilon": epsilon,
                    }
                    rows.append(
                        about | {"decode": decode, "smoothing": smoothing} | calibration(said, true)
                    )
                    sys.stdout.write(f"{rows[-1]}\n")
                    sys.stdout.flush()
        save("calibration", rows, runs=RUNS)


if __name__ == "__main__":
    main()
