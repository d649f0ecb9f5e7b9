"""Cells of benchmarks/results that sentences of README.md and docs tell of; see test_claims.py.

Each function returns numbers as a sentence prints them, or values that it is made of.
"""

import functools
import math
import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks._tables import _format

Row = dict[str, Any]

CIFAR10, COMPONENTS = "CIFAR-10, ImageNet features", "MNIST, 50 components"
RIVALS = ("rknn", "class means", "public prototypes", "least squares", "noisy_sgd")
MNIST_FAST = "`--preset mnist-fast`, epsilon 0.01"
LABELERS = ("rknn", "prototypes", "least_squares", "public_prototypes")
CELLS = ("200 queries, 50 classes, kr = 4", "100 queries, 10 classes, kr = 1")


@functools.cache
def load(name: str) -> Any:
    """Return the results of one file of benchmarks/results."""
    return _format.load(name)["results"]


def find(rows: list[Row], /, **wanted: Any) -> Row:
    """Return the one row with these values. Raises ValueError if there are none or several."""
    (row,) = [row for row in rows if all(row.get(name) == one for name, one in wanted.items())]
    return row


def share(value: float, digits: int = 1) -> str:
    """Return a share as percent, without the sign."""
    return f"{100 * value:.{digits}f}"


def at_most(value: float, digits: int = 1) -> str:
    """Return a bound, rounded up but for the error of floats."""
    return f"{math.ceil(value * 10**digits - 1e-9) / 10**digits:.{digits}f}"


def ends(values: Iterable[float], digits: int = 0) -> tuple[str, str]:
    """Return the least and the largest of some values."""
    values = list(values)
    return f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"


# ---- labelers


def rival(space: str, records: int, epsilon: float, method: str) -> float:
    rows = load("rivals")["rows"]
    row = find(rows, space=space, num_records=records, epsilon=epsilon, method=method)
    return float(row["label_accuracy"]["mean"])


def _rivals() -> dict[tuple[str, int, float], dict[str, float]]:
    """Return the rows of the table of rivals."""
    found: dict[tuple[str, int, float], dict[str, float]] = {}
    for row in load("rivals")["rows"]:
        if row["method"] in RIVALS and row["epsilon"] in (0.01, 0.1, 1.0):
            place = (row["space"], row["num_records"], row["epsilon"])
            found.setdefault(place, {})[row["method"]] = row["label_accuracy"]["mean"]
    return found


def rows_won() -> tuple[str, str]:
    won = [max(cell, key=cell.__getitem__) == "rknn" for cell in _rivals().values()]
    return str(sum(won)), str(len(won))


def behind_on_spectral() -> str:
    gaps = [
        100 * (max(cell.values()) - cell["rknn"])
        for (space, _, _), cell in _rivals().items()
        if space == "MNIST, spectral"
    ]
    assert sum(gap > 0 for gap in gaps) == 2
    return next(f"{bound / 10:.1f}" for bound in range(1, 1000) if max(gaps) < bound / 10)


def second(space: str, records: int, epsilon: float) -> float:
    return max(rival(space, records, epsilon, name) for name in RIVALS[1:])


def above(space: str, records: int, epsilon: float, method: str) -> str:
    ours = rival(space, records, epsilon, "rknn")
    return share(rival(space, records, epsilon, method) - ours)


def purity(space: str) -> float:
    return float(load("rivals")["nothing_private"][space]["purity"])


def behind() -> tuple[str, ...]:
    """Cells of `choosing` in which reverse k-NN labeling is 3 points below the best."""
    weak, strong = [], []
    every = load("choosing")["cells"]
    for cell in every:
        gap = 100 * (max(cell["right"][name] for name in LABELERS) - cell["right"]["rknn"])
        if gap > 3:
            heard = cell["num_records"] * cell["epsilon"] / cell["num_classes"]
            (weak if heard <= 20 else strong).append(round(gap, 6))
    assert len(weak) == 5
    others = (f"{gap:.2f}" for gap in strong)
    return str(len(weak + strong)), str(len(every)), f"{max(weak):.0f}", *others


def gains() -> tuple[str, str]:
    halves = load("choosing")["gain_over_rknn"].values()
    return ends((100 * one for half in halves for one in half.values()), 1)


