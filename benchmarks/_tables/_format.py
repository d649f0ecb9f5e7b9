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


def table(header: list[str], rows: list[list[str]], name: str) -> str:
    """Return a Markdown table with a line that states its source."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{source(name)}"


def source(name: str) -> str:
    """Return a sentence on how and when a result was measured."""
    found = load(name)
    return (
        f"`{found['command']}`, {found['date'][:10]}, {found['device']} with {found['cores']} "
        f"cores, jax {found['versions']['jax']}.{_mark(found)}"
    )


def verdict(row: dict[str, Any]) -> str:
    """Return what an audit says of a guarantee."""
    if row["broken"]:
        return "broken"
    power = row["power"]
    return "inconclusive" if power and power["probability"] < LEAST_POWER else "not broken"


def _mark(found: dict[str, Any]) -> str:
    """Return a sentence on code that has changed since a result, or nothing."""
    sources = found.get("sources")
    if sources is None:
        return " Which code it ran was not recorded."
    measured = {path: one for path, one in sources.items() if path.startswith(_sources.MEASURED)}
    if not _sources.changed(measured):
        return ""
    return " The code that it measures has changed since."
