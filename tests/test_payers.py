"""Order of charge and draw: whoever draws exact noise has the charge on disk before the first bit.

Each source of exact noise is replaced by one that stops the process at the draw. The ledger is then
read from disk, as the next process would read it.
"""

from pathlib import Path

import jax
import numpy as np
import pytest

from rknn_jax import labelers, mechanisms, question
from rknn_jax.labelers._one_sum import OneSumLabeler
from rknn_jax.labelers._votes import VoteNoise
from rknn_jax.mechanisms import base
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release import choosing, class_selection, label, planning
from rknn_jax.release.class_selection import Occurrences
from rknn_jax.release.release_folder import RESULTS
from rknn_jax.release.settings import Settings
from rknn_jax.types import Queries, Records
from tests.conftest import modules
from tests.options import named_settings
from tests.test_federation import a_client, a_round
from tests.test_federation_sums import LABELERS, a_party, a_sum
from tests.test_release_folder import restore, states_of_a_release

DATA = "sha256:of-some-records"
DRAWS = ("discrete_laplace", "discrete_gaussian", "permute_and_flip")


class StoppedError(Exception):
    """The process ends at the draw."""


@pytest.fixture
def stop_at_the_draw(monkeypatch):
    """Let every source of exact noise end the process."""

    def stop(*given, **named):
        raise StoppedError

    for draw in DRAWS:
        monkeypatch.setattr(exact_noise, draw, stop)
    monkeypatch.setattr(Entropy, "words", stop)


def a_ledger(folder, relation="replace-one"):
    return Ledger.create(folder / "l.jsonl", DATA, 100, 0.5, relation=relation)


def spends(ledger):
    """Return the charges of a ledger on disk."""
    return [entry for entry in Ledger.open(ledger.path).entries() if entry.kind == "spend"]


RELEASED = [
    example
    for module in modules(mechanisms, leave_out=mechanisms.CONTRACTS)
    for example in module.EXAMPLES
    if isinstance(example, base.CentralMechanism)
    and type(example).release is not base.CentralMechanism.release
]


@pytest.mark.usefixtures("stop_at_the_draw")
@pytest.mark.parametrize("mechanism", RELEASED, ids=str)
def test_counts_are_paid_for_before_they_are_drawn(mechanism, tmp_path):
    ledger = a_ledger(tmp_path, mechanism.relation)
    votes = np.zeros(mechanism.shape, np.int64)
    noise = VoteNoise(mechanism)
    with pytest.raises(StoppedError):
        question.charge_and_draw(noise, noise.guarantee, votes, 9, ledger, "counts")
    assert [float(entry.amount.epsilon) for entry in spends(ledger)] == [mechanism.epsilon]


ONE_SUM = [
    example
    for module in modules(labelers)
    for example in module.EXAMPLES
    if isinstance(example, OneSumLabeler)
]


@pytest.mark.usefixtures("stop_at_the_draw")
@pytest.mark.parametrize("labeler", ONE_SUM, ids=str)
def test_a_labeler_pays_for_its_sum_before_it_is_drawn(labeler, tmp_path):
    ledger = a_ledger(tmp_path, labeler.relation)
    rows = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    queries = Queries.alone(rows, np.arange(9))
    private = Records(rows, np.arange(9, dtype=np.int32) % 2, None)
    sums = labeler.contribute(jax.random.key(0), private, lambda each: each, queries, 2)
    with pytest.raises(StoppedError):
        labeler.release_exact(sums, queries, ledger, "a sum")
    assert [float(entry.amount.epsilon) for entry in spends(ledger)] == [labeler.epsilon]


@pytest.mark.usefixtures("stop_at_the_draw")
def test_classes_are_paid_for_before_they_are_selected(tmp_path):
    ledger = a_ledger(tmp_path)
    with pytest.raises(StoppedError):
        class_selection.select(Occurrences({"a": 3}), 1.0, 1e-5, ledger)
    assert len(spends(ledger)) == 1


# Releases that are killed, and finished by the same command

