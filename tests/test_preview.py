import numpy as np
import pytest

from rknn_jax import bsvs, mechanisms
from rknn_jax.mechanisms.gaussian import Gaussian
from rknn_jax.mechanisms.permute_and_flip import PermuteAndFlip
from rknn_jax.release import preview
from rknn_jax.release.preview import required_gap

KINDS = ("discrete_laplace", "permute_and_flip", "gaussian")


def make(kind, epsilon=0.5, num_queries=4, num_classes=5, **fields):
    return mechanisms.make(
        kind, epsilon=epsilon, num_queries=num_queries, num_classes=num_classes, **fields
    )


def drawn_flips(mechanism, gap, runs):
    """Share of runs in which a row that leads all rivals by `gap` loses or ties, with the noise
    drawn by NumPy.
    """
    generator = np.random.default_rng(0)
    scale = mechanism.noise_scale
    shape = (runs, mechanism.num_classes)
    if isinstance(mechanism, Gaussian):
        noise = np.round(
            generator.normal(size=shape) * scale
        )  # rounding is the discrete Gaussian to within 1e-6 at this scale
    elif isinstance(mechanism, PermuteAndFlip):
        noise = generator.exponential(scale, shape)
    else:
        tail = np.exp(-1 / scale)
        noise = generator.geometric(1 - tail, shape) - generator.geometric(1 - tail, shape)
    noise[:, 0] += gap
    return np.mean(noise[:, 0] <= noise[:, 1:].max(axis=1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gap", [1, 6, 15])
def test_flip_prob_is_the_law_of_each_mechanism(kind, gap):
    runs = 100_000
    expected = make(kind).flip_prob(gap)
    spread = np.sqrt(expected * (1 - expected) / runs)
    assert (
        abs(drawn_flips(make(kind), gap, runs) - expected) < 4.5 * spread
    )  # false alarm below 1e-5 a case


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [1e6, 5.0, 0.3])
@pytest.mark.parametrize("failure_prob", preview.FLIPS)
def test_the_required_gap_is_the_least(kind, epsilon, failure_prob):
    mechanism = make(kind, epsilon)
    gap = required_gap(mechanism, failure_prob)
    assert mechanism.flip_prob(gap) <= failure_prob
    assert gap == 0 or mechanism.flip_prob(gap - 1) > failure_prob


def test_laplace_gaps_are_those_of_bsvs():
    mechanism = make("discrete_laplace", 0.1)
    assert [required_gap(mechanism, p) for p in preview.FLIPS] == [
        bsvs.required_gap(20.0, 5, p) for p in preview.FLIPS
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_tiny_epsilon_needs_proportionally_large_gaps(kind):
    ratio = required_gap(make(kind, 1e-9), 0.01) / required_gap(make(kind, 1e-3), 0.01)
    scale = make(kind, 1e-9).noise_scale / make(kind, 1e-3).noise_scale
    assert ratio == pytest.approx(scale, rel=2e-3)


def test_permute_and_flip_needs_smaller_gaps_than_laplace_noise():
    assert all(
        required_gap(make("permute_and_flip"), p) < required_gap(make("discrete_laplace"), p)
        for p in preview.FLIPS
    )


def test_votes_and_clear_share_follow_the_public_clusters():
    sizes = np.array([10, 20, 30, 40])
    found = preview.preview(make("discrete_laplace", num_neighbors=2), sizes, 1000)
    votes = 2 * 1000 * sizes / 100
    assert found.expected_votes == (200, 500)
    for purity, share in found.clear.items():
        assert share == sizes[votes * (2 * purity - 1) >= found.required_gaps[0.05]].sum() / 100


def test_records_needed_are_just_enough_for_the_median_query():
    sizes = np.array([10, 10, 10])
    mechanism = make("discrete_laplace", num_queries=3)
    needed = preview.preview(mechanism, sizes, None).records_needed
    assert preview.preview(mechanism, sizes, needed).clear[0.9] == 1
    assert preview.preview(mechanism, sizes, needed - 1).clear[0.9] == 0


@pytest.mark.parametrize(
    ("num_queries", "num_records", "words"),
    [
        (80, 1000, "fewer queries"),
        (5, 60, "raise --epsilon"),
        (5, 100_000, "try more queries"),
        (10, 1300, "suits"),
    ],
)
def test_advice_follows_the_numbers(num_queries, num_records, words):
    mechanism = make("discrete_laplace", num_queries=num_queries)
    assert words in preview.preview(mechanism, np.full(num_queries, 20), num_records).advice


def test_private_n_leaves_no_trace_in_the_preview():
    found = preview.preview(make("discrete_laplace", relation="add-remove"), np.full(4, 25), None)
    assert (found.expected_votes, found.clear, found.suggested_queries) == (None, None, None)


def test_queries_that_share_votes_stand_clear_with_fewer_and_so_there_may_be_more_of_them():
    mechanism = make("discrete_laplace", num_queries=12)
    sizes = np.full(12, 10)
    groups = np.kron(
        np.eye(3), np.ones((4, 4))
    )  # four queries of a group hear each other: four times the votes, twice the noise
    alone, together = (
        preview.preview(mechanism, sizes, 1000, weights) for weights in (None, groups)
    )
    assert together.records_needed == pytest.approx(alone.records_needed / 2, abs=1)
    assert together.suggested_queries == pytest.approx(4 * alone.suggested_queries, abs=4)
    needed = together.records_needed
    assert preview.preview(mechanism, sizes, needed, groups).clear[0.9] == 1
    assert preview.preview(mechanism, sizes, needed - 1, groups).clear[0.9] == 0
