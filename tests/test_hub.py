"""Files of Hugging Face's `datasets`: `save_to_disk` folders and the hub's Parquet, at every door.

Class numbers have names in the schema, so that another order of the classes changes nothing.
"""

import glob
import io
import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rknn_jax.cli import main as cli
from rknn_jax.embedding import table_files
from rknn_jax.embedding.images import ImageFolder
from rknn_jax.federation import joining
from rknn_jax.federation.agreement import RefusedError
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.rounds import Round
from rknn_jax.formats import Columns, _hub
from rknn_jax.formats import _data_files as data_files
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.records.classes import MISSING, Classes, parse_classes
from rknn_jax.records.labels import agree, encode, plain
from rknn_jax.release import known_classes, tables
from rknn_jax.release.settings import Settings
from rknn_jax.release.shards import ArrowShard, FileShard
from tests import tiny_network
from tests.conftest import crossed
from tests.options import named_settings

NAMES = ("cat", "dog", "owl")
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
layouts = pytest.mark.parametrize("form", ["parquet", "arrow"])
declaring = pytest.mark.parametrize("form", ["parquet", "arrow", "npz"])


def features(names=NAMES, column="label", **others) -> dict[bytes, bytes]:
    every = {column: {"names": list(names), "_type": "ClassLabel"}} | others
    return {b"huggingface": json.dumps({"info": {"features": every}}).encode()}


def write(folder: Path, table: pa.Table, form: str, metadata=None) -> Path:
    """Write a table in two parts, as the hub or `save_to_disk` name them."""
    table = table.replace_schema_metadata(features() if metadata is None else metadata)
    data = folder / "data" if form == "parquet" else folder
    data.mkdir(parents=True)
    half = table.num_rows // 2
    for part, rows in enumerate((table.slice(0, half), table.slice(half))):
        if form == "npz":
            arrays = {name: np.stack(rows[name].to_pylist()) for name in rows.column_names}
            names = {"classes": np.array(NAMES)} if metadata is None else {}
            np.savez(data / f"{part}.npz", **arrays, **names)
            continue
        if form == "parquet":
            pq.write_table(rows, data / f"train-{part:05}-of-00002.parquet")
            continue
        path = data / f"data-{part:05}-of-00002.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
    if form == "arrow":
        listed = [{"filename": path.name} for path in sorted(data.iterdir())]
        (folder / "state.json").write_text(json.dumps({"_data_files": listed}))
        (folder / "dataset_info.json").write_text("{}")
    return folder


def clusters(rows: int) -> pa.Table:
    """Well-separated classes; the label is the class number."""
    truth = np.arange(rows) % 3
    spread = np.random.default_rng(rows).normal(0, 0.1, (rows, 2))
    points = np.array([[0, 0], [9, 0], [0, 9]])[truth] + spread
    return pa.table({"embeddings": list(points.astype(np.float32)), "label": truth})


def run(*words: str) -> dict:
    """Run a command, and return what it printed as JSON."""
    with pytest.MonkeyPatch.context() as patch:
        told = io.StringIO()
        patch.setattr(cli.stdout, "write", told.write)
        status = cli.main([*words, "--json"])
    found = json.loads(told.getvalue())
    assert found["exit_status"] == status
    return found


@pytest.mark.long
@declaring
@pytest.mark.parametrize("classes", ["cat,dog,owl", "owl,cat,dog", "3", None])
def test_label_reads_class_numbers_by_their_names(tmp_path, monkeypatch, form, classes):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "R", clusters(300), form)
    write(tmp_path / "P", clusters(30).select(["embeddings"]), form, {})
    named = [] if classes is None else ["--classes", classes]
    words = ["label", "--public", "P", "--private", "R", "--label", "label", "--epsilon", "20"]
    dry = run(*words, *named, "--dry-run")
    assert dry["exit_status"] == 0
    assert run(*words, *named, "--out", "out")["exit_status"] == 0
    order = NAMES if classes in (None, "3") else tuple(classes.split(","))
    wanted = [order.index(NAMES[number]) for number in np.arange(30) % 3]
    with np.load("out/labels.npz") as rows:
        assert rows["label"].tolist() == wanted
        assert ("class_names" in rows) == (classes != "3")


@pytest.mark.long
@pytest.mark.parametrize("form", ["parquet", "npz"])
def test_a_statement_says_that_the_private_files_named_the_classes(
    tmp_path, monkeypatch, form, capsys
):
    """`class_encode_column` takes these names from the records: a class may have one patient."""
    monkeypatch.chdir(tmp_path)
    table = clusters(300)
    rows = {name: np.stack(table[name].to_pylist()) for name in ("embeddings", "label")}
    if form == "parquet":
        write(tmp_path / "R", table, form)
    np.savez("R.npz", **rows, classes=np.array(NAMES))
    np.savez("P.npz", embeddings=rows["embeddings"][:30])
    private = "R" if form == "parquet" else "R.npz"
    words = ("label", "--public", "P.npz", "--private", private, "--label", "label")
    for given, told in (((), True), (("--classes", ",".join(NAMES)), False)):
        done = run(*words, *given, "--epsilon", "1", "--budget", "3", "--out", f"out{told}")
        assert done["exit_status"] == 0
        card = json.loads(Path(f"out{told}/privacy.json").read_text())
        assert any("the private files declare" in one for one in card["not_covered"]) == told
        assert card["tuning"]["private_data"] == ("uncharged" if told else "none")
        assert ("which become public" in " ".join(capsys.readouterr().err.split())) == told


