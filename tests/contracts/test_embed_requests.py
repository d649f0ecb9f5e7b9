"""Every option of `rknn embed` is part of what it is asked: another one is another result."""

import dataclasses
import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rknn_jax.cli.embed_settings import Embed
from rknn_jax.embedding import images, run
from tests import tiny_network, tiny_vectors

TEXT = ("--text", "north/t.csv", "--model", "words/vectors.npy")
TABLE = ("--table", "north/n.csv", "--label", "kind")
IMAGES = ("--images", "north/i", "--model", "one.onnx")
ABOUT = (*IMAGES, "--image-table", "north/a.csv", "--label", "kind", "--keep", "who")

ASKED = {
    "images": (IMAGES, ("--images", "south/i", *IMAGES[2:])),
    "text": (TEXT, ("--text", "south/t.csv", *TEXT[2:])),
    "table": (TABLE, ("--table", "south/n.csv", *TABLE[2:])),
    "model": (IMAGES, (*IMAGES[:3], "two.onnx")),
    "card": ((*TABLE, "--card", "x.card.json"), (*TABLE, "--card", "y.card.json")),
    "columns": ((*TEXT, "--columns", "text"), (*TEXT, "--columns", "more")),
    "drop": (TABLE, (*TABLE, "--drop", "y")),
    "image_table": (ABOUT, (*ABOUT[:5], "south/a.csv", *ABOUT[6:])),
    "file_column": (ABOUT, (*ABOUT, "--file-column", "other")),
    "file_match": (ABOUT, (*ABOUT, "--file-match", "path")),
    "label": ((*TEXT, "--keep", "kind"), (*TEXT, "--label", "kind")),
    "keep": ((*ABOUT[:-1], "who"), (*ABOUT[:-1], "other")),
    "private": (TEXT, (*TEXT, "--private")),
}
"""Two commands for each option; the second has another value of it."""

ROLES = {
    "columns and what is kept": (
        (*TEXT, "--columns", "text", "--keep", "more", "who"),
        (*TEXT, "--columns", "text", "more", "--keep", "who"),
    ),
    "a label that was kept": (
        (*TEXT, "--columns", "text", "--keep", "who", "--label", "kind"),
        (*TEXT, "--columns", "text", "--keep", "kind", "--label", "who"),
    ),
    "a label of images that was kept": (
        (*ABOUT[:6], "--label", "kind", "--keep", "who"),
        (*ABOUT[:6], "--label", "who", "--keep", "kind"),
    ),
}
"""Two commands that name the same columns."""


