"""`Collector` on the folder of a round that was stopped: answers, question and rejections."""

import json
from pathlib import Path

from rknn_jax.federation.collector import Collector, Reply
from tests.fuzz import workplace
from tests.fuzz.targets.messages import payload
from tests.fuzz.targets.question import a_round

CLIENTS = 6


def seeds():
    round = a_round()
    folder = workplace() / "stopped"
    if not folder.exists():
        collector = Collector(folder, round)
        for first in range(0, CLIENTS, 2):
            collector.receive(
                [Reply(number, round.id, payload(round, 1)) for number in (first, first + 1)]
            )
        collector.receive([Reply(0, round.id, payload(round, 1)), Reply(9, "another", b"")])
        collector.close()
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return [
        files,
        {"answers.bin": files["answers.bin"]},
        files | {"rejected.json": json.dumps({"again": 2}).encode()},
    ]


def readers(folder: Path):
    def opened():
        collector = Collector(folder, a_round())
        try:
            assert collector.clients <= set(range(CLIENTS)), "a client that never answered"
            assert collector.num_messages == collector.num_clients, "a client counted twice"
            return collector.counts(), sum(collector.rejected.values())
        finally:
            collector.close()

    return [opened]
