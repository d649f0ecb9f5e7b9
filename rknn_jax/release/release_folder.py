"""Folder of one release: paid for once, drawn once, and shown when it is complete.

The steps are those of a client of the federation, and each is on disk before the next begins:

1. The folder is locked, and room for the results is reserved.
2. A note identifies the release.
3. The ledger is charged. Its line names the release.
4. The noise is drawn, and the noisy counts are kept in a hidden folder, for the owner alone. If
   records check the labels of these counts, the numbers of those that agree are drawn and kept too.
5. The ledger records that the noise of this release was drawn, with a hash of what was kept.
6. The results are made from the counts and moved to the visible folder: the statement's page first,
   so that no label is ever there without a statement, and `privacy.json` last.

A stopped process leaves the hidden folder if it has paid. The same command then continues from
there and pays nothing. What was not kept is drawn anew, the counts or the check of kept ones. That
is safe: nothing of the first draw became visible, and its loss did not depend on the drawn values.
So the second draw is the release that was paid for. The note keeps the roles of the records, since
one that voted before the stop must not check after it.

Once the ledger records the draw, noise is never drawn again and no other counts are shown. This
holds even if somebody copies the hidden folder or restores an old copy of it.
"""

import hashlib
import io
import json
import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rknn_jax._internal import disk
from rknn_jax._internal.option_names import option
from rknn_jax._internal.private_warnings import warn_owner
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger, LedgerError
from rknn_jax.privacy.roles import Roles

STAGING = ".rknn-release"
RESULTS = (
    "labels.npz",
    "queries.npz",
    "summary.json",
    "report.html",
    "privacy.html",
    "privacy.json",
)
"""Files of a release. The last one marks it as complete.

A labeler without queries has no `queries.npz`.
"""

STATEMENT = "privacy.html"
"""Page of the statement, which is shown first."""

LOCAL = "local"
"""Engine that a note leaves out."""

ROUNDS = ".rknn-rounds.json"
"""File beside the folders of several rounds whose run is not complete, for its owner alone."""

_NOTE = "note.json"
_COUNTS = "counts.npy"
_CHECK = "check.npy"
_ROOM = "room"


