"""Each noise against its exact law, and each guarantee against an exact computation."""

import dataclasses
import math
import re
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from rknn_jax import bsvs, mechanisms
from rknn_jax.labelers._votes import VoteNoise
from rknn_jax.mechanisms.base import estimate_counts
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.mechanisms.gaussian import Gaussian
from rknn_jax.mechanisms.laplace import Laplace
from rknn_jax.mechanisms.one_to_one import OneToOne
from rknn_jax.mechanisms.permute_and_flip import PermuteAndFlip

NO_VOTES = np.full((1, 1), bsvs.NO_CELL)
FALSE_ALARM = 1e-4  # of each goodness-of-fit test, at a fixed key


def noise(mechanism, key=0):
    return np.asarray(
        estimate_counts(
            mechanism, jax.random.key(key), np.full((1, mechanism.votes_per_record), bsvs.NO_CELL)
        )
    ).ravel()


@jax.jit
def winners_of(mechanism, key, totals):
    return jnp.argmax(mechanism.estimate(key, totals, 1), axis=1)


@pytest.mark.parametrize("scale", [0.5, 2.0, 20.0])
def test_discrete_laplace_noise_has_its_exact_pmf(scale):
    """Chi-square on 100,000 draws."""
    drawn = noise(DiscreteLaplace(2 / scale, 10_000, 10))
    alpha = math.exp(-1 / scale)
    reach = int(scale * 5)
    support = np.arange(-reach, reach + 1)
    pmf = (1 - alpha) / (1 + alpha) * alpha ** np.abs(support)
    observed = np.array([(drawn == x).sum() for x in support] + [(np.abs(drawn) > reach).sum()])
    expected = np.append(pmf, 1 - pmf.sum()) * drawn.size
    enough = expected >= 5
    observed = np.append(observed[enough], observed[~enough].sum())
    expected = np.append(expected[enough], expected[~enough].sum())
    keep = expected > 0
    assert scipy.stats.chisquare(observed[keep], expected[keep]).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    ("mechanism", "law"),
    [
        (Laplace(0.1, 10_000, 10), scipy.stats.laplace(scale=20)),
        (
            Laplace(0.5, 10_000, 10, num_neighbors=3, relation="add-remove"),
            scipy.stats.laplace(scale=6),
        ),
        (Gaussian(1.0, 10_000, 10, delta=1e-5), scipy.stats.norm(scale=math.sqrt(2) * 3.730632)),
        (
            Gaussian(
                0.1,
                10_000,
                10,
                num_neighbors=2,
                labels_per_record=2,
                delta=1e-8,
                relation="add-remove",
            ),
            scipy.stats.norm(scale=2 * 45.937360),
        ),
    ],
)
def test_continuous_noise_has_its_exact_distribution_and_scale(mechanism, law):
    """Kolmogorov-Smirnov on 100,000 draws, against scales from the paper's formula and the
    analytic Gaussian's published multipliers.
    """
    assert scipy.stats.kstest(noise(mechanism), law.cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    ("scale", "variance"),
    [(0.5, 0.36203083), (1, 1.84134719), (4, 31.83385288), (200, 79999.83333354)],
)
def test_discrete_laplace_variance_is_exact_and_below_the_continuous_one(scale, variance):
    stddev = DiscreteLaplace(2 / scale, 4, 3).stddev(np.zeros((4, 3)), 1)
    np.testing.assert_allclose(stddev**2, variance, rtol=1e-7)
    assert variance < 2 * scale**2


@pytest.mark.parametrize(("relation", "factor"), [("replace-one", 2), ("add-remove", 1)])
@pytest.mark.parametrize("name", ["discrete_laplace", "gaussian", "laplace", "permute_and_flip"])
def test_the_declared_sensitivity_is_the_one_found_by_search(name, relation, factor):
    """All pairs of one-record data sets with k = 2 (and none, for add-remove): L1 and squared L2
    of the change reach `changed_cells`.
    """
    s = 3
    num_classes = 2
    k = 2
    mechanism = mechanisms.make(
        name,
        epsilon=1.0,
        num_queries=s,
        num_classes=num_classes,
        num_neighbors=k,
        relation=relation,
    )
    votes = [
        np.asarray(
            bsvs.sum_votes(
                bsvs.cells(np.array([near]), np.array([label]), num_classes), s * num_classes
            )
        )
        for near in [(0, 1), (0, 2), (1, 2)]
        for label in range(num_classes)
    ]
    pairs = (
        product(votes, votes)
        if relation == "replace-one"
        else ((vote, np.zeros_like(vote)) for vote in votes)
    )
    changes = [np.abs(a - b) for a, b in pairs]
    assert max(change.sum() for change in changes) == mechanism.changed_cells == factor * k
    assert max((change**2).sum() for change in changes) == mechanism.changed_cells


