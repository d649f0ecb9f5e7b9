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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logsumexp
from threadpoolctl import threadpool_limits

from rknn_jax import postprocessing
from rknn_jax.answers import calibration, matching, process, ratios
from rknn_jax.answers.covariance import Kernel, Kernels, kernels
from rknn_jax.types import Array

__all__ = ["Decoded", "Fit", "Fits", "Kernels", "decode", "decode_labels", "fits", "kernels"]

ROUNDS = 2
"""Times that ratios of classes are fitted. Each takes the shares that the last one gives."""

SMALL = 500
"""Most queries whose matrices one thread factors as fast as several."""

SURER = 0.05
"""Expected accuracy that components of a mixture have to add, so that labels are read with them.

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
class Decoded:
    """Labels of the public rows.

    Three numbers say different things about a label. Its stability is the probability that the
    noise did not change it. The agreement is how far private records near each other agree. Its
    expected accuracy is the probability that it is right.

    Attributes:
      probabilities: float32 `[m, num_classes]`, probability of each class of a row, rows summing
        to 1. The greatest is the label's expected accuracy.
      stability: float32 `[m]`, probability that counts without noise would give the same label.
      shares: float32 `[s, num_classes]`, mean share of each class among records near each query.
      agreement: How far private records near a query agree: the greatest share of a class, with
        which the others' being equal, the expected squares of shares are as they are.
      ratio: float64 `[num_classes]`, ratio of each class's share of the public rows to its share of
        the private records.
      heard: float64 `[s]`, votes of each query, in units of what its public rows let expect.
      size: float64 `[s]`, public rows of each query.
    """

    probabilities: np.ndarray
    stability: np.ndarray
    shares: np.ndarray
    agreement: float
    ratio: np.ndarray
    heard: np.ndarray
    size: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """Most probable class of each row, int32 `[m]`."""
        found: np.ndarray = self.probabilities.argmax(axis=1).astype(np.int32)
        return found

    @property
    def expected_accuracy(self) -> float:
        """Expected share of rows whose label is right."""
        return float(self.probabilities.max(axis=1).mean())


class Fit(NamedTuple):
    """Mixtures and their weights, given one ratio of the classes.

    Attributes:
      seen: Counts as the model takes them.
      scores: Logarithms of the mixtures' priors and likelihoods, float64 `[mixtures]`.
      weights: Weights of the mixtures, float64 `[mixtures]`.
      posteriors: Posteriors of the mixtures of some weight, by their numbers.
    """

    seen: process.Seen
    scores: np.ndarray
    weights: np.ndarray
    posteriors: dict[int, process.Posterior]


@dataclass(frozen=True)
class Fits:
    """Readings of the same counts: with equal shares of the classes on both sides, and without.

    Attributes:
      counts: Noisy counts, float64 `[s, num_classes]`.
      stddev: Standard deviation of their noise, float64 `[s, num_classes]`.
      public: Kernels of the queries.
      tried: Mixtures.
      equal: Fit for classes that are as frequent among private records as among public rows.
      corrected: Fit for the ratio of each class that the counts tell.
      supported: True if the sizes of the clusters support that ratio; see `ratios.supported`.
    """

    counts: np.ndarray
    stddev: np.ndarray
    public: Kernels
    tried: list[process.Mixture]
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
        with _threads(len(self.counts)):
            return _read(self, fit, redraws)


def fits(counts: Array, stddev: Array, public: Kernels) -> Fits:
    """Return the readings of noisy counts, by post-processing alone; see `decode`."""
    with _threads(len(counts)):
        return _fits(np.asarray(counts, np.float64), np.asarray(stddev, np.float64), public)


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


def _threads(num_queries: int) -> threadpool_limits:
    """Hold threads to one on small matrices, where they wait for each other, maybe for minutes."""
    return threadpool_limits(limits=1 if num_queries <= SMALL else None, user_api="blas")


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
    votes = np.eye(num_classes)[np.asarray(labels)] * public.size[:, None]
    doubt = LABEL_DOUBT * np.mean(public.size)
    return decode(votes, np.full(votes.shape, doubt), public, redraws=0).probabilities


def _fits(counts: np.ndarray, stddev: np.ndarray, public: Kernels) -> Fits:
    """Return the readings of counts, with components only where they make labels surer."""
    num_classes = counts.shape[1]
    tried, priors = process.mixtures(public, num_classes)
    seen = process.standardized(counts, stddev, public.size, np.ones(num_classes))
    scores = priors + process.log_likelihoods(seen, tried)
    plain = np.array([one.variance(public.components) == 0 for one in tried])
    shown = Shown(counts, stddev, public, seen)
    found = _fitted(shown, tried, priors, scores, plain)
    if plain.all() or not process.weights(scores)[~plain].any():
        return found
    other = _fitted(shown, tried, priors, scores, np.ones_like(plain))
    expected = [_read(one, one.usual, 0).expected_accuracy for one in (found, other)]
    return other if expected[1] > expected[0] + SURER else found


class Shown(NamedTuple):
    """Counts, and what is public of them.

    Attributes:
      counts: Noisy counts, float64 `[s, num_classes]`.
      stddev: Standard deviation of their noise, float64 `[s, num_classes]`.
      public: Kernels of the queries.
      seen: Counts as the model takes them, with equal shares of the classes on both sides.
    """

    counts: np.ndarray
    stddev: np.ndarray
    public: Kernels
    seen: process.Seen


def _fitted(
    shown: Shown,
    tried: list[process.Mixture],
    priors: np.ndarray,
    scores: np.ndarray,
    chosen: np.ndarray,
) -> Fits:
    """Return the readings by the chosen mixtures.

    Args:
      shown: Counts.
      tried: All mixtures.
      priors: Logarithms of their priors, float64 `[mixtures]`.
      scores: Logarithms of their priors and likelihoods, float64 `[mixtures]`.
      chosen: Mask of the mixtures that are read.
    """
    counts, stddev, public, seen = shown
    tried = [one for one, kept in zip(tried, chosen, strict=True) if kept]
    whole = np.logaddexp.reduce(priors[chosen])
    priors, scores = priors[chosen] - whole, scores[chosen] - whole
    weights = process.weights(scores)
    equal = Fit(seen, scores, weights, _posteriors(seen, tried, weights))
    posteriors = equal.posteriors
    for _ in range(ROUNDS):
        ratio = ratios.fit(_problem(seen, posteriors, weights, public))
        if np.array_equal(ratio, seen.ratio):
            break
        seen = process.standardized(counts, stddev, public.size, ratio)
        posteriors = _posteriors(seen, tried, weights)
    if np.ptp(ratio) == 0:
        return Fits(counts, stddev, public, tried, equal, equal, False)
    kept = np.flatnonzero(weights)
    scores = scores.copy()
    scores[kept] = priors[kept] + process.log_likelihoods(seen, [tried[i] for i in kept])
    weights = weights.copy()
    weights[kept] = process.weights(scores[kept])
    corrected = Fit(seen, scores, weights, posteriors)
    supported = ratios.supported(_problem(seen, posteriors, weights, public), ratio)
    return Fits(counts, stddev, public, tried, equal, corrected, supported)


def _read(found: Fits, fit: Fit, redraws: int) -> Decoded:
    counts, public, tried = found.counts, found.public, found.tried
    seen, scores, weights, posteriors = fit
    num_classes = counts.shape[1]
    matched = None
    one_to_one = 0.0
    if len(counts) == num_classes > 1:
        matched = matching.match(counts, found.stddev, public.size)
        total = logsumexp(scores[np.flatnonzero(weights)])
        one_to_one = float(expit(matched.log_likelihood - total))
    models = _models(fit, tried, matched, one_to_one, redraws)
    means, stability = zip(*_rows(seen, models, public), strict=True)
    shares, variance = _queries(seen, posteriors, weights)
    squares = shares**2 + variance
    if matched is not None:
        shares = one_to_one * matched.shares + (1 - one_to_one) * shares
        squares = one_to_one * matched.squares + (1 - one_to_one) * squares
    square = float(public.size @ squares.sum(axis=1) / public.size.sum())
    return Decoded(
        calibration.sharper(postprocessing.soft_labels(np.concatenate(means))),
        calibration.steadier(np.concatenate(stability), num_classes),
        postprocessing.soft_labels(shares),
        calibration.greatest(square, num_classes),
        seen.ratio,
        seen.votes / seen.votes.sum() * public.size.sum() / public.size,
        public.size,
    )


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
    mean, variance = _queries(seen, posteriors, weights)
    votes = seen.votes[:, None] * public.size.sum() / seen.votes.sum() / seen.ratio
    return ratios.Problem(votes * np.maximum(mean, 1e-9), votes**2 * variance, public.size)


def _queries(
    seen: process.Seen, posteriors: dict[int, process.Posterior], weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and variance of the queries' shares, `[s, num_classes]` each."""
    mean = np.zeros_like(seen.residual)
    squares = np.zeros_like(seen.residual)
    for i, found in posteriors.items():
        mean += weights[i] * found.mean
        squares += weights[i] * (found.mean**2 + found.variance)
    return mean, np.maximum(squares - mean**2, 0)


