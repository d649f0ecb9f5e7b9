"""One cell of a data frame of pandas decides about its own record alone."""

import array
import datetime
import decimal
import io
import json
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse

from rknn_jax import ReverseKNNLabeler
from rknn_jax.formats import Columns, _arrow, _objects
from rknn_jax.neighbors import usable_rows
from rknn_jax.privacy import contributions
from rknn_jax.records import frames
from rknn_jax.records.classes import Classes, parse_classes
from rknn_jax.records.features import number
from rknn_jax.records.labels import encode
from rknn_jax.records.persons import person_names
from rknn_jax.release import label, planning
from rknn_jax.release.settings import Settings
from rknn_jax.release.shards import ArrowShard
from tests.conftest import crossed
from tests.options import named_settings

NUM_RECORDS = 60
NAMES = ["x", "y", "z"]
WIDTH = len(NAMES)
ODD = [
    "?",
    3,
    2.5,
    None,
    float("nan"),
    pd.NA,
    pd.Timestamp("2020"),
    [1, 2],
    [1.0] * WIDTH,
    np.zeros((2, 2)),
    {"a": 1},
    b"\xff",
    "\udcff",
    10**400,
    1j,
    np.full(WIDTH, 1j),
    object(),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("pub.npy", rng.normal(size=(40, WIDTH)).astype(np.float32))


def frame(kind):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(NUM_RECORDS, WIDTH))
    made = pd.DataFrame(rows, columns=NAMES).astype({"x": object})
    made["vector"] = pd.Series(list(rows), dtype=object)
    made["diagnosis"] = pd.Series([kind(number) for number in rows[:, 0] > 0], dtype=object)
    made["person"] = pd.Series([f"p{i // 3}" for i in range(NUM_RECORDS)], dtype=object)
    return made


def released(given, columns, **settings):
    asked = {"classes": "a,b", "queries": 4, "out": Path("out")} | settings
    counted = planning.prepare(
        named_settings(Settings, "pub.npy", "patients", 1.0, ledger=Path("ledger"), **asked),
        [ArrowShard("patients", given, columns)],
    )
    return label.count(counted)


def name_of(number):
    return "ab"[int(number)]


def names_of(number):
    return [name_of(number)]


WAYS = {
    "lists": (("vector",), {}, 2),
    "columns": (tuple(NAMES), {}, 2),
    "persons": (("vector",), {"person": "person"}, 2 * contributions.GRID),
    "sets": (("vector",), {"labels_per_record": 1}, 4),
}
"""Features, settings, and the most that one record or person changes of the counts."""


@crossed(
    place=["columns x", "lists vector", "lists diagnosis", "persons person", "sets diagnosis"],
    odd=ODD,
)
def test_an_odd_cell_casts_no_vote_and_stops_nothing(place, odd):
    way, column = place.split()
    embedding, settings, most = WAYS[way]
    made = frame(names_of if "labels_per_record" in settings else name_of)
    columns = Columns(embedding, "diagnosis", person=settings.get("person"))
    cells = made[column].to_list()
    cells[3] = odd
    other = made.assign(**{column: pd.Series(cells, dtype=object)})
    counts = [released(one, columns, **settings).counts for one in (made, other)]
    assert np.abs(counts[0] - counts[1]).sum() <= most


@pytest.mark.parametrize("cell", [1j, np.complex64(2), np.full(WIDTH, 1j), pd.Series([1j])])
def test_a_complex_number_is_missing_without_a_warning(cell):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [_objects._number(cell), _objects._numbers(cell)]
    assert found[0] is None
    assert not np.size(found[1])
    assert not caught


LONG = np.longdouble(2) ** 2000
"""Number that is too large for a float of 64 bits."""


@pytest.mark.parametrize("cell", [np.ma.masked, LONG, np.full(WIDTH, LONG), *ODD])
def test_no_cell_is_warned_of(cell):
    made = frame(name_of)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for embedding in (tuple(NAMES), ("vector",)):
            for column in (embedding[0], "diagnosis", "person"):
                cells = np.fromiter(made[column], object, NUM_RECORDS)
                cells[3] = cell
                other = made.assign(**{column: pd.Series(cells, dtype=object)})
                columns = Columns(embedding, "diagnosis", person="person", width=WIDTH)
                assert len([*ArrowShard("patients", other, columns).blocks(NUM_RECORDS)]) == 1
    assert not caught


