"""Classes that are known before a record is read: named by the user, or by the private files."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rknn_jax._internal.option_names import option
from rknn_jax.formats import Columns, feather, npz, parquet, suffix_of
from rknn_jax.formats._data_files import find as find_files
from rknn_jax.records import classes as sets
from rknn_jax.records.classes import Classes
from rknn_jax.records.features import MOST_NAMED
from rknn_jax.records.labels import agree
from rknn_jax.release import tables
from rknn_jax.release.shards import ArrowShard, FileShard, Shard
from rknn_jax.settings import GivenClasses, NamedColumns

MOST_CHECKED = 256
"""Files whose declared names are compared with the classes."""

DECLARING = (*parquet.SUFFIXES, *feather.SUFFIXES, *npz.SUFFIXES)
"""Suffixes of files that may declare the names of class numbers, without a row."""


class Named(Protocol):
    """Settings that name classes and labels, as those of a release."""

    @property
    def classes(self) -> GivenClasses:
        """Classes that the user names."""

    @property
    def columns(self) -> NamedColumns:
        """Columns of the labels."""

    @property
    def private_labels(self) -> str | tuple[str, ...] | None:
        """Files of the labels, if the private files do not hold them."""


def find(settings: Named, private: Sequence[str] | Sequence[Shard]) -> Classes | None:
    """Return the classes that the user or the private files name, or None.

    A .npz file may hold an array `classes`, a single one also their number. Files of `datasets`
    declare the names of their class numbers.

    Args:
      settings: Settings that name classes and labels.
      private: Private files, or shards.

    Raises:
      ValueError: If they are no classes, or files declare different ones.
    """
    given = sets.given_classes(settings.classes.classes, settings.classes.classes_file)
    label, apart = settings.columns.label, settings.private_labels
    if given is not None:
        _check_given(given, private, label, apart)
        return given
    held = _held(private)
    if held is not None:
        return replace(held, source="declared")
    names = declared(private, label, apart)
    return Classes(len(names), names, source="declared") if len(names) > 1 else None


def _held(private: Sequence[str] | Sequence[Shard]) -> Classes | None:
    """Return the classes of the array `classes` of a single .npz file, or None."""
    files = [one for one in private if isinstance(one, str)]
    single = len(files) == 1 and os.path.isfile(files[0])
    return tables.read_classes(Path(files[0])) if single else None


def _check_given(
    given: Classes,
    private: Sequence[str] | Sequence[Shard],
    label: str,
    private_labels: str | Sequence[str] | None,
) -> None:
    """Refuse names of classes where the names that a file declares say that none is meant.

    No row is read, and a file that cannot be used is refused by whoever reads it.

    Raises:
      ValueError: If the names have nothing in common, or numbers apart from their names would count
        in another order.
    """
    shards = _of_labels(private, label, private_labels)[:MOST_CHECKED]
    try:
        layouts = [shard.layout() for shard in shards]
    except (ValueError, OSError):
        return
    for shard, layout in zip(shards, layouts, strict=True):
        if not agree(given, layout.classes):
            raise ValueError(
                f"Expected some of the names of class numbers in {shard.where}, "
                f"{', '.join(layout.classes[:MOST_NAMED])}, got {option('classes')} "
                f"{','.join((given.names or ())[:MOST_NAMED])}; write them alike, or leave the "
                "names out there."
            )
    held = None if private_labels is None else _held(private)
    if held is not None and held.names and given.names and held.names != given.names:
        raise ValueError(
            f"Expected the classes in the order of 'classes' in {private[0]}, whose numbers may be "
            f"in {option('private_labels')}, got {option('classes')} {','.join(given.names)}; "
            "name them in its order, or leave it out there."
        )


def declared(
    private: Sequence[str] | Sequence[Shard],
    label: str,
    private_labels: str | Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Return the names of the classes that the schemas of all files declare, or none.

    No row is read.

    Args:
      private: Private files, or shards.
      label: Name of the labels' column.
      private_labels: Files of the labels. Defaults to None, for labels in `private`.

    Raises:
      ValueError: If files declare different names, so that a number has two meanings.
    """
    shards = [
        shard
        for shard in _of_labels(private, label, private_labels)
        if isinstance(shard, ArrowShard) or suffix_of(shard.name) in DECLARING
    ]
    found = {shard.where: shard.layout().classes for shard in shards}
    different = list(dict.fromkeys(found.values()))
    if len(different) > 1:
        places = [next(where for where in found if found[where] == names) for names in different]
        raise ValueError(
            f"Expected the same names of classes in all files, got others in {places[1]} than in "
            f"{places[0]}; write all files with one ClassLabel feature, or name them by "
            f"{option('classes')}."
        )
    return different[0] if different else ()


def _of_labels(
    private: Sequence[str] | Sequence[Shard],
    label: str,
    private_labels: str | Sequence[str] | None,
) -> list[FileShard | ArrowShard]:
    """Return the files of the labels, of which the labels alone are read."""
    columns = Columns((), label)
    argument = option("private")
    if private_labels is not None:
        argument = option("private_labels")
        listed = [private_labels] if isinstance(private_labels, str) else private_labels
        private = find_files(listed, argument).files
    shards: list[FileShard | ArrowShard] = []
    for one in private:
        if isinstance(one, str):
            shards.append(FileShard(one, argument, columns))
        elif isinstance(one, ArrowShard):
            shards.append(replace(one, columns=columns))
    return shards
