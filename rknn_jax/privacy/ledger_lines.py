"""Lines of a privacy ledger: writing, reading, and the cost of a damaged last line.

A line is a JSON object that ends with the hash of its own bytes and of the line before it. `ledger`
appends lines under a lock, and decides with a `Chain` whether a charge fits the budget. Everything
here is a function of bytes, and touches no file.
"""

import hashlib
import json
import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from operator import methodcaller
from pathlib import Path
from typing import Any, Literal

from rknn_jax.privacy.filters import NOTHING, Amount, Cost, Renyi, Rule, Sum, less, total
from rknn_jax.privacy.guarantee import RELATIONS, UNITS, Guarantee, Relation, Unit
from rknn_jax.privacy.ledger_summary import NO_PAST, DataSet, Past, added_up

FORMAT = "rknn-jax privacy ledger 1"
RENYI_FORMAT = "rknn-jax privacy ledger 2"
"""Format of a ledger whose rule is `Renyi`; versions that know sums alone refuse it."""

KINDS = ("create", "spend", "budget", "repair", "drawn", "adopt", "summary")
FREE = ("repair", "drawn", "adopt", "summary")  # kinds that may cost nothing
_CORRUPT = (
    "it is no ledger, or something else has changed it. Nothing can be spent until the last good "
    "copy is back, or until "
    "`rknn budget repair` has logged the damage."
)
MOST_DIGITS = 400
"""Most digits of a numerator or denominator."""

_AMOUNT = re.compile(rf"\d{{1,{MOST_DIGITS}}}(/\d{{1,{MOST_DIGITS}}})?")
_READABLE = re.compile(
    rb'\{"delta":"([\d/]+)","epsilon":"([\d/]+)",(?:"(guarantee)"|"kind":"(budget|drawn|spend)")?'
)
_DIVERGENCE = re.compile(rb'"renyi":"([\d/]+)"')
_BEGINNING = b'{"delta":"'
_CLOSING = _BEGINNING + b'","epsilon":"","kind":"repair"'
"""Beginning of a line that closes damage, without its amounts."""

_HASH = 64 + len('"}')  # length of the end of every line, from its hash on
_SUFFIX = len(',"hash":"') + _HASH

MOST_SHARDS = 256
"""Most fingerprints of shards that a line holds, the lowest of all.

If two data sets have most of their shards in common, their lowest ones overlap too.
"""


class LedgerError(ValueError):
    """The ledger cannot be used, so nothing may be released."""


class BudgetExceededError(LedgerError):
    """The budget does not allow the charge."""


class LedgerMismatchError(LedgerError):
    """The ledger belongs to another data set, relation or unit."""


class LedgerCorruptError(LedgerError):
    """The file is no ledger, or was changed by something other than this library."""


@dataclass(frozen=True)
class Entry:
    """One line of a ledger.

    Attributes:
      kind: `create` or `budget` for a line that sets the budget; `spend` for a charge; `repair` for
        damaged bytes that count as spent; `drawn` for a spend whose noise was drawn; `adopt` for
        other data of the same people; `summary` for what all lines before add up to.
      time: UTC time, ISO 8601.
      amount: Amount that is spent or counts as spent, or the whole budget from here on.
      purpose: Purpose of the charge, or reason for the change.
      guarantee: Guarantee that the amount was spent on; None for a line that is not a `spend`.
      hash: Hash of this line and all lines before it.
      result: SHA-256 of what was drawn, in a `drawn` line, or of all bytes before, in a `summary`;
        empty in all others.
      data: Data that may be charged from here on, in a `create` or `adopt` line; None in all
        others.
      divergence: Rényi divergence of the spend at the ledger's order; None in all other lines, and
        in ledgers that add epsilons up.
    """

    kind: Literal["create", "spend", "budget", "repair", "drawn", "adopt", "summary"]
    time: str
    amount: Amount
    purpose: str
    guarantee: Guarantee | None
    hash: str
    result: str = ""
    data: DataSet | None = None
    divergence: Fraction | None = None


