import io
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rknn_jax.formats import Columns
from rknn_jax.records.classes import FOREIGN, MISSING, Classes, infer_classes, parse_classes
from rknn_jax.records.labels import check_types, encode, plain
from rknn_jax.release import tables

EMBEDDINGS = np.arange(12, dtype=np.float32).reshape(6, 2) / 7
LABELS = np.array([0, 2, 1, 0, 2, 1])


def npz(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


def parquet(path: Path, **columns) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def list_type(kind):
    return {
        "list": pa.list_(pa.float32()),
        "large": pa.large_list(pa.float32()),
        "fixed": pa.list_(pa.float32(), 2),
    }[kind]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4", np.int8, np.uint64])
def test_embeddings_of_any_real_dtype_become_float32(tmp_path, dtype):
    values = np.array([[0, 1], [2, 3]]).astype(dtype)
    found = tables.read_embeddings(npz(tmp_path / "a.npz", embeddings=values), "--public")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [[0, 1], [2, 3]])


@pytest.mark.parametrize("kind", ["list", "large", "fixed"])
def test_parquet_lists_in_several_row_groups_are_read_in_order(tmp_path, kind):
    table = pa.table(
        {
            "id": list(range(6)),
            "embeddings": pa.array(EMBEDDINGS.tolist(), list_type(kind)),
            "labels": LABELS,
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    np.testing.assert_array_equal(
        tables.read_embeddings(tmp_path / "a.parquet", "--private"), EMBEDDINGS
    )
    np.testing.assert_array_equal(tables.read_labels(tmp_path / "a.parquet"), LABELS)


def test_parquet_numeric_columns_are_features_and_the_labels_are_not(tmp_path):
    path = parquet(
        tmp_path / "a.parquet",
        b=EMBEDDINGS[:, 0],
        labels=LABELS,
        a=EMBEDDINGS[:, 1],
    )
    np.testing.assert_array_equal(tables.read_embeddings(path, "--private"), EMBEDDINGS)


def test_columns_of_text_and_dates_do_not_vanish(tmp_path):
    """Without an error, a category would be left out, and the labels be worse for it."""
    columns = {"ward": ["x"] * 6, "born": pa.array([0] * 6, pa.date32()), "a": EMBEDDINGS[:, 0]}
    with pytest.raises(
        ValueError, match=r"\['ward'\] of string .*, \['born'\] of date32.* too; leave them out"
    ):
        tables.read_embeddings(parquet(tmp_path / "a.parquet", **columns), "--private")


def test_a_pandas_index_is_no_feature(tmp_path):
    index = b'{"index_columns": ["__index_level_0__"], "columns": []}'
    table = pa.table(
        {"a": EMBEDDINGS[:, 0], "__index_level_0__": np.arange(6)}
    ).replace_schema_metadata({b"pandas": index})
    pq.write_table(table, tmp_path / "a.parquet")
    np.testing.assert_array_equal(
        tables.read_embeddings(tmp_path / "a.parquet", "--private"), EMBEDDINGS[:, :1]
    )


def test_an_integer_id_among_float_columns_is_refused(tmp_path):
    path = parquet(tmp_path / "a.parquet", patient=np.arange(6), a=EMBEDDINGS[:, 0])
    with pytest.raises(ValueError, match=r"integers in \['patient'\] among floats"):
        tables.read_embeddings(path, "--private")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array([0, -1, 2]), [0, MISSING, 2]),
        (np.array([0, -(2**62), 2]), [0, MISSING, 2]),
        (np.array([0, np.nan, 2], np.float16), [0, MISSING, 2]),
        (np.array([True, False, True]), [1, 0, 1]),
        (np.array(["b", " ", "a "]), ["b", "", "a"]),
    ],
)
def test_missing_labels_are_recognised(tmp_path, labels, expected):
    np.testing.assert_array_equal(
        plain(tables.read_labels(npz(tmp_path / "a.npz", labels=labels)), "here"), expected
    )


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (pa.array([0, None, 2], pa.uint8()), [0, MISSING, 2]),
        (pa.array([0.0, None, 2.0]), [0, MISSING, 2]),
        (pa.array([True, None, False]), [1, MISSING, 0]),
        (pa.array([None, None, None]), [MISSING] * 3),
        (pa.array(["b", None, "a"]), ["b", "", "a"]),
        (pa.array(["b", None, "a"]).dictionary_encode(), ["b", "", "a"]),
    ],
)
def test_null_labels_in_parquet_are_missing(tmp_path, labels, expected):
    np.testing.assert_array_equal(
        plain(tables.read_labels(parquet(tmp_path / "a.parquet", labels=labels)), "here"), expected
    )


