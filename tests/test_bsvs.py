"""Votes, their sum and its sensitivity; error bounds against the exact noise."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rknn_jax import bsvs, neighbors
from tests import reference

NUM_QUERIES = 7
CLASSES = 5
CELLS = NUM_QUERIES * CLASSES
VOTES = [(4, 3), (2, 1)]  # neighbors and labels of a record


def votes(seed, n, k, r):
    """Draw k distinct queries and r distinct labels a record."""
    rng = np.random.default_rng(seed)
    near = rng.permuted(np.tile(np.arange(NUM_QUERIES), (n, 1)), axis=1)[:, :k]
    labels = rng.permuted(np.tile(np.arange(CLASSES), (n, 1)), axis=1)[:, :r]
    return near, labels


@given(st.integers(0, 999), st.sampled_from(VOTES))
def test_counts_sum_to_n_times_k_times_r_and_do_not_depend_on_the_order(seed, votes_per_record):
    n = 60
    (k, r) = votes_per_record
    near, labels = votes(seed, n, k, r)
    cells = bsvs.cells(near, labels[:, 0] if r == 1 else labels, CLASSES)
    counts = bsvs.sum_votes(cells, CELLS)
    chex.assert_shape(cells, (n, k * r))
    chex.assert_type(counts, jnp.int32)
    assert np.sum(counts) == n * k * r
    cells = np.asarray(cells)
    assert (np.diff(cells, axis=1) > 0).all(), "ascending"
    expected = np.zeros((NUM_QUERIES, CLASSES), int)
    np.add.at(expected, (near[:, :, None], labels[:, None]), 1)
    np.testing.assert_array_equal(counts, expected.ravel())
    order = np.random.default_rng(seed).permutation(n)
    np.testing.assert_array_equal(counts, bsvs.sum_votes(cells[order], CELLS))


@given(st.integers(0, 999))
def test_any_split_of_the_records_over_clients_gives_the_same_counts(seed):
    near, labels = votes(seed, 60, *VOTES[0])
    cells = np.asarray(bsvs.cells(near, labels, CLASSES))
    client = np.random.default_rng(seed).integers(0, 4, len(cells))
    parts = [np.where((client == c)[:, None], cells, bsvs.NO_CELL) for c in range(4)]
    together = sum(np.asarray(bsvs.sum_votes(part, CELLS)) for part in parts)
    np.testing.assert_array_equal(together, bsvs.sum_votes(cells, CELLS))


@functools.partial(jax.jit, static_argnames=("num_classes", "num_cells"))
def counts_of_each(near, labels, num_classes, num_cells):
    """Counts `[n, d]` of every record alone."""

    def of_one(near, labels):
        return bsvs.sum_votes(bsvs.cells(near[None], labels[None], num_classes), num_cells)

    return jax.vmap(of_one)(near, labels)


def test_the_sensitivity_found_by_search_is_2kr_for_replacing_and_kr_for_adding():
    """Every record of a small domain against every other: the bound holds and is attained."""
    s = 4
    num_classes = 3
    k = 2
    r = 2
    queries = list(itertools.combinations(range(s), k))
    labelings = list(itertools.combinations(range(num_classes), r))
    near, labels = (
        np.array(part) for part in zip(*itertools.product(queries, labelings), strict=True)
    )
    domain = np.asarray(counts_of_each(near, labels, num_classes, s * num_classes))
    assert len(domain) == 18
    changes = np.abs(domain[:, None] - domain[None])
    assert changes.sum(axis=2).max() == 2 * k * r
    assert changes.max() == 1
    assert np.abs(domain).sum(axis=1).max() == k * r


def test_a_record_never_adds_more_than_one_to_a_cell_however_it_is_encoded():
    """Repeated neighbors or labels would break the unit shifts that composition counts on.

    Every record of 3 neighbors of 3 and 3 labels of 2, any of which may be missing.
    """
    near = np.array(list(itertools.product(range(-1, 3), repeat=3)))
    labels = np.array(list(itertools.product(range(-1, 2), repeat=3)))
    pairs = np.array(list(itertools.product(range(len(near)), range(len(labels)))))
    near = near[pairs[:, 0]]
    labels = labels[pairs[:, 1]]
    counts = np.asarray(counts_of_each(near, labels, 2, 6)).reshape(-1, 3, 2)
    queries = (near[:, :, None] == np.arange(3)).any(axis=1)
    named = (labels[:, :, None] == np.arange(2)).any(axis=1)
    np.testing.assert_array_equal(counts, queries[:, :, None] & named[:, None])


@pytest.mark.parametrize("label", [-7, -1, 2, 3, 2**31 - 1, 2**32 + 1, 1 - 2**32])
def test_a_label_that_no_class_has_casts_no_vote(label):
    """In particular none for the next query's classes."""
    cells = np.asarray(bsvs.cells(np.array([[0, 1], [1, 2]]), np.array([label, 1]), 2))
    np.testing.assert_array_equal(cells, [[bsvs.NO_CELL] * 2, [3, 5]])
    assert bsvs.voting_labels(np.array([label, 0, 1]), 2).tolist() == [bsvs.NO_CELL, 0, 1]
    rows = np.eye(3, dtype=np.float32)
    votes = neighbors.nearest_votes(rows, rows, np.array([label, 0, 1]), 1, 2)
    np.testing.assert_array_equal(votes, [[0, 0], [1, 0], [0, 1]])


