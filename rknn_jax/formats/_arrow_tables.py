"""Layout and blocks of Arrow tables, as of Parquet and Arrow files and of data frames."""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np

from rknn_jax._internal.checks import check_together
from rknn_jax._internal.option_names import option
from rknn_jax.formats import (
    EMBEDDINGS,
    Block,
    Columns,
    FormatError,
    Layout,
    _arrow,
    _feature_names,
    _hub,
    refuse_absent,
)
from rknn_jax.records import carried
from rknn_jax.records import features as rules


def layout(schema: Any, columns: Columns) -> Layout:
    """Return the layout of a file of this schema."""
    without = columns._replace(reads_label=False, person=None)
    features: list[str] = []
    empty = schema.empty_table()

    def features_alone() -> Block:
        features.extend(features_of(schema, columns))
        names_of(schema, without._replace(embedding=tuple(features)))
        if len(features) > 1:
            rules.refuse_others(
                {name: _arrow.kind_of(schema.field(name).type) for name in features}
            )
        return block(empty, features, without)

    def aside(**without: Any) -> Block:
        asked = columns._replace(embedding=(), **without)
        names_of(schema, asked)
        return block(empty, [], asked)

    of_features, of_labels, of_persons = check_together(
        features_alone,
        lambda: aside(person=None),
        lambda: aside(reads_label=False),
        error=FormatError,
    )
    found = Block(of_features.embeddings, of_labels.labels, of_persons.persons)
    if found.labels is not None and found.labels.dtype == object:
        held = _arrow.plain(empty.column(columns.label)).type
        if _arrow.is_list(held):  # as objects, lists and their type are hidden
            kind = _arrow.label_column(_arrow.pyarrow().array([], held.value_type)).dtype
            width = held.list_size if _arrow.pyarrow().types.is_fixed_size_list(held) else 1
            dtype = "U1" if kind.kind == "U" else float
            found = found._replace(labels=np.zeros((0, width), dtype))
    declared = _hub.class_names(schema, columns.label) if columns.reads_label else ()
    if declared and found.labels is not None:
        # Such labels have numbers beside their names, so that the classes need no names.
        found = found._replace(labels=np.zeros(found.labels.shape, np.int64))
    return Layout(tuple(features), found, names=tuple(schema.names), classes=declared)


def block(batch: Any, features: Sequence[str], columns: Columns) -> Block:
    """Return a batch as a block.

    Args:
      batch: Arrow table or record batch.
      features: Names of the columns of the embeddings, from `features_of`.
      columns: Arrays or columns to read.
    """
    labels = None
    if columns.reads_label:
        labels = _arrow.label_column(
            batch.column(columns.label), _hub.class_names(batch.schema, columns.label)
        )
    persons = None
    if columns.person is not None:
        persons = _arrow.person_column(batch.column(columns.person), columns.person)
    if not features:
        return Block(None, labels, persons)
    if columns.raw:
        return _raw_block(batch.column(features[0]), features[0], labels, persons)
    parts = [_arrow.plain(batch.column(name)) for name in features]
    if len(parts) == 1 and (_arrow.is_list(parts[0].type) or features[0] == EMBEDDINGS):
        return Block(_arrow.list_column(parts[0], features[0], columns.width), labels, persons)
    values = [_arrow.feature_column(part, name) for part, name in zip(parts, features, strict=True)]
    with np.errstate(invalid="ignore"):  # signaling NaN; a warning would tell of one
        return Block(np.stack(values, axis=1), labels, persons)


def _raw_block(
    column: Any, name: str, labels: np.ndarray | None, persons: np.ndarray | None
) -> Block:
    """Return raw records as a block. A record that is missing in part has no label."""
    values, missing = _arrow.raw_column(column, name)
    return Block(values, None if labels is None else _arrow.unlabeled(labels, missing), persons)


def others(table: Any, features: Sequence[str], columns: Columns) -> dict[str, np.ndarray]:
    """Return the columns of a public table that have no role, if they hold numbers or text.

    Args:
      table: Arrow table.
      features: Names of the columns of the features.
      columns: Columns that are read.
    """
    skip = {*features, *columns.left_behind, *_pandas_index(table.schema)}
    times = collections.Counter(table.schema.names)
    found = {}
    for field in table.schema:
        if field.name in skip or times[field.name] > 1:
            continue
        column = _arrow.plain(table.column(field.name))
        types = _arrow.pyarrow().types
        if types.is_string(column.type) or types.is_large_string(column.type):
            found[field.name] = np.array([text or "" for text in column.to_pylist()], str)
        elif types.is_decimal(column.type) or (types.is_integer(column.type) and column.null_count):
            found[field.name] = carried.numbers(column.to_pylist())
        elif _arrow.kind_of(column.type) in rules.NUMBERS:
            found[field.name] = _arrow.numbers(column, field.name)
    return found


def names_of(schema: Any, columns: Columns) -> list[str]:
    """Return the names of the columns to read, features first.

    Raises:
      AbsentError: If a column is absent.
      FormatError: If the features are not clear.
    """
    wanted = list(features_of(schema, columns))
    if columns.reads_label:
        wanted.append(columns.label)
    if columns.person is not None:
        wanted.append(columns.person)
    refuse_absent(wanted, schema.names)
    counts = collections.Counter(schema.names)
    if twice := [name for name in wanted if counts[name] > 1]:
        raise FormatError(
            f"Expected every column once, got several {twice[: rules.MOST_NAMED]}; rename them."
        )
    return wanted


def features_of(schema: Any, columns: Columns) -> list[str]:
    """Return the names of the columns of the embeddings.

    Raises:
      AbsentError: If there is none.
      FormatError: If it is not clear which they are.
    """
    if columns.raw and len(columns.embedding or ()) > 1:
        raise FormatError(
            f"Expected one column of records, got {len(columns.embedding or ())} names in "
            f"{option('embedding')}; name one."
        )
    if columns.embedding is not None:
        return list(columns.embedding)
    if EMBEDDINGS in schema.names and EMBEDDINGS not in columns.drop:
        return [EMBEDDINGS]
    if columns.raw:
        return [_feature_names.raw_name(schema.names, columns)]
    aside = {*columns.aside, *_pandas_index(schema)}
    kinds = {field.name: _arrow.kind_of(field.type) for field in schema if field.name not in aside}
    return _feature_names.choose(kinds, schema.names)


def _pandas_index(schema: Any) -> list[str]:
    """Return the columns that are the index of pandas, by the file's own word."""
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in index if isinstance(name, str)]
