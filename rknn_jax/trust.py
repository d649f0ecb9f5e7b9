"""Trust models: who sees what records say, which noise hides it, and the words for both."""

from typing import Literal, NamedTuple

Trust = Literal["central", "local", "shuffle"]
Protection = Trust | Literal["aggregate"]
"""Trust model of a guarantee.

A labeler's `Trust`, or `aggregate`: a server sums for clients who add the noise.
"""


class TrustModel(NamedTuple):
    """Trust model.

    Attributes:
      has_curator: True if a curator, or a secure sum in its place, takes what the records say.
      is_shuffled: True if each message hides among those of the others.
      mechanism: Usual mechanism of a simulation or a release.
      federated: Usual mechanism of a federation's round.
      words: Who sees what, for a statement.
      server: What a federation's server is trusted with, with `epsilon` of a message and number
        `honest` of clients that follow the protocol in braces.
      deployment: Name of the model in the registry of deployments.
    """

    has_curator: bool
    is_shuffled: bool
    mechanism: str
    federated: str
    words: str
    server: str
    deployment: str

    @property
    def trusts_nobody(self) -> bool:
        """True if every message is private by itself."""
        return not self.has_curator and not self.is_shuffled


_SUMMED_BY = (
    "to follow the protocol of secure aggregation, by which it sees nothing but the sum; one that "
    "lies about the clients' keys sees single clients' counts with a share of the noise. And "
    "{honest} of the clients in the sum must have added their share, and keep it to themselves"
)

MODELS: dict[Protection, TrustModel] = {
    "central": TrustModel(
        has_curator=True,
        is_shuffled=False,
        mechanism="discrete_laplace",
        federated="binomial",
        words="a trusted curator sees what the records say, without noise, and adds it",
        server=_SUMMED_BY,
        deployment="Central",
    ),
    "local": TrustModel(
        has_curator=False,
        is_shuffled=False,
        mechanism="collision",
        federated="collision",
        words="every client randomizes its own message and trusts nobody",
        server="nothing: every message is epsilon-private by itself, whoever sees it",
        deployment="Local",
    ),
    "shuffle": TrustModel(
        has_curator=False,
        is_shuffled=True,
        mechanism="collision",
        federated="collision",
        words="a trusted shuffler hides which client sent which message, among those of all "
        "clients that follow the protocol",
        server="not to tell, nor to look, which client sent which message: the server is the "
        "shuffler. If it does, every message is still {epsilon:.4g}-private by itself",
        deployment="Shuffle",
    ),
    "aggregate": TrustModel(
        has_curator=True,
        is_shuffled=False,
        mechanism="binomial",
        federated="binomial",
        words="clients add the noise in shares, and a server that follows the protocol of secure "
        "aggregation sees their sum alone",
        server=_SUMMED_BY,
        deployment="Federated",
    ),
}
"""Trust models by their names."""
