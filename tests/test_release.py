"""Release noise against its exact law.

Release noise has no seed, so these tests draw anew on every run. Each distribution test has a
false-alarm rate of 1e-6.
"""

import ast
import itertools
import math
import os
import subprocess
import sys
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import rknn_jax
from rknn_jax.mechanisms import one_to_one
from rknn_jax.mechanisms.one_to_one import OneToOne
from rknn_jax.mechanisms.permute_and_flip import PermuteAndFlip
from rknn_jax.privacy import contributions, exact_noise
from rknn_jax.privacy.exact_noise import (
    discrete_gaussian,
    discrete_laplace,
    permute_and_flip,
    safe_scale,
)
from tests.test_accounting import imported

FALSE_ALARM_RATE = 1e-6
DRAWS = 50_000
NOISES = [discrete_laplace, discrete_gaussian, permute_and_flip]
each_noise = pytest.mark.parametrize("noise", NOISES)


def discrete_laplace_pmf(x, scale):
    return math.tanh(0.5 / scale) * np.exp(-np.abs(x) / scale)


def discrete_gaussian_pmf(x, stddev):
    support = np.arange(-math.ceil(40 * stddev), math.ceil(40 * stddev) + 1)
    return np.exp(-(x**2) / (2 * stddev**2)) / np.exp(-(support**2) / (2 * stddev**2)).sum()


def permute_and_flip_pmf(counts, scale):
    """Average over all orders in which classes are visited: the first whose coin of bias
    exp((count - max)/scale) shows heads wins.
    """
    heads = np.exp((np.array(counts) - max(counts)) / scale)
    winners = np.zeros(len(counts))
    orders = list(itertools.permutations(range(len(counts))))
    for order in orders:
        reached = 1.0
        for label in order:
            winners[label] += reached * heads[label] / len(orders)
            reached *= 1 - heads[label]
    return winners


def assert_drawn_from(draws, pmf):
    """Chi-square of draws 0, 1, ...

    against their probabilities, cells with fewer than 10 expected pooled into one.
    """
    observed = np.bincount(draws, minlength=len(pmf)).astype(float)
    expected = len(draws) * np.asarray(pmf)
    rare = expected < 10
    observed, expected = (
        np.append(values[~rare], values[rare].sum()) for values in (observed, expected)
    )
    keep = expected > 0
    assert observed[~keep].sum() == 0
    statistic = np.sum((observed[keep] - expected[keep]) ** 2 / expected[keep])
    assert stats.chi2.sf(statistic, keep.sum() - 1) > FALSE_ALARM_RATE


@pytest.mark.long
@pytest.mark.parametrize("scale", [0.5, pytest.param(2.0, marks=pytest.mark.slow), 20.0])
@pytest.mark.parametrize(
    ("noise", "pmf"),
    [(discrete_laplace, discrete_laplace_pmf), (discrete_gaussian, discrete_gaussian_pmf)],
)
def test_the_noise_has_its_exact_law_whatever_the_count(noise, pmf, scale):
    counts = np.resize([0, 7, -3, 10**12], DRAWS)
    drawn = noise(counts, scale) - counts
    reach = math.ceil(45 * scale)
    assert np.abs(drawn).max() <= reach  # beyond 45 scales: below 1e-19 a draw
    assert_drawn_from(drawn + reach, pmf(np.arange(-reach, reach + 1), scale))


@pytest.mark.long
@pytest.mark.parametrize(
    ("counts", "scale"),
    [
        ((5, 3, 3, 0), 2.0),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (((7, 7), 1.0), ((0, 40), 20.0), ((3, 1, 2), 0.25))
        ),
    ],
)
def test_the_winner_has_the_law_of_permute_and_flip(counts, scale):
    winners = permute_and_flip(np.tile(counts, (10_000, 1)), scale)
    assert_drawn_from(winners, permute_and_flip_pmf(counts, scale))


