"""Ways to decode noisy counts."""

from typing import Any

import numpy as np

from benchmarks._tables._format import load, table

DECODERS = ("argmax", "spread", "assignment", "permute_and_flip", "one_to_one", "decoded")


def decoding() -> str:
    """Public labels that are right, by case, epsilon and the way to decode the counts."""
    rows = []
    for (case, epsilon), told in _decoded().items():
        if epsilon in (0.1, 1.0):
            one = told["decoded"]
            cells = [_three(told[name]) if name in told else "" for name in DECODERS]
            stable = f"{one['stability']:.1%}, {one['same']:.1%}"
            constant = f"{one['constant']:.1%}"
            rows.append([case, f"{epsilon:g}", constant, *cells, stable, f"{one['expected']:.1%}"])
    header = ["data", "ε", "one class", *DECODERS, "stability, same", "expected"]
    return table(header, rows, "decoding")


def decoding_losses() -> str:
    """Cases and epsilons where another way to decode has a point more right than the default."""
    rows = []
    for (case, epsilon), told in _decoded().items():
        one = told["decoded"]
        others = [row for name, row in told.items() if name != "decoded"]
        best = max(others, key=lambda other: other["right"])
        if best["right"] > one["right"] + 0.01:
            name, constant = best["method"], f"{one['constant']:.1%}"
            rows.append([case, f"{epsilon:g}", constant, _three(one), name, _three(best)])
    header = ["data", "ε", "one class", "decoded", "the best", "of which"]
    return table(header, rows, "decoding")


def _decoded() -> dict[tuple[str, float], dict[str, dict[str, Any]]]:
    """Return the results by case and epsilon, then by method."""
    found: dict[tuple[str, float], dict[str, dict[str, Any]]] = {}
    for row in load("decoding")["results"]:
        found.setdefault((row["case"], row["epsilon"]), {})[row["method"]] = row
    return found


def _three(row: dict[str, Any]) -> str:
    """Format the mean, the worst release, and the worst class."""
    return ", ".join(f"{row[name]:.1%}" for name in ("right", "worst_run", "worst_class"))


def calibrating() -> str:
    """Powers that make what is said of labels true, and how they hold on other kinds of data."""
    rows = []
    for row in load("calibrating")["results"]:
        powers = [f"{row[name]:.2f}" if name in row else "" for name in ("shares", "odds")]
        held = [
            f"{100 * row[error]:.1f}, {row[near]:.0%}"
            for error, near in (("error", "near"), ("stability_error", "stability_near"))
        ]
        rows.append([row["judged"], row["fitted"], *powers, *held])
    header = ["judged on", "fitted on", "power of shares", "of odds"]
    header += ["expected accuracy: error, within 5 points", "stability: error, within 3 points"]
    return table(header, rows, "calibrating")


def decoding_summary() -> str:
    """Numbers of data sets on which the default is best, and says the truth, by epsilon."""
    told = _decoded()
    epsilons = sorted({epsilon for _, epsilon in told})
    rows = []
    for epsilon in epsilons:
        cells = [found for (_, one), found in told.items() if one == epsilon]
        rows.append([f"{epsilon:g}", *(str(sum(map(of, cells))) for of in SUMMARY.values())])
    header = [f"ε, of {len(told) // len(epsilons)} data sets", *SUMMARY]
    return table(header, rows, "decoding")


def _shortfall(cell: dict[str, dict[str, Any]]) -> float:
    """Return how far the default is below the best other way to read the same counts."""
    best = max(row["right"] for name, row in cell.items() if name in SAME_COUNTS)
    return float(best - cell["decoded"]["right"])


SAME_COUNTS = ("argmax", "spread", "assignment")
SUMMARY = {
    "none is better": lambda cell: _shortfall(cell) <= 0,
    "none by a point": lambda cell: _shortfall(cell) <= 0.01,
    "stability within 3 points": lambda cell: abs(cell["decoded"]["stability_error"]) <= 0.03,
    "expected accuracy within 5": lambda cell: abs(cell["decoded"]["expected_error"]) <= 0.05,
}


def spaces() -> str:
    """Labels by queries in the rows' own space and in spectral coordinates."""
    found = load("spaces")["results"]
    told = {(row["case"], row["epsilon"], row["space"]): row for row in found}
    rows = []
    for case in dict.fromkeys(row["case"] for row in found):
        cells = [
            " / ".join(
                f"{told[case, epsilon, space]['right']:.1%}" for space in ("own", "spectral")
            )
            for epsilon in dict.fromkeys(row["epsilon"] for row in found)
        ]
        rows.append([case, *cells])
    header = ["data", *(f"ε = {one:g}" for one in dict.fromkeys(row["epsilon"] for row in found))]
    return table(header, rows, "spaces")


def components() -> str:
    """Right labels read without the components of a mixture and with them, and what is said."""
    found = load("components")
    cells = found["results"]["cells"]
    rows = []
    for name in dict.fromkeys(one["case"] for one in cells):
        mine = [one for one in cells if one["case"] == name]
        shown = []
        for epsilon in sorted({one["epsilon"] for one in mine}):
            these = [one["right"] for one in mine if one["epsilon"] == epsilon]
            means = [np.mean([one[way] for one in these]) for way in ("without", "with")]
            shown.append(f"{means[0]:.1%} → {means[1]:.1%}")
        changes = [100 * (one["right"]["with"] - one["right"]["without"]) for one in mine]
        told = [f"{np.mean(changes):+.1f}", f"{min(changes):+.1f} to {max(changes):+.1f}"]
        rows.append([f"{name}{'' if name in found['unseen'] else ' *'}", *shown, *told])
    header = ["data set", *(f"ε = {e:g}" for e in sorted({one["epsilon"] for one in cells}))]
    return table([*header, "points on average", "splits and ε"], rows, "components")


