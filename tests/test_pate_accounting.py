"""PATE's accountants against published numbers and against exact divergences of small
mechanisms.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import special, stats

from rknn_jax.privacy import pate

ROWS = np.array(
    [
        [240, 4, 3, 1, 1, 1, 0, 0, 0, 0],
        [200, 30, 10, 5, 2, 1, 1, 1, 0, 0],
        [150, 90, 4, 2, 1, 1, 1, 1, 0, 0],
        [250] + [0] * 9,
    ]
)
LOG_Q = [-9.1232330530, -5.7157277246, -1.7221495430, -10.0192282943]  # of ROWS, at sigma = 40
RDP = [  # at orders 2, 4, 8, 16, 32 and 64
    [3.55720009e-5, 3.86558782e-5, 4.71704260e-5, 8.11225219e-5, 3.99088189e-4, 1.47913611e-2],
    [8.36280392e-4, 8.91591578e-4, 1.03349797e-3, 1.51209152e-3, 4.40418203e-3, 3.17952529e-2],
    [2 / 1600, 4 / 1600, 8 / 1600, 16 / 1600, 32 / 1600, 64 / 1600],
    [1.52735726e-5, 1.66698968e-5, 2.05891333e-5, 3.68135067e-5, 2.03454988e-4, 1.09336923e-2],
]
# autodp 0.2.3.1, rdp_bank.RDP_depend_pate_gaussian({"logq": LOG_Q[i], "sigma": 40}, order), at the
# same orders
AUTODP = [
    [
        3.557200091177e-5,
        3.865587820117e-5,
        4.717042601640e-5,
        8.112252192019e-5,
        3.990881886158e-4,
        1.479136110450e-2,
    ],
    [
        8.362803920243e-4,
        8.915915776919e-4,
        1.033497974392e-3,
        1.512091515068e-3,
        4.404182029894e-3,
        3.179525291775e-2,
    ],
    None,  # it raises an error where the data-independent cost is all there is
    [
        1.527357262762e-5,
        1.666989684849e-5,
        2.058913329944e-5,
        3.681350665492e-5,
        2.034549876235e-4,
        1.093369227409e-2,
    ],
]
ORDERS = (2, 4, 8, 16, 32, 64)
MNIST = pate.GNMax(40, pate.Screen(200, 150))
SMALL = [  # teachers, classes, mechanism, where the votes matter at these orders
    (6, 3, pate.GNMax(1.0), (1.2, 1.5, 2, 3, 4)),
    (6, 3, pate.GNMax(0.7), (1.2, 2, 3)),
    (12, 2, pate.GNMax(2.0), (1.2, 2, 3, 5)),
    (10, 3, pate.GNMax(2.0), (1.5, 3, 4)),
    (4, 4, pate.GNMax(0.5), (1.5, 2, 3)),
]
SCREENED = [
    (6, 3, pate.GNMax(1.0, pate.Screen(4.0, 1.5)), (1.2, 2, 4)),
    (6, 3, pate.GNMax(0.7, pate.Screen(7.5, 0.8)), (1.2, 2, 3)),
    (12, 2, pate.GNMax(2.0, pate.Screen(2.0, 5.0)), (1.5, 3)),
]
NODES = np.linspace(-12, 12, 4001)
WEIGHTS = stats.norm.pdf(NODES) / stats.norm.pdf(NODES).sum()
LAPLACE_NODES = (np.arange(-4000, 4000) + 0.5) / 160
LAPLACE_WEIGHTS = stats.laplace.pdf(LAPLACE_NODES) / stats.laplace.pdf(LAPLACE_NODES).sum()


def histograms(teachers, classes):
    return [
        votes
        for votes in itertools.product(range(teachers + 1), repeat=classes)
        if sum(votes) == teachers
    ]


def neighbours(votes):
    for source, target in itertools.permutations(range(len(votes)), 2):
        if votes[source]:
            moved = list(votes)
            moved[source] -= 1
            moved[target] += 1
            yield tuple(moved)


def laplace_cdf(x):
    return 0.5 - np.sign(x) * np.expm1(-np.abs(x)) / 2


def label_law(votes, mechanism):
    """P[each label], and of none last where there is a screen, by integration over the noise of
    the one that wins.
    """
    if isinstance(mechanism, pate.LNMax):
        weights = LAPLACE_WEIGHTS
        cdf = laplace_cdf
        scale = mechanism.scale
        nodes = LAPLACE_NODES
    else:
        weights = WEIGHTS
        cdf = special.ndtr
        scale = mechanism.stddev
        nodes = NODES
    wins = [
        weights
        @ np.prod(
            [cdf((votes[j] - votes[i]) / scale + nodes) for i in range(len(votes)) if i != j],
            axis=0,
        )
        for j in range(len(votes))
    ]
    if isinstance(mechanism, pate.LNMax) or mechanism.screen is None:
        return np.array(wins)
    passes = special.ndtr((max(votes) - mechanism.screen.threshold) / mechanism.screen.stddev)
    return np.array([passes * win for win in wins] + [1 - passes])


def divergence(law, other, order):
    return special.logsumexp(order * np.log(law) + (1 - order) * np.log(other)) / (order - 1)


def test_the_published_rows_are_reproduced():
    log_q = pate.gnmax_log_q(ROWS, 40)
    np.testing.assert_allclose(log_q, LOG_Q, rtol=1e-10)
    np.testing.assert_allclose(pate.gnmax_rdp(log_q, 40, ORDERS), RDP, rtol=1e-8)
    np.testing.assert_allclose(
        pate.screen_log_q([[240, 10]], MNIST.screen), np.log1p(-np.exp(-0.5023002523)), rtol=1e-8
    )
    np.testing.assert_allclose(
        pate.screen_log_q([[150, 100]], MNIST.screen), -0.9957633058, rtol=1e-9
    )
    np.testing.assert_allclose(
        pate.screen_rdp([-0.9957633058, -0.5023], MNIST.screen, ORDERS),
        [np.array(ORDERS) / 45000] * 2,
        rtol=1e-12,
    )
    laplace = pate.lnmax_log_q(ROWS[:1], 20)
    assert laplace[0] == pytest.approx(-8.4963779753, rel=1e-10)
    np.testing.assert_allclose(
        pate.lnmax_rdp(laplace, 20, [2, 64])[0], [4.29527454e-5, 1.69014858e-3], rtol=1e-8
    )


@pytest.mark.parametrize("row", [0, 1, 3])
def test_autodp_agrees(row):
    np.testing.assert_allclose(
        pate.gnmax_rdp(LOG_Q[row : row + 1], 40, ORDERS)[0], AUTODP[row], rtol=1e-9
    )


@pytest.mark.parametrize(
    ("scale", "queries", "delta", "epsilon"),
    [(20, 100, 1e-5, 5.3026), (20, 1000, 1e-5, 20.7565), (20, 1000, 1e-6, 21.9078),
     (10, 100, 1e-5, 11.7565), (10, 1000, 1e-5, 51.5129), (10, 1000, 1e-6, 53.8155)],
)  # fmt: skip
def test_lnmax_costs_what_was_published(scale, queries, delta, epsilon):
    votes = np.full((queries, 2), 125)  # on which the data-dependent cost falls back to the same
    found = pate.report(votes, pate.LNMax(scale), delta)
    assert list(found.values()) == pytest.approx([epsilon] * 2, abs=5e-5)
    assert (
        pate.report(np.tile(ROWS[3], (queries, 1)), pate.LNMax(scale), delta).popitem()[1] < epsilon
    )


@pytest.mark.parametrize(
    ("queries", "answered", "mechanism", "delta", "old", "new"),
    [(640, 286, MNIST, 1e-5, 3.1753, 2.7579),
     (8500, 3098, pate.GNMax(40, pate.Screen(300, 200)), 1e-6, 12.675, 11.837),
     (8500, 3098, pate.GNMax(40, pate.Screen(300, 200)), 1e-5, 11.754, 10.863)],
)  # fmt: skip
def test_confident_gnmax_costs_what_its_gaussians_cost(
    queries, answered, mechanism, delta, old, new
):
    rdp = pate.ORDERS * (
        queries / (2 * mechanism.screen.stddev**2) + answered / mechanism.stddev**2
    )
    assert pate.rdp_to_epsilon(rdp, pate.ORDERS, delta, classic=True) == pytest.approx(
        old, rel=1.5e-3
    )  # whose orders are fewer
    assert pate.rdp_to_epsilon(rdp, pate.ORDERS, delta) == pytest.approx(new, rel=1e-3)


def test_the_report_has_what_confident_gnmax_costs():
    found = pate.report(np.tile(ROWS[2], (640, 1)), MNIST, 1e-5, answered=np.arange(640) < 286)
    assert found[
        "data-independent, as many answered fixed in advance, as published"
    ] == pytest.approx(3.1753, rel=1e-3)
    assert found["data-independent, as many answered fixed in advance"] < 2.7579, (
        "whether a query passes costs less than its Gaussian"
    )


def test_the_best_conceivable_votes():
    labels = 286 * pate.gnmax_rdp(pate.gnmax_log_q(ROWS[3:], 40), 40, pate.ORDERS)[0]
    screens = (
        640
        * pate.screen_rdp(pate.screen_log_q(ROWS[3:], MNIST.screen), MNIST.screen, pate.ORDERS)[0]
    )
    assert pate.rdp_to_epsilon(labels + screens, pate.ORDERS, 1e-5, classic=True) == pytest.approx(
        0.8587, abs=5e-5
    )
    assert pate.rdp_to_epsilon(labels, pate.ORDERS, 1e-5, classic=True) == pytest.approx(
        0.4230, abs=5e-5
    )


def theorem_6(log_q, stddev, order):
    """As it is printed, one number at a time; infinite where a condition fails."""
    q = math.exp(log_q)
    mu2 = stddev * math.sqrt(-log_q)
    mu1 = mu2 + 1
    epsilon1 = mu1 / stddev**2
    epsilon2 = mu2 / stddev**2
    growing = (
        math.exp((mu2 - 1) * epsilon2) / (mu1 / (mu1 - 1) * mu2 / (mu2 - 1)) ** mu2
        if mu2 > 1
        else 0.0
    )
    if not (order < mu1 and math.log(1 / q) > epsilon2 and q <= growing):
        return math.inf
    a = (1 - q) / (1 - (q * math.exp(epsilon2)) ** ((mu2 - 1) / mu2))
    b = math.exp(epsilon1) / q ** (1 / (mu1 - 1))
    return math.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)


def test_theorem_6_is_taken_where_its_conditions_hold_and_the_data_independent_cost_elsewhere():
    taken = 0
    for log_q, stddev, order in itertools.product(
        (-20.0, -6.0, -2.0, -1.2, -1.0), (1.5, 4.0, 40.0), (1.05, 2.0, 5.0, 30.0, 150.0)
    ):
        found = pate.gnmax_rdp([log_q], stddev, [order])[0, 0]
        independent = order / stddev**2
        bound = theorem_6(log_q, stddev, order)
        assert found == pytest.approx(min(bound, independent), rel=1e-8)
        taken += bound < independent
    assert taken > 10


@pytest.mark.parametrize(
    ("log_q", "stddev", "order"),
    [(-9.0, 40, 121.5), (-9.0, 0.3, 1.2), (-0.99, 40, 2), (-0.5, 40, 2), (0.0, 40, 2)],
    ids=["order too large", "too little noise", "q too large to grow", "q above 1/e", "no bound"],
)
def test_a_condition_that_fails_falls_back(log_q, stddev, order):
    assert pate.gnmax_rdp([log_q], stddev, [order])[0, 0] == pytest.approx(
        order / stddev**2, rel=1e-12
    )


def test_certain_answers_are_free_and_the_cost_never_exceeds_the_data_independent_one():
    assert np.all(pate.gnmax_rdp([-math.inf, -1e6], 40, ORDERS) == 0)
    assert np.all(pate.lnmax_rdp([-math.inf, -1e6], 20, ORDERS) == 0)
    log_q = -np.geomspace(1e-3, 1e3, 200)
    rdp = pate.gnmax_rdp(log_q, 40, ORDERS)
    assert np.all(rdp <= np.array(ORDERS) / 1600 * (1 + 1e-12))
    assert np.all(np.diff(rdp, axis=0) <= 1e-15), "the cost falls with q"


def test_theorem_6_may_be_given_an_upper_bound_of_q():
    u = np.linspace(
        1e-6, 1 - 1e-9, 100_001
    )  # s/x = 1/mu; the last condition holds with equality at this x²
    x2 = 2 * np.arctanh(u) / (u * (2 - u))
    log_a = np.log(-np.expm1(-x2)) - np.log(-np.expm1(-x2 * (1 - u) ** 2))
    log_b = x2 * (2 * u + u**2)
    assert np.all(log_b > log_a), (
        "A grows with q, and with x B grows and A falls, so this is the worst case"
    )
    for log_q, stddev in (
        (-9.0, 40.0),
        (-3.0, 4.0),
        (-1.3, 40.0),
    ):  # mu fixed at that of the upper bound
        mu = stddev * math.sqrt(-log_q)
        for order in (1.01, 1.5, 3.0, 0.9 * (1 + mu)):
            q = np.exp(log_q - np.linspace(0, 30, 500))
            a = (1 - q) / (1 - (q * math.exp(mu / stddev**2)) ** (1 - 1 / mu))
            b = (mu + 1) / stddev**2 - np.log(q) / mu
            total = np.logaddexp(
                np.log1p(-q) + (order - 1) * np.log(a), np.log(q) + (order - 1) * b
            )
            assert np.all(np.diff(total) <= 1e-14)


@pytest.mark.parametrize(
    "mechanism", [pate.GNMax(1.0), pate.GNMax(3.0), pate.LNMax(0.8), pate.LNMax(3.0)], ids=str
)
@pytest.mark.parametrize(("teachers", "classes"), [(9, 2), (6, 3), (4, 4)])
def test_q_bounds_how_often_noise_changes_the_answer(mechanism, teachers, classes):
    votes = histograms(teachers, classes)
    log_q = pate.gnmax_log_q if isinstance(mechanism, pate.GNMax) else pate.lnmax_log_q
    bounds = np.exp(
        log_q(votes, mechanism.stddev if isinstance(mechanism, pate.GNMax) else mechanism.scale)
    )
    for row, bound in zip(votes, bounds, strict=True):
        wrong = 1 - label_law(row, mechanism)[int(np.argmax(row))]
        assert wrong <= bound + 2e-6  # of the integral over Laplace noise
        if classes == 2:
            assert wrong == pytest.approx(bound, abs=2e-6), "nothing is lost with one rival"


@pytest.mark.parametrize(("teachers", "classes", "mechanism", "orders"), SMALL + SCREENED, ids=str)
def test_the_cost_bounds_the_exact_divergence_from_every_neighbour(
    teachers, classes, mechanism, orders
):
    votes = histograms(teachers, classes)
    laws = {row: label_law(row, mechanism) for row in votes}
    costs = dict(zip(votes, pate.answer_rdp(votes, mechanism, orders), strict=True))
    worst = pate.data_independent_rdp(teachers, classes, mechanism, orders)
    matters = 0
    backwards = 0.0
    for row in votes:
        assert np.all(costs[row] <= worst * (1 + 1e-12))
        matters += np.sum(costs[row] < worst * 0.9)
        for other in neighbours(
            row
        ):  # so both directions of every pair are seen, each at its first argument's cost
            for order, cost in zip(orders, costs[row], strict=True):
                assert divergence(laws[row], laws[other], order) <= cost * (1 + 1e-9)
                backwards = max(backwards, divergence(laws[other], laws[row], order) / cost)
    assert matters > len(votes) / 4
    if mechanism.screen is None:
        assert backwards > 1, "it does not bound the divergence to the votes at hand"


@pytest.mark.parametrize(("teachers", "classes", "scale"), [(8, 2, 1.0), (6, 3, 2.0), (5, 3, 0.5)])
def test_the_cost_of_lnmax_bounds_the_exact_divergence(teachers, classes, scale):
    votes = histograms(teachers, classes)
    orders = (1.2, 2, 5, 20)
    laws = {row: label_law(row, pate.LNMax(scale)) for row in votes}
    costs = dict(
        zip(votes, pate.lnmax_rdp(pate.lnmax_log_q(votes, scale), scale, orders), strict=True)
    )
    for row in votes:
        for other in neighbours(row):
            for order, cost in zip(orders, costs[row], strict=True):
                assert divergence(laws[row], laws[other], order) <= cost * (1 + 1e-9)


def test_the_weaker_condition_of_the_script_for_lnmax_never_wins():
    for epsilon, order in itertools.product((0.05, 0.1, 0.5), (2, 5, 9)):
        q = np.linspace(1 / (1 + math.exp(epsilon)), min(0.5, math.exp(-epsilon)), 100)[1:-1]
        formula = (1 - q) * ((1 - q) / (1 - math.exp(epsilon) * q)) ** (order - 1) + q * math.exp(
            epsilon * (order - 1)
        )
        assert np.all(np.log(formula) / (order - 1) > epsilon)


@pytest.mark.parametrize(
    ("most", "threshold", "stddev", "expected"),
    [
        (300, 210, 85, {2: 8.811328e-5, 16: 7.053187e-4, 64: 2.848177e-3}),
        (300, 180, 75, {2: 1.131765e-4, 32: 1.816554e-3}),
        (800, 480, 200, {16: 1.273373e-4}),
    ],
)
def test_whether_a_query_passes_is_a_bernoulli_variable(most, threshold, stddev, expected):
    mechanism = pate.GNMax(1e9, pate.Screen(threshold, stddev))  # whose answers are free
    np.testing.assert_allclose(
        pate.data_independent_rdp(most, 10, mechanism, list(expected)),
        list(expected.values()),
        rtol=1e-6,
    )


def test_autodp_agrees_on_the_screen():
    # autodp 0.2.3.1, NoisyScreenMechanism of 240 votes and a neighbor's 241 or 239, at orders 2, 8
    # and 32
    up = [2.7584372564670723e-05, 1.1081646013750517e-4, 4.4951642534672666e-4]
    down = [2.7557852319892717e-05, 1.0971453821185489e-4]
    found = pate.answer_rdp([[240, 10]], pate.GNMax(1e9, MNIST.screen), [2, 8, 32])[0]
    np.testing.assert_allclose(found, up, rtol=1e-8)
    assert np.all(found[:2] > down)


def test_screened_queries_cost_less_than_their_parts_and_what_is_expected_is_too_little():
    screen = pate.Screen(4.0, 1.5)
    answer = pate.GNMax(1.0)
    mechanism = pate.GNMax(1.0, screen)
    orders = (2.0, 6.0)
    votes = [(3, 2, 1)]
    both = pate.answer_rdp(votes, mechanism, orders)
    alone = (
        pate.answer_rdp(votes, pate.GNMax(1e9, screen), orders),
        pate.answer_rdp(votes, answer, orders),
    )
    passes = special.ndtr((3 - screen.threshold) / screen.stddev)
    assert np.all(both < alone[0] + alone[1])
    assert np.all(both > alone[0] + passes * alone[1])


def test_the_report_names_what_is_private_and_what_is_no_bound():
    votes = np.tile(ROWS, (160, 1))
    answered = np.arange(640) % 2 == 0
    found = pate.report(votes, MNIST, 1e-5, answered=answered)
    dependent = found["data-dependent (private, not a DP statement)"]
    assert dependent < found["data-independent"]
    assert found["data-independent, as many answered fixed in advance"] < found["data-independent"]
    assert (
        found["data-dependent, those answered (private, no bound)"]
        < found["data-independent, as many answered fixed in advance"]
    )
    assert dependent == pate.rdp_to_epsilon(
        pate.answer_rdp(votes, MNIST, pate.ORDERS).sum(axis=0), pate.ORDERS, 1e-5
    )
    assert all("private" in name for name in found if name.startswith("data-dependent"))
    plain = pate.report(votes, pate.GNMax(40), 1e-5)
    assert plain["data-independent"] < plain["data-independent, as published"]
    log_q = pate.gnmax_log_q(votes, 40)
    published = pate.rdp_to_epsilon(
        pate.gnmax_rdp(log_q, 40, pate.ORDERS).sum(axis=0), pate.ORDERS, 1e-5, classic=True
    )
    assert plain["data-dependent, as published (private, not a DP statement)"] == pytest.approx(
        published
    )


def test_without_a_cap_the_screen_still_limits_how_many_answers_are_paid_for():
    capped, free = (pate.GNMax(40, pate.Screen(threshold, 150)) for threshold in (200, -1e6))
    few, all_of_them = (
        pate.data_independent_rdp(250, 10, mechanism, [8.0])[0] for mechanism in (capped, free)
    )
    assert all_of_them == pytest.approx(8 / 1600, rel=1e-9)
    assert few < 0.7 * all_of_them, "even unanimous votes pass with probability 0.63"


def test_the_tighter_conversion_is_below_the_published_one_and_never_below_zero():
    rdp = pate.ORDERS / 50
    assert (
        0
        < pate.rdp_to_epsilon(rdp, pate.ORDERS, 1e-5)
        < pate.rdp_to_epsilon(rdp, pate.ORDERS, 1e-5, classic=True)
    )
    assert pate.rdp_to_epsilon(0 * rdp, pate.ORDERS, 0.5) == 0.0


VOTES = [[3, 2]]
WRONG = {
    "no noise": (lambda: pate.GNMax(0.0), "0 < stddev < infinity, got stddev=0.0"),
    "no scale": (lambda: pate.LNMax(-1.0), "0 < scale < infinity, got scale=-1.0"),
    "no screening noise": (
        lambda: pate.Screen(3, math.nan),
        "0 < stddev < infinity, got stddev=nan",
    ),
    "no threshold": (
        lambda: pate.Screen(-math.inf, 1.0),
        "finite threshold, got threshold=-inf; leave screen out",
    ),
    "noiseless q": (lambda: pate.gnmax_log_q(VOTES, 0), "0 < stddev < infinity"),
    "noiseless cost": (lambda: pate.gnmax_rdp([-1.0], -1.0, [2]), "0 < stddev < infinity"),
    "negative votes": (
        lambda: pate.gnmax_log_q([[3, -1]], 1.0),
        "integers of at least 0, got int64 down to -1",
    ),
    "shares of votes": (
        lambda: pate.lnmax_log_q([[0.5, 0.5]], 1.0),
        "integers of at least 0, got float64",
    ),
    "one row": (
        lambda: pate.gnmax_log_q([3, 2], 1.0),
        r"shape \[n, num_classes\].*got shape \(2,\)",
    ),
    "one class": (lambda: pate.gnmax_log_q([[3]], 1.0), r"num_classes >= 2, got shape \(1, 1\)"),
    "no queries": (
        lambda: pate.gnmax_log_q(np.zeros((0, 3), int), 1.0),
        r"n >= 1.*got shape \(0, 3\)",
    ),
    "missing teachers": (
        lambda: pate.answer_rdp([[3, 2], [3, 1]], MNIST, [2]),
        "got 4 to 5; give those that abstain a class",
    ),
    "no teachers": (lambda: pate.answer_rdp([[0, 0]], MNIST, [2]), "got 0 to 0"),
    "no winner": (
        lambda: pate.data_independent_rdp(0, 10, MNIST, [2]),
        "num_teachers >= 1.*num_teachers=0",
    ),
    "order 1": (lambda: pate.gnmax_rdp([-1.0], 1.0, [1, 2]), "1 < orders < infinity"),
    "infinite order": (lambda: pate.lnmax_rdp([-1.0], 1.0, [math.inf]), "1 < orders < infinity"),
    "no orders": (lambda: pate.gnmax_rdp([-1.0], 1.0, []), "1 < orders < infinity"),
    "q above 1": (
        lambda: pate.gnmax_rdp([0.1], 1.0, [2]),
        r"log_q of shape \[n\], at most 0, got shape \(1,\) up to 0.1",
    ),
    "q unknown": (lambda: pate.gnmax_rdp([math.nan], 1.0, [2]), "log_q"),
    "delta 0": (lambda: pate.rdp_to_epsilon([1.0], [2.0], 0.0), "0 < delta < 1, got delta=0.0"),
    "delta 1": (lambda: pate.report(VOTES, pate.GNMax(1.0), 1.0), "0 < delta < 1"),
    "other orders": (
        lambda: pate.rdp_to_epsilon([1.0, 2.0], [2.0], 1e-5),
        r"rdp of shape \(2,\) and orders of shape \(1,\)",
    ),
    "all answer": (
        lambda: pate.report(VOTES, pate.GNMax(1.0), 1e-5, answered=[True]),
        "without one every query is answered",
    ),
    "laplace answers": (
        lambda: pate.report(VOTES, pate.LNMax(1.0), 1e-5, answered=[True]),
        "without one every query is answered",
    ),
    "answers counted": (
        lambda: pate.report(VOTES, MNIST, 1e-5, answered=[1]),
        r"booleans of shape \(1,\), got int64",
    ),
    "answers of others": (
        lambda: pate.report(VOTES, MNIST, 1e-5, answered=[True] * 2),
        r"booleans of shape \(1,\), got bool of shape \(2,\)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case):
    call, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        call()
