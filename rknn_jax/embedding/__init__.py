"""Embeddings of images, text and tables, in Parquet files for `rknn label`.

Every model treats each record by itself, so embedding private records spends nothing. `run.embed`
writes what a model of `images`, `text` or `table` makes of a source, and goes on where it stopped.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np


class Rows(NamedTuple):
    """Consecutive records of a source.

    Attributes:
      records: Records `[b]` as their model takes them.
      names: Names of the records `[b]`, text of files or numbers of rows, unique in the source.
      columns: Arrow arrays `[b]` that are copied beside the embeddings, by their names.
      classes: Names of the class numbers in these, as `datasets` declares them. Defaults to none.
      broken: Why records cannot be read, by their places among the rows. Defaults to none.
    """

    records: Any
    names: np.ndarray
    columns: dict[str, Any]
    classes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    broken: Mapping[int, str] = MappingProxyType({})


class Source(Protocol):
    """Records that can be read again from the beginning."""

    def __len__(self) -> int:
        """Return the number of records."""

    @property
    def where(self) -> str:
        """Argument and name of the source, for the errors."""

    @property
    def state(self) -> list[Any]:
        """All that decides the rows, ready for JSON: files by `disk.file_state`, and settings."""

    @property
    def name_column(self) -> str:
        """Name of the column of the records' names."""

    def blocks(self, size: int) -> Iterator[Rows]:
        """Yield at most `size` records at a time, in the same blocks every time.

        A source without records is one block of none, which has the columns.
        """


class Embedded(NamedTuple):
    """Embeddings of consecutive records.

    Attributes:
      features: float32 `[b, f]`, a row of NaN for a record that cannot be used.
      reasons: Why a record cannot be used, by its row.
      truncated: Number of records of which the model took the beginning alone. Defaults to 0.
    """

    features: np.ndarray
    reasons: dict[int, str]
    truncated: int = 0


class Model(Protocol):
    """Record-local map of records to features."""

    @property
    def card(self) -> dict[str, Any]:
        """Kind, name, digest, width and versions of the model, ready for JSON."""

    @property
    def width(self) -> int:
        """Number of features f."""

    def __call__(self, records: Any) -> Embedded:
        """Return the features of records, each by itself."""
