"""Page of a release: `release.html.j2` holds its text and order, and this file its content.

The page is made from the release's own files, so it can be made again at any time. It is at most
`LARGEST` bytes, whatever the number of rows, queries and classes.
"""

import json
from pathlib import Path
from typing import Any

import jinja2

from rknn_jax._internal.disk import write_text
from rknn_jax.answers.measured import Interval
from rknn_jax.privacy.guarantee import rounded_up
from rknn_jax.report import figures, pages
from rknn_jax.report.advice import advise
from rknn_jax.report.results import (
    MEANINGS,
    SUMMARY,
    Results,
    class_rows,
    gaps,
    second_look,
)
from rknn_jax.report.text import epsilon_text, percent, shortened

REPORT = "report.html"
STATEMENT = "privacy.html"

LARGEST = 2_000_000
"""Most bytes of a page."""

MOST_CLASSES = 500
"""Most classes in the table."""

MOST_ROWS = 50
"""Most rows that are worth a second look."""

MOST_GAPS = 20
"""Most queries in the table of gaps."""

MOST_NAMED = 30
"""Most classes that the map names."""


def write(
    folder: Path, results: Results, template: jinja2.Template | None = None, **others: Any
) -> None:
    """Write `summary.json`, if there is one, and the page.

    Args:
      folder: Folder of the release.
      results: Released quantities.
      template: Template, as for `page`. Defaults to `release.html.j2`.
      **others: Content of the template's own blocks.
    """
    if results.summary is not None:
        told = json.dumps(results.summary.asdict(), allow_nan=False)
        write_text(folder / SUMMARY, told + "\n")
    write_text(folder / REPORT, page(results, template, **others))


def page(
    results: Results,
    template: jinja2.Template | None = None,
    link: str = STATEMENT,
    **others: Any,
) -> str:
    """Return the page of a release as HTML that loads nothing.

    Args:
      results: Released quantities.
      template: Template that extends `release.html.j2`. Defaults to that one.
      link: Address of the privacy statement. Defaults to the page's own folder.
      **others: Content of the template's own blocks.
    """
    rows = second_look(results, MOST_ROWS)
    bands = figures.bands(results)
    found = gaps(results)
    smallest = sorted(found, key=lambda one: one.gap / one.noise)[:MOST_GAPS]
    classes = class_rows(results)
    largest = sorted(classes, key=lambda one: -one.labels)[:MOST_CLASSES]
    clouds = figures.clouds(results)
    names = [shortened(name) for name in results.classes]
    made = (template or pages.template("release.html.j2")).render(
        title=title(results),
        tiles=tiles(results),
        advice=advise(results),
        card=results.card,
        link=link,
        summary=results.summary,
        shares=[
            *_measured(results),
            *(
                (word, percent(results.shares[name]), meaning)
                for name, (word, meaning) in MEANINGS.items()
                if name in results.shares
            ),
        ],
        num_classes=len(classes),
        classes=sorted(largest, key=lambda one: one.number),
        counted=results.counts is not None,
        sets=results.sets is not None,
        unlabeled=int((results.label < 0).sum()),
        bands=bands,
        bands_sentence=_bands_sentence(results),
        recalls=_recalls(results),
        bands_words=", ".join(f"{band.text}%: {band.rows:,} rows" for band in bands),
        band_rows=[(band.text, f"{band.rows:,}", percent(band.share)) for band in bands],
        gaps=figures.gap_chart(found),
        gaps_words=_gaps_words(len(found), sum(one.gap < 2 * one.noise for one in found)),
        gaps_caption=f"The {len(smallest)} queries with the smallest gaps of {len(found):,}",
        gap_rows=[
            (
                one.query,
                names[one.first],
                "half of the votes" if one.second is None else names[one.second],
                f"{one.votes:,.0f}",
                f"{one.gap:,.0f}",
                f"± {one.noise:,.0f}",
                f"{one.rows:,}",
            )
            for one in smallest
        ],
        clouds=clouds,
        map_words=_map_words(sum(len(one.dots) for one in clouds), len(results.label)),
        rows=rows,
        rows_caption=f"The {len(rows)} least stable of {int(results.doubtful.sum()):,} doubtful "
        "labels; rows count from 0",
        hue=figures.hue,
        most_named=MOST_NAMED,
        **others,
    )
    return made.encode(errors="replace").decode()


