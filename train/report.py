"""The page to open after a run: what came out, what it cost, and how sure every label is.

    python -m train.report RUN_FOLDER

`write` reads the run folder alone, so that a page can be made again at any time and nothing private is at hand when it is. The page is
one file that loads nothing: charts are SVG whose colours are the page's CSS variables, so that they follow a dark screen, and pictures
are PNG inside it. `report.html.j2` holds the words and the order; here is what they say.
"""

import base64
import io
import json
import math
import re
import shlex
import sys
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import matplotlib
import numpy as np
import tyro
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from PIL import Image
from rich.console import Console
from scipy import optimize, stats

from train.experiment import Experiment

MOST_QUERIES_SHOWN = 60
MOST_CLASSES_IN_TABLE = 20
"""Beyond it the largest confusions are listed."""

PICTURE_SIZE = 96
"""Pixels; larger pictures are made smaller."""

REQUIRED = {
    "config.json": ("dataset",),
    "result.json": ("epsilon", "delta", "relation"),
    "privacy.json": ("whole", "rounds", "accountants", "covers", "does_not_cover"),
    "queries.npz": ("image", "public_index", "round", "label", "noisy_counts", "stddev", "size"),
    "labels.npz": ("label", "query"),
}
"""What a run folder must hold. True labels and all else may be missing."""

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
"""Light and dark; charts are drawn in the light ones, which then become CSS variables."""

STYLE = {
    "svg.fonttype": "none",
    "font.size": 9,
    "text.color": COLOURS["ink"][0],
    "text.parse_math": False,
    "axes.edgecolor": COLOURS["line"][0],
    "axes.labelcolor": COLOURS["muted"][0],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["line"][0],
    "grid.linewidth": 0.6,
    "xtick.color": COLOURS["muted"][0],
    "ytick.color": COLOURS["muted"][0],
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
    """A row of Table 1 of Li et al., "Fine-grained Private Knowledge Distillation": pure epsilon, replace-one; infinite without noise."""

    system: str
    epsilon: float
    label: float | None
    student: float


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
        "The paper's test set shares 2,517 of its 5,000 images with its student's training images and it reports the best epoch; "
        "here the two are disjoint and the last epoch counts."
    ),
    "svhn_cropped": "The paper tests on 1,000 images and reports the best epoch on them; here the last epoch counts.",
    "cifar10": (
        "The paper tests on 1,000 images, 827 of them from CIFAR-10's training part, and reports the best epoch on them; "
        "here the last epoch counts."
    ),
}
"""Why the paper's accuracies are not quite comparable."""


@dataclass(frozen=True)
class Run:
    """A run folder's contents.

    Attributes:
      config, result, privacy: as in its JSON files.
      metrics: one entry an epoch; empty where none finished.
      queries, labels: arrays of queries.npz and labels.npz.
      classes: a name for each class.
    """

    config: dict[str, Any]
    result: dict[str, Any]
    privacy: dict[str, Any]
    metrics: list[dict[str, Any]]
    queries: dict[str, np.ndarray]
    labels: dict[str, np.ndarray]
    classes: tuple[str, ...]

    @property
    def wrong(self) -> np.ndarray:
        """Bool `[num_queries]`; none is where the truth is not known."""
        return self.queries["label"] != self.queries.get("true_label", self.queries["label"])

    @property
    def lead(self) -> np.ndarray:
        """Noisy counts by which each label leads its strongest rival, `[num_queries]`; negative where smoothing overruled the counts."""
        own, rival = _own_and_rival(self)
        counts, row = self.queries["noisy_counts"], np.arange(len(own))
        return counts[row, own] - counts[row, rival]

    @property
    def lead_stddev(self) -> np.ndarray:
        """Standard deviation of the noise in `lead`, `[num_queries]`."""
        own, rival = _own_and_rival(self)
        stddev, row = self.queries["stddev"], np.arange(len(own))
        return np.hypot(stddev[row, own], stddev[row, rival])

    @property
    def counts_released(self) -> bool:
        """Whether there are counts to show: not where every row is one-hot, as of a mechanism that releases labels only."""
        counts = self.queries["noisy_counts"]
        return not (self.queries["stddev"].max() == 0 and np.all(counts.max(axis=1) == 1) and np.all(np.abs(counts).sum(axis=1) == 1))


