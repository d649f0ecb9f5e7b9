"""What sampled records and screened counts cost: against exact distributions, published numbers
and independent implementations.
"""

import itertools
import json
import math

import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from scipy import integrate, stats

from rknn_jax.privacy import accounting, calibration, loss_distributions, renyi
from rknn_jax.privacy import sampled_gaussian as curves
from rknn_jax.privacy.events import Gaussian, event_of, gaussian_event
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.sampled_gaussian import ORDERS


def test_no_delta_is_negative_where_none_is_told_from_0():
    deltas = [
        loss_distributions.binomial_deltas(np.array([0.796247910502047]), 10_000),
        curves.replaced_deltas(np.array([0.443856875]), 20.0, 0.1),
    ]
    assert deltas == [0, 0]


def test_no_divergence_is_known_above_the_largest_order():
    assert renyi.renyi_divergence([Gaussian(2.0)], ORDERS[-1]) < math.inf
    assert renyi.renyi_divergence([Gaussian(2.0)], 2 * ORDERS[-1]) == math.inf


def sampled(noise_multiplier, count=1, sampling_prob=1.0, **fields):
    return gaussian_event(noise_multiplier, count, sampling_prob, **fields)


@pytest.mark.parametrize(
    ("screen", "answers", "sampling_prob", "published", "rdp", "pld"),
    [
        (sampled(75.0, 1000, 0.15), (25, 735), 0.15, 1.1786, 0.9662, 0.8833),
        (sampled(75.0, 1000, 0.15, screen=(180, 300)), (25, 735), 0.15, 1.1633, 0.9531, 0.8833),
        (sampled(200.0, 6000, 0.03), (60, 2939), 0.03, 0.1932, 0.1398, 0.1257),
        (sampled(85.0, 18000, 0.2), (20, 3877), 0.2, 4.9400, 4.3953, 4.0627),
        (sampled(150.0, 640), (40, 286), 1.0, 3.1753, 2.7579, 2.5426),
    ],
    ids=["MNIST", "MNIST, Theorem 7", "SVHN", "CIFAR-10", "PATE on MNIST"],
)
def test_what_the_papers_parameters_cost(screen, answers, sampling_prob, published, rdp, pld):
    """Private-kNN claims 0.47, 0.49 and 2.92; the values here are of an independent
    implementation, by other orders and grids.
    """
    events = [screen, sampled(answers[0] / math.sqrt(2), answers[1], sampling_prob)]
    found = accounting.epsilons(events, 1e-5)
    assert renyi.rdp_epsilon_as_published(events, 1e-5) == pytest.approx(published, rel=1e-3)
    assert (found["RDP"], found["PLD"]) == (
        pytest.approx(rdp, rel=1e-3),
        pytest.approx(pld, rel=1e-3),
    )


def test_autodp_says_the_same_of_the_stated_noise():
    """Recorded from autodp 0.2.3.1: Poisson sampling at 15%, 1000 times sigma 75 and 735 times
    25/sqrt(2), by both conversions.
    """
    screens = sampled(75.0, 1000, 0.15)
    counts = sampled(25 / math.sqrt(2), 735, 0.15)
    for events, tight, classic in (
        ([screens], 0.22899776405672745, 0.3057616659390772),
        ([counts], 0.9290182067444059, 1.1360839918415246),
        ([screens, counts], 0.9662394866746411, 1.178564780760194),
    ):
        assert accounting.epsilons(events, 1e-5)["RDP"] == pytest.approx(tight, rel=2e-4)
        assert renyi.rdp_epsilon_as_published(events, 1e-5) == pytest.approx(classic, rel=2e-4)


@pytest.mark.parametrize(
    ("event", "printed"),
    [
        (sampled(85.0, 8192), 5.677),
        (sampled(85.0, 8192, 0.25), 1.313),
        (sampled(85.0, 8192, screen=(210, 300)), 4.438),
        (sampled(85.0, 8192, 0.25, screen=(210, 300)), 1.042),
    ],
)
def test_figure_5_of_private_knn(event, printed):
    assert renyi.rdp_epsilon_as_published([event], 1e-5) == pytest.approx(printed, abs=1.5e-3)


