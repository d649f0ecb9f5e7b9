"""Records that check labels instead of voting: their privacy, and what they measure."""

import dataclasses
import itertools
import json
import math
import traceback
from dataclasses import replace

import jax
import numpy as np
import pytest

from rknn_jax import check
from rknn_jax.answers import measured
from rknn_jax.check import Checkers, Checks, Drawn
from rknn_jax.check_noise import SimulatedNoise
from rknn_jax.labelers._sum_labeler import Labeling
from rknn_jax.privacy import renyi, roles
from rknn_jax.privacy.events import (
    Concentrated,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Pure,
)
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.roles import CHOOSE, MEASURE, RECALL, VOTE, Roles
from rknn_jax.records.labels import MISSING
from rknn_jax.release import checking

SHARES = (0.02, 0.05, 0.03)


def laplace(value, scale):
    """Return P[discrete Laplace noise = value]."""
    decay = math.exp(-1 / scale)
    return (1 - decay) / (1 + decay) * decay ** abs(value)


def winners(counts, scale):
    """Return the probability of each winner of permute-and-flip by its definition."""
    counts = np.asarray(counts, float)
    found = np.zeros(len(counts))
    heads = np.exp((counts - counts.max()) / scale)
    for order in itertools.permutations(range(len(counts))):
        rest = 1 / math.factorial(len(counts))
        for place in order:
            found[place] += rest * heads[place]
            rest *= 1 - heads[place]
    return found


# One query, two classes. A record is a class, and None one that is absent (add-remove). Laws are
# of noisy numbers that are cut to a few values, which is post-processing.
FAR = 80
LARGE = 3


def noisy_law(value, scale):
    """Return the law of a number with discrete Laplace noise, cut to [-LARGE, LARGE]."""
    law = np.zeros(2 * LARGE + 1)
    for noise in range(-FAR, FAR + 1):
        law[np.clip(value + noise, -LARGE, LARGE) + LARGE] += laplace(noise, scale)
    return law / law.sum()


def joint_law(records, epsilon, relation, *, role_probs, twice=False):
    """Return the law of all that a release shows, by the roles that its records may have.

    The winner of the vote decides between two labelings, "all 0" and "all 1", whose agreement is
    then measured. The checks see records of their role alone.
    """
    units = [one for one in records if one is not None]
    moved = 2 if relation == "replace-one" else 1
    law = np.zeros((2 * LARGE + 1, 2, len(records) + 1, 2 * LARGE + 1, 2 * LARGE + 1))
    for given in itertools.product((VOTE, CHOOSE, MEASURE), repeat=len(units)):
        weight = math.prod(role_probs(one)[role] for one, role in zip(units, given, strict=True))
        by = {
            role: [one for one, own in zip(units, given, strict=True) if own == role]
            for role in (VOTE, CHOOSE, MEASURE)
        }
        voters = units if twice else by[VOTE]
        votes = noisy_law(sum(2 * one - 1 for one in voters), moved / epsilon)
        chosen = winners([by[CHOOSE].count(label) for label in (0, 1)], moved / epsilon)
        size = len(by[MEASURE])
        for label in (0, 1):
            # The order of the labelings depends on the vote, as that of a release does.
            for leads, named in ((slice(None, LARGE), 1 - label), (slice(LARGE, None), label)):
                right = by[MEASURE].count(named)
                shown = noisy_law(right, 1 / epsilon)
                if relation == "add-remove":  # their number is private, so both sums have noise
                    both = np.outer(shown, noisy_law(size - right, 1 / epsilon))
                    place = 0
                else:
                    both = np.outer(shown, np.eye(2 * LARGE + 1)[0])
                    place = size
                law[leads, label, place] += (
                    weight * chosen[label] * np.multiply.outer(votes[leads], both)
                )
    return law


def loss(first, second):
    """Return the largest log-ratio of two laws."""
    there = first > 0
    if not np.array_equal(there, second > 0):
        return math.inf
    return float(np.abs(np.log(first[there] / second[there])).max())


def even(record):
    del record
    return {VOTE: 0.5, CHOOSE: 0.25, MEASURE: 0.25}


