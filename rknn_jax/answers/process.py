"""Gaussian model of class shares, observed through noisy counts. Everything in it is exact.

Public row i has a share f_ic of class c among the records like it. Shares are a class's share of
all records plus a Gaussian process over the rows. A query's count is its number of votes times the
mean share of its public rows, plus the chance of which records vote, plus the mechanism's noise.

Shares, in prior standard deviations, have the covariance of a mixture of kernels (`covariance`).
Each mixture of `SHARES` has a prior probability, which falls with the parts that are not local.
Times its marginal likelihood on all counts, that is its weight. With little noise one mixture
decides; with much noise many stay, and none is fitted to noise.

Reference: Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, chapters 2 and 5.
"""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.linalg

from rknn_jax.answers import cholesky
from rknn_jax.answers.covariance import Kernel, Kernels

SHARES = [
    (local, linear, 1 - local - linear)
    for local, linear in itertools.product((0.0, 0.25, 0.5, 0.75, 1.0), repeat=2)
    if 1 - local - linear in (0.0, 0.25)
]
"""Parts of local, linear and query kernels in the mixtures that are tried."""

AMPLITUDES = (0.3, 1.0)
"""Variances of the process, in units of that of labels that are certain."""

NOT_LOCAL = 3.0
"""Logarithm of the prior odds of a mixture that is all local against one that is not at all."""

CLASS_SHARE = 0.1
"""Prior variance of a class's share of all records, in units of that of evenly shared classes."""

FEWEST_VOTES = 0.01
"""Least number of votes of a query, as a part of what its public rows let expect."""

LEAST_SHARE = 1e-3
"""Least prior share of a class."""

LEAST_WEIGHT = 0.01
"""Weight below which a mixture is left out."""

UNHEARD = 0.01
"""Error of a log-likelihood that changes no label but ties."""

MAY_MATTER = 10.0
"""Distance from the greatest log-likelihood, beyond which a mixture has no weight."""

DRAWN_AT_ONCE = 2**24
"""Most numbers of redrawn counts that are solved at once, so that many classes fit in memory."""


class Seen(NamedTuple):
    """Counts as the model takes them.

    Attributes:
      residual: Shares by the counts less the prior shares, in prior standard deviations, float64
        `[s, num_classes]`.
      noise: Variance of the residuals by the mechanism, float64 `[s, num_classes]`.
      chance: Variance of the residuals by the chance of which records vote, float64
        `[s, num_classes]`.
      prior: Prior share of each class, float64 `[num_classes]`.
      votes: Number of votes of each query, in public rows, float64 `[s]`.
      ratio: Ratio of each class's share of the public rows to its share of the votes, float64
        `[num_classes]`.
    """

    residual: np.ndarray
    noise: np.ndarray
    chance: np.ndarray
    prior: np.ndarray
    votes: np.ndarray
    ratio: np.ndarray

    @property
    def spread(self) -> np.ndarray:
        """Prior standard deviation of each class's shares, float64 `[num_classes]`."""
        return _spread(self.prior)

    @property
    def log_scale(self) -> float:
        """Logarithm of the counts' density over that of the residuals."""
        return -float(np.sum(np.log(self.votes[:, None] * self.spread / self.ratio)))


