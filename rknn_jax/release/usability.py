"""Records that cannot be used, and why: for the curator's eyes alone.

A release never tells an outsider what private records hold, and no record raises an error. So a
misspelt class casts no vote, and noise is paid for. Here the curator counts such records before.
Nothing is spent or written, and the counts are private.
"""

import difflib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.formats import Block, _encodings
from rknn_jax.formats._csv_records import NO_UTF8
from rknn_jax.formats.jsonl import REPLACED
from rknn_jax.neighbors import usable_rows
from rknn_jax.records.classes import MISSING, Classes, number_of
from rknn_jax.records.features import MOST_NAMED, embed_texts, real_rows
from rknn_jax.records.labels import MASK, NUMBERED, check_types, encode
from rknn_jax.records.persons import inexact, person_names
from rknn_jax.release import label_advice, person_columns
from rknn_jax.release.copies import Copies
from rknn_jax.release.drift import Moments
from rknn_jax.release.likeness import Likeness
from rknn_jax.release.person_spelling import Spellings
from rknn_jax.release.shards import FileShard, Shard
from rknn_jax.release.tables import ROWS_AT_ONCE

MOST_FOREIGN = 10_000
"""Most different foreign labels that are counted one by one."""

ALIKE = 0.8
"""Least similarity of a near miss in spelling, from 0 to 1."""

INEXACT = "person's number that is not exact"
"""Reason for a float beyond which several whole numbers are one."""


class Usability(NamedTuple):
    """Counts of private records: private.

    Attributes:
      records: Number of records n.
      usable: Number of records that are counted in a release.
      classes: Number of usable records of each class, by name or number.
      reasons: Number of records that cannot be used, by reason; a record may have several.
      foreign: Number of records of each label that is none of the classes.
      near: Class that a foreign label is spelled like, for those that are near to one.
      advice: What to change, in sentences.
      persons: Number of persons with records, or None if no column names them.
    """

    records: int
    usable: int
    classes: dict[str, int]
    reasons: dict[str, int]
    foreign: dict[str, int]
    near: dict[str, str]
    advice: tuple[str, ...] = ()
    persons: int | None = None


def examine(
    shards: Sequence[Shard],
    classes: Classes,
    most: int | None = None,
    public: np.ndarray | None = None,
    names: Sequence[str] = (),
) -> Usability:
    """Count the records that cannot be used, and compare the others with the public rows.

    Args:
      shards: Private records, with labels.
      classes: Set of classes.
      most: Most labels of a record that count. Defaults to None, one label a record.
      public: Public rows, `[m, f]`. Defaults to None, which compares nothing.
      names: Names of the features, if the files have none. Defaults to none.

    Raises:
      ValueError: If the files cannot be used as a whole.
    """
    records = usable = 0
    width = None if public is None else public.shape[1]
    moments = Moments(width or 0)
    likeness = Likeness(width or 0)
    reasons: Counter[str] = Counter()
    foreign: Counter[str] = Counter()
    found: Counter[int] = Counter()
    holes: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    seen = label_advice.Seen(classes, most)
    same = Copies()
    persons = False
    spellings = Spellings()
    absent: list[str] = []
    lines: list[bytes] = []
    for shard in shards:
        layout = shard.layout()
        names = names if len(layout.features) < 2 else layout.features
        if isinstance(shard, FileShard):
            broken.update(shard.broken())
            lines += [] if lines else shard.no_utf8_lines()
            absent += shard.unseen()
        if layout.empty.labels is not None:
            check_types(layout.empty.labels, classes, most, shard.where, typed=layout.typed)
        for block in shard.blocks(ROWS_AT_ONCE):
            assert block.labels is not None
            ids, told = encode(block.labels, classes, most, shard.where)
            seen.add(block.labels)
            if block.persons is not None:
                persons = True
                spellings.add(block.persons, shard.where)
            unknown = told > 1 if most else (told > 0) & (ids == MISSING)
            missing = np.zeros(len(ids), bool) if most else told == 0
            bad = _unusable(block, width, shard.where)
            holes.update(_holes(block, layout.features))
            rows = None
            if block.embeddings is not None:
                rows = usable_rows(real_rows(block.embeddings, shard.where, width))
                same.add(shard.name, rows)
            if width and rows is not None:
                moments.add(rows)
            reasons["foreign label" if most is None else "label that does not count"] += int(
                unknown.sum()
            )
            reasons["missing label"] += int(missing.sum())
            reasons.update({name: int(rows.sum()) for name, rows in bad.items()})
            counts = np.logical_not(missing | (unknown if most is None else missing))
            counts &= np.logical_not(np.any([*bad.values(), np.zeros(len(ids), bool)], axis=0))
            if width and rows is not None and most is None:
                likeness.add(rows[counts], ids[counts])
            records += len(ids)
            usable += int(counts.sum())
            found.update(ids[counts].ravel().tolist())
            if len(foreign) < MOST_FOREIGN:
                some = block.labels[unknown].tolist()
                foreign.update(map(_as_text, some) if most is None else _foreign(some, classes))
    named = {classes.name(i): found[i] for i in range(classes.count)}
    near = {text: alike for text in foreign if (alike := _near(text, list(named)))}
    counted = {reason: number for reason, number in reasons.items() if number}
    advice = [
        *absent,
        *same.advice(public, persons=persons),
        *([] if persons else person_columns.repeated(shards)),
        *_advice(classes, foreign),
        *_advice_on_classes(named),
        *seen.advice(foreign),
        *_advice_on_files(broken, lines),
        *_advice_on_columns(holes, records, broken),
        *([] if public is None else moments.advice(public, names)),
        *likeness.advice(public),
        *spellings.advice(),
    ]
    if INEXACT in counted:
        advice.append(
            f"{counted[INEXACT]:,} persons are floats beyond 2^53, where several whole numbers are "
            "one float; save them as whole numbers or text, in pandas by .astype('Int64')."
        )
    if records and not usable:
        advice.append("No record can be used, so a release would be noise alone.")
    counted |= {f"broken record, {reason}": number for reason, number in sorted(broken.items())}
    return Usability(
        records,
        usable,
        named,
        reasons=counted,
        foreign=foreign,
        near=near,
        advice=tuple(advice),
        persons=spellings.num_persons if persons else None,
    )