def title(results: Results) -> str:
    """Return the heading of a release."""
    return f"{len(results.label):,} public rows, labeled by private records"


def headline(results: Results) -> str:
    """Return the sentence with the number that matters most."""
    guarantee = results.card["guarantee"]
    price = f"at ε = {epsilon_text(guarantee['epsilon'])} for one {guarantee['unit']}"
    if results.measured is not None:
        return f"{results.measured}, {price}."
    for name, share in results.shares.items():
        return f"About {percent(share)} {MEANINGS[name][1]}, {price}."
    return f"Labels were released {price}; no released number tells how sure they are."


def tiles(results: Results) -> list[tuple[str, str, str]]:
    """Return name, value and words of what decides on the use of the labels, in that order."""
    guarantee = results.card["guarantee"]
    total = len(results.label)
    doubtful = int(results.doubtful.sum())
    unit = guarantee["unit"]
    delta = f"δ = {rounded_up(guarantee['delta'], 2)}, " if guarantee["delta"] else ""
    found = [
        _measured_tile(results),
        (
            "Privacy spent",
            f"ε = {epsilon_text(guarantee['epsilon'])}",
            f"{delta}for one {unit}, {guarantee['relation']}",
        ),
        (
            "Labels",
            f"{int(results.labeled.sum()):,}",
            f"of {total:,} public rows, in {len(results.classes):,} classes",
        ),
    ]
    if len(results.stability):
        share = percent(doubtful / max(total, 1))
        found.append(("Doubtful", f"{doubtful:,}", f"{share} of the labels: noise may decide them"))
    return found


def _measured_tile(results: Results) -> tuple[str, str, str]:
    """Return how many labels are right, as measured, or by whose opinion."""
    measured = results.measured
    if measured is not None:
        low, high = round(100 * measured.low), round(100 * measured.high)
        words = f"Measured on {measured.checkers:,} private {measured.unit}s that did not vote"
        return "Labels that are right", f"{measured.right:.0%}", f"{low} to {high}. {words}"
    expected = results.shares.get("expected_accuracy")
    if expected is None:
        return "Labels that are right", "unknown", "No private record checked them"
    opinion = "Guessed by the decoder from votes alone; nobody measured it: check some by hand"
    return "Labels that may be right", f"≈ {percent(expected)}", opinion


def _bands_sentence(results: Results) -> str:
    """Return what the distribution of stability shows."""
    total = int(results.labeled.sum())
    doubtful = int(results.doubtful.sum())
    share = percent(doubtful / max(total, 1))
    return f"{doubtful:,} of {total:,} labels ({share}) are below 95%, and are drawn in red."


def _measured(results: Results) -> list[tuple[str, str, str]]:
    """Return rows of the table of shares: the measure, and the recall of each class."""
    found = results.measured
    if found is None:
        return []
    rows = [("measured", _interval(found.share), found.meaning)]
    if found.majority is not None:
        words = "of the private records have the most frequent class"
        rows.append(("majority", f"about {percent(found.majority)}", words))
    return rows


def _recalls(results: Results) -> list[str]:
    """Return the measured recall of each class, or nothing if it was not measured."""
    return [_interval(one) for one in results.measured.recall] if results.measured else []


def _interval(found: Interval) -> str:
    return f"{percent(found.right)} ({percent(found.low)} to {percent(found.high)})"


def _gaps_words(num_queries: int, num_doubtful: int) -> str:
    return (
        f"{num_queries:,} queries; {num_doubtful:,} of them have a gap of less than twice the "
        "standard deviation of its noise"
    )


def _map_words(num_drawn: int, num_rows: int) -> str:
    rows = f"All {num_rows:,} public rows"
    if num_drawn < num_rows:
        rows = f"{num_drawn:,} of {num_rows:,} public rows, drawn at random,"
    return f"{rows} by the first two principal components of their embeddings, colored by label."
