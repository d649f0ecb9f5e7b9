"""Decoding of hash-based randomizers as one kernel.

A program keeps a tile of cells in registers and passes its messages by the cells.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from rknn_jax.kernels import hashing

CELLS = 1024  # cells of a program: 8 a thread, so each message's four words serve 8 hashes
MESSAGES = 1024  # messages of a program: fills every processor from about 30,000 messages on
AT_ONCE = 4
Ref = Any  # reference to memory; Pallas has no public type for it


def count_in_intervals(
    seed: jax.Array, first: jax.Array, width: jax.Array, num_cells: int
) -> jax.Array:
    """Count the messages whose interval holds each cell's word.

    The signature is that of `collision.count_in_intervals`.
    """
    padding = -len(first) % MESSAGES if len(first) else MESSAGES
    # Padding has width 0, so its interval holds nothing.
    seed_0, seed_1, first, width = (
        jnp.pad(words, (0, padding)) for words in (seed[:, 0], seed[:, 1], first, width)
    )
    parts = len(first) // MESSAGES
    tiles = pl.cdiv(num_cells, CELLS)
    words = pl.BlockSpec((MESSAGES,), lambda part, tile: (part,))
    counts = pl.pallas_call(
        _kernel,
        grid=(parts, tiles),
        in_specs=[words] * 4,
        out_specs=pl.BlockSpec((None, CELLS), lambda part, tile: (part, tile)),
        out_shape=jax.ShapeDtypeStruct((parts, tiles * CELLS), jnp.int32),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        interpret=jax.default_backend() == "cpu",
        name="count_in_intervals",
    )(seed_0, seed_1, first, width)
    return jnp.sum(counts, axis=0)[:num_cells]


def _kernel(seed_0: Ref, seed_1: Ref, first: Ref, width: Ref, out: Ref) -> None:
    cells = pl.program_id(1) * CELLS + jax.lax.broadcasted_iota(jnp.int32, (CELLS,), 0)

    def add(step: jax.Array, counts: jax.Array) -> jax.Array:
        for i in range(AT_ONCE):
            message = step * AT_ONCE + i
            words = hashing.mix((seed_0[message], seed_1[message]), cells)
            counts += (words - first[message] < width[message]).astype(jnp.int32)
        return counts

    out[...] = jax.lax.fori_loop(0, MESSAGES // AT_ONCE, add, jnp.zeros(CELLS, jnp.int32))
