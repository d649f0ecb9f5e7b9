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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

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


class _Charged(NamedTuple):
    """Data sets that a ledger was charged for: none of one that is not there.

    Attributes:
      datasets: Data sets.
      prints: Fingerprints of these and of their shards.
      names: Names of their entries.
    """

    datasets: tuple[DataSet, ...]
    prints: frozenset[str]
    names: frozenset[str]


Ledgers = Callable[[str], _Charged | None]
"""Function that reads a ledger once.

It returns None if it cannot be read, of which whoever opens it tells more.
"""


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
    except OSError as error:
        _warn(error)
        return
    others, errors = _refuse_others(place, path, prints, formerly, _ledgers(place))
    if errors:
        _warn(errors[0])
    _warn_of_two(path, others)


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
    contents, known = source_names.of_bytes(files, inside, MOST_SHARDS) if prints else ((), ())
    sought = [*every, *known, *source_names.folders_above(every)]
    try:
        place = folder()
        file = _locked(place, patience)
    except OSError as error:
        _warn(error)
        yield
        return
    ledgers = _ledgers(place)
    with file:
        _refuse_others(place, path, prints, formerly, ledgers)  # `check` has warned
        others: list[str] = []
        errors: list[Exception] = []
        for one in _with_entry(place, sought):
            try:
                others += _refuse_changed(place, path, one, ledgers, adopts=adopts)
            except (OSError, _DamagedError) as error:
                errors.append(error)
        if errors:
            _warn(errors[0])
        _warn_of_two(path, others)
        yield
        inner = source_names.of(inside[:MOST_SHARDS])
        sources = (*contents, *source_names.of(files, MOST_SHARDS), *inner)
        _note_all(place, path, prints, formerly, sources)


def _refuse_others(
    place: Path, path: Path, prints: Sequence[str], formerly: str, ledgers: Ledgers
) -> tuple[list[str], list[Exception]]:
    """Return other ledgers of the records that are asked about, and of others on this ledger.

    A ledger that is new to the index may be a copy, which the other records on it tell.

    Args:
      place: Folder of the index.
      path: Path of the ledger to use.
      prints: As for `check`.
      formerly: As for `check`.
      ledgers: Result of `_ledgers`.

    Returns:
      Ledgers that are used beside this one, and errors of entries that cannot be read.

    Raises:
      LedgerMismatchError: As in `_refuse_second`.
    """
    whole = {*prints[:1], *filter(None, [formerly])}
    asked = [(one, whole) for one in dict.fromkeys([*_noted(prints), *whole])]
    this = ledgers(str(path))
    for data in () if this is None else this.datasets:
        if data.fingerprint not in whole:
            parts = data.prints[:1] if _knows(place, path, data) else _noted(data.prints)
            asked += [(one, {data.fingerprint}) for one in parts]
    others: list[str] = []
    errors: list[Exception] = []
    for one, beside in asked:
        try:
            others += _refuse_second(place, path, one, beside, ledgers)
        except (OSError, _DamagedError) as error:
            errors.append(error)
    return others, errors


def _refuse_second(
    place: Path, path: Path, dataset: str, whole: set[str], ledgers: Ledgers
) -> list[str]:
    """Return other ledgers of the records that are used beside this one.

    Args:
      place: Folder of the index.
      path: Path of the ledger to use.
      dataset: Fingerprint of all records, or of a shard.
      whole: Fingerprints of all records, one of which on the ledger stands for every shard.
      ledgers: Result of `_ledgers`.

    Raises:
      LedgerMismatchError: If there are others, and this one is new to the index or has not these
        records. Also if all are gone, and this one has not these records.
    """
    entry = _entry(place, dataset)
    known, own = _known(place, entry), os.path.realpath(path)
    if not known:
        return []
    others = [
        other
        for other in known
        if _is_other(other, own) and _holds(ledgers(other), {dataset}, entry)
    ]
    got = path if os.path.lexists(path) else f"no ledger yet at {path}"
    has = _holds(ledgers(str(path)), {dataset, *whole}, entry)
    if others and not (own in known and has):
        raise LedgerMismatchError(
            f"Expected the ledger of these records, {others[0]}, got {got}; pass "
            f"{option('ledger')} {shlex.quote(others[0])}, so that all releases on these people "
            "share one budget. If the ledger is to be kept elsewhere, move that file."
        )
    if not others and not has:
        raise LedgerMismatchError(
            f"Expected the ledger of these records, which was at {known[-1]} and is gone or has "
            f"other records now, got {got}; {_gone(place, dataset)}"
        )
    return others


def _ledgers(place: Path) -> Ledgers:
    """Return the function that reads ledgers.

    Args:
      place: Folder of the index.
    """
    salt = b""
    with suppress(OSError):  # without one there is no entry
        salt = (place / _SALT).read_bytes()

    @functools.cache
    def read(path: str) -> _Charged | None:
        if not os.path.lexists(path):
            return _Charged((), frozenset(), frozenset())
        try:
            datasets = Ledger.open(path).datasets
        except (LedgerError, OSError):
            return None
        prints = frozenset(one for data in datasets for one in (data.fingerprint, *data.shards))
        return _Charged(datasets, prints, frozenset(_name(salt, one) for one in prints))

    return read


