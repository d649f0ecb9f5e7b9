"""Labels of public rows from the same noisy counts, by each way to read them.

    python -m benchmarks.decoding

`none` takes the arg max of each query. `auto` lets similar queries share votes and spreads labels
over the public graph, with strengths that are set beforehand. `likelihood` is `rknn_jax.answers`.
The counts are those of k = 1 with discrete Laplace noise. MNIST has 50 principal components of its
public rows, 4,000 public and 20,000 private rows. In `private long tail` the private classes fall
evenly from all to a hundredth, and the public ones do not. The design of `rknn_jax.answers` was
chosen on splits 0 to 2 of digits, wine and breast cancer. The splits here are others.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from benchmarks._measure import mnist_folder, save
from rknn_jax import answers, data, postprocessing
from rknn_jax.labelers import rknn
from rknn_jax.neighbor_graph import self_graph
from rknn_jax.neighbors import nearest
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.queries import kmeans

SEEDS = (10, 11, 12, 13, 14)
DRAWS = 4
EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
NONE = Guarantee(1.0, 0.0, "replace-one", "central", ())


class Sides(NamedTuple):
    """Public and private rows, float32 `[m, f]` and `[n, f]`, with their classes."""

    public: np.ndarray
    truth: np.ndarray
    private: np.ndarray
    labels: np.ndarray


def table(load: Any, num_public: int, seed: int) -> Sides:
    """Return a table of scikit-learn, standardized on its public rows."""
    rows, classes = load(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(rows))
    public, private = order[:num_public], order[num_public:]
    rows = StandardScaler().fit(rows[public]).transform(rows).astype(np.float32)
    return Sides(rows[public], classes[public], rows[private], classes[private])


def mnist(kind: str, seed: int) -> Sides:
    """Return MNIST, its odd digits against the even ones, or with a long tail of private digits."""
    task = data.load("mnist", seed, mnist_folder())
    rng = np.random.default_rng(seed)
    rows = task.public.images.reshape(len(task.public.images), -1) / np.float32(255)
    others = task.private.images.reshape(len(task.private.images), -1) / np.float32(255)
    public = rng.permutation(len(rows))[:4000]
    private = rng.permutation(len(others))[:20000]
    labels = task.private.labels[private]
    if kind == "private long tail":
        kept = rng.random(len(private)) < (100.0 ** (-np.arange(10) / 9))[labels]
        private, labels = private[kept], labels[kept]
    encoder = PCA(50, random_state=seed).fit(rows[public])
    truth = task.public.true_labels[public]
    half = 2 if kind == "odd or even" else 10
    features = [
        encoder.transform(each).astype(np.float32) for each in (rows[public], others[private])
    ]
    return Sides(features[0], truth % half, features[1], labels % half)


CASES: dict[str, tuple[Any, int]] = {
    "digits": (lambda seed: table(load_digits, 500, seed), 33),
    "digits, many queries": (lambda seed: table(load_digits, 500, seed), 80),
    "wine": (lambda seed: table(load_wine, 60, seed), 9),
    "breast cancer": (lambda seed: table(load_breast_cancer, 200, seed), 8),
    "MNIST": (lambda seed: mnist("all", seed), 40),
    "MNIST, many queries": (lambda seed: mnist("all", seed), 200),
    "MNIST, odd or even": (lambda seed: mnist("odd or even", seed), 40),
    "MNIST, private long tail": (lambda seed: mnist("private long tail", seed), 40),
}


def read(case: str, seed: int) -> Iterator[tuple[float, str, dict[str, float]]]:
    """Yield epsilon, method, and what it found, for each release of one split."""
    make, num_queries = CASES[case]
    sides: Sides = make(seed)
    queries = kmeans.select(jax.random.key(seed), sides.public, num_queries)
    near = np.asarray(nearest(sides.private, queries.features, 1)[0])[:, 0]
    num_classes = int(sides.truth.max()) + 1
    votes = np.zeros((num_queries, num_classes))
    np.add.at(votes, (near, sides.labels), 1)
    graph = self_graph(sides.public)
    kernels = answers.kernels(queries, sides.public, graph)
    rng = np.random.default_rng(seed)
    for epsilon in EPSILONS:
        scale = 2 / epsilon
        for _ in range(DRAWS):
            keep = 1 - np.exp(-1 / scale)
            noisy = votes + rng.geometric(keep, votes.shape) - rng.geometric(keep, votes.shape)
            stddev = np.full(votes.shape, np.sqrt(2) * scale)
            shares = answers.decode(noisy, stddev, kernels)
            default = rknn.answer(noisy, stddev, NONE, queries, rknn.ReverseKNN())
            spread = postprocessing.public_labels(
                graph, default.probabilities[queries.cluster], num_queries
            )
            found = {
                "none": (noisy.argmax(axis=1)[queries.cluster], None),
                "auto": (spread.argmax(axis=1), default.confidence[queries.cluster]),
                "likelihood": (shares.labels, shares.confidence),
            }
            for name, (labels, sure) in found.items():
                yield epsilon, name, _told(labels, sure, sides.truth, num_classes)


def _told(
    labels: np.ndarray, sure: np.ndarray | None, truth: np.ndarray, num_classes: int
) -> dict[str, float]:
    right = labels == truth
    classes = [float(right[truth == c].mean()) for c in range(num_classes) if (truth == c).any()]
    told = {"right": float(right.mean()), "worst_class": min(classes)}
    return told if sure is None else told | {"confidence": float(sure.mean())}


def measured(case: str) -> list[dict[str, Any]]:
    """Return a row for each epsilon and method: means over all releases, and the worst release."""
    runs: dict[tuple[float, str], list[dict[str, float]]] = {}
    for seed in SEEDS:
        for epsilon, name, told in read(case, seed):
            runs.setdefault((epsilon, name), []).append(told)
    rows = []
    for (epsilon, name), every in runs.items():
        means = {key: float(np.mean([one[key] for one in every])) for key in every[0]}
        worst = min(one["right"] for one in every)
        rows.append({"case": case, "epsilon": epsilon, "method": name, "worst_run": worst} | means)
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure all cases and write the results."""
    rows = [row for case in CASES for row in measured(case)]
    save("decoding", rows, seeds=SEEDS, draws=DRAWS)


if __name__ == "__main__":
    main()
