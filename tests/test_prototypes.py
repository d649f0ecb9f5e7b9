"""Class means and public prototypes: what one record moves, how much noise hides it, and how well
they label digits.
"""

import dataclasses
import functools
import itertools
import json
import math
import re
from fractions import Fraction
from operator import mul

import jax
import numpy as np
import pytest
from sklearn.datasets import load_digits

from rknn_jax.labelers import _class_sums, _one_sum, _tally, public_prototypes
from rknn_jax.labelers._class_sums import GRID, NoisySums
from rknn_jax.labelers._cosines import PublicCosines
from rknn_jax.labelers._public_ball import Ball, Spectrum
from rknn_jax.labelers.least_squares import LeastSquares
from rknn_jax.labelers.prototypes import BETWEEN, Prototypes, class_means
from rknn_jax.labelers.public_prototypes import PublicPrototypes
from rknn_jax.privacy import accounting, analytic_gaussian
from rknn_jax.privacy.ledger import Ledger, LedgerError
from rknn_jax.representations.pixels import Config as Pixels
from rknn_jax.types import Queries, Records
from train import distill
from train.experiment import Experiment

WIDTH = 6
NUM_CLASSES = 3

KINDS = tuple(itertools.product(("gaussian", "laplace"), ("replace-one", "add-remove")))
each_kind = pytest.mark.parametrize(("mechanism", "relation"), KINDS, ids=str)


class Account:
    """Ledger of a test, which remembers what it was charged."""

    def __init__(self):
        self.charges = []

    def charge(self, guarantee, purpose):
        self.charges.append((guarantee, purpose))


def asked(features):
    """Return a query for each row."""
    return Queries.alone(features, np.arange(len(features)))


@functools.cache
def public():
    return asked(np.random.default_rng(1).normal(size=(40, WIDTH)) * np.arange(1, WIDTH + 1))


def contributed(labeler, rows, labels, clients=None, queries=None):
    """Return what rows `[n, f]` with labels `[n]` contribute."""
    rows = np.asarray(rows, np.float32)
    clients = None if clients is None else np.asarray(clients, np.int32)
    records = Records(rows, np.asarray(labels, np.int32), clients)
    queries = public() if queries is None else queries
    return labeler.contribute(jax.random.key(0), records, lambda each: each, queries, NUM_CLASSES)


def extremes():
    """Yield rows that move the sums far: along axes and diagonals, near and beyond any radius."""
    rng = np.random.default_rng(2)
    axes = np.eye(WIDTH) * 1e6
    signs = rng.choice([-1.0, 1.0], (4, WIDTH)) * 1e6
    rows = [*axes[:2], *-axes[:2], *signs, *-signs, *rng.normal(size=(4, WIDTH)), np.zeros(WIDTH)]
    yield from itertools.product(rows, range(2))


def search(labeler):
    """Return the largest change of the sums between neighbors that a search finds."""
    single = [contributed(labeler, [row], [label], [7]).totals for row, label in extremes()]
    if labeler.unit == "person":  # persons of two records, in one class or in two
        pairs = itertools.islice(itertools.combinations(extremes(), 2), 0, None, 5)
        single += [
            contributed(labeler, [one[0], two[0]], [one[1], two[1]], [7, 7]).totals
            for one, two in pairs
        ]
    if labeler.relation == "add-remove":
        return max(np.linalg.norm(one.ravel(), labeler.norm) for one in single)
    stacked = np.stack([one.ravel() for one in single])
    return max(np.linalg.norm(stacked - one, labeler.norm, axis=1).max() for one in stacked)


@each_kind
@pytest.mark.parametrize("unit", ["record", "person"])
def test_one_unit_moves_the_sums_by_the_sensitivity_and_no_more(mechanism, relation, unit):
    labeler = Prototypes(mechanism=mechanism, relation=relation, unit=unit)
    assert 0.999 * labeler.sensitivity <= search(labeler) <= labeler.sensitivity