def _holds(ledger: _Charged | None, prints: set[str], entry: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a ledger has one of the fingerprints, or a data set of an entry.

    So does one that cannot be read.
    """
    if ledger is None or not ledger.prints.isdisjoint(prints):
        return True
    return not ledger.names.isdisjoint(entry.get("of", ()))


def _knows(place: Path, path: Path, data: DataSet) -> bool:
    """Return whether the index has the ledger for a data set that is on it."""
    with suppress(OSError, _DamagedError):
        return os.path.realpath(path) in _entry(place, data.fingerprint)["ledgers"]
    return False


def _refuse_changed(
    place: Path, path: Path, source: str, ledgers: Ledgers, *, adopts: bool
) -> list[str]:
    """Refuse a new ledger, or one that adopts, for a file that another was charged for.

    Returns:
      Other ledgers of the file that are used beside this one.

    Raises:
      LedgerMismatchError: If that ledger still exists, or if it is gone and this one is not that
        one in a new place.
    """
    entry, exists = _entry(place, source), os.path.lexists(path)
    known, own = _known(place, entry), os.path.realpath(path)
    if not known or (exists and not adopts):
        return []

    def is_that(ledger: str) -> bool:
        charged = ledgers(ledger)
        if charged is None:
            return ledger in known
        if entry.get("of"):
            return _holds(charged, set(), entry)
        # Earlier versions noted places alone: of the file, and of the records on the ledger.
        return not (_places(place, charged) or {os.path.realpath(ledger)}).isdisjoint(known)

    others = [other for other in known if _is_other(other, own) and is_that(other)]
    if exists and (own in known or not others) and is_that(str(path)):
        return others
    told = (
        f"Expected the ledger that releases from {source.removeprefix(source_names.KIND)} are "
        f"charged to, {[*others, *known[-1:]][0]}, got "
        f"{path if exists else f'no ledger yet at {path}'}, and the records have changed since, or "
        "are read otherwise; "
    )
    if not others:
        raise LedgerMismatchError(f"{told}{_gone(place, source)}")
    noted = place / _name((place / _SALT).read_bytes(), source)
    raise LedgerMismatchError(
        f"{told}pass {option('ledger')} {shlex.quote(others[0])}, and let it adopt the records: "
        "`rknn budget adopt`. If they are other people's, save them under another name, or remove "
        f"{noted}."
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


def _is_other(other: str, own: str) -> bool:
    """Return whether a ledger exists and is another one than this."""
    if not os.path.lexists(other) or other == own:
        return False
    exist = os.path.exists(own) and os.path.exists(other)
    return not (exist and os.path.samefile(other, own))


def _known(place: Path, entry: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the ledgers of an entry, and those of its data sets.

    The ledger may have been moved since, and used for others of its records.
    """
    known = dict.fromkeys(entry["ledgers"])
    for name in entry.get("of", ()) if known else ():
        with suppress(OSError, _DamagedError):
            known |= dict.fromkeys(_entry_at(place / name)["ledgers"])
    return [*known]


def _places(place: Path, charged: _Charged) -> set[str]:
    """Return the places that the index has of the records on a ledger."""
    return {at for one in charged.prints for at in _entry(place, one)["ledgers"]}


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
    ledgers = _ledgers(place)
    this = ledgers(str(path)) or _Charged((), frozenset(), frozenset())
    whole = {*prints[:1], formerly}
    asked = [one.fingerprint for one in this.datasets if one.fingerprint in whole] or prints[:1]
    for one in sources:
        before: list[str] = []
        with suppress(OSError, _DamagedError):
            before = _charged_before(place, this, one, ledgers)
        _note(place, path, one, [*asked, *before])
    # What stands for all comes last: a killed process has noted the rest, or all is noted again.
    for one in reversed(dict.fromkeys([*asked, *_noted(prints)])):
        _note(place, path, one, asked)
    for data in this.datasets:
        if data.fingerprint in whole or _knows(place, path, data):
            continue
        with suppress(OSError, _DamagedError):
            moved = bool(_entry(place, data.fingerprint)["ledgers"])
            for one in data.prints[:1] if moved else reversed(_noted(data.prints)):
                _note(place, path, one, [data.fingerprint])


def _charged_before(place: Path, this: _Charged, source: str, ledgers: Ledgers) -> list[str]:
    """Return what other ledgers were charged for, of a file of which an entry has places alone."""
    entry = _entry(place, source)
    if entry.get("of") or not entry["ledgers"]:
        return []
    if not _places(place, this).isdisjoint(entry["ledgers"]):  # this ledger is that one
        return []
    found = [ledgers(at) for at in entry["ledgers"]]
    return sorted({one for ledger in found if ledger for one in ledger.prints})


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


def _warn_of_two(path: Path, others: Sequence[str]) -> None:
    if others:
        warn_owner(
            f"These records are charged to {others[0]} as well as to {path}; what both have spent "
            "adds up. Use one of them.",
            stacklevel=3,
        )
