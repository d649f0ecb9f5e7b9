"""Hypothesis strategy for damaged and hostile files, made from valid ones.

Bytes are cut, flipped, inserted, removed, repeated and spliced at random. Formats are also changed
from inside, with lengths and checksums right: members of a zip file, the header of an .npy array,
the content of a gzip file, the values of a JSON document and the lines of a JSON log.
"""

import ast
import gzip
import io
import json
import math
import warnings
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

Files = dict[str, bytes]
Draw = Callable[[st.SearchStrategy], Any]

MOST_BYTES = 2**22
"""Size above which a file is not made larger."""

NUMBERS = (0, 1, 2, 127, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63)

DEEP = "@deep@"
LONG = "@long@"
LONE = "@lone@"
WRITTEN = {DEEP: b"[" * 100_000, LONG: b"9" * 5000, LONE: b'"\\ud800"'}
"""Placeholders for JSON that Python would not write."""

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e308, math.nan, math.inf, -math.inf),
    *(2**31, 2**32 + 1, 2**63, -(2**63) - 1, 10**400),
    *(
        "",
        "0",
        "-1",
        "1/0",
        "1/3",
        "nan",
        "infinity",
        "a\nb",
        "é\u2028",
        "x" * 3000,
        DEEP,
        LONG,
        LONE,
    ),
    *([], {}, [[]], {"": None}, [1, 2], {"a": 1}),
)

DTYPES = (
    *("<f8", ">f4", "<f2", "|b1", "|i1", "<i8", ">u2", "<u8", "<c16", "<U5", "<U0", "|S3", "|O"),
    *("|V8", "<M8[s]", "<m8", "x", "", 3, None, [("a", "<f4")], [("a", "<f4", (3,))]),
)

SHAPES = (
    *((), (0,), (1,), (3,), (20,), (20, 4), (0, 4), (20, 0), (4, 20), (-1,), (-1, -20), (2**31,)),
    *((2**63,), (10**18, 3), (2**32, 2**32), (1,) * 40, 3, "x", None, (True, 2), (1.5,), [20, 4]),
)

HEADERS = (
    b"",
    b"{}",
    b"{",
    b"(" * 300,
    b"-" * 5000,
    b"[" * 9000,
    b"1" * 6000,
    b"\xff\xfe",
    b"None",
)

NAMES = (
    "",
    "/",
    "../x.npy",
    "labels",
    "x.npy",
    "embeddings.npy",
    "labels.npy",
    "label.npy",
    "a" * 300,
)


@st.composite
def mutated(draw: Draw, seeds: Sequence[Files]) -> Files:
    """Draw one of the seeds with one to four changes."""
    files = dict(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from(sorted(files)))
        others = [seed[name] for seed in seeds if name in seed]
        files[name] = _changed(draw, files[name], draw(st.sampled_from(others)))
    if draw(st.integers(0, 49)) == 49:
        del files[draw(st.sampled_from(sorted(files)))]
    return files


def _changed(draw: Draw, data: bytes, other: bytes) -> bytes:
    """Return data with one change; its format decides which ones there are."""
    change = draw(st.sampled_from((_raw, *_inner_changes(data))))
    try:
        return change(draw, data, other)
    except Exception:  # earlier damage keeps the format from being taken apart
        return _raw(draw, data, other)


def _inner_changes(data: bytes) -> tuple[Callable[..., bytes], ...]:
    if data.startswith(b"PK"):
        return (_zip,) * 3
    if data.startswith(b"\x93NUMPY"):
        return (_npy,) * 2
    if data.startswith(b"\x1f\x8b"):
        return (_gzip,) * 2
    if data[:1] in (b"{", b"["):
        return (_lines,) * 3 if data.count(b"}\n") > 1 else (_json,) * 3
    return ()


def _raw(draw: Draw, data: bytes, other: bytes) -> bytes:
    """Change bytes without regard to what they mean."""
    start = draw(st.integers(0, len(data)))
    end = min(len(data), start + draw(st.integers(1, 64)))
    match draw(st.integers(0, 7)):
        case 0:
            return data[:start]
        case 1:
            bit = 1 << draw(st.integers(0, 7))
            return (
                data[:start]
                + bytes(byte ^ bit for byte in data[start : start + 1])
                + data[start + 1 :]
            )
        case 2:
            return data[:start] + draw(st.binary(min_size=1, max_size=8)) + data[end:]
        case 3:
            return data[:start] + draw(st.binary(min_size=1, max_size=16)) + data[start:]
        case 4:
            return data[:start] + data[end:]
        case 5:
            times = draw(st.sampled_from((2, 3, 50, 10_000)))
            return (
                data[:start]
                + data[start:end] * (times if len(data) < MOST_BYTES else 1)
                + data[end:]
            )
        case 6:
            return data[:start] + other[draw(st.integers(0, len(other))) :]
    width = draw(st.sampled_from((1, 2, 4, 8)))
    number = draw(st.sampled_from(NUMBERS)) % 2 ** (8 * width)
    written = number.to_bytes(width, draw(st.sampled_from(("little", "big"))))
    return data[:start] + written + data[start + width :]