def test_text_labels_get_the_number_of_their_sorted_name():
    labels = np.array(["pear", "", "apple", "pear"])
    classes = infer_classes(labels)
    assert classes == Classes(2, ("apple", "pear"), "inferred")
    np.testing.assert_array_equal(encode(labels, classes).ids, [1, MISSING, 0, 1])


def test_given_classes_keep_their_order_and_may_have_no_record():
    labels = np.array(["pear", "apple"])
    np.testing.assert_array_equal(encode(labels, parse_classes("quince,pear,apple")).ids, [1, 2])
    assert parse_classes("12") == Classes(12)


def test_the_private_file_may_name_the_classes(tmp_path):
    assert tables.read_classes(npz(tmp_path / "a.npz", classes=np.array(["no", "yes"]))) == Classes(
        2, ("no", "yes")
    )
    assert tables.read_classes(npz(tmp_path / "b.npz", classes=np.int64(7))) == Classes(7)
    assert tables.read_classes(npz(tmp_path / "c.npz", embeddings=EMBEDDINGS)) is None


@pytest.mark.parametrize(
    ("labels", "classes", "ids"),
    [
        (np.array([0, 3, 1, MISSING]), Classes(3), [0, MISSING, 1, MISSING]),
        (np.array(["a", "c", "b", ""]), Classes(2, ("a", "b")), [0, MISSING, 1, MISSING]),
    ],
)
def test_a_label_outside_the_classes_is_none_and_no_error(labels, classes, ids):
    found = encode(labels, classes)
    assert found.ids.tolist() == ids
    assert found.told.sum() == 3


def test_one_value_of_parquet_is_no_error(tmp_path):
    big = pa.array([[1, 2], [2**60, 3]], pa.list_(pa.int64()))
    pq.write_table(
        pa.table({"embeddings": big, "labels": pa.array([1, 2**63], pa.uint64())}),
        tmp_path / "a.parquet",
    )
    assert np.isnan(tables.read_records(tmp_path / "a.parquet", "--private", Columns(width=2))).all(
        axis=1
    ).tolist() == [False, True]
    stored = tables.read_labels(tmp_path / "a.parquet")
    assert plain(stored, "here").tolist() == [1, FOREIGN]
    texts = pa.array([b"cat", b"\xff\xfe", b"x" * 10**6, None], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"labels": texts}), tmp_path / "b.parquet")
    found = encode(tables.read_labels(tmp_path / "b.parquet"), Classes(2, ("cat", "dog")))
    assert found.ids.tolist() == [0, MISSING, MISSING, MISSING]
    assert found.told.sum() == 3
    with pytest.raises(ValueError, match="Expected lists of numbers"):
        tables.read_records(
            parquet(tmp_path / "c.parquet", embeddings=[["x"], ["1"]]),
            "--private",
            Columns(width=1),
        )


def test_text_labels_need_classes_with_names():
    with pytest.raises(ValueError, match="classes to name the text labels"):
        check_types(np.zeros(0, "U1"), Classes(2), None, "here", typed=True)


def test_records_that_cannot_be_used_are_rows_of_nan_and_no_error(tmp_path):
    rows = np.float64([[1, 2], [np.nan, 2], [1, -np.inf], [1e16, 0], [1e300, 0], [3, 4]])
    found = tables.read_records(
        npz(tmp_path / "a.npz", embeddings=rows), "--private", Columns(width=2)
    )
    assert found.dtype == np.float32
    assert np.isnan(found).all(axis=1).tolist() == [False, True, True, True, True, False]
    np.testing.assert_array_equal(found[[0, 5]], [[1, 2], [3, 4]])
    lists = [[1.0, 2.0], [1.0], None, [1.0, 2.0, 3.0], [None, 2.0], [3.0, 4.0]]
    found = tables.read_records(
        parquet(tmp_path / "a.parquet", embeddings=lists), "--private", Columns(width=2)
    )
    assert np.isnan(found).all(axis=1).tolist() == [False, True, True, True, True, False]
    np.testing.assert_array_equal(found[[0, 5]], [[1, 2], [3, 4]])


