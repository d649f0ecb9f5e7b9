"""Clipped per-example gradients of a network, or of a part of it.

Per-example gradients are `jax.vmap(jax.grad)`. Those of a dense layer that sees one row are kept as
two vectors (`Product`), from the same backward pass as all others: a second one, as in ghost
clipping, would round differently, and what was clipped would not be what is summed. If only a part
of the network is trained (`Part`), no gradient is computed for the rest.

A gradient that is not finite counts as 0. Optax's own clipping would let such a gradient pass and
reveal that its record is present.

References: Abadi et al., "Deep Learning with Differential Privacy", 2016, Algorithm 1; Luo et al.,
"Scalable Differential Privacy with Sparse Network Finetuning", 2021 (`norms` and `sparse`).
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from rknn_jax import bsvs
from rknn_jax._internal import compilation

Part = Literal["all", "head", "norms", "sparse"]
"""Trained part of a network.

- `all`: all weights.
- `head`: the last layer.
- `norms`: scales and biases of the normalization, and the last layer.
- `sparse`: as `norms`, and the largest of the other weights.
"""

LARGEST_DIVISOR = 1e37
"""Largest number that float32 rows are divided by.

XLA multiplies by the reciprocal, which is 0 for numbers above 8.5e37.
"""


class Product(NamedTuple):
    """Per-example gradients of a dense layer's kernel, each the outer product of two vectors.

    They are never multiplied out. Each has the product of both norms as its norm, and a weighted
    sum of them is one matrix product.

    Attributes:
      inputs: Inputs of the layer, float32 `[n, f]`.
      back: Gradients of its outputs, float32 `[n, d]`.
    """

    inputs: jax.Array
    back: jax.Array


def clipped_sum(gradients: dict[str, Any], clip: float) -> dict[str, jax.Array]:
    """Sum gradients of n examples, each clipped to norm `clip` over all leaves.

    A gradient that is not finite counts as 0.

    Args:
      gradients: Arrays `[n, ...]`, or `Product`s.
      clip: Clipping norm C.
    """
    total = _weighted_sum(gradients, _weights(gradients, clip))
    whole = functools.reduce(jnp.logical_and, (jnp.isfinite(leaf).all() for leaf in total.values()))

    def again() -> dict[str, jax.Array]:
        finite = _finite(gradients)
        return _weighted_sum(finite, _weights(finite, clip))

    # A gradient that is not finite spoils the sum, so search for one only then.
    summed: dict[str, jax.Array] = jax.lax.cond(whole, lambda: total, again)
    return summed


def _weights(gradients: dict[str, Any], clip: float) -> jax.Array:
    """Return what clipping multiplies each gradient by, float32 `[n]`."""
    squares = sum(
        (_norms(leaf.inputs) * _norms(leaf.back)) ** 2
        if isinstance(leaf, Product)
        else jnp.sum(leaf**2, axis=tuple(range(1, leaf.ndim)))
        for leaf in gradients.values()
    )
    return 1 / jnp.maximum(1, jnp.sqrt(squares) / clip)


def _norms(rows: jax.Array) -> jax.Array:
    """Return the norm of each row, float32 `[n]`, or more for rows near 0.

    The square of a small row would be 0, and its product with a large one would not be clipped. Nor
    would a row beyond `LARGEST_DIVISOR`, if it were divided by itself.
    """
    tiny = np.finfo(np.float32).tiny
    largest = jnp.clip(jnp.abs(rows).max(axis=1), tiny, LARGEST_DIVISOR)
    norms = largest * jnp.sqrt(jnp.sum((rows / largest[:, None]) ** 2, axis=1))
    return jnp.maximum(norms, tiny * math.sqrt(rows.shape[1]))


def _weighted_sum(gradients: dict[str, Any], weights: jax.Array) -> dict[str, jax.Array]:
    def weighted(leaf: Any) -> jax.Array:
        if isinstance(leaf, Product):
            return _exact_product(leaf.inputs.T, weights[:, None] * leaf.back)
        # A matrix on the right, as otherwise XLA on a CPU transposes all gradients first.
        rows = leaf.reshape(len(leaf), -1)
        return _exact_product(weights[None], rows).reshape(leaf.shape[1:])

    return {path: weighted(leaf) for path, leaf in gradients.items()}


def _exact_product(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)


def _finite(gradients: dict[str, Any]) -> dict[str, Any]:
    """Return per-example gradients with 0 in place of those that are not finite everywhere."""
    leaves = jax.tree.leaves(gradients)
    finite = (jnp.isfinite(leaf).all(axis=tuple(range(1, leaf.ndim))) for leaf in leaves)
    kept = functools.reduce(jnp.logical_and, finite)
    found: dict[str, Any] = jax.tree.map(
        lambda leaf: jnp.where(jnp.expand_dims(kept, tuple(range(1, leaf.ndim))), leaf, 0),
        gradients,
    )
    return found


def parted(params: Any, part: Part, density: float) -> tuple[Any, Any, Any]:
    """Split a network's weights into trained and fixed ones, flat by path.

    Returns:
      The trained weights, the other weights, and a mask of the trained weights that may change.

    Raises:
      ValueError: For an unknown part, one that the network lacks, or a density outside (0, 1).
    """
    if part not in get_args(Part):
        raise ValueError(f"Expected part to be one of {get_args(Part)}, got part={part!r}.")
    if part == "sparse" and not 0 < density < 1:
        raise ValueError(
            f"Expected 0 < density < 1, got density={density}; part=all trains all weights."
        )
    flat = {path: jnp.asarray(leaf) for path, leaf in flatten_dict(params, sep=".").items()}
    head = {path for path in flat if path.split(".")[0] == head_of(params)}
    norms = {path for path in flat if "Norm_" in path}
    if part != "all" and (not head or (part == "norms" and not norms)):
        raise ValueError(
            f"Expected a network with a dense layer and normalization for part={part}, got none; "
            "pass part=all."
        )
    chosen = {"all": set(flat), "head": set(), "norms": norms, "sparse": set(flat)}[part] | head
    mask = {path: jnp.ones((), bool) for path in chosen}
    if part == "sparse":
        others = set(flat) - norms - head
        smallest = (
            np.quantile(
                np.concatenate([np.abs(flat[path]).ravel() for path in others]), 1 - density
            )
            if others
            else 0
        )
        mask |= {path: jnp.abs(flat[path]) >= smallest for path in others}
    return (
        {path: flat[path] for path in chosen},
        {path: leaf for path, leaf in flat.items() if path not in chosen},
        mask,
    )


def head_of(params: Any) -> str | None:
    """Return the name of a network's last dense layer, or None if it has none."""
    return max(
        (name for name in params if name.startswith("Dense_")),
        default=None,
        key=lambda name: int(name.removeprefix("Dense_")),
    )


