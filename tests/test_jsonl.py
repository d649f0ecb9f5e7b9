"""JSON lines: a line is a record, whatever it holds, and a table is read as in other formats."""

import json
import re
import time
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rknn_jax.formats import Columns, jsonl
from rknn_jax.formats._data_files import find
from rknn_jax.records.classes import parse_classes
from rknn_jax.records.labels import encode
from rknn_jax.records.persons import person_names
from rknn_jax.release.shards import FileShard
from tests.conftest import crossed
from tests.test_cli import arguments, arrays
from tests.test_inputs import LABELS, NO_NOISE, PRIVATE, PUBLIC, TRUTH, frame, refused

LISTS = ({"embeddings": PUBLIC.tolist()}, {"embeddings": PRIVATE.tolist(), "labels": LABELS})


def write(path, columns):
    pd.DataFrame(columns).to_json(path, orient="records", lines=True)


def shard(path, **changes):
    return FileShard(str(path), "--private", Columns(width=2)._replace(**changes))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["lists", "columns"])
@pytest.mark.parametrize("labels", ["numbers", "names"])
def test_both_sides_may_be_json_lines(rknn, tmp_path, kind, labels):
    named = np.array(["b", "a", "c"])[LABELS] if labels == "names" else LABELS
    if kind == "lists":
        write(tmp_path / "P.jsonl", LISTS[0])
        write(tmp_path / "R.jsonl", LISTS[1] | {"labels": named})
    else:
        write(tmp_path / "P.jsonl", frame(PUBLIC).assign(site="s", row=np.arange(60) + 7))
        write(tmp_path / "R.jsonl", frame(PRIVATE).assign(labels=named)[::-1].iloc[:, ::-1])
    data = {"public": "P.jsonl", "private": "R.jsonl"} | NO_NOISE
    classes = {"classes": "b,a,c" if labels == "names" else 3}
    drop = ["--drop", "site", "row"] if kind == "columns" else []
    if drop:
        refused(rknn, tmp_path, data | classes, "'site'")
    done = rknn("check", "R.jsonl", "--public", "P.jsonl", "--classes", classes["classes"], *drop)
    assert "90, of which 90 can be used" in done.out + done.err
    done = rknn(*arguments(**data | classes), *drop)
    assert done.status == 0, done.err
    found = arrays(tmp_path / "new" / "labels.npz")
    np.testing.assert_array_equal(found["label"], TRUTH)
    if drop:
        np.testing.assert_array_equal(found["row"], np.arange(60) + 7)
        assert found["public_site"].tolist() == ["s"] * 60


@crossed(other=["npz", "csv", "parquet"], side=["public", "private"])
def test_one_side_may_be_json_lines(rknn, tmp_path, other, side):
    as_lists = other == "npz"
    for name, rows, labels in (("P", PUBLIC, {}), ("R", PRIVATE, {"labels": LABELS})):
        if as_lists:
            write(tmp_path / f"{name}.jsonl", {"embeddings": rows.tolist(), **labels})
            np.savez(tmp_path / f"{name}.npz", embeddings=rows, **labels)
            continue
        write(tmp_path / f"{name}.jsonl", frame(rows).assign(**labels))
        frame(rows).assign(**labels).to_csv(tmp_path / f"{name}.csv", index=False)
        frame(rows).assign(**labels).to_parquet(tmp_path / f"{name}.parquet")
    data = {"public": f"P.{other}", "private": f"R.{other}"}
    data[side] = data[side].replace(other, "jsonl")
    done = rknn(*arguments(**data, **NO_NOISE))
    assert done.status == 0, done.err
    np.testing.assert_array_equal(arrays(tmp_path / "new" / "labels.npz")["label"], TRUTH)


def test_one_column_and_one_dimension_are_read(rknn, tmp_path):
    write(tmp_path / "P.jsonl", {"x": TRUTH * 4.0})
    write(tmp_path / "R.jsonl", {"x": LABELS * 4.0, "labels": LABELS})
    done = rknn(*arguments(public="P.jsonl", private="R.jsonl", **NO_NOISE))
    assert done.status == 0, done.err
    np.testing.assert_array_equal(arrays(tmp_path / "new" / "labels.npz")["label"], TRUTH)


def test_classes_are_selected_from_json_lines(rknn, tmp_path):
    write(tmp_path / "P.jsonl", LISTS[0])
    write(tmp_path / "R.jsonl", LISTS[1] | {"labels": np.array(["a", "b", "c"])[LABELS]})
    words = ["--private", "R.jsonl", "--public", "P.jsonl", "--epsilon", 30, "--delta", 0.1]
    done = rknn("classes", *words, "--json")
    assert done.status == 0, done.err
    assert done.json["classes"] == ["a", "b", "c"]
    alone = rknn("classes", *words[:2], *words[4:])
    assert alone.status == 2
    assert "--public" in alone.err


