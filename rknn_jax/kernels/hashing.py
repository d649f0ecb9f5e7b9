"""Keyed hash of hash-based randomizers: one definition for clients, servers and kernels.

A client draws a seed of two words and publishes it. `mix` sends every cell to a uniform word. It
behaves as independent over the few cells that a record and the server look at together. With c
votes a record, unbiasedness needs (c + 1)-wise independence (theory of the Collision mechanism). An
affine hash is only pairwise independent, and is off by up to -0.13 on cells next to a vote.

A word becomes one of l buckets by `bucket` = floor(word·l / 2^32). The server needs no
multiplication for that. The words of bucket z are an interval, `interval`, so support is one
subtraction and one comparison.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.types import Array

MOST_BUCKETS = 2**16 - 1


def mix(seed: Array | tuple[Array, Array], cells: Array) -> jax.Array:
    """Hash cells under a seed.

    Args:
      seed: Seed, uint32 `[2]`, or a pair of words, which may be arrays that broadcast with the
        cells.
      cells: Cells, int32 of any shape, at least 0.

    Returns:
      uint32, with the cells' shape.
    """
    first, second = (jnp.asarray(word).astype(jnp.uint32) for word in (seed[0], seed[1]))
    word = jnp.asarray(cells).astype(jnp.uint32)
    word = word * np.uint32(0x9E3779B1) + first
    word = (word ^ (word >> 16)) * np.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) + second
    word = word * np.uint32(0x846CA68B)
    word = (word ^ (word >> 15)) * np.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


def bucket(word: Array, num_buckets: Array | int) -> jax.Array:
    """Return floor(word·l / 2^32), int32, for uint32 words and 2 <= l <= `MOST_BUCKETS`."""
    word = jnp.asarray(word, jnp.uint32)
    count = jnp.asarray(num_buckets, jnp.uint32)
    low = (word & jnp.uint32(0xFFFF)) * count >> 16
    found: jax.Array = ((word >> 16) * count + low >> 16).astype(jnp.int32)
    return found


def interval(bucket: Array, num_buckets: Array | int) -> tuple[jax.Array, jax.Array]:
    """Return `(first, width)`, uint32, of a bucket's words.

    A word lies in the bucket iff word - first < width, modulo 2^32.
    """
    z = jnp.asarray(bucket).astype(jnp.uint32)
    count = jnp.asarray(num_buckets, jnp.uint32)
    quotient = jnp.uint32(0xFFFFFFFF) // count
    rest = jnp.uint32(0) - count * quotient  # 2^32 = count·quotient + rest

    before = z * rest + count - jnp.uint32(1)
    carried = before // count
    # True if the next bucket's share of the rest is rounded up once more.
    longer = before - carried * count + rest >= count
    return z * quotient + carried, quotient + longer.astype(jnp.uint32)
