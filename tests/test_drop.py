"""`--drop` leaves columns of tables out of the features, in every command and on both sides."""

import json

import numpy as np
import pandas as pd
import pytest

from tests.test_cli import arguments, arrays, contents
from tests.test_inputs import LABELS, NO_NOISE, PRIVATE, PUBLIC, TRUTH, frame, refused

NOISE = np.random.default_rng(0).permutation(1000)
"""Ids, which would decide every distance."""


def write(frame, path):
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_feather(path)


def save(folder, form, **columns):
    """Write both sides with an id of both, a ward of the public and a visit of the private side."""
    public = frame(PUBLIC).assign(id=NOISE[:60], ward="a")
    private = frame(PRIVATE).assign(id=NOISE[:90], visit=0.5, labels=LABELS)
    write(public.assign(**columns), folder / f"P.{form}")
    write(private, folder / f"R.{form}")
    return {"public": f"P.{form}", "private": f"R.{form}"} | NO_NOISE


@pytest.mark.long
@pytest.mark.parametrize("form", ["csv", "parquet", "feather"])
def test_dropped_columns_are_no_features_and_come_along(rknn, tmp_path, form):
    changes = save(tmp_path, form)
    refused(rknn, tmp_path, changes, "'ward'" if form == "csv" else "['ward'] of")
    done = rknn(*arguments(**changes), "--drop", "id", "ward", "visit")
    assert done.status == 0, done.err
    np.testing.assert_array_equal(arrays(tmp_path / "new" / "labels.npz")["label"], TRUTH)
    assert rknn("export", "new", "--format", "csv").status == 0
    found = pd.read_csv(tmp_path / "new" / "labels.csv")
    np.testing.assert_array_equal(found["id"], NOISE[:60])
    assert found["ward"].tolist() == ["a"] * 60


def test_dropped_columns_in_a_file_of_options(rknn, tmp_path):
    changes = save(tmp_path, "csv")
    (tmp_path / "run.toml").write_text('drop = ["id", "ward", "visit"]')
    done = rknn(*arguments(**changes, config="run.toml"))
    assert done.status == 0, done.err
    kept = json.loads((tmp_path / "new" / "config.json").read_text())["options"]
    assert kept["drop"] == ["id", "ward", "visit"]


@pytest.mark.parametrize(
    ("drop", "words"),
    [
        (["id", "wards"], "['wards']; the columns are x0, x1, x2, x3, id, ward, visit, labels"),
        (["id,ward"], "['id,ward']"),
        (["labels"], "['labels'] in --label too"),
    ],
    ids=["unknown", "commas", "label"],
)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_name_that_cannot_be_dropped_is_refused(rknn, tmp_path, drop, words, form):
    changes = save(tmp_path, form)
    before = contents(tmp_path)
    for more in ([], ["--dry-run"]):
        done = rknn(*arguments(**changes), *more, "--drop", *drop)
        assert done.status == 2
        assert words in " ".join(done.err.split())
    done = rknn("check", f"R.{form}", "--public", f"P.{form}", "--classes", "3", "--drop", *drop)
    assert done.status == 2
    assert words.partition(";")[0] in " ".join(done.err.split())
    assert contents(tmp_path) == before


def test_arrays_have_no_columns_to_drop(rknn, tmp_path):
    np.savez(tmp_path / "P.npz", embeddings=PUBLIC)
    np.savez(tmp_path / "R.npz", embeddings=PRIVATE, labels=LABELS)
    done = rknn(*arguments(), "--drop", "x")
    assert done.status == 2
    assert "arrays have no columns" in " ".join(done.err.split())


@pytest.mark.parametrize(
    "roles", [("--embedding", "x0", "id"), ("--person", "id")], ids=["embedding", "person"]
)
def test_a_dropped_column_has_no_other_role(rknn, tmp_path, roles):
    changes = save(tmp_path, "csv")
    done = rknn(*arguments(**changes), "--drop", "id", *roles)
    assert done.status == 2
    assert f"['id'] in {roles[0]} too" in " ".join(done.err.split())


def test_an_option_of_several_names_is_given_once(rknn, tmp_path):
    """The last one would count alone, and the other column would be a feature."""
    changes = save(tmp_path, "csv")
    for flag in ("--drop", "--classes", "--private"):
        words = [*arguments(**changes), flag, "id", f"{flag}=ward"]
        done = rknn(*words)
        assert done.status == 2
        assert f"Expected {flag} once" in " ".join(done.err.split())