def with_delta(labeler: str, epsilon: float, case: str) -> str:
    right = find(load("choosing")["cells"], case=case, epsilon=epsilon)["right"]
    return share(right[f"{labeler}, with delta"] - right["rknn"])


def writers(title: str, epsilon: float, of: str = "mean", digits: int = 1) -> str:
    row = find(load("persons_labelers"), title=title, epsilon=epsilon)
    return share(row["label_accuracy"][of], digits)


def of_writers(part: str) -> str:
    wanted = {"parties": 10, "trust": "central", "epsilon": 0.1}
    if part == "labelers":
        wanted["labeler"] = "rknn"
    return share(find(load("federation")[part], **wanted)["label_accuracy"]["mean"])


# ---- how counts become labels


def decoded(case: str, epsilon: float, method: str = "decoded") -> Row:
    return find(load("decoding"), case=case, epsilon=epsilon, method=method)


def _by_default() -> list[Row]:
    return [row for row in load("decoding") if row["method"] == "decoded"]


def told_well(error: str, bound: float) -> tuple[str, str]:
    rows = [row for row in _by_default() if row["epsilon"] >= 1]
    return str(sum(abs(row[error]) <= bound for row in rows)), str(len(rows))


def hopeless() -> tuple[str, str]:
    rows = [row for row in _by_default() if row["epsilon"] == 0.01]
    return str(sum(row["right"] < row["constant"] for row in rows)), str(len(rows))


def lead(case: str, method: str) -> str:
    """Return the most points that a method is ahead of the default at any epsilon."""
    rows = [row for row in load("decoding") if (row["case"], row["method"]) == (case, method)]
    return share(max(row["right"] - decoded(case, row["epsilon"])["right"] for row in rows), 0)


def three_queries() -> tuple[str, ...]:
    case = "wine, 3 queries"
    alike = [100 * row["right"] for row in load("decoding") if row["case"] == case]
    epsilons = [row["epsilon"] for row in load("decoding") if row["case"] == case]
    alike = [one for one, epsilon in zip(alike, epsilons, strict=True) if epsilon >= 0.5]
    first = (share(decoded(case, 0.1, name)["right"]) for name in ("one_to_one", "decoded"))
    return (*first, *ends(alike, 1))


def rare_class_found() -> str:
    rows = [row for row in load("decoding") if row["case"] == "MNIST, class 3 at 1%"]
    worst = max(row["worst_class"] for row in rows)
    return next(str(bound) for bound in range(0, 101, 10) if 100 * worst <= bound)


def spaces() -> list[float]:
    """Return the points that spectral coordinates add, the least first."""
    rows = load("spaces")
    own = {(row["case"], row["epsilon"]): row["right"] for row in rows if row["space"] == "own"}
    other = [row for row in rows if row["space"] == "spectral"]
    return sorted(100 * (row["right"] - own[row["case"], row["epsilon"]]) for row in other)


def _components(case: str, way: str, epsilon: float | None = None) -> float:
    cells = [one for one in load("components")["cells"] if one["case"] == case]
    return 100 * statistics.mean(
        one["right"][way] for one in cells if epsilon in (None, one["epsilon"])
    )


def added_by_mixtures(case: str) -> str:
    return f"{_components(case, 'with') - _components(case, 'without'):.1f}"


def worse_in_300_dimensions() -> str:
    case = "300 dimensions"
    strong, weak = (_components(case, "with", epsilon) for epsilon in (3.0, 0.1))
    assert strong <= weak
    lost = _components(case, "without", 0.1) - _components(case, "without", 0.5)
    return f"{lost:.1f}"


# ---- the papers' experiments


def goal(trust: str, epsilon: float) -> str:
    row = find(load("goals")["rows"], trust=trust, epsilon=epsilon)
    return share(row["label_accuracy"]["mean"])


def writer_seen(representation: str) -> str:
    row = find(load("attributes"), representation=representation, epsilon=1.0, clip=4.0)
    return share(row["right"]["by a student"]["mean"], 0)


def labels(representation: str, queries: int, epsilon: float, way: str = "plain") -> float:
    rows = load("labels")
    row = find(rows, representation=representation, queries=queries, epsilon=epsilon)
    return float(row[way]["mean"])