class Model(NamedTuple):
    """Reading of the counts by one mixture.

    Attributes:
      mixture: Mixture of kernels.
      weight: Its weight.
      solved: Coefficients of the mean shares, float64 `[s, num_classes]`.
      redrawn: Coefficients by redrawn counts without noise, float64 `[draws, s, num_classes]`.
    """

    mixture: process.Mixture
    weight: float
    solved: np.ndarray
    redrawn: np.ndarray


def _models(
    fit: Fit,
    tried: list[process.Mixture],
    matched: matching.Matching | None,
    matching_weight: float,
    redraws: int,
) -> list[Model]:
    """Return the mixtures that matter, with `redraws` redrawn counts in all."""
    # A fixed seed is safe: this is an estimate after the release, and draws none of its noise.
    rng = np.random.default_rng(0)
    seen, _, weights, posteriors = fit
    kept = np.flatnonzero(weights)
    draws = np.bincount(rng.choice(kept, redraws, p=weights[kept]), minlength=len(weights))
    found = []
    for i in map(int, kept):
        between = tried[i].between
        solved = posteriors[i].solved
        redrawn = process.redrawn(seen, between, draws[i], rng)
        if matched is not None:
            clear = process.of_shares(seen, between, matched.shares[None])[0]
            solved = (1 - matching_weight) * solved + matching_weight * clear
            chosen = rng.random(draws[i]) < matching_weight
            guessed = matched.drawn(int(chosen.sum()), rng)
            redrawn[chosen] = process.of_shares(seen, between, guessed)
        found.append(Model(tried[i], float(weights[i]), solved, redrawn))
    return found


