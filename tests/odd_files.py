"""Files of every format in which every second record may have an odd value."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROLES = ("x", "labels", "who", "notes", "embeddings")
"""Columns that hold the values: a feature, the class, the person, one without a role, or all
features."""

BYTES = [
    *(b"\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"caf\xe9", b"\xef\xbb\xbf1", b"\0", b"a\0b"),
    *(b"", b" ", b"nan", b"inf", b"-1e999", b"1e308", b"-1e308", b"1e-999", b"9" * 5000, b"1_0"),
    *(b"x" * 10_000, b"\x1f1", b"\x012;1", b"\x01999999999;1", b"a;b;7", b"2026-13-45", b"0x10"),
    *("\u0661".encode(), b"1\x85", b".", b"+", b"-0", b"\x0b1", b"1E400"),
]
"""Text that is no Unicode, no number, too large, too long, or looks like something else."""

QUOTED = [b'"open', b'"a"b', b'"\n"', b"1,2,3", b"\r", b'"', b'"a""b"']
"""Fields that break records of CSV."""

JSON = [
    *(
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"1e308",
        b"9" * 5000,
        b"1" + b"0" * 400,
        b"18446744073709551616",
    ),
    *(b"null", b"true", b"{}", b'{"a": 1}', b"[]", b"[[1]]", b"[null]", b"[true, false]", b"[{}]"),
    *(
        b"[1e999, 2]",
        b"[NaN, 1]",
        b'[1, "2"]',
        b"[1, 2, 3]",
        b"[10" + b"0" * 400 + b", 1]",
        b"[" * 3000,
    ),
    *(
        b'"\\ud800"',
        b'["\\ud800", "a"]',
        b'"\\u0000"',
        b'"\xff"',
        b'"\\u001f1"',
        b"1 2",
        b"\xed\xa0\x80",
    ),
]
"""Values of JSON, of which some break their line."""


@dataclass(frozen=True)
class Case:
    """Column of a type: usual values in all records, or odd ones in every second."""

    usual: Any
    odd: Any


def beside(usual, odd):
    """Return a list of values with odd ones in every second record."""
    return [
        usual[(row // 2) % len(usual)] if row % 2 == 0 else odd[row // 2]
        for row in range(2 * len(odd))
    ]


def listed(usual, odd):
    return beside(usual, [usual[0]] * len(odd)), beside(usual, odd)


def case(make, usual, odd):
    return Case(*map(make, listed(usual, odd)))


# Text files


def csv_file(path, role, values):
    lines = [b"x,y,labels,who,notes"]
    for row, value in enumerate(values):
        fields = {"x": b"1.5", "y": b"2", "labels": b"ba"[row % 2 :][:1], "who": b"%d" % (row // 3)}
        fields |= {"notes": b"n"} | {role: value}
        lines.append(b",".join(fields.values()))
    path.write_bytes(b"\n".join(lines) + b"\n")


def json_file(path, role, values):
    lines = []
    for row, value in enumerate(values):
        fields = {"x": b"1.5", "y": b"2", "labels": b'"b"' if row % 2 else b'"a"'}
        fields |= {"who": b"%d" % (row // 3), "notes": b'"n"', "embeddings": b"[1.5, 2]"}
        fields |= {role: value}
        members = [b'"%s": %s' % (name.encode(), field) for name, field in fields.items()]
        lines.append(b"{" + b", ".join(members) + b"}")
    path.write_bytes(b"\n".join(lines) + b"\n")


# NumPy


def numpy_case(usual, odd, dtype):
    return case(lambda values: np.array(values, dtype), usual, odd)


def bits(kind, odd, dtype=None):
    """Return numbers of which every second one has these bits."""
    odd = np.array(odd, f"u{np.dtype(kind).itemsize}").view(kind)
    usual, found = (np.ones(2 * len(odd), kind) for _ in range(2))
    found[1::2] = odd
    return Case(usual.astype(dtype or kind), found.astype(dtype or kind) if dtype else found)


FLOATS = {
    "f2": [0x7C01, 0xFC01, 0xFFFF, 0x7BFF, 0x0001],
    "f4": [0x7F800001, 0xFF800001, 0x7FC12345, 0xFFFFFFFF, 0x7F7FFFFF, 0x00000001],
    "f8": [
        0x7FF0000000000001,
        0xFFF0000000000001,
        2**64 - 1,
        0x7FEFFFFFFFFFFFFF,
        0x0000000000000001,
    ],
}
"""Bits of NaN that signals or has a payload, of the largest number, and of the smallest."""

WHOLE = {kind: [np.iinfo(kind).min, np.iinfo(kind).max] for kind in ("i1", "i8", "u1", "u8")}


def characters():
    """Text of NumPy with numbers of 32 bits that are not characters."""
    usual = np.array(["a", "b"] * 5, "U4")
    odd = usual.copy()
    points = odd.view("u4").reshape(-1, 4)
    points[1, 0], points[3, 2], points[5, 0] = 0x110000, 2**32 - 1, 0xD800
    points[7, :2], points[9, 0] = (0xD800, 0xDC00), 0
    return Case(usual, odd)


NUMPY = {
    **{kind: bits(kind, odd) for kind, odd in FLOATS.items()},
    ">f4": Case(
        *(np.array(one.byteswap().view(">f4")) for one in vars(bits("f4", FLOATS["f4"])).values())
    ),
    "longdouble": numpy_case([1, 0], [np.nan, -np.inf, np.finfo("g").max, 2.5], "g"),
    **{kind: numpy_case([1, 0], odd, kind) for kind, odd in WHOLE.items()},
    "bool": Case(np.ones(6, bool), np.array([1, 2, 1, 255, 1, 0], np.uint8).view(bool)),
    "text": characters(),
    "bytes": numpy_case([b"a", b"b"], [b"\xff", b"", b"nan"], "S9"),
    "times": numpy_case([0], [2**62, -(2**63)], "M8[s]"),
}


def npz_file(path, role, values):
    number = len(values)
    arrays = {"embeddings": np.ones((number, 2), np.float32), "labels": np.arange(number) % 2}
    arrays["who"] = np.arange(number) // 3
    arrays[role] = np.stack([values, values], axis=1) if role == "embeddings" else values
    np.savez(path, **arrays)


def npy_file(path, role, values):
    del role
    np.save(path, np.stack([values, values], axis=1))


# Arrow


def of_bits(kind, values):
    """Return an Arrow array of numbers, which may be none of its type."""
    return pa.Array.from_buffers(
        kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )


def strings(values):
    """Return an Arrow array of text whose bytes may be no UTF-8."""
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def views(values):
    return pa.array(values, pa.binary_view()).view(pa.string_view())


def coded(values):
    return pa.DictionaryArray.from_arrays(
        pa.array(range(len(values)), pa.int32()), values, safe=False
    )


def lists(values):
    return pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)


def structs(values):
    return pa.StructArray.from_arrays([values], ["key"])


def maps(values):
    keys = pa.array(["key"] * len(values))
    return pa.MapArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), keys, values)


def decimals(values):
    data = b"".join(value.to_bytes(16, "little", signed=True) for value in values)
    return pa.Array.from_buffers(pa.decimal128(5, 2), len(values), [None, pa.py_buffer(data)])


def times(kind, odd):
    return case(lambda values: of_bits(kind, np.array(values, f"i{kind.bit_width // 8}")), [0], odd)


def nested(make, of):
    return Case(make(of.usual), make(of.odd))


TEXT = case(strings, [b"a", b"b", b"7"], BYTES)
LATE = [2**63 - 1, -(2**63), 2**62, 86_400_001]
SECONDS = times(pa.timestamp("s"), LATE)
ARROW = {
    "text": TEXT,
    "bytes": case(lambda values: pa.array(values, pa.binary()), [b"a", b"b", b"7"], BYTES),
    "views": case(views, [b"a", b"b", b"7"], BYTES),
    "categories": nested(coded, TEXT),
    "categories of views": case(lambda values: coded(views(values)), [b"a", b"7"], BYTES),
    "lists of text": nested(lists, TEXT),
    "lists of categories": nested(lambda column: lists(coded(column)), TEXT),
    "structs": nested(structs, TEXT),
    "maps": nested(maps, TEXT),
    **{
        f"float{kind[1]}": nested(
            lambda column: of_bits(pa.from_numpy_dtype(column.dtype), column), NUMPY[kind]
        )
        for kind in FLOATS
    },
    **{
        kind: case(
            lambda values, kind=kind: pa.array(values, pa.from_numpy_dtype(kind)),
            [1, 0],
            [None, *odd],
        )
        for kind, odd in WHOLE.items()
    },
    "bool": case(lambda values: pa.array(values, pa.bool_()), [True, False], [None]),
    "decimals": case(decimals, [100, 0], [10**35, -(10**30)]),
    "decimals of decimals": case(
        lambda values: pa.array(values, pa.decimal256(50, 2)),
        [Decimal(1)],
        [None, Decimal(10) ** 40],
    ),
    "dates": times(pa.date32(), [2**31 - 1, -(2**31)]),
    "dates of milliseconds": times(pa.date64(), LATE),
    "times of day": times(pa.time32("s"), [2**31 - 1, -1, 86_400]),
    "seconds": SECONDS,
    "zoned": times(pa.timestamp("ns", "UTC"), LATE),
    "durations": times(pa.duration("s"), LATE),
    "lists of seconds": nested(lists, SECONDS),
    "maps of seconds": nested(maps, SECONDS),
    "lists of numbers": case(
        pa.array, [[1.0, 2.0]], [[1.0], [1.0, 2.0, 3.0], None, [None, 1.0], []]
    ),
    "lists of one length": case(
        lambda values: pa.array(values, pa.list_(pa.float64(), 2)),
        [[1.0, 2.0]],
        [[np.nan, 1.0], None, [None, 1.0], [1e308, 0.0]],
    ),
    "masks": case(
        lambda values: pa.array(values, pa.list_(pa.bool_(), 3)),
        [[True, False, True]],
        [None, [None] * 3],
    ),
}


def arrow_file(path, role, values):
    number = len(values)
    columns = {"x": pa.array(np.ones(number)), "y": pa.array(np.arange(number) % 2.0)}
    columns |= {"labels": pa.array(["ab"[row % 2] for row in range(number)])}
    columns |= {"who": pa.array([str(row // 3) for row in range(number)])}
    columns |= {"notes": pa.nulls(number)} | {role: values}
    found = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(found, path, row_group_size=7)
        return
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, found.schema) as file:
        file.write_table(found, max_chunksize=7)


@dataclass(frozen=True)
class Form:
    write: Callable[[Path, str, Any], None]
    cases: dict[str, Case]
    roles: tuple[str, ...] = ROLES


FORMS = {
    ".csv": Form(
        csv_file, {"text": Case(*listed([b"1.5", b"a", b"7"], BYTES + QUOTED))}, ROLES[:4]
    ),
    ".jsonl": Form(json_file, {"json": Case(*listed([b"1.5", b'"a"', b"7", b"[1, 2]"], JSON))}),
    ".npz": Form(npz_file, NUMPY, ("embeddings", "labels", "who")),
    ".npy": Form(npy_file, NUMPY, ("embeddings",)),
    ".parquet": Form(arrow_file, ARROW),
    ".arrow": Form(arrow_file, ARROW),
}
