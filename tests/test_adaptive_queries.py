"""Forms of adaptive queries in `benchmarks.adaptive_queries`: where their queries go."""

import numpy as np
import pytest

from benchmarks import adaptive_queries
from rknn_jax.queries import kmeans

pytestmark = pytest.mark.long  # it imports scikit-learn and all data sets

NUM_QUERIES = 20


def clouds() -> np.ndarray:
    """Return two clouds of 200 rows, float32 `[400, 4]`."""
    rows = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    rows[200:, 0] += 20
    return rows


def heard(unsure: np.ndarray, votes: np.ndarray) -> adaptive_queries.Heard:
    """Return what a first round heard, with noise of 4 votes a query."""
    return adaptive_queries.Heard(unsure, unsure, np.minimum(votes, 1.0), votes, 4.0)


@pytest.mark.parametrize("form", adaptive_queries.FORMS)
def test_queries_go_where_labels_are_unsure_and_votes_were_heard(form):
    rows, second = clouds(), np.arange(400) >= 200
    told = heard(np.where(second, 0.5, 0.01), np.where(second, 5.0, 0.1))
    found = adaptive_queries.FORMS[form](rows, NUM_QUERIES, 3, told)
    today = kmeans._fit(rows, NUM_QUERIES, 3, adaptive_queries.CONFIG)
    assert len(np.unique(found.labels)) == NUM_QUERIES
    there = [len(np.unique(one.labels[second])) for one in (found, today)]
    assert there[0] > there[1]


@pytest.mark.parametrize("form", ["weights", "split and merge"])
def test_a_first_round_that_is_sure_everywhere_leaves_todays_queries(form):
    rows = clouds()
    told = heard(np.zeros(400), np.full(400, 5.0))
    found = adaptive_queries.FORMS[form](rows, NUM_QUERIES, 3, told)
    today = kmeans._fit(rows, NUM_QUERIES, 3, adaptive_queries.CONFIG)
    np.testing.assert_array_equal(found.labels, today.labels)
