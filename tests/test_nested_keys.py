"""Keys in objects are no columns, and every error on them names the keys and the remedy."""

import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rknn_jax.embedding import table_files
from rknn_jax.embedding.images import ImageTable
from rknn_jax.embedding.rows import TableFile, texts
from rknn_jax.embedding.table import numbers
from rknn_jax.formats import AbsentError, Columns, FormatError
from rknn_jax.release.shards import FileShard

FLAT = "a column of its own, as pandas.json_normalize does"
RECORDS = [
    {"doc": {"text": f"word {i}", "n": i}, "meta": {"emb": [1.5, i]}, "labels": "a"}
    for i in range(20)
]


@pytest.fixture(params=["jsonl", "parquet"])
def path(tmp_path, request):
    found = tmp_path / f"r.{request.param}"
    if request.param == "jsonl":
        found.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    else:
        pq.write_table(pa.Table.from_pylist(RECORDS), found)
    return found


def test_a_dotted_name_is_refused_with_the_remedy(path):
    with pytest.raises(AbsentError, match=f"found doc, meta, labels; .* keys in 'doc' .* {FLAT}"):
        TableFile(path, "--text", ("doc.text",))
    columns = Columns(("meta.emb",), public=True)
    with pytest.raises(FormatError, match=f"keys in 'meta' are no columns: .* {FLAT}"):
        FileShard(str(path), "--public", columns).layout()


def test_columns_of_objects_are_no_features(path):
    columns = Columns(public=True)
    with pytest.raises(FormatError, match=f"'doc'.* {FLAT}"):
        FileShard(str(path), "--public", columns).layout()


def test_objects_are_no_text_and_no_numbers(path):
    if path.suffix == ".jsonl":
        source = TableFile(path, "--text", ("doc",), texts=True)
        with pytest.raises(
            ValueError, match=f"an object in row 0; .*keys are 'text', 'n': .* {FLAT}"
        ):
            next(source.blocks(5))
        return
    (table,) = table_files.tables(path, "--text", ["doc"], 50, refuse=True)
    for read in (lambda: texts(table), lambda: numbers(table.column("doc"), "doc")):
        with pytest.raises(ValueError, match=f"struct<.*{FLAT}"):
            read()


def test_other_absent_names_are_told_as_before(path):
    with pytest.raises(AbsentError) as caught:
        TableFile(path, "--text", ("text", "no.such"))
    assert FLAT not in str(caught.value)


def test_a_table_without_images_names_its_columns(tmp_path):
    pd.DataFrame({"photo": ["a.png"], "labels": ["x"]}).to_parquet(tmp_path / "r.parquet")
    with pytest.raises(ValueError, match="no column of photo, labels has bytes"):
        ImageTable.find(tmp_path / "r.parquet", (), None, (), private=False)


def test_the_curator_is_told_of_keys_that_no_record_has(rknn, tmp_path):
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    words = ("--text", "r.jsonl", "--columns", "doc.text", "--private", "--out", "r.parquet")
    told = " ".join(rknn("embed", *words).err.split())
    assert "no record at the beginning has 'doc.text'; the records have doc, meta, labels" in told
    assert f"{FLAT} (tell nobody)" in told
    shard = FileShard("r.jsonl", "--private", Columns(("doc.text",)))
    assert all(FLAT in sentence for sentence in shard.unseen())
