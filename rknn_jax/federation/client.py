"""What a client does with a question: see whether its owner agreed to such a thing, spend, randomize, and say the same if asked again.

In this order: a seed of the operating system's entropy is on disk, sealed with the round's id and the votes that it is for; the ledger is
charged; the message is made of seed and votes, and sent. A crash anywhere leaves either nothing spent and nothing said, or a spend whose
message is made again, the same to the byte. No second message is ever made of one spend:

- the id is the hash of the question, so another question is another round, with a spend of its own;
- votes that are not those of the seal, because the data was changed, are refused;
- a spend without its seed, because somebody removed it, is refused.

The server has no say in any of this. It asks; budget, data and what is agreed to are files and arguments of the client's owner.
"""

import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.bsvs import NO_CELL
from rknn_jax.federation import wire
from rknn_jax.federation.rounds import Round
from rknn_jax.privacy.entropy import SEED_BYTES, Entropy
from rknn_jax.privacy.guarantee import Guarantee, Trust
from rknn_jax.privacy.ledger import BudgetExceededError, Ledger

RECORDS_AT_ONCE = 4096  # whose bits are drawn together


class RefusedError(ValueError):
    """The client does not answer, and nothing was spent."""


@dataclass(frozen=True)
class Agreement:
    """What a client's owner lets a server ask.

    Attributes:
      trust: `local` trusts nobody. `shuffle` believes the server to hide who sent which message, among `honest` ones. `central` believes it
        to follow the protocol of secure aggregation, and `honest` clients to add their noise.
      honest: how many follow the protocol, oneself too, as the owner believes: messages with trust=shuffle, clients with trust=central.
      epsilon: that one round may cost; None leaves it to the ledger.
      simulated: whether to answer with simulated noise, which protects nothing. For experiments on data that is public.
    """

    trust: Trust = "local"
    honest: int | None = None
    epsilon: float | None = None
    simulated: bool = False


@dataclass(frozen=True)
class Client:
    """A party with private records.

    Attributes:
      inputs: uint8 images `[n, h, w, c]`, or float32 features `[n, f]`.
      labels: int32 `[n]`, negative where there is none.
      ledger: of these records.
      folder: where rounds are kept, beside the ledger and as safe.
      agreement: see `Agreement`.
      first: number of the first record among those of all clients, for simulated noise.
    """

    inputs: np.ndarray
    labels: np.ndarray
    ledger: Ledger | None
    folder: Path
    agreement: Agreement = Agreement()
    first: int = 0

    def answer(self, question: bytes) -> tuple[str, int, bytes]:
        """Return the round's id, this client's ticket in it and its messages.

        The ticket is a number below 2^64 that the round's seed makes: the same when the client is asked again, another in each round.

        Guarantee: `Round.guarantee`, charged to the ledger before anything is drawn, once however often it is asked.

        Raises:
          RefusedError: where the owner has not agreed to such a question, or it does not fit the data.
          LedgerError: where the budget does not allow it.
        """
        try:
            round = Round.of(question)
        except ValueError as error:
            raise RefusedError(str(error)) from error
        if round.config.trust == "central":
            raise RefusedError("Expected a round of messages, got trust=central, which asks for a sum.")
        cost = self._cost(round)
        cells = self._cells(round)
        if round.simulated is not None:
            return round.id, self.first, wire.encode(round.mechanism, _simulated(round, cells, self.first))
        seed = self._seed(round, cells, cost)
        ticket = int.from_bytes(hashlib.sha256(b"ticket" + seed).digest()[:8], "little")
        entropy = Entropy(seed)
        if round.unit == "client":
            cells = _drawn(entropy, cells, round.records_per_client)
        blocks = [cells[start : start + RECORDS_AT_ONCE] for start in range(0, len(cells), RECORDS_AT_ONCE)]
        return round.id, ticket, b"".join(wire.encode(round.mechanism, round.mechanism.respond(entropy, block)) for block in blocks)

    def ready(self, question: bytes) -> "Prepared":
        """Return what this client would add to a sum, without noise as yet; nothing is spent.

        Raises:
          RefusedError: where the owner has not agreed to such a question, or it does not fit the data.
        """
        try:
            round = Round.of(question)
        except ValueError as error:
            raise RefusedError(str(error)) from error
        if round.config.trust != "central":
            raise RefusedError("Expected a round with trust=central, got one of messages.")
        return Prepared(self, round, self._cost(round), self._cells(round))

    def _cost(self, round: Round) -> Guarantee:
        """Return what the round costs as the owner sees it, which is what the ledger is charged."""
        mine, asked = self.agreement, round.config
        if round.simulated is not None and not mine.simulated:
            raise RefusedError(
                "Expected a round with real noise, got simulated noise, which protects nothing; agree to it with --simulated."
            )
        if asked.trust != "local" and (mine.trust != asked.trust or mine.honest is None):
            alone = f", with messages of epsilon {round.message_epsilon:.4g} each" if asked.trust == "shuffle" else ""
            raise RefusedError(
                f"Expected a round that trusts nobody, got trust={asked.trust}{alone}; agree to it with --trust {asked.trust} --honest N, "
                "if you believe in so many."
            )
        try:
            cost = round.guarantee(mine.honest)
        except ValueError as error:
            raise RefusedError(str(error)) from error
        if mine.epsilon is not None and cost.epsilon > mine.epsilon:
            raise RefusedError(
                f"Expected epsilon <= {mine.epsilon} a round, got epsilon={cost.epsilon}; agree to more with --most-epsilon."
            )
        return cost

    def _cells(self, round: Round) -> np.ndarray:
        images = self.inputs.dtype == np.uint8
        if images != (round.encode is not None):
            held, asked = ("images", "features") if images else ("features", "images")
            raise RefusedError(
                f"Expected a round about {held}, which this client has, got one about {asked}; agree on one with the server."
            )
        try:
            features = self.inputs if round.encode is None else np.asarray(round.encode(self.inputs))
        except (ValueError, TypeError) as error:
            raise RefusedError(f"The round's representation does not take these images: {error}") from error
        if features.ndim != 2 or features.shape[1] != round.queries.shape[1]:
            raise RefusedError(f"Expected queries of {features.shape[1:]} dimensions, got {round.queries.shape[1]}; embed with one model.")
        if self.labels.max(initial=-1) >= len(round.classes):
            raise RefusedError(f"Expected labels of the {len(round.classes)} classes of the round, got a larger one; agree on the classes.")
        return round.connect(features, self.labels)

    def _seed(self, round: Round, cells: np.ndarray, cost: Guarantee, *, once: bool = False) -> bytes:
        """Return the round's seed, as it was sealed; or seal one and charge the ledger. With `once`, one that was charged is refused."""
        if self.ledger is None:
            raise RefusedError("Expected a ledger, got none, and real noise is not drawn without one.")
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{round.id}.json"
        with _locked(self.folder):
            spent = any(entry.kind == "spend" and entry.purpose == _purpose(round) for entry in self.ledger.entries())
            if spent and once:
                raise RefusedError("Expected a new round, got one whose sum this client has had its part in; it takes part once.")
            if path.exists():
                seal = json.loads(path.read_text())
                seed = bytes.fromhex(seal["seed"])
                if not hmac.compare_digest(seal["votes"], _sealed(seed, cells)):
                    raise RefusedError(
                        f"Expected the votes that {path} was sealed for, got others; a round is answered once, with the data as it was."
                    )
            elif spent:
                raise RefusedError(
                    f"Expected {path} of a round that {self.ledger.path} was charged for, got none; it cannot be answered again."
                )
            else:
                seed = secrets.token_bytes(SEED_BYTES)
                _write(path, json.dumps({"round": round.id, "votes": _sealed(seed, cells), "seed": seed.hex()}))
            if not spent:
                try:
                    self.ledger.charge(cost, _purpose(round))
                except BudgetExceededError:
                    path.unlink()  # of no use, and a server may ask for ever
                    raise
        return seed