def joined(trained: Any, fixed: Any) -> Any:
    """Return a network's weights, undoing `parted`."""
    return unflatten_dict({**trained, **fixed}, sep=".")


def scaled(inputs: jax.Array) -> jax.Array:
    """Return float32 inputs; uint8 images are divided by 255."""
    return inputs.astype(jnp.float32) / 255 if inputs.dtype == jnp.uint8 else inputs


@functools.partial(
    jax.jit,
    static_argnames=("network", "clip"),
    donate_argnames="total",
    compiler_options=compilation.moderate(),
)
def add_clipped(
    network: Any,
    clip: float,
    total: Any,
    trained: Any,
    fixed: Any,
    mask: Any,
    statistics: Any,
    records: tuple[jax.Array, jax.Array],
    index: jax.Array,
    present: jax.Array,
) -> Any:
    """Add a block's clipped gradients to a step's sum.

    `index` is int `[b]`, the record of each gradient, or `[b, width]`, the records of each
    person's. `present` is bool `[b]`.
    """
    inputs, labels = (array[index] for array in records)
    other = {"batch_stats": statistics} if statistics else {}

    def logits_of(trained: Any, record: jax.Array) -> jax.Array:
        variables = {"params": joined(trained, fixed)} | other
        logits: jax.Array = network.apply(variables, scaled(record)[None], train=False)[0]
        return logits

    def loss_of(
        apart: Any, shifts: Any, record: jax.Array, label: jax.Array, present: jax.Array
    ) -> tuple[jax.Array, Any]:
        with _shifted(shifts) as seen:
            logits = logits_of(trained | apart, record)
        learned = present & (bsvs.voting_labels(label, len(logits)) >= 0)
        return jnp.where(learned, -jax.nn.log_softmax(logits)[label], 0), seen

    def mean_loss(
        apart: Any, shifts: Any, rows: jax.Array, labels: jax.Array, present: jax.Array
    ) -> tuple[jax.Array, Any]:
        each = jax.vmap(loss_of, (None, None, 0, 0, None))
        losses, seen = each(apart, shifts, rows, labels, present)
        return jnp.mean(losses), seen

    shifts = {}
    if index.ndim == 1:  # else a gradient is a mean of outer products
        outputs = _dense_outputs(logits_of, trained, inputs[0])
        shifts = {path: zeros for path, zeros in outputs.items() if mask[path].ndim == 0}
    apart = {path: leaf for path, leaf in trained.items() if path not in shifts}
    loss = loss_of if index.ndim == 1 else mean_loss
    per_example = jax.vmap(jax.grad(loss, argnums=(0, 1), has_aux=True), (None, None, 0, 0, 0))
    (gradients, back), seen = per_example(apart, shifts, inputs, labels, present)
    allowed = {
        path: leaf if mask[path].ndim == 0 else jnp.where(mask[path][None], leaf, 0)
        for path, leaf in gradients.items()
    }
    products = {path: Product(seen[path][:, 0], back[path][:, 0]) for path in shifts}
    return jax.tree.map(jnp.add, total, clipped_sum(allowed | products, clip))


def _dense_outputs(
    logits_of: Callable[[Any, jax.Array], jax.Array], trained: Any, record: jax.Array
) -> dict[str, jax.Array]:
    """Return zeros of the shape of the outputs of dense layers, by the names of their kernels.

    Only layers count that see one row of a record, once, and whose kernels are trained.
    """
    found: dict[str, list[tuple[int, ...]]] = {}

    def look(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        outputs = call(*args, **kwargs)
        if type(context.module) is nn.Dense and context.method_name == "__call__":
            found.setdefault(_kernel_of(context.module), []).append(outputs.shape)
        return outputs

    with nn.intercept_methods(look):
        jax.eval_shape(logits_of, trained, record)
    return {
        path: jnp.zeros(shapes[0])
        for path, shapes in found.items()
        if path in trained and len(shapes) == 1 and len(shapes[0]) == 2
    }


@contextlib.contextmanager
def _shifted(shifts: dict[str, jax.Array]) -> Iterator[dict[str, jax.Array]]:
    """Add shifts to the outputs of dense layers, and yield the layers' inputs once they are known.

    The gradient of a shift is that of the outputs.
    """
    seen = {}

    def shift(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        outputs = call(*args, **kwargs)
        path = _kernel_of(context.module)
        if path not in shifts or context.method_name != "__call__":
            return outputs
        seen[path] = args[0]
        return outputs + shifts[path]

    with nn.intercept_methods(shift):
        yield seen


def _kernel_of(module: nn.Module) -> str:
    return ".".join((*module.path, "kernel"))
