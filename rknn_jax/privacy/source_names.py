"""Names by which the index of ledgers knows files of private records.

A file or folder is known by its path as it is given, after each link that it follows, and behind
all links; by its URL as its file system spells it; and a file by its bytes. A folder or pattern
stands for itself and for the files in it.
"""

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from rknn_jax._internal import disk, urls

MOST_LINKS = 40
"""Most links that a path may follow, as for Linux."""

KIND = "file "
"""Beginning of each name, which no fingerprint has."""


def of(names: Sequence[str], most: int | None = None) -> list[str]:
    """Return the names of files, folders and patterns, and of `most` files of each folder, or all.

    So are the folders elsewhere that links in a folder lead to.

    Args:
      names: Paths, patterns or URLs, as they were given.
      most: Most files of a folder. Defaults to None, all.
    """
    found: list[str] = []
    for name in names:
        if urls.is_url(name):  # also as it is given, as earlier versions noted it
            found += [name, urls.plain_url(name)]
        local = urls.local_path(name)
        if local is None:
            continue
        paths = [local] if os.path.exists(local) else urls.matching(local)
        for path in [local] * bool(paths) + paths:  # a pattern may match other files later
            found += _spellings(path)
            found += _inside(path, most) if os.path.isdir(path) else []
    return [KIND + one for one in dict.fromkeys(found)]


def _spellings(path: str) -> list[str]:
    """Return a path as it is given, and what it is after each of its links: these may change."""
    places = [os.getcwd()]
    shell = os.environ.get("PWD", "")  # before links, as `cd` has followed them
    if os.path.isabs(shell) and os.path.exists(shell) and os.path.samefile(shell, places[0]):
        places.append(shell)
    found = itertools.chain(*(_steps(os.path.join(place, path)) for place in places))
    return list(dict.fromkeys(found))


def _steps(path: str) -> Iterator[str]:
    """Yield an absolute path before each of its links is followed, and where it leads to."""
    head, rest, links = "/", path.split("/")[::-1], 0
    while rest:
        part = rest.pop()
        if part == "..":  # of where a link before it has led to
            head = os.path.dirname(head)
        elif part not in ("", "."):
            here = os.path.join(head, part)
            if links < MOST_LINKS and os.path.islink(here):
                links += 1
                if ".." not in rest:
                    yield os.path.join(here, *filter(None, rest[::-1]))
                target = os.readlink(here)
                head = "/" if target.startswith("/") else head
                rest += target.split("/")[::-1]
            else:
                head = here
    yield head


def _inside(folder: str, most: int | None) -> list[str]:
    """Return the files in a folder, and folders elsewhere that links in it lead to."""
    walked = [*disk.walk(folder)]
    files = [file for _, some in walked for file in some if os.path.isfile(file)]
    folders: list[str] = []
    for place in (os.path.realpath(place) for place, _ in walked):
        if not any(disk.is_below(place, known) for known in folders):
            folders.append(place)
    # Of files in a folder that is noted, few are. No folder tells of those that links lead to.
    rest = map(os.path.realpath, files[len(files) if most is None else most :])
    linked = [one for one in rest if not any(disk.is_below(one, known) for known in folders)]
    return [*folders, *itertools.chain(*map(_spellings, files[:most])), *linked]


def of_bytes(names: Sequence[str], inside: Sequence[str], most: int) -> tuple[list[str], list[str]]:
    """Return names of files by their bytes, whatever these are called.

    The fingerprint of a copy is another one if its columns are read in the order of other public
    rows. A file of a folder may be a part without records, which others have too. So parts are the
    same if all of them are, or if one is a file that was named by itself.

    Args:
      names: Paths, patterns or URLs, as they were given.
      inside: Files that were found in them.
      most: Most parts that are noted.

    Returns:
      `(noted, sought)`: names to note for a data set, and those under which it may be known.
    """
    own, every = _marks(names), _marks((*names, *inside))
    parts = [mark for mark in every if mark not in own]
    together = hashlib.sha256("".join(sorted(every)).encode()).hexdigest()
    whole = [f"{KIND}files with these bytes ({together})"] if every else []
    file, part = (f"{KIND}a {what} with these bytes ({{}})".format for what in ("file", "part"))
    return (
        [*whole, *map(file, own), *map(part, parts[:most])],
        [*whole, *map(file, every), *map(part, own)],
    )


def _marks(names: Iterable[str]) -> list[str]:
    """Return the marks of local files' bytes, each once."""
    found = []
    for path in dict.fromkeys(map(urls.local_path, names)):
        with suppress(OSError):
            if path is not None and os.path.isfile(path):
                found.append(disk.content_mark(path))
    return list(dict.fromkeys(found))


def folders_above(found: Sequence[str]) -> list[str]:
    """Return the names of all folders above, which stand for the files in them.

    A folder may have more files than the index notes.
    """
    folders = []
    for one in {name.removeprefix(KIND).rpartition("/")[0] for name in found}:
        kind, sign, path = one.rpartition("://")  # of many files in a folder, once
        folder = PurePosixPath(path or "/")
        folders += [f"{kind}{sign}{above}" for above in (folder, *folder.parents)]
    return [KIND + one for one in dict.fromkeys(folders)]
