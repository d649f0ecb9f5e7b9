"""Separation and Concatenation of appendix B against golden values: one unbiased and too noisy,
the other with the wrong sign.
"""

import math

import jax
import numpy as np
import pytest

from rknn_jax import mechanisms
from rknn_jax.mechanisms import base
from rknn_jax.mechanisms.base import client_totals, estimate_counts
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.concatenation_as_published import (
    ConcatenationAsPublished,
    RescaledConcatenation,
)
from rknn_jax.mechanisms.local_hashing import LocalHashing
from rknn_jax.mechanisms.separation import Separation

LARGE = {"num_queries": 200, "num_classes": 50, "num_neighbors": 2, "labels_per_record": 2}
TEN = {"num_queries": 10, "num_classes": 10}


def squared_error(mechanism):
    """Of a cell for one client, on average, bias and all."""
    return (
        mechanism.mean_variance
        + mechanism.votes_per_record
        / mechanism.num_cells
        * (1 - getattr(mechanism, "mean", 1.0)) ** 2
    )


def flat(epsilon, votes=4):
    """Collision with the published number of buckets."""
    return Collision(
        epsilon, **LARGE, num_buckets=math.floor(2 * votes - 1 + votes * math.exp(epsilon))
    )


@pytest.mark.parametrize(
    ("epsilon", "one", "separation", "published", "mean", "rescaled"),
    [
        (1.0, 18.281, 1586, 348.52, -1.0687, 305.13),
        (2.0, 3.1765, 77.083, 11.678, -0.30108, 128.82),
        (3.0, 0.91749, 11.658, 1.2341, -0.10311, 116.03),
        (4.0, 0.31113, 2.7545, 0.22190, -0.03709, 160.95),
        (6.0, 0.042746, 0.30718, 0.017914, -0.00497, 709.9),
        (8.0, 0.0081743, 0.061203, 0.0025624, -0.00067, 4800),
    ],
)
def test_figure_6_has_its_golden_errors_for_one_client(
    epsilon, one, separation, published, mean, rescaled
):
    assert squared_error(flat(epsilon)) == pytest.approx(one, rel=1e-4)
    rounded = math.floor(3 + 2 * math.exp(epsilon / 2))
    assert squared_error(
        Separation(epsilon, **LARGE, query_buckets=rounded, label_buckets=rounded)
    ) == pytest.approx(separation, rel=1e-3)
    concatenation = ConcatenationAsPublished(epsilon, **LARGE)
    assert squared_error(concatenation) == pytest.approx(published, rel=1e-4)
    assert concatenation.mean == pytest.approx(mean, abs=6e-5)
    assert squared_error(RescaledConcatenation(epsilon, **LARGE)) == pytest.approx(
        rescaled, rel=1e-3
    )


@pytest.fixture
def one_block(monkeypatch):
    """All clients at once, as programs of several blocks take longer to compile."""
    monkeypatch.setattr(base, "CLIENTS_PER_BLOCK", 10**6)


@pytest.mark.usefixtures("one_block")
@pytest.mark.parametrize(("epsilon", "mean"), [(1.0, -1.0687), (2.0, -0.30108), (4.0, -0.03709)])
def test_the_published_product_has_a_negative_mean_where_a_client_votes_and_none_elsewhere(
    epsilon, mean
):
    """200,000 clients with the same votes; every one of 30 cells within 4.5 standard errors: a
    false alarm in 1,600 at other seeds.
    """
    clients = 200_000
    fields = {"num_queries": 6, "num_classes": 5, "num_neighbors": 2, "labels_per_record": 2}
    # queries 1 and 3, labels 0 and 2
    mechanism = ConcatenationAsPublished(epsilon, **fields)
    votes = np.array([5, 7, 15, 17])
    totals = np.asarray(
        client_totals(mechanism, jax.random.key(0), np.tile(votes, (clients, 1)).astype(np.int32))
    )
    found = mechanism.estimate(None, totals, clients) / clients
    expected = np.zeros(30)
    expected[votes] = mean
    counts = np.zeros(30)
    counts[votes] = clients
    error = mechanism.stddev(counts.reshape(6, 5), clients) / clients
    assert np.all(np.abs(found - expected.reshape(6, 5)) < 4.5 * error + 5e-5)
    unbiased = RescaledConcatenation(epsilon, **fields).estimate(None, totals, clients) / clients
    np.testing.assert_allclose(unbiased * mechanism.mean, found, rtol=1e-9)


