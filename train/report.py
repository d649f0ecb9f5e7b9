"""Report of a run: its results, its cost, and the confidence of every label.

    python -m train.report RUN_FOLDER

`write` reads the run folder alone, so a page can be written again at any time, and without access
to private data. The page is one file that loads nothing. Charts are SVG whose colors are the page's
CSS variables, so that they follow a dark screen. Pictures are PNG inside the file. `report.html.j2`
holds the text and the order, and this file computes the content.
"""

import base64
import io
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from decimal import ROUND_CEILING, Context
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import matplotlib
import numpy as np
import tyro
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from PIL import Image
from rich.console import Console
from scipy import special

from rknn_jax import bsvs
from rknn_jax._internal.disk import read_arrays, write_text
from train.experiment import GIVEN, Experiment

MOST_QUERIES_SHOWN = 60
MOST_CLASSES_IN_TABLE = 20
"""Greatest number of classes in the confusion table. Beyond it, only the largest are listed."""

MOST_NAMED = 8
"""Greatest number of wrong queries outside the noise that the chart of gaps names."""

PICTURE_SIZE = 64
"""Greatest size of a picture in pixels. Larger pictures are scaled down."""

REQUIRED = {
    "config.json": ("dataset",),
    "result.json": ("epsilon", "delta", "relation"),
    "privacy.json": ("whole", "rounds", "accountants", "covers", "does_not_cover"),
    "queries.npz": ("image", "public_index", "round", "label", "noisy_counts", "stddev", "size"),
    "labels.npz": ("label", "query"),
}
"""Entries that a run folder must hold. True labels and all other entries may be missing."""

COLOURS = {
    "ink": ("#1b1f24", "#e6e8eb"),
    "muted": ("#68707c", "#9aa3af"),
    "line": ("#dcdfe4", "#343a43"),
    "paper": ("#ffffff", "#14171b"),
    "card": ("#f6f7f9", "#1c2026"),
    "label": ("#2563eb", "#6ea2ff"),
    "student": ("#0d8a63", "#35c794"),
    "wrong": ("#d1242f", "#ff6b70"),
    "published": ("#a15c07", "#e0a030"),
}
"""Light and dark colors. Charts use the light ones, which are then replaced by CSS variables."""

INK = {name: light for name, (light, dark) in COLOURS.items()}

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

ACCOUNTANTS = {
    "pure": "epsilons add up",
    "basic": "epsilons and deltas add up",
    "analytic Gaussian": "exact, for Gaussian noise alone",
    "RDP": "Rényi divergences add up at every order",
    "PLD": "the privacy loss itself, convolved on a fine grid",
}


class Published(NamedTuple):
    """Row of Table 1 of Li et al., "Fine-grained Private Knowledge Distillation".

    Attributes:
      system: Name of the system.
      epsilon: Pure epsilon for a replaced record; infinite without noise.
      label: Accuracy of the labels, or None.
      student: Accuracy of the student, or None.
    """

    system: str
    epsilon: float
    label: float | None
    student: float | None


PUBLISHED = {
    "mnist": (
        Published("general, 40 queries", 0.1, 0.985, 0.991),
        Published("general, 40 queries", 0.04, 0.977, 0.986),
        Published("general, 40 queries", math.inf, None, 0.992),
        Published("end to end, 10 queries", 0.01, 0.975, 0.985),
        Published("end to end, 10 queries", math.inf, None, 0.987),
    ),
    "svhn_cropped": (
        Published("general, 500 queries", 0.1, None, 0.956),
        Published("general, 500 queries", 0.04, None, 0.953),
        Published("general, 500 queries", math.inf, None, 0.967),
    ),
    "cifar10": (
        Published("general, 500 queries", 1.0, 0.771, 0.821),
        Published("general, 500 queries", 0.29, 0.739, 0.794),
        Published("general, 500 queries", math.inf, None, 0.823),
        Published("end to end, 10 queries", 0.01, 0.859, 0.861),
        Published("end to end, 10 queries", 0.005, 0.857, 0.860),
        Published("end to end, 10 queries", math.inf, None, 0.862),
    ),
}
CAVEATS = {
    "mnist": (
        "The paper's test set shares 2,517 of its 5,000 images with its student's training "
        "images and it reports the best epoch; "
        "here the two are disjoint and the last epoch counts."
    ),
    "svhn_cropped": "The paper tests on 1,000 images and reports the best epoch on them; here "
    "the last epoch counts.",
    "cifar10": (
        "The paper tests on 1,000 images, 827 of them from CIFAR-10's training part, and reports "
        "the best epoch on them; "
        "here the last epoch counts."
    ),
}
"""Why the paper's accuracies are not quite comparable."""


