"""Roles of private records: most vote, and a few check the labels that the others gave.

Each record, or each person with all records, has one role. Each role has one mechanism, which sees
the records of that role alone and spends all of epsilon. **So checking costs no epsilon.**

**Proof.** The roles are independent coins: pseudo-random numbers by a fresh 256-bit key of the
operating system, one for each place of a record, or for each person's name. No coin depends on what
a record holds. Let D and D' be neighbors that differ in one unit u. Couple the runs on D and D' so
that all units but u have the same role in both, and so has u, if it is in both. This changes the
distribution of neither run: coins of different places or names are independent and alike, whichever
places or names the units have. (Under add-remove the places of others shift, and the name of a
replaced person changes. A coin by a seed that is known would not survive that.) Given the roles,
one mechanism alone sees different records: that of u. It is (epsilon, delta)-DP whatever the
mechanisms before it have shown, and those after it are its post-processing, or see the same records
as before. Both runs are mixtures over the same roles with the same weights, so the whole is
(epsilon, delta)-DP too (joint convexity).

**Composition.** A mechanism that is epsilon-DP has a Renyi divergence, whichever role u has, of at
most that of any epsilon-DP mechanism: `guarantee` names no other noise. Under Gaussian votes of
rho-zCDP, a check of epsilon' = sqrt(2 rho) is rho-zCDP too (Bun & Steinke 2016, proposition 1.4).
So it is what a ledger allows that adds divergences up. One that adds epsilons and deltas up needs
epsilon' <= epsilon alone.

Nothing else may depend on the coins. The number of units with a role is shown under replace-one
alone, where it does not depend on what the records hold. The key is forgotten with the folder of
the unfinished release. A stopped release goes on with its key, because a record that voted by one
key and checked by another would spend twice.

Reference: McSherry, "Privacy Integrated Queries", 2009, theorem 4 (parallel composition).
"""

import hashlib
import json
import secrets
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from rknn_jax.privacy import contributions
from rknn_jax.privacy.guarantee import Guarantee

VOTE, CHOOSE, MEASURE, RECALL = range(4)
"""Roles: to vote for labels, to choose among labelings, to measure the chosen one, and to measure
the recall of each class."""

ROWS = 4096
"""Rows whose coins are drawn at once."""

_COIN = np.dtype("<u4")


def guarantee(votes: Guarantee, *, curves: bool) -> tuple[Guarantee, float]:
    """Return the guarantee of votes and checks together, and the epsilon of the checks.

    Args:
      votes: Guarantee of the votes.
      curves: True if the ledger adds Renyi divergences up, and False if epsilons and deltas.
    """
    whole = contributions.as_one(votes)
    if not votes.delta:
        return whole, votes.epsilon
    if not curves or not whole.events:
        return replace(votes, events=()), votes.epsilon
    return whole, min(votes.epsilon, 1 / whole.events[0].parameter)


@dataclass(frozen=True)
class Roles:
    """Roles of all units of a release. The key is secret until the results are out.

    Attributes:
      key: Key of the coins, 32 bytes.
      choose: Share of the units that choose.
      measure: Share of the units that measure.
      recall: Share of the units that measure the recall of each class.
    """

    key: bytes = field(repr=False)
    choose: float
    measure: float
    recall: float

    def __post_init__(self) -> None:
        if len(self.key) != 32:
            raise ValueError(f"Expected a key of 32 bytes, got {len(self.key)}; use Roles.drawn.")
        shares = (self.choose, self.measure, self.recall)
        if min(shares) < 0 or not sum(shares) < 1:
            raise ValueError(
                f"Expected shares >= 0 with a sum below 1, got {shares}; some records have to vote."
            )

    @classmethod
    def drawn(cls, choose: float, measure: float, recall: float) -> Self:
        """Return roles by a fresh key of the operating system."""
        return cls(secrets.token_bytes(32), choose, measure, recall)

    @property
    def vote(self) -> float:
        """Share of the units that vote."""
        return 1 - self.choose - self.measure - self.recall

    def of_rows(self, shard: int, first: int, count: int) -> np.ndarray:
        """Return the roles of records by their places, int8 `[count]`.

        Args:
          shard: Number of the shard.
          first: Number of the first row in its shard.
          count: Number of rows.
        """
        blocks = range(first // ROWS, -(-(first + count) // ROWS))
        coins = [self._coins(shard, block) for block in blocks]
        start = first % ROWS
        return self._roles(np.concatenate([*coins, np.zeros(0, _COIN)])[start : start + count])

    def of_persons(self, names: np.ndarray) -> np.ndarray:
        """Return the roles of persons, int8 `[p]`.

        Args:
          names: Names of the persons, uint64 `[p, 2]`.
        """
        texts = np.ascontiguousarray(names, "<u8").reshape(-1, 2)
        coins = [
            hashlib.blake2b(text.tobytes(), digest_size=4, key=self.key, person=b"person").digest()
            for text in texts
        ]
        return self._roles(np.frombuffer(b"".join(coins), _COIN))

    def words(self) -> str:
        """Return the roles as text for the folder of a paid release, which `Roles.of` reads."""
        return json.dumps([self.key.hex(), self.choose, self.measure, self.recall])

    @classmethod
    def of(cls, words: str) -> Self:
        """Return what `words` made.

        Raises:
          ValueError: If the text is something else.
        """
        try:
            key, choose, measure, recall = json.loads(words)
            return cls(bytes.fromhex(key), float(choose), float(measure), float(recall))
        except (TypeError, AttributeError, ValueError):  # no words of it: they hold the key
            raise ValueError(
                "Expected roles as they were written, got something else; put them back from a "
                "backup."
            ) from None

    def _coins(self, shard: int, block: int) -> np.ndarray:
        place = shard.to_bytes(8, "little") + block.to_bytes(8, "little")
        stream = hashlib.shake_256(b"rows" + self.key + place)
        return np.frombuffer(stream.digest(_COIN.itemsize * ROWS), _COIN)

    def _roles(self, coins: np.ndarray) -> np.ndarray:
        shares = (self.choose, self.measure, self.recall)
        ends = np.round(np.cumsum(shares) * 2**32).astype(np.uint64)
        place = np.searchsorted(ends, coins, side="right")
        role: np.ndarray = ((place + 1) % 4).astype(np.int8)
        return role