def _rows(
    seen: process.Seen, models: list[Model], public: Kernels
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield mean shares `[b, num_classes]` and stability `[b]` of each block of rows."""
    solved = np.stack([model.weight * model.solved for model in models])
    redrawn = np.concatenate([model.redrawn for model in models]).astype(np.float32)
    model_of = np.repeat(np.arange(len(models)), [len(model.redrawn) for model in models])
    parts = [
        _part(kernel, [model.mixture for model in models], solved, redrawn, model_of)
        for kernel in {id(part): part for one in models for _, part in one.mixture.parts}.values()
    ]
    constant = models[0].mixture.constant
    nan = np.float32(np.nan)
    for block in public.blocks(redrawn[:, 0].size):
        mean = constant * solved.sum(axis=(0, 1)) + np.zeros((block.stop - block.start, 1))
        drawn = constant * redrawn.sum(axis=1) + np.zeros((len(mean), 1, 1), np.float32)
        for draws, products in parts:
            of_mean, of_draws = products(block)
            mean += of_mean
            drawn[:, draws] += of_draws.reshape(len(mean), len(draws), mean.shape[1])
        mean = seen.prior + seen.spread * mean
        labels = mean.argmax(axis=1)
        drawn *= np.float32(seen.spread)
        drawn += np.float32(seen.prior)
        stays = drawn.argmax(axis=2) == labels[:, None]
        yield mean, stays.mean(axis=1, dtype=np.float32) if stays.size else np.full(len(mean), nan)


def _part(
    kernel: Kernel,
    mixtures: list[process.Mixture],
    solved: np.ndarray,
    redrawn: np.ndarray,
    model_of: np.ndarray,
) -> tuple[np.ndarray, Callable[[slice], list[np.ndarray]]]:
    """Return the draws that a kernel is part of, and its products with all coefficients.

    Args:
      kernel: Kernel.
      mixtures: Mixtures of the models.
      solved: Coefficients of the models' means times their weights, `[models, s, num_classes]`.
      redrawn: Coefficients of all draws, float32 `[draws, s, num_classes]`.
      model_of: Model of each draw.
    """
    variance = np.array([mixture.variance(kernel) for mixture in mixtures])
    draws = np.flatnonzero(variance[model_of])
    scaled = redrawn[draws] * np.float32(variance[model_of[draws], None, None])
    columns = np.moveaxis(scaled, 0, 1).reshape(solved.shape[1], -1)
    return draws, kernel.products([np.tensordot(variance, solved, 1), columns])
