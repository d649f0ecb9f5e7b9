"""Mechanisms that turn votes into noisy counts, one file each.

A file's presence registers the mechanism. `base` and `local` hold the contracts and the drivers.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from rknn_jax import trust as trusts
from rknn_jax._internal.registry import registered

CONTRACTS = ("base", "local")


def names(trust: str | None = None) -> list[str]:
    """Return the names of all mechanisms, or of those that can label under `trust`.

    The names are the files of this folder.
    """
    every = [name for name in registered(__path__) if name not in CONTRACTS]
    if trust is None:
        return every
    model = trusts.named(trust)
    return [name for name in every if model.takes(named(name))]


def default(trust: str) -> str:
    """Return the name of the mechanism that is used if none is asked for."""
    return trusts.named(trust).usual


def named(name: str) -> type[Any]:
    """Return the class of a mechanism: `DiscreteLaplace` for `discrete_laplace`.

    Raises:
      ValueError: If the name is not in `names()`.
    """
    if name not in names():
        raise ValueError(f"Expected mechanism to be one of {names()}, got mechanism={name!r}.")
    mechanism: type[Any] = getattr(
        importlib.import_module(f"{__name__}.{name}"), name.title().replace("_", "")
    )
    return mechanism


def chosen(name: str, fits: Callable[[type[Any]], bool]) -> type[Any]:
    """Return the class of a mechanism that fits what it is needed for.

    Args:
      name: Name of the mechanism.
      fits: Property that the class must have, such as `can_release`.

    Raises:
      ValueError: If no mechanism of that name fits. The message lists those that do.
    """
    if name in names() and fits(found := named(name)):
        return found
    # Importing every mechanism takes seconds, so only the error does.
    choices = [other for other in names() if fits(named(other))]
    raise ValueError(f"Expected mechanism to be one of {choices}, got mechanism={name!r}.")


def is_local(mechanism: type[Any]) -> bool:
    """Return True if every client randomizes its own votes, with nobody to trust."""
    return "local" in mechanism.trusts


def is_central(mechanism: type[Any]) -> bool:
    """Return True if a trusted curator adds the noise."""
    return "central" in mechanism.trusts


def can_release(mechanism: type[Any]) -> bool:
    """Return True if a trusted curator can add the noise exactly, as `rknn label` does."""
    return is_central(mechanism) and mechanism.is_exact()


class Choice(NamedTuple):
    """A local mechanism and the reason for its choice."""

    mechanism: Any
    reason: str


def best(
    epsilon: float,
    num_queries: int,
    num_classes: int,
    *,
    max_bits: int | None = None,
    **fields: Any,
) -> Choice:
    """Choose the local mechanism of least exact variance, averaged over the cells.

    The number of clients plays no part: every mechanism's variance is one client's times that
    number.

    Args:
      epsilon: Epsilon of one message.
      num_queries: Number of queries s.
      num_classes: Number of classes |Y|.
      max_bits: Largest message size, in bits; the seed of a hash is not counted. Defaults to no
        limit.
      **fields: Fields `num_neighbors` and `labels_per_record`, passed to every mechanism.

    Raises:
      ValueError: If every mechanism's message is larger.
    """
    problem = {"epsilon": epsilon, "num_queries": num_queries, "num_classes": num_classes, **fields}
    # Randomized response takes any valid fields, so it names the invalid ones.
    make("randomized_response", **problem)
    found = []
    for name in names("local"):
        try:
            found.append((name, make(name, **problem)))
        except ValueError:  # The mechanism takes one vote a record only.
            continue
    small = [
        (name, mechanism)
        for name, mechanism in found
        if max_bits is None or mechanism.message_bits <= max_bits
    ]
    if not small:
        least = min(mechanism.message_bits for _, mechanism in found)
        raise ValueError(
            f"Expected max_bits >= {least}, got max_bits={max_bits}; no mechanism's message is "
            "smaller."
        )
    ranked = sorted(small, key=lambda pair: (pair[1].mean_variance, pair[1].message_bits))
    words = [
        f"{name} {mechanism.mean_variance:.4g} at {mechanism.message_bits} bits"
        for name, mechanism in ranked
    ]
    return Choice(
        ranked[0][1],
        "variance of a cell for each client and size of a message: " + ", ".join(words),
    )


def make(name: str, **fields: Any) -> Any:
    """Return the mechanism `name` with these fields."""
    return named(name)(**fields)