def balanced(*, public: bool) -> list[float]:
    """Return the points that prices add to the arg max, by public ones or by all others, the least
    first.
    """
    keys = ("representation", "population", "epsilon")
    found = []
    for row in load("balance"):
        if row["prices"] == "none":
            continue
        base = find(load("balance"), prices="none", **{name: row[name] for name in keys})
        named = (row["representation"], row["population"], row["prices"], row["amount"])
        mild = named == ("spectral", "as the public", "public", "part")
        for way in ("plain", "shared"):
            if (mild and way == "plain") == public:
                found.append(100 * (row[way]["mean"] - base[way]["mean"]))
    return sorted(found)


def appendix(epsilon: float) -> float:
    name = "concatenation, as published"
    return float(find(load("appendix_b"), mechanism=name, epsilon=epsilon, clients=10**6)["right"])


def concatenated() -> float:
    return max(appendix(row["epsilon"]) for row in load("appendix_b") if row["clients"] == 10**6)


def separated() -> list[float]:
    """Return the variance of Separation in that of Collision, for each epsilon."""
    rows = [row for row in load("appendix_b") if row["clients"] == 1]
    return [
        row["expected"] / find(rows, mechanism="collision", epsilon=row["epsilon"])["expected"]
        for row in rows
        if row["mechanism"] == "separation"
    ]


def _variance(name: str, epsilon: str, problem: str) -> float:
    return float(find(load("mechanisms"), problem=problem, name=name)["variance"][epsilon])


def saved_by_sets(epsilon: str) -> str:
    names = ("subset_selection", "collision")
    sets, collision = (_variance(name, epsilon, CELLS[0]) for name in names)
    return share(1 - sets / collision, 0)


def saved_by_collision(epsilon: str) -> str:
    names = ("collision", "randomized_response")
    collision, response = (_variance(name, epsilon, CELLS[1]) for name in names)
    return share(1 - collision / response, 0).replace("-", "−")


def gain_of_collision(epsilon: str) -> float:
    names = ("randomized_response", "collision")
    response, collision = (_variance(name, epsilon, CELLS[0]) for name in names)
    return response / collision


def table1(name: str, epsilon: float) -> str:
    return share(find(load("cifar10_rows")["rows"], name=name, epsilon=epsilon)["right"]["mean"])


def papers_row(name: str, what: str = "label_accuracy") -> str:
    return share(load("rows")[name][what]["mean"])


def minutes_of_scan() -> str:
    (seconds,) = load("rows")["SCAN"]["seconds"]
    return f"{seconds / 60:.0f}"


def cifar10(name: str) -> str:
    return share(load("cifar10")[0][name])


def cifar10_neighbors() -> str:
    return share(load("cifar10_labels")["knn_ceiling"])


def cifar10_default() -> tuple[str, str]:
    (row,) = load("cifar10")
    return share(row["label_accuracy"]), share(row["test_accuracy"])


def by_hand_in_compare(labels: int) -> tuple[str, str]:
    found = find(load("compare")["by_hand"], labels=labels)["label_accuracy"]
    return share(found["mean"], 2), share(found["stddev"], 2)


def head_in_compare() -> str:
    rows = load("compare")["rows"]
    found = find(rows, method="noisy-sgd", kind="noisy_sgd", epsilon=1.0)
    return share(found["model_test_accuracy"]["mean"])


def head_beside_rknn() -> str:
    """Return the most points between the labels of a linear head and of reverse k-NN labeling."""
    rows = load("compare")["rows"]
    heads = [row for row in rows if row["method"] == "noisy-sgd" and row["kind"] == "noisy_sgd"]
    ours = {
        row["epsilon"]: row["label_accuracy"]["mean"]
        for row in rows
        if row["title"] == "reverse k-NN, central"
    }
    apart = (abs(row["label_accuracy"]["mean"] - ours[row["epsilon"]]) for row in heads)
    return at_most(100 * max(apart))


def preset_labels() -> str:
    return share(find(load("distill"), name=MNIST_FAST)["label_accuracy"]["mean"])


def least_epsilon(trust: str, right: float) -> str:
    """Return the least epsilon at which some mechanism has a share of the labels right."""
    rows = [row for row in load("local") if row["trust"] == trust]
    return f"{min(row['epsilon'] for row in rows if row['label_accuracy']['mean'] >= right):g}"


def preset() -> tuple[str, ...]:
    row = find(load("distill"), name=MNIST_FAST)
    kinds = (row["label_accuracy"], row["test_accuracy"])
    return tuple(share(kind[of], 2) for kind in kinds for of in ("mean", "stddev"))


