"""Records that lie elsewhere, and labels in another order, are told to the curator alone."""

import numpy as np
import pandas as pd
import pytest

from rknn_jax.release.likeness import Likeness
from tests.test_cli import arguments

CENTERS = 2 * np.random.default_rng(0).normal(size=(5, 8))


def records(count, seed):
    draw = np.random.default_rng(seed)
    ids = draw.integers(5, size=count).astype(np.int32)
    return (CENTERS[ids] + draw.normal(size=(count, 8))).astype(np.float32), ids


SHUFFLED = np.random.default_rng(1).permutation(32)
PRIVATE, IDS = records(3000, 1)
PUBLIC, _ = records(800, 2)


def told(rows, ids, public=PUBLIC):
    found = Likeness(rows.shape[1])
    for start in range(0, len(rows), 700):  # as blocks of a file
        found.add(rows[start : start + 700], ids[start : start + 700])
    return [*found.advice(public)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows[:, ::-1], "times as far from the public rows"),
        (lambda rows: 2 * rows, "times as far from the public rows"),
        (lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True), "hardly a private"),
        (lambda rows: rows[rows[:, 0] > 1], "hardly a private record"),
    ],
    ids=["other dimensions", "another unit", "other lengths", "a part of the classes"],
)
def test_records_that_lie_elsewhere_are_told(change, words):
    changed = np.ascontiguousarray(change(PRIVATE), dtype=np.float32)
    sentences = " ".join(told(changed, IDS[: len(changed)]))
    assert words in sentences
    assert "embed both sides by one model" in sentences


@pytest.mark.parametrize("change", [lambda rows: -rows, lambda rows: rows[:, SHUFFLED]])
def test_other_dimensions_of_classes_that_overlap_are_told(change):
    """Distances to the public rows do not show them: the classes lie around one point."""
    draw = np.random.default_rng(0)
    centers = draw.normal(size=(6, 32))
    ids = draw.integers(6, size=2500).astype(np.int32)
    rows = (centers[ids] + 2.2 * draw.normal(size=(2500, 32))).astype(np.float32)
    assert not told(rows[700:], ids[700:], rows[:700])
    (sentence,) = told(np.ascontiguousarray(change(rows[700:])), ids[700:], rows[:700])
    assert "of its own side" in sentence
    assert "with dimensions in one order" in sentence


def test_labels_in_another_order_are_told():
    shuffled = np.random.default_rng(3).permutation(IDS)
    (sentence,) = told(PRIVATE, shuffled, None)
    assert sentence.startswith("Labels do not follow the features: ")
    assert sentence.endswith("Are labels and features in the same order?")


@pytest.mark.long
def test_halves_of_one_data_set_are_never_told():
    """No false alarm in 20 splits, half of which have a person's records five times."""
    alarms = []
    for seed in range(10):
        private, ids = records(500, 100 + seed)
        public, _ = records(100 + 40 * seed, 900 + seed)
        alarms += told(private, ids, public)
        alarms += told(private.repeat(5, axis=0), ids.repeat(5), public.repeat(3, axis=0))
    assert not alarms


@pytest.mark.parametrize("order", [1, -1])
def test_files_in_any_order_are_sampled_alike(order):
    """The first records of a file may all be of one class."""
    sort = np.argsort(IDS, kind="stable")[::order]
    assert not told(PRIVATE[sort], IDS[sort])


def test_few_records_tell_nothing():
    assert not told(PRIVATE[:99, ::-1].copy(), IDS[:99])
    assert not told(PRIVATE[:, ::-1].copy(), IDS, PUBLIC[:99])


@pytest.mark.long
def test_the_curator_hears_of_it_and_a_release_does_not(rknn, tmp_path):
    shuffled = np.random.default_rng(3).permutation(IDS)
    np.save(tmp_path / "P.npy", PUBLIC)
    np.savez(tmp_path / "R.npz", embeddings=PRIVATE[:, ::-1])
    pd.DataFrame({"labels": shuffled}).to_csv(tmp_path / "L.csv", index=False)
    sides = ("--public", "P.npy", "--private-labels", "L.csv", "--classes", "5")
    check = " ".join(rknn("check", "R.npz", *sides).out.split())
    assert "times as far from the public rows" in check
    assert "Labels do not follow the features" in check
    given = arguments(public="P.npy", private="R.npz", classes="5")
    dry = rknn(*given, "--private-labels", "L.csv", "--dry-run")
    assert dry.status == 0
    assert "as far from" not in dry.err
    assert "do not follow" not in dry.err
