"""What a client noted before it was charged: one spend makes one message, also after a crash or
a restored backup.
"""

import dataclasses

import pytest

from rknn_jax.cli import federation
from rknn_jax.federation import client as clients
from rknn_jax.federation.agreement import RefusedError
from rknn_jax.federation.notes import seal
from rknn_jax.privacy.ledger import Ledger
from tests.test_federation import a_client, a_round


def answered_with_its_note(folder, monkeypatch):
    """Return a client that was charged and answered, its round, its answer, and its note put
    back as from a backup.
    """
    client = a_client(folder)
    round = a_round()
    notes = []
    real = clients.messages

    def keep_the_note(*arguments, **named):
        notes.append((client.folder / f"{round.id}.noted").read_bytes())
        return real(*arguments, **named)

    monkeypatch.setattr(clients, "messages", keep_the_note)
    said = client.answer(round.data)
    (client.folder / f"{round.id}.answer").unlink()
    (client.folder / f"{round.id}.noted").write_bytes(notes[0])
    return client, round, said


def test_a_restored_note_makes_the_same_message_again(tmp_path, monkeypatch):
    client, round, said = answered_with_its_note(tmp_path, monkeypatch)
    assert client.answer(round.data) == said
    assert client.ledger.spent.epsilon == 1


def test_a_restored_note_makes_no_message_of_other_votes(tmp_path, monkeypatch):
    client, round, _ = answered_with_its_note(tmp_path, monkeypatch)
    changed = dataclasses.replace(client, labels=(client.labels + 1) % 3)
    with pytest.raises(RefusedError, match="got others"):
        changed.answer(round.data)
    assert client.ledger.spent.epsilon == 1


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"seed": 3, "seal": ""}', '{"seed": "00", "seal": ""}', "[" * 100_000]
)
def test_a_damaged_note_makes_no_message(tmp_path, monkeypatch, text):
    client, round, _ = answered_with_its_note(tmp_path, monkeypatch)
    (client.folder / f"{round.id}.noted").write_text(text)
    with pytest.raises(RefusedError, match="as it was written"):
        client.answer(round.data)


def test_a_note_tells_nothing_of_the_votes_without_its_seed_and_is_gone_once_it_is_answered(
    tmp_path,
):
    client = a_client(tmp_path)
    round = a_round()
    client.answer(round.data)
    assert not list(client.folder.glob("*.noted"))
    cells = client._contribution(round)
    assert seal(bytes(32), cells) != seal(bytes([1]) * 32, cells)
    assert len({seal(bytes(32), cells, at_once) for at_once in (100, 200, 4096)}) == 3


def test_a_ledger_that_is_unreadable_after_a_round_does_not_lose_its_statement(tmp_path, capsys):
    ledger = Ledger.create(tmp_path / "ledger.jsonl", "a" * 64, 2)
    assert federation._amounts(ledger)["budget"] == {"epsilon": 2, "delta": 0}
    ledger.path.write_bytes(b"\xff" * 100)
    assert federation._amounts(ledger) == dict.fromkeys(("budget", "spent", "remaining"))
    assert "what this round spent, and what is left, is unknown" in capsys.readouterr().err
