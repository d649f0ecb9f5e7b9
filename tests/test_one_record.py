"""One record decides nothing about the others: neither their labels, persons and features, nor
whether they are read.

Each test reads the same data twice, once with an odd record in place of one of them. The rest must
be the same.
"""

import itertools
import random
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from rknn_jax._internal import onnx
from rknn_jax.embedding import table as table_model
from rknn_jax.embedding.file_rows import FileRows
from rknn_jax.embedding.rows import TableFile
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.joining import read_records
from rknn_jax.formats import Columns
from rknn_jax.privacy.guarantee import rounded_up
from rknn_jax.records import frames
from rknn_jax.records.classes import FOREIGN, Classes, named_classes
from rknn_jax.records.labels import encode, plain
from rknn_jax.records.persons import inexact, person_names
from rknn_jax.release import tables
from rknn_jax.release.shards import ArrowShard, regular

CODES = (64572001, 999000031000000106, 999000041000000102)  # as of SNOMED CT; two are beyond 2^53
CLASSES = named_classes([str(code) for code in CODES])
LABELS = [CODES[i % 3] for i in range(60)]
ROW = 7  # of the odd record
OTHERS = np.delete(np.arange(60), ROW)


def table(labels, kind, **more):
    features = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(120, np.float32)), 2)
    return pa.table({"embeddings": features, "labels": pa.array(labels, kind), **more})


def write(path, found, rows=10):
    """Write batches that are smaller than the blocks in which they are read."""
    if path.suffix == ".parquet":
        pq.write_table(found, path, row_group_size=rows)
        return
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, found.schema) as stream:
        stream.write_table(found, max_chunksize=rows)


