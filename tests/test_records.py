"""Labels of every type and in every format are read by one rule."""

import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from rknn_jax.formats import _arrow
from rknn_jax.records.classes import FOREIGN, MISSING, Classes, parse_classes
from rknn_jax.records.labels import encode, plain, whole

NAMES = Classes(3, ("cat", "dog", "owl"))


@pytest.mark.parametrize(
    "labels",
    [
        np.array([1, 2, 3, 4, 0]),
        np.array([1, 2, 3, 4, 0], np.uint8),
        np.array([1.0, 2, 3, 4, 0]),
        np.array([1, 2, 3, 4, 0], np.float16),
        np.array(["1", "2", "3", "4", "0"]),
        np.array(["1.0", " 2", "03", "4", "x"]),
        np.array([1, 2.0, "3", 4, 0], object),
        pa.array([1, 2, 3, 4, None]),
        pa.array([1, 2, 3, 4, 0]).dictionary_encode(),
        pa.array([Decimal(1), Decimal(2), Decimal(3), Decimal(4), None]),
        pa.array(["1", "2", "3", "4", None], pa.string_view()),
    ],
    ids=str,
)
def test_numbers_are_names_where_a_name_is_a_number(labels):
    """`--classes 1,2,3` for the integers 1, 2, 3: no label is shifted by one."""
    read = labels if isinstance(labels, np.ndarray) else _arrow.label_column(labels)
    for text, ids in (
        ("1,2,3", [0, 1, 2]),
        ("3,2,1", [2, 1, 0]),
        ("1,2,3,none of these", [0, 1, 2]),
    ):
        found = encode(read, parse_classes(text))
        assert found.ids.tolist() == [*ids, MISSING, MISSING]
        assert found.told[:4].all()


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0, 2, 3, -1]),
        np.array([0, 2, np.inf, np.nan]),
        np.array([0, 2, 1.5, np.nan], np.float32),
        np.array(["0", "2", "3", ""]),
        np.array(["0.0", " 2", "bird", "nan"]),
        np.array(["False", "2", "7", "NA"]),
        np.array([0, 2, "bird", None], object),
        pa.array([0, 2, 2**62, None]),
        pa.array([0, 2, 2**63, None], pa.uint64()),
    ],
    ids=str,
)
@pytest.mark.parametrize("classes", [Classes(3), NAMES], ids=["count", "names"])
def test_numbers_are_class_numbers_where_no_name_is_a_number(labels, classes):
    read = labels if isinstance(labels, np.ndarray) else _arrow.label_column(labels)
    found = encode(read, classes)
    assert found.ids.tolist() == [0, 2, MISSING, MISSING]
    assert found.told.tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize(
    "labels",
    [
        np.array([True, False, True]),
        np.array(["True", "False", "True"]),
        np.array(["true", "FALSE", "TRUE"]),
        np.array([1, 0, 1]),
        pa.array([True, False, True]),
        np.array([True, False, np.True_], object),
    ],
    ids=str,
)
def test_true_and_false_are_read_in_every_form(labels):
    read = labels if isinstance(labels, np.ndarray) else _arrow.label_column(labels)
    assert encode(read, Classes(2)).ids.tolist() == [1, 0, 1]
    assert encode(read, parse_classes("False,True")).ids.tolist() == [1, 0, 1]
    assert encode(read, parse_classes("true,false")).ids.tolist() == [0, 1, 0]
    assert encode(read, parse_classes("1,0")).ids.tolist() == [0, 1, 0]


def test_negative_and_broken_numbers_are_classes_where_they_are_named():
    assert encode(np.array([-1, 1, 0]), parse_classes("-1,1")).ids.tolist() == [0, 1, MISSING]
    halves = parse_classes("0.5,1.5")
    for labels in (
        np.array([0.5, 1.5]),
        np.array([0.5, 1.5], np.float32),
        np.array([".5", "1.50"]),
    ):
        assert encode(labels, halves).ids.tolist() == [0, 1]
    tenths = encode(np.array([0.1, 0.2], np.float32), parse_classes("0.2,0.1"))
    assert tenths.ids.tolist() == [1, 0]


def test_huge_numbers_stay_different_classes():
    classes = Classes(2, (str(2**60), str(2**60 + 1)))
    for column in (pa.array([2**60 + 1, 2**60]), pa.array([2**60 + 1, 2**60, None])):
        assert encode(_arrow.label_column(column), classes).ids[:2].tolist() == [1, 0]


def test_a_class_may_be_named_like_a_missing_value():
    classes = parse_classes("NA,EU,none")
    labels = np.array(["NA", "none", "EU", "null"])
    assert encode(labels, classes).ids.tolist() == [0, 2, 1, MISSING]


def test_an_object_that_is_no_label_is_foreign_and_no_error():
    class Odd:
        def __str__(self):
            raise RuntimeError

    labels = np.empty(5, object)
    labels[:] = [Odd(), [1, 2], b"\xff", {"cat"}, pd.Timestamp(0)]
    found = encode(labels, NAMES)
    assert found.ids.tolist() == [MISSING] * 5
    assert found.told.tolist() == [1] * 5


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["dog", "cat", "owl"]), pl.String])
def test_text_of_polars_is_read(kind, tmp_path):
    frame = pl.DataFrame({"labels": pl.Series(["owl", None, "cat"]).cast(kind)})
    frame.write_ipc(tmp_path / "a.feather")
    with pa.ipc.open_file(tmp_path / "a.feather") as file:
        read = _arrow.label_column(file.read_all().column(0))
    assert encode(read, NAMES).ids.tolist() == [2, MISSING, 0]


def test_labels_whose_classes_are_not_known_keep_their_meaning():
    assert plain(np.array([0, 1.5, -2, np.nan]), "here").tolist() == [0, FOREIGN, -1, -1]
    assert plain(_arrow.label_column(pa.array([2, None])), "here").tolist() == [2, MISSING]


LONG = "x" * 400


@pytest.mark.parametrize(
    "parts",
    [
        [np.array(["cat", "dog;owl"]), np.array(["owl", LONG])],
        [np.array(["cat", "dog;owl", LONG]), np.array([1, -1])],
        [np.array(["cat;dog"]), np.array([0.0, np.nan, 2.0])],
        [np.array(["cat", "\ud800", ""]), np.array(["None", LONG])],
        [np.array([["cat", LONG]]), np.array([["dog", "owl"]])],
        [np.array([1, 2]), np.array([2.0])],
        [np.array([["cat"], LONG], object), np.array(["cat;owl"])],
    ],
    ids=repr,
)
@pytest.mark.parametrize("most", [None, 2])
def test_labels_of_all_blocks_are_read_as_each_block_is(parts, most):
    """A file of numbers beside one of text took the latter's sets for names of no class."""
    if most is None and any(part.ndim > 1 for part in parts):
        return
    one = encode(whole(parts), NAMES, most)
    each = [encode(part, NAMES, most) for part in parts]
    np.testing.assert_array_equal(one.ids, np.concatenate([found.ids for found in each]))
    np.testing.assert_array_equal(one.told, np.concatenate([found.told for found in each]))


def test_one_long_label_does_not_make_those_of_a_client_as_long():
    short = np.tile(["cat", "dog"], 8192)
    parts = [short, np.array([*short[1:], LONG]), short]
    found = whole(parts)
    assert len(found) == 3 * len(short)
    assert found.nbytes + sum(map(sys.getsizeof, {id(one): one for one in found}.values())) < 2**19