@each_kind
def test_features_that_are_not_clipped_are_found(mechanism, relation, monkeypatch):
    """A planted bug: the radius scales features and does not bound them."""
    scale = lambda ball, rows: (np.asarray(rows, np.float64) - ball.center) / ball.radius  # noqa: E731
    monkeypatch.setattr(Ball, "clip", scale)
    labeler = Prototypes(mechanism=mechanism, relation=relation)
    with pytest.raises(AssertionError, match="within the sensitivity"):
        search(labeler)
    monkeypatch.setattr(_class_sums.ClassSums, "bounds", lambda self, terms: np.array(True))
    assert search(labeler) > 1.5 * labeler.sensitivity


def test_counts_that_weigh_more_than_the_radius_are_found(monkeypatch):
    """A planted bug: the proof that counts are free needs them to be at most the radius."""
    monkeypatch.setitem(_class_sums.COUNT_UNITS, ("gaussian", "replace-one"), 2 * GRID)
    labeler = Prototypes()
    assert search(labeler) > 1.5 * labeler.sensitivity


@pytest.mark.parametrize("norm", [1, 2])
def test_clipped_integers_are_within_the_ball_exactly(norm):
    rows = np.random.default_rng(3).normal(size=(500, WIDTH)) * 1e4
    clipped = Ball.around(public(), norm).clip(rows)
    integers = np.trunc(clipped * GRID).astype(object)
    assert np.max(np.sum(np.abs(integers) ** norm, axis=1)) <= GRID**norm


HOSTILE = (0.0, 1.0, -5e-324, 1e-310, 1e38, -3e38, 1e154, -1e200, 1e306, -1.7e308, np.inf, np.nan)
"""Coordinates that overflow or underflow somewhere: in float32, by a quotient, or by a square."""


def hostile_rows():
    """Return pairs of such coordinates, float64 `[len(HOSTILE)², WIDTH]`."""
    rows = np.zeros((len(HOSTILE) ** 2, WIDTH))
    rows[:, :2] = list(itertools.product(HOSTILE, repeat=2))
    return rows


def hostile_balls():
    """Yield public rows with a tiny, an ordinary, and a huge radius, at the origin and far away."""
    spread = np.random.default_rng(1).normal(size=(40, WIDTH))
    for radius in (1e-310, 1e-3, 1.0, 1e30):
        for place in (0.0, 1.0, -1.7e308):
            yield asked(spread * radius + place)


ONE_SUM = [
    type(each)(mechanism=mechanism, relation=relation)
    for each in (Prototypes(), LeastSquares())
    for mechanism, relation in KINDS
] + [PublicPrototypes(), PublicPrototypes(relation="add-remove")]


@pytest.mark.long
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("labeler", ONE_SUM, ids=str)
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value", "ignore:divide by zero")
def test_no_float_moves_a_sum_beyond_the_sensitivity(labeler, dtype):
    """A search over integer sums of one record each, for every ball."""
    for queries in hostile_balls():
        tally = labeler.tally(queries, NUM_CLASSES)
        rows = hostile_rows().astype(dtype)
        single = np.concatenate([[each] for row in rows for each in [summed(tally, row, 0)]])
        other = np.stack([summed(tally, row, 1) for row in rows[::7]])
        worlds = np.concatenate([single, other, np.zeros((1, *tally.shape), np.int64)])
        assert largest_move(labeler, worlds) <= labeler.sensitivity


def summed(tally, row, label):
    return tally.total(row[None], np.array([label], np.int32))


