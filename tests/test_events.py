"""Contract of privacy events: every class of the union states its costs, and files keep them."""

import json
import math
from dataclasses import fields, replace
from typing import get_args

import numpy as np
import pytest

from rknn_jax.privacy import events, renyi
from rknn_jax.privacy.accounting import epsilons
from rknn_jax.privacy.events import (
    PLAIN,
    Binomial,
    Concentrated,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    Laplace,
    Pure,
    SampledGaussian,
    ScreenedGaussian,
    event_of,
    gaussian_event,
)
from rknn_jax.privacy.renyi_curves import SMALLEST_LOSS
from rknn_jax.privacy.sampled_gaussian import ORDERS

CLASSES = get_args(Event)
SAMPLED = SampledGaussian(3.0, 7, sampling_prob=0.25)
CASES = (
    Pure(0.3, 4),
    Pure(1e-6, 4),
    Laplace(4.0, 6),
    Laplace(0.5),
    Laplace(1e6),
    DiscreteLaplace(4.0, 6),
    Gaussian(5.0, 3),
    Gaussian(5.0, 3, replaced=True),
    SAMPLED,
    replace(SAMPLED, replaced=True),
    replace(SAMPLED, replaced=True, opposite=True),
    ScreenedGaussian(3.0, 7, screen=(2.5, 6)),
    ScreenedGaussian(3.0, 7, screen=(2.5, 6), sampling_prob=0.25, replaced=True),
    DiscreteGaussian(5.0, 3),
    Concentrated(5.0, 3),
    Binomial(9.0, 2),
)
every_case = pytest.mark.parametrize("event", CASES, ids=str)


def test_every_class_of_the_union_has_a_case_here_and_every_noise_belongs_to_the_union():
    assert {type(case) for case in CASES} == set(CLASSES), "add the new class to CASES"
    public = {
        value
        for name, value in vars(events).items()
        if isinstance(value, type) and hasattr(value, "pure_epsilon") and not name.startswith("_")
    }
    assert public == set(CLASSES), "add the new class to the union Event"


@every_case
def test_every_class_has_a_tag_and_all_members(event):
    assert not type(event).__abstractmethods__
    assert isinstance(event.kind, str)
    assert 0 < event.loss < math.inf
    assert event.has_rdp or event.has_pld, "some accountant has to apply"
    for total in (event.pure_epsilon, event.precision, event.rho):
        assert total is None or 0 < total < math.inf
    assert all(isinstance(words, str) for words in event.assumptions)


@every_case
def test_a_divergence_is_at_least_zero_and_grows_with_the_order_and_the_count(event):
    curve = event.rdp(ORDERS)
    assert curve.shape == ORDERS.shape
    assert curve.dtype == np.float64
    assert np.all(curve >= 0)
    assert np.any(np.isfinite(curve)) == event.has_rdp
    finite = curve[np.isfinite(curve)]
    # Curves are bounds, and chords between their knots are above them by a little.
    assert np.all(np.diff(finite) >= -1e-3 * finite[:-1])
    twice = replace(event, count=2 * event.count).rdp(ORDERS)
    np.testing.assert_allclose(twice, 2 * curve, rtol=1e-15)


@every_case
def test_a_divergence_at_few_orders_is_that_of_the_whole_curve(event):
    few = ORDERS[::511]
    np.testing.assert_array_equal(event.rdp(few), event.rdp(ORDERS)[::511])


@every_case
def test_a_typical_divergence_is_the_divergence_where_that_is_known(event):
    typical = event.typical_rdp(ORDERS)
    assert np.any(np.isfinite(typical))
    if event.has_rdp:
        np.testing.assert_array_equal(typical, event.rdp(ORDERS))


def unscreened(event):
    """Return the event of the noisy counts themselves, whose losses stand for those of a screen."""
    if not isinstance(event, ScreenedGaussian):
        return event
    return gaussian_event(event.parameter, event.count, event.sampling_prob, event.replaced)


