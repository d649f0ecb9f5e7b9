"""Pixels of image files, in every mode that Pillow writes."""

import io
import json
import os
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import EpsImagePlugin, Image

from rknn_jax.data import image_folder
from rknn_jax.embedding.images import ImageFolder
from rknn_jax.images import files
from tests import tiny_network
from tests.conftest import crossed

RAMP = np.linspace(0, 255, 64).round().astype(np.uint8).reshape(8, 8)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_pixels_of_16_bits_are_scaled_by_their_depth(tmp_path, suffix, dtype):
    path = tmp_path / f"x{suffix}"
    Image.fromarray((RAMP.astype(np.uint16) * 257).astype(dtype)).save(path)
    np.testing.assert_array_equal(np.asarray(files.read(path)), RAMP)
    np.testing.assert_array_equal(np.asarray(files.read(path, upright=True)), RAMP)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_other_modes_keep_black_and_white(tmp_path, mode):
    gray = Image.fromarray(np.repeat(np.array([0, 255], np.uint8), 32).reshape(8, 8))
    path = tmp_path / "x.tif"
    image = gray.convert(mode)
    try:
        image.save(path)
    except OSError:
        pytest.skip(f"Pillow writes no TIFF of mode {mode}")
    found = np.asarray(files.read(path).convert("L"))
    np.testing.assert_allclose(found, np.asarray(gray), atol=1)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_pixels_without_a_scale_are_refused(tmp_path, dtype):
    path = tmp_path / "x.tif"
    Image.fromarray(RAMP.astype(dtype)).save(path)
    with pytest.raises(ValueError, match="whose black and white are not known"):
        files.read(path)


def saved(image, suffix=".png", **options):
    content = io.BytesIO()
    image.save(content, suffix[1:].replace("tif", "tiff"), **options)
    content.seek(0)
    return content


STROKES = np.repeat(np.array([0, 255], np.uint8), 32).reshape(8, 8)
"""Alpha of a drawing: nothing in the upper half, and ink in the lower one."""


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("RGBA", ".png"), ("RGBA", ".tif"), ("RGBA", ".webp"), ("RGBA", ".gif"), ("LA", ".png")],
)
def test_ink_in_the_alpha_of_a_black_image_lies_on_white(mode, suffix):
    """Its colors are black everywhere, and alpha alone is the drawing."""
    black = np.zeros((8, 8, len(mode)), np.uint8)
    black[..., -1] = STROKES
    content = saved(Image.fromarray(black), suffix, lossless=True)
    assert Image.open(content).has_transparency_data
    found = np.asarray(files.read(content, upright=True).convert("L"))
    np.testing.assert_array_equal(found, 255 - STROKES)


@pytest.mark.parametrize(
    ("image", "clear", "bits"),
    [
        (Image.fromarray(RAMP), 0, RAMP),
        (Image.fromarray(np.stack([RAMP] * 3, -1)), (0, 0, 0), RAMP),
        (Image.fromarray(RAMP).convert("P"), 0, RAMP),
        (Image.fromarray(RAMP.astype(np.uint16) * 257), 0, RAMP),
        (Image.fromarray(STROKES).convert("1"), 0, STROKES),
    ],
    ids=["gray", "color", "palette", "16 bits", "1 bit"],
)
def test_one_transparent_color_is_white_and_others_keep_their_bits(image, clear, bits):
    found = np.asarray(files.read(saved(image, transparency=clear)).convert("L"))
    np.testing.assert_array_equal(found, np.where(bits == 0, 255, bits))


def test_an_opaque_image_with_alpha_keeps_its_bits():
    colors = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    opaque = Image.fromarray(np.dstack([colors, np.full((16, 16), 255, np.uint8)]))
    np.testing.assert_array_equal(np.asarray(files.read(saved(opaque))), colors)
    half = Image.fromarray(np.dstack([colors, np.full((16, 16), 128, np.uint8)]))
    blended = 255 - (255 - colors.astype(float)) * 128 / 255
    np.testing.assert_allclose(np.asarray(files.read(saved(half))), blended, atol=1)


