"""Folders of Hugging Face's `datasets`: which files hold records, and which are copies of them.

`save_to_disk` names its data in `state.json`. `map`, `filter` and `shuffle` leave caches beside
them, with copies of the records. A record that is read twice has twice the votes that the noise
covers.
"""

import json
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"

CONVERTED = ("train", "validation", "test")
"""Folders of splits in the branch where the hub converts data sets, with numbered files."""

_PART = re.compile(r"(.+)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?\.(?:arrow|parquet)")
"""Name of a part of a split; until 2023, it had a hash."""


def data_files(files: Sequence[str], system: Any, where: str) -> list[str]:
    """Return the files of a folder or a pattern that hold records, without copies of records.

    Args:
      files: Paths, with slashes.
      system: File system of `fsspec` that holds them.
      where: Command-line argument and its value, for the errors.

    Raises:
      ValueError: If a `state.json` cannot be read, names a file that is not there or a choice of
        the records.
    """
    paths = [PurePosixPath(file) for file in files]
    folders = dict.fromkeys(path.parent for path in paths if path.suffix == ".arrow")
    named = {folder: _named(folder, system, where) for folder in folders}
    infos = {folder: system.exists(f"{folder / INFO}") for folder in folders}

    def holds_records(path: PurePosixPath) -> bool:
        if path.suffix != ".arrow":
            return True
        own = named[path.parent]
        if own is None:
            return not (infos[path.parent] and path.name.startswith("cache-"))
        return path.name in own

    return [str(path) for path in paths if holds_records(path)]


def refuse_splits(files: Sequence[str], system: Any, where: str) -> None:
    """Raise ValueError if files are of several splits, which may hold the same records.

    Args:
      files: Paths of files with records, with slashes.
      system: As for `data_files`.
      where: As for `data_files`.
    """
    splits = dict.fromkeys(filter(None, (_split(PurePosixPath(file), system) for file in files)))
    if len(splits) > 1:
        raise ValueError(
            f"Expected one split in {where}, got {', '.join(splits)}, which may hold the same "
            "records; name the files or the folder of one. `rknn label` and `check` take several "
            "names, and `rknn embed` one at a time."
        )


def _named(folder: PurePosixPath, system: Any, where: str) -> set[str] | None:
    """Return the names of the files that hold a folder's records; None if nothing names them."""
    state = f"{folder / STATE}"
    if not system.exists(state):
        return None
    try:
        told = json.loads(system.cat_file(state))
        names = {str(one["filename"]) for one in told["_data_files"]}
        chosen = bool(told.get("_indices_data_files"))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"Expected {state} in {where} to name the files of the data, as save_to_disk "
            "writes it, got something else; save the data set again, or name its files."
        ) from error
    if chosen:
        raise ValueError(
            f"Expected all records of the files that {state} names in {where}, got a choice of "
            "them, as earlier versions of datasets saved it; save the data set again, after "
            "flatten_indices()."
        )
    absent = sorted(name for name in names if not system.exists(f"{folder / name}"))
    if absent:
        raise ValueError(
            f"Expected all files that {state} names in {where}, got none of "
            f"{', '.join(absent)}; copy the whole folder."
        )
    return names


def _split(path: PurePosixPath, system: Any) -> str | None:
    """Return the split of a file, or None if it is of no data set with splits."""
    if system.exists(f"{path.parent.parent / SPLITS}"):
        return path.parent.name
    if path.suffix != ".parquet":
        return None
    if path.stem.isdecimal() and path.parent.name in CONVERTED:
        return path.parent.name
    part = _PART.fullmatch(path.name)
    return part.group(1) if part else None
