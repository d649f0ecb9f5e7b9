"""`rknn check`: private records that cannot be used, counted for the curator."""

import unicodedata
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from rknn_jax._internal import progress
from rknn_jax._internal.ranges import Count
from rknn_jax._internal.terminal import err, out, sure_interrupts, tell
from rknn_jax.settings import GivenClasses, NamedColumns

if TYPE_CHECKING:
    from rknn_jax.release.usability import Usability

SHOWN = 20
"""Most classes and foreign labels that the terminal shows."""


@dataclass(frozen=True)
class Check:
    """Count the private records that a release could not use, by reason, for the curator only.

    A release never says what private records contain, so with misspelt classes it spends the budget and returns noise. This command finds such mistakes first. Its output is private. It spends nothing and writes nothing. Use the same options as for rknn label.

    Attributes:
      private: private embeddings and labels, in files, folders, patterns or URLs.
      public: public embeddings, if the columns or the number of dimensions follow from them.
      private_labels: files of the private labels, if the private files do not contain them.
      columns: columns of the records.
      labels_per_record: largest number of labels that count for each record, if records may have several.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    private: Positional[tuple[str, ...]]
    public: str | tuple[str, ...] | None = None
    private_labels: str | tuple[str, ...] | None = None
    columns: NamedColumns = field(default_factory=NamedColumns)
    labels_per_record: Count | None = None
    classes: GivenClasses = field(default_factory=GivenClasses)
    json: bool = False


def run(settings: Check) -> dict[str, Any]:
    """Count the records, print the counts, and return what `--json` prints.

    Raises:
      ValueError: If the settings or the files as a whole cannot be used.
    """
    with progress.phase("loading"):
        from rknn_jax.formats._data_files import find
        from rknn_jax.records import public_values
        from rknn_jax.release import embedding_models, known_classes, public_rows, tables, usability
        from rknn_jax.release.inputs import private_shards
        from rknn_jax.release.shards import with_one_order
        from rknn_jax.release.widths import with_one_width
    if not settings.private:
        raise ValueError(
            "Expected private records, got none; name a file or a folder first, as in rknn check "
            "PRIVATE --public PUBLIC, since an option of several names takes all that follow it."
        )
    columns = settings.columns.read()
    with progress.phase("reading the private records"), sure_interrupts():
        files = find(settings.private, "PRIVATE").files
        classes = known_classes.find(settings, files)
        if classes is None:
            raise ValueError("Expected --classes or --classes-file, got none; name all classes.")
        own = private_shards(files, columns, settings.private_labels)
        shown = columns.of_public()
        others = tables.file_shards(settings.public or (), "--public", shown)
        tables.refuse_unknown(settings.columns.drop, [*own, *others])
        order: tuple[str, ...] = ()
        rows = None
        named: tuple[str, ...] = ()
        doubts: tuple[str, ...] = ()
        if settings.public is not None:
            rows, order = tables.read_named_embeddings(settings.public, "--public", shown)
            columns = columns._replace(width=rows.shape[1])
            named = embedding_models.feature_names([one.name for one in others])
            if columns.embedding is None:
                told = public_values.doubted(rows.T, order)
                doubts = tuple(f"public columns {sentence}" for sentence in told)
        own = [replace(shard, columns=columns) for shard in own]
        shards = with_one_width(with_one_order(own, order))
        if rows is not None and columns.embedding is None:
            layouts = [shard.own_layout() for shard in shards]
            by_order = public_rows.unnamed_sides(order, layouts, rows.shape[1])
            beside = ""
            if not order:
                held = tables.read_others(settings.public or (), "--public", shown)
                beside = public_rows.lists_alone(held, settings.columns.embedding)
            doubts = (*doubts, *filter(None, [by_order, beside]))
        with warnings.catch_warnings():  # broken records are counted by reason
            warnings.filterwarnings("ignore", message="(?s).*cast no vote")
            found = usability.examine(
                shards, classes, settings.labels_per_record, public=rows, names=named
            )
    sentences = (f"{text[0].upper()}{text[1:]}." for text in doubts)
    found = found._replace(advice=(*found.advice, *sentences))
    _tell(found, err if settings.json else out)
    return found._asdict()


def _tell(found: "Usability", told: Any) -> None:
    tell(told, "records", f"{found.records:,}, of which {found.usable:,} can be used")
    if found.persons is not None:
        tell(told, "persons", f"{found.persons:,}")
    for name, number in list(found.classes.items())[:SHOWN]:
        tell(told, "class", f"{_shown(name)}: {number:,}")
    for reason, number in found.reasons.items():
        tell(told, "unusable", f"{number:,}: {reason}")
    most = sorted(found.foreign.items(), key=lambda pair: -pair[1])
    for text, number in most[:SHOWN]:
        near = _near_miss(text, found.near[text]) if text in found.near else ""
        tell(told, "foreign", f"{_shown(text)}: {number:,}{near}")
    for sentence in found.advice:
        tell(told, "advice", sentence)
    if len(most) > SHOWN:
        tell(told, "foreign", f"{len(most) - SHOWN:,} further labels")
    tell(
        told,
        "privacy",
        "these counts are private: show them to nobody who may not see the records. Nothing was "
        "spent, and nothing was written.",
    )


def _near_miss(text: str, name: str) -> str:
    """Return what to do about a label that is spelled like a class.

    >>> _near_miss("CAT", "cat")
    "; did you mean 'cat'?"
    """
    if unicodedata.normalize("NFC", text) != unicodedata.normalize("NFC", name):
        return f"; did you mean {_shown(name)}?"
    return (
        f"; it looks like class {_shown(name)}, and is {text!a} where the class is "
        f"{name!a}: the same letters in other Unicode characters. Normalize labels and "
        "classes alike, as by unicodedata.normalize('NFC', label)"
    )


def _shown(text: str) -> str:
    return repr(text) if text.isprintable() else ascii(text)