@declaring
def test_check_counts_by_the_names(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    table = clusters(90)
    labels = table["label"].to_numpy().copy()
    labels[:4] = -1
    labels[4] = 7
    table = table.set_column(1, "label", pa.array(labels))
    write(tmp_path / "R", table, form)
    found = run("check", "R", "--label", "label", "--classes", "owl,cat")
    assert found["classes"] == {"owl": 29, "cat": 28}
    assert found["foreign"] == {"dog": 28, "7": 1}
    assert found["reasons"] == {"foreign label": 29, "missing label": 4}
    assert run("check", "R", "--label", "label")["classes"] == {"cat": 28, "dog": 28, "owl": 29}


@declaring
def test_classes_offers_the_declared_names_for_nothing(tmp_path, monkeypatch, form, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "R", clusters(90), form)
    found = run("classes", "--private", "R", "--label", "label")
    assert found["classes"] == list(NAMES)
    assert found["declared"]
    assert "--classes cat,dog,owl" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.jsonl")), "nothing is charged"
    told = run(
        *("classes", "--private", "R", "--label", "label", "--epsilon", "9", "--delta", "1e-2")
    )
    assert told["classes"] == list(NAMES)
    assert "prints without" in capsys.readouterr().err


def test_classes_without_declared_names_asks_for_epsilon(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "R", clusters(9), "parquet", {})
    told = run("classes", "--private", "R", "--label", "label")
    assert told["exit_status"] == 2
    assert "or --epsilon and --delta for a private selection" in told["error"]
    told = run("classes", "--private", "R", "--label", "label", "--epsilon", "1")
    assert "got no --delta" in told["error"]


def test_files_that_declare_other_names_are_refused_unless_the_user_names_them(tmp_path):
    write(tmp_path / "a", clusters(9), "parquet")
    write(tmp_path / "b", clusters(9), "parquet", features(("dog", "cat", "owl")))
    files = sorted(map(str, tmp_path.rglob("*.parquet")))
    write(tmp_path / "plain", clusters(9), "parquet", {})
    (plain, *_) = map(str, (tmp_path / "plain").rglob("*.parquet"))
    for found in (files, [files[0], plain]):
        with pytest.raises(ValueError, match="the same names of classes in all files, got others"):
            known_classes.declared(found, "label")
    ids = [
        encode(tables.read_labels(Path(file)), parse_classes("owl,dog,cat")).ids[:3].tolist()
        for file in [renamed(file) for file in (files[0], files[2])]
    ]
    assert ids == [[2, 1, 0], [1, 2, 0]]


def renamed(file: str) -> str:
    """Write a file again with its labels under the usual name."""
    table = pq.read_table(file).rename_columns(["embeddings", "labels"])
    names = _hub.class_names(pq.read_schema(file), "label")
    path = file.replace(".parquet", ".again.parquet")
    pq.write_table(table.replace_schema_metadata(features(names, "labels")), path)
    return path


@pytest.mark.parametrize(
    ("names", "classes", "wanted"),
    [
        (("1", "2", "3"), parse_classes("1,2,3"), [0, 1, 2]),
        (("1", "2", "3"), parse_classes("3,2,1"), [2, 1, 0]),
        (("1", "2", "3"), Classes(3), [0, 1, 2]),
        (NAMES, Classes(3, ("0", "1", "2")), [0, 1, 2]),  # as a federation counts its classes
        (("2", "1", "0"), Classes(3, ("0", "1", "2")), [2, 1, 0]),
        (NAMES, parse_classes("dog,owl"), [-1, 0, 1]),
        (NAMES, parse_classes("Cat,Dog"), [-1, -1, -1]),
        (("a;b", " b ", "nan"), parse_classes("b,a;b"), [1, 0, -1]),
    ],
)
def test_a_class_number_is_what_its_name_says(tmp_path, names, classes, wanted):
    for kind in (pa.int64(), pa.int8(), pa.float32(), pa.decimal128(20, 0)):
        numbers = pa.array([0, 1, 2, None, -1]).cast(kind)
        table = pa.table({"labels": numbers, "x": np.zeros(5)})
        pq.write_table(
            table.replace_schema_metadata(features(names, "labels")), tmp_path / "t.parquet"
        )
        shard = FileShard(str(tmp_path / "t.parquet"), "--private", Columns())
        (block,) = shard.blocks(9)
        assert encode(block.labels, classes).ids.tolist() == [*wanted, MISSING, MISSING]
        assert shard.layout().classes == names
        assert plain(block.labels, "here").tolist() == [*(n.strip() for n in names), "", ""]


GIVEN = parse_classes("owl,dog,cat")


@pytest.mark.parametrize("names", [np.array(NAMES), np.array(NAMES, "S")], ids=["text", "bytes"])
def test_numbers_in_an_archive_are_matched_by_the_names_beside_them(tmp_path, names):
    """They counted in the order of `--classes`, so that all labels were those of others."""
    mask = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0]], bool)
    lists = np.array([[0, -1], [2, 1], [-1, -1]])
    once, several = [2, 1, -1, -1], [[2], [0, 1], []]
    cases = [
        *((np.array([0, 1, 7, -1]).astype(kind), once) for kind in ("i1", "i8", "f4", ">i4")),
        (np.array([False, True]), once[:2]),
        (np.array(["cat", "dog", "x", ""]), once),
        (mask, several),
        (lists, several),
        (lists.astype(float), several),
    ]
    for labels, wanted in cases:
        path = tmp_path / "R.npz"
        np.savez(path, embeddings=np.zeros((len(labels), 2)), labels=labels, classes=names)
        stored = tables.read_labels(path)
        if labels.ndim == 1:
            assert encode(stored, GIVEN).ids.tolist() == wanted
            continue
        ids = encode(stored, GIVEN, 2).ids[:, :2]
        assert [sorted(row[row >= 0].tolist()) for row in ids] == wanted
        assert np.array_equal(encode(stored, Classes(3), 2).ids, encode(labels, Classes(3), 2).ids)


