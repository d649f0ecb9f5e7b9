"""Frozen dataclasses as pytrees of their own type.

`jax.tree_util.register_dataclass` and `flax.struct` ignore the type when they compare tree
structures (jaxlib 0.10.2). Two mechanisms of equal fields are then equal keys of one jit cache. If
their hashes collide, the program traced for one runs for the other. A simulation would then draw
the noise of another mechanism than its guarantee states.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar

import jax

STATIC = {"static": True}
"""Metadata of a field that is part of the pytree's structure and not a leaf."""

T = TypeVar("T")


def register(cls: type[T]) -> type[T]:
    """Register a dataclass as a pytree.

    Fields marked `STATIC` are part of the pytree's structure, like its type; all others are
    children.
    """
    names = [field.name for field in fields(cls) if not field.metadata.get("static")]  # type: ignore[arg-type]
    static = [field.name for field in fields(cls) if field.metadata.get("static")]  # type: ignore[arg-type]

    def flatten(node: T) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(node, name) for name in names), tuple(
            getattr(node, name) for name in static
        )

    def flatten_with_keys(node: T) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(
            (jax.tree_util.GetAttrKey(name), getattr(node, name)) for name in names
        ), flatten(node)[1]

    def unflatten(aux: tuple[Any, ...], children: Iterable[Any]) -> T:
        return cls(**dict(zip(names, children, strict=True)), **dict(zip(static, aux, strict=True)))

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
