"""Columns that may tell whose a record is, if none is named for that."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.formats import Layout
from rknn_jax.records.features import MOST_NAMED
from rknn_jax.records.persons import find_columns, person_names
from rknn_jax.release.shards import FileShard, Shard
from rknn_jax.release.tables import ROWS_AT_ONCE

FEWEST = 0.01
"""Least share of the records that name a person again, if it is told."""


def unnamed(layouts: Sequence[Layout], label: str) -> str:
    """Return that private columns are named like those of persons, or "".

    It depends on the names in schemas alone, which are no record's.

    Args:
      layouts: Layouts of the private files.
      label: Name of the column of labels.
    """
    held = [(*layout.names, *layout.arrays) for layout in layouts if layout.declares]
    found = list(dict.fromkeys(find_columns(itertools.chain(*held), [label])))
    if not found:
        return ""
    return (
        f"private columns {found[:MOST_NAMED]} are named as if they told whose a record is, and "
        "epsilon protects single records; if a person may have several, name the column with "
        f"{option('person')}"
    )


def repeated(shards: Sequence[Shard]) -> Iterator[str]:
    """Yield which columns name persons that have several records: private.

    Args:
      shards: Private records, without a column of persons.
    """
    files = [shard for shard in shards if isinstance(shard, FileShard)]
    names = {name for shard in files for name in _named(shard)}
    for name in sorted(names):
        try:
            count, persons = _count([shard for shard in files if name in _named(shard)], name)
        except ValueError:  # no persons are in a column of lists, for example
            continue
        if count - persons >= max(1, FEWEST * count):
            yield (
                f"Column {name!r} has {persons:,} values in {count:,} records. If they are "
                f"persons, pass {option('person')} {name}: without it, epsilon protects a single "
                "record, and more is revealed of whoever has several."
            )


def _named(shard: FileShard) -> list[str]:
    """Return the columns of a file that are named like those of persons."""
    return find_columns(shard.column_names(), [shard.columns.label])


def _count(shards: Sequence[FileShard], name: str) -> tuple[int, int]:
    """Return the number of records that name a person, and that of the persons."""
    found = [np.zeros((0, 2), np.uint64)]
    for shard in shards:
        asked = replace(shard, columns=shard.columns._replace(person=name))
        for block in asked.persons(ROWS_AT_ONCE):
            names, known = person_names(block, shard.where)
            found.append(names[known])
    every = np.concatenate(found)
    return len(every), len(np.unique(every, axis=0))
