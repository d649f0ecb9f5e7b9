"""A server's public side and a client's private side may be folders and patterns, as of `label`."""

import os

import numpy as np
import pandas as pd
import pytest

from rknn_jax.federation import inputs, joining
from rknn_jax.federation.join_settings import Join
from tests.options import named_settings
from tests.test_inputs import LABELS, PRIVATE, PUBLIC, frame
from train import parties

PARTS = [slice(0, 20), slice(20, 25), slice(25, 90)]


def write(path, table):
    path.parent.mkdir(exist_ok=True)
    match path.suffix:
        case ".parquet":
            table.to_parquet(path, index=False)
        case ".feather":
            table.to_feather(path)
        case ".csv":
            table.to_csv(path, index=False)
        case ".npz":
            rows = table.drop(columns="labels", errors="ignore").to_numpy()
            labels = {"labels": table["labels"].to_numpy()} if "labels" in table else {}
            np.savez(path, embeddings=rows, **labels)


def parts(folder, table, suffix):
    """Write a table as three files, of which the last one has its columns in another order."""
    for number, rows in enumerate(PARTS):
        part = table.iloc[rows].reset_index(drop=True)
        mixed = part[part.columns[::-1]] if number == 2 and suffix != ".npz" else part
        write(folder / f"{number}{suffix}", mixed)


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".csv", ".npz"])
@pytest.mark.parametrize("name", ["records", "records/[0-9]*"])
def test_several_files_are_one_data_set(tmp_path, suffix, name):
    private = frame(PRIVATE).assign(labels=LABELS)
    write(tmp_path / f"one{suffix}", private)
    parts(tmp_path / "records", private, suffix)
    one = joining.read_records(Join(tmp_path / f"one{suffix}"))
    several = joining.read_records(Join(tmp_path / name))
    np.testing.assert_array_equal(one.inputs, several.inputs)
    np.testing.assert_array_equal(one.labels.astype(str), several.labels.astype(str))
    assert one.features == several.features
    public = frame(PUBLIC).assign(town="a")
    parts(tmp_path / "rows", public if suffix != ".npz" else frame(PUBLIC), suffix)
    found = inputs.read_public(tmp_path / "rows", None, () if suffix == ".npz" else ("town",))
    np.testing.assert_allclose(found.inputs, PUBLIC, rtol=1e-6)
    assert suffix == ".npz" or found.others["town"].tolist() == ["a"] * 60


@pytest.mark.parametrize("count", [1, 9, 11])
def test_a_test_image_without_a_label_of_its_own_is_refused_before_anybody_is_asked(
    tmp_path, count
):
    images = np.zeros((10, 8, 8, 1), np.uint8)
    np.savez(tmp_path / "P.npz", images=images)
    np.savez(tmp_path / "T.npz", images=images, labels=np.zeros(count, np.int32))
    with pytest.raises(ValueError, match=f"one label for each .*T.npz, got .* and {count} labels"):
        inputs.read_public(tmp_path / "P.npz", tmp_path / "T.npz")


def test_the_ledger_of_a_folder_lies_beside_it_and_is_no_record(tmp_path):
    table = frame(PRIVATE).assign(labels=LABELS)
    parts(tmp_path / "records", table, ".csv")
    settings = named_settings(Join, tmp_path / "records", budget=1)
    for _ in range(2):
        client = joining.open_client(settings)
        assert len(client.ledger.datasets[0].shards) > 1, "a file of them is known by its ledger"
        assert client.ledger.path == tmp_path / "records.ledger.jsonl"
        assert len(client.inputs) == 90
    own = named_settings(
        Join, tmp_path / "records", budget=1, ledger=tmp_path / "records" / "own.ledger.jsonl"
    )
    (tmp_path / "records.ledger.jsonl").rename(own.spending.ledger)
    assert len(joining.open_client(own).inputs) == 90


def test_a_pattern_has_no_place_for_its_ledger_and_answers(tmp_path):
    parts(tmp_path / "records", frame(PRIVATE).assign(labels=LABELS), ".csv")
    pattern = tmp_path / "records" / "*.csv"
    ledger, rounds = tmp_path / "own.ledger.jsonl", tmp_path / "rounds"
    for named in ({}, {"ledger": ledger}, {"rounds": rounds}):
        with pytest.raises(ValueError, match="ledger and rounds with a pattern"):
            joining.open_client(named_settings(Join, pattern, budget=1, **named))
        assert not ledger.exists()
    client = joining.open_client(
        named_settings(Join, pattern, budget=1, ledger=ledger, rounds=rounds)
    )
    assert len(client.inputs) == 90


def test_files_of_other_columns_are_refused(tmp_path):
    parts(tmp_path / "records", frame(PRIVATE).assign(labels=LABELS), ".csv")
    odd = pd.DataFrame({"x0": [1.5], "other": [1.5], "labels": [1]})
    write(tmp_path / "records" / "9.csv", odd)
    with pytest.raises(ValueError, match="the same columns of features everywhere"):
        joining.read_records(Join(tmp_path / "records"))


def test_a_file_that_is_replaced_while_it_is_read_is_refused(tmp_path, monkeypatch):
    """Features of the old file stood beside labels of the new one, in another order."""
    rows = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    np.savez(tmp_path / "R.npz", embeddings=rows, labels=np.arange(30) % 3)
    np.savez(tmp_path / "new.npz", embeddings=rows[::-1], labels=np.arange(30)[::-1] % 3)
    read = joining.read_inputs

    def slowly(*arguments, **options):
        found = read(*arguments, **options)
        os.replace(tmp_path / "new.npz", tmp_path / "R.npz")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(joining, "read_inputs", slowly)
        with pytest.raises(ValueError, match="stay as it is while it is read"):
            joining.read_records(Join(tmp_path / "R.npz"))
    assert len(joining.read_records(Join(tmp_path / "R.npz")).labels) == 30


def test_a_partys_file_is_for_its_owner_alone(tmp_path):
    sizes = parties.main(parties.Parties("digits", tmp_path, parties=2))
    for number, size in enumerate(sizes):
        path = tmp_path / f"party{number}.npz"
        assert path.stat().st_mode & 0o077 == 0
        assert len(np.load(path)["labels"]) == size