def test_text_of_pandas_that_is_no_unicode_is_its_record_s_own_affair():
    made = frame(name_of)
    columns = Columns(("vector",), "diagnosis", person="person", width=WIDTH)
    ids = []
    for odd in ("a", "\udcff"):
        texts = {"diagnosis": made["diagnosis"].to_list(), "person": made["person"].to_list()}
        for cells in texts.values():
            cells[3] = odd
        kind = pd.StringDtype("python")
        other = made.assign(**{name: pd.Series(texts[name], dtype=kind) for name in texts})
        [block] = ArrowShard("patients", other, columns).blocks(NUM_RECORDS)
        ids.append(np.delete(encode(block.labels, parse_classes("a,b")).ids, 3))
    np.testing.assert_array_equal(*ids)


@pytest.mark.parametrize("kind", [object, "string"])
@pytest.mark.parametrize(
    "labels",
    [
        pd.Series(["a", "b", "a"], dtype="string"),
        pd.Series(["a", "b", "a"], dtype=object),
        pd.Series([0, 1, 0]),
        pd.Series([0.0, 1.0, 0.0]),
        pd.Series([False, True, False]),
    ],
)
def test_raw_records_are_read_cell_by_cell(kind, labels):
    notes = ["one", None, "three"] if kind == "string" else ["one", {"a": 1}, "three"]
    made = pd.DataFrame({"note": pd.Series(notes, dtype=kind), "diagnosis": labels.astype(object)})
    for one in (made, made.assign(diagnosis=labels)):
        shard = ArrowShard("patients", one, Columns(("note",), "diagnosis", raw=True))
        [block] = shard.blocks(10)
        assert block.embeddings.tolist() == ["one", None, "three"]
        ids = encode(block.labels, parse_classes("a,b")).ids
        assert ids.tolist() == [0, -1, 0]


def test_a_missing_record_has_an_empty_mask():
    mask = np.array([[True, False], [False, True]])
    found = _arrow.unlabeled(mask, np.array([False, True]))
    assert found.dtype == bool
    assert found.tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize("kind", ["object", "category", "string"])
def test_labels_are_the_same_in_every_type(kind):
    made = frame(name_of)
    columns = Columns(("vector",), "diagnosis")
    expected = released(made.astype({"diagnosis": "string"}), columns)
    found = released(made.astype({"diagnosis": kind}), columns)
    np.testing.assert_array_equal(found.counts, expected.counts)
    assert found.dataset == expected.dataset


def test_a_category_of_another_type_stops_nothing():
    made = frame(name_of)
    cells = made["diagnosis"].to_list()
    cells[3] = 3
    made["diagnosis"] = pd.Categorical(pd.Series(cells, dtype=object))
    assert released(made, Columns(("vector",), "diagnosis")).voters == NUM_RECORDS - 1


@pytest.mark.parametrize("column", ["diagnosis", "person", "x"])
def test_objects_of_polars_are_refused_where_frames_are_counted(column):
    """Arrow has their places in memory, so that every record was a person of its own."""
    made = polars.from_pandas(frame(name_of).astype({"x": float}).drop(columns="vector"))
    columns = Columns(tuple(NAMES), "diagnosis", person="person")
    assert released(made, columns, person="person").voters == NUM_RECORDS
    held = polars.Series(made[column].to_list(), dtype=polars.Object)
    with pytest.raises(ValueError, match=rf"got \['{column}'\] of objects"):
        released(made.with_columns(held.alias(column)), columns, person="person")


@pytest.mark.parametrize("column", ["diagnosis", "person", "x"])
def test_periods_are_refused_where_frames_are_counted(column, tmp_path):
    """They are numbers in Arrow, and text among objects."""
    made = frame(name_of).astype({"x": float}).drop(columns="vector")
    made = made.astype({"diagnosis": "string", "person": "string"})
    made[column] = pd.period_range("2020", periods=NUM_RECORDS)
    columns = Columns(tuple(NAMES), "diagnosis", person="person")
    made.to_parquet(tmp_path / "a.parquet", index=False)
    for held in (made, pyarrow.parquet.read_table(tmp_path / "a.parquet")):
        with pytest.raises(ValueError, match="period"):
            released(held, columns, person="person")


