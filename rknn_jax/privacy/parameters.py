"""Privacy that a labeler or a training is asked for: the part that their settings share."""

from dataclasses import dataclass, field
from typing import Any

from rknn_jax._internal.ranges import make_plain
from rknn_jax.privacy.contributions import PROTECTED, Protected
from rknn_jax.privacy.guarantee import RELATIONS, Relation


@dataclass(frozen=True)
class PrivacyParameters:
    """Epsilon and delta of all that is released, and the neighbors between which they hold.

    Attributes:
      epsilon: Privacy budget of everything together; infinity means no noise and no privacy.
      delta: Probability delta of the (epsilon, delta) guarantee of everything together.
      relation: Neighboring relation of the data sets.
      unit: Privacy unit: record, or person with all records.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    relation: Relation = "replace-one"
    # Clients of a federation protect what they were told to, whatever a labeler says.
    unit: Protected = field(default="record", metadata={"travels": False})

    def __post_init__(self) -> None:
        settle(self)


def settle(settings: Any) -> None:
    """Make all numbers Python's own, and check the neighboring relation and the privacy unit.

    Args:
      settings: Dataclass with the fields `relation` and `unit`; changed in place.

    Raises:
      ValueError: If the relation or the unit is none that is known.
    """
    make_plain(settings)
    for name, choices in (("relation", RELATIONS), ("unit", PROTECTED)):
        if (given := getattr(settings, name)) not in choices:
            raise ValueError(
                f"Expected {name} to be one of {', '.join(choices)}, got {name}={given!r}."
            )
