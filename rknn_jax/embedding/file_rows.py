"""Rows of a table about image files: labels, persons and further columns, by the files' names."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from rknn_jax._internal import disk
from rknn_jax._internal.option_names import option
from rknn_jax.embedding import table_files
from rknn_jax.formats import LABELS, _arrow, clear_errors, refuse_absent
from rknn_jax.records.features import NUMBERS

By = Literal["name", "path"]

ABSENT = "stand in no row"
CAPITALS = "have a row but for capitals, so write the names as the files have them"
SEVERAL = "stand in several rows"
SHARED = "share their name with another file"

FILE = "file"
"""Usual name of the column of the files' names."""


@dataclass(frozen=True, eq=False)
class FileRows:
    """Columns of a table that has a row for each file.

    A file of which no row tells, or several do, has missing values. So do all files that share a
    name, if they are named without their folders. A record is a name, with all files and rows that
    have it, so that it adds to the sums at most once. If persons are protected, a name has to be of
    one person: rows of another one would take its label away.

    Attributes:
      path: Path of the table.
      roles: Column of the files' names, that of the labels or None, and further ones.
      columns: Arrow columns by their names in the embeddings; that of the labels is `labels`.
      places: Row of each name of a file; None if several rows tell of it.
      classes: Names of the class numbers in the columns, as `datasets` declares them.
      by: `name` if files are named without their folders, or `path` within the folder. The choice
        is public: decided by the files themselves, one record could take another one's label.
      read_from: Files of the table before they were read.
    """

    path: Path
    roles: tuple[str, str | None, tuple[str, ...]]
    columns: dict[str, Any]
    places: dict[str, int | None]
    classes: Mapping[str, tuple[str, ...]]
    by: By
    read_from: list[Any]

    @classmethod
    def read(
        cls,
        path: Path,
        argument: str,
        file: str,
        label: str | None,
        keep: Sequence[str],
        by: By = "name",
        *,
        private: bool = False,
    ) -> "FileRows":
        """Read a table.

        Args:
          path: File, folder or pattern, as for `table_files.files`.
          argument: Command-line argument that named it, for the errors.
          file: Name of the column of the files' names.
          label: Name of the column of labels, or None.
          keep: Names of further columns.
          by: As for the class. Defaults to `name`.
          private: Whether the records are private, and `keep` may say whose they are. Defaults to
            False.

        Raises:
          ValueError: If the table or a column is absent.
        """
        read_from = _files(path)
        wanted = tuple(dict.fromkeys([file, *([label] if label else []), *keep]))
        if table_files.declares_names(path, argument, private=private):
            with clear_errors(f"{argument} {path}"):
                refuse_absent(wanted, table_files.names(path, argument))
        persons = keep if private else ()
        found = table_files.tables(
            path, argument, wanted, 2**16, refuse=False, label=label, persons=persons
        )
        parts = list(found)
        pa = _arrow.pyarrow()
        table = pa.concat_tables(parts) if parts else table_files.empty(path, argument, wanted)
        places: dict[str, int | None] = {}
        names = _arrow.plain(table.column(file))
        if _arrow.kind_of(names.type) in NUMBERS:
            names = names.cast(pa.large_string())
        for row, name in enumerate(_arrow.text_column(names.cast(pa.large_binary()))):
            if name:
                key = _key(name, by)
                places[key] = None if key in places else row
        columns = {name: table.column(name).combine_chunks() for name in keep}
        if label:
            columns[LABELS] = table.column(label).combine_chunks()
        classes = table_files.class_names(path, argument, label, keep)
        roles = (file, label, (*keep,))
        return cls(path, roles, columns, places, classes=classes, by=by, read_from=read_from)

    @property
    def state(self) -> list[Any]:
        """Files of the table, and its columns by their roles, ready for JSON.

        Raises:
          ValueError: If a file has changed since it was read.
        """
        if _files(self.path) != self.read_from:
            raise ValueError(
                f"Expected the table {self.path} to stay as it is while it is read, and it was "
                "changed; wait until it is written, and try again."
            )
        return [self.read_from, *self.roles, self.by]

    def rows_of(self, files: Sequence[str]) -> list[int | None]:
        """Return the row of each of all files of a folder, or None.

        Args:
          files: Paths within the folder, with slashes.
        """
        keys = [_key(file, self.by) for file in files]
        counts = Counter(keys)
        return [self.places.get(key) if counts[key] == 1 else None for key in keys]

    def unplaced(self, files: Sequence[str]) -> dict[str, list[str]]:
        """Return the files that have no row, by the cause.

        Args:
          files: Paths within the folder, with slashes.
        """
        folded = {key.casefold() for key in self.places}
        keys = [_key(file, self.by) for file in files]
        counts = Counter(keys)
        shared = f"{SHARED}, so compare paths by {option('file_match')} path"
        causes = (ABSENT, CAPITALS, SEVERAL, shared)
        found: dict[str, list[str]] = {cause: [] for cause in causes}
        for file, key in zip(files, keys, strict=True):
            if counts[key] > 1:
                found[shared].append(file)
            elif key in self.places and self.places[key] is None:
                found[SEVERAL].append(file)
            elif key not in self.places:
                found[CAPITALS if key.casefold() in folded else ABSENT].append(file)
        return {cause: those for cause, those in found.items() if those}

    def unseen(self, files: Sequence[str]) -> list[str]:
        """Return the names in the table that no file has, in any capitals.

        Args:
          files: Paths within the folder, with slashes.
        """
        keys = {_key(file, self.by).casefold() for file in files}
        return [name for name in self.places if name.casefold() not in keys]

    def take(self, rows: Sequence[int | None]) -> dict[str, Any]:
        """Return the columns at some rows, with null for None."""
        places = _arrow.pyarrow().array(rows, "int64")
        return {name: _arrow.storable(column).take(places) for name, column in self.columns.items()}


def _key(name: str, by: By) -> str:
    """Return the name of a file, or its path with slashes and without a dot before them."""
    path = name.strip().replace("\\", "/").removeprefix("./")
    return PurePosixPath(path).name if by == "name" else path


def _files(path: Path) -> list[Any]:
    return [[one.name, *disk.file_state(one)] for one in table_files.files(path, "")]
