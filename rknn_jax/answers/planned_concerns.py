"""Concerns about a release that is planned, each with a number and a remedy.

They are read off what is known before it: the public rows, the number of votes and the noise.
"""

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.answers.concern import Concern

WIDE_COLUMN = 20.0
"""Standard deviation of a wide column, in units of the median one."""

LARGE_PART = 0.8
"""Part of the total variance of all columns that few columns must not hold."""

FEWEST_COLUMNS = 3
"""Fewest columns whose scales are compared."""


def concerns_before(
    features: np.ndarray,
    size: np.ndarray,
    num_classes: int,
    num_votes: float | None,
    noise: float,
) -> list[Concern]:
    """Return the concerns about a release that is planned.

    Args:
      features: float32 `[m, f]`, of the public rows.
      size: `[s]`, public rows of each query.
      num_classes: Number of classes.
      num_votes: Number of votes of all records, or None if it is private.
      noise: Standard deviation of a cell's noise, in votes.
    """
    listed = _columns(features)
    if len(size) < num_classes:
        sentence = (
            f"{len(size)} queries cannot tell {num_classes} classes apart, because a query speaks "
            "for one class at most"
        )
        listed.append(
            Concern(
                "few_queries", len(size), sentence, f"ask {option('queries')} {num_classes} or more"
            )
        )
    if num_votes is None:
        return listed
    median = float(np.median(size) / np.sum(size) * num_votes)
    if median < noise:
        sentence = (
            f"the median query has about {median:,.1f} votes, and the noise of one count has a "
            f"standard deviation of {noise:,.1f}"
        )
        remedy = (
            f"use fewer {option('queries')}, a larger {option('epsilon')} or more private records"
        )
        listed.append(Concern("thin_votes", median, sentence, remedy))
    return listed


def _columns(features: np.ndarray) -> list[Concern]:
    """Return a concern about columns of different units, because the widest decide distances."""
    if features.shape[1] < FEWEST_COLUMNS:
        return []
    variance = np.var(np.asarray(features, np.float64), axis=0)
    varying = variance[variance > 0]
    if len(varying) < FEWEST_COLUMNS:
        return []
    wide = varying > WIDE_COLUMN**2 * np.median(varying)
    wide |= varying > LARGE_PART * varying.sum()
    part = float(varying[wide].sum() / varying.sum())
    if part <= LARGE_PART:
        return []
    held = f"{wide.sum()} column holds" if wide.sum() == 1 else f"{wide.sum()} columns hold"
    sentence = (
        f"{held} {part:.1%} of the variance of all {features.shape[1]}, which decides which rows "
        "are near each other"
    )
    return [Concern("unscaled_columns", part, sentence, f"pass {option('standardize')}")]
