"""The published error bounds against exact tails: where they hold, where they do not, and what
replaces them.
"""

import math
import re

import numpy as np
import pytest
from scipy.stats import binom, dlaplace, laplace

from rknn_jax import bsvs
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.randomized_response import RandomizedResponse

NUM_CLASSES = 10
BETA = 0.05
TARGET = BETA / NUM_CLASSES  # of one cell


def cell_failure(p, q, a, n, radius):
    """P(|estimate - a| >= radius) for a of n voters: one binomial's tails, averaged over 14
    standard deviations of the other one.
    """
    reach = 14 * math.sqrt(a * p * (1 - p)) + 60
    members = np.arange(max(0, math.floor(a * p - reach)), min(a, math.ceil(a * p + reach)) + 1)
    low, high = (a * p + (n - a) * q + sign * radius * (p - q) - members for sign in (-1, 1))
    others = binom(n - a, q)
    return float(
        np.sum(
            binom.pmf(members, a, p) * (others.cdf(np.floor(low)) + others.sf(np.ceil(high) - 1))
        )
    )


def least_radius(p, q, a, n, failure_prob):
    low = 0.0
    high = n / (p - q)
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (
            (low, middle) if cell_failure(p, q, a, n, middle) <= failure_prob else (middle, high)
        )
    return high


def randomized_response(epsilon, votes):
    return RandomizedResponse(epsilon, 10, NUM_CLASSES, num_neighbors=votes)


def collision(epsilon, votes, num_buckets):
    return Collision(epsilon, 10, NUM_CLASSES, num_neighbors=votes, num_buckets=num_buckets)


def published_num_buckets(epsilon, votes):
    return votes * math.exp(epsilon) + 2 * votes - 1