def query_numbers() -> str:
    """Right labels by the number of queries that is chosen, and by 200, in many dimensions."""
    found = load("query_numbers")["results"]
    rows = []
    for name in dict.fromkeys(one["data"] for one in found):
        mine = [one for one in found if one["data"] == name]
        reached = [one["reached"]["200"] for one in mine]
        shown = [name, f"{min(reached):.0%} to {max(reached):.0%}"]
        for epsilon in sorted({one["epsilon"] for one in mine}):
            these = [one for one in mine if one["epsilon"] == epsilon]
            numbers = sorted({one["chosen"]["queries"] for one in these})
            asked = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
            right = [np.mean([one[way]["right"] for one in these]) for way in ("chosen", "most")]
            worst = [min(one[way]["right"] for one in these) for way in ("chosen", "most")]
            shown.append(
                f"{asked}: {right[0]:.1%} ({worst[0]:.1%}); 200: {right[1]:.1%} ({worst[1]:.1%})"
            )
        rows.append(shown)
    epsilons = sorted({one["epsilon"] for one in found})
    header = ["data", "reached of 200 queries", *(f"ε = {e:g}" for e in epsilons)]
    return table(header, rows, "query_numbers")


def sites() -> str:
    """Right labels if private records come from elsewhere, and points that remedies add."""
    found = load("sites")["results"]
    remedies = [name for name in found[0]["right"]["1"] if name != "as it is"]
    rows = []
    for name in dict.fromkeys(one["data"] for one in found):
        for epsilon in found[0]["right"]:
            mine = [one["right"][epsilon] for one in found if one["data"] == name]
            plain = np.array([one["as it is"] for one in mine])
            shown = [name, epsilon, f"{plain.mean():.1%} ({plain.min():.1%})"]
            for remedy in remedies:
                gains = 100 * (np.array([one[remedy] for one in mine]) - plain)
                shown.append(f"{gains.mean():+.1f} ({gains.min():+.1f})")
            rows.append(shown)
    return table(["private records", "ε", "as it is", *remedies], rows, "sites")


def rounds() -> str:
    """Right labels in one, two and three rounds of the same epsilon in all."""
    found = load("rounds")
    rows = []
    for name in dict.fromkeys(one["data"] for one in found["results"]):
        mine = [one["right"] for one in found["results"] if one["data"] == name]
        shown = [f"{name}{' *' if name in found['looked_at'] else ''}"]
        for epsilon in mine[0]:
            means = np.mean([one[epsilon] for one in mine], axis=0)
            worst = np.min([one[epsilon] for one in mine], axis=0)
            shown.append(", ".join(f"{a:.1%} ({b:.1%})" for a, b in zip(means, worst, strict=True)))
        gains = [one[epsilon][1] - one[epsilon][0] for one in mine for epsilon in one]
        rows.append([*shown, f"{100 * np.mean(gains):+.1f}"])
    rows.sort(key=lambda row: -float(row[-1]))
    epsilons = [f"ε = {epsilon}" for epsilon in found["results"][0]["right"]]
    return table(["data", *epsilons, "points by a second round"], rows, "rounds")


def adaptive_queries() -> str:
    """Points that adaptive queries of a second round gain over today's, by data set and form."""
    found = load("adaptive_queries")
    cells, bounds = found["results"], found["bounds"]
    forms = [name for name in cells[0]["right"] if name not in ("one round", "today")]
    looked_at, beside = found["looked_at"], found["one_sided"]
    names = sorted({one["data"] for one in cells})
    names.sort(key=lambda name: (name in beside, name not in looked_at))
    unseen = [name for name in names if name not in (*looked_at, *beside)]
    groups = {f"{name}{' *' if name in looked_at else ''}": [name] for name in names}
    rows = []
    for title, group in {**groups, "all with a *": looked_at, "all unseen": unseen}.items():
        mine = [one for one in cells if one["data"] in group]
        known = [one for one in bounds if one["data"] in group]
        shares = [np.mean([one["right"][way] for one in mine]) for way in ("one round", "today")]
        gains = [_gain(mine, form) for form in forms]
        rows.append([title, *(f"{share:.1%}" for share in shares), *gains])
        rows[-1].append(_gain(known, "the truth") if known else "")
    header = ["data", "one round", "today", *forms, "told by the truth, ε = 1"]
    return table(header, rows, "adaptive_queries")


def _gain(cells: list[dict[str, Any]], form: str) -> str:
    """Format the mean points over today's queries, the worst epsilon's and the worst split's."""
    by_cell: dict[tuple[str, float], list[float]] = {}
    for one in cells:
        points = 100 * (np.mean(one["right"][form]) - np.mean(one["right"]["today"]))
        by_cell.setdefault((one["data"], one["epsilon"]), []).append(float(points))
    means = [float(np.mean(points)) for points in by_cell.values()]
    worst = min(min(points) for points in by_cell.values())
    return f"{np.mean(means):+.1f} ({min(means):+.1f}, {worst:+.1f})"
