"""Names of persons: one rule for numbers, text and bytes."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import numpy as np

from rknn_jax.records.classes import MISSING_WORDS, scalar
from rknn_jax.records.code_points import in_unicode

_NUMBER = re.compile(
    r"(?!\d+e\d+$)[+-]?(\d{1,400}\.?\d{0,400}|\.\d{1,400})(e[+-]?\d{1,3})?",
    re.ASCII | re.IGNORECASE,
)
"""Numbers as programs write them: 1E+10 and 1.0E10, while 1E10 is a code, as for classes."""

_UUID = re.compile(
    r"(?:urn:uuid:|\{)?(?=.*[a-f-])([0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12})\}?",
    re.ASCII | re.IGNORECASE,
)
"""UUIDs as programs write them (RFC 9562), also without hyphens. Digits alone are a number."""

LONGEST = 1_000
"""Characters of a name that is compared in one form."""

_INFINITE = ("inf", "infinity")

_PLACE = re.compile(r" at 0x[0-9a-f]+>", re.IGNORECASE)
"""Text of an object that has none of its own."""

_OF_PERSONS = re.compile(
    r"(^|.*[^a-z])(mrn|uid|pid|(patient|person|subject|participant|respondent|individual|volunteer|"
    r"donor|user|client|customer|member|student|pupil|employee|writer|author|speaker|singer)s?"
    r"[^a-z]?(ids?|nr|no|num|number|code|key|uuid|name)?)$"
)
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def find_columns(names: Iterable[str], aside: Iterable[str] = ()) -> list[str]:
    """Return the names of columns that may tell whose a record is, by their names alone.

    Args:
      names: Names of the columns of a table.
      aside: Names of columns that have another role. Defaults to none.

    >>> find_columns(["patient_id", "SubjectNr", "writer", "age", "user_rating"])
    ['patient_id', 'SubjectNr', 'writer']
    """
    others = {*aside}
    return [
        name
        for name in names
        if name not in others and _OF_PERSONS.match(_CAPITAL.sub("_", name.strip()).lower())
    ]


def person_names(values: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the name of each record's person, and whether it has one.

    A name is 128 bits of BLAKE2b, so that two persons do not share one. Whole numbers are one
    person however they are written: 7, 7.0, "07", "7E+00"; True is 1. So are UUIDs, as
    objects or as text, whose letters may be capitals. A tuple or list is a key of several such
    values, as `zip` of columns has them. Text is compared without spaces around it and in
    Unicode's form NFKC. NUL bytes at the end are padding, as in NumPy. Missing values, the words
    for them, infinity, a UUID of zeros, floats that are too large to be exact, in text too, keys
    with such a part, sets, and objects without a text of their own name nobody. No single value
    raises an error.

    Args:
      values: Numbers, text or bytes `[b]`.
      where: Argument and name of the file, for the errors.

    Returns:
      `(names, known)`, uint64 `[b, 2]` and bool `[b]`.

    Raises:
      ValueError: If the values are of another kind or shape.
    """
    if values.ndim != 1 or values.dtype.kind not in "iufUSO":
        raise ValueError(
            f"Expected numbers or text [n] that tell whose a record is in {where}, got "
            f"{values.dtype} {values.shape}; save one value a record."
        )
    if values.dtype.kind == "f":
        exact = 2.0 ** (np.finfo(values.dtype).nmant + 1)
        values = np.where(np.abs(values) < exact, values, np.nan)
        if values.itemsize < 8:  # as they are written, since other files have longer ones
            values = values.astype(str)
    texts = _person_texts(in_unicode(values).tolist())
    digests = {text: _digest(text) for text in set(texts)}
    joined = b"".join([digests[text] for text in texts])
    known = np.array([bool(text) for text in texts], bool)
    return np.frombuffer(joined, "<u8").reshape(-1, 2), known


def bare_names(values: np.ndarray, where: str) -> np.ndarray:
    """Return the names that persons would have without capitals and spaces, uint64 `[b, 2]`.

    Args:
      values: As for `person_names`.
      where: As for `person_names`.
    """
    if values.dtype.kind not in "USO":
        return person_names(values, where)[0]
    bare = [_bare(value) for value in in_unicode(values).tolist()]
    return person_names(np.fromiter(bare, object, len(bare)), where)[0]


def _bare(value: Any) -> Any:
    """Return text in small letters and without white space, and anything else as it is."""
    try:
        text = value.decode(errors="surrogateescape") if isinstance(value, bytes) else value
        if not isinstance(text, str):
            return value
        return "".join(_normal(text).casefold().split())
    except Exception:  # an error would reveal the record, whatever it holds
        return None


