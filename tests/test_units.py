"""A column in another unit is told to the curator, also if many of its values are missing."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn import datasets

from rknn_jax.embedding import doubts
from rknn_jax.embedding.table import Category, Number, TableModel
from rknn_jax.release.drift import Moments

DRAW = np.random.default_rng(0)
MODEL = TableModel((Number("age", 50.0, 20.0), Number("dose", 5000.0, 1000.0)))
CHANGES = {
    "a factor": lambda dose: dose / 1000,
    "another factor": lambda dose: 1000 * dose,
    "an offset": lambda dose: dose + 1000 * 5,
}


def table(count, missing, change=lambda dose: dose):
    """Return a table of ages and doses, of which many are missing."""
    dose = change(DRAW.normal(5000, 1000, count))
    dose[DRAW.random(count) < missing] = np.nan
    return pa.table({"age": DRAW.normal(50, 20, count), "dose": pa.array(dose, from_pandas=True)})


def told(private, public, names=("age", "dose")):
    found = Moments(public.shape[1])
    for part in np.array_split(private, 3):
        found.add(part)
    return [*found.advice(public, names)]


@pytest.mark.parametrize("missing", [0.0, 0.4, 0.8])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_check_tells_of_another_unit(change, missing):
    public = MODEL(table(400, missing)).features
    private = MODEL(table(500, missing, change)).features
    assert any("['dose']" in sentence for sentence in told(private, public))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda dose: dose + 5.5 * 1000, "more than 2 standard deviations"),
        (lambda dose: 8000 + (dose - 5000) / 50, "vary less than 0.1 times"),
    ],
    ids=["place", "spread"],
)
def test_missing_values_do_not_hide_what_the_others_are(change, words):
    """The values lie around 3, and 60% are missing, at 0: of all, place and spread tell little."""
    public = MODEL(table(400, 0.6, lambda dose: dose + 3000)).features
    private = MODEL(table(500, 0.6, change)).features
    assert any("['dose']" in sentence and words in sentence for sentence in told(private, public))


@pytest.mark.parametrize("missing", [0.0, 0.4, 0.8])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_embedding_tells_of_another_unit(change, missing):
    found = doubts.Unread()
    MODEL.columns[1].review(table(500, missing, change).column("dose"), found)
    assert [*doubts.sentences("dose", found, is_number=True)]


def test_halves_of_one_table_are_in_one_unit():
    """No false alarm in 30 splits of scikit-learn's tables, sparse counts and missing values."""
    tables = [
        datasets.load_digits().data,
        datasets.load_wine().data,
        datasets.load_breast_cancer().data,
        DRAW.poisson(0.3, (600, 20)).astype(float),
        MODEL(table(600, 0.7)).features,
    ]
    alarms = []
    for rows in tables:
        for _ in range(6):
            split = DRAW.permutation(rows)
            alarms += told(split[::2], split[1::2], ())
    assert not alarms
    found = doubts.Unread()
    MODEL.columns[1].review(table(600, 0.7).column("dose"), found)
    assert not [*doubts.sentences("dose", found, is_number=True)]


def test_features_of_a_table_have_the_names_of_columns_and_values():
    model = TableModel((*MODEL.columns, Category("ward", ("a", "b"))))
    assert model.feature_names == ("age", "dose", "ward=a", "ward=b")


def test_check_names_the_columns_of_an_embedded_table(rknn, tmp_path):
    public = table(60, 0.0).to_pandas()
    private = table(90, 0.0, CHANGES["a factor"]).to_pandas().assign(labels="a")
    for name, rows in (("P", public), ("R", private)):
        pd.DataFrame(rows).to_csv(tmp_path / f"{name}.csv", index=False)
    assert rknn("embed", "--table", "P.csv", "--out", "p.parquet").status == 0
    own = ("--table", "R.csv", "--card", "p.card.json", "--private", "--out", "r.parquet")
    assert rknn("embed", *own).status == 0
    done = rknn("check", "r.parquet", "--public", "p.parquet", "--classes", "a,b")
    assert "1 of 2 features, ['dose']," in " ".join(done.out.split())
