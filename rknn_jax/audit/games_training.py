"""Canaries for one-run audits of labelers that release a sum of noisy gradients.

A canary has a feature of its own and one of two labels, chosen by its secret sign. Under a linear
head, its gradient moves the two weights of that feature, in opposite directions for the two labels.
Besides these it moves only the biases. Canaries therefore do not disturb each other, and a clipped
gradient has norm C in a known direction. The released weights show each canary's sign in the
difference of two weights, with the noise of all steps. No adversary can see more of the sign.

The whole labeler runs, from `contribute` to `release`; only the released weights are read.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from rknn_jax.labelers import Labeler
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Array, Queries, Records

CANARIES = 3000
RUNS = 20
LENGTH = 10.0
"""Norm of a canary's features, so large that its gradient is clipped.

The biases have 1% of the gradient's squared norm.
"""


def canary_runs(
    key: jax.Array, runs: int, config: Labeler[Any], num_canaries: int = CANARIES
) -> tuple[np.ndarray, np.ndarray, Guarantee]:
    """Train on canaries with secret signs, and score the signs by the released weights.

    Args:
      key: Key of signs, first weights, samples and noise, consumed.
      runs: Number of independent runs.
      config: Labeler from `Labeler.for_canaries`.
      num_canaries: Number m of canaries, as the labeler has it. Defaults to 3,000.

    Returns:
      Signs `[runs, m]`, 1 or -1; scores `[runs, m]`; and the guarantee of a run.

    Raises:
      ValueError: If the relation is add-remove, under which the number of canaries is private.
    """
    if config.relation != "replace-one":
        raise ValueError(
            f"Expected relation=replace-one, got {config.relation}; a canary has one of two labels."
        )
    results = list(_runs(key, runs, config, num_canaries))
    signs, scores = (np.stack(rows) for rows in list(zip(*results, strict=True))[:2])
    return signs, scores, results[0][2]


def _runs(
    key: jax.Array, runs: int, config: Labeler[Any], canaries: int
) -> Iterator[tuple[np.ndarray, np.ndarray, Guarantee]]:
    """Yield the signs, the scores and the guarantee of each run."""
    numbers = np.arange(canaries, dtype="<u4").view(np.uint8).reshape(canaries, 1, 1, 4)
    public = np.full((2, 1, 1, 4), 255, np.uint8)

    def encode(images: Array) -> np.ndarray:
        """Return a feature for each canary, and one more for the two public images."""
        rows = np.asarray(images, np.uint8).reshape(len(images), 4).view("<u4")[:, 0]
        features = np.zeros((len(rows), canaries + 1), np.float32)
        if len(rows) and rows.max() >= canaries:
            features[:, -1] = (1, -1)  # Mean 0, variance 1: standardization is the identity.
        else:
            features[np.arange(len(rows)), rows] = LENGTH
        return features

    features: Any = encode(public)
    queries = Queries(features, np.arange(2), np.ones(2, np.int32), np.arange(2))
    for run in range(runs):
        sign_key, votes_key, noise_key = jax.random.split(jax.random.fold_in(key, run), 3)
        labels = np.asarray(jax.random.bernoulli(sign_key, 0.5, (canaries,)), np.int32)
        votes = config.contribute(
            votes_key, Records(numbers, labels), encode, queries=queries, num_classes=2
        )
        answers = config.release(noise_key, votes, queries, 2)
        head: Any = answers.model
        weights = next(leaf for leaf in jax.tree.leaves(head.params) if leaf.ndim == 2)
        yield 2 * labels - 1, np.asarray(weights[:-1, 1] - weights[:-1, 0]), answers.guarantee
