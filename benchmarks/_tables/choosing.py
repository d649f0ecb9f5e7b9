"""Labelers of `rknn label`, and the choice of one."""

import itertools

import numpy as np

from benchmarks._tables._format import load, table
from rknn_jax.release.choosing import Quantities, rule

SHOWN = (0.1, 1.0)
"""Epsilons of the table of data sets."""

LABELERS = ("rknn", "public_prototypes", "prototypes", "least_squares")

HALVES = {"development": "development", "judgement": "others"}


def choosing() -> str:
    """Points by which the choice and each labeler are below the best of each cell."""
    header = ["labeler", "data sets", "mean", "worst", "at", "within 1 point", "within 3 points"]
    rows = []
    for half, words in HALVES.items():
        for name, told in load("choosing")["results"][half].items():
            rows.append(
                [
                    f"`{name}`",
                    words,
                    f"{100 * told['mean']:.1f}",
                    f"{100 * told['worst']:.1f}",
                    told["worst_cell"],
                    f"{told['within_1']:.0%}",
                    f"{told['within_3']:.0%}",
                ]
            )
    return table(header, rows, "choosing")


def choosing_cells() -> str:
    """Labels by each labeler on each data set, and the choice."""
    header = ["data set", "n", "ε", *(f"`{name}`" for name in LABELERS), "`auto` takes"]
    rows = []
    for cell in load("choosing")["results"]["cells"]:
        if cell["epsilon"] not in SHOWN:
            continue
        given = Quantities(cell["num_records"], cell["num_classes"], cell["epsilon"])
        mark = "" if cell["half"] == "development" else ", judges"
        rows.append(
            [
                f"{cell['case']}{mark}",
                f"{cell['num_records']:,}",
                f"{cell['epsilon']:g}",
                *(f"{cell['right'][name]:.1%}" for name in LABELERS),
                f"`{rule(given).labeler}`",
            ]
        )
    return table(header, rows, "choosing")


def shrinkage() -> str:
    """Right labels of least squares with one prior for all axes, and with one by what was released.

    Each is a mean over splits and draws; the last columns are the changes of all its cells.
    """
    found = load("shrinkage")
    before, after = "one for all axes", "by the released sums"
    rows = []
    for name in dict.fromkeys(one["case"] for one in found["results"]["cells"]):
        mine = [one for one in found["results"]["cells"] if one["case"] == name]
        shown = []
        for mechanism, epsilon in itertools.product(("laplace", "gaussian"), SHOWN):
            chosen = (mechanism, epsilon)
            cells = [one for one in mine if (one["mechanism"], one["epsilon"]) == chosen]
            means = [np.mean([one[prior] for one in cells]) for prior in (before, after)]
            shown.append(f"{means[0]:.1%} → {means[1]:.1%}")
        changes = [100 * (one[after] - one[before]) for one in mine]
        told = [f"{np.mean(changes):+.1f}", f"{min(changes):+.1f} to {max(changes):+.1f}"]
        rows.append([f"{name}{' *' if name in found['developed'] else ''}", *shown, *told])
    header = [
        "data set",
        *(f"{noise}, ε = {e:g}" for noise in ("Laplace", "Gaussian") for e in SHOWN),
    ]
    return table([*header, "points on average", "splits and ε"], rows, "shrinkage")
