"""Choice of a labeler from public quantities: `--labeler auto`.

`benchmarks.choosing` fits the thresholds on data sets of its own and judges the rule on others.
"""

from dataclasses import dataclass
from typing import NamedTuple

OTHER = "public_prototypes"
"""Labeler for few classes and a weak signal. All others take reverse k-NN labeling."""

FEW_CLASSES = 2
"""Most classes for which `OTHER` is chosen."""

WEAK = 10.0
"""Records of a class, times epsilon, from which on `OTHER` is chosen."""

STRONG = 20.0
"""Records of a class, times epsilon, from which on it is not."""


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
        """Number n·epsilon/|Y| of records of a class, times epsilon."""
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
    weak = WEAK <= found.signal < STRONG
    labeler = OTHER if few and weak else "rknn"
    numbers = (
        f"n·epsilon/classes = {found.signal:,.3g}, and {found.num_classes} classes; {OTHER} is for "
        f"{WEAK:g} to {STRONG:g}, and at most {FEW_CLASSES} classes"
    )
    return Chosen(labeler, f"{labeler}, for {numbers}")
