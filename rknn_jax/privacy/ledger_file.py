"""File of a ledger on disk: made whole, locked, and appended to durably.

A line that was appended has reached the disk (fsync), or the file is as it was. `ledger_lines` has
what the lines mean.
"""

import fcntl
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from rknn_jax._internal import disk, mounts
from rknn_jax._internal.option_names import option
from rknn_jax.privacy.ledger_lines import LedgerCorruptError, LedgerError

SILENCE = 1.0  # seconds to wait before a message names the process that holds it
_log = logging.getLogger(__name__)


def write_new(path: Path, line: bytes, undone: str) -> None:
    """Make a file that holds the line, or none.

    The file gets its name, which must be free, once it is complete.

    Args:
      path: Path of the file.
      line: Line without its newline.
      undone: Words for what did not happen if the file cannot be made.

    Raises:
      LedgerError: If it cannot be made.
    """
    _check_mount(path, undone)
    with clear_errors(path, "created", undone):
        disk.write_new(path, line + b"\n", disk.OWNER)


@contextmanager
def locked(path: Path, patience: float, undone: str) -> Iterator[FileIO]:
    """Yield the file at the path, locked against other processes.

    The lock ends with the file handle, even on `kill -9`.

    Args:
      path: Path of the ledger.
      patience: Seconds to wait for another process that holds the ledger.
      undone: Words for what did not happen if the file cannot be locked.

    Raises:
      LedgerError: If another process holds the ledger for longer, locks mean nothing there, or the
        file cannot be read or written, also by the caller.
    """
    with clear_errors(path, "written", undone):
        _check_mount(path, undone)
        deadline = time.monotonic() + patience
        while True:
            with _to_read_and_write(path) as file:
                lock(file, path, deadline, undone)
                # Another process may have replaced the file meanwhile. A line in the old file
                # would be lost.
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    yield file
                    return


@contextmanager
def _to_read_and_write(path: Path) -> Iterator[FileIO]:
    """Open a file that is closed without an error: what was written to it is on disk by then."""
    file = FileIO(path, "r+b")
    try:
        yield file
    finally:
        with suppress(OSError):
            file.close()


def append(file: FileIO, size: int, text: bytes) -> None:
    """Write the text after the file's first `size` bytes, which are all, and wait for the disk.

    If that fails, leave the file as it was.

    Raises:
      LedgerCorruptError: If neither is possible.
      OSError: If the text cannot be written.
    """
    try:
        file.seek(size)
        while text:
            text = text[file.write(text) :]
        os.fsync(file.fileno())
    except OSError:
        try:
            file.truncate(size)
        except OSError as error:
            raise LedgerCorruptError(
                f"{file.name} could not be written whole, nor left as it was ({error.strerror}), "
                "so what its last line shows counts as spent; see `rknn budget show`."
            ) from error
        raise


@contextmanager
def clear_errors(path: Path, what: str, undone: str) -> Iterator[None]:
    """Turn errors of the operating system into those of a ledger, which tell what to do.

    Args:
      path: Path of the ledger.
      what: Participle for what is tried: `read`, `written` or `created`.
      undone: Words for what did not happen.

    Raises:
      LedgerError: In place of an OSError, and before a pipe or a device is opened, which could be
        read without end.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode) and not path.is_dir():
            raise LedgerError(
                f"Expected a file as {option('ledger')}, got {path}, which is a pipe or a device "
                f"and keeps nothing, so {undone}; name a file."
            )
    except OSError:
        pass  # told below
    try:
        yield
    except FileExistsError as error:
        raise LedgerError(
            f"{path} exists already and was left as it is; open it with Ledger.open, or name "
            "another file."
        ) from error
    except FileNotFoundError as error:
        if path.is_symlink():
            remedy = (
                f"it is a link to {os.path.realpath(path)}, which is not there. Put that ledger "
                "back, or remove the link if its people never had one."
            )
        elif path.parent.is_dir():
            remedy = "no such file; check its name. The first release makes it, or Ledger.create."
        else:
            remedy = "no such folder; make it, or name another."
        raise LedgerError(f"{path} could not be {what}: {remedy}") from error
    except OSError as error:
        raise LedgerError(
            f"{path} could not be {what} ({error.strerror}), so {undone}; let the file and its "
            "folder be read and written, or name another."
        ) from error


def _check_mount(path: Path, undone: str) -> None:
    """Refuse a file whose lock keeps out no other machine; two could spend one budget."""
    mount = mounts.without_locks(path)
    if mount is not None:
        raise LedgerError(
            f"Expected a ledger on a file system with locks, got {path} on {mount.folder}, which "
            f"is {mount.kind} and locks files for one machine alone; {undone}. Keep the "
            "ledger on a local disk, or mount the folder with locks."
        )


def lock(file: FileIO, path: Path, deadline: float, undone: str) -> None:
    """Lock a file, and name the process that holds it.

    Args:
      file: The open file, whose closing ends the lock.
      path: Path of the file.
      deadline: Time by `time.monotonic` at which to give up.
      undone: Words for what did not happen if the file cannot be locked.

    Raises:
      LedgerError: If another process holds the file at the deadline.
      OSError: If its file system has no locks.
    """
    began = time.monotonic()
    told = False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            now = time.monotonic()
        if now > deadline:
            raise LedgerError(
                f"{path} is held by {_holder(file)}, and was not free within "
                f"{deadline - began:.0f} s, so {undone}; wait for "
                "that process, or stop it if it hangs."
            )
        if not told and now - began > SILENCE:
            told = True
            _log.warning("waiting for %s, which holds %s", _holder(file), path)
        time.sleep(0.005)


def _holder(file: FileIO) -> str:
    """Return the process that holds the lock, according to Linux."""
    inode = os.fstat(file.fileno()).st_ino
    try:
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return "another process"
    holders = [
        words[4] for words in locks if words[1] == "FLOCK" and words[5].endswith(f":{inode}")
    ]
    return f"process {', '.join(holders)}" if holders else "another process"
