"""Copies of records, and persons that are not named, are told to whoever owns the records."""

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from rknn_jax.formats import Columns
from rknn_jax.records.classes import Classes
from rknn_jax.release import inputs, person_columns, usability
from rknn_jax.release.copies import Copies
from rknn_jax.release.estimator import ReverseKNNLabeler
from rknn_jax.release.settings import Settings
from rknn_jax.release.shards import FileShard
from tests.options import named_settings
from tests.test_drop import write
from tests.test_inputs import LABELS, PRIVATE, PUBLIC, frame


def told(rows, public=None, *, persons=False):
    found = Copies()
    for part in np.array_split(np.asarray(rows, np.float32), 3):  # as blocks of a file
        found.add("R.npz", part)
    public = None if public is None else np.asarray(public, np.float32)
    return [*found.advice(public, persons=persons)]


@pytest.mark.parametrize("public", [None, PUBLIC], ids=["alone", "beside the public rows"])
def test_copies_of_records_are_told(public):
    (sentence,) = told(np.tile(PRIVATE, (3, 1)), public)
    assert sentence.startswith("180 of 270 private records are exact copies of another one")
    assert "person" in sentence
    assert not told(PRIVATE, public)


def test_copies_of_one_person_are_no_advice():
    assert not told(np.tile(PRIVATE, (3, 1)), persons=True)


def test_rows_that_are_equal_by_chance_are_no_copies():
    """No false alarm on 66 tables of yes and no, and none on halves of scikit-learn's tables."""
    draw = np.random.default_rng(0)
    alarms = []
    for width in range(2, 13):
        for private, public in ((300, 40), (300, 1000), (2000, 200)):
            for _ in range(2):
                shares = draw.random(width)
                rows = draw.random((private + public, width)) < shares
                alarms += told(rows[:private], rows[private:])
    for load in (datasets.load_iris, datasets.load_wine, datasets.load_digits):
        rows = draw.permutation(load().data)
        alarms += told(rows[::2], rows[1::2])
    assert not alarms


def private_file(folder, form, who):
    path = folder / f"R.{form}"
    if form == "npz":
        np.savez(path, embeddings=PRIVATE, labels=LABELS, patient_id=who)
        return path
    table = frame(PRIVATE).assign(labels=LABELS, patient_id=who)
    if form == "jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        write(table, path)
    return path


def opened(path, person=None):
    names = None if path.suffix == ".npz" else ("x0", "x1", "x2", "x3")
    return FileShard(str(path), "--private", Columns(names, width=4, person=person))


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl", "npz"])
def test_the_curator_is_told_of_persons_who_have_several_records(tmp_path, form):
    path = private_file(tmp_path, form, np.arange(90) // 3)
    (sentence,) = usability.examine([opened(path)], Classes(3)).advice
    assert sentence.startswith("Column 'patient_id' has 30 values in 90 records.")
    assert "person patient_id" in sentence
    assert not usability.examine([opened(path, "patient_id")], Classes(3)).advice


def test_a_column_that_names_everybody_once_is_no_advice(tmp_path):
    path = private_file(tmp_path, "parquet", np.arange(90))
    assert not [*person_columns.repeated([opened(path)])]


@pytest.mark.parametrize("form", ["csv", "parquet", "npz", "jsonl"])
def test_a_release_tells_of_declared_names_alone(tmp_path, form):
    path = private_file(tmp_path, form, np.arange(90))
    layout = opened(path).layout()
    sentence = person_columns.unnamed([layout], "labels")
    if form == "jsonl":  # its keys are private
        assert not sentence
    else:
        assert sentence.startswith("private columns ['patient_id'] are named as if they told")
        assert not person_columns.unnamed([layout], "patient_id")


@pytest.mark.parametrize("person", [None, "patient_id"])
def test_what_a_release_reads_has_the_sentence_unless_persons_are_named(tmp_path, person):
    path = private_file(tmp_path, "parquet", np.arange(90))
    write(frame(PUBLIC), tmp_path / "P.parquet")
    settings = named_settings(
        Settings,
        public=str(tmp_path / "P.parquet"),
        private=str(path),
        epsilon=1.0,
        classes="3",
        embedding=("x0", "x1", "x2", "x3"),
        person=person,
    )
    found = inputs.read(settings).doubts
    assert [text for text in found if "'patient_id'" in text] == list(found)
    assert len(found) == (person is None)


def test_the_estimator_tells_of_a_column_of_features_that_is_named_like_persons():
    with pytest.warns(UserWarning, match=r"\['userId'\] .* pass it as person"):
        ReverseKNNLabeler().fit(pd.DataFrame(PUBLIC, columns=["a", "b", "c", "userId"]))


@pytest.mark.parametrize(("keep", "told"), [((), True), (("patient_id",), False)])
def test_embedding_tells_of_persons_that_are_left_behind(rknn, tmp_path, keep, told):
    write(frame(PUBLIC), tmp_path / "P.csv")
    private_file(tmp_path, "csv", np.arange(90))
    assert rknn("embed", "--table", "P.csv", "--out", "p.parquet").status == 0
    own = ("--table", "R.csv", "--out", "r.parquet", "--card", "p.card.json", "--private")
    done = rknn("embed", *own, *(["--keep", *keep] if keep else []))
    assert done.status == 0, done.err
    assert ("with --keep patient_id" in " ".join(done.err.split())) == told