@dataclass(frozen=True)
class Prepared:
    """A client's part in a sum.

    Attributes:
      client: whose.
      round: of trust=central.
      cost: of it.
      cells: int32 `[n, k·r]`, private.
    """

    client: Client
    round: Round
    cost: Guarantee
    cells: np.ndarray

    def vector(self) -> np.ndarray:
        """Charge the ledger and return this client's counts with its share of the noise, int64 `[s·|Y|]`, for secure aggregation to hide.

        Only once: two sums that hold one vector among different others would show it, with no more noise than its share.

        Raises:
          RefusedError: where it was asked for before.
          LedgerError: where the budget does not allow it.
        """
        cells, noise = self.cells, self.round.shares
        entropy = Entropy(self.client._seed(self.round, cells, self.cost, once=True))
        if self.round.unit == "client":
            cells = np.unique(_drawn(entropy, cells, self.round.records_per_client))
        counts = np.bincount(cells[cells >= 0].ravel(), minlength=noise.num_cells)
        return counts + noise.share(entropy)

    def least_threshold(self, clients: int) -> int:
        """Return how many of so many clients must open the sum, so that the honest ones in it are as many as the noise was made for."""
        return self.round.honest + max(0, clients - (self.client.agreement.honest or 0))


def _purpose(round: Round) -> str:
    return f"round {round.id}: {len(round.queries)} queries, {len(round.classes)} classes, {round.config.mechanism}"


def _sealed(seed: bytes, cells: np.ndarray) -> str:
    """Return a hash of the votes that tells nothing of them without the seed."""
    return hmac.new(seed, np.ascontiguousarray(cells, "<i4").tobytes() + str(cells.shape).encode(), hashlib.sha256).hexdigest()


def _drawn(entropy: Entropy, cells: np.ndarray, count: int) -> np.ndarray:
    """Return the cells of `count` records drawn without replacement; where there are fewer, of all and of records that cast no vote."""
    missing = np.full((max(0, count - len(cells)), cells.shape[1]), NO_CELL, np.int32)
    every = np.concatenate([cells, missing])
    return every[entropy.subset(len(every), count, 1)[0]]


def _simulated(round: Round, cells: np.ndarray, first: int) -> object:
    """Return the messages that `mechanisms.base.client_totals` aggregates, of clients from `first` on."""
    root = jax.random.key(round.simulated or 0)
    keys = jax.vmap(lambda number: jax.random.fold_in(root, number))(first + jnp.arange(len(cells)))
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(round.mechanism.randomize))(keys, jnp.asarray(cells)))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes of this client out; the lock goes with the process, also on `kill -9`."""
    with open(folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, text: str) -> None:
    """Write a file that is on disk, whole, or not there."""
    temporary = path.with_suffix(".new")
    with open(temporary, "w") as file:
        os.chmod(temporary, 0o600)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
