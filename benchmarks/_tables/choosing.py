"""Labelers of `rknn label`, and the choice of one."""

from benchmarks._tables._format import load, table
from rknn_jax.release.choosing import Quantities, choose

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
                f"`{choose(given).labeler}`",
            ]
        )
    return table(header, rows, "choosing")
