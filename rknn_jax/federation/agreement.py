"""Agreement of a client's owner: limits on the questions that a server may ask.

A question is checked against the agreement before the client's records are read, so a refusal
reveals nothing about the records but their number.
"""

import functools
import os
from dataclasses import dataclass
from pathlib import Path

from rknn_jax import trust
from rknn_jax._internal import onnx
from rknn_jax._internal.option_names import option
from rknn_jax.federation import wire
from rknn_jax.federation.rounds import Round
from rknn_jax.privacy.guarantee import LARGE_EPSILON, Guarantee, rounded_up


class RefusedError(ValueError):
    """Refusal of a client to answer; nothing was spent."""


@dataclass(frozen=True)
class Agreement:
    """Limits that a client's owner sets on a server's questions.

    Attributes:
      trust: Trust model. `local` trusts nobody. `shuffle` trusts the server to hide the sender of
        each message, among `honest` ones. `central` trusts the server to follow the protocol of
        secure aggregation, and all clients but `dishonest` ones to add their noise and keep it
        secret. Defaults to `local`.
      honest: Number of messages from clients that follow the protocol, including one's own, with
        trust=shuffle. Defaults to None.
      dishonest: Number of clients of a sum that may not follow the protocol, with trust=central.
        Defaults to 0.
      epsilon: Most epsilon that one round may cost. Defaults to None, the ledger's remaining
        budget.
      delta: Most delta that one round may cost. Defaults to None, the ledger's remaining budget.
      simulated: Permission to answer with simulated noise, which protects nothing. For experiments
        on public data. Defaults to False.
      large_epsilon: Permission for one round to cost an epsilon above `guarantee.LARGE_EPSILON`.
        Defaults to False.
      most_cells: Most queries times classes of one round. Defaults to 2^20.
      most_bytes: Most bytes of one question, and of one answer. Defaults to 2^28, a quarter of a
        gigabyte.
      most_work: Most cells times records of one round, as in `Round.work`. Defaults to 2^30.
      networks: Files that a representation may read, by the paths that a question names. Defaults
        to none: a server learns nothing about other files, not even whether they are there.
    """

    trust: str = "local"
    honest: int | None = None
    dishonest: int = 0
    epsilon: float | None = None
    delta: float | None = None
    simulated: bool = False
    large_epsilon: bool = False
    most_cells: int = 2**20
    most_bytes: int = 2**28
    most_work: int = 2**30
    networks: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        for name in ("most_cells", "most_bytes", "most_work"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} >= 1, got {name}={getattr(self, name)}.")

    def parsed(self, question: bytes, num_records: int) -> Round:
        """Return the round of a question that is within the owner's bounds.

        The result depends on the question alone and, with unit=record, on the number of records,
        which an answer reveals.

        Args:
          question: Bytes that the server sent.
          num_records: Number of the owner's records n.

        Raises:
          RefusedError: If the bytes are no question, or if the question or its answer is too large.
        """
        _at_most("bytes", self.most_bytes, len(question), "in a question")
        try:
            round = Round.of(question)
        except ValueError as error:
            raise RefusedError(str(error)) from error
        self._check_files(round)
        _at_most("cells", self.most_cells, round.num_cells, "in a round")
        _at_most("bytes", self.most_bytes, round.answer_bytes(num_records), "in an answer")
        _at_most(
            "work", self.most_work, round.work(num_records), "of cells times records in a round"
        )
        return round

    def cost(self, round: Round) -> Guarantee:
        """Return the cost of the round under the owner's trust, which the ledger is charged.

        Raises:
          RefusedError: If the owner has not agreed to such a round, or to such a cost.
        """
        if round.simulated is not None and not self.simulated:
            raise RefusedError(
                "Expected a round with real noise, got simulated noise, which protects nothing; "
                "it is for experiments."
            )
        self._check_trust(round)
        try:
            cost = round.guarantee(self.honest)
        except ValueError as error:
            raise RefusedError(str(error)) from error
        if cost.epsilon > LARGE_EPSILON and not self.large_epsilon and round.simulated is None:
            raise RefusedError(
                f"Expected epsilon <= {LARGE_EPSILON:g} a round, got epsilon={cost.epsilon}, "
                "which protects next to nothing; "
                f"agree with {option('allow_large_epsilon')} if that is meant."
            )
        for name in ("epsilon", "delta"):
            most = getattr(self, name)
            asked = getattr(cost, name)
            if most is not None and asked > most:
                raise RefusedError(
                    f"Expected {name} <= {most} a round, got {name}={asked}; agree to more with "
                    f"{option(f'most_{name}')}."
                )
        return cost

    def _check_files(self, round: Round) -> None:
        """Refuse a representation that reads a file which the owner has not listed.

        Other paths are compared as text, so that nothing is read or looked up for a server.
        """
        listed = {os.path.abspath(path) for path in self.networks}
        for path, digest in wire.files_of(round.encode):
            if not isinstance(path, str) or os.path.abspath(path) not in listed:
                raise RefusedError(
                    "Expected a representation that reads no file, or one of "
                    f"{option('networks')}, got one that names {str(path)[:100]!r}; list it if you "
                    "have this network and mean it."
                )
            try:
                found = os.stat(path)
                size = found.st_size
                _at_most("bytes", self.most_bytes, size, f"in the network {path}")
                same = _digest(path, size, found.st_mtime_ns) == digest
            except (OSError, ValueError) as error:
                raise RefusedError(str(error)) from error
            if not same:
                raise RefusedError(
                    f"Expected the network {path} that you have, got a question about another one "
                    "of this name; agree on a file with the server."
                )

    def _check_trust(self, round: Round) -> None:
        """Refuse a round that trusts somebody whom the owner does not trust."""
        asked = round.config.trust
        model = trust.named(asked)
        shuffled = model.is_shuffled
        agreed = self.trust == asked and not (shuffled and self.honest is None)
        if model.trusts_nobody or agreed:
            return
        alone = ""
        if shuffled:
            alone = f", with messages of epsilon {rounded_up(round.message_epsilon, 4)} each"
        raise RefusedError(
            f"Expected a round that trusts nobody, got trust={asked}{alone}; agree "
            f"with {option('trust')} {asked}, and with "
            f"{option('honest')} N for as many shuffled messages as you believe in."
        )


@functools.lru_cache(maxsize=8)
def _digest(path: str, size: int, changed: int) -> str:
    """Return the SHA-256 of a file of this size that changed at this time, read once."""
    del size, changed
    return onnx.digest(Path(path))


def _at_most(name: str, most: int, asked: int, where: str) -> None:
    if asked > most:
        raise RefusedError(
            f"Expected at most {most:,} {name} {where}, got {asked:,}; agree to more with "
            f"{option(f'most_{name}')} {asked}."
        )
