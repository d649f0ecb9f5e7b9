"""Data frames of pandas with columns of objects, whose cells may be of any type.

Arrow finds the type of such a column in its cells, so that one odd cell is an error or changes the
others. Here the column has no type, and each cell stands for itself: what cannot be read is
missing, in its own record alone. Columns with a type are read through Arrow, as in a file.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rknn_jax.formats import Block, Columns, Layout, _arrow, _arrow_tables
from rknn_jax.records.features import number


def has_objects(table: Any) -> bool:
    """Return whether a table is a frame of pandas of which a column or the index has no type."""
    if not (hasattr(table, "iloc") and hasattr(table, "dtypes")):
        return False
    index = table.index.dtypes if hasattr(table.index, "levels") else [table.index.dtype]
    return any(_is_object(kind) for kind in [*table.dtypes, *index])


def layout(frame: Any, columns: Columns) -> Layout:
    """Return the layout of a frame, by the names and types of its columns."""
    frame = _prepared(frame, columns)
    features = _features(frame, columns)
    return Layout(tuple(features), _block(frame.iloc[:0], features, columns))


def blocks(frame: Any, columns: Columns, size: int) -> Iterator[Block]:
    """Yield blocks of `size` rows, of which the last one may have fewer."""
    frame = _prepared(frame, columns)
    features = _features(frame, columns)
    for start in range(0, len(frame), size):
        yield _block(frame.iloc[start : start + size], features, columns)


def _prepared(frame: Any, columns: Columns) -> Any:
    """Return a frame with text as names, and levels of its index that are asked for as columns."""
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    wanted = {columns.label, columns.person, *(columns.embedding or ())}
    levels = [name for name in frame.index.names if name in wanted - set(frame.columns)]
    if levels:
        frame = frame.reset_index(level=levels)
    return frame.reset_index(drop=True)


def _features(frame: Any, columns: Columns) -> list[str]:
    """Return the names of the columns of the embeddings, by names and types alone."""
    pa = _arrow.pyarrow()
    fields = []
    for place, name in enumerate(frame.columns):
        part = frame.iloc[:0, place]
        kind = pa.large_binary() if _is_object(part.dtype) else pa.Array.from_pandas(part).type
        fields.append((name, kind))
    schema = pa.schema(fields)
    _arrow_tables.names_of(schema, columns)
    return _arrow_tables.features_of(schema, columns)


def _block(part: Any, features: list[str], columns: Columns) -> Block:
    """Return rows of a frame as a block."""
    with warnings.catch_warnings():  # of a cell, which would reveal its record
        warnings.simplefilter("ignore")
        return _read(part, features, columns)


def _read(part: Any, features: list[str], columns: Columns) -> Block:
    pa = _arrow.pyarrow()
    labels = _column(part[columns.label], _arrow.label_column) if columns.reads_label else None
    persons = None
    if columns.person is not None:
        name = columns.person
        persons = _column(part[name], lambda column: _arrow.person_column(column, name))
    if not features:
        return Block(None, labels, persons)
    if columns.raw:
        return _raw_block(part[features[0]], features[0], labels, persons)
    one = len(features) == 1
    cell: Callable[[Any], Any] = _numbers if one else _number
    kind = pa.large_list(pa.float64()) if one else pa.float64()
    read = {
        name: pa.array([cell(value) for value in part[name]], kind)
        if _is_object(part[name].dtype)
        else pa.Array.from_pandas(part[name])
        for name in features
    }
    only = columns._replace(reads_label=False, person=None)
    return _arrow_tables.block(pa.table(read), features, only)._replace(
        labels=labels, persons=persons
    )


def _raw_block(
    series: Any, name: str, labels: np.ndarray | None, persons: np.ndarray | None
) -> Block:
    """Return raw records as a block; one that is missing, or no text or bytes, has no label."""
    if _is_object(series.dtype):
        values = _arrow.objects(
            [cell if isinstance(cell, str | bytes) else None for cell in series]
        )
        missing = np.array([cell is None for cell in values], bool)
    else:
        column = _arrow.pyarrow().Array.from_pandas(series)
        values, missing = _arrow.raw_column(column, name)
    return Block(values, None if labels is None else _arrow.unlabeled(labels, missing), persons)


def _column(series: Any, read: Any) -> np.ndarray:
    """Return a column of objects as it is, `[b]`, or another as `read` returns it from Arrow."""
    if _is_object(series.dtype):
        return _arrow.objects(series.to_list())
    values: np.ndarray = read(_arrow.pyarrow().Array.from_pandas(series))
    return values


def _is_object(kind: Any) -> bool:
    """Return whether a column of a type of pandas, or of such categories, holds objects.

    So does one of text whose cells are Python's, which may be no Unicode.
    """
    kind = getattr(getattr(kind, "categories", None), "dtype", kind)
    of_python = getattr(kind, "storage", "") == "python"
    return of_python or (isinstance(kind, np.dtype) and kind.kind == "O")


def _number(cell: Any) -> float | None:
    try:
        return None if np.iscomplexobj(cell) else number(cell)
    except Exception:  # an error would reveal the record, whatever it holds
        return None


def _numbers(cell: Any) -> np.ndarray | None:
    """Return the numbers of a cell, `[f]`; a number by itself is one."""
    if isinstance(cell, str | bytes):
        return np.array([number(cell)])
    try:
        cells = np.atleast_1d(np.asarray(cell))
        kind = cells.dtype.kind
        # As in JSON lines, where text in a list is no number.
        has_text = kind == "O" and any(isinstance(one, str | bytes) for one in cells.flat)
        found = np.empty(0) if kind in "cSU" or has_text else cells.astype(float)
    except Exception:  # an error would reveal the record, whatever it holds
        return None
    return found if found.ndim == 1 else None
