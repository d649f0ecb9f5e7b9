"""Classes -1, 0 and 1 are read right in whatever form the labels are stored."""

import numpy as np
import pandas as pd
import pytest

from rknn_jax.formats import Columns
from rknn_jax.records import frames
from rknn_jax.records.classes import Classes, given_classes
from rknn_jax.records.labels import encode
from rknn_jax.release import label_advice, usability
from rknn_jax.release.shards import FileShard
from tests.test_drop import write
from tests.test_inputs import LABELS, PRIVATE, frame

SIGNED = LABELS - 1
FORMS = {
    "integers": SIGNED,
    "floats": SIGNED.astype(float),
    "text": SIGNED.astype(str),
    "text with plus": np.array(["-1", "0", "+1"])[LABELS],
    "decimals": np.array(["-1.0", "0.0", "1.0"])[LABELS],
    "objects": SIGNED.astype(object),
    "small integers": SIGNED.astype(np.int8),
}


@pytest.mark.parametrize("labels", FORMS.values(), ids=FORMS)
def test_signed_numbers_are_classes_by_their_values(labels):
    for given in ("-1,0,1", ["-1", "0", "1"], ("-1", "+0", "+1")):
        ids, told = encode(labels, given_classes(given))
        np.testing.assert_array_equal(ids, LABELS)
        assert (told == 1).all()
    ids, _ = encode(labels, given_classes("1,-1,0"))
    np.testing.assert_array_equal(ids, np.array([1, 2, 0])[LABELS])


@pytest.mark.parametrize("form", ["csv", "parquet", "feather", "npz", "jsonl"])
def test_files_of_signed_numbers_are_read_alike(tmp_path, form):
    path = tmp_path / f"R.{form}"
    table = frame(PRIVATE).assign(labels=SIGNED)
    if form == "npz":
        np.savez(path, embeddings=PRIVATE, labels=SIGNED)
    elif form == "jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        write(table, path)
    names = None if form == "npz" else ("x0", "x1", "x2", "x3")
    shard = FileShard(str(path), "--private", Columns(names, width=4))
    found = usability.examine([shard], given_classes("-1,0,1"))
    counts = np.bincount(LABELS).tolist()
    assert found.classes == dict(zip(("-1", "0", "1"), counts, strict=True))
    advice, _ = usability.examine([shard], Classes(3)).advice[::-1]
    assert advice.startswith(f"{counts[0]} labels are -1, which is read as no label")
    assert "pass classes -1,0,1." in advice


@pytest.mark.parametrize("make", [list, np.asarray, pd.Series], ids=["list", "array", "series"])
def test_the_estimator_takes_signed_classes(make):
    labels, values = frames.single(make(SIGNED), [-1, 0, 1])
    classes = Classes(3, tuple(map(str, values)), counts_from_0=False)
    np.testing.assert_array_equal(encode(labels, classes)[0], LABELS)


def test_missing_labels_beside_class_numbers_are_no_advice():
    labels = np.where(np.arange(90) < 9, -1, LABELS)
    seen = label_advice.Seen(Classes(3), None)
    seen.add(labels)
    assert not [*seen.advice({})]