@pytest.mark.long
@pytest.mark.parametrize(
    "relation", ["replace-one", pytest.param("add-remove", marks=pytest.mark.long)]
)
def test_votes_and_checks_of_all_neighbors_together_cost_epsilon_once(relation):
    epsilon = 0.7
    others = [list(one) for n in (1, 2) for one in itertools.product((0, 1), repeat=n)]
    worst = 0.0
    for rest in others:
        pairs = [(0, 1)] if relation == "replace-one" else [(0, None), (1, None)]
        for first, second in pairs:
            laws = [
                joint_law([*rest, one], epsilon, relation, role_probs=even)
                for one in (first, second)
            ]
            worst = max(worst, loss(*laws))
    assert 0.5 * epsilon < worst <= epsilon * (1 + 1e-9)


def test_a_record_that_votes_and_checks_costs_more():
    epsilon = 0.7
    laws = [
        joint_law([0, 1, one], epsilon, "replace-one", role_probs=even, twice=True)
        for one in (0, 1)
    ]
    assert loss(*laws) > 1.1 * epsilon


def test_a_role_that_depends_on_the_label_costs_more():
    def by_label(record):
        checks = 0.45 if record else 0.05
        return {VOTE: 1 - 2 * checks, CHOOSE: checks, MEASURE: checks}

    laws = [joint_law([0, 1, one], 0.7, "replace-one", role_probs=by_label) for one in (0, 1)]
    assert loss(*laws) > 1.1 * 0.7


def test_roles_have_their_shares_whatever_the_blocks_and_differ_with_shard_and_key():
    found = Roles.drawn(*SHARES)
    whole = found.of_rows(0, 0, 200_000)
    shares = np.bincount(whole, minlength=4) / len(whole)
    # Five standard deviations of a share of 200,000: one false alarm in 400,000 runs.
    assert np.abs(shares - [found.vote, *SHARES]).max() < 5 * math.sqrt(0.09 / 200_000)
    starts = [0, 1, 777, 4095, 4096, 4097, 9000, 199_999]
    for first, last in itertools.pairwise([*starts, 200_000]):
        assert np.array_equal(found.of_rows(0, first, last - first), whole[first:last])
    assert len(found.of_rows(0, 5, 0)) == 0
    for other in (found.of_rows(1, 0, 9000), Roles.drawn(*SHARES).of_rows(0, 0, 9000)):
        agree = np.mean((other == VOTE) == (whole[:9000] == VOTE))
        assert abs(agree - (0.9**2 + 0.1**2)) < 5 * math.sqrt(0.15 / 9000)
    again = Roles.of(found.words())
    assert again == found
    assert np.array_equal(again.of_rows(0, 0, 9000), whole[:9000])


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("beyond", [1, 5, 20, 200])
def test_noise_beyond_all_records_says_no_more_than_that_all_agree(known, beyond):
    """Otherwise one release in forty would say `100% (100 to 100)` of labels that hardly are."""
    all_agree = measured.interval(120, 0, 1.0, known=known)
    none_agrees = measured.interval(0, 120, 1.0, known=known)
    assert all_agree.right == 1
    assert all_agree.low < 0.97
    assert measured.interval(120 + beyond, -beyond, 1.0, known=known) == all_agree
    assert measured.interval(-beyond, 120 + beyond, 1.0, known=known) == none_agrees


def test_roles_of_a_key_are_those_that_a_paid_release_began_with():
    """By another law of the same key, a record that has voted could check once it resumes."""
    known = Roles(bytes(range(32)), 0.1, 0.2, 0.1)
    assert known.of_rows(3, 4090, 12).tolist() == [0, 3, 2, 0, 0, 3, 0, 0, 0, 1, 2, 0]
    names = np.array([[1, 2], [3, 4], [5, 6]], np.uint64)
    assert known.of_persons(names).tolist() == [1, 2, 3]


def test_a_person_has_one_role_that_others_do_not_change():
    found = Roles.drawn(*SHARES)
    names = np.random.default_rng(0).integers(0, 2**63, (5000, 2)).astype(np.uint64)
    mine = found.of_persons(names)
    assert np.array_equal(found.of_persons(names[::-1]), mine[::-1])
    assert np.array_equal(found.of_persons(names[7:8]), mine[7:8])
    shares = np.bincount(mine, minlength=4) / len(mine)
    assert np.abs(shares - [found.vote, *SHARES]).max() < 5 * math.sqrt(0.09 / 5000)


