"""Cost of replacing a record in noisy SGD, by PLD at delta = 1e-5.

The cost is shown beside those of removing a record and of twice the sensitivity.
"""

from benchmarks._measure import save
from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import Event

DELTA = 1e-5
SETTINGS = (
    (0.6, 1e-3, 2000),
    (0.8, 1e-3, 5000),
    (1.0, 0.01, 1000),
    (1.3, 256 / 60_000, 3516),
    (2.0, 0.02, 1000),
    (4.0, 0.1, 500),
    (8.0, 0.3, 200),
)
"""Noise multiplier, sampling probability, steps.

The rows go from little noise on small samples to much noise on large ones.
"""


def measure() -> list[dict[str, float]]:
    """Return epsilon by setting and relation."""
    rows = []
    for sigma, q, steps in SETTINGS:
        events = {
            "add_remove": Event("gaussian", sigma, steps, q),
            "replace_one": Event("gaussian", sigma / 2, steps, q, replaced=True, opposite=True),
            "twice_the_sensitivity": Event("gaussian", sigma / 2, steps, q, replaced=True),
        }
        costs = {name: accounting.epsilons([event], DELTA)["PLD"] for name, event in events.items()}
        rows.append({"noise_multiplier": sigma, "sampling_prob": q, "steps": steps} | costs)
    return rows


if __name__ == "__main__":
    save("relations", measure(), delta=DELTA)