def test_votes_outside_the_cells_are_not_counted():
    cells = np.array([[0, 5], [-1, 6], [99, -7]])
    np.testing.assert_array_equal(bsvs.sum_votes(cells, 6), [1, 0, 0, 0, 0, 1])


@pytest.mark.long
def test_counts_stay_exact_where_float32_would_stop():
    start = 2**24
    cells = np.zeros(start + 3, np.int32)
    np.testing.assert_array_equal(bsvs.sum_votes(cells, 1), [start + 3])


def test_gap_is_the_first_count_less_the_second():
    counts = np.random.default_rng(0).integers(0, 50, (30, 6))
    np.testing.assert_array_equal(bsvs.gap(counts), reference.gap(counts))


@pytest.mark.parametrize(
    ("num_classes", "beta", "scale"),
    [(2, 0.05, 20), (10, 0.05, 20), (10, 0.01, 4), (50, 0.05, 0.5)],
)
def test_error_radius_is_the_least_integer_that_proposition_1_allows(num_classes, beta, scale):
    radius = bsvs.error_radius(scale, num_classes, beta)
    alpha = np.exp(-1 / scale)
    reach = lambda m: 2 * alpha**m / (1 + alpha)  # P(|noise| >= m)  # noqa: E731
    assert 1 - (1 - reach(radius)) ** num_classes <= beta
    assert radius == 1 or reach(radius - 1) > beta / num_classes


def test_flip_prob_is_the_simulated_share_of_changed_labels():
    """20,000 draws a case, 4 cases: |z| < 4.5 fails by chance once in 36,000."""
    rng = np.random.default_rng(1)
    for gap, scale, num_classes in [(5, 4.0, 2), (20, 4.0, 10), (3, 0.7, 5), (80, 20.0, 10)]:
        alpha = np.exp(-1 / scale)
        noise = rng.geometric(1 - alpha, (2, 20_000, num_classes))
        noisy = noise[0] - noise[1] + np.array([gap] + [0] * (num_classes - 1))
        flipped = (noisy[:, 1:].max(1) >= noisy[:, 0]).mean()
        expected = bsvs.flip_prob(gap, scale, num_classes)
        assert abs(flipped - expected) < 4.5 * np.sqrt(expected * (1 - expected) / 20_000), (
            gap,
            scale,
            num_classes,
        )


@pytest.mark.parametrize(
    ("failure_prob", "ratio"), [(0.1, 4.496), (0.05, 5.390), (0.01, 7.335), (0.001, 9.964)]
)
def test_required_gap_approaches_the_continuous_table_at_large_scale(failure_prob, ratio):
    """Exact ratios of gap to scale for Laplace noise and 10 classes, from the float64 integral."""
    assert bsvs.required_gap(500.0, 10, failure_prob) / 500 == pytest.approx(ratio, abs=4e-3)
    assert bsvs.required_gap(500.0, 10, failure_prob) < 2 * bsvs.error_radius(
        500.0, 10, failure_prob
    )  # Remark 1 is wasteful


def test_required_gap_is_the_least_also_where_a_gap_flips_exactly_as_often_as_is_allowed():
    for gap in (5, 20):
        allowed = bsvs.flip_prob(gap, 4.0, 10)
        assert bsvs.required_gap(4.0, 10, allowed) == gap
        assert bsvs.required_gap(4.0, 10, allowed * (1 - 1e-9)) == gap + 1


def test_the_suggested_queries_have_a_margin_of_votes_over_the_noise():
    """Without noise, a gap of one vote is enough. There are never fewer queries than classes."""
    suggest = functools.partial(bsvs.suggested_num_queries, num_classes=10, num_neighbors=3)
    assert suggest(40, scale=0.0, shared=True) == 40 * 3
    assert suggest(40, scale=0.0, shared=False) == 40 * 3 // 4
    gap = bsvs.required_gap(5.0, 10, 0.01)
    assert gap > 10
    assert suggest(gap * 50, scale=5.0, shared=True) == 50 * 3
    assert suggest(gap, scale=5.0, shared=True) == 10


def test_large_noise_is_scaled_down_and_costs_no_memory():
    assert bsvs.flip_prob(4000.0, 999.9, 10) == pytest.approx(
        bsvs.flip_prob(4000.0, 1000.1, 10), rel=2e-3
    )
    assert bsvs.required_gap(2e9, 10, 0.01) / 2e9 == pytest.approx(7.335, abs=4e-3)


def test_vmap_under_jit_agrees_with_the_plain_call():
    near, labels = votes(5, 60, *VOTES[0])
    plain = bsvs.sum_votes(bsvs.cells(near, labels, CLASSES), CELLS)
    np.testing.assert_array_equal(
        np.asarray(counts_of_each(near, labels, CLASSES, CELLS)).sum(0), plain
    )
