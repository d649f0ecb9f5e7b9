"""Every type of column in every role: one result in every format and door, and its table.

`RKNN_RECORD=1 .venv/bin/python -m pytest tests/test_columns.py` writes the table of
`docs/columns.md` anew.
"""

import io
import json
import os
import uuid
import zipfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rknn_jax.formats import Columns
from rknn_jax.neighbors import usable_rows
from rknn_jax.records import frames
from rknn_jax.records.classes import Classes, parse_classes
from rknn_jax.records.features import check_types as check_features
from rknn_jax.records.features import number_of_text
from rknn_jax.records.labels import check_types, encode
from rknn_jax.records.persons import person_names
from rknn_jax.release import adoption
from rknn_jax.release.shards import ArrowShard, FileShard
from rknn_jax.settings import NamedColumns
from tests.recorded import RECORDING

PAGE = Path(__file__).parents[1] / "docs" / "columns.md"
BEGIN, END = "<!-- table of types, from tests/test_columns.py -->", "<!-- end of the table -->"
VALUES = [2, 0, 1, None]
CLASSES = parse_classes("0,1,2")


def each(make):
    """Return the values with `make` applied to those that are there."""
    return [None if value is None else make(value) for value in VALUES]


def tensor(values):
    flat = pa.array([0.0 if v is None else v for v in values for _ in range(2)], pa.float32())
    kind = pa.fixed_shape_tensor(pa.float32(), (2,))
    missing = pa.array([value is None for value in values])
    lists = pa.FixedSizeListArray.from_arrays(flat, 2, mask=missing)
    return pa.ExtensionArray.from_storage(kind, lists)


def uuids(values):
    # None of zeros alone, which names nobody.
    stored = [None if v is None else bytes([v + 1]) * 16 for v in values]
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(stored, pa.binary(16)))


TYPES = {
    "integers": pa.array(VALUES, pa.int64()),
    "small or unsigned integers": pa.array(VALUES, pa.uint8()),
    "floats": pa.array(VALUES, pa.float64()),
    "half floats": pa.array(np.float16([2, 0, 1, np.nan]), pa.float16()),
    "bools": pa.array(each(bool)),
    "decimals": pa.array(each(Decimal), pa.decimal128(5, 2)),
    "text": pa.array(each(str)),
    "large text, views": pa.array(each(str), pa.string_view()),
    "categories, dictionaries of text": pa.array(each(str)).dictionary_encode(),
    "dictionaries of integers": pa.array(VALUES).dictionary_encode(),
    "lists of numbers": pa.array(each(lambda v: [float(v)] * 2)),
    "lists of integers": pa.array(each(lambda v: [v, v])),
    "fixed lists of numbers": pa.array(each(lambda v: [float(v)] * 2), pa.list_(pa.float32(), 2)),
    "fixed lists of bools": pa.array(
        each(lambda v: [v == i for i in range(3)]), pa.list_(pa.bool_(), 3)
    ),
    "lists of text": pa.array(each(lambda v: [str(v)])),
    "lists of bools": pa.array(each(lambda v: [bool(v)] * 2)),
    "list views": pa.array(each(lambda v: [float(v)]), pa.list_view(pa.float64())),
    "nested lists": pa.array(each(lambda v: [[float(v)]])),
    "tensors of one shape": tensor(VALUES),
    "bytes": pa.array(each(lambda v: str(v).encode()), pa.binary()),
    "UUIDs": uuids(VALUES),
    "dates": pa.array(VALUES, pa.date32()),
    "times": pa.array(VALUES, pa.timestamp("us")),
    "durations": pa.array(VALUES, pa.duration("s")),
    "structs": pa.array(each(lambda v: {"x": v})),
    "structs of bytes and a path, as `datasets` has images": pa.array(
        each(lambda v: {"bytes": str(v).encode(), "path": "0.png"})
    ),
    "nulls alone": pa.array([None] * 4),
}

REFUSED = "refused"