def three_students() -> str:
    row = find(load("distill"), name="`--preset mnist`, epsilon 0.01")
    return share(row["test_accuracy"]["mean"])


# ---- rounds and records from elsewhere


def beliefs(epsilon: float) -> tuple[str, ...]:
    """Return what somebody believes at most after a release, for three beliefs before it."""
    before = (0.001, 0.1, 0.5)
    odds = [p / (1 - p) * math.exp(epsilon) for p in before]
    rare, *others = (one / (1 + one) for one in odds)
    # A bound is rounded up.
    return f"{math.ceil(10_000 * rare) / 10:.1f}", *(f"{math.ceil(100 * one)}" for one in others)


def above_the_best(name: str) -> list[float]:
    """Return by how much the variance of a local mechanism is above the least one."""
    rows = [row for row in load("mechanisms") if "variance" in row]
    return [
        one
        / min(other["variance"][epsilon] for other in rows if other["problem"] == row["problem"])
        - 1
        for row in rows
        if row["name"] == name
        for epsilon, one in row["variance"].items()
    ]


def of_the_first_round() -> tuple[str, ...]:
    """Return the shares of right labels in the first round of the federation's page."""
    found = load("pages")["federation"]["labels"]["values"]
    return (*ends((100 * one for one in found), 0), str(len(found)))


def of_the_tutorial() -> tuple[str, ...]:
    """Return the shares of right labels in releases of the tutorial."""
    found = load("pages")["tutorial"]["labels"]["values"]
    return (str(len(found)), *ends((100 * one for one in found), 1))


def classifier_of_the_tutorial() -> tuple[str, ...]:
    """Return what the tutorial's classifiers have right."""
    found = load("pages")["tutorial"]
    reached = ends((100 * one for one in found["classifier"]["values"]), 1)
    return (*reached, share(found["classifier of true labels"]["mean"]))


def rounds() -> list[float]:
    """Return the points that a second round adds on average of splits, the least first."""
    added: dict[Any, list[float]] = {}
    for row in load("rounds"):
        for epsilon, (one, two, *_) in row["right"].items():
            added.setdefault((row["data"], epsilon), []).append(two - one)
    return sorted(100 * statistics.mean(one) for one in added.values())


def digits_rounds() -> tuple[str, ...]:
    """Return the points of labels that two rounds add, and that three lose, on digits."""
    right = {
        (row["rounds"], row["epsilon"]): 100 * row["label_accuracy"]["mean"]
        for row in load("sweeps")["rounds"]
    }
    gained, half = (right["2", epsilon] - right["1", epsilon] for epsilon in ("2", "0.5"))
    lost = right["1", "0.5"] - right["3", "0.5"]
    return f"{gained:.1f}", f"{half:.1f}", f"{lost:.1f}"


def _added(remedy: str, *data: str) -> list[list[float]]:
    """Return the points that a remedy adds in each split, for each data set and epsilon."""
    added: dict[Any, list[float]] = {}
    for row in load("sites"):
        for epsilon, cell in row["right"].items():
            if not data or row["data"] in data:
                points = 100 * (cell[remedy] - cell["as it is"])
                added.setdefault((row["data"], epsilon), []).append(points)
    return list(added.values())


def sites(remedy: str, *data: str) -> list[float]:
    return sorted(statistics.mean(one) for one in _added(remedy, *data))


def site(data: str, epsilon: str) -> float:
    cells = [row["right"][epsilon] for row in load("sites") if row["data"] == data]
    return 100 * statistics.mean(cell["as it is"] for cell in cells)


def added_by_features() -> tuple[str, str]:
    odd = ("one of two sites turned by 30°", "one of two sites noisy")
    return ends(sites("HOG", "thicker", "turned by 15°", *odd))


def added_by_copies() -> tuple[str, str]:
    far = "turned by 45°"
    copies, both = sites("public copies", far), sites("HOG, public copies", far)
    others = [
        one for name in ("records that check", "two rounds", "HOG") for one in sites(name, far)
    ]
    assert max(others) < 5 < min(copies)
    return "5", f"{both[-1]:.0f}"


def second_round_at_sites() -> tuple[str, str, str]:
    averages = sites("two rounds")
    worst = min(min(one) for one in _added("two rounds"))
    return at_most(-averages[0]), at_most(-worst), at_most(averages[-1])