def test_the_worst_replacement_of_a_record_reaches_epsilon_and_no_more():
    """Exact log-ratio of the released vector's pmf, all outputs on a box, every replacement: max
    over all is epsilon.
    """
    epsilon = 0.8
    s = 2
    num_classes = 2
    mechanism = DiscreteLaplace(epsilon, s, num_classes)
    alpha = math.exp(-1 / mechanism.scale)
    log_pmf = lambda x: np.log((1 - alpha) / (1 + alpha)) + np.log(alpha) * np.abs(x)  # noqa: E731
    cells = np.eye(s * num_classes, dtype=int)
    outputs = np.array(list(product(range(-2, 4), repeat=s * num_classes)))
    worst = max(
        (log_pmf(outputs - a).sum(1) - log_pmf(outputs - b).sum(1)).max()
        for a in cells
        for b in cells
    )
    assert worst == pytest.approx(epsilon, rel=1e-12)


def exact_permute_and_flip(counts, scale):
    """The law of arg max of counts + Exp(scale): an integral over the winner's noise, float64."""
    counts = np.asarray(counts, float)
    x = np.linspace(0, 60 * scale, 60_001)
    law = []
    for winner in range(len(counts)):
        lead = counts[winner] + x[None] - np.delete(counts, winner)[:, None]
        below = np.where(lead > 0, -np.expm1(-np.maximum(lead, 0) / scale), 0).prod(0)
        law.append(np.trapezoid(below * np.exp(-x / scale) / scale, x))
    return np.array(law)


@pytest.mark.parametrize(("gap_over_scale", "flip"), [(1, 0.730941), (2, 0.433705), (4, 0.0785211)])
def test_permute_and_flip_flips_as_often_as_its_closed_form(gap_over_scale, flip):
    """100,000 queries of 10 classes: |z| < 4.5 at a fixed key."""
    num_queries = 100_000
    scale = 10.0
    mechanism = PermuteAndFlip(2 / scale, num_queries, 10)
    totals = np.zeros((num_queries, 10), np.int32)
    totals[:, 3] = int(gap_over_scale * scale)
    winners = np.asarray(winners_of(mechanism, jax.random.key(0), totals))
    assert mechanism.flip_prob(gap_over_scale * scale) == pytest.approx(flip, rel=1e-5)
    assert abs((winners != 3).mean() - flip) < 4.5 * math.sqrt(flip * (1 - flip) / num_queries)
    assert exact_permute_and_flip([gap_over_scale * scale] + [0] * 9, scale)[0] == pytest.approx(
        1 - flip, abs=1e-4
    )


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("k", [1, 2])
def test_permute_and_flip_never_loses_more_than_epsilon(relation, k):
    """Exact law of every query before and after any change of one record, over all small counts;
    the product over the k or 2k queries.
    """
    epsilon = 1.0
    scale = PermuteAndFlip(epsilon, 4, 3, num_neighbors=k, relation=relation).scale
    cache = {}

    def law(counts):
        if counts not in cache:
            cache[counts] = exact_permute_and_flip(counts, scale)
        return cache[counts]

    add = 0.0
    swap = 0.0
    for counts in product(range(3), repeat=3):
        for up in range(3):
            more = tuple(c + (i == up) for i, c in enumerate(counts))
            add = max(add, np.abs(np.log(law(more) / law(counts))).max())
            for other in {0, 1, 2} - {up}:
                swapped = tuple(c + (i == other) for i, c in enumerate(counts))
                swap = max(swap, np.abs(np.log(law(more) / law(swapped))).max())
    worst = k * add if relation == "add-remove" else max(2 * k * add, k * swap)
    assert 0.9 * epsilon < worst <= epsilon * (1 + 1e-4)