def _zip(draw: Draw, data: bytes, other: bytes) -> bytes:
    """Change a member or the list of members, and write the file anew with right checksums."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = [(info.filename, file.read(info)) for info in file.infolist()]
    number = draw(st.integers(0, len(members) - 1))
    name, content = members[number]
    method = zipfile.ZIP_DEFLATED
    match draw(st.integers(0, 9)):
        case 0:
            members[number] = (draw(st.sampled_from(NAMES)), content)
        case 1:
            del members[number]
        case 2:
            members.append((name, draw(st.sampled_from(members))[1]))
        case 3:
            members[number] = (name, draw(st.sampled_from(members))[1])
        case 4:
            method = draw(
                st.sampled_from((zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
            )
        case 5:
            members[number] = (name, content + bytes(draw(st.sampled_from((1, 10**3, 10**6)))))
        case _:
            members[number] = (name, _changed(draw, content, draw(st.sampled_from(members))[1]))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name may be there twice
        for name, content in members:
            file.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def _npy(draw: Draw, data: bytes, other: bytes) -> bytes:
    """Change the header of an .npy array, and state its new length."""
    wide = data[6] > 1
    start = 12 if wide else 10
    length = int.from_bytes(data[8:start], "little")
    text = data[start : start + length]
    body = data[start + length :]
    choice = draw(st.integers(0, 5))
    if choice == 0:
        text = draw(st.sampled_from(HEADERS))
    elif choice == 1:
        text = _raw(draw, text, text)
    else:
        header = ast.literal_eval(text.decode("latin-1").strip())
        if choice == 2:
            header["fortran_order"] = draw(st.sampled_from((True, 1, None)))
        elif choice == 3:
            header["descr"] = draw(st.sampled_from(DTYPES))
        elif choice == 4:
            header["shape"] = draw(st.sampled_from(SHAPES))
        else:
            header[draw(st.sampled_from(("descr", "shape", "more")))] = draw(
                st.sampled_from(VALUES)
            )
        text = repr(header).encode("latin-1", "replace") + b"\n"
    return data[:8] + len(text).to_bytes(start - 8, "little") + text + body


def _gzip(draw: Draw, data: bytes, other: bytes) -> bytes:
    """Change what is compressed."""
    return gzip.compress(_changed(draw, gzip.decompress(data), b""), 1)


def _json(draw: Draw, data: bytes, other: bytes) -> bytes:
    """Change one value of a JSON document."""
    written = json.dumps(_changed_value(draw, json.loads(data)), separators=(",", ":")).encode()
    for mark, text in WRITTEN.items():
        written = written.replace(f'"{mark}"'.encode(), text)
    return written


def _changed_value(draw: Draw, value: Any) -> Any:
    if isinstance(value, dict | list) and value and draw(st.integers(0, 7)):
        key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
        match draw(st.integers(0, 9)):
            case 0:
                del value[key]
            case 1 if isinstance(value, list):
                value.insert(key, value[key])
            case 1:
                value[draw(st.sampled_from(("", "x", "class", "array", key.upper())))] = value.pop(
                    key
                )
            case _:
                value[key] = _changed_value(draw, value[key])
        return value
    if type(value) in (int, float) and draw(st.booleans()):
        return value + draw(st.sampled_from((1, -1, 0.5, 1e-9)))
    return draw(st.sampled_from(VALUES))


def _lines(draw: Draw, data: bytes, other: bytes) -> bytes:
    """Change one line of a JSON log, or the order of lines."""
    lines = data.splitlines(keepends=True)
    number = draw(st.integers(0, len(lines) - 1))
    match draw(st.integers(0, 7)):
        case 0:
            del lines[number]
        case 1:
            lines.insert(draw(st.integers(0, len(lines))), lines[number])
        case 2:
            lines[number] = draw(st.sampled_from(other.splitlines(keepends=True)))
        case 3:
            lines[number] = lines[number].rstrip(b"\n") + draw(
                st.sampled_from((b"", b" \n", b"\r\n", b"\0"))
            )
        case _:
            lines[number] = _json(draw, lines[number], b"") + b"\n"
    return b"".join(lines)