@pytest.mark.parametrize("text", ["nan", "None", "<NA>"])
def test_what_str_makes_of_a_missing_label_is_not_taken_for_a_class(text):
    labels = np.array(["flu", text, "cold"])
    with pytest.raises(ValueError, match="save '' instead"):
        infer_classes(labels)
    np.testing.assert_array_equal(encode(labels, parse_classes(f"cold,flu,{text}")).ids, [1, 2, 0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parse_classes("1"), "at least 2 classes"),
        (lambda: parse_classes("a,a"), "distinct"),
        (lambda: parse_classes("a,,b"), "non-empty"),
        (lambda: infer_classes(np.array([MISSING])), "at least 2 classes, got 0"),
        (lambda: infer_classes(np.array([123456789])), "a label 123456789"),
    ],
)
def test_unlikely_classes_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros((2, 2), int), r"got shape \[n, 2\]"),
        (np.array([b"a"]), "dtype"),
        (np.array(["2020-01-01"], "M8[D]"), "dtype"),
    ],
)
def test_labels_that_are_no_class_numbers_are_refused(tmp_path, labels, message):
    with pytest.raises(ValueError, match=message):
        plain(tables.read_labels(npz(tmp_path / "a.npz", labels=labels)), "here")


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("form", ["npz", "npy", "pickle"])
def test_nothing_is_ever_unpickled(tmp_path, form):
    armed = tmp_path / "armed"
    bomb = np.array([Bomb(tmp_path / "armed")], dtype=object)
    path = tmp_path / ("a.npy" if form == "npy" else "a.npz")
    if form == "npz":
        np.savez(path, embeddings=bomb)
    elif form == "npy":
        np.save(path, bomb)
    else:
        path.write_bytes(pickle.dumps({"embeddings": bomb}))
    with pytest.raises(ValueError, match="never loaded"):
        tables.read_embeddings(path, "--public")
    assert not armed.exists()


@pytest.mark.parametrize(
    "lists", [[[1.0, 2.0], [3.0]], [[1.0, 2.0], None], [["a"], ["b"]], [[], []]]
)
def test_parquet_lists_that_make_no_matrix_are_refused(tmp_path, lists):
    with pytest.raises(ValueError, match="embeddings"):
        tables.read_embeddings(parquet(tmp_path / "a.parquet", embeddings=lists), "--public")


def test_a_null_inside_a_parquet_list_is_not_finite(tmp_path):
    with pytest.raises(ValueError, match="first in row 1"):
        tables.read_embeddings(
            parquet(tmp_path / "a.parquet", embeddings=[[1.0, 2.0], [None, 4.0]]), "--public"
        )


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    path = parquet(tmp_path / "a.parquet", embeddings=[[1.0]])
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError, match=r"pip install 'rknn-jax\[parquet\]'"):
        tables.read_embeddings(path, "--public")


def whole(suffix: str) -> bytes:
    file = io.BytesIO()
    if suffix == ".npz":
        np.savez_compressed(file, embeddings=EMBEDDINGS)
    elif suffix == ".npy":
        np.save(file, EMBEDDINGS)
    else:
        pq.write_table(pa.table({"embeddings": EMBEDDINGS.tolist()}), file)
    return file.getvalue()


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_truncated_file_is_refused_wherever_it_was_cut(tmp_path, suffix, data):
    content = whole(suffix)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(ValueError, match="--public"):
        tables.read_embeddings(path, "--public")


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_gives_a_matrix_or_a_clear_error(tmp_path, suffix, data):
    content = bytearray(whole(suffix))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    found = embeddings_or_error(path)
    if isinstance(found, ValueError):
        assert "--public" in str(found)
    else:
        assert found.ndim == 2
        assert np.isfinite(found).all()


def embeddings_or_error(path):
    try:
        return tables.read_embeddings(path, "--public")
    except ValueError as error:
        return error