@dataclass(frozen=True)
class Chain:
    """Verified content of a ledger file: the first `size` bytes are sound, and `damage` follows.

    `name` is empty if the ledger was made before ledgers had names. `rule` decides what fits the
    budget. `person` is the column that names the persons, or empty if none does. `past` is what the
    lines before `entries` add up to, if the file was read from a summary on.
    """

    name: str
    relation: Relation
    unit: Unit
    entries: tuple[Entry, ...]
    size: int
    damage: bytes
    rule: Rule
    person: str
    past: Past = NO_PAST

    @property
    def id(self) -> str:
        """Hash of the first line."""
        return self.past.id or self.entries[0].hash

    @property
    def num_lines(self) -> int:
        """Number of sound lines."""
        return self.past.lines + len(self.entries)

    @property
    def num_spends(self) -> int:
        """Number of spends."""
        return self.past.spends + sum(entry.kind == "spend" for entry in self.entries)

    @property
    def head(self) -> str:
        """Hash of the last sound line."""
        return self.entries[-1].hash

    @property
    def datasets(self) -> tuple[DataSet, ...]:
        """Data sets that may be charged, oldest first."""
        later = (entry.data for entry in self.entries if entry.data is not None)
        return (*self.past.datasets, *later)

    @property
    def budget(self) -> Amount:
        """Total amount that may be spent."""
        kinds = ("create", "budget")
        later = (entry.amount for entry in reversed(self.entries) if entry.kind in kinds)
        return next(later, self.past.budget)

    @property
    def recorded(self) -> tuple[Cost, ...]:
        """Costs on the sound lines, of which a summary adds up those before it."""
        before: tuple[Cost, ...] = ()
        if self.past.cost is not None:
            before = (self.past.cost._replace(is_known=not self.past.repaired),)
        return (*before, *map(self._cost_of, _spends(self.entries)))

    @property
    def costs(self) -> tuple[Cost, ...]:
        """Costs on the sound lines, and what the damage counts as."""
        return self._with_damage(self.recorded)

    def costs_since(self, first: int) -> tuple[Cost, ...]:
        """Return the costs from line number `first` on, and what the damage counts as.

        `first` is 0, or at least the number of lines before `entries`.
        """
        if first == 0:
            return self.costs
        later = _spends(self.entries[first - self.past.lines :])
        return self._with_damage(tuple(map(self._cost_of, later)))

    def _with_damage(self, recorded: tuple[Cost, ...]) -> tuple[Cost, ...]:
        unread = self.unread
        return (*recorded, self.rule.unknown(unread)) if any(unread) else recorded

    @property
    def unread(self) -> Amount:
        """Amount that the damage counts as: of a line that was cut, at most what remained."""
        if not self.damage:
            return NOTHING
        budget = self.budget
        first, *later = map(_readable, self.damage.split(b"\n"))
        if _is_unfinished(self.damage):  # closings of a line that was cut count all that it is
            closings = [amount for amount, _ in filter(None, later)]
            shown = Amount(*map(max, *closings, NOTHING, NOTHING))
        else:  # whole lines may follow one that was changed
            lines = list(filter(None, (first, *later)))
            budgets = [amount for amount, kind in lines if kind == "budget"]
            budget = Amount(*map(max, *budgets, budget, budget))
            shown = total([Cost(amount) for amount, kind in lines if kind != "budget"])
            if isinstance(self.rule, Renyi):
                told = [_parsed_amount(one.decode()) for one in _DIVERGENCE.findall(self.damage)]
                worst = self.rule.epsilon_for(sum(filter(None, told), Fraction()))
                shown = Amount(max(shown.epsilon, worst), Fraction())
        left = self.rule.left(budget, self.recorded)
        return Amount(*map(max, less(left, self._left_after_damage(left)), shown))

    @property
    def may_hide_lines(self) -> bool:
        """True if the damage is more than a beginning of one line, and closings that were cut."""
        return bool(self.damage) and not _is_cut(self.damage)

    @property
    def shows_delta(self) -> bool:
        """True if the damage shows a release with a delta."""
        lines = filter(None, map(_readable, self.damage.split(b"\n")))
        return any(amount.delta and kind != "budget" for amount, kind in lines)

    @property
    def spent(self) -> Amount:
        """Amount of the budget that is used up, damage included.

        If epsilons add up, this is their sum. If not, it is what does not remain.
        """
        if isinstance(self.rule, Sum):
            return total(self.costs)
        if self.is_overspent:
            return self.rule.enough(self.budget, self.costs)
        return less(self.budget, self.remaining)

    @property
    def is_overspent(self) -> bool:
        """True if all charges are more than the budget, as a repair may say.

        Damage that counts as all that remained is not, whatever it was.
        """
        within = [cost._replace(is_known=True) for cost in self.costs]
        return not self.rule.fits(self.budget, within)

    @property
    def remaining(self) -> Amount:
        """Amount that one more release may cost."""
        return self.rule.left(self.budget, self.costs)

    def _cost_of(self, entry: Entry) -> Cost:
        if entry.kind == "spend":
            return Cost(entry.amount, entry.divergence)
        return self.rule.unknown(entry.amount)

    def _left_after_damage(self, left: Amount) -> Amount:
        """Return the part of `left` that remains under the worst reading of the damage."""
        torn = _torn(self.damage)
        # Divergences are not known from epsilon and delta, so damage counts as all that remained.
        if torn is None or isinstance(self.rule, Renyi):
            return NOTHING
        amount, kind = torn
        if_spent = self.rule.left(self.budget, (*self.recorded, self.rule.unknown(amount)))
        if_budget = Amount(*map(min, left, self.rule.left(amount, self.recorded)))
        if kind is None and amount.epsilon:  # A budget line is positive, so a zero excludes it.
            return Amount(*map(min, if_spent, if_budget))
        return if_budget if kind == "budget" else if_spent