def largest_move(labeler, worlds):
    """Return the largest change between sums, as the labeler's noise measures it."""
    if labeler.relation == "add-remove":
        pairs = [worlds]
    else:
        pairs = (worlds - one for one in worlds[::3])
    if isinstance(labeler, PublicPrototypes):
        return max(
            (np.maximum(d, 0).max(axis=2) + np.maximum(-d, 0).max(axis=2)).sum(axis=1).max()
            for d in pairs
        )
    return max(
        np.linalg.norm(d.reshape(len(d), -1).astype(float), labeler.norm, axis=1).max()
        for d in pairs
    )


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_a_row_that_has_no_clipped_form_counts_as_the_center(mechanism):
    """It is no error, which would tell that one record, and the rows beside it stay as they are."""
    tally = Prototypes(mechanism=mechanism).tally(asked(np.eye(WIDTH) * 1e-3), NUM_CLASSES)
    rows = np.array([[1e306] + [0.0] * (WIDTH - 1), [1e-3] * WIDTH, [np.nan] * WIDTH])
    totals = tally.total(rows, np.array([0, 1, 2], np.int32))
    np.testing.assert_array_equal(totals[[0, 2], :-1], 0)
    np.testing.assert_array_equal(totals[:, -1], tally.count_units)
    np.testing.assert_array_equal(totals[1], summed(tally, rows[1], 1)[1])


