"""Numbers that papers print, beside which our own are shown.

`published` holds the table of Li et al., and `claims` those of all papers with recomputed epsilons.
"""

from collections.abc import Callable
from typing import NamedTuple


class Published(NamedTuple):
    """Row of Table 1 of Li et al., "Fine-grained Private Knowledge Distillation".

    Attributes:
      system: Name of the system.
      epsilon: Pure epsilon for a replaced record; infinite without noise.
      label: Accuracy of the labels, or None.
      student: Accuracy of the student, or None.
    """

    system: str
    epsilon: float
    label: float | None
    student: float | None


class Claim(NamedTuple):
    """Operating point of a paper.

    Attributes:
      method: Name of our method that is shown beside it.
      system: Name of the system in the paper.
      epsilon: Claimed epsilon, or None if it is not stated.
      delta: Claimed delta.
      label: Claimed accuracy of the labels, or None if it is not stated.
      student: Claimed accuracy of the student, or None if it is not stated.
      recomputed: Epsilon at this delta for a replaced record, recomputed from the paper's
        statements; None if they are too few.
      differs: Reason why our experiment is not the same.
    """

    method: str
    system: str
    epsilon: float | None
    delta: float
    label: float | None
    student: float | None
    recomputed: Callable[[], float] | None
    differs: str
