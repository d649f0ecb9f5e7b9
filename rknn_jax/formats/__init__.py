"""Formats of files that hold embeddings and labels, read in blocks of rows.

A file in this folder is registered by its name. It offers `SUFFIXES` and functions of a binary file
of any file system: `layout(file, columns)`, which reads no row, `num_rows(file, columns)`,
`blocks(file, columns, size)`, and `others(file, columns)`, the columns of a public file that have
no role, as numbers or text `[n]` by their names. A reader holds no more than a block, or what the
format compresses as one. The number of rows comes from the file's head if it is there.

A file is refused by its names, shapes and types alone. A private value that cannot be read, or is
none of its type, is missing in its own record: no value is an error or a warning, moves another
record, or is decoded together with others in a way that can fail. `tests/odd_files.py` has such
values of each format.

`EXAMPLES` are functions that write features and labels to a path, on which
`tests/contracts/test_formats.py` checks the module.
"""

import importlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from types import ModuleType
from typing import NamedTuple

import numpy as np

from rknn_jax._internal.registry import registered
from rknn_jax.records.features import FLATTEN

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Further suffixes of files that are decompressed where they are read."""

LEDGER = ".ledger.jsonl"
"""End of the name of a budget, which may lie beside the records."""

EMBEDDINGS = "embeddings"
LABELS = "labels"
"""Usual names of the array or column of the embeddings, and of the labels."""


class Columns(NamedTuple):
    """Arrays or columns to read.

    Attributes:
      embedding: Names of one array or column of lists, or of a column for each feature. Defaults to
        None: `embeddings` if it exists, otherwise all numeric columns but the label. An empty tuple
        reads none.
      label: Name of the label's array or column, which is never a feature. Defaults to `labels`.
      reads_label: Whether the labels are read. Defaults to True.
      width: Required number of dimensions f. Lists of another length become rows of NaN. Defaults
        to None, the width of the file.
      raw: Whether the rows are records for an encoder, such as images or text, in one array or
        column. Defaults to False.
      person: Name of the array or column that tells whose a record is, which is never a feature.
        Defaults to None, which reads none.
      public: Whether a record that cannot be parsed is an error. In a private file, it is a record
        that casts no vote. Defaults to False.
      drop: Names of columns that are not features. Defaults to none.
    """

    embedding: tuple[str, ...] | None = None
    label: str = LABELS
    reads_label: bool = True
    width: int | None = None
    raw: bool = False
    person: str | None = None
    public: bool = False
    drop: tuple[str, ...] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of columns of labels and persons."""
        return (self.label, LABELS, *([] if self.person is None else [self.person]))

    def of_public(self) -> "Columns":
        """Return the columns of the public side, where nobody's persons and labels are read.

        A column that names persons among the private records is no feature there either.
        """
        persons = () if self.person is None else (self.person,)
        drop = (*self.drop, *persons)
        return self._replace(person=None, reads_label=False, public=True, drop=drop)

    @property
    def left_behind(self) -> frozenset[str]:
        """Names of columns with a role, which are not carried along unless they are dropped."""
        return frozenset(self.roles) - frozenset(self.drop)

    @property
    def aside(self) -> tuple[str, ...]:
        """Names of columns that are not features."""
        return (*self.roles, *self.drop)


class Block(NamedTuple):
    """Consecutive rows of a file.

    Attributes:
      embeddings: Real numbers `[b, f]` as stored, or raw records `[b, ...]`; None if none were
        asked for.
      labels: Labels `[b]` as stored; None if none were asked for.
      persons: Numbers, text or bytes `[b]` that tell whose a record is; None for a missing one.
        Defaults to None.
    """

    embeddings: np.ndarray | None
    labels: np.ndarray | None
    persons: np.ndarray | None = None


class Layout(NamedTuple):
    """Names, shapes and types of a file's columns, from its head or schema alone.

    Attributes:
      features: Names of the columns of the features, or none if they have no names.
      empty: Block of no rows, in the shapes and types of the others. Features in columns have their
        names, and not their types.
      typed: Whether columns have types. Without, all fields are text. Defaults to True.
      names: Names of all columns, or none if the format has arrays. Defaults to none.
      declares: Whether the file tells which columns it has. Defaults to True.
      classes: Names of the class numbers among the labels, as `datasets` declares them. Defaults to
        none.
      arrays: Names of the arrays of an archive. Defaults to none.
      values: Numbers that the file declares as names of the classes. Defaults to none.
    """

    features: tuple[str, ...]
    empty: Block
    typed: bool = True
    names: tuple[str, ...] = ()
    declares: bool = True
    classes: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


class FormatError(ValueError):
    """Error for a file that is sound, but holds something else than is asked for."""


class AbsentError(FormatError):
    """Error for a file that has no array or column of a name."""


def suffixes() -> dict[str, str]:
    """Return the name of the format for each suffix, from the files of this folder."""
    found: dict[str, str] = {}
    for name in registered(__path__):
        found |= dict.fromkeys(importlib.import_module(f"{__name__}.{name}").SUFFIXES, name)
    return found


