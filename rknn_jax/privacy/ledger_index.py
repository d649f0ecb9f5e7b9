"""Index of one user's ledgers on one machine: where records and files are charged.

A copy of a data set, or another `--ledger`, would begin a second budget for the same people. A
release therefore looks up its records here. It is refused if another ledger that still exists has
them on record. A ledger that is new, or adopts, is refused too if another one was charged for a
file of the same name: the file is likely a new version of the same people's records. If that one is
gone, every other ledger is refused, because it does not know what was spent. A ledger is known by
the records that it was charged for, wherever it lies.

The folder is `RKNN_STATE_DIR`, or `rknn_jax/ledgers` in the user's state folder (`XDG_STATE_HOME`,
by default `~/.local/state`). It holds a random salt, and for each fingerprint and each private file
an entry: a small JSON file with the paths of its ledgers, and the names of its data sets' entries,
which are salted hashes. Whoever can read the folder can confirm a guess of all records of a data
set, or of a path, as with a ledger, and learns no more.

**Limits.** The index stops mistakes, not intent. It does not know other users, other machines, or
records that were saved under another name and changed, reordered, cut into other shards, or, in
another format, read by other columns: those are for `Ledger.adopt`, and `notice` says so where a
budget is made. Of more than `MOST_SHARDS` files, it knows all together, and not the copy of each.
The ledgers decide, not the index. An index that is absent, damaged or cannot be written is a
warning, and changes no release. One that another process holds is waited for, and a release is
refused if it is not free in time.
"""

import functools
import hashlib
import hmac
import json
import os
import secrets
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from io import FileIO
from pathlib import Path
from typing import Any

from rknn_jax._internal import disk, urls
from rknn_jax._internal.option_names import option
from rknn_jax._internal.private_warnings import warn_owner
from rknn_jax.privacy import source_names
from rknn_jax.privacy.ledger import PATIENCE, Ledger, LedgerError, LedgerMismatchError
from rknn_jax.privacy.ledger_file import lock
from rknn_jax.privacy.ledger_lines import MOST_SHARDS
from rknn_jax.privacy.ledger_summary import DataSet

SALT_SIZE = 32
_SALT = "salt"
_LOCK = "lock"
_PLACE: ContextVar[Path | None] = ContextVar("place of the index", default=None)
MOST_NAMED = 3
"""Most ledgers that `notice` names."""


Held = Callable[[], tuple[DataSet, ...] | None]
"""Function that returns the data sets of a ledger as `_data_sets` does, and reads it once."""


class _DamagedError(ValueError):
    """A file of the index is not as it was written."""


def folder() -> Path:
    """Return the folder of the index.

    Raises:
      OSError: If the user has no home folder.
    """
    place = _PLACE.get()
    if place is not None:
        return place
    given = os.environ.get("RKNN_STATE_DIR")
    if given:
        if urls.is_url(given) or not os.path.isabs(given):  # each working folder would have its own
            raise OSError(f"{given} is no absolute path on this machine")
        return Path(given)
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        above = Path(state) if os.path.isabs(state) else Path.home() / ".local/state"
    except RuntimeError as error:
        raise OSError(str(error)) from error
    if not above.is_absolute():
        raise OSError(f"{above} is no absolute path on this machine")
    return above / "rknn_jax" / "ledgers"


@contextmanager
def kept_in(place: Path) -> Iterator[None]:
    """Keep the index of this context in another folder; the user's is neither read nor written.

    An audit releases made-up records many times, each time with a budget of its own.

    Args:
      place: Folder of the index, which is made when a ledger is noted.
    """
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)


def check(path: Path, prints: Sequence[str], formerly: str = "") -> None:
    """Refuse a ledger if the index has another one for the same records. Write nothing.

    A ledger that is in the index already stays usable, with a warning.

    Args:
      path: Path of the ledger to use, which may not exist yet.
      prints: Fingerprints of the private records and of their shards, as `DataSet.prints` has them.
      formerly: Fingerprint by which earlier versions knew all records. Defaults to none.

    Raises:
      LedgerMismatchError: If another ledger that exists has these records, or if theirs is gone
        and this one is not that one in a new place.
    """
    try:
        place = folder()
        others = _refuse_others(place, path, prints, formerly, _once(path))
    except (OSError, _DamagedError) as error:
        _warn(error)
        return
    if others:
        warn_owner(
            f"These records are charged to {others[0]} as well as to {path}; what both have spent "
            "adds up. Use one of them.",
            stacklevel=2,
        )


