"""Merge of the folders of several servers that asked one question.

Answers are counted by integer sums, so a merge only puts files together. An answer counts in one
folder alone: merged folders are marked, and no server goes on with them. With trust=shuffle a
folder of which results were published is not merged, because the difference of two results would
show the messages of few clients.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rknn_jax._internal.disk import (
    OWNER,
    locked,
    make_folder,
    part_of,
    read_json,
    sync_folder,
    write_whole,
)
from rknn_jax._internal.option_names import option
from rknn_jax.federation import shared_rounds
from rknn_jax.federation.collector import ANSWERS, QUESTION, REJECTED, Collector
from rknn_jax.federation.request import Asked
from rknn_jax.federation.round_folder import (
    MERGED,
    PARTS,
    check_settings,
    copy_round,
)
from rknn_jax.federation.rounds import Round

MOST_NAMED = 5
BUSY = "Expected a folder that no server has, got {}; stop its server first."


def merge(parts: Sequence[Path], folder: Path, asked: Asked) -> None:
    """Write the answers of several folders into a new folder, and mark the several.

    A merge that was interrupted continues with the same folders.

    Args:
      parts: Folders of one round.
      folder: New folder, which this process holds.
      asked: Request of all servers.

    Raises:
      ValueError: If a folder is held by a server, damaged, merged elsewhere or of another round, or
        if a client has answered in two. Nothing is written then.
    """
    names = [str(part.resolve()) for part in parts]
    if len(set(names)) < max(2, len(names)):
        raise ValueError(f"Expected two or more folders to merge, got {', '.join(names)}.")
    with ExitStack() as held:
        for part in parts:
            held.enter_context(locked(part, BUSY.format(part)))
        if (folder / QUESTION).exists():
            _check_parts(folder, names)
        else:
            _write(parts, names, folder, asked)
        for part in parts:
            write_whole(part / MERGED, json.dumps({"into": str(folder.resolve())}).encode())


def _check_parts(folder: Path, names: list[str]) -> None:
    kept = read_json(folder / PARTS) if (folder / PARTS).exists() else []
    if kept != names:
        raise ValueError(
            f"Expected the folders that {folder} was merged from, got others; name a new folder "
            f"as {option('out')}."
        )


def _write(parts: Sequence[Path], names: list[str], folder: Path, asked: Asked) -> None:
    """Check all parts, and write the new folder, whose question comes last."""
    rejected = _checked(parts, asked)
    make_folder(folder)
    with part_of(folder / ANSWERS, OWNER) as (file, unfinished):
        for part in parts:
            with open(part / ANSWERS, "rb") as answers:
                shutil.copyfileobj(answers, file)
        file.flush()
        os.fsync(file.fileno())
        unfinished.replace(folder / ANSWERS)
    sync_folder(folder)
    write_whole(folder / REJECTED, json.dumps(rejected).encode())
    write_whole(folder / PARTS, json.dumps(names).encode())
    copy_round(parts[0], folder, asked)


def _checked(parts: Sequence[Path], asked: Asked) -> Counter[str]:
    """Check the parts, cut what a crash left unfinished, and return the rejections of all."""
    round = _round(parts[0])
    clients = set[int]()
    rejected = Counter[str]()
    for part in parts:
        if (part / MERGED).exists():
            raise ValueError(f"Expected folders that were not merged before, got {part}.")
        if _round(part).id != round.id:
            raise ValueError(
                f"Expected the folders of one round, got another round in {part}; begin all "
                f"servers but one with {option('question')}."
            )
        check_settings(part, asked)
        collector = Collector(part, round)
        collector.close()
        if asked.shuffled and collector.is_sealed:
            raise ValueError(
                f"Expected folders without results to merge with trust=shuffle, got {part}; pass "
                f"{option('collect_only')} to its server."
            )
        if twice := sorted(clients & collector.clients):
            named = ", ".join(map(str, twice[:MOST_NAMED]))
            raise ValueError(
                f"Expected each client in one folder, got {len(twice):,} clients a second time in "
                f"{part}, such as {named}; leave the folder out."
            )
        clients |= collector.clients
        rejected += collector.rejected
    if asked.shuffled:
        shared_rounds.check_whole(parts)
    return rejected


def _round(part: Path) -> Round:
    try:
        return Round.of((part / QUESTION).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Expected the folder of a round, got {part} without a whole {QUESTION}: {error}"
        ) from error
