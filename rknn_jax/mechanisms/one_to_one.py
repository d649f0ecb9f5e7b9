"""A different class for each query, chosen by permute-and-flip among all assignments.

If there are as many queries as classes, and each is a cluster of a class of its own, the labels are
a permutation of the classes. The score of a permutation is the number of votes that it gets right.
The released permutation is the arg max of all scores plus one-sided exponential noise of mean
2/epsilon (replace-one) or 1/epsilon (add-remove), whatever k is. To swap two classes, noise has to
make up for the leads of two queries at once: on three clusters of 118 wines at epsilon = 0.1, 97%
of the labels are right, of permute-and-flip for each query 73% (`benchmarks.decoding`).

**Why the scale does not grow with k.** A record votes for its class at k queries, and a permutation
gives that class to one query. So a record more or less moves every score by 0 or 1, all in one
direction, and permute-and-flip is monotone: it loses 1/t with noise of mean t. Replacing a record
does that twice. A person's votes have weights that add up to one record's.

The permutations are all tried, so at most `MOST_CLASSES` classes can be asked.

References: McKenna & Sheldon, "Permute-and-Flip", 2020; McSherry & Talwar, "Mechanism Design via
Differential Privacy", 2007.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import postprocessing
from rknn_jax._internal import pytree
from rknn_jax.mechanisms.permute_and_flip import PermuteAndFlip
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Array

MOST_CLASSES = 8
"""Most classes: 8 have 40,320 permutations."""


@pytree.register
@dataclass(frozen=True)
class OneToOne(PermuteAndFlip):
    """epsilon-DP release of an assignment of the classes to the queries, as one-hot rows.

    Needs `labels_per_record` = 1 and as many queries as classes.
    """

    query_for_each_class: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.num_queries == self.num_classes <= MOST_CLASSES:
            raise ValueError(
                f"Expected as many queries as classes, and at most {MOST_CLASSES}, got "
                f"num_queries={self.num_queries}, num_classes={self.num_classes}; ask one query "
                "for each class, or use permute_and_flip."
            )

    @property
    def changed_scores(self) -> int:
        """Votes by which a neighboring data set moves the scores, out and back in."""
        return 2 if self.relation == "replace-one" else 1

    @property
    def scale(self) -> float:
        """Mean of the exponential noise, in votes."""
        return self.changed_scores / self.epsilon

    def estimate(self, key: jax.Array, totals: jax.Array, num_records: int) -> jax.Array:
        """Return the chosen classes as one-hot rows, float32 `[num_queries, num_classes]`.

        `key` is consumed.
        """
        del num_records
        votes = totals.reshape(self.shape).astype(jnp.float32) / self.grid
        every = permutations(self.num_classes)
        scores = votes[jnp.arange(self.num_queries), every].sum(axis=1)
        noisy = scores + self.scale * jax.random.exponential(key, scores.shape, jnp.float32)
        return jax.nn.one_hot(jnp.asarray(every)[jnp.argmax(noisy)], self.num_classes)

    def release(self, totals: np.ndarray) -> np.ndarray:
        """Return the chosen classes as one-hot rows, drawn exactly; see `CentralMechanism`."""
        chosen: np.ndarray = self.releases(totals, 1)[0]
        return chosen

    def releases(self, totals: np.ndarray, num_runs: int) -> np.ndarray:
        """Return the chosen classes of many releases; see `CentralMechanism.releases`."""
        every = permutations(self.num_classes)
        votes = totals.reshape(self.shape)
        scores = votes[np.arange(self.num_queries), every].sum(axis=1)
        scale = exact_noise.safe_scale(self.changed_scores * self.grid, self.epsilon)
        winners = exact_noise.permute_and_flip(np.tile(scores, (num_runs, 1)), scale)
        hot: np.ndarray = np.eye(self.num_classes, dtype=np.int64)[every[winners]]
        return hot

    def winners(self, counts: Array) -> np.ndarray:
        """Return the classes without noise, int `[num_queries]`."""
        return postprocessing.assignment(counts)

    def flip_prob(self, gap: float) -> float:
        """Return the probability that a swap with another query wins over these leads of both."""
        return super().flip_prob(2 * gap)

    def guarantee(self, num_records: int) -> Guarantee:
        """Return pure epsilon-DP: one choice among the permutations."""
        del num_records
        event = Pure(self.epsilon, 1)
        return Guarantee(self.epsilon, 0.0, self.relation, trust="central", events=(event,))


@functools.cache
def permutations(num_classes: int) -> np.ndarray:
    """Return all permutations of the classes, int64 `[num_classes!, num_classes]`."""
    return np.array(list(itertools.permutations(range(num_classes))))


EXAMPLES = (
    OneToOne(1.0, 3, 3),
    OneToOne(0.5, 4, 4, num_neighbors=2, relation="add-remove"),
)