def shards(folder, table, columns):
    """Yield a shard of the table for every format that can hold it, by the format's name."""
    path = folder / "t"
    yield "Arrow", ArrowShard("t", table, columns)
    pq.write_table(table, f"{path}.parquet")
    with pa.OSFile(f"{path}.feather", "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    with pa.OSFile(f"{path}.arrow", "wb") as sink, pa.ipc.new_stream(sink, table.schema) as file:
        file.write_table(table)
    for form in ("parquet", "feather", "arrow"):
        yield form, FileShard(f"{path}.{form}", "--private", columns)
    scalar = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string)
    if all(any(of(kind) for of in scalar) for kind in table.schema.types):
        frame = table.to_pandas()
        frame.to_csv(f"{path}.csv", index=False)
        yield "csv", FileShard(f"{path}.csv", "--private", columns)
    kinds = (*scalar, pa.types.is_list, pa.types.is_fixed_size_list)
    if all(any(of(kind) for of in kinds) for kind in table.schema.types):
        lines = [json.dumps(row) for row in table.to_pylist()]
        Path(f"{path}.jsonl").write_text("\n".join(lines))
        aside = {columns.label, columns.person} if columns.reads_label else {columns.person}
        names = tuple(name for name in table.schema.names if name not in aside)
        columns = columns._replace(embedding=names, width=columns.width or len(names))
        yield "jsonl", FileShard(f"{path}.jsonl", "--private", columns)


def outcome(shard, read):
    """Return what `read` makes of a shard's block, or that its layout was refused."""
    try:
        layout, block = shard.layout(), next(shard.blocks(10))
        if not layout.declares and not any_usable(block):
            return REFUSED  # value by value, because the file has no types
        return read(layout, block)
    except ValueError as error:
        return "damaged" if "damaged" in str(error) else REFUSED


def any_usable(block):
    """Return whether a block holds a value of each role that it is read for."""
    rows = block.embeddings
    if rows is not None and rows.dtype == object:
        return any(isinstance(text, str) for text in rows)
    if block.persons is not None:
        return person_names(block.persons, "here")[1].any()
    if block.labels is not None:
        several = encode(block.labels, CLASSES, 3).ids[:, :-1]
        return bool((several >= 0).any())
    return bool(np.isfinite(rows).any())


def read_features(layout, block):
    check_features(layout.empty.embeddings, 2, "here")
    rows = usable_rows(block.embeddings)
    if np.isnan(rows).all():
        return "missing"
    assert np.isnan(rows).any(axis=1).tolist() == [False] * 3 + [bool(np.isnan(rows[3]).any())]
    assert rows[:3, 0].tolist() in ([2, 0, 1], [1, 0, 1], [0, 1, 0])
    return "0 and 1" if rows[:3].max() == 1 else "numbers"


def read_labels(layout, block):
    check_types(layout.empty.labels, CLASSES, None, "here", typed=layout.typed)
    ids = encode(block.labels, CLASSES).ids.tolist()
    assert ids in ([2, 0, 1, -1], [1, 0, 1, -1], [-1] * 4)
    return {2: "names or class numbers", 1: "0 and 1", -1: "missing"}[ids[0]]


def read_several(layout, block):
    check_types(layout.empty.labels, CLASSES, 1, "here", typed=layout.typed)
    ballots = encode(block.labels, CLASSES, 1).ids.tolist()
    assert [ballot[0] for ballot in ballots] in ([2, 0, 1, -1], [1, 0, 1, -1], [-1] * 4)
    return "several labels"


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_numbers_have_as_many_digits_as_they_like(tmp_path, form):
    """An exact float has up to 1,074 decimals, as `str(Decimal(x))` writes it."""
    given = [*map(str, map(Decimal, (0.1, 2**-1074, 1e300))), "1" * 40, "0" * 400 + "7", ".5e00001"]
    lines = {
        "csv": "\n".join(["x", *given]),
        "jsonl": "\n".join(json.dumps({"x": text}) for text in given),
    }
    path = tmp_path / f"r.{form}"
    path.write_text(lines[form])
    columns = Columns(("x",), "y", width=1, reads_label=False)
    (block,) = FileShard(str(path), "--private", columns).blocks(10)
    assert block.embeddings[:, 0].tolist() == list(map(float, given))


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_with_two_arrays_is_not_read_as_its_first_one(tmp_path, order):
    with (tmp_path / "r.npy").open("wb") as file:
        for rows in (3, 5):
            np.save(file, np.ones((rows, 2), np.float32, order=order))
    with pytest.raises(ValueError, match="goes on after its array"):
        list(FileShard(str(tmp_path / "r.npy"), "--private", Columns(None, "y")).blocks(2))