@pytest.mark.parametrize(
    ("noise_multiplier", "sampling_prob", "values"),
    [
        (75.0, 0.15, (4.00034758e-6, 8.00105791e-6, 1.60035671e-5, 3.20129415e-5, 6.40491280e-5)),
        (
            25 / math.sqrt(2),
            0.15,
            (7.21127228e-5, 1.44343510e-4, 2.89160760e-4, 5.80228441e-4, 1.16818187e-3),
        ),
        (85.0, 0.25, (8.65108029e-6, 1.73030587e-5, 3.46097108e-5, 6.92338004e-5, 1.38525160e-4)),
    ],
)
def test_the_sampled_gaussians_renyi_divergence(noise_multiplier, sampling_prob, values):
    """At orders 2, 4, ...

    32 from the binomial sum; at others by quadrature and below dp-accounting's, which bounds them.
    """
    for order, value in zip((2, 4, 8, 16, 32), values, strict=True):
        assert curves._sampled_cumulants(np.array([order]), noise_multiplier, sampling_prob)[0] / (
            order - 1
        ) == pytest.approx(value, rel=1e-7)
    for order, z, g in ((1.5, 2.0, 0.1), (3.7, 1.0, 0.3), (6.2, 0.7, 0.01), (40.5, 5.0, 0.2)):

        def moment(u, order=order, z=z, g=g):
            return stats.norm.pdf(u) * (1 - g + g * math.exp(u / z - 0.5 / z**2)) ** order

        found = curves._sampled_cumulants(np.array([order]), z, g)[0]
        assert found == pytest.approx(
            math.log(integrate.quad(moment, -12, order / z + 12, epsabs=0, limit=200)[0]), rel=1e-6
        )
        if order > 2:
            theirs = rdp._compute_rdp_poisson_subsampled_gaussian(g, z, [order])[0] * (order - 1)
            assert found * (1 - 1e-6) <= theirs <= found * 1.001


@pytest.mark.parametrize(
    ("screen", "stddev", "values"),
    [
        ((210, 300), 85.0, {2: 8.811328e-5, 16: 7.053187e-4, 64: 2.848177e-3, 256: 1.348211e-2}),
        ((180, 300), 75.0, {2: 1.131765e-4, 32: 1.816554e-3, 256: 1.768761e-2}),
    ],
)
def test_theorem_7_from_no_vote_on(screen, stddev, values):
    """The maximum is not at the threshold for orders above 2, and at high ones it is at counts
    that only a short sample has.
    """
    curve = sampled(stddev, screen=screen).rdp(ORDERS)
    for order, value in values.items():
        found = np.interp(order, ORDERS, curve)
        assert value * (1 - 1e-6) <= found <= value * 1.001


@pytest.mark.parametrize("sampling_prob", [0.05, 0.4, 1.0])
def test_a_screens_divergence_is_that_of_two_coins(sampling_prob):
    """All pairs of neighboring counts, both directions, in plain probabilities."""
    threshold = 3.3
    most = 5
    stddev = 1.7
    passes = stats.norm.sf((threshold - np.arange(most + 1)) / stddev)
    for order in (1.5, 4.0, 20.0):
        largest = 0.0
        for count in range(most + 1):
            for other in {count - 1, count + 1} & set(range(most + 1)):
                p = passes[count]
                q = (1 - sampling_prob) * passes[count] + sampling_prob * passes[other]
                for a, b in ((p, q), (q, p)):
                    moment = a**order * b ** (1 - order) + (1 - a) ** order * (1 - b) ** (1 - order)
                    largest = max(largest, math.log(moment) / (order - 1))
        curve = sampled(stddev, 1, sampling_prob, screen=(threshold, most)).rdp(ORDERS)
        assert largest * (1 - 1e-5) <= np.interp(order, ORDERS, curve) <= largest * 1.002


@pytest.mark.parametrize(
    ("second", "third"), [(1.0, 0.0), (1.0, 0.5), (0.5, -0.5), (-1.0, 0.0), (0.4, 0.0)]
)
@pytest.mark.parametrize("sampling_prob", [0.05, 0.3, 0.9])
def test_a_sampled_replacement_costs_no_more_than_its_curve(sampling_prob, second, third):
    """P = (1-g)N(0) + gN(b) and Q = (1-g)N(0) + gN(c), with 0, b, c within 1 of each other,
    integrated for every epsilon of a grid.
    """
    z = 1.3
    x, step = np.linspace(-14, 14, 280_001, retstep=True)
    density = [stats.norm.pdf(x, at, z) for at in (0.0, second, third)]
    p, q = ((1 - sampling_prob) * density[0] + sampling_prob * density[i] for i in (1, 2))
    loss = sampled(z, 1, sampling_prob, replaced=True).pld(1e-3)
    for epsilon in (0.0, 0.01, 0.1, 0.3, 1.0):
        exact = max(
            np.maximum(a - math.exp(epsilon) * b, 0).sum() * step for a, b in ((p, q), (q, p))
        )
        bound = loss.get_delta_for_epsilon(epsilon)
        assert exact <= bound + 1e-9
        if (second, third) == (1.0, 0.0):
            assert bound == pytest.approx(exact, rel=2e-3, abs=1e-6), (
                "a record that comes or goes is the worst case"
            )


