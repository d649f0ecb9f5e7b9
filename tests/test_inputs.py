"""What people bring is read right by `rknn label`, or refused before it costs anything."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from tests.test_cli import arguments, arrays, blobs, contents

PUBLIC, TRUTH = blobs(60, 0)
PRIVATE, LABELS = blobs(90, 1)
NO_NOISE = {"epsilon": 1e6, "allow_large_epsilon": True, "queries": None}


def frame(rows):
    return pd.DataFrame({f"x{i}": column for i, column in enumerate(rows.T)})


def save(folder, form, labels):
    """Write both sides in a format, and return the options that name them."""
    private = frame(PRIVATE).assign(labels=labels)
    if form == "npz":
        np.savez(folder / "P.npz", embeddings=PUBLIC)
        np.savez(folder / "R.npz", embeddings=PRIVATE, labels=np.asarray(labels))
    for name, table in (("P", frame(PUBLIC)), ("R", private)):
        if form == "csv":
            table.to_csv(folder / f"{name}.csv", index=False)
        if form == "parquet":
            table.to_parquet(folder / f"{name}.parquet", index=False)
        if form == "feather":
            feather.write_feather(pa.Table.from_pandas(table), folder / f"{name}.feather")
    return {"public": f"P.{form}", "private": f"R.{form}"}


def refused(rknn, folder, changes, words):
    """Check that a dry run and a release give one error, and neither changes anything."""
    before = contents(folder)
    given = arguments(**changes)
    for done in (rknn(*given, "--dry-run"), rknn(*given)):
        assert done.status == 2, done.err
        assert words in " ".join(done.err.split())
        assert contents(folder) == before


@pytest.mark.parametrize("form", ["npz", "csv", "parquet", "feather"])
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (LABELS + 1, "1,2,3"),
        (LABELS.astype(str), "0,1,2"),
        (np.array(["b, c", "a", "d"])[LABELS], None),
        (LABELS == 1, "False,True"),
    ],
    ids=["numerals", "text", "a comma", "bool"],
)
def test_labels_of_every_format_are_right(rknn, tmp_path, form, labels, classes):
    changes = save(tmp_path, form, labels) | NO_NOISE
    if classes is None:
        (tmp_path / "run.toml").write_text('classes = ["a", "b, c", "d"]')
        changes |= {"classes": None, "config": "run.toml"}
        wanted = np.array([1, 0, 2])[TRUTH]
    else:
        changes |= {"classes": classes}
        wanted = TRUTH == 1 if classes == "False,True" else TRUTH
    done = rknn(*arguments(**changes))
    assert done.status == 0, done.err
    np.testing.assert_array_equal(arrays(tmp_path / "new" / "labels.npz")["label"], wanted)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (None, "'labels', found embeddings"),
        (LABELS[1:], "one label a record"),
        (np.eye(3)[LABELS], "got shape [n, 3]"),
        (np.array(["a", {}, 1] * 30, object), "pickled"),
        (np.zeros(90, "M8[D]"), "datetime64"),
        (np.array(["a", "b", "c"])[LABELS], "--classes to name the text labels"),
    ],
    ids=["none", "one too few", "one-hot", "objects", "dates", "text without names"],
)
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_labels_of_a_wrong_type_are_refused_by_the_dry_run_too(
    rknn, tmp_path, labels, words, apart
):
    save(tmp_path, "npz", LABELS)
    changes = {"classes": "3"}
    if apart:
        if labels is None:
            pytest.skip("there is no file of labels")
        np.save(tmp_path / "y.npy", labels)
        changes |= {"private_labels": "y.npy"}
        words = "one label a private record" if words == "one label a record" else words
    else:
        held = {} if labels is None else {"labels": labels}
        np.savez(tmp_path / "R.npz", embeddings=PRIVATE, **held)
    refused(rknn, tmp_path, changes, words)


def test_a_dry_run_needs_the_labels_of_a_csv(rknn, tmp_path):
    changes = save(tmp_path, "csv", LABELS)
    frame(PRIVATE).to_csv(tmp_path / "R.csv", index=False)
    refused(rknn, tmp_path, changes, "Expected an array or column 'labels'")
    pq.write_table(pa.table({"labels": LABELS[1:]}), tmp_path / "y.parquet")
    refused(rknn, tmp_path, changes | {"private_labels": "y.parquet"}, "another number of labels")


@pytest.mark.parametrize("form", ["npz", "csv", "parquet"])
def test_the_curator_counts_records_that_cannot_be_used(rknn, tmp_path, form):
    labels = np.array(["benign", "malignant", "other"], object)[LABELS]
    labels[:3] = "Malignant"
    labels[3:5] = ""
    rows = PRIVATE.copy()
    rows[10, 0] = np.nan
    table = frame(rows).assign(labels=labels, who=["", *["a"] * 89])
    if form == "csv":
        table.to_csv(tmp_path / "R.csv", index=False)
    elif form == "parquet":
        table.to_parquet(tmp_path / "R.parquet", index=False)
    else:
        held = {"labels": labels.astype(str), "who": table["who"].to_numpy().astype(str)}
        np.savez(tmp_path / "R.npz", embeddings=rows, **held)
    before = contents(tmp_path)
    words = ["check", f"R.{form}", "--classes", "benign,malignant", "--person", "who"]
    done = rknn(*words, "--json")
    assert done.status == 0, done.err
    found = done.json
    others = int(np.sum(labels == "other"))
    assert found["records"] == 90
    assert found["foreign"] == {"Malignant": 3, "other": others}
    assert found["near"] == {"Malignant": "malignant"}
    assert found["reasons"]["foreign label"] == 3 + others
    assert found["reasons"]["missing label"] == 2
    assert found["reasons"]["missing person"] == 1
    assert sum(found["classes"].values()) == found["usable"] == 90 - 3 - others - 2 - 1
    assert "did you mean 'malignant'" in done.err
    assert "these counts are private" in done.err
    assert contents(tmp_path) == before
    assert "Expected --classes" in rknn(*words[:2]).err


def test_the_curator_counts_labels_of_several_that_do_not_count(rknn, tmp_path):
    lists = [["a"], ["a", "b", "c"], ["x"], []]
    table = pa.table({"embeddings": [[1.0, 2.0]] * 4, "labels": lists})
    pq.write_table(table, tmp_path / "R.parquet")
    done = rknn("check", "R.parquet", "--classes", "a,b,c", "--labels-per-record", 2, "--json")
    assert done.json["usable"] == 4
    assert done.json["reasons"] == {"label that does not count": 2}
