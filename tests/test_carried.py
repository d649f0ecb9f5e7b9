"""Columns of the public file come along to the labels as they were: ids stay ids."""

import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from rknn_jax.records import carried
from rknn_jax.release import export, tables
from tests.test_interchange import csv_rows, folder_of

BIG = 2**60 + 1
"""A whole number that no float64 is."""


@pytest.mark.parametrize(
    ("values", "kind", "told"),
    [
        ([BIG, 2], "i", [BIG, 2]),
        ([2**64 - 1, 2], "u", [2**64 - 1, 2]),
        ([-1, 2**64 - 1], "U", ["-1", str(2**64 - 1)]),
        ([10**400, 2], "U", [str(10**400), "2"]),
        ([BIG, None], "U", [str(BIG), ""]),
        ([BIG, 0.5, float("nan")], "U", [str(BIG), "0.5", ""]),
        ([3, None], "f", [3.0, np.nan]),
        ([0.1, 7, None], "f", [0.1, 7.0, np.nan]),
        ([True, None, False], "f", [1.0, np.nan, 0.0]),
        ([Decimal("10.10"), None], "f", [10.1, np.nan]),
        ([Decimal("0.12345678901234567890"), None], "U", ["0.12345678901234567890", ""]),
        ([Decimal("1E+25") + 1], "U", ["10000000000000000000000001"]),
    ],
)
def test_numbers_are_those_that_were_given_or_their_text(values, kind, told):
    found = carried.numbers(values)
    assert found.dtype.kind == kind
    np.testing.assert_array_equal(found, told)


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_an_id_survives_beside_missing_ones_and_in_files_of_other_types(tmp_path, form):
    ids = [[BIG, BIG + 1], [BIG + 2, None], [2**64 - 1, 2**64 - 2], [2**53 + 1, 7]]
    kinds = [pa.int64(), pa.int64(), pa.uint64(), pa.decimal128(20, 0)]
    for number, (values, kind) in enumerate(zip(ids, kinds, strict=True)):
        path = tmp_path / f"{number}.{form}"
        if form == "parquet":
            held = pa.array([value and Decimal(value) for value in values], pa.decimal128(20, 0))
            pq.write_table(pa.table({"x": [0.5, 1.5], "id": held.cast(kind)}), path)
        else:
            rows = [{"x": 0.5, "id": value} for value in values]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = tables.Columns(embedding=("x",))
    found = tables.read_others(tmp_path, "--public", columns)["id"]
    assert found.tolist() == ["" if one is None else str(one) for part in ids for one in part]
    found = tables.read_others(tmp_path / f"2.{form}", "--public", columns)["id"]
    assert found.tolist() == ids[2]


def test_what_is_missing_and_what_is_large_is_exported_as_it_is(tmp_path):
    numbers = {
        "public_age": np.array([30, np.nan, np.inf]),
        "public_id": ~np.arange(3).astype("u8"),
    }
    folder = folder_of(tmp_path, **numbers)
    (path,) = export.write(folder, "parquet")
    assert pq.read_table(path).select(["age", "id"]).to_pydict() == {
        "age": [30, None, np.inf],
        "id": [2**64 - 1, 2**64 - 2, 2**64 - 3],
    }
    (path,) = export.write(folder, "csv")
    assert [row["age"] for row in csv_rows(path)] == ["30.0", "", "inf"]
    assert [row["id"] for row in csv_rows(path)] == [str(2**64 - 1 - row) for row in range(3)]
    for form, place in (("label-studio", "data"), ("argilla", "metadata")):
        rows = json.loads(export.write(folder, form)[0].read_text(), parse_constant=pytest.fail)
        assert [row[place]["age"] for row in rows] == [30, None, None]
        assert [row[place]["id"] for row in rows] == [2**64 - 1 - row for row in range(3)]


def write(path, held):
    """Write a table in the format of the path."""
    if path.suffix == ".parquet":
        pq.write_table(held, path)
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(held, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in held.to_pylist()))


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_a_dropped_column_comes_along_even_if_it_has_the_name_of_a_role(tmp_path, form):
    path = tmp_path / f"public.{form}"
    held = pa.table({"x": [0.5, 1.5], "labels": ["a", "b"], "tags": ["c", "d"]})
    write(path, held)
    columns = tables.Columns(embedding=("x",), label="tags")
    assert not tables.read_others(path, "--public", columns)
    found = tables.read_others(path, "--public", columns._replace(drop=("labels",)))
    assert {name: values.tolist() for name, values in found.items()} == {"labels": ["a", "b"]}


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_the_rows_of_a_source_are_told_from_every_format(tmp_path, form):
    """Of a CSV file they were their places, and whoever joined by them got labels of others."""
    path = tmp_path / f"public.{form}"
    for values, whole in [
        ([12, -7, 0], True),
        (["r1", "2", "3"], False),
        (["007", "2", "3"], False),
        (["1", "2", ""], False),
    ]:
        held = pa.table({"x": [0.5, 1.5, 2.5], "row": values})
        write(path, held)
        found = tables.carried(
            tables.read_others(path, "--public", tables.Columns(embedding=("x",)))
        )
        assert {name: one.tolist() for name, one in found.items()} == {
            "row" if whole else "public_row": values
        }
        assert not whole or found["row"].dtype == np.int64


@pytest.mark.long
@pytest.mark.parametrize("name", ["long " * 20_000, "half \ud800", "zero \0", "id.npy"])
def test_a_column_whose_name_no_file_can_have_stays_behind(rknn, tmp_path, name):
    """The labels could not be written with it, and were paid for."""
    rng = np.random.default_rng(0)
    rows = [{"embeddings": row.tolist(), name: 1, "id": 2} for row in rng.normal(size=(40, 2))]
    (tmp_path / "public.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    np.savez(
        tmp_path / "private.npz", embeddings=rng.normal(size=(60, 2)), labels=np.arange(60) % 3
    )
    words = ("--public", "public.jsonl", "--private", "private.npz", "--classes", 3)
    done = rknn("label", *words, "--epsilon", 1, "--queries", 4, "--out", "out")
    assert done.status == 0, done.err
    carried = [name for name in np.load("out/labels.npz").files if name.startswith("public")]
    assert carried == ["public_id"]


def test_columns_of_several_types_are_joined_without_rounding():
    signed, unsigned = np.array([BIG, -1]), np.array([2**64 - 1], np.uint64)
    assert carried.joined([signed, signed]).tolist() == [BIG, -1] * 2
    told = [str(BIG), "-1", str(2**64 - 1)]
    assert carried.joined([signed, unsigned]).tolist() == told
    assert carried.joined([signed, unsigned, np.array(["x"])]).tolist() == [*told, "x"]
    np.testing.assert_array_equal(carried.joined([signed[1:], np.array([np.nan])]), [-1, np.nan])


@pytest.mark.parametrize("several", [False, True])
def test_a_public_column_named_as_that_of_sets_is_exported_beside_it(tmp_path, several):
    held = {"public_labels": np.array(["x", "y", "z"])}
    if several:
        held |= {"present": np.eye(3, dtype=bool), "stability": np.ones((3, 3), np.float32)}
    (path,) = export.write(folder_of(tmp_path, **held), "csv")
    rows = csv_rows(path)
    assert [row["public_labels" if several else "labels"] for row in rows] == ["x", "y", "z"]
    assert not several or [row["labels"] for row in rows] == ["0", "1", "2"]
