"""Input of a release: public rows, private shards and classes, and the checks of its settings.

Private rows are counted by `rknn_jax.release.counting`, once everything else is known.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from rknn_jax import discriminant
from rknn_jax._internal import ranges, urls
from rknn_jax._internal.disk import is_below, walk
from rknn_jax._internal.option_names import option
from rknn_jax.formats import Columns, Layout
from rknn_jax.formats._data_files import Found, find
from rknn_jax.formats._same_files import identities, refuse_same
from rknn_jax.neighbors import Metric
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.guarantee import LARGE_EPSILON
from rknn_jax.question import Before
from rknn_jax.records import classes as sets
from rknn_jax.records import features, labels, persons
from rknn_jax.records.classes import Classes
from rknn_jax.release import (
    embedding_models,
    engines,
    known_classes,
    label_advice,
    person_columns,
    public_rows,
    tables,
)
from rknn_jax.release.counting import num_persons
from rknn_jax.release.embedding_models import EmbeddingModel
from rknn_jax.release.encoding import Chain, Encoding, Scaling
from rknn_jax.release.shards import (
    ArrayShard,
    ArrowShard,
    FileShard,
    Records,
    Shard,
    with_one_order,
)
from rknn_jax.release.tables import ROWS_AT_ONCE
from rknn_jax.release.usable import UsableShard

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

ASSUMED_CLASSES = 10
"""Number of classes that a dry run assumes if none are given.