def test_replacing_a_sampled_record_costs_little_more_than_adding_one():
    add, replace_one = (
        accounting.epsilons([sampled(25 / math.sqrt(2), 735, 0.15, replaced=replaced)], 1e-5)
        for replaced in (False, True)
    )
    for name in ("RDP", "PLD"):
        assert add[name] < replace_one[name] < 1.03 * add[name]
    assert add["PLD"] < replace_one["PLD"] < 1.03 * add["PLD"]
    whole = accounting.epsilons([sampled(25 / math.sqrt(2), 735, 1.0, replaced=True)], 1e-5)
    assert whole["PLD"] == pytest.approx(
        accounting.epsilons([sampled(25 / math.sqrt(2), 735)], 1e-5)["PLD"]
    )


def test_sampled_and_screened_events_are_checked_and_survive_json():
    event = sampled(3.0, 5, 0.5, replaced=True, screen=(2, 7))
    assert event_of(json.loads(json.dumps(event.asdict()))) == event
    for fields, words in (
        ({"sampling_prob": 0.0}, "sampling_prob=0.0"),
        ({"sampling_prob": 1.5}, "sampling_prob=1.5"),
    ):
        with pytest.raises(ValueError, match=words):
            gaussian_event(1.0, **fields)
    with pytest.raises(ValueError, match="kind='laplace'"):
        event_of({"kind": "laplace", "parameter": 1.0, "sampling_prob": 0.5})
    assert [*accounting.epsilons([sampled(3.0, 5, 0.5, replaced=True)], 1e-12)] == ["RDP"]


@pytest.mark.long
@pytest.mark.parametrize("z", [0.4, 3.0, 40.0])
def test_the_divergence_of_a_replaced_record_is_that_of_its_curve(z):
    """Its bound is exact where every record takes part, and is above that of a removed one."""
    for sampling_prob in (1e-3, 0.2, 1 - 1e-9):
        replaced, removed = (
            sampled(z, 1, sampling_prob, replaced=replaced).rdp(ORDERS)
            for replaced in (True, False)
        )
        known = np.isfinite(replaced) & np.isfinite(removed)
        assert known.sum() > 1000
        assert np.all(replaced[known] >= removed[known])
    exact = ORDERS / (2 * z**2)
    np.testing.assert_allclose(replaced[known], exact[known], rtol=2e-3)


@pytest.mark.parametrize("z", [0.7, 2.0])
@pytest.mark.parametrize("sampling_prob", [0.01, 0.4, 0.95])
def test_the_divergence_of_opposite_records_is_that_of_their_mixtures(z, sampling_prob):
    """Beside the integral over 200,001 points of the two mixtures' densities."""
    points = np.linspace(-40.0, 40.0, 200_001)
    shift = 0.5 / z
    one, other = (
        (1 - sampling_prob) * stats.norm.pdf(points)
        + sampling_prob * stats.norm.pdf(points, sign * shift)
        for sign in (1, -1)
    )
    epsilons = np.array([0.0, 0.01, 0.1, 0.5, 1.5])
    found = curves.opposite_deltas(epsilons, z, sampling_prob)
    for epsilon, delta in zip(epsilons, found, strict=True):
        exact = np.trapezoid(np.maximum(one - np.exp(epsilon) * other, 0), points)
        assert delta == pytest.approx(exact, rel=1e-5, abs=1e-12)


def test_a_screen_that_hardly_tells_costs_its_last_digit():
    """A count that is hardly sampled moves two coins by less than float64 keeps beside 1."""
    stddev, prob = 1.7, 1e-7
    curve = sampled(stddev, 1, prob, screen=(3.3, 5)).rdp(ORDERS)
    with mpmath.workdps(60):
        passes = [mpmath.erfc((3.3 - count) / stddev / mpmath.sqrt(2)) / 2 for count in range(6)]
        largest = mpmath.mpf(0)
        for count in range(6):
            for near in {count - 1, count + 1} & set(range(6)):
                p = passes[count]
                q = p + prob * (passes[near] - p)
                for a, b in ((p, q), (q, p)):
                    moment = a**4 * b**-3 + (1 - a) ** 4 * (1 - b) ** -3
                    largest = max(largest, mpmath.log(moment) / 3)
    found = np.interp(4.0, ORDERS, curve)
    assert float(largest) * (1 - 1e-4) <= found <= float(largest) * 1.01


