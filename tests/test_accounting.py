"""Accounting against exact distributions, published numbers and dp-accounting's own accountants,
and the traps in those.
"""

import ast
import itertools
import math
from dataclasses import replace
from pathlib import Path

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_randomized_response
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

import rknn_jax
from rknn_jax.privacy import accounting, loss_distributions, renyi
from rknn_jax.privacy.accounting import compose, epsilons
from rknn_jax.privacy.analytic_gaussian import gaussian_epsilon, gaussian_noise_multiplier
from rknn_jax.privacy.calibration import calibrate, discrete_gaussian_stddev, share_of_rounds
from rknn_jax.privacy.events import (
    Binomial,
    Concentrated,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Pure,
    SampledGaussian,
    ScreenedGaussian,
)
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.renyi import rdp_epsilon_as_published
from rknn_jax.privacy.sampled_gaussian import ORDERS
from tests.conftest import crossed

DELTAS = (1e-5, 1e-6, 1e-8)
ANALYTIC = {  # Balle & Wang's z, by epsilon, at DELTAS
    0.01: (243.785438, 306.350376, 412.356942),
    0.04: (70.695661, 85.234849, 110.220992),
    0.1: (30.749566, 36.304690, 45.937360),
    0.29: (11.593324, 13.411214, 16.595277),
    0.5: (7.031827, 8.057618, 9.863534),
    1.0: (3.730632, 4.224679, 5.100309),
    2.0: (1.993812, 2.230476, 2.652927),
    4.0: (1.081162, 1.193519, 1.395583),
    8.0: (0.600229, 0.652935, 0.748394),
    10.0: (0.499889, 0.541087, 0.615846),
}
ROUNDS = [  # T, kr, epsilon of a round, RDP and PLD of 2krT Laplace unit shifts at delta = 1e-5
    (5, 1, 0.1, 0.4902, 0.4900),
    (10, 1, 0.1, 0.8099, 0.7689),
    (20, 1, 0.1, 1.2384, 1.1536),
    (50, 1, 0.1, 2.1046, 1.9477),
    (10, 2, 0.1, 0.5885, 0.5432),
    (10, 4, 0.1, 0.4145, 0.3787),
    (10, 1, 1.0, 9.346, 9.1055),
    (50, 1, 1.0, 29.97, 28.50),
    (10, 4, 1.0, 5.0941, 4.7556),
]
REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
ADD_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
EVERY_EVENT = st.builds(
    lambda noise, parameter, count: noise(parameter, count),
    st.sampled_from([Laplace, DiscreteLaplace, Gaussian, DiscreteGaussian, Pure]),
    st.floats(0.5, 30.0),
    st.integers(1, 30),
)


def released(epsilon=0.1, *, delta=0.0, events=None, relation="replace-one", **fields):
    events = (DiscreteLaplace(2 / epsilon, 2),) if events is None else events
    return Guarantee(epsilon, delta, relation, "central", events, **{"sampler": "release"} | fields)


def hockey_stick(losses, probabilities, epsilon):
    """Exact delta of a discrete privacy loss."""
    return float(np.sum(probabilities * -np.expm1(np.minimum(epsilon - losses, 0))))


def exact_pair_epsilon(epsilon, count, delta):
    """Optimal composition of `count` epsilon-DP releases, which is a binomial (Kairouz, Oh &
    Viswanath, 2015).
    """
    losses = (2 * np.arange(count + 1) - count) * epsilon
    probabilities = stats.binom.pmf(np.arange(count + 1), count, 1 / (1 + math.exp(-epsilon)))
    return optimize.brentq(
        lambda value: hockey_stick(losses, probabilities, value) - delta,
        0,
        count * epsilon,
        xtol=1e-14,
    )


def exact_discrete_gaussian_delta(sigma, count, epsilon):
    """Sum over all outcomes of `count` unit shifts."""
    noise = np.arange(-math.ceil(9 * sigma), math.ceil(9 * sigma) + 1)
    weights = np.exp(-(noise**2) / (2 * sigma**2))
    losses = np.zeros(1)
    probabilities = np.ones(1)
    for _ in range(count):
        losses = (losses[:, None] + (1 - 2 * noise) / (2 * sigma**2)).ravel()
        probabilities = (probabilities[:, None] * weights / weights.sum()).ravel()
    return hockey_stick(losses, probabilities, epsilon)