def _advice(classes: Classes, foreign: Mapping[str, int]) -> Iterator[str]:
    """Yield what to change about the classes, by the text labels that are none of them."""
    if classes.names is not None:
        return
    texts = [text for text in foreign if number_of(text) is None]
    if texts:
        number = sum(foreign[text] for text in texts)
        yield (
            f"{number:,} labels are text, and {option('classes')} {classes.count} is a number, so "
            f"none of them is counted; name all classes, as in {option('classes')} "
            f"benign,malignant, or by {option('classes_file')}."
        )


def _foreign(rows: Sequence[Any], classes: Classes) -> Iterator[str]:
    """Yield the labels of records with several that are none of the classes, once a record."""
    held = [{str(part) for part in label_advice.parts_of(row)} for row in rows]
    none = {*label_advice.unknown(sorted(set().union(*held)), classes)}
    for parts in held:
        yield from map(_as_text, sorted(parts & none))


def _advice_on_classes(found: Mapping[str, int]) -> Iterator[str]:
    """Yield which classes no record has, if records have others.

    Args:
      found: Number of usable records of each class.
    """
    absent = [name for name, number in found.items() if not number]
    if absent and len(absent) < len(found):
        shown = ", ".join(map(repr, absent[:MOST_NAMED]))
        more = f" and {len(absent) - MOST_NAMED:,} more" if len(absent) > MOST_NAMED else ""
        yield (
            f"No record that can be used is of class {shown}{more}, so that rows of it get "
            "other labels; see whether its records are spelled otherwise, or missing."
        )


def _advice_on_files(broken: Mapping[str, int], lines: Iterable[bytes]) -> Iterator[str]:
    """Yield what to change about the encoding of files, by their broken records.

    Args:
      broken: Number of broken records, by reason.
      lines: Lines of the files that are not UTF-8.
    """
    if count := broken.get(NO_UTF8, 0) + broken.get(REPLACED, 0):
        yield (
            f"{count:,} records are in another encoding than UTF-8, or damaged: "
            f"{_encodings.remedy(lines)}."
        )


def _advice_on_columns(
    holes: Mapping[str, int], records: int, broken: Mapping[str, int]
) -> Iterator[str]:
    """Yield what to change about columns of features, by the records that have no number there.

    Args:
      holes: Number of records without a finite number in each column that has some.
      records: Number of records n.
      broken: Number of broken records, by reason, which have no number in any column.
    """
    lost = sum(count for reason, count in broken.items() if reason != REPLACED)
    texts = [name for name, count in holes.items() if count == records]
    if texts:
        yield (
            f"{texts[:MOST_NAMED]} hold no number in any record; {embed_texts()}. If these are "
            "numbers with a decimal comma, a thousands separator or a unit, save them plainly, "
            "such as 5133.5."
        )
    some = {name: count for name, count in holes.items() if lost < count < records}
    if some:
        told = [f"{name!r} in {count:,}" for name, count in list(some.items())[:MOST_NAMED]]
        yield (
            f"Features are not finite numbers in {', '.join(told)} records; mend these values, or "
            f"leave the columns out on both sides with {option('drop')}."
        )


def _holes(block: Block, names: Sequence[str]) -> dict[str, int]:
    """Return how many records have no finite value in each column of features that has a name."""
    rows = block.embeddings
    if rows is None or rows.shape[1:] != (len(names),) or rows.dtype.kind != "f":
        return {}
    counts = np.logical_not(np.isfinite(rows)).sum(axis=0).tolist()
    return {name: count for name, count in zip(names, counts, strict=True) if count}


def _unusable(block: Block, width: int | None, where: str) -> dict[str, np.ndarray]:
    """Return masks of the records whose embedding or person cannot be used, bool `[b]`."""
    found = {}
    if block.embeddings is not None:
        rows = usable_rows(real_rows(block.embeddings, where, width))
        found["embedding that is not finite, too large or of another length"] = np.isnan(rows[:, 0])
    if block.persons is not None:
        found[INEXACT] = inexact(block.persons)
        nobody = np.logical_not(person_names(block.persons, where)[1])
        found["missing person"] = nobody & np.logical_not(found[INEXACT])
    return found


def _as_text(label: Any) -> str:
    """Return a label as text, and a class number that its column has no name for as a number."""
    if str(label).startswith(MASK):
        return "a list of true and false"
    name, _, number = str(label).partition(NUMBERED)
    return name or number


def _near(text: str, names: Sequence[str]) -> str:
    """Return the name that a text is spelled like, or "".

    >>> _near("Malignant ", ["benign", "malignant"])
    'malignant'
    >>> _near("owl", ["benign", "malignant"])
    ''
    """
    plain = {_plain(name): name for name in names}
    found = difflib.get_close_matches(_plain(text), plain, n=1, cutoff=ALIKE)
    return plain[found[0]] if found else ""


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