@every_case
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_epsilon_by_loss_distributions_is_at_most_the_other_accountants(event, delta):
    found = epsilons([event], delta)
    names = {"RDP": event.has_rdp, "PLD": event.has_pld, "pure": event.pure_epsilon is not None}
    assert {name for name, known in names.items() if known} == set(found) - {"analytic Gaussian"}
    assert ("analytic Gaussian" in found) == (event.precision is not None)
    assert all(0 <= value < math.inf for value in found.values())
    if event.has_pld:
        others = epsilons([unscreened(event)], delta)
        assert found["PLD"] <= min(others.values()) * (1 + 1e-3)


@every_case
def test_a_loss_distribution_bounds_the_cost_of_all_values_together(event):
    if not event.has_pld:
        with pytest.raises(NotImplementedError, match=event.kind):
            event.pld(1e-3)
        return
    found = event.pld(1e-3).get_epsilon_for_delta(1e-5)
    assert found == pytest.approx(epsilons([event], 1e-5)["PLD"], rel=0.05)
    if event.has_rdp:
        by_divergence = renyi.epsilon_of(renyi.curve([unscreened(event)]), 1e-5)
        assert found <= by_divergence * (1 + 1e-2)


@pytest.mark.parametrize("event", [DiscreteLaplace(4.0, 6), DiscreteGaussian(5.0, 3)], ids=str)
def test_losses_that_are_rounded_down_never_cost_more(event):
    up, down = event.pld(1e-3), event.lower_pld(1e-3)
    for epsilon in (-0.5, 0.0, 0.3, 1.0):
        low, high = (one.get_delta_for_epsilon(epsilon) for one in (down, up))
        assert low <= high * (1 + 1e-9) <= 1.1 * low + 1e-3


def test_losses_of_a_coarse_grid_bound_the_fine_ones_from_both_sides():
    event = DiscreteGaussian(5.0, 3)
    fine = event.pld(1e-4).get_delta_for_epsilon(0.3)
    down, up = event.lower_pld(0.05), event.pld(0.05)
    assert down.get_delta_for_epsilon(0.3) < fine * (1 - 1e-4)
    assert up.get_delta_for_epsilon(0.3) > fine * (1 + 1e-6)


def test_no_divergence_is_known_beyond_the_last_order():
    last = float(ORDERS[-1])
    assert renyi.renyi_divergence([DiscreteGaussian(5.0, 3)], last) < math.inf
    assert renyi.renyi_divergence([DiscreteGaussian(5.0, 3)], last * 1.01) == math.inf


def test_rho_and_pure_epsilon_bound_the_divergence():
    for event in CASES:
        curve = event.rdp(ORDERS)
        if event.rho is not None:
            np.testing.assert_allclose(curve, ORDERS * event.rho, rtol=1e-12)
        if event.pure_epsilon is not None and event.loss >= SMALLEST_LOSS:
            assert np.all(curve <= event.pure_epsilon * (1 + 1e-12))


# Files


@every_case
def test_an_event_is_read_back_from_all_its_fields_and_from_those_that_are_not_plain(event):
    told = event.asdict()
    assert list(told)[:3] == ["kind", "parameter", "count"]
    assert set(told) == {"kind", "parameter", "count", *PLAIN}
    assert {one.name for one in fields(event)} < set(told)
    assert event_of(json.loads(json.dumps(told))) == event
    sparse = {name: value for name, value in told.items() if (name, value) not in PLAIN.items()}
    found = event_of(json.loads(json.dumps(sparse)))
    assert found == event
    assert hash(found) == hash(event)


def test_files_hold_what_they_always_held():
    assert json.dumps(SAMPLED.asdict()) == (
        '{"kind": "gaussian", "parameter": 3.0, "count": 7, "sampling_prob": 0.25, '
        '"replaced": false, "screen": null, "opposite": false}'
    )
    assert json.dumps(ScreenedGaussian(3.0, screen=(2.5, 6)).asdict()) == (
        '{"kind": "gaussian", "parameter": 3.0, "count": 1, "sampling_prob": 1.0, '
        '"replaced": false, "screen": [2.5, 6], "opposite": false}'
    )
    assert {one.kind for one in CLASSES} == {
        "pure",
        "laplace",
        "discrete_laplace",
        "gaussian",
        "discrete_gaussian",
        "concentrated",
        "binomial",
    }


