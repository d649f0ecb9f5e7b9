"""Charts as SVG in the colors of the page, and their axes."""

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from scipy import special

from rknn_jax.report.pages import COLOURS

INK = {name: light for name, (light, dark) in COLOURS.items()}
"""Light colors of a chart, which are then replaced by the page's CSS variables."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "text.color": INK["ink"],
    "axes.edgecolor": INK["line"],
    "axes.labelcolor": INK["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK["line"],
    "grid.linewidth": 0.6,
    "xtick.color": INK["muted"],
    "ytick.color": INK["muted"],
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def epsilon_axis(axes: Axes, epsilons: Sequence[float]) -> Callable[[float], float]:
    """Make the horizontal axis logarithmic with infinity at its end.

    Returns:
      Map of an epsilon to its place on the axis.
    """
    finite = [epsilon for epsilon in epsilons if 0 < epsilon < math.inf] or [1.0]
    low = min(finite) / 1.6
    high = max(finite) * 1.6
    infinity = high * (high / low) ** 0.1
    axes.set_xscale("log")
    axes.set_xlim(low, infinity * (high / low) ** 0.07)
    axes.axvline(high, color=INK["muted"], linewidth=0.8, linestyle=(0, (1, 3)))
    axes.xaxis.set_major_locator(
        FixedLocator(
            [*(10.0**power for power in range(-6, 4) if low <= 10.0**power <= high), infinity]
        )
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: "∞" if value > high else f"{value:g}")
    )
    axes.set_xlabel("ε")
    return lambda epsilon: infinity if math.isinf(epsilon) else max(epsilon, low)


def accuracy_axis(axes: Axes, values: Sequence[float | None], name: str) -> None:
    """Stretch the vertical axis towards 100%, because the differences are there."""
    log_odds = special.logit(shown([value for value in values if value is not None]))
    low, high = special.expit([log_odds.min() - 0.4, log_odds.max() + 0.4])
    marks = [
        0.002,
        0.005,
        0.01,
        0.02,
        0.05,
        0.1,
        0.2,
        0.35,
        0.5,
        0.65,
        0.8,
        0.9,
        0.95,
        0.98,
        0.99,
        0.995,
        0.998,
    ]
    marks = [mark for mark in marks if low <= mark <= high]
    axes.set_yscale("logit")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(marks if len(marks) > 1 else [low, high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))
    axes.set_ylabel(name)


def shown(accuracy: Any) -> np.ndarray:
    """Keep accuracies off 0 and 1, which the stretched axis does not have."""
    clipped: np.ndarray = np.clip(accuracy, 0.001, 0.999)
    return clipped


def chart(name: str, draw: Callable[[Axes], None]) -> Markup:
    """Return a chart as SVG with the colors and fonts of the page."""
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        draw(figure.subplots())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Drop ids such as line2d_7, which no link uses and every chart repeats.
    svg = re.sub(r' id="[^"]*_\d{1,4}"', "", svg)
    for colour, light in INK.items():
        svg = svg.replace(light, f"var(--{colour})")
    return Markup(svg)  # safe, because matplotlib escapes all text