KINDS = [pa.int64(), pa.uint64(), pa.dictionary(pa.int32(), pa.int64()), pa.decimal128(20)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("suffix", [".arrow", ".parquet"])
def test_a_missing_label_takes_no_other_label_away(tmp_path, suffix, kind):
    found = []
    for odd in (LABELS[ROW], None):
        labels = [*LABELS[:ROW], odd, *LABELS[ROW + 1 :]]
        path = tmp_path / f"{odd}{suffix}"
        write(path, table(labels, kind))
        columns = Columns(None, "labels", reads_label=True, width=2)
        (shard,) = tables.file_shards(str(path), "--private", columns)
        by_file = np.concatenate(
            [encode(block.labels, CLASSES).ids for block in regular(shard.blocks(16), 16)]
        )
        chunked = pa.concat_tables([table(labels, kind).slice(at, 10) for at in range(0, 60, 10)])
        in_memory = ArrowShard("t", chunked, columns)
        by_table = [encode(b.labels, CLASSES).ids for b in regular(in_memory.blocks(16), 16)]
        by_join = encode(tables.read_labels(path), CLASSES).ids
        for other in (np.concatenate(by_table), by_join):
            np.testing.assert_array_equal(other, by_file)
        found.append(by_file)
    np.testing.assert_array_equal(found[0], np.arange(60) % 3)
    np.testing.assert_array_equal(found[1][OTHERS], found[0][OTHERS])
    assert found[1][ROW] == -1


def series(values):
    """Yield the same values in all containers that have missing ones."""
    missing = [value is None for value in values]
    filled = [0 if value is None else value for value in values]
    yield pd.Series(values, dtype="Int64")
    yield pd.Series(values, dtype="int64[pyarrow]")
    yield pd.Series(values, dtype=object).astype("category")
    yield pd.DataFrame({"code": pd.Series(values, dtype="Int64")})
    yield pl.Series(values, dtype=pl.Int64)
    yield pl.DataFrame({"code": pl.Series(values, dtype=pl.Int64)})
    yield pa.array(values, pa.int64())
    yield pa.chunked_array([pa.array(values, pa.int64())])
    yield pa.table({"code": pa.array(values, pa.int64())})
    yield np.ma.masked_array(np.array(filled), missing)
    yield list(values)


def test_a_missing_value_of_a_series_changes_no_other_label_or_person():
    odd = [*LABELS[:ROW], None, *LABELS[ROW + 1 :]]
    names = [str(code) for code in CODES]
    for whole, holed in zip(series(LABELS), series(odd), strict=True):
        ids = [encode(frames.single(y, names)[0], named_classes(names)).ids for y in (whole, holed)]
        np.testing.assert_array_equal(ids[0], np.arange(60) % 3, err_msg=str(type(whole)))
        np.testing.assert_array_equal(ids[1][OTHERS], ids[0][OTHERS], err_msg=str(type(whole)))
        assert ids[1][ROW] == -1, type(whole)
        persons = [frames.column(values) for values in (whole, holed)]
        assert [int(one) for one in persons[0]] == LABELS
        assert [int(one) for one in persons[1][OTHERS]] == list(np.array(LABELS)[OTHERS])


@pytest.mark.parametrize("columns", [{}, {"a": [1], "b": [2]}])
def test_persons_of_a_frame_are_one_column(columns):
    for make in (pd.DataFrame, pl.DataFrame, pa.table):
        with pytest.raises(ValueError, match=f"got a frame of {len(columns)} columns"):
            frames.column(make(columns))


def strings(values):
    """Return an Arrow column of text whose bytes may be no UTF-8."""
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def test_bytes_that_are_no_text_are_their_records_alone(tmp_path):
    usual = [b"cat", b"dog"] * 30
    odd = [*usual[:ROW], b"caf\xe9", *usual[ROW + 1 :]]
    forms = {
        "plain": lambda text: text,
        "coded": lambda text: pa.DictionaryArray.from_arrays(pa.array(range(60)), text, safe=False),
        "lists": lambda text: pa.ListArray.from_arrays(pa.array(range(61), pa.int32()), text),
    }
    columns = Columns(None, "labels", reads_label=True, width=2)
    for (form, make), where in itertools.product(forms.items(), ("labels", "notes")):
        read = []
        for values in (usual, odd):
            found = table([i % 2 for i in range(60)], pa.int64())
            found = found.append_column("notes", make(strings(usual)))
            found = found.set_column(
                found.schema.get_field_index(where), where, make(strings(values))
            )
            write(tmp_path / "t.arrow", found)
            (shard,) = tables.file_shards(str(tmp_path / "t.arrow"), "--private", columns)
            labels = [block.labels for block in shard.blocks(16)]
            read.append(np.concatenate([np.array([str(one) for one in part]) for part in labels]))
        np.testing.assert_array_equal(read[0][OTHERS], read[1][OTHERS], err_msg=f"{form} {where}")


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_number_that_is_no_character_is_its_records_alone(tmp_path, rknn, order):
    """NumPy's text holds any numbers of 32 bits, and Python's errors on those beyond Unicode."""
    usual = np.array(["a", "b"] * 30, f"{order}U3")
    odd = usual.copy()
    odd.view(f"{order}u4")[3 * ROW] = 0x110000
    classes = named_classes(["a", "b"])
    for most in (None, 1):
        ids = [encode(labels, classes, most).ids for labels in (usual, odd)]
        np.testing.assert_array_equal(ids[0][OTHERS], ids[1][OTHERS])
        assert (ids[1][ROW] == (-1 if most is None else (-1, 2))).all()
    for read in (lambda text: plain(text, "here"), lambda text: person_names(text, "here")[0]):
        np.testing.assert_array_equal(read(usual)[OTHERS], read(odd)[OTHERS])
    features = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    np.savez(tmp_path / "R.npz", embeddings=features, labels=odd, who=odd)
    np.savez(tmp_path / "Q.npz", embeddings=features[:20])
    words = ("--public", tmp_path / "Q.npz", "--private", tmp_path / "R.npz", "--classes", "a,b")
    done = rknn("label", *words, "--person", "who", "--epsilon", 1, "--out", tmp_path / "out")
    assert done.status == 0, done.err


def test_a_number_that_is_no_character_stops_no_call_in_python():
    usual = np.array(["a", "b"] * 30)
    odd = usual.copy()
    odd.view("u4")[ROW] = 0x110000
    classes = named_classes(["a", "b"])
    calls = (
        lambda y: encode(frames.single(y, ["a", "b"])[0], classes).ids,
        lambda y: encode(frames.single(y, None)[0], classes).ids,
        frames.column,
    )
    for call in calls:
        np.testing.assert_array_equal(call(usual)[OTHERS], call(odd)[OTHERS])


def test_a_float_that_is_too_long_is_told_by_no_warning():
    longer = np.array([0, 1, np.longdouble("1e4000")], np.longdouble)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert encode(longer, Classes(3)).ids.tolist() == [0, 1, -1]
        assert plain(longer, "here").tolist() == [0, 1, FOREIGN]
        assert person_names(longer, "here")[1].tolist() == [True, True, False]
        assert inexact(longer).tolist() == [False, False, True]


def coded(values, kind):
    """Return chunks of categories with numbers of a type, each with a dictionary of its own."""
    chunks = []
    for start in range(0, len(values), 30):
        part = values[start : start + 30]
        known = sorted(set(part))
        numbers = pa.array(list(map(known.index, part)), kind)
        chunks.append(pa.DictionaryArray.from_arrays(numbers, strings(known), safe=False))
    return pa.chunked_array(chunks)


@pytest.mark.parametrize("odd", [b"caf\xe9", b"one more"])
@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32()], ids=str)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_category_is_its_records_alone(tmp_path, suffix, kind, odd):
    """As pandas writes them. One that is no Unicode, or too many for int8, stopped a release."""
    usual = [b"%03d" % (i // 2 % 128) for i in range(300)]
    holed = [*usual[:ROW], odd, *usual[ROW + 1 :]]
    read, embedded = [], []
    for values in (usual, holed):
        path = tmp_path / f"t{suffix}"
        found = pa.table({"x": np.arange(300.0), "labels": coded(values, kind)})
        write(path, found.append_column("notes", coded(values, kind)), 300)
        columns = Columns(("x",), "labels", reads_label=True, person="notes")
        blocks = [*tables.file_shards(str(path), "--private", columns)[0].blocks(64)]
        labels, persons = ([getattr(b, name) for b in blocks] for name in ("labels", "persons"))
        read.append((np.concatenate(labels), np.concatenate(persons)))
        source = TableFile(path, "--table", ("notes", "x"), "labels", ("notes",), private=True)
        parts = [part.records.column("notes") for part in source.blocks(300)]
        embedded.append(np.concatenate([table_model.texts(part) for part in parts]))
    others = np.delete(np.arange(300), ROW)
    for one, other in zip((*read[0], embedded[0]), (*read[1], embedded[1]), strict=True):
        np.testing.assert_array_equal(one[others], other[others])


def test_sets_of_categories_come_as_their_values(tmp_path):
    """Each batch numbers its own, and all of them are more than the numbers of one can count."""
    parts = []
    for letter in "xy":
        numbers = pa.array(range(100), pa.int8())
        values = pa.array([f"{letter}{i}" for i in range(100)])
        sets = pa.ListArray.from_arrays(
            pa.array(range(0, 101, 2), pa.int32()), pa.DictionaryArray.from_arrays(numbers, values)
        )
        parts.append(pa.table({"x": np.arange(50.0), "labels": sets}))
    write(tmp_path / "t.arrow", pa.concat_tables(parts), 50)
    source = TableFile(tmp_path / "t.arrow", "--table", ("x",), "labels", private=True)
    (found,) = source.blocks(100)
    sets = found.columns["labels"].to_pylist()
    assert sets == [[f"{s}{i}", f"{s}{i + 1}"] for s in "xy" for i in range(0, 100, 2)]


def test_sets_of_categories_of_polars_are_embedded(tmp_path):
    sets = pl.Series([["a", "b"], ["c"], None], dtype=pl.List(pl.Categorical))
    pl.DataFrame({"x": [1.0, 2.0, 3.0], "labels": sets}).write_ipc(tmp_path / "t.arrow")
    source = TableFile(tmp_path / "t.arrow", "--table", ("x",), "labels", private=True)
    (found,) = source.blocks(100)
    assert found.columns["labels"].to_pylist() == [["a", "b"], ["c"], None]


@pytest.mark.parametrize("compliant", [True, False])
def test_categories_beside_lists_come_as_their_values(tmp_path, compliant):
    """Writers have named the items of lists in two ways."""
    codes = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 0], pa.int8()), strings([b"a", b"\xe9"]), safe=False
    )
    found = pa.table({"labels": codes, "embeddings": [[1.0, 2.0]] * 3})
    pq.write_table(found, tmp_path / "t.parquet", use_compliant_nested_type=compliant)
    columns = Columns(None, "labels", reads_label=True, width=2)
    (block,) = tables.file_shards(str(tmp_path / "t.parquet"), "--private", columns)[0].blocks(9)
    assert block.labels.tolist() == ["a", "\ufffd", "a"]


