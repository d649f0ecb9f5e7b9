"""Shuffled rounds that several servers ask: they have one result, of all of them.

The difference of two results would show the messages of few clients, and a client that answers both
servers pays once. So all servers of such a round begin as collectors. `shared.json` in the folder
of the first one names the folders of the others, and a merge needs all of them.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from rknn_jax._internal.disk import read_json, write_whole
from rknn_jax._internal.option_names import option
from rknn_jax.federation.collector import QUESTION, is_sealed

SHARED = "shared.json"


def check(folder: Path, source: Path | None, *, collects: bool, ended: bool) -> None:
    """Refuse a server that would publish a second result.

    Args:
      folder: Folder of the server.
      source: Folder whose question it asks; None for a new round.
      collects: True if the server publishes nothing.
      ended: True if the source is over, or was merged.

    Raises:
      ValueError: If the server does not only collect a round that others ask too, if the source
        may publish results of its own, or if it is not the first server of its round.
    """
    if not collects and (source or (folder / SHARED).exists()):
        raise ValueError(
            f"Expected {option('collect_only')} with {option('trust')} shuffle and a round that "
            f"several servers ask, got a server that publishes in {folder}; pass "
            f"{option('collect_only')} to all of them, and count their answers by "
            f"{option('merge')}."
        )
    if source is None or (folder / QUESTION).exists():
        return
    if not (source / SHARED).exists() or ended or is_sealed(source):
        raise ValueError(
            f"Expected a round that others collect too as {option('question')}, got {source}, "
            "whose server publishes results or has done so; begin it anew with "
            f"{option('collect_only')}."
        )
    if first := read_json(source / SHARED).get("source"):
        raise ValueError(
            f"Expected the folder of the first server of a round as {option('question')}, got "
            f"{source}, whose server was given the question too; name {first}."
        )


def share(folder: Path, source: Path | None) -> None:
    """Mark a new folder as one of several of a round, in itself and in the one that it is from."""
    if source is None:
        write_whole(folder / SHARED, json.dumps({"copies": []}).encode())
        return
    copies = {*read_json(source / SHARED).get("copies", ()), str(folder.resolve())}
    write_whole(source / SHARED, json.dumps({"copies": sorted(copies)}).encode())
    write_whole(folder / SHARED, json.dumps({"source": str(source.resolve())}).encode())


def check_whole(parts: Sequence[Path]) -> None:
    """Check that all folders of a shuffled round are merged, and are not merged in two ways.

    Raises:
      ValueError: If the folder that the round began in, or one of its copies, is not among them.
    """
    marks = [read_json(part / SHARED) if (part / SHARED).exists() else {} for part in parts]
    origins = [mark["copies"] for mark in marks if "copies" in mark]
    if not all(marks) or len(origins) != 1 or len(parts) != 1 + len(origins[0]):
        known = ", ".join(one for each in origins for one in each) or "unknown"
        raise ValueError(
            f"Expected all folders of a shuffled round to merge, got {', '.join(map(str, parts))}; "
            f"its servers began with {option('collect_only')}, the first without "
            f"{option('question')}, and the others are {known}. Name each once. If one is lost, "
            f"remove it from {SHARED} of the first."
        )