@pytest.mark.parametrize(
    ("names", "labels", "given", "wanted"),
    [
        (["1", "2", "3"], [1, 2, 3], "1,2,3", [0, 1, 2]),
        (["1", "2", "3"], [1, 2, 3], "3,2,1", [2, 1, 0]),
        (["10", ""], [10, 0], "10,x", [0, -1]),
        (["-1", "1"], [-1, 1], "-1,1", [0, 1]),
        (["cat", " dog", " owl"], [0, 1, 2], "owl,dog,cat", [2, 1, 0]),
        (["cat", " dog", " owl"], [0, 1, 2], None, [0, 1, 2]),
        (["a", "", ""], [0, 1, 2], "b,x,a", [2, -1, -1]),
        (["1", "2"], np.eye(2, dtype=bool), "2,1", [1, 0]),
        (["1", "2"], np.eye(2, dtype=bool), "2", [0, 1]),
    ],
)
def test_names_that_are_numbers_and_names_with_spaces(tmp_path, names, labels, given, wanted):
    path = tmp_path / "R.npz"
    np.savez(path, embeddings=np.zeros((len(labels), 2)), labels=labels, classes=names)
    classes = tables.read_classes(path) if given is None else parse_classes(given)
    several = 1 if np.ndim(labels) > 1 else None
    ids = encode(tables.read_labels(path), classes, several).ids
    assert (ids[:, 0] if several else ids).tolist() == wanted


@pytest.mark.parametrize(
    ("names", "given", "some"),
    [
        (["1.0", "2.0"], "1,2", True),
        ([" cat", " dog"], "dog,bird", True),
        (["0", "1"], "cat,dog", True),
        (["cat", "dog"], "2", True),
        (["cat", "dog"], "0,1", True),
        (["Cat"], "cat,dog", False),
        ([], "cat,dog", True),
    ],
)
def test_declared_names_agree_with_classes_if_one_is_read_as_one(names, given, some):
    assert agree(parse_classes(given), names) == some


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_names_that_have_nothing_in_common_are_refused_at_every_door(tmp_path, monkeypatch, form):
    """Every label would be none of the classes, and the release paid for."""
    monkeypatch.chdir(tmp_path)
    table = clusters(30).rename_columns(["embeddings", "labels"])
    if form == "npz":
        rows = np.stack(table["embeddings"].to_pylist())
        np.savez("R.npz", embeddings=rows, labels=table["labels"].to_numpy(), classes=NAMES)
    else:
        pq.write_table(table.replace_schema_metadata(features(NAMES, "labels")), "R.parquet")
    np.savez("P.npz", embeddings=np.zeros((9, 2)))
    words = ("--private", f"R.{form}", "--public", "P.npz", "--epsilon", "1", "--dry-run")
    told = run("label", *words, "--classes", "Cat,Dog,Owl")
    assert told["exit_status"] == 2
    assert "write them alike" in told["error"]
    assert run("check", f"R.{form}", "--classes", "Cat,Dog,Owl")["exit_status"] == 2
    for given in ("cat,bird", "3"):
        settings = named_settings(Settings, "P.npz", f"R.{form}", 1.0, classes=given)
        assert known_classes.find(settings, [f"R.{form}"]) == parse_classes(given)
    settings = named_settings(Join, Path(f"R.{form}"), budget=9, dimensions=2)
    client = joining.open_client(settings)
    config = ReverseKNN(epsilon=1.0, mechanism="collision", trust="local")
    queries = np.eye(2, dtype=np.float32)
    for names in (("Cat", "Dog"), ("cat", "bird"), ("0", "1", "2")):
        round = Round(queries, names, config)
        if names[0] != "Cat":
            assert np.any(client._contribution(round) >= 0)
            continue
        with pytest.raises(RefusedError, match="write them alike"):
            client._contribution(round)


def test_an_archive_tells_a_mask_from_class_numbers(tmp_path):
    numbers = np.eye(3, dtype=int)
    np.savez(tmp_path / "R.npz", embeddings=np.zeros((3, 2)), labels=numbers, classes=NAMES)
    with pytest.raises(ValueError, match="may be either; save a mask as bool"):
        tables.read_labels(tmp_path / "R.npz")


@pytest.mark.parametrize(
    "classes",
    [np.array([3, 1, 2]), np.array(["a", "a", "b"]), np.array(NAMES, object), np.array([NAMES])],
)
@pytest.mark.parametrize("labels", [np.arange(3), np.eye(3, dtype=bool), np.zeros(3, "f4")])
def test_an_array_that_names_no_classes_is_refused_beside_numbers(tmp_path, classes, labels):
    """The numbers counted in the order of `--classes`, whatever the array said."""
    path = tmp_path / "R.npz"
    np.savez(path, embeddings=np.zeros((3, 2)), labels=labels, classes=classes)
    (shard,) = tables.file_shards(str(path), "--private", Columns())
    for read in (shard.layout, partial(next, shard.blocks(9)), partial(tables.read_labels, path)):
        with pytest.raises(ValueError, match="class numbers, "):
            read()
    np.savez(path, embeddings=np.zeros((3, 2)), labels=np.array(NAMES), classes=classes)
    assert encode(tables.read_labels(path), GIVEN).ids.tolist() == [2, 1, 0]