def standardized(
    counts: np.ndarray, stddev: np.ndarray, size: np.ndarray, ratio: np.ndarray
) -> Seen:
    """Return the counts as shares, less the prior and in prior standard deviations.

    The number of votes of a query lies between the sum of its noisy counts and what its public rows
    let expect: the noisier the sums, the nearer to the latter. The share of a class lies
    between its noisy total and an even share in the same way.

    Args:
      counts: `[s, num_classes]`, noisy counts.
      stddev: Standard deviation of the noise, `[s, num_classes]`, in votes.
      size: `[s]`, public rows of each query.
      ratio: `[num_classes]`, ratio of each class's share of public rows to its share of the votes.
    """
    # Votes as if classes were as frequent among private records as among public rows.
    counts = counts * ratio
    variance = (stddev * ratio) ** 2
    total = total_votes(counts, variance)
    expected = total * size / size.sum()
    noise = variance.sum(axis=1)
    mean = _votes(counts.sum(axis=1), noise, expected, size)
    # A query that hardly anybody voted for says nothing, and not that no class is there.
    votes = np.maximum(mean, FEWEST_VOTES * expected + 1e-9)
    prior = _prior(counts.sum(axis=0) / total, variance.sum(axis=0) / total**2)
    spread = _spread(prior)
    # [s, |Y|], so that counts are about votes · (prior + spread · residual).
    residual = (counts - np.maximum(mean, 0)[:, None] * prior) / votes[:, None] / spread
    chance = ratio / votes[:, None] * np.ones_like(counts)
    if np.ptp(ratio) == 0:
        # One variance for all classes, so that one factorization serves them.
        variance = np.broadcast_to(variance.mean(axis=1, keepdims=True), counts.shape)
        spread = np.exp(np.mean(np.log(spread)))
    noise = variance / votes[:, None] ** 2 / spread**2
    return Seen(residual, noise, chance, prior=prior, votes=votes, ratio=ratio)


def total_votes(counts: np.ndarray, variance: np.ndarray) -> float:
    """Return the sum of all counts, or its standard deviation if noise hides the sum.

    Shares of a sum that noise made small would be huge, and would look certain.
    """
    return max(float(counts.sum()), float(np.sqrt(variance.sum())), 1.0)