def test_drawings_in_alpha_differ_in_every_door(rknn, tmp_path):
    """Folders, columns of bytes and `image_folder` see the ink."""
    network = tiny_network.write(tmp_path)
    random = np.random.default_rng(0)
    contents = []
    for i in range(4):
        black = np.zeros((9, 9, 4), np.uint8)
        black[..., 3] = random.integers(0, 256, (9, 9))
        contents.append(saved(Image.fromarray(black)).getvalue())
        for part in ("drawn", "data/train", "data/test"):
            path = tmp_path / part / "x" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents[-1])
    pq.write_table(pa.table({"image": contents}), tmp_path / "drawn.parquet")
    for name, out in (("drawn", "folder.parquet"), ("drawn.parquet", "column.parquet")):
        done = run(rknn, name, out, network)
        assert done.status == 0, done.err
        assert "same features" not in done.err
    found = embedded("folder.parquet")
    assert len(np.unique(found, axis=0)) == 4
    np.testing.assert_array_equal(found, embedded("column.parquet"))
    images, *_ = image_folder.read(tmp_path / "data")
    assert len(np.unique(images.reshape(8, -1), axis=0)) == 4


@pytest.mark.parametrize("private", [False, True])
def test_public_images_that_all_look_alike_are_told(rknn, tmp_path, private):
    network = tiny_network.write(tmp_path)
    (tmp_path / "blank").mkdir()
    for i in range(3):
        Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / f"blank/{i}.png")
    done = run(rknn, "blank", "blank.parquet", network, *(["--private"] if private else []))
    assert done.status == 0, done.err
    assert ("all 3 rows have the same features" in " ".join(done.err.split())) is not private


def test_files_that_are_no_images_are_counted(tmp_path):
    (tmp_path / "cat").mkdir()
    Image.fromarray(RAMP).save(tmp_path / "cat/a.png")
    for name in ("cat/b.gif", "cat/c.dcm", "notes.txt", ".hidden"):
        (tmp_path / name).write_bytes(b"")
    found = ImageFolder.find(tmp_path)
    assert found.files == ("cat/a.png",)
    assert found.skipped == ("cat/b.gif", "cat/c.dcm", "notes.txt")


def deep(folder, number, *, most, suffix=".png", first=0):
    """Write gray images of 16 bits with pixels up to `most`."""
    random = np.random.default_rng(number)
    (folder / "x").mkdir(parents=True, exist_ok=True)
    for i in range(first, number):
        pixels = random.integers(0, most + 1, (9, 9)).astype(np.uint16)
        pixels[0, 0] = most
        Image.fromarray(pixels).save(folder / f"x/{i}{suffix}")


def embedded(name):
    return np.array(pq.read_table(name)["embeddings"].to_pylist(), np.float32)


def run(rknn, images, out, network, *words):
    return rknn("embed", "--images", images, "--model", network, "--out", out, *words)


def test_no_image_starts_a_program(rknn, tmp_path, monkeypatch):
    """Pillow gives PostScript to Ghostscript, whatever a file's name ends in."""
    network = tiny_network.write(tmp_path)
    Image.fromarray(RAMP).save(tmp_path / "good.png")
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n{} loop\n%%EOF\n"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "bin/gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # it remembers an earlier search
    for column in (False, True):
        images = tmp_path / f"images{column}"
        images.mkdir()
        if column:
            cells = [(tmp_path / "good.png").read_bytes(), program]
            pq.write_table(pa.table({"image": cells}), images / "p.parquet")
        else:
            shutil.copy(tmp_path / "good.png", images / "a.png")
            (images / "b.png").write_bytes(program)
        source = images / "p.parquet" if column else images
        done = run(rknn, source, f"made{column}.parquet", network, "--private")
        assert done.status == 0, done.err
        assert np.isnan(embedded(f"made{column}.parquet")).all(axis=1).tolist() == [False, True]
    assert not (tmp_path / "started").exists()


