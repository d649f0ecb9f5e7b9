"""The audit: bounds that hold as often as they say, honest mechanisms that it leaves alone,
planted bugs that it finds, every one.
"""

import dataclasses
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binomtest

from rknn_jax import bsvs, labelers, mechanisms, neighbors
from rknn_jax.audit import bounds, games, games_labeler, neighboring, verdict
from rknn_jax.audit.finding import Bound, Finding
from rknn_jax.audit.game import HALF_THE_NOISE, Control, Game
from rknn_jax.labelers import rknn
from rknn_jax.labelers.dpdfd import DPDFD
from rknn_jax.mechanisms import base
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.mechanisms.gaussian import Gaussian
from rknn_jax.mechanisms.laplace import Laplace
from rknn_jax.mechanisms.local import LocalRandomizer, voted_bits
from rknn_jax.mechanisms.multi_message import MultiMessage
from rknn_jax.mechanisms.randomized_response import RandomizedResponse
from rknn_jax.mechanisms.subset_selection import SubsetSelection
from rknn_jax.privacy import accounting, analytic_gaussian
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.students import dpsgd
from tests.conftest import modules
from tests.plants import planted
from train import audit as train_audit
from train import stages

EXAMPLES = [
    example
    for module in modules(mechanisms, leave_out=mechanisms.CONTRACTS)
    for example in module.EXAMPLES
]
RELEASABLE = [
    example
    for example in EXAMPLES
    if any(
        "release" in kind.__dict__ for kind in type(example).__mro__ if kind is not CentralMechanism
    )
    or (
        isinstance(example, LocalRandomizer)
        and type(example).respond is not LocalRandomizer.respond
    )
]
CONFIDENCE = 1 - 1e-5
"""Some 60 audits of honest mechanisms and labelers here: one calls one of them broken with a
probability below 1e-3 in all.
"""

RUNS = 6000
PURE = Guarantee(1.0, 0.0, "replace-one", "local", (Pure(1.0),))


def first(examples, *kinds):
    """Parametrize by mechanism: every example in `make test-all`, and in `make test` the first
    of a few kinds.
    """
    kinds = [next(m for m in examples if isinstance(m, kind)) for kind in kinds]
    marked = [
        m if any(m is one for one in kinds) else pytest.param(m, marks=pytest.mark.slow)
        for m in examples
    ]
    return pytest.mark.parametrize("mechanism", marked, ids=str)


def few(played):
    """Two of many games, of different changes: an audit of all takes as long as they are many."""
    return [played[0], played[3]]


def drawn_by(key):
    """A generator of NumPy's, which draws as many numbers as one likes without a program for
    each number.
    """
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def normals(shift, scale=1.0):
    """One number from one of two normals."""

    def observe(key, world, runs):
        return drawn_by(key).normal(shift * world, scale, (runs, 1))

    return Game("two normals", observe)


def multiplier_of(guarantee):
    """Of one Gaussian, the standard deviation for a change of 1."""
    return guarantee.events[0].parameter / math.sqrt(guarantee.events[0].count)


def found_in(played, guarantee, runs=RUNS, seed=0, confidence=CONFIDENCE):
    return verdict.audit(jax.random.key(seed), played, guarantee, runs, confidence)


# The statistics


def test_deltas_of_bounds_are_probabilities():
    assert list(bounds.DELTAS) == sorted(bounds.DELTAS)
    assert 0 < bounds.DELTAS[0] < bounds.DELTAS[-1] < 1


def test_intervals_are_clopper_and_pearsons():
    """Of both probabilities, each end at a quarter of the error."""
    for hits in ([0, 7], [3, 40], [50, 50], [12, 0]):
        ends = [binomtest(k, 50).proportion_ci(1 - 0.01 / 2, method="exact") for k in hits]
        (l0, u0), (l1, u1) = ends
        for delta in (0.0, 0.05):
            pairs = [(l1, u0), (l0, u1), (1 - u1, 1 - l0), (1 - u0, 1 - l1)]
            expected = max(math.log((more - delta) / less) for more, less in pairs if more > delta)
            np.testing.assert_allclose(
                bounds.lower_bounds(np.array(hits), 50, 0.01, [delta]), [expected], rtol=1e-9
            )


