"""The model of the embeddings in a release: one model on both sides, told by the public card, and
nothing else of a private card is used.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rknn_jax.embedding import cards
from rknn_jax.release import embedding_models
from tests.test_cli import arguments, make_files
from tests.test_statement import Page

MODEL = {"kind": "text", "name": "tiny words", "sha256": "a" * 64, "width": 4, "pooling": "mean"}
OTHER = MODEL | {"name": "other words", "sha256": "b" * 64}


def write_card(path: Path, model=MODEL, **others):
    path.write_text(json.dumps({"format": 1, "model": model} | others))


@pytest.fixture
def files(tmp_path):
    """P.parquet and R.parquet with a card beside each, and arguments of a release of them."""
    make_files(tmp_path)
    for name in ("P", "R"):
        with np.load(tmp_path / f"{name}.npz") as arrays:
            columns = {key: list(values) for key, values in arrays.items()}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
        write_card(tmp_path / f"{name}.card.json")
    return tmp_path


COMMAND = arguments(public="P.parquet", private="R.parquet")


def refused(rknn, words):
    """Run a release that is refused before anything is spent or written."""
    before = sorted(Path().iterdir())
    done = rknn(*COMMAND)
    assert done.status == 2
    for word in words:
        assert word in done.err
    assert sorted(Path().iterdir()) == before, "neither a ledger nor results"


def test_the_statement_and_the_report_name_the_model(rknn, files):
    write_card(files / "R.card.json", MODEL | {"path": "/home/ann/x"}, rows=90, digest="private-1")
    assert rknn(*COMMAND).status == 0
    card = json.loads(Path("new/privacy.json").read_text())
    assert card["model"] == {"name": "tiny words", "sha256": "a" * 64, "kind": "text"}
    [line] = [line for line in card["not_covered"] if "remembers" in line]
    for name in ("privacy.html", "report.html"):
        text = Page(Path("new", name).read_text()).text
        assert line in text, name
        assert f"tiny words for text, SHA-256 {'a' * 64}" in text
    for path in Path("new").iterdir():
        content = path.read_bytes()
        assert b"private-1" not in content, path
        assert b"/home/ann" not in content, path


def test_another_model_of_the_private_rows_is_refused_before_the_spend(rknn, files):
    write_card(files / "R.card.json", OTHER)
    refused(rknn, ["tiny words", "a" * 16, "other words", "b" * 16, "sha256"])
    # Also where one side has other text, or the other order of an image's axes.
    for other in ({"pooling": "cls"}, {"columns": ["body"]}, {"input": {"layout": "NHWC"}}):
        write_card(files / "R.card.json", MODEL | other)
        refused(rknn, [*other])


@pytest.mark.parametrize("side", ["P", "R"])
@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        json.dumps({"model": MODEL | {"sha256": "short"}}).encode(),
        json.dumps({"model": MODEL | {"name": 7}}).encode(),
        json.dumps({"model": MODEL | {"name": "\ud800"}}).encode(),
    ],
    ids=["cut", "list", "empty", "bytes", "deep", "digest", "number", "surrogate"],
)
def test_a_damaged_card_is_told_before_the_spend(rknn, files, side, content):
    (files / f"{side}.card.json").write_bytes(content)
    refused(rknn, [f"{side}.card.json", "restore the card"])


def test_a_card_of_another_width_is_refused(rknn, files):
    for name in ("P", "R"):
        write_card(files / f"{name}.card.json", MODEL | {"width": 3})
    refused(rknn, ["4 dimensions"])


@pytest.mark.parametrize("missing", ["P", "PR"])
def test_without_a_public_card_no_model_is_told(rknn, files, missing):
    for name in missing:
        (files / f"{name}.card.json").unlink()
    done = rknn(*COMMAND)
    assert done.status == 0
    card = json.loads(Path("new/privacy.json").read_text())
    assert "model" not in card
    assert any(line.startswith("the embedding model or other") for line in card["not_covered"])
    assert "tiny words" not in done.err + Path("new/privacy.html").read_text()


def test_several_public_files_have_one_model_that_all_of_them_tell(tmp_path):
    names = [str(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    write_card(tmp_path / "a.card.json")
    assert embedding_models.find(names, ["s3://bucket/c.parquet", "c.npz"], 4) is None
    write_card(tmp_path / "b.card.json")
    assert embedding_models.find(names, [], 4).name == "tiny words"
    write_card(tmp_path / "b.card.json", OTHER)
    with pytest.raises(ValueError, match="one model"):
        embedding_models.find(names, [], 4)


def test_the_card_of_an_embedded_table_is_read(rknn, files):
    lines = [f"{a},{b},{a + b}" for a in (0.5, 1.5, 2.5) for b in (0.1, 0.2, 0.4)]
    (files / "t.csv").write_text("\n".join(["x,y,z", *lines]) + "\n")
    assert rknn("embed", "--table", "t.csv", "--out", "t.parquet").status == 0
    told = embedding_models.find(["t.parquet"], ["t.parquet"], 3)
    written = json.loads(cards.card_path(Path("t.parquet")).read_text())
    assert told.sha256 == written["model"]["sha256"]