def test_a_data_set_of_categories_is_refused_whatever_it_holds(tmp_path):
    """pyarrow builds its dictionaries, and one value that is no Unicode would stop it."""
    path = tmp_path / "a.parquet"
    pd.DataFrame({"c": pd.Series(["a", "b"], dtype="category"), "x": 1.0}).to_parquet(path)
    shard = ArrowShard("a", pyarrow.dataset.dataset(path), Columns(("x",), "c", width=1))
    with pytest.raises(ValueError, match="name its files instead"):
        shard.layout()


def test_files_of_categories_are_one_table_however_many_values_each_has(tmp_path):
    """pandas numbers 126 categories in int8, and one more in int16: another schema."""
    for count in (126, 127):
        category = pd.Series([f"{i:03}" for i in range(count)], dtype="category")
        pd.DataFrame({"c": category, "x": 1.0}).to_parquet(tmp_path / f"{count}.parquet")
    source = TableFile(tmp_path, "--table", ("c", "x"), private=True)
    found = [table_model.texts(part.records.column("c")) for part in source.blocks(100)]
    assert np.concatenate(found).tolist() == [f"{i:03}" for n in (126, 127) for i in range(n)]


def test_a_list_of_another_length_keeps_no_client_out_of_a_round(tmp_path):
    rows = [[0.1 * i, 1.0] for i in range(50)]
    read = []
    for odd in (rows[ROW], [1.0], [1.0] * 3, None, []):
        lists = pa.array([*rows[:ROW], odd, *rows[ROW + 1 :]], pa.list_(pa.float32()))
        path = tmp_path / "client.parquet"
        pq.write_table(pa.table({"embeddings": lists, "labels": [i % 2 for i in range(50)]}), path)
        read.append(np.delete(read_records(Join(private=path, dimensions=2)).inputs, ROW, axis=0))
    for found in read[1:]:
        np.testing.assert_array_equal(found, read[0])


