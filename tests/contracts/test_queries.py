"""Every query selector against its contract."""

import functools

import chex
import jax
import numpy as np
import pytest

from rknn_jax import queries
from tests.conftest import modules

EXAMPLES = [
    (module.__name__.split(".")[-1], example)
    for module in modules(queries)
    for example in module.EXAMPLES
]
each = pytest.mark.parametrize(
    "select",
    [example for _, example in EXAMPLES],
    ids=[f"{name}-{i}" for i, (name, _) in enumerate(EXAMPLES)],
)
FEATURES = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)


@functools.cache
def chosen_by(select):
    return select(jax.random.key(0), FEATURES, 7)


@each
def test_queries_stand_for_public_records(select):
    chosen = chosen_by(select)
    chex.assert_shape(chosen.features, (7, None))
    chex.assert_shape(chosen.cluster, (60,))
    assert chosen.index.dtype == chosen.cluster.dtype == np.int32
    assert len(set(chosen.index.tolist())) == 7
    assert chosen.index.min() >= 0
    assert chosen.index.max() < 60
    named = set(chosen.cluster.tolist()) - {-1}
    assert named == set(range(len(named))), "queries that name nobody come last"
    assert named


@each
def test_a_record_belongs_to_its_nearest_query_or_to_none(select):
    chosen = chosen_by(select)
    member = chosen.cluster >= 0
    centers = np.stack(
        [FEATURES[chosen.cluster == q].mean(0) for q in range(chosen.cluster.max() + 1)]
    )
    distances = ((FEATURES[member][:, None] - centers[None]) ** 2).sum(-1)
    assert (distances.argmin(1) == chosen.cluster[member]).mean() > 0.95


@each
def test_one_key_repeats(select):
    first = chosen_by(select)
    again = select(jax.random.key(0), FEATURES, 7)
    np.testing.assert_array_equal(first.index, again.index)
    np.testing.assert_array_equal(first.cluster, again.cluster)
    np.testing.assert_array_equal(first.features, again.features)


@each
@pytest.mark.parametrize("count", [0, 121])
def test_more_queries_than_records_are_refused(select, count):
    with pytest.raises(ValueError, match="num_queries="):
        select(jax.random.key(0), FEATURES, count)