@contextmanager
def held(
    path: Path,
    prints: Sequence[str],
    files: Sequence[str] = (),
    inside: Sequence[str] = (),
    adopts: bool = False,
    patience: float = PATIENCE,
    formerly: str = "",
) -> Iterator[None]:
    """Note a ledger in the index after it was opened, made or changed in the `with` block.

    Until then, no other process of this user gives the same records another ledger.

    Args:
      path: Path of the ledger, which exists at the end.
      prints: Fingerprints of the private records and of their shards, as for `check`. The first
        `MOST_SHARDS` shards are noted.
      files: Names of the private files, folders, patterns or URLs, as they were given. Folders and
        patterns on this machine stand for their files too, and names of no file are left out.
        Defaults to none.
      inside: Names of the files that were found in them, which tell those of a folder elsewhere,
        and copies. The first `MOST_SHARDS` are noted, and all are looked up. Defaults to none.
      adopts: Flag for an existing ledger to which the records are new. Defaults to False.
      patience: Seconds to wait for a process that holds the index, perhaps while it waits for its
        own ledger. Defaults to `PATIENCE`.
      formerly: As for `check`.

    Raises:
      LedgerError: If another process holds the index for too long.
      LedgerMismatchError: As in `check`, whose warnings are left out. Also if the ledger is new or
        adopts, and another one was charged for one of the files, or for a folder that holds it,
        whether or not that one is still there.
    """
    names = [*files, *inside]
    # All files are looked up, though few are noted: another ledger may have had one of them.
    every = source_names.of(names)
    contents, known = source_names.of_bytes(files, inside, MOST_SHARDS)
    sought = [*every, *known, *source_names.folders_above(every)]
    try:
        place = folder()
        file = _locked(place, patience)
    except OSError as error:
        _warn(error)
        yield
        return
    held = _once(path)
    with file:
        with suppress(OSError, _DamagedError):  # `check` warns of it
            _refuse_others(place, path, prints, formerly, held)
        errors: list[Exception] = []
        for one in _with_entry(place, sought):
            try:
                _refuse_changed(place, path, one, held, adopts=adopts)
            except (OSError, _DamagedError) as error:
                errors.append(error)
        if errors:
            _warn(errors[0])
        yield
        inner = source_names.of(inside[:MOST_SHARDS])
        sources = (*contents, *source_names.of(files, MOST_SHARDS), *inner)
        _note_all(place, path, prints, formerly, sources)


def _refuse_others(
    place: Path, path: Path, prints: Sequence[str], formerly: str, held: Held
) -> list[str]:
    """Return other ledgers that are used beside this one, of its records and of those asked about.

    A ledger that is new to the index may be a copy, which the other records on it tell.

    Args:
      place: Folder of the index.
      path: Path of the ledger to use.
      prints: As for `check`.
      formerly: As for `check`.
      held: Function that returns the result of `_data_sets`.

    Raises:
      LedgerMismatchError: As in `_refuse_second`.
    """
    whole = {*prints[:1], *filter(None, [formerly])}
    asked = dict.fromkeys([*_noted(prints), *whole])
    found = [_refuse_second(place, path, one, whole, held) for one in asked]
    for data in held() or ():
        if data.fingerprint not in whole and not _knows(place, path, data):
            beside = {data.fingerprint}
            found += [_refuse_second(place, path, one, beside, held) for one in _noted(data.prints)]
    return [other for each in found for other in each]


