"""A folder that holds one release: paid for once, drawn once, and shown when it is whole.

The steps are those of a client of the federation, and each is on disk before the next begins:

1. The folder is locked, and room for the results is reserved.
2. A note says which release this is.
3. The ledger is charged. Its line names the release.
4. The noise is drawn, and the noisy counts are kept in a hidden folder, for the owner alone.
5. The ledger says that the noise of this release was drawn.
6. The results are made of the counts and moved to where they can be seen, `privacy.json` last.

A process that is stopped leaves the hidden folder if it has paid. The same command goes on from there and pays nothing. If
the counts were not kept, they are drawn anew. Nothing became visible of the first draw, and whether it was lost does not
depend on what was drawn, so the second draw is the release that was paid for. Once the ledger says that the noise was
drawn, it is never drawn again, even if somebody puts an old copy of the hidden folder back.
"""

import io
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rknn_jax import disk
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger, LedgerError

STAGING = ".rknn-release"
RESULTS = ("labels.npz", "queries.npz", "privacy.html", "privacy.json")
"""Files of a release, in the order in which they are shown. The last one says that it is complete."""

_NOTE, _COUNTS, _ROOM = "note.json", "counts.npy", "room"


@dataclass(frozen=True)
class ReleaseFolder:
    """A folder that this process holds for one release; `held` makes it.

    Attributes:
      path: Folder of the results.
      request: Hash of the public settings that the release depends on.
      ledger: Ledger to charge.
    """

    path: Path
    request: str
    ledger: Ledger

    @property
    def staging(self) -> Path:
        """Hidden folder."""
        return self.path / STAGING

    def charge(self, guarantee: Guarantee, purpose: str) -> None:
        """Charge the ledger, unless a process that was stopped has paid for this release.

        Raises:
          LedgerError: If the budget does not allow it, or the noise was drawn and its counts are gone.
        """
        note = _read_note(self.path)
        if note is None:
            named = f"{purpose}; release {secrets.token_hex(8)}"
            note = {"request": self.request, "purpose": named, "ledger": str(self.ledger.path.resolve())}
            disk.write_whole(self.staging / _NOTE, json.dumps(note).encode(), disk.OWNER)
            self.ledger.charge(guarantee, named)
        elif "drawn" in _kinds(note):
            raise LedgerError(
                f"Expected the noisy counts that {self.ledger.path} has paid for in {self.staging}, got none. They were drawn, "
                "and are not drawn again; remove that folder, and pay for another release."
            )

    def keep(self, counts: np.ndarray) -> None:
        """Keep the noisy counts, and put on the record that they were drawn."""
        (self.staging / _ROOM).unlink(missing_ok=True)
        buffer = io.BytesIO()
        np.save(buffer, counts, allow_pickle=False)
        disk.write_whole(self.staging / _COUNTS, buffer.getvalue(), disk.OWNER)
        self._mark_drawn()

    def kept(self) -> np.ndarray | None:
        """Return the noisy counts that a process kept before it was stopped, or None.

        Raises:
          ValueError: If they cannot be read.
        """
        path = self.staging / _COUNTS
        if not path.exists():
            return None
        try:
            counts = np.load(path, allow_pickle=False)
            if counts.ndim != 2 or counts.dtype.kind not in "iuf":
                raise ValueError(f"{counts.dtype} {counts.shape}")
        except Exception as error:  # a damaged file fails in many ways
            raise ValueError(
                f"Expected the noisy counts in {path} as they were written, got something else; put the file back from a backup, "
                f"or remove {self.staging}, and pay for another release."
            ) from error
        self._mark_drawn()
        return counts

    def publish(self, write: Callable[[Path], None]) -> None:
        """Show the results that `write` makes in the hidden folder, and remove that folder."""
        write(self.staging)
        for name in RESULTS:
            os.replace(self.staging / name, self.path / name)
            disk.sync_folder(self.path)
        shutil.rmtree(self.staging)

    def _mark_drawn(self) -> None:
        note = _read_note(self.path)
        if note is not None and "drawn" not in _kinds(note):
            self.ledger.mark_drawn(note["purpose"])