@pytest.mark.parametrize(
    ("labeler", "wrong"),
    [
        (Prototypes(), GRID + 1),
        (Prototypes(), -(2**31)),
        (Prototypes(mechanism="laplace"), GRID // 2 + 1),
        (PublicPrototypes(), public_prototypes.GRID + 1),
        (PublicPrototypes(), -1),
    ],
    ids=str,
)
@pytest.mark.parametrize("unit", ["record", "person"])
def test_terms_beyond_the_sensitivity_never_reach_a_sum(labeler, wrong, unit, monkeypatch):
    """Planted: a record's terms as a clipping that overflows would leave them."""
    tally = dataclasses.replace(labeler, unit=unit).tally(public(), NUM_CLASSES)
    real = type(tally).terms

    def spoiled(self, parts):
        terms = real(self, parts)
        terms[-1, :2] = wrong
        return terms

    monkeypatch.setattr(type(tally), "terms", spoiled)
    parts = tally.parts(np.ones((3, WIDTH), np.float32), np.zeros(3, np.int32))
    persons = _tally.Persons(np.array([0, 0, 1]), np.array([7, 7, 8], np.uint64))
    add = {
        "person": lambda: tally.bounded(parts, persons),
        "record": lambda: tally.total(np.ones((3, WIDTH), np.float32), np.zeros(3, np.int32)),
    }[unit]
    with pytest.raises(AssertionError, match="nothing was released"):
        add()


@pytest.mark.parametrize("norm", [1, 2])
def test_a_clipped_norm_is_below_1_in_exact_arithmetic(norm):
    """Noise is made for a norm of 1, and the product of two roundings may pass it."""
    rows = np.random.default_rng(5).normal(size=(300, WIDTH)) * 1e3
    for row in Ball.around(public(), norm).clip(rows):
        assert 1 - 1e-11 < sum(Fraction(abs(x)) ** norm for x in row.tolist()) <= 1


@pytest.mark.parametrize("norm", [1, 2])
def test_half_of_the_public_rows_are_in_the_ball_wherever_they_lie(norm):
    rows = np.random.default_rng(6).normal(size=(40, WIDTH)) + 100
    ball = Ball.around(asked(rows), norm)
    np.testing.assert_allclose(ball.center, rows.mean(axis=0))
    assert np.sum(np.linalg.norm(rows - rows.mean(axis=0), norm, axis=1) < ball.radius) == 20


def test_a_row_is_clipped_alone():
    """Its result is the same beside any other rows, NaN among them."""
    rows = np.random.default_rng(4).normal(size=(8, WIDTH))
    ball = Ball.around(public(), 2)
    whole = ball.clip(rows)
    broken = rows.copy()
    broken[1:] = np.nan
    np.testing.assert_array_equal(ball.clip(broken)[0], whole[0])
    np.testing.assert_array_equal(ball.clip(broken)[1:], 0)


@pytest.mark.parametrize("label", [-1, NUM_CLASSES, 100])
@pytest.mark.parametrize("labeler", [Prototypes(), PublicPrototypes(), Prototypes(unit="person")])
def test_a_label_that_no_class_has_adds_nothing(labeler, label):
    assert not contributed(labeler, np.ones((2, WIDTH)), [label, label], [0, 0]).totals.any()


@pytest.mark.parametrize("block", [1, 20])
@pytest.mark.parametrize("labeler", [Prototypes(), PublicPrototypes(), Prototypes(unit="person")])
def test_a_sum_is_the_same_in_blocks_of_any_size(labeler, block, monkeypatch):
    """No block has more numbers than it may, or than one row has."""
    rows = np.random.default_rng(3).normal(size=(9, WIDTH))
    given = labeler, rows, np.arange(9) % NUM_CLASSES, np.arange(9) // 2
    whole = contributed(*given).totals
    assert whole.any()
    kind = type(labeler.tally(public(), NUM_CLASSES))
    terms, seen = kind.terms, []

    def watched(tally, parts):
        found = terms(tally, parts)
        seen.append(found.size <= max(block, found.shape[1]))
        return found

    monkeypatch.setattr(kind, "terms", watched)
    monkeypatch.setattr(_tally, "BLOCK", block)
    np.testing.assert_array_equal(contributed(*given).totals, whole)
    assert seen
    assert all(seen)


@each_kind
def test_the_noise_is_as_large_as_it_is_said_to_be(mechanism, relation):
    labeler = Prototypes(mechanism=mechanism, relation=relation, epsilon=0.7)
    noise = labeler.simulated_noise(jax.random.key(5), (200, 200))
    np.testing.assert_allclose(noise.std(), labeler.stddev, rtol=0.02)
    assert abs(noise.mean()) < 5 * labeler.stddev / 200
    scale = labeler.sensitivity / 0.7
    multiplier = analytic_gaussian.gaussian_noise_multiplier(0.7, labeler.delta)
    expected = math.sqrt(2) * scale if mechanism == "laplace" else multiplier * labeler.sensitivity
    assert labeler.stddev == pytest.approx(expected)


class Shown(Prototypes):
    """Prototypes that show the noisy sums."""

    def read(self, noisy, stddev, encode, queries, guarantee):
        return noisy, stddev, guarantee


@pytest.mark.parametrize("kind", [Prototypes, PublicPrototypes, LeastSquares])
def test_the_lines_tell_the_noise_in_the_units_of_what_it_hides(kind):
    """A person moves the sum as far as a record, and has more units of weight."""
    told = []
    for unit in ("record", "person"):
        labeler = kind(epsilon=2.0, unit=unit)
        noise = labeler.exact_noise()
        lines = labeler.lines("noise", public(), labeler.tally(public(), NUM_CLASSES), noise)
        words = rf"noise of standard deviation (\S+), where one {unit} moves the sum by (\S+) at"
        found = re.match(words, dict(lines)["noise"])
        told.append([float(number.replace(",", "")) for number in found.groups()])
        assert told[-1][0] / told[-1][1] == pytest.approx(noise.stddev / labeler.sensitivity, 1e-2)
    assert told[0] == pytest.approx(told[1], 1e-2)


@each_kind
def test_a_release_is_charged_and_draws_integers(mechanism, relation):
    labeler = Shown(mechanism=mechanism, relation=relation, epsilon=0.5)
    votes = contributed(labeler, np.ones((300, WIDTH)), np.arange(300) % NUM_CLASSES)
    account = Account()
    drawn = [labeler.release_exact(votes, public(), account, "a test") for _ in range(40)]
    noise = np.stack([noisy - votes.totals for noisy, _, _ in drawn])
    stddev, guarantee = drawn[0][1:]
    assert noise.dtype.kind == "i"
    np.testing.assert_allclose(noise.std(), stddev, rtol=0.12)
    assert account.charges == [(guarantee, "a test")] * 40
    assert (guarantee.sampler, guarantee.relation) == ("release", relation)
    assert guarantee.delta == (0 if mechanism == "laplace" else labeler.delta)
    cost = min(accounting.epsilons(guarantee.events, labeler.delta).values())
    assert 0.98 * 0.5 <= cost <= 0.5 * (1 + 1e-9)
    # Concentrated DP needs more noise than the simulation's analytic formula.
    assert stddev >= 0.999 * labeler.stddev


def test_a_refused_charge_draws_nothing(monkeypatch):
    class Empty:
        def charge(self, guarantee, purpose):
            raise RuntimeError("spent")

    for name in ("discrete_gaussian", "discrete_laplace", "permute_and_flip"):
        monkeypatch.setattr(_class_sums.exact_noise, name, lambda *_: pytest.fail("drawn"))
    for labeler in (Prototypes(), Prototypes(mechanism="laplace"), PublicPrototypes()):
        votes = contributed(labeler, np.ones((4, WIDTH)), [0, 1, 2, 0])
        with pytest.raises(RuntimeError, match="spent"):
            labeler.release_exact(votes, public(), Empty(), "a test")


def test_nothing_is_released_without_noise():
    labeler = Prototypes(epsilon=math.inf)
    votes = contributed(labeler, np.ones((4, WIDTH)), [0, 1, 2, 0])
    with pytest.raises(ValueError, match="finite epsilon for a release"):
        labeler.release_exact(votes, public(), Account(), "a test")


def test_class_means_are_the_posterior_of_the_noisy_sums():
    """Against the formula of a normal prior, with dense matrices."""
    rng = np.random.default_rng(6)
    rows = rng.normal(size=(50, WIDTH)) @ rng.normal(size=(WIDTH, WIDTH))
    spectrum = Spectrum.of(rows, np.ones(50))
    covariance = np.cov(rows.T, bias=True)
    counts = np.array([3.0, 40.0, 1000.0])
    sums, stddev = rng.normal(size=(3, WIDTH)) * counts[:, None], 20.0
    means, remaining = class_means(NoisySums(sums, counts, stddev, 1.0), spectrum)
    for label, size in enumerate(counts):
        seen = (1 - BETWEEN) * covariance / size + (stddev / size) ** 2 * np.eye(WIDTH)
        gain = BETWEEN * covariance @ np.linalg.inv(BETWEEN * covariance + seen)
        center = rows.mean(axis=0)
        np.testing.assert_allclose(means[label], center + gain @ (sums[label] / size - center))
        left = np.trace(BETWEEN * covariance - gain @ (BETWEEN * covariance))
        np.testing.assert_allclose(remaining[label], left, rtol=1e-6)


# Public prototypes


@pytest.mark.parametrize("unit", ["record", "person"])
def test_utilities_are_sums_of_clipped_cosines(unit):
    rng = np.random.default_rng(7)
    rows, labels = rng.normal(size=(30, WIDTH)), rng.integers(0, NUM_CLASSES, 30)
    person = np.arange(30) // 3
    labeler = PublicPrototypes(unit=unit)
    found = contributed(labeler, rows, labels, person).totals / (GRID_OF_COSINES * labeler.grid)
    features = np.asarray(public().features, np.float64)
    center = features.mean(axis=0)
    cosine = np.array([[_cosine(row - center, one - center) for one in features] for row in rows])
    pairs = [_cosine(a - center, b - center) for a, b in itertools.combinations(features, 2)]
    low, high = np.quantile(pairs, [0.5, 1 - 1 / (2 * NUM_CLASSES)])
    shares = np.clip((cosine - low) / (high - low), 0, 1)
    weights = 1 / 3 if unit == "person" else 1.0
    expected = [weights * shares[labels == label].sum(axis=0) for label in range(NUM_CLASSES)]
    np.testing.assert_allclose(found, expected, atol=30 / GRID_OF_COSINES)


GRID_OF_COSINES = public_prototypes.GRID


def _cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_one_unit_moves_utilities_by_the_sensitivity_and_no_more(relation, unit):
    """Rows at candidates reach the upper end, and rows opposite to them the lower."""
    labeler = PublicPrototypes(relation=relation, unit=unit)
    features = np.asarray(public().features, np.float64)
    center = features.mean(axis=0)
    rows = [*(features[:6]), *(center - (features[:6] - center)), np.full(WIDTH, np.nan)]
    size = 2 if unit == "person" else 1
    found = [
        contributed(labeler, [row] * size, labels[:size], [4] * size).totals
        for row in rows
        for labels in ((0, 0), (1, 2))
    ]
    nothing = np.zeros_like(found[0])
    before = found if relation == "replace-one" else [nothing]
    moved = max(_rise_and_fall(after - one) for one in before for after in found)
    assert labeler.sensitivity * 0.99 <= moved <= labeler.sensitivity
    assert min(one.min() for one in found) >= 0


def _rise_and_fall(change):
    return np.maximum(change, 0).max(axis=1).sum() + np.maximum(-change, 0).max(axis=1).sum()


def test_utilities_that_no_records_can_have_do_not_fit():
    tally = PublicPrototypes(1.0).tally(public(), NUM_CLASSES)
    utilities = np.zeros(tally.shape, np.int64)
    one = public_prototypes.GRID
    for first, last, fits in ((2, 1, True), (2, 2, False), (3, 0, True), (-1, 0, False)):
        utilities[0, :2] = first * one if first > 0 else first
        utilities[-1, -1] = last * one
        assert tally.fits(utilities, 3) == fits


def test_a_cosine_is_exact_in_whichever_order_it_is_added_up():
    rows = np.random.default_rng(0).normal(size=(40, 60))
    found = PublicCosines(np.zeros(60), 0.0, 1.0, np.zeros(1)).directions(rows)
    exact = [sum(map(mul, map(Fraction, row), map(Fraction, found[0]))) for row in found]
    assert list(map(Fraction, found @ found[0])) == exact


def test_cosines_that_are_not_clipped_are_found(monkeypatch):
    """A planted bug: the range scales cosines and does not bound them."""
    scale = lambda public, cosines: (cosines - public.low) / (public.high - public.low)  # noqa: E731
    monkeypatch.setattr(PublicCosines, "clip", scale)
    labeler = PublicPrototypes()
    with pytest.raises(AssertionError, match="within the sensitivity"):
        contributed(labeler, np.asarray(public().features), np.zeros(40))
    everything = lambda self, terms: np.array(True)  # noqa: E731
    monkeypatch.setattr(public_prototypes.ClassUtilities, "bounds", everything)
    found = [contributed(labeler, [row], [0]).totals for row in np.asarray(public().features)]
    assert max(_rise_and_fall(b - a) for a in found for b in found) > 1.1 * labeler.sensitivity


def test_a_worse_row_is_chosen_as_often_as_permute_and_flip_says():
    """Of two rows, the one that is g behind wins with probability exp(-g/t)/2."""
    labeler = PublicPrototypes(epsilon=1.0)
    behind = labeler.sensitivity  # g = t
    totals = np.tile([0, behind], (3000, 1))
    pair = asked(np.array([[1.0, 0.0], [-1.0, 0.0]], np.float32))
    votes = _one_sum.Sums(totals, lambda each: each)
    chosen = labeler.release(jax.random.key(8), votes, pair, len(totals)).model.prototypes
    np.testing.assert_allclose(np.mean(chosen[:, 0] > 0), math.exp(-1) / 2, atol=0.03)


def test_a_release_of_prototypes_is_charged_and_exact():
    labeler = PublicPrototypes(epsilon=40.0, relation="add-remove")
    rows = np.repeat(np.asarray(public().features)[[3, 8, 20]], 50, axis=0)
    votes = contributed(labeler, rows, np.repeat(np.arange(3), 50))
    account = Account()
    answers = labeler.release_exact(votes, public(), account, "a test")
    [(guarantee, _)] = account.charges
    assert answers.guarantee == guarantee
    assert (guarantee.sampler, guarantee.epsilon, guarantee.delta) == ("release", 40.0, 0.0)
    directions = answers.model.cosines.directions(public().features)
    chosen = np.argmax(answers.model.prototypes @ directions.T, axis=1)
    behind = votes.totals.max(axis=1) - votes.totals[np.arange(3), chosen]
    # A row that is 40 noise means behind wins with probability e^-40.
    assert (behind <= labeler.sensitivity).all()


# Digits


class Split:
    """Digits of scikit-learn: 500 public rows and 1,297 private ones, standardized."""

    def __init__(self, seed=0):
        rows, classes = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(rows))
        first, others = order[:500], order[500:]
        scale = rows[first].std(axis=0) + 1e-6
        rows = ((rows - rows[first].mean(axis=0)) / scale).clip(-5, 5).astype(np.float32)
        self.queries = asked(rows[first])
        self.truth = classes[first]
        self.private = Records(rows[others], classes[others].astype(np.int32))

    def without(self, label, kept):
        """Return the private records with only a few of one class."""
        mine = np.flatnonzero(self.private.labels == label)[kept:]
        images = np.delete(self.private.images, mine, axis=0)
        return Records(images, np.delete(self.private.labels, mine))

    def labels(self, labeler, records=None, noise=0):
        records = self.private if records is None else records
        key = jax.random.key(noise)
        votes = labeler.contribute(key, records, lambda each: each, self.queries, 10)
        return labeler.release(key, votes, self.queries, 10).labels

    def accuracy(self, labeler, noise=0):
        return np.mean(self.labels(labeler, noise=noise) == self.truth)


