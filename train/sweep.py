r"""Run train.distill over a grid of settings and draw the results.

A stopped sweep resumes: finished runs are not repeated.

    python -m train.sweep --preset mnist-fast --data-dir DIR --student none --out runs/figure2 \
        --vary queries=10,20,40,100,200,500 --vary epsilon=0.01,0.1,1 --vary seed=0,1,2

Every option of `train.distill` is also an option here. `--vary` names those with several values,
and all combinations are run. The first varied option is the picture's horizontal axis, and the
others make its lines. Runs that differ in their seeds alone are averaged. Figures 2 to 4 of Li et
al. vary `queries` and `neighbors`, and their study of several rounds varies `rounds`.

    OUT/<setting>/      a run folder for every combination
    OUT/sweep.json      mean and standard deviation of the accuracies for every setting
    OUT/sweep.png       the picture
"""

import argparse
import itertools
import operator
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rknn_jax._internal import compilation, progress
from rknn_jax._internal.terminal import run_program
from rknn_jax.types import Array, Encoder

from . import commandline, distill, run_folder, stages
from .environment import environment
from .experiment import Experiment
from .json_files import write_json

ACCURACIES = ("label_accuracy", "test_accuracy")

MOST_SEEN = 8
"""Arrays whose features are kept: those of a run. If records check, each run has others."""

CHANCE = ("seed", "noise_seed")
"""Options over whose values results are averaged."""

NOTE = (
    "Simulations on benchmark data. Epsilon is that of one run and of one unit; were all these "
    "runs released of one private data set, "
    "their guarantees would compose."
)
Values = dict[str, list[str]]


def main(arguments: list[str], out: Path, varied: Values) -> list[dict[str, Any]]:
    """Run all settings without a result, and write the summary and the picture.

    Args:
      arguments: Options of `train.distill` for all runs.
      out: Folder of all runs.
      varied: Values of every option that has several.

    Returns:
      Rows of `sweep.json`.
    """
    # Vary the settings of the representation slowest, so that consecutive runs share the
    # representation that was fitted to public images.
    slow = sorted(
        varied,
        key=lambda name: (not commandline.shapes_features(name), name != "queries"),
    )
    names = [name for name in varied if name not in CHANCE]
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    prepared = sharing()
    settings = [
        dict(zip(slow, values, strict=True))
        for values in itertools.product(*(varied[name] for name in slow))
    ]
    runs = [_experiment(arguments, setting, out, varied) for setting in settings]
    left = [run for run in runs if run_folder.find_result(run) is None]
    stages.console.print(f"{len(runs) - len(left)} of {len(runs)} runs are done, {len(left)} to do")
    _check(left)
    with progress.phase("sweep", len(runs), "runs", done=len(runs) - len(left)) as done:
        for setting, run in zip(settings, runs, strict=True):
            if run in left:
                stages.console.print(f"\n{run.out}")
            result = distill.run(run, prepared)
            found.setdefault(tuple(setting[name] for name in names), []).append(result)
            done.advance(run in left)
    rows = [
        dict(zip(names, values, strict=True)) | summary(results)
        for values, results in found.items()
    ]
    write_json(
        out / "sweep.json",
        {
            "arguments": arguments,
            "varied": varied,
            "note": NOTE,
            **environment(),
            "rows": rows,
        },
    )
    if names:
        draw(rows, names).savefig(out / "sweep.png", dpi=150)
    stages.console.print(
        f"{sum(map(len, found.values()))} runs: {out / 'sweep.json'}"
        + (f", {out / 'sweep.png'}" if names else "")
    )
    return rows


def _check(runs: list[Experiment]) -> None:
    """Refuse what the data do not have before the first run takes its time."""
    of_data = operator.attrgetter("dataset", "seed", "data_dir")
    for _, equal in itertools.groupby(runs, key=of_data):
        first, *others = equal
        task = stages.load(first)
        for run in (first, *others):
            stages.check(task, run)


def _experiment(
    arguments: list[str], setting: dict[str, str], out: Path, varied: Values
) -> Experiment:
    """Return the experiment of a setting, in a folder of its name."""
    options = [
        text for name, value in setting.items() for text in (f"--{name.replace('_', '-')}", value)
    ]
    folder = "-".join(f"{name}={setting[name]}" for name in varied).replace("/", "_") or "run"
    return commandline.parsed([*arguments, *options, "--out", str(out / folder)])


