"""Every labeler over epsilon, private records and purity, and labels by hand that give as much."""

from typing import Any

from benchmarks._tables._format import load, table

ONE_RELEASE = {
    "rknn": "reverse k-NN",
    "class means": "class means",
    "public prototypes": "public prototypes",
    "least squares": "least squares",
    "noisy_sgd": "noisy SGD",
}
"""Labelers of a curator whose price does not grow with the public rows, and their names."""

OTHERS = {
    "rknn, shuffle": "reverse k-NN, shuffled",
    "rknn, local": "reverse k-NN, local",
    "individual_knn": "Ind-KNN",
    "private_knn": "Private-kNN",
    "pate": "PATE",
}
EPSILONS = (0.01, 0.1, 1.0)
AS_MUCH = 0.005
"""Accuracy by which labels by hand may be worse and still give as much."""


def rivals() -> str:
    """Labelers of a curator whose price does not grow with the public rows."""
    return _by_cell(ONE_RELEASE)


def rivals_others() -> str:
    """Reverse k-NN labeling without a curator, and labelers that pay for every query."""
    return _by_cell(OTHERS)


def bits() -> str:
    """Gain of private records over public data, as labels by hand that give as much."""
    results = load("rivals")["results"]
    rows = []
    for space, free in results["nothing_private"].items():
        hand = {one["labels"]: one["label_accuracy"] for one in free["by_hand"]}
        few, many = min(hand), max(hand)
        for cell in _cells(results):
            if cell[0] != space:
                continue
            row = _find(results, cell, "rknn")
            assert row is not None
            mine = row["label_accuracy"]
            enough = mine["mean"] - AS_MUCH
            number = next((size for size in hand if hand[size]["mean"] >= enough), None)
            fewer = "fewer than " if mine["mean"] < hand[few]["mean"] - AS_MUCH else ""
            rows.append(
                [
                    *_about(cell),
                    f"{free['one_class']:.1%}",
                    *(f"{hand[size]['mean']:.1%}" for size in (few, 100, many)),
                    f"{mine['mean']:.1%}, {mine['worst']:.1%}",
                    f"{100 * (mine['mean'] - hand[few]['mean']):+.1f}",
                    f"more than {many}" if number is None else f"{fewer}{number}",
                ]
            )
    header = ["data", "n", "ε", "one class", "10 by hand", "100", "500"]
    words = ["reverse k-NN", "points over 10 by hand", "by hand for as much"]
    return table([*header, *words], rows, "rivals")


def _by_cell(methods: dict[str, str]) -> str:
    """Return a row for each data set, n and epsilon: mean and worst release of each labeler."""
    results = load("rivals")["results"]
    rows = []
    for cell in _cells(results):
        rows_of = {name: _find(results, cell, name) for name in methods}
        found = {name: row["label_accuracy"] for name, row in rows_of.items() if row}
        best = max(found, key=lambda name: found[name]["mean"])
        shown = dict.fromkeys(methods, "")
        shown |= {name: f"{one['mean']:.1%}, {one['worst']:.1%}" for name, one in found.items()}
        shown[best] = f"**{shown[best]}**"
        rows.append([*_about(cell), *shown.values()])
    return table(["data", "n", "ε", *methods.values()], rows, "rivals")


def _cells(results: dict[str, Any]) -> list[tuple[str, int, float]]:
    """Return the data set, n and epsilon of each row."""
    names = ("space", "num_records", "epsilon")
    every = [tuple(row[name] for name in names) for row in results["rows"]]
    return [one for one in dict.fromkeys(every) if one[2] in EPSILONS]


def _find(
    results: dict[str, Any], cell: tuple[str, int, float], method: str
) -> dict[str, Any] | None:
    """Return the row of a labeler in one cell, or None if it was not measured."""
    rows = (
        row
        for row in results["rows"]
        if (row["space"], row["num_records"], row["epsilon"], row["method"]) == (*cell, method)
    )
    return next(rows, None)


def _about(cell: tuple[str, int, float]) -> list[str]:
    space, size, epsilon = cell
    return [space, f"{size:,}", f"{epsilon:g}"]
