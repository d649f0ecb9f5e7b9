"""`Round.of` and a client's bounds: the bytes that a server asks with.

Trees and arrays of a question are mutated apart too, and packed with right lengths.
"""

import dataclasses
import functools
from pathlib import Path

import numpy as np

from rknn_jax.federation import wire
from rknn_jax.federation.agreement import Agreement
from rknn_jax.federation.check_rounds import CheckRound
from rknn_jax.federation.client import Client
from rknn_jax.federation.rounds import Round
from rknn_jax.labelers import rknn
from rknn_jax.labelers._sum_labeler import Labeling
from rknn_jax.labelers.prototypes import Prototypes
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.representations import pixels
from tests.conftest import sum_labelers
from tests.fuzz import workplace

PATHLESS = (ValueError,)
RNG = np.random.default_rng(0)
QUERIES = RNG.normal(size=(4, 5)).astype(np.float32)
RECORDS = RNG.normal(size=(6, 5)).astype(np.float32)
LABELS = np.arange(6, dtype=np.int32) % 3
CLASSES = ("ant", "bee", "cow")
NONCE = "00" * 16


def a_round(mechanism="collision", trust="local", **fields):
    config = rknn.ReverseKNN(1.0, 1e-5, 1, mechanism, trust)
    return Round(QUERIES, CLASSES, config, nonce=NONCE, **fields)


def a_sum(kind, **fields):
    return Round(QUERIES, CLASSES, kind(1.0, 1e-5), nonce=NONCE, honest=3, **fields)


def a_check(votes):
    labels = np.eye(3, dtype=np.float32)[[0, 1, 2, 1]]
    check = CheckRound.of_votes(votes, QUERIES, Labeling("labels", labels, lambda: None))
    return dataclasses.replace(check, nonce=NONCE)


def seeds():
    rounds = [
        a_round(),
        a_round("optimized_unary_encoding"),
        a_round("subset_selection", unit="client", records_per_client=2),
        a_round("collision", "shuffle", honest=100),
        a_round("binomial", "central", honest=3),
        a_round(encode=pixels.Encoder()),
        *(a_sum(kind) for kind in sum_labelers().values()),
        a_sum(Prototypes, unit="client"),
        a_round(check_share=0.25),
        a_check(a_round(check_share=0.25)),
        a_check(a_sum(Prototypes, check_share=0.25)),
    ]
    made = []
    for round in rounds:
        made.append({"question": round.data})
        made.append(_parts(round.data))
    return made


def _parts(data):
    tree, kinds = (int.from_bytes(data[start : start + 8], "little") for start in (0, 8))
    ends = (16, 16 + tree, 16 + tree + kinds)
    parts = {"tree": data[ends[0] : ends[1]], "kinds": data[ends[1] : ends[2]]}
    return parts | {"arrays": data[ends[2] :]}


def _packed(folder):
    if (folder / "question").exists():
        return (folder / "question").read_bytes()
    paths = [folder / name for name in ("tree", "kinds", "arrays")]
    parts = [path.read_bytes() if path.exists() else b"" for path in paths]
    return b"".join(len(part).to_bytes(8, "little") for part in parts[:2]) + b"".join(parts)


@functools.cache
def _client(trust):
    """Return a client whose ledger can pay for nothing, so that it reads and refuses."""
    dataset = fingerprint(RECORDS)
    ledger = Ledger.create(workplace() / f"poor-{trust}", dataset, 1e-9)
    agreement = Agreement(trust, honest=100)
    return Client(RECORDS, LABELS, ledger, workplace() / f"rounds-{trust}", agreement)


def readers(folder: Path):
    data = _packed(folder)

    def answered(trust, ask):
        ask(data)
        raise AssertionError("an answer that nobody can pay for")

    return [
        lambda: wire.unpack(data),
        lambda: Round.of(data).id,
        lambda: answered("shuffle", _client("shuffle").answer),
        lambda: answered("central", _client("central").ready),
    ]