def test_names_of_which_some_are_numbers_are_refused_beside_numbers(tmp_path):
    """A label 1 is the name 1, or the name at place 1: records of one were counted for another."""
    path = tmp_path / "R.npz"
    for names in (["low", "2", "high"], ["unknown", "0", "1"]):
        np.savez(path, embeddings=np.zeros((3, 2)), labels=np.arange(3), classes=names)
        with pytest.raises(ValueError, match="may be a name or its place; save the labels as text"):
            tables.read_labels(path)
        np.savez(path, embeddings=np.zeros((3, 2)), labels=np.eye(3, dtype=bool), classes=names)
        ids = encode(tables.read_labels(path), parse_classes(",".join(names[::-1])), 1).ids[:, 0]
        assert ids.tolist() == [2, 1, 0]


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_a_name_that_is_a_number_is_no_place_of_another_class(tmp_path, form):
    """Letters and digits, as in EMNIST: a digit that is not asked for counted as a letter."""
    names = ("0", "1", "A", "B")
    path = str(tmp_path / f"t.{form}")
    if form == "npz":
        np.savez(path, embeddings=np.zeros((4, 2)), labels=np.arange(4), classes=names)
    else:
        table = pa.table({"labels": np.arange(4), "x": np.zeros(4)})
        pq.write_table(table.replace_schema_metadata(features(names, "labels")), path)
    stored = tables.read_labels(Path(path))
    for given, wanted in {"A,B": [-1, -1, 0, 1], "B,1,A": [-1, 1, 2, 0]}.items():
        assert encode(stored, parse_classes(given)).ids.tolist() == wanted
    assert encode(stored, Classes(4)).ids.tolist() == [0, 1, 2, 3]


def test_numbers_as_names_of_numbers_are_no_names(tmp_path):
    """`datasets` gives them to classes without names, which `--classes` may name."""
    table = pa.table({"labels": np.arange(3), "x": np.zeros(3)})
    named = table.replace_schema_metadata(features(("0", "1", "2"), "labels"))
    pq.write_table(named, tmp_path / "t.parquet")
    stored = tables.read_labels(tmp_path / "t.parquet")
    assert encode(stored, parse_classes("cat,dog,owl")).ids.tolist() == [0, 1, 2]
    assert encode(stored, parse_classes("2,1,0")).ids.tolist() == [2, 1, 0]


def test_masks_of_numbers_in_another_order_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, names in enumerate((["0", "1", "2"], ["2", "0", "1"])):
        rows = np.full((3, 2), number)
        np.savez(f"R{number}.npz", embeddings=rows, labels=np.eye(3, dtype=bool), classes=names)
    settings = named_settings(Settings, "P.npz", "R*.npz", 1.0, classes="3")
    with pytest.raises(ValueError, match="same names of classes in all files"):
        known_classes.find(settings, ["R0.npz", "R1.npz"])