def _refuse_second(place: Path, path: Path, dataset: str, whole: set[str], held: Held) -> list[str]:
    """Return other ledgers of the records that are used beside this one.

    Args:
      place: Folder of the index.
      path: Path of the ledger to use.
      dataset: Fingerprint of all records, or of a shard.
      whole: Fingerprints of all records, one of which on the ledger stands for every shard.
      held: Function that returns the result of `_data_sets`.

    Raises:
      LedgerMismatchError: If there are others, and this one is new to the index or has not these
        records. Also if all are gone, and this one has not these records.
    """
    known = _read(place, dataset)
    own = os.path.realpath(path)
    others = [other for other in known if _has(other, own, dataset)]
    got = path if os.path.lexists(path) else f"no ledger yet at {path}"
    has = not known or _is_on(held(), {dataset, *whole})
    if others and not (own in known and has):
        raise LedgerMismatchError(
            f"Expected the ledger of these records, {others[0]}, got {got}; pass "
            f"{option('ledger')} {shlex.quote(others[0])}, so that all releases on these people "
            "share one budget. If the ledger is to be kept elsewhere, move that file."
        )
    if known and not others and not has:
        raise LedgerMismatchError(
            f"Expected the ledger of these records, which was at {known[-1]} and is gone or has "
            f"other records now, got {got}; {_gone(place, dataset)}"
        )
    return others


def _data_sets(path: Path) -> tuple[DataSet, ...] | None:
    """Return what a ledger was charged for: nothing of a file that is not there.

    It is None of a file that cannot be read, of which whoever opens it tells more.
    """
    if not os.path.lexists(path):
        return ()
    try:
        return Ledger.open(path).datasets
    except (LedgerError, OSError):
        return None


def _once(path: Path) -> Held:
    """Return the function that reads a ledger's data sets when they are asked for, once."""
    return functools.cache(lambda: _data_sets(path))


def _prints(datasets: Sequence[DataSet] | None) -> set[str]:
    """Return the fingerprints of data sets and of their shards."""
    return {one for data in datasets or () for one in (data.fingerprint, *data.shards)}


def _is_on(datasets: Sequence[DataSet] | None, prints: set[str]) -> bool:
    """Return whether a ledger has one of the fingerprints, or cannot be read."""
    return datasets is None or not _prints(datasets).isdisjoint(prints)


def _knows(place: Path, path: Path, data: DataSet) -> bool:
    """Return whether the index has the ledger for a data set that is on it, or there are none."""
    return not data.prints or os.path.realpath(path) in _read(place, data.fingerprint)


def _refuse_changed(place: Path, path: Path, source: str, held: Held, *, adopts: bool) -> None:
    """Refuse a new ledger, or one that adopts, for a file that another was charged for.

    Raises:
      LedgerMismatchError: If that ledger still exists, or if it is gone and this one is not that
        one in a new place.
    """
    known, exists = _read(place, source), os.path.lexists(path)
    if not known or (exists and not adopts):
        return
    own = os.path.realpath(path)
    charged = _entry(place, source).get("of", [])
    # Its records may have been charged since to their ledger at another place, by another file.
    for name in charged:
        with suppress(OSError, _DamagedError):
            known += _entry_at(place / name)["ledgers"]
    salt = (place / _SALT).read_bytes()

    def is_that(ledger: str, datasets: Sequence[DataSet] | None) -> bool:
        if datasets is None:
            return ledger in known
        if charged:
            return any(_name(salt, one) in charged for one in _prints(datasets))
        # Earlier versions noted places alone: of the file, and of the records on the ledger.
        places = {at for one in _prints(datasets) for at in _read(place, one)} or {ledger}
        return not places.isdisjoint(known)

    others = [
        other
        for other in known
        if os.path.lexists(other)
        and not (exists and os.path.exists(other) and os.path.samefile(other, path))
        and is_that(other, _data_sets(Path(other)))
    ]
    if exists and (own in known or not others) and is_that(own, held()):
        return
    told = (
        f"Expected the ledger that releases from {source.removeprefix(source_names.KIND)} are "
        f"charged to, {[*others, *known[-1:]][0]}, got "
        f"{path if exists else f'no ledger yet at {path}'}, and the records have changed since, or "
        "are read otherwise; "
    )
    if not others:
        raise LedgerMismatchError(f"{told}{_gone(place, source)}")
    entry = place / _name((place / _SALT).read_bytes(), source)
    raise LedgerMismatchError(
        f"{told}pass {option('ledger')} {shlex.quote(others[0])}, and let it adopt the records: "
        "`rknn budget adopt`. If they are other people's, save them under another name, or remove "
        f"{entry}."
    )


