"""People as the unit."""

from typing import Any

from benchmarks._tables._format import load, table


def persons_mnist() -> str:
    """Labels of MNIST with a writer as the unit, by bound, trust and epsilon."""
    return _by_bound(load("persons")["results"]["mnist"], "trust", "label_accuracy")


def persons_skewed() -> str:
    """Labels of queries by made-up persons of unequal size, by bound and epsilon."""
    return _by_bound(load("persons")["results"]["skewed"], "case", "queries_right")


def persons_labelers() -> str:
    """Labels of MNIST by every labeler with a writer as the unit: mean, worst run, worst class."""
    found = load("persons_labelers")["results"]
    told = {
        (row["title"], float(row["epsilon"])): f"{row['label_accuracy']['mean']:.1%}, "
        f"{row['label_accuracy']['worst']:.1%}, {row['worst_class']:.1%}"
        for row in found
    }
    epsilons = sorted({epsilon for _, epsilon in told})
    rows = [
        [title, *(told.get((title, epsilon), "") for epsilon in epsilons)]
        for title in dict.fromkeys(row["title"] for row in found)
    ]
    words = {0.0: "nothing private", float("inf"): "∞"}
    header = ["method", *(words.get(one, f"ε = {one:g}") for one in epsilons)]
    return table(header, rows, "persons_labelers")


def _by_bound(found: list[dict[str, Any]], kind: str, measured: str) -> str:
    """Return a row for each kind and epsilon, and a column for each bound: mean, worst release."""
    names = list(dict.fromkeys(row["bound"] for row in found))
    told = {
        (row[kind], row["epsilon"], row["bound"]): f"{row[measured]['mean']:.1%}, "
        f"{row[measured]['worst']:.1%}"
        for row in found
    }
    rows = [
        [which, f"{epsilon:g}", *(told.get((which, epsilon, name), "") for name in names)]
        for which, epsilon in dict.fromkeys((row[kind], row["epsilon"]) for row in found)
    ]
    words = {"none": "a digit is the unit", "shared": "one vote shared"}
    words |= {"clipped": "clipped, Gaussian noise"}
    header = [kind, "ε", *(words.get(name, f"m = {name.removesuffix(' drawn')}") for name in names)]
    return table(header, rows, "persons")
