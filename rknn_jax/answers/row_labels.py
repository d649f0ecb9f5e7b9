"""Labels of public rows from fitted models: their mean shares, and how stable they are."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logsumexp

from rknn_jax import postprocessing
from rknn_jax.answers import calibration, matching, process
from rknn_jax.answers.covariance import Kernel, Kernels


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


class Shown(NamedTuple):
    """Noisy counts, with what is public of them.

    Attributes:
      counts: Noisy counts, float64 `[s, num_classes]`.
      stddev: Standard deviation of their noise, float64 `[s, num_classes]`.
      public: Kernels of the queries.
    """

    counts: np.ndarray
    stddev: np.ndarray
    public: Kernels


class Fit(NamedTuple):
    """Mixtures and their weights, given one ratio of the classes.

    Attributes:
      tried: Mixtures.
      seen: Counts as the model takes them.
      scores: Logarithms of the mixtures' priors and likelihoods, float64 `[mixtures]`.
      weights: Weights of the mixtures, float64 `[mixtures]`.
      posteriors: Posteriors of the mixtures of some weight, by their numbers.
    """

    tried: list[process.Mixture]
    seen: process.Seen
    scores: np.ndarray
    weights: np.ndarray
    posteriors: dict[int, process.Posterior]


def read(shown: Shown, fit: Fit, redraws: int) -> Decoded:
    """Return the labels of all public rows by one fit.

    Args:
      shown: Noisy counts.
      fit: Mixtures and their weights.
      redraws: Number of redrawn counts behind the stability; with 0 it is NaN.
    """
    counts, stddev, public = shown
    _, seen, scores, weights, posteriors = fit
    num_classes = counts.shape[1]
    matched = None
    one_to_one = 0.0
    # As many queries as classes may be clusters of one class each: the best matching is a rival
    # reading, weighed by its likelihood.
    if len(counts) == num_classes > 1:
        matched = matching.match(counts, stddev, public.size)
        total = logsumexp(scores[np.flatnonzero(weights)])
        one_to_one = float(expit(matched.log_likelihood - total))
    models = _models(fit, matched, one_to_one, redraws)
    means, stability = zip(*_rows(seen, models, public), strict=True)
    shares, variance = of_queries(seen, posteriors, weights)
    # E[f²] of the shares, which says how far records near a query agree.
    squares = shares**2 + variance
    if matched is not None:
        shares = one_to_one * matched.shares + (1 - one_to_one) * shares
        squares = one_to_one * matched.squares + (1 - one_to_one) * squares
    square = float(public.size @ squares.sum(axis=1) / public.size.sum())
    return Decoded(
        calibration.sharper(postprocessing.soft_labels(np.concatenate(means))),
        calibration.steadier(np.concatenate(stability), num_classes),
        postprocessing.soft_labels(shares),
        agreement=calibration.greatest(square, num_classes),
        ratio=seen.ratio,
        heard=seen.votes / seen.votes.sum() * public.size.sum() / public.size,
        size=public.size,
    )


def of_queries(
    seen: process.Seen, posteriors: dict[int, process.Posterior], weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and variance of the queries' shares, `[s, num_classes]` each."""
    mean = np.zeros_like(seen.residual)
    squares = np.zeros_like(seen.residual)
    for i, found in posteriors.items():
        # Law of total variance over mixtures: E[f²] - E[f]².
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
    matched: matching.Matching | None,
    matching_weight: float,
    redraws: int,
) -> list[Model]:
    """Return the mixtures that matter, with `redraws` redrawn counts in all."""
    # A fixed seed is safe: this is an estimate after the release, and draws none of its noise.
    rng = np.random.default_rng(0)
    tried, seen, _, weights, posteriors = fit
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
            # Draws are of the matching as often as it is believed, so that stability speaks of both
            # readings.
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
        _part(
            kernel, [model.mixture for model in models], solved, redrawn=redrawn, model_of=model_of
        )
        for kernel in {id(part): part for one in models for _, part in one.mixture.parts}.values()
    ]
    constant = models[0].mixture.constant
    nan = np.float32(np.nan)
    # [b] rows at a time: m rows times all draws and classes would not fit in memory.
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
        # Share of redrawn counts, without noise, that give the row the same label.
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
    # Linear in the coefficients, so that one product with the kernel serves means and all draws.
    scaled = redrawn[draws] * np.float32(variance[model_of[draws], None, None])
    columns = np.moveaxis(scaled, 0, 1).reshape(solved.shape[1], -1)
    return draws, kernel.products([np.tensordot(variance, solved, 1), columns])
