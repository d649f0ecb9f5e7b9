"""One concern about released labels, and how its sentence names classes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_NAMES = 3
"""Most classes that are named in one sentence."""


@dataclass(frozen=True)
class Concern:
    """Reason to doubt labels.

    Attributes:
      kind: Name of the reason, such as `missing_classes`.
      number: Number that the sentence is about.
      sentence: What was found, with the number.
      remedy: What to do about it.
      opinion: True if it is the decoder's opinion of the labels, which a measure replaces. Defaults
        to False.
    """

    kind: str
    number: float
    sentence: str
    remedy: str
    opinion: bool = False

    def __str__(self) -> str:
        return f"{self.sentence}; {self.remedy}"


def named(names: Sequence[str], chosen: Iterable[int]) -> str:
    """Return a few words for the chosen classes, most of them by name."""
    found = [names[int(i)] for i in chosen]
    if len(found) == 1:
        return f"class {found[0]}"
    shown = ", ".join(found[:MOST_NAMES])
    rest = len(found) - MOST_NAMES
    return f"classes {shown}" + (f" and {rest} more" if rest > 0 else "")
