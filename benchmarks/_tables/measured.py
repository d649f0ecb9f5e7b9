"""What a release says of its labels, beside what they are worth."""

from typing import Any

import numpy as np

from benchmarks._tables._format import load, table

EXACT = 0.5
"""Epsilon from which on, with 3,000 records or more, a measure is to be had."""


def measured() -> str:
    """Right labels, what the decoder says, and what is measured, by data set and epsilon."""
    found = load("measured")
    rows = []
    cells = found["results"]["cells"]
    for name in found["cases"]:
        for epsilon in sorted({one["epsilon"] for one in cells}):
            mine = [one for one in cells if one["name"] == name and one["epsilon"] == epsilon]
            if mine:
                rows.append(_row(name, epsilon, mine, name in found["looked_at"]))
    header = ["data", "n", "ε", "one class", "all vote", "decoder says", "chosen, best", "measured"]
    return table([*header, "agreement of all", "covered"], rows, "measured")


def _row(name: str, epsilon: float, mine: list[dict[str, Any]], seen: bool) -> list[str]:
    first = [
        f"{name}{' *' if seen else ''}",
        f"{mine[0]['num_records']:,}",
        f"{epsilon:g}",
        _percent([one["majority"] for one in mine]),
        _percent([one["without"] for one in mine]),
        _percent([one["said"] for one in mine if one["said"] is not None]),
    ]
    told = [one for one in mine if one["measured"]]
    if not told:
        return [*first, "", "too few records", "", ""]
    half = np.mean([one["half"] for one in told])
    share = _percent([one["measured"]["right"] for one in told])
    return [
        *first,
        f"{_percent([one['chosen'] for one in told])}, {_percent([one['best'] for one in told])}",
        f"{share} ± {100 * half:.0f}",
        _percent([one["agreement"] for one in told]),
        f"{sum(one['covered'] for one in told)} of {len(told)}",
    ]


def _percent(values: list[float]) -> str:
    return f"{np.mean(values):.1%}" if values else ""


def measured_coverage() -> str:
    """Coverage, width and bias of the measures, and the labels that were chosen."""
    found = load("measured")
    cells = found["results"]["cells"]
    cases = found["cases"]
    told = [one for one in cells if one["measured"]]
    large = [one for one in cells if one["num_records"] >= 3000 and one["epsilon"] >= EXACT]
    alike = [
        one for one in told if not (cases[one["name"]]["shifted"] or cases[one["name"]]["wrong"])
    ]
    apart = [one for one in told if one["name"] not in found["looked_at"]]
    rows = [
        ["the interval holds the agreement of all private records", _count(told, "covered")],
        ["the same, on data sets without a star", _count(apart, "covered")],
        ["half of the interval's width, at most", f"{max(one['half'] for one in told):.1%}"],
        ["measured, of the cells with n ≥ 3,000 and ε ≥ 0.5", _count(large, "measured")],
        [
            "within 5 points of the right public labels, where nothing is shifted or wrong",
            _share([abs(one["off"]) <= 0.05 for one in alike]),
        ],
        ["chosen labels at most 2 points below the best", _share(_near_best(told))],
        [
            "calibration error at most 5 points, where nothing is shifted or wrong",
            _share([one["calibration error"] <= 0.05 for one in alike]),
        ],
        [
            "the same, if all vote and nothing is measured",
            _share([one["calibration error without"] <= 0.05 for one in alike]),
        ],
        ["points lost against a release in which all vote, at most", _lost(told)],
    ]
    return table(["what", "cells"], rows, "measured")


def _near_best(cells: list[dict[str, Any]]) -> list[bool]:
    return [one["chosen"] >= one["best"] - 0.02 for one in cells]


def _lost(cells: list[dict[str, Any]]) -> str:
    """Return the worst loss of a data set at one epsilon, a mean over splits, and the mean loss."""
    by: dict[tuple[str, float], list[float]] = {}
    for one in cells:
        by.setdefault((one["name"], one["epsilon"]), []).append(one["without"] - one["chosen"])
    means = {key: float(np.mean(values)) for key, values in by.items()}
    worst = max(means, key=lambda key: means[key])
    lost = f"{100 * means[worst]:.1f} ({worst[0]}, ε = {worst[1]:g})"
    return f"{lost}; {100 * np.mean(list(means.values())):.1f} on average"


def _count(cells: list[dict[str, Any]], name: str) -> str:
    return _share([bool(one[name]) for one in cells])


def _share(found: list[bool]) -> str:
    return f"{sum(found)} of {len(found)}, {np.mean(found):.1%}"


