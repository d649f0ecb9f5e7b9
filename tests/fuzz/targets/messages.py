"""`Collector.receive`: the bytes that clients answer with."""

import functools
import itertools
from pathlib import Path

import numpy as np

from rknn_jax.federation import wire
from rknn_jax.federation.collector import Collector, Reply
from rknn_jax.privacy.entropy import Entropy
from tests.fuzz import workplace
from tests.fuzz.targets.question import a_round

PATHLESS = (ValueError,)
NUMBERS = itertools.count()
MECHANISMS = ("collision", "subset_selection", "randomized_response", "optimized_unary_encoding")


def payload(round, count):
    cells = np.arange(count, dtype=np.int32).reshape(count, 1) % 12
    messages = round.mechanism.respond(Entropy(bytes(32)), cells)
    return wire.encode(round.mechanism, messages)


@functools.cache
def _collector(mechanism):
    return Collector(workplace() / f"answers-{mechanism}", a_round(mechanism), most_records=64)


def seeds():
    return [{name: payload(a_round(name), 3)} for name in MECHANISMS]


def readers(folder: Path):
    found = [path for path in folder.iterdir() if path.name in MECHANISMS]

    def received(path):
        collector = _collector(path.name)
        reply = Reply(next(NUMBERS), collector.round.id, path.read_bytes())
        before = collector.num_messages
        (fate,) = collector.receive([reply])
        assert collector.num_messages - before <= 64 * (fate == "counted")
        return wire.decode(collector.round.mechanism, reply.payload)

    return [functools.partial(received, path) for path in found]
