"""Finding of an audit: bounds of epsilon, the verdict on a guarantee, and the audit's power."""

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

LEAST_POWER = 0.5
"""Least power, against the control, of a conclusive audit."""


class Power(NamedTuple):
    """Ability of the audit to find one known fault; other faults may go unseen.

    Attributes:
      against: Known fault, in words.
      probability: Estimated probability that this audit calls a mechanism with the fault broken.
      lower_bound: Lower bound of epsilon, at the claimed delta, of the mechanism with the fault.
    """

    against: str
    probability: float
    lower_bound: float


class Bound(NamedTuple):
    """Bound of epsilon at one delta.

    Attributes:
      delta: Delta of the bound.
      claimed: Epsilon that the guarantee promises at that delta.
      lower: Lower bound of epsilon from the audit's runs.
    """

    delta: float
    claimed: float
    lower: float


@dataclass(frozen=True)
class Finding:
    """Result of an audit.

    Attributes:
      claimed_epsilon: Epsilon of the guarantee.
      delta: Delta of the guarantee.
      lower_bound: Lower bound of epsilon at that delta.
      confidence: Least probability with which all bounds hold; 1 if they are exact.
      exact: True if a stated law was enumerated, under a few draws of public coins.
      broken: True if a bound contradicts the guarantee, at its delta or elsewhere on its curve.
      evidence: Bound that lies farthest above the claim, or the one at the claimed delta if none
        does.
      inputs: The two most telling inputs.
      event: Event that tells the inputs apart, in words.
      runs: Number of runs of each input behind the bounds; the search used more.
      games: Number of pairs of inputs that were tried.
      power: Power against the control, or against no noise at all; None of a law that was
        enumerated.
    """

    claimed_epsilon: float
    delta: float
    lower_bound: float
    confidence: float
    exact: bool
    broken: bool
    evidence: Bound
    inputs: str
    event: str
    runs: int
    games: int = 0
    power: Power | None = None

    def __str__(self) -> str:
        at = f" at delta = {self.delta:g}" if self.delta else ""
        if self.exact:
            known = "is, by enumeration,"
        else:
            known = f"is at least, with confidence {self.confidence:.6g},"
        sentence = (
            f"{self._verdict()}: epsilon{at} {known} {self.lower_bound:.4g}, and "
            f"{self.claimed_epsilon:.4g} is claimed."
        )
        if self.broken and self.lower_bound <= self.claimed_epsilon:
            shown = self.evidence
            sentence += (
                f" At delta = {shown.delta:g} it is at least {shown.lower:.4g}, where the same "
                f"noise promises {shown.claimed:.4g}."
            )
        if self.power is not None:
            sentence += (
                f" Power {self.power.probability:.2g} against {self.power.against}; other faults "
                "may go unseen."
            )
        return sentence

    def _verdict(self) -> str:
        if self.broken:
            return "BROKEN"
        if self.power is not None and self.power.probability < LEAST_POWER:
            return "Inconclusive, take more runs"
        return "Not broken"

    def asdict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        told = asdict(self) | {"evidence": self.evidence._asdict(), "statement": str(self)}
        told["power"] = None if self.power is None else self.power._asdict()
        if math.isinf(self.lower_bound):  # JSON lacks infinity.
            told |= {
                "lower_bound": "infinity",
                "evidence": told["evidence"] | {"lower": "infinity"},
            }
        return told
