"""Charts of a run: leads against the noise, epochs, and accuracy by epsilon."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from scipy import special

from rknn_jax import bsvs
from rknn_jax.report.text import percent

from ..papers.published import PUBLISHED
from .cards import MOST_QUERIES_SHOWN
from .charts import INK, accuracy_axis, chart, epsilon_axis, shown
from .folder import Run

MOST_NAMED = 8
"""Greatest number of wrong queries outside the noise that the chart of gaps names."""


def needed_lead(mechanism: str, stddev: float, num_classes: int, flip_prob: float) -> float:
    """Return the true lead at which noise flips a label with at most this probability.

    The unit is the standard deviation of the lead's noise. All rivals trail by the lead, which is
    the worst case. The result is exact for discrete Laplace noise (`bsvs.required_gap`), and close
    for continuous one. Any other noise is taken for Gaussian, with a union bound.

    Args:
      mechanism: Name of a file of rknn_jax/mechanisms.
      stddev: Standard deviation of the noise of one count, in votes.
      num_classes: Number of classes |Y|.
      flip_prob: Probability in (0, 1/2).
    """
    if "laplace" not in mechanism:
        return float(-special.ndtri(flip_prob / (num_classes - 1)))
    scale = 0.5 / math.asinh(math.sqrt(0.5) / stddev)
    return bsvs.required_gap(scale, num_classes, flip_prob) / (math.sqrt(2) * stddev)


def leads(run: Run) -> dict[str, Any] | None:
    """Draw every query's lead against the noise; None if there is no noise to show."""
    stddev = run.lead_stddev
    if not np.all(stddev > 0):
        return None
    middle = float(np.median(stddev))
    mechanism = run.config.get("mechanism", "")
    num_classes = len(run.classes)
    needed = [
        needed_lead(mechanism, middle / math.sqrt(2), num_classes, flip_prob)
        for flip_prob in (0.1, 0.01)
    ]
    # If noise differs between queries, the unit of the axis is each query's own noise.
    in_votes = bool(np.ptp(stddev) < 1e-3 * stddev[0])
    return {
        "svg": chart(
            "leads",
            partial(
                _draw_leads, run, needed, stddev if in_votes else np.ones_like(stddev), in_votes
            ),
        ),
        "stddev": middle,
        "in_votes": in_votes,
        "needed": [lead * middle for lead in needed],
        "unsure": int(np.sum(run.lead < needed[1] * stddev)),
        "overruled": int(np.sum(run.lead < 0)),
    }


