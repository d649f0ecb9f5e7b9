"""Labels of public rows from the same noisy counts, by each way to decode them.

    python -m benchmarks.decoding

The methods are these:

- `argmax`: the class with the most votes in each query.
- `spread`: similar queries share votes, and labels spread over the public neighbor graph, with
  strengths that public quantities set. It was the default before `decoded`.
- `assignment`: a different class for each query, if there are as many queries as classes.
- `decoded`: `rknn_jax.answers`, the default.

Two more are other releases at the same epsilon, which show labels and no counts:

- `permute_and_flip`: the mechanism of that name for each query, whose labels the decoder reads.
- `one_to_one`: a permutation of the classes, if there are as many queries, and at most eight.

The counts are those of k = 1 with discrete Laplace noise, replace-one. `_decoding_cases` has the
data sets, and says how to make the two that are files. `rknn_jax.answers` was designed and
calibrated on splits 0 and 1 of them. The splits here are others, of the same records.

Of `decoded`, the results also hold its mean stability, beside the share of labels that are the same
without noise, and its expected accuracy, beside the labels that are right. A public row without a
class, such as junk, is left out of the labels that are right. `constant` is what the best single
class has right, with no private record.
"""

import functools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from benchmarks import _kept
from benchmarks._decoding_cases import CASES, NO_CLASS, Sides
from benchmarks._measure import save
from rknn_jax import answers, postprocessing
from rknn_jax.mechanisms.one_to_one import OneToOne
from rknn_jax.mechanisms.permute_and_flip import PermuteAndFlip
from rknn_jax.neighbor_graph import self_graph
from rknn_jax.neighbors import nearest, pairwise_sq_distances
from rknn_jax.queries import kmeans
from rknn_jax.types import Queries

SEEDS = (10, 11, 12, 13, 14)
DRAWS = 2
EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0)

NO_NOISE = 1e-6
"""Standard deviation that stands for no noise, in votes."""

BANDWIDTHS = (0.0, *np.geomspace(0.01, 0.35, 14))
"""Kernel widths of `shared_votes`, in units of the median squared distance between queries."""

STANDS_OUT = 5.0
"""Expected votes, in standard deviations of a difference of cells, that need no other votes."""


class Split(NamedTuple):
    """Public side and private votes of a split.

    Attributes:
      public: Public rows, float32 `[m, f]`.
      truth: Their classes, `[m]`, or `NO_CLASS`.
      queries: Queries, clusters of the public rows.
      graph: Neighbor graph of the public rows.
      votes: Votes without noise, `[s, num_classes]`.
    """

    public: np.ndarray
    truth: np.ndarray
    queries: Queries
    graph: scipy.sparse.csr_matrix
    votes: np.ndarray


def split(case: str, seed: int) -> Split:
    """Return the public side and the votes of one split."""
    make, num_queries, _ = CASES[case]
    sides: Sides = make(seed)
    queries = kmeans.select(jax.random.key(seed), sides.public, num_queries)
    near = np.asarray(nearest(sides.private, queries.features, 1))[:, 0]
    num_classes = int(max(sides.truth.max(), sides.labels.max())) + 1
    votes = np.zeros((num_queries, num_classes))
    np.add.at(votes, (near, sides.labels), 1)
    return Split(sides.public, sides.truth, queries, self_graph(sides.public), votes)


def read(one: Split, seed: int) -> Iterator[dict[str, Any]]:
    """Yield epsilon, method, and the measures of each release of a split."""
    kernels = answers.kernels(one.queries, one.public, one.graph)
    if kernels is None:
        raise ValueError(
            f"Expected queries that the decoder takes, got {len(one.votes)}; ask fewer."
        )
    clear = answers.decode(one.votes, np.full(one.votes.shape, NO_NOISE), kernels).labels
    for epsilon in EPSILONS:
        for draw in range(DRAWS):
            rng = np.random.default_rng([seed, draw, round(1000 * epsilon)])
            counts, stddev = noisy(one.votes, epsilon, rng)
            about = {"epsilon": epsilon, "draw": draw}
            for method, labels in _rivals(one, counts, stddev).items():
                yield about | {"method": method} | _told(labels, one.truth)
            for method, labels in _without_counts(one, epsilon, rng).items():
                likely = answers.decode_labels(labels, one.votes.shape[1], kernels)
                yield about | {"method": method} | _told(likely.argmax(axis=1), one.truth)
            decoded = answers.decode(counts, stddev, kernels)
            told = _told(decoded.labels, one.truth)
            stable = float(decoded.stability.mean())
            same = float((decoded.labels == clear).mean())
            expected = float(decoded.expected_accuracy)
            yield (
                about
                | {"method": "decoded"}
                | told
                | {"stability": stable, "same": same, "stability_error": stable - same}
                | {"expected": expected, "expected_error": expected - told["right"]}
                | {"agreement": float(decoded.agreement)}
            )