@functools.cache
def digits():
    return Split()


@pytest.mark.parametrize(
    ("labeler", "least"),
    [
        (Prototypes(epsilon=5.0), 0.85),
        (Prototypes(epsilon=0.5), 0.65),
        (Prototypes(epsilon=5.0, relation="add-remove"), 0.85),
        (Prototypes(epsilon=5.0, mechanism="laplace"), 0.8),
        (PublicPrototypes(epsilon=5.0), 0.75),
        (PublicPrototypes(epsilon=0.2), 0.6),
    ],
    ids=str,
)
def test_digits_are_labeled(labeler, least):
    assert digits().accuracy(labeler) >= least


def test_without_noise_the_means_are_as_good_as_those_of_all_records():
    """Nearest class means of the private rows themselves, in float64, label 90% of the digits."""
    split = digits()
    ball = Ball.around(split.queries, 2)
    rows, public_rows = ball.clip(split.private.images), ball.clip(split.queries.features)
    means = np.stack([rows[split.private.labels == label].mean(axis=0) for label in range(10)])
    nearest = np.argmin(((public_rows[:, None] - means) ** 2).sum(axis=2), axis=1)
    found = split.labels(Prototypes(epsilon=math.inf))
    assert np.mean(found == nearest) > 0.99


@pytest.mark.parametrize("labeler", [Prototypes(epsilon=5.0), PublicPrototypes(epsilon=5.0)])
def test_a_small_class_keeps_its_label(labeler):
    """40 records of one class beside 130 of each other."""
    split = digits()
    found = split.labels(labeler, split.without(3, kept=40))
    assert np.mean(found[split.truth == 3] == 3) > 0.5