@dataclass(frozen=True)
class Run:
    """Content of a run folder.

    Attributes:
      config: Content of config.json.
      result: Content of result.json.
      privacy: Content of privacy.json.
      metrics: One entry an epoch; empty if none finished.
      queries: Arrays of queries.npz.
      labels: Arrays of labels.npz.
      classes: Name of each class.
      declined: Number of queries that were not answered.
    """

    config: dict[str, Any]
    result: dict[str, Any]
    privacy: dict[str, Any]
    metrics: list[dict[str, Any]]
    queries: dict[str, np.ndarray]
    labels: dict[str, np.ndarray]
    classes: tuple[str, ...]
    declined: int = 0

    @property
    def wrong(self) -> np.ndarray:
        """Mask of wrong labels, bool `[num_queries]`; False if the true label is not known."""
        return self.queries["label"] != self.queries.get("true_label", self.queries["label"])

    @property
    def lead(self) -> np.ndarray:
        """Noisy counts by which each label leads its strongest rival, `[num_queries]`.

        A lead is negative if smoothing overruled the counts.
        """
        own, rival = _own_and_rival(self)
        counts = self.queries["noisy_counts"]
        row = np.arange(len(own))
        return counts[row, own] - counts[row, rival]

    @property
    def lead_stddev(self) -> np.ndarray:
        """Standard deviation of the noise in `lead`, `[num_queries]`."""
        own, rival = _own_and_rival(self)
        stddev = self.queries["stddev"]
        row = np.arange(len(own))
        return np.hypot(stddev[row, own], stddev[row, rival])

    @property
    def counts_released(self) -> bool:
        """True if there are counts to show.

        A mechanism that releases labels only has one-hot rows instead.
        """
        counts = self.queries["noisy_counts"]
        return not (
            self.queries["stddev"].max() == 0
            and np.all(counts.max(axis=1) == 1)
            and np.all(np.abs(counts).sum(axis=1) == 1)
        )


def _own_and_rival(run: Run) -> tuple[np.ndarray, np.ndarray]:
    own = run.queries["label"]
    others = run.queries["noisy_counts"].astype(np.float64)
    others[np.arange(len(own)), own] = -np.inf
    return own, others.argmax(axis=1)


def write(folder: tyro.conf.Positional[Path]) -> Path:
    """Write a run's report.html from its folder, in full or not at all.

    Args:
      folder: Run folder that train.distill wrote.

    Returns:
      Path of the page.

    Raises:
      ValueError: If a file of the folder is missing or cannot be read; the message names it.
    """
    page = render(read(folder))
    target = folder / "report.html"
    write_text(target, page)
    return target


