"""`rknn embed`: embeddings of images, text and tables, in files that `rknn label` reads."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rknn_jax._internal import progress
from rknn_jax._internal.checks import check_together
from rknn_jax._internal.terminal import err, sure_interrupts, tell
from rknn_jax.cli import embed_images
from rknn_jax.cli.embed_settings import NAMED, Embed, check, label_among, refuse_absent

# JAX and pyarrow take seconds to import, and --help needs none of them.
if TYPE_CHECKING:
    from rknn_jax.embedding import Model, Source
    from rknn_jax.embedding.run import Written

_OWN = re.compile(r"'[^']*'|\"[^\"]*\"|<[^>]*>|\d+")
"""Parts of a reason that are one record's own, such as the name of its file."""

MANY = 10
MANY_SHARE = 0.01
"""Least number and share of private records with other bytes of which the curator is told."""


def run(settings: Embed) -> dict[str, Any]:
    """Embed the records, and return what `--json` prints.

    Raises:
      ValueError: If the settings, the model or the records cannot be used.
    """
    with progress.phase("loading"):
        from rknn_jax.embedding import cards
        from rknn_jax.embedding import run as job
    check(settings)
    with progress.phase("reading the records"), sure_interrupts():
        source, model = embed_images.source_of(settings) if settings.images else _columns(settings)
    with progress.phase("embedding", len(source), "rows") as done, sure_interrupts():
        done.kept(settings.out)
        try:
            written = job.embed(
                source, model, settings.out, private=settings.private, advance=done.advance
            )
        except KeyboardInterrupt as error:
            error.add_note("The same command goes on.")
            raise
    card = cards.card_path(settings.out)
    _tell(settings, written, card)
    if not settings.private and job.all_same(settings.out):
        _tell_same(written.card["rows"])
    _tell_curator(settings, model, written.card["rows"])
    if settings.card is not None and not settings.private and job.has_labels(settings.out):
        tell(
            err,
            "public",
            "these records have labels and were embedded as public ones; if they are private, "
            "pass --private, which keeps the file for its owner and tells nobody what they hold",
        )
    return {
        "files": {"embeddings": str(settings.out), "card": str(card)},
        "rows": written.card["rows"],
        "dimensions": model.width,
        # What a log keeps says nothing of private records; the owner reads it on the terminal.
        "unusable": None if settings.private else len(written.unusable),
        "truncated": None if settings.private else written.truncated,
        "model": written.card["model"],
    }


def _columns(settings: Embed) -> tuple["Source", "Model"]:
    """Return a file of columns and the model of its text or features."""
    from rknn_jax.embedding import cards, rows, table, table_files, table_fit, text, text_vectors
    from rknn_jax.records import features

    kind = "table" if settings.table else "text"
    path = settings.table or settings.text
    assert path is not None
    found = table_files.names(path, f"--{kind}")
    declared = table_files.declares_names(path, f"--{kind}", private=settings.private)
    label = label_among(settings, found, declared=declared)
    if declared:
        features.refuse_unknown(settings.drop, [found])
    aside = {settings.label, *settings.keep, *settings.drop}
    known = cards.given(settings.card, kind)
    model: Model
    if kind == "text":
        columns = text.columns_of(settings.columns, known, f"--card {settings.card}")
        _check_columns(settings, path, kind, columns=columns, label=label)
        name = settings.model or known.get("path") or text_vectors.DEFAULT
        model = text.ColumnsModel(text.load(name), columns)
        cards.check_same(known, model.card, name)
    elif known:
        model = table.of_card(known)
        columns = tuple(column.name for column in model.columns)
        _check_columns(settings, path, kind, columns=columns, label=label)
    else:
        columns = settings.columns or tuple(name for name in found if name not in aside)
        _check_columns(settings, path, kind, columns=columns, label=label)
        model = fitted = table_fit.fit(path, f"--{kind}", columns, chosen=bool(settings.columns))
        for sentence in fitted.told:
            tell(err, "warning", sentence)
    if dropped := sorted({*settings.drop} & {*columns}):
        raise ValueError(
            f"Expected --drop as for the public table, got {dropped}, which are columns of --card "
            f"{settings.card}; embed the public table with --drop too, or leave it out."
        )
    if label in columns:
        card = "" if settings.card is None else f" of --card {settings.card}, which saw no label"
        raise ValueError(
            f"Expected features without the label, got --label {label}, which is among the columns"
            f"{card}; embed the public {kind} with --label {label} too, or without the column."
        )
    source = rows.TableFile(
        path,
        f"--{kind}",
        columns,
        label=label,
        keep=settings.keep,
        private=settings.private,
        texts=kind == "text",
    )
    labeled = "without labels" if label is None else f"with labels {label!r}"
    read = model.roles if isinstance(model, table.TableModel) else f"texts {', '.join(columns)}"
    tell(err, "read", f"{len(source):,} rows; {read}; {labeled}")
    _tell_order([one.name for one in table_files.files(path, f"--{kind}")], source.name_column)
    if not declared:
        _tell_unseen(found, source.wanted)
    elif settings.private:
        _tell_persons(settings, found, {*columns})
    return source, model


