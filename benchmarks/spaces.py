"""Queries in the public rows' own space, or in the spectral coordinates of their graph.

    python -m benchmarks.spaces

Spectral coordinates follow the neighbor graph of the public rows. Votes for clusters in them were
better than votes in the rows' own space where votes were few, and worse where they were many, as
long as each row took its query's label. `rknn_jax.answers` knows the same graph, whatever space the
queries are clusters of. Here both are compared with the number of queries that `rknn label` asks.

Each row has the public labels that are right, the mean over splits and releases, and the worst one.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import decoding
from benchmarks._decoding_cases import CASES, Sides
from benchmarks._measure import save
from rknn_jax import answers
from rknn_jax.bsvs import suggested_num_queries
from rknn_jax.neighbor_graph import self_graph
from rknn_jax.neighbors import nearest
from rknn_jax.queries import kmeans
from rknn_jax.representations import spectral

NAMES = ("digits", "wine", "breast cancer", "MNIST", "MNIST, 600 records", "CIFAR-10", "text")
SEEDS = (10, 11, 12)
DRAWS = 4
EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0)


def spaces(sides: Sides, num_classes: int, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the public and the private rows in each space."""
    encode = spectral.of(
        jax.random.key(seed),
        jax.tree_util.Partial(jnp.asarray),
        sides.public,
        spectral.Config(dimension=max(num_classes, 2)),
    )
    placed = np.asarray(encode(sides.public)), np.asarray(encode(sides.private))
    return {"own": (sides.public, sides.private), "spectral": placed}


def right(name: str, seed: int) -> dict[tuple[str, float, int], list[float]]:
    """Return the labels that are right, for each space, epsilon and number of queries."""
    sides = CASES[name].make(seed)
    num_classes = int(max(sides.truth.max(), sides.labels.max())) + 1
    graph = self_graph(sides.public)
    found: dict[tuple[str, float, int], list[float]] = {}
    for space, (public, private) in spaces(sides, num_classes, seed).items():
        for epsilon in EPSILONS:
            suggested = suggested_num_queries(
                len(private), num_classes, 2 / epsilon, 1, shared=True
            )
            num_queries = min(suggested, len(public))
            queries = kmeans.select(jax.random.key(seed), public, num_queries)
            near = np.asarray(nearest(private, queries.features, 1))[:, 0]
            votes = np.zeros((num_queries, num_classes))
            np.add.at(votes, (near, sides.labels), 1)
            kernels = answers.kernels(queries, sides.public, graph)
            assert kernels is not None
            for draw in range(DRAWS):
                rng = np.random.default_rng([seed, draw, round(1000 * epsilon)])
                decoded = answers.decode(*decoding.noisy(votes, epsilon, rng), kernels)
                share = float(np.mean(decoded.labels == sides.truth))
                found.setdefault((space, epsilon, num_queries), []).append(share)
    return found


def main() -> None:
    """Measure all data sets, and write the results."""
    rows: list[dict[str, Any]] = []
    for name in NAMES:
        if reason := CASES[name].missing():
            print(f"skipped {name}: {reason}", flush=True)
            continue
        every: dict[tuple[str, float, int], list[float]] = {}
        for seed in SEEDS:
            for key, shares in right(name, seed).items():
                every.setdefault(key, []).extend(shares)
        for (space, epsilon, num_queries), shares in every.items():
            row = {"case": name, "space": space, "epsilon": epsilon, "num_queries": num_queries}
            told = {"right": np.mean(shares), "worst_run": np.min(shares)}
            rows.append(row | {key: round(float(value), 4) for key, value in told.items()})
        print(f"measured {name}", flush=True)
    save("spaces", rows, seeds=SEEDS, draws=DRAWS, relation="replace-one")


if __name__ == "__main__":
    main()