def _spread(prior: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each class's shares, above 0 for a class that is alone."""
    spread: np.ndarray = np.sqrt(np.maximum(prior * (1 - prior), LEAST_SHARE**2))
    return spread


def _votes(
    sums: np.ndarray, noise: np.ndarray, expected: np.ndarray, size: np.ndarray
) -> np.ndarray:
    """Return the number of votes of each query, in units of public rows, `[s]`.

    Few rows say little of how many votes to expect: their own number is by chance, and a query that
    lies at a lone row has hardly a record near it.
    """
    # Shrinkage: how much sums differ beyond their noise and chance says how far to believe one.
    by_chance = expected**2 / np.maximum(size, 1)
    excess = np.mean((sums - expected) ** 2 - noise - expected - by_chance)
    uneven = max(excess, 0) / np.mean(expected**2)
    differ = uneven * expected**2 + by_chance
    believed = differ / (differ + noise + 1e-9)
    votes: np.ndarray = expected + believed * (sums - expected)
    return votes


def _prior(share: np.ndarray, doubt: np.ndarray) -> np.ndarray:
    """Return the prior share of each class from its noisy share, `[num_classes]`."""
    even = 1 / len(share)
    # No more than shares drawn evenly from all that are possible differ, whatever noise shows.
    most = even * (1 - even) / (len(share) + 1)
    # Twice the noise, so that noise alone makes no class frequent.
    differ = np.clip(np.mean((share - even) ** 2 - 2 * doubt), 0, most)
    believed = differ / (differ + doubt + 1e-12)
    prior = np.maximum(even + believed * (np.clip(share, 0, 1) - even), LEAST_SHARE)
    normal: np.ndarray = prior / prior.sum()
    return normal


@dataclass(frozen=True)
class Mixture:
    """Mixture of kernels.

    Attributes:
      parts: Kernels with their variances.
      constant: Variance of a class's share of all records.
    """

    parts: tuple[tuple[float, Kernel], ...]
    constant: float

    @property
    def between(self) -> np.ndarray:
        """Covariance of the queries' shares, `[s, s]`."""
        return self.mixed({id(part): part.between for _, part in self.parts})

    def mixed(self, betweens: dict[int, np.ndarray]) -> np.ndarray:
        """Return the covariance of the queries' shares from those by the identity of kernels."""
        found = [variance * betweens[id(part)] for variance, part in self.parts]
        between = found[0]
        for other in found[1:]:
            between += other
        between += between.dtype.type(self.constant)
        return between

    def rows(self, block: slice) -> np.ndarray:
        """Return the covariances of a block of rows with the queries, `[b, s]`."""
        found = [variance * part.rows(block) for variance, part in self.parts]
        across: np.ndarray = self.constant + np.sum(found, axis=0)
        return across

    def variance(self, kernel: Kernel | None) -> float:
        """Return the variance of a kernel, 0 if it is no part."""
        return sum(variance for variance, part in self.parts if part is kernel)


def mixtures(public: Kernels, num_classes: int) -> tuple[list[Mixture], np.ndarray]:
    """Return all mixtures that are tried, and the logarithms of their priors."""
    constant = CLASS_SHARE / num_classes
    found = []
    priors = []
    for amplitude, shares in itertools.product(AMPLITUDES, SHARES):
        choices = [*public.local, *public.components] if shares[0] else [None]
        # Mixtures with other components are no rivals: they are tried one after another.
        rivals = len(choices) - len(public.components[1:]) if shares[0] else 1
        for kernel in choices:
            parts = zip(shares, (kernel, public.linear, public.own), strict=True)
            given = tuple((amplitude * share, part) for share, part in parts if part and share)
            found.append(Mixture(given, constant))
            local = 0 if any(kernel is one for one in public.components) else shares[0]
            priors.append(-NOT_LOCAL * (1 - local) - np.log(rivals))
    return found, np.array(priors) - np.logaddexp.reduce(priors)


def log_likelihoods(seen: Seen, mixtures: list[Mixture]) -> np.ndarray:
    """Return the log-likelihoods of the counts, float64 `[mixtures]`.

    They are of single precision where that costs less than `UNHEARD`. Else those that may matter
    are computed again.
    """
    kernels = {id(part): part for mixture in mixtures for _, part in mixture.parts}
    single = {name: part.between.astype(np.float32) for name, part in kernels.items()}
    found = np.empty(len(mixtures))
    for i, mixture in enumerate(mixtures):
        try:
            found[i] = log_likelihood(seen, mixture.mixed(single))
        except np.linalg.LinAlgError:
            found[i] = np.inf  # to be computed again
    # Rounding a covariance changes the logarithm of a determinant by the trace of its part in it.
    rounding = np.finfo(np.float32).eps * len(seen.votes) * max(AMPLITUDES)
    if rounding / np.min(seen.noise + seen.chance) > UNHEARD:
        finite = found[np.isfinite(found)]
        least = finite.max(initial=-np.inf) - MAY_MATTER
        for i in map(int, np.flatnonzero(found >= least)):
            found[i] = log_likelihood(seen, mixtures[i].between)
    return found


def log_likelihood(seen: Seen, between: np.ndarray) -> float:
    """Return the log-likelihood of the counts, in the precision of the covariances."""
    total = seen.log_scale - 0.5 * seen.residual.size * np.log(2 * np.pi)
    for columns in _alike(seen):
        variance = seen.noise[:, columns[0]] + seen.chance[:, columns[0]]
        try:
            factor = cholesky.factored(cholesky.with_diagonal(between, variance + 1e-9))
        except np.linalg.LinAlgError:
            if between.dtype == np.float32:  # it is computed again
                raise
            return log_likelihood(seen, cholesky.positive(between))
        # log N(r; 0, K + D) = -½ rᵀ(K + D)⁻¹r - ½ log|K + D| - (s/2) log 2π, by the factor L of K +
        # D.
        white = cholesky.whitened(factor, seen.residual[:, columns].astype(between.dtype))
        total -= 0.5 * np.sum(white**2, dtype=np.float64)
        total -= len(columns) * np.sum(np.log(np.diag(factor)), dtype=np.float64)
    return float(total)


def weights(scores: np.ndarray) -> np.ndarray:
    """Return the weights of mixtures of these log-likelihoods, 0 below `LEAST_WEIGHT`."""
    # The greatest becomes 1, so that none overflows and not all underflow.
    found = np.exp(scores - scores.max())
    found /= found.sum()
    found[found < LEAST_WEIGHT] = 0
    weights: np.ndarray = found / found.sum()
    return weights


class Posterior(NamedTuple):
    """Posterior of one mixture.

    Attributes:
      solved: Coefficients of the mean shares, float64 `[s, num_classes]`.
      mean: Mean share of each query, float64 `[s, num_classes]`.
      variance: Its variance, float64 `[s, num_classes]`.
    """

    solved: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


def posterior(seen: Seen, between: np.ndarray) -> Posterior:
    """Return the posterior of the queries' shares."""
    solved = np.empty_like(seen.residual)
    variance = np.empty_like(seen.residual)
    for columns in _alike(seen):
        noise = seen.noise[:, columns[0]] + seen.chance[:, columns[0]]
        try:
            factor = cholesky.factored(cholesky.with_diagonal(between, noise + 1e-9))
        except np.linalg.LinAlgError:
            return posterior(seen, cholesky.positive(between))
        # Mean K(K + D)⁻¹r and variance K - K(K + D)⁻¹K, of each query.
        solved[:, columns] = cholesky.solved(factor, seen.residual[:, columns])
        gain = cholesky.whitened(factor, between.T)
        left = np.maximum(np.diag(between) - np.einsum("ij,ij->j", gain, gain), 0)
        variance[:, columns] = left[:, None]
    mean = seen.prior + seen.spread * (between @ solved)
    return Posterior(solved, mean, variance * seen.spread**2)


def of_shares(seen: Seen, between: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the coefficients if the queries' shares were seen without noise.

    Args:
      seen: Counts.
      between: Covariance of the queries' shares, `[s, s]`.
      shares: Shares, `[draws, s, num_classes]`.
    """
    residual = (shares - seen.prior) / seen.spread
    solved = np.empty_like(residual)
    for columns in _alike(seen):
        # Without the mechanism's noise, the chance of which records vote stays.
        clear = between + np.diag(seen.chance[:, columns[0]] + 1e-9)
        solved[..., columns] = np.linalg.solve(clear, residual[..., columns])
    return np.asarray(solved)


def redrawn(
    seen: Seen, between: np.ndarray, num_draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw counts without noise given the noisy ones, and return their coefficients.

    The coefficients are those of the mean shares that the counts without noise would give.

    Args:
      seen: Counts.
      between: Covariance of the queries' shares, `[s, s]`.
      num_draws: Number of draws.
      rng: Generator. A fixed seed is safe: this draws none of the release's noise.

    Returns:
      float64 `[num_draws, s, num_classes]`.
    """
    num_queries = len(between)
    drawn = np.empty((num_draws, *seen.residual.shape))
    if num_draws == 0:
        return drawn
    for columns in _alike(seen):
        noise = seen.noise[:, columns[0]] + 1e-12
        clear = cholesky.with_diagonal(between, seen.chance[:, columns[0]] + 1e-9)
        try:
            factor = cholesky.factored(cholesky.with_diagonal(clear, noise))
            root = cholesky.factored(clear)
        except np.linalg.LinAlgError:
            return redrawn(seen, cholesky.positive(between), num_draws, rng)
        at_once = max(1, DRAWN_AT_ONCE // (num_queries * num_draws))
        for start in range(0, len(columns), at_once):
            part = columns[start : start + at_once]
            # Counts drawn from the prior, plus what the noisy counts say against their own noise.
            normal = rng.standard_normal((len(part), 2, num_queries, num_draws))
            clean, own = np.moveaxis(normal, 0, 2).reshape(2, num_queries, -1)
            noisy = root @ clean + np.sqrt(noise)[:, None] * own
            against = np.repeat(seen.residual[:, part], num_draws, axis=1) - noisy
            found = scipy.linalg.solve_triangular(root, clean, trans="T", lower=True)
            found += cholesky.solved(factor, against)
            drawn[:, :, part] = np.moveaxis(found.reshape(num_queries, -1, num_draws), 2, 0)
    return drawn


def _alike(seen: Seen) -> list[np.ndarray]:
    """Return groups of classes whose counts have equal variances in all queries."""
    both = np.concatenate([seen.noise, seen.chance])
    if np.all(both == both[:, :1]):
        return [np.arange(both.shape[1])]
    _, group = np.unique(both, axis=1, return_inverse=True)
    return [np.flatnonzero(group.ravel() == i) for i in range(group.max() + 1)]
