"""A folder may be a link: what is in it is read by every door, once, and known by its place."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rknn_jax._internal.disk import files_below
from rknn_jax.embedding import table_files
from rknn_jax.embedding.images import ImageFolder
from rknn_jax.formats import _data_files as data_files
from rknn_jax.privacy import source_names


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
    # Both folders, and four files, of which two have the name of the link too.
    assert len(known) == len({*known}) == 2 + 4 + 2
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


@pytest.mark.parametrize("pattern", ["*/*.csv", "**/*.csv", "link/*"])
def test_a_pattern_is_the_same_files_for_a_table_as_for_a_release(tree, pattern):
    (tree / "own/.hidden.csv").write_text("age\n3\n")
    (tree / "own/notes.txt").write_text("no table")
    name = f"{tree}/{pattern}"
    found = table_files.files(Path(name), "--table")
    assert [*map(str, found)] == data_files.find([name], "--private").files


def test_of_a_folder_with_parquet_that_alone_is_a_table(tmp_path):
    (tmp_path / "d/.cache").mkdir(parents=True)
    (tmp_path / "d/two.csv").write_text("age,labels\n3,a\n")
    (tmp_path / "d/.cache/x.parquet").write_text("hidden")
    assert [one.name for one in table_files.files(tmp_path / "d", "--table")] == ["two.csv"]
    assert not table_files.is_typed(tmp_path / "d")
    pq.write_table(pa.table({"age": [1, 2]}), tmp_path / "d/one.parquet")
    assert [one.name for one in table_files.files(tmp_path / "d", "--table")] == ["one.parquet"]


@pytest.mark.parametrize("folder", [True, False])
def test_names_in_private_json_lines_are_not_looked_for_in_a_folder_either(rknn, folder):
    """An error would tell that none of the first private records has a name."""
    Path("p.jsonl").write_text('{"age": 1, "labels": "a"}\n{"age": 2, "labels": "b"}\n')
    Path("r").mkdir()
    Path("r/one.jsonl").write_text('{"labels": "a"}\n' * 3)
    assert rknn("embed", "--table", "p.jsonl", "--out", "p.parquet").status == 0
    name = "r" if folder else "r/one.jsonl"
    words = ("--private", "--card", "p.card.json", "--out", "r.parquet")
    done = rknn("embed", "--table", name, *words)
    assert done.status == 0, done.err
    assert pq.read_table("r.parquet").num_rows == 3
