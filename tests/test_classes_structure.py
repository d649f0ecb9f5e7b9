"""Whether `rknn classes` selects depends on columns and their types, on no single record."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from rknn_jax.cli import budget, classes
from rknn_jax.formats import Columns
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release import adoption, label, planning
from rknn_jax.release.settings import Settings
from tests.options import named_settings

NUM_RECORDS = 60
WIDTH = 3
FLOATS = pa.list_(pa.float64())


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, rows, labels, kind=None):
    table = pa.table({"embeddings": pa.array(rows, FLOATS), "labels": pa.array(labels, kind)})
    if name.endswith("parquet"):
        pq.write_table(table, name, row_group_size=7)
    else:
        pa.feather.write_feather(table, name, compression="uncompressed", chunksize=7)


def select(name, **settings):
    given = {"budget": 9, "budget_delta": 0.5, "ledger": Path("ledger")}
    return classes.run(named_settings(classes.SelectClasses, name, 1.0, 0.01, **(given | settings)))


def rows_with(first):
    rows = np.random.default_rng(0).normal(size=(NUM_RECORDS, WIDTH)).tolist()
    rows[0] = rows[0] if first == "usual" else first
    return rows


LISTS = ["usual", [1.0, 2.0], [1.0] * 9, [], None, [1.0, None, 2.0], [float("nan")] * WIDTH]


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["parquet", "feather"])
@pytest.mark.parametrize("first", LISTS, ids=str)
def test_a_list_of_another_length_stops_no_selection(first, suffix):
    """The fingerprint is that of a release, so that one ledger serves both."""
    name = f"p.{suffix}"
    write(name, rows_with(first), [0, 1] * (NUM_RECORDS // 2))
    assert select(name)["guarantee"]["epsilon"] == 1.0
    np.save("pub.npy", np.random.default_rng(1).normal(size=(30, WIDTH)).astype(np.float32))
    asked = named_settings(
        Settings, "pub.npy", name, 1.0, classes="2", queries=4, ledger=Path("ledger")
    )
    plan = planning.prepare(asked)
    label.draw(plan, label.count(plan))
    assert len([entry for entry in Ledger.open("ledger").entries() if entry.kind == "spend"]) == 2


@pytest.mark.parametrize("only", [[1.0, 2.0], [], None, [None]], ids=str)
def test_the_only_record_may_hold_any_list(only):
    write("p.parquet", [only], [0])
    assert select("p.parquet")["classes"] == []


@pytest.mark.parametrize("labels", [[[0]] * 4, [[0], [0, 1], [], None], [["a"], ["b", "c"]] * 2])
def test_a_column_of_lists_of_labels_is_refused_by_its_type(labels):
    write("p.parquet", [[0.0] * WIDTH] * 4, labels)
    with pytest.raises(ValueError, match=r"one label a record in private p.parquet, got lists"):
        select("p.parquet")
    assert not Path("ledger").exists()


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.decimal128(9, 2), pa.float64()])
@pytest.mark.parametrize("person", [None, "labels2"])
def test_under_add_remove_there_may_be_no_record(kind, person):
    empty = {"embeddings": pa.array([], FLOATS), "labels": pa.array([], kind)}
    pq.write_table(pa.table(empty | {"labels2": pa.array([], pa.int64())}), "p.parquet")
    found = select("p.parquet", relation="add-remove", person=person)
    assert found["classes"] == []
    with pytest.raises(ValueError, match="no row"):
        select("p.parquet", ledger=Path("other"))
    budget.adopt(
        named_settings(budget.Adopt, Path("ledger"), "p.parquet", "the same", person=person)
    )


def test_an_adoption_takes_lists_of_any_length_too():
    write("p.parquet", rows_with([1.0, 2.0]), [0, 1] * (NUM_RECORDS // 2))
    data = adoption.data_set(["p.parquet"], Columns())
    assert data.rows == NUM_RECORDS
    assert data == adoption.data_set(["p.parquet"], Columns(width=WIDTH)), "as with --public"
