"""Files that are on disk whole or not at all, and folders that one process writes to."""

import errno
import fcntl
import io
import itertools
import json
import os
import re
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

PUBLIC = 0o666
OWNER = 0o600
"""Permissions before the umask: of results (`PUBLIC`), and of files for the owner alone (`OWNER`).
"""


def write_whole(path: Path, data: bytes, mode: int = PUBLIC) -> None:
    """Write a file so that it is on disk whole or not at all.

    An earlier file of the same name stays until the new file is complete.

    Args:
      path: Path of the file, in a folder that exists.
      data: Content of the file.
      mode: Permissions of the file. Defaults to `PUBLIC`.

    Raises:
      OSError: If the file cannot be written. Nothing new is left in the folder then.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise
    sync_folder(path.parent)


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
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock(descriptor, busy)
        yield
    finally:
        os.close(descriptor)


def is_partial(name: str, whole: str) -> bool:
    """Return True if a killed process may have left a file of this name while it wrote `whole`."""
    return re.fullmatch(rf"\.{re.escape(whole)}\.(\d+\.)?new", name) is not None


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


def sync_folder(folder: Path) -> None:
    """Wait until the names of a folder's files are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
