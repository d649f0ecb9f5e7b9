"""All columns that cannot be used are named in one error, with what to do about each kind."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rknn_jax.release.inputs import read
from rknn_jax.release.settings import Settings
from tests.options import named_settings
from tests.test_cli import arguments, contents
from tests.test_drop import write
from tests.test_inputs import LABELS, PRIVATE, PUBLIC, frame, refused, save

ODD = {
    "Unnamed: 0": lambda n: np.arange(n),
    "ward": lambda n: ["a", "b"] * (n // 2),
    "note": lambda n: [f"a cold day {i}" for i in range(n)],
    "born": lambda n: [datetime.date(2000, 1, 1)] * n,
    "visits": lambda n: [[1, 2]] * n,
}
REMEDIES = {
    "Unnamed: 0": "index=False",
    "ward": "rknn embed --table",
    "note": "rknn embed --text",
    "born": "days since a fixed date",
    "visits": "lists of numbers",
}


@pytest.mark.long
def test_the_columns_that_are_features_are_told_before_a_charge(rknn, tmp_path):
    frame(PUBLIC).assign(pid=np.arange(len(PUBLIC)) % 7).to_csv("P.csv", index=False)
    private = frame(PRIVATE).assign(pid=np.arange(len(PRIVATE)) % 7, labels=LABELS)
    private.to_csv("R.csv", index=False)
    done = rknn(*arguments(public="P.csv", private="R.csv"), "--dry-run")
    assert done.status == 0, done.err
    assert "features x0, x1, x2, x3, pid " in " ".join(done.err.split())


def odd_table(rows, **more):
    return frame(rows).assign(**{name: make(len(rows)) for name, make in ODD.items()}, **more)


@pytest.mark.long
@pytest.mark.parametrize("form", ["parquet", pytest.param("feather", marks=pytest.mark.long)])
@pytest.mark.parametrize("side", ["public", "private"])
def test_columns_that_are_no_features_are_refused_at_once(rknn, tmp_path, form, side):
    save(tmp_path, "npz", LABELS)
    table = odd_table(PUBLIC) if side == "public" else odd_table(PRIVATE, labels=LABELS)
    write(table, tmp_path / f"T.{form}")
    for words in [*REMEDIES.values(), *map(repr, ODD)]:
        refused(rknn, tmp_path, {side: f"T.{form}"}, words)
    if side == "private":
        done = rknn("check", f"T.{form}", "--classes", 3)
        told = " ".join(done.err.split())
        assert done.status == 2
        assert all(repr(name) in told for name in ODD)
        return
    named = ["--embedding", "x0", "ward", "note", "visits"]
    done = rknn(*arguments(**{side: f"T.{form}"}), *named, "--dry-run")
    assert all(repr(name) in done.err for name in ("ward", "note", "visits"))
    dropped = rknn(*arguments(**{side: f"T.{form}"}), "--drop", *ODD)
    assert dropped.status == 0, dropped.err


@pytest.mark.long
def test_columns_of_a_public_csv_are_refused_at_once(rknn, tmp_path):
    """A CSV has no types, but public values may be looked at."""
    save(tmp_path, "npz", LABELS)
    table = odd_table(PUBLIC).assign(patient=np.random.default_rng(0).permutation(900)[:60])
    table.loc[5, "x1"] = np.nan
    table["x2"] = 1e20
    write(table.drop(columns="Unnamed: 0"), tmp_path / "P.csv")
    for words in ("['ward', 'note', 'born', 'visits']", "['x1'], first in row 5", "['x2']"):
        refused(rknn, tmp_path, {"public": "P.csv"}, words)
    refused(rknn, tmp_path, {"public": "P.csv"}, "['patient'] with another whole number")


@pytest.mark.long
def test_text_is_to_be_embedded_first(rknn, tmp_path):
    save(tmp_path, "npz", LABELS)
    for name, rows in (("P", 60), ("R", 90)):
        table = pd.DataFrame({"text": [f"word {i}, and more" for i in range(rows)]})
        write(table.assign(labels=[*LABELS][:rows]), tmp_path / f"{name}.csv")
        write(table.assign(labels=[*LABELS][:rows]), tmp_path / f"{name}.parquet")
    for form in ("csv", "parquet"):
        for side in ("public", "private"):
            name = f"{'P' if side == 'public' else 'R'}.{form}"
            refused(rknn, tmp_path, {side: name}, "rknn embed --text")
            refused(rknn, tmp_path, {side: name}, "'text'")


def test_absent_columns_are_named_at_once(rknn, tmp_path):
    for form in ("csv", "parquet"):
        changes = save(tmp_path, form, LABELS)
        words = [*arguments(**changes), "--embedding", "x0", "x9", "y9", "--label", "ill"]
        done = rknn(*words)
        assert done.status == 2
        assert "'x9', 'y9'" in done.err
        done = rknn("check", f"R.{form}", "--classes", 3, *words[-6:], "--person", "who")
        assert all(repr(name) in done.err for name in ("x9", "y9", "ill", "who"))
    done = rknn("embed", "--table", "P.csv", "--columns", "x9", "y9", "--out", "new.parquet")
    assert "'x9', 'y9'" in done.err


def test_labels_persons_and_features_are_refused_at_once(rknn, tmp_path):
    held = frame(PRIVATE).assign(labels=ODD["born"](90), who=[0.5] * 90, note=ODD["note"](90))
    table = pa.Table.from_pandas(held.assign(who=ODD["born"](90)), preserve_index=False)
    pq.write_table(table, tmp_path / "R.parquet")
    done = rknn("check", "R.parquet", "--classes", 3, "--person", "who")
    told = " ".join(done.err.split())
    assert "['note'] of large_string" in told
    assert "Expected labels as numbers, text or lists" in told
    assert "in column 'who' of persons" in told


def test_columns_of_a_table_to_embed_are_refused_at_once(rknn, tmp_path):
    table = odd_table(PUBLIC).assign(patient=np.random.default_rng(0).permutation(900)[:60])
    table["code"] = [f"c{i}" for i in range(60)]
    write(table, tmp_path / "T.parquet")
    done = rknn("embed", "--table", "T.parquet", "--out", "P.parquet")
    told = " ".join(done.err.split())
    assert done.status == 2
    for name in ("Unnamed: 0", "note", "born", "visits", "patient", "code"):
        assert repr(name) in told
    drop = ["--drop", "Unnamed: 0", "note", "born", "visits", "patient", "code"]
    done = rknn("embed", "--table", "T.parquet", "--out", "P.parquet", *drop)
    assert done.status == 0, done.err


@pytest.mark.parametrize("source", ["--table", "--text"])
def test_an_absent_optional_column_is_left_out(rknn, tmp_path, source):
    """Public records may have no labels, so that adding a column is no remedy."""
    frame(PUBLIC).assign(text="a").to_csv(tmp_path / "P.csv", index=False)
    done = rknn(
        *("embed", source, "P.csv", "--columns", "x9", "--label", "ill", "--keep", "who"),
        *("--out", "P.parquet"),
    )
    told = " ".join(done.err.split())
    assert done.status == 2
    assert "'x9'" in told
    assert "got --label ill and --keep who; the columns are x0, x1, x2, x3, text" in told
    assert "leave the option out" in told
    assert "'ill'" not in told, "it is told once"


def test_a_folder_of_images_has_no_column_of_labels(rknn, tmp_path):
    (tmp_path / "im").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "im/0.png")
    for flag in ("--label", "--keep", "--columns"):
        done = rknn("embed", "--images", "im", "--model", "m.onnx", flag, "a", "--out", "o.parquet")
        assert done.status == 2
        assert "whose folders are the classes; leave them out" in " ".join(done.err.split())


def test_columns_beside_a_file_of_labels_are_dropped(rknn, tmp_path):
    write(frame(PRIVATE).assign(id=1.5), tmp_path / "R.csv")
    write(pd.DataFrame({"labels": LABELS}), tmp_path / "L.csv")
    words = ["check", "R.csv", "--private-labels", "L.csv", "--classes", 3, "--drop"]
    assert rknn(*words, "id", "--json").json["usable"] == 90
    done = rknn(*words, "ids")
    assert done.status == 2
    assert "the columns are x0, x1, x2, x3, id" in " ".join(done.err.split())


@pytest.mark.long
@pytest.mark.parametrize("form", ["csv", "parquet", "feather"])
def test_labels_that_name_their_records_are_not_paired_by_their_order(rknn, tmp_path, form):
    """Files of labels whose rows have names are often in another order than the embeddings."""
    changes = save(tmp_path, "npz", LABELS)
    table = pd.DataFrame(
        {"file": [f"{row}.png" for row in range(90)][::-1], "labels": LABELS[::-1]}
    )
    write(table, tmp_path / f"L.{form}")
    np.savez(tmp_path / "E.npz", embeddings=PRIVATE)
    words = {**changes, "private": "E.npz", "private_labels": f"L.{form}"}
    for door in (arguments(**words), [*arguments(**words), "--dry-run"]):
        done = rknn(*door)
        assert done.status == 2
        assert "belong to records by their order, got 'file' too; join both files" in done.err
    checked = ["check", "E.npz", "--private-labels", f"L.{form}", "--classes", 3]
    assert "got 'file' too" in rknn(*checked).err
    assert rknn(*checked, "--drop", "file").status == 0
    done = rknn(*arguments(**words), "--drop", "file")
    assert done.status == 0, done.err


@pytest.mark.long
@pytest.mark.parametrize(
    ("form", "name"), [("csv", "id"), ("parquet", "id"), ("csv", "ID"), ("jsonl", "id")]
)
def test_a_column_of_both_files_that_says_their_order_cannot_be_dropped(rknn, tmp_path, form, name):
    """Labels would belong to other records than their ids say, and noise would be paid for."""
    changes = save(tmp_path, "csv", LABELS)
    held = frame(PRIVATE).assign(id=np.arange(90))
    if form == "jsonl":
        held.to_json(tmp_path / f"R.{form}", orient="records", lines=True)
    else:
        write(held, tmp_path / f"R.{form}")
    labels = pd.DataFrame({name: np.arange(90)[::-1], "labels": LABELS[::-1]})
    write(labels, tmp_path / "L.csv")
    words = {**changes, "private": f"R.{form}", "private_labels": "L.csv"}
    drop = ["--drop", *dict.fromkeys(["id", name])]
    before = contents(tmp_path)
    checked = ["check", f"R.{form}", "--private-labels", "L.csv", "--classes", 3, *drop]
    checked += ["--public", "P.csv"]
    for door in ([*arguments(**words), *drop], [*arguments(**words), *drop, "--dry-run"], checked):
        done = rknn(*door)
        told = " ".join(done.err.split())
        assert done.status == 2
        assert f"got '{name}' too; '{name}' may say another order" in told
        assert "join both files into one by it" in told
        assert "leave it out with --drop" not in told
    assert contents(tmp_path) == before
    write(labels[["labels"]], tmp_path / "L.csv")
    drop = [] if form == "jsonl" else ["--drop", "id"]
    assert rknn(*arguments(**words), *drop, "--dry-run").status == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (lambda value: f"{value:.2f}".replace(".", ","), "decimal comma or a thousands separator"),
        (lambda value: f"{value * 1000:,.2f}", "decimal comma or a thousands separator"),
        (lambda value: f"[{value}, 1.5]", "saved as text: save a Parquet column of lists"),
        (lambda value: f"{value:.2f} mg", "with a unit or a sign: save the number alone"),
    ],
    ids=["comma", "thousands", "list", "unit"],
)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_numbers_that_are_text_in_public_columns_are_told(rknn, tmp_path, form, text, words):
    save(tmp_path, "csv", LABELS)
    table = frame(PUBLIC)
    table["x1"] = table["x1"].map(text)
    if form == "csv":
        write(table, tmp_path / "P.csv")
    else:
        table.to_json(tmp_path / "P.jsonl", orient="records", lines=True)
    refused(rknn, tmp_path, {"public": f"P.{form}", "private": "R.csv"}, "['x1'] hold ")
    refused(rknn, tmp_path, {"public": f"P.{form}", "private": "R.csv"}, words)


def test_embeddings_that_are_text_are_refused_with_how_to_save_them(rknn, tmp_path):
    """Of a private file, its columns and their types tell so, and no value."""
    save(tmp_path, "npz", LABELS)
    table = pd.DataFrame({"embeddings": [str([*row]) for row in PRIVATE], "labels": LABELS})
    write(table, tmp_path / "T.csv")
    write(table, tmp_path / "T.parquet")
    refused(rknn, tmp_path, {"private": "T.csv"}, "saved as text, save a Parquet column of lists")
    refused(rknn, tmp_path, {"private": "T.parquet"}, "as lists of float32, also if they became")


@pytest.mark.long
def test_a_label_in_the_names_of_folders_is_to_be_written_into_the_files(rknn, tmp_path):
    save(tmp_path, "parquet", LABELS)
    frame(PRIVATE).assign(labels=LABELS).to_parquet(tmp_path / "hive", partition_cols=["labels"])
    changes = {"public": "P.parquet", "private": "hive"}
    refused(rknn, tmp_path, changes, "'labels=0' hold the column in their names")
    refused(rknn, tmp_path, changes, "write it into the files")
    pd.read_parquet(tmp_path / "hive").to_parquet(tmp_path / "all.parquet")
    assert rknn(*arguments(**changes | {"private": "all.parquet"}), "--dry-run").status == 0


@pytest.mark.parametrize("form", ["csv", "parquet", "feather"])
@pytest.mark.parametrize("named", ["P", "R"])
def test_columns_that_have_names_on_one_side_alone_are_told(tmp_path, monkeypatch, form, named):
    """They belong together by their order, and another one would be noise that is paid for."""
    monkeypatch.chdir(tmp_path)
    sides = save(tmp_path, "npz", LABELS)
    both = save(tmp_path, form, LABELS)
    table = frame(PUBLIC) if named == "P" else frame(PRIVATE).assign(labels=LABELS)
    write(table[[*table.columns[::-1]]], tmp_path / f"one.{form}")
    side = "public" if named == "P" else "private"
    (told,) = read(
        named_settings(Settings, **sides | {side: f"one.{form}"}, epsilon=1, classes="3")
    ).doubts
    assert f"columns of the {side} side have names" in told
    assert "belong together by their order, x3, x2, x1, x0; if it may be another" in told
    for other in (sides, both, both | {side: f"one.{form}"}):
        assert not read(named_settings(Settings, **other, epsilon=1, classes="3")).doubts


@pytest.mark.long
def test_columns_without_names_are_told_before_a_charge(rknn, tmp_path):
    changes = save(tmp_path, "csv", LABELS)
    save(tmp_path, "npz", LABELS)
    done = rknn(*arguments(**changes | {"public": "P.npz"}), "--dry-run")
    assert "warning columns of the private side have names" in " ".join(done.err.split())
    check = rknn("check", changes["private"], "--public", "P.npz", "--classes", "3")
    assert "Columns of the private side have names" in " ".join(check.out.split())
