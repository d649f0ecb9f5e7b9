"""Uniform words from a seed of the operating system's entropy, for a client's own messages.

A restarted client must send the same message, because two messages would cost it twice. The client
therefore keeps a seed of 256 bits instead of drawing anew. All randomness follows from the seed by
SHAKE-256, which reveals nothing without the seed. Draws are exact: integers are uniform by
rejection. An event has the probability of an integer threshold out of 2^64, rounded to the private
side.

`rknn_jax.privacy.exact_noise` draws a curator's noise. It needs no seed, because a curator keeps
its result.
"""

import hashlib
import math
import os
import secrets
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np

SEED_BYTES = 32
SURE = 2**64
"""Threshold of an event that always happens; a word is always below it."""

ROUNDING = 2.0**-48
"""Largest relative error of a float64 probability that was computed without cancellation.

That is a few roundings in the 53rd binary digit.
"""

DIGITS = Context(prec=60)


class Entropy:
    """A stream of words that a seed determines. Each draw continues it."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(
                f"Expected a seed of {SEED_BYTES} bytes, got {len(seed)}; take "
                f"secrets.token_bytes({SEED_BYTES})."
            )
        self._seed = seed
        self._draws = 0

    @classmethod
    def fresh(cls) -> "Entropy":
        """Return a stream that nobody can repeat."""
        return cls(secrets.token_bytes(SEED_BYTES))

    def words(self, *shape: int) -> np.ndarray:
        """Return uniform uint64 of `shape`."""
        count = math.prod(shape)
        digest = hashlib.shake_256(self._seed + self._draws.to_bytes(8, "little")).digest(8 * count)
        self._draws += 1
        return np.frombuffer(digest, "<u8").reshape(shape)

    def below(self, bounds: np.ndarray) -> np.ndarray:
        """Return uniform integers in [0, bound), int64, for integer `bounds` of at least 1."""
        bounds = np.asarray(bounds).astype(np.uint64)
        # 2^64 mod bound: words below it would make small results more likely.
        waste = (np.uint64(2**64 - 1) % bounds + np.uint64(1)) % bounds
        words = self.words(*bounds.shape).copy()
        while (again := words < waste).any():
            words[again] = self.words(int(again.sum()))
        drawn: np.ndarray = (words % bounds).astype(np.int64)
        return drawn

    def large_below(self, bound: int, often: int) -> list[int]:
        """Return uniform integers in [0, bound) of any size."""
        num_words = -(-bound.bit_length() // 64)
        limit = 2 ** (64 * num_words) // bound * bound
        found: list[int] = []
        while len(found) < often:
            rows = (
                int.from_bytes(row.tobytes(), "little")
                for row in self.words(often - len(found), num_words)
            )
            found += [number % bound for number in rows if number < limit]
        return found

    def subset(self, count: int, size: int, often: int) -> np.ndarray:
        """Return uniform subsets of `size` out of `count`, bool `[often, count]`.

        Ties of 64-bit words would favor the first elements, but do not occur in practice.
        """
        order = np.argsort(self.words(often, count), axis=1, kind="stable")
        chosen = np.zeros((often, count), bool)
        np.put_along_axis(chosen, order[:, :size], True, axis=1)
        return chosen


def check_system() -> None:
    """Raise ValueError if the operating system gives no random numbers."""
    try:
        os.urandom(1)
    except (OSError, NotImplementedError) as error:
        raise ValueError(
            "Expected random numbers of the operating system, got an error "
            f"({error}), so nothing was drawn; allow this process getrandom or /dev/urandom."
        ) from error


def at_most(probability: float) -> int:
    """Return the largest threshold, out of 2^64, surely at most a float64 probability."""
    return min(math.floor(probability * (1 - ROUNDING) * SURE), SURE - 1)


def at_least(probability: float) -> int:
    """Return the smallest threshold, out of 2^64, surely at least a float64 probability of a lie.

    At most 1/2, where a bit says nothing: above, the lie would tell the truth.

    Args:
      probability: Probability that a bit is flipped, or set without a vote, at most 1/2.
    """
    return min(math.ceil(probability * (1 + ROUNDING) * SURE), SURE // 2)


def at_most_odds(ways: Fraction, others: Fraction, epsilon: float) -> int:
    """Return the largest threshold t, out of 2^64, below the share of `ways`.

    Each of `ways` is e^epsilon times as likely as each of `others`.
    """
    # e^-epsilon, rounded up, whatever the decimal context of the program is.
    weight = Fraction(DIGITS.exp(Decimal(-epsilon))) * (1 + Fraction(1, 10**50))
    return min(math.floor(SURE * ways / (ways + others * weight)), SURE - 1)
