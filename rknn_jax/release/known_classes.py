"""Classes that are known before a record is read: named by the user, or by the private files."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rknn_jax._internal.option_names import option
from rknn_jax.formats import Columns, Layout, feather, npz, parquet, suffix_of
from rknn_jax.formats._data_files import find as find_files
from rknn_jax.records import classes as sets
from rknn_jax.records.classes import Classes
from rknn_jax.records.features import MOST_NAMED
from rknn_jax.records.labels import agree
from rknn_jax.release import tables
from rknn_jax.release.shards import ArrowShard, FileShard, Shard
from rknn_jax.settings import GivenClasses, NamedColumns

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
    held = next(_held(private), None) if len(private) == 1 else None
    if held is not None:
        return replace(held[0], source="declared")
    names = declared(private, label, apart)
    return Classes(len(names), names, source="declared") if len(names) > 1 else None


def _held(private: Sequence[str] | Sequence[Shard]) -> Iterator[tuple[Classes, str]]:
    """Yield the classes of the array `classes` of each .npz file that has one, and its path."""
    for file in private:
        if isinstance(file, str) and os.path.isfile(file):
            held = tables.read_classes(Path(file))
            if held is not None:
                yield held, file


def _check_given(
    given: Classes,
    private: Sequence[str] | Sequence[Shard],
    label: str,
    private_labels: str | Sequence[str] | None,
) -> None:
    """Refuse names of classes where the names that files declare say that others are meant.

    No row is read, and a file that cannot be used is refused by whoever reads it.

    Raises:
      ValueError: If the names have nothing in common, or a number would be of one class in one file
        and of another in another, or numbers apart from their names would count in another order.
    """
    shards = _of_labels(private, label, private_labels)
    try:
        layouts = {shard.where: shard.layout() for shard in shards}
    except (ValueError, OSError):
        return
    # A number that is a name has its own place.
    in_place = tuple(map(str, range(given.count)))
    numbered = {
        where: in_place if layout.values else layout.classes
        for where, layout in layouts.items()
        if _has_numbers(layout) and (given.is_counted or not layout.values)
    }
    several = {(layout.classes, layout.values): where for where, layout in layouts.items()}
    for (names, values), where in several.items():
        if not agree(given, names, values):
            raise ValueError(
                f"Expected some of the names of class numbers in {where}, "
                f"{', '.join([*names, *values][:MOST_NAMED])}, got {option('classes')} "
                f"{','.join((given.names or ())[:MOST_NAMED])}; write them alike, or leave the "
                "names out there."
            )
    if given.is_counted:  # numbers are classes, whatever their names are
        _check_same({where: names for where, names in numbered.items() if names})
    elif given.counts_from_0 and not given.numerals and () in numbered.values():
        # Numbers with names are classes by these, and others by the order of the classes.
        _check_same({where: names or given.names or () for where, names in numbered.items()})
    if private_labels is not None and () in numbered.values():
        _check_order(given, private)


def _has_numbers(layout: Layout) -> bool:
    """Return whether labels may be class numbers, by their type."""
    labels = layout.empty.labels
    is_text = labels is None or (labels.dtype.kind == "U" and layout.typed)
    return bool(layout.classes) or not is_text


def _check_order(given: Classes, private: Sequence[str] | Sequence[Shard]) -> None:
    """Refuse classes in another order than archives of records have whose labels are apart.

    Raises:
      ValueError: If the order is another one, or two archives have different ones.
    """
    named = [(held.names, file) for held, file in _held(private) if held.names]
    if given.names:
        named.insert(0, (given.names, option("classes")))
    for names, file in named[1:]:
        order, whose = named[0]
        if names != order:
            raise ValueError(
                f"Expected the classes in the order of 'classes' in {file}, whose numbers may be "
                f"in {option('private_labels')}, got {whose} {','.join(order[:MOST_NAMED])}; name "
                "all of them in its order, or leave it out there."
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
    layouts = {shard.where: shard.layout() for shard in shards}
    found = {where: layout.classes for where, layout in layouts.items() if _has_numbers(layout)}
    _check_same(found)
    return next(iter(found.values()), ())


def _check_same(found: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse files of which a class number has two meanings.

    Args:
      found: Names of the class numbers in each file, by its name.

    Raises:
      ValueError: If they are not the same.
    """
    places: dict[tuple[str, ...], str] = {}
    for where, names in found.items():
        places.setdefault(names, where)
    if len(places) > 1:
        first, second, *_ = places.values()
        raise ValueError(
            f"Expected the same names of classes in all files, got others in {second} than in "
            f"{first}; write all files with the same names in the same order, or labels as text in "
            "a format with types, such as Parquet."
        )


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
