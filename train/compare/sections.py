"""Parts of the page: tables, charts and lists."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from markupsafe import Markup

from ..report.charts import chart
from ..report.text import epsilon_text
from .curves import curves, draw
from .measure import ACCURACIES

NOT_COVERED = (
    "Simulation: noise is drawn by jax.random on benchmark data whose labels everybody knows. "
    "Nothing here is a private release.",
    "Settings: those of all methods were chosen on benchmark data, reverse k-NN's with the most "
    "care, and no epsilon covers that choice.",
    "Accuracies, and which epsilon is best: they are told by true labels that an owner of data "
    "would not have.",
    "All runs together: epsilon is that of one run. Were several released of one private data "
    "set, they would compose.",
    "The number of private records, which replace-one takes as public.",
    "The labels that DiversePublic and NearPrivate buy: an oracle tells the truth about public "
    "records, no privacy was paid for it, and "
    "these rows compare with no other.",
    "Chance: ± is one standard deviation over seeds, each with its own split and noise. A "
    "difference below it is no improvement, and one "
    "seed tells nothing of it.",
)


class Section(NamedTuple):
    """Part of the page. Charts are on the page alone, and all else is in Markdown too."""

    title: str
    words: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    items: Sequence[str] = ()
    charts: Sequence[Markup] = ()


def sections(found: dict[str, Any]) -> list[Section]:
    """Return the parts of the page in order."""
    rows = found["rows"]
    done = [row for row in found["rows"] if row["seeds"]]
    missing = [
        f"{row['title']}, ε = {epsilon(row['epsilon'])}: {row['runs'] - len(row['seeds'])} of "
        f"{row['runs']} runs"
        for row in rows
        if len(row["seeds"]) < row["runs"]
    ]
    same = (
        f"δ = {found['delta']:g} and {found['relation']} for all; ε is of one record and one run."
    )
    table = Section(
        "Table 1, rebuilt",
        (
            f"Every method on the same splits, one for each seed; {same} Public, private and "
            "test records are disjoint, the last epoch "
            "counts, and ± is one standard deviation over seeds. ∞ is without noise: what each "
            "could reach. What noise costs to the last "
            "digit, which may be a little less than ε, is under Guarantees.",
            "Where a network is trained on private records, it is what predicts the public "
            "labels. A student learns public labels; "
            "in rows that buy labels it is the network, fine-tuned on true labels.",
        ),
        (
            "method",
            "trust",
            "ε",
            "δ",
            "seeds",
            "public labels right",
            "its network on test",
            "student on test",
        ),
        [line(row) for row in rows],
    )
    beside_them = Section(
        "What papers claim",
        (
            "Recomputed: what the stated noise costs at the claimed δ where one record is "
            "replaced, by this library's accountants. Ours "
            "is the measured row with the ε nearest to the claimed one, of those that are no "
            "more than the recomputed one. "
            "Protocols differ, so no claim is beaten or missed by a table.",
        ),
        (
            "system",
            "ε claimed",
            "ε recomputed",
            "labels claimed",
            "accuracy claimed",
            "ours at ε",
            "our labels",
            "our accuracy",
            "what differs",
        ),
        [claimed(claim) for claim in found["claims"]],
    )
    drawn = [("labels", None, "public labels right"), ("told", "told", "accuracy on the test set")]
    accuracy = Section(
        "Accuracy against ε",
        (
            "Bands are ± one standard deviation over seeds. The second chart has what each paper "
            "tells: student, or private network.",
        ),
        charts=[
            chart(name, partial(draw, done, told, what))
            for name, told, what in drawn
            if curves(done, told)
        ],
    )
    costs = Section(
        "Cost",
        (
            "Median seconds of a run on this machine, which others may share. Those for labels "
            "include, where votes are counted, the study "
            "of other epsilons that every run folder has; the longest run also compiles or "
            "learns features. Bytes are the most that "
            "one client with one record hands over: an image and its label where the curator "
            "sees the record itself, which is what such a "
            "method asks clients to trust it with.",
        ),
        (
            "method",
            "runs",
            "labels, s",
            "longest, s",
            "student, s",
            "bytes of a client",
            "what they are",
        ),
        [spent(told) for told in found["costs"]],
    )
    promised = Section("Guarantees", items=[f"{row['title']}: {row['statement']}" for row in done])
    parts = [
        Section("Failed", items=[f"{name}: {why}" for name, why in found["failed"].items()])
        if found["failed"]
        else None,
        table,
        Section("Not yet measured", items=missing) if missing else None,
        beside_them if found["claims"] else None,
        accuracy,
        costs,
        Section("What the numbers do not cover", items=NOT_COVERED),
        promised,
        Section(
            "Settings",
            (
                f"`{found['command']}`, seeds {', '.join(map(str, found['seeds']))}.",
                *map(machine, found["machines"]),
            ),
            items=[f"{name}: {json.dumps(told)}" for name, told in found["settings"].items()],
        ),
    ]
    return [part for part in parts if part]


def machine(told: dict[str, Any]) -> str:
    """Return a sentence that states where and when cells were run."""
    versions = ", ".join(f"{name} {version}" for name, version in told["versions"].items())
    days = told["first"] if told["first"] == told["last"] else f"{told['first']} to {told['last']}"
    return (
        f"Measured on {days}: {told['device']} with {told['cores']} cores, "
        f"Python {told['python']}, {versions}."
    )


def share(accuracy: dict[str, Any] | float | None) -> str:
    """Format an accuracy, or the mean and standard deviation of several."""
    if accuracy is None:
        return "–"
    if isinstance(accuracy, dict):
        return f"{accuracy['mean']:.2%}" + (
            "" if accuracy["stddev"] is None else f" ± {100 * accuracy['stddev']:.2f}"
        )
    return f"{accuracy:.1%}"


def epsilon(value: float | str | None) -> str:
    """Format an epsilon, rounded up."""
    return "not told" if value is None else epsilon_text(value)


def line(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of Table 1."""
    first = row["title"], row["trust"], epsilon(row["epsilon"])
    if not row["seeds"]:
        return (*first, "", "not yet", "", "", "")
    seeds = f"{len(row['seeds'])}" + (
        "" if len(row["seeds"]) == row["runs"] else f" of {row['runs']}"
    )
    delta = f"{row['guarantee']['delta']:.2g}" if row["guarantee"]["delta"] else "0"
    return (*first, delta, seeds, *(share(row[name]) for name in ACCURACIES))


def claimed(claim: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of the table of claims."""
    ours = claim["ours"]
    return (
        claim["system"],
        epsilon(claim["epsilon"]),
        "–" if claim["recomputed"] is None else epsilon(claim["recomputed"]),
        share(claim["label"]),
        share(claim["student"]),
        *(
            (epsilon(ours["epsilon"]), share(ours["label"]), share(ours["student"]))
            if ours
            else ("–", "–", "–")
        ),
        claim["differs"],
    )


def spent(told: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of the table of costs."""
    times = (told[name] for name in ("labels_seconds", "longest_seconds", "student_seconds"))
    return (
        told["title"],
        str(told["runs"]),
        *("–" if seconds is None else f"{seconds:.1f}" for seconds in times),
        f"{told['bytes']:,}",
        told["sends"],
    )