WHITES = {1: 1, 200: 255, 812: 1023, 40000: None}


@crossed(most=WHITES, suffix=[".png", ".tif"])
def test_small_values_of_16_bits_keep_their_content(rknn, tmp_path, most, suffix):
    """They look as the same images with the public white in 8 bits."""
    white = WHITES[most]
    network = tiny_network.write(tmp_path)
    deep(tmp_path / "deep", 4, most=most, suffix=suffix)
    (tmp_path / "plain/x").mkdir(parents=True)
    for path in sorted((tmp_path / "deep/x").iterdir()):
        pixels = np.asarray(Image.open(path)).astype(float) / (white or 65535) * 255
        plain = Image.fromarray(np.floor(pixels + 0.5).astype(np.uint8))
        plain.save(tmp_path / f"plain/x/{path.name}")
    for name in ("deep", "plain"):
        done = run(rknn, name, f"{name}.parquet", network)
        assert done.status == 0, done.err
    np.testing.assert_array_equal(embedded("deep.parquet"), embedded("plain.parquet"))
    assert len(np.unique(embedded("deep.parquet"), axis=0)) == 4
    model = json.loads((tmp_path / "deep.card.json").read_text())["model"]
    assert model["input"].get("white") == white


def test_the_public_white_is_that_of_the_private_side(rknn, tmp_path):
    """A bright private image changes no other one, and is cut to white."""
    network = tiny_network.write(tmp_path)
    deep(tmp_path / "public", 4, most=800)
    deep(tmp_path / "private", 3, most=500)
    run(rknn, "public", "public.parquet", network)
    words = ("--card", "public.card.json", "--private")
    done = run(rknn, "private", "one.parquet", network, *words)
    assert done.status == 0, done.err
    deep(tmp_path / "private", 4, most=60000, first=3)
    run(rknn, "private", "two.parquet", network, *words)
    found = embedded("two.parquet")
    np.testing.assert_array_equal(embedded("one.parquet"), found[:3])
    assert len(np.unique(found, axis=0)) == 4
    again = run(rknn, "private", "own.parquet", network, "--private")
    assert again.status == 0
    files = ("--public", "public.parquet", "--private", "own.parquet", "--epsilon", 1)
    done = rknn("label", *files, "--classes", "a,b", "--dry-run")
    assert done.status == 2
    assert "which differ in input; embed both sides" in " ".join(done.err.split())
    brighter = run(rknn, "private", "test.parquet", network, "--card", "public.card.json")
    assert "the card's white is 1,023" in " ".join(brighter.err.split())


def test_deep_images_that_look_black_are_told_to_each_side(rknn, tmp_path):
    network = tiny_network.write(tmp_path)
    deep(tmp_path / "public", 6, most=2000)
    deep(tmp_path / "private", 6, most=2000)
    (tmp_path / "plain").mkdir()
    for number in range(6):
        Image.new("L", (9, 9), 40 * number).save(tmp_path / f"plain/{number}.png")
    done = run(rknn, "public", "public.parquet", network)
    assert "warning" not in done.err
    done = run(rknn, "plain", "plain.parquet", network)
    assert "white" not in done.err
    words = ("--card", "plain.card.json", "--private")
    told = " ".join(run(rknn, "private", "private.parquet", network, *words).err.split())
    assert "no pixel above 2,000 of the white 65,535, and are nearly black" in told
    assert told.count("tell nobody") == 2
    assert "classes: x (tell nobody)" in told, "a folder may be that of one image"
    deep(tmp_path / "public", 7, most=65535, first=6)
    told = " ".join(run(rknn, "public", "dead.parquet", network).err.split())
    assert "white 65,535 of 65,535 for gray images of 16 bits" in told
    assert "without dead pixels" in told
    Image.new("L", (9, 9), 40).save(tmp_path / "private/x/8.png")
    told = " ".join(run(rknn, "private", "both.parquet", network).err.split())
    assert "6 images have 16 bits and 1 have 8, and the two are not scaled alike" in told


