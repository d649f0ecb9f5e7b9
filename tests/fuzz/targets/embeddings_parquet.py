"""`tables` on Parquet files, whose columns are of every type that a user may have saved."""

import datetime
import decimal
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from rknn_jax.formats import Columns
from rknn_jax.release import tables
from tests.fuzz.targets.embeddings_npz import LABELS, ROWS

LISTS = pa.array(ROWS.tolist(), pa.list_(pa.float32()))
COLUMNS = (
    {"embeddings": LISTS, "labels": pa.array(LABELS)},
    {
        "embeddings": pa.FixedSizeListArray.from_arrays(ROWS.ravel(), 4),
        "labels": pa.array(LABELS.astype(str)).dictionary_encode(),
    },
    {"a": pa.array(ROWS[:, 0]), "b": pa.array(ROWS[:, 1]), "labels": pa.array(LABELS / 2)},
    {
        "embeddings": pa.array([[1.0, None], None, [], [3.0]]),
        "labels": pa.array([None, "", "a", "b"]),
    },
    {"embeddings": pa.array([[True, False]]), "labels": pa.array([True])},
    {"embeddings": pa.array([[[1.0]], [[2.0]]]), "labels": pa.array([[1], [2]])},
    {"embeddings": pa.array([{"a": 1}, {"a": 2}]), "labels": pa.array([b"a", b"b"])},
    {
        "embeddings": pa.array([[1, 2]], pa.large_list(pa.uint64())),
        "labels": pa.array([2**64 - 1], pa.uint64()),
    },
    {"embeddings": pa.nulls(3), "labels": pa.nulls(3)},
    {"a": pa.array([decimal.Decimal("1.5")]), "labels": pa.array([decimal.Decimal("2")])},
    {
        "a": pa.array([datetime.datetime(2026, 1, 1)]),
        "labels": pa.array([datetime.date(2026, 1, 1)]),
    },
    {"embeddings": pa.array([], pa.list_(pa.float64())), "labels": pa.array([], pa.int8())},
    {"embeddings": pa.array([["1", "2"]]), "labels": pa.array([datetime.timedelta(1)])},
)


def seeds():
    made = []
    for number, columns in enumerate(COLUMNS):
        buffer = io.BytesIO()
        compression = "none" if number < 4 else "snappy"
        pa.parquet.write_table(pa.table(columns), buffer, compression=compression)
        made.append({"x.parquet": buffer.getvalue()})
    return made


def readers(folder: Path):
    path = folder / "x.parquet"
    return [
        lambda: tables.read_embeddings(path, "--public"),
        lambda: tables.read_records(path, "--private", Columns(width=4)),
        lambda: tables.read_labels(path),
    ]
