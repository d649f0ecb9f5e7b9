"""The verdict of `rknn audit`, end to end: status 4 on planted bugs of many kinds, 0 without them.

Each bug is played through the command line with the subject that it lies in. Those marked
INFINITE let some event happen under one input alone, or sell releases without end.

**False alarms.** An honest mechanism is called broken with a probability of 1 - confidence at most.
The honest runs here are twelve at a confidence of 0.9999, of which one or more fail with a
probability below 0.0012. Those of exact findings never do.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rknn_jax import mechanisms, question
from rknn_jax.audit import games, games_federation, games_ledger, verdict
from rknn_jax.audit.game import Game
from rknn_jax.audit.games_federation import CLIENTS
from rknn_jax.federation import secure_sum, secure_sum_server
from rknn_jax.labelers._vote_shares import VoteShares, drawn_records
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.filters import Renyi, total
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger, LedgerError
from rknn_jax.release import class_selection
from tests.plants import noise_of, planted

BROKEN = 4
SMALL = "--queries 2 --classes 2 --skip-power"


class Bug(NamedTuple):
    """A bug.

    Attributes:
      words: The bug, and INFINITE if no epsilon is large enough.
      plant: Function that plants it.
      command: Arguments of `rknn audit` beside epsilon = 1.
      fast: True if `make test` runs it.
    """

    words: str
    plant: Callable[[pytest.MonkeyPatch], None]
    command: str
    fast: bool = False


def mechanism(**members):
    """A plant: the command finds a mechanism with other members under the name of an honest one."""

    def plant(patch):
        kind = planted(DiscreteLaplace, **members)
        patch.setattr(mechanisms, "named", lambda name: kind)

    return plant


def one_cell_without_noise(self, key, totals, num_records):
    noise = noise_of(self, key).at[0, 1].set(0)
    return totals.reshape(self.shape).astype(jnp.float32) + noise


def tail_is_cut(self, key, totals, num_records):
    reach = jnp.floor(6 * self.scale)
    noise = jnp.clip(noise_of(self, key), -reach, reach)
    return totals.reshape(self.shape).astype(jnp.float32) + noise


def same_noise_in_every_selection(patch):
    noise = np.random.default_rng(0).integers(-2, 3, 10)

    def drawn(exact, scale):
        return exact + noise[: len(exact)]

    patch.setattr(class_selection.exact_noise, "discrete_laplace", drawn)


def class_of_one_record_shows(patch):
    patch.setattr(class_selection, "least_threshold", lambda scale, delta: -50)


def classes_come_by_their_true_counts(patch):
    select = class_selection.select

    def ordered(found, *amount, **about):
        selected = select(found, *amount, **about)
        names = sorted(selected.counts, key=lambda name: (-found.counts[name], name))
        return selected._replace(counts={name: selected.counts[name] for name in names})

    patch.setattr(class_selection, "select", ordered)


def all_records_of_a_person_count(patch):
    patch.setattr(class_selection, "_drawn", lambda shards, known, seed: known)


def charge_after_the_draw(patch):
    def charge_and_draw(noise, guarantee, totals, num_units, payer, purpose):
        drawn = noise.draw(totals)
        payer.charge(guarantee, purpose)
        return drawn

    patch.setattr(question, "charge_and_draw", charge_and_draw)


def charge_is_lost(patch):
    """The check of the budget stays; what was charged is forgotten."""
    honest = Ledger.charge

    def charge(self, guarantee, purpose, **named):
        before = self.path.read_bytes()
        entry = honest(self, guarantee, purpose, **named)
        self.path.write_bytes(before)
        return entry

    patch.setattr(Ledger, "charge", charge)


def second_charge_is_half(patch):
    """The rule forgets every other cost."""
    honest = Renyi.fits
    patch.setattr(Renyi, "fits", lambda self, budget, costs: honest(self, budget, costs[::2]))


def filter_ignores_deltas(patch):
    honest = Renyi.fits

    def fits(self, budget, costs):
        return total(costs).epsilon <= budget.epsilon or honest(self, budget, costs)

    patch.setattr(Renyi, "fits", fits)


def duplicate_votes_are_kept(patch):
    def vector(self, told, entropy):
        cells = drawn_records(entropy, told, self.records_per_client)
        counts = np.bincount(cells[cells >= 0].ravel(), minlength=self.coins.num_cells)
        return counts + self.coins.share(entropy)

    patch.setattr(VoteShares, "vector", vector)


def no_vote_sends_no_seed(patch):
    honest = Collision.respond

    def respond(self, entropy, cells):
        sent = honest(self, entropy, cells)
        silent = (np.asarray(cells) < 0).all(axis=1)
        return sent._replace(seed=np.where(silent[:, None], 0, sent.seed).astype(np.uint32))

    patch.setattr(Collision, "respond", respond)


BUGS = [
    Bug(
        "INFINITE: one cell has no noise",
        mechanism(estimate=one_cell_without_noise),
        f"--mechanism planted --runs 2000 {SMALL}",
    ),
    Bug(
        "INFINITE: Laplace noise ends at 6 scales",
        mechanism(estimate=tail_is_cut),
        f"--mechanism planted --queries 1 {SMALL[12:]} --runs 200000",
    ),
    Bug(
        "half the sensitivity",
        mechanism(changed_cells=property(lambda self: self.votes_per_record)),
        f"--mechanism planted --runs 20000 {SMALL}",
    ),
    Bug(
        "INFINITE: every selection has the same noise",
        same_noise_in_every_selection,
        "--selection --runs 120",
    ),
    Bug(
        "INFINITE: a class of one record shows",
        class_of_one_record_shows,
        "--selection --runs 120",
    ),
    Bug(
        "INFINITE: classes come by their true counts",
        classes_come_by_their_true_counts,
        "--selection --runs 120",
    ),
    Bug(
        "INFINITE: a person's records are not bounded",
        all_records_of_a_person_count,
        "--selection --unit person --runs 120",
    ),
    Bug("INFINITE: the charge follows the draw", charge_after_the_draw, "--ledger --delta 0", True),
    Bug("INFINITE: a charge is lost", charge_is_lost, "--ledger --delta 0"),
    Bug("every other charge is forgotten", second_charge_is_half, "--ledger"),
    Bug("a filter ignores deltas", filter_ignores_deltas, "--ledger"),
    Bug(
        "a client's duplicate votes are kept",
        duplicate_votes_are_kept,
        "--federation sum --unit person --runs 300",
    ),
    Bug(
        "INFINITE: a client without a vote sends no seed",
        no_vote_sends_no_seed,
        "--federation messages --runs 400",
        True,
    ),
]
HONEST: dict[str, bool] = {}
for one in BUGS:
    words = one.command.replace("planted", "discrete_laplace")
    HONEST[words] = HONEST.get(words, False) or one.fast


def marked(value, name, fast):
    return pytest.param(value, id=name, marks=() if fast else pytest.mark.long)


@pytest.mark.long
@pytest.mark.parametrize("bug", [marked(bug, bug.words, bug.fast) for bug in BUGS])
def test_a_planted_bug_is_called_broken(rknn, monkeypatch, bug):
    bug.plant(monkeypatch)
    result = rknn("audit", "--epsilon", 1, *bug.command.split(), "--json")
    assert result.status == BROKEN, result.err
    assert result.json["broken"]
    assert "BROKEN" in result.err


@pytest.mark.long
@pytest.mark.parametrize("command", [marked(words, words, fast) for words, fast in HONEST.items()])
def test_the_same_without_a_bug_is_not(rknn, command):
    result = rknn("audit", "--epsilon", 1, *command.split(), "--json")
    assert result.status == 0, result.err
    assert not result.json["broken"]
    assert "BROKEN" not in result.err


@pytest.mark.long
def test_honest_mechanisms_are_called_broken_no_more_often_than_the_error_allows():
    """At a confidence of 0.8: of 100 audits, 34 or more are with a probability below 1e-3.

    Randomized response has an event with exactly its epsilon, where a bound fails most easily.
    """
    keep = 1 / (1 + np.exp(-1.0))
    tight = Guarantee(1.0, 0.0, "replace-one", "local", (Pure(1.0),))

    def observe(key, world, runs):
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        return ((rng.random((runs, 1)) < keep) ^ bool(world)).astype(float)

    game = Game("a bit, or the other", observe)
    broken = [
        verdict.audit(jax.random.key(seed), [game], tight, 200, 0.8).broken for seed in range(100)
    ]
    assert sum(broken) < 34


@pytest.mark.long
def test_noise_is_called_broken_no_more_often_than_the_error_allows():
    """At a confidence of 0.8: of 20 audits, 12 or more are with a probability below 1e-4."""
    honest = DiscreteLaplace(1.0, 2, 2)
    played = games.of_mechanism(honest)[:2]
    broken = [
        verdict.audit(jax.random.key(seed), played, honest.guarantee(20), 200, 0.8).broken
        for seed in range(20)
    ]
    assert sum(broken) < 12


# The games of a ledger


def test_what_was_drawn_is_bought_though_the_asker_was_stopped(tmp_path):
    ledger = Ledger.create(tmp_path / "l.jsonl", games_ledger.PEOPLE, 1)
    offer = DiscreteLaplace(0.5, 1, 2)
    bought = [games_ledger._draws(ledger, offer, stops) for stops in (False, True, True)]
    assert bought == [True, True, False]
    assert ledger.spent.epsilon == 1
    with pytest.raises(LedgerError):
        ledger.charge(offer.release_guarantee(1), "one more")


def test_the_epsilon_of_what_was_bought_is_that_of_its_noise():
    """Ten pure releases; a Gaussian, whose epsilon is its own; and an adaptive choice."""
    ten = games_ledger._deltas([DiscreteLaplace(0.1, 1, 2)] * 10, 1.0)
    assert games_ledger._epsilon(ten, 0.0, 50.0) == pytest.approx(1.0, rel=1e-6)
    assert games_ledger._epsilon(ten, 1e-2, 50.0) < 0.9
    offer = games_ledger.menu(10.0, 1e-4)[-1]
    one = games_ledger._deltas([offer], 1.0)
    found = games_ledger._epsilon(one, offer.delta, 50.0)
    assert 0.98 * offer.epsilon < found <= offer.epsilon
    nothing = games_ledger._deltas([], 1.0)
    chosen = games_ledger._adaptive(0.5, nothing, nothing)
    assert games_ledger._epsilon(chosen, 0.0, 50.0) == pytest.approx(0.5, rel=1e-6)


# The games of a federation


def played(late):
    """One sum of known vectors, of client i all i + 1, and what is seen of it."""
    round = SimpleNamespace(id="audit", num_cells=4)
    vectors = {number: lambda number=number: np.full(4, number + 1) for number in range(CLIENTS)}
    return games_federation._played(round, vectors, late=late)


def test_a_sum_with_dropouts_is_that_of_those_who_stayed_less_the_curious_one():
    total, clients, left = played(late=False)
    assert (total.tolist(), clients) == ([1 + 5] * 4, 2)
    assert (left != 1).all(), "the masks for the honest client stay"
    total, clients, left = played(late=True)
    assert (total.tolist(), clients) == ([2 + 3 + 5] * 4, 3)
    assert (left != 1).all(), "the own mask stays"


def test_a_late_vector_without_a_mask_of_its_own_is_seen(monkeypatch):
    """The server was given the key of all other masks: what the own mask is for."""
    for module in (secure_sum, secure_sum_server, games_federation):
        monkeypatch.setattr(module, "own_mask", lambda *_: np.zeros(4, np.uint64))
    assert played(late=True)[2].tolist() == [1] * 4
    assert (played(late=False)[2] != 1).all()


def test_a_share_of_the_wrong_secret_opens_a_late_vector(monkeypatch):
    """If clients also reveal shares of the seed of one that was lost, nothing hides its vector."""
    honest = games_federation._computed_masks

    def computed(canary, opened, lost):
        return honest(canary, {number: dealt[1][number] for number in opened}, lost)

    split = secure_sum.split
    dealt = []  # The canary deals first: shares of its mask key, and then of its seed.

    def remembered(*given, **named):
        dealt.append(split(*given, **named))
        return dealt[-1]

    monkeypatch.setattr(secure_sum, "split", remembered)
    monkeypatch.setattr(games_federation, "_computed_masks", computed)
    assert played(late=True)[2].tolist() == [1] * 4
