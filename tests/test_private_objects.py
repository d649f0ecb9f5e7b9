"""A cell of a list, tuple, text or object array decides about its own record alone."""

import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute
import pytest

from rknn_jax import ReverseKNNLabeler
from rknn_jax.records import column_types, frames
from rknn_jax.records.classes import Classes
from rknn_jax.records.labels import encode
from rknn_jax.records.persons import person_names
from tests.conftest import crossed

NUM_RECORDS = 40
WIDTH = 3
RNG = np.random.default_rng(0)
PUBLIC = RNG.normal(size=(30, WIDTH))
ROWS = RNG.normal(size=(NUM_RECORDS, WIDTH))
LABELS = (ROWS[:, 0] > 0).astype(int).tolist()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def cast(rows, labels, person=None, **settings):
    """Release, and return how many records the owner is warned of, 0 or 1 a record."""
    given = {"classes": [0, 1], "n_queries": 4, "ledger": "ledger"} | settings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", ".* is new, and a new budget is")
        ReverseKNNLabeler(**given).fit(PUBLIC).label(rows, labels, person)
    words = [str(one.message) for one in caught if "private records" in str(one.message)]
    assert len(caught) == len(words)
    return sum(int(one.split()[0]) for one in words)


def changed(values, value):
    return [value if row == 3 else one for row, one in enumerate(values)]


def objects(values):
    made = np.empty(len(values), object)
    made[:] = values
    return made


FORMS = {
    "list": list,
    "tuple": lambda rows: tuple(map(tuple, rows)),
    "objects": lambda rows: np.array(rows, object),
    "rows of objects": objects,
    "frame": pd.DataFrame,
}
CELLS = ["secret", None, {}, object(), [1, 2], 1j, 10**400, b"\xff"]


