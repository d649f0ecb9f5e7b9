"""Parts of the page: tables, charts and lists."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from markupsafe import Markup

from rknn_jax.report.text import epsilon_text

from ..report.charts import chart
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


MEASURED = (
    "Measured: private records that did not vote, a share of all, compare the labels with their "
    "own at the same ε. It is what an owner of data would see, and includes noise. It is agreement "
    'near private records, where "public labels right" is of public records, by their true labels.'
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
    """Return the parts of the page in order, without those that have nothing to tell."""
    done = [row for row in found["rows"] if row["seeds"]]
    parts = [
        _failed(found["failed"]),
        _accuracy_by_epsilon(done, found["by_hand"]),
        _table(found),
        _not_yet_measured(found["rows"]),
        _beside_papers(found["claims"]),
        _costs(found["costs"]),
        Section("What the numbers do not cover", items=NOT_COVERED),
        Section("Guarantees", items=[f"{row['title']}: {row['statement']}" for row in done]),
        _settings(found),
    ]
    return [part for part in parts if part]


def _failed(failed: dict[str, str]) -> Section | None:
    """Return the cells that failed and why, or None if none did."""
    if not failed:
        return None
    return Section("Failed", items=[f"{name}: {why}" for name, why in failed.items()])


def _table(found: dict[str, Any]) -> Section:
    """Return the table of all methods."""
    same = (
        f"δ = {found['delta']:g} and {found['relation']} for all; ε is of one {found['unit']} and "
        "one run."
    )
    words = (
        f"Every method on the same splits, one for each seed; {same} Public, private and "
        "test records are disjoint, the last epoch "
        "counts, and ± is one standard deviation over seeds. ∞ is without noise: what each "
        "could reach. What noise costs to the last "
        "digit, which may be a little less than ε, is under Guarantees.",
        "Where a network is trained on private records, it is what predicts the public "
        "labels. A student learns public labels; "
        "in rows that buy labels it is the network, fine-tuned on true labels.",
    )
    header = (
        "method",
        "trust",
        "ε",
        "δ",
        "seeds",
        "public labels right",
        "its network on test",
        "student on test",
    )
    rows = [line(row) for row in found["rows"]]
    if not found.get("check_share"):  # comparisons that are older than checks have none
        return Section("Table 1, rebuilt", words, header, rows)
    checked = [share(row["measured"]) for row in found["rows"]]
    return Section(
        "Table 1, rebuilt",
        (*words, MEASURED),
        (*header, "measured"),
        [(*cells, one) for cells, one in zip(rows, checked, strict=True)],
    )


def _not_yet_measured(rows: Sequence[dict[str, Any]]) -> Section | None:
    """Return the rows that lack runs, or None if none does."""
    missing = []
    for row in rows:
        lacking = row["runs"] - len(row["seeds"])
        if lacking > 0:
            cell = f"{row['title']}, ε = {epsilon(row['epsilon'])}"
            missing.append(f"{cell}: {lacking} of {row['runs']} runs")
    return Section("Not yet measured", items=missing) if missing else None


def _beside_papers(claims: Sequence[dict[str, Any]]) -> Section | None:
    """Return the table of claims in papers, or None if none is of these methods."""
    if not claims:
        return None
    words = (
        "Recomputed: what the stated noise costs at the claimed δ where one record is "
        "replaced, by this library's accountants. Ours "
        "is the measured row with the ε nearest to the claimed one, of those that are not "
        "more than the recomputed one. "
        "Protocols differ, so no claim is beaten or missed by a table.",
    )
    header = (
        "system",
        "ε claimed",
        "ε recomputed",
        "labels claimed",
        "accuracy claimed",
        "ours at ε",
        "our labels",
        "our accuracy",
        "what differs",
    )
    return Section("What papers claim", words, header, [claimed(claim) for claim in claims])


def _accuracy_by_epsilon(done: Sequence[dict[str, Any]], free: Sequence[dict[str, Any]]) -> Section:
    """Return the charts of the methods that have been measured, under what they show."""
    charts = [
        chart(name, partial(draw, done, told, what, free=lines))
        for name, told, what, lines in (
            ("labels", None, "public labels right", free),
            ("told", "told", "accuracy on the test set", ()),
        )
        if curves(done, told)
    ]
    words = (
        finding(done, free),
        "Bands are ± one standard deviation over seeds. The second chart has what each paper "
        "tells: student, or private network.",
    )
    return Section("Accuracy against ε", words, charts=charts)


def finding(done: Sequence[dict[str, Any]], free: Sequence[dict[str, Any]]) -> str:
    """Return in a few sentences what labels by hand give, and the best method at each epsilon."""
    words = [
        f"{one['labels']} labels by hand, with no private record, get "
        f"{share(one['label_accuracy'])} of the public labels right."
        for one in free
    ]
    private = [row for row in done if row["kind"] != "buy" and row["label_accuracy"]]
    for asked in (0.1, 1.0):
        rows = [row for row in private if float(row["epsilon"]) == asked]
        if rows:
            best = max(rows, key=lambda row: row["label_accuracy"]["mean"])
            accuracy = share(best["label_accuracy"])
            words.append(f"At ε = {asked:g} the best method is {best['title']}, with {accuracy}.")
    return " ".join(words)


def _costs(costs: Sequence[dict[str, Any]]) -> Section:
    """Return the table of seconds and bytes."""
    words = (
        "Median seconds of a run on this machine, which others may share. Those for labels "
        "include, where votes are counted, the study "
        "of other epsilons that every run folder has; the longest run also compiles or "
        "learns features. Bytes are the most that "
        "one client with one record hands over: an image and its label where the curator "
        "sees the record itself, which is what such a "
        "method asks clients to trust it with.",
    )
    header = (
        "method",
        "runs",
        "labels, s",
        "longest, s",
        "student, s",
        "bytes of a client",
        "what they are",
    )
    return Section("Cost", words, header, [spent(told) for told in costs])


def _settings(found: dict[str, Any]) -> Section:
    """Return the command, the machines, and the settings of every method."""
    seeds = ", ".join(map(str, found["seeds"]))
    words = (f"`{found['command']}`, seeds {seeds}.", *map(machine, found["machines"]))
    items = [f"{name}: {json.dumps(told)}" for name, told in found["settings"].items()]
    return Section("Settings", words, items=items)


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
        mean = f"{accuracy['mean']:.2%}"
        if accuracy["stddev"] is None:
            return mean
        return f"{mean} ± {100 * accuracy['stddev']:.2f}"
    return f"{accuracy:.1%}"


def epsilon(value: float | str | None) -> str:
    """Format an epsilon, rounded up."""
    return "not told" if value is None else epsilon_text(value)


def line(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of Table 1."""
    first = row["title"], row["trust"], epsilon(row["epsilon"])
    if not row["seeds"]:
        return (*first, "", "not yet", "", "", "")
    seeds = f"{len(row['seeds'])}"
    if len(row["seeds"]) < row["runs"]:
        seeds += f" of {row['runs']}"
    delta = f"{row['guarantee']['delta']:.2g}" if row["guarantee"]["delta"] else "0"
    return (*first, delta, seeds, *(share(row[name]) for name in ACCURACIES))


def claimed(claim: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of the table of claims."""
    ours = claim["ours"]
    if ours:
        measured = (epsilon(ours["epsilon"]), share(ours["label"]), share(ours["student"]))
    else:
        measured = ("–", "–", "–")
    return (
        claim["system"],
        epsilon(claim["epsilon"]),
        "–" if claim["recomputed"] is None else epsilon(claim["recomputed"]),
        share(claim["label"]),
        share(claim["student"]),
        *measured,
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
