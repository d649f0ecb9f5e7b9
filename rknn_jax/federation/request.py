"""Request of a server's owner, and the public data that it is about."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rknn_jax.federation.rounds import Round
from rknn_jax.labelers._sum_labeler import SumLabeler
from rknn_jax.privacy.guarantee import Unit
from rknn_jax.privacy.responsible import Responsible
from rknn_jax.question import Before


@dataclass(frozen=True)
class Asked:
    """Request of a server's owner.

    Attributes:
      config: Labeler, with its settings; epsilon is per unit.
      classes: Names of the classes, in order.
      num_queries: Number of queries s. Defaults to None, the labeler's usual number.
      representation: Name of a file of `rknn_jax.representations`, fitted to public images.
        Defaults to spectral.
      unit, records_per_client, honest, simulated: Settings of the round, as in `Round`.
      labels_per_record, check_share: Settings of the round, as in `Round`.
      clients: Number of clients to wait for. Defaults to 1.
      quorum: Least number of clients for a publication after the deadline. Defaults to 1.
      deadline: Time for which the round is open, in seconds. Defaults to 3600.
      student: Name of a network of `rknn_jax.students.models`, or none. Defaults to cnn.
      epochs: Number of epochs of the student. Defaults to 0, the network's own number.
      seed: Seed of clustering and training, which are public. Defaults to 0.
      authenticated: Flag for clients that are identified by keys. Defaults to False.
      responsible: Party that answers for the round, for the statement. Defaults to not stated.
    """

    config: SumLabeler[Any]
    classes: tuple[str, ...]
    num_queries: int | None = None
    representation: str = "spectral"
    unit: Unit = "record"
    records_per_client: int = 0
    honest: int = 0
    simulated: int | None = None
    clients: int = 1
    quorum: int = 1
    deadline: float = 3600.0
    student: str = "cnn"
    epochs: int = 0
    seed: int = 0
    authenticated: bool = False
    responsible: Responsible = field(default_factory=Responsible)
    labels_per_record: int = 0
    check_share: float = 0.0

    @property
    def shuffled(self) -> bool:
        """True if each message hides among the others, with trust=shuffle."""
        return self.config.is_shuffled

    @property
    def summed(self) -> bool:
        """True if clients' counts are added under masks, with trust=central."""
        return self.config.has_curator


class Former(NamedTuple):
    """Round that is over, as the next one needs it.

    Attributes:
      round: Question of the round.
      before: Labels and guarantee of the round, and of those before it.
      num_clients: Number of clients that answered it.
    """

    round: Round
    before: Before
    num_clients: int


@dataclass(frozen=True)
class Public:
    """Data of the server.

    Attributes:
      inputs: uint8 images `[m, h, w, c]` or float32 features `[m, f]`.
      test: Images and labels that measure the student. Defaults to None.
      others: Columns of the records that have no role, such as the source row, `[m]` by their
        names. Defaults to none.
      features: Names of the features, in the order of `inputs`. Defaults to none.
      former: Round of the same records that is over, in a later one of several. Defaults to None.
    """

    inputs: np.ndarray
    test: tuple[np.ndarray, np.ndarray] | None = None
    others: Mapping[str, np.ndarray] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    former: Former | None = None

    @property
    def images(self) -> bool:
        """True if the records are images."""
        return self.inputs.dtype == np.uint8