@pytest.mark.long
@pytest.mark.parametrize(
    "sampling_prob",
    [0.02, *(pytest.param(g, marks=pytest.mark.slow) for g in (1e-4, 0.01, 0.04, 0.3, 0.97))],
)
def test_no_accountant_is_below_the_tightest(sampling_prob):
    """From little noise to much: RDP is finite somewhere, never less than PLD, and no order's
    divergence is lost to an overflow.
    """
    for z in (0.05, 0.4, 1.0, 2.4, 3.5, 5.5, 8.0, 13.0, 21.0, 34.0, 200.0):
        event = sampled(z, 50, sampling_prob)
        assert not np.isnan(event.rdp(ORDERS)).any()
        found = accounting.epsilons([event], 1e-5)
        assert found.get("PLD", 0) * 0.99 <= found["RDP"] < math.inf
        assert found["RDP"] <= renyi.rdp_epsilon_as_published([event], 1e-5)


def test_a_divergence_that_cannot_be_computed_costs_infinitely_much(monkeypatch):
    monkeypatch.setattr(Gaussian, "rdp", lambda self, orders: np.full(len(orders), math.nan))
    assert renyi.epsilon_of(renyi.curve([sampled(3.0)]), 1e-5) == math.inf
    assert renyi.rdp_epsilon_as_published([sampled(3.0)], 1e-5) == math.inf


def test_composition_adds_up_where_no_accountant_applies():
    one = Guarantee(
        0.1, 1e-6, "replace-one", "central", (sampled(9.0, 18_000, 0.1, replaced=True),)
    )
    assert accounting.compose([one] * 5, 1e-5).epsilon == pytest.approx(0.5)


@pytest.mark.long
@pytest.mark.parametrize(
    "epsilon",
    [pytest.param(0.05, marks=pytest.mark.slow), pytest.param(3.0, marks=pytest.mark.long)],
)
def test_calibrated_noise_is_the_least(epsilon):
    def events(scale):
        return [sampled(3 * scale, 100, 0.1, screen=(6, 10)), sampled(scale, 60, 0.1)]

    scale = calibration.calibrate(events, epsilon, 1e-6, start=7.0)
    assert min(accounting.epsilons(events(scale), 1e-6).values()) <= epsilon
    assert min(accounting.epsilons(events(0.998 * scale), 1e-6).values()) > epsilon


def test_a_screen_costs_what_its_worst_pair_of_counts_does_in_both_directions():
    stddev, sampling_prob, threshold, most = 5.0, 0.3, 2.0, 20
    distance = (np.arange(most + 1) - threshold) / stddev
    coins = np.stack([stats.norm.cdf(distance), stats.norm.cdf(-distance)], axis=1)
    found = curves.screened_cumulants(stddev, sampling_prob, threshold, most)
    for place in (0, 100, 300, 500):
        order = curves.KNOTS[place]
        pairs = zip(coins[1:], coins[:-1], strict=True)
        for one, other in itertools.chain(*((pair, pair[::-1]) for pair in pairs)):
            mixed = (1 - sampling_prob) * one + sampling_prob * other
            for first, second in ((mixed, one), (one, mixed)):
                terms = order * np.log(first) + (1 - order) * np.log(second)
                exact = np.logaddexp.reduce(terms)
                assert found[place] >= exact * (1 - 1e-6)


@pytest.mark.parametrize("place", [200, 300, 350])
def test_the_cost_of_a_replaced_record_is_above_its_integral(place):
    noise, sampling_prob = 2.0, 0.1
    order = curves.KNOTS[place]

    def value(loss):
        delta = float(curves.replaced_deltas(np.array([loss]), noise, sampling_prob)[0])
        return (math.exp((order - 1) * loss) + math.exp(-order * loss)) * delta

    parts = [
        integrate.quad(value, start, start + 0.25, epsabs=0, epsrel=1e-10, limit=500)[0]
        for start in np.arange(0, 12, 0.25)
    ]
    exact = math.log1p(order * (order - 1) * sum(parts))
    assert curves.replaced_cumulants(noise, sampling_prob)[place] >= exact
