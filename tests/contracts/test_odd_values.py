"""A private value that cannot be read is its record's own affair, in every format, at every door.

For each format and each type of a column, two files differ in every second record alone: one has
odd values there. The other records have the same features, classes and persons to the bit. Or both
files are refused in the same words, by names and types. Nothing is warned of, but how many records
of text files are broken, which their curator alone sees.
"""

import functools
import json
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rknn_jax import formats
from rknn_jax.embedding import run, table
from rknn_jax.embedding.rows import TableFile, texts
from rknn_jax.embedding.table import Category, TableModel, Truth
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.joining import read_records
from rknn_jax.formats import Columns
from rknn_jax.neighbors import usable_rows
from rknn_jax.records.classes import Classes, named_classes
from rknn_jax.records.features import real_rows
from rknn_jax.records.labels import encode
from rknn_jax.records.persons import person_names
from rknn_jax.release import class_selection, tables, usability
from tests.odd_files import FORMS

CLASSES = named_classes(["a", "b", "7"])
COLUMNS = Columns(("x", "y"), person="who", width=2)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
PUBLIC = np.arange(6, dtype=np.float32).reshape(3, 2)


def released(path, columns=COLUMNS, most=None):
    """Features, classes and persons, as a release counts them."""
    (shard,) = tables.file_shards(str(path), "--private", columns)
    shard.layout()
    blocks = list(shard.blocks(16))
    found = [
        [usable_rows(real_rows(block.embeddings, "a file")) for block in blocks],
        *(
            [encode(block.labels, known, most).ids for block in blocks if columns.reads_label]
            for known in (CLASSES, Classes(3))
        ),
        [person_names(block.persons, "a file")[0] for block in blocks if columns.person],
    ]
    return [np.concatenate(parts) for parts in found if parts]


def checked(path, columns=COLUMNS, most=None):
    """Nothing of `rknn check`, whose counts are private, but that they can be printed."""
    shards = tables.file_shards(str(path), "--private", columns)
    assert json.dumps(usability.examine(shards, CLASSES, most, PUBLIC)._asdict())
    return []


def selected(path, columns=COLUMNS):
    """Nothing of `rknn classes`, which adds noise to what it counts, but that it counts."""
    (shard,) = tables.file_shards(str(path), "--private", columns)
    for unit in ("record", "person"):
        assert class_selection.occurrences([shard], unit)
    return []


def joined(path):
    """Features and classes of a client of a federation."""
    found = read_records(Join(private=path, dimensions=2))
    return found.inputs, encode(found.labels, CLASSES).ids, encode(found.labels, CLASSES, 2).ids


def embedded(path, *columns):
    """Features, classes and persons of a table, after `rknn embed --table` and what it tells."""
    model = TableModel(columns)
    names = tuple(column.name for column in columns)
    source = TableFile(path, "--table", names, "labels", ("who", "notes"), private=True)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        out = Path(folder) / "out.parquet"
        run.embed(source, model, out, private=True)
        table.review(model, path, "--table")
        return released(out, Columns(person="who", width=model.width))


def texts_of(path):
    """Texts, as their model gets them."""
    source = TableFile(path, "--text", ("x",), "labels", private=True, texts=True)
    return [np.array([text for part in source.blocks(9) for text in texts(part.records)], object)]


def raw(path):
    """Records for an encoder."""
    columns = Columns(("embeddings",), raw=True)
    (shard,) = tables.file_shards(str(path), "--private", columns)
    blocks = [block.embeddings for block in shard.blocks(16)]
    return [np.array([str(value) for block in blocks for value in block], object)]


def doors(suffix, role) -> Iterator[Callable[[Path], Any]]:
    """Yield the readers of a role of a column in a format."""
    own = COLUMNS._replace(embedding=None if suffix == ".npz" else COLUMNS.embedding)
    if role == "embeddings":
        own = own._replace(embedding=("embeddings",))
        if suffix == ".npy":
            own = own._replace(reads_label=False, person=None)
    if role != "notes":
        for read in (released, checked) if own.reads_label else (released,):
            yield functools.partial(read, columns=own)
            if role == "labels":
                yield functools.partial(read, columns=own, most=2)
        if own.reads_label:
            yield functools.partial(selected, columns=own)
    if own.reads_label and (role == "embeddings" or suffix == ".npz"):
        yield joined
    if suffix.startswith(".np"):
        return
    if role == "embeddings":
        yield raw
        return
    yield lambda path: embedded(path, Truth("x", 0.5, 2.0), Category("y", ("2", "0")))
    if role == "x":
        yield lambda path: embedded(path, Category("x", ("a", "1.5")))
        yield texts_of


