"""Private embeddings are written whatever the only record holds, and without any record."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rknn_jax.embedding import Embedded, rows, run, table_fit
from rknn_jax.embedding.images import ImageFolder

WIDTH = 2
USABLE = "1.5,2.5,0"
CELLS = [USABLE, ",,", ",,1", None]


class Ones:
    width = WIDTH
    card = {"kind": "images", "name": "ones"}

    def __call__(self, records):
        return Embedded(np.ones((len(records), WIDTH), np.float32), {})


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def csv_of(record):
    Path("p.csv").write_text("a,b,labels\n" + ("" if record is None else f"{record}\n"))
    return "p.csv"


def jsonl_of(record):
    names = ("a", "b", "labels")
    values = None if record is None else dict(zip(names, record.split(","), strict=True))
    Path("p.jsonl").write_text("" if values is None else json.dumps(values) + "\n")
    return "p.jsonl"


def parquet_of(record):
    cells = [] if record is None else [[cell or None] for cell in record.split(",")]
    columns = cells or [[], [], []]
    typed = [pa.array(column, pa.string()) for column in columns]
    pq.write_table(pa.table(dict(zip(("a", "b", "labels"), typed, strict=True))), "p.parquet")
    return "p.parquet"


def fitted():
    lines = [f"{i * 0.5},{(i * 7) % 11 * 1.3}" for i in range(40)]
    Path("pub.csv").write_text("a,b\n" + "\n".join(lines) + "\n")
    return table_fit.fit(Path("pub.csv"), "--table", ("a", "b"), chosen=True)


@pytest.mark.parametrize("write", [csv_of, jsonl_of, parquet_of])
def test_one_private_record_or_none_is_embedded_whatever_it_holds(write):
    model = fitted()
    schemas = []
    for number, record in enumerate(CELLS):
        source = rows.TableFile(Path(write(record)), "--table", ("a", "b"), "labels", (), True)
        out = Path(f"{number}.parquet")
        written = run.embed(source, model, out, private=True)
        assert written.card["rows"] == (record is not None)
        found = pq.read_table(out)
        assert np.isfinite(found["embeddings"].to_pylist()).all() == (record in (USABLE, None))
        schemas.append(found.schema)
    assert all(schema == schemas[0] for schema in schemas)


def test_public_records_of_which_none_can_be_used_are_refused():
    source = rows.TableFile(Path(csv_of(",,")), "--table", ("a", "b"), "labels")
    with pytest.raises(ValueError, match="that can be used"):
        run.embed(source, fitted(), Path("o.parquet"), private=False)


NAMES = [b"c.png", b"c\xff.png", "c\u202e.png".encode(), b"c\n.png", b"\xe9/a.png"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("private", [True, False])
def test_an_image_may_have_any_name(name, private):
    os.makedirs(b"im/k")
    Image.new("RGB", (4, 4)).save("im/k/0.png")
    path = b"im/k/" + name
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(os.fsdecode(path)).write_bytes(Path("im/k/0.png").read_bytes())
    source = ImageFolder.find(Path("im"), private=private)
    assert run.embed(source, Ones(), Path("o.parquet"), private=private).card["rows"] == 2
    assert len(set(pq.read_table("o.parquet")["file"].to_pylist())) == 2
    assert source.classes == ("k",)


def test_a_class_folder_may_have_any_name():
    os.makedirs(b"im/\xe9")
    Image.new("RGB", (4, 4)).save(os.fsdecode(b"im/\xe9/0.png"))
    run.embed(ImageFolder.find(Path("im")), Ones(), Path("o.parquet"), private=True)
    assert pq.read_table("o.parquet")["labels"].to_pylist() == ["\\udce9"]


def test_no_single_private_image_decides_on_the_columns():
    os.makedirs("im/dog")
    image = Image.new("RGB", (4, 4))
    schemas = []
    for number, name in enumerate([None, "im/a.png", "im/dog/b.png", "im/broken.png"]):
        if name == "im/broken.png":
            os.symlink("nowhere", name)
        elif name is not None:
            image.save(name)
        out = Path(f"{number}.parquet")
        found = ImageFolder.find(Path("im"), private=True)
        assert run.embed(found, Ones(), out, private=True).card["rows"] == number
        schemas.append(pq.read_schema(out))
    assert all(schema == schemas[0] for schema in schemas)


def test_a_public_folder_without_an_image_is_refused():
    os.makedirs("im")
    with pytest.raises(ValueError, match="Expected images"):
        ImageFolder.find(Path("im"))
    with pytest.raises(ValueError, match="Expected images"):
        ImageFolder.find(Path("absent"), private=True)