class Held:
    """Rows that an `__array__` alone gives."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    def __len__(self):
        return len(self.values)


def test_what_has_an_array_alone_is_that_array():
    np.testing.assert_array_equal(frames.rows_of(Held(ROWS), WIDTH), ROWS)
    assert frames.single(Held(LABELS), [0, 1])[0].tolist() == LABELS
    assert frames.column(Held(LABELS)).tolist() == LABELS
    mask = np.eye(2, dtype=int)[LABELS]
    np.testing.assert_array_equal(frames.several(Held(mask), [0, 1])[0], mask > 0)
    assert cast(Held(ROWS), Held(LABELS), Held(range(NUM_RECORDS))) == 0
    with pytest.raises(ValueError, match="datetime64"):
        cast(ROWS, Held(np.array(LABELS, "datetime64[D]")), ledger="times")


@pytest.mark.parametrize("place", ["X", "y", "person"])
@pytest.mark.parametrize("kind", [lambda values: dict(enumerate(values)), frozenset])
def test_a_dict_or_a_set_has_no_rows_in_an_order(place, kind):
    given = {"X": [tuple(row) for row in ROWS], "y": LABELS, "person": list(range(NUM_RECORDS))}
    given[place] = kind(given[place])
    with pytest.raises(ValueError, match=rf"list or a frame in {place}, got .*nothing was spent"):
        cast(given["X"], given["y"], given["person"])
    assert not Path("ledger").exists()


@crossed(form=FORMS, cell=CELLS)
def test_a_cell_that_is_no_number_casts_no_vote(form, cell):
    rows = changed([list(row) for row in ROWS], [cell, 1.0, 2.0])
    assert cast(FORMS[form](rows), LABELS) == 1


@pytest.mark.long
@pytest.mark.parametrize("row", [[1.0], [], [1.0] * 9, None, "secret", np.zeros((2, 2)), 3j])
def test_a_row_of_another_length_casts_no_vote(row):
    rows = changed([list(row) for row in ROWS], row)
    assert cast(rows, LABELS) == cast(tuple(rows), LABELS, ledger="other") == 1


@pytest.mark.parametrize("kind", ["U", "S", "T"])
def test_an_array_of_text_may_hold_other_text(kind):
    cells = ROWS.round(3).astype(str)
    cells[3, 1] = "secret"
    made = np.array(cells.tolist(), np.dtypes.StringDType() if kind == "T" else kind)
    assert cast(made, LABELS) == 1


@pytest.mark.parametrize(
    "rows",
    [np.array(["secret"] * WIDTH), np.zeros(WIDTH) + 7.25, np.full(WIDTH, 7.25j), "secret"],
)
def test_an_error_of_type_or_shape_quotes_no_cell(rows):
    with pytest.raises(ValueError, match="Expected a 2D array") as error:
        cast(rows, [0] * WIDTH)
    assert not {"secret", "7.25"} & set(str(error.value).replace("'", " ").split())


@pytest.mark.long
@crossed(
    form=[list, tuple, objects, pd.Series],
    label=[[0, 1], [], (), {}, "x", np.zeros((2, 2)), object()],
)
def test_a_label_of_several_values_is_no_class(form, label):
    """The others count, whether they stand by themselves or in lists of one."""
    assert cast(ROWS, form(changed([[one] for one in LABELS], label))) == 1
    assert cast(ROWS, objects(changed(LABELS, label)), ledger="other") == 1


@pytest.mark.long
@pytest.mark.parametrize("person", [[["p"]], ["p"], ("p", "q"), 7, ("p",)])
def test_a_person_may_be_any_object(person):
    persons = [("p", row // 2) for row in range(NUM_RECORDS)]
    assert cast(ROWS, LABELS, persons) == 0
    assert cast(ROWS, LABELS, changed(persons, person), ledger="other") == 0


@pytest.mark.parametrize("person", [object(), {}])
def test_an_object_without_a_text_names_no_person(person):
    """Its text is its place: each record of one person would be a person of its own."""
    persons = [("p", row // 2) for row in range(NUM_RECORDS)]
    assert cast(ROWS, LABELS, changed(persons, person)) == 1


def test_a_key_of_several_columns_is_the_same_person_beside_a_missing_one():
    """One missing number makes floats of the others, whose text is another."""
    frame = pd.DataFrame({"site": 1, "patient": [row // 2 for row in range(NUM_RECORDS)]})
    other = frame.assign(patient=[None, *frame["patient"][1:].tolist()])
    keys = [pd.MultiIndex.from_frame(each).to_numpy() for each in (frame, other)]
    held = [person_names(frames.column(each), "")[0] for each in keys]
    np.testing.assert_array_equal(held[0][1:], held[1][1:])
    assert len(np.unique(held[0], axis=0)) == NUM_RECORDS // 2


@pytest.mark.long
@pytest.mark.parametrize("last", [[0, 1], [0]])
def test_an_array_of_objects_is_no_indicator_whatever_its_shape(last):
    sets = [[0, 1]] * (NUM_RECORDS - 1) + [last]
    with pytest.raises(ValueError, match="may be either"):
        cast(ROWS, np.array(sets, object), labels_per_record=2)
    assert cast(ROWS, sets, labels_per_record=2) == 0
    assert cast(ROWS, pd.Series(sets), labels_per_record=2, ledger="other") == 0


def arrow_text(values, odd):
    """Text of Arrow, of which row 3 is no Unicode if it is odd."""
    held = [str(value).encode() for value in values]
    held = pa.array(changed(held, b"\xff\xfe") if odd else held, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(held), held.buffers())


@pytest.mark.parametrize("of_pandas", [False, True])
def test_text_of_arrow_that_is_no_unicode_is_its_record_s_own_affair(of_pandas):
    def form(values, odd):
        made = pa.chunked_array([arrow_text(values, odd)])
        return pd.Series(pd.arrays.ArrowExtensionArray(made)) if of_pandas else made

    names = ["no" if label else "yes" for label in LABELS]
    given = {"classes": ["no", "yes"]}
    assert cast(ROWS, form(names, False), form(range(NUM_RECORDS), False), **given) == 0
    assert cast(ROWS, form(names, True), form(range(NUM_RECORDS), True), ledger="b", **given) == 1
    if of_pandas:
        assert cast(ROWS, form(names, True).array, ledger="c", **given) == 1


@pytest.mark.parametrize("of_pandas", [False, True])
def test_a_cell_of_arrow_that_is_no_unicode_casts_no_vote(of_pandas):
    text = pa.chunked_array([arrow_text(ROWS[:, 0], True)])
    columns = {"a": text, "b": ROWS[:, 1], "c": ROWS[:, 2]}
    if of_pandas:
        rows = pd.DataFrame(columns | {"a": pd.arrays.ArrowExtensionArray(text)})
    else:
        rows = pa.table(columns)
    found = frames.rows_of(rows, WIDTH)
    expected = ROWS.copy()
    expected[3, 0] = np.nan
    np.testing.assert_array_equal(found, expected)


DAY = pl.Series([1]).cast(pl.Date)
DAYS = {
    "a date": DAY,
    "a time": DAY.cast(pl.Datetime("ms")),
    "a list": pl.Series([[1]]).cast(pl.List(pl.Datetime("ms"))),
    "a struct": pl.Series([{}]),
    "lists of structs": pl.Series([[{"a": 1}]]),
    "an array": pl.Series([[[1]]]).cast(pl.Array(pl.List(pl.Duration("us")), 1)),
    "a frame": pl.DataFrame({"a": DAY}),
    "pandas": pd.Series(pd.to_datetime(["2020-01-01"])),
    "a period": pd.Series(pd.period_range("2020", periods=1)),
    "numpy": np.array(["2020-01-01"], "M8[D]"),
    "a duration": np.array([1], "m8[s]"),
    "arrow": pa.array([{"a": 1}]),
    "lists of arrow": pa.chunked_array([DAY.implode().to_arrow()]),
    "a category": pd.Series(pd.to_datetime(["2020-01-01"])).astype("category"),
    "a categorical": pd.Categorical(pd.to_datetime(["2020-01-01"])),
    "a sparse array": pd.Series(pd.arrays.SparseArray(pd.to_datetime(["2020-01-01"]))),
    "a dictionary": DAY.to_arrow().dictionary_encode(),
    "a dictionary of pandas": pd.Series(
        DAY.to_arrow().dictionary_encode(),
        dtype=pd.ArrowDtype(DAY.to_arrow().dictionary_encode().type),
    ),
    "runs": pa.compute.run_end_encode(DAY.to_arrow()),
    "a table": pa.table({"a": DAY.to_arrow()}),
    "a struct of numpy": np.zeros(1, [("a", "i8")]),
    "records": pd.DataFrame({"a": [1]}).to_records(index=False),
    "bytes": np.zeros(1, "V8"),
    "an extension": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8())),
}


@pytest.mark.parametrize("kind", DAYS)
def test_times_and_structs_are_refused_by_their_type(kind):
    """One odd cell makes text of times, and structs of text, so that all others were others."""
    with pytest.raises(ValueError, match="Expected y as text or numbers"):
        cast(ROWS[:1], DAYS[kind])
    with pytest.raises(ValueError, match="Expected person as whole numbers or text"):
        cast(ROWS[:1], LABELS[:1], DAYS[kind])
    assert not Path("ledger").exists()


@pytest.mark.parametrize("named", ["date", "struct"])
def test_a_class_that_is_called_as_a_type_is_a_class(named):
    for y in (pl.Series([named, "b"], dtype=pl.Enum([named, "b"])), pd.Categorical([named, "b"])):
        column_types.refuse_labels(y)


@pytest.mark.parametrize("kind", [">i4", ">u2", ">f8", ">U3", "<i8"])
def test_numbers_and_text_in_another_order_of_bytes_are_those(kind):
    column_types.refuse_labels(np.array([0, 1]).astype(kind))
    column_types.refuse_labels(pd.Series(np.array([0, 1]).astype(kind)))
    if kind != ">f8":
        column_types.refuse_persons(np.array([0, 1]).astype(kind))


def test_a_table_of_arrow_tells_names_of_columns_and_no_value():
    """Its `columns` are values: they were in errors, and as the person's name in the ledger."""
    secrets = [f"secret {row // 2}" for row in range(NUM_RECORDS)]
    persons = pa.table({"patient": secrets})
    assert frames.name_of(persons, None) == "patient"
    with pytest.raises(ValueError, match="Expected person_name='patient'"):
        frames.name_of(persons, "visit")
    assert cast(ROWS, LABELS, persons) == 0
    assert "secret" not in Path("ledger").read_text()
    with pytest.raises(ValueError, match=r"got \['patient'\]; pass"):
        frames.several(persons, ["a", "b"])
    with pytest.raises(ValueError, match="got a frame of 2 columns"):
        frames.column(pa.table({"a": secrets, "b": secrets}))
    both = pa.table({"a": np.eye(2)[0], "b": np.eye(2)[1]})
    np.testing.assert_array_equal(frames.several(both, ["a", "b"])[0], np.eye(2) > 0)


