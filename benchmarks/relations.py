"""Cost of replacing a record in noisy SGD, by PLD at delta = 1e-5.

The cost is shown beside those of removing a record and of twice the sensitivity.
"""

from dataclasses import replace

from benchmarks._measure import save
from rknn_jax.privacy import accounting
from rknn_jax.privacy.events import SampledGaussian

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
        replaced = SampledGaussian(sigma / 2, steps, sampling_prob=q, replaced=True)
        events = {
            "add_remove": SampledGaussian(sigma, steps, sampling_prob=q),
            "replace_one": replace(replaced, opposite=True),
            "twice_the_sensitivity": replaced,
        }
        costs = {name: accounting.epsilons([event], DELTA)["PLD"] for name, event in events.items()}
        rows.append({"noise_multiplier": sigma, "sampling_prob": q, "steps": steps} | costs)
    return rows


if __name__ == "__main__":
    save("relations", measure(), delta=DELTA)