def _spends(entries: Sequence[Entry]) -> list[Entry]:
    """Return the lines that cost something."""
    return [entry for entry in entries if entry.kind in ("spend", "repair")]


def body_of(kind: str, amount: Amount, purpose: str) -> dict[str, Any]:
    """Return the fields that every line has.

    Each line has a salt of its own. Statements publish the hash of a line, and the line before may
    have been published too. Without salt, whoever knows all records but one could find that one by
    trying what the lines between say of the data.

    Raises:
      LedgerError: If an amount has more digits than the ledger could read again.
    """
    for name, value in zip(("epsilon", "delta"), amount, strict=True):
        if max(value.numerator, value.denominator) >= 10**MOST_DIGITS:
            raise LedgerError(
                f"Expected {name} as a fraction of at most {MOST_DIGITS} digits each, got more; "
                "nothing was written, name a shorter decimal."
            )
    time = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "kind": kind,
        "time": time,
        "epsilon": str(amount.epsilon),
        "delta": str(amount.delta),
        "purpose": purpose,
        "salt": secrets.token_hex(16),
    }


def sealed(record: dict[str, Any], previous: str) -> bytes:
    """Return a line, without its newline, that follows the line with the hash `previous`."""
    text = json.dumps(
        record, sort_keys=True, separators=(",", ":"), allow_nan=False, default=methodcaller("item")
    )
    return seal(text.encode(), previous)


def seal(body: bytes, previous: str) -> bytes:
    """Close a JSON object with the hash of its bytes and of the line before it."""
    return (
        body[:-1] + f',"hash":"{hashlib.sha256(previous.encode() + body).hexdigest()}"}}'.encode()
    )


def parse(data: bytes, path: Path, previous: str = "") -> Chain:
    """Return the chain of a usable ledger: one that is sound, or cut short in its last line.

    A whole object without its newline is a line. If anything follows a whole object, the newline
    itself was changed, so the rest is not an unfinished line. The next charge closes an unfinished
    line, and may be cut short in doing so.

    Args:
      data: Bytes of the file, or those from a summary on.
      path: Path of the file, for errors.
      previous: Hash of the line before a summary. Defaults to none, for the whole file.
    """
    chain = sound_part(data, path, previous)
    if not _is_unfinished(chain.damage):
        number = chain.past.lines + data[: chain.size].count(b"\n") + 1
        raise LedgerCorruptError(
            f"Line {number} of {path} does not follow from those before it: {_CORRUPT}"
        )
    return chain