@dataclass(frozen=True)
class ReleaseFolder:
    """Folder that this process holds for one release; `held` makes it.

    Attributes:
      path: Folder of the results.
      request: Hash of the public settings that the release depends on.
      ledger: Ledger to charge.
      roles: Roles of the records, and a hash of the files and persons that they depend on, in
        words. Defaults to "", if no record checks.
      engine: Name of the engine that took the sum of this process. Defaults to `local`.
      asked: Fingerprint of the public rows and queries that the sum is about. An encoder that has
        changed since makes others, by settings that are the same. Defaults to "", unknown.
      records: Fingerprint of what the private records add up to. Defaults to "", unknown.
      files: Private files, absolute, one a line. Defaults to "", unknown.
      charges: Purposes of what this process has paid for.
    """

    path: Path
    request: str
    ledger: Ledger
    roles: str = ""
    engine: str = LOCAL
    asked: str = ""
    records: str = ""
    files: str = ""
    charges: list[str] = field(default_factory=list, compare=False)

    @property
    def staging(self) -> Path:
        """Hidden folder."""
        return self.path / STAGING

    @property
    def release(self) -> str:
        """Id of the release, as the ledger's line names it; `ValueError` before the charge."""
        return self._note["purpose"].rpartition(" ")[2]

    @property
    def _note(self) -> dict[str, str]:
        """Note of the release; `ValueError` before the charge."""
        note = _read_note(self.path)
        if note is None:
            raise ValueError(
                f"Expected the note of a release in {self.staging}, got none; put it back from a "
                "backup, or remove that folder."
            )
        return note

    def charge(self, guarantee: Guarantee, purpose: str) -> None:
        """Charge the ledger, unless a stopped process has paid for this release.

        Raises:
          LedgerError: If the budget does not allow it, or if the noise was drawn and its counts are
            gone.
        """
        note = _read_note(self.path)
        if note is None:
            named = f"{purpose}; release {secrets.token_hex(8)}"
            note = {
                "request": self.request,
                "purpose": named,
                "ledger": self.ledger.head_of_first_line,
            }
            if self.roles:
                note["roles"] = self.roles
            if self.engine != LOCAL:
                note["engine"] = self.engine
            self._write(note | self._about)
            self.ledger.charge(guarantee, named)
            self.charges.append(named)
            return
        self._go_on(note)
        if _drawn(self.ledger, note) is not None:
            raise LedgerError(
                f"Expected the noisy counts that {self.ledger.path} has paid for in "
                f"{self.staging}, got none. They were drawn, "
                "and are not drawn again; remove that folder, and pay for another release."
            )
        # Nothing was drawn: what is drawn now is of the queries and records of this process.
        self._write(self._note | self._about)

    @property
    def _about(self) -> dict[str, str]:
        return {"asked": self.asked, "records": self._sealed, "files": self.files}

    @property
    def _sealed(self) -> str:
        # By what the ledger has: a bare hash would confirm guesses of the sum without noise. Who
        # guesses all records can confirm that by the ledger's fingerprint too.
        key = self.ledger.datasets[0].fingerprint
        return hashlib.sha256(f"{key} {self.records}".encode()).hexdigest()

    def _write(self, note: dict[str, str]) -> None:
        disk.write_whole(self.staging / _NOTE, json.dumps(note).encode(), disk.OWNER)

    def keep(self, counts: np.ndarray) -> None:
        """Keep the noisy counts, before anything looks at them."""
        (self.staging / _ROOM).unlink(missing_ok=True)
        disk.write_whole(self.staging / _COUNTS, _saved(counts), disk.OWNER)

    def keep_check(self, check: np.ndarray) -> None:
        """Keep the numbers of the records that checked these counts, int64."""
        disk.write_whole(self.staging / _CHECK, _saved(check), disk.OWNER)

    def seal(self) -> None:
        """Record the hash of what is kept in the ledger, before any of it is shown.

        Raises:
          LedgerError: If the ledger has another one, of what was drawn from a copy of this folder.
            One charge pays for one draw.
        """
        if self._known_draw() is None:
            self.ledger.mark_drawn(self._note["purpose"], _digest(self.path) or "")

    def kept(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the noisy counts that a stopped process kept, and its check if it was kept.

        Args:
          shape: Shape of the counts. They are int64, or finite float64 if a person's records share
            a vote.

        Returns:
          Counts and check; None if no counts were kept.

        Raises:
          ValueError: If the counts or the check cannot be read.
          LedgerError: If the ledger has others on record, the records had other roles, or the
            counts are of other queries or files.
        """
        path = self.staging / _COUNTS
        if not path.exists():
            return None
        if self._note.get("asked", self.asked) != self.asked:
            raise LedgerError(
                "Expected the public rows and queries of which the noisy counts in "
                f"{self.staging} are, got others by the same settings: an encoder has changed, or "
                "was trained on another machine. Bring back the one of then, or remove that "
                "folder, and pay for another release."
            )
        if self._note.get("records", self._sealed) != self._sealed:
            if self._note.get("files", self.files) != self.files:
                raise LedgerError(
                    f"Expected the private files of the release in {self.path} that was stopped, "
                    "got others of the same names; finish it by its own command, name another "
                    f"{option('out')}, or give it up and remove {self.staging}."
                )
            warn_owner(
                "The private records or their labels have changed since the release that is "
                "finished was paid for; its labels are of the records of then. Tell nobody of this "
                "warning.",
                stacklevel=2,
            )
        self._go_on(self._note)
        other = self.staging / _CHECK
        try:
            counts: np.ndarray = np.load(path, allow_pickle=False)
            check = np.load(other, allow_pickle=False) if self.roles and other.exists() else None
            whole = counts.dtype == np.int64
            fractions = counts.dtype == np.float64 and bool(np.isfinite(counts).all())
            sound = check is None or (check.dtype == np.int64 and check.ndim == 1)
            if counts.shape != shape or not (whole or fractions) or not sound:
                raise ValueError(f"{counts.dtype} {counts.shape}")
        except Exception as error:  # a damaged file fails in many ways
            raise ValueError(
                f"Expected the noisy counts in {path} as they were written, got something else; "
                "put the file back from a backup, "
                f"or remove {self.staging}, and pay for another release."
            ) from error
        self._known_draw()
        return counts, check

    def _go_on(self, note: dict[str, str]) -> None:
        """Note the engine of this process beside those before it.

        Raises:
          LedgerError: If the release was paid for with other roles of the records.
        """
        if note.get("roles", "") != self.roles:
            raise LedgerError(
                "Expected the private files and their persons, in the order in which the release "
                f"in {self.path} was begun, got others, by which records that voted would check; "
                f"bring them as at first, or remove {self.staging}, and pay for another release."
            )
        known = _engines(note)
        if self.engine not in known:
            self._write(note | {"engine": " ".join([*known, self.engine])})

    def publish(self, write: Callable[[Path], None]) -> None:
        """Show the results that `write` makes in the hidden folder, and remove that folder.

        The release is complete once its last file is shown. What fails afterwards is a warning.
        """
        write(self.staging)
        made = {path.name for path in self.staging.iterdir()}
        if STATEMENT in made:
            os.replace(self.staging / STATEMENT, self.path / STATEMENT)
            disk.sync_folder(self.path)
        for name in RESULTS[:-1]:
            if name in made and name != STATEMENT:
                os.replace(self.staging / name, self.path / name)
        disk.sync_folder(self.path)
        os.replace(self.staging / RESULTS[-1], self.path / RESULTS[-1])
        with warned_after(self.path, "not all of it was written through to the disk"):
            disk.sync_folder(self.path)
        with warned_after(self.path, f"{self.staging} could not be removed; remove it"):
            shutil.rmtree(self.staging)

    def _known_draw(self) -> str | None:
        """Return the hash of what was drawn, as the ledger has it; None if it has none.

        Raises:
          LedgerError: If it is not the hash of what this folder keeps.
        """
        drawn = _drawn(self.ledger, self._note)
        if drawn not in (None, _digest(self.path)):
            raise LedgerError(
                f"Expected the noisy counts that {self.ledger.path} has on record in "
                f"{self.staging}, got others, which are not shown: "
                "one charge pays for one draw. Remove that folder, and pay for another release."
            )
        return drawn


@contextmanager
def warned_after(path: Path, failure: str) -> Iterator[None]:
    """Turn an error after a release is complete into a warning.

    Args:
      path: Folder of the results.
      failure: Words for what failed.
    """
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        warnings.warn(f"The release in {path} is complete, but {failure} ({reason}).", stacklevel=3)


def is_paid(path: Path, request: str, ledger: Path) -> bool:
    """Return whether the folder holds a paid, incomplete release of these settings.

    Args:
      path: Folder of the results.
      request: Hash of the public settings.
      ledger: File of the ledger to charge.

    Raises:
      ValueError: If the folder holds a release of other settings or of another ledger, or if its
        state is unclear.
    """
    if (path / STAGING).is_symlink():
        raise ValueError(
            f"Expected {path / STAGING} to be a folder of this program, got a symbolic link; "
            "remove it."
        )
    note = None if (path / RESULTS[-1]).exists() else _read_note(path)
    if note is None:
        if (path / STAGING / _COUNTS).exists() and not (path / RESULTS[-1]).exists():
            raise ValueError(
                f"Expected the note of a release in {path / STAGING}, got none beside noisy "
                "counts; put it back from a backup, or give the "
                "release up and remove that folder."
            )
        return False
    where = f"{option('out')} {path}, with a release that was stopped"
    mine = Ledger.open(ledger) if ledger.exists() else None
    if mine is None or mine.head_of_first_line != note["ledger"]:
        raise ValueError(
            f"Expected the ledger of {where}, got {ledger}; name it by {option('ledger')}, or give "
            f"it up and remove {path / STAGING}."
        )
    purpose = note["purpose"]
    paid = mine.entries_of(purpose)
    if not any(entry.kind == "spend" and entry.purpose == purpose for entry in paid):
        if (path / STAGING / _COUNTS).exists():
            raise ValueError(
                f"Expected the spend of {where} in {ledger}, got none, though its noise was "
                "drawn; put the last good copy of the ledger "
                f"back, or give the release up and remove {path / STAGING}."
            )
        return False
    if note["request"] != request:
        raise ValueError(
            f"Expected the settings of {where} and that {ledger} has paid for, got others; "
            "finish it by its own command, name another "
            f"folder, or give it up and remove {path / STAGING}."
        )
    return True


def find_unfinished(parent: Path, request: str, ledger: Path) -> Path | None:
    """Return a folder in `parent` with a paid, incomplete release of these settings, or None.

    Folders that another process holds are skipped.
    """
    for note in sorted(parent.glob(f"*/{STAGING}/{_NOTE}")):
        folder = note.parents[1]
        with suppress(ValueError), _locked(folder):
            if is_paid(folder, request, ledger):
                return folder
    return None


def clear_finished(path: Path) -> bool:
    """Return whether a folder has a complete release; its own hidden folder is removed.

    A process that was stopped at its end leaves that folder, with the key of the records' roles,
    which is secret. One of another release stays.
    """
    card = path / RESULTS[-1]
    if not card.exists():
        return False
    with suppress(ValueError, LookupError, TypeError):  # what cannot be read is not its own
        note = _read_note(path)
        own = note and note["purpose"].endswith(f" {disk.read_json(card)['release']}")
        if own and not (path / STAGING).is_symlink():
            shutil.rmtree(path / STAGING, ignore_errors=True)
    return True


def refuse_results(path: Path) -> None:
    """Raise ValueError if the folder holds a release, or a part of one."""
    found = [name for name in RESULTS if os.path.lexists(path / name)]
    if found:
        whole = ", and the release there is complete" if RESULTS[-1] in found else ""
        raise ValueError(
            f"Expected {option('out')} without an earlier release, got {option('out')} {path}, "
            f"which holds {found[0]}{whole}; name another folder."
        )


@contextmanager
def held(
    path: Path,
    request: str,
    ledger: Path,
    opened: Callable[[], Ledger],
    room: int,
    roles: str = "",
    engine: str = LOCAL,
    asked: str = "",
    records: str = "",
    files: str = "",
) -> Iterator[ReleaseFolder]:
    """Hold a folder for one release, with room for the results and no other process writing.

    Args:
      path: Folder of the results. It is made if it does not exist.
      request: Hash of the public settings that the release depends on.
      ledger: File of the ledger to charge.
      opened: Function that opens or makes the ledger.
      room: Most bytes that the results take.
      roles: Roles of the records, as in `ReleaseFolder`. Defaults to "", if no record checks.
      engine: Name of the engine that took the sum. Defaults to `local`.
      asked: Fingerprint of public rows and queries, as in `ReleaseFolder`. Defaults to "".
      records: Fingerprint of what the private records add up to. Defaults to "".
      files: Private files, absolute, one a line. Defaults to "".

    Raises:
      ValueError: If the folder cannot be written, is held by another process, holds a release or
        has no room.
    """
    made = not path.exists()
    with ExitStack() as stack:
        try:
            disk.make_folder(path)
            stack.callback(_remove_if_empty, path, made)
            stack.enter_context(_locked(path))
            if not is_paid(path, request, ledger):
                refuse_results(path)
                # Left by a process that was stopped before it paid.
                shutil.rmtree(path / STAGING, ignore_errors=True)
            disk.make_folder(path / STAGING, 0o700)
            stack.callback(_clear_unpaid, path, request, ledger)
            _reserve(path / STAGING / _ROOM, room)
        except OSError as error:
            raise ValueError(
                f"Expected {option('out')} to be a folder that can be written and has room for "
                f"{room / 1e6:,.0f} MB, got {option('out')} {path} "
                f"({error.strerror}); nothing was spent, name another."
            ) from error
        # Of a round, the folder of the run; asked now, as all of it may be gone after an error.
        run = path.parent if (path.parent / ROUNDS).exists() else path
        charges: list[str] = []
        try:
            yield ReleaseFolder(
                path, request, opened(), roles, engine, asked, records, files, charges
            )
        except BaseException as error:
            if note := _last_words(path, request, ledger, run=run, paid=bool(charges)):
                error.add_note(note)
            raise


def _last_words(path: Path, request: str, ledger: Path, *, run: Path, paid: bool) -> str:
    """Return what is true of the release after an error; nothing if it was not paid for.

    Args:
      path: Folder of the results.
      request: Hash of the public settings.
      ledger: File of the ledger.
      run: Folder that the command names.
      paid: True if this process has paid for the release.
    """
    if (path / RESULTS[-1]).exists():
        return f"The release in {path} is complete, and is paid for."
    again = f"the same command with {option('out')} {run} finishes the release and pays nothing"
    if paid and not (path / STAGING / _NOTE).exists():
        return (
            f"The release is paid for, and {path / STAGING}, which keeps it, is gone or was moved: "
            f"put it back, and {again}."
        )
    try:
        paid = is_paid(path, request, ledger)
        lost = paid and _is_lost(path, ledger)
    except (ValueError, OSError):
        # What a ledger cannot read counts as spent.
        return f"The release may have been paid for, and then {again}."
    return f"The release is paid for, and nothing is lost: {again}." if paid and not lost else ""


def _is_lost(path: Path, ledger: Path) -> bool:
    """Return whether the noise of a paid release was drawn, and the folder lacks its counts."""
    note = _read_note(path)
    return note is not None and _drawn(Ledger.open(ledger), note) not in (None, _digest(path))


def _digest(path: Path) -> str | None:
    """Return the hash of what was drawn and kept, or None if nothing was."""
    counts = path / STAGING / _COUNTS
    if not counts.exists():
        return None
    check = path / STAGING / _CHECK
    data = counts.read_bytes() + (check.read_bytes() if check.exists() else b"")
    return hashlib.sha256(data).hexdigest()


def _saved(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


def roles_of(path: Path) -> Roles | None:
    """Return the roles of a paid, incomplete release, or None if no record of it checks.

    Raises:
      ValueError: If the note cannot be read.
    """
    note = _read_note(path) or {}
    words = note.get("roles", "")
    return Roles.of(words.splitlines()[0]) if words else None


def engines_of(path: Path) -> tuple[str, ...]:
    """Return the engines that took the sum of a paid, incomplete release, the first one first.

    Raises:
      ValueError: If the note cannot be read.
    """
    return _engines(_read_note(path) or {})


def _engines(note: dict[str, str]) -> tuple[str, ...]:
    return tuple(note.get("engine", LOCAL).split())


def num_queries_of(path: Path) -> int | None:
    """Return the number of queries whose counts a paid, incomplete release has kept, if it has."""
    counts = path / STAGING / _COUNTS
    try:
        return int(np.load(counts, allow_pickle=False, mmap_mode="r").shape[0])
    except Exception:  # a damaged file fails in many ways, and `ReleaseFolder.kept` says so
        return None


def _locked(path: Path) -> AbstractContextManager[None]:
    """Keep other processes out of the folder."""
    busy = (
        f"Expected {option('out')} that no other process writes to, got {option('out')} {path}, to "
        "which one does; nothing was spent, name another."
    )
    return disk.locked(path, busy)


def _reserve(path: Path, size: int) -> None:
    """Reserve the room now, so that a full disk is found before anything is spent."""
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1))


def _clear_unpaid(path: Path, request: str, ledger: Path) -> None:
    with suppress(OSError):
        (path / STAGING / _ROOM).unlink(missing_ok=True)
    with suppress(ValueError, OSError):  # a folder in an unclear state stays
        if not is_paid(path, request, ledger):
            shutil.rmtree(path / STAGING, ignore_errors=True)


def _remove_if_empty(path: Path, made: bool) -> None:
    with suppress(OSError):
        if made and not any(path.iterdir()):
            path.rmdir()


def _read_note(path: Path) -> dict[str, str] | None:
    """Return the hidden folder's note on its release, or None if there is no note.

    Raises:
      ValueError: If the note cannot be read.
    """
    note = path / STAGING / _NOTE
    try:
        found = json.loads(note.read_bytes())
        told = {name: str(found[name]) for name in ("request", "purpose", "ledger")}
        more = ("engine", "roles", "asked", "records", "files")
        told |= {name: str(found[name]) for name in more if name in found}
        if "roles" in told:
            Roles.of(told["roles"].splitlines()[0])
        if b"\0" in os.fsencode(told["ledger"]):  # raises too if no file can have such a name
            raise ValueError("a ledger that no file can be")
        return told
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(
            f"Expected the note of a release in {note}, got something else; put the file back "
            f"from a backup, or remove {note.parent} and "
            "pay for another release."
        ) from error


def _drawn(ledger: Ledger, note: dict[str, str]) -> str | None:
    """Return the hash of the counts that were drawn for the release, or None if none were."""
    return next(
        (
            entry.result
            for entry in ledger.entries_of(note["purpose"])
            if entry.kind == "drawn" and entry.purpose == note["purpose"]
        ),
        None,
    )
