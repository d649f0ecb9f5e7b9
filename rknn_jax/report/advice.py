"""Advice on the labels of a release, in one sentence and a command.

The sentence follows from released numbers alone. Warnings come first, because labels that raise one
should not be used as they are. Otherwise it counts the labels whose probability is at least
`LIKELY`: use all of them, use that part and let a person see the rest, or make another release.
"""

from typing import NamedTuple

import numpy as np

from rknn_jax.report.results import Results

LIKELY = 0.8
"""Probability from which on a label is used without a look."""

NEARLY_ALL = 0.95
FEW = 0.25
"""Shares of likely labels from which on all are used, and below which another release is better."""


class Advice(NamedTuple):
    """Advice on labels.

    Attributes:
      verdict: What to do.
      reason: Why, with the number that decides.
      command: Command to run in the release's folder.
    """

    verdict: str
    reason: str
    command: str


def advise(results: Results) -> Advice:
    """Return what to do with the labels of a release.

    Args:
      results: Released quantities.
    """
    total = len(results.label)
    # Its options are those of this release, and it costs nothing.
    served = "round" in results.card
    another = "rknn serve ... --dry-run" if served else "rknn label ... --dry-run"
    if results.summary is not None and results.summary.concerns:
        concern = results.summary.concerns[0]
        return Advice(
            "Do not use these labels as they are.",
            f"{concern.sentence[0].upper()}{concern.sentence[1:]}; {concern.remedy}.",
            another,
        )
    if results.sets is not None:
        doubtful = int(results.doubtful.sum())
        return Advice(
            "Use the sets, and look at the doubtful ones.",
            f"Noise may have decided on a class of {doubtful:,} of {total:,} rows, as their "
            "stability tells.",
            "rknn export . --format parquet",
        )
    labeled = results.label >= 0
    if not len(results.stability):
        return Advice(
            "Let a person look at a sample.",
            "No released number tells how sure these labels are.",
            "rknn export . --format label-studio",
        )
    probability = results.probability[np.arange(total), results.label]
    likely = int((labeled & (probability >= LIKELY)).sum())
    said = f"{likely:,} of {total:,} labels have a probability of {LIKELY:.0%} or more"
    if likely >= NEARLY_ALL * total:
        return Advice("Use the labels.", f"{said}.", "rknn export . --format parquet")
    if likely >= FEW * total:
        return Advice(
            "Use the likely part, and let a person see the rest.",
            f"{said}. The others become tasks for a person.",
            f"rknn export . --format label-studio --threshold {LIKELY:g}",
        )
    return Advice(
        "Make another release.",
        f"Only {said}; a dry run says what a larger epsilon, more records, fewer queries or "
        "another labeler is expected to give.",
        another,
    )