@pytest.mark.parametrize(
    ("p0", "p1"), [(0.01, 0.03), (0.3, 0.5), (0.5, 0.5), (0.9, 0.99), (0.0, 0.2)]
)
def test_bounds_hold_as_often_as_they_say(p0, p1):
    """Of 20,000 experiments at most 5% bound epsilon above the truth; Clopper-Pearson is
    careful, so that some 2% do at a fixed seed.
    """
    hits = np.random.default_rng(0).binomial(1000, [p0, p1], (20_000, 2))
    lower = bounds.lower_bounds(hits, 1000, 0.05, [0.0])[:, 0]
    with np.errstate(divide="ignore"):
        truth = max(np.log([p1, p0, 1 - p1, 1 - p0]) - np.log([p0, p1, 1 - p0, 1 - p1]))
    assert np.mean(lower > truth) <= 0.05
    if p1 - p0 > 0.05:
        assert np.median(lower) > 0, "and it is not so careful that it sees nothing"


def test_the_curve_of_a_named_noise_is_its_own_and_that_of_an_opaque_guarantee_one_point():
    guarantee = Gaussian(1.0, 3, 2).guarantee(5)
    curve = bounds.claimed_curve(guarantee)
    assert curve[0] == (1e-5, 1.0)
    for delta, epsilon in curve[1:]:
        assert epsilon == pytest.approx(
            analytic_gaussian.gaussian_epsilon(multiplier_of(guarantee), delta), rel=1e-6
        )
    assert bounds.claimed_curve(dataclasses.replace(guarantee, events=())) == ((1e-5, 1.0),)
    with pytest.raises(ValueError, match="finite epsilon"):
        bounds.claimed_curve(dataclasses.replace(guarantee, epsilon=math.inf))


def test_two_events_that_are_looked_at_share_the_error():
    """One at the claimed delta, and one elsewhere on the curve; both always tell the inputs."""
    guarantee = Gaussian(1.0, 3, 2).guarantee(5)
    game = Game("told apart", lambda key, world, runs: np.full((runs, 1), float(world)))
    found = found_in([game], guarantee, 200, confidence=0.99)
    each = bounds.lower_bounds(np.array([0, 100]), 100, 0.01 / 2, [guarantee.delta])
    assert found.lower_bound == pytest.approx(each[0])


@pytest.mark.long
def test_what_was_chosen_is_judged_on_other_runs():
    """Two inputs that are alike, 40 values, an error of 10%: of 30 audits 12 or more are called
    broken with probability 1e-4 at most.

    Judged on the runs that the event was chosen by, nearly all would be.
    """
    game = Game("the same twice", lambda key, world, runs: drawn_by(key).normal(size=(runs, 40)))
    nothing = Guarantee(1e-6, 0.0, "replace-one", "central", (Pure(1e-6),))
    broken = [
        verdict.audit(jax.random.key(seed), [game], nothing, 200, 0.9).broken for seed in range(30)
    ]
    assert sum(broken) < 12


def test_of_many_games_the_one_that_tells_is_played():
    played = [normals(0.0)] * 5 + [normals(0.3)._replace(inputs="far apart")] + [normals(0.1)] * 3
    tight = Guarantee(0.1, 0.0, "replace-one", "central", (Pure(0.1),))
    found = found_in(played, tight, 40_000)
    assert found.broken
    assert found.inputs == "far apart"


def test_a_gaussian_is_told_from_a_weaker_one_by_common_events():
    """At delta = 1e-5 nothing can be seen of it in so few runs; on the curve it can."""
    guarantee = Gaussian(1.0, 3, 2).guarantee(5)
    multiplier = multiplier_of(guarantee)
    honest, weak = (
        found_in([normals(1.0, multiplier * factor)], guarantee, 40_000) for factor in (1.0, 0.6)
    )
    assert not honest.broken
    assert weak.broken
    assert weak.lower_bound < 1 < bounds.claimed_curve(guarantee)[0][1] + 1e-9
    assert weak.evidence.delta > 1e-5
    assert weak.evidence.lower > weak.evidence.claimed


def test_the_bound_comes_near_the_truth():
    """Of randomized response, whose epsilon a single event has."""
    keep = math.exp(1) / (1 + math.exp(1))
    game = Game(
        "a bit or the other",
        lambda key, world, runs: (drawn_by(key).random((runs, 1)) < keep) ^ bool(world),
    )
    found = found_in([game], PURE, 100_000)
    assert 0.93 < found.lower_bound <= 1


def test_noise_that_cancels_in_a_combination_of_three_values_is_found():
    """No value alone and no difference of two tells anything; the last less the two others does."""

    def observe(key, world, runs):
        noise = drawn_by(key).normal(size=(runs, 2))
        return np.concatenate([noise, noise.sum(axis=1, keepdims=True) + 0.01 * world], axis=1)

    found = found_in([Game("a hundredth", observe)], PURE)
    assert found.broken
    assert "linear" in found.event