def draw(rows: list[dict[str, Any]], names: list[str]) -> Figure:
    """Draw accuracies over the first of `names`, a line for every combination of the others.

    Lines of labels are dashed, and lines of students are solid.
    """
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    lines = list(dict.fromkeys(tuple(row[name] for name in names[1:]) for row in rows))
    ticks = list(dict.fromkeys(row[names[0]] for row in rows))
    for number, line in enumerate(lines):
        mine = [row for row in rows if tuple(row[name] for name in names[1:]) == line]
        place = [ticks.index(row[names[0]]) for row in mine]
        words = ", ".join(f"{name} = {value}" for name, value in zip(names[1:], line, strict=True))
        for accuracy, style, what in (
            ("label_accuracy", "--", "labels"),
            ("test_accuracy", "-", "student"),
        ):
            if all(row[accuracy] for row in mine):
                mean, stddev = (
                    np.array([100 * (row[accuracy][part] or 0) for row in mine])
                    for part in ("mean", "stddev")
                )
                axes.errorbar(
                    place,
                    mean,
                    stddev,
                    color=f"C{number}",
                    linestyle=style,
                    marker=".",
                    capsize=2,
                    label=f"{words} {what}".strip(),
                )
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_xlabel(names[0].replace("_", " "))
    axes.set_ylabel("accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return figure


def sharing(most: int = 1) -> Callable[[Experiment], stages.Prepared]:
    """Return a `stages.prepare` that reuses its last `most` results and encodes no array twice."""
    kept: list[tuple[list[Any], stages.Prepared]] = []

    def prepared(experiment: Experiment) -> stages.Prepared:
        looks_at = [getattr(experiment, name) for name in stages.OF_REPRESENTATION]
        looks_at += [experiment.queries] * experiment.representation.asks
        for known, made in kept:
            if known == looks_at:
                return made
        if len(kept) == most:
            kept.pop(0)  # free its memory before the next one is made
        task, encode, network = stages.prepare(experiment)
        kept.append((looks_at, stages.Prepared(task, _remembering(encode), network)))
        return kept[-1][1]

    return prepared


def _remembering(encode: Encoder) -> Encoder:
    seen: dict[int, tuple[Array, Array]] = {}

    def encoded(images: Array) -> Array:
        found = seen.pop(id(images), None) or (images, encode(images))
        seen[id(images)] = found  # the one used last comes last
        if len(seen) > MOST_SEEN:
            seen.pop(next(iter(seen)))
        return found[1]

    encoded.__wrapped__ = encode  # type: ignore[attr-defined]  # for inspect.unwrap
    return encoded


def summary(
    results: Sequence[dict[str, Any]], accuracies: Sequence[str] = ACCURACIES
) -> dict[str, Any]:
    """Summarize runs that differ by chance alone.

    The summary has the largest of their guarantees, as a choice of who votes may change it, their
    seeds, and mean and standard deviation of their accuracies.
    """
    worst = max(results, key=lambda one: float(one["epsilon"]))
    guarantee = {name: worst[name] for name in ("epsilon", "delta", "relation", "trust")}
    guarantee["delta"] = max(one["delta"] for one in results)
    row: dict[str, Any] = {"guarantee": guarantee}
    row["seeds"] = [result["seed"] for result in results]
    for name in accuracies:
        values = [result[name] for result in results]
        row[name] = None if None in values else mean_of(values)
    return row


def mean_of(values: list[float]) -> dict[str, Any]:
    """Return mean and standard deviation of runs that differ by chance alone, and the values."""
    stddev = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "stddev": stddev, "values": values}


def _varied(texts: list[str]) -> Values:
    varied: Values = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.replace("-", "_")
        known = commandline.known(name)
        if name == "out" or not known or not all(values.split(",")):
            raise ValueError(
                f"Expected --vary NAME=VALUE,VALUE with an option of train.distill, got {text!r}."
            )
        if name in varied or len({*values.split(",")}) < len(values.split(",")):
            raise ValueError(f"Expected each option and each value of --vary once, got {text!r}.")
        varied[name] = values.split(",")
    return varied


def cli() -> int:
    """Run from the command line. Exit status 2 means bad input, and 130 that it was stopped."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of all runs; one that is there goes on"
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="NAME=VALUE,VALUE",
        help="an option and its values; repeat for more",
    )
    known, others = parser.parse_known_args()
    compilation.keep()
    try:
        main(others, known.out, _varied(known.vary))
    except (ValueError, OSError) as error:
        stages.console.print(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        stages.console.print("Stopped; the same command goes on.")
        return 130
    return 0


if __name__ == "__main__":
    run_program(cli)