def test_an_archive_is_read_whole_or_not_at_all(tmp_path):
    """NumPy reads the last one of two archives in one file, and of two arrays with one name."""
    path, columns = tmp_path / "r.npz", Columns(None, "y")
    for rows in (3, 5):
        np.savez(path, embeddings=np.ones((rows, 2), np.float32), y=np.zeros(rows))
        (tmp_path / f"{rows}").write_bytes(path.read_bytes())
    path.write_bytes((tmp_path / "3").read_bytes() + (tmp_path / "5").read_bytes())
    with pytest.raises(ValueError, match="something is before its archive"):
        FileShard(str(path), "--private", columns).num_rows()
    path.write_bytes((tmp_path / "3").read_bytes())
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("embeddings.npy", zipfile.ZipFile(tmp_path / "5").read("embeddings.npy"))
    with pytest.raises(ValueError, match="two arrays of one name"):
        FileShard(str(path), "--private", columns).num_rows()


def read_persons(layout, block):
    names, known = person_names(block.persons, "here")
    assert known.tolist() == [True] * 3 + [False]
    texts = [str(uuid.UUID(bytes=bytes([v] * 16))) for v in (3, 1, 2)]
    forms = np.array([2, 0, 1]), np.array(texts)
    same = any(np.array_equal(names[:3], person_names(form, "here")[0]) for form in forms)
    return "persons" if same else "persons of other names"  # as of bools, which are words in CSV


def read_raw(layout, block):
    kind = block.embeddings.dtype.kind
    if kind != "O":
        return "arrays"
    return "text" if isinstance(block.embeddings[0], str) else "bytes, such as image files"


def results(folder, array):
    """Return what becomes of a column of a type in each role, which is one thing in all formats."""
    rest = {"x": pa.array([1.0] * 4)}
    roles = {
        "feature": ({"a": array, "b": array}, Columns(reads_label=False), read_features),
        "embeddings": ({"embeddings": array}, Columns(reads_label=False, width=2), read_features),
        "label": ({"labels": array} | rest, Columns(), read_labels),
        "several": ({"labels": array} | rest, Columns(), read_several),
        "person": ({"who": array} | rest, Columns(reads_label=False, person="who"), read_persons),
        "raw": ({"text": array}, Columns(reads_label=False, raw=True), read_raw),
    }
    found = {}
    for role, (columns, asked, read) in roles.items():
        table = pa.table(columns)
        told = {form: outcome(one, read) for form, one in shards(folder, table, asked)}
        untyped = {told.pop(form, None) for form in ("csv", "jsonl")}
        assert len(set(told.values())) == 1, (role, told)
        found[role] = told["parquet"]
        # A format without types may read as text what is refused with a type.
        fits = untyped <= {None, REFUSED, found[role]}
        assert found[role] == REFUSED or fits, (role, untyped)
    return found


