"""Files that are the same under several names, formats or versions: a record counts once."""

import glob
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from rknn_jax._internal import urls
from rknn_jax.formats import is_compressed, suffix_of

_PART = re.compile(r"(.*\D|)(\d+)-of-(\d+)(?!\d)")
"""Beginning of the path of a part, its number, and that of all parts."""

REVISIONS = ("snapshots", "versions", "revisions")
"""Names of folders of which each one below holds a revision of the same data set: in the caches of
the hubs of Hugging Face and Kaggle.
"""

MOST_LINKS = 40
"""Most links from one to the next, as Linux follows them."""

_NUMBER = r"v?\d{1,3}\.\d+\.\d+"  # no date
_REVISION = re.compile(
    rf"[^/]*/({_NUMBER}|[^/]*-[0-9a-f]{{10,64}}/{_NUMBER})|{_NUMBER}/[0-9a-f]{{10,64}}"
)
"""A folder and one in it that is a version, or the hash of one: of TensorFlow Datasets, and in the
cache of the library datasets.
"""

LOGS = {"Delta Lake": "_delta_log", "Hudi": ".hoodie", "Iceberg": "metadata/*.metadata.json"}
"""Files by which libraries tell the present version of a table from earlier ones."""


def refuse_same(files: Sequence[str], argument: str) -> None:
    """Raise ValueError if a file is listed twice, under whatever names.

    Args:
      files: Paths or URLs of files.
      argument: Command-line argument that named them, for the error.
    """
    same: dict[object, str] = {}
    for file in files:
        for identity in identities(file):
            if identity in same:
                raise ValueError(
                    f"Expected every file of {argument} once, got {same[identity]} and {file}, "
                    "which are the same twice; name it once, because its records would count twice."
                )
        same |= dict.fromkeys(identities(file), file)


def refuse_two_formats(files: Sequence[str], where: str) -> None:
    """Raise ValueError if two files of a folder or pattern differ in their format alone.

    Args:
      files: Paths or URLs of files.
      where: Argument and name of the folder or pattern, for the error.
    """
    first: dict[str, str] = {}
    for file in files:
        plain = _plain(file)
        stem = plain.removesuffix(PurePosixPath(plain).suffix)
        other = first.setdefault(stem, file)
        if suffix_of(other) != suffix_of(file):
            raise ValueError(
                f"Expected every file of {where} in one format, got {other} and {file}, which may "
                "hold the same records twice; move one of them away, or rename it."
            )


def refuse_versions(files: Sequence[str], system: Any, where: str) -> None:
    """Raise ValueError if files of a folder or pattern may be of several versions of their records.

    Parts of an earlier version stay when a data set is written again in another number of parts,
    and in tables whose log alone says which files are of the present version.

    Args:
      files: Paths of files, with slashes.
      system: File system of `fsspec` that holds them.
      where: Argument and name of the folder or pattern, for the error.
    """
    counts: dict[str, tuple[int, str]] = {}
    parts: dict[tuple[str, int], str] = {}
    for part in filter(None, map(_PART.match, files)):
        file, name, number, count = part.string, part[1], int(part[2]), int(part[3])
        first, other = counts.setdefault(name, (count, file))
        same = parts.setdefault((name, number), file)
        if count != first or same != file:
            raise ValueError(
                f"Expected every file of {where} to be a part of one version, got "
                f"{other if count != first else same} and {file}, which may hold the same records; "
                "move those of the other version away."
            )
    places = {*files}
    if "file" in system.protocol:  # a folder may be a link to one in a table
        places |= {*map(os.path.realpath, files)}
    refuse_revisions(files, where, local="file" in system.protocol)
    folders = {each for file in places if "://" not in file for each in PurePosixPath(file).parents}
    for folder in sorted(folder for folder in folders if "=" not in folder.name):
        for kind, log in LOGS.items():
            if _exists(system, f"{glob.escape(str(folder))}/{log}"):
                raise ValueError(
                    f"Expected files of one version in {where}, got a table of {kind} in {folder}, "
                    "whose earlier versions may hold the same records; read it by its own library, "
                    "and save the records as Parquet elsewhere."
                )


def refuse_revisions(files: Sequence[str], where: str, *, local: bool) -> None:
    """Raise ValueError if files lie in folders of several revisions of a data set.

    Args:
      files: Paths of files, with slashes.
      where: As for `refuse_versions`.
      local: Whether they are on this machine, where files and folders may be links to revisions.
    """
    named = [*files, *itertools.chain(*map(_behind, files))] if local else files
    folders = {file.rpartition("/")[0] for file in named}
    folders |= {*map(os.path.realpath, folders)} if local else set()
    seen: dict[str, str] = {}
    for folder in sorted(folders):
        parts = PurePosixPath(folder).parts
        for i in range(1, len(parts)):
            ends = ("/".join(parts[i - 1 : end]) for end in (i + 1, i + 2))
            if parts[i - 1] not in REVISIONS and not any(map(_REVISION.fullmatch, ends)):
                continue
            above = "/".join(parts[:i])
            other = seen.setdefault(above, parts[i])
            if other != parts[i]:
                raise ValueError(
                    f"Expected files of one revision in {where}, got {other} and {parts[i]} of "
                    f"{above.removeprefix('/')}, which may hold the same records; name the folder "
                    "of one."
                )


def _behind(path: str) -> Iterator[str]:
    """Yield where a link leads, and where that leads."""
    for _ in range(MOST_LINKS):
        if not os.path.islink(path):
            return
        path = os.path.join(os.path.dirname(path), os.readlink(path))
        yield path


def _exists(system: Any, pattern: str) -> bool:
    """Return whether a file of a pattern is there, as far as the file system tells."""
    with suppress(Exception):  # each has errors of its own where nobody may look
        return bool(system.glob(pattern))
    return False


def identities(name: str) -> set[object]:
    """Return what a file has in common with itself under other names."""
    local = urls.local_path(name)  # simplecache::file.npz is the file itself
    if local is None:
        return {_plain(urls.plain_url(name))}
    real = os.path.realpath(local)
    found: set[object] = {_plain(real)}
    if os.path.exists(real):
        status = os.stat(real)
        found.add((status.st_dev, status.st_ino))
    return found


def _plain(path: str) -> str:
    """Return a path without the suffix of a compression."""
    return path.removesuffix(PurePosixPath(path).suffix) if is_compressed(path) else path
