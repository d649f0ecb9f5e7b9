r"""Records of a CSV file (RFC 4180), so that each changes one row and no other.

A quote opens a field only where the field begins. Inside, `""` is a quote, and commas and line
breaks are text. A record ends at the first line break outside quotes. A record is **broken** if it
has another number of fields than the header, a quote elsewhere, a carriage return outside quotes,
bytes that are not UTF-8, or 64 MiB of them. It is one row of empty fields.

**What is proved.** Call a record *closed* if it is quoted as RFC 4180 says, however many fields and
lines it has, or if it is one line that closes each quote it opens. Where a closed record ends
depends on its own bytes alone: reading starts outside quotes, and is outside quotes again at the
record's last byte and at no earlier line break. By induction, a file of closed records is read as
these records, one row each, so adding, removing or replacing one changes one row. Every writer that
follows RFC 4180 writes closed records, whatever a person's text holds.

**What no reader can do.** A quote that is never closed makes a file ambiguous. These bytes are a
broken line, 1,000 records, and a record whose text is a line break; or a record of 1,002 lines,
and a broken line:

    1,"open
    ... 1,000 lines
    1,"
    "

Without its last line, the file is one record. Without its first line, it has 1,001. No reader is
within one row of both. So here the damage is contained, not proved: if the quote that follows can
only open another record's field, or if none follows, the first quote was never closed. Its line is
the broken record, and reading goes on at the next line.
"""

import csv as python_csv
import functools
import re
from collections.abc import Iterator, Sequence
from typing import IO, Any

from rknn_jax.formats import FormatError, _arrow, _encodings

READ_AT_ONCE = 2**22  # bytes
LONGEST = 2**26
"""Bytes of a record from which on it is broken, so that memory is bounded."""

LONGEST_HEADER = 2**24
"""Bytes of a line of the header beyond which it is refused."""

UTF8_MARK = b"\xef\xbb\xbf"
"""Bytes that may begin a file in UTF-8. Before a record, they are text of its first field."""

NO_UTF8 = "bytes that are not UTF-8"
"""Reason why a record is broken that is in another encoding."""

TOO_LONG = f"more than {LONGEST >> 20} MiB"
"""Reason why a record is broken that is too long."""

_TEXT = rb'"[^"]*+(?:""[^"]*+)*+'
"""Quoted field before its closing quote."""

# After its closing quote, a field may end, or go on with other bytes and be broken. If it goes on
# and that quote is where a field begins, it opens a field of another record: there is no match.
_FIELD = (
    rb"(?:" + _TEXT + rb'(?:"\r?(?=[,\n]|\Z)|(?<=[^,\n])"[^,\n]*+|\Z(?P<open%d>))'
    rb'|[^",\n][^,\n]*+|)'
)
_RECORD = re.compile(_FIELD % 1 + rb"(?:," + _FIELD % 2 + rb")*+(?:\n|\Z)")
_FIELDS = re.compile(_FIELD % 1 + rb"(?:," + _FIELD % 2 + rb")*+")
_OPENED = re.compile(_TEXT)


def header(file: IO[bytes]) -> list[str]:
    """Read the header and return the names in it.

    Raises:
      FormatError: If its quotes are broken, it is no UTF-8, or the file can only be read forward.
    """
    if not file.seekable():
        raise FormatError("Expected a file that can be read at any place; decompress it first.")

    def lines() -> Iterator[str]:
        while line := file.readline(LONGEST_HEADER):
            if len(line) == LONGEST_HEADER:
                raise FormatError(
                    "Expected a first line with the names of the columns, got a line of more than "
                    f"{LONGEST_HEADER / 1e6:.0f} MB; break it where records end."
                )
            yield _header_text(line)

    try:
        return next(python_csv.reader(lines(), strict=True), [])
    except python_csv.Error as error:
        raise FormatError(
            f"Expected a first line with the names of the columns, got one that is broken ({error})"
            "; repair it, or save the data as Parquet."
        ) from error


MAGIC = {
    b"\x28\xb5\x2f\xfd": "zstd compression",
    b"\x1f\x8b": "gzip compression",
    b"BZh": "bzip2 compression",
    b"\xfd7zXZ\x00": "xz compression",
    b"PK\x03\x04": "a ZIP archive or a spreadsheet",
    b"PAR1": "Parquet",
}
"""First bytes of files that are not text."""