@pytest.mark.long
def test_permute_and_flip_beats_discrete_laplace_at_equal_epsilon():
    num_queries = 50_000
    totals = np.zeros((num_queries, 10), np.int32)
    totals[:, 0] = 50
    flips = [
        (np.asarray(winners_of(m, jax.random.key(1), totals)) != 0).mean()
        for m in (PermuteAndFlip(0.2, num_queries, 10), DiscreteLaplace(0.2, num_queries, 10))
    ]
    assert flips[0] < 0.6 * flips[1]  # theory: .0277 against .0641 + ties


def test_permute_and_flip_releases_the_winner_of_each_query_and_nothing_else():
    """With leads of 40 scales another class wins with probability below 1e-16."""
    mechanism = PermuteAndFlip(2.0, 4, 3)
    counts = np.int64([[50, 0, 1], [0, 60, 3], [2, 2, 70], [80, 0, 0]])
    released = mechanism.release(counts)
    assert released.dtype == np.int64
    np.testing.assert_array_equal(released, np.eye(3, dtype=np.int64)[[0, 1, 2, 0]])


@pytest.mark.parametrize("kind", [DiscreteLaplace, Gaussian])
@pytest.mark.parametrize("epsilon", [0.5, 5.0, 20.0])
def test_the_standard_deviation_that_is_told_is_that_of_what_is_drawn(kind, epsilon):
    """By 12,000 draws of each, within six standard errors: once in 10^8 by chance."""
    mechanism = kind(epsilon, 3000, 4, relation="add-remove")
    squares = np.square(mechanism.release(np.zeros(mechanism.shape, np.int64)), dtype=np.float64)
    support = np.arange(-400, 401)
    laplace, gaussian = np.abs(support) * epsilon, (support / mechanism.noise_scale) ** 2 / 2
    weights = np.exp(-(laplace if kind is DiscreteLaplace else gaussian))
    variance, fourth = (weights @ support**power / weights.sum() for power in (2.0, 4.0))
    assert VoteNoise(mechanism).stddev == pytest.approx(math.sqrt(variance))
    error = math.sqrt((fourth - variance**2) / squares.size)
    assert abs(squares.mean() - variance) < 6 * error


def test_the_noise_of_persons_is_told_in_votes_and_none_as_none():
    """Votes of persons are counted in parts of a vote, `grid` to each."""
    mechanism = Gaussian(2.0, 3000, 4, relation="add-remove", unit="person", grid=60)
    drawn = mechanism.release(np.zeros(mechanism.shape, np.int64))
    told = mechanism.noise_scale, mechanism.noise_stddev, mechanism.sigma
    np.testing.assert_allclose(told, drawn.std(), rtol=0.05)  # 7 standard errors
    with np.errstate(all="raise"):
        assert Gaussian(math.inf, 3, 4).noise_stddev == 0


def test_a_traced_or_replaced_gaussian_never_keeps_a_stale_multiplier():
    mechanism = Gaussian(1.0, 4, 3, delta=1e-5)
    assert dataclasses.replace(mechanism, epsilon=0.1).noise_multiplier == pytest.approx(
        30.749566, rel=1e-6
    )
    assert dataclasses.replace(mechanism, delta=1e-8).noise_multiplier == pytest.approx(
        5.100309, rel=1e-6
    )
    assert Gaussian(1.0, 4, 3, delta=1e-5, noise_multiplier=1e-9).noise_multiplier == pytest.approx(
        3.730632, rel=1e-6
    )
    assert jax.jit(lambda m: m.sigma)(mechanism) == pytest.approx(mechanism.sigma, rel=1e-6)


def test_continuous_laplace_cannot_be_released():
    with pytest.raises(NotImplementedError, match="DiscreteLaplace"):
        Laplace(1.0, 4, 3).release(np.zeros((4, 3), np.int64))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5])
def test_gaussian_refuses_a_delta_outside_the_open_interval(delta):
    for epsilon in (1.0, math.inf):
        with pytest.raises(ValueError, match="Expected 0 < delta < 1"):
            Gaussian(epsilon, 4, 3, delta=delta)


def test_several_labels_have_no_single_winner():
    with pytest.raises(ValueError, match="labels_per_record=2"):
        PermuteAndFlip(1.0, 4, 3, labels_per_record=2)