A dry run reads no private labels, and its results depend on the logarithm of this number.
"""


@dataclass(frozen=True)
class Data:
    """Input of a release.

    Attributes:
      public: float32 `[m, f]`.
      private: Private records, which are not read yet.
      classes: Set of labels, taken as public.
      skipped: Files in the private folders that hold no records of their own. Defaults to none.
      encode: Map of each private record alone, such as an encoder of raw records or a scaling.
        Defaults to None, for rows that are used as they are.
      digest: Fingerprint of the public rows as read. Defaults to "", that of `public`.
      num_persons: Number of persons with records. Defaults to None, if records are protected or
        the number is private.
      model: Model of the embeddings, as the public card tells it. Defaults to None, if there is no
        card.
      others: Columns of the public rows that have no role, such as the source row, `[m]` by their
        names. Defaults to none.
      reading: How labels are read as classes, by the type of their column, or "" if it is plain.
      names: Names of the columns of features, in their order, or none if they have no names.
      doubts: Sentences on public columns that may be no features, on columns that may be in
        another order on the other side, and on private ones that are named like persons. Defaults
        to none.
      before: Labels of the round before. Defaults to None, in a first round.
    """

    public: np.ndarray
    private: Records
    classes: Classes
    skipped: tuple[str, ...] = ()
    encode: Encoding | None = None
    digest: str = ""
    num_persons: int | None = None
    model: EmbeddingModel | None = None
    others: Mapping[str, np.ndarray] = field(default_factory=dict)
    reading: str = ""
    names: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    before: Before | None = None


def check(settings: "Settings") -> None:
    """Raise ValueError for settings that are wrong for any data and any labeler."""
    engines.named(settings.engine)
    ranges.check(settings)
    settings.columns.read()
    if settings.epsilon > LARGE_EPSILON and not settings.allow_large_epsilon:
        raise ValueError(
            f"Expected {option('epsilon')} of at most {LARGE_EPSILON:g}, got {option('epsilon')} "
            f"{settings.epsilon:g}, which protects nobody; choose one "
            f"below 10, or pass {option('allow_large_epsilon')} if the records need no protection."
        )


def read(settings: "Settings", private: Sequence[Shard] | None = None) -> Data:
    """Read and check the public rows, and open the private shards.

    Of the private records, the number of rows is read, and their labels if the classes are inferred
    from them.

    Args:
      settings: Settings of the release.
      private: Shards of the private records, such as `shards.ArrowShard`. Defaults to the files
        that the settings name.

    Raises:
      ValueError: If the files or the classes cannot be used.
    """
    wanted = settings.columns.read(raw=settings.representation is not None)
    asked = wanted._replace(reads_label=False, person=None)
    found = (
        Found([], []) if private is not None else find(_listed(settings.private), option("private"))
    )
    public_files = find(_listed(settings.public), option("public")).files
    given = found.files if private is None else _once(private)
    _refuse_private_as_public(public_files, given)
    _refuse_ledger(settings, given)
    shown = wanted._replace(reads_label=False).of_public()
    of_public = [FileShard(one, option("public"), shown) for one in public_files]
    of_private = [FileShard(one, option("private"), asked) for one in found.files]
    of_labels = tables.file_shards(settings.private_labels or (), option("private_labels"), asked)
    every = [*of_public, *of_private, *of_labels, *(private or ())]
    tables.refuse_unknown(settings.columns.drop, every)
    classes = known_classes.find(settings, found.files if private is None else private)
    num_classes = ASSUMED_CLASSES if classes is None else classes.count
    public = public_rows.read(settings, shown, num_classes)
    width = public.features.shape[1]
    columns = wanted._replace(width=width)
    if private is None:
        own = private_shards(found.files, columns, settings.private_labels)
        files = with_one_order(own, public.names)
        if settings.dry_run:
            files = [replace(one, columns=one.columns._replace(reads_label=False)) for one in files]
        private = files
    elif not asked.raw:  # else lists of another length would be an error
        private = [_with_width(shard, width) for shard in private]
    records = Records.of(private)
    if not len(records) and settings.relation == "replace-one":
        raise ValueError(
            f"Expected embeddings [n > 0, f > 0] in {option('private')} "
            f"{_words(settings.private)}, got no row, and {option('relation')} replace-one takes "
            "their number as public; save one row a record, or hide the number by "
            f"{option('relation')} add-remove."
        )
    model = None
    if public.encode is None:
        model = embedding_models.find(public_files, found.files, public.features.shape[1])
    asked_width = None if public.encode else width
    layouts = [_check_layout(one, asked_width, classes, settings) for one in records.shards]
    for shard, layout in zip(records.shards, layouts, strict=True):
        if public.encode is not None and layout.empty.embeddings is not None:
            public.encode.check_types(layout.empty.embeddings, shard.where)
    readings = [label_advice.reading_of(layout, classes) for layout in layouts]
    by_order = ""
    if asked_width is not None and not wanted.embedding:
        by_order = public_rows.unnamed_sides(public.names, layouts, width)
    persons_of = "" if wanted.person else person_columns.unnamed(layouts, wanted.label)
    if classes is None:
        inferred = not settings.dry_run and settings.infer_classes
        classes = _inferred(private) if inferred else _assumed(settings)
    counts_persons = settings.unit == "person" and settings.relation == "replace-one"
    data = Data(
        public.features,
        records,
        classes,
        skipped=tuple(found.skipped),
        encode=public.encode,
        digest=public.digest,
        num_persons=_num_persons(private) if counts_persons else None,
        model=model,
        others=public.others,
        reading=next(filter(None, readings), ""),
        names=public.names,
        doubts=(*public.doubts, *filter(None, [by_order, persons_of])),
    )
    return standardized(data) if settings.standardize else data


def standardized(data: Data) -> Data:
    """Return the data with features centered and scaled, column by column.

    Means and standard deviations are those of the public rows. They are applied to the private
    records one by one, when their votes are counted. Fingerprints are those of the rows as read, so
    the ledger stays that of the same people.

    Args:
      data: Public rows and private records, not scaled yet.
    """
    return _mapped(data, Scaling.learned(data.public))


def taught(data: Data, before: Before, metric: Metric) -> Data:
    """Return the data of a later round, with features that the labels of the last one teach.

    They are learned on public rows and their labels, and applied to the private records one by one,
    when their votes are counted.

    Args:
      data: Public rows and private records as they were read, or scaled.
      before: Labels of the round before.
      metric: Metric of the features. Those of the result are squared Euclidean.

    Raises:
      ValueError: If the labels are of other rows or classes.
    """
    shape = (len(data.public), data.classes.count)
    if before.probabilities.shape != shape:
        raise ValueError(
            f"Expected labels of {shape[0]:,} public rows and {shape[1]} classes in the round "
            f"before, got {before.probabilities.shape}; name another {option('out')} for these "
            "settings."
        )
    learned = discriminant.learned(data.public, before.probabilities, metric)
    return replace(_mapped(data, learned), before=before._replace(metric=metric))


def _mapped(data: Data, then: Callable[[Any], Any]) -> Data:
    """Return the data with features that are mapped, each record by itself."""
    public = then(data.public)
    digest = data.digest or fingerprint(data.public)
    width = public.shape[1]
    if data.encode is not None:
        encode = replace(data.encode, encode=Chain(data.encode.encode, then), width=width)
        return replace(data, public=public, encode=encode, digest=digest)
    own = data.public.shape[1]
    shards = tuple(UsableShard(shard, own) for shard in data.private.shards)
    return replace(
        data,
        public=public,
        private=Records(shards, data.private.rows),
        encode=Encoding(then, data.public[:1], width),
        digest=digest,
    )


def _num_persons(private: Sequence[Shard]) -> int:
    """Return the number of persons, which is public if one's content may be replaced.

    It is at least 1: whether any record names a person decides nothing.
    """
    return max(1, num_persons(private))


def _assumed(settings: "Settings") -> Classes:
    """Return the classes of a dry run that knows none.

    Raises:
      ValueError: In a release.
    """
    if not settings.dry_run:
        raise ValueError(
            f"Expected {option('classes')}, got none; name all classes, or pass "
            f"{option('infer_classes')} to read them from the private labels, which epsilon does "
            "not cover."
        )
    return Classes(max(ASSUMED_CLASSES, settings.labels_per_record or 1), source="assumed")


def data_of(
    public: np.ndarray,
    private: np.ndarray,
    labels: np.ndarray | None,
    classes: Classes,
    persons: np.ndarray | None = None,
) -> Data:
    """Return the data of a release from arrays. A private record with a row of NaN casts no vote.

    Args:
      public: float32 `[m, f]`.
      private: float32 `[n, f]`.
      labels: int32 `[n]`, private, `MISSING` if a record has no label; None in a dry run.
      classes: Set of labels.
      persons: `[n]`, whose the records are. Defaults to None, if records are protected.
    """
    shard = ArrayShard("the private rows", private, labels, persons)
    number = None if persons is None else _num_persons([shard])
    return Data(public, Records.of([shard]), classes, num_persons=number)


def private_shards(
    files: list[str], columns: Columns, private_labels: str | Sequence[str] | None = None
) -> list[FileShard]:
    """Return the private files, each with the file of its labels.

    Args:
      files: Private files.
      columns: Columns to read.
      private_labels: Files of the labels. Defaults to None, for labels in `files`.

    Raises:
      ValueError: If labels are missing, or it is not clear which belong to which file or record.
    """
    if private_labels is None:
        if columns.reads_label:
            for name in files:
                tables.check_labels_named(name, separate=False)
        return [FileShard(name, option("private"), columns) for name in files]
    labels = find(_listed(private_labels), option("private_labels")).files
    if len(labels) != len(files):
        raise ValueError(
            f"Expected a file of {option('private_labels')} for each of {len(files)} files of "
            f"{option('private')}, got {len(labels)}; name them in the same order."
        )
    stems = [[PurePosixPath(name).stem for name in side] for side in (files, labels)]
    listed = not isinstance(private_labels, str) and len(private_labels) > 1
    if len(files) > 1 and stems[0] != stems[1] and not listed:
        raise ValueError(
            f"Expected files of the same names in {option('private')} and "
            f"{option('private_labels')}, got {stems[0][0]} and {stems[1][0]}; rename them, or "
            "list the files of both in one order."
        )
    pairs = zip(files, labels, strict=True)
    found = [FileShard(name, option("private"), columns, of_labels) for name, of_labels in pairs]
    for shard in found:
        shard.refuse_named_labels()
    return found


def _with_width(shard: Shard, width: int) -> Shard:
    """Return a shard whose columns of lists have the width of the public rows."""
    if not isinstance(shard, ArrowShard) or shard.columns.width is not None:
        return shard
    return replace(shard, columns=shard.columns._replace(width=width))


def _check_layout(
    shard: Shard, width: int | None, classes: Classes | None, settings: "Settings"
) -> Layout:
    """Return the layout, or raise ValueError for absent columns or another shape or type.

    No row is read: neither labels nor what a record holds decide anything.

    Args:
      shard: Private shard.
      width: Number of dimensions f of the public rows, or None for raw records.
      classes: Set of classes, if it is known.
      settings: Settings of the release.
    """
    if isinstance(shard, FileShard):  # also in a dry run, which reads no labels
        shard = replace(shard, columns=shard.columns._replace(reads_label=True))
    layout = shard.layout()
    found = layout.empty
    if found.embeddings is not None and width is not None:
        features.check_types(found.embeddings, width, shard.where)
    if found.persons is not None:
        persons.person_names(found.persons, shard.where)
    if found.labels is None:
        return layout
    if classes is not None:
        most = settings.labels_per_record
        most = most and min(most, classes.count)  # the labeler refuses more
        labels.check_types(found.labels, classes, most, shard.where, typed=layout.typed)
    elif settings.labels_per_record is None:
        labels.plain(found.labels, shard.where)
    return layout


def _inferred(private: Sequence[Shard]) -> Classes:
    """Return the classes that occur among the private labels, which epsilon does not cover."""
    found = [
        np.unique(labels.plain(block, shard.where))
        for shard in private
        for block in shard.labels(ROWS_AT_ONCE)
    ]
    kinds = {block.dtype.kind for block in found}
    if len(kinds) > 1:
        raise ValueError(
            f"Expected labels of one kind in all files of {option('private')}, got numbers and "
            "text; save them alike."
        )
    return sets.infer_classes(np.unique(np.concatenate(found)))


def _once(shards: Sequence[Shard]) -> list[str]:
    """Return the files among shards from Python; ValueError if records are given twice."""
    files = [shard.name for shard in shards if isinstance(shard, FileShard)]
    refuse_same(files, option("private"))
    held = [(shard.name, shard.table) for shard in shards if isinstance(shard, ArrowShard)]
    held += [(shard.name, shard.embeddings) for shard in shards if isinstance(shard, ArrayShard)]
    names: dict[int, str] = {}
    for name, table in held:
        if id(table) in names:
            raise ValueError(
                f"Expected every table of {option('private')} once, got one as {names[id(table)]} "
                f"and as {name}; pass it once, because its records would count twice."
            )
        names[id(table)] = name
    return files


def _refuse_private_as_public(public: list[str], private: list[str]) -> None:
    """Raise ValueError if a file is on both sides."""
    known = {identity for name in public for identity in identities(name)}
    both = [name for name in private if identities(name) & known]
    if both:
        raise ValueError(
            f"Expected {option('public')} to hold public data, got the private file {both[0]}; "
            "bring data that is public."
        )


def _refuse_ledger(settings: "Settings", private: Sequence[str]) -> None:
    """Raise ValueError if the ledger is among the private files, as its lines would be records."""
    ledger = settings.spending.ledger
    named = set() if ledger is None else identities(str(ledger))
    if any(identities(name) & named for name in private):
        raise ValueError(
            f"Expected {option('ledger')} outside of {option('private')}, got {option('ledger')} "
            f"{ledger} among its files; name the files of records alone, or move the "
            "ledger."
        )


def refuse_inside(folder: Path, settings: "Settings") -> None:
    """Raise ValueError if results would lie among the private files and be read as such."""
    for name in _listed(settings.private):
        local = urls.local_path(name)
        if local is not None and _would_hold(local, os.path.realpath(folder)):
            raise ValueError(
                f"Expected {option('out')} outside of the private files {name}, got {folder}, "
                "whose labels would be read as records; name another."
            )


def _would_hold(private: str, folder: str) -> bool:
    """Return whether a private folder or pattern names files that will lie in another folder."""
    if os.path.isdir(private):
        return any(is_below(folder, os.path.realpath(place)) for place, _ in walk(private))
    parts = ("", "/round-1")
    made = (f"{folder}{part}/{name}.npz" for part in parts for name in ("labels", "queries"))
    return urls.would_match(private, made)


def _listed(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _words(names: str | Sequence[str]) -> str:
    return ", ".join(_listed(names))
