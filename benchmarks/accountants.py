"""Cost of the stated parameters of Private-kNN and PATE, beside the claims.

The results also hold Figure 5 of the Private-kNN paper. Relations are the papers': add-remove of a
record for Private-kNN, replacement of a teacher's vote for PATE.
"""

import math
import time
from dataclasses import replace

from benchmarks._measure import save
from rknn_jax.privacy import accounting, pate, renyi
from rknn_jax.privacy.events import (
    Event,
    Gaussian,
    Laplace,
    SampledGaussian,
    ScreenedGaussian,
    gaussian_event,
)

SCREENS = 8192
QUERIES = (1, 16, 64, 256, 512, 1024, 2048, 3072, 4096, 5120, 6144, 7168, SCREENS)
FIGURE5 = {
    "Gaussian": (Gaussian(85.0), 5.677),
    "Gaussian, sampled": (SampledGaussian(85.0, sampling_prob=0.25), 1.313),
    "Theorem 7": (ScreenedGaussian(85.0, screen=(210, 300)), 4.438),
    "Theorem 7, sampled": (ScreenedGaussian(85.0, screen=(210, 300), sampling_prob=0.25), 1.042),
}
"""The events of one screen, and the paper's epsilon for 8,192 of them at delta = 1e-5."""

STATED = (
    ("Private-kNN, MNIST", 0.47, 1e-5, (75.0, 1000, (180, 300)), (25.0, 735), 0.15),
    ("Private-kNN, SVHN", 0.49, 1e-5, (200.0, 6000, (480, 800)), (60.0, 2939), 0.03),
    ("Private-kNN, CIFAR-10", 2.92, 1e-5, (85.0, 18000, (210, 300)), (20.0, 3877), 0.2),
    ("Confident-GNMax, MNIST", 1.97, 1e-5, (150.0, 640, (200, 250)), (40.0, 286), 1.0),
    ("Confident-GNMax, SVHN", 4.96, 1e-6, (200.0, 8500, (300, 250)), (40.0, 3098), 1.0),
)
"""Stated parameters of the papers.

A row holds the name, the claimed epsilon, delta, screens (sigma, number, (T, most votes)), answers
(sigma, number), and the sampling probability.
"""


def events(
    screens: tuple[float, int, tuple[int, int] | None],
    answers: tuple[float, int],
    sampling_prob: float,
) -> list[Event]:
    """Return the two steps' events; each screen, if there is one, releases one bit at most."""
    (s1, asked, screen) = screens
    (s2, answered) = answers
    first = gaussian_event(s1, asked, sampling_prob, screen=screen)
    return [first, gaussian_event(s2 / math.sqrt(2), answered, sampling_prob)]


def stated() -> list[dict[str, object]]:
    """Account for the stated parameters, and time the accounting."""
    rows: list[dict[str, object]] = []
    for name, claimed, delta, screens, answers, sampling_prob in STATED:
        both = events(screens, answers, sampling_prob)
        start = time.perf_counter()
        exact = accounting.epsilons(both, delta)
        took = time.perf_counter() - start
        unscreened = events((*screens[:2], None), answers, sampling_prob)
        published = renyi.rdp_epsilon_as_published(unscreened, delta)
        row = {
            "name": name,
            "claimed": claimed,
            "delta": delta,
            "RDP, as published": published,
            "RDP": exact["RDP"],
            "PLD": exact["PLD"],
        }
        if sampling_prob < 1:
            replaced = [replace(event, replaced=True) for event in both]
            row["PLD, replace-one"] = accounting.epsilons(replaced, delta)["PLD"]
        rows.append(row | {"seconds": took})
    laplace = [Laplace(20.0, 2000)]
    start = time.perf_counter()
    exact = accounting.epsilons(laplace, 1e-5)
    took = time.perf_counter() - start
    moments = 1000 * pate.lnmax_rdp([0.0], 20.0, pate.MOMENTS)[0]
    published = pate.rdp_to_epsilon(moments, pate.MOMENTS, 1e-5, classic=True)
    return [
        *rows,
        {
            "name": "LNMax, MNIST",
            "claimed": 8.03,
            "delta": 1e-5,
            "RDP, as published": published,
            "RDP": exact["RDP"],
            "PLD": exact["PLD"],
        }
        | {"seconds": took},
    ]


def figure5() -> list[dict[str, object]]:
    """Return epsilon by number of screens for every accountant of the figure, and for PLD."""
    rows: list[dict[str, object]] = []
    for name, (event, printed) in FIGURE5.items():
        values = [
            renyi.rdp_epsilon_as_published([replace(event, count=count)], 1e-5) for count in QUERIES
        ]
        rows.append({"name": name, "queries": QUERIES, "epsilon": values, "printed": printed})
    plain = [
        accounting.epsilons([replace(FIGURE5["Gaussian"][0], count=count)], 1e-5)["PLD"]
        for count in QUERIES
    ]
    sampled = [
        accounting.epsilons([replace(FIGURE5["Gaussian, sampled"][0], count=count)], 1e-5)["PLD"]
        for count in QUERIES
    ]
    rows.append({"name": "Gaussian, by PLD", "queries": QUERIES, "epsilon": plain, "printed": None})
    rows.append(
        {
            "name": "Gaussian, sampled, by PLD",
            "queries": QUERIES,
            "epsilon": sampled,
            "printed": None,
        }
    )
    return rows


if __name__ == "__main__":
    stated()  # the first call imports dp-accounting
    save("accountants", {"stated": stated(), "figure5": figure5()})