@pytest.mark.long
def test_power_is_that_of_the_events_of_the_weaker_noise():
    guarantee = Gaussian(1.0, 3, 2).guarantee(5)
    multiplier = multiplier_of(guarantee)
    powers = [
        verdict.audit(
            jax.random.key(0),
            [normals(1.0, multiplier)],
            guarantee,
            runs,
            0.999,
            Control("half", [normals(1.0, multiplier / 2)]),
        ).power.probability
        for runs in (100, 1600, 20_000)
    ]
    assert powers[0] < 0.2
    assert powers[2] > 0.99
    assert powers == sorted(powers)


def test_what_cannot_be_audited_is_refused():
    for name, arguments in {
        "runs=10": {"runs": 10},
        "confidence=1": {"confidence": 1},
        "at least one game": {"games": []},
        r"shape \(50,\)": {"games": [Game("flat", lambda key, world, runs: np.zeros(runs))]},
    }.items():
        with pytest.raises(ValueError, match=name):
            verdict.audit(
                jax.random.key(0),
                **{"games": [normals(0.0)], "guarantee": PURE, "runs": 100} | arguments,
            )


# Honest mechanisms and labelers


@pytest.mark.parametrize(
    "mechanism",
    [DiscreteLaplace(1.0, 4, 3), DiscreteLaplace(1.0, 5, 3, 2, 2), RandomizedResponse(1.0, 4, 3)],
    ids=str,
)
def test_games_vote_for_every_cell_and_miss_some_votes(mechanism):
    """Each record is one that `bsvs.cells` could make: r labels of each of k queries, or some of
    these.
    """
    pairs = list(neighboring.changes(np.random.default_rng(0), mechanism))
    voted = np.concatenate([np.concatenate(pair) for pair in pairs])
    assert set(voted[voted >= 0]) == set(range(mechanism.num_cells))
    for votes in itertools.chain(*pairs):
        cast = votes[votes >= 0]
        assert len(set(cast)) == len(cast)
        assert (
            np.bincount(cast // mechanism.num_classes, minlength=1) <= mechanism.labels_per_record
        ).all()
    assert any((b < 0).all() for _, b in pairs)
    partly = [(votes < 0).any() and (votes >= 0).any() for votes in itertools.chain(*pairs)]
    assert any(partly) == (mechanism.votes_per_record > 1)
    for a, b in pairs:
        assert (np.sort(a) != np.sort(b)).any()


@pytest.mark.long
def test_each_change_is_played_among_a_few_and_in_two_crowds():
    played = games.of_mechanism(DiscreteLaplace(1.0, 4, 3))
    others = [int(game.inputs.split()[0]) for game in played]
    assert all(few < 4 for few in others[::3])
    assert all(12 <= many <= games.MOST_RECORDS for many in others[1::3])
    assert max(others) > 200
    assert all("for any cells" in game.inputs for game in played[2::3])
    words = [
        game.inputs
        for game in games.of_mechanism(DiscreteLaplace(1.0, 4, 3, relation="add-remove"))
    ]
    assert all(word.endswith(" or none") for word in words)
    assert all(
        "a client that votes for" in game.inputs
        for game in games.of_mechanism(RandomizedResponse(1.0, 4, 3))
    )
    crowded = games.of_mechanism(MultiMessage(1.0, 3, 2, num_clients=7))
    assert all(game.inputs.startswith("a client among 7") for game in crowded)


def test_what_is_seen_of_counts_and_integers():
    seen = games.described_counts(np.array([[3, -1], [2, 5]]), [np.array([3, 0]), np.array([2, 5])])
    np.testing.assert_array_equal(seen, [[3, -1, 1, 1, 1, 1, 0, 7], [2, 5, 0, 1, 0, 6, 2, 0]])
    shown = games.bits(np.array([[5, 2**31]], np.uint32))
    assert list(np.flatnonzero(shown[0])) == [0, 2, 33 + 31, 65], "and the second word's parity"


@pytest.mark.slow  # of all mechanisms
def test_every_column_has_a_name():
    for mechanism in (
        DiscreteLaplace(1.0, 4, 3),
        Collision(1.0, 2, 3),
    ):  # examples, whose programs other tests use
        game = games.of_mechanism(mechanism)[0]
        assert game.observe(jax.random.key(0), 0, 5).shape == (5, len(game.names))
        assert set(game.always) < set(range(len(game.names)))


def test_the_games_of_a_central_mechanism_are_between_neighbours(monkeypatch):
    """One record less or another one, each in a table of one shape; and every pair of ways to
    vote is told apart by the votes.
    """
    seen = []
    monkeypatch.setattr(
        games,
        "of_cells",
        lambda words, mechanism, worlds, sampler: seen.append(
            [np.asarray(world) for world in worlds]
        ),
    )
    for relation in ("replace-one", "add-remove"):
        games.of_mechanism(DiscreteLaplace(1.0, 4, 3, num_neighbors=2, relation=relation))
        for first, second in seen:
            longest = max(len(first), len(second))
            padded = [
                np.vstack([world, np.full((longest - len(world), 2), -1)])
                for world in (first, second)
            ]
            assert (padded[0] != padded[1]).any(axis=1).sum() == 1
        seen.clear()


@pytest.mark.slow  # among all games; in the fast tier beside half the noise
@first(EXAMPLES, DiscreteLaplace)
def test_honest_mechanisms_are_not_broken(mechanism):
    guarantee = mechanism.guarantee(getattr(mechanism, "num_clients", 50))
    found = found_in(games.of_mechanism(mechanism), guarantee)
    assert not found.broken, found
    assert found.lower_bound > 0 or guarantee.delta or mechanism.votes_per_record > 1, (
        "it sees nothing"
    )


@pytest.mark.long
@first(RELEASABLE, DiscreteLaplace, Collision)
def test_honest_noise_of_releases_is_not_broken(mechanism):
    guarantee = (
        mechanism.release_guarantee(50)
        if isinstance(mechanism, CentralMechanism)
        else mechanism.guarantee(50)
    )
    assert not found_in(few(games.of_mechanism(mechanism, "release")), guarantee, 2000).broken


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", RELEASABLE, ids=str)
def test_honest_noise_of_releases_is_not_broken_in_any_game(mechanism):
    guarantee = (
        mechanism.release_guarantee(50)
        if isinstance(mechanism, CentralMechanism)
        else mechanism.guarantee(50)
    )
    assert not found_in(games.of_mechanism(mechanism, "release"), guarantee, 2000).broken


@first(
    [m for m in EXAMPLES if isinstance(m, LocalRandomizer) and m.votes_per_record > 1],
    RandomizedResponse,
    Collision,
)
def test_enumeration_finds_epsilon_itself(mechanism):
    found = games.exact(mechanism)
    assert found.exact
    assert not found.broken
    assert 0.99 * mechanism.epsilon <= found.lower_bound <= mechanism.epsilon * (1 + 1e-9)


def test_a_message_that_nobody_sends_hides_nothing_and_one_that_tells_all_is_infinite(monkeypatch):
    """Randomized response that keeps every bit: of 64 patterns all but 7 are never sent, and
    each of these has one input.
    """
    mechanism = RandomizedResponse(1.0, 3, 2)

    def log_prob(self, messages, cells):
        sent = np.asarray(jax.vmap(self.support)(messages))
        return np.where(
            (sent == voted_bits(np.asarray(cells)[None], self.num_cells)).all(axis=1), 0.0, -np.inf
        )

    monkeypatch.setattr(RandomizedResponse, "log_prob", log_prob)
    found = games.exact(mechanism)
    assert found.broken
    assert found.lower_bound == math.inf
    assert json.loads(json.dumps(found.asdict(), allow_nan=False))["lower_bound"] == "infinity"


@pytest.mark.parametrize("kind", [Collision, RandomizedResponse, SubsetSelection])
def test_the_law_of_the_least_epsilon_is_not_broken_by_rounding(kind):
    assert not games.exact(kind(1e-9, 3, 2)).broken


def test_laws_of_many_cells_are_not_enumerated():
    assert games.exact(Collision(1.0, 40, 10)) is None
    assert games.exact(DiscreteLaplace(1.0, 2, 2)) is None


SLOW = (
    ("rknn", 160),
    ("pate", 400),
    ("private_knn", 400),
    ("noisy_sgd", 400),
    ("dpdfd", 100),
    ("prototypes", 400),
    ("public_prototypes", 400),
    ("least_squares", 400),
    ("individual_knn", 400),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "runs"), SLOW, ids=str)
