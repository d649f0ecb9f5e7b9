"""Images that cannot be used, or have no row of a table, are counted by cause with an example."""

import contextlib
import io
import os
import struct
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rknn_jax._internal import one_record, onnx
from rknn_jax.cli.embed import _by_cause
from rknn_jax.embedding import clipping, depths, images
from rknn_jax.embedding.file_rows import ABSENT, CAPITALS, SEVERAL, SHARED, FileRows
from rknn_jax.embedding.images import ONLY_PATH, ImageFolder, ImageTable

PIXELS = np.arange(81, dtype=np.uint8).reshape(9, 9)


def png():
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG")
    return file.getvalue()


class Reader(images.NetworkModel):
    """Images without a network: `_read` alone is called."""

    class encode:  # noqa: N801 it stands for the encoder of a network
        class card:  # noqa: N801 an object with this name
            size = (9, 9)


def reasons(source):
    read = Reader(Reader.encode)._read
    records = [one for block in source.blocks(10) for one in block.records]
    found = one_record.side_by_side(read, records, images._reason)
    return {f"{row}": why for row, why in enumerate(found) if isinstance(why, str)}


def test_rows_without_an_image_tell_their_cause(tmp_path):
    held = [
        {"bytes": png(), "path": "a.png"},
        {"bytes": None, "path": "b.png"},
        {"bytes": None, "path": None},
        None,
        {"bytes": b"", "path": "d.png"},
        {"bytes": b"text", "path": "e.png"},
    ]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    path = tmp_path / "R.parquet"
    pq.write_table(pa.table({"image": pa.array(held, kind)}), path)
    source = ImageTable.find(path, (), None, (), private=True)
    found = reasons(source)
    assert [*found] == ["1", "2", "3", "4", "5"]
    assert found["1"] == ONLY_PATH
    assert found["2"] == found["3"] == "no image"
    told = _by_cause(found)
    assert told.startswith("2 as 2 (no image); 2 as 4 (cannot identify")
    assert f"1 as 1 ({ONLY_PATH})" in told
    assert depths.depths(source, refuse=False).others == 1
    assert not [*clipping.doubts(source, 65535)]


def test_files_that_cannot_be_read_are_counted_by_cause(tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"text")
    for name in ("c.png", "d.png", "e.png"):
        (tmp_path / name).symlink_to(tmp_path / "nowhere")
    (tmp_path / "f.png").write_bytes(png())
    os.mkfifo(tmp_path / "g.png")  # nobody writes to it, and nobody waits
    source = ImageFolder.find(tmp_path)
    found = dict(zip(source.files, [None] * 7, strict=True))
    found |= {source.files[int(row)]: why for row, why in reasons(source).items()}
    told = _by_cause({name: why for name, why in found.items() if why})
    assert told.startswith("3 as c.png ([Errno 2] No such file or directory")
    assert "; 2 as a.png (cannot identify image file" in told
    assert "1 as g.png (Expected a file" in told
    assert told.count(" as ") == 3


@pytest.mark.parametrize("by", ["name", "path"])
def test_images_without_a_row_are_counted_by_cause(by, tmp_path):
    table = FileRows(
        tmp_path,
        ("file", None, ()),
        {},
        {"a.png": 0, "b.png": None, "C.png": 1, "gone.png": 2},
        (),
        by,
        [],
    )
    files = ["a.png", "b.png", "c.png", "in/d.png", "other/d.png"]
    found = table.unplaced(files)
    wanted = {CAPITALS: ["c.png"], SEVERAL: ["b.png"]}
    shared = f"{SHARED}, so compare paths by file_match path"
    both = {shared if by == "name" else ABSENT: ["in/d.png", "other/d.png"]}
    assert found == wanted | both
    rows = table.rows_of(files)
    assert sum(map(len, found.values())) == sum(row is None for row in rows)
    assert table.unseen(files) == ["gone.png"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_a_path_that_is_no_unicode_is_its_record_s_own_affair(kind, tmp_path):
    """Beside an image without bytes, it was an error, which told of its record."""
    paths = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }
    held = pa.array([b"a.png", b"\xff\xfe.png", b"c.png", b"", None], paths[kind])
    text = pa.Array.from_buffers(kind, len(held), held.buffers())
    image = pa.array([png(), None, None, None, None], pa.binary())
    path = tmp_path / "R.arrow"
    column = pa.StructArray.from_arrays([image, text], ["bytes", "path"])
    batch = pa.record_batch([column], ["image"])
    with pa.ipc.new_stream(path, batch.schema) as file:
        file.write_batch(batch)
    found = reasons(ImageTable.find(path, (), None, (), private=True))
    assert found == {"1": ONLY_PATH, "2": ONLY_PATH, "3": "no image", "4": "no image"}


