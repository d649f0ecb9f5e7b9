"""A folder may be a link: what is in it is read by every door, once, and known by its place."""

import os
from pathlib import Path

import pytest

from rknn_jax._internal.disk import files_below
from rknn_jax.embedding import table_files
from rknn_jax.embedding.images import ImageFolder
from rknn_jax.privacy import source_names
from rknn_jax.release import data_files


@pytest.fixture
def tree(tmp_path):
    """A folder with a file, and a link to a folder elsewhere that holds another one.

    Links to the folder itself and to nowhere lead to no file.
    """
    for name in ("data/own", "elsewhere/deep"):
        (tmp_path / name).mkdir(parents=True)
    for suffix in ("csv", "png"):
        for name in ("data/own/a", "elsewhere/deep/b"):
            (tmp_path / f"{name}.{suffix}").write_text(f"x\n{name}\n")
    (tmp_path / "data/link").symlink_to("../elsewhere/deep")
    (tmp_path / "data/own/above").symlink_to("..")
    (tmp_path / "data/itself").symlink_to("itself")
    (tmp_path / "data/nowhere").symlink_to("../no")
    return tmp_path / "data"


def test_a_walk_enters_each_folder_once(tree):
    (tree / "own/again").symlink_to("../../elsewhere")
    (tree / "to_own").symlink_to("own")
    found = [os.path.relpath(one, tree) for one in files_below(tree)]
    assert found == [
        *("itself", "nowhere", "link/b.csv", "link/b.png", "own/a.csv", "own/a.png"),
    ]


@pytest.mark.parametrize("pattern", ["", "*/*.csv", "**/*.csv", "**"])
def test_a_release_reads_linked_folders_once(tree, pattern):
    files = data_files.find([f"{tree}/{pattern}".rstrip("/")], "--private").files
    assert [os.path.relpath(one, tree) for one in files] == ["link/b.csv", "own/a.csv"]


def test_folders_that_all_link_to_each_other_take_no_time(tmp_path):
    for one in range(12):
        (tmp_path / f"all/{one}").mkdir(parents=True)
        (tmp_path / f"all/{one}/file").touch()
        for other in range(12):
            (tmp_path / f"all/{one}/to{other}").symlink_to(f"../{other}")
    (tmp_path / "links").mkdir()
    (tmp_path / "links/0").symlink_to("../all/0")
    for folder in ("all", "links"):
        assert len([*files_below(tmp_path / folder)]) == 12


def test_tables_and_images_are_found_in_linked_folders(tree):
    found = table_files.files(tree, "--table")
    assert [os.path.relpath(one, tree) for one in found] == ["link/b.csv", "own/a.csv"]
    images = ImageFolder.find(tree)
    assert images.files == ("link/b.png", "own/a.png")
    assert images.classes == ("link", "own")


def test_the_index_knows_the_files_of_a_linked_folder_by_their_own_place(tree):
    known = source_names.of([str(tree)])
    place = Path(tree).parent.resolve() / "elsewhere/deep/b.csv"
    assert f"{source_names.KIND}{place}" in known
    assert f"{source_names.KIND}{place.parent}" in known
    assert len(known) == len({*known}) == 2 + 4  # both folders, and four files
    assert {*source_names.of([f"{tree}/*/*.csv"])} - {*known} == {f"file {tree}/*/*.csv"}


def test_a_folder_that_cannot_be_read_is_an_error(tree, monkeypatch):
    """Nobody but its owner may read it; the owner of everything may, so the disk says it here."""

    def scandir(folder, scan=os.scandir):
        if str(folder).endswith("link"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(OSError, match="Permission denied.*link"):
        ImageFolder.find(tree)
    with pytest.raises(ValueError, match="Permission denied.*link"):
        data_files.find([str(tree)], "--private")
