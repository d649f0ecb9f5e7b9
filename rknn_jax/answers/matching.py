"""Model of as many queries as classes: each query is a cluster of a class of its own.

Query q of class c has n votes, of which a part a is of class c and the rest is spread evenly over
the others. The parts a are tried in turn; n is about what the public rows let expect, or with some
probability far from it, so that a rare class has a query too. The queries' classes are a
permutation, and all are equally likely. The likelihood is a permanent, and the probability that q
is of c is a ratio of permanents. Both are taken from the doubly stochastic scaling B of the
likelihoods: perm(B) is at least prod (1 - B_qc)^(1 - B_qc), and is 1 if B is a permutation.

Reference: Gurvits & Samorodnitsky, "Bounds on the Permanent and Some Applications", 2014.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp

from rknn_jax.answers import process

PURITIES = (0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
"""Parts of a query's votes that are of its class."""

FACTORS = np.geomspace(1 / 256, 4, 21)
"""Numbers of votes of a query, in units of what its public rows let expect."""

AS_EXPECTED = 0.9
"""Probability that the number of votes is within `NEAR` of what was expected."""

NEAR = 1.5

MOST_ROUNDS = 100
"""Most rounds of scaling."""


class Matching(NamedTuple):
    """Posterior of the model.

    Attributes:
      log_likelihood: Log-likelihood of the counts.
      chances: Probability of each class of each query, float64 `[s, num_classes]`.
      purity: Mean part of a query's votes that are of its class.
    """

    log_likelihood: float
    chances: np.ndarray
    purity: float

    @property
    def shares(self) -> np.ndarray:
        """Mean share of each class in each query, float64 `[s, num_classes]`."""
        return self._of(self.chances)

    @property
    def squares(self) -> np.ndarray:
        """Mean square of each class's share in each query, float64 `[s, num_classes]`."""
        own = self.purity**2
        others = ((1 - self.purity) / (self.chances.shape[1] - 1)) ** 2
        squares: np.ndarray = others + (own - others) * self.chances
        return squares

    def drawn(self, num_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw the class of each query, and return its shares, `[num_draws, s, num_classes]`."""
        below = self.chances.cumsum(axis=1)
        drawn = rng.random((num_draws, len(below), 1)) * below[:, -1:]
        guessed = (drawn > below).sum(axis=2)
        return self._of(np.eye(len(below))[guessed])

    def _of(self, chances: np.ndarray) -> np.ndarray:
        others = (1 - self.purity) / (chances.shape[-1] - 1)
        shares: np.ndarray = others + (self.purity - others) * chances
        return shares


def match(counts: np.ndarray, stddev: np.ndarray, size: np.ndarray) -> Matching:
    """Return the posterior.

    Args:
      counts: `[s, s]`, noisy counts.
      stddev: Standard deviation of the noise, `[s, s]`, in votes.
      size: `[s]`, public rows of each query.
    """
    expected = process.total_votes(counts, stddev**2) * size / size.sum()
    found = [_of_purity(counts, stddev, expected, purity) for purity in PURITIES]
    scores = np.array([score for score, _ in found])
    weights = np.exp(scores - logsumexp(scores))
    chances = np.einsum("a,aqc->qc", weights, np.array([chances for _, chances in found]))
    return Matching(
        float(logsumexp(scores) - np.log(len(PURITIES))), chances, float(weights @ PURITIES)
    )


def _of_purity(
    counts: np.ndarray, stddev: np.ndarray, expected: np.ndarray, purity: float
) -> tuple[float, np.ndarray]:
    """Return the log-likelihood, and the probability of each class of each query."""
    num_classes = counts.shape[1]
    likely = _log_likely(counts, stddev, expected, purity)
    chances, log_scale = _scaled(likely)
    spare = 1 - chances
    bound = np.sum(spare * np.log(np.maximum(spare, 1e-300)))
    return float(log_scale + bound - gammaln(num_classes + 1)), chances


def _log_likely(
    counts: np.ndarray, stddev: np.ndarray, expected: np.ndarray, purity: float
) -> np.ndarray:
    """Return the log-likelihood of each query's counts for each class of it, `[s, s]`."""
    num_classes = counts.shape[1]
    near = np.abs(np.log(FACTORS)) <= np.log(NEAR)
    prior = np.where(near, AS_EXPECTED / near.sum(), (1 - AS_EXPECTED) / (~near).sum())
    votes = expected[:, None, None] * FACTORS
    own = _log_normal(counts[..., None], votes * purity, stddev[..., None])
    other = votes * (1 - purity) / (num_classes - 1)
    rest = _log_normal(counts[..., None], other, stddev[..., None])
    whole = rest.sum(axis=1, keepdims=True) - rest + own
    return np.asarray(logsumexp(whole + np.log(prior), axis=2))


def _log_normal(counts: np.ndarray, mean: np.ndarray, stddev: np.ndarray) -> np.ndarray:
    """Return the log-density of counts of this mean, with noise and the chance of who votes."""
    variance = stddev**2 + np.maximum(mean, 1.0)
    density: np.ndarray = -0.5 * ((counts - mean) ** 2 / variance + np.log(2 * np.pi * variance))
    return density


def _scaled(logs: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the doubly stochastic scaling of exp(logs), and the logarithm of what was taken out.

    Rounds of rows and columns in turn, in logarithms (Sinkhorn).
    """
    rows = np.zeros(len(logs))
    columns = np.zeros(len(logs))
    for _ in range(MOST_ROUNDS):
        rows = logsumexp(logs - columns, axis=1)
        after = logsumexp(logs - rows[:, None], axis=0)
        moved = np.abs(after - columns).max()
        columns = after
        if moved < 1e-4:
            break
    return np.exp(logs - rows[:, None] - columns), float(rows.sum() + columns.sum())
