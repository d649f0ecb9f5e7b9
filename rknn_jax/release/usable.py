"""Shards of embeddings whose unusable rows are marked, for an encoder that follows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rknn_jax.formats import Block, Layout
from rknn_jax.neighbors import usable_rows
from rknn_jax.records.features import real_rows
from rknn_jax.release.shards import Shard


@dataclass(frozen=True)
class UsableShard:
    """Shard of embeddings that are encoded, with the fingerprint of embeddings that are not.

    Attributes:
      shard: Shard as found.
      width: Number of columns f of the public rows.
    """

    shard: Shard
    width: int

    @property
    def name(self) -> str:
        """Name of the shard."""
        return self.shard.name

    @property
    def where(self) -> str:
        """Name of the shard with the argument that named it."""
        return self.shard.where

    def num_rows(self) -> int:
        """Return the number of rows."""
        return self.shard.num_rows()

    def layout(self) -> Layout:
        """Return the columns with their shapes and types."""
        return self.shard.layout()

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield blocks of embeddings float32 `[b, f]`; a row that cannot be used is NaN.

        Raises:
          ValueError: If the embeddings are no real numbers of the public rows' width.
        """
        for block in self.shard.blocks(size):
            if block.embeddings is None:
                yield block
                continue
            rows = real_rows(block.embeddings, self.where, self.width)
            yield block._replace(embeddings=usable_rows(rows))

    def labels(self, size: int) -> Iterator[np.ndarray]:
        """Yield the labels alone."""
        return self.shard.labels(size)

    def persons(self, size: int) -> Iterator[np.ndarray]:
        """Yield whose the records are."""
        return self.shard.persons(size)
