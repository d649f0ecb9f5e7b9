"""Votes, their sum and its sensitivity; error bounds against the exact noise."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rknn_jax import bsvs
from tests import reference

shapes = st.tuples(st.integers(0, 999), st.integers(1, 60), st.integers(1, 8), st.integers(2, 5), st.integers(1, 4), st.integers(1, 3))


def votes(seed, n, s, num_classes, k, r):
    """Draw k distinct queries and r distinct labels a record."""
    rng = np.random.default_rng(seed)
    k, r = min(k, s), min(r, num_classes)
    near = np.stack([rng.permutation(s)[:k] for _ in range(n)]).astype(np.int32)
    return near, np.stack([rng.permutation(num_classes)[:r] for _ in range(n)]).astype(np.int32), k, r


@given(shapes)
def test_counts_sum_to_n_times_k_times_r_and_do_not_depend_on_the_order(shape):
    seed, n, s, num_classes, *_ = shape
    near, labels, k, r = votes(*shape)
    cells = bsvs.cells(near, labels, num_classes)
    counts = bsvs.sum_votes(cells, s * num_classes)
    chex.assert_shape(cells, (n, k * r))
    chex.assert_type(counts, jnp.int32)
    assert counts.sum() == n * k * r
    order = np.random.default_rng(seed).permutation(n)
    np.testing.assert_array_equal(counts, bsvs.sum_votes(cells[order], s * num_classes))
    np.testing.assert_array_equal(counts, np.bincount(np.ravel(cells), minlength=s * num_classes))


@given(shapes)
def test_any_split_of_the_records_over_clients_gives_the_same_counts(shape):
    seed, n, s, num_classes, *_ = shape
    near, labels, *_ = votes(*shape)
    cells = bsvs.cells(near, labels, num_classes)
    client = np.random.default_rng(seed).integers(0, 4, n)
    parts = [bsvs.sum_votes(jnp.where((client == c)[:, None], cells, bsvs.NO_CELL), s * num_classes) for c in range(4)]
    np.testing.assert_array_equal(sum(parts), bsvs.sum_votes(cells, s * num_classes))


def test_the_sensitivity_found_by_search_is_2kr_for_replacing_and_kr_for_adding():
    """Every record of a small domain against every other: the bound holds and is attained."""
    s, num_classes, k, r = 4, 3, 2, 2
    queries = [(a, b) for a in range(s) for b in range(s) if a < b]
    labelings = [(a, b) for a in range(num_classes) for b in range(num_classes) if a < b]
    domain = [
        np.asarray(bsvs.sum_votes(bsvs.cells(np.array([q]), np.array([y]), num_classes), s * num_classes))
        for q in queries
        for y in labelings
    ]
    replace = max(np.abs(a - b).sum() for a in domain for b in domain)
    assert replace == 2 * k * r
    assert max(np.abs(a - b).max() for a in domain for b in domain) == 1
    assert max(np.abs(a).sum() for a in domain) == k * r


@given(
    st.lists(st.lists(st.integers(-1, 3), min_size=4, max_size=4), min_size=1, max_size=10),
    st.lists(st.integers(-1, 2), min_size=3, max_size=3),
)
def test_a_record_never_adds_more_than_one_to_a_cell_however_it_is_encoded(near, own):
    """Repeated neighbours or labels would break the unit shifts that composition counts on."""
    for row in near:
        counts = bsvs.sum_votes(bsvs.cells(np.array([row]), np.array([own]), 3), 12)
        assert counts.max() <= 1
        assert counts.sum() == len({q for q in row if q >= 0}) * len({y for y in own if y >= 0})


def test_votes_outside_the_cells_are_not_counted():
    np.testing.assert_array_equal(bsvs.sum_votes(jnp.array([[0, 5], [-1, 6], [99, -7]]), 6), [1, 0, 0, 0, 0, 1])


def test_counts_stay_exact_where_float32_would_stop():
    start = 2**24
    assert bsvs.sum_votes(jnp.zeros(start + 3, jnp.int32), 1)[0] == start + 3


def test_gap_is_the_first_count_less_the_second():
    counts = np.random.default_rng(0).integers(0, 50, (30, 6))
    np.testing.assert_array_equal(bsvs.gap(counts), reference.gap(counts))


@pytest.mark.parametrize(("num_classes", "beta", "scale"), [(2, 0.05, 20), (10, 0.05, 20), (10, 0.01, 4), (50, 0.05, 0.5)])
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
        assert abs(flipped - expected) < 4.5 * np.sqrt(expected * (1 - expected) / 20_000), (gap, scale, num_classes)


@pytest.mark.parametrize(("failure_prob", "ratio"), [(0.1, 4.496), (0.05, 5.390), (0.01, 7.335), (0.001, 9.964)])
def test_required_gap_approaches_the_continuous_table_at_large_scale(failure_prob, ratio):
    """Exact ratios of gap to scale for Laplace noise and 10 classes, from the float64 integral."""
    assert bsvs.required_gap(500.0, 10, failure_prob) / 500 == pytest.approx(ratio, abs=4e-3)
    assert bsvs.required_gap(500.0, 10, failure_prob) < 2 * bsvs.error_radius(500.0, 10, failure_prob)  # Remark 1 is wasteful


def test_large_noise_is_scaled_down_and_costs_no_memory():
    assert bsvs.flip_prob(4000.0, 999.9, 10) == pytest.approx(bsvs.flip_prob(4000.0, 1000.1, 10), rel=2e-3)
    assert bsvs.required_gap(2e9, 10, 0.01) / 2e9 == pytest.approx(7.335, abs=4e-3)


def test_jit_and_vmap_agree_with_the_plain_call():
    near, labels, *_ = votes(5, 20, 6, 4, 2, 2)
    plain = bsvs.sum_votes(bsvs.cells(near, labels, 4), 24)
    chex.assert_trees_all_equal(jax.jit(lambda a, b: bsvs.sum_votes(bsvs.cells(a, b, 4), 24))(near, labels), plain)
    split = jax.vmap(lambda a, b: bsvs.sum_votes(bsvs.cells(a, b, 4), 24))(near.reshape(2, 10, 2), labels.reshape(2, 10, 2))
    chex.assert_trees_all_equal(split.sum(0), plain)