def measured_example() -> str:
    """Words of the middle release of README's example by its right labels, and those of all."""
    found = sorted(load("measured")["results"]["example"], key=lambda one: float(one["right"]))
    middle, right = found[len(found) // 2], [one["right"] for one in found]
    return (
        f"```text\nmeasured    {middle['words']}\n```\n\n"
        f"Of its public labels, {middle['right']:.0%} are right; in {len(found)} such releases, "
        f"{min(right):.0%} to {max(right):.0%}."
    )


BRIEF = {
    "100 classes": "made-up clusters, 100 classes",
    "digits": "a table of digits, 10 classes",
    "MNIST": "MNIST in 50 components",
    "packages, 10 sections": "descriptions of Debian packages, 10 sections",
    "CIFAR-10, HOG": "CIFAR-10 by its edges, without a network",
}
"""Data sets of the README, and what they are."""


def measured_brief() -> str:
    """Right labels at epsilon 1 and what was measured of them, for five kinds of data."""
    cells = load("measured")["results"]["cells"]
    rows = []
    for name, words in BRIEF.items():
        mine = [one for one in cells if one["name"] == name and one["epsilon"] == 1.0]
        told = [one for one in mine if one["measured"]]
        measure = "too few records"
        if told:
            share = _percent([one["measured"]["right"] for one in told])
            measure = f"{share} ± {100 * np.mean([one['half'] for one in told]):.0f}"
        # Labels and measure are of the same release, where there is a measure.
        right = [one["chosen"] for one in told] or [one["without"] for one in mine]
        rows.append(
            [
                words,
                f"{mine[0]['num_records']:,}",
                _percent([one["majority"] for one in mine]),
                _percent(right),
                f"{min(right):.1%}",
                measure,
            ]
        )
    rows.sort(key=lambda row: -float(row[3].rstrip("%")))
    header = ["public data", "private records", "one class for all", "right", "worst split"]
    return table([*header, "agreement measured"], rows, "measured")


MEASURED_ALONE = ("low_measure", "no_better", "low_recall")
OPINIONS = ("low_accuracy", "low_agreement")
"""Warnings that only a measure gives, and those that it replaces."""


def warnings() -> str:
    """Cells in which warnings are given that are true, and that are not, by kind."""
    found = load("measured")
    rows = []
    for kind in found["results"]["warnings"]:
        cells = [
            one
            for one in found["results"]["cells"]
            if kind not in (OPINIONS if one["measured"] else MEASURED_ALONE)
        ]
        apart = [one for one in cells if one["name"] not in found["looked_at"]]
        looked = [one for one in cells if one["name"] in found["looked_at"]]
        shown = [_rate(part, kind, given) for part in (looked, apart) for given in (True, False)]
        rows.append([f"`{kind}`", *shown])
    header = ["warning", "given if true *", "given if not *", "given if true", "given if not"]
    return table(header, rows, "measured")


def _rate(cells: list[dict[str, Any]], kind: str, event: bool) -> str:
    """Return in how many of the cells with, or without, its event a warning was given."""
    those = [one for one in cells if (kind in one["true"]) == event]
    return f"{sum(kind in one['warned'] for one in those)} of {len(those)}"


WORST = 6
"""Cells of `withheld` that are shown, those that lose most."""


def withheld() -> str:
    """Points that the votes of checking records would have been worth: the worst cells, and all."""
    cells = load("withheld")["results"]
    lost: dict[tuple[str, float, bool], list[float]] = {}
    for one in cells:
        name, plain = one["name"], not (one["shifted"] or one["wrong"])
        found = [100 * (voted - chosen) for voted, chosen in one["pairs"]]
        lost.setdefault((name, one["epsilon"], plain), []).extend(found)

    def row(words: str, epsilon: str, points: list[float]) -> list[str]:
        error = np.std(points, ddof=1) / np.sqrt(len(points))
        return [words, epsilon, f"{np.mean(points):+.1f} ± {error:.1f}"]

    rows = []
    for plain, words in ((True, "all like the public rows"), (False, "all others")):
        mine = {key: points for key, points in lost.items() if key[2] == plain}
        worst = sorted(mine, key=lambda key: -np.mean(mine[key]))[:WORST]
        rows += [row(key[0], f"{key[1]:g}", mine[key]) for key in worst]
        means = [float(np.mean(points)) for points in mine.values()]
        rows.append(row(f"{words}, {len(mine)} cells", "all", means))
    return table(["data", "ε", "points lost"], rows, "withheld")
