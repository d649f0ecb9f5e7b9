"""Powers that make what `rknn_jax.answers` says of labels true, fitted and judged.

    python -m benchmarks.calibrating

Mean shares are raised to one power, and odds of redrawn counts to another
(`rknn_jax.answers.calibration`). Both are fitted by least log-loss, on splits
0 and 1 of the data sets of `benchmarks.decoding`, which reports other splits.

A fit on all data sets says little about others. So each kind of data is judged by powers that were
fitted on the others. `error` is the mean distance of the expected accuracy from the labels that are
right, over data sets and epsilons, and `near` is the part of these where it is at most `NEAR`. The
same for the stability and the labels that are the same without noise. `shipped` are the powers that
the package has.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from benchmarks import decoding
from benchmarks._decoding_cases import CASES, NO_CLASS
from benchmarks._measure import save
from rknn_jax import answers
from rknn_jax.answers import calibration

SEEDS = (0, 1)
ROWS = 600
"""Most public rows of a release that are kept."""

LONG = "spectral"
"""Data sets that are left out: nearly all of their labels are right, and they take minutes each."""

NEAR = 0.05
NEAR_STABLE = 0.03
BOUNDS = (0.5, 5.0)
LEAST = 1e-3
"""Least probability in a log-loss."""


class Release(NamedTuple):
    """Part of a release's public rows.

    Attributes:
      kind: Kind of data.
      case: Data set and number of queries.
      epsilon: Its epsilon.
      shares: Mean shares, `[rows, num_classes]`.
      truth: Classes, `[rows]`.
      right: Part of the labels that are right.
      stability: Stability that was said of the labels, `[rows]`.
      same: True where the label is the same without noise, `[rows]`.
    """

    kind: str
    case: str
    epsilon: float
    shares: np.ndarray
    truth: np.ndarray
    right: float
    stability: np.ndarray
    same: np.ndarray


def releases(case: str, seed: int) -> Iterator[Release]:
    """Yield a release of each epsilon."""
    one = decoding.split(case, seed)
    kernels = answers.kernels(one.queries, one.public, one.graph)
    assert kernels is not None
    clear = answers.decode(one.votes, np.full(one.votes.shape, decoding.NO_NOISE), kernels).labels
    known = np.flatnonzero(one.truth != NO_CLASS)
    rng = np.random.default_rng(seed)
    kept = rng.permutation(known)[:ROWS]
    for epsilon in decoding.EPSILONS:
        decoded = answers.decode(*decoding.noisy(one.votes, epsilon, rng), kernels)
        shares = decoded.probabilities[kept] ** (1 / calibration.SHARPER)
        yield Release(
            case.split(",")[0],
            case,
            epsilon,
            shares,
            one.truth[kept],
            float(np.mean(decoded.labels[kept] == one.truth[kept])),
            decoded.stability[kept],
            decoded.labels[kept] == clear[kept],
        )


def probabilities(one: Release, power: float) -> np.ndarray:
    """Return the probabilities of the rows' classes, `[rows, num_classes]`."""
    raised: np.ndarray = one.shares**power
    return raised / raised.sum(axis=1, keepdims=True)


def log_loss(power: float, every: list[Release]) -> float:
    """Return the mean log-loss of the probabilities."""
    found = []
    for one in every:
        own = probabilities(one, power)[np.arange(len(one.truth)), one.truth]
        found.append(-np.mean(np.log(np.maximum(own, LEAST))))
    return float(np.mean(found))


def stabilities(one: Release, power: float) -> np.ndarray:
    """Return the stability of each row for this power of the odds, `[rows]`."""
    chance = one.shares.shape[1] - 1
    odds = one.stability * chance / np.maximum(1 - one.stability, 1e-9)
    raised = odds ** (power / calibration.STEADIER) / max(chance, 1)
    found: np.ndarray = raised / (1 + raised)
    return found


def stability_loss(power: float, every: list[Release]) -> float:
    """Return the mean log-loss of the stabilities."""
    found = []
    for one in every:
        told = np.clip(stabilities(one, power), LEAST, 1 - LEAST)
        found.append(-np.mean(np.log(np.where(one.same, told, 1 - told))))
    return float(np.mean(found))


class Powers(NamedTuple):
    """Power of the shares, and of the odds of a stability."""

    shares: float
    odds: float

    @classmethod
    def fitted(cls, every: list[Release]) -> "Powers":
        """Return the powers of least log-loss."""
        found = [
            float(minimize_scalar(loss, bounds=BOUNDS, args=(every,)).x)
            for loss in (log_loss, stability_loss)
        ]
        return cls(*found)


def judged(every: list[Release], powers: dict[str, Powers]) -> dict[str, float]:
    """Return how near expected accuracies and stabilities are to the truth.

    Args:
      every: Releases.
      powers: Powers for each kind of data.
    """
    errors: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for one in every:
        expected = probabilities(one, powers[one.kind].shares).max(axis=1).mean() - one.right
        stays = stabilities(one, powers[one.kind].odds).mean() - one.same.mean()
        errors.setdefault((one.case, one.epsilon), []).append((expected, stays))
    means = np.abs([np.mean(found, axis=0) for found in errors.values()])
    told = {
        "error": means[:, 0].mean(),
        "near": np.mean(means[:, 0] <= NEAR),
        "stability_error": means[:, 1].mean(),
        "stability_near": np.mean(means[:, 1] <= NEAR_STABLE),
    }
    return {name: round(float(value), 4) for name, value in told.items()}


def main() -> None:
    """Fit and judge the powers, and write them."""
    every: list[Release] = []
    for case in CASES:
        if case.startswith(LONG):
            continue
        if reason := CASES[case].missing():
            print(f"skipped {case}: {reason}", flush=True)
            continue
        for seed in SEEDS:
            every += releases(case, seed)
            print(f"decoded {case}, split {seed}", flush=True)
    kinds = sorted({one.kind for one in every})
    rows: list[dict[str, Any]] = []
    powers = {}
    for kind in kinds:
        powers[kind] = Powers.fitted([one for one in every if one.kind != kind])
        told = judged([one for one in every if one.kind == kind], powers)
        rows.append({"judged": kind, "fitted": "others", **_rounded(powers[kind]), **told})
    rows.append({"judged": "all", "fitted": "others", **judged(every, powers)})
    shipped = Powers(calibration.SHARPER, calibration.STEADIER)
    for name, one in {"all": Powers.fitted(every), "shipped": shipped}.items():
        told = judged(every, dict.fromkeys(kinds, one))
        rows.append({"judged": "all", "fitted": name, **_rounded(one), **told})
    save("calibrating", rows, seeds=SEEDS, rows=ROWS)


def _rounded(powers: Powers) -> dict[str, float]:
    return {name: round(value, 3) for name, value in powers._asdict().items()}


if __name__ == "__main__":
    main()
