"""Chart of accuracies over epsilon, a curve for each method."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ..report.charts import accuracy_axis, epsilon_axis, shown
from .methods import INF

COLOURS = {
    "rknn": "#0072b2",
    "private_knn": "#009e73",
    "pate": "#d55e00",
    "noisy_sgd": "#cc79a7",
    "dpdfd": "#888888",
    "prototypes": "#44aa99",
    "public_prototypes": "#999933",
    "least_squares": "#aa4499",
    "individual_knn": "#cc6677",
    "buy": "#e69f00",
}
"""Colors of the charts' lines by kind, visible on a light page and on a dark one."""

OTHER = "#56b4e9"
"""Color of a labeler that is not among them."""


def curves(
    rows: Iterable[dict[str, Any]], name: str | None
) -> dict[str, list[tuple[float, float, float]]]:
    """Return epsilon, mean and standard deviation of every measured point, by method.

    Args:
      rows: Rows of the comparison.
      name: Key of a row that names its accuracy, or None for the accuracy of labels.
    """
    found: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows:
        accuracy = row[row[name] if name else "label_accuracy"]
        if accuracy:
            found.setdefault(row["title"], []).append(
                (float(row["epsilon"]), accuracy["mean"], accuracy["stddev"] or 0.0)
            )
    return {title: sorted(points) for title, points in found.items()}


def draw(
    rows: Sequence[dict[str, Any]],
    name: str | None,
    what: str,
    axes: Axes,
    free: Sequence[dict[str, Any]] = (),
) -> None:
    """Draw accuracies over epsilon with bands of a standard deviation, a line for each method.

    Accuracy without noise is at the right edge. Gray lines are labels by hand.

    Args:
      rows: Rows of the comparison.
      name: Key of a row that names its accuracy, or None for the accuracy of labels.
      what: Title of the axis.
      axes: Axes to draw on.
      free: Rows of labels by hand, with no private record. Defaults to none.
    """
    lines = curves(rows, name)
    kinds = {row["title"]: row["kind"] for row in rows}
    place = epsilon_axis(axes, [point[0] for points in lines.values() for point in points])
    accuracy_axis(axes, [point[1] for points in lines.values() for point in points] or [0.5], what)
    for title, points in lines.items():
        alike = [other for other in kinds if kinds[other] == kinds[title]]
        place_among = alike.index(title) % 4
        style: dict[str, Any] = {
            "color": COLOURS.get(kinds[title], OTHER),
            "linestyle": ("-", "--", ":", "-.")[place_among],
        }
        handle = {
            "marker": "os^D"[place_among],
            "markersize": 3.5,
            "linewidth": 1.2,
            "label": title,
        }
        for part in (
            [point for point in points if point[0] < INF],
            [point for point in points if point[0] == INF],
        ):
            if part:
                x, mean, spread = np.array(
                    [(place(epsilon), mean, spread) for epsilon, mean, spread in part]
                ).T
                axes.plot(x, shown(mean), **style | handle)
                handle.pop("label", None)
                low = shown(mean - spread)
                high = shown(mean + spread)
                axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
                axes.vlines(x, low, high, color=style["color"], alpha=0.4, linewidth=0.8)
    for one, dashes in zip(free, ("--", ":"), strict=False):
        label = f"no private record: {one['labels']} labels by hand"
        height = float(shown(one["label_accuracy"]["mean"]))
        axes.axhline(height, color="#777777", linestyle=dashes, linewidth=1, label=label)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
