"""The one writer of files: a file is there whole, or not at all, and durable once the call
returns.
"""

import errno
import os
import zipfile

import numpy as np
import pytest

from rknn_jax._internal import disk


def test_a_file_is_on_disk_before_its_name_and_its_name_before_the_call_returns(
    tmp_path, monkeypatch
):
    said = []
    real_sync = os.fsync
    real_replace = os.replace

    def sync(descriptor):
        said.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        real_sync(descriptor)

    def rename(*names):
        said.append("name")
        real_replace(*names)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    disk.write_whole(tmp_path / "a", b"1")
    assert said == ["file", "name", "folder"]


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_full_disk_leaves_the_earlier_file_and_nothing_beside_it(tmp_path, monkeypatch, call):
    disk.write_whole(tmp_path / "a", b"earlier")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space"):
        disk.write_whole(tmp_path / "a", b"later")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"earlier"


def test_a_private_file_is_for_its_owner_alone(tmp_path):
    disk.write_whole(tmp_path / "private", b"", disk.OWNER)
    disk.write_arrays(tmp_path / "arrays.npz", {"a": np.arange(3)}, mode=disk.OWNER)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert np.load(tmp_path / "arrays.npz")["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("compress", [True, False])
def test_arrays_have_any_name(tmp_path, compress):
    """Columns of public data are written by their names."""
    names = ("file", "args", "allow_pickle", "self", "a/b", "Gruppe ü", "x.npy")
    given = {name: np.arange(i) for i, name in enumerate(names)}
    disk.write_arrays(tmp_path / "arrays.npz", given, compress=compress)
    found = disk.read_arrays(tmp_path / "arrays.npz", *names)
    assert {name: len(found[name]) for name in names} == {n: i for i, n in enumerate(names)}


def test_what_a_killed_write_left_is_known_by_its_name():
    partial = f".labels.npz.{os.getpid()}.new"
    assert disk.is_partial(partial, "labels.npz")
    assert disk.is_partial(".labels.npz.new", "labels.npz")
    assert not disk.is_partial(partial, "labels")
    assert not disk.is_partial("labels.npz", "labels.npz")
    assert not disk.is_partial(".labels.npz.mine.new", "labels.npz")


def test_a_folder_has_one_process_at_a_time(tmp_path):
    with disk.locked(tmp_path, "one other"):
        with pytest.raises(ValueError, match="one other"), disk.locked(tmp_path, "one other"):
            pass
    with disk.locked(tmp_path, "free again"):
        pass


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_damaged_json_names_its_file(tmp_path, content):
    disk.write_whole(tmp_path / "a.json", content)
    with pytest.raises(ValueError, match="a.json as it was written"):
        disk.read_json(tmp_path / "a.json")
    disk.write_whole(tmp_path / "a.json", b'{"b": 1}')
    assert disk.read_json(tmp_path / "a.json") == {"b": 1}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:60],
        lambda data: b"\x93NUMPY" + data,
        lambda data: b"[1]",
    ],
)
def test_damaged_arrays_name_their_file(tmp_path, spoil):
    path = tmp_path / "a.npz"
    disk.write_arrays(path, {"b": np.arange(3)})
    assert disk.read_arrays(path, "b")["b"].tolist() == [0, 1, 2]
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match="a.npz as they were written"):
        disk.read_arrays(path)


def test_arrays_that_lack_one_or_hold_something_else_name_their_file(tmp_path):
    path = tmp_path / "a.npz"
    disk.write_arrays(path, {"b": np.arange(3)})
    with pytest.raises(ValueError, match=r"a\.npz .*it lacks c, d"):
        disk.read_arrays(path, "b", "c", "d")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("b.npy", b"no array")
    with pytest.raises(ValueError, match=r"a\.npz .*b is no \.npy file"):
        disk.read_arrays(path, "b")
    with pytest.raises(FileNotFoundError, match="none.npz"):
        disk.read_arrays(tmp_path / "none.npz")


def test_the_header_of_an_array_that_never_ends_names_its_file(tmp_path):
    """NumPy raises TokenError for it."""
    path = tmp_path / "a.npz"
    header = b"{" * 64
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("b.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(ValueError, match="a.npz as they were written"):
        disk.read_arrays(path)


def test_two_new_paths_of_one_second_are_two(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.time, "strftime", lambda _: "20260101-000000")
    paths = []
    for _ in range(3):
        paths.append(disk.new_path(tmp_path, "label-eps0.5"))
        paths[-1].mkdir()
    first = f"20260101-000000-label-eps0.5-{os.getpid()}"
    assert [path.name for path in paths] == [first, f"{first}-2", f"{first}-3"]
