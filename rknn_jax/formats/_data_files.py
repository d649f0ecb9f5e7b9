"""Files of a data set: one, those of a folder or of a pattern such as `shards/*.parquet`, or all.

Names may be URLs that fsspec knows, such as `s3://bucket/folder` or `memory://folder`.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem

from rknn_jax import formats
from rknn_jax._internal import disk, urls
from rknn_jax.formats import _hub_folders
from rknn_jax.formats._same_files import refuse_same, refuse_two_formats, refuse_versions


class Found(NamedTuple):
    """Files that names stand for.

    Attributes:
      files: Paths or URLs, in order.
      skipped: Visible files of folders that hold no records of their own.
    """

    files: list[str]
    skipped: list[str]


def find(names: Sequence[str], argument: str, suffixes: Collection[str] | None = None) -> Found:
    """Find the files that paths, folders, patterns or URLs name.

    In folders, names that begin with a dot or an underscore are left out, with all below them.

    Args:
      names: Paths or URLs of files, folders, or patterns with `*`.
      argument: Command-line argument that named them, for the errors.
      suffixes: Suffixes of the files of folders and patterns. Defaults to None, all that a release
        reads.

    Raises:
      ValueError: If there is none, or one is named twice. Two copies of a record would have twice
        the votes that the noise covers.
    """
    parts = [_files(name, argument, suffixes or formats.suffixes()) for name in names]
    files = [file for part in parts for file in part.files]
    refuse_same(files, argument)
    if len(files) > 1:
        refuse_copies(files, argument)
    return Found(files, [file for part in parts for file in part.skipped])


def refuse_copies(files: Sequence[str], argument: str) -> None:
    """Raise ValueError if files may hold the same records, as a shell lists those of a pattern.

    Args:
      files: Paths or URLs of files.
      argument: What named them, for the errors.
    """
    refuse_two_formats(files, argument)
    systems: dict[Any, list[str]] = {}
    for file in files:
        system, path = fsspec.core.url_to_fs(file)
        systems.setdefault(system, []).append(path)
    for system, paths in systems.items():
        refuse_versions(paths, system, argument)
        left = {*paths} - {*_hub_folders.data_files(paths, system, argument)}
        if left:
            raise ValueError(
                f"Expected files of {argument} with records of their own, got {min(left)}, a copy "
                "that the library datasets left there; name the folder."
            )


@contextmanager
def unchanged(names: Sequence[str], argument: str) -> Iterator[None]:
    """Make sure that files stay the same while they are read, all of them, however often.

    A record that another program moves meanwhile could count twice, which no noise covers. Labels
    of one version would be those of other records in the next. Of a file elsewhere, it takes a
    server that tells of changes, as by an `ETag`.

    Args:
      names: As for `find`.
      argument: As for `find`.

    Raises:
      ValueError: If a file was changed or replaced in the meantime.
    """
    before = _states(names, argument)
    yield
    if _states(names, argument) != before:
        raise ValueError(
            f"Expected {argument} {', '.join(map(str, names))} to stay as it is while it is read, "
            "and it was changed; wait until it is written, and try again."
        )


def _states(names: Sequence[str], argument: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for file in find(names, argument).files:
        system, path = fsspec.core.url_to_fs(file)
        if isinstance(system, LocalFileSystem):
            status = os.stat(path)
            found[file] = status.st_ino, status.st_size, status.st_ctime_ns
        else:
            system.invalidate_cache()
            with suppress(Exception):  # each has errors of its own, told where the file is read
                found[file] = str(sorted(system.info(path).items()))
    return found


def _files(name: str, argument: str, suffixes: Collection[str]) -> Found:
    if not name:
        raise ValueError(f"Expected a name in {argument}, got none; name a file or a folder.")
    where = f"{argument} {name}"
    try:
        system, path = fsspec.core.url_to_fs(name)
        if system.isfile(path):
            return Found([name], [])
        is_folder = system.isdir(path)
        inside = _inside(path, system) if is_folder else _matching(path, system)
    except ImportError as error:
        raise ValueError(f"{where} needs a package that is not installed: {error}") from error
    except Exception as error:  # a file system fails in many ways
        raise ValueError(
            f"{where} could not be found: {error}; check name, network and credentials."
        ) from error
    if not (inside or is_folder):
        raise ValueError(f"{where} could not be opened: No such file; name a file or a folder.")
    above = path.rstrip("/") if is_folder else urls.SIGNS.split(path)[0].rpartition("/")[0]
    seen = [each for each in inside if not each.endswith(formats.LEDGER)]
    if not _hidden(path[len(above) :]):  # a pattern may name hidden files itself
        seen = [each for each in seen if not _hidden(each[len(above) :])]
    known = [each for each in seen if formats.suffix_of(each) in suffixes]
    if not known:
        raise ValueError(
            f"Expected files that end in {', '.join(sorted(suffixes))} in {where}, got a "
            "folder or pattern without any; check the name."
        )
    local = isinstance(system, LocalFileSystem)
    if local and (other := [each for each in known if not os.path.isfile(each)]):
        raise ValueError(
            f"Expected files in {where}, got {min(other)}, a pipe, a device, or a link to nothing; "
            "remove it."
        )
    records = _hub_folders.data_files(known, system, where)
    _hub_folders.refuse_splits(records, system, where)
    refuse_two_formats(records, where)
    refuse_versions(records, system, where)
    named = records if local else [_url_of(each, name, path, system) for each in records]
    return Found(sorted(named), sorted(set(seen) - set(records)))


def _url_of(found: str, name: str, path: str, system: Any) -> str:
    """Return the URL of a file that was found, with all that the given one says beside its path.

    Args:
      found: Path of the file.
      name: Folder or pattern that was given.
      path: Path in it.
      system: Its file system.
    """
    given = urls.named_in(name)
    scheme, _, rest = given.partition("://")
    begins, path = "/" + rest.rstrip("/"), path.rstrip("/")
    if not begins.endswith(path):
        return str(system.unstrip_protocol(found))
    whole = begins.removesuffix(path) + found if path else f"{begins}/{found.lstrip('/')}"
    return name.replace(given, f"{scheme}://{whole.lstrip('/')}", 1)


def _inside(folder: str, system: Any) -> list[str]:
    """Return the files in a folder and below it, also below links to folders of this machine."""
    local = isinstance(system, LocalFileSystem)
    return [*disk.files_below(folder)] if local else list(system.find(folder))


def _matching(pattern: str, system: Any) -> list[str]:
    return [each for each in urls.matching(pattern, system) if not system.isdir(each)]


def _hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in PurePosixPath(path).parts)
