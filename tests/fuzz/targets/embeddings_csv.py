"""Private CSV files, of which no line raises an error, and public ones."""

from pathlib import Path

import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet  # noqa: F401 loaded once, and not in every process that reads an input

from rknn_jax.formats import Columns
from rknn_jax.release import tables
from rknn_jax.release.shards import FileShard, Records
from tests.fuzz.targets.embeddings_npz import LABELS, ROWS

LINES = [",".join([*map(str, row), str(label)]) for row, label in zip(ROWS, LABELS, strict=True)]


def seeds():
    plain = "\n".join(["a,b,c,d,labels", *LINES]) + "\n"
    quoted = plain.replace("0.", '"0.').replace("1,", '1",')
    return [
        {"x.csv": text.encode()}
        for text in (plain, plain.replace("\n", "\r\n"), quoted, "\ufeff" + plain)
    ]


def readers(folder: Path):
    path = folder / "x.csv"
    shard = FileShard(str(path), "--private", Columns())
    return [
        lambda: tables.read_embeddings(path, "--public"),
        lambda: list(shard.blocks(7)),
        lambda: Records.of([shard]),
    ]
