"""Several attributes of a record from the command line: the tau form of Private-kNN."""

import json

import numpy as np
import pytest

from rknn_jax import data
from rknn_jax.cli import main
from train import attributes

WORDS = [
    *("experiment", "attributes", "--dataset", "digits", "--representation", "pixels"),
    *("--num-neighbors", "20", "--sampling-prob", "0.2", "--queries", "40"),
    *("--attributes", "even=0,2,4,6,8", "loop=0,6,8,9", "zero=0"),
]


def has(digits: np.ndarray) -> np.ndarray:
    return np.stack([digits % 2 == 0, np.isin(digits, (0, 6, 8, 9)), digits == 0], axis=1)


def run(out, *others):
    """Run the program and return its exit status, its labels and its result."""
    status = main.main([*WORDS, "--out", str(out), *others])
    with np.load(out / "labels.npz") as arrays:
        return status, dict(arrays), json.loads((out / "result.json").read_text())


@pytest.mark.long
def test_without_noise_attributes_are_those_of_near_records(tmp_path, capsys):
    status, labels, result = run(tmp_path / "out", "--epsilon", "inf")
    assert status == 0
    assert labels["attributes"].tolist() == ["even", "loop", "zero"]
    truth = has(data.load("digits", 0).public.true_labels[labels["row"]])
    right = (labels["present"] == truth).mean(axis=0)
    assert (right > 0.9).all()
    assert list(result["right"].values()) == right.tolist()
    np.testing.assert_array_equal(labels["noisy_counts"], np.round(labels["noisy_counts"]))
    assert (labels["present"] == (labels["noisy_counts"] >= 10)).all()
    assert f"even: {right[0]:.1%}" in capsys.readouterr().out


@pytest.mark.long
def test_a_clip_bounds_what_a_neighbor_adds_and_costs_less_noise(tmp_path):
    _, plain, _ = run(tmp_path / "plain", "--epsilon", "inf")
    _, clipped, _ = run(tmp_path / "clipped", "--epsilon", "inf", "--clip", "1")
    assert plain["noisy_counts"].sum(axis=1).max() > 20
    assert clipped["noisy_counts"].sum(axis=1).max() <= 20 + 1e-4
    noisy = [run(tmp_path / clip, "--clip", clip, "--seed", "1") for clip in ("1", "3")]
    [one, three] = [result["guarantee"] for _, _, result in noisy]
    assert (one["epsilon"], one["delta"], one["sampler"]) == (1.0, 1e-5, "simulation")
    relative = [result["events"][0]["parameter"] for result in (one, three)]
    assert relative[0] == pytest.approx(relative[1]), "noise relative to what it hides"
    assert one["events"][0]["count"] == 40, "one noisy sum for each query, whatever the attributes"


@pytest.mark.long
def test_reverse_knn_labels_every_public_record_at_a_pure_price(tmp_path):
    status, labels, result = run(tmp_path / "out", "--labeler", "rknn", "--epsilon", "4")
    assert status == 0
    truth = has(data.load("digits", 0).public.true_labels)
    assert labels["present"].shape == truth.shape
    assert ((labels["present"] == truth).mean(axis=0) > 0.85).all()
    assert result["f1"]["micro"] > 0.8
    guarantee = result["guarantee"]
    assert (guarantee["epsilon"], guarantee["delta"], guarantee["sampler"]) == (4, 0, "simulation")


@pytest.mark.long
def test_a_set_is_cut_to_whole_labels(tmp_path, capsys):
    assert main.main([*WORDS, "--labeler", "rknn", "--clip", "1.5", "--out", str(tmp_path)]) == 2
    assert "whole number" in capsys.readouterr().err
    _, _, one = run(tmp_path / "out", "--labeler", "rknn", "--clip", "1", "--epsilon", "inf")
    _, _, all_ = run(tmp_path / "all", "--labeler", "rknn", "--epsilon", "inf")
    assert one["right"]["even"] > 0.9, "the first attribute of a record counts"
    assert one["right"]["zero"] < all_["right"]["zero"], "its last one does not"


def test_the_number_of_queries_does_not_tell_n_where_n_is_private(tmp_path, capsys):
    """461 records got 6 queries by default, and 462 got 7."""
    words = [word for word in WORDS if word not in ("--queries", "40")]
    words += ["--labeler", "rknn", "--relation", "add-remove", "--out", str(tmp_path / "out")]
    assert main.main(words) == 2
    assert "Expected queries with relation=add-remove" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_results_is_kept(tmp_path, capsys):
    (tmp_path / "result.json").write_text("{}")
    assert main.main([*WORDS, "--out", str(tmp_path)]) == 2
    assert "name another folder" in capsys.readouterr().err
    assert (tmp_path / "result.json").read_text() == "{}"


@pytest.mark.parametrize(
    "words",
    [(), ("even",), ("=0",), ("even=",), ("even=0,10",), ("even=0", "even=2"), ("even=0,,2",)],
    ids=str,
)
def test_attributes_that_are_unclear_are_told(words):
    with pytest.raises(ValueError, match="first=0,9"):
        attributes.table(words, tuple("0123456789"))


def test_attributes_are_sets_of_classes():
    names, table = attributes.table(("pet=cat,dog", "flies=bird"), ("cat", "bird", "dog"))
    assert names == ["pet", "flies"]
    np.testing.assert_array_equal(table, [[1, 0], [0, 1], [1, 0]])
