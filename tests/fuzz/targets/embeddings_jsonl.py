"""Private JSON lines, of which no line raises an error, and public ones."""

import json
from pathlib import Path

from rknn_jax.formats import Columns
from rknn_jax.release import tables
from rknn_jax.release.shards import FileShard, Records
from tests.fuzz.targets.embeddings_npz import LABELS, ROWS

LISTS = [
    json.dumps({"embeddings": row.tolist(), "labels": int(label)})
    for row, label in zip(ROWS, LABELS, strict=True)
]
COLUMNS = [
    json.dumps(dict(zip("abcd", row.tolist(), strict=True)) | {"labels": str(label)})
    for row, label in zip(ROWS, LABELS, strict=True)
]


def seeds():
    return [
        {"x.jsonl": text.encode()}
        for text in ("\n".join(LISTS), "\r\n".join(COLUMNS) + "\r\n", "\ufeff" + "\n".join(COLUMNS))
    ]


def readers(folder: Path):
    path = folder / "x.jsonl"
    lists = FileShard(str(path), "--private", Columns(width=4))
    columns = FileShard(str(path), "--private", Columns(("a", "b", "c", "d"), person="who"))
    return [
        lambda: tables.read_embeddings(path, "--public"),
        lambda: list(lists.blocks(7)),
        lambda: list(columns.blocks(7)),
        lambda: Records.of([lists]),
    ]
