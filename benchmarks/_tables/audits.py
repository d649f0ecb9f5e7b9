"""Audits of the project's own mechanisms and systems, and bugs that they find."""

from collections.abc import Mapping
from typing import Any

from benchmarks._tables._format import load, table, verdict


def audited() -> str:
    """Every audit: what is claimed, what it proves at least, and its power."""
    rows = [
        [
            _words(row),
            f"{row['claimed_epsilon']:.4g}",
            f"{row['lower_bound']:.3g}",
            verdict(row),
            _power(row["power"]),
            f"{row['runs']:,}" if row["runs"] else "none: exact",
        ]
        for row in load("audit")["results"]
    ]
    heads = ["audit", "ε claimed", "ε at least", "verdict", "power", "runs of each input"]
    return table(heads, rows, "audit")


def _words(row: Mapping[str, Any]) -> str:
    """Return what is audited, as options of the command."""
    asked = row["settings"]
    words = [f"--{name} {asked[name]}" for name in ("mechanism", "labeler", "federation")]
    words = [one for one in words if not one.endswith("None")]
    flags = ("release", "selection", "ledger", "one_run")
    words += [f"--{name.replace('_', '-')}" for name in flags if asked[name]]
    if asked["unit"] != "record":
        words.append(f"--unit {asked['unit']}")
    if asked["check_share"]:
        words.append(f"--check-share {asked['check_share']}")
    if asked["sampler"] == "release":
        words.append("--sampler release")
    return f"`{' '.join(words)}`"


def _power(found: Mapping[str, Any] | None) -> str:
    return f"{found['probability']:.2g}" if found else ""


def planted_bugs() -> str:
    """Bugs of mechanisms, and the number of runs that finds each."""
    rows = [
        [
            row["plant"],
            f"{row['runs']:,}" if row["found"] else f"not in {row['runs']:,}",
            f"{row['lower_bound']:.2f}",
            row["event"],
        ]
        for row in load("plants")["results"]["plants"]
    ]
    heads = ["bug", "found at runs of each input", "lower bound of ε", "told apart by"]
    return table(heads, rows, "plants")


def half_of_noisy_sgd() -> str:
    """One-run audits that find that half of the noise is missing, of each number of runs."""
    found = [row for row in load("plants")["results"]["noisy_sgd"] if row["share_of_noise"] < 1]
    sizes = ("4", "6", "8", "12", "20")
    rows = [
        [
            f"{row['epsilon']:g}",
            *(
                f"{round(row['called_broken'][size] * row['seeds'])} of {row['seeds']}"
                for size in sizes
            ),
        ]
        for row in found
    ]
    heads = [f"ε claimed at δ = {found[0]['delta']:g}", "found in 4 trainings"]
    return table([*heads, *(f"in {size}" for size in sizes[1:])], rows, "plants")
