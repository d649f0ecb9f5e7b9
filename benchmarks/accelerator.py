"""Pallas kernels on a GPU: correctness at full size, and speed.

The speed is compared with the XLA forms, torch, and the GPU's own ceilings. The same run measures
the ceilings: a large product of the type that the kernel multiplies, and a chain of integer
additions. torch runs in the interpreter that RKNN_PEERS_PYTHON names, if that interpreter sees the
GPU. `--tiny` tests the same path on a CPU, interpreted, and saves nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._measure import save, seconds
from benchmarks._neighbors_worker import data
from benchmarks.neighbors import WORKER, ask
from rknn_jax import neighbors
from rknn_jax.kernels import Implementation, shapes
from rknn_jax.mechanisms import collision

REPEATS = 20
OPERATIONS = 12  # operations of a hash, its comparison, and its addition, in 32-bit integers
FORMS: tuple[Implementation, ...] = ("pallas", "xla")


def matrix_ceiling(side: int, repeats: int) -> float:
    """Return the operations per second of a product in bfloat16 with float32 sums."""
    square = jnp.ones((side, side), jnp.bfloat16)
    product = jax.jit(lambda a: jnp.matmul(a, a, preferred_element_type=jnp.float32))
    return 2 * side**3 / seconds(lambda: product(square), repeats)


def integer_ceiling(lanes: int, repeats: int, rounds: int = 4096) -> float:
    """Return the 32-bit multiplications and additions per second.

    The chains of operations stay in registers.
    """

    def chain(words: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(
            0, rounds, lambda _, x: x * np.uint32(0x9E3779B1) + np.uint32(1), words, unroll=64
        )

    run = jax.jit(chain)
    words = jnp.arange(lanes, dtype=jnp.uint32)
    return 2 * rounds * lanes / seconds(lambda: run(words), repeats)


def assignment(
    size: tuple[int, int, int], num_neighbors: int, repeats: int, ceiling: float, torch: Any
) -> dict[str, Any]:
    """Compare the forms bit by bit up to ties, and time them."""
    points, references = jax.device_put(data(*size))
    found = {
        form: neighbors.nearest(points, references, num_neighbors, implementation=form)
        for form in FORMS
    }
    np.testing.assert_allclose(found["pallas"][1], found["xla"][1], rtol=1e-5)
    same = float(np.mean(np.all(np.asarray(found["pallas"][0] == found["xla"][0]), axis=1)))

    def run(form: Implementation) -> float:
        return seconds(
            lambda: neighbors.nearest(points, references, num_neighbors, implementation=form),
            repeats,
        )

    took = {form: run(form) for form in FORMS}
    if torch:
        question = {"peer": "torch", "size": size, "num_neighbors": num_neighbors, "device": "cuda"}
        took["torch"] = statistics.median(
            ask(torch, question)["seconds"] for _ in range(3 + repeats)
        )
    ratio = {name: each / took["pallas"] for name, each in took.items() if name != "pallas"}
    share = 2 * np.prod(size, dtype=float) / took["pallas"] / ceiling
    return {
        "size": size,
        "num_neighbors": num_neighbors,
        "same": same,
        "seconds": took,
        "ratio": ratio,
        "share_of_ceiling": share,
    }


def decoding(num_messages: int, num_cells: int, repeats: int, ceiling: float) -> dict[str, Any]:
    """Compare the forms exactly, and time them."""
    mechanism = collision.Collision(1.0, num_cells // 10, 10)
    made = jax.jit(jax.vmap(mechanism.randomize))(
        jax.random.split(jax.random.key(0), num_messages),
        (jnp.arange(num_messages, dtype=jnp.int32) % num_cells)[:, None],
    )
    forms = {
        form: jax.jit(
            lambda made, form=form: collision.count_support(
                made, mechanism.num_buckets, num_cells, implementation=form
            )
        )
        for form in FORMS
    }
    np.testing.assert_array_equal(forms["pallas"](made), forms["xla"](made))
    took = {
        form: seconds(lambda count=count: count(made), repeats) for form, count in forms.items()
    }
    share = OPERATIONS * num_messages * num_cells / took["pallas"] / ceiling
    return {
        "messages": num_messages,
        "cells": num_cells,
        "seconds": took,
        "ratio": took["xla"] / took["pallas"],
        "share_of_ceiling": share,
    }


def torch_on_cuda() -> Any:
    """Start the peers' interpreter if there is one."""
    if "RKNN_PEERS_PYTHON" not in os.environ or jax.default_backend() != "gpu":
        return None
    worker = subprocess.Popen(
        [os.environ["RKNN_PEERS_PYTHON"], WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout
    print(json.loads(worker.stdout.readline()), file=sys.stderr)
    return worker


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="test the path on a CPU")
    tiny = parser.parse_args().tiny
    if jax.default_backend() != "gpu" and not tiny:
        print("skipped benchmarks.accelerator: no GPU; --tiny tests its path.")
        sys.exit()
    repeats = 1 if tiny else REPEATS
    torch = torch_on_cuda()
    matrix = matrix_ceiling(256 if tiny else 8192, repeats)
    integers = integer_ceiling(1024 if tiny else 2**22, repeats)
    sizes = {"tiny": (1_000, 70, 400)} if tiny else shapes.NEAREST
    counts = {"tiny": (1, 4)} if tiny else shapes.NEIGHBORS
    nearest = [
        assignment(sizes[name], k, repeats, matrix, torch) for name in sizes for k in counts[name]
    ]
    decode = decoding(*((5_000, 300) if tiny else shapes.DECODE), repeats, integers)
    results = {
        "matrix_ceiling": matrix,
        "integer_ceiling": integers,
        "nearest": nearest,
        "decode": decode,
    }
    print(json.dumps(results, indent=2, default=float), file=sys.stderr)
    if not tiny:
        save("accelerator", results, device_kind=jax.devices()[0].device_kind, seed=0)