def read(folder: Path) -> Run:
    """Read a run folder.

    Raises:
      ValueError: If a file is missing or cannot be read; the message names it.
    """
    config, result, privacy = (
        _read_json(folder / name) for name in ("config.json", "result.json", "privacy.json")
    )
    asked = _read_arrays(folder / "queries.npz")
    labels = _read_arrays(folder / "labels.npz")
    _check_queries(folder / "queries.npz", asked)
    asked["number"] = np.arange(len(asked["label"]))
    # Declined queries have neither label nor counts.
    queries = {name: array[asked["label"] >= 0] for name, array in asked.items()}
    num_classes = queries["noisy_counts"].shape[1]
    _check_classes(folder / "queries.npz", asked, -1, num_classes)
    _check_classes(folder / "labels.npz", labels, -1, num_classes)
    named = config.get("classes") or range(num_classes)
    if not isinstance(named, list | range):
        raise ValueError(f"Expected a list of classes in {folder / 'config.json'}, got {named!r}.")
    classes = tuple(map(str, named))
    if len(classes) != num_classes:
        raise ValueError(
            f"Expected {num_classes} classes in {folder / 'config.json'}, as in queries.npz, got "
            f"{len(classes)}."
        )
    declined = len(asked["label"]) - len(queries["label"])
    return Run(
        config,
        result,
        privacy,
        _read_lines(folder / "metrics.jsonl"),
        queries,
        labels,
        classes,
        declined,
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    return _complete(path, value if isinstance(value, dict) else {})


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        arrays = read_arrays(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    _complete(path, arrays)
    shapes = {name: array.shape for name, array in arrays.items()}
    if len({shape[:1] for shape in shapes.values()}) != 1 or len(shapes["label"]) != 1:
        raise ValueError(
            f"Expected arrays of one length, and label of one dimension, in {path}, got {shapes}."
        )
    return arrays


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return one dict a line. A last line without its end is skipped, as its write was cut off."""
    if not path.exists():
        return []
    try:
        lines = [
            json.loads(line)
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True)
            if line.endswith("\n")
        ]
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if not all(isinstance(line, dict) for line in lines):
        raise ValueError(f"Expected one JSON object a line in {path}.")
    return lines


def _complete(path: Path, value: dict[str, Any]) -> dict[str, Any]:
    if missing := [name for name in REQUIRED[path.name] if name not in value]:
        raise ValueError(
            f"Cannot read {path}: it lacks {', '.join(missing)}; pass a folder that a whole run "
            "of train.distill wrote."
        )
    return value


def _unreadable(path: Path, error: Exception) -> ValueError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return ValueError(
        f"Cannot read {path}: {why}; pass a folder that a whole run of train.distill wrote."
    )


def _check_queries(path: Path, queries: dict[str, np.ndarray]) -> None:
    counts = queries["noisy_counts"]
    image = queries["image"]
    if (
        counts.ndim != 2
        or counts.shape[1] < 2
        or not len(counts)
        or queries["stddev"].shape != counts.shape
    ):
        raise ValueError(
            f"Expected noisy_counts and stddev [S, C] in {path}, got {counts.shape} and "
            f"{queries['stddev'].shape}."
        )
    if image.ndim != 4 or image.dtype != np.uint8:
        raise ValueError(
            f"Expected image uint8 [S, height, width, channels] in {path}, got {image.dtype} "
            f"{image.shape}."
        )


def _check_classes(
    path: Path, arrays: dict[str, np.ndarray], lowest: int, num_classes: int
) -> None:
    for name in {"label", "true_label"} & arrays.keys():
        array = arrays[name]
        if array.dtype.kind != "i" or (
            len(array) and not lowest <= array.min() <= array.max() < num_classes
        ):
            raise ValueError(
                f"Expected {name} in {path} to be integers in [{lowest}, {num_classes}), got "
                f"{array.dtype} {array}."
            )


def render(run: Run) -> str:
    """Return the page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "epsilon": epsilon_text, "plain": plain}
    return environment.get_template("report.html.j2").render(
        run=run,
        result=run.result,
        config=run.config,
        whole=run.privacy["whole"],
        colours=COLOURS,
        odds=odds(run.privacy["whole"]),
        accountants=[
            (name, ACCOUNTANTS.get(name, ""), value)
            for name, value in run.privacy["accountants"].items()
        ],
        cards=[card(run, row) for row in order(run)[:MOST_QUERIES_SHOWN]],
        leads=leads(run),
        epochs=epochs(run),
        by_epsilon=accuracy_by_epsilon(run),
        published=published(run),
        caveat=CAVEATS.get(_benchmark(run)),
        confusion=confusion(run),
        time=time_spent(run),
        settings={
            name: _own(value)
            for name, value in run.config.items()
            if name not in ("versions", "classes", *_unused(run.config))
        },
        command=command(run),
        num_classes_in_table=MOST_CLASSES_IN_TABLE,
    )


def plain(value: Any) -> Any:
    """Format a group of settings as text."""
    return (
        ", ".join(f"{name} {plain(inner)}" for name, inner in value.items() if inner is not None)
        if isinstance(value, dict)
        else value
    )


def percent(value: float | None, digits: int = 1) -> str:
    """Format an accuracy. 100.0% stands for exactly all."""
    if value is None:
        return "not known"
    return f"{(min(100 * value, 100 - 10.0**-digits) if value < 1 else 100):.{digits}f}%"


def epsilon_text(value: Any) -> str:
    """Format an epsilon with four significant digits, rounded up; "∞" if it is infinite.

    JSON holds infinity as text.
    """
    if math.isinf(float(value)):
        return "∞"
    return (
        f"{float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(f'{float(value):.12g}')):g}"
    )


def odds(guarantee: dict[str, Any]) -> str | None:
    """Explain epsilon to the owner of one record; None if nothing is guaranteed."""
    epsilon = float(guarantee["epsilon"])
    unit = guarantee.get("unit", "record")
    if epsilon > 700:
        return None
    factor = epsilon_text(math.exp(epsilon))
    what = (
        "between any two contents of that one"
        if guarantee.get("relation") == "replace-one"
        else "of whether that one took part"
    )
    exception = f", but for a slack of δ = {guarantee['delta']:g}" if guarantee.get("delta") else ""
    return (
        f"To someone who knows every private {unit} but one, all that is covered changes the "
        f"odds {what} "
        f"by a factor of at most {factor} (e to the ε){exception}."
    )


def order(run: Run) -> np.ndarray:
    """Return the queries in the order of the page.

    They are sorted by label if all fit. Otherwise wrong ones come first, then small leads.
    """
    lead = run.lead
    if len(lead) <= MOST_QUERIES_SHOWN:
        return np.lexsort((-lead, run.queries["label"], run.queries["round"]))
    return np.lexsort((lead, ~run.wrong))


def card(run: Run, row: int) -> dict[str, Any]:
    """Return the page's content about one query."""
    queries = run.queries
    label = int(run.queries["label"][row])
    truth = int(queries["true_label"][row]) if run.wrong[row] else None
    counts = queries["noisy_counts"][row]
    return {
        "row": int(queries["number"][row]),
        "picture": picture(queries["image"][row]),
        "label": run.classes[label],
        "truth": None if truth is None else run.classes[truth],
        "size": int(queries["size"][row]),
        "round": int(queries["round"][row]) + 1,
        "public_index": int(queries["public_index"][row]),
        "bars": bars(counts, queries["stddev"][row], label, truth) if run.counts_released else None,
        "counts": ", ".join(
            f"{name}: {count:.4g}"
            for name, count in zip(run.classes, counts, strict=True)
            if abs(count) >= 0.5
        ),
        "votes": round(float(counts[label])),
    }


def picture(image: np.ndarray) -> str:
    """Return a picture `[height, width, channels]` as a data URL."""
    pixels = image if image.shape[2] in (3, 4) else image[:, :, 0]
    drawn = Image.fromarray(pixels)
    drawn.thumbnail((PICTURE_SIZE, PICTURE_SIZE))
    buffer = io.BytesIO()
    drawn.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def bars(counts: np.ndarray, stddev: np.ndarray, label: int, truth: int | None) -> dict[str, Any]:
    """Return SVG paths, 100 wide and 40 high, of the counts with error bars of the noise.

    Args:
      counts: Noisy counts `[num_classes]`.
      stddev: Standard deviation of each count's noise, `[num_classes]`, in votes.
      label: Class of the query's label.
      truth: True class of a wrong label, otherwise None.

    Returns:
      `zero`, the height of the base line; `label`, `truth` and `others`, bars; `noise`, error bars.
    """
    top = max(float((counts + stddev).max()), 0.0)
    bottom = min(float((counts - stddev).min()), 0.0)
    unit = 40 / ((top - bottom) or 1)
    step = 100 / len(counts)
    zero = top * unit
    paths = {"label": "", "truth": "", "others": "", "noise": ""}
    for position, (count, noise) in enumerate(zip(counts, stddev, strict=True)):
        kind = "label" if position == label else "truth" if position == truth else "others"
        paths[kind] += (
            f"M{(position + 0.15) * step:.4g} "
            f"{zero:.4g}v{-count * unit:.4g}h{0.7 * step:.4g}V{zero:.4g}z"
        )
        if noise:
            paths["noise"] += (
                f"M{(position + 0.5) * step:.4g} "
                f"{zero - (count - noise) * unit:.4g}v{-2 * noise * unit:.4g}"
            )
    return paths | {"zero": f"{zero:.4g}"}


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
    members = run.config.get("members", 1)
    return (
        chart("epochs", partial(_draw_epochs, known, members, _label_accuracy(run)))
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
    _accuracy_axis(axes, [*accuracy, label_accuracy], "test accuracy")
    if label_accuracy is not None:
        axes.axhline(
            float(_shown(label_accuracy)),
            color=INK["label"],
            linestyle=(0, (1, 2)),
            label=f"labels, {percent(label_accuracy)}",
        )
    for part in np.split(np.arange(len(accuracy)), first):
        (line,) = axes.plot(
            steps[part], _shown(accuracy[part]), "o-", color=INK["student"], markersize=3.5
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
    sweep = _sweep(run)
    theirs = PUBLISHED.get(_benchmark(run), ())
    values = [
        _label_accuracy(run),
        _student_accuracy(run),
        _without_noise(run),
        *(point["mean"] for point in sweep),
    ]
    values += [value for row in theirs for value in (row.label, row.student)]
    return (
        chart("epsilon", partial(_draw_by_epsilon, run, values))
        if any(value is not None for value in values)
        else None
    )


def _draw_by_epsilon(run: Run, values: Sequence[float | None], axes: Axes) -> None:
    sweep = _sweep(run)
    theirs = PUBLISHED.get(_benchmark(run), ())
    own = float(run.result["epsilon"])
    place = _epsilon_axis(
        axes, [own, *(point["epsilon"] for point in sweep), *(row.epsilon for row in theirs)]
    )
    _accuracy_axis(axes, values, "accuracy")

    def points(
        pairs: Sequence[tuple[float, float | None]],
        colour: str,
        marker: str,
        label: str,
        **style: Any,
    ) -> None:
        """Mark the (epsilon, accuracy) pairs whose accuracy is known."""
        known = [
            (place(epsilon), _shown(accuracy))
            for epsilon, accuracy in pairs
            if accuracy is not None
        ]
        if known:
            axes.plot(*zip(*known, strict=True), marker, color=INK[colour], label=label, **style)

    if sweep:
        x, mean, spread = (
            np.array([point[name] for point in sweep], float)
            for name in ("epsilon", "mean", "stddev")
        )
        axes.fill_between(
            x,
            _shown(mean - spread),
            _shown(mean + spread),
            color=INK["label"],
            alpha=0.18,
            linewidth=0,
        )
        axes.plot(
            x,
            _shown(mean),
            color=INK["label"],
            linewidth=1,
            linestyle=(0, (3, 2)),
            label="labels at other ε, not covered by any",
        )
    points(
        [(math.inf, _without_noise(run))],
        "label",
        "o",
        "labels without noise, not covered",
        fillstyle="none",
    )
    for system, marker in zip(dict.fromkeys(row.system for row in theirs), "^v", strict=False):
        rows = [row for row in theirs if row.system == system]
        points(
            [(row.epsilon, row.label) for row in rows],
            "published",
            marker,
            f"paper, {system}: labels",
            fillstyle="none",
        )
        points(
            [(row.epsilon, row.student) for row in rows],
            "published",
            marker,
            f"paper, {system}: student",
        )
    front = {"markersize": 9, "markeredgecolor": INK["paper"], "zorder": 5}
    points([(own, _label_accuracy(run))], "label", "o", "this run: labels", **front)
    points([(own, _student_accuracy(run))], "student", "D", "this run: student", **front)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _epsilon_axis(axes: Axes, epsilons: Sequence[float]) -> Callable[[float], float]:
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


def _accuracy_axis(axes: Axes, values: Sequence[float | None], name: str) -> None:
    """Stretch the vertical axis towards 100%, because the differences are there."""
    log_odds = special.logit(_shown([value for value in values if value is not None]))
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


def _shown(accuracy: Any) -> np.ndarray:
    """Keep accuracies off 0 and 1, which the stretched axis does not have."""
    return np.clip(accuracy, 0.001, 0.999)


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


def _benchmark(run: Run) -> str:
    return str(run.config["dataset"]).removeprefix("tfds:")


def _label_accuracy(run: Run) -> float | None:
    return run.result.get("label_accuracy")


def _student_accuracy(run: Run) -> float | None:
    return run.result.get("test_accuracy")


def _sweep(run: Run) -> list[dict[str, float]]:
    return (run.result.get("not_covered_by_epsilon") or {}).get("label_accuracy_by_epsilon") or []


def _without_noise(run: Run) -> float | None:
    return (run.result.get("not_covered_by_epsilon") or {}).get("nonprivate_label_accuracy")


def published(run: Run) -> list[Published]:
    """Return the paper's rows for this data set, below this run's row.

    The result is empty if the paper has none.
    """
    if run.result.get("labels_bought"):
        return []  # bought true labels are not comparable to private ones
    own = Published(
        "this run", float(run.result["epsilon"]), _label_accuracy(run), _student_accuracy(run)
    )
    theirs = PUBLISHED.get(_benchmark(run), ())
    return [own, *theirs] if theirs else []


def confusion(run: Run) -> dict[str, Any] | None:
    """Count the public records of each true label and given label.

    The result is None if true labels are not known.
    """
    if "true_label" not in run.labels:
        return None
    label = run.labels["label"]
    truth = run.labels["true_label"]
    known = label >= 0
    counts = np.zeros((len(run.classes), len(run.classes)), np.int64)
    np.add.at(counts, (truth[known], label[known]), 1)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    off = [
        (int(counts[i, j]), run.classes[i], run.classes[j])
        for i, j in zip(*np.nonzero(counts), strict=True)
        if i != j
    ]
    return {
        "counts": counts.tolist(),
        "share": share.tolist(),
        "unlabelled": int(np.sum(~known)),
        "largest": sorted(off, key=lambda entry: -entry[0])[:MOST_CLASSES_IN_TABLE],
    }


def time_spent(run: Run) -> dict[str, float] | None:
    """Split the run's seconds into the student's epochs and the rest.

    The result is None if the seconds are not known.
    """
    if (total := run.result.get("seconds")) is None:
        return None
    student = sum(entry.get("seconds", 0.0) for entry in run.metrics)
    return {
        "total": total,
        "student": student,
        "rest": max(total - student, 0.0),
        "epochs": len(run.metrics),
    }


def command(run: Run) -> list[str]:
    """Return the parts of the command that repeats the run.

    Every setting is spelled out, so that a later default does not change the run.
    """
    given = run.config | (
        {"queries": run.config["resolved_queries"]} if run.config.get("resolved_queries") else {}
    )
    # Other labelers than rknn have no mechanism option.
    unused = (
        _unused(given)
        | {"out"}
        | ({"mechanism"} if given.get("labeler", "rknn") != "rknn" else set())
    )
    given = {name: _own(value) for name, value in given.items()}
    names = [field.name for field in fields(Experiment) if given.get(field.name) is not None]
    return [
        "python -m train.distill",
        *(
            option
            for name in names
            if name not in unused
            for option in _options("", name, given[name])
        ),
    ]


def _own(value: Any) -> Any:
    """Return a labeler's settings without those that the run sets itself."""
    return (
        {name: inner for name, inner in value.items() if name not in GIVEN}
        if isinstance(value, dict)
        else value
    )


def _unused(config: dict[str, Any]) -> set[str]:
    """Return the names of the settings of other representations and labelers."""
    groups = {
        field.name for field in fields(Experiment) if isinstance(config.get(field.name), dict)
    }
    bought = (config.get("buy") or {}).get("labels")
    return groups - {config.get("representation"), config.get("labeler"), "buy" if bought else None}


def _options(group: str, name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [
            option
            for inner, given in value.items()
            for option in _options(f"{group}{name}.", inner, given)
        ]
    if isinstance(value, bool):
        return [f"--{group}{'' if value else 'no-'}{name}".replace("_", "-")]
    words = [shlex.quote(str(word)) for word in (value if isinstance(value, list) else [value])]
    return [" ".join([f"--{group}{name}".replace("_", "-"), *words])]


def cli() -> int:
    """Run from the command line. Exit status 2 means a folder that cannot be read or written."""
    console = Console(stderr=True)
    try:
        console.print(f"The report: {tyro.cli(write, description=__doc__)}", highlight=False)
    except (ValueError, OSError) as error:
        console.print("[bold red]error:[/]", end=" ")
        console.print(str(error), markup=False, highlight=False)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(cli())