def _gone(place: Path, dataset: str) -> str:
    """Return the remedy where the ledger of a data set, or of a file, is gone.

    The entries of the same data sets are removed together, and those of no others.
    """
    found = _entry(place, dataset).get("of")
    entry = place / _name((place / _SALT).read_bytes(), dataset)
    remove = f"remove {entry}"
    if found:
        remove = (
            f"remove the files of {place} that are of these records alone: find "
            f"{shlex.quote(str(place))} -name '*.json' -exec grep -qF "
            f"{shlex.quote(_written(found))} {{}} ';' -delete"
        )
    return (
        f"name its new place by {option('ledger')}, because another one does not know what was "
        f"spent. If it is gone for good, {remove}"
    )


def _written(of: Sequence[str]) -> str:
    """Return the part of an entry that names its data sets, as it is written."""
    return json.dumps({"of": [*of]})[1:-1]


def _noted(prints: Sequence[str]) -> tuple[str, ...]:
    """Return the fingerprints that the index knows: that of all records, and those of shards."""
    return (*prints[:1], *sorted(prints[1:])[:MOST_SHARDS])


def _with_entry(place: Path, sources: Sequence[str]) -> list[str]:
    """Return the sources of which the index has an entry."""
    try:
        salt = (place / _SALT).read_bytes()
        entries = {entry.name for entry in place.iterdir()}
    except OSError:
        return []
    return [one for one in dict.fromkeys(sources) if _name(salt, one) in entries]


def notice(path: Path) -> str:
    """Return what an owner is told before a first budget is made at a path.

    It names ledgers that this user has in the same folder, the newest first, and the number of all
    others, which are likely those of other people.
    """
    folder = os.path.dirname(os.path.realpath(path))
    known = known_ledgers()
    beside = [one for one in known if os.path.dirname(os.path.realpath(one)) == folder]
    such = ""
    if beside:
        such = f", such as {' or '.join(map(shlex.quote, beside[:MOST_NAMED]))}"
    count = len(known) - len(beside)
    elsewhere = f". Ledgers of yours in other folders: {count:,}" if count else ""
    return (
        f"{path} is new, and a new budget is for people of whom nothing was released before. A "
        "version of known records, in other files, columns or order, or with some "
        f"changed, added or removed, is no new data set: pass {option('ledger')} with its "
        f"ledger{such}, and let it adopt the records (rknn budget adopt){elsewhere}"
    )


def known_ledgers() -> list[str]:
    """Return the paths of the ledgers in the index that still exist, the newest first."""
    found: dict[str, float] = {}
    with suppress(OSError):
        for entry in folder().glob("*.json"):
            with suppress(OSError, ValueError, LookupError, TypeError):
                for path in disk.read_json(entry)["ledgers"]:
                    found[path] = os.stat(path).st_mtime
    return sorted(found, key=lambda path: -found[path])


def _has(other: str, own: str, dataset: str) -> bool:
    """Return True if another file is a ledger of the records, or a ledger that cannot be read."""
    if not os.path.lexists(other) or other == own:
        return False
    if os.path.exists(own) and os.path.exists(other) and os.path.samefile(other, own):
        return False
    try:
        return dataset in _prints(Ledger.open(other).datasets)
    except (LedgerError, OSError):
        return True


def _read(place: Path, dataset: str) -> list[str]:
    """Return the paths that the index has for the records.

    Raises:
      OSError: If the index cannot be read.
      _DamagedError: If it is damaged.
    """
    return _entry(place, dataset)["ledgers"]


def _entry(place: Path, dataset: str) -> dict[str, list[str]]:
    """Return what the index has for records or a file: `ledgers`, and `of` what data sets they are.

    Raises:
      OSError: If the index cannot be read.
      _DamagedError: If it is damaged.
    """
    try:
        salt = (place / _SALT).read_bytes()
    except FileNotFoundError as error:
        if any(place.glob("*.json")):
            raise _DamagedError(f"{place / _SALT} is missing") from error
        return {"ledgers": []}
    if len(salt) != SALT_SIZE:
        raise _DamagedError(f"{place / _SALT} is damaged")
    return _entry_at(place / _name(salt, dataset))


def _entry_at(path: Path) -> dict[str, list[str]]:
    """Return what a file of the index holds, as `_entry` does."""
    try:
        found = disk.read_json(path)
    except FileNotFoundError:
        return {"ledgers": []}
    except ValueError as error:
        raise _DamagedError(str(error)) from error
    entry: dict[str, Any] = {"of": []} | found if isinstance(found, dict) else {}
    lists = [entry.get(name) for name in ("ledgers", "of")]
    if not all(isinstance(one, list) and all(map(_is_name, one)) for one in lists):
        raise _DamagedError(f"{path} is damaged")
    return entry