BROKEN = [
    b"",
    b"   ",
    b"null",
    b"[1, 2]",
    b"{",
    b'{"x": 1, "y": 2, "labels": 1',
    b'{"x": 1 "y"}',
    b"\xff\xfe{}",
    b"[" * 100_000,
    b'{"x": ' + b"9" * 5000 + b"}",
    b'{"y": {"x": 1}, "x": [1], "labels": {"a": 1}, "who": [1]}',
    b'{"x": "one", "y": null, "labels": [[1]], "who": true}',
    b'{"x": 1e999, "y": NaN, "labels": NaN, "who": NaN}',
    b'{"X": 1, "Y": 2, "Labels": 1}',
    b'{"x": 1, "y": 2, "labels": "\\ud800", "who": "\\ud800"}',
]


@pytest.mark.parametrize("line", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("place", [0, 3, 6])
@pytest.mark.filterwarnings("ignore:1 lines")
def test_a_line_is_a_record_and_moves_no_other(tmp_path, line, place):
    lines = [json.dumps({"x": i, "y": -i, "labels": i % 3, "who": i}).encode() for i in range(6)]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines[:place], line, *lines[place:]]) + b"\n")
    given = shard(tmp_path / "a.jsonl", embedding=("x", "y"), person="who")
    assert given.num_rows() == 7
    (block,) = given.blocks(10)
    rows = np.delete(block.embeddings, place, axis=0)
    np.testing.assert_array_equal(rows, [[i, -i] for i in range(6)])
    ids = encode(block.labels, parse_classes("3")).ids
    assert np.delete(ids, place).tolist() == [i % 3 for i in range(6)]
    names, known = person_names(block.persons, "here")
    np.testing.assert_array_equal(
        np.delete(names, place, axis=0), person_names(np.arange(6), "here")[0]
    )
    usable = np.isfinite(block.embeddings[place]).all() and ids[place] >= 0 and known[place]
    assert not usable


def test_how_deep_lists_may_be_is_the_same_at_every_call():
    """Python's own limit is that of its stack, so a record could be read here and not there."""
    for depth in (1, 98, 99, 100, 101, *range(950, 1010)):
        note = "[" * depth + "]" * depth
        words = '"[{\\"' + "[" * 200 + '"'
        line = f'{{"x": 1, {words}: {words}, "note": {note}}}'.encode()
        for each in (line, line[:-1] + b', "rest": [' + b"[]," * 300 + b"[]]}"):
            (record,) = jsonl.parsed([each], public=False)
            assert (record is not None) == (depth < jsonl.DEEPEST), depth


