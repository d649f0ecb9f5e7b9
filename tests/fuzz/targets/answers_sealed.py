"""`Collector` on frames of odd numbers and lengths whose hashes are right."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np

from rknn_jax.federation import wire
from rknn_jax.federation.collector import Collector
from tests.fuzz.targets.messages import payload
from tests.fuzz.targets.question import a_round


def seeds():
    frame = {"clients": [0, 1], "payload": payload(a_round(), 2).hex()}
    frames = [frame, frame | {"clients": [2, 3]}, frame | {"clients": [4, 2**64 - 1]}]
    return [{"frames.json": json.dumps(frames).encode()}]


def sealed(files):
    """Turn the frames into the file of the answers."""
    if "frames.json" not in files:
        return files
    try:
        frames = json.loads(files["frames.json"])
    except (ValueError, RecursionError):
        frames = []
    return {"answers.bin": b"".join(map(_frame, frames if isinstance(frames, list) else []))}


def _frame(told):
    """Return a frame of what JSON told, as far as that can be written."""
    told = told if isinstance(told, dict) else {}
    clients = told["clients"] if isinstance(told.get("clients"), list) else []
    clients = [int(client) for client in clients if isinstance(client, int) and 0 <= client < 2**64]
    payload = "".join(re.findall("[0-9a-f]{2}", str(told.get("payload"))))
    body = np.array(clients, "<u8").tobytes() + bytes.fromhex(payload)
    head = np.array([len(clients), len(payload) // 2], "<u8").tobytes()
    return head + hashlib.sha256(head + body).digest() + body


def readers(folder: Path):
    def opened():
        collector = Collector(folder, a_round())
        try:
            counted = (folder / "answers.bin").stat().st_size
            size = wire.message_bytes(collector.round.mechanism)
            least = 8 * collector.num_clients + size * collector.num_messages
            assert (counted - least) % 48 == 0, "a client counted twice"
            return collector.counts()
        finally:
            collector.close()

    return [opened]
