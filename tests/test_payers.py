"""Order of charge and draw: whoever draws exact noise has the charge on disk before the first bit.

Each source of exact noise is replaced by one that stops the process at the draw. The ledger is then
read from disk, as the next process would read it.
"""

import jax
import numpy as np
import pytest

from rknn_jax import labelers, mechanisms
from rknn_jax.labelers._one_sum import OneSumLabeler
from rknn_jax.mechanisms import base
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release import class_selection, label, planning, surveys
from rknn_jax.release.class_selection import Occurrences
from rknn_jax.release.settings import Settings
from rknn_jax.types import Queries, Records
from tests.conftest import modules
from tests.test_federation import a_client, a_round
from tests.test_federation_sums import LABELERS, a_party, a_sum

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
    with pytest.raises(StoppedError):
        base.release_counts(mechanism, votes, 9, ledger, "counts")
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
        class_selection.select(Occurrences({"a": 3}, False), 1.0, 1e-5, ledger)
    assert len(spends(ledger)) == 1


@pytest.mark.usefixtures("stop_at_the_draw")
@pytest.mark.parametrize("labeler", surveys.names())
def test_a_release_is_paid_for_before_it_is_drawn(labeler, tmp_path):
    rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    np.save(tmp_path / "P.npy", rows)
    np.savez(tmp_path / "R.npz", embeddings=rows[::-1], labels=np.arange(20) % 2)
    given = Settings(
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