RESUMED = {
    "votes of persons": {"labeler": "rknn", "queries": 3, "person": "who"},
    "drawn records of persons": {"queries": 3, "person": "who", "records_per_person": 2},
    "sets of labels": {"queries": 3, "labels_per_record": 2},
    "prototypes": {"labeler": "prototypes"},
    "prototypes of persons": {"labeler": "prototypes", "person": "who", "delta": 1e-6},
    "public prototypes of persons": {"labeler": "public_prototypes", "person": "who"},
    "least squares": {"labeler": "least_squares", "delta": 1e-6, "relation": "add-remove"},
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 90)
    rows = (rng.normal(size=(90, 3)) + 20 * labels[:, None]).astype(np.float32)
    np.savez(tmp_path / "P.npz", embeddings=rows[:30])
    who = rng.integers(0, 20, 60)
    np.savez(tmp_path / "R.npz", embeddings=rows[30:], labels=labels[30:], who=who)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def phase(folder, state):
    """Return how far a release is, by its ledger and by what is in its hidden folder."""
    lines = state.get(Path("R.npz.ledger.jsonl"), b"").count(b"\n")
    shown = {path.name for path in state if path.parts[0] == "new"}
    return lines, *(name in shown for name in ("note.json", "counts.npy", *RESULTS))


@pytest.mark.long
@pytest.mark.parametrize("case", RESUMED)
def test_a_release_that_is_finished_after_a_kill_is_paid_once(case, files, monkeypatch):
    """At the first moment of every phase: one charge, of the release's own cost, and one draw."""
    given = {"epsilon": 2.0, "classes": "2", "smoothing": "none", "out": Path("new")}
    settings = named_settings(Settings, "P.npz", "R.npz", **given | RESUMED[case])
    states = {}
    for state in states_of_a_release(files, settings):
        states.setdefault(phase(files, state), state)
    assert len(states) > 6
    *unfinished, (_, whole) = states.items()
    draws = []
    for draw in DRAWS:
        original = getattr(exact_noise, draw)
        monkeypatch.setattr(
            exact_noise, draw, lambda *a, f=original, **k: draws.append(1) or f(*a, **k)
        )
    for (lines, _, kept, *_), state in unfinished:
        restore(files, state)
        draws.clear()
        plan = planning.prepare(settings)
        assert plan.paid == (lines >= 2)
        done = label.release(plan)
        assert len(draws) == (not kept), "what was kept is not drawn again"
        ledger = Ledger.open(settings.ledger_path)
        assert [entry.kind for entry in ledger.entries()] == ["create", "spend", "drawn"]
        [spend] = spends(ledger)
        assert (float(spend.amount.epsilon), float(spend.amount.delta)) == (2.0, settings.delta)
        assert spend.guarantee == plan.cost == done.answers.guarantee
        assert spend.guarantee.unit == ("record" if settings.columns.person is None else "person")
        assert spend.guarantee.relation == settings.relation
    restore(files, whole)
    with pytest.raises(ValueError, match=r"earlier release|left"):
        label.release(planning.prepare(settings))
    assert len(spends(Ledger.open(settings.ledger_path))) == 1


@pytest.mark.usefixtures("stop_at_the_draw")
@pytest.mark.parametrize("labeler", choosing.names())
def test_a_release_is_paid_for_before_it_is_drawn(labeler, tmp_path):
    rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    np.save(tmp_path / "P.npy", rows)
    np.savez(tmp_path / "R.npz", embeddings=rows[::-1], labels=np.arange(20) % 2)
    given = named_settings(
        Settings,
        public=str(tmp_path / "P.npy"),
        private=str(tmp_path / "R.npz"),
        out=tmp_path / "out",
        classes="2",
        epsilon=1.0,
        labeler=labeler,
    )
    with pytest.raises(StoppedError):
        label.release(planning.prepare(given))
    assert len(spends(Ledger.open(given.ledger_path))) == 1


@pytest.mark.usefixtures("stop_at_the_draw")
@pytest.mark.parametrize("kind", LABELERS)
def test_a_client_pays_for_its_part_of_a_sum_before_its_noise(kind, tmp_path):
    party = a_party(tmp_path, 1)
    prepared = party.ready(a_sum(kind).data)
    with pytest.raises(StoppedError):
        prepared.vector()
    assert len(spends(party.ledger)) == 1


@pytest.mark.parametrize("noise", ["subset_selection", "collision", "randomized_response"])
def test_a_client_pays_for_its_messages_before_they_are_randomized(noise, tmp_path, monkeypatch):
    client = a_client(tmp_path, seed=1)
    charged = []

    def stop(self, *shape):
        charged.append(len(spends(client.ledger)))
        raise StoppedError

    monkeypatch.setattr(Entropy, "words", stop)
    with pytest.raises(StoppedError):
        client.answer(a_round(mechanism=noise).data)
    assert charged == [1]