@pytest.mark.parametrize("suffix", [".tif", ".webp", ".png"])
def test_an_image_of_several_pages_is_none(rknn, tmp_path, suffix):
    network = tiny_network.write(tmp_path)
    pages = [Image.new("L", (9, 9), shade) for shade in (0, 200, 90)]
    for name in ("images", "one"):
        (tmp_path / name).mkdir()
        Image.new("L", (9, 9), 70).save(tmp_path / name / "a.png")
    pages[0].save(tmp_path / f"images/b{suffix}", save_all=True, append_images=pages[1:])
    done = run(rknn, "images", "o.parquet", network)
    told = " ".join(done.err.split())
    assert done.status == 0
    assert "1 records are left out" in told
    assert "Expected an image of one page, got 3 pages; save each page as an image" in told
    assert run(rknn, "images", "p.parquet", network, "--private").status == 0
    with pytest.raises(ValueError, match="one page, got 3 pages"):
        files.extremes(tmp_path / f"images/b{suffix}", 255)
    assert np.isnan(embedded("p.parquet")).any(axis=1).tolist() == [False, True]


def test_images_in_a_column_have_one_white_too(rknn, tmp_path):
    network = tiny_network.write(tmp_path)
    deep(tmp_path / "public", 4, most=800)
    files = sorted((tmp_path / "public/x").iterdir())
    column = [file.read_bytes() for file in files] + [b"no image", None]
    pq.write_table(pa.table({"image": column}), tmp_path / "t.parquet")
    for name in ("public", "t.parquet"):
        done = run(rknn, name, f"{Path(name).stem}.out.parquet", network)
        assert done.status == 0, done.err
    np.testing.assert_array_equal(embedded("t.out.parquet"), embedded("public.out.parquet"))


def test_a_card_with_another_white_is_refused(rknn, tmp_path):
    network = tiny_network.write(tmp_path)
    deep(tmp_path / "public", 2, most=800)
    run(rknn, "public", "public.parquet", network)
    card = json.loads((tmp_path / "public.card.json").read_text())
    for white in (0, 65536, "x", True):
        card["model"]["input"]["white"] = white
        (tmp_path / "changed.card.json").write_text(json.dumps(card))
        done = run(rknn, "public", "o.parquet", network, "--card", "changed.card.json")
        assert done.status == 2
        assert "white of 1 to 65535" in done.err


def test_a_folder_of_dark_images_of_16_bits_is_no_benchmark(tmp_path):
    for part in ("train", "test"):
        for number, name in enumerate("ab"):
            deep(tmp_path / part, 2, most=800 + number)
            (tmp_path / part / "x").rename(tmp_path / part / name)
    with pytest.raises(ValueError, match="at most 801, which look black"):
        image_folder.read(tmp_path)
    deep(tmp_path / "bright", 1, most=40000)
    (tmp_path / "bright/x/0.png").rename(tmp_path / "train/a/9.png")
    assert len(image_folder.read(tmp_path)[0]) == 9


def color_png(pixels):
    """Return a PNG file of colors of 16 bits, which Pillow reads and does not write."""

    def chunk(name, content):
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    height, width, _ = pixels.shape
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_dark_colors_of_16_bits_are_refused_on_the_public_side(rknn, tmp_path):
    network = tiny_network.write(tmp_path)
    random = np.random.default_rng(0)
    for most in (812, 60000):
        pixels = random.integers(0, most, (9, 9, 3))
        pixels[0, 0] = most
        content = color_png(pixels)
        assert files.largest(io.BytesIO(content)).color >= most
        (tmp_path / f"{most}").mkdir()
        (tmp_path / f"{most}/a.png").write_bytes(content)
    dark = run(rknn, "812", "dark.parquet", network)
    assert dark.status == 2
    assert "look black; save the images of both sides with 8 bits" in " ".join(dark.err.split())
    assert run(rknn, "60000", "o.parquet", network).status == 0
    assert run(rknn, "812", "private.parquet", network, "--private").status == 0


