"""Feather files, whose columns are those of the Parquet target."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.feather

from rknn_jax.formats import Columns
from rknn_jax.release import tables
from rknn_jax.release.shards import FileShard
from tests.fuzz.targets.embeddings_parquet import COLUMNS


def seeds():
    made = []
    for number, columns in enumerate(COLUMNS):
        buffer = io.BytesIO()
        compression = "uncompressed" if number < 4 else "lz4"
        pa.feather.write_feather(pa.table(columns), buffer, compression=compression)
        made.append({"x.feather": buffer.getvalue()})
    return made


def readers(folder: Path):
    path = folder / "x.feather"
    shard = FileShard(str(path), "--private", Columns(width=4))
    return [
        lambda: tables.read_embeddings(path, "--public"),
        lambda: list(shard.blocks(7)),
    ]