def sound_part(data: bytes, path: Path, previous: str = "") -> Chain:
    """Follow the chain as far as it is valid; the arguments are those of `parse`.

    Lines that do not fit are skipped if a `repair` line commits to their bytes. Whatever is left at
    the end is the damage.
    """
    records: list[dict[str, Any]] = []
    size = 0
    start = 0
    for line in data.split(b"\n"):
        skipped = data[size:start]
        start += len(line) + 1
        if line != seal(line[:-_SUFFIX] + b"}", records[-1]["hash"] if records else previous):
            continue
        record = _read(line, path)
        commits = record.get("torn") == hashlib.sha256(skipped[:-1]).hexdigest()
        if (skipped and commits) if record.get("kind") == "repair" else not skipped:
            records.append(record)
            size = min(start, len(data))
    if not records or records[0].get("format") not in (FORMAT, RENYI_FORMAT):
        raise LedgerCorruptError(f"{path} does not begin as a {FORMAT!r} does: {_CORRUPT}")
    entries = tuple(entry_of(record, path) for record in records)
    header = records[0]
    first = "summary" if previous else "create"
    kinds = [entry.kind for entry in entries]
    known = (
        header.get("relation") in RELATIONS
        and header.get("unit") in UNITS
        and (previous or isinstance(header.get("dataset"), str))
        and isinstance(header.get("name", ""), str)
        and isinstance(header.get("person", ""), str)
    )
    if not known or kinds[0] != first or kinds.count("create") != (not previous):
        raise LedgerCorruptError(
            f"{path} names no data set, relation or unit that is known: {_CORRUPT}"
        )
    rule = _rule_of(header, path)
    if isinstance(rule, Renyi) and any(e.kind == "spend" and e.divergence is None for e in entries):
        raise LedgerCorruptError(f"A spend in {path} has no divergence: {_CORRUPT}")
    name, person = (header.get(one, "") for one in ("name", "person"))
    damage = data[size:]
    past = _past_of(header, path) if previous else NO_PAST
    return Chain(
        name,
        header["relation"],
        header["unit"],
        entries=entries,
        size=size,
        damage=damage,
        rule=rule,
        person=person,
        past=past,
    )


def summarized(chain: Chain, prefix: str) -> bytes:
    """Return the line that sums up a sound chain.

    Its keys come after `epsilon` in the alphabet, so a cut line still shows that it cost nothing.

    Args:
      chain: Chain without damage.
      prefix: SHA-256 of all bytes of its file.
    """
    repaired = chain.past.repaired or any(entry.kind == "repair" for entry in chain.entries)
    cost = added_up(chain.recorded)
    past = Past(
        chain.num_lines,
        chain.num_spends,
        chain.id,
        budget=chain.budget,
        cost=cost,
        datasets=chain.datasets,
        repaired=repaired,
    )
    record = body_of("summary", NOTHING, f"{past.lines:,} lines before") | rule_fields(chain.rule)
    record |= {
        "name": chain.name,
        "person": chain.person,
        "relation": chain.relation,
        "unit": chain.unit,
        "lines": past.lines,
        "prefix": prefix,
        "state": past.state(),
    }
    return sealed(record, chain.head)


def _past_of(record: dict[str, Any], path: Path) -> Past:
    try:
        return Past.of(record)
    except (LookupError, TypeError, ValueError, ZeroDivisionError) as error:
        raise LedgerCorruptError(f"A summary in {path} tells no past: {_CORRUPT}") from error


def rule_fields(rule: Rule) -> dict[str, Any]:
    """Return the fields of the first line that name the rule."""
    if isinstance(rule, Sum):
        return {"format": FORMAT}
    return {"format": RENYI_FORMAT, "order": repr(rule.order)}


def _rule_of(header: dict[str, Any], path: Path) -> Rule:
    """Return the rule that the first line names."""
    if header["format"] == FORMAT:
        return Sum()
    try:
        order = float(header["order"])
    except (LookupError, TypeError, ValueError):
        order = math.nan
    if not 1 < order < math.inf:
        raise LedgerCorruptError(f"{path} names no order of divergences above 1: {_CORRUPT}")
    return Renyi(order)


