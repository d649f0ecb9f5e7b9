"""Neighboring inputs of a client of a federation, and what its server sees of either.

**Messages.** A client answers a question: its ledger, its note of the round and its answer on disk
are real. The view holds its messages, as `games` describes them, and the bits of its ticket. If a
record is protected, a client with the same record many times over shows as many runs in one
answer, without its ticket. If a client is protected, each run is the answer of a new client with
several records.

**Sums.** A client adds its part to a secure sum of `CLIENTS` clients. One of the others drops out
before it deals shares, and one before it sends a vector. As many are left as the noise counts on.
The server follows the protocol, and shares all that it learns with one curious client of the sum,
whose part it subtracts. The view holds the rest of the sum, and the client's masked vector without
the masks that the two can compute. In one game the client's own vector comes late: the server has
taken it for lost, and was given the shares of its mask key.
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from rknn_jax.audit.folders import own_folder
from rknn_jax.audit.game import Game
from rknn_jax.audit.games import (
    BITS,
    bits,
    described_counts,
    described_messages,
    message_names,
    supported,
)
from rknn_jax.bsvs import NO_CELL
from rknn_jax.federation import wire
from rknn_jax.federation.agreement import Agreement
from rknn_jax.federation.client import Client
from rknn_jax.federation.rounds import Round
from rknn_jax.federation.secure_sum import Participant
from rknn_jax.federation.secure_sum_keys import STEPS, combine, own_mask, pair_mask
from rknn_jax.federation.secure_sum_layout import decode_shares, decode_vector
from rknn_jax.federation.secure_sum_server import Summation
from rknn_jax.labelers import rknn
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger

Kind = Literal["messages", "sum"]

QUERIES = 4 * np.eye(3, dtype=np.float32)
CLASSES = ("a", "b", "c")

CLIENTS = 5
"""Number of clients of a sum. The first one is the canary."""

HONEST = 3
"""Number of clients whose noise a sum counts on, and of those that stay."""

LOST = {1: 2, 2: 1}
"""Clients that drop out, and the first step that they miss."""

CURIOUS = 3
"""Client that tells the server what it knows."""

VOTING = {"messages": 8, "sum": 128}
"""Number of records of a client that vote, if a client is protected."""

OF_CLIENT = 200
"""Number of records of every client, if a client is protected."""

DATASET = "sha256:a client of an audit"


class Holding(NamedTuple):
    """Records of a client.

    Attributes:
      words: Description of the records.
      features: float32 `[n, f]`.
      labels: int32 `[n]`.
    """

    words: str
    features: np.ndarray
    labels: np.ndarray


def of_federation(
    kind: Kind, epsilon: float, delta: float, unit: Literal["record", "client"]
) -> tuple[list[Game], Guarantee]:
    """Return games of a client of a round, and the round's guarantee.

    Args:
      kind: Messages of a local mechanism, or a secure sum.
      epsilon: Epsilon of the round.
      delta: Delta of a sum.
      unit: Privacy unit.
    """
    summed = kind == "sum"
    config = rknn.ReverseKNN(
        epsilon,
        delta,
        mechanism="binomial" if summed else "collision",
        trust="central" if summed else "local",
    )
    round = Round(
        QUERIES,
        CLASSES,
        config,
        unit=unit,
        records_per_client=VOTING[kind] if unit == "client" else 0,
        honest=HONEST if summed else 0,
    )
    first, *others = _holdings(1 if unit == "record" else OF_CLIENT)
    pairs = [(first, other) for other in others]
    if summed:
        games = [_summed(round, pair) for pair in pairs]
        return [*games, _summed(round, pairs[0], late=True)], round.guarantee()
    return [_sent(round, pair) for pair in pairs], round.guarantee()


def _holdings(copies: int) -> list[Holding]:
    """Return clients' records: one near a query, and what may stand in its place."""
    near, far = QUERIES[0] + 0.5, QUERIES[1] + 0.5
    nowhere = np.full_like(near, np.nan)
    records = {
        "label 0 near query 0": (near, 0),
        "label 1 near query 0": (near, 1),
        "label 2 near query 1": (far, 2),
        "no label": (near, -1),
        "no numbers": (nowhere, 0),
    }
    return [
        Holding(words, np.repeat(row[None], copies, axis=0), np.full(copies, label, np.int32))
        for words, (row, label) in records.items()
    ]


def _client(folder: Path, round: Round, held: Holding) -> Client:
    """Return a client with a ledger of its own, which has just enough for one round."""
    cost = round.guarantee()
    ledger = Ledger.create(
        folder / "ledger.jsonl", DATASET, cost.epsilon, cost.delta, unit=round.unit
    )
    agreement = Agreement("central" if round.summed else "local")
    return Client(held.features, held.labels, ledger, folder=folder / "rounds", agreement=agreement)


def _words(pair: Sequence[Holding]) -> str:
    return f"a client whose records have {pair[0].words}, or {pair[1].words}"


def _cells(round: Round, held: Holding) -> np.ndarray:
    """Return the votes of a client's records, int32 `[n, k·r]`."""
    able = np.isfinite(held.features).all(axis=1)
    labels = np.where(able, held.labels, NO_CELL).astype(np.int32)
    return round.contribute(np.nan_to_num(held.features), labels)