@pytest.mark.long
@pytest.mark.usefixtures("one_block")
def test_the_published_arg_max_avoids_the_right_label_and_separation_finds_it():
    """60,000 clients at ε = 4, two thirds with their query's label: Concatenation finds it for
    none of 10 queries, Separation for all.
    """
    rng = np.random.default_rng(0)
    query = rng.integers(0, 10, 60_000)
    label = np.where(rng.random(60_000) < 0.63, query, rng.integers(0, 10, 60_000))
    cells = (10 * query + label)[:, None]
    right = [
        int(
            (
                np.asarray(estimate_counts(mechanism(4.0, **TEN), jax.random.key(1), cells)).argmax(
                    1
                )
                == np.arange(10)
            ).sum()
        )
        for mechanism in (ConcatenationAsPublished, Separation)
    ]
    assert right == [0, 10]


def test_a_population_of_60000_has_the_golden_errors():
    """5,500 votes for one cell, and who else votes for its query or label left out: what each
    sums to there, and how far it is off.
    """
    counts = np.zeros((10, 10))
    counts[0, 0] = 5500
    golden = (
        (0.4, -22305, 32221, 24658, 4015),
        (1.0, -6101, 11807, 4083, 1976),
        (2.0, -1709, 7222, 956, 1383),
        (4.0, -205, 5705, 249, 1880),
        (6.0, -27, 5527, 155, 4337),
    )
    for epsilon, total, error, separation, rescaled in golden:
        concatenation = ConcatenationAsPublished(epsilon, **TEN)
        assert concatenation.mean * 5500 == pytest.approx(total, abs=1)
        spread = concatenation.stddev(counts, 60_000)[0, 0]
        assert math.hypot(5500 * (1 - concatenation.mean), spread) == pytest.approx(error, rel=2e-3)
        published = math.floor(math.exp(epsilon / 2) + 1)
        halves = Separation(epsilon, **TEN, query_buckets=published, label_buckets=published)
        assert halves.stddev(counts, 60_000)[0, 0] == pytest.approx(separation, abs=0.6)
        assert RescaledConcatenation(epsilon, **TEN).stddev(counts, 60_000)[0, 0] == pytest.approx(
            rescaled, abs=0.6
        )


def test_no_product_of_estimates_from_one_bucket_can_label():
    assert "concatenation_as_published" in mechanisms.names()
    for trust in ("central", "local", "shuffle"):
        assert "concatenation_as_published" not in mechanisms.names(trust)
    assert RescaledConcatenation.trusts == ConcatenationAsPublished.trusts == ()
    for kind in (ConcatenationAsPublished, RescaledConcatenation, Separation):
        assert kind.unbiased == (kind(2.0, **TEN).mean == 1.0)
    assert "concatenation" not in mechanisms.best(6.0, **LARGE).reason
    assert "separation" in mechanisms.names("local")


def test_all_neighbours_or_all_labels_leave_nothing_to_hide_among():
    with pytest.raises(ValueError, match="num_queries"):
        Separation(1.0, 2, 3, num_neighbors=2)
    with pytest.raises(ValueError, match="num_classes|num_queries"):
        Separation(1.0, 3, 2, labels_per_record=2)


@pytest.mark.parametrize("mechanism", [Separation(1.0, 3, 3), LocalHashing(1.0, 2, 3)], ids=str)
def test_every_message_of_the_alphabet_is_valid_and_likely(mechanism):
    messages = mechanism.alphabet(jax.random.key(0))
    assert np.asarray(jax.vmap(mechanism.valid)(messages)).all()
    chances = np.exp(mechanism.log_prob(jax.tree.map(np.asarray, messages), np.array([4])))
    assert chances.sum() == pytest.approx(1)
