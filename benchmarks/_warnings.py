"""What the warnings of a release say, computed from what no release sees.

An event is that a warning is true. It takes the classes of the public rows, the counts without
noise, the labels of another release, or the agreement of all private records.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks._decoding_cases import Sides
from rknn_jax.answers import concerns, measured

ENOUGH = 10.0
"""Votes that few votes must be expected to be, so that chance does not make them few."""

NO_BETTER = 0.02
"""Share of rows by which labels are no better than one class for all rows."""


class Facts(NamedTuple):
    """Release as a benchmark knows it, with what no release sees.

    Attributes:
      sides: Rows and classes.
      counts: Counts without noise, `[s, num_classes]`.
      size: Public rows of each query, `[s]`.
      labels: Released labels of the public rows, `[m]`.
      again: Labels of another release, `[m]`.
      agrees: Whether each private record agrees with the labels, bool `[n]`.
    """

    sides: Sides
    counts: np.ndarray
    size: np.ndarray
    labels: np.ndarray
    again: np.ndarray
    agrees: np.ndarray


def _right(facts: Facts) -> float:
    known = facts.sides.truth >= 0
    return float(np.mean((facts.labels == facts.sides.truth)[known]))


def _noise_alone(facts: Facts) -> bool:
    truth = facts.sides.truth[facts.sides.truth >= 0]
    return _right(facts) <= np.bincount(truth).max() / len(truth) + NO_BETTER


def _missing(facts: Facts) -> bool:
    there = np.unique(facts.sides.truth[facts.sides.truth >= 0])
    return not np.isin(there, facts.labels).all()


def _doubtful(facts: Facts) -> bool:
    """Return whether most rows that got some class are of another one."""
    known = facts.sides.truth >= 0
    found = facts.labels[known]
    wrong = found != facts.sides.truth[known]
    return any(wrong[found == one].mean() > 0.5 for one in np.unique(found))


def _unstable(facts: Facts) -> bool:
    return bool(np.mean(facts.labels == facts.again) < concerns.LOW_STABILITY)


def _inaccurate(facts: Facts) -> bool:
    return _right(facts) < concerns.LOW_ACCURACY


def _distant(facts: Facts) -> bool:
    votes, expected = _votes(facts)
    few = (votes < concerns.FEW_VOTES * expected) & (expected >= ENOUGH)
    return bool(facts.size[few].sum() >= concerns.FEWEST_ROWS * facts.size.sum())


def _crowded(facts: Facts) -> bool:
    votes, expected = _votes(facts)
    many = (votes > concerns.MANY_VOTES * expected) & (votes >= ENOUGH)
    return bool(votes[many].sum() >= concerns.FEWEST_ROWS * votes.sum())


def _votes(facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    """Return the votes of each query, and those that its public rows let expect."""
    votes = facts.counts.sum(axis=1)
    return votes, facts.size * votes.sum() / facts.size.sum()


def _rarer(facts: Facts) -> bool:
    public, private = _shares(facts)
    return bool((public > concerns.FAR_RATIO * private).any())


def _more_frequent(facts: Facts) -> bool:
    public, private = _shares(facts)
    return bool((private > concerns.FAR_RATIO * public).any())


def _shares(facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of each class among public rows with a class, and private records."""
    truth, labels = facts.sides.truth[facts.sides.truth >= 0], facts.sides.labels
    most = int(max(truth.max(), labels.max())) + 1
    found = [np.bincount(one, minlength=most) / len(one) for one in (truth, labels)]
    return found[0], found[1]


def _low_measure(facts: Facts) -> bool:
    return float(facts.agrees.mean()) < measured.LOW


def _no_better(facts: Facts) -> bool:
    return bool(facts.agrees.mean() <= _shares(facts)[1].max())


def _low_recall(facts: Facts) -> bool:
    labels = facts.sides.labels
    return any(facts.agrees[labels == one].mean() < concerns.LOW_RECALL for one in set(labels))


def _missed(facts: Facts) -> bool:
    """Return whether most public rows of some class have another label."""
    known = facts.sides.truth >= 0
    truth, labels = facts.sides.truth[known], facts.labels[known]
    return any(np.mean(labels[truth == one] == one) < concerns.LOW_RECALL for one in set(truth))


EVENTS: dict[str, Callable[[Facts], bool]] = {
    concerns.NOISE_ALONE: _noise_alone,
    "missing_classes": _missing,
    "doubtful_classes": _doubtful,
    concerns.LOW_STABILITY_KIND: _unstable,
    "low_accuracy": _inaccurate,
    "low_agreement": _inaccurate,
    "distant_rows": _distant,
    "crowded_rows": _crowded,
    "rarer_classes": _rarer,
    "more_frequent_classes": _more_frequent,
    "low_measure": _low_measure,
    "no_better": _no_better,
    "low_recall": _low_recall,
    "low_expected_recall": _missed,
}
"""Event that each warning is about. Other warnings state public facts."""
