"""One record moves its own votes alone: a search for near-ties, on counts.

The features of a record were once the result of a program of the whole batch. Their last bits
changed with the number of records, so that one record more moved the votes of others: a change of 5
where 1 was claimed.
"""

import functools

import jax
import numpy as np
import pytest

from rknn_jax import representations
from rknn_jax.neighbors import nearest
from rknn_jax.records.classes import Classes
from rknn_jax.release import counting, encoding
from rknn_jax.release.counting import Question
from rknn_jax.release.shards import ArrayShard, Records
from rknn_jax.release.votes import VoteTally

NAMES = ("hog", "spectral", "pca", "pixels")
COUNTS = (1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33)
RANDOM = np.random.default_rng(0)


def pictures(count):
    """Blurred dots, uint8 `[count, 28, 28, 1]`."""
    rows, columns = np.mgrid[:28, :28]
    centres = RANDOM.uniform(6, 22, (count, 2, 1, 1))
    far = (rows - centres[:, 0]) ** 2 + (columns - centres[:, 1]) ** 2
    return (255 * np.exp(-far / 40)).astype(np.uint8)[..., None]


PUBLIC = pictures(32)


@functools.cache
def fitted(name):
    """Encoder of the public images, and two of them as queries."""
    settings = representations.named(name)().for_task(2, 2)
    encode = settings.fit(jax.random.key(0), PUBLIC)
    return encode, np.asarray(encode(PUBLIC))[[0, 1]]


@functools.cache
def near_ties(name):
    """Images on the border between two queries, found by halving a blend of two images."""
    encode, queries = fitted(name)
    pairs = pictures(2 * max(COUNTS)).reshape(-1, 2, 28, 28, 1).astype(float)
    low, high = np.zeros(len(pairs)), np.ones(len(pairs))

    def blend(share):
        share = share[:, None, None, None]
        return np.rint((1 - share) * pairs[:, 0] + share * pairs[:, 1]).astype(np.uint8)

    def side(share):
        return np.asarray(nearest(np.asarray(encode(blend(share))), queries, 1))[:, 0]

    first = side(low)
    for _ in range(20):
        middle = (low + high) / 2
        same = side(middle) == first
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return blend(high)


@pytest.mark.parametrize("name", NAMES)
def test_a_count_is_the_sum_of_the_counts_of_each_record_alone(name):
    """With that, no neighbor changes more than its own votes, for both relations."""
    encode, queries = fitted(name)
    records = near_ties(name)
    labels = np.arange(len(records)) % 2
    question = Question(
        VoteTally(queries, 2), Classes(2), encoding.Encoding(encode, PUBLIC[:1], queries.shape[1])
    )

    def counts(rows):
        shard = ArrayShard("R", records[rows], labels[rows])
        return counting.count_all(Records.of([shard]), question).counts

    alone = np.stack([counts(slice(row, row + 1)) for row in range(len(records))])
    assert (alone.sum(axis=(1, 2)) == 1).all()
    for count in COUNTS:
        np.testing.assert_array_equal(counts(slice(0, count)), alone[:count].sum(axis=0))
        np.testing.assert_array_equal(
            counts(slice(count - 1, None, -1)), alone[:count].sum(axis=0), err_msg="backwards"
        )


@pytest.mark.parametrize("width", [1, 3, 8, 33, 256, 769])
def test_cosines_of_a_record_are_the_same_bits_beside_others(width):
    """The native kernel takes unit vectors, which NumPy makes row by row."""
    from rknn_jax import neighbors

    points = RANDOM.standard_normal((130, width)).astype(np.float32)
    whole = neighbors._unit(points, 0)
    for count in range(1, 131):
        np.testing.assert_array_equal(neighbors._unit(points[:count], 0), whole[:count])
        np.testing.assert_array_equal(
            neighbors._unit(points[count - 1 :: -1], 0)[::-1], whole[:count]
        )