def test_a_class_without_records_takes_few_rows():
    """Nothing is known of its mean, so it stays at the center, with the variance that remains."""
    split = digits()
    for epsilon in (1.0, 5.0, math.inf):
        found = split.labels(Prototypes(epsilon=epsilon), split.without(3, kept=0))
        assert np.mean(found == 3) < 0.1


# Settings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"relation": "swap"}, "relation='swap'"),
        ({"mechanism": "cauchy"}, "mechanism='cauchy'"),
        ({"unit": "household"}, "unit='household'"),
    ],
)
def test_settings_that_do_not_exist_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        LeastSquares(**given)
    if "mechanism" not in given:
        with pytest.raises(ValueError, match=words):
            PublicPrototypes(**given)


def test_a_run_without_delta_names_the_remedy():
    with pytest.raises(ValueError, match="pass delta 1e-5"):
        Prototypes().for_round(1.0, 0.0, "replace-one", "none")
    share = Prototypes(mechanism="laplace").for_round(1.0, 0.0, "replace-one", "none")
    assert share.guarantee_of(1, 1, 1).delta == 0


@pytest.mark.parametrize("labeler", [Prototypes(epsilon=5.0), PublicPrototypes(epsilon=5.0)])
def test_the_classifier_is_saved_and_labels_other_rows(labeler, tmp_path):
    split = digits()
    votes = labeler.contribute(
        jax.random.key(0), split.private, lambda each: each, split.queries, 10
    )
    model = labeler.release(jax.random.key(0), votes, split.queries, 10).model
    found = model.predict_proba(split.private.images)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    assert np.mean(found.argmax(axis=1) == split.private.labels) > 0.75
    model.save(tmp_path / "model")
    [file] = (tmp_path / "model").iterdir()
    with np.load(file) as saved:
        for name, values in model.params.items():
            np.testing.assert_array_equal(saved[name], values)