@pytest.mark.parametrize("kind", [np.float32, int, bool, object, str])
def test_what_a_mask_hides_is_missing_and_not_what_lies_under_it(kind):
    """NumPy reads a masked array as if nothing were hidden."""
    hidden = np.zeros(ROWS.shape, bool)
    hidden[3, 1] = True
    rows = np.ma.MaskedArray((10 * ROWS).astype(kind), hidden)
    expected = (10 * ROWS).astype(kind).astype(float)
    for given in (rows, list(rows), rows.tolist()):
        found = frames.rows_of(given, WIDTH).astype(float)
        np.testing.assert_array_equal(np.delete(found, 3, 0), np.delete(expected, 3, 0))
        assert np.isnan(found[3]).any()


def test_a_matrix_is_a_column_whatever_its_type():
    """A row of a matrix is a matrix: one odd label made objects, and took all others."""
    labels = changed(LABELS, "x")
    made = [np.asmatrix(values).T for values in (LABELS, np.array(labels, object))]
    assert [cast(ROWS, y, ledger=f"ledger{place}") for place, y in enumerate(made)] == [0, 1]
    assert frames.column(made[1]).tolist() == labels
    assert frames.column(memoryview(np.array(labels, object))).tolist() == labels


@pytest.mark.parametrize("row", [dict.fromkeys(range(WIDTH)), set(range(WIDTH))])
def test_keys_are_no_row(row):
    found = frames.rows_of([*ROWS[1:], row], WIDTH)
    np.testing.assert_array_equal(found[:-1], ROWS[1:])
    assert np.isnan(found[-1]).all()