def test_unknown_mechanisms_are_named_with_the_known_ones():
    with pytest.raises(ValueError, match="discrete_laplace"):
        mechanisms.make("base")
    fits = mechanisms.can_release
    assert mechanisms.chosen("discrete_laplace", fits) is DiscreteLaplace
    for name in ("base", "laplace", "collision"):
        with pytest.raises(ValueError, match=f"'discrete_laplace'.*got mechanism='{name}'") as told:
            mechanisms.chosen(name, fits)
        assert not {"laplace", "collision"} & set(re.findall(r"'(\w+)'[,\]]", str(told.value)))


TAILS = (
    (
        DiscreteLaplace(2.0, 20_000, 10),
        lambda x: 2 * math.exp(-x) / (1 + math.exp(-1)),
        range(4, 10),
    ),
    (Laplace(2.0, 20_000, 10), lambda x: math.exp(-x), range(3, 10)),
    (Gaussian(1.0, 20_000, 10, delta=1e-5), lambda x: math.erfc(x / math.sqrt(2)), (2, 3, 3.5, 4)),
)


@pytest.mark.parametrize(
    ("mechanism", "beyond", "scales"), TAILS, ids=["discrete", "laplace", "normal"]
)
def test_noise_has_its_tails(mechanism, beyond, scales):
    """The number of 200,000 draws beyond each multiple of the scale, against its exact law.

    A cut at a multiple of the scale is an infinite epsilon, and hardly moves any other number. Each
    of the counts fails with probability 1e-6 for a sound sampler, at a fixed key.
    """
    scale = mechanism.sigma if isinstance(mechanism, Gaussian) else float(mechanism.scale)
    drawn = np.abs(noise(mechanism)) / scale
    for multiple in scales:
        found = int((drawn >= multiple).sum())
        law = scipy.stats.binom(drawn.size, beyond(multiple))
        assert min(law.cdf(found), law.sf(found - 1)) > 5e-7, (multiple, found, law.mean())


@pytest.mark.parametrize("draw", [-1e6, -41.0, -6.5, 6.5, 41.0, 1e6])
@pytest.mark.parametrize("mechanism", [case[0] for case in TAILS[1:]], ids=["laplace", "normal"])
def test_whatever_jax_draws_is_added_in_full(mechanism, draw, monkeypatch):
    """Forced draws, beyond those that any number of runs would show."""
    for name in ("laplace", "normal"):
        monkeypatch.setattr(
            jax.random, name, lambda key, shape, dtype: jnp.full(shape, draw, dtype)
        )
    scale = mechanism.sigma if isinstance(mechanism, Gaussian) else float(mechanism.scale)
    small = dataclasses.replace(mechanism, num_queries=2, num_classes=2)
    found = small.estimate(jax.random.key(0), jnp.zeros(4, jnp.int32), 1)
    np.testing.assert_allclose(found, draw * scale, rtol=1e-6)


@pytest.mark.parametrize("draw", [6.5, 41.0, 1e6])
def test_whatever_exponential_jax_draws_is_counted_in_full(draw, monkeypatch):
    def exponential(key, shape, dtype):
        return jnp.stack([jnp.full(shape[1:], draw), jnp.zeros(shape[1:])]).astype(dtype)

    monkeypatch.setattr(jax.random, "exponential", exponential)
    mechanism = DiscreteLaplace(2.0, 2, 2)
    found = mechanism.estimate(jax.random.key(0), jnp.zeros(4, jnp.int32), 1)
    np.testing.assert_array_equal(found, math.floor(draw * float(mechanism.scale)))


@pytest.mark.parametrize("kind", [PermuteAndFlip, OneToOne, Laplace])
def test_units_of_a_vote_change_nothing_but_the_units(kind):
    """Votes of persons are counted in parts of a vote, and noise is in votes."""
    mechanism = kind(0.05, 3, 3)  # noise decides the winners
    totals = np.array([[5, 1, 0], [4, 6, 1], [0, 2, 3]], np.int32)
    key = jax.random.key(0)
    parts = dataclasses.replace(mechanism, grid=8, unit="person")
    expected = mechanism.estimate(key, jnp.asarray(totals), 30)
    np.testing.assert_array_equal(parts.estimate(key, jnp.asarray(8 * totals), 30), expected)
