"""Cells of benchmarks/results on baselines and speed; see test_claims.py."""

import statistics
from typing import Any

from benchmarks._tables import _format
from tests.cells import at_most, find, load, share


def settings_lost() -> tuple[str, ...]:
    cells = load("noisy_sgd_defaults")["cells"]
    lost = {one: [] for one in sorted({cell["epsilon"] for cell in cells})}
    for cell in cells:
        lost[cell["epsilon"]].append(100 * (cell["best"] - cell["chosen"]))
    every = [one for cells in lost.values() for one in cells]
    late = max(statistics.mean(lost[one]) for one in lost if one >= 1)
    ends_of = (statistics.mean(every), max(every), statistics.mean(lost[0.05]), late)
    mean, worst, first, later = (f"{one:.1f}" for one in ends_of)
    return mean, str(len(cells)), worst, first, later


def constant_settings_lost() -> tuple[str, str]:
    lost = load("noisy_sgd_defaults")["summary"]["best_constant"]
    return share(lost["mean"]), share(lost["worst"])


def replaced() -> list[float]:
    """Return by how many percent replacing a record costs more than removing one."""
    rows = [row for row in load("accountants")["stated"] if row.get("PLD, replace-one")]
    return [100 * (row["PLD, replace-one"] / row["PLD"] - 1) for row in rows]


def relations(kind: str) -> list[float]:
    """Return epsilon of replacing a record in that of removing one."""
    return [row[kind] / row["add_remove"] for row in load("relations")]


def noisy_sgd(name: str, epsilon: float) -> str:
    rows = load("noisy_sgd")["accuracy"]
    (row,) = [
        one for one in rows if one["name"] == name and abs(one["epsilon"] / epsilon - 1) < 0.01
    ]
    return share(row["model_test_accuracy"]["mean"])


def dpdfd(study: str, name: str, digits: int = 1) -> str:
    return share(find(load("dpdfd")[study], name=name)["test_accuracy"], digits)


def network_to_buy_for() -> str:
    return share(_format.load("buying")["results"]["networks"]["2.0"]["mean"])


# ---- speed


def compiled_in() -> str:
    rows = load("assignment_data")
    return at_most(max(row["first_call_of_jit"] - row["seconds"]["jit"] for row in rows), 2)


def growth(work: str) -> str:
    rows = load("scale")["growth"]
    return f"{find(rows, rows=1_000_000)[work] / find(rows, rows=30_000)[work]:.0f}"


def _on_a_gpu(name: str) -> Any:
    return load("accelerator")[name]["result"]


def assigned_on_a_gpu() -> tuple[str, str]:
    whole = _on_a_gpu("nearest mnist pixels 4")["seconds"]["pallas"]
    kernel = find(_on_a_gpu("tiles mnist pixels 4"), tile=[128, 128, 64, 8])["seconds"]
    return f"{1e3 * whole:.1f}", f"{1e3 * kernel:.1f}"


def trained_on_a_gpu() -> tuple[str, ...]:
    encoded = _on_a_gpu("encode resnet18")["images_per_second"]
    steps = [f"{_on_a_gpu(name)['steps_per_second']:.0f}" for name in ("simclr H200", "simclr")]
    students = [
        _on_a_gpu(f"student {name}")["images_per_second"] for name in ("cnn", "resnet18", "wrn28_2")
    ]
    images = [f"{round(one, -3):,.0f}" for one in (encoded, min(students), max(students))]
    return (images[0], *steps, *images[1:])


def reached_by_decoding() -> str:
    row = find(load("peers")["decode"], vector_width=0, d=5000, cores=1)
    return share(row["giga_cells_per_second"] / row["arithmetic_bound_giga_cells_per_second"], 0)
