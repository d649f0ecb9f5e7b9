"""Rows of the tables of `benchmarks.choosing`."""

from typing import Any

from rknn_jax.release import choosing
from rknn_jax.release.choosing import Quantities

SHOWN = (0.1, 1.0)
"""Epsilons of the table of data sets."""

LABELERS = ("rknn", "public_prototypes", "prototypes", "least_squares")

HALVES = {"development": "development", "judgement": "others"}

Table = tuple[list[str], list[list[str]]]


def shortfalls(results: dict[str, Any]) -> Table:
    """Return how far the choice and each labeler are below the best of each cell."""
    header = ["labeler", "data sets", "mean", "worst", "at", "within 1 point", "within 3 points"]
    rows = []
    for half, words in HALVES.items():
        for name, told in results[half].items():
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
    return header, rows


def cells(results: dict[str, Any]) -> Table:
    """Return the accuracy of each labeler on each data set, with the choice."""
    header = ["data set", "n", "ε", *(f"`{name}`" for name in LABELERS), "`auto` takes"]
    rows = []
    for cell in results["cells"]:
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
                f"`{choosing.choose(given).labeler}`",
            ]
        )
    return header, rows