def test_a_persons_weight_is_that_of_the_records_that_can_be_used():
    """Else one blurred photo would make the other ones of its person count less."""
    ids = np.int32([2, MISSING, 1, 0, MISSING])
    person = np.uint64([[1, 1], [1, 1], [1, 1], [2, 2], [3, 3]])
    part = checking.Checking(
        np.full(5, MEASURE, np.int8), np.zeros((5, 3), np.float32), ids, person, np.zeros(4, int)
    )
    checkers = a_check(unit="person")
    found = checking.together([part], checkers)
    grid = checkers.grid
    np.testing.assert_array_equal(found.units, [grid // 2, 0, grid // 2, grid, 0])


def test_neither_words_for_roles_nor_an_error_show_their_key():
    found = Roles.drawn(*SHARES)
    assert "key" not in repr(found)
    words = found.words()
    for damaged in (words[:-3], words.replace("0.02", '"few"'), words.replace("0.02", "2")):
        with pytest.raises(ValueError, match="Expected") as caught:
            Roles.of(damaged)
        assert found.key.hex() not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.3), (-0.1, 0.1, 0.1), (1.0, 0.0, 0.0)])
def test_shares_that_leave_nobody_to_vote_are_refused(shares):
    with pytest.raises(ValueError, match="some records have to vote"):
        Roles.drawn(*shares)


def test_the_guarantee_of_both_is_that_of_the_votes():
    pure = Guarantee(1.0, 0.0, "replace-one", "central", (DiscreteLaplace(2.0, 2),))
    whole, epsilon = roles.guarantee(pure, curves=True)
    assert (whole.epsilon, whole.delta, epsilon) == (1.0, 0.0, 1.0)
    assert whole.events == (Pure(1.0),)


@pytest.mark.parametrize("event", [Gaussian(5.0, 2), DiscreteGaussian(5.0, 2), Concentrated(3.5)])
def test_the_guarantee_of_gaussian_votes_and_checks_is_that_of_the_votes(event):
    gaussian = Guarantee(1.0, 1e-5, "replace-one", "central", (event,))
    whole, epsilon = roles.guarantee(gaussian, curves=False)
    assert (whole.epsilon, whole.delta, whole.events, epsilon) == (1.0, 1e-5, (), 1.0)
    twice, _ = roles.guarantee(replace(gaussian, events=(event, event)), curves=True)
    whole, epsilon = roles.guarantee(gaussian, curves=True)
    assert twice.events[0].rho == pytest.approx(2 * whole.events[0].rho)
    for order in (1.5, 2.0, 8.0, 64.0, 1000.0):
        votes = renyi.renyi_divergence(gaussian.events, order)
        checks = renyi.renyi_divergence((Pure(epsilon),), order)
        assert checks <= renyi.renyi_divergence(whole.events, order) * (1 + 1e-9)
        assert votes == pytest.approx(renyi.renyi_divergence(whole.events, order))


def a_check(relation="replace-one", unit="record", epsilon=1.0, shares=SHARES, num_rows=40):
    rows = np.random.default_rng(0).normal(size=(num_rows, 3)).astype(np.float32)
    return Checkers(Roles.drawn(*shares), rows, "sqeuclidean", 4, epsilon, relation, unit)


def labeled(probabilities, *, smooth=True):
    found = np.asarray(probabilities, np.float32)
    return Labeling("", found, lambda: pytest.fail("not needed"), smooth)


class Recorded:
    """Draws without noise, which keep what they were asked for; the choice may be a given one."""

    def __init__(self, choice=None):
        self.asked = []
        self.choice = choice

    def winner(self, counts, scale):
        self.asked.append(("winner", counts, scale))
        return int(np.argmax(counts)) if self.choice is None else self.choice

    def laplace(self, counts, scale):
        self.asked.append(("laplace", counts, scale))
        return counts.copy()


def checks_of(checkers, rng, size=60):
    role = rng.integers(1, 4, size).astype(np.int8)
    points = rng.normal(size=(size, 3)).astype(np.float32)
    ids = rng.integers(0, 4, size).astype(np.int32)
    units = np.full(size, checkers.grid, np.int64)
    return Checks(role, points, ids, units, np.bincount(role, minlength=4))


