"""Places of the marks on the charts of a release, which `parts.html.j2` draws as SVG.

Charts are `WIDTH` units wide, so that text stays readable on a telephone.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rknn_jax.report.results import Gap, Results

WIDTH = 480
HEIGHT = 280
LEFT = 52
BOTTOM = 44
TOP = 28
"""Size of a chart, and its margins for the words at its axes."""

BANDS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
"""Edges of the bands of stability. The last band includes 1."""

STEPS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000, 1_000_000)
"""Gaps that the axis names, in standard deviations of their noise."""

MOST_GAPS = 1000
"""Most queries on the chart of gaps: those with the smallest gaps."""

HUE = 137.508
"""Degrees between the hues of two classes. Multiples of the golden angle stay apart."""


class Tick(NamedTuple):
    """Number at an axis.

    Attributes:
      place: Place on the axis.
      text: Number, as text.
    """

    place: float
    text: str


class Band(NamedTuple):
    """Band of stability, with its bar.

    Attributes:
      text: Edges in percent.
      rows: Public rows in it.
      share: Their share of all rows.
      doubtful: True if labels of the band are marked as doubtful.
      x, y, width, height: Bar.
    """

    text: str
    rows: int
    share: float
    doubtful: bool
    x: float
    y: float
    width: float
    height: float


class Dot(NamedTuple):
    """Dot on a chart.

    Attributes:
      x, y: Place.
      text: Words about it.
      doubtful: True if it is marked.
      sure: Stability in percent, for the filter of the page.
    """

    x: float
    y: float
    text: str
    doubtful: bool
    sure: int = 100


class Scatter(NamedTuple):
    """Dots between two axes.

    Attributes:
      dots: Dots.
      across: Numbers at the horizontal axis.
      up: Numbers at the vertical axis.
      limit: Place on the horizontal axis up to which dots are marked.
    """

    dots: list[Dot]
    across: list[Tick]
    up: list[Tick]
    limit: float


class Cloud(NamedTuple):
    """Dots of one class on the map.

    Attributes:
      number: Number of the class; -1 for rows without a label.
      name: Name of the class.
      dots: Dots.
    """

    number: int
    name: str
    dots: list[Dot]


def bands(results: Results) -> list[Band]:
    """Return the distribution of stability, or nothing if it is unknown."""
    sure = results.confidence[results.labeled & ~np.isnan(results.confidence)]
    if not len(sure):
        return []
    place = np.clip(np.searchsorted(BANDS, sure, side="right") - 1, 0, len(BANDS) - 2)
    counts = np.bincount(place, minlength=len(BANDS) - 1).tolist()
    step = WIDTH / len(counts)  # bars need no vertical axis, because they bear their shares
    unit = (HEIGHT - BOTTOM - TOP) / max(counts)
    found = []
    for i, count in enumerate(counts):
        text = f"{100 * BANDS[i]:.0f}–{100 * BANDS[i + 1]:.0f}"
        x = (i + 0.1) * step
        y = HEIGHT - BOTTOM - count * unit
        doubtful = BANDS[i + 1] <= 0.95
        found.append(
            Band(
                text,
                count,
                count / len(sure),
                doubtful=doubtful,
                x=x,
                y=y,
                width=0.8 * step,
                height=count * unit,
            )
        )
    return found


def gap_chart(found: Sequence[Gap]) -> Scatter | None:
    """Return each query's gap in units of its noise against its rows; None without queries."""
    shown = sorted(found, key=lambda one: one.gap / one.noise)[:MOST_GAPS]
    if not shown:
        return None
    far = max(math.asinh(shown[-1].gap / shown[-1].noise), math.asinh(STEPS[3]))
    tall = max(1, *(one.rows for one in shown))

    def across(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 12) * math.asinh(value) / far

    def up(rows: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * rows / tall

    dots = [
        Dot(
            across(one.gap / one.noise),
            up(one.rows),
            f"query {one.query}: {one.gap:,.0f} votes, {one.gap / one.noise:.1f} times the noise; "
            f"{one.rows:,} rows",
            one.gap < 2 * one.noise,
        )
        for one in shown
    ]
    steps = [Tick(across(step), f"{step:,}") for step in STEPS if math.asinh(step) <= far]
    heights = [Tick(up(rows), f"{rows:,}") for rows in sorted({0, tall // 2, tall})]
    return Scatter(dots, steps, heights, across(2))


def clouds(results: Results) -> list[Cloud]:
    """Return the map of the public rows, a cloud a class, or nothing without a map."""
    if results.summary is None or not results.summary.rows:
        return []
    rows = np.array(results.summary.rows)
    places = np.array(results.summary.places)
    half = WIDTH / 2
    x = half + (half - 8) * places[:, 0]
    y = half - (half - 8) * places[:, 1]
    found = []
    for number in np.unique(results.label[rows]).tolist():
        name = results.classes[number] if number >= 0 else "no label"
        mine = np.flatnonzero(results.label[rows] == number)
        dots = [_place(results, int(rows[i]), float(x[i]), float(y[i])) for i in mine]
        found.append(Cloud(number, name, sorted(dots, key=lambda dot: dot.doubtful)))
    return found


def hue(number: int) -> int:
    """Return the hue of a class in degrees."""
    return round(215 + number * HUE) % 360


def _place(results: Results, row: int, x: float, y: float) -> Dot:
    sure = results.confidence[row]
    if np.isnan(sure):
        return Dot(x, y, f"row {row}", False)
    percent = int(100 * sure)
    return Dot(
        x, y, f"row {row}, stability {percent}%", doubtful=bool(results.doubtful[row]), sure=percent
    )
