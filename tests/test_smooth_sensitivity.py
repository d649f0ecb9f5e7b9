"""The release of PATE's cost against all histograms in reach, and its noise against integration."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import integrate, special, stats

from rknn_jax.privacy import pate
from rknn_jax.privacy import smooth_sensitivity as smooth
from tests.test_pate_accounting import ROWS, SCREENED, SMALL, histograms, neighbours


def distance(votes, other):
    return sum(abs(a - b) for a, b in zip(votes, other, strict=True)) // 2


@pytest.mark.parametrize(("teachers", "classes", "mechanism", "orders"), SMALL[:3], ids=str)
def test_one_vote_moves_the_gap_by_at_most_two(teachers, classes, mechanism, orders):
    gap = {
        row: smooth._gap(-np.sort(-np.array([row])), mechanism.stddev)[0]
        for row in histograms(teachers, classes)
    }
    assert max(abs(gap[row] - gap[other]) for row in gap for other in neighbours(row)) <= 2 + 1e-9
    assert all(-1e-9 <= value <= teachers + 1e-9 for value in gap.values())


@pytest.mark.parametrize(("teachers", "classes", "mechanism", "orders"), SMALL + SCREENED, ids=str)
def test_the_rounded_cost_is_just_above_the_cost(teachers, classes, mechanism, orders):
    for row in histograms(teachers, classes):
        exact = pate.answer_rdp([row], mechanism, orders)[0]
        rounded = smooth.rounded_rdp([row], mechanism, orders)
        assert np.all(rounded >= exact * (1 - 1e-9))
        if mechanism.screen is None:
            np.testing.assert_allclose(rounded, exact, rtol=0.03)
    np.testing.assert_allclose(
        smooth.rounded_rdp([row, row, row[::-1]], mechanism, orders),
        3 * smooth.rounded_rdp([row], mechanism, orders),
        rtol=1e-12,
    )


@pytest.mark.long
@pytest.mark.parametrize(("teachers", "classes", "mechanism", "orders"), SMALL + SCREENED, ids=str)
def test_the_local_sensitivity_dominates_all_histograms_within_reach_and_is_smooth(
    teachers, classes, mechanism, orders
):
    votes = [row for row in histograms(teachers, classes)]
    cost = {row: smooth.rounded_rdp([row], mechanism, orders) for row in votes}
    change = {
        row: np.max([np.abs(cost[row] - cost[other]) for other in neighbours(row)], axis=0)
        for row in votes
    }
    distinct = [row for row in votes if tuple(sorted(row)) == row]
    bound = {row: smooth.local_sensitivity([row], mechanism, orders) for row in distinct}
    loosest = 0.0
    for row in distinct:
        assert np.all(np.diff(bound[row], axis=1) >= 0)
        for steps in range(teachers + 1):
            exact = np.max(
                [change[other] for other in votes if distance(row, other) <= steps], axis=0
            )
            assert np.all(bound[row][:, steps] >= exact * (1 - 1e-9))
        loosest = max(loosest, np.max(bound[row][:, -1] / exact))
        for other in {tuple(sorted(other)) for other in neighbours(row)}:
            assert np.all(bound[row][:, :-1] <= bound[other][:, 1:] * (1 + 1e-12))
            for smoothness in (0.01, 0.1, 1.0):
                here, there = (
                    smooth.smooth_sensitivity([value], mechanism, orders, smoothness)
                    for value in (row, other)
                )
                assert np.all(here <= math.exp(smoothness) * there * (1 + 1e-12))
                assert np.all(here >= np.abs(cost[row] - cost[other]) * (1 - 1e-9))
    assert mechanism.screen is not None or loosest < 2


def test_sensitivities_of_several_queries_add_up():
    both = smooth.local_sensitivity(ROWS[:2], pate.GNMax(40), [4, 8])
    each = [smooth.local_sensitivity(row[None], pate.GNMax(40), [4, 8]) for row in ROWS[:2]]
    np.testing.assert_allclose(both, each[0] + each[1], rtol=1e-12)


def test_the_published_local_sensitivities_are_met():
    # The unit tests of tensorflow/privacy's smooth_sensitivity.py; its cost jumps where Theorem 6
    # would still hold.
    near = smooth.local_sensitivity([[10, 0, 0]], pate.GNMax(0.5), [1.5])[0]
    np.testing.assert_allclose(
        near[:3], [3.13503646e-17, 1.60178280e-08, 5.90681786e-03], rtol=0.02
    )
    assert np.all(near[3:] <= 5.99981308)
    far = smooth.local_sensitivity([[1000, 500, 300, 200, 0]], pate.GNMax(250.0), [10.0])[0]
    assert np.all(far[:298] == 0)
    np.testing.assert_allclose(
        far[298:],
        [2.77693450548e-7, 2.10853979548e-6] + [2.73113623988e-6] * (far.size - 300),
        rtol=0.2,
    )
    np.testing.assert_allclose(
        far[299:], [2.10853979548e-6] + [2.73113623988e-6] * (far.size - 300), rtol=0.02
    )


def gaussian_divergence(order, mean, ratio):
    """D(N(0, 1) || N(mean, ratio²)) by integration."""

    def log_p(x):
        return -(x**2) / 2

    def log_q(x):
        return -((x - mean) ** 2) / (2 * ratio**2) - math.log(ratio)

    width = order + (1 - order) / ratio**2
    peak = (1 - order) * mean / ratio**2 / width
    spread = 40 / math.sqrt(width)
    total, _ = integrate.quad(
        lambda x: math.exp(
            order * log_p(x)
            + (1 - order) * log_q(x)
            - order * log_p(peak)
            - (1 - order) * log_q(peak)
        ),
        peak - spread,
        peak + spread,
        epsabs=0,
        epsrel=1e-10,
        limit=400,
        points=[peak],
    )
    return (
        math.log(total / math.sqrt(2 * math.pi)) + order * log_p(peak) + (1 - order) * log_q(peak)
    ) / (order - 1)


@pytest.mark.parametrize(
    ("order", "used", "noise"),
    [(2, 0.1, 3), (10, 0.25, 10), (10, 0.49, 10), (30, 0.45, 5), (1.5, 0.3, 1), (50, 0.01, 20)],
)
def test_noise_scaled_by_smooth_sensitivity_costs_what_integration_says(order, used, noise):
    smoothness = used / order
    cost = smooth.gnss_rdp(order, smoothness, noise)
    for log_ratio in np.linspace(-smoothness, smoothness, 9):
        for share in (0, 0.5, 1):
            mean = share * min(1, math.exp(log_ratio)) / noise
            assert (
                gaussian_divergence(order, mean, math.exp(log_ratio)) <= cost * (1 + 1e-8) + 1e-12
            )
    worst = gaussian_divergence(order, math.exp(-smoothness) / noise, math.exp(-smoothness))
    assert worst == pytest.approx(cost, rel=1e-8)


def theorem_23(order, smoothness, noise):
    shape = (order * smoothness - math.log(1 - 2 * order * smoothness) / 2) / (order - 1)
    return order * math.exp(2 * smoothness) / noise**2 + shape


def test_the_published_cost_of_that_noise_is_too_little_where_the_scripts_use_it():
    assert gaussian_divergence(20, math.exp(-0.0245) / 10, math.exp(-0.0245)) == pytest.approx(
        2.2394, abs=1e-4
    )
    assert theorem_23(20, 0.0245, 10) == pytest.approx(0.3388, abs=1e-4)
    for order, noise in itertools.product((10, 20, 50, 100), (2, 5, 10)):
        assert (
            theorem_23(order, 0.49 / order, noise) < smooth.gnss_rdp(order, 0.49 / order, noise) / 2
        )
        assert theorem_23(order, 0.2 / order, noise) > smooth.gnss_rdp(order, 0.2 / order, noise)


@pytest.mark.parametrize(
    ("spread", "failure"), [(0.02, 0.4), (0.15, 5e-6), (0.5, 5e-6), (0.3, 5e-9)]
)
def test_the_bound_fails_as_rarely_as_it_says(spread, failure):
    multiplier = smooth._multiplier(spread, failure)
    fails, _ = integrate.quad(
        lambda z: stats.norm.pdf(z) * stats.norm.cdf(-multiplier * math.exp(spread * z)),
        -12,
        12,
        epsabs=0,
        epsrel=1e-10,
        limit=400,
    )
    assert fails == pytest.approx(failure, rel=1e-6)


class Fixed:
    """A generator whose normal draws are given."""

    def __init__(self, *draws):
        self.draws = list(draws)

    def normal(self):
        return self.draws.pop(0)


def test_a_release_is_the_cost_with_noise_and_pays_for_itself():
    votes = np.tile(ROWS, (50, 1))
    mechanism = pate.GNMax(40)
    plan = smooth.Plan(8.0, 0.03, 5.0, 0.2)
    cost = smooth.rounded_rdp(votes, mechanism, [8.0])[0]
    sensitivity = smooth.smooth_sensitivity(votes, mechanism, [8.0], 0.03)[0]
    found = smooth.sanitize(Fixed(0.0, 0.0), votes, mechanism, plan, 1e-5)
    assert plan.rdp == pytest.approx(smooth.gnss_rdp(8, 0.03, 5) + 8 * 0.15**2 / 2)
    assert found.estimate == pytest.approx(pate.rdp_to_epsilon([cost + plan.rdp], [8.0], 1e-5))
    assert found.stddev == pytest.approx(5 * sensitivity)
    upper = min(cost + smooth._multiplier(0.2, 5e-6) * found.stddev, 200 * 8 / 1600)
    assert found.bound == pytest.approx(pate.rdp_to_epsilon([upper + plan.rdp], [8.0], 5e-6))
    noisy = smooth.sanitize(Fixed(-1.0, 2.0), votes, mechanism, plan, 1e-5)
    assert noisy.estimate == pytest.approx(found.estimate + 2 * found.stddev)
    assert noisy.bound <= pate.rdp_to_epsilon([200 * 8 / 1600 + plan.rdp], [8.0], 5e-6) + 1e-12, (
        "at most the data-independent cost"
    )
    lucky = smooth.sanitize(Fixed(-3.0, -1e6), votes, mechanism, plan, 1e-5)
    assert lucky.bound == pytest.approx(pate.rdp_to_epsilon([plan.rdp], [8.0], 5e-6)), (
        "the release is always paid for"
    )


def test_answering_only_where_the_bound_is_small_is_differentially_private():
    """All of it at once, by integration: both noisy numbers, whether labels follow, and how many
    of them are of one class.
    """
    teachers = 30
    queries = 200
    mechanism = pate.GNMax(3.0)
    delta = 0.01
    votes = {
        count: np.tile([[count, teachers - count]], (queries, 1))
        for count in range(teachers // 2 - 1, teachers + 1)
    }
    plan = smooth.plan_release(votes[teachers], mechanism, delta)
    multiplier = smooth._multiplier(plan.scale_noise, delta / 2)
    cost = {
        count: smooth.rounded_rdp(rows, mechanism, [plan.order])[0] for count, rows in votes.items()
    }
    scale = {
        count: smooth.smooth_sensitivity(rows, mechanism, [plan.order], plan.smoothness)[0]
        for count, rows in votes.items()
    }
    labels = {
        count: stats.binom.pmf(
            np.arange(queries + 1),
            queries,
            special.ndtr((2 * count - teachers) / (math.sqrt(2) * mechanism.stddev)),
        )
        for count in votes
    }
    promised = cost[teachers] + multiplier * plan.noise * scale[teachers]
    epsilon = pate.rdp_to_epsilon([promised + plan.rdp], [plan.order], delta / 2)
    gated = []
    ungated = []
    passed = {}
    for here, there in itertools.permutations(votes, 2):
        if abs(here - there) != 1:
            continue
        logs = sorted(math.log(scale[count]) for count in (here, there))
        spread = 8 * max(scale[here], scale[there]) * plan.noise
        first = np.linspace(logs[0] - 8 * plan.scale_noise, logs[1] + 8 * plan.scale_noise, 121)
        second = np.linspace(
            min(cost[here], cost[there]) - spread, max(cost[here], cost[there]) + spread, 121
        )
        cell = (first[1] - first[0]) * (second[1] - second[0])
        density = [
            stats.norm.pdf(first, math.log(scale[count]), plan.scale_noise)[:, None]
            * stats.norm.pdf(second, cost[count], scale[count] * plan.noise)
            for count in (here, there)
        ]
        passes = second + multiplier * plan.noise * np.exp(first)[:, None] <= promised
        law = density[0]
        other = math.exp(epsilon) * density[1]
        refused = np.maximum(law - other, 0)[~passes].sum() * cell
        answered = (
            np.maximum(
                law[passes][:, None] * labels[here] - other[passes][:, None] * labels[there], 0
            ).sum()
            * cell
        )
        gated.append(refused + answered)
        ungated.append(np.maximum(labels[here] - math.exp(epsilon) * labels[there], 0).sum())
        passed[here] = law[passes].sum() * cell
    assert max(gated) <= delta
    assert max(ungated) > delta, "the same epsilon would not do without the test"
    assert passed[teachers] > 0.3


@pytest.mark.long
@pytest.mark.parametrize(
    "mechanism", [pate.GNMax(40), pate.GNMax(40, pate.Screen(300, 200))], ids=str
)
def test_a_plan_suits_what_was_expected(mechanism):
    guess = smooth.expected_votes(3000, 250, 10)
    assert np.all(guess.sum(axis=1) == 250)
    assert np.all(guess[:, 0] >= guess[:, 1:].max(axis=1))
    plan = smooth.plan_release(guess, mechanism, 1e-6)
    found = smooth.sanitize(Fixed(0.0, 0.0), guess, mechanism, plan, 1e-6)
    independent = 3000 * pate.data_independent_rdp(250, 10, mechanism, pate.ORDERS)
    assert found.bound < pate.rdp_to_epsilon(independent, pate.ORDERS, 1e-6), (
        "with as many queries a release pays"
    )
    for other in (
        smooth.Plan(plan.order, plan.smoothness, 3 * plan.noise, plan.scale_noise),
        smooth.Plan(20.0, 0.02, 5.0, 0.2),
    ):
        assert found.bound < smooth.sanitize(Fixed(0.0, 0.0), guess, mechanism, other, 1e-6).bound


def test_two_classes_and_few_teachers_are_expected_too():
    assert smooth.expected_votes(3, 5, 2).tolist() == [[3, 2], [4, 1], [5, 0]]
    assert smooth.expected_votes(2, 1, 4).tolist() == [[1, 0, 0, 0], [1, 0, 0, 0]]


def test_where_votes_cannot_matter_there_is_nothing_to_release():
    votes = np.full((3, 2), 4)
    with pytest.raises(ValueError, match="data-independent cost"):
        smooth.plan_release(votes, pate.GNMax(1000.0), 1e-5)
    with pytest.raises(ValueError, match="an order at which votes can matter"):
        smooth.sanitize(
            Fixed(0.0, 0.0), votes, pate.GNMax(1000.0), smooth.Plan(8.0, 0.03, 5.0, 0.2), 1e-5
        )


def test_what_is_told_of_a_release_names_what_is_private():
    found = smooth.Sanitized(bound=3.0, estimate=2.0, stddev=0.1).facts()
    assert found["data-dependent, sanitized bound"] == 3.0
    assert all("sanitized" in name for name in found)
    assert [value for name, value in found.items() if "private" in name] == [0.1]
    assert not found.keys() & pate.report([[3, 2]], pate.GNMax(1.0), 1e-5).keys()


def test_neither_module_imports_jax_or_dp_accounting():
    slow = ("jax", "dp_accounting", "scipy.optimize", "scipy.stats")
    code = (
        "import sys, rknn_jax.privacy.smooth_sensitivity; "
        f"print([name for name in {slow} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


VOTES = [[3, 2]]
WRONG = {
    "no teachers expected": (
        lambda: smooth.expected_votes(3, 0, 2),
        "num_teachers >= 1.*num_teachers=0",
    ),
    "plan without delta": (
        lambda: smooth.plan_release(VOTES, pate.GNMax(1.0), -1e-5),
        "0 < delta < 1",
    ),
    "too smooth": (
        lambda: smooth.Plan(8.0, 0.1, 1.0, 0.1),
        r"order \* \(1 - exp\(-2 smoothness\)\) < 1, got order=8.0 and smoothness=0.1",
    ),
    "not smooth": (
        lambda: smooth.smooth_sensitivity(VOTES, pate.GNMax(1.0), [2], 0.0),
        "0 < smoothness < infinity",
    ),
    "release without noise": (lambda: smooth.Plan(2.0, 0.1, 0.0, 0.1), "0 < noise < infinity"),
    "scale without noise": (lambda: smooth.Plan(2.0, 0.1, 1.0, 0.0), "0 < scale_noise < infinity"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case):
    call, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        call()