def test_one_public_row_is_enough_to_ask():
    """Neither radius nor range exists then."""
    one = asked(np.ones((1, WIDTH), np.float32))
    for labeler in (Prototypes(), LeastSquares(), PublicPrototypes()):
        votes = contributed(labeler, np.ones((5, WIDTH)), [0, 0, 0, 1, 2], queries=one)
        answers = labeler.release(jax.random.key(0), votes, one, NUM_CLASSES)
        assert np.isfinite(answers.probabilities).all()


@pytest.mark.parametrize("labeler", [Prototypes(epsilon=5.0), PublicPrototypes(epsilon=5.0)])
def test_one_call_on_arrays_labels_every_row_by_itself(labeler):
    split = digits()
    rows, labels = split.private.images, split.private.labels
    found = labeler.label(split.queries.features, rows, labels, 10, key=jax.random.key(0))
    assert len(found.answers.labels) == 500
    np.testing.assert_array_equal(found.labels, found.answers.labels)
    assert np.mean(found.labels == split.truth) > 0.75


@pytest.mark.long
@pytest.mark.parametrize(
    ("labeler", "file"),
    [(Prototypes(), "linear.npz"), (PublicPrototypes(), "prototypes.npz")],
    ids=str,
)
def test_a_run_labels_digits_and_saves_the_classifier(labeler, file, tmp_path):
    out = tmp_path / "run"
    given = {"representation": Pixels(), "student": None, "epsilon": 1.0, "delta": 1e-5}
    distill.main(Experiment(labeler=labeler, out=out, **given))
    assert (out / "model" / file).exists()
    told = json.loads((out / "result.json").read_text())
    assert told["label_accuracy"] > 0.5
    assert told["model_test_accuracy"] > 0.5


