"""Shuffled messages by the general bound and by the mechanism's own bound.

The results are ε₀, ε, and noise under both bounds.
"""

import time
from typing import Any

from benchmarks._measure import save
from rknn_jax import mechanisms
from rknn_jax.labelers import _vote_mechanism, rknn
from rknn_jax.privacy import amplification

CLIENTS = 60_000
DELTA = 1e-6
SIZES = {"num_queries": 10, "num_classes": 10}
EPSILONS = (0.1, 1.0)
CROWD = 10_000
MESSAGES = (1.0, 3.0)
"""Values of ε₀ of the shuffled messages; `CROWD` is their number of clients."""


def calibrated() -> list[dict[str, Any]]:
    """Return the ε₀ that each bound allows for a given ε.

    The rows also hold the standard deviation of all messages' noise on a count.
    """
    rows = []
    for name in mechanisms.names("local"):
        for epsilon in EPSILONS:
            row: dict[str, Any] = {"mechanism": name, "epsilon": epsilon}
            for bound in ("general", "variation ratio"):
                named: dict[str, Any] = {
                    "mechanism": name,
                    "trust": "shuffle",
                    "amplification": bound,
                }
                config = rknn.ReverseKNN(epsilon=epsilon, delta=DELTA, **named)
                start = time.perf_counter()
                found: Any = _vote_mechanism.calibrated(*SIZES.values(), CLIENTS, config)
                seconds = time.perf_counter() - start
                spread = (CLIENTS * found.mean_variance) ** 0.5
                row[bound] = {"local_epsilon": found.epsilon, "stddev": spread, "seconds": seconds}
            rows.append(row)
    return rows


def amplified() -> list[dict[str, Any]]:
    """Return the ε by both bounds for shuffled messages of a given ε₀."""
    rows = []
    for name in mechanisms.names("local"):
        for local in MESSAGES:
            made: Any = mechanisms.make(name, epsilon=local, **SIZES)
            variation = made.total_variation
            general = amplification.epsilon(local, CROWD, DELTA)
            tighter = amplification.epsilon(
                local, CROWD, DELTA, "variation ratio", lambda _, of=variation: of
            )
            rows.append(
                {
                    "mechanism": name,
                    "local_epsilon": local,
                    "general": general,
                    "variation ratio": tighter,
                }
            )
    return rows


if __name__ == "__main__":
    results = {"calibrated": calibrated(), "amplified": amplified()}
    save("shuffling", results, clients=CLIENTS, crowd=CROWD, delta=DELTA, queries=10, classes=10)