def labeled(folder, names, table):
    """Write images of names that tell their shade, and a table about them."""
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.new("L", (9, 9), 20 * number).save(folder / name)
    pd.DataFrame(table).to_csv(folder.parent / f"{folder.name}.csv", index=False)


def test_a_table_tells_the_labels_and_persons_of_images_by_their_names(rknn, tmp_path):
    network = tiny_network.write(tmp_path)
    names = ["a.png", "in/b.png", "in/c.png", "other/c.png", "d.png", "e.png"]
    rows = {
        "image": ["d.png", "other/c.png", "b.png", "./in\\c.png", "a.png", "a.png", "gone.png"],
        "code": ["401", "038", "250", "401", "250", "038", "401"],
        "who": [7, 8, 9, 7, 8, 8, 9],
    }
    labeled(tmp_path / "photos", names, rows)
    words = ("--image-table", "photos.csv", "--file-column", "image", "--label", "code")
    paths = (*words, "--keep", "who", "--private", "--file-match", "path")
    done = run(rknn, "photos", "o.parquet", network, *paths)
    assert done.status == 0, done.err
    table = pq.read_table("o.parquet").to_pandas()
    # Two rows tell of a.png, none of e.png, and none of in/b.png by its path.
    wanted = [None, "401", None, None, "401", "038"]
    labels = pq.read_table("o.parquet")["labels"].to_pylist()
    by_name = dict(zip(table["file"], labels, strict=True))
    assert [by_name[name] for name in sorted(names)] == wanted
    assert dict(zip(table["file"], table["who"].astype(float), strict=True))["d.png"] == 7
    told = " ".join(done.err.split())
    assert "3 images have missing values, since they have no row of their own in photos.csv" in told
    assert "2 stand in no row, such as e.png; 1 stand in several rows, such as a.png" in told
    assert "2 names in photos.csv are of no image in photos, such as b.png" in told
    checked = rknn("check", "o.parquet", "--classes", "401,038,250", "--person", "who", "--json")
    assert checked.json["usable"] == 3
    assert checked.json["reasons"]["missing label"] == 3
    # By their names, c.png could be either of two, and b.png is found.
    done = run(rknn, "photos", "names.parquet", network, *words, "--private")
    assert done.status == 0, done.err
    labels = pq.read_table("names.parquet")["labels"].to_pylist()
    by_name = dict(zip(table["file"], labels, strict=True))
    assert [by_name[name] for name in sorted(names)] == [None, "401", None, "250", None, None]


@pytest.mark.parametrize("options", [(), ("--label", "ill", "--keep", "who")])
def test_a_row_of_a_private_table_about_images_changes_no_other(rknn, tmp_path, options):
    """One of the first hundred once decided whether the others had labels."""
    network = tiny_network.write(tmp_path)
    names = [f"{number:03}.png" for number in range(102)]
    labeled(tmp_path / "photos", names, {})
    rows = [{"file": name} for name in names]
    rows[-1] |= {"labels": "x", "ill": "y", "who": 3}
    found = []
    for one in ({"labels": "z", "ill": "z", "who": 4}, {}):
        rows[0] = {"file": names[0], **one}
        (tmp_path / "about.jsonl").write_text("\n".join(map(json.dumps, rows)))
        words = ("--image-table", "about.jsonl", *options, "--private", "--json")
        done = run(rknn, "photos", f"{len(found)}.parquet", network, *words)
        table = pq.read_table(f"{len(found)}.parquet")
        told = {name: value for name, value in done.json.items() if name != "files"}
        found.append((done.status, told, table.schema, table.slice(1)))
    assert found[0] == found[1]
    assert found[0][3]["labels"].to_pylist()[-1] == ("y" if options else "x")


