"""Sets of classes: given by number, by names, in a file, or inferred from labels."""

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rknn_jax._internal.option_names import option

MISSING = -1
"""Class number of a record without a label."""

FOREIGN = 2**31 - 1
"""Class number of a label that is none of the classes, such as 1.5."""

MOST_INFERRED = 10_000
"""Most classes that are inferred from class numbers.

Larger numbers are more likely to be something else, so the user has to name the classes.
"""

LONGEST_LABEL = 400
"""Most bytes of a text label that are read."""

CUT = "\ufffd"
"""End of a text label of which only the beginning is read, so that it is no other label."""

MOST_LABELS = 256
"""Most labels of a record that are read."""

MISSING_WORDS = frozenset(("nan", "none", "null", "<na>", "na", "n/a", "nat"))
"""Text that stands for a missing value, in lower case, unless it is the name of a class."""


_NUMERAL = re.compile(r"[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,3})?", re.ASCII)
_CODE = re.compile(r"\d+[eE]\d+", re.ASCII)  # programs write 1e+10 and 1.0e10
_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, as Python reads bytes of the command line that are no UTF-8."""

_WORDS = {"true": 1, "false": 0}

MOST_NAMES_BYTES = 2**26
"""Most bytes of an array of the names of classes, each as long as the longest one."""


@dataclass(frozen=True)
class Classes:
    """Set of labels, in order. It is public: epsilon does not cover it.

    Attributes:
      count: Number of classes |Y|.
      names: Text labels, or the names of the class numbers. Defaults to None, for plain class
        numbers.
      source: Origin of the set: given, declared by the private files, inferred from the private
        labels, or assumed if nothing is known. Defaults to given.
      counts_from_0: Whether a number among the labels is a class number, if no name is a number.
        Defaults to True.
    """

    count: int
    names: tuple[str, ...] | None = None
    source: Literal["given", "declared", "inferred", "assumed"] = "given"
    counts_from_0: bool = field(default=True, repr=False)  # requests are hashes of repr

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError(
                f"Expected at least 2 classes, got {self.count}; pass {option('classes')} with "
                "their number or names."
            )
        if self.names and (len(set(self.names)) < len(self.names) or "" in self.names):
            raise ValueError(
                f"Expected distinct, non-empty class names, got {option('classes')} "
                f"{','.join(self.names)}; name every class once."
            )
        if self.source == "inferred":  # an error would tell what private labels hold
            return
        if _HALF.search("".join(self.names or ())):
            raise ValueError(
                f"Expected class names in Unicode, got {option('classes')} {self.names!a}, "
                "of bytes that are no UTF-8; write them in UTF-8, as the labels."
            )
        if any(name.endswith("\0") for name in self.names or ()):
            raise ValueError(
                f"Expected class names without NUL at their end, got {option('classes')} "
                f"{self.names!a}; name them without it, as labels are read."
            )
        if self.names and 4 * self.count * max(map(len, self.names)) > MOST_NAMES_BYTES:
            longest = max(self.names, key=len)
            raise ValueError(
                f"Expected shorter class names, got {option('classes')} with {self.count:,}, the "
                f"longest of {len(longest):,} characters, {longest[:20]!r}...; an array of them "
                "has room for it in each, so shorten it."
            )
        read = [cut(name.encode()) for name in self.names or ()]
        if len(set(read)) < len(read):
            raise ValueError(
                f"Expected class names that differ in their first {LONGEST_LABEL} bytes, got "
                f"{option('classes')} with two that do not; labels of files are not read further, "
                "so shorten both."
            )
        if alike := _alike(self.names or ()):
            raise ValueError(
                f"Expected distinct class names, got {option('classes')} with {alike[0]!r} twice, "
                f"as {alike[0]!a} and as {alike[1]!a}, which are the same letters in other Unicode "
                "characters; name it once, as the labels have it."
            )

    def name(self, label: int) -> str:
        """Return the name of class `label`, or its number as text."""
        return self.names[label] if self.names else str(label)

    @property
    def is_counted(self) -> bool:
        """True if a class is its number: the classes have no names, or these numbers as names."""
        return self.names is None or self.names == tuple(map(str, range(self.count)))

    @cached_property
    def numerals(self) -> dict[float, int]:
        """Class numbers of the names that are numbers, or true and false, by their values.

        If there are any, a number among the labels is a name, and never a class number.
        """
        values = {name: number_of(name) for name in self.names or ()}
        # Of names of one value, such as 1 and 01, the shortest stands for the number.
        order = sorted(range(len(values)), key=lambda i: -len((self.names or ())[i]))
        named = list(values.values())
        return {value: i for i in order if (value := named[i]) is not None}


def _alike(names: Sequence[str]) -> list[str]:
    """Return the first two names that differ in the composition of letters alone, or none."""
    plain: dict[str, str] = {}
    for name in names:
        other = plain.setdefault(unicodedata.normalize("NFC", name), name)
        if other != name:
            return [other, name]
    return []


def cut(text: bytes) -> str:
    """Return a text label as files are read. A long one is cut, and then ends like no other."""
    told = text[:LONGEST_LABEL].decode(errors="replace")
    return told if len(text) <= LONGEST_LABEL else told + CUT


def scalar(value: Any) -> Any:
    """Return what an array without axes holds, as a real number if it has no imaginary part.

    One complex number makes all numbers of a column complex. Floats of any length are of 64 bits.
    What a mask hides is None. Anything else is returned as it is.

    >>> scalar(2 + 0j)
    2.0
    """
    if getattr(value, "shape", None) == () and not isinstance(value, np.generic):
        value = None if np.ma.is_masked(value) else np.asarray(value)[()]
    if isinstance(value, complex | np.complexfloating) and value.imag == 0:
        value = value.real
    return float(value) if isinstance(value, np.floating) else value


def number_of(text: str) -> float | None:
    """Return the value of a numeral, or of true or false, and None for other text.

    Codes such as 1E10 of ICD-11 are no numerals.

    >>> [number_of(text) for text in ("7", "07", "7.0", "-1", "True", "1e400", "x", "1E0", "1e+0")]
    [7, 7, 7.0, -1, 1, None, None, None, 1.0]
    """
    if not _NUMERAL.fullmatch(text) or _CODE.fullmatch(text):
        return _WORDS.get(text.lower())
    try:
        return int(text)
    except ValueError:
        value = float(text)
        return value if np.isfinite(value) else None


def code_value(text: str) -> float | None:
    """Return the number of a code such as 1E10, or of text of a complex number; None for others.

    Programs make such numbers, and such text, where they guess the type of a column.

    >>> [code_value(text) for text in ("1E3", "1e+3", "1E999", "(2+0j)", "(2+1j)", "x")]
    [1000.0, None, None, 2.0, None, None]
    """
    if not _CODE.fullmatch(text) and not text.rstrip(")").endswith("j"):
        return None
    try:
        value = complex(text)
    except ValueError:
        return None
    return value.real if value.imag == 0 and np.isfinite(value.real) else None


def parse_classes(text: str) -> Classes:
    """Return the classes of `--classes`: a number, or names with commas between them.

    Raises:
      ValueError: If there is a space beside a comma, which may belong to a name.
    """
    if text.strip().isdecimal():
        return Classes(int(text))
    names = text.split(",")
    spaced = [name for name in names if name != name.strip()]
    if spaced and len(names) > 1:
        raise ValueError(
            f"Expected names with commas alone between them, got {option('classes')} {text!r}, "
            f"where {spaced[0]!r} may be a name or part of one; leave out the spaces beside "
            f"commas, or if a name has a comma, {_separate()}."
        )
    return named_classes(names)


def named_classes(names: Sequence[str]) -> Classes:
    """Return the classes of these names, without spaces around them.

    Raises:
      ValueError: If a name begins or ends with a comma, as if one text had become several words.
    """
    plain = tuple(name.strip() for name in names)
    commas = [name for name in plain if name != name.strip(",")]
    if commas:
        raise ValueError(
            f"Expected names of classes, got {commas[0]!r} with a comma at its end; {_separate()}."
        )
    return Classes(len(plain), plain)


def given_classes(classes: str | Sequence[str] | None, file: Path | None = None) -> Classes | None:
    """Return the classes that a user names, or None.

    Args:
      classes: Text of `--classes`, or a list of names, which may have commas.
      file: File of `--classes-file`. Defaults to None.

    Raises:
      ValueError: If both are given, the file cannot be read, or they are no classes.
    """
    if classes is not None and file is not None:
        raise ValueError(
            f"Expected {option('classes')} or {option('classes_file')}, got both, "
            f"{option('classes_file')} {file}; leave one out."
        )
    if file is not None:
        plain = tuple(name.strip() for name in _read_names(file))
        return Classes(len(plain), plain)
    if classes is None:
        return None
    return parse_classes(classes) if isinstance(classes, str) else named_classes(classes)


def _read_names(path: Path) -> list[str]:
    """Read names of classes: a list in a .json file, or else a name a line."""
    where = f"{option('classes_file')} {path}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{where} could not be read: {error}; name a file in UTF-8.") from None
    if path.suffix != ".json":
        return [line for line in text.splitlines() if line.strip()]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected JSON in {where}, got {error}; correct the file.") from None
    if not isinstance(found, list) or not all(isinstance(name, str | int) for name in found):
        raise ValueError(f'Expected a list of names in {where}, such as ["cat", "dog"]; save one.')
    return [str(name) for name in found]


def infer_classes(labels: np.ndarray) -> Classes:
    """Return the classes that occur among the labels.

    The result depends on private data, and epsilon does not cover it.

    Args:
      labels: Labels from `labels.plain`.

    Returns:
      The distinct text labels in sorted order, or all class numbers up to the largest label.
    """
    if labels.dtype.kind == "U":
        names = tuple(str(name) for name in np.unique(labels) if name)
        unclear = [name for name in names if name.lower() in MISSING_WORDS]
        if unclear:
            raise ValueError(
                f"Expected text labels, got {unclear[0]!r} among the labels; where it says that "
                "there is no label, save '' instead, and "
                f"where it is a class, name all classes with {option('classes')}."
            )
        return Classes(len(names), names, source="inferred")
    count = int(labels.max(initial=MISSING)) + 1
    if count > FOREIGN:
        raise ValueError(
            "Expected class numbers from 0 on to infer the classes from, got other numbers; "
            f"number the classes 0..C-1, or name all classes with {option('classes')}."
        )
    if count > MOST_INFERRED:
        raise ValueError(
            f"Expected labels in 0..C-1, got a label {count - 1}; number the classes from 0, or "
            f"pass {option('classes')} {count}."
        )
    return Classes(count, source="inferred")


def _separate() -> str:
    """Return the remedy for names of classes that have commas."""
    return (
        f"pass each name as a word of its own, as in {option('classes')} 'a' 'b, c', a list in a "
        f"file of options, or {option('classes_file')}"
    )