@pytest.mark.parametrize(("epsilon", "multipliers"), list(ANALYTIC.items()))
def test_the_analytic_gaussian_is_balle_and_wangs_and_its_inverse(epsilon, multipliers):
    for delta, expected in zip(DELTAS, multipliers, strict=True):
        multiplier = gaussian_noise_multiplier(epsilon, delta)
        assert multiplier == pytest.approx(
            expected, rel=1e-6, abs=5e-7
        )  # the table has six decimals
        assert gaussian_epsilon(multiplier, delta) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.01, 1e-8), (0.5, 1e-5), (3.0, 0.2), (20.0, 1e-6)]
)
def test_the_calibrated_gaussian_meets_delta_by_integration_of_the_densities(epsilon, delta):
    sigma = gaussian_noise_multiplier(epsilon, delta)
    start = (
        epsilon * sigma**2 + 0.5
    )  # where the loss x/sigma² - 1/(2 sigma²) of a unit shift passes epsilon

    def excess(x):
        return stats.norm.pdf(x, 1, sigma) - math.exp(epsilon) * stats.norm.pdf(x, 0, sigma)

    exact, _ = integrate.quad(excess, start, start + 12 * sigma, epsabs=0, epsrel=1e-10, limit=200)
    assert exact == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    list(itertools.product([1e-6, 1e-2, 50.0, 500.0], [1e-300, 1e-15, 0.1, 0.999])),
)
def test_the_calibration_survives_extreme_budgets(epsilon, delta):
    sigma = gaussian_noise_multiplier(epsilon, delta)
    assert 0 < sigma < math.inf
    assert gaussian_epsilon(sigma, delta) == pytest.approx(epsilon, rel=1e-4)


def test_a_large_delta_needs_no_epsilon():
    assert gaussian_epsilon(1.0, 0.9) == 0.0


@pytest.mark.parametrize(("rounds", "votes", "epsilon", "rdp", "pld"), ROUNDS)
def test_rounds_of_laplace_cost_what_the_unit_shifts_cost(rounds, votes, epsilon, rdp, pld):
    events = [Laplace(2 * votes / epsilon, 2 * votes)] * rounds
    found = epsilons(events, 1e-5)
    assert found["pure"] == pytest.approx(rounds * epsilon)
    assert found["RDP"] == pytest.approx(rdp, rel=1e-3)
    assert found["PLD"] == pytest.approx(pld, rel=1e-3)
    assert found["PLD"] < found["RDP"] < found["pure"]


@pytest.mark.parametrize("noise", [Pure, DiscreteLaplace])
@pytest.mark.parametrize(
    ("epsilon", "count"), [(0.05, 20), (0.0125, 80), (0.4, 20), (1e-4, 2000), (3.0, 4)]
)
def test_pure_and_discrete_laplace_compose_to_the_exact_binomial_from_above(noise, epsilon, count):
    event = noise(epsilon if noise is Pure else 1 / epsilon, count)
    for delta in (1e-3, 1e-6, 1e-9):
        exact = exact_pair_epsilon(epsilon, count, delta)
        found = epsilons([event], delta)
        assert found["PLD"] == pytest.approx(exact, rel=2e-4)
        assert found["PLD"] >= exact * (1 - 1e-9)
        assert found["RDP"] >= exact


@pytest.mark.parametrize(("sigma", "count"), [(1.0, 1), (10.0, 10), (300.0, 1000)])
def test_gaussian_losses_agree_with_the_closed_form_from_above(sigma, count):
    found = epsilons([Gaussian(sigma, count)], 1e-6)
    assert found["analytic Gaussian"] == gaussian_epsilon(sigma / math.sqrt(count), 1e-6)
    assert found["analytic Gaussian"] <= found["PLD"] <= found["analytic Gaussian"] * (1 + 1e-4)
    assert found["analytic Gaussian"] < found["RDP"]


@pytest.mark.parametrize(("sigma", "count"), [(0.3, 1), (0.7, 2), (2.0, 2), (3.5, 1)])
def test_discrete_gaussian_losses_agree_with_enumeration(sigma, count):
    epsilon = epsilons([DiscreteGaussian(sigma, count)], 1e-6)["PLD"]
    assert 0.99e-6 < exact_discrete_gaussian_delta(sigma, count, epsilon) <= 1e-6


@pytest.mark.parametrize("loss", [1e-4, 3e-3, 0.05])
def test_renyi_divergences_of_small_laplace_losses_are_exact(loss):
    """Beside 60 digits, where terms of the size of the loss cancel to its square."""
    found = Laplace(1 / loss).rdp(ORDERS)
    with mpmath.workdps(60):
        shift = mpmath.mpf(1 / (1 / loss))
        for order, divergence in list(zip(ORDERS, found, strict=True))[::5]:
            a = mpmath.mpf(float(order))
            up = a / (2 * a - 1) * mpmath.exp((a - 1) * shift)
            down = (a - 1) / (2 * a - 1) * mpmath.exp(-a * shift)
            assert divergence == pytest.approx(float(mpmath.log(up + down) / (a - 1)), rel=1e-11)


def test_one_laplace_shift_is_exact():
    assert epsilons([Laplace(10.0)], 1e-3)["PLD"] == pytest.approx(
        0.1 + 2 * math.log1p(-1e-3), rel=1e-4
    )


