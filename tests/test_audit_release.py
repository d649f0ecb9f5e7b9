"""An audit through the release path: all that `rknn label` writes, and bugs planted behind its
noise.
"""

import os
import secrets
import zlib
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from rknn_jax import check_noise
from rknn_jax.audit import games_release, verdict
from rknn_jax.audit.folders import own_folder
from rknn_jax.audit.game import Game
from rknn_jax.audit.games_release import (
    OF_CANARY,
    differing,
    moved,
    of_release,
    read_after,
    worlds,
)
from rknn_jax.audit.taint import Seal, Sealed, TaintError, closing
from rknn_jax.labelers._votes import VoteTally
from rknn_jax.privacy import contributions, ledger_index
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.question import Question
from rknn_jax.release import counting, label, release_folder

CONFIDENCE = 1 - 1e-5
EPSILON = 0.25
RUNS = 48
"""Sizes at which a value that tells the input for certain is found."""


@pytest.fixture(scope="module")
def replaced():
    """Plans of releases of neighboring tables, which take a second."""
    return worlds(0.5)


def true_counts(plan):
    """Votes of a plan's private records, without noise."""
    return counting.count_all(plan.data.private, plan.counter).counts


def found_in(number):
    """Audit one of the games: each takes a hundred releases."""
    games, guarantee = of_release(EPSILON)
    return verdict.audit(jax.random.key(0), [games[number]], guarantee, RUNS, CONFIDENCE)


# Without a bug


@pytest.mark.long
def test_nothing_but_the_noisy_counts_depends_on_private_records(replaced):
    assert [differing(world) for world in replaced[::3]] == [[]] * 4
    assert [read_after(plan) for plan in replaced[-1].plans] == [None, None]


def test_an_audit_leaves_nothing_in_the_users_index(replaced):
    """tests/test_audit_commands.py has the same with an index that refuses a second ledger."""
    differing(replaced[0])
    assert not os.listdir(ledger_index.folder())
    with own_folder() as folder:
        assert ledger_index.folder() == folder / "index"
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"smoothing": "none"},
        {"mechanism": "permute_and_flip"},
        {"metric": "cosine"},
        {"person": "person"},
    ],
    ids=str,
)
def test_nothing_does_under_other_settings(relation, settings):
    for world in worlds(0.5, relation, **settings):
        assert differing(world) == []
        assert [read_after(plan) for plan in world.plans] == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_an_honest_release_is_not_broken_in_any_game(relation):
    games, guarantee = of_release(0.5, relation)
    assert guarantee.relation == relation
    assert not verdict.audit(jax.random.key(0), games, guarantee, 60, CONFIDENCE).broken


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_an_honest_check_is_not_broken_and_one_without_noise_is(relation, monkeypatch):
    games, guarantee = of_release(0.5, relation, check_share=0.5)
    assert not verdict.audit(jax.random.key(0), games[:4], guarantee, 60, CONFIDENCE).broken
    monkeypatch.setattr(check_noise.ExactNoise, "laplace", lambda self, counts, scale: counts)
    monkeypatch.setattr(check_noise.SimulatedNoise, "laplace", lambda self, counts, scale: counts)
    games, guarantee = of_release(0.5, relation, check_share=0.5)
    assert verdict.audit(jax.random.key(0), games[:4], guarantee, 60, CONFIDENCE).broken


@pytest.mark.long
def test_an_id_that_tells_of_the_counts_is_broken(monkeypatch):
    """The three checks leave ids out, because they are random."""
    last = []
    count = label.count

    def counted(plan, *more):
        last.append(found := count(plan, *more))
        return found

    def token_hex(size):
        told = zlib.crc32(last[-1].counts.tobytes()) % 2**16
        return secrets.token_hex(size)[:-4] + f"{told:04x}"

    monkeypatch.setattr(label, "count", counted)
    monkeypatch.setattr(release_folder, "secrets", SimpleNamespace(token_hex=token_hex))
    games, guarantee = of_release(EPSILON)
    assert games_release.differing(worlds(EPSILON)[0]) == []
    found = verdict.audit(jax.random.key(0), games[:1], guarantee, RUNS, CONFIDENCE)
    assert found.broken
    assert "bits of release" in found.event