def table_of(folder):
    lines = [
        "| type | feature | `embeddings` | label | person | text or image |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, array in TYPES.items():
        found = results(folder, array)
        label = found["label"] if found["label"] != REFUSED else found["several"]
        cells = [found["feature"], found["embeddings"], label, found["person"], found["raw"]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


@pytest.mark.long
def test_the_table_of_types_is_what_the_readers_do(tmp_path):
    found = f"{BEGIN}\n\n{table_of(tmp_path)}\n\n{END}"
    page = PAGE.read_text()
    start, stop = page.index(BEGIN), page.index(END) + len(END)
    if os.environ.get(RECORDING):
        PAGE.write_text(page[:start] + found + page[stop:])
    assert page[start:stop] == found, f"{RECORDING}=1 writes it anew"


LABELS = st.lists(st.integers(0, 3), min_size=1, max_size=9)


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(labels=LABELS, names=st.permutations(["1", "2", "3"]), plain=st.booleans())
def test_one_table_has_one_result_at_every_door(tmp_path_factory, labels, names, plain):
    """Numbers, text and categories, in every format, as arrays, lists and in the estimator."""
    folder = tmp_path_factory.mktemp("doors")
    classes = Classes(3) if plain else Classes(3, tuple(names))
    wanted = [
        (label if label < 3 else -1) if plain else ([*names, str(label)].index(str(label)) + 1) % 4
        for label in labels
    ]
    wanted = wanted if plain else [number - 1 for number in wanted]
    forms = {
        "int": pa.array(labels),
        "float": pa.array(labels, pa.float32()),
        "text": pa.array(list(map(str, labels))),
        "category": pa.array(list(map(str, labels))).dictionary_encode(),
        "decimal": pa.array(list(map(Decimal, labels))),
    }
    for name, array in forms.items():
        table = pa.table({"labels": array, "x": np.zeros(len(labels))})
        for form, shard in shards(folder, table, Columns()):
            (block,) = shard.blocks(10)
            assert encode(block.labels, classes).ids.tolist() == wanted, (name, form)
    for given_ in (np.array(labels), np.array(labels).astype(str), np.array(labels, object)):
        buffer = io.BytesIO()
        np.savez(buffer, labels=given_) if given_.dtype != object else None
        assert encode(given_, classes).ids.tolist() == wanted
        if not plain:
            taken, values = frames.single(given_, [int(name) for name in names])
            order = [names.index(str(value)) for value in values]
            known = Classes(3, tuple(map(str, values)), counts_from_0=False)
            ids = encode(taken, known).ids
            assert [order[i] if i >= 0 else -1 for i in ids] == wanted


CELLS = [
    *("1.5", " 2\t", "+.5", "1e3", "1E400", "True", "tRUE", "fALSE", "true\x1c", "1\x0b", "1\x85"),
    *("\xa0true", "\u3000true\u3000", "1\xa0", "\xa01", "\uff11", "\u0661", "1_0", "(1)", "\x1c1"),
    *("inf", "nan", "-", "0x10", "1,5", "1d", "1e", "x", "1 2", "tru\u017fe", "--1"),
]
"""Text in cells, of which some are numbers."""


def test_text_is_the_same_number_at_every_door(tmp_path):
    wanted = np.array([number_of_text(cell) for cell in CELLS])
    assert np.isfinite(wanted).sum() == 7
    frame = pd.DataFrame({"x": CELLS, "y": 1.0}, dtype=object)
    lines = [json.dumps({"x": cell, "y": 1}) for cell in CELLS]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    frame.to_csv(tmp_path / "a.csv", index=False)
    columns = Columns(("x", "y"), reads_label=False)
    shards = [
        FileShard(str(tmp_path / name), "--private", columns) for name in ("a.jsonl", "a.csv")
    ]
    for shard in (*shards, ArrowShard("a frame", frame, columns)):
        [block] = shard.blocks(99)
        np.testing.assert_array_equal(block.embeddings[:, 0], wanted, err_msg=str(shard)[:60])
    rows = [frames.numbers_of([cell, 1.0], 2)[0] for cell in CELLS]
    np.testing.assert_array_equal(rows, wanted)
    lists = pd.DataFrame({"embeddings": [*([cell, "1"] for cell in CELLS), [1.0, 2.0]]})
    (tmp_path / "l.jsonl").write_text(lists.to_json(orient="records", lines=True))
    columns = Columns(reads_label=False, width=2)
    for shard in (
        FileShard(str(tmp_path / "l.jsonl"), "--private", columns),
        ArrowShard("lists", lists, columns),
    ):
        [block] = shard.blocks(99)
        assert np.isfinite(block.embeddings).all(axis=1).tolist() == [False] * len(CELLS) + [True]


def test_a_missing_text_is_missing_at_every_door(tmp_path):
    """An empty field of CSV was a text of its own, so that the records had another budget."""
    frame = pd.DataFrame({"text": ["cat", None, "dog"], "labels": ["a", "b", "a"]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "a.parquet")
    columns = NamedColumns(embedding=("text",)).read(raw=True)
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    assert len({adoption.data_set([path], columns).fingerprint for path in paths}) == 1
    for shard in (
        *(FileShard(path, "--private", columns) for path in paths),
        ArrowShard("a frame", frame, columns),
    ):
        [block] = shard.blocks(9)
        assert encode(block.labels, parse_classes("a,b")).ids.tolist() == [0, -1, 0], shard


@pytest.mark.parametrize("kind", ["feature", "label", "person"])
def test_one_record_never_changes_how_the_others_are_read(tmp_path, kind):
    """Null, huge and foreign values beside others, in every format and type."""
    values = [1, 2, 3, None, 2**62]
    floats = [None if value is None else float(value) for value in values]
    columns = {"feature": "x", "label": "labels", "person": "who"}
    person = "who" if kind == "person" else None
    for array in (
        pa.array(values),
        pa.array(floats),
        pa.array(list(map(str, values))),
    ):
        held = {"x": pa.array([1.0] * 5), "labels": pa.array([1] * 5)}
        held[columns[kind]] = array
        if kind == "feature" and pa.types.is_string(array.type):
            continue
        for form, shard in shards(tmp_path, pa.table(held), Columns(person=person)):
            (block,) = shard.blocks(10)
            if kind == "feature":
                assert usable_rows(block.embeddings)[:3, 0].tolist() == [1, 2, 3], form
            elif kind == "label":
                assert encode(block.labels, parse_classes("3,2,1")).ids[:3].tolist() == [2, 1, 0]
            else:
                names, _ = person_names(block.persons, "here")
                assert np.array_equal(names[:3], person_names(np.arange(1, 4), "here")[0])