@pytest.mark.long
def test_the_chi_square_would_notice_a_wrong_law():
    """The faults that a sampler could have: twice the scale, rounded continuous noise, a missing
    zero, Gumbel noise for exponential.
    """
    rng = np.random.default_rng(0)
    reach = 90
    pmf = discrete_laplace_pmf(np.arange(-reach, reach + 1), 2.0)
    doubled = discrete_laplace(np.zeros(DRAWS, np.int64), 4.0)
    rounded = np.round(rng.laplace(scale=2.0, size=DRAWS)).astype(int)
    without_zero = rng.choice(
        np.delete(np.arange(-reach, reach + 1), reach),
        p=np.delete(pmf, reach) / (1 - pmf[reach]),
        size=DRAWS,
    )
    for wrong in (doubled, rounded, without_zero):
        with pytest.raises(AssertionError):
            assert_drawn_from(np.clip(wrong, -reach, reach) + reach, pmf)
    gumbel = (np.array([5, 3, 3, 0]) + rng.gumbel(scale=2.0, size=(20_000, 4))).argmax(1)
    with pytest.raises(AssertionError):
        assert_drawn_from(gumbel, permute_and_flip_pmf((5, 3, 3, 0), 2.0))


def test_one_vote_more_changes_the_winner_by_one_scale_and_a_moved_vote_by_at_most_two():
    """What `permute_and_flip` promises of a row, over all rows of three counts up to 4."""
    scale = 2.0
    moved = 0.0
    for counts in itertools.product(range(5), repeat=3):
        before = np.log(permute_and_flip_pmf(counts, scale))
        more = np.log(permute_and_flip_pmf((counts[0] + 1, *counts[1:]), scale))
        swapped = np.log(permute_and_flip_pmf((counts[0] + 1, counts[1] - 1, counts[2]), scale))
        assert np.abs(more - before).max() <= 1 / scale + 1e-12
        moved = max(moved, np.abs(swapped - before).max())
    assert (
        1 / scale < moved <= 2 / scale
    )  # so the scale for add-remove would not do for replace-one


@pytest.mark.parametrize("num_neighbors", [1, 2])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_a_record_changes_a_permutation_by_its_epsilon(relation, num_neighbors):
    """Three by three counts up to 2, and every record that joins or is replaced."""
    mechanism = OneToOne(0.8, 3, 3, num_neighbors=num_neighbors, relation=relation)
    orders = one_to_one.permutations(3)

    def cast(place, label):
        votes = np.zeros((3, 3), int)
        votes[list(place), label] = 1
        return votes.ravel()

    def logs(counts):
        scores = counts.reshape(3, 3)[np.arange(3), orders].sum(axis=1)
        return np.log(permute_and_flip_pmf(scores, mechanism.scale))

    places = itertools.combinations(range(3), num_neighbors)
    single = np.array([cast(place, label) for place in places for label in range(3)])
    most = 0.0
    rng = np.random.default_rng(0)
    for counts in rng.integers(0, 3, (4, 9)):
        before = single if relation == "replace-one" else np.zeros((1, 9), int)
        known = {tuple(one): logs(counts + one) for one in (*before, *single)}
        for here, there in itertools.product(before, single):
            most = max(most, np.abs(known[tuple(here)] - known[tuple(there)]).max())
    assert 0.45 < most <= 0.8 + 1e-12


def test_a_person_moves_every_score_in_one_direction_by_one_vote_at_most():
    """Persons of 1 to 6 records with any classes, two votes each: 300 of them, beside others."""
    grid, orders = 60, one_to_one.permutations(3)
    rng = np.random.default_rng(1)
    moved = []
    for _ in range(300):
        size = rng.integers(1, 7)
        person = np.append(rng.integers(1, 4, 8), np.zeros(size, int))
        queries = rng.permuted(np.tile(np.arange(3), (len(person), 1)), axis=1)[:, :2]
        cells = 3 * queries + rng.integers(0, 3, (len(person), 1))
        with_all = contributions.shared_votes(cells, person, 9, grid)
        without = contributions.shared_votes(cells[:8], person[:8] - 1, 9, grid)
        change = np.asarray(with_all - without).reshape(3, 3)
        moved.append(change[np.arange(3), orders].sum(axis=1))
    assert np.min(moved) >= 0
    assert np.max(moved) == grid