def test_persons_and_labels_may_be_levels_of_the_index():
    made = frame(name_of)
    columns = Columns(("vector",), "diagnosis", person="person")
    expected = released(made, columns, person="person")
    found = released(made.set_index(["person", "diagnosis"]), columns, person="person")
    np.testing.assert_array_equal(found.counts, expected.counts)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (Columns(("absent",), "diagnosis"), "absent"),
        (Columns(None, "diagnosis"), "name the features"),
        (Columns(("vector",), "x2"), "x2"),
    ],
)
def test_columns_that_are_absent_or_unclear_are_refused(columns, said):
    with pytest.raises(ValueError, match=said):
        released(frame(name_of), columns)


def test_lists_of_another_length_need_no_width():
    pa = pytest.importorskip("pyarrow")
    rows = [[0.0] * WIDTH] * 4 + [[1.0]]
    table = pa.table({"vector": rows, "diagnosis": ["a"] * 5})
    assert released(table, Columns(("vector",), "diagnosis")).voters == 4


LARGE = [2**60 + i // 2 * 1000 for i in range(NUM_RECORDS)]


@pytest.mark.parametrize(
    ("persons", "number"),
    [
        (pd.Series(LARGE), 30),
        (pd.Series([None, *LARGE[1:]]), 1),  # floats, of which none is exact
        (pd.Series([None, *LARGE[1:]], dtype="Int64"), 30),
        (pd.Series([None, *LARGE[1:]], dtype=object), 30),
        (pd.Series([None, *(i // 2 for i in range(1, NUM_RECORDS))]), 30),
    ],
)
@pytest.mark.filterwarnings("ignore:.*private records")
def test_a_missing_person_stops_no_release(persons, number):
    made = frame(name_of)
    labeler = ReverseKNNLabeler(classes=["a", "b"], n_queries=4, ledger="ledger")
    labeler.fit(np.load("pub.npy"))
    labeler.label(np.stack(made["vector"].to_list()), made["diagnosis"], persons)
    assert labeler.card_["num_persons"] == number


def frame_of(library, **columns):
    return pd.DataFrame(columns) if library == "pandas" else polars.DataFrame(columns)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_an_indicator_are_numbers_or_their_text(library):
    """Columns of Polars have no other names."""
    held = {"7": [1, 0], "9": [1, 1]}
    mask, classes = frames.several(frame_of(library, **held), [7, 9])
    assert (mask.tolist(), classes.tolist()) == ([[True, True], [False, True]], [7, 9])
    with pytest.raises(ValueError, match="columns of y to be the classes"):
        frames.several(frame_of(library, **held), [9, 7])


@pytest.mark.parametrize("read", [pd.read_csv, polars.read_csv])
@pytest.mark.parametrize(("yes", "no"), [("1", "0"), ("0.5", "-1"), ("true", "false"), ("1E0", "")])
def test_an_indicator_that_one_cell_makes_text_of_is_read_as_before(read, yes, no):
    lines = [f"{yes},{no}", f"{no},{yes}", f"{yes},{yes}"]
    usual, odd = (
        frames.several(read(io.StringIO("\n".join(["a,b", *lines, last]))), ["a", "b"])[0]
        for last in (f"{yes},{yes}", f"x,{yes}")
    )
    np.testing.assert_array_equal(usual[:3], [[1, 0], [0, 1], [1, 1]])
    np.testing.assert_array_equal(usual[:3], odd[:3])


@pytest.mark.parametrize(
    "frame", [lambda table: table, lambda table: table.to_pandas(types_mapper=pd.ArrowDtype)]
)
def test_text_of_arrow_that_is_no_unicode_indicates_nothing(frame):
    text = pa.array([b"\xff", b"1"]).view(pa.string())
    table = pa.table({"a": text, "b": [1, 0]})
    np.testing.assert_array_equal(frames.several(frame(table), ["a", "b"])[0], [[0, 1], [1, 0]])


KINDS = (bool, np.float16, np.float64, object)
RARE = (np.longdouble, complex, np.uint64, "timedelta64[s]")


@pytest.mark.parametrize(
    "kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.long) for kind in RARE)], ids=str
)
def test_one_odd_cell_of_an_indicator_is_its_own_record_s_affair(kind):
    """It makes a column of objects, and another way of reading took all labels but 256 a record."""
    classes = [f"tag{number}" for number in range(300)]
    held = np.random.default_rng(0).random((40, 300)) < 0.9
    usual = pd.DataFrame(held.astype(int).astype(kind), columns=classes)
    others = np.arange(40) != 3
    before = encode(frames.several(usual, classes)[0], Classes(300), 300).ids
    for odd in (None, "x", 1 + 1j, object(), [1], pd.NaT, decimal.Decimal(2), 10**30):
        cells = usual["tag7"].astype(object)
        cells[3] = odd
        after = encode(frames.several(usual.assign(tag7=cells), classes)[0], Classes(300), 300).ids
        np.testing.assert_array_equal(before[others], after[others])


ABOVE = np.finfo(np.longdouble).eps + np.longdouble(1)
"""Smallest number above 1 of its type."""

VALUES = {
    "bool": ([True, False, True], [0, 1]),
    "whole": ([1, 0, -1, 2**60 + 1, 7], [0, 1, 2**60 + 1]),
    "unsigned": ([1, 0, 2**63 + 1], [0, 1, 2]),
    "double": ([0.1, -0.0, 1.0, 0.5, np.nan, np.inf, 1e300], ["0.1", "0", "1"]),
    "half": ([*np.array([0.1, 1, 0.2], np.float16)], ["0.1", "1"]),
    "single": ([*np.array([0.1, 1, 0.2], np.float32)], ["0.1", "1"]),
    "longdouble": ([ABOVE, ABOVE - 1, np.longdouble("0.1"), np.longdouble(1)], ["0.1", "1"]),
    "complex": ([1 + 0j, 0j, 1 + 1j, 0.1 + 0j], ["0.1", "1"]),
    "text": (["1", "a", "a\0", " a", "1.0", "1\0"], ["a", "1"]),
}
"""Values that a column of NumPy's can hold, and classes."""


def held_in(values):
    """Yield the values in containers of their own type, and of objects as one odd cell makes."""
    yield from (values, np.array(values), frames._lists(values), np.ma.array(values))
    yield from (pd.Series(values), pd.Series(values, dtype=object))
    yield from (pd.DataFrame({"y": values}), pd.DataFrame({"y": values}, dtype=object))
    yield np.ma.array([*values, values[0]], mask=[False] * len(values) + [True])[:-1]


@pytest.mark.parametrize("kind", VALUES)
def test_a_label_is_read_alike_in_every_container(kind):
    """One odd cell changes the container's type, and must not change the other labels."""
    values, classes = VALUES[kind]
    for known in (classes, [0, 1]):
        named = Classes(len(known), tuple(map(str, frames.sorted_classes(known))))
        found = [encode(frames.single(held, known)[0], named).ids for held in held_in(values)]
        for one in found[1:]:
            np.testing.assert_array_equal(found[0], one)


@pytest.mark.parametrize("kind", VALUES)
def test_a_row_is_read_alike_in_every_container(kind):
    values = VALUES[kind][0]
    rows = [[value] * WIDTH for value in values]
    found = [
        usable_rows(frames.rows_of(held, WIDTH).astype(np.float64)).view(np.int32)
        for held in (
            *(rows, np.array(rows), np.array(rows, object), [np.array(row) for row in rows]),
            *(frames._lists(rows), np.ma.array(rows), pd.DataFrame(rows)),
            pd.DataFrame(rows, dtype=object),
        )
    ]
    for one in found[1:]:
        np.testing.assert_array_equal(found[0], one)


MISSING = None
HELD = {
    "whole": [1, 0, 3, 2**60 + 1, 7],
    "whole, one missing": [1, 0, MISSING, 2**52, 7],
    "double": [0.1, -0.5, 1e300, 2.5, -0.0],
    "double, one missing": [0.1, 0.0, MISSING, 2.5, 1.0],
    "bool": [True, False, True, True, False],
    "bool, one missing": [True, False, MISSING, True, False],
    "decimal": [decimal.Decimal(one) for one in ("0.1", "0", "1.50", "-2", "7")],
    "text": ["1", "0", "True", "0.5", "false"],
}
MADE = {
    "object": lambda values: pd.Series(values, dtype=object),
    "pandas": lambda values: pd.Series(values).convert_dtypes(),
    "pandas with Arrow": lambda values: pd.Series(
        pa.array(values), dtype=pd.ArrowDtype(pa.array(values).type)
    ),
    "category": lambda values: pd.Series(
        pd.Categorical(values, categories=list(dict.fromkeys(v for v in values if v is not None)))
    ),
    "sparse": lambda values: pd.Series(pd.arrays.SparseArray(values, fill_value=values[1])),
    "polars": lambda values: polars.Series(values),
    "polars category": lambda values: (
        polars.Series(values).cast(polars.String).cast(polars.Categorical)
    ),
    "arrow": lambda values: pa.array(values),
    "dictionary": lambda values: pa.array(values).dictionary_encode(),
}


@pytest.mark.parametrize("kind", HELD)
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("beside", [[0.5] * 5, ["?", *[0.5] * 4]], ids=["numbers", "one odd"])
def test_a_cell_of_a_frame_is_the_same_number_whatever_stands_beside_it(kind, made, beside):
    """Packages make one array of all columns, and a missing bool was True there."""
    values = HELD[kind]
    if made == "sparse" and kind not in ("double", "bool", "whole"):
        pytest.skip("no such array")
    column = MADE[made](values)
    if isinstance(column, pd.Series):
        held = pd.DataFrame({"x": column, "y": pd.Series(beside)})
    elif isinstance(column, polars.Series):
        held = polars.DataFrame({"x": column, "y": polars.Series(beside, strict=False)})
    else:
        held = pa.table({"x": column, "y": pa.array([str(one) for one in beside])})
    found = frames.rows_of(held, 2)
    np.testing.assert_array_equal(found[:, 0], [number(one) for one in values])
    np.testing.assert_array_equal(found[1:, 1], 0.5)
    expected = [frames._is_indicated(one) for one in values]
    mask = frames.several(held, ["x", "y"])[0]
    np.testing.assert_array_equal(mask[:, 0], expected)
    np.testing.assert_array_equal(mask[1:, 1], [True] * 4)


@pytest.mark.parametrize("make", [pd.Categorical, lambda one: pd.Series(pd.Categorical(one))])
def test_whole_numbers_of_categories_stay_exact_beside_a_missing_one(make):
    """pandas makes floats of them, which name no person at 2^53."""
    held = make([2**60 + 1, None, 2**60 + 3])
    for read in (frames.column(held), frames.single(held, [2**60 + 1, 2**60 + 3])[0]):
        assert read.tolist() == [2**60 + 1, None, 2**60 + 3]


def test_a_record_may_be_called_as_an_attribute():
    """pandas has values of a series as attributes, by the names of their records."""
    held = pd.Series(["a", "b", "a"], index=["columns", "column_names", "array"])
    assert frames.single(held, ["a", "b"])[0].tolist() == ["a", "b", "a"]


@pytest.mark.parametrize("make", [list, np.array, pd.Series, polars.Series, pa.array])
def test_bytes_that_are_no_text_are_persons_of_their_own(make):
    """Two people of one name would have the votes of one."""
    names, known = person_names(frames.column(make([b"\xff", b"\xfe", b"\xff"])), "person")
    assert known.all()
    assert len(np.unique(names, axis=0)) == 2
    held = [decimal.Decimal("1.10"), decimal.Decimal("1.1")]
    assert len(np.unique(person_names(frames.column(held), "person")[0], axis=0)) == 2


def test_one_complex_person_makes_complex_numbers_of_no_other():
    for held in (pd.array([7, 8, 1j]), pd.Categorical([7, 8, 1j]), np.array([7, 8, 1j])):
        names, _ = person_names(frames.column(held), "person")
        np.testing.assert_array_equal(names[:2], person_names(np.array([7, 8]), "person")[0])


READERS = {
    "pandas": lambda lines: pd.read_csv(io.StringIO(lines)),
    "pandas with Arrow": lambda lines: pd.read_csv(io.StringIO(lines), dtype_backend="pyarrow"),
    "polars": lambda lines: polars.read_csv(lines.encode()),
    "arrow": lambda lines: pyarrow.csv.read_csv(io.BytesIO(lines.encode())),
    "numpy": lambda lines: np.array([json.loads(f"[{one}]") for one in lines.lower().split()[1:]]),
    "polars, not strict": lambda lines: polars.DataFrame(
        [json.loads(f"[{one}]") for one in lines.lower().split()[1:]],
        schema=["x", "y", "z"],
        orient="row",
        strict=False,
    ),
}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("odd", ['"unknown"', "7", "2.5", "null", '""'])
@pytest.mark.parametrize("no", ["False", "0", "0.5", "1e300"])
def test_one_odd_cell_of_a_file_that_a_program_reads_is_its_own_row_s_affair(read, odd, no):
    """It makes text of a column of bools, and True of all others was no number."""
    yes = "True" if no == "False" else "1"
    lines = ["x,y,z", f"{yes},1,{no}", f"{no},0,{no}", f"{yes},3,{yes}"]
    usual, other = (
        usable_rows(frames.rows_of(READERS[read]("\n".join([*lines, last])), 3).astype(np.float64))
        for last in (f"{yes},1,{yes}", f"{odd},1,{yes}")
    )
    np.testing.assert_array_equal(usual[:3], other[:3])
    assert (read == "numpy" and no == "False") or np.isfinite(usual[1]).all() or no == "1e300"


def test_one_word_in_a_column_of_bools_is_its_own_record_s_affair_where_frames_are_counted():
    made = frame(name_of)
    made["z"] = made["y"] > 0
    expected = released(made, Columns(tuple(NAMES), "diagnosis")).counts
    cells = made["z"].map(str).astype(object)
    cells[3] = "unknown"
    found = released(made.assign(z=cells), Columns(tuple(NAMES), "diagnosis")).counts
    assert np.abs(expected - found).sum() <= 1


@pytest.mark.parametrize("read", [pd.read_csv, polars.read_csv, pyarrow.csv.read_csv])
def test_codes_that_a_program_reads_as_numbers_are_the_classes_of_their_values(read):
    """1E50 is a code of ICD-11, and one code with a letter makes text of all."""
    codes = ["1E50", "1E51", "1E5Z"]
    classes = Classes(3, tuple(codes), counts_from_0=False)
    found = []
    for last in ("1E50", "1E5Z"):
        file = io.BytesIO("\n".join(["y", "1E50", "1E51", "1E50", last]).encode())
        y = read(file)["y"]
        found.append(encode(frames.single(y, codes)[0], classes).ids)
    np.testing.assert_array_equal(found, [[0, 1, 0, 0], [0, 1, 0, 2]])


@pytest.mark.parametrize("y", [np.array([12, 7]), polars.Series([12.0, 7]), pa.array([12, 7])])
def test_numbers_are_refused_where_two_classes_are_one_number_or_none_is_one(y):
    with pytest.raises(ValueError, match="Expected labels as text, got"):
        frames.single(y, ["0012", "12", "7"])
    with pytest.raises(ValueError, match="Expected labels that are classes, such as 'cat'"):
        frames.single(y, ["cat", "dog"])


@pytest.mark.parametrize(
    "y", [np.array(["a"]), polars.Series(["a"]), pa.array(["a"]), pd.Series(["a"], dtype="string")]
)
def test_text_is_no_set_of_classes(y):
    """Polars makes text of lists where one record has a bare name."""
    with pytest.raises(ValueError, match="lists of classes, got "):
        frames.several(y, ["a", "b"])


def test_numbers_of_any_byte_order_are_an_indicator():
    for kind in (">u4", ">i2", "u1", "complex64", "V2"):
        held = np.array([[1, 0], [0, 2]]).astype(ml_dtypes.bfloat16 if kind == "V2" else kind)
        np.testing.assert_array_equal(frames.several(held, ["a", "b"])[0], [[1, 0], [0, 1]])


@pytest.mark.parametrize("cell", [1j, 2 + 1j])
def test_one_complex_cell_of_a_sparse_indicator_is_its_own_record_s_affair(cell):
    held = np.array([[1, 0], [0, 1], [0, 1]], complex)
    held[0, 0] = cell
    for make in (scipy.sparse.csr_matrix, scipy.sparse.coo_array):
        mask = frames.several(make(held), ["a", "b"])[0]
        np.testing.assert_array_equal(mask, [[0, 0], [0, 1], [0, 1]])


@pytest.mark.parametrize("odd", [b"x", "x", None])
def test_an_array_that_one_cell_makes_text_of_is_no_indicator(odd):
    with pytest.raises(ValueError, match=r"got an array of .*, which may be either"):
        frames.several(np.array([[1, 0], [0, 1], [odd, 1]]), ["0", "1"])


def as_bytes(values):
    return [value.encode() for value in values]


def test_one_label_of_bytes_makes_bytes_of_no_other():
    """Polars and Arrow make bytes of a column of text where one cell is."""
    texts = ["a", "b", "c", "1", "b"]
    classes = Classes(3, ("1", "a", "b"))
    expected = encode(np.array(texts), classes).ids
    bytes_ = as_bytes(texts)
    mixed = [*texts[:-1], bytes_[-1]]
    held = [bytes_, np.array(bytes_), pd.Series(bytes_), pa.array(bytes_), polars.Series(bytes_)]
    for y in (*held, mixed, polars.Series(mixed, strict=False), pa.array(mixed, pa.binary())):
        found = encode(frames.single(y, ["a", "b", "1"])[0], classes).ids
        np.testing.assert_array_equal(found, expected)
    sets = [[text] for text in bytes_]
    for y in (sets, polars.Series(sets), pa.array(sets)):
        found = encode(frames.several(y, ["1", "a", "b"])[0], classes, 1).ids
        np.testing.assert_array_equal(found[:, 0], expected)


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_one_indicator_of_bytes_makes_bytes_of_no_other(library):
    make = {"pandas": pd.DataFrame, "polars": polars.DataFrame, "arrow": pa.table}[library]
    texts = {"a": ["1", "0", "x"], "b": ["0", "0.5", "1"]}
    expected = [[1, 0], [0, 1], [0, 1]]
    for columns in (texts, texts | {"a": as_bytes(texts["a"])}):
        np.testing.assert_array_equal(frames.several(make(columns), ["a", "b"])[0], expected)


PERSONS = {
    "whole": [7, 8, 7, 2**53 - 1],
    "large": [2**60, 2**60 + 1],
    "double": [7.0, 8.0, 2.0**60, np.inf, np.nan, 1e300, 0.5, 1e-7, 100.25],
    "longdouble": [np.longdouble(7), ABOVE, np.longdouble(1), np.longdouble(2) ** 60],
    "complex": [7 + 0j, 8 + 0j],
    "text": ["7", "x", "y\0"],
    "bytes": [b"7", b"x"],
}


@pytest.mark.parametrize("kind", PERSONS)
def test_a_person_is_the_same_in_every_container(kind):
    values = PERSONS[kind]
    held = [values, np.array(values), frames._lists(values), pd.Series(values)]
    held += [pd.Series(values, dtype=object), np.ma.array(values)]
    if kind in ("whole", "large", "double", "text", "bytes"):
        held += [polars.Series(values), pa.array(values), list(map(str, values))][
            : 3 - (kind == "bytes")
        ]
    found = [person_names(frames.column(one), "person") for one in held]
    for names, known in found:
        np.testing.assert_array_equal(known, found[0][1])
        np.testing.assert_array_equal(names[known], found[0][0][known])


def test_one_large_number_that_polars_makes_128_bits_for_is_its_own_row_s():
    rows = frames.rows_of(polars.DataFrame({"x": [1, 10**30], "y": [0.5, 2]}, strict=False), 2)
    np.testing.assert_array_equal(rows, [[1, 0.5], [1e30, 2]])


@pytest.mark.parametrize(
    "persons",
    [
        np.ones(NUM_RECORDS, bool),
        pd.Series([None] * NUM_RECORDS, dtype="boolean"),
        np.arange(NUM_RECORDS, dtype=np.float32),
        pd.Series(np.arange(NUM_RECORDS, dtype=np.float16)),
        pd.Series([None] * NUM_RECORDS, dtype="Float32"),
        pd.Series([None] * NUM_RECORDS, dtype=pd.ArrowDtype(pa.float32())),
        pd.DataFrame({"p": np.arange(NUM_RECORDS, dtype=np.float32)}),
        polars.Series([1.0] * NUM_RECORDS, dtype=polars.Float32),
        pa.array([decimal.Decimal("1.0")] * NUM_RECORDS),
        polars.Series([decimal.Decimal("1.0")] * NUM_RECORDS),
        pd.Categorical(np.ones(NUM_RECORDS, np.float32)),
        pd.Series(pd.arrays.SparseArray(np.ones(NUM_RECORDS, np.float32))),
        pa.array(np.ones(NUM_RECORDS, np.float32)).dictionary_encode(),
        pa.array([1.0] * NUM_RECORDS, pa.float32()),
        pa.array(np.ones(NUM_RECORDS, np.float16)),
        polars.Series([object()] * NUM_RECORDS, dtype=polars.Object).to_arrow(),
        polars.Series([[1]] * NUM_RECORDS),
        pa.array([[1]] * NUM_RECORDS),
        np.zeros(NUM_RECORDS, [("p", "i8")]),
        memoryview(np.zeros(NUM_RECORDS, np.float32)),
        array.array("f", [0.5] * NUM_RECORDS),
    ],
    ids=lambda persons: type(persons).__module__,
)
def test_persons_of_bools_and_short_floats_are_refused_by_their_type(persons):
    """Two people whose numbers are one such float would have the votes of one."""
    labeler = ReverseKNNLabeler(classes=["a", "b"], n_queries=4, ledger="ledger")
    labeler.fit(np.load("pub.npy"))
    with pytest.raises(ValueError, match="Expected person as whole numbers or text"):
        labeler.label(np.zeros((NUM_RECORDS, WIDTH)), ["a"] * NUM_RECORDS, persons)
    assert not Path("ledger").exists()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_public_columns_that_are_no_numbers_are_named(library):
    rows = 12
    days = [datetime.datetime(2024, 3, 1) + datetime.timedelta(days=day) for day in range(rows)]
    good = {
        "x": np.linspace(0, 1, rows),
        "flag": [True, False] * 6,
        "price": [decimal.Decimal("1.5"), decimal.Decimal("2.5")] * 6,
    }
    bad = {
        "born": days,
        "stay": [day - days[0] for day in days],
        "ward": ["A", "B"] * 6,
        "tags": [[1, 2]] * rows,
    }
    ReverseKNNLabeler(epsilon=1.0).fit(frame_of(library, **good))
    for name, values in bad.items():
        for others in ({}, good):
            with pytest.raises(
                ValueError, match=rf"Expected columns of numbers in X, got \['{name}'"
            ):
                ReverseKNNLabeler(epsilon=1.0).fit(frame_of(library, **others, **{name: values}))
    with pytest.raises(ValueError, match="OneHotEncoder") as refused:
        ReverseKNNLabeler(epsilon=1.0).fit(frame_of(library, **good, **bad))
    assert all(f"'{name}'" in str(refused.value) for name in bad)
    assert not any(f"'{name}'" in str(refused.value) for name in good)


def test_an_id_is_left_out_in_the_words_of_python():
    rows = pd.DataFrame({"id": np.arange(40), "x": np.linspace(0, 1, 40)})
    with pytest.raises(ValueError, match=r"every distance; leave it out of X, or pass") as refused:
        ReverseKNNLabeler(epsilon=1.0).fit(rows)
    assert "--" not in str(refused.value)
