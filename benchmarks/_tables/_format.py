"""Results and Markdown."""

import json
from typing import Any

from benchmarks import _sources
from benchmarks._measure import RESULTS
from rknn_jax.audit.finding import LEAST_POWER

GOALS = ("label_accuracy", "test_accuracy", "one_student")


def load(name: str) -> dict[str, Any]:
    """Read one file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def percent(values: dict[str, Any]) -> str:
    """Format a mean and standard deviation of shares; a single value has no deviation."""
    return f"{values['mean']:.2%}" + (
        f" ± {100 * values['stddev']:.2f}" if values["stddev"] is not None else ""
    )


def table(header: list[str], rows: list[list[str]], name: str, part: str | None = None) -> str:
    """Return a Markdown table with a line that states its source, a result or a part of it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{source(name, part)}"


def source(name: str, part: str | None = None) -> str:
    """Return a sentence on how and when a result, or a part of it, was measured."""
    found = load(name)
    parts = _sources.parts(found)
    measured = [parts[part]] if part in parts else list(parts.values())
    dates = [one["date"][:10] for one in measured]
    days = " to ".join(dict.fromkeys((min(dates), max(dates))))
    return (
        f"`{found['command']}`, {days}, {found['device']} with {found['cores']} cores, "
        f"jax {found['versions']['jax']}.{_mark(measured)}"
    )


def verdict(row: dict[str, Any]) -> str:
    """Return what an audit says of a guarantee."""
    if row["broken"]:
        return "broken"
    power = row["power"]
    return "inconclusive" if power and power["probability"] < LEAST_POWER else "not broken"


def _mark(measured: list[dict[str, Any]]) -> str:
    """Return sentences on code that has changed since parts of a result, or nothing."""
    unknown = sum("sources" not in one for one in measured)
    of_parts = f" for {unknown} of {len(measured)} parts" if unknown < len(measured) else ""
    marks = [f" Which code it ran was not recorded{of_parts}."] if unknown else []
    if any(map(_has_changed, measured)):
        marks.append(" The code that it measures has changed since.")
    return "".join(marks)


def _has_changed(measured: dict[str, Any]) -> bool:
    decide = {
        path: digest
        for path, digest in measured.get("sources", {}).items()
        if path.startswith(_sources.MEASURED)
    }
    return bool(_sources.changed(decide))