def _tell_unseen(found: Sequence[str], wanted: Sequence[str]) -> None:
    """Tell the curator which columns no first record of private JSON lines has."""
    from rknn_jax.formats import nested

    if absent := [name for name in wanted if name not in found]:
        tell(
            err,
            "private",
            f"no record at the beginning has {', '.join(map(repr, absent))}; the records have "
            f"{', '.join(found[:NAMED]) or 'no keys'}{nested(absent, found)} (tell nobody)",
        )


def _tell_persons(settings: Embed, found: Sequence[str], features: set[str]) -> None:
    """Tell which columns of a private table may name persons, and are left behind."""
    from rknn_jax.records.persons import find_columns

    if named := find_columns(found, {settings.label, *settings.keep, *features}):
        tell(
            err,
            "persons",
            f"columns {named[:NAMED]} are named as if they told whose a record is; to name one in "
            f"rknn label --person, bring it along with --keep {named[0]}",
        )


def _tell_order(files: Sequence[str], column: str) -> None:
    """Tell in which order files are read, if there are several."""
    if len(files) > 1:
        more = f" and {len(files) - NAMED:,} more" if len(files) > NAMED else ""
        named = f"{', '.join(files[:NAMED])}{more}"
        tell(err, "order", f"{named}; {column!r} counts on from file to file, from 0")


def _check_columns(
    settings: Embed, path: Path, kind: str, columns: tuple[str, ...], label: str | None
) -> None:
    """Raise ValueError for absent columns of a table or of text, all at once.

    Args:
      settings: Settings of the command.
      path: File, folder or pattern.
      kind: `table` or `text`.
      columns: Names of the columns that a model reads.
      label: Name of the column of labels, or None.
    """
    from rknn_jax.embedding import rows, table_files

    if not table_files.declares_names(path, f"--{kind}", private=settings.private):
        return
    found = table_files.names(path, f"--{kind}")
    check_together(
        lambda: rows.TableFile(path, f"--{kind}", columns),
        lambda: refuse_absent(settings, found, f"--{kind} {path}", label),
    )


def _tell(settings: Embed, written: "Written", card: Path) -> None:
    model = written.card["model"]
    tell(err, "model", f"{model['name']}, {model['width']} dimensions, {model['sha256'][:16]}")
    if written.resumed:
        tell(err, "resumed", f"{written.resumed:,} rows were there already")
    unusable = written.unusable
    if unusable:
        what = (
            "private records stay as rows that cast no vote; tell nobody how many"
            if settings.private
            else "records are left out"
        )
        tell(err, "unusable", f"{len(unusable):,} {what}: {_by_cause(unusable)}")
    if written.truncated:
        secret = "; tell nobody how many" if settings.private else ""
        tell(
            err,
            "truncated",
            f"{written.truncated:,} texts are longer than the model takes, and end at its "
            f"{model['input']['max_length']} tokens{secret}",
        )
    tell(err, "files", f"{settings.out} ({written.card['rows']:,} rows), {card}")
    tell(
        err,
        "privacy",
        "nothing was spent, since each record is embedded by itself; epsilon does not cover a "
        "model that has seen the private records",
    )


def _by_cause(unusable: dict[str, str]) -> str:
    """Return how many records cannot be used for each cause, with an example.

    Args:
      unusable: Why records cannot be used, by their names.
    """
    causes: dict[str, list[str]] = {}
    for name, reason in unusable.items():
        causes.setdefault(_OWN.sub("", reason), []).append(name)
    most = sorted(causes.values(), key=len, reverse=True)
    told = [f"{len(names):,} as {names[0]} ({unusable[names[0]]})" for names in most[:NAMED]]
    rest = sum(map(len, most[NAMED:]))
    return "; ".join([*told, *([f"{rest:,} more"] if rest else [])])


def _tell_same(rows: int) -> None:
    tell(
        err,
        "warning",
        f"all {rows:,} rows have the same features, so that no label can tell them apart; look at "
        "the records, and name another model or other columns",
    )


def _tell_encoding(settings: Embed, rows: int) -> None:
    """Tell the curator of private text files in another encoding, by the number of records."""
    from rknn_jax.embedding import table_files
    from rknn_jax.formats import _encodings
    from rknn_jax.formats._csv_records import NO_UTF8

    path = settings.text or settings.table
    if path is None:
        return
    argument = "--table" if settings.table else "--text"
    count = table_files.num_no_utf8(path, argument)
    if count >= max(MANY, MANY_SHARE * rows):
        tell(
            err,
            "private",
            f"{count:,} of {rows:,} records hold {NO_UTF8}: "
            f"{_encodings.remedy(table_files.no_utf8_lines(path, argument))} (tell nobody)",
        )


def _tell_curator(settings: Embed, model: "Model", rows: int) -> None:
    """Tell whoever embeds private columns which of their values the model cannot use."""
    from rknn_jax.embedding import table

    if settings.private:
        _tell_encoding(settings, rows)
    if not (settings.table and settings.private and isinstance(model, table.TableModel)):
        return
    for sentence in table.review(model, settings.table, "--table"):
        tell(err, "private", f"{sentence} (tell nobody)")
