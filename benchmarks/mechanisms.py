"""Comparison of local mechanisms.

The columns are the exact variance of a cell, the size of a message, and the simulated clients per
second.
"""

import sys

from benchmarks._measure import save
from rknn_jax import mechanisms
from rknn_jax.simulate import simulate

SIZES = {
    "100 queries, 10 classes, kr = 1": {"num_queries": 100, "num_classes": 10},
    "200 queries, 50 classes, kr = 4": {
        "num_queries": 200,
        "num_classes": 50,
        "num_neighbors": 2,
        "labels_per_record": 2,
    },
}
EPSILONS = (0.4, 1.0, 4.0)
CLIENTS = {"message": 100_000, "count": 10**9}


def measure(name: str, fields: dict[str, int]) -> dict[str, object] | None:
    """Return one mechanism's numbers for one problem; None if it does not fit."""
    try:
        variance = {
            str(e): mechanisms.make(name, epsilon=e, **fields).mean_variance for e in EPSILONS
        }
    except ValueError:
        return None
    mechanism = mechanisms.make(name, epsilon=1.0, **fields)
    speed = {}
    for level in CLIENTS:
        try:
            speed[level] = simulate(mechanism, CLIENTS[level], level).clients_per_second  # type: ignore[arg-type]
        except ValueError:
            speed[level] = None
    return {
        "name": name,
        "variance": variance,
        "message_bits": mechanism.message_bits,
        "clients_per_second": speed,
    }


if __name__ == "__main__":
    results = []
    for problem, fields in SIZES.items():
        for name in mechanisms.names("local"):
            print(problem, name, file=sys.stderr)
            results.append(
                {"problem": problem} | row
                if (row := measure(name, fields))
                else {"problem": problem, "name": name}
            )
    save("mechanisms", results, epsilons=EPSILONS, clients=CLIENTS, seed=0)
