"""Choice of a labeler from public quantities: `--labeler auto`.

`benchmarks.choosing` fits the thresholds on data sets of its own and judges the rule on others.
"""

from dataclasses import dataclass
from typing import NamedTuple

FOR_WEAK = "public_prototypes"
"""Labeler for few classes and a weak signal. All others take reverse k-NN labeling."""

FEW_CLASSES = 3
"""Most classes for which `FOR_WEAK` is chosen."""

STRONG = 100.0
"""Expected records of a class, times epsilon, from which on reverse k-NN labeling is chosen."""


@dataclass(frozen=True)
class Quantities:
    """Public quantities that decide.

    Attributes:
      num_records: Number of private records n, or of persons.
      num_classes: Number of classes |Y|.
      epsilon: Epsilon of the release.
    """

    num_records: int
    num_classes: int
    epsilon: float

    @property
    def signal(self) -> float:
        """Number n·epsilon/|Y|: records of a class for each unit of the noise."""
        return self.num_records * self.epsilon / self.num_classes


class Chosen(NamedTuple):
    """Labeler that was chosen.

    Attributes:
      labeler: Name of the labeler.
      reason: Reason with the numbers, in one line.
    """

    labeler: str
    reason: str


def choose(found: Quantities) -> Chosen:
    """Return the labeler to take.

    Args:
      found: Public quantities.
    """
    few = found.num_classes <= FEW_CLASSES
    weak = found.signal < STRONG
    labeler = FOR_WEAK if few and weak else "rknn"
    numbers = (
        f"n·epsilon/classes = {found.signal:,.3g} is {'below' if weak else 'at least'} "
        f"{STRONG:g}, and {found.num_classes} classes are {'at most' if few else 'more than'} "
        f"{FEW_CLASSES}"
    )
    return Chosen(labeler, f"{labeler}, since {numbers}")
