"""Files that are the same under several names, or in several formats: a record counts once."""

import os
from collections.abc import Sequence
from pathlib import PurePosixPath

from rknn_jax._internal import urls
from rknn_jax.formats import is_compressed, suffix_of


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
                "hold the same records twice; name the files, or move one of them away."
            )


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