def shares(n):
    return {"none": 0, "a tenth": n // 10, "half": n // 2, "all": n}


def test_the_exact_tails_are_those_of_the_convolved_binomials():
    p = 0.6
    q = 0.25
    a = 13
    n = 40
    radius = 11.5
    pmf = np.convolve(binom.pmf(np.arange(a + 1), a, p), binom.pmf(np.arange(n - a + 1), n - a, q))
    error = (np.arange(n + 1) - n * q) / (p - q) - a
    assert cell_failure(p, q, a, n, radius) == pytest.approx(
        pmf[np.abs(error) >= radius].sum(), rel=1e-10
    )


# Proposition 1.


@pytest.mark.parametrize(
    ("num_classes", "beta", "failure"),
    [(10, 0.05, 0.048890), (10, 0.01, 0.009955), (50, 0.05, 0.048794)],
)
def test_proposition_1_is_nearly_tight_and_the_integer_radius_approaches_it(
    num_classes, beta, failure
):
    scale = 1e4
    published = scale * math.log(num_classes / beta)
    assert 1 - (1 - 2 * laplace.sf(published, scale=scale)) ** num_classes == pytest.approx(
        failure, abs=5e-7
    )
    radius = bsvs.error_radius(scale, num_classes, beta)
    assert radius == pytest.approx(published, abs=2)
    exact = 1 - (1 - 2 * dlaplace.sf(radius - 1, 1 / scale)) ** num_classes
    assert exact == pytest.approx(failure, rel=3e-4)
    assert exact <= beta


def test_integer_noise_breaks_the_published_radius_and_not_the_integer_one():
    scale = 20
    num_classes = 2
    beta = 0.05
    failure = lambda m: 1 - (1 - 2 * dlaplace.sf(math.ceil(m) - 1, 1 / scale)) ** num_classes  # noqa: E731
    assert failure(scale * math.log(num_classes / beta)) == pytest.approx(0.050041, abs=5e-7)
    assert failure(bsvs.error_radius(scale, num_classes, beta)) <= beta


# Theorem 1.


@pytest.mark.parametrize(
    ("epsilon", "votes", "radius", "least"),
    [(0.1, 1, 27280, 13750), (1, 1, 2450.0, 1361), (4, 1, 442.7, 292.5), (1, 4, 10712, 5497)],
)
def test_theorem_1_at_60000_records_is_up_to_twice_what_is_needed(epsilon, votes, radius, least):
    bound = bsvs.theorem_1_radius(epsilon, votes, 60_000, NUM_CLASSES, BETA)
    assert bound == pytest.approx(radius, rel=1e-4)
    mechanism = randomized_response(epsilon, votes)
    for a in shares(60_000).values():
        assert least_radius(mechanism.p, mechanism.q, a, 60_000, TARGET) == pytest.approx(
            least, rel=3e-3
        )  # half a step of the estimate
        assert (
            0.6 * bound
            < bsvs.bernstein_radius(mechanism.p, mechanism.q, a, 60_000, NUM_CLASSES, BETA)
            < 0.83 * bound
        )


@pytest.mark.parametrize("epsilon", [0.1, 1, 4, 8])
@pytest.mark.parametrize("votes", [1, 4])
@pytest.mark.parametrize(("num_classes", "beta"), [(10, 0.05), (2, 0.5), (100, 1e-3)])
def test_theorem_1_holds_for_any_number_of_voters_from_its_least_n(
    epsilon, votes, num_classes, beta
):
    mechanism = randomized_response(epsilon, votes)
    least_n = math.ceil(3 * math.log(num_classes / beta) / mechanism.q)
    for n in (least_n, 3 * least_n, 60_000):
        radius = bsvs.theorem_1_radius(epsilon, votes, n, num_classes, beta)
        for share, a in shares(n).items():
            assert cell_failure(mechanism.p, mechanism.q, a, n, radius) < beta / num_classes / 2, (
                n,
                share,
            )


@pytest.mark.parametrize(("epsilon", "votes"), [(0.5, 1), (6, 2), (12, 1)])
def test_theorem_1_names_the_least_n_that_it_holds_for(epsilon, votes):
    with pytest.raises(ValueError, match="bernstein_radius") as error:
        bsvs.theorem_1_radius(epsilon, votes, 1, NUM_CLASSES, BETA)
    least_n = int(re.search(r"n >= (\d+)", str(error.value)).group(1))
    bsvs.theorem_1_radius(epsilon, votes, least_n, NUM_CLASSES, BETA)
    with pytest.raises(ValueError, match=f"n >= {least_n} "):
        bsvs.theorem_1_radius(epsilon, votes, least_n - 1, NUM_CLASSES, BETA)


def test_outside_its_condition_theorem_1_is_false():
    n = 100
    epsilon = 12
    radius = bsvs.theorem_1_radius(epsilon, 1, 10_000, NUM_CLASSES, BETA) * math.sqrt(
        n / 10_000
    )  # it grows like sqrt(n)
    mechanism = randomized_response(epsilon, 1)
    assert n * mechanism.q == pytest.approx(0.247, abs=5e-4)
    assert cell_failure(mechanism.p, mechanism.q, 50, n, radius) == pytest.approx(0.0123, abs=5e-5)
    valid = bsvs.bernstein_radius(mechanism.p, mechanism.q, 50, n, NUM_CLASSES, BETA)
    assert cell_failure(mechanism.p, mechanism.q, 50, n, valid) <= TARGET


# Theorem 2, by its docstring's table; the order of the columns is that of `shares`.

THEOREM_2 = {
    (1, 1): (0.00014, 0.00017, 0.00035, 0.00074),
    (2, 1): (0.00052, 0.0011, 0.0076, 0.0245),
    (4, 1): (0.0010, 0.031, 0.232, 0.385),
    (1, 4): (0.0008, 0.0013, 0.0050, 0.0139),
    (4, 4): (0.0011, 0.076, 0.363, 0.512),
}


@pytest.mark.parametrize(("epsilon", "votes"), THEOREM_2)
def test_theorem_2_as_published_fails_as_often_as_documented(epsilon, votes):
    n = 60_000
    mechanism = collision(epsilon, votes, published_num_buckets(epsilon, votes))
    radius = bsvs.theorem_2_radius_as_published(epsilon, votes, n, NUM_CLASSES, BETA)
    for a, failure in zip(shares(n).values(), THEOREM_2[epsilon, votes], strict=True):
        half_digit = (
            0.5 * 10.0 ** -len(f"{failure:.4f}".split(".")[1].rstrip("0"))
            if failure >= 0.001
            else 5e-5
        )
        assert cell_failure(mechanism.p, mechanism.q, a, n, radius) == pytest.approx(
            failure, abs=half_digit
        )
    docstring = bsvs.theorem_2_radius_as_published.__doc__
    row = next(
        line.split()
        for line in docstring.splitlines()
        if line.split()[:2] == [str(epsilon), str(votes)]
    )
    assert tuple(map(float, row[2:])) == THEOREM_2[epsilon, votes]


@pytest.mark.parametrize(
    ("epsilon", "votes", "share"),
    [(2, 1, "half"), (2, 1, "all"), (4, 1, "a tenth"), (1, 4, "all"), (4, 4, "a tenth")],
)
@pytest.mark.parametrize("choice", ["rounded down", "best"])
def test_theorem_2_does_not_fail_for_want_of_an_integer_number_of_buckets(
    epsilon, votes, share, choice
):
    n = 60_000
    mechanism = collision(
        epsilon,
        votes,
        math.floor(published_num_buckets(epsilon, votes)) if choice == "rounded down" else None,
    )
    radius = bsvs.theorem_2_radius_as_published(
        epsilon, votes, n, NUM_CLASSES, BETA, mechanism.num_buckets
    )
    assert cell_failure(mechanism.p, mechanism.q, shares(n)[share], n, radius) > 1.2 * TARGET


# Bernstein.


def test_bernstein_radius_solves_its_inequality_and_is_below_the_sum_of_its_terms():
    p = 0.5
    q = 0.12
    a = 700
    n = 3000
    num_classes = 7
    beta = 0.02
    radius = bsvs.bernstein_radius(p, q, a, n, num_classes, beta)
    mechanism = collision(1.0, 1, 4)
    variance = (a * p * (1 - p) + (n - a) * q * (1 - q)) / (p - q) ** 2
    size = max(p, 1 - p, q, 1 - q) / (p - q)
    assert 2 * math.exp(-(radius**2) / (2 * variance + 2 * size * radius / 3)) == pytest.approx(
        beta / num_classes
    )
    log_ratio = math.log(2 * num_classes / beta)
    assert (
        math.sqrt(2 * log_ratio * variance)
        < radius
        < math.sqrt(2 * log_ratio * variance) + 2 * log_ratio / (3 * (p - q))
    )
    # The variance is that of a mechanism's estimate.
    member, other = mechanism.variances
    least = math.sqrt(2 * log_ratio * (a * member + (n - a) * other))
    assert (
        1 < bsvs.bernstein_radius(mechanism.p, mechanism.q, a, n, num_classes, beta) / least < 1.03
    )


@pytest.mark.parametrize(("epsilon", "votes"), THEOREM_2)
def test_bernstein_holds_where_theorem_2_fails_and_at_most_1_3_times_the_least_radius(
    epsilon, votes
):
    n = 60_000
    mechanism = collision(epsilon, votes, None)
    for share, a in shares(n).items():
        radius = bsvs.bernstein_radius(mechanism.p, mechanism.q, a, n, NUM_CLASSES, BETA)
        assert cell_failure(mechanism.p, mechanism.q, a, n, radius) <= TARGET, share
        assert 1.2 < radius / least_radius(mechanism.p, mechanism.q, a, n, TARGET) < 1.3, share


@pytest.mark.slow  # the fixed cases
def test_bernstein_holds_on_random_cases_and_is_close_where_the_tails_are_nearly_normal():
    rng = np.random.default_rng(0)
    compared = 0
    for case in range(300):
        n = int(10 ** rng.uniform(0, 5))
        q, p = np.sort(rng.uniform(0, 1, 2) if case % 2 else 10 ** rng.uniform(-3, 0, 2))
        a = int(rng.choice([0, n, rng.integers(n + 1)]))
        num_classes = int(rng.integers(2, 100))
        beta = 10 ** rng.uniform(-5, np.log10(BETA))
        radius = bsvs.bernstein_radius(p, q, a, n, num_classes, beta)
        assert cell_failure(p, q, a, n, radius) <= beta / num_classes, (
            n,
            p,
            q,
            a,
            num_classes,
            beta,
        )
        if a * p * (1 - p) + (n - a) * q * (1 - q) > 300:
            assert radius < 1.35 * least_radius(p, q, a, n, beta / num_classes), (
                n,
                p,
                q,
                a,
                num_classes,
                beta,
            )
            compared += 1
    assert compared > 50


def test_bernstein_needs_its_linear_term_where_few_messages_support_a_cell():
    p = 0.5
    q = 0.001
    n = 100
    num_classes = 10
    beta = 1e-3
    variance = n * q * (1 - q) / (p - q) ** 2
    assert (
        cell_failure(p, q, 0, n, math.sqrt(2 * variance * math.log(2 * num_classes / beta)))
        > beta / num_classes
    )
    assert (
        cell_failure(p, q, 0, n, bsvs.bernstein_radius(p, q, 0, n, num_classes, beta))
        <= beta / num_classes
    )


@pytest.mark.parametrize(
    ("p", "q", "voters"),
    [(0.2, 0.2, 1), (0.1, 0.3, 1), (1.1, 0.3, 1), (0.5, -0.1, 1), (0.5, 0.1, -1), (0.5, 0.1, 11)],
)
def test_bernstein_refuses_what_is_no_randomizer_or_no_count(p, q, voters):
    with pytest.raises(ValueError, match="Expected 0 <="):
        bsvs.bernstein_radius(p, q, voters, 10, NUM_CLASSES, BETA)