def test_honest_labelers_are_not_broken(name, runs):
    played, guarantee = labeler_games(name)
    assert not found_in(played, guarantee, runs).broken


@pytest.mark.long
@pytest.mark.parametrize("name", [one for one in labelers.names() if labelers.named(one).slow])
def test_labelers_whose_audit_is_slow_can_be_audited(name):
    """DPDFD once refused the pictures of its own audit."""
    played, guarantee = labeler_games(name)
    assert played
    assert guarantee.epsilon == pytest.approx(1.0)


@pytest.mark.long
def test_an_honest_labeler_is_not_broken_where_one_that_peeks_is():
    """In the same game, and in as many runs; see
    `test_a_look_at_the_counts_after_the_noise_is_found`.
    """
    assert not found_in(*one_game("rknn"), FEW_RUNS).broken


def test_every_labeler_is_audited():
    assert set(labelers.names()) == set(dict(SLOW))


def test_canaries_are_the_picture_of_a_query_and_what_may_be_in_its_place():
    """Another label, two other pictures with either label, and a picture like nothing; the first
    record is always the same.
    """
    task = games_labeler.small_task()
    _, queries = games_labeler.small_queries(task)
    pictures = queries.images
    labels = task.public.true_labels[queries.index]
    assert sorted(labels.tolist()) == [0, 1, 2]
    found = games_labeler.canaries(task, queries)
    assert len({canary.words for canary in found}) == 4
    for canary in found:
        np.testing.assert_array_equal(canary.images[0], pictures[0])
        assert canary.labels[0] == labels[0]
    second = [(canary.images[1], canary.labels[1]) for canary in found]
    expected = [
        (pictures[0], (labels[0] + 1) % 3),
        (pictures[1], labels[1]),
        (pictures[2], labels[2]),
        (pictures[1], labels[0]),
        (pictures[2], labels[0]),
    ]
    for one, other in zip(second[:-1], expected, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1] == other[1]
    assert set(np.unique(second[-1][0])) == {0, 255}
    assert second[-1][1] == (labels[0] + 1) % 3