@pytest.mark.parametrize(
    ("noise", "event"),
    [(Laplace, dp_accounting.LaplaceDpEvent), (Gaussian, dp_accounting.GaussianDpEvent)],
)
def test_rdp_is_never_above_dp_accountings(noise, event):
    theirs = RdpAccountant().compose(event(20.0), 100).get_epsilon(1e-5)
    assert (
        theirs * 0.999 < epsilons([noise(20.0, 100)], 1e-5)["RDP"] <= theirs * (1 + 1e-5)
    )  # orders are a grid


@pytest.mark.long
@given(st.lists(EVERY_EVENT, min_size=1, max_size=3), st.sampled_from([1e-9, 1e-6, 1e-3]))
def test_any_mixture_has_pld_at_or_below_the_others_and_costs_more_with_one_release_more(
    events, delta
):
    events = [
        replace(event, parameter=1 / event.parameter) if isinstance(event, Pure) else event
        for event in events
    ]
    found = epsilons(events, delta)
    assert found["PLD"] <= min(found.values()) * (1 + 1e-3)
    assert found["PLD"] >= max(epsilons([event], delta)["PLD"] for event in events) * (1 - 1e-3)
    assert found == pytest.approx(epsilons(events[::-1], delta), rel=1e-6)


def test_one_loss_far_larger_than_the_others_keeps_the_grid_small_and_the_bound_tight():
    found = epsilons([Pure(8.0), DiscreteLaplace(1e4, 1000)], 1e-6)
    assert found["PLD"] == pytest.approx(8.0101, rel=1e-4)


def test_what_no_grid_can_hold_falls_back_to_rdp():
    assert "PLD" not in epsilons([Pure(1e-3, 10**6)], 1e-6)
    assert "PLD" not in epsilons([Pure(1e-3)], 1e-15)
    assert "PLD" not in epsilons([Laplace(1e-3)], 1e-6)
    assert math.isfinite(epsilons([Laplace(1e-3)], 1e-6)["RDP"])


@pytest.mark.parametrize(
    ("epsilon", "delta", "count"),
    [(0.1, 1e-5, 2), (1.0, 1e-5, 20), (4.0, 1e-6, 4), (10.0, 1e-5, 2)],
)
def test_the_discrete_gaussian_is_calibrated_to_its_own_law(epsilon, delta, count):
    sigma = discrete_gaussian_stddev(epsilon, delta, count)
    assert min(epsilons([DiscreteGaussian(sigma, count)], delta).values()) <= epsilon
    assert min(epsilons([DiscreteGaussian(sigma / 1.0011, count)], delta).values()) > epsilon


@pytest.mark.parametrize(
    ("epsilon", "delta", "count", "too_small"),
    [(10.0, 1e-6, 2, True), (4.0, 1e-6, 4, True), (10.0, 1e-5, 2, False)],
)
def test_for_small_noise_the_continuous_formula_is_wrong_on_either_side(
    epsilon, delta, count, too_small
):
    analytic = math.sqrt(count) * gaussian_noise_multiplier(epsilon, delta)
    calibrated = discrete_gaussian_stddev(epsilon, delta, count)
    assert (exact_discrete_gaussian_delta(analytic, count, epsilon) > delta) == too_small
    assert (calibrated > analytic) == too_small
    assert exact_discrete_gaussian_delta(calibrated, count, epsilon) <= delta


# Composition of guarantees


def test_pure_guarantees_add_up_and_stay_pure():
    for delta in (None, 0, 0.0):
        total = compose([released()] * 10, delta)
        assert (total.epsilon, total.delta, total.accountant) == (1.0, 0.0, "pure")
        assert total.events == (DiscreteLaplace(20.0, 20),)


def test_at_a_delta_the_tightest_accountant_wins_and_is_named():
    total = compose([released()] * 10, 1e-5)
    assert (total.accountant, total.delta) == ("PLD", 1e-5)
    assert total.epsilon == pytest.approx(exact_pair_epsilon(0.05, 20, 1e-5), rel=1e-4)
    assert compose([released(0.5, events=(Pure(0.5),))], 1e-12).accountant in (
        "pure",
        "RDP",
    )


def test_gaussian_guarantees_share_one_delta():
    each = released(
        1.0,
        delta=1e-5,
        events=(Gaussian(gaussian_noise_multiplier(1.0, 1e-5)),),
        accountant="analytic Gaussian",
    )
    total = compose([each] * 4, 1e-5)
    assert (total.delta, total.accountant) == (1e-5, "analytic Gaussian")
    assert total.epsilon == pytest.approx(gaussian_epsilon(each.events[0].parameter / 2, 1e-5))
    assert total.epsilon < 4
    basic = compose([each] * 4)
    assert (basic.epsilon, basic.delta, basic.accountant) == (4.0, 4e-5, "basic")
    assert compose([each], 1e-5).epsilon == pytest.approx(1.0, rel=1e-9)
    assert (
        compose([each, released()], 1e-6).delta == 1e-6
    )  # stricter than what each was reported at


