"""Page of a report: `report.html.j2` holds its text and order, and this file its content."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from rknn_jax._internal.disk import write_text
from rknn_jax.answers.measured import Measured
from rknn_jax.report import pages
from rknn_jax.report.text import epsilon_text

from ..papers import Published
from ..papers.published import CAVEATS, PUBLISHED
from .cards import MOST_QUERIES_SHOWN, card, order
from .figures import accuracy_by_epsilon, epochs, leads
from .folder import Run, read
from .settings import command

MOST_CLASSES_IN_TABLE = 20
"""Greatest number of classes in the confusion table. Beyond it, only the largest are listed."""

ACCOUNTANTS = {
    "pure": "epsilons add up",
    "basic": "epsilons and deltas add up",
    "analytic Gaussian": "exact, for Gaussian noise alone",
    "RDP": "Rényi divergences add up at every order",
    "PLD": "the privacy loss itself, convolved on a fine grid",
}


def write(folder: tyro.conf.Positional[Path]) -> Path:
    """Write a run's report.html from its folder, in full or not at all.

    Args:
      folder: Run folder that train.distill wrote.

    Returns:
      Path of the page.

    Raises:
      ValueError: If a file of the folder is missing or cannot be read; the message names it.
    """
    page = render(read(folder))
    target = folder / "report.html"
    write_text(target, page)
    return target


def render(run: Run) -> str:
    """Return the page as HTML."""
    return pages.template("report.html.j2", Path(__file__).parent).render(
        run=run,
        result=run.result,
        config=run.config,
        whole=run.privacy["whole"],
        odds=odds(run.privacy["whole"]),
        accountants=[
            (name, ACCOUNTANTS.get(name, ""), value)
            for name, value in run.privacy["accountants"].items()
        ],
        cards=[card(run, row) for row in order(run)[:MOST_QUERIES_SHOWN]],
        leads=leads(run),
        epochs=epochs(run),
        by_epsilon=accuracy_by_epsilon(run),
        published=published(run),
        caveat=CAVEATS.get(run.benchmark),
        confusion=confusion(run),
        measured=measured(run),
        time=time_spent(run),
        settings={
            name: value for name, value in run.config.items() if name not in ("versions", "classes")
        },
        command=command(run),
        num_classes_in_table=MOST_CLASSES_IN_TABLE,
    )


def odds(guarantee: dict[str, Any]) -> str | None:
    """Explain epsilon to the owner of one record; None if nothing is guaranteed."""
    epsilon = float(guarantee["epsilon"])
    unit = guarantee.get("unit", "record")
    if epsilon > 700:
        return None
    factor = epsilon_text(math.exp(epsilon))
    what = (
        "between any two contents of that one"
        if guarantee.get("relation") == "replace-one"
        else "of whether that one took part"
    )
    exception = f", but for a slack of δ = {guarantee['delta']:g}" if guarantee.get("delta") else ""
    return (
        f"To someone who knows every private {unit} but one, all that is covered changes the "
        f"odds {what} "
        f"by a factor of at most {factor} (e to the ε){exception}."
    )


def published(run: Run) -> list[Published]:
    """Return the paper's rows for this data set, below this run's row.

    The result is empty if the paper has none.
    """
    if run.result.get("labels_bought"):
        return []  # bought true labels are not comparable to private ones
    own = Published(
        "this run", float(run.result["epsilon"]), run.label_accuracy, run.student_accuracy
    )
    theirs = PUBLISHED.get(run.benchmark, ())
    return [own, *theirs] if theirs else []


def confusion(run: Run) -> dict[str, Any] | None:
    """Count the public records of each true label and given label.

    The result is None if true labels are not known.
    """
    if "true_label" not in run.labels:
        return None
    label = run.labels["label"]
    truth = run.labels["true_label"]
    known = label >= 0
    counts = np.zeros((len(run.classes), len(run.classes)), np.int64)
    np.add.at(counts, (truth[known], label[known]), 1)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    off = [
        (int(counts[i, j]), run.classes[i], run.classes[j])
        for i, j in zip(*np.nonzero(counts), strict=True)
        if i != j
    ]
    return {
        "counts": counts.tolist(),
        "share": share.tolist(),
        "unlabelled": int(np.sum(~known)),
        "largest": sorted(off, key=lambda entry: -entry[0])[:MOST_CLASSES_IN_TABLE],
    }


def measured(run: Run) -> Measured | None:
    """Return what private records measured that did not vote; None if nobody checked.

    Raises:
      ValueError: If result.json has something else there.
    """
    told = run.result.get("measured")  # older folders have none
    try:
        return told and Measured.of(told)
    except (KeyError, TypeError) as error:
        raise ValueError(f"Expected a measure in result.json, got {told!r}.") from error


def time_spent(run: Run) -> dict[str, float] | None:
    """Split the run's seconds into the student's epochs and the rest.

    The result is None if the seconds are not known.
    """
    if (total := run.result.get("seconds")) is None:
        return None
    student = sum(entry.get("seconds", 0.0) for entry in run.metrics)
    return {
        "total": total,
        "student": student,
        "rest": max(total - student, 0.0),
        "epochs": len(run.metrics),
    }