@pytest.fixture
def data(tmp_path, rknn, monkeypatch):
    """Two folders of equal names, sizes and times, as an archive has them."""
    monkeypatch.setattr(run, "ROWS_A_PART", 2)
    tiny_vectors.write(tmp_path)
    for seed, name in enumerate(("one", "two")):
        tiny_network.write(tmp_path, name, seed=seed)
    for place, (kinds, shift) in {"north": ("ab", 0), "south": ("ba", 1)}.items():
        texts = [f"cat dog,runs fast,{kind},p{number}" for number, kind in enumerate(kinds * 2)]
        write(f"{place}/t.csv", "text,more,kind,who", texts)
        numbers = [f"{x + shift},{2 * x},{kind}" for x, kind in enumerate(kinds * 2)]
        write(f"{place}/n.csv", "x,y,kind", numbers)
        names = ("1.png,b/1.png", "a/2.png,1.png", "b/1.png,a/2.png")
        about = [f"{two},{kinds[number % 2]},p{number}" for number, two in enumerate(names)]
        write(f"{place}/a.csv", "file,other,kind,who", about)
        for number, name in enumerate(("a/1.png", "a/2.png", "b/1.png")):
            path = Path(place, "i", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.full((5, 7, 3), 40 * number + 9 * shift, np.uint8)
            Image.fromarray(pixels).save(path, "BMP")
            os.utime(path, (0, 0))
    for name, place in {"x": "north", "y": "south"}.items():
        assert rknn("embed", "--table", f"{place}/n.csv", *TABLE[2:], "--out", f"{name}.parquet")


def write(path, names, lines):
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("\n".join([names, *lines, ""]))
    os.utime(path, (0, 0))


def test_every_option_has_a_case():
    assert {*ASKED} == {one.name for one in dataclasses.fields(Embed)} - {"out", "json"}


@pytest.mark.parametrize("stopped", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("case", [*ASKED, *ROLES])
def test_another_request_takes_over_no_result(data, rknn, monkeypatch, case, stopped):
    first, other = (ASKED | ROLES)[case]
    begin(rknn, monkeypatch, first, stopped)
    told = rknn("embed", *other, "--out", "o.parquet")
    assert told.status == 2
    assert ("begin anew" if stopped else "name another") in told.err
    assert rknn("embed", *other, "--out", "fresh.parquet").status == 0
    assert rknn("embed", *first, "--out", "o.parquet").status == 0
    assert rknn("embed", *first, "--out", "whole.parquet").status == 0
    assert same("o.parquet", "whole.parquet")


@pytest.mark.long
@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("name", ["t.csv", "n.csv", "a.csv", "i/a/1.png"])
def test_a_file_of_another_time_takes_over_no_result(data, rknn, monkeypatch, name, stopped):
    """An archive has given it the size and the time of the earlier one."""
    words = {"t.csv": TEXT, "n.csv": TABLE, "a.csv": ABOUT, "i/a/1.png": IMAGES}[name]
    begin(rknn, monkeypatch, words, stopped)
    shutil.copy2(f"south/{name}", f"north/{name}")
    assert rknn("embed", *words, "--out", "o.parquet").status == 2


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("words", [TEXT, TABLE, ABOUT], ids=lambda words: words[0])
def test_the_same_request_goes_on_wherever_its_files_are(data, rknn, monkeypatch, words, stopped):
    """A backup makes other names for files, and their owner hides them from others."""
    begin(rknn, monkeypatch, words, stopped)
    for path in [*Path("north").rglob("*")]:
        if path.is_file():
            path.chmod(0o600)
            Path("backup").mkdir(exist_ok=True)
            Path("backup", path.as_posix().replace("/", "-")).hardlink_to(path)
    Path("north").rename("moved")
    moved = [word.replace("north", str(Path("moved").absolute())) for word in words]
    told = rknn("embed", *moved, "--out", "o.parquet")
    assert told.status == 0
    assert "rows were there already" in told.err


def test_a_table_that_changes_after_it_was_read_is_refused(data, rknn, monkeypatch):
    find = images.ImageFolder.find.__func__

    def changed(cls, *given, **named):
        Path("north/a.csv").write_text(Path("south/a.csv").read_text())
        return find(cls, *given, **named)

    monkeypatch.setattr(images.ImageFolder, "find", classmethod(changed))
    told = rknn("embed", *ABOUT, "--out", "o.parquet")
    assert told.status == 2
    assert "to stay as it is while it is read" in told.err


def test_a_first_folder_of_private_images_makes_another_request(data, rknn, monkeypatch):
    """Then there are labels, whatever it holds."""
    shutil.copytree("north/i/a", "flat")
    words = ("--images", "flat", "--model", "one.onnx", "--private")
    begin(rknn, monkeypatch, words, False)
    Path("flat/new").mkdir()
    told = rknn("embed", *words, "--out", "o.parquet")
    assert told.status == 2
    assert "name another" in told.err


def begin(rknn, monkeypatch, words, stopped):
    """Embed, or stop after the first part."""
    if not stopped:
        assert rknn("embed", *words, "--out", "o.parquet").status == 0
        return
    parts, kept = itertools.count(), run._table

    def interrupted(*given):
        if next(parts):
            raise KeyboardInterrupt
        return kept(*given)

    with monkeypatch.context() as patch:
        patch.setattr(run, "_table", interrupted)
        assert rknn("embed", *words, "--out", "o.parquet").status == 130


def same(one, other):
    return pq.read_table(one).equals(pq.read_table(other))
