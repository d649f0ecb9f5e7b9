"""Trust models, one file each: who sees what records say, which noise hides it, in which words.

A file's presence registers the model, and it offers a `MODEL`. Labelers, mechanisms, statements and
the choices of a command line ask for its attributes. A protocol that is of one model names it.
"""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rknn_jax._internal.registry import registered


@dataclass(frozen=True)
class TrustModel:
    """Trust model.

    Attributes:
      words: Who sees what, for a statement.
      deployment: Name of the model in the registry of deployments.
      mechanisms: Trust model whose mechanisms may label under this one; see `Mechanism.trusts`.
        Defaults to "": no labeler chooses this model, and it is that of a guarantee alone.
      usual: Usual mechanism of a simulation or a release. Defaults to "", without `mechanisms`.
      noises: Number of parties, each of whom adds all noise of the mechanism. Defaults to 1.
      federated: Usual mechanism of a federation's round. Defaults to "": no federation has one.
      server: Words after "The server is trusted" in a federation, with `epsilon` of a message,
        rounded up to four digits, and number `honest` of clients that follow the protocol in
        braces. Defaults to "".
      has_curator: True if a curator, or a secure sum in its place, takes what the records say.
        Defaults to False: every record randomizes its own message.
      one_party: True if whoever holds all records may release under it, as `rknn label` does.
        Defaults to False: a statement of such a release would be untrue.
      is_shuffled: True if each message hides among those of the others. Defaults to False.
    """

    words: str
    deployment: str
    mechanisms: str = ""
    usual: str = ""
    noises: int = 1
    federated: str = ""
    server: str = ""
    has_curator: bool = False
    one_party: bool = False
    is_shuffled: bool = False

    @property
    def labels(self) -> bool:
        """True if a labeler can label under the model."""
        return bool(self.mechanisms)

    @property
    def trusts_nobody(self) -> bool:
        """True if every message is private by itself."""
        return not self.has_curator and not self.is_shuffled

    def takes(self, mechanism: type[Any]) -> bool:
        """Return whether a mechanism can label under the model.

        Args:
          mechanism: Class of the mechanism, a file of `rknn_jax.mechanisms`.
        """
        # Mechanisms name the trust models that they were written for; a later model names theirs.
        # Labels without counts cannot be made noisier by another party.
        adds = self.noises == 1 or mechanism.releases_counts
        return self.mechanisms in mechanism.trusts and adds


def names(fits: Callable[[TrustModel], bool] | None = None) -> list[str]:
    """Return the names of trust models, which are the files of this folder.

    Args:
      fits: Function that says which models to name. Defaults to None: all.
    """
    every = registered(__path__)
    return every if fits is None else [name for name in every if fits(named(name))]


@functools.cache  # guarantees ask for it, also where no file can be read
def named(name: str) -> TrustModel:
    """Return a trust model.

    Raises:
      ValueError: If there is none of that name.
    """
    if name not in names():
        raise ValueError(f"Expected trust to be one of {', '.join(names())}, got trust={name}.")
    model: TrustModel = importlib.import_module(f"{__name__}.{name}").MODEL
    return model


def choices(fits: Callable[[TrustModel], bool]) -> Any:
    """Return a `Literal` of the names of the models that fit, for settings of a command."""
    return Literal[tuple(names(fits))]
