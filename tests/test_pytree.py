"""Mechanisms and encoders as pytrees: the type is part of the structure, without which one
mechanism's trace could run for another.
"""

from dataclasses import dataclass, field

import jax

import rknn_jax.mechanisms
from rknn_jax._internal import pytree
from tests.conftest import modules


@pytree.register
@dataclass(frozen=True)
class One:
    value: float
    size: int = field(metadata=pytree.STATIC)


@pytree.register
@dataclass(frozen=True)
class Other:
    value: float
    size: int = field(metadata=pytree.STATIC)


def test_equal_fields_of_different_types_are_different_structures():
    assert jax.tree.structure(One(1.0, 2)) != jax.tree.structure(Other(1.0, 2))
    assert jax.tree.structure(One(1.0, 2)) != jax.tree.structure(One(1.0, 3))
    assert jax.tree.structure(One(1.0, 2)) == jax.tree.structure(One(5.0, 2))


def test_leaves_come_back_and_are_named():
    paths, structure = jax.tree.flatten_with_path(One(1.0, 2))
    assert [(jax.tree_util.keystr(path), leaf) for path, leaf in paths] == [(".value", 1.0)]
    assert jax.tree.unflatten(structure, [7.0]) == One(7.0, 2)


def test_no_two_mechanisms_share_a_structure():
    """With jaxlib's own registration these compared equal, and one run of the tests drew another
    mechanism's noise.
    """
    structures = [
        jax.tree.structure(example)
        for module in modules(rknn_jax.mechanisms, leave_out=rknn_jax.mechanisms.CONTRACTS)
        for example in module.EXAMPLES
    ]
    assert len(structures) >= 4
    assert all(a != b for i, a in enumerate(structures) for b in structures[:i])