def test_fields_that_say_nothing_without_sampling_are_read():
    told = {"kind": "laplace", "parameter": 2.0, "replaced": True, "opposite": True}
    assert event_of(told) == Laplace(2.0)
    assert event_of(told | {"kind": "gaussian"}) == Gaussian(2.0, replaced=True)
    assert event_of({"kind": "gaussian", "parameter": 2.0, "screen": []}) == Gaussian(2.0)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"kind": "uniform"}, "kind to be one of"),
        ({"kind": None}, "kind to be one of"),
        ({"kind": ["pure"]}, "kind to be one of"),
        ({"parameter": -1.0}, "parameter >= 0"),
        ({"parameter": math.nan}, "parameter >= 0"),
        ({"count": 0}, "count >= 1"),
        ({"sampling_prob": 0.0}, "0 < sampling_prob < 1"),
        ({"sampling_prob": -0.5}, "0 < sampling_prob < 1"),
        ({"sampling_prob": 1.5}, "0 < sampling_prob < 1"),
        ({"sampling_prob": math.nan}, "0 < sampling_prob < 1"),
        ({"sampling_prob": 1.5, "screen": (3.0, 5)}, "0 < sampling_prob <= 1"),
        ({"sampling_prob": 0.5, "kind": "laplace"}, "kind=gaussian"),
        ({"sampling_prob": 0.5, "kind": "discrete_gaussian"}, "kind=gaussian"),
        ({"screen": (3.0, 5), "kind": "pure"}, "kind=gaussian"),
        ({"opposite": True}, "opposite=True only where records are replaced"),
        ({"opposite": True, "kind": "laplace"}, "opposite=True only"),
        ({"opposite": True, "sampling_prob": 0.5}, "opposite=True only"),
        ({"opposite": True, "replaced": True, "screen": (3.0, 5)}, "nothing is screened"),
    ],
    ids=str,
)
def test_fields_that_are_out_of_range_or_do_not_go_together_are_refused(told, words):
    with pytest.raises(ValueError, match=words):
        event_of({"kind": "gaussian", "parameter": 2.0} | told)


@pytest.mark.parametrize("told", [{}, {"parameter": "x"}, {"parameter": 1.0, "more": 1}], ids=str)
def test_fields_that_are_missing_unknown_or_of_another_type_are_refused(told):
    with pytest.raises(TypeError):
        event_of({"kind": "pure"} | told)


@pytest.mark.parametrize(
    "fields_",
    [{"parameter": 0.0}, {"parameter": 0.5}, {"parameter": math.inf}, {"count": 1}],
    ids=str,
)
def test_an_event_at_the_end_of_its_range_is_one(fields_):
    for event in CASES:
        found = replace(event, **fields_)
        assert {name: getattr(found, name) for name in fields_} == fields_


def test_gaussian_noise_has_the_class_of_its_sampling_and_screening():
    assert gaussian_event(2.0) == Gaussian(2.0) == gaussian_event(2.0, 1, 1.0, False, None, False)
    assert gaussian_event(3.0, 7, 0.25) == SAMPLED
    assert gaussian_event(3.0, 7, 1e-9).sampling_prob == 1e-9
    screened = gaussian_event(3.0, 7, 0.25, True, [2.5, 6])
    assert screened == ScreenedGaussian(3.0, 7, screen=(2.5, 6), sampling_prob=0.25, replaced=True)
    with pytest.raises(ValueError, match="at 1, the event is Gaussian"):
        SampledGaussian(3.0, sampling_prob=1.0)


def test_noise_that_is_none_has_an_infinite_loss():
    for event in CASES:
        nothing = math.inf if isinstance(event, Pure) else 0.0
        if not event.is_partial:
            assert replace(event, parameter=nothing).loss == math.inf
    assert Binomial(0.4).loss == math.inf, "no coin is no noise"
    assert Binomial(0.5).loss == 2