def test_numbers_that_are_names_are_refused_where_none_is_a_class(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = partial(named_settings, Settings, "P.npz", "R.npz", 1.0)
    np.savez("R.npz", embeddings=np.zeros((3, 2)), labels=[7, 5, 6], classes=["7", "5", "6"])
    for given in ("3", "0,1,2", "8,9"):
        with pytest.raises(ValueError, match="write them alike"):
            known_classes.find(settings(classes=given), ["R.npz"])
    assert known_classes.find(settings(classes="5,6"), ["R.npz"]).count == 2


def test_text_labels_have_no_order_to_agree_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    numbers = {"embeddings": np.zeros((3, 2)), "labels": np.arange(3), "classes": NAMES}
    np.savez("R1.npz", **numbers)
    np.savez("R2.npz", embeddings=np.ones((3, 2)), labels=NAMES)
    files = ["R1.npz", "R2.npz"]
    assert known_classes.declared(files, "labels") == NAMES
    for given in ("owl,dog,cat", "owl,cat"):
        settings = named_settings(Settings, "P.npz", "R*.npz", 1.0, classes=given)
        assert known_classes.find(settings, files) == parse_classes(given)
    np.save("L.npy", np.array(NAMES))
    apart = named_settings(
        Settings, "P.npz", "R1.npz", 1.0, classes="owl,dog", private_labels="L.npy"
    )
    assert known_classes.find(apart, ["R1.npz"]).count == 2


@pytest.mark.parametrize("columns", [2, 4])
def test_a_mask_of_other_classes_than_are_named_is_refused(tmp_path, columns):
    path = tmp_path / "R.npz"
    np.savez(path, embeddings=np.zeros((3, 2)), labels=np.ones((3, columns), bool), classes=NAMES)
    with pytest.raises(ValueError, match="a mask of 3 columns, one for each name"):
        tables.read_labels(path)


def test_labels_apart_from_the_names_of_their_numbers_have_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("R.npz", embeddings=np.zeros((9, 2)), classes=NAMES)
    np.save("L.npy", np.arange(9) % 3)
    shutil.copy("R.npz", "R2.npz")
    shutil.copy("L.npy", "L2.npy")
    given = partial(named_settings, Settings, "P.npz", "R*.npz", 1.0, private_labels=("L*.npy"))
    for files in (["R.npz"], ["R.npz", "R2.npz"]):
        with pytest.raises(ValueError, match="name all of them in its order"):
            known_classes.find(given(classes="owl,dog,cat"), files)
        assert known_classes.find(given(classes=",".join(NAMES)), files).names == NAMES
        assert known_classes.find(given(classes="3"), files).count == 3
    np.savez("R2.npz", embeddings=np.zeros((9, 2)), classes=NAMES[::-1])
    with pytest.raises(ValueError, match=r"got R\.npz cat,dog,owl"):
        known_classes.find(given(classes="3"), files)


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_a_number_is_one_class_in_all_files_at_every_door(tmp_path, monkeypatch, form):
    """If one file has no names, or numbers are counted, those of other files were mixed."""
    monkeypatch.chdir(tmp_path)
    table = clusters(30).rename_columns(["embeddings", "labels"])

    def written(folder, *orders):
        Path(folder).mkdir()
        for number, names in enumerate(orders):
            path = f"{folder}/{number}.{form}"
            if form == "parquet":
                held = features(names, "labels") if names else {}
                pq.write_table(table.replace_schema_metadata(held), path)
                continue
            rows = np.stack(table["embeddings"].to_pylist()) + number
            classes = {"classes": names} if names else {}
            np.savez(path, embeddings=rows, labels=table["labels"].to_numpy(), **classes)
        return sorted(map(str, Path(folder).iterdir()))

    folders = {
        "two": ((NAMES, NAMES[::-1]), {"owl,dog,cat": True, "3": False, "0,1,2": False}),
        "one": ((NAMES, None), {"owl,dog,cat": False, "cat,dog,owl": True, "3": True}),
        "none": ((None, None), {"owl,dog,cat": True, "3": True}),
    }
    for folder, (orders, cases) in folders.items():
        files = written(folder, *orders)
        for given, taken in cases.items():
            settings = named_settings(Settings, "P.npz", folder, 1.0, classes=given)
            if taken:
                assert known_classes.find(settings, files) == parse_classes(given)
                continue
            with pytest.raises(ValueError, match="same names of classes in all files, got others"):
                known_classes.find(settings, files)
        settings = named_settings(Join, Path(folder), budget=9, dimensions=2)
        if folder == "none":
            joining.open_client(settings)
            continue
        with pytest.raises(ValueError, match="same names of classes in all files, got others"):
            joining.open_client(settings)


def test_a_negative_number_with_names_is_missing_also_between_integers():
    """-0.5 was the first class."""
    numbers = np.array([-0.5, -1.5, -0.0, 0.5, np.nan, -np.inf, np.inf, 1e300], np.float64)
    ids = encode(_hub.named(numbers, NAMES), Classes(3, NAMES)).ids
    assert ids.tolist() == [-1, -1, 0, -1, -1, -1, -1, -1]


def test_lists_of_class_numbers_have_names_too(tmp_path):
    table = pa.table({"labels": [[0], [2, 1], [], [5]], "x": np.zeros(4)})
    feature = {"names": list(NAMES), "_type": "ClassLabel"}
    for nested in ({"feature": feature, "_type": "Sequence"}, [feature]):
        held = {"info": {"features": {"labels": nested}}}
        written = table.replace_schema_metadata({b"huggingface": json.dumps(held).encode()})
        pq.write_table(written, tmp_path / "t.parquet")
        shard = FileShard(str(tmp_path / "t.parquet"), "--private", Columns())
        (block,) = shard.blocks(9)
        ids = encode(block.labels, GIVEN, 2).ids
        assert ids[:, :2].tolist() == [[2, -1], [0, 1], [-1, -1], [-1, -1]]


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"{",
        b"[]",
        b'{"info": {"features": {"labels": {"names": null, "_type": "ClassLabel"}}}}',
        b'{"info": {"features": {"labels": {"dtype": "int64", "_type": "Value"}}}}',
        b'{"info": {"features": {"labels": []}}}',
        b'{"info": ' + b"[" * 100_000,
    ],
)
def test_metadata_that_declare_no_names_leave_the_numbers(metadata):
    schema = pa.schema([("labels", pa.int64())], metadata={b"huggingface": metadata})
    assert _hub.class_names(schema, "labels") == ()


@pytest.mark.parametrize("names", [5, "abc", {"0": "a"}, ["a", 1], ["a", "a"], ["a"] * 100_001])
def test_declared_names_that_tell_no_numbers_apart_are_refused(tmp_path, names):
    held = {"info": {"features": {"labels": {"names": names, "_type": "ClassLabel"}}}}
    table = pa.table({"labels": [0, 1], "x": np.zeros(2)})
    written = table.replace_schema_metadata({b"huggingface": json.dumps(held).encode()})
    pq.write_table(written, tmp_path / "t.parquet")
    (shard,) = tables.file_shards(str(tmp_path / "t.parquet"), "--private", Columns())
    with pytest.raises(ValueError, match=r"t\.parquet: Expected .*names of class numbers"):
        shard.layout()