def told(read, path):
    """Return what a door reads of every second record, or the words in which it refuses all."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = read(path)
        except (ValueError, NotImplementedError) as error:
            return re.sub(rf"{path.parent}|{tempfile.gettempprefix()}\w+", "", str(error))
    others = [str(one.message) for one in caught if "tell nobody how many" not in str(one.message)]
    assert not others
    return [np.asarray(values)[::2] for values in found]


def is_same(one, other):
    """Return whether two doors read the same bits, or refuse in the same words."""
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return all(
        a.tobytes() == b.tobytes() if a.dtype != object else a.tolist() == b.tolist()
        for a, b in zip(one, other, strict=True)
    )


def cases() -> Iterator[Any]:
    """Yield every kind of value in every format.

    Parquet and Arrow share their readers: `make test` reads half of the kinds from each.
    """
    for suffix, form in FORMS.items():
        for number, kind in enumerate(form.cases):
            other = suffix == (".parquet", ".arrow")[number % 2]
            yield pytest.param(suffix, kind, marks=pytest.mark.long if other else ())


@pytest.mark.long
@pytest.mark.parametrize(("suffix", "kind"), cases())
def test_odd_values_change_no_other_record_and_no_refusal(tmp_path, suffix, kind):
    form = FORMS[suffix]
    read = 0
    for role in form.roles:
        paths = [tmp_path / f"{name} {role}" / f"file{suffix}" for name in ("usual", "odd")]
        for path, values in zip(paths, vars(form.cases[kind]).values(), strict=True):
            path.parent.mkdir()
            try:
                form.write(path, role, values)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # Parquet has no such values
                assert suffix == ".parquet"
                return
        for door in doors(suffix, role):
            usual, odd = (told(door, path) for path in paths)
            assert is_same(usual, odd), (role, usual, odd)
            read += not isinstance(usual, str)
    assert read or kind in ("text", "bytes", "times"), (
        "a door reads this type, or this shows nothing"
    )


def test_every_format_has_odd_values():
    assert {*map(formats.of, FORMS)} == {*map(formats.of, formats.suffixes())}


@pytest.mark.long
@pytest.mark.parametrize("suffix", [suffix for suffix in FORMS if suffix != ".npy"])
def test_commands_run_on_odd_classes(rknn, tmp_path, suffix):
    kind = next(kind for kind in ("text", "json") if kind in FORMS[suffix].cases)
    odd = tmp_path / f"odd{suffix}"
    FORMS[suffix].write(odd, "labels", FORMS[suffix].cases[kind].odd)
    rows = np.random.default_rng(0).normal(size=(20, 2))
    np.savez("public.npz", embeddings=rows)
    np.savetxt("public.csv", rows, delimiter=",", header="x,y", comments="")
    person = ("--person", "who")
    about = ("--public", "public.csv", *person, "--embedding", "x", "y")
    if suffix == ".npz":
        about = ("--public", "public.npz", *person)
    else:
        of_table = ("--columns", "x", "y", "--out", "table.parquet")
        assert rknn("embed", "--table", "public.csv", *of_table).status == 0
        own = ("--card", "table.card.json", "--private", "--keep", "who", "--out", "own.parquet")
        assert rknn("embed", "--table", odd, *own).status == 0
    paid = ("--epsilon", 1, "--budget", 2, "--budget-delta", 0.01)
    for words in (
        ("check", odd, *about, "--classes", "a,b"),
        ("label", "--private", odd, *about, "--classes", "a,b", "--queries", 3, *paid),
        ("classes", "--private", odd, *about[2:], "--epsilon", 1, "--delta", 0.01),
    ):
        done = rknn(*words)
        assert done.status == 0, done.err
