"""Whole runs on MNIST and CIFAR-10."""

from typing import Any

from benchmarks._tables._format import GOALS, load, percent, table
from train.compare import sections as comparison


def distill() -> str:
    """Whole runs."""
    rows = [
        [
            row["name"],
            percent(row["label_accuracy"]),
            percent(row["test_accuracy"]),
            f"{row['seconds']['mean']:.0f} s",
            ", ".join(map(str, row["seeds"]))
            if len(row["seeds"]) < 6
            else f"{row['seeds'][0]} to {row['seeds'][-1]}",
        ]
        for row in load("distill")["results"]
    ]
    return table(
        ["run", "public labels right", "student on the test set", "time", "seeds"], rows, "distill"
    )


def goals() -> str:
    """Labels and students of MNIST by trust and epsilon, between labels by hand and true labels."""
    rows = [
        [
            row["trust"],
            f"`{row['mechanism']}`" if row["mechanism"] else "",
            "∞" if row["epsilon"] is None else f"{row['epsilon']:g}",
            *(percent(row[name]) for name in GOALS),
            f"{row['worst']['label_accuracy']:.2%}",
            f"{row['worst']['worst_recall']:.2%}",
        ]
        for row in load("goals")["results"]["rows"]
    ]
    header = ["trust", "mechanism", "ε", "public labels right", "three students together"]
    return table([*header, "one student", "worst single release", "its worst class"], rows, "goals")


def studies() -> str:
    """Rounds and targets, by `train.sweep`."""
    found = load("sweeps")["results"]
    rows = [
        [
            name,
            f"{name} = {row[name]}",
            row["epsilon"],
            percent(row["label_accuracy"]),
            percent(row["test_accuracy"]),
        ]
        for name in ("rounds", "targets")
        for row in found[name]
    ]
    return table(
        ["study", "setting", "ε", "public labels right", "student on the test set"], rows, "sweeps"
    )


def compare() -> str:
    """Every method of `train.compare`, as far as measured."""
    rows = [
        list(comparison.line(row)) for row in load("compare")["results"]["rows"] if row["seeds"]
    ]
    header = [
        "method",
        "trust",
        "ε",
        "δ",
        "seeds",
        "public labels right",
        "its network on the test set",
        "student on the test set",
    ]
    return table(header, rows, "compare")


def labels() -> str:
    """Labels by representation, epsilon, and post-processing."""
    rows = [
        [
            row["representation"],
            str(row["queries"]),
            f"{row['epsilon']:g}",
            *(percent(row[kind]) for kind in ("plain", "shared", "spread")),
        ]
        for row in load("labels")["results"]
        if row["queries"] in (10, 100) and row["epsilon"] in (0.01, 0.1)
    ]
    header = [
        "representation",
        "queries",
        "epsilon",
        "arg max alone",
        "queries share votes",
        "and records share labels",
    ]
    return table(header, rows, "labels")


def balance() -> str:
    """Labels under balanced connections."""
    cells: dict[tuple[str, str, str], list[str]] = {}
    for row in load("balance")["results"]:
        line = cells.setdefault((row["representation"], row["prices"], row["amount"]), [])
        if row["population"] == "as the public" and not line:
            line.append(f"{row['least']['mean']:,.0f} to {row['greatest']['mean']:,.0f}")
        if row["epsilon"] in (0.01, 0.1):
            line += [percent(row[kind]) for kind in ("plain", "shared")]
    amounts = {"none": "none", "part": "0.3 × {}", "full": "{}"}
    rows = [
        [representation, amounts[amount].format(prices), *line[:5], line[-1]]
        for (representation, prices, amount), line in cells.items()
    ]
    kinds = [
        f"{kind}, ε = {epsilon}"
        for epsilon in (0.01, 0.1)
        for kind in ("arg max alone", "queries share votes")
    ]
    return table(
        ["representation", "prices", "votes of a query", *kinds, "shifted"], rows, "balance"
    )


def rows() -> str:
    """The papers' representations and students."""
    found = [
        [
            row["name"],
            f"{row['epsilon']:.3g}",
            row["trained"],
            *("" if row[what] is None else percent(row[what]) for what in GOALS[:2]),
            _worst(row["test_accuracy"]),
            row["paper"],
        ]
        for row in load("rows")["results"].values()
    ]
    header = ["row", "ε", "trained here", "public labels right", "student on the test set"]
    return table([*header, "its worst run", "in the paper"], found, "rows")


def _worst(shares: dict[str, Any] | None) -> str:
    """Return the least of several shares, or nothing."""
    return f"{min(shares['values']):.2%}" if shares and len(shares["values"]) > 1 else ""


def networks() -> str:
    """Days that the papers' large networks take on a CPU."""
    found = [
        [
            f"`{row['network']}`",
            row["trains"],
            f"{1000 * row['step_seconds'] / row['batch_size']:.0f} ms",
            f"{row['images'] / 1e6:.1f} million",
            f"{row['days']:.1f} days",
        ]
        for row in load("networks")["results"]
    ]
    header = ["network", "trains", "CPU time an image", "images in all", "CPU time in all"]
    return table(header, found, "networks")


def cifar10_rows() -> str:
    """CIFAR-10's part of Table 1, on features of a public network."""
    rows = [
        [
            row["name"],
            f"{row['epsilon']:.3g}",
            "" if row["queries"] is None else f"{row['queries']:,}",
            *(percent(row[name]) for name in ("right", "test_accuracy")),
            f"{row['right']['worst']:.1%}",
            percent(row["worst_class"]),
            str(len(row["right"]["values"])),
            row["printed"],
        ]
        for row in load("cifar10_rows")["results"]["rows"]
    ]
    header = ["row", "ε", "queries", "public labels right", "on the test set", "worst split"]
    return table(
        [*header, "worst class", "splits", "Li et al., own features"], rows, "cifar10_rows"
    )


def cifar10_labels() -> str:
    """Labels of CIFAR-10 on SimCLR's features."""
    rows = [
        [
            row["trust"],
            f"{row['epsilon']}" if row["epsilon"] != "inf" else "∞",
            str(row["queries"]),
            percent(row["plain"]),
            percent(row["spread"]),
            percent(row["worst_class"]),
            f"{min(row['spread']['values']):.2%}",
        ]
        for row in load("cifar10_labels")["results"]["rows"]
        if row["queries"] in (100, 500)
    ]
    header = [
        "trust",
        "ε",
        "queries",
        "arg max",
        "`spread`",
        "worst class of `spread`",
        "worst release",
    ]
    return table(header, rows, "cifar10_labels")