# Planted bugs


RIGHT = Finding(1.0, 0.0, 1.0, 1.0, True, False, Bound(0.0, 1.0, 1.0), "", "", 0)


def broken(played, guarantee, runs=RUNS):
    found = found_in(played, guarantee, runs)
    assert found.broken, found
    return found


@pytest.mark.slow  # beside planted bugs, and half of noisy SGD's noise
@first([m for m in EXAMPLES if m.votes_per_record == 1 and m.trusts], DiscreteLaplace)
def test_half_the_noise_is_found_and_all_of_it_is_not(mechanism):
    """Of a local mechanism, noise as for twice the epsilon."""
    guarantee = mechanism.guarantee(getattr(mechanism, "num_clients", 50))
    weak = dataclasses.replace(mechanism, epsilon=2 * mechanism.epsilon, **free(mechanism))
    honest = found_in(few(games.of_mechanism(mechanism)), guarantee, 20_000)
    assert not honest.broken, honest
    broken(few(games.of_mechanism(weak)), guarantee, 40_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism", [m for m in EXAMPLES if m.votes_per_record == 1 and m.trusts], ids=str
)
def test_half_the_noise_is_found_among_all_games(mechanism):
    weak = dataclasses.replace(mechanism, epsilon=2 * mechanism.epsilon, **free(mechanism))
    broken(
        games.of_mechanism(weak), mechanism.guarantee(getattr(mechanism, "num_clients", 50)), 40_000
    )


def free(mechanism):
    """What a mechanism has calibrated for its epsilon, to be calibrated anew."""
    names = {field.name for field in dataclasses.fields(mechanism)}
    return {
        name: None
        for name in ("noise_multiplier", "coins", "num_buckets", "subset_size")
        if name in names
    }


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        DiscreteLaplace,
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in (Laplace, Gaussian)),
    ],
)
def test_a_sensitivity_of_k_in_place_of_2k_is_found(kind):
    careless = planted(kind, changed_cells=property(lambda self: self.votes_per_record))(
        2.0, 4, 2, num_neighbors=2
    )
    broken(
        few(games.of_mechanism(careless)), kind(2.0, 4, 2, num_neighbors=2).guarantee(50), 20_000
    )


@pytest.mark.slow  # beside two rounds with one key
@pytest.mark.parametrize("kind", [DiscreteLaplace, Gaussian])
def test_one_noise_for_all_queries_is_found(kind):
    def estimate(self, key, totals, num_records):
        return (
            totals.reshape(self.shape).astype(jnp.float32)
            + kind.estimate(self, key, jnp.zeros_like(totals), num_records)[:1]
        )

    found = broken(
        few(games.of_mechanism(planted(kind, estimate=estimate)(1.0, 4, 2))),
        kind(1.0, 4, 2).guarantee(50),
        1000,
    )
    assert found.lower_bound > 3, "it does not end at twice epsilon: the noise cancels"


