"""Every label can be joined to its source, by the name of a file or the number of a row."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from rknn_jax.federation.inputs import read_public
from rknn_jax.release import label_table, tables
from tests.test_cli import arguments, arrays
from tests.test_drop import write
from tests.test_inputs import LABELS, NO_NOISE, PUBLIC, TRUTH, frame, save

SIZES = {"10": 7, "2": 20, "b/1": 3, "a": 30}
"""Rows of each file, whose names are in another order than their numbers."""


def parts(folder, form, **more):
    """Write the public rows in files, and return the part of each."""
    ends = np.cumsum([*SIZES.values()])
    kept = {}
    for (name, size), end in zip(SIZES.items(), ends, strict=True):
        path = folder / f"{name}.{form}"
        path.parent.mkdir(exist_ok=True, parents=True)
        part = slice(end - size, end)
        if form == "npz":
            np.savez(path, embeddings=PUBLIC[part])
        else:
            write(frame(PUBLIC).assign(**more)[part], path)
        kept[f"{name}.{form}"] = TRUTH[part]
    return kept


@pytest.mark.parametrize("form", ["npz", "csv", "parquet"])
def test_the_labels_of_several_files_say_their_file_and_row(rknn, tmp_path, form):
    changes = save(tmp_path, form, LABELS)
    kept = parts(tmp_path / "public", form)
    done = rknn(*arguments(**changes | NO_NOISE | {"public": "public"}))
    assert done.status == 0, done.err
    found = arrays(tmp_path / "new" / "labels.npz")
    files, rows = found["public_source_file"], found["public_source_row"]
    truth = [kept[file][row] for file, row in zip(files, rows, strict=True)]
    np.testing.assert_array_equal(found["label"], truth)
    order = ", ".join(sorted(kept, key=str))
    assert f"order public rows are those of {order}, one file after another" in " ".join(
        done.err.split()
    )
    named = label_table.read(tmp_path / "new").columns
    assert {"source_file", "source_row"} <= {*named}


def test_files_that_are_listed_keep_their_order(tmp_path):
    kept = parts(tmp_path, "csv")
    names = [str(tmp_path / name) for name in kept]
    others = tables.read_others(names, "--public", tables.Columns())
    assert [*dict.fromkeys(others["source_file"].tolist())] == [*kept]


def test_a_single_file_has_no_further_columns_and_a_user_s_own_ones_win(tmp_path):
    parts(tmp_path, "parquet", source_file="mine")
    drop = ("source_file",)
    for name, wanted in (("a.parquet", ["source_file"]), ("", ["source_file", "source_row"])):
        public = read_public(tmp_path / name, None, drop)
        assert sorted(public.others) == wanted
        assert {*public.others["source_file"]} == {"mine"}


@pytest.mark.parametrize("door", ["--table", "--text"])
def test_rows_count_on_through_embedded_files_in_the_order_that_is_told(rknn, tmp_path, door):
    for name, first in (("10", 0), ("2", 4)):
        table = pd.DataFrame({"text": ["a", "b", "c", "d"], "place": range(first, first + 4)})
        (tmp_path / "t").mkdir(exist_ok=True)
        write(table.assign(x=[0.5, 1, 2, 4]), tmp_path / "t" / f"{name}.csv")
    columns = "x" if door == "--table" else "text"
    words = ["embed", door, "t", "--columns", columns, "--keep", "place", "--out", "P.parquet"]
    done = rknn(*words)
    assert done.status == 0, done.err
    assert "order 10.csv, 2.csv; 'row' counts on from file to file" in " ".join(done.err.split())
    made = pq.read_table(tmp_path / "P.parquet").to_pydict()
    assert made["row"] == [int(place) for place in made["place"]]
