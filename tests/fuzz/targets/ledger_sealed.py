"""`Ledger` on lines of odd values whose hashes are right, as from another program."""

import hashlib
import json
from pathlib import Path

from rknn_jax.privacy.ledger import Ledger
from tests.fuzz.targets import ledger


def seeds():
    return [{"ledger": data[: data.rfind(b"\n") + 1]} for data in ledger._known()[0]]


def sealed(files):
    """Compute the hash of every line anew."""
    lines = []
    previous = ""
    for line in files.get("ledger", b"").split(b"\n"):
        try:
            record = {name: value for name, value in json.loads(line).items() if name != "hash"}
            body = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
        except (ValueError, AttributeError, RecursionError):
            lines.append(line)
            continue
        previous = hashlib.sha256(previous.encode() + body).hexdigest()
        lines.append(body[:-1] + f',"hash":"{previous}"}}'.encode())
    return files | {"ledger": b"\n".join(lines)}


def readers(folder: Path):
    path = folder / "ledger"

    def opened():
        found = Ledger.open(path)
        assert found.remaining.epsilon <= found.budget.epsilon
        return found.entries(), str(found.remaining), str(found.spent), found.unread

    def charged():
        Ledger.open(path, ledger.DATA).charge(ledger.released(0.01), "one more")

    return [opened, charged, lambda: Ledger(path, None).repair("a fault")]
