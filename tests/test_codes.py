"""Text that looks like a number or a missing value is read as it stands, at every door."""

import csv
import json
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rknn_jax.formats import Columns
from rknn_jax.records import frames
from rknn_jax.records.classes import named_classes
from rknn_jax.records.labels import encode
from rknn_jax.records.persons import person_names
from rknn_jax.release import tables

CODES = (
    *("1E10", "1E11", "1E1", "10", "0012", "12", "012", "1_000", "1000", "1e5", "100000", "+5"),
    *("NaN", "nan", "inf", "None", "NA", "N/A", "0x1F", "1.10", "1.1", "E10.0", ".5", "-1"),
    *("true", "True"),
)
TABLE = pd.DataFrame({"x": np.arange(len(CODES)) / 7, "y": 0.5, "code": [*CODES]})


def quoted(table, path):
    with path.open("w", newline="") as file:
        lines = csv.writer(file, quoting=csv.QUOTE_ALL)
        lines.writerow(table.columns)
        lines.writerows(table.to_numpy(object).tolist())


FILES = {
    "plain.csv": lambda table, path: table.to_csv(path, index=False),
    "quoted.csv": quoted,
    "a.jsonl": lambda table, path: table.to_json(path, orient="records", lines=True),
    "text.parquet": lambda table, path: table.to_parquet(path, index=False),
    "coded.parquet": lambda table, path: table.astype({"code": "category"}).to_parquet(path),
    "a.arrow": lambda table, path: pl.from_pandas(table).write_ipc(path),
    "enum.parquet": lambda table, path: (
        pl.from_pandas(table)
        .with_columns(pl.col("code").cast(pl.Enum([*CODES])))
        .write_parquet(path)
    ),
}

SERIES = {
    "list": list,
    "array": lambda codes: np.array(codes),
    "objects": lambda codes: np.array(codes, object),
    "pandas": pd.Series,
    "pandas string": lambda codes: pd.Series(codes, dtype="string"),
    "pandas category": lambda codes: pd.Series(codes).astype("category"),
    "polars": pl.Series,
    "polars enum": lambda codes: pl.Series(codes, dtype=pl.Enum([*CODES])),
    "arrow": pa.array,
}


def read(folder, name, **columns):
    FILES[name](TABLE, folder / name)
    asked = Columns(("x", "y"), "code", width=2, **columns)
    (shard,) = tables.file_shards(str(folder / name), "--private", asked)
    return [*shard.blocks(5)]


@pytest.mark.parametrize("name", FILES)
def test_codes_of_files_are_the_classes_that_are_named_so(tmp_path, name):
    classes = named_classes(CODES)
    ids = [encode(block.labels, classes).ids for block in read(tmp_path, name)]
    np.testing.assert_array_equal(np.concatenate(ids), np.arange(len(CODES)))


@pytest.mark.parametrize("name", SERIES)
def test_codes_of_series_are_the_classes_that_are_named_so(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labels, known = frames.single(SERIES[name]([*CODES]), [*CODES])
    found = known[encode(labels, named_classes([str(one) for one in known])).ids]
    np.testing.assert_array_equal(found, CODES)


def persons():
    """Return what names a person, as all doors have to read it."""
    known = [code for code in CODES if code.lower() not in ("nan", "inf", "none", "na", "n/a")]
    return known, {code: code.lstrip("+") for code in known} | {"0012": "12", "012": "12"}


@pytest.mark.parametrize("name", [*FILES, *SERIES])
def test_codes_of_persons_are_one_person_alone_if_they_are_one_whole_number(tmp_path, name):
    known, same = persons()
    if name in FILES:
        held = np.concatenate(
            [one.persons for one in read(tmp_path, name, person="code", reads_label=False)]
        )
    else:
        held = frames.column(SERIES[name]([*CODES]))
    names, there = person_names(held, "--private")
    assert [code for code, has in zip(CODES, there, strict=True) if has] == known
    found = dict(zip(CODES, map(bytes, names), strict=True))
    for code in known:
        for other in known:
            assert (found[code] == found[other]) == (same[code] == same[other]), (code, other)


def test_a_code_is_no_class_by_its_value():
    """1E1 of ICD-11 is not 10, and is no tenth class."""
    names = named_classes(["1E1", "x", "y"])
    labels = np.array(["10", "1E1", "1e1", "1E0", "y"])
    np.testing.assert_array_equal(encode(labels, names).ids, [-1, 0, -1, -1, 2])
    numbers = encode(np.array(["1.000e+00", "1e+0", "1e0"]), named_classes(["0", "1"])).ids
    np.testing.assert_array_equal(numbers, [1, 1, -1])


def write_codes(path, codes):
    records = [{"code": codes[i % len(codes)], "v": i % 7 + 0.5} for i in range(60)]
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    elif path.suffix == ".csv":
        quoted(pd.DataFrame(records), path)
    else:
        pq.write_table(pa.Table.from_pylist(records), path)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    "codes",
    [
        ["0012", "12", "300"],
        ["1E10", "1E11"],
        ["NA", "DE"],
        ["1_000", "1000"],
        ["None", "NaN", "x"],
    ],
    ids=str,
)
def test_codes_are_categories_of_a_table(rknn, tmp_path, form, codes):
    write_codes(tmp_path / f"T.{form}", codes)
    done = rknn("embed", "--table", f"T.{form}", "--out", "P.parquet")
    assert done.status == 0, done.err
    told = " ".join(done.err.split())
    assert f"numbers v; categories code ({len(codes)} values)" in told
    card = json.loads((tmp_path / "P.card.json").read_text())
    assert card["model"]["columns"][0]["values"] == sorted(codes)


def test_many_codes_are_refused_like_other_text(rknn, tmp_path):
    write_codes(tmp_path / "T.csv", [f"{i:05}" for i in range(60)])
    done = rknn("embed", "--table", "T.csv", "--out", "P.parquet")
    assert done.status == 2
    assert "got 60 codes, such as '00000'; group them" in " ".join(done.err.split())
