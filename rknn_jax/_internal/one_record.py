"""One record a program: features that are the same bits whatever is encoded beside a record.

A program of a whole batch is not local to the bit. XLA, BLAS and others choose tiles and orders of
summation by the size of the batch, and by a row's place in it. A record's features then change in
the last place when another record comes or goes. Where two queries are almost equally near, all of
its votes move, and the votes of every other record may move with it: more than the sensitivity.

So `map_records` compiles the program of one record, and a loop runs it on each. Every iteration
executes the same instructions, in the same shapes, on one record alone. The number of records is a
value of the loop and no shape of it, so that there is one program for all numbers.
"""

import functools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal.cores import num_cores
from rknn_jax.types import Array

Record = TypeVar("Record")
Result = TypeVar("Result")

BLOCK = 256
"""Records of one loop. Blocks run side by side on the cores of a CPU."""


def map_records(
    describe: Callable[[Any, Any], jax.Array], encoder: Any, records: Any, block: int = BLOCK
) -> jax.Array:
    """Apply a function of one record to every record, one at a time.

    Row i of the result depends on record i and on `encoder` alone, bit for bit.

    Args:
      describe: Function of `(encoder, record)` that has a hash, such as one that is named at the
        top of its module, so that it is compiled once. It returns an array `[...]`.
      encoder: Pytree of public values.
      records: Array `[n, ...]`, or a pytree of such arrays.
      block: Number of records of one loop. Defaults to `BLOCK`.

    Returns:
      `[n, ...]`.
    """
    leaves = jax.tree.leaves(records)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        mapped: jax.Array = jax.lax.map(functools.partial(describe, encoder), records)
        return mapped
    records = jax.tree.map(np.asarray, records)
    num_records = len(leaves[0])

    def run(start: int) -> Array:
        rows = jax.tree.map(lambda rows: _filled(rows[start : start + block], block), records)
        count = min(block, num_records - start)
        return np.asarray(_loop(describe, encoder, rows, count))[:count]

    starts = range(0, max(num_records, 1), block)
    first = run(0)  # compiles, once for all threads
    with ThreadPoolExecutor(num_cores()) as pool:
        found = np.concatenate([first, *pool.map(run, starts[1:])])
    return jnp.asarray(found, found.dtype)


def side_by_side(
    work: Callable[[Record], Result],
    records: Iterable[Record],
    failed: Callable[[Record, Exception], Result],
) -> list[Result]:
    """Return what a function makes of each record, on all cores.

    Records that are under way together share the memory. So a record on which the function fails
    is tried again alone after all others: a large one would take another one's features away, and
    so move more votes than its own. What is kept of others takes memory even then, and libraries
    hide for lack of what they failed. So `failed` has to see whether there is memory for such a
    record.

    Args:
      work: Function of one record.
      records: Records.
      failed: Function of a record that fails alone too and of its error, which returns its result,
        or raises MemoryError.
    """

    def attempt(record: Record) -> tuple[Result] | None:
        try:
            return (work(record),)
        except Exception:  # told by the second attempt
            return None

    def alone(record: Record) -> Result:
        try:
            return work(record)
        except Exception as error:  # an error would reveal the record, whatever it holds
            return failed(record, error)

    records = list(records)
    with ThreadPoolExecutor(num_cores()) as pool:
        found = list(pool.map(attempt, records))
    return [
        alone(record) if one is None else one[0] for record, one in zip(records, found, strict=True)
    ]


def _filled(rows: np.ndarray, block: int) -> np.ndarray:
    """Return a block filled up with zeros, which the loop never reads."""
    return np.pad(rows, [(0, block - len(rows)), *[(0, 0)] * (rows.ndim - 1)])


@functools.partial(jax.jit, static_argnums=0)
def _loop(
    describe: Callable[[Any, Any], jax.Array], encoder: Any, records: Any, count: Array
) -> jax.Array:
    """Return the results of the first `count` records, and zeros for the rest of the block."""
    records = jax.tree.map(jnp.asarray, records)  # for a program that turned compilation off

    def of_record(i: Any) -> jax.Array:
        return describe(encoder, jax.tree.map(lambda rows: rows[i], records))

    def step(i: Any, found: jax.Array) -> jax.Array:
        return found.at[i].set(of_record(i))

    made = jax.eval_shape(of_record, 0)
    block = len(jax.tree.leaves(records)[0])
    found: jax.Array = jax.lax.fori_loop(
        0, count, step, jnp.zeros((block, *made.shape), made.dtype)
    )
    return found