def test_no_record_decides_which_length_of_lists_counts(tmp_path):
    """Five of ten records of 3 numbers kept a client out of a round about 2, and four did not."""
    for longer in (4, 5, 6):
        rows = [[1.0, 2.0, 3.0]] * longer + [[1.0, 2.0]] * (10 - longer)
        lists = pa.array(rows, pa.list_(pa.float32()))
        found = pa.table({"embeddings": lists, "labels": [0, 1] * 5})
        pq.write_table(found, tmp_path / "c.parquet")
        with pytest.raises(ValueError, match="Expected dimensions, as lists"):
            read_records(Join(private=tmp_path / "c.parquet"))
        read = read_records(Join(private=tmp_path / "c.parquet", dimensions=2)).inputs
        assert read.shape == (10, 2)
        assert np.isfinite(read).all(axis=1).sum() == 10 - longer


def test_whole_numbers_of_64_bits_are_rounded_alike_beside_a_missing_one():
    exact = 2**60 + 2**36 + 1  # by float64 it is a tie of float32, and by itself it is not
    columns = Columns(("a", "b"), "labels", reads_label=False, width=2)
    found = []
    for other in (5, None):
        both = pa.table({"a": pa.array([exact, other], pa.int64()), "b": pa.array([1, 1])})
        (block,) = ArrowShard("t", both, columns).blocks(16)
        found.append(np.asarray(block.embeddings)[0].astype(np.float32))
    np.testing.assert_array_equal(*found)


