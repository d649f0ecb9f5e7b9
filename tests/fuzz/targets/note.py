"""`Client.answer` with a note that a crash left: the same messages again, or none."""

import functools
from pathlib import Path

from rknn_jax.federation import client as clients
from rknn_jax.federation.client import Client
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.ledger import Ledger
from tests.fuzz import workplace
from tests.fuzz.targets.question import LABELS, RECORDS, a_round


@functools.cache
def _answered():
    """Return the note, the answer and the ledger of a client that has answered."""
    folder = workplace() / "client"
    round = a_round()
    ledger = Ledger.create(workplace() / "client.ledger", fingerprint(RECORDS), 3)
    kept = []
    real = clients.messages

    def keep_the_note(*arguments, **named):
        kept.append((folder / f"{round.id}.noted").read_bytes())
        return real(*arguments, **named)

    clients.messages = keep_the_note
    try:
        said = Client(RECORDS, LABELS, ledger, folder).answer(round.data)
    finally:
        clients.messages = real
    return kept[0], said, ledger.path.read_bytes()


def seeds():
    return [{f"rounds/{a_round().id}.noted": _answered()[0]}]


def readers(folder: Path):
    _, said, account = _answered()
    ledger = folder / "ledger.jsonl"
    ledger.write_bytes(account)

    def answered():
        client = Client(RECORDS, LABELS, Ledger.open(ledger), folder / "rounds")
        again = client.answer(a_round().data)
        assert again == said, "a second message of one spend"
        assert client.ledger.spent.epsilon == 1

    return [answered]
