"""One budget for the same records, whichever command meets them first and however it names them."""

import contextlib
import os
import shlex
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.utils import infer_storage_options

from rknn_jax.cli import budget, classes
from rknn_jax.federation import joining
from rknn_jax.federation.join_settings import Join
from rknn_jax.formats import Columns
from rknn_jax.formats import _data_files as data_files
from rknn_jax.formats._same_files import refuse_same
from rknn_jax.privacy import ledger_index, source_names
from rknn_jax.privacy.disjoint import compose_disjoint
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.ledger import Ledger, LedgerError
from rknn_jax.release import accounts, adoption, label, planning
from rknn_jax.release.settings import Settings
from rknn_jax.release.shards import FileShard
from rknn_jax.settings import NamedColumns
from tests.options import named_settings, with_options

NAMES = ("d", "d/*.npz", "d/a.npz")
JOIN = named_settings(Join, Path("d"), "localhost", "central", budget=1.0)
IMAGES = NamedColumns(embedding=("images",))


@pytest.fixture(autouse=True, scope="module")
def index_of_module():
    """Leave the index as it is for users."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("public.npz", embeddings=rng.normal(size=(20, 3)))
    Path("d").mkdir()
    for name in "ab":
        np.savez(f"d/{name}.npz", embeddings=rng.normal(size=(30, 3)), labels=np.arange(30) % 2)


def labelled(name, ledger, inside=()):
    public = "public.csv" if Path("public.csv").exists() else "public.npz"
    settings = named_settings(Settings, public, name, 1.0, classes="2", queries=4, ledger=ledger)
    plan = planning.prepare(replace(settings, out=Path("out")))
    accounts.open_or_make(plan.settings, plan.cost, label.count(plan), inside)


def selected(name, ledger):
    settings = named_settings(classes.SelectClasses, name, 1.0, 1e-5, ledger=ledger)
    with pytest.raises(StopIteration):
        classes.run(settings)


def joined(name, ledger):
    joining.open_client(
        with_options(JOIN, private=Path(name), ledger=ledger, rounds=Path("rounds"))
    )


def adopted(name, ledger):
    Ledger.create(ledger, "sha256:of-others", 1)
    budget.adopt(budget.Adopt(ledger, name, "the same people", unrelated=True))


@pytest.fixture(autouse=True)
def no_draw(monkeypatch):
    """A selection ends once its ledger is open."""

    def stop(*_, **__):
        raise StopIteration

    monkeypatch.setattr(Ledger, "charge", stop)


DOORS = {"label": labelled, "classes": selected, "join": joined, "adopt": adopted}
USUAL = [("label", "d/a.npz", "join", "d"), ("adopt", "d", "label", "d/a.npz")]
PAIRS = [
    (first, name, second, other)
    for first in DOORS
    for name in NAMES
    for second in DOORS
    for other in NAMES
    if second != "adopt"
]


@pytest.mark.parametrize(
    ("first", "name", "second", "other"),
    [one if one in USUAL else pytest.param(*one, marks=pytest.mark.long) for one in PAIRS],
)
def test_no_second_budget_for_the_same_records(first, name, second, other):
    DOORS[first](name, Path("one.jsonl"))
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        DOORS[second](other, Path("two.jsonl"))
    assert not Path("two.jsonl").exists()
    if {name, other} <= {"d", "d/*.npz"}:  # the same records have the same fingerprint everywhere
        DOORS[second](other, Path("one.jsonl"))


def test_a_ledger_that_was_moved_leaves_no_budget_at_its_old_place():
    labelled("d/a.npz", Path("old.jsonl"))
    Path("old.jsonl").rename("new.jsonl")
    labelled("d/a.npz", Path("new.jsonl"))
    np.savez_compressed("copy.npz", **np.load("d/a.npz"))  # other bytes: the records alone tell
    for name in ("d/a.npz", "copy.npz"):
        with pytest.raises(LedgerError, match=r"new\.jsonl.*no ledger yet at .*old\.jsonl"):
            labelled(name, Path("old.jsonl"))


def test_a_ledger_behind_a_link_that_leads_elsewhere_since_is_known_by_its_place():
    Path("v1").mkdir()
    Path("current").symlink_to("v1")
    labelled("d/a.npz", Path("current/ledger.jsonl"))
    Path("current").unlink()
    for name in ("d/a.npz", "copy.npz"):
        np.savez_compressed("copy.npz", **np.load("d/a.npz"))
        with pytest.raises(LedgerError, match=r"v1/ledger\.jsonl, got"):
            labelled(name, Path("other.jsonl"))


@pytest.mark.parametrize("second", ["label", "join"])
def test_a_copy_of_one_file_of_a_folder_has_no_second_budget(second):
    """Its name and its place are others, and its records are among those of the folder."""
    labelled("d", Path("one.jsonl"))
    Path("e").mkdir()
    shutil.copy("d/a.npz", "e/c.npz")
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        DOORS[second]("e/c.npz", Path("two.jsonl"))
    assert not Path("two.jsonl").exists()


def test_a_ledger_of_a_folder_knows_each_file_of_it(tmp_path, monkeypatch):
    labelled("d", Path("folder.jsonl"))
    monkeypatch.setenv("RKNN_STATE_DIR", str(tmp_path / "of another user"))
    labelled("d/b.npz", Path("file.jsonl"))
    with pytest.raises(LedgerError, match="in common"):
        compose_disjoint([Ledger.open(name) for name in ("folder.jsonl", "file.jsonl")])


def test_a_ledger_of_others_adopts_no_copy_of_one_of_a_clients_files():
    joined("d", Path("one.jsonl"))
    Path("e").mkdir()
    with np.load("d/a.npz") as held:
        np.savez_compressed("e/c.npz", **held)  # other bytes, and the same records
    with pytest.raises(LedgerError, match=r"one\.jsonl, got two\.jsonl"):
        adopted("e/c.npz", Path("two.jsonl"))
    assert len(Ledger.open("two.jsonl").datasets) == 1


def test_a_copy_whose_columns_are_read_in_another_order_has_no_second_budget():
    """A release orders columns by its public rows, and a selection without them does not."""
    rows = np.random.default_rng(0).normal(size=(30, 3))
    frame = pandas.DataFrame(rows, columns=["x", "y", "z"])
    frame[["z", "x", "y"]].to_csv("public.csv", index=False)
    for name in ("a.csv", "b.csv"):
        frame.assign(labels=np.arange(30) % 2).to_csv(name, index=False)
    selected("a.csv", Path("one.jsonl"))
    with pytest.raises(LedgerError, match=r"one\.jsonl, got no ledger yet at two\.jsonl"):
        labelled("b.csv", Path("two.jsonl"))


@pytest.mark.parametrize(
    ("name", "copy"), [("d", "e"), ("d/*.csv", "e"), ("d", "e/*.csv"), ("d", "e/b.csv")]
)
def test_a_copied_folder_whose_columns_are_read_in_another_order_has_no_second_budget(name, copy):
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(30, 3)), columns=["x", "y", "z"])
    frame[["z", "x", "y"]].to_csv("public.csv", index=False)
    frame = frame.assign(labels=np.arange(30) % 2)
    for part, rows in (("a", frame), ("b", frame + 1), ("empty", frame[:0])):
        rows.to_csv(f"d/{part}.csv", index=False)
    for part in "ab":
        Path(f"d/{part}.npz").unlink()
    selected(name, Path("one.jsonl"))
    shutil.copytree("d", "e")
    with pytest.raises(LedgerError, match=r"one\.jsonl, got no ledger yet at two\.jsonl"):
        DOORS["label"](copy, Path("two.jsonl"), data_files.find([copy], "--private").files)
    assert not Path("two.jsonl").exists()
    # A part without records is no data set: other people's folders may have the same one.
    Path("others").mkdir()
    shutil.copy("d/empty.csv", "others/empty.csv")
    frame.assign(x=7.0).to_csv("others/a.csv", index=False)
    files = data_files.find(["others"], "--private").files
    labelled("others", Path("others.jsonl"), files)


@pytest.mark.parametrize("name", ["d/a.npz", pytest.param("d", marks=pytest.mark.long)])
def test_a_ledger_adopts_no_changed_file_that_another_one_was_charged_for(name):
    joined(name, Path("one.jsonl"))
    with np.load("d/a.npz") as held:
        np.savez("d/a.npz", embeddings=held["embeddings"] + 1, labels=held["labels"])
    with pytest.raises(LedgerError, match=r"one\.jsonl, got two\.jsonl"):
        adopted("d/a.npz", Path("two.jsonl"))
    assert len(Ledger.open("two.jsonl").datasets) == 1
    for reason in ("the same people", "once more"):
        budget.adopt(budget.Adopt(Path("one.jsonl"), "d/a.npz", reason, unrelated=True))
    assert len(Ledger.open("one.jsonl").datasets) == 2


@pytest.mark.parametrize("first", ["adopt", pytest.param("label", marks=pytest.mark.long)])
def test_a_file_that_has_changed_is_no_new_one(first):
    DOORS[first]("d", Path("one.jsonl"))
    change()
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled("d/a.npz", Path("two.jsonl"))


def test_a_file_whose_name_is_no_unicode_has_one_budget():
    name = os.fsdecode(b"p\xff.npz")
    shutil.copy("d/a.npz", name)
    labelled(name, Path("one.jsonl"))
    np.savez(name, embeddings=np.zeros((30, 3)), labels=np.arange(30) % 2)
    with pytest.raises(LedgerError, match="one.jsonl"):
        labelled(name, Path("two.jsonl"))


def test_every_file_of_a_folder_is_known_though_few_are_noted(monkeypatch):
    monkeypatch.setattr(ledger_index, "MOST_SHARDS", 0)
    labelled("d", Path("one.jsonl"))
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled("d/a.npz", Path("two.jsonl"))


@pytest.mark.parametrize("first", ["d/a.npz", "links/a.npz"])
def test_every_file_of_a_folder_is_looked_up_though_few_are_noted(monkeypatch, first):
    Path("links").mkdir()
    Path("links/a.npz").symlink_to(Path("d/a.npz").resolve())
    labelled(first, Path("one.jsonl"))
    change()
    monkeypatch.setattr(ledger_index, "MOST_SHARDS", 0)
    for other in ("d", "links"):
        with pytest.raises(LedgerError, match=r"one\.jsonl"):
            labelled(other, Path("two.jsonl"))


def test_a_link_in_a_folder_is_known_though_few_are_noted(monkeypatch):
    Path("links").mkdir()
    Path("links/a.npz").symlink_to(Path("d/a.npz").resolve())
    monkeypatch.setattr(ledger_index, "MOST_SHARDS", 0)
    labelled("links", Path("one.jsonl"))
    change()
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled("links/a.npz", Path("two.jsonl"))


def test_other_files_of_a_folder_are_other_data(monkeypatch):
    monkeypatch.setattr(ledger_index, "MOST_SHARDS", 0)
    for name in "ab":
        Path(f"cohort-{name}").mkdir()
        Path(f"cohort-{name}/1.npz").symlink_to(Path(f"d/{name}.npz").resolve())
        labelled(f"cohort-{name}", Path(f"{name}.jsonl"))


@pytest.mark.parametrize("other", ["d", "d/a.npz", "d/more.npz"])
@pytest.mark.parametrize("kind", ["a folder", "files"])
def test_a_folder_behind_links_is_known_though_few_are_noted(monkeypatch, kind, other):
    some, others = np.random.default_rng(0).normal(size=(2, 30, 3))
    places = [Path("d").resolve() / name for name in ("a.npz", "more.npz")]
    for i, place in enumerate(places):
        np.savez(place, embeddings=some + i, labels=np.arange(30) % 2)
    Path("links").mkdir()
    for place in [Path("d").resolve()] if kind == "a folder" else places:
        Path("links", place.name).symlink_to(place)
    monkeypatch.setattr(ledger_index, "MOST_SHARDS", 1)
    labelled("links", Path("one.jsonl"))
    for i, place in enumerate(places):
        np.savez(place, embeddings=others + i, labels=np.arange(30) % 2)
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled(other, Path("two.jsonl"))


def test_a_new_file_in_a_folder_behind_a_link_is_known():
    Path("links").mkdir()
    Path("links/d").symlink_to(Path("d").resolve())
    labelled("links", Path("one.jsonl"))
    change()
    shutil.move("d/a.npz", "d/new.npz")
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled("d/new.npz", Path("two.jsonl"))


@pytest.mark.parametrize(
    ("link", "name"),
    [("now", "now/a.npz"), ("now", "now"), ("now.npz", "now.npz"), ("now", "./d/../now")],
)
def test_a_link_that_leads_elsewhere_since_is_known(link, name):
    for version in (1, 2):
        Path(f"v{version}").mkdir()
        change()
        shutil.move("d/a.npz", f"v{version}/a.npz")
    np.savez("v2/a.npz", embeddings=np.ones((31, 3)), labels=np.arange(31) % 2)
    for version, ledger in ((1, "one.jsonl"), (2, "two.jsonl")):
        Path(link).unlink(missing_ok=True)
        Path(link).symlink_to(f"v{version}/a.npz" if link.endswith("npz") else f"v{version}")
        if version == 1:
            labelled(name, Path(ledger))
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled(name, Path("two.jsonl"))


@pytest.mark.long
@pytest.mark.parametrize("most", [0, 256])
@pytest.mark.parametrize("then", ["now", "now/a.npz", "now/*.npz"])
@pytest.mark.parametrize("first", ["now", "now/a.npz", "now/*.npz"])
def test_a_folder_that_leads_elsewhere_since_is_known_by_other_names(
    monkeypatch, first, then, most
):
    monkeypatch.setattr(ledger_index, "MOST_SHARDS", most)
    for version in (1, 2):
        shutil.copytree("d", f"v{version}")
    np.savez("v2/a.npz", embeddings=np.ones((31, 3)), labels=np.arange(31) % 2)
    Path("now").symlink_to("v1")
    labelled(first, Path("one.jsonl"))
    Path("now").unlink()
    Path("now").symlink_to("v2")
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled(then, Path("two.jsonl"))


def linked(place, to):
    Path(place).unlink(missing_ok=True)
    Path(place).symlink_to(to)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("disk/data", "home/data/latest/a.npz"),
        ("home/data/latest/a.npz", "disk/data/latest/a.npz"),
        ("chain.npz", "disk/data/latest/a.npz"),
    ],
)
def test_a_link_among_several_that_leads_elsewhere_since_is_known(first, then):
    for version in (1, 2):
        shutil.copytree("d", f"disk/v{version}")
    np.savez("disk/v2/a.npz", embeddings=np.ones((31, 3)), labels=np.arange(31) % 2)
    Path("disk/data").mkdir()
    linked("home", "disk")
    linked("chain.npz", "disk/data/latest/a.npz")
    linked("disk/data/latest", "../v1")
    labelled(first, Path("one.jsonl"))
    linked("disk/data/latest", "../v2")
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled(then, Path("two.jsonl"))


def test_a_link_is_known_from_a_folder_that_the_shell_names_by_a_link(monkeypatch):
    here = Path.cwd()
    for version in (1, 2):
        shutil.copytree("d", f"disk/v{version}")
    np.savez("disk/v2/a.npz", embeddings=np.ones((31, 3)), labels=np.arange(31) % 2)
    linked("home", "disk")
    linked("disk/latest", "v1")
    labelled(str(here / "home/latest/a.npz"), Path("one.jsonl"))
    linked("disk/latest", "v2")
    shutil.copy("public.npz", "disk")
    monkeypatch.chdir("home")
    monkeypatch.setenv("PWD", str(here / "home"))
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled("latest/a.npz", here / "two.jsonl")


def test_a_file_above_a_link_is_known_by_where_it_is():
    """A link is followed before the `..` after it."""
    Path("store/in").mkdir(parents=True)
    linked("in", "store/in")
    shutil.copy("d/a.npz", "store/x.npz")
    shutil.copy("d/b.npz", "x.npz")
    labelled("in/../x.npz", Path("one.jsonl"))
    change()
    shutil.copy("d/a.npz", "store/x.npz")
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled("store/x.npz", Path("two.jsonl"))
    labelled("x.npz", Path("others.jsonl"))


def test_a_pattern_whose_files_have_other_names_since_is_known():
    labelled("d/*.npz", Path("one.jsonl"))
    change()
    shutil.move("d/a.npz", "d/c.npz")
    shutil.move("d/b.npz", "d/e.npz")
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled("d/*.npz", Path("two.jsonl"))


def test_a_file_that_has_changed_is_known_by_its_url():
    DOORS["adopt"]("d", Path("one.jsonl"))
    change()
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled(f"file://{Path('d/a.npz').resolve()}", Path("two.jsonl"))


@pytest.mark.parametrize("most", [0, 256])
@pytest.mark.parametrize("other", ["memory://{}/a.npz", "simplecache::memory:///{}/a.npz"])
def test_a_file_elsewhere_that_has_changed_is_known(monkeypatch, other, most):
    monkeypatch.setattr(ledger_index, "MOST_SHARDS", most)
    bucket = f"bucket-{other.partition(':')[0]}-{most}"
    memory = fsspec.filesystem("memory")
    memory.put_file("d/a.npz", f"/{bucket}/a.npz")
    labelled(f"memory://{bucket}/", Path("one.jsonl"))
    memory.put_file("d/b.npz", f"/{bucket}/a.npz")
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled(other.format(bucket), Path("two.jsonl"))


@pytest.mark.parametrize(
    "name",
    [
        *("simplecache::{}/a.npz", "~/d/a.npz", "~/d", "file:{}/a.npz", "local:{}/a.npz"),
        *("local://{}/a.npz", "file:d/a.npz", "{}/a.npz/", "{}//a.npz", "{}/../d/./a.npz", "{}/"),
        *("file:{}/", "{}/?.npz", "**/a.npz", "file:{}/[a]*", "*/a.npz"),
    ],
)
def test_a_file_that_has_changed_is_known_by_a_name_that_fsspec_expands(monkeypatch, name):
    monkeypatch.setenv("HOME", str(Path.cwd()))
    labelled(name.format(Path("d").resolve()), Path("one.jsonl"))
    change()
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled("d/a.npz", Path("two.jsonl"))


@pytest.mark.parametrize("name", ["d/.*", "**/.b.npz", "d/.b*/"])
def test_a_hidden_file_that_a_pattern_names_is_known_once_it_has_changed(name):
    shutil.copy("d/a.npz", "d/.b.npz")
    labelled(name, Path("one.jsonl"))
    Path("d/.b.npz").write_bytes(Path("d/b.npz").read_bytes())
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled("d/.b.npz", Path("two.jsonl"))


@pytest.mark.parametrize(
    "other",
    [
        *("http://h/d/./a.npz", "http://h//d/a.npz", "http://h/d/%61.npz", "http://H:80/d/a.npz"),
        *("http://h/x/../d/a.npz", "http://h/d/a.npz#x", "http://me:secret@h/d/a.npz"),
        "simplecache::http://h/d/./a.npz",
    ],
)
def test_a_file_on_the_web_is_one_file_however_its_url_is_spelled(other):
    name = "http://h/d/a.npz"
    assert set(source_names.of([other])) & set(source_names.of([name]))
    # The note of a stopped release keeps the plain spelling, which has no password.
    settings = named_settings(Settings, "public.npz", other, 1.0)
    assert planning.places(settings) == name
    with pytest.raises(ValueError, match="the same twice"):
        refuse_same([name, other], "--private")
    refuse_same([name, *(f"{name}?version=2", "https://h/d/a.npz", "http://h:8080/d/a.npz")], "")


class Hosted(MemoryFileSystem):
    """A file system that keeps the host out of its paths, as those of HDFS, SFTP and SMB do."""

    protocol = "hosted"
    stores = defaultdict[str, dict[str, Any]](dict)

    def __init__(self, host: str, **_):
        super().__init__()
        self.store = self.stores[host]

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(infer_storage_options(path)["path"])

    @staticmethod
    def _get_kwargs_from_urls(path):
        return {"host": infer_storage_options(path)["host"]}


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("webhdfs://me:secret@North:50070/d/a.npz", "webhdfs://north/d/a.npz"),
        ("webhdfs://north:50071/", "webhdfs://north:50071"),
        ("simplecache::webhdfs://d/d/*.npz", "webhdfs://d/d/*.npz"),
        ("memory://bucket/", "memory:///bucket"),
    ],
)
def test_a_url_has_its_host_and_no_user(given, plain):
    assert source_names.of([given])[-1] == f"file {plain}"


@pytest.mark.parametrize("name", ["{}/d/a.npz", "{}/d", "{}/d/", "{}/d/*.npz", "{}", "{}/"])
def test_files_of_two_hosts_are_two(name):
    """The second hospital was refused a ledger, and its folder was read from another host."""
    fsspec.register_implementation("hosted", Hosted, clobber=True)
    hosts = "hosted://north", "hosted://South"
    for host, file in zip(hosts, "ab", strict=True):
        fsspec.filesystem("hosted", host=host[9:]).put_file(f"d/{file}.npz", "/d/a.npz")
    north, south = map(name.format, hosts)
    refuse_same([f"{host}/d/a.npz" for host in hosts], "--private")
    with pytest.raises(ValueError, match="the same twice"):
        refuse_same([f"{hosts[1]}/d/a.npz", "hosted://me:secret@south/d/a.npz"], "--private")
    assert data_files.find([south], "--private").files == [f"{hosts[1]}/d/a.npz"]
    labelled(north, Path("one.jsonl"), data_files.find([north], "--private").files)
    labelled(south, Path("two.jsonl"), data_files.find([south], "--private").files)
    np.savez("d/c.npz", embeddings=np.ones((30, 3)), labels=np.arange(30) % 2)
    fsspec.filesystem("hosted", host="north").put_file("d/c.npz", "/d/a.npz")
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled(f"{hosts[0]}/d/a.npz", Path("three.jsonl"))


@pytest.mark.parametrize("name", ["file://{}/d/a.npz", "file:{}/d/a.npz", "memory://bucket/a.npz"])
def test_a_url_is_the_same_place_in_every_folder(monkeypatch, name):
    found = set()
    settings = named_settings(Settings, "public.npz", name.format(Path.cwd()), 1.0)
    for folder in (".", "d"):
        monkeypatch.chdir(folder)
        found.add(planning.places(settings))
    local = str(Path("a.npz").absolute())
    assert found == {local if "file" in name else "memory:///bucket/a.npz"}


@pytest.mark.parametrize("door", ["classes", "adopt"])
def test_a_folder_elsewhere_stands_for_its_files_at_every_door(monkeypatch, door):
    memory = fsspec.filesystem("memory")
    bucket = f"memory://bucket-of-{door}"
    memory.put_file("d/a.npz", f"{bucket}/a.npz")
    DOORS[door](bucket, Path("one.jsonl"))
    monkeypatch.setattr(
        source_names, "folders_above", lambda found: []
    )  # the folder itself is noted
    memory.put_file("d/b.npz", f"{bucket}/a.npz")
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        labelled(f"{bucket}/a.npz", Path("two.jsonl"))


def test_a_selection_from_a_folder_elsewhere_knows_a_file_of_it_that_has_changed():
    memory = fsspec.filesystem("memory")
    memory.put_file("d/a.npz", "/bucket-selected/a.npz")
    labelled("memory://bucket-selected/a.npz", Path("one.jsonl"))
    memory.put_file("d/b.npz", "/bucket-selected/a.npz")
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        selected("memory://bucket-selected", Path("two.jsonl"))


def change():
    """Give a file other records."""
    rows = np.random.default_rng(1).normal(size=(31, 3))
    np.savez("d/a.npz", embeddings=rows, labels=np.arange(31) % 2)


def test_a_file_that_has_changed_is_known_as_a_shard_from_python():
    columns = Columns(("embeddings",), "labels", width=3)
    labelled("d/a.npz", Path("one.jsonl"))
    change()
    settings = named_settings(
        Settings, "public.npz", "records", 1.0, classes="2", queries=4, ledger=Path("two.jsonl")
    )
    shard = FileShard("d/a.npz", "--private", columns)
    plan = planning.prepare(replace(settings, out=Path("out")), [shard])
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        label.draw(plan, label.count(plan))


def test_a_client_that_asks_for_another_unit_than_its_ledger_keeps_is_told():
    joined("d/a.npz", Path("own.jsonl"))
    joined("d/a.npz", Path("own.jsonl"))
    other = with_options(JOIN, private=Path("d/a.npz"), ledger=Path("own.jsonl"), unit="client")
    with pytest.raises(LedgerError, match="Expected unit record, for which own.jsonl was made"):
        joining.open_client(other)


def test_a_client_of_several_files_keeps_the_ledger_of_earlier_versions():
    """They took the fingerprint of all records one after another."""
    rows = joining.read_records(replace(JOIN, private=Path("d"))).inputs
    Ledger.create("old.jsonl", joining.fingerprint(rows), 1)
    joined("d", Path("old.jsonl"))
    shutil.copytree("d", "copy")
    with pytest.raises(LedgerError, match=r"ledger of these records, .*old\.jsonl"):
        joined("copy", Path("new.jsonl"))
    for name in "ab":  # as other programs write them
        np.savez_compressed(f"copy/{name}.npz", **np.load(f"copy/{name}.npz"))
    for files in ("copy", "copy/a.npz"):
        with pytest.raises(LedgerError, match=r"ledger of these records, .*old\.jsonl"):
            labelled(files, Path("new.jsonl"))
    with pytest.raises(LedgerError, match="another data set"):
        labelled("d", Path("old.jsonl"))
    budget.adopt(budget.Adopt(Path("old.jsonl"), "d", "read by rknn label", unrelated=True))
    labelled("d", Path("old.jsonl"))


@pytest.mark.parametrize("shape", [(30, 8, 8), (30, 8, 8, 1)])
def test_gray_images_are_the_same_records_at_every_door(shape):
    images = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    np.savez("i.npz", images=images, labels=np.arange(30) % 2)
    data = adoption.data_set(["i.npz"], IMAGES.read(raw=True))
    assert joining.read_records(replace(JOIN, private=Path("i.npz"))).data == data
    assert fingerprint(images.reshape(30, 8, 8)) == data.fingerprint


@pytest.mark.parametrize("name", ["i.npz", "d/a.npz"])
@pytest.mark.parametrize("door", ["classes", "join"])
def test_a_ledger_of_other_records_adopts_these_by_the_command_that_is_told(rknn, door, name):
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3)).astype(np.uint8)
    np.savez("i.npz", images=images, labels=np.arange(30) % 2)
    Ledger.create("l.jsonl", "sha256:of-them-before", 1, 1e-5)
    ledger = Path("l.jsonl")
    chosen = named_settings(classes.SelectClasses, name, 1.0, 1e-5, ledger=ledger)
    if name == "i.npz":
        chosen = replace(chosen, columns=IMAGES, representation="pixels")
    client = with_options(JOIN, private=Path(name), rounds=Path("rounds"), ledger=ledger)
    call = {"join": lambda: joining.open_client(client), "classes": lambda: classes.run(chosen)}
    with pytest.raises(LedgerError, match="another data set") as told:
        call[door]()
    words = str(told.value)
    command = shlex.split(words[words.index("rknn budget adopt") :].replace("TEXT", "'the same'"))
    assert rknn(*command[1:], "--unrelated").status == 0
    with contextlib.suppress(StopIteration):
        call[door]()


def test_a_name_with_brackets_is_a_file_if_there_is_one_and_else_a_pattern(tmp_path):
    files = [tmp_path / "a1.npz", tmp_path / "a[1].npz"]
    for file in files:
        file.touch()
    assert source_names.of([str(files[1])]) == [f"file {files[1]}"]
    pattern = tmp_path / "a*.npz"
    assert source_names.of([str(pattern)]) == [f"file {one}" for one in (pattern, *files)]


@pytest.mark.parametrize("door", ["select", "join"])
def test_another_budget_than_the_ledger_has_is_refused_at_every_door(door):
    """An owner who named 5 was not told that the ledger allows 9."""
    data = adoption.data_set(["d/a.npz"], Columns())
    Ledger.create(Path("l.jsonl"), data.fingerprint, 9, 1e-5)
    given = {"ledger": Path("l.jsonl"), "budget": 5.0}
    client = with_options(JOIN, private=Path("d/a.npz"), rounds=Path("rounds"), **given)
    chosen = named_settings(classes.SelectClasses, "d/a.npz", 1.0, 1e-5, **given)
    call = {"join": lambda: joining.open_client(client), "select": lambda: classes.run(chosen)}
    with pytest.raises(LedgerError, match=r"Expected budget 9\.0 as l\.jsonl has it"):
        call[door]()
