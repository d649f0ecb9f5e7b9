"""Party that answers for a release, in its own public words."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Responsible:
    """Party that answers for a release, in public words for the statement.

    Attributes:
      controller: person or organization that answers for it.
      contact: address for questions.
      purpose: what the labels are for.
      justification: why this epsilon is right for these records, and who decided it.
    """

    controller: str = ""
    contact: str = ""
    purpose: str = ""
    justification: str = ""
