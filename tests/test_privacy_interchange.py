"""Guarantees in other libraries: their accountants find no smaller epsilon than ours."""

import math
from dataclasses import replace

import dp_accounting
import pytest
from dp_accounting import pld, rdp
from opendp import mod

from rknn_jax.privacy import accounting, events, interchange
from rknn_jax.privacy.guarantee import Guarantee

DELTA = 1e-6
AROUND = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE

EVENTS = {
    "gaussian": events.Gaussian(2.0, 2),
    "laplace": events.Laplace(2.0, 3),
    "sampled": events.SampledGaussian(2.0, 100, sampling_prob=0.01),
    "screened": events.ScreenedGaussian(2.0, 3, screen=(1.0, 10)),
    "discrete Laplace": events.DiscreteLaplace(2.0, 2),
    "pure": events.Pure(2.0, 3),
    "discrete Gaussian": events.DiscreteGaussian(2.0, 3),
    "concentrated": events.Concentrated(2.0, 2),
}
EXACT = ("gaussian", "laplace", "sampled")


def guaranteed(*parts, epsilon=1.0, delta=DELTA, relation="replace-one", sampler="release"):
    return Guarantee(epsilon, delta, relation, "central", parts, sampler=sampler)


def found_by(accountant, event):
    made = accountant(neighboring_relation=AROUND)
    made.compose(event)
    return made.get_epsilon(DELTA)


@pytest.mark.parametrize("name", EVENTS)
def test_an_accountant_of_theirs_finds_no_less_than_ours(name):
    event = interchange.dp_event(guaranteed(EVENTS[name]))
    ours = accounting.epsilons((EVENTS[name],), DELTA)
    theirs = found_by(rdp.RdpAccountant, event)
    assert theirs >= min(ours.values()) * (1 - 1e-6)
    if name in (*EXACT, "discrete Gaussian", "concentrated"):
        assert theirs == pytest.approx(ours["RDP"], rel=1e-2)
    if name in EXACT:
        assert found_by(pld.PLDAccountant, event) == pytest.approx(ours["PLD"], rel=1e-3)


def test_a_guarantee_of_several_events_is_composed():
    event = interchange.dp_event(guaranteed(EVENTS["gaussian"], EVENTS["laplace"]))
    ours = accounting.epsilons((EVENTS["gaussian"], EVENTS["laplace"]), DELTA)
    assert found_by(pld.PLDAccountant, event) == pytest.approx(ours["PLD"], rel=1e-3)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((), "got one without"),
        ((events.Binomial(100.0),), "Expected an event that dp_accounting has"),
        ((events.SampledGaussian(2.0, sampling_prob=0.1, replaced=True),), "replaced record"),
        ((events.ScreenedGaussian(2.0, screen=(1.0, 9), sampling_prob=0.1),), "a screen over all"),
    ],
)
def test_what_they_do_not_have_is_refused(parts, words):
    with pytest.raises(ValueError, match=words):
        interchange.dp_event(guaranteed(*parts))


def test_a_measurement_releases_and_maps_groups_of_records():
    mod.enable_features("contrib", "honest-but-curious")
    pure = interchange.measurement(guaranteed(EVENTS["pure"], delta=0.0), sum)
    assert pure([1, 2, 3]) == 6
    assert [pure.map(distance) for distance in (0, 1, 2)] == [0.0, 1.0, 2.0]
    noisy = guaranteed(EVENTS["gaussian"], epsilon=0.5, relation="add-remove")
    approximate = interchange.measurement(noisy, sum)
    assert approximate.map(1) == (0.5, DELTA)
    assert approximate.map(2) == pytest.approx((1.0, DELTA * (1 + math.exp(0.5))))
    assert approximate.map(10**4) == (5000.0, 1.0), "e^5000 is no float"
    assert "SymmetricDistance" in str(approximate.input_metric)
    assert "ChangeOneDistance" in str(pure.input_metric)


def test_no_measurement_is_made_of_a_simulation():
    with pytest.raises(ValueError, match="Expected the guarantee of a release"):
        interchange.measurement(guaranteed(EVENTS["pure"], sampler="simulation"), sum)
    with pytest.raises(ValueError, match="depends on the data"):
        interchange.measurement(replace(guaranteed(EVENTS["pure"]), data_dependent=True), sum)


def test_a_notebook_shows_the_guarantee_and_no_markup_of_others():
    shown = guaranteed(EVENTS["gaussian"], epsilon=0.25)._repr_html_()
    assert "<th>epsilon</th><td>0.25</td>" in shown
    assert "<th>delta</th><td>1e-06</td>" in shown
    assert shown.count("<script") == 0