def _header_text(line: bytes) -> str:
    """Return a line of the header as text.

    The header is no record, so that its bytes may decide on an error.
    """
    other = next((name for magic, name in MAGIC.items() if line.startswith(magic)), None)
    if other and not (is_utf8(line) and line.strip().decode().isprintable()):
        raise FormatError(
            f"Expected a first line of text with the names of the columns, got {other}; decompress "
            "the file, or save it as CSV, or end its name as its format does, such as .csv.gz."
        )
    if b"\0" in line:
        raise FormatError(
            "Expected a first line in UTF-8, got one with zero bytes, as UTF-16 has; "
            f"{_encodings.remedy([line])}."
        )
    try:
        return line.removeprefix(UTF8_MARK).decode()
    except UnicodeDecodeError as error:
        raise FormatError(
            "Expected a first line with the names of the columns in UTF-8, got "
            f"{line.strip()[:80]!r}; {_encodings.remedy([line.strip()])}."
        ) from error


def _encoding_remedy(reason: str, line: bytes) -> str:
    if reason != NO_UTF8:
        return ""
    return f" If all of the file is in another encoding: {_encodings.remedy([line])}."


def num_records(file: IO[bytes]) -> int:
    """Count the records after the header."""
    rows = 0
    line = file.tell()  # where the last line begins
    last = b"\n"
    while (content := file.read(READ_AT_ONCE)) and b'"' not in content:  # a line is a record
        rows += content.count(b"\n")
        last = content[-1:]
        if b"\n" in content:
            line = file.tell() - len(content) + content.rindex(b"\n") + 1
    if not content:
        return rows + (last != b"\n")
    file.seek(line)
    return rows + sum(
        part.count(b"\n") if isinstance(part, bytes) else len(part) for part in records(file)
    )


def tables(
    file: IO[bytes], names: Sequence[str], *, refuse: bool
) -> Iterator[tuple[Any, dict[int, str]]]:
    """Yield the records after the header as Arrow tables of bytes, a row for each record.

    Args:
      file: CSV file, whose header has been read.
      names: Names of the columns.
      refuse: Whether a broken record is an error, as in a public file. In a private file, an error
        would reveal the record.

    Yields:
      `(table, broken)`, and why rows of the table are broken records, by the rows.

    Raises:
      FormatError: If a record is refused.
    """
    row = 0
    for part in records(file, refuse=refuse):
        lines = _lines(part)
        why = _find_broken(lines, len(names), quoted=not isinstance(part, bytes))
        if why and refuse:
            first = min(why)
            told = _encoding_remedy(why[first], lines[first])
            raise FormatError(
                f"Expected {len(names)} fields in UTF-8 in every record, and text with commas, "
                f"quotes or line breaks in quotes, got {why[first]} in row {row + first}; repair "
                f"it, or save the data as Parquet.{told}"
            )
        for broken in why:
            lines[broken] = b"," * (len(names) - 1)
        yield _parse(lines, names, quoted=not isinstance(part, bytes)), why
        row += len(lines)


def records(file: IO[bytes], *, refuse: bool = False) -> Iterator[bytes | list[bytes]]:
    r"""Yield the rest of a file in parts of whole records.

    Args:
      file: CSV file, whose header has been read.
      refuse: As for `tables`. Defaults to False.

    Yields:
      Lines without a quote, each with its `\n`; or a list of records, each without it.

    Raises:
      FormatError: If a record that is longer than `LONGEST` is refused.
    """
    data = b""
    while more := file.read(READ_AT_ONCE):
        data += more
        part, end = _split(data)
        if part:
            yield part
        data = data[end:]
        if len(data) > LONGEST:
            if refuse:
                raise FormatError(
                    f"Expected records of at most {LONGEST / 1e6:.0f} MB, got a longer one; close "
                    "its quotes, break it where records end, or save the data as Parquet."
                )
            broken, data = _skip(file, data)
            yield [broken]
    if data:
        part, _ = _split(data if data.endswith(b"\n") else data + b"\n", final=True)
        yield part


def _split(data: bytes, *, final: bool = False) -> tuple[bytes | list[bytes], int]:
    """Return the whole records in `data`, which begins with a record, and where they end."""
    if b'"' not in data:
        end = data.rfind(b"\n") + 1
        return data[:end], end
    found: list[bytes] = []
    start = 0
    while start < len(data):
        quote = data.find(b'"', start)
        end = data.rfind(b"\n", start, quote if quote >= 0 else len(data)) + 1
        if end > start:  # lines without a quote
            found += data[start : end - 1].split(b"\n")
            start = end
        if quote < 0:
            break
        match = _RECORD.match(data, start)
        if match is None or (final and _is_open(match)):
            # The line is broken. Up to where its quotes fail, each line break is in them. A later
            # line whose quotes are open at such a break goes on in the same way, and is broken too.
            # So each of these lines is a record, and none is searched to its failure again.
            fails = len(data) if match else _failure(data, start)
            end = max(data.find(b"\n", start), data.rfind(b"\n", start, fails)) + 1
            found += data[start : end - 1].split(b"\n") if end else []
        else:
            end = 0 if _is_open(match) or data[match.end() - 1] != ord("\n") else match.end()
            found += [data[start : end - 1]] if end else []
        if not end:  # more bytes are needed
            break
        start = end
    return found, start