def test_composing_in_steps_costs_the_same_as_at_once():
    at_once = compose([released()] * 6, 1e-6)
    in_steps = compose([compose([released()] * 4, 1e-6), compose([released()] * 2)], 1e-6)
    assert in_steps.epsilon == pytest.approx(at_once.epsilon)
    assert in_steps.events == at_once.events


def test_a_guarantee_without_events_adds_its_epsilon_and_takes_its_delta():
    opaque = released(0.3, delta=4e-6, events=())
    total = compose([opaque, *[released()] * 10], 1e-5)
    assert total.epsilon == pytest.approx(0.3 + epsilons([DiscreteLaplace(20.0, 20)], 6e-6)["PLD"])
    assert total.events == ()  # or the next composition would forget the opaque part
    assert compose([opaque], 1e-5).epsilon == 0.3
    assert compose([released(0.3, events=())] * 2, 1e-5).events == (Pure(0.3, 2),)
    with pytest.raises(ValueError, match="delta >= 8e-06"):
        compose([opaque] * 2, 5e-6)
    parts = [opaque, *[released()] * 10]
    assert compose(parts, 1e-5, times=2) == compose(parts * 2, 1e-5)


def test_the_result_is_as_weak_as_its_weakest_part():
    assert compose([released()] * 2).sampler == "release"
    assert compose([released(), released(sampler="simulation")]).sampler == "simulation"
    assert compose([released(), released(data_dependent=True)]).data_dependent
    assert compose([released(), released(events=(), epsilon=math.inf)], 1e-5).epsilon == math.inf
    assert (
        compose([released(unit="client", relation="add-remove") for _ in range(2)]).unit == "client"
    )


@pytest.mark.parametrize(
    ("field", "value"), [("relation", "add-remove"), ("unit", "client"), ("trust", "local")]
)
def test_guarantees_of_different_meaning_do_not_compose(field, value):
    with pytest.raises(ValueError, match=field):
        compose([released(), replace(released(), **{field: value})])


def test_bad_arguments_are_named():
    for delta in (-1e-9, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta"):
            compose([released()], delta)
    with pytest.raises(ValueError, match="got \\[\\]"):
        compose([])
    with pytest.raises(ValueError, match="at least one event"):
        epsilons([], 1e-5)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="epsilon"):
            gaussian_noise_multiplier(bad, 1e-5)
        with pytest.raises(ValueError, match="noise_multiplier"):
            gaussian_epsilon(bad, 1e-5)
    for bad in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta"):
            discrete_gaussian_stddev(1.0, bad, 2)


def test_noise_without_end_and_without_any_are_accounted_for():
    assert epsilons([Gaussian(0.0), Pure(1.0)], 1e-5) == {"pure": math.inf}
    assert epsilons([Pure(0.0, 3)], 1e-5) == {"pure": 0.0}
    assert epsilons([Pure(0.0, 3), Pure(0.1)], 1e-5)["PLD"] <= 0.1
    assert "pure" not in epsilons([Gaussian(1.0)], 1e-5)
    assert epsilons([Gaussian(1.0)], 0.0) == {}


# Parts, each by itself


@pytest.mark.parametrize(
    ("event", "names"),
    [
        (Pure(0.1), ["PLD", "RDP", "pure"]),
        (Gaussian(9.0), ["PLD", "RDP", "analytic Gaussian"]),
        (Gaussian(9.0, replaced=True), ["PLD", "RDP", "analytic Gaussian"]),
        (DiscreteGaussian(9.0), ["PLD", "RDP"]),
        (Binomial(9.0), ["PLD"]),
        (SampledGaussian(9.0, sampling_prob=0.5), ["PLD", "RDP"]),
        (SampledGaussian(9.0, sampling_prob=0.5, replaced=True), ["RDP", "PLD"]),
        (SampledGaussian(9.0, sampling_prob=0.5, replaced=True, opposite=True), ["PLD", "RDP"]),
        (ScreenedGaussian(9.0, screen=(3.0, 5), sampling_prob=0.5), ["PLD", "RDP"]),
        (ScreenedGaussian(9.0, screen=(3.0, 5)), ["PLD", "RDP", "analytic Gaussian"]),
        (Concentrated(9.0), ["RDP"]),
    ],
    ids=str,
)
def test_every_noise_has_the_accountants_that_apply_to_it(event, names, monkeypatch):
    monkeypatch.setattr(renyi, "epsilon_of", lambda divergence, delta: 0.5)
    monkeypatch.setattr(accounting, "_pld_epsilon", lambda events, delta: 0.5)
    assert sorted(epsilons([event], 1e-6), key=str.lower) == sorted(names, key=str.lower)
    mixed = {"RDP", "PLD"} & set(names)
    assert set(epsilons([event, DiscreteGaussian(9.0)], 1e-6)) == mixed, (
        "none is exact for a mixture"
    )
    assert set(epsilons([event], 0.0)) == set(names) & {"pure"}