def _read(line: bytes, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LedgerCorruptError(f"A line of {path} is no JSON: {_CORRUPT}") from error
    return record if isinstance(record, dict) else {}


def _is_whole(tail: bytes) -> bool:
    """Return whether the bytes begin with a whole JSON value."""
    try:
        json.JSONDecoder().raw_decode(tail.decode("latin-1"))
    except (ValueError, RecursionError):
        return False
    return True


def _is_unfinished(damage: bytes) -> bool:
    """Return whether the bytes are a line that was cut short, and perhaps closings of it that were.

    A line that is followed by its newline was whole, and something else has changed it, if its end
    is that of a line.
    """
    line, *closings = damage.split(b"\n")
    _, token, end = line.rpartition(b'"hash":"')
    has_end = len(end) >= _HASH if token else line.endswith(b'"}')
    ended = closings[:1] == [b""] and has_end
    return not _is_whole(line) and not ended and all(map(_is_cut_closing, closings))


def _is_cut_closing(line: bytes) -> bool:
    """Return whether a line is a beginning of what `repaired` makes, and perhaps zeros."""
    told = re.sub(rb'(?<=")[\d/]+', b"", line.rstrip(b"\0"))
    return not _is_whole(line) and (told.startswith(_CLOSING) or _CLOSING.startswith(told))


def _torn(damage: bytes) -> tuple[Amount, str | None] | None:
    """Return the amount that a line shows that was cut, and its kind if readable.

    Return None if the line shows no amount, or if other bytes follow, which may cover lines.
    """
    return _readable(damage) if _is_cut(damage) else None


def _is_cut(damage: bytes) -> bool:
    """Return whether the bytes are of unfinished lines alone, without any that no line has."""
    begins = damage.startswith(_BEGINNING) or _BEGINNING.startswith(damage)
    return begins and _is_unfinished(damage) and not re.search(rb"[^ -~\n]", damage)


def _readable(line: bytes) -> tuple[Amount, str | None] | None:
    """Return the amount that a line begins with, and its kind if readable; None without one."""
    found = _READABLE.match(line)
    if found is None:
        return None
    delta, epsilon = (_parsed_amount(found[number].decode()) for number in (1, 2))
    if delta is None or epsilon is None:
        return None
    kind = "spend" if found[3] else found[4].decode() if found[4] else None
    return Amount(epsilon, delta), kind


def _parsed_amount(text: Any) -> Fraction | None:
    """Parse an amount in the ledger's format, or return None."""
    if not isinstance(text, str) or not _AMOUNT.fullmatch(text):
        return None
    above, _, below = text.partition("/")
    return None if below and int(below) == 0 else Fraction(int(above), int(below or 1))


def entry_of(record: dict[str, Any], path: Path) -> Entry:
    """Return the entry of a line whose hash is right.

    Raises:
      LedgerCorruptError: If this library does not write such a kind or amount.
    """
    epsilon = _parsed_amount(record.get("epsilon"))
    delta = _parsed_amount(record.get("delta"))
    kind = record.get("kind")
    words = [record.get(name) for name in ("time", "purpose")]
    possible = (
        kind in KINDS
        and epsilon is not None
        and delta is not None
        and all(isinstance(word, str) for word in words)
    )
    if possible and epsilon is not None and delta is not None:
        possible = delta < 1 and (epsilon > 0 or kind in FREE)
    if not possible or epsilon is None or delta is None:
        raise LedgerCorruptError(
            f"A line of {path} has no kind or amount that this library writes: {_CORRUPT}"
        )
    try:
        guarantee = Guarantee.of(record["guarantee"]) if kind == "spend" else None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise LedgerCorruptError(f"A line of {path} holds no guarantee: {_CORRUPT}") from error
    result = record.get("prefix" if kind == "summary" else "result", "")
    if not isinstance(result, str):
        raise LedgerCorruptError(f"A line of {path} holds no result: {_CORRUPT}")
    return Entry(
        record["kind"],
        record["time"],
        Amount(epsilon, delta),
        purpose=record["purpose"],
        guarantee=guarantee,
        hash=record["hash"],
        result=result,
        data=_data_of(record, path),
        divergence=_parsed_amount(record.get("renyi")) if kind == "spend" else None,
    )


def _data_of(record: dict[str, Any], path: Path) -> DataSet | None:
    """Return the data that a line allows to be charged, or None for other kinds of lines."""
    if record["kind"] not in ("create", "adopt"):
        return None
    fingerprint = record.get("dataset" if record["kind"] == "create" else "fingerprint")
    rows = record.get("rows")
    shards = record.get("shards", [])
    known = isinstance(fingerprint, str) and (rows is None or type(rows) is int)
    if not known or not isinstance(shards, list) or not all(isinstance(s, str) for s in shards):
        raise LedgerCorruptError(f"A line of {path} names no data that are known: {_CORRUPT}")
    return DataSet(str(fingerprint), rows, tuple(shards))


def adopted(data: DataSet, reason: str) -> dict[str, Any]:
    """Return the line that allows other data of the same people to be charged.

    Its keys come after `epsilon` in the alphabet, so a cut line still shows that it cost nothing.
    """
    told = {"fingerprint": data.fingerprint, "rows": data.rows, "shards": list(data.shards)}
    return body_of("adopt", NOTHING, reason) | told


def repaired(chain: Chain, amount: Amount, reason: str) -> bytes:
    """Return the line that closes the chain's damage."""
    record = body_of("repair", amount, reason) | {"torn": hashlib.sha256(chain.damage).hexdigest()}
    return sealed(record, chain.head)
