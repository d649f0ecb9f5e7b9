"""What clients have answered over several rounds, kept by the server's owner.

A client's own ledger decides what it answers, and no server can see it. This account is the
server's side: for each round, which clients were counted, and what the round guarantees them. A
line of the file is a round, written as soon as its server asks no more clients, also if nothing is
published: they have spent all the same. Another server of the round, a merge of several, or a
server that goes on adds a line of those clients that no line of the round has. A line that a crash
cut off, or that a killed server did not write, comes when the server is started again:

    {"round": "9431fb75...", "guarantee": {...}, "clients": [146730325036251050, ...]}
"""

import fcntl
import json
import os
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rknn_jax._internal.disk import sync_folder
from rknn_jax._internal.option_names import option
from rknn_jax.federation.collector import for_owner
from rknn_jax.privacy.accounting import compose
from rknn_jax.privacy.guarantee import Guarantee

BEGINS = b'{"round": "'
"""Beginning of a line."""

MOST_ROWS = 20
"""Most rows of the table."""


@dataclass(frozen=True)
class Account:
    """Clients that were counted in the same rounds.

    Attributes:
      rounds: Number of these rounds.
      clients: Number of the clients.
      guarantees: Composed guarantees of their answers; one for each unit, relation and trust.
    """

    rounds: int
    clients: int
    guarantees: tuple[Guarantee, ...]


def add(path: Path, round_id: str, guarantee: Guarantee, clients: Collection[int]) -> None:
    """Write the clients of a round into the file, each once.

    Args:
      path: File of accounts, which is made if there is none.
      round_id: Id of the round.
      guarantee: Guarantee of an answer.
      clients: Numbers of the clients that were counted.

    Raises:
      ValueError: If the file is damaged.
      OSError: If it cannot be written.
    """
    with open(path, "a+b", opener=for_owner) as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        known = _lines(path)  # refuses another file before anything of it is cut off
        of_round = [line["clients"] for line in known if line["round"] == round_id]
        new = set(clients).difference(*of_round)
        if not new:
            return
        file.truncate(path.read_bytes().rfind(b"\n") + 1)
        line = {"round": round_id, "guarantee": guarantee.asdict(), "clients": sorted(new)}
        file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        sync_folder(path.parent)


def check(path: Path) -> None:
    """Raise ValueError if rounds cannot be written into a file, before any client pays.

    Args:
      path: File of accounts, which may be new.
    """
    if not path.parent.is_dir():
        raise ValueError(
            f"Expected {option('accounts')} in a folder that is there, got {option('accounts')} "
            f"{path}; make the folder."
        )
    if path.exists():
        _lines(path)


def accounts(path: Path) -> list[Account]:
    """Return the accounts of a file, the largest epsilon first.

    Raises:
      ValueError: If the file is damaged.
    """
    found: dict[str, Guarantee] = {}
    rounds_of: dict[int, list[str]] = {}
    for line in _lines(path):
        found.setdefault(line["round"], Guarantee.of(line["guarantee"]))
        for client in line["clients"]:
            rounds_of.setdefault(client, []).append(line["round"])
    made = [
        Account(len(rounds), clients, _composed([found[one] for one in rounds]))
        for rounds, clients in Counter(map(tuple, rounds_of.values())).items()
    ]
    return sorted(made, key=lambda one: -max(each.epsilon for each in one.guarantees))


def _composed(guarantees: list[Guarantee]) -> tuple[Guarantee, ...]:
    kinds: dict[tuple[str, ...], list[Guarantee]] = {}
    for one in guarantees:
        kinds.setdefault((one.relation, one.unit, str(one.trust)), []).append(one)
    return tuple(compose(each) for each in kinds.values())


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file; one that a crash cut off is left out.

    Raises:
      ValueError: If the file holds something else.
    """
    lines = []
    *whole_lines, rest = path.read_bytes().split(b"\n")
    if not (rest.startswith(BEGINS) or BEGINS.startswith(rest)):
        whole_lines.append(rest)
    for number, text in enumerate(whole_lines, 1):
        try:
            line = json.loads(text)
            Guarantee.of(line["guarantee"])
            whole = isinstance(line["round"], str) and all(
                type(client) is int for client in line["clients"]
            )
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            whole = False
        if not whole:
            raise ValueError(
                f"Expected a round in line {number} of {path}, got something else; restore the "
                f"file from a copy, or name another as {option('accounts')}."
            )
        lines.append(line)
    return lines