@jax.jit
def two_rounds(mechanism, first_keys, second_keys, cells):
    """Outputs of two rounds, one after the other; whether they share their keys is the caller's
    business.
    """

    def shown(first_key, second_key):
        counts = [
            base.estimate_counts(mechanism, key, cells[i]).ravel()
            for i, key in enumerate((first_key, second_key))
        ]
        return jnp.concatenate(counts)

    return jax.vmap(shown)(first_keys, second_keys)


@pytest.mark.parametrize("kind", [DiscreteLaplace, pytest.param(Gaussian, marks=pytest.mark.slow)])
def test_a_noise_key_that_two_rounds_share_is_found(kind):
    """The second round asks something else, so that what both show differs by the votes alone."""
    mechanism = kind(1.0, 3, 2)
    cells = [
        np.array([[[0], [c]], [[2], [d]]], np.int32) for c, d in ((1, 4), (5, 4))
    ]  # two rounds of two records, in either world
    guarantee = accounting.compose([mechanism.guarantee(2)] * 2, 1e-5 if kind is Gaussian else None)
    for reused in (False, True):

        def observe(key, world, runs, reused=reused):
            first, second = jax.random.split(key, (2, 1000))  # of one shape
            return np.asarray(
                two_rounds(mechanism, first, first if reused else second, cells[world])
            )[:runs]

        with jax.debug_key_reuse(False):
            found = found_in([Game("another vote in the first round", observe)], guarantee, 2000)
        assert found.broken == reused
        assert found.lower_bound > 3 if reused else found.lower_bound <= guarantee.epsilon


def labeler_games(name, epsilon=1.0, **given):
    task = games_labeler.small_task()
    return games_labeler.of_labeler(
        task,
        *games_labeler.small_queries(task),
        games_labeler.telling(name, epsilon=epsilon, **given),
    )


FEW_RUNS = 80
"""Enough to find out that a value tells the votes for certain, where epsilon is 0.5."""


def one_game(name, **given):
    """The first game of a labeler: every run labels anew, and there are six games."""
    played, guarantee = labeler_games(name, 0.5, **given)
    return played[:1], guarantee


@pytest.mark.slow
def test_a_labeler_with_half_the_noise_is_found():
    broken(labeler_games("rknn", 4.0)[0], labeler_games("rknn", 2.0)[1], 3000)


@pytest.mark.slow  # beside the labeler that peeks
def test_a_look_at_the_counts_after_the_noise_is_found(monkeypatch):
    """Labels and noisy counts are as they should be; how sure a label is, is told by the votes
    themselves.
    """
    honest = rknn.ReverseKNN.release

    def peeking(self, key, votes, queries, num_classes, predicted=None):
        answers = honest(self, key, votes, queries, num_classes)
        counts = np.asarray(bsvs.sum_votes(votes, answers.counts.size)).reshape(
            answers.counts.shape
        )
        return dataclasses.replace(
            answers,
            confidence=(counts.max(axis=1) / np.maximum(counts.sum(axis=1), 1)).astype(np.float32),
        )

    monkeypatch.setattr(rknn.ReverseKNN, "release", peeking)
    broken(*one_game("rknn"), FEW_RUNS)


