"""Files that are on disk whole or not at all, and folders that one process writes to."""

import errno
import fcntl
import functools
import hashlib
import io
import itertools
import json
import os
import re
import secrets
import stat
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike

MARKED_BLOCKS = 16
MARKED_BYTES = 2**16
"""Number and length of the blocks of a file that `content_mark` reads."""

PUBLIC = 0o666
OWNER = 0o600
"""Permissions before the umask: of results (`PUBLIC`), and of files for the owner alone (`OWNER`).
"""

_PART = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.rknn-new")
"""Name of a file that is being written: its own name, the process, and a random number."""


def walk(folder: str | os.PathLike[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield a folder and each one below it, with the paths of the files in it.

    Links to folders are followed, unless they lead to one in `folder`, or to one that another link
    has led to: each folder is entered once.

    Args:
      folder: Folder that exists.

    Raises:
      OSError: If a folder cannot be read.
    """
    root = os.path.realpath(folder)
    entered, waiting = set[str](), [os.fspath(folder)]
    while waiting:
        place = waiting.pop()
        here = os.path.realpath(place)
        if here in entered:
            continue
        entered.add(here)
        with os.scandir(place) as entries:
            found = sorted(entries, key=lambda entry: entry.path)
        folders = dict.fromkeys(entry.path for entry in found if _is_folder(entry))
        yield place, [entry.path for entry in found if entry.path not in folders]
        for path in reversed(folders):
            if not (os.path.islink(path) and is_below(os.path.realpath(path), root)):
                waiting.append(path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    # A link may lead to itself. Others take no call of the system.
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is a folder or lies in it, both behind all links."""
    return os.path.commonpath([path, folder]) == folder


def files_below(folder: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the paths of all files in a folder and in those below it, as in `walk`."""
    for _, files in walk(folder):
        yield from files


def write_whole(path: Path, data: bytes, mode: int = PUBLIC) -> None:
    """Write a file so that it is on disk whole or not at all.

    An earlier file of the same name stays until the new file is complete. Parts of files that
    killed processes left in the folder are removed, once in a process.

    Args:
      path: Path of the file, in a folder that exists.
      data: Content of the file.
      mode: Permissions of the file. Defaults to `PUBLIC`.

    Raises:
      OSError: If the file cannot be written. Nothing new is left in the folder then.
    """
    try:
        with part_of(path, mode) as (file, part):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
    except OSError as error:
        error.filename = str(path)
        raise
    sync_folder(path.parent)


def write_new(path: Path, data: bytes, mode: int = PUBLIC) -> None:
    """Write a file as `write_whole` does, if there is none of its name: of two writers one fails.

    Raises:
      FileExistsError: If there is one.
      OSError: If the file cannot be written.
    """
    with part_of(path, mode) as (file, part):
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        os.link(part, path)
    sync_folder(path.parent)


@contextmanager
def part_of(path: Path, mode: int) -> Iterator[tuple[IO[bytes], Path]]:
    """Yield a new open file beside `path` and its own path, to be renamed when it is complete.

    It is locked while it is open, so that no other process takes it for one that was left. If it
    still has its name at the end, it is removed.

    Args:
      path: Path of the file that it will be.
      mode: Permissions of the file.
    """
    _clear_once(path.parent.absolute(), os.getpid())
    descriptor = None
    while descriptor is None:
        part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.rknn-new")
        descriptor = _locked_new(part, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file, part
    finally:
        part.unlink(missing_ok=True)


def _locked_new(part: Path, mode: int) -> int | None:
    """Make and lock a file; return its descriptor, or None if it was removed before the lock."""
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with suppress(OSError):  # a file system without locks, on which no part is removed
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    if part.exists():
        return descriptor
    os.close(descriptor)
    return None


@functools.lru_cache(maxsize=256)
def _clear_once(folder: Path, process: int) -> None:
    """Remove the parts of files that killed processes left in a folder.

    A part that no process has locked is not being written. `process` is the number of this one.
    """
    del process
    with suppress(OSError), os.scandir(folder) as entries:
        left = [Path(entry.path) for entry in entries if _PART.fullmatch(entry.name)]
        for part in left:
            _remove_unlocked(part)


def _remove_unlocked(part: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.fstat(descriptor)
            if stat.S_ISREG(held.st_mode) and os.path.samestat(os.lstat(part), held):
                part.unlink()
        finally:
            os.close(descriptor)


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user can still write on the disk of a folder."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def is_full(error: OSError) -> bool:
    """Return True if an error says that there is no room on a disk, or none for this user."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text as `write_whole` does."""
    write_whole(path, text.encode())


def write_arrays(
    path: Path, arrays: Mapping[str, ArrayLike], *, mode: int = PUBLIC, compress: bool = True
) -> None:
    """Write named arrays as .npz, as `write_whole` does."""
    buffer = io.BytesIO()
    # `np.savez` takes names as keywords, so that no array could be called "file".
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if compress else 0) as members:
        for name, array in arrays.items():
            with members.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
    write_whole(path, buffer.getvalue(), mode)


def read_json(path: Path) -> Any:
    """Read a JSON file that `write_whole` wrote.

    Raises:
      ValueError: If another program or a damaged disk changed the file's content.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"Expected JSON in {path} as it was written, got something else ({error}); restore "
            "the file from a copy."
        ) from error


def read_arrays(path: Path, *names: str) -> dict[str, np.ndarray]:
    """Read the .npz file that `write_arrays` wrote.

    Args:
      path: Path of the file.
      *names: Names of arrays that the file must hold.

    Raises:
      ValueError: If another program or a damaged disk changed the file's content.
      OSError: If the file cannot be opened.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
    except Exception as error:  # A damaged file raises errors of many types.
        if isinstance(error, OSError) and error.filename:
            raise
        reason = " ".join(str(error).split())
        raise _changed(path, reason) from error
    if odd := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise _changed(path, f"{odd[0]} is no .npy file")
    if missing := [name for name in names if name not in arrays]:
        raise _changed(path, f"it lacks {', '.join(missing)}")
    return arrays


def _changed(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"Expected arrays in {path} as they were written, got something else ({reason}); restore "
        "the file from a copy."
    )


def lock(descriptor: int, busy: str) -> None:
    """Lock an open file or folder for this process.

    The lock ends with the process, even on `kill -9`.

    Args:
      descriptor: Descriptor of an open file or folder, which keeps the lock until it is closed.
      busy: Message of the error.

    Raises:
      ValueError: If another process holds the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(busy) from error


@contextmanager
def locked(folder: Path, busy: str) -> Iterator[None]:
    """Keep other processes out of an existing folder; see `lock`."""
    with opened(folder) as descriptor:
        lock(descriptor, busy)
        yield


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file or folder for a lock, and yield its descriptor.

    An error when it is closed is none of what was done meanwhile: nothing was written through it,
    and the lock is gone either way.

    Args:
      path: Path of the file or folder.
      flags: Flags for `os.open`. Defaults to those for reading.
    """
    descriptor = os.open(path, flags, OWNER)
    try:
        yield descriptor
    finally:
        with suppress(OSError):
            os.close(descriptor)


def is_partial(name: str, whole: str) -> bool:
    """Return True if a killed process may have left a file of this name while it wrote `whole`."""
    end = r"((\d+\.)?new|\d+-[0-9a-f]{8}\.rknn-new)"
    return re.fullmatch(rf"\.{re.escape(whole)}\.{end}", name) is not None


def new_path(parent: Path, name: str) -> Path:
    """Return a path that does not exist, named by the time and the process.

    Two processes of one second have two paths, though neither has made its folder yet. It is not
    reserved: callers lock the folder that they make, and refuse one that is in use.

    Args:
      parent: Folder of the path.
      name: Middle of its name, after date and time.
    """
    named = parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{os.getpid()}"
    others = (named.with_name(f"{named.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([named], others) if not os.path.lexists(path))


def content_mark(path: str) -> str:
    """Return a hash of a file's size and of blocks that are spread over it, as equal files have it.

    Raises:
      OSError: If the file cannot be read.
    """
    if not os.path.isfile(path):  # a pipe would be waited for
        raise FileNotFoundError(errno.ENOENT, "No such file", path)
    size = os.stat(path).st_size
    found = hashlib.sha256(str(size).encode())
    with open(path, "rb") as file:
        for number in range(MARKED_BLOCKS):
            file.seek(max(0, size - MARKED_BYTES) * number // (MARKED_BLOCKS - 1))
            found.update(file.read(MARKED_BYTES))
    return found.hexdigest()


def file_state(path: str | os.PathLike[str]) -> list[Any]:
    """Return what tells a file from others and from itself after a change, ready for JSON.

    Its place and its owner may change. Times alone do not do, as archives set them.
    """
    try:
        status = os.stat(path)
        return [status.st_size, status.st_mtime_ns, content_mark(os.fspath(path))]
    except OSError:  # a link that leads nowhere, or a pipe
        return []


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it that are missing, and wait until their names are on disk.

    Files in a folder are lost with it if the power fails before its own name is on disk.

    Args:
      folder: Path of the folder, which may exist.
      mode: Permissions of the folder before the umask. Defaults to everybody's.
    """
    above = folder.absolute().parent
    if not above.exists():
        make_folder(above)
    folder.mkdir(mode, exist_ok=True)
    with suppress(PermissionError):  # of a folder above that this user may not read
        sync_folder(above)


def sync_folder(folder: Path) -> None:
    """Wait until the names of a folder's files are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