def test_every_file_and_number_of_a_release_is_looked_at(replaced):
    names = games_release._released(replaced[0].plans[0], games_release.columns)
    for shown in (
        "labels.npz: label",
        "labels.npz: probability",
        "decimal 3 of labels.npz: confidence",
        "bits of labels.npz: confidence",
        "bits of queries.npz: noisy_counts",
        "privacy.json: num_records",
        "bits of privacy.json: statement",
        "bits of privacy.html",
        "size of privacy.html",
    ):
        assert shown in names, shown
    assert not any(
        name.endswith(clock)
        for name in names
        for clock in ("json: time", "ledger.head", "json: release")
    )
    assert {len(values) for values in names.values()} == {1}


def test_decimals_bits_and_texts_are_columns():
    found = games_release._described("x", np.array([0.1253, -2.0], np.float32))
    assert [int(found[f"decimal {n} of x"][0, 0]) for n in (1, 2, 3, 4)] == [1, 2, 5, 3]
    assert found["parity of decimal 3 of x"].tolist() == [[1, 0]]
    assert found["bits of x"].shape == (1, 2 * 33)
    one, other = (games_release._described("t", np.array(text))["bits of t"] for text in ("a", "b"))
    assert (one != other).any()


# Persons


@pytest.mark.long
def test_one_person_moves_the_sum_as_far_as_one_record_and_no_farther(monkeypatch):
    """Her 300 records share a vote; if each casts its own, the command says so."""
    played = worlds(0.5, person="person")
    assert max(moved(world) for world in played) == 1.0
    monkeypatch.setattr(VoteTally, "bounded", lambda self, parts, persons: unbounded(self, parts))
    assert max(moved(world) for world in played) == OF_CANARY


@pytest.mark.long
def test_the_command_says_that_persons_are_not_bounded(rknn, monkeypatch):
    """The games are slow; one of nothing is played in their place."""
    with_persons = worlds(0.5, person="person")[:1]
    guarantee = Guarantee(0.5, 0.0, "replace-one", "central", (), "person", sampler="release")
    game = Game("nothing", lambda key, world, runs: np.zeros((runs, 1)))
    given = []

    def of_release(*arguments, **settings):
        given.append(settings)
        return [game], guarantee

    monkeypatch.setattr(games_release, "of_release", of_release)
    monkeypatch.setattr(games_release, "worlds", lambda *arguments, **settings: with_persons)
    command = ("audit", "--release", "--unit", "person", "--epsilon", 0.5, "--json")
    assert rknn(*command).status == 0
    assert given == [{"person": "person", "check_share": 0.0}]
    honest = VoteTally.bounded

    def bounded(self, parts, persons):
        """Votes of persons, of whom one with many records gets somebody else's vote too."""
        counts = honest(self, parts, persons).ravel()
        of_many = parts[persons.number == np.bincount(persons.number).argmax()]
        if len(of_many) > 1 and (of_many >= 0).any():
            counts[of_many.max()] += contributions.GRID
            counts[(of_many.max() + 3) % counts.size] -= contributions.GRID
        return counts.reshape(self.shape)

    monkeypatch.setattr(VoteTally, "bounded", bounded)
    result = rknn(*command)
    assert result.status == 4
    assert "one person moves the sum by 1.5 times the sensitivity" in result.json["leaks"]


def unbounded(tally, parts):
    """Votes of all records, as if each were a person's only one."""
    size = tally.shape[0] * tally.shape[1]
    counts = np.bincount(parts[parts >= 0].ravel(), minlength=size)
    return contributions.GRID * counts.reshape(tally.shape)


# Planted behind the noise


def parity_in_the_third_decimal(monkeypatch):
    """The finding that no audit saw: the parity of the true winner's count in `confidence`."""
    honest = label.draw

    def draw(plan, *rest):
        done = honest(plan, *rest)
        winner = true_counts(plan).max(axis=1).sum() % 2
        sure = np.floor(done.confidence * 100) / 100 + 0.001 * winner + 0.0004
        return replace(done, found=replace(done.found, confidence=sure.astype(np.float32)))

    monkeypatch.setattr(label, "draw", draw)


def lowest_bit_of_a_probability(monkeypatch):
    """A float that is right to seven digits, whose last bit tells a vote."""
    honest = label.draw

    def draw(plan, *rest):
        done = honest(plan, *rest)
        bits = done.probabilities.astype(np.float32).view(np.int32) & ~1 | int(
            true_counts(plan)[2, 1] % 2
        )
        return replace(done, found=replace(done.found, probabilities=bits.view(np.float32)))

    monkeypatch.setattr(label, "draw", draw)


def records_that_voted_in_the_card(monkeypatch):
    """The number of records with a usable label, in `privacy.json`."""
    honest = label.card

    def card(plan, *rest):
        return honest(plan, *rest) | {
            "voted": int((plan.data.private.shards[0].labels_ == 0).sum())
        }

    monkeypatch.setattr(label, "card", card)