def test_loss_distributions_are_taken_up_to_the_last_delta_loss_and_number_that_they_can_hold(
    monkeypatch,
):
    monkeypatch.setattr(accounting, "_pld_epsilon", lambda events, delta: 0.5)
    monkeypatch.setattr(accounting, "MOST_PLD_VALUES", 7)
    few = [Pure(0.1, 3), Gaussian(9.0, 4)]
    smallest = accounting.smallest_pld_delta(7)
    assert smallest == 10 * (accounting.FOURIER_ROUNDING + 7 * accounting.ROUNDING_OF_VALUE)
    assert "PLD" in epsilons(few, smallest)
    assert "PLD" not in epsilons(few, smallest * 0.999)
    assert "PLD" not in epsilons([*few, Laplace(9.0)], 1e-6)
    assert "PLD" in epsilons([Pure(0.1), Pure(accounting.LARGEST_PLD_LOSS)], 1e-6)
    assert "PLD" not in epsilons([Pure(0.1), Pure(accounting.LARGEST_PLD_LOSS * 1.001)], 1e-6)


@pytest.mark.long
def test_rounding_of_many_values_is_far_below_what_is_left_for_it():
    """No loss is more than twelve standard deviations above the mean, so what is there is error."""
    count, total = accounting.MOST_PLD_VALUES, 3.0
    for event in (Pure(total / count**0.5, count), Laplace(count**0.5 / total, count)):
        found = event.pld(total / count**0.5 / accounting.POINTS_PER_LOSS)._pmf_remove
        losses = found._lower_loss + np.arange(found.size)
        mean = np.average(losses, weights=found._probs)
        stddev = np.average((losses - mean) ** 2, weights=found._probs) ** 0.5
        error = np.abs(np.cumsum(found._probs[losses > mean + 12 * stddev][::-1])).max()
        assert 0 < error < accounting.ROUNDING_OF_VALUE * count / 5


@pytest.mark.long
@pytest.mark.parametrize(
    ("sigma", "count"), [(21.082, 4_000), (1_000.0, 60_000), (25.6, accounting.MOST_PLD_VALUES)]
)
def test_losses_of_many_values_are_from_above_at_every_delta_that_is_taken(sigma, count):
    """At 1e-11, the losses of 65,536 values once had an epsilon of 116.11; 116.30 is true."""
    found = [epsilons([Gaussian(sigma, count)], delta) for delta in np.geomspace(1e-13, 1e-6, 15)]
    taken = [one for one in found if "PLD" in one]
    assert len(taken) >= 6
    assert all(one["PLD"] >= one["analytic Gaussian"] for one in taken)


def test_gaussians_of_different_noise_add_their_precisions_and_pure_losses_their_counts():
    found = epsilons([Gaussian(20.0, 3), Gaussian(10.0), Gaussian(20.0)], 1e-12)
    assert found["analytic Gaussian"] == pytest.approx(
        gaussian_epsilon((4 / 400 + 1 / 100) ** -0.5, 1e-12)
    )
    assert epsilons([Pure(0.25, 3), Laplace(2.0), Pure(0.25)], 0.0) == {"pure": 1.5}


def test_events_join_where_all_but_their_number_is_alike():
    sampled = SampledGaussian(2.0, 3, sampling_prob=0.5)
    others = [replace(sampled, replaced=True), replace(sampled, replaced=True, opposite=True)]
    others += [
        ScreenedGaussian(2.0, 3, screen=(1.0, 2), sampling_prob=0.5),
        replace(sampled, parameter=3.0),
        Gaussian(2.0, 3),
    ]
    total = compose(
        [
            released(1.0, delta=1e-3, events=(sampled, *others)),
            released(1.0, delta=1e-3, events=(sampled,)),
        ]
    )
    assert total.events == (replace(sampled, count=6), *others)


@pytest.mark.parametrize(
    ("event", "loss"),
    [
        (Pure(0.3), 0.3),
        (Laplace(4.0), 0.25),
        (Gaussian(4.0), 0.25),
        (DiscreteLaplace(0.0), math.inf),
        (SampledGaussian(0.5, sampling_prob=0.3), math.log(0.7 + 0.3 * math.exp(2))),
        (SampledGaussian(0.001, sampling_prob=0.3), 700 + math.log(0.3)),
    ],
    ids=str,
)
def test_the_loss_of_one_value(event, loss):
    assert event.loss == pytest.approx(loss, rel=1e-12)


def renyi_by_integration(density, other, order):
    """Of two densities, by the trapezoidal rule."""
    x = np.linspace(-60, 60, 1_200_001)
    integrand = np.exp(order * density(x) + (1 - order) * other(x))
    return math.log(np.trapezoid(integrand, x)) / (order - 1)


