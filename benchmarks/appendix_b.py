"""Figure 6 of the paper: error of Collision, Separation, and Concatenation.

The paper shows one client; this benchmark adds a million. For one client, the published
Concatenation looks best beyond ε = 3.4, and so would an answer of zeros. Summed over clients its
bias stays, and its arg max is wrong. The correct labels of each mechanism are counted over clients
that really randomize.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._measure import save
from rknn_jax import simulate
from rknn_jax.mechanisms.base import client_totals
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.concatenation_as_published import (
    ConcatenationAsPublished,
    RescaledConcatenation,
)
from rknn_jax.mechanisms.local import LocalRandomizer
from rknn_jax.mechanisms.separation import Separation

SIZES = {"num_queries": 200, "num_classes": 50, "num_neighbors": 2, "labels_per_record": 2}
KINDS = {
    "collision": Collision,
    "separation": Separation,
    "concatenation, as published": ConcatenationAsPublished,
    "concatenation, unbiased": RescaledConcatenation,
}
EPSILONS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0)
CLIENTS = (1, 100, 10_000, 1_000_000)


def expected(mechanism: LocalRandomizer, counts: np.ndarray, clients: int) -> float:
    """Return the mean squared error of a cell by the exact moments, including bias."""
    bias = counts * (getattr(mechanism, "mean", 1.0) - 1)
    return float(np.mean(mechanism.stddev(counts, clients) ** 2 + bias**2))


def collect(
    mechanism: LocalRandomizer, votes: np.ndarray, voters: np.ndarray, counts: np.ndarray
) -> dict[str, float]:
    """Randomize every client's message, and measure the estimate.

    Returns:
      The mean squared error, and the share of queries whose arg max is one of the exact counts.
    """
    cells = jnp.asarray(np.repeat(votes, voters, axis=0))
    clients = int(voters.sum())
    totals = np.asarray(client_totals(mechanism, jax.random.key(0), cells))
    estimate = mechanism.estimate(jax.random.key(0), totals, clients)
    best = np.take_along_axis(counts, estimate.argmax(axis=1)[:, None], axis=1)[:, 0] == counts.max(
        axis=1
    )
    return {
        "measured": float(np.mean((estimate - counts) ** 2)),
        "right": float(best[counts.max(axis=1) > 0].mean()),
    }


if __name__ == "__main__":
    results = []
    for clients in CLIENTS:
        votes, shares = simulate.population(Collision(1.0, **SIZES))
        voters = np.random.default_rng(0).multinomial(clients, shares)
        counts = np.zeros(10_000)
        np.add.at(counts, votes, np.broadcast_to(voters[:, None], votes.shape))
        counts = counts.reshape(200, 50)
        for name, kind in KINDS.items():
            for epsilon in EPSILONS:
                mechanism = kind(epsilon, **SIZES)
                row = {
                    "clients": clients,
                    "mechanism": name,
                    "epsilon": epsilon,
                    "of_zeros": float(np.mean(counts**2)),
                }
                row["expected"] = expected(mechanism, counts, clients)
                results.append(row | collect(mechanism, votes, voters, counts))
            print(clients, name, file=sys.stderr)
    save("appendix_b", results, **SIZES, seed=0)