def _draw_leads(
    run: Run, needed: Sequence[float], units: np.ndarray, in_votes: bool, axes: Axes
) -> None:
    """Draw leads, and the lines of `needed` standard deviations.

    `units` is one standard deviation on the axis, `[num_queries]`.
    """
    lead = run.lead / run.lead_stddev * units
    size = run.queries["size"]
    wrong = run.wrong
    unit = float(units[0])
    low = min(-1.5 * unit, 1.2 * lead.min())
    high = 1.25 * max(lead.max(), needed[1] * unit)
    if high > 6 * needed[1] * unit:
        axes.set_xscale("symlog", linthresh=needed[1] * unit)
        axes.xaxis.set_major_locator(FixedLocator(_ticks(low, high)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(low, high)
    axes.set_ylim(0, 1.12 * max(size.max(), 1))
    axes.axvspan(low, needed[0] * unit, color=INK["wrong"], alpha=0.07, linewidth=0)
    for chance, line in zip(("10%", "1%"), needed, strict=True):
        axes.axvline(line * unit, color=INK["wrong"], linewidth=0.8, linestyle=(0, (4, 3)))
        axes.text(
            line * unit,
            1.01,
            f"{chance} flip",
            color=INK["wrong"],
            size=8,
            ha="center",
            transform=axes.get_xaxis_transform(),
        )
    if len(size) <= MOST_QUERIES_SHOWN:
        axes.hlines(size, lead - units, lead + units, color=INK["muted"], linewidth=0.6, alpha=0.5)
    axes.scatter(lead[~wrong], size[~wrong], s=28, color=INK["label"], alpha=0.75, linewidth=0)
    axes.scatter(lead[wrong], size[wrong], s=40, color=INK["wrong"], marker="X", linewidth=0)
    clearly_wrong = np.flatnonzero(wrong & (lead > needed[0] * units))
    for row in clearly_wrong[np.argsort(-lead[clearly_wrong])][:MOST_NAMED]:
        axes.annotate(
            f"q{run.queries['number'][row]}",
            (lead[row], size[row]),
            (5, 4),
            textcoords="offset points",
            color=INK["wrong"],
            size=8,
        )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.set_xlabel(
        "lead of the label, in noisy votes"
        if in_votes
        else "lead of the label, in standard deviations of its noise"
    )
    axes.set_ylabel("public records that take it")


def _ticks(low: float, high: float) -> list[float]:
    """Return 0 and round numbers between `low` and `high`.

    They suit an axis that is logarithmic away from 0.
    """
    steps = [digit * 10.0**power for power in range(-1, 8) for digit in (1, 2, 5)]
    return [
        0.0,
        *(step for step in steps if high / 40 < step < high),
        *(-step for step in steps if high / 40 < step < -low),
    ]


def epochs(run: Run) -> Markup | None:
    """Draw the student's accuracy over the epochs of all rounds; None if none finished."""
    known = [entry for entry in run.metrics if entry.get("test_accuracy") is not None]
    members = run.members
    return (
        chart("epochs", partial(_draw_epochs, known, members, run.label_accuracy))
        if known
        else None
    )


def _draw_epochs(
    metrics: Sequence[dict[str, Any]], members: int, label_accuracy: float | None, axes: Axes
) -> None:
    accuracy, rounds, epoch = np.array(
        [
            (entry["test_accuracy"], entry.get("round", 0), entry.get("epoch", 1))
            for entry in metrics
        ]
    ).T
    steps = np.arange(1, len(accuracy) + 1)
    starts = np.flatnonzero(np.diff(rounds)) + 1
    own = metrics[0].get("epochs", len(metrics)) // members  # epochs of one student
    first = np.flatnonzero((epoch - 1) % own == 0)[1:]
    accuracy_axis(axes, [*accuracy, label_accuracy], "test accuracy")
    if label_accuracy is not None:
        axes.axhline(
            float(shown(label_accuracy)),
            color=INK["label"],
            linestyle=(0, (1, 2)),
            label=f"labels, {percent(label_accuracy)}",
        )
    for part in np.split(np.arange(len(accuracy)), first):
        (line,) = axes.plot(
            steps[part], shown(accuracy[part]), "o-", color=INK["student"], markersize=3.5
        )
    name = "student" if members == 1 else f"each of {members} students by itself"
    line.set_label(f"{name}, {percent(accuracy[-1])} after the last epoch")
    for start in starts:
        axes.axvline(start + 0.5, color=INK["muted"], linewidth=0.8)
        axes.text(
            start + 0.6,
            1.01,
            f"round {rounds[start] + 1:.0f}",
            color=INK["muted"],
            size=8,
            transform=axes.get_xaxis_transform(),
        )
    axes.set_xlim(0.5, len(accuracy) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.legend(loc="lower right")


def accuracy_by_epsilon(run: Run) -> Markup | None:
    """Draw this run's accuracies beside those at other epsilons and the paper's.

    The result is None if no accuracy is known.
    """
    sweep = run.sweep
    theirs = PUBLISHED.get(run.benchmark, ())
    values = [
        run.label_accuracy,
        run.student_accuracy,
        run.label_accuracy_without_noise,
        *(point["mean"] for point in sweep),
    ]
    values += [value for row in theirs for value in (row.label, row.student)]
    return (
        chart("epsilon", partial(_draw_by_epsilon, run, values))
        if any(value is not None for value in values)
        else None
    )


def _draw_by_epsilon(run: Run, values: Sequence[float | None], axes: Axes) -> None:
    theirs = PUBLISHED.get(run.benchmark, ())
    own = float(run.result["epsilon"])
    others = [point["epsilon"] for point in run.sweep]
    place = epsilon_axis(axes, [own, *others, *(row.epsilon for row in theirs)])
    accuracy_axis(axes, values, "accuracy")
    mark = partial(_mark, axes, place)
    if run.sweep:
        _draw_sweep(run.sweep, axes)
    mark(
        [(math.inf, run.label_accuracy_without_noise)],
        "label",
        "o",
        "labels without noise, not covered",
        fillstyle="none",
    )
    for system, marker in zip(dict.fromkeys(row.system for row in theirs), "^v", strict=False):
        rows = [row for row in theirs if row.system == system]
        labels = [(row.epsilon, row.label) for row in rows]
        students = [(row.epsilon, row.student) for row in rows]
        mark(labels, "published", marker, f"paper, {system}: labels", fillstyle="none")
        mark(students, "published", marker, f"paper, {system}: student")
    front = {"markersize": 9, "markeredgecolor": INK["paper"], "zorder": 5}
    mark([(own, run.label_accuracy)], "label", "o", "this run: labels", **front)
    mark([(own, run.student_accuracy)], "student", "D", "this run: student", **front)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _draw_sweep(sweep: Sequence[dict[str, Any]], axes: Axes) -> None:
    """Draw the mean accuracy of labels at other epsilons, with a band of one deviation."""
    x = np.array([point["epsilon"] for point in sweep], float)
    mean = np.array([point["mean"] for point in sweep], float)
    spread = np.array([point["stddev"] for point in sweep], float)
    axes.fill_between(
        x, shown(mean - spread), shown(mean + spread), color=INK["label"], alpha=0.18, linewidth=0
    )
    axes.plot(
        x,
        shown(mean),
        color=INK["label"],
        linewidth=1,
        linestyle=(0, (3, 2)),
        label="labels at other ε, not covered by any",
    )


def _mark(
    axes: Axes,
    place: Callable[[float], float],
    pairs: Sequence[tuple[float, float | None]],
    color: str,
    marker: str,
    label: str,
    **style: Any,
) -> None:
    """Mark the (epsilon, accuracy) pairs whose accuracy is known."""
    known = [(epsilon, accuracy) for epsilon, accuracy in pairs if accuracy is not None]
    if known:
        x = [place(epsilon) for epsilon, _ in known]
        y = [shown(accuracy) for _, accuracy in known]
        axes.plot(x, y, marker, color=INK[color], label=label, **style)
