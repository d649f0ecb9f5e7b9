"""Quantities of a release that its arrays do not hold, for its report.

They are released quantities, post-processing of them, or public data, so they cost no privacy:
`summary.json` may be published with the labels. The map shows public rows by their first two
principal components.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.sparse.linalg import svds

from rknn_jax.answers import Decoded
from rknn_jax.answers.concern import Concern
from rknn_jax.answers.measured import Measured

MOST_PLACES = 3000
"""Most public rows on the map. Of more, a sample is drawn."""

DECIMALS = 4
"""Decimals of a place. The map is two units wide."""


@dataclass(frozen=True)
class Summary:
    """Content of `summary.json`.

    Attributes:
      agreement: How far private records near a query agree, in [0, 1]; None if unknown.
      expected_accuracy: Expected share of labels that are right; None if unknown.
      noise_stddev: Standard deviation of a noisy count's noise, in votes; None if labels alone were
        released.
      concerns: Reasons to doubt the labels, each with a remedy.
      rows: Public rows on the map, by their position.
      places: Places of these rows, `(x, y)` in [-1, 1] each.
      measured: Agreement with private records that did not vote. Defaults to None: not measured.
    """

    agreement: float | None
    expected_accuracy: float | None
    noise_stddev: float | None
    concerns: tuple[Concern, ...]
    rows: tuple[int, ...]
    places: tuple[tuple[float, float], ...]
    measured: Measured | None = None

    def asdict(self) -> dict[str, Any]:
        """Return the content as JSON-ready values, which `Summary.of` reads."""
        return asdict(self) | {"measured": self.measured and self.measured.asdict()}

    @classmethod
    def of(cls, saved: dict[str, Any]) -> "Summary":
        """Return what `asdict` made; `KeyError`, `TypeError` or `ValueError` if it is damaged."""
        shares = {
            name: None if saved[name] is None else float(saved[name])
            for name in ("agreement", "expected_accuracy", "noise_stddev")
        }
        concerns = tuple(Concern(**one) for one in saved["concerns"])
        rows = tuple(int(row) for row in saved["rows"])
        places = tuple((float(x), float(y)) for x, y in saved["places"])
        if len(rows) != len(places):
            raise ValueError(f"{len(rows)} rows have {len(places)} places")
        told = saved.get("measured")  # older folders have none
        measured = None if told is None else Measured.of(told)
        return cls(**shares, concerns=concerns, rows=rows, places=places, measured=measured)


def summarize(
    features: np.ndarray,
    concerns: Sequence[Concern],
    decoded: Decoded | None,
    stddev: np.ndarray | None,
    measured: Measured | None = None,
) -> Summary:
    """Return the summary of a release.

    Args:
      features: float `[m, f]`, of the public rows.
      concerns: Reasons to doubt the labels.
      decoded: Result of the decoder; None if it did not run.
      stddev: Standard deviation of the counts' noise, `[s, num_classes]`; None if labels alone were
        released.
      measured: Agreement with private records that did not vote. Defaults to None.
    """
    rows = _drawn(len(features))
    return Summary(
        None if decoded is None else float(decoded.agreement),
        None if decoded is None else decoded.expected_accuracy,
        None if stddev is None else float(np.sqrt(np.mean(np.square(stddev, dtype=np.float64)))),
        concerns=tuple(concerns),
        rows=tuple(rows.tolist()),
        places=tuple((float(x), float(y)) for x, y in places(features[rows])),
        measured=measured,
    )


def places(features: np.ndarray) -> np.ndarray:
    """Return the first two principal components, scaled to [-1, 1], float64 `[m, 2]`.

    Args:
      features: float `[m, f]`, of public rows.
    """
    values = np.asarray(features, np.float64)
    values = values - values.mean(axis=0)
    values = values / max(float(np.abs(values).max()), np.finfo(np.float64).tiny)
    found = np.zeros((len(values), 2))
    axes = min(2, *values.shape)
    if np.ptp(values) > 0:
        found[:, :axes] = _principal(values - values.mean(axis=0), axes)
        found = found / np.abs(found).max()
    return np.round(found, DECIMALS)


def _principal(values: np.ndarray, count: int) -> np.ndarray:
    """Return the first principal components of centered rows, float64 `[m, count]`.

    The largest loading of each axis is positive.
    """
    smaller = min(values.shape)
    if count < smaller:
        start = np.random.default_rng(0).standard_normal(smaller)
        axes = svds(values, count, v0=start)[2][::-1]
    else:
        axes = np.linalg.svd(values, full_matrices=False)[2]
    axes = axes * np.sign(axes[np.arange(count), np.abs(axes).argmax(axis=1)])[:, None]
    components: np.ndarray = values @ axes.T
    return components


def _drawn(num_rows: int) -> np.ndarray:
    """Return the rows on the map, in order. A fixed seed is safe: the rows are public."""
    if num_rows <= MOST_PLACES:
        return np.arange(num_rows)
    return np.sort(np.random.default_rng(0).choice(num_rows, MOST_PLACES, replace=False))