@pytest.mark.parametrize("order", [1.5, 3.0, 12.0])
def test_renyi_divergences_are_those_of_the_densities(order):
    place = int(np.searchsorted(ORDERS, order))
    order = ORDERS[place]
    for noise, law in ((Laplace, stats.laplace), (Gaussian, stats.norm)):
        found = noise(2.0).rdp(ORDERS)[place]
        one, other = (
            lambda x, law=law, centre=centre: law.logpdf(x, centre, 2.0) for centre in (1, 0)
        )
        assert found == pytest.approx(renyi_by_integration(one, other, order), rel=1e-6), noise
    yes = np.array([math.exp(0.7), 1]) / (1 + math.exp(0.7))
    expected = math.log(np.sum(yes**order * yes[::-1] ** (1 - order))) / (order - 1)
    for event in (Pure(0.7), DiscreteLaplace(1 / 0.7)):
        assert event.rdp(ORDERS)[place] == pytest.approx(expected, rel=1e-9)
    assert DiscreteGaussian(2.0).rdp(ORDERS)[place] == pytest.approx(order / 8)


def test_no_divergence_is_below_zero_and_what_cannot_be_computed_costs_infinitely_much():
    tiny = Pure(1e-9).rdp(ORDERS)
    assert 0.0 < tiny.min() < 1e-18
    assert epsilons([Gaussian(1e6)], 0.5)["RDP"] == 0.0
    curve = renyi.curve([Pure(0.1, 2), Gaussian(2.0, 3)])
    parts = 2 * Pure(0.1).rdp(ORDERS) + 3 * Gaussian(2.0).rdp(ORDERS)
    np.testing.assert_allclose(curve, parts, rtol=1e-12)


@pytest.mark.parametrize(("sigma", "count", "delta"), [(85.0, 8192, 1e-5), (5.0, 1, 1e-6)])
def test_the_published_conversion_is_the_papers(sigma, count, delta):
    rho = count / (2 * sigma**2)
    expected = rho + 2 * math.sqrt(rho * math.log(1 / delta))  # at the best order
    assert rdp_epsilon_as_published([Gaussian(sigma, count)], delta) == pytest.approx(
        expected, rel=1e-5
    )
    split = [Gaussian(sigma)] * 2
    joined = rdp_epsilon_as_published([Gaussian(sigma, 2)], delta)
    assert rdp_epsilon_as_published(split, delta) == pytest.approx(joined, rel=1e-12)


@pytest.mark.parametrize("coins", [1, 2, 9, 40])
def test_delta_of_coins_is_summed_over_all_outcomes(coins):
    heads = stats.binom.pmf(np.arange(-1, coins + 2), coins, 0.5)
    # x heads, and one head more
    one = heads[1:]
    other = heads[:-1]
    values = np.array([0.0, 0.1, 0.5, math.log(2), 1.0, 2.0, math.log(coins + 1), 5.0])
    expected = [np.sum(np.maximum(one - math.exp(value) * other, 0)) for value in values]
    np.testing.assert_allclose(
        loss_distributions.binomial_deltas(values, coins), expected, atol=1e-12
    )


CURVES = {
    "1/s": lambda scale: [Laplace(scale, 3)],
    "1/s^2": lambda scale: [Laplace(scale**2)],
    "flat": lambda scale: [Laplace(scale**0.2)],
    "1/s^3": lambda scale: [Laplace(scale**3)],
    "none from 1 on": lambda scale: [Pure(max(0.0, 1 - scale))],
    "infinite up to 1": lambda scale: [Laplace(max(0.0, scale - 1))],
}


@pytest.mark.parametrize("curve", CURVES)
def test_calibrated_noise_suffices_and_a_thousandth_less_does_not(curve):
    """Of pure costs, whose accounting takes no time."""
    looks = []

    def events(scale):
        looks.append(scale)
        return CURVES[curve](scale)

    for epsilon, start in itertools.product((0.01, 0.4, 0.99), (1e-3, 1.0, 3.0, 1e4)):
        looks.clear()
        found = calibrate(events, epsilon, 0.0, start)
        assert looks[0] == start
        assert len(looks) <= 200
        assert epsilons(CURVES[curve](found), 0.0)["pure"] <= epsilon * (1 + 1e-12), (
            epsilon,
            start,
        )
        assert epsilons(CURVES[curve](found / 1.001001), 0.0)["pure"] > epsilon, (epsilon, start)


def test_noise_near_what_was_asked_for_is_found_in_few_looks():
    for start in (1.0, 7.0, 100.0):
        looks = []
        found = calibrate(
            lambda scale, looks=looks: looks.append(scale) or [Laplace(scale, 3)],
            0.4,
            0.0,
            start,
        )
        assert 7.5 <= found <= 7.5 * 1.001
        assert len(looks) <= 8


def test_calibration_without_an_accountant_says_what_to_change():
    with pytest.raises(ValueError, match=r"got delta=0.0 and 5 values; choose a larger delta"):
        calibrate(lambda scale: [Gaussian(scale, 5)], 1.0, 0.0)
    with pytest.raises(ValueError, match=r"delta >= 1.1e-12 and at most 65536 values, got"):
        calibrate(lambda scale: [Binomial(scale, 5)], 1.0, 1e-13)


