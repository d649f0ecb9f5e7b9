"""`rknn inspect`: a finished release in the terminal, or its page made again."""

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tyro.conf import Positional

from rknn_jax._internal import progress
from rknn_jax._internal.terminal import err, out, tell
from rknn_jax.report.text import percent, shortened

if TYPE_CHECKING:
    from rich.console import Console

    from rknn_jax.report.results import ClassRow, Results, Row

MOST_ROWS = 10
"""Most rows that are worth a second look in the terminal."""

MOST_CLASSES = 40
"""Most classes in the terminal."""

WORDS = ("class", "label", "next class", "classes", "least stable class")
"""Columns of words."""


@dataclass(frozen=True)
class Inspect:
    """Show a finished release: labels of each class, their stability, warnings, and rows worth a second look.

    The folder's released files are all that is read, so it costs no privacy.

    Attributes:
      folder: folder that rknn label, rknn serve or train.distill wrote.
      out: write the release as a page, such as report.html, instead of the tables.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    folder: Positional[Path]
    out: Path | None = None
    json: bool = False


def run(settings: Inspect) -> dict[str, Any]:
    """Show a release or write its page, and return what `--json` prints."""
    with progress.phase("loading"):
        from rknn_jax._internal.disk import write_text
        from rknn_jax.report import release, results
    found = results.read(settings.folder)
    if settings.out is not None and settings.out.exists() and settings.out.name != release.REPORT:
        raise ValueError(
            f"Expected --out to be a new file or a {release.REPORT}, got --out {settings.out}, "
            "which exists; name another."
        )
    if settings.out is not None and not settings.out.parent.is_dir():
        raise ValueError(
            f"Expected --out in a folder that exists, got --out {settings.out}; make its folder."
        )
    classes = results.class_rows(found)
    rows = results.second_look(found, MOST_ROWS)
    concerns = found.summary.concerns if found.summary else ()
    told = err if settings.json else out
    if settings.out is None:
        _show(told, settings.folder, found, classes, rows)
    else:
        statement = os.path.relpath(settings.folder / release.STATEMENT, settings.out.parent)
        write_text(settings.out, release.page(found, link=quote(statement)))
        tell(told, "page", str(settings.out))
    return {
        "num_rows": len(found.label),
        "num_doubtful": int(found.doubtful.sum()),
        "measured": found.measured and found.measured.asdict(),
        **found.shares,
        "classes": [one._asdict() for one in classes],
        "concerns": [asdict(one) for one in concerns],
        "rows": [one._asdict() for one in rows],
        "statement": found.card["statement"],
        **({} if settings.out is None else {"files": {"page": str(settings.out)}}),
    }


def _show(
    told: "Console",
    folder: Path,
    found: "Results",
    classes: "Sequence[ClassRow]",
    rows: "Sequence[Row]",
) -> None:
    from rknn_jax.report.advice import advise
    from rknn_jax.report.release import headline
    from rknn_jax.report.results import MEANINGS

    tell(told, "release", headline(found))
    advice = advise(found)
    command = advice.command.replace(" . ", f" {shlex.quote(str(folder))} ")  # it is run from here
    tell(told, "advice", f"{advice.verdict} {advice.reason} {command}")
    if found.measured is not None:
        tell(told, "measured", str(found.measured))
    for name, share in found.shares.items():
        word, meaning = MEANINGS[name]
        tell(told, word, f"about {percent(share)} {meaning}")
    for concern in found.summary.concerns if found.summary else ():
        tell(told, "warning", str(concern))
    largest = sorted(classes, key=lambda one: -one.labels)[:MOST_CLASSES]
    rest = len(classes) - len(largest)
    left_out = f"; {rest:,} with fewer labels are left out" if rest else ""
    tell(told, "classes", f"{len(classes):,}{left_out}")
    names = ("class", "labels", "votes", "noise", "stability", "doubtful")
    _table(told, names, map(_class, largest))
    shown = f"; the {len(rows)} least stable" if rows else ""
    words = f"{int(found.doubtful.sum()):,} labels are below 95% stability{shown}"
    if "stability" not in found.shares:
        words = "unknown: no released number tells how sure a label is"
    tell(told, "doubtful", words)
    if rows:
        own, other = ("label", "next class")
        if found.sets is not None:
            own, other = ("classes", "least stable class")
        names = ("row", own, "stability", "probability", other, "query")
        _table(told, names, map(_row, rows))
    tell(told, "privacy", found.card["statement"])


def _table(told: "Console", names: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a table, with words on the left of their columns and numbers on the right."""
    listed = [tuple(names), *lines]
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    aligns = ["<" if name in WORDS else ">" for name in names]
    for line in listed:
        cells = zip(line, aligns, widths, strict=True)
        padded = [f"{cell:{align}{width}}" for cell, align, width in cells]
        told.print("  " + "  ".join(padded).rstrip())


def _class(one: "ClassRow") -> tuple[str, ...]:
    return (
        _name(one.name),
        f"{one.labels:,}",
        "–" if one.votes is None else f"{one.votes:,.0f}",
        "–" if one.noise is None else f"± {one.noise:,.0f}",
        "–" if one.stability is None else percent(one.stability),
        "–" if one.stability is None else f"{one.doubtful:,}",
    )


def _row(one: "Row") -> tuple[str, ...]:
    return (
        str(one.row),
        _name(one.label),
        "–" if one.stability is None else percent(one.stability),
        percent(one.probability),
        "–" if one.rival is None else _name(one.rival),
        str(one.query) if one.query >= 0 else "–",
    )


def _name(name: str) -> str:
    """Return a class's name as it may be printed: a name could hold a terminal's commands."""
    return shortened(name if name.isprintable() else ascii(name), 30)