@pytest.mark.parametrize(
    ("relation", "unit", "runs"),
    [
        ("replace-one", "record", 60),
        ("add-remove", "record", 60),
        pytest.param("replace-one", "person", 300, marks=pytest.mark.long),
        pytest.param("add-remove", "person", 300, marks=pytest.mark.long),
    ],
)
def test_no_neighbor_moves_what_is_drawn_by_more_than_its_noise_is_for(relation, unit, runs):
    checkers = a_check(relation, unit)
    rng = np.random.default_rng(1)
    labelings = [labeled(rng.dirichlet(np.ones(4), 40)) for _ in range(3)]
    weighed = [labelings[0]._replace(weights=np.array([1.0, 0.3, 0.77, 0.01])), *labelings[1:]]
    largest = {"winner": 0.0, "laplace": 0.0}
    for run in range(runs):
        checks = checks_of(checkers, rng)
        one = rng.integers(len(checks.role))
        points, ids, units = checks.points.copy(), checks.ids.copy(), checks.units.copy()
        points[one], ids[one] = rng.normal(size=3), rng.integers(-1, 4)
        sizes = checks.sizes.copy()
        if relation == "add-remove" or ids[one] < 0:
            units[one] = 0
        if relation == "add-remove":  # how many there are of a role is private
            sizes[checks.role[one]] -= 1
        other = checks._replace(points=points, ids=ids, units=units, sizes=sizes)
        drawn = []
        told = []
        for each in (checks, other):
            noise = Recorded(choice=one % 3)  # what follows is compared for the same choice
            told.append(checkers.draw(each, weighed if run % 2 else labelings, noise).size)
            drawn.append(noise.asked)
        assert told[0] == told[1], "a number without noise"
        for (kind, first, scale), (_, second, _) in zip(*drawn, strict=True):
            moved = np.abs(first - second)
            # Permute-and-flip pays for the largest move, twice unless all go one way.
            steps = moved.sum()
            if kind == "winner":
                together = np.ptp(np.sign(first - second)) < 2
                steps = moved.max() * (1 if together else 2)
            largest[kind] = max(largest[kind], steps / scale)
    assert largest["winner"] <= 1 + 1e-9
    assert 0.9 < largest["laplace"] <= 1 + 1e-9