@pytest.mark.slow  # two audits of all canaries
def test_joint_balancing_is_found():
    """Every query takes its nearest eight records and sends the others on: a record that pushes
    in moves others, and their votes.
    """
    task = games_labeler.small_task()
    encode, queries = games_labeler.small_queries(task)
    mechanism = DiscreteLaplace(1.0, len(queries.index), task.card.num_classes)

    def balanced(records):
        distances = np.array(
            neighbors.pairwise_sq_distances(encode(records.images), queries.features)
        )
        near = np.zeros(len(distances), np.int32)
        room = np.full(len(queries.index), -(-len(distances) // len(queries.index)))
        for record in distances.min(axis=1).argsort():
            near[record] = np.where(room > 0, distances[record], np.inf).argmin()
            room[near[record]] -= 1
        return bsvs.cells(near[:, None], records.labels, task.card.num_classes)

    def played(connect):
        found = []
        for canary in games_labeler.canaries(task, queries):
            worlds = [
                connect(
                    games_labeler.with_record(task.private, canary.images[w], int(canary.labels[w]))
                )
                for w in (0, 1)
            ]
            found.append(games.of_cells(canary.words, mechanism, worlds))
        return found

    def alone(records):
        return rknn.vote_cells(
            encode(records.images),
            records.labels,
            queries,
            task.card.num_classes,
            rknn.ReverseKNN(),
        )

    assert not found_in(played(alone), mechanism.guarantee(24), 10_000).broken
    broken(played(balanced), mechanism.guarantee(24), 10_000)


@pytest.mark.slow  # half of its noise is found in tests/test_one_run.py
def test_one_key_for_all_leaves_of_a_gradient_is_found(monkeypatch):
    def same(key, tree):
        return {path: jax.random.normal(key, leaf.shape, leaf.dtype) for path, leaf in tree.items()}

    monkeypatch.setattr(dpsgd.optax.tree, "random_like", same)
    dpsgd._descend.clear_cache()
    try:
        with jax.debug_key_reuse(False):
            broken(*one_game("noisy_sgd", batch_size=24), FEW_RUNS)
    finally:
        dpsgd._descend.clear_cache()


@pytest.mark.parametrize(("epsilon", "runs", "enough"), [(1, 200, 1), (3, 200, 0), (3, 800, 1)])
def test_runs_too_few_to_contradict_a_claim_are_told(epsilon, runs, enough):
    """Whatever they show: here no run looks like one of the other input."""
    guarantee = Guarantee(epsilon, 0.0, "replace-one", "central", (), sampler="release")
    game = Game("bare counts", lambda key, world, runs: np.full((runs, 1), float(world)))
    found = verdict.audit(jax.random.key(0), [game], guarantee, runs)
    assert str(found).startswith("BROKEN" if enough else "Inconclusive, take more runs")
    assert (found.broken, found.power[:2]) == (enough, (verdict.NO_NOISE, enough))


# Whole runs

PIXELS = train_audit.parsed(
    [
        "--dataset",
        "digits",
        "--epsilon",
        "1",
        "--representation",
        "pixels",
        "--queries",
        "12",
        "--smoothing",
        "none",
    ]
)[1]


@pytest.mark.slow
def test_an_honest_run_is_not_broken():
    assert not train_audit.main(PIXELS, 200, CONFIDENCE).broken


@pytest.mark.slow
def test_a_run_whose_noise_is_always_the_same_is_found(monkeypatch):
    """One more vote shows in every run: one value is another, and all others are as they were."""
    monkeypatch.setattr(stages, "fresh_noise_key", lambda: jax.random.key(7))
    found = train_audit.main(PIXELS, 80, 0.999)
    assert found.broken
    assert found.claimed_epsilon == 1.0
    assert found.lower_bound > 1


def test_runs_that_cannot_be_audited_are_refused():
    for changes, named in (
        ({"epsilon": math.inf}, "infinity"),
        ({"noise_seed": 1}, "noise_seed=1"),
        ({"labeler": DPDFD(), "delta": 1e-5}, "dpdfd"),
    ):
        with pytest.raises(ValueError, match=named):
            train_audit.main(dataclasses.replace(PIXELS, **changes), 100)


def test_what_a_run_is_judged_by_is_what_it_releases():
    """The truth of the public records and the pictures of the queries, which lie in the same
    files, are not looked at.
    """
    known = {"true_label", "image", "public_index", "round", "size", "query"}
    worlds, sizes = train_audit.neighbours(PIXELS)
    public = len(worlds[0].task.public.images)
    assert sizes == {"queries.npz": 12, "labels.npz": public, "recall": 10}
    changed = [
        np.flatnonzero(np.any(a != b, axis=tuple(range(1, np.ndim(a)))))
        for a, b in zip(*map(_private, worlds), strict=True)
    ]
    assert [list(rows) for rows in changed] == [[], [len(worlds[0].task.private.labels) - 1]], (
        "the canary's label alone"
    )
    assert not known & {name for names in train_audit.RELEASED.values() for name in names}


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_what_records_that_check_release_is_looked_at(tmp_path, share):
    experiment = dataclasses.replace(PIXELS, check_share=share)
    worlds, sizes = train_audit.neighbours(experiment)
    view, _ = train_audit.released(experiment, worlds[0], tmp_path / "run", sizes)
    told = json.loads((tmp_path / "run/result.json").read_text())["measured"]
    seen = view[-35:]  # five numbers, and three of each class
    if not share:
        assert told is None
        assert not seen.any()
        return
    names = ("right", "low", "high", "checkers", "majority")
    np.testing.assert_array_equal(seen[:5], [told[name] for name in names])
    np.testing.assert_array_equal(seen[5:].reshape(-1, 3)[: len(told["recall"])], told["recall"])
    assert len(told) == len(names) + 3, "the labeling and the unit are public"


def _private(prepared):
    return prepared.task.private.images, prepared.task.private.labels


# The command line


@pytest.mark.long
def test_the_command_says_what_was_claimed_and_found(rknn):
    sizes = ("--queries", 1, "--classes", 2)
    result = rknn(
        "audit",
        "--mechanism",
        "randomized_response",
        "--epsilon",
        1,
        *sizes,
        "--runs",
        4000,
        "--json",
    )
    assert result.status == 0
    told = result.json
    assert (told["claimed_epsilon"], told["exact"], told["broken"], told["confidence"]) == (
        1.0,
        False,
        False,
        0.9999,
    )
    assert told["stated_law"]["lower_bound"] == pytest.approx(1.0, rel=1e-9)
    assert told["stated_law"]["exact"]
    assert 0.5 < told["lower_bound"] <= 1.0 < told["power"]["lower_bound"]
    assert told["power"]["probability"] > 0.99
    assert told["power"]["against"] == HALF_THE_NOISE
    assert "against half the noise" in told["statement"]


def test_a_law_that_is_stated_wrongly_is_broken_whatever_is_drawn(rknn, monkeypatch):
    monkeypatch.setattr(
        games, "exact", lambda mechanism: dataclasses.replace(RIGHT, broken=True, lower_bound=9.0)
    )
    monkeypatch.setattr(verdict, "audit", lambda *_, **__: dataclasses.replace(RIGHT, exact=False))
    result = rknn(
        "audit",
        "--mechanism",
        "randomized_response",
        "--epsilon",
        1,
        "--queries",
        1,
        "--runs",
        100,
        "--skip-power",
        "--json",
    )
    assert result.status == 4
    assert result.json["stated_law"]["lower_bound"] == 9.0


@pytest.mark.slow  # beside the test of the command's words
def test_the_command_calls_half_the_noise_broken(rknn, monkeypatch):
    half = planted(
        DiscreteLaplace,
        scale=property(lambda self: self.changed_cells / self.epsilon / 2),
        guarantee=lambda self, n: Guarantee(self.epsilon, 0.0, self.relation, "central", ()),
    )
    monkeypatch.setattr(mechanisms, "named", lambda name: half)
    result = rknn(
        "audit",
        "--mechanism",
        "half",
        "--epsilon",
        1,
        "--queries",
        1,
        "--classes",
        2,
        "--runs",
        20_000,
        "--skip-power",
        "--json",
    )
    assert result.status == 4
    assert result.json["broken"]
    assert result.json["lower_bound"] > 1


@pytest.mark.long
def test_a_mechanism_of_one_query_for_each_class_is_audited_at_any_size_of_its_own(rknn):
    """Its queries were cut to those at which a local law is enumerated, so that it was refused."""
    sizes = ("--queries", 5, "--classes", 5, "--runs", 50, "--skip-power", "--json")
    result = rknn("audit", "--mechanism", "one_to_one", "--epsilon", 2, *sizes)
    assert (result.status, result.json["broken"]) == (0, False)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--epsilon", 1), "got none; name what"),
        (
            ("--epsilon", 1, "--mechanism", "laplace", "--labeler", "rknn"),
            "got --mechanism and --labeler",
        ),
        (("--epsilon", 1, "--release", "--labeler", "rknn"), "got --labeler and --release"),
        (("--epsilon", 1, "--release", "--neighbors", 2), "--neighbors"),
        (("--epsilon", 1, "--release", "--delta", 0.1), "--delta 0.1"),
        (("--epsilon", 1, "--labeler", "rknn", "--one-run"), "--one-run"),
        (
            ("--epsilon", 1, "--labeler", "noisy_sgd", "--one-run", "--relation", "add-remove"),
            "add-remove",
        ),
        (("--epsilon", "inf", "--mechanism", "laplace"), "--epsilon inf"),
        (("--epsilon", 1, "--mechanism", "laplacian"), "mechanism='laplacian'"),
        (("--epsilon", 1, "--mechanism", "laplace", "--delta", 0.1), "--delta 0.1"),
        (("--epsilon", 1, "--mechanism", "collision", "--relation", "add-remove"), "add-remove"),
        (("--epsilon", 1, "--labeler", "rknn", "--sampler", "release"), "--sampler release"),
        (("--epsilon", 1, "--labeler", "knn"), "labeler='knn'"),
        (("--epsilon", 1, "--labeler", "rknn", "--neighbors", 2), "--neighbors"),
        (
            ("--epsilon", 1, "--mechanism", "multi_message", "--sampler", "release"),
            "sampler=simulation",
        ),
        (
            ("--epsilon", 1, "--mechanism", "laplace", "--sampler", "release"),
            "--sampler simulation",
        ),
    ],
)
def test_the_command_refuses_what_makes_no_sense(rknn, words, named):
    result = rknn("audit", *words)
    assert result.status == 2
    assert named in " ".join(result.err.split())
