"""Noise for a real release: exact, on integers, from the operating system's entropy.

float32 noise on counts leaks. At epsilon = 0.1, most outputs for count 0 are impossible for count
1, which no epsilon covers. A release therefore takes integers, draws from the exact integer
distribution and returns integers. There is no seed and no key, so two calls never agree.

| function            | P[noise = x] is proportional to  | epsilon of one unit shift              |
|---------------------|----------------------------------|----------------------------------------|
| `discrete_laplace`  | exp(-abs(x)/scale)               | 1/scale                                |
| `discrete_gaussian` | exp(-x²/(2 stddev²))             | needs a delta: `privacy.accounting`    |
| `permute_and_flip`  | (it returns the winner alone)    | 1/scale for a vote more or less,       |
|                     |                                  | 2/scale for a moved vote               |

The samplers are OpenDP's, whose proofs are published beside their code. OpenDP's generator is
cryptographic, seeded by the operating system, and safe to fork. This is the only file that imports
OpenDP. It does so by submodule and late, because the whole prelude takes seconds.

References: Canonne, Kamath & Steinke, "The Discrete Gaussian for Differential Privacy", 2020,
section 5; McKenna & Sheldon, "Permute-and-Flip", 2020.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rknn_jax.privacy.entropy import check_system


def discrete_laplace(counts: ArrayLike, scale: float) -> np.ndarray:
    """Add two-sided geometric noise to every count.

    Guarantee: with `scale = safe_scale(sensitivity, epsilon)`, this is epsilon-DP for neighbors
    whose counts differ by at most `sensitivity` in L1. Charge the ledger before the call.

    Args:
      counts: Integers of any shape.
      scale: Scale of the noise, in votes: P[x] is proportional to exp(-|x|/scale).

    Returns:
      int64, with the shape of `counts`.

    Raises:
      ValueError: If the counts are not integers or the scale is not positive and finite.
    """
    counts = _checked(counts, "scale", scale)
    with _opendp() as (measurements, metrics, domain, _):
        release = measurements.make_laplace(
            domain, metrics.l1_distance(T="i64"), scale=float(scale)
        )
        return _drawn(release, counts)


def discrete_gaussian(counts: ArrayLike, stddev: float) -> np.ndarray:
    """Add discrete Gaussian noise to every count.

    Guarantee: with `stddev = calibration.discrete_gaussian_stddev(epsilon, delta, count)`, this is
    (epsilon, delta)-DP for neighbors that change at most `count` counts by 1 each. Charge the
    ledger before the call.

    Args:
      counts: Integers of any shape.
      stddev: Parameter of the noise, in votes: P[x] is proportional to exp(-x²/(2 stddev²)). Below
        0.5, the true standard deviation is smaller.

    Returns:
      int64, with the shape of `counts`.

    Raises:
      ValueError: If the counts are not integers or `stddev` is not positive and finite.
    """
    counts = _checked(counts, "stddev", stddev)
    with _opendp() as (measurements, metrics, domain, _):
        release = measurements.make_gaussian(
            domain, metrics.l2_distance(T="f64"), scale=float(stddev)
        )
        return _drawn(release, counts)


def permute_and_flip(counts: ArrayLike, scale: float) -> np.ndarray:
    """Return the winner of every row by permute-and-flip.

    The winner is the arg max of the row's counts plus one-sided exponential noise.

    Guarantee: a row is (1/scale)-DP if neighbors add or remove one vote, since the counts then move
    in one direction only. It is (2/scale)-DP if a vote moves from one class to another. A record of
    k votes costs k/scale under add-remove and 2k/scale under replace-one. In both cases `scale =
    safe_scale(changed_votes, epsilon)`, with `changed_votes` the number of votes that change.
    Charge the ledger before the call.

    Args:
      counts: Integers `[num_queries, num_classes]`.
      scale: Mean of the noise, in votes.

    Returns:
      int32 `[num_queries]`.

    Raises:
      ValueError: If the counts are not integers in two dimensions or the scale is not positive and
        finite.
    """
    counts = _checked(counts, "scale", scale)
    if counts.ndim != 2 or counts.shape[1] == 0:
        raise ValueError(
            f"Expected counts [num_queries, num_classes > 0], got shape {counts.shape}; give one "
            "row a query."
        )
    with _opendp() as (measurements, metrics, domain, max_divergence):
        # A monotonic metric would change only OpenDP's own cost of a row, not the draws.
        winner = measurements.make_noisy_max(
            domain, metrics.linf_distance(T="i64"), max_divergence, scale=float(scale)
        )
        return np.array([winner(row) for row in counts], np.int32)


def try_once() -> None:
    """Draw noise for nothing, so that a sampler that cannot be loaded fails before a charge.

    Raises:
      ValueError: If the operating system gives no random numbers.
    """
    with _opendp() as (measurements, metrics, domain, _):
        _drawn(
            measurements.make_laplace(domain, metrics.l1_distance(T="i64"), scale=1.0),
            np.zeros(1, np.int64),
        )


def safe_scale(sensitivity: int, epsilon: float) -> float:
    """Return the smallest float scale at which discrete Laplace noise is epsilon-DP.

    OpenDP's own arithmetic, which rounds up, finds the scale. `sensitivity / epsilon` alone may be
    rounded down, and the release would then cost slightly more than its charge. A ledger charges
    the shortest decimal of a float, and 0.1 as a float is slightly more than 1/10. The scale is
    therefore computed from the decimal.

    Args:
      sensitivity: Largest L1 change of the counts between neighbors.
      epsilon: Target epsilon, positive and finite. The shortest decimal counts, as in the ledger.

    >>> safe_scale(2, 0.5)
    4.0
    >>> safe_scale(2, 0.1)
    20.000000000000004
    """
    if (
        isinstance(sensitivity, bool)
        or not isinstance(sensitivity, int | np.integer)
        or sensitivity < 1
    ):
        raise ValueError(f"Expected an integer sensitivity >= 1, got sensitivity={sensitivity!r}.")
    if not 0 < epsilon < math.inf:
        raise ValueError(
            f"Expected 0 < epsilon < infinity, got epsilon={epsilon}; a release without noise is "
            "not private."
        )
    charged = Fraction(str(epsilon))
    try:
        scale = float(int(sensitivity) / charged)
    except OverflowError:
        raise ValueError(
            f"Expected an epsilon whose noise has a finite scale, got epsilon={epsilon}; nothing "
            "was released. Choose a larger one."
        ) from None
    while Fraction(_epsilon(scale, sensitivity)) > charged:
        scale = math.nextafter(scale, math.inf)
    while Fraction(_epsilon(smaller := math.nextafter(scale, 0.0), sensitivity)) <= charged:
        scale = smaller
    return scale


def _epsilon(scale: float, sensitivity: int) -> float:
    with _opendp() as (measurements, metrics, domain, _):
        epsilon: float = measurements.make_laplace(
            domain, metrics.l1_distance(T="i64"), scale=scale
        ).map(int(sensitivity))
        return epsilon


def _checked(counts: ArrayLike, name: str, noise: float) -> np.ndarray:
    counts = np.asarray(counts)
    if counts.dtype.kind not in "iu" or not np.can_cast(counts.dtype, np.int64):
        raise ValueError(
            f"Expected integer counts that fit int64, got counts of dtype {counts.dtype}; count "
            "votes in integers throughout."
        )
    if not 0 < noise < math.inf:
        raise ValueError(
            f"Expected 0 < {name} < infinity, got {name}={noise}; choose a positive, finite "
            "epsilon."
        )
    return counts.astype(np.int64)


def _drawn(release: Any, counts: np.ndarray) -> np.ndarray:
    return np.array(release(counts.ravel()), np.int64).reshape(counts.shape)


@contextmanager
def _opendp() -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield OpenDP's parts for pure privacy, and translate OpenDP's errors.

    The parts are measurements, metrics, the domain of integer vectors and the measure.
    """
    from opendp import domains, measurements, measures, metrics, mod

    check_system()  # OpenDP would abort the process, without a word
    mod.enable_features("contrib")
    try:
        yield (
            measurements,
            metrics,
            domains.vector_domain(domains.atom_domain(T="i64")),
            measures.max_divergence(),
        )
    except mod.OpenDPException as error:
        raise ValueError(
            f"OpenDP refused to draw the noise, so nothing was released: {error}"
        ) from error
