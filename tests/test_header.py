"""A CSV file without a line of names is refused, and no value of its first record is told."""

import numpy as np
import pandas as pd
import pytest

from rknn_jax.formats.csv import is_record
from tests.test_cli import arguments
from tests.test_inputs import LABELS, PRIVATE, PUBLIC, frame, refused, save

WORDS = "got one of numbers, as a record has; put a line of names before it"
NAMES = [
    ["0", "1", "2", "3", "labels"],
    ["1", "2"],
    ["0"],
    ["", "0", "1"],
    ["label", *map(str, range(784))],
    ["2019", "2020", "2021", "country"],
    [*(f"{850 + 1.93 * i:.1f}" for i in range(40)), "labels"],
    [*(f"{1e4 / (10 + 0.1 * i):.2f}" for i in range(60))],
    ["age", "sex", "2020", "ward"],
    ["1x1", "1x2", "1x3"],
]
RECORDS = [
    ["5.1", "3.5", "1.4", "0.2", "setosa"],
    ["7"],
    ["0", "0", "0", "18", "0"],
    ["-0.3", "1e-3", ".5"],
    ["34", "F", "70", "1"],
    ["1", "1", "0", "1"],
]


@pytest.mark.parametrize("names", NAMES)
def test_numbers_that_count_or_go_on_in_steps_are_names(names):
    assert not is_record(names)


@pytest.mark.parametrize("names", RECORDS)
def test_other_numbers_are_a_record(names):
    assert is_record(names)


def test_records_of_any_width_are_recognized():
    draw = np.random.default_rng(0)
    for width in (1, 2, 3, 4, 8, 50):
        found = [is_record([f"{x:.3g}" for x in draw.normal(size=width)]) for _ in range(200)]
        assert np.mean(found) > 0.98, width


def first_value(table):
    return str(table.iloc[0, 0])


@pytest.mark.parametrize("side", ["public", "private", "private_labels"])
def test_a_file_without_names_is_refused_at_every_door(rknn, tmp_path, side):
    changes = save(tmp_path, "npz", LABELS)
    tables = {
        "public": frame(PUBLIC),
        "private": frame(PRIVATE).assign(labels=LABELS),
        "private_labels": pd.DataFrame({"labels": [7, *LABELS[1:]]}),
    }
    tables[side].to_csv(tmp_path / "T.csv", index=False, header=False)
    if side == "private_labels":
        np.savez(tmp_path / "R.npz", embeddings=PRIVATE)
    changes[side] = "T.csv"
    refused(rknn, tmp_path, changes, WORDS)
    named = {name: value for name, value in changes.items() if name != "private"}
    check = ["check", changes["private"], "--classes", 3]
    check += [word for name, value in named.items() for word in (f"--{name}", value)]
    doors = [check, arguments(**changes)]
    if side != "private_labels":
        kind = ["--text", "T.csv", "--private"] if side == "private" else ["--table", "T.csv"]
        doors.append(["embed", *kind, "--columns", "note", "--out", "E.parquet"])
    if side == "public":
        serve = ["serve", "--public", "T.csv", "--classes", 3, "--epsilon", 1, "--clients", 3]
        doors.append([*serve, "--queries", 4, "--out", "round", "--dry-run"])
    for door in doors:
        done = rknn(*map(str, door))
        told = " ".join(done.err.split())
        assert done.status == 2, door
        assert WORDS.split(";")[0] in told, door
        assert first_value(tables[side]) not in told.replace("--classes 3", ""), door


def test_a_private_file_whose_first_record_is_text_is_refused_with_the_cause(rknn, tmp_path):
    changes = save(tmp_path, "csv", LABELS)
    private = frame(PRIVATE).assign(ward="w", labels=[f"c{label}" for label in LABELS])
    cause = "If the file has no line of names, put one before its first record."
    private = private[["ward", "labels"]]
    private.to_csv(tmp_path / "R.csv", index=False, header=False)
    refused(rknn, tmp_path, changes | {"classes": "c0,c1,c2"}, cause)
    words = ["--label", "c0"]
    done = rknn(*arguments(**changes | {"classes": "c0,c1,c2"}), *words, "--dry-run")
    assert done.status == 2
    assert cause in " ".join(done.err.split())
    done = rknn("embed", "--text", "R.csv", "--columns", "note", "--private", "--out", "E.parquet")
    assert done.status == 2
    assert cause in " ".join(done.err.split())