def of(suffix: str) -> ModuleType | None:
    """Return the format of a suffix such as `.npz`, in small letters, or None if there is none."""
    name = suffixes().get(suffix)
    return None if name is None else importlib.import_module(f"{__name__}.{name}")


def suffix_of(name: str) -> str:
    """Return the suffix of a format, in small letters, without that of a compression.

    >>> suffix_of("s3://bucket/A.CSV.gz")
    '.csv'
    """
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if is_compressed(name) else path.suffix


def is_compressed(name: str) -> bool:
    """Return whether a file is compressed, by its name."""
    return PurePosixPath(name.lower()).suffix in COMPRESSED


def refuse_compression(name: str) -> None:
    """Raise FormatError if a file's name ends as one of a compression that cannot be read here.

    Args:
      name: Path or URL.
    """
    from fsspec.utils import compressions

    suffix = PurePosixPath(name.lower()).suffix
    if suffix in COMPRESSED and suffix.removeprefix(".") not in compressions:
        what = "zstd" if suffix == ".zst" else suffix
        raise FormatError(
            f"Expected a file compressed by gzip, bzip2 or xz, got one by {what} ({suffix}), which "
            f"cannot be read here; decompress it, as by {what} -d, or compress it by gzip."
        )


def absent(names: Sequence[str], found: Sequence[str]) -> AbsentError:
    """Return the error for absent arrays or columns.

    Args:
      names: Names that are absent, in order.
      found: Names that are there.
    """
    instead = ""
    if LABELS in names:
        instead = ", or in rknn label and check name their file with --private-labels"
    elif EMBEDDINGS in found:
        instead = f", or in rknn embed --keep {names[0]} and name another --out"
    instead += nested(names, found)
    what = "an array or column" if len(names) == 1 else "arrays or columns"
    return AbsentError(
        f"Expected {what} {', '.join(map(repr, names))}, found {', '.join(found) or 'none'}; "
        "name one of these if it is meant, or rename or add "
        f"{'it' if len(names) == 1 else 'them'}{instead}."
    )


def nested(names: Iterable[str], found: Sequence[str]) -> str:
    """Return that absent names are keys in objects, such as `doc.text` of `doc`, or "".

    Args:
      names: Names that are absent.
      found: Names that are there.
    """
    outer = dict.fromkeys(name.partition(".")[0] for name in names if "." in name)
    held = [repr(name) for name in outer if name in found]
    return f"; keys in {', '.join(held)} are no columns: {FLATTEN}" if held else ""


def refuse_absent(names: Iterable[str], found: Sequence[str]) -> None:
    """Raise AbsentError if columns are absent, with the names of all of them.

    Args:
      names: Names of columns that are asked for.
      found: Names of the columns of the file.
    """
    known = {*found}
    missing = [name for name in dict.fromkeys(names) if name not in known]
    if missing:
        raise absent(missing, found)


@contextmanager
def clear_errors(where: str) -> Iterator[None]:
    """Turn whatever a damaged or absent file raises into a ValueError that names the file.

    Args:
      where: Argument and name of the file, such as `--private R.npz`.
    """
    try:
        yield
    except MemoryError as error:
        raise ValueError(
            f"{where} needs more memory at once than there is ({error}); it is damaged, or write "
            "it in smaller parts."
        ) from error
    except FormatError as error:
        raise type(error)(f"{where}: {error}") from error
    except NotImplementedError as error:  # a type that pyarrow cannot convert
        raise ValueError(
            f"{where} holds a type that cannot be read ({error}); save numbers as float32 and text "
            "as plain strings."
        ) from error
    except ImportError as error:
        raise ValueError(f"{where} needs a package that is not installed: {error}") from error
    except SystemError as error:  # of Python itself: gh-106905, in headers of NumPy files
        raise ValueError(
            f"{where} could not be read this time ({error}), which says nothing of the file; try "
            "again, or use Python 3.11.8 or later, which parses in several threads at once."
        ) from error
    except Exception as error:  # a damaged file fails in many ways
        if isinstance(error, OSError) and error.strerror:
            raise ValueError(
                f"{where} could not be opened: {error.strerror}; name a file that can be read."
            ) from error
        if "pickle" in str(error):
            raise ValueError(
                f"{where} is no NumPy file or holds pickled Python objects, which are never loaded "
                "because that can run code; save numbers, and labels as class numbers or as text "
                "by labels.astype(str)."
            ) from error
        reason = " ".join(str(error).split()) or type(error).__name__
        url = where.partition(" ")[2]
        direct = "://" in url and "::" not in url
        cached = f", or read it through a cache, as simplecache::{url}" if direct else ""
        raise ValueError(
            f"{where} could not be read ({reason}); it is damaged, incomplete or laid out "
            f"otherwise, so write it anew{cached}."
        ) from error