@pytest.mark.parametrize(
    "labeler",
    [
        Prototypes(epsilon=0.4),
        Prototypes(epsilon=0.4, mechanism="laplace"),
        PublicPrototypes(epsilon=0.4),
    ],
    ids=str,
)
def test_a_ledger_pays_once_and_refuses_the_second_release(labeler, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", "sha256:rows", 0.5, 1e-4)
    votes = contributed(labeler, np.ones((30, WIDTH)), np.arange(30) % NUM_CLASSES)
    answers = labeler.release_exact(votes, public(), ledger, "a test")
    assert float(ledger.spent.epsilon) == pytest.approx(0.4)
    assert answers.guarantee.sampler == "release"
    with pytest.raises(LedgerError):
        labeler.release_exact(votes, public(), ledger, "a second one")


def test_a_direction_does_not_depend_on_how_others_lie_in_memory():
    """The first coordinate of each row lies at the border of two roundings."""
    rows = np.random.default_rng(0).normal(size=(4096, 64))
    cosines = (np.rint(0.1 * 2**25) + np.arange(4096) + 0.5) / 2**25
    rows[:, 0] = cosines * np.sqrt((rows[:, 1:] ** 2).sum(axis=1) / (1 - cosines**2))
    directions = PublicCosines(np.zeros(64), 0.0, 1.0, np.zeros(1)).directions
    alone = np.concatenate([directions(row[None]) for row in rows])
    np.testing.assert_array_equal(directions(np.asfortranarray(rows)), alone)