@pytest.mark.parametrize("error", [MemoryError, RuntimeError("Failed to allocate memory")])
@pytest.mark.parametrize("door", ["features", "depths", "extremes", "network"])
def test_a_record_for_which_others_left_no_memory_is_tried_again_alone(
    tmp_path, door, error, monkeypatch
):
    """A large record beside it would take away its features, and so its vote."""
    first, busy = threading.Barrier(2), threading.Lock()

    def short(work):
        def one(*given, **named):
            with contextlib.suppress(threading.BrokenBarrierError):
                first.wait(0.2)  # while two are under way at once, there is memory for one
            if not busy.acquire(blocking=False):
                raise error
            try:
                time.sleep(0.02)
                return work(*given, **named)
            finally:
                busy.release()

        return one

    for name in "abcd":
        (tmp_path / f"{name}.png").write_bytes(png())
    source = ImageFolder.find(tmp_path)
    monkeypatch.setattr(one_record, "num_cores", lambda: 2)
    for name in ("read", "largest", "extremes"):
        monkeypatch.setattr(images.image_files, name, short(getattr(images.image_files, name)))
    match door:
        case "features":
            assert not reasons(source)
        case "depths":
            assert depths.depths(source, refuse=False).others == 4
        case "extremes":
            assert len([*clipping._extremes(source, 255)]) == 4
        case "network":
            run = short(lambda number: np.full(2, number, np.float32))
            rows = onnx.each(run, range(4), lambda: 2, lambda: 0)
            np.testing.assert_array_equal(rows, [[0, 0], [1, 1], [2, 2], [3, 3]])


@pytest.mark.parametrize("error", [MemoryError, OSError("broken data stream"), SystemError])
def test_too_little_memory_is_no_image_s_result(monkeypatch, error):
    """One image may lack what is kept of another one, and libraries name other causes."""

    def short(*_, **__):
        raise error

    read = Reader(Reader.encode)._read
    monkeypatch.setattr(images.image_files, "read", short)
    assert isinstance(one_record.side_by_side(read, [png()], images._reason)[0], str)
    monkeypatch.setattr(images, "BYTES_A_PIXEL", 2**50)  # more than there is
    with pytest.raises(MemoryError, match="an image of 81 pixels"):
        one_record.side_by_side(read, [png()], images._reason)


def test_an_image_that_asks_for_more_memory_than_there_is_is_its_own_affair(tmp_path):
    """Its first box claims 2^50 bytes."""
    sign = b"\0\0\0\x0cjP  \r\n\x87\n"
    kind = struct.pack(">I4s4sI4s", 20, b"ftyp", b"jp2 ", 0, b"jp2 ")
    (tmp_path / "out of memory.png").write_bytes(
        sign + kind + struct.pack(">I4sQ", 1, b"jp2h", 2**50) + bytes(40)
    )
    (tmp_path / "whole.png").write_bytes(png())
    assert [*reasons(ImageFolder.find(tmp_path))] == ["0"]


def test_a_network_that_fails_on_a_public_record_too_ends_the_run():
    """It may have words of its own for too little memory."""

    def run(record):
        if record:
            raise RuntimeError("status 6")
        return np.zeros(2, np.float32)

    assert np.isnan(onnx.each(run, [0, 1], lambda: 2, lambda: 0)).any(axis=1).tolist() == [
        False,
        True,
    ]
    with pytest.raises(MemoryError, match="on a public record too"):
        onnx.each(run, [0, 1], lambda: 2, lambda: 2)
