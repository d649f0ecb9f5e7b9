"""`rknn embed --table` and what tables of the world hold: missing values, mistakes, encodings."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rknn_jax.embedding import table

AGES = ["20", "30.5", "40"] * 20


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, ages, towns):
    lines = [f"{age},{town}" for age, town in zip(ages, towns, strict=True)]
    Path(name).write_text("\n".join(["age,town", *lines]) + "\n")


def embeddings(name):
    return np.array(pq.read_table(name)["embeddings"].to_pylist(), np.float32)


@pytest.mark.parametrize("word", ["?", "NA", "n/a", "-", "NaN", "None", " ? ", "#N/A", "<NA>"])
def test_a_word_for_a_missing_number_leaves_a_column_of_numbers(rknn, word):
    for name, missing in (("word", word), ("empty", "")):
        write(f"{name}.csv", [missing, *AGES], ["a", *"abc" * 20])
        done = rknn("embed", "--table", f"{name}.csv", "--out", f"{name}.parquet")
        assert done.status == 0, done.err
    found = embeddings("word.parquet")
    assert found.shape == (61, 1 + 3)
    np.testing.assert_array_equal(found, embeddings("empty.parquet"))
    cards = [json.loads(Path(f"{name}.card.json").read_text()) for name in ("word", "empty")]
    assert cards[0]["model"] == cards[1]["model"]


def test_a_row_of_words_for_missing_numbers_has_no_values(rknn):
    Path("p.csv").write_text("a,b\n1.5,2\n2.5,1\n?,NA\n-,7.5\n")
    done = rknn("embed", "--table", "p.csv", "--out", "p.parquet", "--json")
    assert done.json["rows"] == 3
    assert "row 2 (no values)" in done.err


def test_a_category_may_be_a_word_for_a_missing_number(rknn):
    write("p.csv", AGES, ["?", "-", "Rome"] * 20)
    assert rknn("embed", "--table", "p.csv", "--out", "p.parquet").status == 0
    assert embeddings("p.parquet").shape == (60, 1 + 3)


def test_mistakes_that_make_a_column_of_numbers_one_hot_are_told(rknn):
    write("p.csv", ["4O", "ten", *AGES], ["a", "b", *"abc" * 20])
    done = rknn("embed", "--table", "p.csv", "--out", "p.parquet")
    told = " ".join(done.err.split())
    assert done.status == 0
    assert "column 'age' is one-hot, because of '4O', 'ten' in 2 of 62 values" in told
    assert "mend them" in told
    write("q.csv", ["low", "high", "20"] * 20, ["a", "b", "c"] * 20)
    assert "one-hot" not in rknn("embed", "--table", "q.csv", "--out", "q.parquet").err


def test_mistakes_among_many_numbers_are_named(rknn):
    write("p.csv", ["4O", *np.linspace(20, 70, 60)], ["a", *"abc" * 20])
    done = rknn("embed", "--table", "p.csv", "--out", "p.parquet")
    assert done.status == 2
    assert "Expected numbers in the column 'age', got '4O' in 1 of 61 values" in done.err


def test_what_is_told_of_a_column_is_not_in_the_card():
    write("p.csv", ["4O", *AGES], ["a", *"abc" * 20])
    model = table.fit(Path("p.csv"), "--table", ("age", "town"), chosen=False)
    assert len(model.told) == 1
    assert table.of_card(json.loads(json.dumps(model.card))).columns == model.columns