@pytest.mark.parametrize("unit", ["record", "person"])
def test_how_many_check_decides_nothing_where_it_is_private(unit):
    checkers = a_check("add-remove", unit)
    rng = np.random.default_rng(3)
    labelings = [labeled(rng.dirichlet(np.ones(4), 40)) for _ in range(3)]
    checks = checks_of(checkers, rng)
    asked = []
    for sizes in (checks.sizes, 4 * checks.sizes):
        noise = Recorded()
        drawn = checkers.draw(checks._replace(sizes=sizes), labelings, noise)
        asked.append([*(counts for _, counts, _ in noise.asked), [drawn.size]])
    for first, second in zip(*asked, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_an_interval_is_of_the_noise_that_was_drawn(relation):
    checkers = a_check(relation, epsilon=0.5, shares=(0.2, 0.2, 0.2))
    noise = Recorded(choice=0)
    checks = checks_of(checkers, np.random.default_rng(0), 600)
    labeling = labeled(np.full((40, 4), 0.25) + 0.1 * np.eye(4)[np.arange(40) % 4], smooth=False)
    drawn = checkers.draw(checks, [labeling], noise)
    found = checkers.measured(drawn, [""])
    [own, recall] = [scale for _, _, scale in noise.asked]
    known = relation == "replace-one"
    wrong = drawn.size - drawn.right if known else drawn.wrong
    assert found.share == measured.interval(drawn.right, wrong, own, known=known)
    assert found.recall == tuple(
        measured.interval(float(one), float(other), recall, known=False)
        for one, other in zip(drawn.recalled, drawn.missed, strict=True)
    )


@pytest.mark.parametrize(("known", "share"), [(True, 0.5), (False, 0.5), (True, 0.8)])
def test_an_interval_is_as_wide_as_chance_and_noise(known, share):
    """Their sum is nearly normal, as chance is more than half of it."""
    size, scale = 20_000, 40.0
    found = measured.interval(share * size, (1 - share) * size, scale, known=known)
    noise = 2 * scale**2 * (1 if known else share**2 + (1 - share) ** 2)
    width = 2 * 1.96 * math.sqrt(size * share * (1 - share) + noise) / size
    assert found.high - found.low == pytest.approx(width, rel=0.03)


def test_those_who_measure_do_not_choose_and_each_role_is_seen_once():
    checkers = a_check()
    rng = np.random.default_rng(2)
    labelings = [labeled(rng.dirichlet(np.ones(4), 40)) for _ in range(2)]
    checks = checks_of(checkers, rng)
    told = []
    for role in (CHOOSE, MEASURE, RECALL):
        noise = Recorded()
        alone = checks._replace(units=np.where(checks.role == role, checks.units, 0))
        checkers.draw(alone, labelings, noise)
        told.append(
            [bool(counts.ravel()[kind == "winner" :].any()) for kind, counts, _ in noise.asked]
        )
    assert told == [[True, False, False], [False, True, False], [False, False, True]]


@pytest.mark.parametrize(
    "relation", ["replace-one", pytest.param("add-remove", marks=pytest.mark.long)]
)
def test_a_labeling_that_is_no_better_is_hardly_ever_chosen(relation):
    checkers = a_check(relation, epsilon=0.5, shares=(0.3, 0.1, 0.0))
    rng = np.random.default_rng(6)
    size = 300
    role = np.full(size, CHOOSE, np.int8)
    noise = SimulatedNoise(jax.random.key(1))
    others = 0
    for _ in range(100):
        points = checkers.rows[rng.integers(0, 40, size)]
        ids = rng.integers(0, 4, size).astype(np.int32)
        checks = Checks(role, points, ids, np.ones(size, np.int64), np.bincount(role, minlength=4))
        pair = [labeled(np.eye(4)[rng.integers(0, 4, 40)], smooth=False) for _ in range(2)]
        others += checkers.draw(checks, pair, noise).choice
    # Both agree with a quarter of the records, and chance moves their difference by 11. The lead is
    # 21, or 6 where the number of records is private.
    assert others <= (12 if relation == "replace-one" else 45)


def test_the_lead_of_the_usual_labeling_fits_in_an_integer():
    checkers = dataclasses.replace(a_check(), epsilon=1e-18)
    nobody = np.zeros(0, np.int64)
    checks = Checks(np.zeros(0, np.int8), checkers.rows[:0], nobody, nobody, np.zeros(4, np.int64))
    noise = Recorded()
    checkers.draw(checks, [labeled(np.eye(4)[np.zeros(40, int)], smooth=False)] * 2, noise)
    assert noise.asked[0][1].tolist() == [2**62, 0]


def test_weights_choose_for_the_classes_of_the_public_rows():
    checkers = a_check(shares=(0.3, 0.1, 0.0))
    truth = np.repeat([0, 1], 20)
    common = labeled(np.eye(4)[np.zeros(40, int)], smooth=False)
    rare = labeled(np.eye(4)[np.where(truth, 1, 2)], smooth=False)
    size = 400
    points = checkers.rows[np.where(np.arange(size) < 300, 0, 39)]
    ids = np.where(np.arange(size) < 300, 0, 1).astype(np.int32)
    role = np.full(size, CHOOSE, np.int8)
    checks = Checks(role, points, ids, np.ones(size, np.int64), np.bincount(role, minlength=4))
    noise = Recorded()
    checkers.draw(checks, [rare, common], noise)
    weighed = Recorded()
    weights = np.array([0.1, 1.0, 1.0, 1.0])
    checkers.draw(checks, [rare._replace(weights=weights), common], weighed)
    assert np.argmax(noise.asked[0][1]) == 1
    assert np.argmax(weighed.asked[0][1]) == 0


@pytest.mark.long
@pytest.mark.parametrize("known", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_interval_covers_in_95_of_100_runs(known):
    rng = np.random.default_rng(3)
    for share, size, scale in [(0.8, 150, 2.0), (0.5, 100, 4.0), (0.97, 150, 1.0), (0.3, 60, 0.4)]:
        runs = 400 if known else 150
        right = rng.binomial(size, share, runs)
        noise = rng.geometric(1 - math.exp(-1 / scale), (4, runs))
        told = right + noise[0] - noise[1]
        rest = size - told if known else size - right + noise[2] - noise[3]
        covered = 0
        pairs, times = np.unique([told, rest], axis=1, return_counts=True)
        for one, other, count in zip(*pairs, times, strict=True):
            found = measured.interval(float(one), float(other), scale, known=known)
            assert 0 <= found.low <= found.right <= found.high <= 1
            covered += count * (found.low - 1e-4 <= share <= found.high + 1e-4)
        # At 95%, so few cover by chance in 1 of 500 times or less; the seed is fixed.
        assert covered / runs > (0.915 if known else 0.88), (share, size, scale)


def test_nobody_checks_unless_it_tells_something():
    assert check.shares(1400, 0.1, 10, several=True) == check.NOBODY
    found = check.shares(6000, 1.0, 10, several=True)
    assert found.measure == pytest.approx(0.05)
    assert found.choose == pytest.approx(0.025)
    assert found.recall == 0
    assert check.shares(6000, 1.0, 10, several=False).choose == 0
    large = check.shares(10**6, 1.0, 10, several=True)
    assert sum(large) < 0.01
    assert large.recall > 0
    for epsilon in (0.1, 0.5, 1, 3):
        for n in (100, 1000, 3000, 10**4, 10**6):
            chosen = check.shares(n, epsilon, 10, several=True)
            assert sum(chosen) <= 0.11
            if chosen.measure:  # as exact as promised, even where half is right
                size = round(n * chosen.measure - 2 * math.sqrt(n * chosen.measure))
                found = measured.interval(size / 2, size / 2, 1 / epsilon, known=True)
                assert (found.high - found.low) / 2 <= check.WORST * 1.05


@pytest.mark.long
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("unit", ["record", "person"])
def test_simulated_checks_choose_the_best_and_measure_it_within_their_intervals(relation, unit):
    checkers = a_check(relation, unit, epsilon=2.0, shares=(0.1, 0.1, 0.1), num_rows=400)
    rng = np.random.default_rng(4)
    truth = rng.integers(0, 4, 400)
    right = labeled(np.eye(4)[truth], smooth=False)
    wrong = labeled(np.eye(4)[rng.permutation(truth)], smooth=False)
    size = 3000
    near = rng.integers(0, 400, size)
    ids = np.where(rng.random(size) < 0.8, truth[near], rng.integers(0, 4, size))
    role = rng.integers(1, 4, size).astype(np.int8)
    units = np.full(size, checkers.grid, np.int64)
    checks = Checks(
        role, checkers.rows[near], ids.astype(np.int32), units, np.bincount(role, minlength=4)
    )
    noise = SimulatedNoise(jax.random.key(0))
    covered = 0
    for _ in range(40):
        drawn = checkers.draw(checks, [wrong, right], noise)
        again = Drawn.of(drawn.array())
        assert np.array_equal(again.array(), drawn.array())
        found = checkers.measured(again, ["bad", "good"])
        assert found is not None
        assert found.labeling == "good"
        assert found.checkers == pytest.approx(np.sum(role == MEASURE), abs=20)
        assert len(found.recall) == 4
        covered += found.low <= 0.85 <= found.high
        assert measured.Measured.of(json.loads(json.dumps(found.asdict()))) == found
    assert covered >= 33


@pytest.mark.long
def test_exact_draws_are_those_of_a_release():
    checkers = a_check(epsilon=5.0)
    rng = np.random.default_rng(5)
    labelings = [labeled(rng.dirichlet(np.ones(4), 40)) for _ in range(2)]
    checks = checks_of(checkers, rng, 2000)
    plain = checkers.draw(checks, labelings, Recorded())
    drawn = [checkers.draw(checks, labelings) for _ in range(15)]
    far = [one.right - plain.right for one in drawn]
    assert len({tuple(one.array()) for one in drawn}) > 1
    # The noise has scale 1/5: 30 would be exp(-150).
    assert max(map(abs, far)) < 30
    assert {one.size for one in drawn} == {int(checks.sizes[MEASURE])}
    hidden = replace(checkers, relation="add-remove").draw(checks, labelings)
    assert hidden.size == -1