def test_a_mark_of_utf8_counts_alike_in_every_line(tmp_path):
    """Files that were joined have marks inside; a record must not be read by its place."""
    line = b'\xef\xbb\xbf{"x": 1, "y": 2, "labels": 1}\n'
    for before in (b"", b"{\n", line):
        (tmp_path / "a.jsonl").write_bytes(before + line)
        given = shard(tmp_path / "a.jsonl", embedding=("x", "y"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (block,) = given.blocks(10)
        np.testing.assert_array_equal(block.embeddings[-1], [1, 2])
        assert block.labels[-1] == "1"


def test_lists_of_another_length_and_odd_values_are_rows_of_nan(tmp_path):
    values = [[1, 2], [1], [], [1, 2, 3], [1, None], ["1", "2"], None, 5, [True, False], [[1], 2]]
    lines = [json.dumps({"embeddings": value, "labels": 0}) for value in values]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (block,) = shard(tmp_path / "a.jsonl").blocks(99)
    finite = np.isfinite(block.embeddings).all(axis=1)
    assert finite.tolist() == [True, *[False] * 7, True, False]


def test_values_are_read_as_in_csv(tmp_path):
    values = ["1.5", " 2 ", True, "false", "x", None, 3]
    lines = [json.dumps({"x": value, "y": 0, "labels": value}) for value in values]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (block,) = shard(tmp_path / "a.jsonl", embedding=("x", "y")).blocks(99)
    np.testing.assert_array_equal(block.embeddings[:, 0], [1.5, 2, 1, 0, np.nan, np.nan, 3])
    ids = encode(block.labels, parse_classes("0,1,2,3,1.5")).ids
    assert ids.tolist() == [4, 2, 1, 0, -1, -1, 3]


def test_several_labels_are_lists_or_text(tmp_path):
    labels = [["a", "b"], "a;b", ["c", "x"], [], None, [0, 2], ["a"] * 9999, [True, False, False]]
    lines = [json.dumps({"embeddings": [0, 0], "labels": value}) for value in labels]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (block,) = shard(tmp_path / "a.jsonl").blocks(99)
    found = encode(block.labels, parse_classes("a,b,c"), 2)
    assert [sorted(row[row >= 0].tolist()) for row in found.ids[:, :2]][:6] == [
        [0, 1],
        [0, 1],
        [2],
        [],
        [],
        [0, 2],
    ]
    assert found.told.tolist()[:3] == [1, 1, 2]
    assert found.ids[7].tolist()[:2] == [0, -1]
    assert found.told[7] == 1


@pytest.mark.parametrize("most", [1, 2, 5])
def test_masks_are_those_of_typed_formats(tmp_path, most):
    """In CSV and JSON lines, a list has no type, and a record's mask is read by itself."""
    rng = np.random.default_rng(0)
    masks = rng.random((40, 5)) < rng.random((40, 1))
    masks[:2] = [[False] * 5, [True] * 5]
    lines = [json.dumps({"embeddings": [0, 0], "labels": mask}) for mask in masks.tolist()]
    odd = [[True] * 4, [True, "a"], [True, None, False, False, False], "\x015;7", "\x01", [1, 0]]
    lines += [json.dumps({"embeddings": [0, 0], "labels": value}) for value in odd]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    flat = pa.FixedSizeListArray.from_arrays(pa.array(masks.ravel()), 5)
    rows = pa.array([[0.0, 0.0]] * 40)
    pq.write_table(pa.table({"embeddings": rows, "labels": flat}), tmp_path / "a.parquet")
    (block,) = shard(tmp_path / "a.jsonl").blocks(99)
    (typed,) = FileShard(str(tmp_path / "a.parquet"), "--private", Columns(width=2)).blocks(99)
    classes = parse_classes("a,b,c,d,e")
    found, wanted = (encode(one.labels, classes, most) for one in (block, typed))
    np.testing.assert_array_equal(found.ids[:40], wanted.ids)
    np.testing.assert_array_equal(found.told[:40], wanted.told)
    assert found.told[40:45].tolist() == [2] * 5
    alone = encode(block.labels, classes)
    assert alone.ids[:45].tolist() == [-1] * 45  # one label a record


def test_several_labels_go_through_embed(rknn, tmp_path):
    labels = [["a", "b"], [True, False, True], "c", [], None, 1]
    records = [{"x": i / 7, "labels": label} for i, label in enumerate(labels)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    done = rknn("embed", "--table", "a.jsonl", "--columns", "x", "--out", "o.parquet")
    assert done.status == 0, done.err
    (block,) = FileShard("o.parquet", "--private", Columns()).blocks(9)
    found = encode(block.labels, parse_classes("a,b,c"), 2).ids[:, :2]
    kept = [sorted(row[row >= 0].tolist()) for row in found]
    assert kept == [[0, 1], [0, 2], [2], [], [], [1]]


def test_a_long_line_costs_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "LONGEST", 1000)
    line = b'{"x": 1, "y": 2, "labels": 1}\n'
    long = b'{"x": 1, "y": 2, "labels": 1, "z": "' + b"a" * 2500 + b'"}\n'
    (tmp_path / "a.jsonl").write_bytes(line + long + line)
    given = shard(tmp_path / "a.jsonl", embedding=("x", "y"))
    with pytest.warns(UserWarning, match="1 lines of .* cast no vote"):
        (block,) = given.blocks(10)
    assert np.isfinite(block.embeddings).all(axis=1).tolist() == [True, False, True]
    assert given.num_rows() == 3


def test_a_long_first_line_with_a_mark_is_one_record(tmp_path, monkeypatch):
    """Three bytes of the mark count, or the rest of the line would be a record too."""
    monkeypatch.setattr(jsonl, "LONGEST", 1000)
    line = b'{"x": 1, "y": 2, "labels": 1}\n'
    for length in (990, 997, 998, 1000, 1003, 2500):
        first = b'\xef\xbb\xbf{"z": "' + b"a" * (length - 14) + b'"}\n'
        (tmp_path / "a.jsonl").write_bytes(first + line)
        given = shard(tmp_path / "a.jsonl", embedding=("x", "y"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (block,) = given.blocks(10)
        assert len(block.labels) == given.num_rows() == 2, length


def test_a_public_line_is_named_by_its_row_in_every_block(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": 1, "y": 2}\n' * 250 + "{\n")
    given = FileShard(
        str(tmp_path / "a.jsonl"), "--public", Columns(reads_label=False, public=True)
    )
    with pytest.raises(ValueError, match="in row 250;"):
        list(given.blocks(100))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "an object of JSON in every line, such as .* row 60"),
        (b"", "row 60"),
        (b"{}", r"Expected finite embeddings .* \['x0', 'x1', 'x2', 'x3'\], first in row 60"),
    ],
)
def test_a_broken_public_line_is_an_error(rknn, tmp_path, line, words):
    write(tmp_path / "P.jsonl", frame(PUBLIC))
    write(tmp_path / "R.jsonl", frame(PRIVATE).assign(labels=LABELS))
    content = (tmp_path / "P.jsonl").read_bytes().rstrip(b"\n")
    (tmp_path / "P.jsonl").write_bytes(content + b"\n" + line + b"\n")
    done = rknn(*arguments(public="P.jsonl", private="R.jsonl"), "--dry-run")
    assert done.status == 2
    assert re.search(words, " ".join(done.err.split()))


def test_what_private_lines_do_not_tell_is_asked_for(rknn, tmp_path):
    write(tmp_path / "R.jsonl", LISTS[1])
    done = rknn("check", "R.jsonl", "--classes", 3)
    assert done.status == 2
    assert "name the public records with --public" in " ".join(done.err.split())
    write(tmp_path / "R.jsonl", frame(PRIVATE).assign(labels=LABELS, who="a"))
    words = ["check", "R.jsonl", "--classes", 3, "--embedding", "x0", "x1", "x2", "x3"]
    assert rknn(*words, "--json", "--person", "who").json["usable"] == 90
    assert rknn(*words, "--json", "--label", "ill").json["reasons"] == {"missing label": 90}


def test_a_ledger_is_no_file_of_records(rknn, tmp_path):
    (tmp_path / "R").mkdir()
    np.savez(tmp_path / "R" / "a.npz", embeddings=PRIVATE, labels=LABELS)
    (tmp_path / "R" / "a.npz.ledger.jsonl").write_text("{}\n")
    assert [name[-5:] for name in find([str(tmp_path / "R")], "--private").files] == ["a.npz"]
    (tmp_path / "R" / "L.jsonl").write_text("{}\n")
    np.savez(tmp_path / "P.npz", embeddings=PUBLIC)
    done = rknn(*arguments(private="R"), "--ledger", "R/L.jsonl")
    assert done.status == 2
    assert "--ledger outside of --private" in " ".join(done.err.split())


@pytest.mark.long
def test_reading_is_linear_in_rows_and_columns(tmp_path):
    def seconds(rows, columns):
        line = json.dumps({f"x{i}": i for i in range(columns)} | {"labels": 1})
        (tmp_path / "a.jsonl").write_text("\n".join([line] * rows))
        names = tuple(f"x{i}" for i in range(columns))
        given = shard(tmp_path / "a.jsonl", embedding=names, width=columns)
        start = time.process_time()
        assert sum(len(block.labels) for block in given.blocks(1000)) == rows
        return time.process_time() - start

    assert seconds(2000, 200) < 30 * seconds(1000, 40) + 1
    assert seconds(20, 10_000) < 2


@pytest.mark.long
@pytest.mark.parametrize("label", ["labels", "label"])
def test_further_keys_of_a_file_of_labels_are_told_to_the_curator_alone(rknn, tmp_path, label):
    """They may say another order, and a release cannot look: which keys there are is private."""
    np.savez(tmp_path / "P.npz", embeddings=PUBLIC)
    np.savez(tmp_path / "R.npz", embeddings=PRIVATE)
    lines = [{"row": 89 - i, label: int(one), "note": "a"} for i, one in enumerate(LABELS)]
    (tmp_path / "L.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    named = [] if label == "labels" else ["--label", label]
    given = arguments(private_labels="L.jsonl")
    dry = rknn(*given, *named, "--dry-run")
    assert dry.status == 0, dry.err
    told = " ".join(dry.err.split())
    assert f"'{label}' of each line of --private-labels, for the record in the same place" in told
    assert "a dry run reads no labels and no keys of JSON lines" in told
    assert "'note'" not in told
    words = ["check", "R.npz", "--private-labels", "L.jsonl", "--classes", 3, *named]
    told = " ".join(rknn(*words).out.split())
    assert f"have 'row', 'note' beside '{label}', and labels belong to records by their" in told
    assert "90, of which 90 can be used" in told
    assert "beside" not in rknn(*words, "--drop", "row", "note").out