@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 2.0, 30.0])
@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-9])
def test_the_analytic_gaussian_suffices_and_no_less_noise_does(epsilon, delta):
    multiplier = gaussian_noise_multiplier(epsilon, delta)
    assert gaussian_epsilon(multiplier, delta) <= epsilon
    assert gaussian_epsilon(multiplier * (1 - 1e-6), delta) > epsilon
    assert gaussian_epsilon(1e12, delta) == 0.0


@pytest.mark.parametrize("epsilon", [1e-12, 1e-9, 1e-3, 0.5, 3.0, 50.0, 700.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-30, 1e-12, 1e-5, 0.9])
def test_the_analytic_gaussian_meets_delta_in_60_digits(epsilon, delta):
    """A difference of nearly equal terms left a delta up to 17% above the one that was asked."""
    multiplier = gaussian_noise_multiplier(epsilon, delta)

    def exact(sigma):
        half, shift = 1 / (2 * sigma), epsilon * sigma
        return mpmath.ncdf(half - shift) - mpmath.exp(epsilon) * mpmath.ncdf(-half - shift)

    with mpmath.workdps(60):
        assert exact(mpmath.mpf(multiplier)) <= delta < exact(multiplier * mpmath.mpf(1 - 4e-12))


def test_what_is_composed_of_one_keeps_its_accountant_only_where_nothing_is_known_of_it():
    opaque = released(0.3, delta=4e-6, events=(), accountant="amplification by shuffling")
    for delta in (None, 4e-6, 1e-5):  # all of delta, and more than that
        total = compose([opaque], delta)
        assert (total.epsilon, total.delta, total.accountant) == (
            0.3,
            4e-6,
            "amplification by shuffling",
        )
    twice = compose([opaque] * 2)
    assert (twice.epsilon, twice.delta, twice.accountant, twice.events) == (0.6, 8e-6, "basic", ())
    assert compose([opaque] * 2, 8e-6).epsilon == 0.6
    assert compose([released(accountant="a paper's")]).accountant == "pure"
    assert compose([opaque, released()], 4e-6).epsilon == pytest.approx(0.4), (
        "nothing is left for the other"
    )


def test_one_release_that_is_no_release_and_one_that_depends_on_data_are_told():
    plain = compose([released(), released()])
    assert (plain.sampler, plain.data_dependent) == ("release", False)
    assert (plain.relation, plain.trust, plain.unit) == ("replace-one", "central", "record")
    mixed = compose([released(sampler="simulation", data_dependent=True), released()])
    assert (mixed.sampler, mixed.data_dependent) == ("simulation", True)


# Traps of dp-accounting 0.6: the naive call, and ours


def randomized_response(epsilon):
    return dp_accounting.dp_event.RandomizedResponseDpEvent(2 / (math.exp(epsilon) + 1), 2)


def test_trap_1_their_event_accountant_forgets_how_often_randomized_response_is_repeated():
    naive = PLDAccountant(REPLACE_ONE).compose(randomized_response(0.4), 20).get_epsilon(1e-5)
    assert naive == pytest.approx(0.4, rel=1e-3)  # for 20 releases
    assert epsilons([Pure(0.4, 20)], 1e-5)["PLD"] == pytest.approx(
        exact_pair_epsilon(0.4, 20, 1e-5), rel=1e-6
    )


@pytest.mark.long
def test_trap_2_their_accountants_disagree_on_replace_one_and_no_relation_is_passed_on_here():
    event = dp_accounting.GaussianDpEvent(1.0)
    pld = [
        PLDAccountant(relation).compose(event).get_epsilon(1e-6)
        for relation in (ADD_REMOVE, REPLACE_ONE)
    ]
    rdp = [
        RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(1e-6)
        for relation in (ADD_REMOVE, REPLACE_ONE)
    ]
    assert pld[1] > 2 * pld[0]
    assert rdp[0] == rdp[1]
    for relation in ("replace-one", "add-remove"):
        total = compose([Guarantee(5.0, 1e-6, relation, "central", (Gaussian(1.0),))], 1e-6)
        assert total.epsilon == pytest.approx(gaussian_epsilon(1.0, 1e-6))


def test_trap_3_their_loss_distributions_know_no_pure_guarantee():
    assert PLDAccountant().compose(dp_accounting.LaplaceDpEvent(10.0)).get_epsilon(0) == math.inf
    assert epsilons([Laplace(10.0)], 0.0) == {"pure": 0.1}


@pytest.mark.long
def test_trap_4_they_have_no_event_for_what_a_release_draws():
    assert not hasattr(dp_accounting.dp_event, "DiscreteGaussianDpEvent")
    naive = PLDAccountant().compose(dp_accounting.GaussianDpEvent(0.3)).get_epsilon(1e-6)
    ours = epsilons([DiscreteGaussian(0.3)], 1e-6)["PLD"]
    assert exact_discrete_gaussian_delta(0.3, 1, ours) == pytest.approx(1e-6, rel=1e-3)
    assert abs(naive / ours - 1) > 0.05