@pytest.mark.long
def test_a_table_about_images_is_refused_where_it_cannot_be_used(rknn, tmp_path):
    network = tiny_network.write(tmp_path)
    rows = {"file": ["a.png"], "labels": ["x"]}
    labeled(tmp_path / "photos", ["a.png"], rows)
    done = run(rknn, "photos", "o.parquet", network, "--image-table", "photos.csv")
    assert done.status == 0, done.err
    assert pq.read_table("o.parquet")["labels"].to_pylist() == ["x"]
    for words, error in (
        (("--file-column", "name"), "'name'"),
        (("--label", "ill"), "--label ill"),
        (("--columns", "file"), "leave them out"),
    ):
        done = run(rknn, "photos", "p.parquet", network, "--image-table", "photos.csv", *words)
        assert done.status == 2
        assert error in " ".join(done.err.split())
    pd.DataFrame({"file": ["b.png"], "labels": ["x"]}).to_csv("other.csv", index=False)
    done = run(rknn, "photos", "p.parquet", network, "--image-table", "other.csv")
    assert done.status == 2
    assert "got none that names a.png; column 'file' holds names such as 'b.png'" in " ".join(
        done.err.split()
    )
    done = run(rknn, "photos", "q.parquet", network, "--image-table", "other.csv", "--private")
    assert done.status == 0
    pd.DataFrame({"file": ["/data/scans/a.png"], "who": [3]}).to_csv("far.csv", index=False)
    far = ("--image-table", "far.csv", "--keep", "who")
    done = run(rknn, "photos", "far.parquet", network, *far)
    assert "without labels 'labels'" in done.err
    assert pq.read_table("far.parquet")["who"].to_pylist() == ["3"]
    done = rknn("embed", "--table", "photos.csv", "--image-table", "a.csv", "--out", "p.parquet")
    assert "names a folder of image files, got --image-table a.csv" in " ".join(done.err.split())
    # Another table is another source: a stopped run does not go on with it.
    rows["labels"] = ["longer"]
    pd.DataFrame(rows).to_csv(tmp_path / "photos.csv", index=False)
    done = run(rknn, "photos", "o.parquet", network, "--image-table", "photos.csv")
    assert done.status == 2
    assert "or the result of this command" in " ".join(done.err.split())


@pytest.mark.parametrize("private", [False, True])
def test_files_of_other_suffixes_are_told(rknn, tmp_path, private):
    """Of private ones, their number alone."""
    network = tiny_network.write(tmp_path)
    (tmp_path / "shown").mkdir()
    Image.fromarray(RAMP).save(tmp_path / "shown/a.png")
    Image.fromarray(RAMP).rotate(90).save(tmp_path / "shown/b.png")
    for name in ("anna.gif", "b.GIF", "c.heic", "notes"):
        (tmp_path / "shown" / name).write_bytes(b"")
    done = run(rknn, "shown", "o.parquet", network, *(["--private"] if private else []))
    assert done.status == 0, done.err
    told = " ".join(done.err.split())
    assert "4 files are left out" in told
    assert "save others as one of these" in told
    assert ("by their suffix (2 .gif, 1 .heic, 1 without), such as anna.gif" in told) is not private
    assert ("anna" in told) is not private
    assert ("tell nobody" in told) is private


@pytest.mark.parametrize("private", [False, True])
def test_names_that_differ_in_capitals_are_hinted(rknn, tmp_path, private):
    network = tiny_network.write(tmp_path)
    for name in ("cat/a.png", "cat/b.PNG", "dog/a.png", "dog/c.png"):
        (tmp_path / "shown" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RAMP).save(tmp_path / "shown" / name, "PNG")
    Path("t.csv").write_text("file,labels\nCat/a.png,x\ncat/B.png,y\ndog/c.png,z\n")
    words = ["--image-table", "t.csv", "--file-match", "path", *(["--private"] * private)]
    done = run(rknn, "shown", "o.parquet", network, *words)
    assert done.status == 0, done.err
    told = " ".join(done.err.split())
    assert "3 images have missing values" in told
    assert "1 stand in no row, such as dog/a.png" in told
    assert "2 have a row but for capitals, so write the names as the files have" in told
    assert "of no image" not in told