def _failure(data: bytes, start: int) -> int:
    """Return where the quotes of a broken record fail: at one that opens a field of another."""
    match = _FIELDS.match(data, start)
    assert match is not None  # an empty field, at least
    text = _OPENED.match(data, match.end())
    return match.end() if text is None else text.end()


def _is_open(match: re.Match[bytes]) -> bool:
    return match["open1"] is not None or match["open2"] is not None


def _skip(file: IO[bytes], data: bytes) -> tuple[bytes, bytes]:
    """Read past a record that is longer than `LONGEST`, and hold little of it.

    Returns:
      `(broken, rest)`: A broken record in its place, and what was read of the next ones.
    """
    second = _next_line(file, data)
    while (match := _RECORD.match(data)) is not None:
        if not _is_open(match) and data[match.end() - 1] == ord("\n"):
            return b'"', data[match.end() :]
        if _is_open(match):  # the last bytes are text, or the two quotes of one quote in it
            data = b'"' + (b'""' if data.endswith(b'"') else data[-1:])
        elif data[-1:] not in b'"\r':  # a field without quotes goes on, or one begins
            data = data[-1:]
        more = file.read(READ_AT_ONCE)
        second = second or _next_line(file, more)
        if not more and not _is_open(match):
            return b'"', b""
        if not more:
            break
        data += more
    if second is None:  # the file is one line up to here
        while second is None and (more := file.read(READ_AT_ONCE)):
            second = _next_line(file, more)
    if second is not None:
        file.seek(second)
    return b'"', b""


def _next_line(file: IO[bytes], data: bytes) -> int | None:
    """Return where the next line begins, if the last bytes that were read, `data`, have its end."""
    line = data.find(b"\n") + 1
    return file.tell() - len(data) + line if line else None


def _lines(part: bytes | list[bytes]) -> list[bytes]:
    """Return records without the ends of their lines."""
    if isinstance(part, list):
        return [record.removesuffix(b"\r") for record in part]
    if b"\r" in part:
        part = part.replace(b"\r\n", b"\n")
    return part[:-1].split(b"\n")


def _find_broken(lines: Sequence[bytes], count: int, *, quoted: bool) -> dict[int, str]:
    """Return why records are broken, by their places."""
    if quoted:
        is_valid = _valid(count).fullmatch
        found = [i for i, line in enumerate(lines) if not is_valid(line)]
    else:
        commas = count - 1
        found = [i for i, line in enumerate(lines) if line.count(b",") != commas or b"\r" in line]
    why = {i: _reason(lines[i]) for i in found}
    joined = b"\n".join(lines)
    if not is_utf8(joined):
        why |= {i: NO_UTF8 for i, line in enumerate(lines) if not is_utf8(line)}
    # By its own length. Whether reading went on before its end depends on the records before it.
    if len(joined) >= LONGEST:
        why |= {i: TOO_LONG for i, line in enumerate(lines) if len(line) >= LONGEST}
    return why


@functools.cache
def _valid(count: int | None) -> re.Pattern[bytes]:
    """Return the pattern of a record of `count` fields, or of any number of them."""
    field = rb"(?:" + _TEXT + rb'"|[^",\r\n]*+)'
    others = b"*+" if count is None else b"{%d}" % (count - 1)
    return re.compile(field + b"(?:," + field + b")" + others)


def _reason(record: bytes) -> str:
    if _valid(None).fullmatch(record):
        return "another number of fields"
    return "a quote or a carriage return that is not in quotes"


def is_utf8(record: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        record.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parse(lines: Sequence[bytes], names: Sequence[str], *, quoted: bool) -> Any:
    """Return valid records as an Arrow table of bytes."""
    from pyarrow import csv

    pa = _arrow.pyarrow()
    # Arrow drops one mark of UTF-8. Without this one, it would be that of the first record here,
    # and which record is the first depends on the length of others.
    content = UTF8_MARK + b"\n".join(lines) + b"\n"
    return csv.read_csv(
        pa.BufferReader(content),
        csv.ReadOptions(column_names=list(names), block_size=len(content), use_threads=False),
        csv.ParseOptions(
            quote_char='"' if quoted else False,
            newlines_in_values=quoted,
            ignore_empty_lines=False,
        ),
        csv.ConvertOptions(
            check_utf8=False, column_types=dict.fromkeys(names, pa.binary()), null_values=[]
        ),
    )
