"""Trust models: who sees what records say, and which noise is used if none is named."""

from typing import NamedTuple

from rknn_jax.privacy.guarantee import Trust


class TrustModel(NamedTuple):
    """Trust model.

    Attributes:
      has_curator: True if a curator, or a secure sum in its place, takes what the records say.
      is_shuffled: True if each message hides among those of the others.
      mechanism: Usual mechanism of a simulation or a release.
      federated: Usual mechanism of a federation's round.
    """

    has_curator: bool
    is_shuffled: bool
    mechanism: str
    federated: str


MODELS: dict[Trust, TrustModel] = {
    "central": TrustModel(True, False, "discrete_laplace", "binomial"),
    "local": TrustModel(False, False, "collision", "collision"),
    "shuffle": TrustModel(False, True, "collision", "collision"),
}
"""Trust models by their names."""