def inexact(values: np.ndarray) -> np.ndarray:
    """Return which values are floats so large that they may stand for several persons, bool `[b]`.

    Args:
      values: As for `person_names`.
    """
    if values.dtype.kind == "f":
        exact = 2.0 ** (np.finfo(values.dtype).nmant + 1)
        large: np.ndarray = np.isfinite(values) & (np.abs(values) >= exact)
        return large
    if values.dtype.kind not in "USO":
        return np.zeros(len(values), bool)
    return np.array([_is_inexact(value) for value in in_unicode(values).tolist()], bool)


def _digest(text: bytes) -> bytes:
    """Return the 128 bits of a name."""
    return blake2b(text, digest_size=16).digest()


def _person_texts(values: Sequence[Any]) -> list[bytes]:
    """Return the text of each value, each of which is looked at by itself."""
    known: dict[bytes | str | int, bytes] = {}
    texts = []
    for value in values:
        if type(value) not in (bytes, str, int):  # others may be equal and mean something else
            texts.append(_person_text(value))
            continue
        text = known.get(value)
        if text is None:
            text = known[value] = _person_text(value)
        texts.append(text)
    return texts


def _person_text(value: Any) -> bytes:
    """Return a person's number or text in one form, which is empty if it names no person.

    So is each part of a composite key, all of which together name a person.
    """
    try:
        if isinstance(value, np.ndarray | np.void):
            value = value.tolist()
        if isinstance(value, tuple | list):
            parts = [_person_text(scalar(part)) for part in value]
            named = b"\0" if all(parts) else b""
            return named and b"".join(named + _digest(part) for part in parts)
        if _is_inexact(value):
            return b""
        plain = _without_padding(_normal(_text(value)))
        # One complex number makes all numbers complex, and one text makes text of them.
        real = _real(plain) if plain.endswith("j)") else None
        if real is not None:
            return _person_text(real)
    except Exception:  # an error would reveal the record, whatever it holds
        return b""
    if not plain or plain.lower() in MISSING_WORDS or plain.lower().lstrip("+-") in _INFINITE:
        return b""
    uuid = _UUID.fullmatch(plain)
    if uuid:
        digits = uuid[1].replace("-", "").lower()
        return digits.encode() if digits.strip("0") else b""
    return _number(plain).encode(errors="surrogatepass")


def _normal(text: str) -> str:
    """Return Unicode's form NFKC of a name; a text that is too long for one stays as it is.

    The time of normalization grows with the square of how many marks one letter has.
    """
    return text if len(text) > LONGEST else unicodedata.normalize("NFKC", text)


def _without_padding(text: str) -> str:
    return text.strip().rstrip("\0").strip()


def _text(value: Any) -> str:
    """Return the text of a value: not the place of an object, which differs for each record."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="surrogateescape")
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, set | frozenset | dict):  # its order is that of this process, or no key's
        return ""
    text = str(value)
    return text if isinstance(value, str) or not _PLACE.search(text) else ""


def _number(text: str) -> str:
    """Return a number without an exponent, a whole one in one form, and other text as it is."""
    if not _NUMBER.fullmatch(text):
        return text
    found = Decimal(text)  # exact, whatever the context
    sign, digits, exponent = found.as_tuple()
    assert isinstance(exponent, int)  # not infinite, by the pattern
    shown = "".join(map(str, digits)).lstrip("0")
    whole = shown[:exponent] if exponent < 0 else shown + exponent * "0"
    if exponent < 0 and shown[exponent:].strip("0"):
        return f"{found:f}"
    if not whole.strip("0"):
        return "0"
    return f"-{whole}" if sign else whole


def _real(text: str) -> float | None:
    """Return the real part of text of a complex number without an imaginary one, or None."""
    try:
        value = complex(text)
    except ValueError:
        return None
    return None if value.imag else value.real


def _is_inexact(value: Any) -> bool:
    """Return whether a float, or text of one, is so large that other whole numbers have it too.

    One text makes text of a column of floats. Digits alone are a whole number.
    """
    if isinstance(value, float | np.floating):
        digits = 53 if isinstance(value, float) else np.finfo(type(value)).nmant + 1
        return 2.0**digits <= abs(float(value)) < np.inf
    if not isinstance(value, str | bytes):
        return False
    text = _without_padding(_text(value))
    if not _NUMBER.fullmatch(text) or text.lstrip("+-").isdecimal():
        return False
    return abs(Decimal(text)) >= 2**53
