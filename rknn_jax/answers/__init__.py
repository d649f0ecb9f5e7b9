"""Labels of public rows from noisy counts, and what may be said about them.

The counts' noise is known exactly, so they have a likelihood, and choose themselves how rows share
them. The decoder is a mean over models, weighted by their likelihood:

- a Gaussian process over the public rows with mixtures of local and linear kernels (`process`,
  `covariance`), of which the arg max of each query, votes shared by similar queries, labels spread
  over the neighbor graph and a linear student are limits;
- one class for each query, if there are as many queries as classes (`matching`).

Classes may be rarer among private records than among public rows; the sizes of the public clusters
tell (`ratios`). If these ratios explain the votes badly, the features are shifted, and both sides
are taken to have the same shares of the classes. Nothing here reads private data but the noisy
counts, so it costs no privacy.

Reference: Quadrianto et al., "Estimating Labels from Label Proportions", 2009.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rknn_jax._internal.cores import one_thread_for_products
from rknn_jax.answers import process, ratios, row_labels
from rknn_jax.answers.covariance import Kernels, kernels
from rknn_jax.answers.row_labels import Decoded, Fit, Shown, of_queries
from rknn_jax.types import Array

__all__ = ["Decoded", "Fit", "Fits", "Kernels", "decode", "decode_labels", "fits", "kernels"]

ROUNDS = 2
"""Times that ratios of classes are fitted. Each takes the shares that the last one gives."""

SMALL = 500
"""Most queries whose matrices one thread factors as fast as several."""

SURER = 0.05
"""Expected accuracy that components of a mixture have to add, so that labels are read with them.

Two components for each class are tried where one is not surer.

Counts of queries cannot tell components that cut across the classes of single rows from those that
are classes, and labels can: the former are no surer.
"""

DRAWS = 64
"""Number of redrawn counts behind the stability."""


LABEL_DOUBT = 0.2
"""Standard deviation by which a query's shares differ from its label alone.