@pytest.mark.long
def test_a_simulated_permutation_has_the_law_of_a_released_one():
    """Six permutations, 1,000 keys, chi-square at a fixed seed."""
    mechanism = OneToOne(0.5, 3, 3)
    counts = np.array([[5, 1, 0], [4, 6, 1], [0, 2, 3]])
    orders = one_to_one.permutations(3)
    keys = jax.random.split(jax.random.key(0), 1_000)
    drawn = jax.vmap(lambda key: mechanism.estimate(key, jnp.asarray(counts), 30))(keys)
    chosen = np.asarray(drawn).argmax(axis=2)
    numbers = (chosen[:, None] == orders).all(axis=2).argmax(axis=1)
    np.testing.assert_array_equal(orders[numbers], chosen)
    scores = counts[np.arange(3), orders].sum(axis=1)
    assert_drawn_from(numbers, permute_and_flip_pmf(scores, mechanism.scale))


@pytest.mark.parametrize("gap", [1, 4, 9])
def test_a_swap_wins_as_often_as_its_closed_form(gap):
    """Two queries that lead by the gap each: the other permutation wins by a score of both."""
    mechanism = OneToOne(0.5, 2, 2)
    chances = permute_and_flip_pmf(np.array([2 * gap, 0]), mechanism.scale)
    assert mechanism.flip_prob(gap) == pytest.approx(chances[1], abs=1e-9)
    one = PermuteAndFlip(0.5, 2, 2)
    chances = permute_and_flip_pmf(np.array([gap, 0]), one.scale)
    assert one.flip_prob(gap) == pytest.approx(chances[1], abs=1e-9)


def test_a_permutation_is_drawn_by_its_score():
    """Six permutations of three classes, 1,000 exact draws, chi-square; and none is given twice."""
    mechanism = OneToOne(0.5, 3, 3)
    counts = np.array([[5, 1, 0], [4, 6, 1], [0, 2, 3]])
    orders = one_to_one.permutations(3)
    scores = counts[np.arange(3), orders].sum(axis=1)
    released = mechanism.releases(counts, 1_000).argmax(axis=2)
    numbers = (released[:, None] == orders).all(axis=2).argmax(axis=1)
    np.testing.assert_array_equal(orders[numbers], released)
    assert_drawn_from(numbers, permute_and_flip_pmf(scores, mechanism.scale))


def test_permutations_that_cannot_all_be_tried_are_refused():
    for num_queries, num_classes in ((9, 9), (4, 3)):
        with pytest.raises(ValueError, match=f"num_queries={num_queries}, num_classes"):
            OneToOne(1.0, num_queries, num_classes)


@each_noise
def test_two_calls_differ(noise):
    counts = np.zeros((40, 10), np.int64)
    assert not np.array_equal(noise(counts, 20.0), noise(counts, 20.0))


@pytest.mark.long
def test_a_forked_process_draws_other_noise():
    code = (
        "import os, numpy as np; from rknn_jax.privacy.exact_noise import discrete_laplace as "
        "draw\n"
        "zeros = np.zeros(8, int); draw(zeros, 1e6)\n"
        "child = os.fork(); print(draw(zeros, 1e6), flush=True); child and os.wait()"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(rknn_jax.__file__).parents[1])}
    lines = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(set(lines)) == len(lines) == 2


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0,), (2, 0)])
@pytest.mark.parametrize("noise", [discrete_laplace, discrete_gaussian])
def test_shapes_stay_and_integers_stay_integers(noise, shape):
    drawn = noise(np.zeros(shape, np.int32), 3.0)
    assert drawn.shape == shape
    assert drawn.dtype == np.int64


def test_winners_are_one_label_a_row():
    winners = permute_and_flip(np.zeros((5, 3), np.int64), 3.0)
    assert winners.shape == (5,)
    assert winners.dtype == np.int32
    assert permute_and_flip(np.zeros((0, 3), np.int64), 3.0).shape == (0,)
    np.testing.assert_array_equal(
        permute_and_flip(np.eye(4, dtype=np.int64) * 1000, 1.0), np.arange(4)
    )


def test_the_counts_given_are_not_changed():
    counts = np.arange(10)
    discrete_laplace(counts, 5.0)
    np.testing.assert_array_equal(counts, np.arange(10))


@each_noise
@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_scale_that_hides_nothing_is_refused(noise, scale):
    with pytest.raises(ValueError, match=r"0 < (scale|stddev) < infinity"):
        noise(np.zeros((2, 2), np.int64), scale)