def noisy(
    votes: np.ndarray, epsilon: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy counts of a simulated release, and their standard deviations.

    Args:
      votes: Votes without noise, `[s, num_classes]`.
      epsilon: Epsilon of k = 1 and replace-one.
      rng: Generator of the noise.
    """
    keep = -np.expm1(-epsilon / 2)
    noise = rng.geometric(keep, votes.shape) - rng.geometric(keep, votes.shape)
    return votes + noise, np.full(votes.shape, np.sqrt(2 * (1 - keep)) / keep)


def _rivals(one: Split, counts: np.ndarray, stddev: np.ndarray) -> dict[str, np.ndarray]:
    """Return the labels of all public rows by the other methods, `[m]` each."""
    cluster = one.queries.cluster
    found = {"argmax": counts.argmax(axis=1)[cluster]}
    shared = postprocessing.soft_labels(shared_votes(one.queries, counts, float(stddev.max())))
    spread = postprocessing.public_labels(one.graph, shared[cluster], len(counts))
    found["spread"] = spread.argmax(axis=1)
    if counts.shape[0] == counts.shape[1]:
        found["assignment"] = postprocessing.assignment(counts)[cluster]
    return found


def _without_counts(one: Split, epsilon: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the labels that mechanisms without counts release, `[s]` each."""
    num_queries, num_classes = one.votes.shape
    totals = jnp.asarray(one.votes.ravel(), jnp.int32)
    found = {}
    for kind in (PermuteAndFlip, OneToOne):
        with suppress(ValueError):  # not as many queries as classes, or too many of them
            mechanism = kind(epsilon, num_queries, num_classes)
            key = jax.random.key(rng.integers(2**31))
            hot = mechanism.estimate(key, totals, int(one.votes.sum()))
            name = kind.__module__.rsplit(".", 1)[-1]
            found[name] = np.asarray(hot).argmax(axis=1)
    return found


def shared_votes(queries: Queries, noisy: np.ndarray, stddev: float) -> np.ndarray:
    """Return noisy counts to which similar queries add theirs, `[s, num_classes]`.

    Each query takes the narrowest kernel exp(-|q_i - q_j|² / width) whose expected votes stand out
    of the gathered noise, or the one that comes nearest.
    """
    distances = np.asarray(pairwise_sq_distances(queries.features, queries.features), np.float64)
    unit = np.median(distances[distances > 0])
    expected = max(noisy.sum(), 0) * queries.size / queries.size.sum()
    weights = np.eye(len(noisy))
    best = np.full(len(noisy), -np.inf)
    for bandwidth in BANDWIDTHS:
        kernel = np.exp(-distances / (bandwidth * unit)) if bandwidth else np.eye(len(noisy))
        stands_out = kernel @ expected / (np.sqrt(2) * stddev * np.linalg.norm(kernel, axis=1))
        better = (best < STANDS_OUT) & (stands_out > best)
        weights = np.where(better[:, None], kernel, weights)
        best = np.where(better, stands_out, best)
    shared: np.ndarray = weights @ noisy
    return shared


def _told(labels: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Return the share of labels that are right, of all rows and of the worst class."""
    right = labels == truth
    classes = [float(right[truth == c].mean()) for c in np.unique(truth[truth != NO_CLASS])]
    return {"right": float(right[truth != NO_CLASS].mean()), "worst_class": min(classes)}


def measured(case: str, seed: int) -> dict[str, Any]:
    """Return the measures of one split."""
    one = split(case, seed)
    frequent = np.bincount(one.truth[one.truth != NO_CLASS])
    return {
        "num_queries": len(one.votes),
        "num_public": len(one.truth),
        "num_private": int(one.votes.sum()),
        "constant": float(frequent.max() / frequent.sum()),
        "runs": list(read(one, seed)),
    }


def summarized(case: str, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each epsilon and method: means over all releases, and the worst release."""
    about: dict[str, Any] = {"case": case, "num_queries": parts[0]["num_queries"]}
    for name in ("num_public", "num_private", "constant"):
        about[name] = float(np.mean([part[name] for part in parts]))
    runs: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for part in parts:
        for run in part["runs"]:
            runs.setdefault((run["epsilon"], run["method"]), []).append(run)
    rows = []
    for (epsilon, method), every in runs.items():
        worst = min(run["right"] for run in every)
        row = about | {"epsilon": epsilon, "method": method, "worst_run": worst}
        names = every[0].keys() - {"epsilon", "method", "draw"}
        means = {name: np.mean([run[name] for run in every]) for name in sorted(names)}
        rows.append({name: _rounded(value) for name, value in (row | means).items()})
    return rows


def _rounded(value: Any) -> Any:
    return round(float(value), 5) if isinstance(value, float) else value


def main() -> None:
    """Measure all splits and write the results."""
    with _kept.parts("decoding") as folder:
        rows = []
        for case in CASES:
            if reason := CASES[case].missing():
                print(f"skipped {case}: {reason}", flush=True)
                continue
            rows += summarized(
                case,
                [
                    _kept.part(folder, f"{case}, {seed}", functools.partial(measured, case, seed))
                    for seed in SEEDS
                ],
            )
        save("decoding", rows, seeds=SEEDS, draws=DRAWS, relation="replace-one")


if __name__ == "__main__":
    main()
