"""Rows of a table about image files: labels, persons and further columns, by the files' names."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rknn_jax.embedding import table_files
from rknn_jax.formats import LABELS, _arrow, clear_errors, refuse_absent

FILE = "file"
"""Usual name of the column of the files' names."""


@dataclass(frozen=True, eq=False)
class FileRows:
    """Columns of a table that has a row for each file.

    A file of which no row tells, or several do, has missing values. Paths are compared as they are,
    and where that finds no row, by the name alone if no other file and no other row has it.

    Attributes:
      path: Path of the table.
      columns: Arrow columns by their names in the embeddings; that of the labels is `labels`.
      places: Row of each name of a file; None if several rows tell of it.
      classes: Names of the class numbers, as `datasets` declares them, or none.
    """

    path: Path
    columns: dict[str, Any]
    places: dict[str, int | None]
    classes: tuple[str, ...]

    @classmethod
    def read(
        cls, path: Path, argument: str, file: str, label: str | None, keep: Sequence[str]
    ) -> "FileRows":
        """Read a table.

        Args:
          path: File, folder or pattern, as for `table_files.files`.
          argument: Command-line argument that named it, for the errors.
          file: Name of the column of the files' names: paths within the folder, or names that no
            other file in it has.
          label: Name of the column of labels, or None.
          keep: Names of further columns.

        Raises:
          ValueError: If the table or a column is absent.
        """
        wanted = tuple(dict.fromkeys([file, *([label] if label else []), *keep]))
        with clear_errors(f"{argument} {path}"):
            refuse_absent(wanted, table_files.names(path, argument))
        parts = list(table_files.tables(path, argument, wanted, 2**16, refuse=False, label=label))
        pa = _arrow.pyarrow()
        table = pa.concat_tables(parts) if parts else table_files.empty(path, argument, wanted)
        places: dict[str, int | None] = {}
        names = _arrow.plain(table.column(file)).cast(pa.large_string()).to_pylist()
        for row, name in enumerate(names):
            if name:
                key = _key(name)
                places[key] = None if key in places else row
        columns = {name: table.column(name).combine_chunks() for name in keep}
        if label:
            columns[LABELS] = table.column(label).combine_chunks()
        return cls(path, columns, places, table_files.class_names(path, argument, label))

    @property
    def state(self) -> list[Any]:
        """Names, sizes and times of the files of the table, ready for JSON."""
        told: list[Any] = []
        for one in table_files.files(self.path, ""):
            status = one.stat()
            told += [one.name, status.st_size, status.st_mtime_ns]
        return told

    def rows_of(self, files: Sequence[str]) -> list[int | None]:
        """Return the row of each of all files of a folder, or None.

        Args:
          files: Paths within the folder, with slashes.
        """
        keys = [_key(file) for file in files]
        bases = Counter(map(_base, keys))
        of_base: dict[str, int | None] = {}
        for key, row in self.places.items():
            base = _base(key)
            of_base[base] = None if base in of_base else row
        return [
            self.places[key]
            if key in self.places
            else of_base.get(_base(key))
            if bases[_base(key)] == 1
            else None
            for key in keys
        ]

    def num_alike(self, files: Sequence[str], rows: Sequence[int | None]) -> int:
        """Return how many files without a row have one but for capitals.

        Args:
          files: Paths within the folder, with slashes.
          rows: Row of each of them, or None.
        """
        bases = {_base(key) for key in self.places}
        folded = {key.casefold() for key in (*self.places, *bases - self.places.keys())}
        absent = [_key(file) for file, row in zip(files, rows, strict=True) if row is None]
        other = [key for key in absent if key not in self.places]
        return sum(
            key.casefold() in folded
            or (_base(key).casefold() in folded and _base(key) not in bases)
            for key in other
        )

    def take(self, rows: Sequence[int | None]) -> dict[str, Any]:
        """Return the columns at some rows, with null for None."""
        places = _arrow.pyarrow().array(rows, "int64")
        return {
            name: _arrow.without_views(column).take(places) for name, column in self.columns.items()
        }


def _base(key: str) -> str:
    return PurePosixPath(key).name


def _key(name: str) -> str:
    """Return the name of a file with slashes, and without a dot before them."""
    return name.strip().replace("\\", "/").removeprefix("./")