def _is_name(text: Any) -> bool:
    """Return whether it is text that may be a path."""
    return type(text) is str and "\0" not in text


def _note_all(
    place: Path, path: Path, prints: Sequence[str], formerly: str, sources: Sequence[str]
) -> None:
    """Add a ledger to the entries of what is on it, and of files.

    Args:
      place: Folder of the index.
      path: Path of the ledger.
      prints: As for `check`.
      formerly: As for `check`.
      sources: Files of the records, as `source_names` names them.
    """
    datasets = _data_sets(path) or ()
    asked = [data.fingerprint for data in datasets if data.fingerprint in {*prints[:1], formerly}]
    for data in datasets:
        known = False
        with suppress(OSError, _DamagedError):
            known = data.fingerprint not in asked and _knows(place, path, data)
        for one in () if known else _noted(data.prints):
            _note(place, path, one, [data.fingerprint])
    if not asked:
        for one in _noted(prints):
            _note(place, path, one, prints[:1])
    for one in sources:
        before: list[str] = []
        with suppress(OSError, _DamagedError):
            before = _charged_before(place, datasets, one)
        _note(place, path, one, [*(asked or prints[:1]), *before])


def _charged_before(place: Path, datasets: Sequence[DataSet], source: str) -> list[str]:
    """Return what other ledgers were charged for, of a file of which an entry has places alone."""
    entry = _entry(place, source)
    if entry.get("of"):
        return []
    places = {at for one in _prints(datasets) for at in _read(place, one)}
    if not places.isdisjoint(entry["ledgers"]):  # this ledger is that one
        return []
    return [one for at in entry["ledgers"] for one in sorted(_prints(_data_sets(Path(at))))]


def _note(place: Path, path: Path, dataset: str, of: Sequence[str]) -> None:
    """Add a ledger to an entry, which begins anew where it is damaged.

    Args:
      place: Folder of the index.
      path: Path of the ledger.
      dataset: Fingerprint of records, or a file.
      of: Fingerprints of the data sets that these are, or are part of.
    """
    entry: dict[str, list[str]] = {"ledgers": []}
    with suppress(OSError, _DamagedError):
        entry = _entry(place, dataset)
    try:
        salt = _salt(place)
        names = [_name(salt, one) for one in of]
        whole = {
            "ledgers": [*dict.fromkeys([*entry["ledgers"], os.path.realpath(path)])],
            "of": [*dict.fromkeys([*entry.get("of", ()), *names])],
        }
        if whole == entry:
            return
        text = json.dumps(whole)
        disk.write_whole(place / _name(salt, dataset), text.encode(), disk.OWNER)
    except OSError as error:
        _warn(error)


def _salt(place: Path) -> bytes:
    """Return the salt of the index, and make one if there is none of the right size."""
    path = place / _SALT
    found = path.read_bytes() if path.exists() else b""
    if len(found) != SALT_SIZE:
        found = secrets.token_bytes(SALT_SIZE)
        disk.write_whole(path, found, disk.OWNER)
    return found


def _name(salt: bytes, dataset: str) -> str:
    known = dataset.encode(errors="surrogatepass")  # a file's name may be no Unicode
    return f"{hmac.new(salt, known, hashlib.sha256).hexdigest()}.json"


def _locked(place: Path, patience: float) -> FileIO:
    """Make the folder, lock it, and return the file that keeps the lock.

    Raises:
      LedgerError: If another process holds it too long.
      OSError: If the folder cannot be written, or has no locks.
    """
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = FileIO(os.open(place / _LOCK, os.O_RDWR | os.O_CREAT, disk.OWNER), "r+")
    undone = "the index of ledgers could not be asked, and nothing was charged"
    try:
        lock(file, place / _LOCK, time.monotonic() + patience, undone)
    except BaseException:
        file.close()
        raise
    return file


def _warn(error: Exception) -> None:
    warnings.warn(
        f"The index of ledgers cannot be used ({error}), so a second ledger of the same records "
        "would go unnoticed; give the folder back, or name another by RKNN_STATE_DIR.",
        stacklevel=3,
    )