def a_word_in_the_page(monkeypatch):
    """A sentence of `privacy.html` that depends on a true count."""
    honest = label.page

    def page(told):
        return honest(told) + (" " if WINNERS[-1] % 2 else "\n")

    first = counting.count_all

    def count_all(records, *rest):
        WINNERS.append(int((np.asarray(records.shards[0].labels_) == 0).sum()))
        return first(records, *rest)

    monkeypatch.setattr(counting, "count_all", count_all)
    monkeypatch.setattr(label, "page", page)


WINNERS = []
GAMES = {"lowest_bit_of_a_probability": 1}
"""Games in which a plant shows, if not in the first one: that bug looks at one cell."""

PLANTS = [
    parity_in_the_third_decimal,
    lowest_bit_of_a_probability,
    records_that_voted_in_the_card,
    a_word_in_the_page,
]


@pytest.mark.long
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_bug_behind_the_noise_shows_at_the_same_noisy_counts(monkeypatch, replaced, plant):
    plant(monkeypatch)
    assert any(differing(world) for world in replaced)


@pytest.mark.slow  # a hundred releases each
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_bug_behind_the_noise_is_found_by_statistics(monkeypatch, plant):
    plant(monkeypatch)
    found = found_in(GAMES.get(plant.__name__, 0))
    assert found.broken, found


@pytest.mark.parametrize("plant", PLANTS[:3], ids=lambda plant: plant.__name__)
def test_a_read_of_private_records_after_the_mechanism_raises(monkeypatch, replaced, plant):
    plant(monkeypatch)
    assert "after the mechanism" in read_after(replaced[0].plans[0])


def test_a_read_of_the_votes_after_the_mechanism_raises(monkeypatch, replaced):
    """Even if nothing of it shows: `draw` keeps the votes, and looks at them again."""
    honest = Question.draw

    def draw(question, votes, num_records, *rest):
        released = honest(question, votes, num_records, *rest)
        assert num_records == 25, "how many there are is public"
        np.asarray(votes).sum()
        return released

    monkeypatch.setattr(Question, "draw", draw)
    assert (
        read_after(replaced[0].plans[0])
        == "votes were read after the mechanism, and no noise covers that."
    )


def test_a_sealed_array_reads_until_its_seal_is_closed(replaced):
    seal = Seal()
    sealed = Sealed(np.arange(6).reshape(3, 2), "votes", seal)
    reads = [
        lambda: np.asarray(sealed),
        lambda: sealed[0],
        lambda: sealed + 1,
        lambda: sealed.sum(),
        lambda: jax.numpy.asarray(sealed),
    ]
    assert [int(np.asarray(read()).ravel()[-1]) for read in reads] == [5, 1, 6, 15, 5]
    mechanism = closing(replaced[0].plans[0].question.noise.mechanism, seal)
    assert not seal.closed
    mechanism.release(np.zeros(mechanism.shape, np.int64))
    assert seal.closed
    for read in reads:
        with pytest.raises(TaintError, match="votes were read"):
            read()
    assert (len(sealed), sealed.shape, sealed.ndim) == (3, (3, 2), 2)


# The command line


@pytest.mark.long
def test_the_command_audits_a_release(rknn, monkeypatch, replaced):
    """The games are slow; here one of nothing is played in their place, behind the checks that
    need none.
    """
    guarantee = Guarantee(0.5, 0.0, "replace-one", "central", (), sampler="release")
    game = Game("nothing", lambda key, world, runs: np.zeros((runs, 1)))
    monkeypatch.setattr(games_release, "of_release", lambda *given, **_: ([game], guarantee))
    monkeypatch.setattr(games_release, "worlds", lambda *given, **_: replaced[:2])
    result = rknn("audit", "--release", "--epsilon", 0.5, "--json")
    assert result.status == 0
    assert (result.json["broken"], result.json["leaks"]) == (False, [])
    assert result.json["power"]["probability"] == 1
    assert not os.listdir("."), "nothing is left behind"
    parity_in_the_third_decimal(monkeypatch)
    result = rknn("audit", "--release", "--epsilon", 0.5, "--json")
    assert result.status == 4
    assert any("confidence" in leak for leak in result.json["leaks"])
    assert result.json["statement"].startswith("BROKEN, and no chance: ")
    assert "BROKEN: with the same noisy counts" in " ".join(result.err.split())
