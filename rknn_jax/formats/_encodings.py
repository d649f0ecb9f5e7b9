"""Encodings that bytes may be in, if they are no UTF-8, by how they read.

Bytes do not tell their encoding, and most read as something in several. So a user sees how they
read in those that give plausible words, and in none if no words are plausible.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import IO

CODECS = {
    "WINDOWS-1252": "cp1252",
    "WINDOWS-1250": "cp1250",
    "WINDOWS-1251": "cp1251",
    "KOI8-R": "koi8-r",
    "GB18030": "gb18030",
    "BIG5": "big5",
    "SHIFT_JIS": "cp932",
    "EUC-JP": "euc_jp",
    "EUC-KR": "cp949",
}
"""Names that iconv takes, and those of Python's codecs."""

MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""First bytes of a file that tell its encoding."""

SIGNS = "°²³µ€£§–—‘’“”„…·«»±½¼ºª、。，：（）・ー％　"
"""Characters that stand in text beside letters."""

MOST_LINES = 100
MOST_BYTES = 2**22
"""Most lines and bytes of a file that are tried."""

MOST_SHOWN = 4
"""Most encodings that are told."""

MOST_LETTERS = 24
"""Most characters of a word that are shown."""

_LATIN = re.compile(r"[A-Za-z]")
_WORD = re.compile(r"[^\s,;\"':{}\[\]()/\t0-9._-]+")


def remedy(lines: Iterable[bytes]) -> str:
    """Return how to save a file in UTF-8, with the encodings in which lines of it read as words.

    Args:
      lines: Lines that are not UTF-8, whose content the reader of the words may see; or none.
    """
    names = readings(list(lines))
    told = " or ".join(f"as {text!r} in {name}" for name, text in names.items() if text)
    if len(names) == 1:
        (name,) = names
        seen = f"it reads {told}: if that is right, " if told else ""
        return f"{seen}save the file in UTF-8, {_as_by(name)}"
    seen = f"it reads {told}; " if told else ""
    return f"{seen}save the file in UTF-8, {_as_by('ENCODING')}, with the name of the right one"


def _as_by(encoding: str) -> str:
    return f"as by iconv -f {encoding} -t UTF-8, or as 'CSV UTF-8' in a spreadsheet"


def readings(lines: list[bytes]) -> dict[str, str]:
    """Return a word of the lines in each encoding in which all of them read as other words.

    The word is empty if the bytes tell the encoding.

    >>> readings(["größe,alter".encode("cp1252")])
    {'WINDOWS-1252': 'größe'}
    """
    if not lines:
        return {}
    if wide := _wide(lines[0]):
        return {wide: ""}
    found: dict[tuple[str, ...], str] = {}
    for name, codec in CODECS.items():
        if words := _words(lines, codec):
            found.setdefault(tuple(words), name)
    named = {name: words[0][:MOST_LETTERS] for words, name in found.items()}
    return dict(list(named.items())[:MOST_SHOWN])


def _wide(line: bytes) -> str:
    """Return the encoding of two or four bytes a character that a line tells, or ""."""
    mark = next((name for mark, name in MARKS.items() if line.startswith(mark)), "")
    if mark or b"\0" not in line:
        return mark
    if b"\0\0\0" in line:
        return "UTF-32LE" if line[0] else "UTF-32BE"
    return "UTF-16LE" if line[0] else "UTF-16BE"


def _words(lines: list[bytes], codec: str) -> list[str]:
    """Return the words of lines with other letters than a to z, or none if some are no words."""
    found = []
    for line in lines:
        try:
            text = line.decode(codec)
        except UnicodeDecodeError:
            return []
        words = [word for word in _WORD.findall(text) if not word.isascii()]
        if not all(map(_is_word, words)):
            return []
        found += words
    return found


def _is_word(word: str) -> bool:
    """Return whether letters that are not ASCII stand as in a word of one script."""
    letters = [sign for sign in word if not sign.isascii() and sign not in SIGNS]
    if any(unicodedata.category(sign)[0] not in "LM" for sign in letters):
        return False
    scripts = {_script(sign) for sign in letters}
    if len(scripts) > 1 or "HALFWIDTH" in scripts:
        return False
    if not letters or scripts == {"HANGUL"}:
        return True
    if scripts == {"LATIN"}:  # most letters of a word are those of a to z
        return len(letters) < 2 or len(_LATIN.findall(word)) >= len(letters)
    return not _LATIN.search(word) and _has_one_case("".join(letters))


def _script(sign: str) -> str:
    """Return the script of a letter; those of Japanese are one with that of Chinese."""
    first = unicodedata.name(sign, "NONE").split()[0]
    return "CJK" if first in ("HIRAGANA", "KATAKANA") else first


def _has_one_case(letters: str) -> bool:
    """Return whether no capital follows a small letter, as it does in KOI8-R read otherwise."""
    return letters in (letters.lower(), letters.upper(), letters.title())


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield lines of a file that are not UTF-8, from its beginning."""
    file.seek(0)
    seen = told = 0
    while seen < MOST_BYTES and told < MOST_LINES and (line := file.readline(MOST_BYTES)):
        seen += len(line)
        try:
            line.decode()
            plain = b"\0" not in line
        except UnicodeDecodeError:
            plain = False
        if not plain:
            told += 1
            yield line.rstrip(b"\r\n")
