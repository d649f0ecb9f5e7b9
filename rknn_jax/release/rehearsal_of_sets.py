"""Error to expect of sets of labels, by simulated noise on the votes of records that agree.

`rknn_jax.label_sets` has the votes and how counts are read.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.label_sets import HALF
from rknn_jax.labelers._votes import VoteNoise
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.question import Question
from rknn_jax.release.preview import AGREEMENTS, LOSS, QUICK, USUAL, Expected

DRAWS = 20_000
"""Simulated draws of the noise behind an expected accuracy, of all classes together."""

FEWEST_DRAWS = 500
"""Fewest sets that are simulated."""


def expect(question: Question, num_records: int | None, labels_per_record: int) -> Expected:
    """Return the share of whole sets to expect, if records near a query agree on r classes.

    Args:
      question: Question of the release.
      num_records: Number of records or persons n; None if it is private.
      labels_per_record: Most labels of a record that count, r.
    """
    assert isinstance(question.noise, VoteNoise)
    mechanism = question.noise.mechanism
    noise = mechanism.noise_scale
    stddev = mechanism.noise_stddev
    if num_records is None:
        advice = "n is private under add-remove: compare the noise with your number of records"
        return Expected(noise=noise, stddev=stddev, expected=None, advice=advice)
    share = question.queries.size / question.queries.size.sum()
    against = np.sort(_least_noise(mechanism, labels_per_record))
    num_votes = num_records * mechanism.num_neighbors
    expected = {}
    for agreement in AGREEMENTS:
        leads = (agreement - HALF) * num_votes * share
        right = 1 - np.searchsorted(against, -leads) / len(against)
        expected[agreement] = float(share @ right)
    advice = "the number of queries suits this epsilon"
    if expected[USUAL] < (1 - LOSS / 2):
        advice = (
            f"the votes are thin for this noise: use fewer {option('queries')}, a larger "
            f"{option('epsilon')} or more private records"
        )
    return Expected(noise=noise, stddev=stddev, expected=expected, advice=advice)


def _least_noise(mechanism: CentralMechanism, labels_per_record: int) -> np.ndarray:
    """Return simulated noise of the class that it moves farthest against its set, `[draws]`.

    The first r classes are in the set, and lead half of the votes; the others fall short of it.
    """
    num_classes = mechanism.num_classes
    rows = max(DRAWS // num_classes, mechanism.num_neighbors, FEWEST_DRAWS)
    many = replace(mechanism, num_queries=rows)
    nothing = jnp.zeros((rows, num_classes), jnp.int32)
    # A fixed seed is safe: no private record is counted.
    noise = np.asarray(many.estimate(jax.random.key(0, impl=QUICK), nothing, 1))
    leads = noise[:, :-1] - HALF * noise[:, -1:]
    present = np.arange(num_classes - 1) < labels_per_record
    least: np.ndarray = np.where(present, leads, -leads).min(axis=1)
    return least