Of 0.05, 0.2 and 0.5, it had the most right labels on splits 0 and 1 of `benchmarks.decoding`.
"""


@dataclass(frozen=True)
class Fits:
    """Readings of the same counts: with equal shares of the classes on both sides, and without.

    Attributes:
      shown: Noisy counts.
      equal: Fit for classes that are as frequent among private records as among public rows.
      corrected: Fit for the ratio of each class that the counts tell.
      supported: True if the sizes of the clusters support that ratio; see `ratios.supported`.
    """

    shown: Shown
    equal: Fit
    corrected: Fit
    supported: bool

    @property
    def usual(self) -> Fit:
        """Fit that is read unless something else tells which one is better."""
        return self.corrected if self.supported else self.equal

    def read(self, fit: Fit, *, redraws: int = DRAWS) -> Decoded:
        """Return the labels of all public rows by one of the fits.

        Args:
          fit: `equal` or `corrected`.
          redraws: Number of redrawn counts behind the stability. Defaults to `DRAWS`. With 0 the
            stability is NaN, and all else is the same.
        """
        with _threads(len(self.shown.counts)):
            return row_labels.read(self.shown, fit, redraws)


def fits(counts: Array, stddev: Array, public: Kernels) -> Fits:
    """Return the readings of noisy counts, by post-processing alone; see `decode`."""
    with _threads(len(counts)):
        return _fits(Shown(np.asarray(counts, float), np.asarray(stddev, float), public))


def decode(counts: Array, stddev: Array, public: Kernels, *, redraws: int = DRAWS) -> Decoded:
    """Return the labels of all public rows, by post-processing alone.

    Args:
      counts: `[s, num_classes]`, noisy counts.
      stddev: Standard deviation of the noise, `[s, num_classes]`, in votes.
      public: Kernels of the queries.
      redraws: Number of redrawn counts, as in `Fits.read`. Defaults to `DRAWS`.
    """
    found = fits(counts, stddev, public)
    return found.read(found.usual, redraws=redraws)


def _threads(num_queries: int) -> AbstractContextManager[object]:
    """Hold products of small matrices to one thread."""
    return one_thread_for_products(num_queries <= SMALL)


def decode_labels(labels: Array, num_classes: int, public: Kernels) -> np.ndarray:
    """Return soft labels of all public rows from one label of each query, without counts.

    The label stands for the votes of all records near the query, up to `LABEL_DOUBT`.

    Args:
      labels: Integers `[s]`, released without counts.
      num_classes: Number of classes |Y|.
      public: Kernels of the queries.

    Returns:
      float32 `[m, num_classes]`, rows summing to 1.
    """
    # [s, |Y|]: all rows of a query as votes for its label, with noise that is as wide as the doubt.
    votes = np.eye(num_classes)[np.asarray(labels)] * public.size[:, None]
    doubt = LABEL_DOUBT * np.mean(public.size)
    return decode(votes, np.full(votes.shape, doubt), public, redraws=0).probabilities


class Tried(NamedTuple):
    """Mixtures that are tried on counts.

    Attributes:
      mixtures: Mixtures.
      priors: Logarithms of their priors, float64 `[mixtures]`, up to a constant.
      likelihoods: Logarithms of their likelihoods, float64 `[mixtures]`.
    """

    mixtures: list[process.Mixture]
    priors: np.ndarray
    likelihoods: np.ndarray

    def beside(self, other: "Tried") -> "Tried":
        """Return these mixtures and others."""
        parts = [np.concatenate(pair) for pair in zip(self[1:], other[1:], strict=True)]
        return Tried([*self.mixtures, *other.mixtures], *parts)


def _fits(shown: Shown) -> Fits:
    """Return the readings of counts, with components only where they make labels surer."""
    counts, stddev, public = shown
    num_classes = counts.shape[1]
    mixtures, priors = process.mixtures(public, num_classes)
    seen = process.standardized(counts, stddev, public.size, np.ones(num_classes))

    def tried(chosen: np.ndarray) -> Tried:
        kept = [mixtures[i] for i in np.flatnonzero(chosen)]
        return Tried(kept, priors[chosen], process.log_likelihoods(seen, kept))

    # Components are tried after all else: each makes a mixture more that could be fitted to noise.
    used = [np.array([one.variance(part) > 0 for one in mixtures]) for part in public.components]
    plain = tried(~np.any(used, axis=0) if used else np.ones(len(mixtures), bool))
    found = _fitted(shown, seen, plain)
    for components in used:
        both = plain.beside(tried(components))
        if not process.weights(both.priors + both.likelihoods)[len(plain.mixtures) :].any():
            continue
        other = _fitted(shown, seen, both)
        each = [row_labels.read(shown, one.usual, 0) for one in (found, other)]
        expected = [one.expected_accuracy for one in each]
        # By the model's own expected accuracy, since nothing private is left to compare with.
        if expected[1] > expected[0] + SURER:
            return other
    return found


def _fitted(shown: Shown, seen: process.Seen, tried: Tried) -> Fits:
    """Return the readings of counts by mixtures.

    Args:
      shown: Counts.
      seen: Counts as the model takes them, with equal shares of the classes on both sides.
      tried: Mixtures.
    """
    mixtures, priors, likelihoods = tried
    priors = priors - np.logaddexp.reduce(priors)
    scores = priors + likelihoods
    weights = process.weights(scores)
    equal = Fit(
        mixtures, seen, scores, weights=weights, posteriors=_posteriors(seen, mixtures, weights)
    )
    posteriors = equal.posteriors
    for _ in range(ROUNDS):
        ratio = ratios.fit(_problem(seen, posteriors, weights, shown.public))
        # Ratio and posterior depend on each other, so that they are fitted in turn until both stay.
        if np.array_equal(ratio, seen.ratio):
            break
        seen = process.standardized(shown.counts, shown.stddev, shown.public.size, ratio)
        posteriors = _posteriors(seen, mixtures, weights)
    if np.ptp(ratio) == 0:
        return Fits(shown, equal, equal, False)
    kept = np.flatnonzero(weights)
    # Likelihoods under the new ratio, for mixtures that had a weight; the others had none to lose.
    scores = scores.copy()
    scores[kept] = priors[kept] + process.log_likelihoods(seen, [mixtures[i] for i in kept])
    weights = weights.copy()
    weights[kept] = process.weights(scores[kept])
    corrected = Fit(mixtures, seen, scores, weights=weights, posteriors=posteriors)
    supported = ratios.supported(_problem(seen, posteriors, weights, shown.public), ratio)
    return Fits(shown, equal, corrected, supported)


def _posteriors(
    seen: process.Seen, tried: list[process.Mixture], weights: np.ndarray
) -> dict[int, process.Posterior]:
    """Return the posteriors of the mixtures of some weight."""
    return {int(i): process.posterior(seen, tried[i].between) for i in np.flatnonzero(weights)}


def _problem(
    seen: process.Seen,
    posteriors: dict[int, process.Posterior],
    weights: np.ndarray,
    public: Kernels,
) -> ratios.Problem:
    """Return the posterior votes of the queries, in units of public rows."""
    mean, variance = of_queries(seen, posteriors, weights)
    votes = seen.votes[:, None] * public.size.sum() / seen.votes.sum() / seen.ratio
    return ratios.Problem(votes * np.maximum(mean, 1e-9), votes**2 * variance, public.size)
