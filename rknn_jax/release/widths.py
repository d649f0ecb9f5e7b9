"""Width of private embeddings that are read without the public ones."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rknn_jax.release.shards import FileShard


def declared_width(shards: Sequence[FileShard]) -> int:
    """Return the width that the types of the files tell, or 0 if lists may have any length."""
    for shard in shards:
        empty = shard.layout().empty.embeddings
        if empty is not None and empty.ndim == 2 and empty.shape[1]:
            return int(empty.shape[1])
    return 0


def with_one_width(shards: Sequence[FileShard]) -> list[FileShard]:
    """Return shards whose lists of embeddings have one width; others become rows of NaN.

    The width is that of a column's type, or else the length of most lists, the larger one of two.
    An error for lists of several lengths would reveal the record that has another one, and a rule
    that one record can decide would too. Here a record decides about a fingerprint at most.

    Args:
      shards: Files of one data set.

    Raises:
      ValueError: If a file is absent or damaged, or its columns cannot be embeddings.
    """
    if all(shard.columns.raw or shard.columns.width is not None for shard in shards):
        return list(shards)
    found = Counter[int]()
    for shard in shards:
        found.update(shard.lengths())
    width = declared_width(shards) or max(found, key=lambda size: (found[size], size), default=1)
    return [replace(shard, columns=shard.columns._replace(width=width)) for shard in shards]