def is_paid(path: Path, request: str) -> bool:
    """Return whether the folder holds a release of these settings that was paid for and is not complete.

    Raises:
      ValueError: If it holds one of other settings, or it cannot be told.
    """
    note = None if (path / RESULTS[-1]).exists() else _read_note(path)
    if note is None or "spend" not in _kinds(note):
        return False
    if note["request"] != request:
        raise ValueError(
            f"Expected --out {path} to be free, got a folder with a release of other settings that {note['ledger']} has paid for and "
            f"that was stopped; finish it by its own command, name another folder, or give it up and remove {path / STAGING}."
        )
    return True


def find_unfinished(parent: Path, request: str) -> Path | None:
    """Return a folder in `parent` with a release of these settings that was paid for and that no process works on, or None."""
    for note in sorted(parent.glob(f"*/{STAGING}/{_NOTE}")):
        folder = note.parents[1]
        with suppress(ValueError), _locked(folder):
            if is_paid(folder, request):
                return folder
    return None


def refuse_results(path: Path) -> None:
    """Raise ValueError if the folder holds a release, or a part of one."""
    found = [name for name in RESULTS if os.path.lexists(path / name)]
    if found:
        raise ValueError(f"Expected --out without an earlier release, got --out {path}, which holds {found[0]}; name another folder.")


@contextmanager
def held(path: Path, request: str, ledger: Callable[[], Ledger], room: int) -> Iterator[ReleaseFolder]:
    """Hold a folder for one release: no other process writes to it, and the results find room there.

    Args:
      path: Folder of the results. It is made if it does not exist.
      request: Hash of the public settings that the release depends on.
      ledger: Function that opens or makes the ledger to charge.
      room: Bytes that the results take at most.

    Raises:
      ValueError: If the folder cannot be written, is held by another process, holds a release or has no room.
    """
    made = not path.exists()
    with ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=True)
            stack.callback(_remove_if_empty, path, made)
            stack.enter_context(_locked(path))
            if not is_paid(path, request):
                shutil.rmtree(path / STAGING, ignore_errors=True)  # of a process that was stopped before it paid
                refuse_results(path)
            (path / STAGING).mkdir(mode=0o700, exist_ok=True)
            stack.callback(_clear_unpaid, path, request)
            _reserve(path / STAGING / _ROOM, room)
        except OSError as error:
            raise ValueError(
                f"Expected --out to be a folder that can be written and has room for {room / 1e6:,.0f} MB, got --out {path} "
                f"({error.strerror}); nothing was spent, name another."
            ) from error
        try:
            yield ReleaseFolder(path, request, ledger())
        except BaseException as error:
            if is_paid(path, request):
                error.add_note(
                    f"The spend stands, and nothing else is lost: the same command with --out {path} finishes the release and pays nothing."
                )
            raise


def _locked(path: Path) -> AbstractContextManager[None]:
    """Keep other processes out of the folder."""
    busy = f"Expected --out that no other process writes to, got --out {path}, to which one does; nothing was spent, name another."
    return disk.locked(path, busy)


def _reserve(path: Path, size: int) -> None:
    """Take the room now, so that a full disk is found before anything is spent."""
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1))


def _clear_unpaid(path: Path, request: str) -> None:
    (path / STAGING / _ROOM).unlink(missing_ok=True)
    with suppress(ValueError):  # if it cannot be told, it stays
        if not is_paid(path, request):
            shutil.rmtree(path / STAGING, ignore_errors=True)


def _remove_if_empty(path: Path, made: bool) -> None:
    if made and not any(path.iterdir()):
        path.rmdir()


def _read_note(path: Path) -> dict[str, str] | None:
    """Return what the hidden folder says of its release, or None if there is no note.

    Raises:
      ValueError: If it cannot be read.
    """
    note = path / STAGING / _NOTE
    try:
        found = json.loads(note.read_bytes())
        told = {name: str(found[name]) for name in ("request", "purpose", "ledger")}
        if b"\0" in os.fsencode(told["ledger"]):  # raises too if no file can have such a name
            raise ValueError("a ledger that no file can be")
        return told
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(
            f"Expected the note of a release in {note}, got something else; put the file back from a backup, or remove {note.parent} and "
            "pay for another release."
        ) from error


def _kinds(note: dict[str, str]) -> list[str]:
    """Return the kinds of the ledger's lines on the release."""
    entries = Ledger.open(note["ledger"]).entries()
    return [entry.kind for entry in entries if entry.purpose == note["purpose"]]