def test_what_a_mask_hides_in_a_list_is_missing():
    masked = [np.ma.masked, np.ma.array(1, mask=True), np.ma.array([1], mask=True)]
    assert frames.column(masked).tolist() == [None] * 3
    assert frames.single([*masked, 1], [0, 1])[0].tolist() == [None] * 3 + [1]
    sets = encode(frames.several([[0, masked[0]], [masked[1]]], [0, 1])[0], Classes(2), 2).ids
    np.testing.assert_array_equal(sets[:, 0], [0, -1])


@pytest.mark.long
def test_a_masked_record_of_fields_is_no_row_and_no_label():
    fields = np.ma.array([(1.0, 2.0, 3.0)], dtype=[(name, float) for name in "abc"])
    for odd in (fields[0], fields, np.ma.array(fields, mask=True)[0]):
        found = frames.rows_of(changed(ROWS.tolist(), odd), WIDTH)
        np.testing.assert_array_equal(np.delete(found, 3, 0), np.delete(ROWS, 3, 0))
        assert cast(ROWS, changed(LABELS, odd), ledger="a", budget=20) <= 1
        sets = [[label] for label in LABELS]
        given = {"labels_per_record": 1, "ledger": "b", "budget": 20}
        assert cast(ROWS, changed(sets, odd), **given) <= 1
        assert cast(ROWS, changed(sets, [odd]), **given) <= 1


def test_a_masked_number_leaves_the_classes_of_others_apart():
    big = [2**60, 2**60 + 1]
    found = frames.several(np.ma.array([*big, 0], mask=[0, 0, 1]), big)[0]
    np.testing.assert_array_equal(
        encode(found, Classes(2, tuple(map(str, big))), 1).ids[:, 0], [0, 1, -1]
    )


def test_a_mask_over_a_release_hides_rows_and_classes():
    hidden = np.zeros(ROWS.shape, bool)
    hidden[3] = True
    assert cast(np.ma.MaskedArray(ROWS, hidden), LABELS) == 1
    sets = np.ma.MaskedArray(np.eye(2, dtype=int), np.eye(2, dtype=bool))
    assert not frames.several(sets, ["a", "b"])[0].any()
    public = np.ma.MaskedArray(PUBLIC, np.zeros(PUBLIC.shape, bool))
    labeler = ReverseKNNLabeler(classes=[0, 1], ledger="other", n_queries=5).fit(public)
    labeler.label(ROWS, LABELS)
    public[2, 0] = np.ma.masked
    for refused in (labeler.predict, labeler.fit):
        with pytest.raises(ValueError, match="contains NaN"):
            refused(public)


def test_one_complex_number_is_its_record_s_own_affair():
    """It makes the whole array or series complex; an error quoted all labels."""
    for ledger, form in (("a", np.array), ("b", pd.Series), ("c", list)):
        assert cast(ROWS, form(changed(LABELS, 1j)), ledger=ledger) == 1
        real = form(changed(LABELS, LABELS[3] + 0j))
        assert cast(ROWS + 1, real, form(changed(list(range(40)), 3j)), ledger=f"{ledger}2") == 0
    for form in (np.array, pd.DataFrame):
        rows = ROWS.astype(complex)
        rows[3, 1] += 1j
        np.testing.assert_array_equal(frames.rows_of(form(rows), WIDTH)[4:], ROWS[4:])
        assert np.isnan(frames.rows_of(form(rows), WIDTH)[3]).any()
    sets = np.eye(2).astype(complex)
    sets[0, 0] += 1j
    np.testing.assert_array_equal(frames.several(sets, ["a", "b"])[0], [[0, 0], [0, 1]])


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_a_label_or_person_in_an_array_without_axes_is_what_it_holds(array):
    labels = [array(label) for label in LABELS]
    assert cast(ROWS, labels, labels, n_queries=5) == 0
    assert cast(ROWS, [[label] for label in labels], labels_per_record=2, ledger="other") == 0


def test_rows_of_half_precision_are_read_and_queries_that_have_not_run_are_refused():
    assert cast(ROWS.astype(jnp.bfloat16), LABELS) == 0
    lazy = pl.DataFrame(ROWS).lazy()
    with pytest.raises(ValueError, match=r"got LazyFrame.*X.collect"):
        cast(lazy, LABELS)
    with pytest.raises(ValueError, match=r"got LazyFrame.*X.collect"):
        ReverseKNNLabeler().fit(lazy)
    with pytest.raises(ValueError, match=r"got LazyFrame.*y.collect"):
        cast(ROWS, lazy, ledger="other")
    with pytest.raises(ValueError, match=r"got LazyFrame.*person.collect"):
        cast(ROWS, LABELS, lazy, ledger="other")
