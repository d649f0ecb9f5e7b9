"""Under add-remove, no private record at all is a data set like any other."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from rknn_jax import ReverseKNNLabeler
from rknn_jax.cli import budget
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release import label, planning
from rknn_jax.release.settings import Settings
from tests.conftest import crossed
from tests.options import named_settings

WIDTH = 3
CLASSES = "a,b"
WAYS = {
    "discrete_laplace": {"queries": 4},
    "permute_and_flip": {"queries": 4, "mechanism": "permute_and_flip"},
    "one_to_one": {"queries": 2, "mechanism": "one_to_one"},
    "gaussian": {"queries": 4, "mechanism": "gaussian", "delta": 1e-5},
    "sets": {"queries": 4, "labels_per_record": 1},
    "standardized": {"queries": 4, "standardize": True},
    "prototypes": {"labeler": "prototypes"},
    "prototypes with delta": {"labeler": "prototypes", "delta": 1e-5},
    "public_prototypes": {"labeler": "public_prototypes"},
    "least_squares": {"labeler": "least_squares"},
}


@pytest.fixture(autouse=True)
def public(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(60, WIDTH)).astype(np.float32)
    np.save("pub.npy", rows)
    return rows


def npz(num_records):
    features = np.zeros((num_records, WIDTH), np.float32)
    labels, persons = np.full(num_records, "a", "U1"), np.arange(num_records)
    np.savez("p.npz", embeddings=features, labels=labels, person=persons)
    return "p.npz"


def csv(num_records):
    lines = [f"0,0,0,a,{number}\n" for number in range(num_records)]
    Path("p.csv").write_text("x,y,z,labels,person\n" + "".join(lines))
    return "p.csv"


def arrow_table(num_records):
    columns = {
        "embeddings": pa.array([[0.0] * WIDTH] * num_records, pa.list_(pa.float32())),
        "labels": pa.array(["a"] * num_records, pa.string()),
        "person": pa.array(list(range(num_records)), pa.int64()),
    }
    return pa.table(columns)


def parquet(num_records):
    pq.write_table(arrow_table(num_records), "p.parquet")
    return "p.parquet"


def feather(num_records):
    pa.feather.write_feather(arrow_table(num_records), "p.feather", compression="uncompressed")
    return "p.feather"


def released(private, number, **settings):
    asked = {"relation": "add-remove", "classes": CLASSES, "out": Path(f"out{number}")} | settings
    given = named_settings(Settings, "pub.npy", private, 1.0, ledger=Path(f"l{number}"), **asked)
    plan = planning.prepare(given)
    return label.draw(plan, label.count(plan))


@pytest.mark.long
@crossed(person=[None, "person"], way=WAYS)
def test_every_labeler_releases_noise_alone(way, person):
    shapes = [
        released(npz(number), number, person=person, **WAYS[way]).labels.shape for number in (0, 1)
    ]
    assert shapes == [(60,), (60,)]


@pytest.mark.parametrize("write", [npz, csv, parquet, feather])
@pytest.mark.parametrize("person", [None, "person"])
def test_every_format_may_hold_no_record(write, person):
    columns = {"embedding": tuple("xyz")} if write is csv else {}
    assert len(released(write(0), 0, person=person, queries=4, **columns).labels) == 60


def test_a_file_without_a_record_may_lie_beside_others():
    npz(0)
    np.savez("q.npz", embeddings=np.ones((5, WIDTH)), labels=np.full(5, "b"))
    released(("p.npz", "q.npz"), 0, queries=4)


def test_a_file_without_a_record_may_be_in_several_ledgers(tmp_path, monkeypatch):
    monkeypatch.setenv("RKNN_STATE_DIR", str(tmp_path / "state"))
    for number, rows in enumerate([1, 2]):
        folder = tmp_path / str(number)
        folder.mkdir()
        npz(0)
        np.savez(folder / "q.npz", embeddings=np.full((rows, WIDTH), rows), labels=["b"] * rows)
        Path("p.npz").rename(folder / "p.npz")
        both = tuple(str(folder / name) for name in ("p.npz", "q.npz"))
        released(both, 2 * number, queries=4)
        released(both[0], 2 * number + 1, queries=4)


def test_a_ledger_adopts_a_file_without_a_record_where_their_number_is_private():
    npz(5)
    released("p.npz", 0, queries=4)
    npz(0)
    adopted = named_settings(budget.Adopt, Path("l0"), "p.npz", "none is left", unrelated=True)
    budget.adopt(adopted)
    assert len(Ledger.open("l0").datasets) == 2


@pytest.mark.parametrize("write", [npz, csv, parquet, feather])
def test_replace_one_takes_the_number_of_records_as_public(write):
    columns = {"person": "person"} if write is csv else {}
    with pytest.raises(ValueError, match="relation add-remove"):
        released(write(0), 0, queries=4, relation="replace-one", **columns)
    assert not Path("l0").exists()


NOTHING = [np.zeros((0, WIDTH)), [], pd.DataFrame(np.zeros((0, WIDTH)))]


@pytest.mark.long
@crossed(rows=NOTHING, person=[None, [], pd.Series([], dtype=object, name="patient")])
def test_the_estimator_releases_noise_alone(public, rows, person):
    known = pd.DataFrame(public) if hasattr(rows, "columns") else public
    given = {"classes": ["a", "b"], "n_queries": 4, "ledger": "l", "relation": "add-remove"}
    labeler = ReverseKNNLabeler(**given).fit(known)
    labeler.cost(rows, person)
    labeler.preview(rows, person)
    assert len(labeler.label(rows, [], person)) == 60
    assert ReverseKNNLabeler(**(given | {"ledger": "m"})).fit(known).label(
        rows, np.zeros(0, "U1"), person
    ).shape == (60,)
    with pytest.raises(ValueError, match="add-remove"):
        labeler.set_params(relation="replace-one", ledger="n").label(rows, [], person)


def test_no_record_needs_to_name_a_person(public):
    labeler = ReverseKNNLabeler(classes=["a", "b"], n_queries=4, ledger="l").fit(public)
    with pytest.warns(UserWarning, match="3 labeled"):
        labeler.label(np.zeros((3, WIDTH)), ["a"] * 3, [None] * 3)
    assert labeler.card_["num_persons"] == 1
