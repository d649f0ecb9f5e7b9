"""The one writer of files: a file is there whole, or not at all, and durable once the call
returns.
"""

import errno
import fcntl
import os
import subprocess
import sys
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


def test_names_of_folders_are_on_disk_before_anything_is_in_them(tmp_path, monkeypatch):
    synced = []
    real = os.fsync

    def sync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.chdir(tmp_path)
    disk.make_folder(disk.Path("a/b"), 0o700)
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o700
    disk.make_folder(disk.Path("a/b"))  # made by a process that was killed before it was on disk
    assert synced[2:] == [str(tmp_path / "a")]


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
    partial = f".labels.npz.{os.getpid()}-0123abcd.rknn-new"
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


def test_what_was_done_in_a_locked_folder_stands_when_the_lock_cannot_be_closed(
    tmp_path, monkeypatch
):
    real_close = os.close

    def close(descriptor):
        real_close(descriptor)
        raise OSError(errno.EIO, "damaged")

    with disk.locked(tmp_path, "one other"):
        monkeypatch.setattr(os, "close", close)
    monkeypatch.undo()
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


KILLED = """
import os, sys
from rknn_jax._internal import disk
from rknn_jax.privacy.ledger import Ledger
os.link = os.replace = lambda *_: os.kill(os.getpid(), 9)
{}
"""
"""A process that is killed when its file is complete and has no name yet."""


@pytest.mark.long
@pytest.mark.parametrize(
    "write", ["disk.write_whole(disk.Path('a'), b'1')", "Ledger.create('a', 'sha256:a', 1)"]
)
def test_the_next_write_removes_what_a_killed_one_left(tmp_path, write):
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", KILLED.format(write)], cwd=tmp_path)
        assert killed.returncode == -9
    (left,) = tmp_path.iterdir()  # the second removed that of the first
    assert disk.is_partial(left.name, "a")
    own = tmp_path / ".a.1-0123abcd.new"
    own.write_text("of somebody else")
    disk.write_whole(tmp_path / "b", b"2")
    assert sorted(path.name for path in tmp_path.iterdir()) == [own.name, "b"]


def test_a_file_that_is_being_written_stays(tmp_path):
    """By another process, and one that took the lock late, and a link to something else."""
    part = tmp_path / ".a.1-0123abcd.rknn-new"
    target = tmp_path / "precious"
    target.write_text("kept")
    link = tmp_path / ".b.1-0123abcd.rknn-new"
    link.symlink_to(target)
    folder = tmp_path / ".c.1-0123abcd.rknn-new"
    folder.mkdir()
    with open(part, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        disk._clear_once.cache_clear()
        disk.write_whole(tmp_path / "a", b"1")
        assert part.exists()
    disk._clear_once.cache_clear()
    disk.write_whole(tmp_path / "a", b"2")
    assert not part.exists()
    assert link.is_symlink()
    assert folder.is_dir()
    assert target.read_text() == "kept"


def test_a_part_that_was_removed_before_its_lock_is_made_anew(tmp_path, monkeypatch):
    lock = fcntl.flock
    removed = []

    def late(file, how):
        if not removed:
            removed.extend(tmp_path.glob(".a.*"))
            removed[0].unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    disk.write_whole(tmp_path / "a", b"1")
    assert removed
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_system_without_locks_is_written_and_keeps_what_is_left(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    (tmp_path / ".a.1-0123abcd.rknn-new").write_bytes(b"")
    disk._clear_once.cache_clear()
    disk.write_whole(tmp_path / "a", b"1")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.1-0123abcd.rknn-new", "a"]