@each_noise
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.bool_, np.uint64, object, "U1"])
def test_counts_that_are_not_integers_are_refused(noise, dtype):
    with pytest.raises(ValueError, match="integer counts"):
        noise(np.zeros((2, 2)).astype(dtype), 1.0)


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (3, 0)])
def test_a_winner_needs_rows(shape):
    with pytest.raises(ValueError, match="num_queries, num_classes"):
        permute_and_flip(np.zeros(shape, np.int64), 1.0)


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1 / 3, 1e-6, 7.7, 1e-300, 1.03125, 65 / 64])
@pytest.mark.parametrize("sensitivity", [1, 2, 3, 20, 1000])
def test_the_safe_scale_is_the_smallest_that_opendp_maps_to_epsilon(sensitivity, epsilon):
    """And no more than the decimal that the ledger charges, which may be a little less than the
    float.
    """
    scale = safe_scale(sensitivity, epsilon)
    charged = Fraction(str(epsilon))
    assert Fraction(exact_noise._epsilon(scale, sensitivity)) <= charged
    assert Fraction(exact_noise._epsilon(math.nextafter(scale, 0), sensitivity)) > charged
    assert scale == pytest.approx(sensitivity / epsilon, rel=1e-15)


def test_division_alone_would_cost_more_than_was_charged():
    assert any(
        exact_noise._epsilon(2 / epsilon, 2) > epsilon
        for epsilon in np.random.default_rng(0).uniform(0.01, 1, 50)
    )


@pytest.mark.parametrize(
    ("sensitivity", "epsilon"),
    [(0, 1.0), (-2, 1.0), (1.5, 1.0), (True, 1.0), (2, 0.0), (2, math.nan), (2, math.inf)],
)
def test_a_scale_for_nothing_is_refused(sensitivity, epsilon):
    with pytest.raises(ValueError, match=r"sensitivity|epsilon"):
        safe_scale(sensitivity, epsilon)


@pytest.mark.long
def test_opendps_refusals_are_value_errors_in_our_words():
    with pytest.raises(ValueError, match="nothing was released"):
        safe_scale(2, 5e-324)  # the scale overflows


@pytest.mark.long
def test_a_release_knows_no_seed_and_opendp_draws_in_one_file():
    package = Path(rknn_jax.__file__).parent
    source = (package / "privacy/exact_noise.py").read_text()
    attributes = {
        node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)
    }
    assert not attributes & {"random", "default_rng", "seed", "key"}
    assert not imported(source) & {"jax", "random"}
    importers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "opendp" in imported(path.read_text())
    }
    # The other one writes a guarantee as a measurement of OpenDP, and draws nothing.
    assert importers == {"privacy/exact_noise.py", "privacy/interchange.py"}


@contextmanager
def forced(values):
    """Stand in for OpenDP: samplers that return `values`, and remember their scale."""
    made = []

    class Samplers:
        def make_laplace(self, domain, metric, scale):
            made.append(scale)
            return lambda counts: list(np.asarray(counts) + values)

        make_gaussian = make_laplace

        def make_noisy_max(self, domain, metric, measure, scale):
            made.append(scale)
            return lambda row: int(np.argmin(row))

    class Metrics:
        def __getattr__(self, name):
            return lambda **given: None

    @contextmanager
    def opened():
        yield Samplers(), Metrics(), None, None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_noise, "_opendp", opened)
        yield made


@pytest.mark.parametrize("noise", [discrete_laplace, discrete_gaussian])
@pytest.mark.parametrize("scales", [-1e12, -1000, -41, -6, -5, 0, 5, 6, 7, 41, 1000, 1e12])
def test_whatever_the_sampler_draws_is_added_in_full(noise, scales):
    """No draw is cut, wrapped, or drawn again: a bound at any scale has an infinite epsilon."""
    counts = np.array([[0, 7], [-3, 10**12]])
    with forced(int(scales * 2)) as made:
        np.testing.assert_array_equal(noise(counts, 2.0) - counts, int(scales * 2))
    assert made == [2.0]


def test_a_winner_that_is_far_behind_stays_the_winner():
    with forced(0) as made:
        np.testing.assert_array_equal(permute_and_flip(np.array([[10**9, 0], [0, 9]]), 2.0), [1, 0])
    assert made == [2.0]


def test_every_cell_has_noise_of_its_own():
    """The sampler is asked once, for all cells together, and each draw stays in its place."""
    values = np.arange(6) * 1000
    with forced(values):
        drawn = discrete_laplace(np.zeros((2, 3), np.int64), 1.0)
    np.testing.assert_array_equal(drawn.ravel(), values)