def test_a_list_named_embeddings_can_be_dropped(rknn, tmp_path):
    changes = save(tmp_path, "parquet")
    for name in ("P", "R"):
        table = pd.read_parquet(tmp_path / f"{name}.parquet")
        table.assign(embeddings=[[1.0, 2.0]] * len(table)).to_parquet(tmp_path / f"{name}.parquet")
    done = rknn(*arguments(**changes), "--drop", "id", "ward", "visit", "embeddings")
    assert done.status == 0, done.err
    np.testing.assert_array_equal(arrays(tmp_path / "new" / "labels.npz")["label"], TRUTH)


@pytest.mark.long
def test_a_table_is_embedded_without_dropped_columns(rknn, tmp_path):
    save(tmp_path, "csv")
    public = ["embed", "--table", "P.csv", "--out", "P.parquet"]
    private = ["embed", "--table", "R.csv", "--private", "--card", "P.card.json"]
    for drop, words in (
        (["ids"], "Expected columns of the data in --drop, got ['ids']"),
        (["labels"], "['labels'] in --label or --keep too"),
        (["id", "--columns", "x0"], "without --columns"),
    ):
        done = rknn(*public, "--drop", *drop)
        assert done.status == 2
        assert words in " ".join(done.err.split())
    assert rknn(*public, "--drop", "id", "ward").status == 0
    done = rknn(*private, "--out", "R.parquet", "--drop", "x0")
    assert done.status == 2
    assert "--drop as for the public table, got ['x0']" in " ".join(done.err.split())
    assert rknn(*private, "--out", "R.parquet", "--drop", "id", "visit").status == 0
    assert pd.read_parquet(tmp_path / "P.parquet")["embeddings"].map(len).eq(4).all()
    done = rknn(
        *arguments(public="P.parquet", private="R.parquet", **NO_NOISE | {"classes": "0,1,2"})
    )
    assert done.status == 0, done.err
    np.testing.assert_array_equal(arrays(tmp_path / "new" / "labels.npz")["label"], TRUTH)


def test_both_sides_of_a_federation_drop_columns(rknn, tmp_path):
    from rknn_jax.federation import inputs, joining
    from rknn_jax.federation.join_settings import Join

    save(tmp_path, "csv")
    serve = ["serve", "--public", "P.csv", "--epsilon", 1, "--classes", 3, "--clients", 2]
    serve += ["--out", "round", "--dry-run", "--student", "none"]
    done = rknn(*serve)
    assert done.status == 2
    assert "ward" in done.err
    assert "'id'" in rknn(*serve, "--drop", "ward").err
    done = rknn(*serve, "--drop", "ward", "id")
    assert done.status == 0, done.err
    labelled = pd.read_csv("P.csv").assign(labels=0)
    labelled.to_csv("P.csv", index=False)
    done = rknn(*serve, "--drop", "ward", "id", "labels")
    assert done.status == 0, "a server names no labels"
    assert "['wards']" in rknn(*serve, "--drop", "wards").err
    public = inputs.read_public(tmp_path / "P.csv", None, ("ward", "id"))
    np.testing.assert_allclose(public.inputs, PUBLIC, rtol=1e-6)
    records = joining.read_records(Join(tmp_path / "R.csv", drop=("visit", "id")))
    np.testing.assert_allclose(records.inputs, PRIVATE, rtol=1e-6)
    for drop, words in ((("visits",), "visits"), (("labels",), "label too")):
        with pytest.raises(ValueError, match=words):
            joining.read_records(Join(tmp_path / "R.csv", drop=drop))


@pytest.mark.long
def test_other_commands_drop_columns(rknn, tmp_path):
    changes = save(tmp_path, "csv") | {"epsilon": 40, "allow_large_epsilon": None}
    drop = ["--drop", "id", "ward", "visit"]
    data = ["--public", "P.csv", "--private", "R.csv"]
    found = rknn("check", "R.csv", "--public", "P.csv", "--classes", 3, "--json", *drop)
    assert found.json["usable"] == 90
    assert (
        rknn("classes", *data, "--epsilon", 1, "--delta", 1e-6, "--budget", 99, *drop).status == 0
    )
    done = rknn(*arguments(**changes), *drop)
    assert done.status == 0, done.err
    private = pd.read_csv(tmp_path / "R.csv")
    private.assign(x0=private["x0"] * 2).to_csv(tmp_path / "R.csv", index=False)
    refusal = rknn(*arguments(**changes | {"out": "other"}), *drop)
    assert "--drop id ward visit" in " ".join(refusal.err.split())
    adopt = ["budget", "adopt", "R.csv.ledger.jsonl", *data, "--reason", "embedded anew", *drop]
    done = rknn(*adopt)
    assert done.status == 0, done.err