def test_trap_5_the_one_relation_that_takes_laplace_and_randomized_response_understates():
    for relation in (ADD_REMOVE, REPLACE_ONE):
        with pytest.raises(dp_accounting.UnsupportedEventError):
            PLDAccountant(relation).compose(dp_accounting.LaplaceDpEvent(10.0)).compose(
                randomized_response(0.4)
            )
    special = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    naive = (
        special.compose(dp_accounting.LaplaceDpEvent(10.0))
        .compose(randomized_response(0.4))
        .get_epsilon(1e-9)
    )
    ours = epsilons([Laplace(10.0), Pure(0.4)], 1e-9)["PLD"]
    assert naive < 0.35
    assert ours == pytest.approx(0.5, rel=1e-4)


def test_trap_6_their_randomized_response_moves_to_the_next_grid_point():
    naive = from_randomized_response(
        2 / (math.exp(0.05) + 1), 2, value_discretization_interval=0.05 / 64
    ).self_compose(100)
    exact = exact_pair_epsilon(0.05, 100, 1e-6)
    assert naive.get_epsilon_for_delta(1e-6) > 1.02 * exact
    assert epsilons([Pure(0.05, 100)], 1e-6)["PLD"] == pytest.approx(exact, rel=1e-6)


def test_trap_7_one_shift_by_2kr_is_not_2kr_shifts_by_1():
    naive = (
        PLDAccountant().compose(dp_accounting.LaplaceDpEvent(10.0), 10).get_epsilon(1e-5)
    )  # scale 80 for a shift by 2kr = 8
    assert naive > 2.5 * epsilons([Laplace(80.0, 80)], 1e-5)["PLD"]


@pytest.mark.long
def test_dp_accounting_is_imported_late_and_where_it_accounts_or_is_written_to():
    package = Path(rknn_jax.__file__).parent
    importers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "dp_accounting" in imported(path.read_text())
    }
    assert importers == {"privacy/loss_distributions.py", "privacy/interchange.py"}
    for path in package.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert "loss_distributions" not in ast.unparse(node), f"{path} imports it at once"


def imported(source):
    """Return the top packages that a source imports."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


# Share of rounds


def exact_rounds_delta(kind, parameter, count, rounds, epsilon):
    """Delta of equal rounds at epsilon, in 40 digits: a Gaussian is one of root-T less noise, and
    unit shifts of discrete Laplace noise, or pure releases, are coins (Kairouz et al., 2015).
    """
    with mpmath.workdps(40):
        total = count * rounds
        value = mpmath.mpf(epsilon)
        if kind == "gaussian":
            shift = mpmath.sqrt(total) / mpmath.mpf(parameter)
            low, high = (mpmath.ncdf(s * shift / 2 - value / shift) for s in (1, -1))
            return low - mpmath.exp(value) * high
        step = mpmath.mpf(parameter) if kind == "pure" else 1 / mpmath.mpf(parameter)
        up = 1 / (1 + mpmath.exp(-step))
        return mpmath.fsum(
            mpmath.binomial(total, heads)
            * up**heads
            * (1 - up) ** (total - heads)
            * max(0, 1 - mpmath.exp(value - (2 * heads - total) * step))
            for heads in range(total + 1)
        )


def round_of(kind, delta, rounds):
    """Return the guarantee of a round by its epsilon, with an even share of delta."""

    def guarantee_of(share):
        if kind == "gaussian":
            event = Gaussian(gaussian_noise_multiplier(share, delta / rounds))
            return Guarantee(share, delta / rounds, "replace-one", "central", (event,))
        event = Pure(share) if kind == "pure" else DiscreteLaplace(4 / share, 4)
        return Guarantee(share, 0.0, "replace-one", "central", (event,))

    return guarantee_of


@crossed(
    kind=["gaussian", "discrete_laplace", "pure"],
    rounds=[2, 7, 40],
    within=[(0.1, 1e-5), (1.0, 1e-9), (6.0, 1e-3)],
)
def test_a_share_of_rounds_never_spends_more_and_leaves_little(kind, rounds, within):
    epsilon, delta = within
    guarantee_of = round_of(kind, delta, rounds)
    share = share_of_rounds(guarantee_of, epsilon, delta, rounds)
    (event,) = guarantee_of(share).events
    parameters = kind, event.parameter, event.count, rounds
    assert epsilon / rounds <= share <= epsilon
    assert exact_rounds_delta(*parameters, epsilon) <= delta * (1 + 1e-9)
    if kind == "gaussian" or share > 1.01 * epsilon / rounds:
        (more,) = guarantee_of(1.01 * share).events
        assert exact_rounds_delta(kind, more.parameter, event.count, rounds, epsilon) > delta