def _own_and_rival(run: Run) -> tuple[np.ndarray, np.ndarray]:
    own = run.queries["label"]
    others = run.queries["noisy_counts"].astype(np.float64)
    others[np.arange(len(own)), own] = -np.inf
    return own, others.argmax(axis=1)


def write(folder: tyro.conf.Positional[Path]) -> Path:
    """Write a run's report.html from what its folder holds, whole or not at all.

    Args:
      folder: that train.distill wrote.

    Returns:
      The page's path.

    Raises:
      ValueError: where a file of the folder is missing or cannot be read; the message names it.
    """
    page = render(read(folder))
    target = folder / "report.html"
    partial = folder / "report.html.partial"
    partial.write_text(page, encoding="utf-8")
    partial.replace(target)
    return target


def read(folder: Path) -> Run:
    """Read a run folder.

    Raises:
      ValueError: where a file is missing or cannot be read; the message names it.
    """
    config, result, privacy = (_read_json(folder / name) for name in ("config.json", "result.json", "privacy.json"))
    queries, labels = _read_arrays(folder / "queries.npz"), _read_arrays(folder / "labels.npz")
    _check_queries(folder / "queries.npz", queries)
    num_classes = queries["noisy_counts"].shape[1]
    classes = tuple(map(str, config.get("classes") or range(num_classes)))
    if len(classes) != num_classes:
        raise ValueError(f"Expected {num_classes} classes in {folder / 'config.json'}, as in queries.npz, got {len(classes)}.")
    return Run(config, result, privacy, _read_lines(folder / "metrics.jsonl"), queries, labels, classes)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return _complete(path, value if isinstance(value, dict) else {})


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _unreadable(path, error) from error
    _complete(path, arrays)
    if len({len(array) for array in arrays.values()}) != 1:
        raise ValueError(f"Expected arrays of one length in {path}, got {({name: len(array) for name, array in arrays.items()})}.")
    return arrays


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return one dict a line; a last line without its end was cut off as it was written, and does not count."""
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _complete(path: Path, value: dict[str, Any]) -> dict[str, Any]:
    if missing := [name for name in REQUIRED[path.name] if name not in value]:
        raise ValueError(f"Cannot read {path}: it lacks {', '.join(missing)}; pass a folder that a whole run of train.distill wrote.")
    return value


def _unreadable(path: Path, error: Exception) -> ValueError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return ValueError(f"Cannot read {path}: {why}; pass a folder that a whole run of train.distill wrote.")


def _check_queries(path: Path, queries: dict[str, np.ndarray]) -> None:
    counts, label, image = (queries[name] for name in ("noisy_counts", "label", "image"))
    if counts.ndim != 2 or counts.shape[1] < 2 or not len(counts) or queries["stddev"].shape != counts.shape:
        raise ValueError(f"Expected noisy_counts and stddev [S, C] in {path}, got {counts.shape} and {queries['stddev'].shape}.")
    if image.ndim != 4 or image.dtype != np.uint8:
        raise ValueError(f"Expected image uint8 [S, height, width, channels] in {path}, got {image.dtype} {image.shape}.")
    if label.min() < 0 or label.max() >= counts.shape[1]:
        raise ValueError(f"Expected labels in [0, {counts.shape[1]}) in {path}, got {label.min()} to {label.max()}.")


def render(run: Run) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "epsilon": epsilon_text}
    return environment.get_template("report.html.j2").render(
        run=run,
        result=run.result,
        config=run.config,
        whole=run.privacy["whole"],
        colours=COLOURS,
        odds=odds(run.privacy["whole"]),
        accountants=[(name, ACCOUNTANTS.get(name, ""), value) for name, value in run.privacy["accountants"].items()],
        cards=[card(run, row) for row in order(run)[:MOST_QUERIES_SHOWN]],
        leads=leads(run),
        epochs=epochs(run),
        by_epsilon=accuracy_by_epsilon(run),
        published=published(run),
        caveat=CAVEATS.get(_benchmark(run)),
        confusion=confusion(run),
        time=time_spent(run),
        settings={name: value for name, value in run.config.items() if name not in ("versions", "classes")},
        command=command(run),
        num_classes_in_table=MOST_CLASSES_IN_TABLE,
    )


def percent(value: float | None, digits: int = 1) -> str:
    """Write an accuracy; 100.0% is all of them and nothing less."""
    if value is None:
        return "not known"
    return f"{(min(100 * value, 100 - 10.0**-digits) if value < 1 else 100):.{digits}f}%"


def epsilon_text(value: Any) -> str:
    """Write an epsilon with four significant digits, rounded up; "∞" where it is infinite, as JSON may hold it."""
    if math.isinf(float(value)):
        return "∞"
    return f"{float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(f'{float(value):.12g}')):g}"


def odds(guarantee: dict[str, Any]) -> str | None:
    """Say what epsilon means to the owner of one record; None where nothing is guaranteed."""
    epsilon, unit = float(guarantee["epsilon"]), guarantee.get("unit", "record")
    if epsilon > 700:
        return None
    factor = epsilon_text(math.exp(epsilon))
    what = "between any two contents of that one" if guarantee.get("relation") == "replace-one" else "of whether that one took part"
    exception = f", but for a slack of δ = {guarantee['delta']:g}" if guarantee.get("delta") else ""
    return (
        f"To someone who knows every private {unit} but one, all that is covered changes the odds {what} "
        f"by a factor of at most e^ε = {factor}{exception}."
    )


def order(run: Run) -> np.ndarray:
    """Return the queries as the page shows them: by label where all fit, else wrong ones and then small leads first."""
    lead = run.lead
    if len(lead) <= MOST_QUERIES_SHOWN:
        return np.lexsort((-lead, run.queries["label"], run.queries["round"]))
    return np.lexsort((lead, ~run.wrong))


def card(run: Run, row: int) -> dict[str, Any]:
    """Return what the page shows of one query."""
    queries, label = run.queries, int(run.queries["label"][row])
    truth = int(queries["true_label"][row]) if run.wrong[row] else None
    counts = queries["noisy_counts"][row]
    return {
        "row": row,
        "picture": picture(queries["image"][row]),
        "label": run.classes[label],
        "truth": None if truth is None else run.classes[truth],
        "size": int(queries["size"][row]),
        "round": int(queries["round"][row]) + 1,
        "public_index": int(queries["public_index"][row]),
        "bars": bars(counts, queries["stddev"][row], label, truth) if run.counts_released else None,
        "counts": ", ".join(f"{name}: {count:.4g}" for name, count in zip(run.classes, counts, strict=True) if abs(count) >= 0.5),
        "votes": f"{counts[label]:,.0f}",
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
    """Return SVG paths, 100 wide and 40 high, of the counts and of the noise's standard deviation around each.

    Returns:
      `zero`, the height of the base line; `label`, `truth` and `others`, bars; `noise`, error bars.
    """
    top, bottom = max(float((counts + stddev).max()), 0.0), min(float((counts - stddev).min()), 0.0)
    unit, step = 40 / ((top - bottom) or 1), 100 / len(counts)
    zero, paths = top * unit, {"label": "", "truth": "", "others": "", "noise": ""}
    for position, (count, noise) in enumerate(zip(counts, stddev, strict=True)):
        kind = "label" if position == label else "truth" if position == truth else "others"
        paths[kind] += f"M{(position + 0.15) * step:.4g} {zero:.4g}v{-count * unit:.4g}h{0.7 * step:.4g}V{zero:.4g}z"
        if noise:
            paths["noise"] += f"M{(position + 0.5) * step:.4g} {zero - (count - noise) * unit:.4g}v{-2 * noise * unit:.4g}"
    return paths | {"zero": f"{zero:.4g}"}


def needed_lead(mechanism: str, num_classes: int, flip_prob: float) -> float:
    """Return the true lead at which noise flips a label with at most this probability, in standard deviations of the lead's noise.

    A union bound over rivals that all trail by the lead. For Laplace noise of scale b a difference has the tail e^(-g/b) (2 + g/b) / 4 and
    the standard deviation 2b. Everything but the Gaussian is taken for Laplace, whose tail is the heavier one.
    """
    target = flip_prob / (num_classes - 1)
    if mechanism == "gaussian":
        return float(stats.norm.isf(target))
    return float(optimize.brentq(lambda z: -2 * z + math.log1p(z) - math.log(2 * target), 0, 400)) if target < 0.5 else 0.0


def leads(run: Run) -> dict[str, Any] | None:
    """Draw every query's lead against the noise; None where no noise is to be seen."""
    if not np.all(run.lead_stddev > 0):
        return None
    stddev, needed = run.lead_stddev, [needed_lead(run.config.get("mechanism", ""), len(run.classes), prob) for prob in (0.1, 0.01)]
    unit = float(stddev[0]) if np.ptp(stddev) < 1e-3 * stddev[0] else 1.0
    in_units = run.lead / stddev

    def draw(axes: Axes) -> None:
        ink = {name: light for name, (light, _) in COLOURS.items()}
        low, high = min(-1.5, 1.3 * in_units.min()) * unit, 1.6 * max(in_units.max(), needed[1]) * unit
        axes.set_xscale("symlog", linthresh=needed[1] * unit)
        axes.axvspan(low, needed[0] * unit, color=ink["wrong"], alpha=0.08, linewidth=0)
        size, wrong = run.queries["size"], run.wrong
        for chance, lead in zip(("10%", "1%"), needed, strict=True):
            axes.axvline(lead * unit, color=ink["wrong"], linewidth=0.8, linestyle=(0, (4, 3)))
            axes.text(lead * unit, 1.01, chance, color=ink["wrong"], fontsize=8, ha="center", transform=axes.get_xaxis_transform())
        if len(size) <= MOST_QUERIES_SHOWN:
            axes.hlines(size, (in_units - 1) * unit, (in_units + 1) * unit, color=ink["muted"], linewidth=0.6)
        axes.scatter(in_units[~wrong] * unit, size[~wrong], s=26, color=ink["label"], alpha=0.75, linewidth=0)
        axes.scatter(in_units[wrong] * unit, size[wrong], s=38, color=ink["wrong"], marker="X", linewidth=0, label="wrong")
        for row in np.flatnonzero(wrong)[:20]:
            where = (in_units[row] * unit, size[row])
            axes.annotate(f"q{row}", where, (5, 4), textcoords="offset points", color=ink["wrong"], fontsize=8)
        axes.set_xlim(low, high)
        axes.set_ylim(0, 1.12 * max(size.max(), 1))
        axes.xaxis.set_major_locator(FixedLocator(_ticks(low, high)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.set_xlabel("lead of the label, in noisy votes" if unit != 1 else "lead of the label, in standard deviations of its noise")
        axes.set_ylabel("public records that take it")

    return {
        "svg": chart("leads", draw),
        "stddev": float(np.median(stddev)),
        "uniform": unit != 1,
        "needed": [lead * float(np.median(stddev)) for lead in needed],
        "unsure": int(np.sum(in_units < needed[1])),
        "overruled": int(np.sum(run.lead < 0)),
    }


def _ticks(low: float, high: float) -> list[float]:
    """Return 0 and round numbers that are at least a factor of 2 apart."""
    steps = [digit * 10.0**power for power in range(-1, 8) for digit in (1, 2, 5)]
    ticks = [step for step in steps if high / 40 < step < high]
    return [-step for step in ticks if -step > low] + [0.0, *ticks]


def epochs(run: Run) -> Markup | None:
    """Draw the student's accuracy over the epochs of all rounds; None where none finished."""
    known = [(entry.get("round", 0), entry["test_accuracy"]) for entry in run.metrics if entry.get("test_accuracy") is not None]
    if not known:
        return None
    rounds, accuracy = (np.array(values) for values in zip(*known, strict=True))
    label = run.result.get("label_accuracy")

    def draw(axes: Axes) -> None:
        ink = {name: light for name, (light, _) in COLOURS.items()}
        steps = np.arange(1, len(accuracy) + 1)
        _accuracy_axis(axes, [*accuracy, *([] if label is None else [label])])
        if label is not None:
            axes.axhline(_shown(label), color=ink["label"], linewidth=1.2, linestyle=(0, (1, 2)), label=f"labels, {percent(label)}")
        axes.plot(steps, _shown(accuracy), "o-", color=ink["student"], markersize=3.5, label=f"student, {percent(accuracy[-1])} at the end")
        for start in np.flatnonzero(np.diff(rounds)) + 1:
            axes.axvline(start + 0.5, color=ink["muted"], linewidth=0.8)
            axes.text(start + 0.6, 0.02, f"round {rounds[start] + 1}", color=ink["muted"], transform=axes.get_xaxis_transform())
        axes.set_xlim(0.5, len(accuracy) + 0.5)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("epoch")
        axes.set_ylabel("test accuracy")
        axes.legend(loc="lower right")

    return chart("epochs", draw)


def accuracy_by_epsilon(run: Run) -> Markup | None:
    """Draw this run's accuracies beside those at other epsilons and the paper's; None where no accuracy is known."""
    benchmark = run.result.get("not_covered_by_epsilon") or {}
    sweep, without_noise = benchmark.get("label_accuracy_by_epsilon") or [], benchmark.get("nonprivate_label_accuracy")
    ours = [(run.result.get("label_accuracy"), "o", "label", "labels"), (run.result.get("test_accuracy"), "D", "student", "student")]
    theirs = PUBLISHED.get(_benchmark(run), ())
    values = [value for value, *_ in ours] + [point["mean"] for point in sweep] + [without_noise]
    values = [value for value in [*values, *(row.student for row in theirs), *(row.label for row in theirs)] if value is not None]
    if not values:
        return None
    epsilons = [float(run.result["epsilon"]), *(point["epsilon"] for point in sweep), *(row.epsilon for row in theirs)]
    finite = [epsilon for epsilon in epsilons if 0 < epsilon < math.inf] or [1.0]
    low, high = min(finite) / 1.6, max(finite) * 1.6
    infinity = high * (high / low) ** 0.1

    def place(epsilon: float) -> float:
        return infinity if math.isinf(epsilon) else max(epsilon, low)

    def draw(axes: Axes) -> None:
        ink = {name: light for name, (light, _) in COLOURS.items()}
        _accuracy_axis(axes, values)
        axes.set_xscale("log")
        if sweep:
            x, mean, spread = (np.array([point[name] for point in sweep], float) for name in ("epsilon", "mean", "stddev"))
            axes.fill_between(x, _shown(mean - spread), _shown(mean + spread), color=ink["label"], alpha=0.16, linewidth=0)
            axes.plot(x, _shown(mean), color=ink["label"], linewidth=1, linestyle=(0, (3, 2)), label="labels at other ε (not covered by ε)")
        if without_noise is not None:
            axes.plot(infinity, _shown(without_noise), "o", color=ink["label"], fillstyle="none", label="labels without noise (not covered)")
        for system, marker in zip(dict.fromkeys(row.system for row in theirs), "^vs", strict=False):
            rows = [row for row in theirs if row.system == system]
            style = {"linestyle": "none", "marker": marker, "color": ink["published"], "markersize": 6}
            axes.plot([place(r.epsilon) for r in rows], [_shown(r.student) for r in rows], label=f"paper, {system}: student", **style)
            named = [(place(row.epsilon), _shown(row.label)) for row in rows if row.label is not None]
            if named:
                axes.plot(*zip(*named, strict=True), fillstyle="none", label=f"paper, {system}: labels", **style)
        for value, marker, colour, name in ours:
            if value is not None:
                spot = {"marker": marker, "color": ink[colour], "markersize": 9, "markeredgecolor": ink["paper"], "linestyle": "none"}
                axes.plot(place(float(run.result["epsilon"])), _shown(value), label=f"this run: {name}", zorder=5, **spot)
        ticks = [10.0**power for power in range(-5, 4) if low <= 10.0**power <= high]
        axes.axvline(high, color=ink["line"], linewidth=0.8)
        axes.set_xlim(low, infinity * (infinity / high) ** 0.7)
        axes.xaxis.set_major_locator(FixedLocator([*ticks, infinity]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: "∞" if value > high else f"{value:g}"))
        axes.set_xlabel("ε")
        axes.set_ylabel("accuracy")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)

    return chart("epsilon", draw)


def chart(name: str, draw: Callable[[Axes], None]) -> Markup:
    """Return a chart as SVG that takes its colours and fonts from the page."""
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        draw(figure.subplots())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # the same in every chart, and a page must not repeat them
    for colour, (light, _) in COLOURS.items():
        svg = svg.replace(light, f"var(--{colour})")
    return Markup(svg)  # matplotlib escapes the text that it is given


def _accuracy_axis(axes: Axes, values: Sequence[float]) -> None:
    """Stretch the vertical axis towards 100%, where the differences are."""
    shown = _shown(np.array(values))
    axes.set_yscale("logit")
    bounds = np.array([shown.min(), shown.max()])
    low, high = 1 / (1 + np.exp(-(np.log(bounds / (1 - bounds)) + np.array([-0.4, 0.4]))))
    axes.set_ylim(low, high)
    marks = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998]
    marks = [mark for mark in marks if low <= mark <= high]
    axes.yaxis.set_major_locator(FixedLocator(marks if len(marks) > 1 else [low, *marks, high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))


def _shown(accuracy: Any) -> Any:
    """Keep accuracies off 0 and 1, which the stretched axis does not have."""
    return np.clip(accuracy, 0.001, 0.999)


def _benchmark(run: Run) -> str:
    return str(run.config["dataset"]).removeprefix("tfds:")


def published(run: Run) -> list[Published]:
    """Return the paper's rows for this data set, with this run's on top; empty where the paper has none."""
    theirs, student = PUBLISHED.get(_benchmark(run), ()), run.result.get("test_accuracy")
    own = Published("this run", float(run.result["epsilon"]), run.result.get("label_accuracy"), student)
    return [own, *theirs] if theirs else []


def confusion(run: Run) -> dict[str, Any] | None:
    """Count the public records of each true label and given label; None where the truth is not known."""
    if "true_label" not in run.labels:
        return None
    label, truth = run.labels["label"], run.labels["true_label"]
    known = label >= 0
    counts = np.zeros((len(run.classes), len(run.classes)), np.int64)
    np.add.at(counts, (truth[known], label[known]), 1)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    off = [(int(counts[i, j]), run.classes[i], run.classes[j]) for i, j in zip(*np.nonzero(counts), strict=True) if i != j]
    return {
        "counts": counts.tolist(),
        "share": share.tolist(),
        "unlabelled": int(np.sum(~known)),
        "largest": sorted(off, key=lambda entry: -entry[0])[:MOST_CLASSES_IN_TABLE],
    }


def time_spent(run: Run) -> dict[str, float] | None:
    """Split the run's seconds into the student's epochs and all else; None where they are not known."""
    if (total := run.result.get("seconds")) is None:
        return None
    student = sum(entry.get("seconds", 0.0) for entry in run.metrics)
    return {"total": total, "student": student, "rest": max(total - student, 0.0), "epochs": len(run.metrics)}


def command(run: Run) -> str:
    """Return the command that repeats the run, every setting spelled out, so that a later default does not change it."""
    given = run.config | ({"queries": run.config["resolved_queries"]} if run.config.get("resolved_queries") else {})
    names = [field.name for field in fields(Experiment) if field.name != "out" and given.get(field.name) is not None]
    settings = [f"--{name.replace('_', '-')} {shlex.quote(str(given[name]))}" for name in names]
    return " ".join(["python -m train.distill", *settings])


def cli() -> int:
    """Run from the command line: exit status 2 for a folder that cannot be read or written."""
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
