"""Powers that make what `rknn_jax.answers` says of labels true, fitted and judged.

    python -m benchmarks.calibrating

Mean shares are raised to a power that depends on how far noise hides them, and odds of redrawn
counts to another one (`rknn_jax.answers.calibration`). Both are fitted by least log-loss, on splits
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
from scipy.optimize import minimize, minimize_scalar

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
START = (-1.0, 2.5, -2.0, 1.0)
LEAST = 1e-3
"""Least probability in a log-loss."""


class Release(NamedTuple):
    """Part of a release's public rows.

    Attributes:
      kind: Kind of data.
      case: Data set and number of queries.
      epsilon: Its epsilon.
      terms: Terms of the logarithm of the power.
      shares: Mean shares, `[rows, num_classes]`.
      truth: Classes, `[rows]`.
      right: Part of the labels that are right.
      stability: Stability that was said of the labels, `[rows]`.
      same: True where the label is the same without noise, `[rows]`.
    """

    kind: str
    case: str
    epsilon: float
    terms: tuple[float, ...]
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
        shares = decoded.probabilities[kept] ** (
            1 / calibration.power(decoded.seen, decoded.agreement)
        )
        yield Release(
            case.split(",")[0],
            case,
            epsilon,
            (1.0, decoded.seen, decoded.seen**2, decoded.agreement),
            shares,
            one.truth[kept],
            float(np.mean(decoded.labels[kept] == one.truth[kept])),
            decoded.stability[kept],
            decoded.labels[kept] == clear[kept],
        )


def probabilities(one: Release, powers: np.ndarray) -> np.ndarray:
    """Return the probabilities of the rows' classes, `[rows, num_classes]`."""
    power = np.exp(powers @ np.array(one.terms))
    raised: np.ndarray = one.shares**power
    return raised / raised.sum(axis=1, keepdims=True)


def log_loss(powers: np.ndarray, every: list[Release]) -> float:
    """Return the mean log-loss of the releases."""
    found = []
    for one in every:
        own = probabilities(one, powers)[np.arange(len(one.truth)), one.truth]
        found.append(-np.mean(np.log(np.maximum(own, LEAST))))
    return float(np.mean(found))


def fitted(every: list[Release]) -> np.ndarray:
    """Return the coefficients of the power of least log-loss."""
    options = {"xatol": 0.02, "fatol": 1e-4}
    found: np.ndarray = minimize(
        log_loss, START, args=(every,), method="Nelder-Mead", options=options
    ).x
    return found


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


def steady(every: list[Release]) -> float:
    """Return the power of the odds of least log-loss."""
    return float(minimize_scalar(stability_loss, bounds=(0.5, 3.0), args=(every,)).x)


def judged(
    every: list[Release], powers: dict[str, np.ndarray], odds: dict[str, float]
) -> dict[str, float]:
    """Return how near expected accuracies and stabilities are to the truth.

    Args:
      every: Releases.
      powers: Coefficients of the power for each kind of data.
      odds: Power of the odds for each kind of data.
    """
    errors: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for one in every:
        expected = probabilities(one, powers[one.kind]).max(axis=1).mean() - one.right
        stays = stabilities(one, odds[one.kind]).mean() - one.same.mean()
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
    odds = {}
    for kind in kinds:
        others = [one for one in every if one.kind != kind]
        mine = [one for one in every if one.kind == kind]
        powers[kind], odds[kind] = fitted(others), steady(others)
        told = judged(mine, powers, odds)
        rows.append(
            {"judged": kind, "fitted": "others", **_rounded(powers[kind], odds[kind]), **told}
        )
    rows.append({"judged": "all", "fitted": "others", **judged(every, powers, odds)})
    shipped = np.array(calibration.SHARPER), calibration.STEADIER
    for name, (curve, one) in {"all": (fitted(every), steady(every)), "shipped": shipped}.items():
        told = judged(every, dict.fromkeys(kinds, curve), dict.fromkeys(kinds, one))
        rows.append({"judged": "all", "fitted": name, **_rounded(curve, one), **told})
    save("calibrating", rows, seeds=SEEDS, rows=ROWS)


def _rounded(powers: np.ndarray, odds: float) -> dict[str, Any]:
    return {"powers": [round(float(power), 3) for power in powers], "odds": round(odds, 3)}


if __name__ == "__main__":
    main()