def _sent(round: Round, pair: Sequence[Holding]) -> Game:
    """Return the game of a client's answer."""
    mechanism = round.mechanism
    cells = [_cells(round, one)[0] for one in pair]

    def answered(held: Holding) -> tuple[int, bytes]:
        with own_folder() as folder:
            return _client(folder, round, held).answer(round.data)[1:]

    def observe(key: jax.Array, world: int, runs: int) -> np.ndarray:
        del key  # The client draws its own noise.
        held = pair[world]
        if round.unit == "record":
            rows, labels = np.repeat(held.features, runs, axis=0), np.repeat(held.labels, runs)
            answers = [answered(Holding(held.words, rows, labels))]
        else:
            answers = [answered(held) for _ in range(runs)]
        messages = wire.decode(mechanism, b"".join(payload for _, payload in answers))
        told = described_messages(mechanism, messages, supported(mechanism, messages), cells)
        if round.unit == "record":  # All runs have one ticket, which is no view of each.
            return told
        told = told.reshape(runs, round.records_per_client, -1)
        tickets = np.array([ticket for ticket, _ in answers], np.uint64).view(np.uint32)
        # Records are drawn in any order, so that sums tell what places do not.
        parts = [told.reshape(runs, -1), told.sum(axis=1), bits(tickets.reshape(runs, 2))]
        return np.concatenate(parts, axis=1)

    return Game(_words(pair), observe, _message_columns(round, cells[0]), always=(0,))


def _message_columns(round: Round, cells: np.ndarray) -> tuple[str, ...]:
    one = message_names(round.mechanism, cells)
    if round.unit == "record":
        return one
    ticket = tuple(f"bit {bit} of the ticket" for bit in range(2 * (BITS + 1)))
    every = tuple(f"{name} of message {i}" for i in range(round.records_per_client) for name in one)
    return every + tuple(f"{name} of all messages" for name in one) + ticket


def _summed(round: Round, pair: Sequence[Holding], *, late: bool = False) -> Game:
    """Return the game of a secure sum, in which the canary's vector may come too late."""
    other = pair[0]
    told = _cells(round, other)
    # The curious client's part is subtracted, and a late vector is not in the sum.
    others = (CLIENTS - 2 if late else HONEST - 2) * _counts(round, other)
    totals = [others + (0 if late else _counts(round, one)) for one in pair]

    def run(held: Holding) -> np.ndarray:
        with own_folder() as folder:
            prepared = _client(folder, round, held).ready(round.data)
            vectors = {
                number: functools.partial(round.sum.vector, told, Entropy.fresh())
                for number in range(1, CLIENTS)
            }
            total, clients, left = _played(round, {0: prepared.vector} | vectors, late=late)
        counts = np.floor(round.sum.estimate(total, clients)[0]).ravel()
        return np.concatenate([counts, left.astype(np.uint32).astype(np.float64)])

    def observe(key: jax.Array, world: int, runs: int) -> np.ndarray:
        del key  # The clients draw their own noise.
        rows = np.stack([run(pair[world]) for _ in range(runs)])
        counts, left = rows[:, : round.num_cells], rows[:, round.num_cells :]
        shown = bits(left.astype(np.uint32))
        return np.concatenate([described_counts(counts, totals), left, shown], axis=1)

    words = f"{_words(pair)}{'; its vector comes late' if late else ''}"
    return Game(words, observe)


def _counts(round: Round, held: Holding) -> np.ndarray:
    """Return what a client's records add to every cell, int64 `[num_cells]`."""
    cells = _cells(round, held)
    cells = np.unique(cells) if round.unit == "client" else cells
    return np.bincount(cells[cells >= 0].ravel(), minlength=round.num_cells)


def _played(
    round: Round, vectors: dict[int, Callable[[], np.ndarray]], *, late: bool
) -> tuple[np.ndarray, int, np.ndarray]:
    """Play one sum, and return what its server and the curious client see together.

    Returns:
      The sum without the curious client's part, the number of clients in it, and the canary's
      vector without the masks that the two can compute, uint64 modulo 2^64.
    """
    own: dict[int, np.ndarray] = {}

    def taken(number: int) -> np.ndarray:
        own[number] = vectors[number]()
        return own[number]

    parties = {
        number: Participant(
            round.id, round.num_cells, lambda _: HONEST, functools.partial(taken, number)
        )
        for number in vectors
    }
    server = Summation(round.id, round.num_cells, list(vectors), HONEST)
    lost = {0: 2} if late else LOST
    replies: dict[tuple[int, int], bytes] = {}
    while server.result is None:
        step = server.step
        for number in sorted(server.waiting()):
            if step < lost.get(number, STEPS) or (number, step) == (0, 2):
                replies[number, step] = parties[number].step(step, server.question(number) or b"")
            if step < lost.get(number, STEPS):
                server.receive(number, step, replies[number, step])
        server.advance()
    total, clients = server.result
    opened = {number: decode_shares(data)[0] for (number, at), data in replies.items() if at == 3}
    masked = decode_vector(replies[0, 2], round.num_cells)
    left = masked - _computed_masks(parties[0], opened, set(lost))
    return total - own[CURIOUS], clients - 1, left


def _computed_masks(canary: Any, opened: dict[int, int], lost: set[int]) -> np.ndarray:
    """Return the sum of the canary's masks that server and curious client can compute.

    Args:
      canary: Participant of the canary, which knows all its masks.
      opened: Shares of a secret of the canary, by the client that revealed it.
      lost: Clients whose mask keys were revealed.
    """
    length, bound = canary._length, canary._transcript
    secret = combine(dict(sorted(opened.items())[:HONEST]))
    found = np.zeros(length, np.uint64)
    if secret is not None and hashlib.sha256(secret).digest() == canary._keys.commitment:
        found += own_mask(secret, bound, 0, length)
    for peer, (_, key) in canary._peers.items():
        if peer in canary._shares and (peer == CURIOUS or lost & {0, peer}):
            found += pair_mask(canary._mask_key, key, bound, client=0, peer=peer, length=length)
    return found