def picture(number: int) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (6, 7, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def pictures(rows: int) -> pa.Table:
    held = [{"bytes": picture(row), "path": f"{row}.png"} for row in range(rows)]
    return pa.table({"image": pa.array(held, IMAGE), "label": np.arange(rows) % 3})


@layouts
def test_embed_reads_columns_of_images(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    network = str(tiny_network.write(tmp_path))
    write(tmp_path / "P", pictures(12), form)
    (tmp_path / "P/.cache").mkdir()
    (tmp_path / "P/.cache/hidden.png").write_bytes(picture(0))
    (tmp_path / "files").mkdir()
    for row in range(12):
        (tmp_path / f"files/{row:02}.png").write_bytes(picture(row))
    asked = ["embed", "--images", "P", "--model", network, "--label", "label", "--out", "p.parquet"]
    assert run(*asked)["rows"] == 12
    assert run("embed", "--images", "files", "--model", network, "--out", "f.parquet")["rows"] == 12
    found = pq.read_table("p.parquet")
    assert found["embeddings"].equals(pq.read_table("f.parquet")["embeddings"])
    assert found["row"].to_pylist() == list(range(12))
    labels = tables.read_labels(Path("p.parquet"))
    assert encode(labels, parse_classes("owl,cat,dog")).ids.tolist() == [1, 2, 0] * 4
    assert encode(labels, Classes(3)).ids.tolist() == [0, 1, 2] * 4
    assert known_classes.declared(["p.parquet"], "labels") == NAMES


def test_images_that_cannot_be_read_are_told_apart_by_side(tmp_path, monkeypatch):
    """A path is never opened: an image without bytes is missing."""
    monkeypatch.chdir(tmp_path)
    network = str(tiny_network.write(tmp_path))
    (tmp_path / "own.png").write_bytes(picture(1))
    held = [
        {"bytes": picture(0), "path": None},
        {"bytes": None, "path": str(tmp_path / "own.png")},
        None,
        {"bytes": b"no image", "path": None},
    ]
    table = pa.table({"image": pa.array(held, IMAGE), "label": [0, 1, 2, 0], "who": list("abcd")})
    write(tmp_path / "P", table, "parquet")
    asked = ["embed", "--images", "P", "--model", network, "--label", "label", "--keep", "who"]
    told = run(*asked, "--out", "public.parquet")
    assert (told["rows"], told["unusable"]) == (1, 3)
    told = run(*asked, "--card", "public.card.json", "--private", "--out", "private.parquet")
    assert (told["rows"], told["unusable"]) == (4, None)
    assert pq.read_table("private.parquet")["who"].to_pylist() == list("abcd")


@layouts
def test_embed_reads_text_and_tables_in_folders_and_patterns(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    rows = pa.table(
        {"kind": ["x", "y"] * 10, "size": np.arange(20) % 7, "label": np.arange(20) % 3}
    )
    write(tmp_path / "P", rows, form)
    pattern = "P/data/train-*.parquet" if form == "parquet" else "P/data-*.arrow"
    for number, name in enumerate(("P", pattern)):
        out = f"{number}.parquet"
        told = run("embed", "--table", name, "--label", "label", "--out", out)
        assert (told["rows"], told["dimensions"]) == (20, 3)
        assert known_classes.declared([out], "labels") == NAMES
        kept = ("--columns", "size", "kind", "--keep", "label", "--out", f"kept{out}")
        run("embed", "--table", name, *kept)
        assert known_classes.declared([f"kept{out}"], "label") == NAMES, "a kept column has names"
        assert tables.read_labels(Path(out))[:2].tolist() == ["cat\x1f0", "dog\x1f1"]
    assert pq.read_table("0.parquet").equals(pq.read_table("1.parquet"))


def test_other_folders_and_columns_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = str(tiny_network.write(tmp_path))
    (tmp_path / "empty").mkdir()
    for words, error in (
        (("--table", "empty"), ".pq in --table empty, got a folder or pattern without any"),
        (("--text", "none-*.parquet"), "--text none-*.parquet could not be opened: No such file"),
    ):
        assert error in run("embed", *words, "--out", "o.parquet")["error"]
    write(tmp_path / "two", pictures(4), "parquet")
    other = clusters(4).replace_schema_metadata(features())
    pq.write_table(other, tmp_path / "two/data/other.parquet")
    told = run("embed", "--images", "two", "--model", network, "--out", "o.parquet")
    assert "the same columns and features in all files of --images" in told["error"]
    parts = "two/data/train-*-of-00002.parquet"
    write(tmp_path / "plain", clusters(4), "parquet")
    told = run("embed", "--images", "plain", "--model", network, "--out", "o.parquet")
    assert "Expected one column of images in --images plain, got none" in told["error"]
    told = run(
        *("embed", "--images", parts, "--columns", "label", "--model", network),
        *("--out", "o.parquet"),
    )
    assert "name one of them with --columns" in told["error"]
    named = ["--images", parts, "--label", "ill", "--keep", "who", "label"]
    told = run("embed", *named, "--model", network, "--out", "o.parquet")
    assert "got --label ill and --keep who; the columns are image, label" in told["error"]


def test_raw_images_of_the_hub_go_to_an_encoder_as_bytes(tmp_path):
    write(tmp_path / "P", pictures(6), "parquet")
    columns = Columns(("image",), "label", raw=True)
    (block,) = FileShard(
        str(tmp_path / "P/data/train-00000-of-00002.parquet"), "--private", columns
    ).blocks(9)
    assert block.embeddings.tolist() == [picture(row) for row in range(3)]


def copied(folder: Path, name: str) -> None:
    """Leave a copy of all records beside them, as `map` and `filter` do."""
    parts = [pa.ipc.open_stream(path.read_bytes()).read_all() for path in folder.glob("data-*")]
    table = pa.concat_tables(parts)
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as one:
        one.write_table(table)


@pytest.mark.long
@crossed(named=["PRIVATE", "PRIVATE/*.arrow", "*/"], state=[True, False])
def test_copies_of_records_in_a_folder_count_once(tmp_path, monkeypatch, named, state):
    """Caches of `datasets` would give each record two votes, at twice the epsilon that is told."""
    monkeypatch.chdir(tmp_path)
    folder = write(Path("PRIVATE"), clusters(90), "arrow")
    write(Path("PUBLIC"), clusters(60), "arrow")
    for name in ("cache-1b2c3d4e.arrow", "cache-99.arrow"):
        copied(folder, name)
    if not state:
        (folder / "state.json").unlink()
    elif named == "PRIVATE":
        copied(folder, "tmp9.arrow")
    if named == "*/":
        Path("all").mkdir()
        folder.rename("all/PRIVATE")
        named = "all"
    told = run("check", named, "--label", "label", "--classes", "3")
    assert told["records"] == 90
    parts = ("--public", "PUBLIC", "--private", named, "--ledger", "L.jsonl", "--label", "label")
    done = run("label", *parts, "--classes", "3", "--epsilon", "8", "--out", "out")
    assert done["num_records"] == 90
    assert table_files.num_rows(Path(named), "--table") == 90
    listed = sorted(glob.glob("**/PRIVATE/*.arrow", recursive=True))  # as a shell lists a pattern
    with pytest.raises(ValueError, match="with records of their own, got .*cache-1b2c3d4e.arrow"):
        data_files.find(listed, "--private")
    own = [name for name in listed if "/data-" in name]
    assert data_files.find(own, "--private").files == own


def test_a_choice_of_records_beside_a_folder_is_refused(tmp_path, monkeypatch):
    """Those that were left out would vote."""
    monkeypatch.chdir(tmp_path)
    folder = write(Path("R"), clusters(90), "arrow")
    state = json.loads((folder / "state.json").read_text())
    chosen = state | {"_indices_data_files": [{"filename": "indices.arrow"}]}
    for find in (
        lambda: data_files.find(["R"], "--private"),
        lambda: table_files.files(Path("R"), "--table"),
    ):
        (folder / "state.json").write_text(json.dumps(chosen))
        with pytest.raises(ValueError, match=r"got a choice of them.* flatten_indices"):
            find()
        for none in ([], None):
            (folder / "state.json").write_text(json.dumps(state | {"_indices_data_files": none}))
            find()


def test_a_stream_that_was_cut_is_refused_wherever_that_was(tmp_path):
    """pyarrow takes the end of the file for the end of the data."""
    table = clusters(40)
    path, cut = tmp_path / "whole.arrow", tmp_path / "cut.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        for batch in table.to_batches(10):
            stream.write_batch(batch)
    columns = Columns(("embeddings",), "label")
    assert FileShard(str(path), "--private", columns).num_rows() == 40
    last = pa.table({"embeddings": [[1.0]] * 3, "label": np.int32([0, 1, -1])})
    with pa.OSFile(str(cut), "wb") as sink, pa.ipc.new_stream(sink, last.schema) as stream:
        stream.write_table(last)
    assert FileShard(str(cut), "--private", columns).num_rows() == 3
    cut.write_bytes(cut.read_bytes()[:-8])
    assert cut.read_bytes()[-8:] == bytes([255] * 4 + [0] * 4), "a batch that ends like a stream"
    with pytest.raises(ValueError, match="one that was cut"):
        FileShard(str(cut), "--private", columns).num_rows()
    content = path.read_bytes()
    cut.write_bytes(2 * content)
    with pytest.raises(ValueError, match="something after it"):
        FileShard(str(cut), "--private", columns).num_rows()
    for end in [*range(1, len(content), 37), *range(len(content) - 16, len(content))]:
        cut.write_bytes(content[:end])
        with pytest.raises(ValueError, match=r"cut\.arrow"):
            list(FileShard(str(cut), "--private", columns).blocks(100))


@pytest.mark.parametrize(
    "left", ["train-00002-of-00003", "train-00000-of-00001", "train-00001-of-00002-7eb0a3"]
)
def test_parts_of_two_versions_are_refused(tmp_path, monkeypatch, left):
    monkeypatch.chdir(tmp_path)
    write(Path("hub"), clusters(30), "parquet")
    shutil.copy("hub/data/train-00001-of-00002.parquet", f"hub/data/{left}.parquet")
    for name in ("hub", "hub/data/*.parquet"):
        with pytest.raises(ValueError, match="--private .* a part of one version, got .*of-00002"):
            data_files.find([name], "--private")
        with pytest.raises(ValueError, match="a part of one version"):
            table_files.files(Path(name), "--table")
    with pytest.raises(ValueError, match="--private to be a part of one version"):
        data_files.find(sorted(glob.glob("hub/data/*")), "--private")  # as a shell lists them
    assert len(data_files.find(["hub/data/train-*-of-00002.parquet"], "--private").files) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("datasets--me--x/snapshots/1f3a5b7/data", "datasets--me--x/snapshots/9c8d7e6/data"),
        ("me___x/default/0.0.0/0123456789ab", "me___x/default/0.0.0/ba9876543210"),
        ("csv/default-0123456789ab/0.0.0/aa", "csv/default-ba9876543210/0.0.0/bb"),
        ("x/versions/1", "x/versions/2/inner"),
        ("x/1.0.0", "x/1.0.1"),
        ("x/v1.0.0/a", "x/v2.0.0/b"),
    ],
)
def test_two_revisions_of_a_data_set_are_refused(tmp_path, monkeypatch, first, second):
    """As caches keep them: a record that is in both would count twice."""
    monkeypatch.chdir(tmp_path)
    for number, place in enumerate((first, second)):
        Path("d", place).mkdir(parents=True)
        pq.write_table(clusters(9 + number), Path("d", place, "a.parquet"))
        Image.new("L", (3, 3), number).save(Path("d", place, "a.png"))
    words = "Expected files of one revision in .*, got .*, which may hold the same records"
    for private in (["d"], ["d/**/*.parquet"], [f"d/{first}", f"d/{second}"]):
        with pytest.raises(ValueError, match=words):
            data_files.find(private, "--private")
    for find in (partial(table_files.files, argument="--table"), ImageFolder.find):
        with pytest.raises(ValueError, match=words):
            find(Path("d"))
    Path("links").mkdir()
    for number, place in enumerate((first, second)):
        Path(f"links/{number}").symlink_to(Path("d", place).absolute())
    with pytest.raises(ValueError, match=words):
        data_files.find(["links"], "--private")
    shutil.rmtree("links")
    Path("links").mkdir()
    for number, place in enumerate((first, second)):  # whose files are links to files elsewhere
        shutil.move(Path("d", place, "a.parquet"), f"{number}.blob")
        Path("d", place, "a.parquet").symlink_to(Path(f"{number}.blob").absolute())
        Path(f"links/{number}.parquet").symlink_to(Path("d", place, "a.parquet").absolute())
    with pytest.raises(ValueError, match=words):
        data_files.find(["links"], "--private")
    assert len(data_files.find([f"d/{first}"], "--private").files) == 1


@pytest.mark.parametrize(
    "places",
    [
        ("2024/01", "2024/02"),
        ("site-1", "site-2"),
        ("10.0", "9.5"),
        ("2024.01.05", "2024.01.06"),
        ("p-0123456789ab", "p-ba9876543210"),
    ],
)
def test_folders_that_are_no_revisions_are_read_together(tmp_path, places):
    for number, place in enumerate(places):
        (tmp_path / place).mkdir(parents=True)
        pq.write_table(clusters(9 + number), tmp_path / place / "a.parquet")
    assert len(data_files.find([str(tmp_path)], "--private").files) == 2


@pytest.mark.parametrize("log", ["_delta_log/00.json", "metadata/v1.metadata.json", ".hoodie/x"])
@pytest.mark.parametrize("place", ["lake", "lake/[1]"])
def test_a_table_that_keeps_earlier_versions_is_refused(tmp_path, monkeypatch, log, place):
    """An update leaves the records of before in files that its log alone leaves out."""
    monkeypatch.chdir(tmp_path)
    part = Path(place) / "year=1/a.parquet"
    part.parent.mkdir(parents=True)
    pq.write_table(clusters(9), part)
    (Path(place) / log).parent.mkdir()
    (Path(place) / log).write_text("{}")
    for name in ("lake", str(Path("lake") / "**" / "*.parquet")):
        with pytest.raises(ValueError, match="of one version in --private .*, got a table of"):
            data_files.find([name], "--private")
        with pytest.raises(ValueError, match="of one version in --table .*, got a table of"):
            table_files.files(Path(name), "--table")
    assert data_files.find([str(part)], "--private").files == [str(part)]
    Path("link").symlink_to(part.parent)
    with pytest.raises(ValueError, match="of one version in --private link, got a table of"):
        data_files.find(["link"], "--private")
    other = shutil.copy(part, part.with_name("b.parquet"))
    given = ArrowShard("R", pa.dataset.dataset(str(part.parent)), Columns((), "label"))
    with pytest.raises(ValueError, match="of one version in R, got a table of"):
        given.layout()
    with pytest.raises(ValueError, match="of one version in --private, got a table of"):
        data_files.find([str(part), str(other)], "--private")
    other.unlink()
    shutil.rmtree((Path(place) / log).parent)
    assert len(data_files.find(["lake"], "--private").files) == 1


@pytest.mark.parametrize("marked", ["", "-7eb0a3d40df7abb1"])
def test_splits_are_named_and_a_folder_is_whole(tmp_path, monkeypatch, marked):
    monkeypatch.chdir(tmp_path)
    write(Path("both/train"), clusters(30), "arrow")
    write(Path("both/test"), clusters(12), "arrow")
    Path("both/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    write(Path("hub"), clusters(30), "parquet")
    pq.write_table(clusters(9), f"hub/data/test-00000-of-00001{marked}.parquet")
    for split in ("train", "test"):
        Path(f"converted/{split}").mkdir(parents=True)
        pq.write_table(clusters(9), f"converted/{split}/0000.parquet")
    for name in ("both", "hub", "hub/data/*.parquet", "converted", "converted/**/*.parquet"):
        with pytest.raises(ValueError, match="Expected one split in --private .*, got te?"):
            data_files.find([name], "--private")
        with pytest.raises(ValueError, match="Expected one split in --table"):
            table_files.files(Path(name), "--table")
    assert len(data_files.find(["both/train", "both/test"], "--private").files) == 4
    assert len(data_files.find(["hub/data/train-*"], "--private").files) == 2
    Path("both/train/data-00001-of-00002.arrow").unlink()
    with pytest.raises(ValueError, match="got none of data-00001-of-00002.arrow; copy the whole"):
        data_files.find(["both/train"], "--private")
    Path("both/train/state.json").write_text("[]")
    with pytest.raises(ValueError, match="as save_to_disk writes it"):
        table_files.files(Path("both/train"), "--table")