def test_a_complex_cell_is_its_rows_alone():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": pd.Series([1, 2, 3], dtype="Int64")})
    odd = frame.astype({"a": object})
    odd.loc[0, "a"] = 1j
    odd["a"] = odd["a"].astype(complex)
    np.testing.assert_array_equal(frames.rows_of(odd, 2)[1:], frames.rows_of(frame, 2)[1:])


def totals(tmp_path, by, records):
    """Return the labels of files by a table; a record is a file, a row, or both."""
    names = {"file": [row for _, row, _ in records if row], "labels": []}
    names["labels"] = [label for _, row, label in records if row]
    path = tmp_path / "t.parquet"
    pq.write_table(
        pa.table(
            {
                "file": pa.array(names["file"], pa.string()),
                "labels": pa.array(names["labels"], pa.string()),
            }
        ),
        path,
    )
    rows = FileRows.read(path, "--image-table", "file", "labels", [], by)
    files = sorted({file for file, _, _ in records if file})
    return rows.take(rows.rows_of(files))["labels"].to_pylist()


@pytest.mark.parametrize("by", ["name", "path"])
def test_a_record_that_comes_or_goes_moves_the_labels_of_images_by_one(tmp_path, by):
    """A record is a file with the row that names it, by its path or by its name."""
    draw = random.Random(1)
    worst = 0
    for _ in range(150):
        records = []
        for _ in range(draw.randrange(1, 6)):
            file = f"{draw.choice(['', 'a/', 'b/'])}{draw.choice('xy')}.png"
            row = draw.choice([file, file, None, *(["z/" + file.split("/")[-1]] * (by == "name"))])
            records.append((file, row, draw.choice("st")))
        counts = [
            {label: found.count(label) for label in "st"}
            for found in (totals(tmp_path, by, records), totals(tmp_path, by, records[:-1]))
        ]
        change = sum(abs(counts[0][label] - counts[1][label]) for label in "st")
        worst = max(worst, change)
    assert worst == 1


def test_the_name_of_a_file_may_be_any_bytes(tmp_path):
    path = tmp_path / "t.parquet"
    names = pa.array([b"a.png", b"\xff.png"], pa.binary())
    pq.write_table(pa.table({"file": names, "labels": ["x", "y"]}), path)
    rows = FileRows.read(path, "--image-table", "file", "labels", [])
    assert rows.take(rows.rows_of(["a.png"]))["labels"].to_pylist() == ["x"]


def test_labels_of_true_and_false_are_sets_of_one_with_and_without_a_missing_one():
    classes = named_classes(["0", "1"])
    whole = encode(np.array([True, False, True]), classes, 1).ids
    holed = encode(np.array([True, None, True], object), classes, 1).ids
    np.testing.assert_array_equal(whole[[0, 2]], holed[[0, 2]])


def test_a_record_that_a_network_cannot_take_is_a_row_of_nan():
    def run(record):
        if record < 0:
            raise RuntimeError("no such position")
        if record == 2:
            return np.array([record], np.float32)
        return np.array([record, 1], np.float32)

    for records in ([1, -1, 3], [1, 2, 3], [-1], [2]):
        rows = [[one, 1] if one in (1, 3) else [np.nan, np.nan] for one in records]
        np.testing.assert_array_equal(onnx.each(run, records, lambda: 2, lambda: 1), rows)
    with pytest.raises(RuntimeError):
        onnx.each(run, [-1], lambda: len(run(-2)), lambda: 1)


@pytest.mark.parametrize("words", [("rounds", "--epsilon", 0.1, "--rounds", 10, "--delta", 1e-5)])
def test_no_printed_epsilon_is_below_the_computed_one(rknn, words):
    done = rknn("account", *words, "--json")
    assert done.status == 0, done.err
    printed = [float(part.split(",")[0]) for part in done.err.split("epsilon = ")[1:]]
    found = list(done.json["accountants"].values())
    assert any(rounded_up(one, 6) != f"{one:.6g}" for one in found), "or this shows nothing"
    for one in found:
        assert min(abs(told - one) for told in printed if told >= one) < 1e-5 * one
