"""Pallas kernels and networks on a GPU: correctness at full size, and speed.

The speed is compared with the XLA forms, torch, FAISS, and the GPU's own ceilings. The same run
measures the ceilings: a large product of the type that the kernel multiplies, and a chain of
integer additions. torch and FAISS run in the interpreter that RKNN_PEERS_PYTHON names, if they see
the GPU from there.

The results are written after each part. A part that fails is recorded with its error, and the
others go on. `--only PART ...` runs some parts again and keeps the results of the others, each of
which names its device. `--resume` goes on after the last part that this device has finished.
`--tiny` tests the same path on a CPU, interpreted, and saves nothing.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial.distance import cdist

from benchmarks._measure import RESULTS, save, seconds
from benchmarks._neighbors_worker import data
from benchmarks.neighbors import WORKER, ask
from rknn_jax import neighbors
from rknn_jax.kernels import Implementation, hashing, shapes
from rknn_jax.kernels import assignment as assignment_stages
from rknn_jax.kernels import nearest as kernel
from rknn_jax.mechanisms import _distributed, collision
from rknn_jax.representations import simclr
from rknn_jax.students import fit as students
from train.environment import environment

REPEATS = 20
CHECKED = 5_000  # rows of an assignment that are compared with float64
OPERATIONS = 12  # operations of a hash, its comparison, and its addition, in 32-bit integers
FORMS: tuple[Implementation, ...] = ("pallas", "xla")
TILES = (
    kernel.Tile(64, 64, 64, 4),
    kernel.Tile(64, 128, 64, 4),
    kernel.Tile(64, 256, 64, 8),
    kernel.Tile(128, 64, 64, 4),
    kernel.Tile(128, 128, 64, 4),
    kernel.Tile(128, 128, 64, 8),
    kernel.Tile(128, 256, 64, 8),
)


def matrix_ceiling(side: int, repeats: int) -> float:
    """Return the operations per second of a product in bfloat16 with float32 sums."""
    square = jax.random.normal(jax.random.key(0), (side, side), jnp.bfloat16)
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


def hash_ceiling(lanes: int, repeats: int, rounds: int = 512) -> float:
    """Return the hashes per second, each compared and counted.

    The chains of hashes stay in registers. Shifts and comparisons have fewer units than the
    multiplications and additions of `integer_ceiling`.
    """

    def step(_: Any, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        words, counts = state
        words = hashing.mix((jnp.uint32(7), jnp.uint32(11)), words)
        return words, counts + (words - np.uint32(3) < np.uint32(2**31)).astype(jnp.int32)

    run = jax.jit(lambda state: jax.lax.fori_loop(0, rounds, step, state, unroll=16))
    state = jnp.arange(lanes, dtype=jnp.uint32), jnp.zeros(lanes, jnp.int32)
    return rounds * lanes / seconds(lambda: run(state), repeats)


def exact(points: np.ndarray, references: np.ndarray, num_neighbors: int) -> np.ndarray:
    """Return the nearest references by differences in float64, ties by the lowest number."""
    apart = cdist(points.astype(np.float64), references.astype(np.float64), "sqeuclidean")
    return np.argsort(apart, axis=1, kind="stable")[:, :num_neighbors]


def assignment(
    size: tuple[int, int, int],
    num_neighbors: int,
    repeats: int,
    ceiling: float,
    peers: "Peers | None",
) -> dict[str, Any]:
    """Compare the forms bit by bit and some rows with float64, and time them."""
    points, references = jax.device_put(data(*size))
    found = {
        form: neighbors.nearest(points, references, num_neighbors, implementation=form)
        for form in FORMS
    }
    np.testing.assert_array_equal(found["pallas"], found["xla"])
    some = np.arange(0, size[0], -(-size[0] // CHECKED))
    expected = exact(np.asarray(points)[some], np.asarray(references), num_neighbors)
    np.testing.assert_array_equal(np.asarray(found["pallas"])[some], expected)

    def run(form: Implementation) -> float:
        return seconds(
            lambda: neighbors.nearest(points, references, num_neighbors, implementation=form),
            repeats,
        )

    took = {form: run(form) for form in FORMS}
    for peer in peers.names if peers else ():
        question = {"peer": peer, "size": size, "num_neighbors": num_neighbors, "device": "cuda"}
        took[peer] = statistics.median(
            ask(peers.worker, question)["seconds"] for _ in range(3 + repeats)
        )
    ratio = {name: each / took["pallas"] for name, each in took.items() if name != "pallas"}
    share = 2 * np.prod(size, dtype=float) / took["pallas"] / ceiling
    return {
        "size": size,
        "num_neighbors": num_neighbors,
        "rows_as_float64": len(some),
        "seconds": took,
        "ratio": ratio,
        "share_of_ceiling": share,
    }


def decoding(
    num_messages: int, num_cells: int, repeats: int, ceiling: float, hashes: float
) -> dict[str, Any]:
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
        "share_of_hashes": num_messages * num_cells / took["pallas"] / hashes,
    }


class Peers(NamedTuple):
    """Process of the peers, and the names of those that run on a GPU."""

    worker: Any
    names: tuple[str, ...]


def peers_on_cuda() -> Peers | None:
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
    versions = json.loads(worker.stdout.readline())
    print(versions, file=sys.stderr)
    return Peers(worker, tuple(name for name in ("torch", "faiss-gpu") if name in versions))


def clients(size: int, num_cells: int, repeats: int) -> dict[str, Any]:
    """Time the draw and the count of messages on all devices."""
    mechanism = collision.Collision(1.0, num_cells // 10, 10)
    cells = (jnp.arange(size, dtype=jnp.int32) % num_cells)[:, None]
    mesh = _distributed.all_devices()
    took = seconds(
        lambda: _distributed.client_totals(mechanism, jax.random.key(0), cells, 0, mesh=mesh),
        repeats,
    )
    return {"clients": size, "cells": num_cells, "devices": mesh.size, "seconds": took}


def tiles(size: tuple[int, int, int], num_keys: int, repeats: int) -> list[dict[str, Any]]:
    """Time the assignment's kernel alone over the sizes of its tiles."""
    points, references = jax.device_put(data(*size))
    ready = assignment_stages.prepare(references, ("bfloat16x3",))
    centred = points - ready.centre
    sq_norm = jnp.sum(centred**2, axis=1)
    high = centred.astype(jnp.bfloat16)
    low = (centred - high).astype(jnp.bfloat16)
    operand = jnp.concatenate([high, high, low], axis=1)
    usual = kernel.TILES["bfloat16"]
    rows = []
    for tile in TILES:
        kernel.TILES["bfloat16"] = tile
        run = jax.jit(
            lambda *points, tile=tile: kernel.smallest_keys(
                *points, ready.doubled[0], ready.sq_norms, num_keys
            )
        )
        took = seconds(lambda run=run: run(operand, sq_norm), repeats)
        rows.append({"tile": tile, "num_keys": num_keys, "seconds": took})
    kernel.TILES["bfloat16"] = usual
    return rows


def simclr_steps(size: int, epochs: int, backbone: str) -> dict[str, Any]:
    """Time SimCLR's steps on random images of 32x32 pixels, in the epochs after the first."""
    images = np.random.default_rng(0).integers(0, 256, (size, 32, 32, 3), np.uint8)
    config = simclr.Config(backbone=backbone, epochs=epochs, augmentation="photo")
    took = []
    simclr.fit(
        jax.random.key(0),
        images,
        config,
        on_epoch=lambda name, epoch, epochs, metrics: took.append(metrics["seconds"]),
    )
    batch_size = min(config.batch_size, size)
    return {
        "backbone": backbone,
        "batch_size": batch_size,
        "first_epoch_seconds": took[0],
        "steps_per_second": -(-size // batch_size) / statistics.median(took[1:]),
    }


def student_epochs(model: str, size: int, epochs: int) -> dict[str, Any]:
    """Time a student's epochs on random images of 32x32 pixels, after the first."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (size, 32, 32, 3), np.uint8)
    targets = np.eye(10, dtype=np.float32)[rng.integers(0, 10, size)]
    took = []
    students.fit(
        jax.random.key(0),
        images,
        targets,
        students.Config(model=model, epochs=epochs, augmentation="crop_flip"),
        on_epoch=lambda epoch, epochs, metrics, student: took.append(metrics["seconds"]),
    )
    return {
        "model": model,
        "images": size,
        "first_epoch_seconds": took[0],
        "images_per_second": size / statistics.median(took[1:]),
    }


def parts(tiny: bool) -> dict[str, Callable[[], Any]]:
    """Return all parts by name, in the order in which they run."""
    repeats = 1 if tiny else REPEATS
    peers = peers_on_cuda()
    matrix = functools.cache(lambda: matrix_ceiling(256 if tiny else 8192, repeats))
    integers = functools.cache(lambda: integer_ceiling(1024 if tiny else 2**22, repeats))
    hashes = functools.cache(lambda: hash_ceiling(1024 if tiny else 2**22, repeats))
    found: dict[str, Callable[[], Any]] = {
        "matrix_ceiling": matrix,
        "integer_ceiling": integers,
        "hash_ceiling": hashes,
    }
    decode = (5_000, 300) if tiny else shapes.DECODE
    found["decode"] = lambda: decoding(*decode, repeats, integers(), hashes())
    found["clients"] = lambda: clients(*decode, repeats)
    for name, size in ({"tiny": (1_000, 70, 400)} if tiny else shapes.NEAREST).items():
        for count in (1, 4) if tiny else shapes.NEIGHBORS[name]:
            found[f"nearest {name} {count}"] = functools.partial(
                lambda size, count: assignment(size, count, repeats, matrix(), peers), size, count
            )
            found[f"tiles {name} {count}"] = functools.partial(tiles, size, count + 2, repeats)
    backbone = "cnn" if tiny else "resnet18"
    found["simclr"] = lambda: simclr_steps(*((40, 2) if tiny else (10_240, 3)), backbone)
    for model in ("cnn",) if tiny else ("cnn", "resnet18", "wrn28_2"):
        found[f"student {model}"] = functools.partial(
            student_epochs, model, *((40, 2) if tiny else (10_240, 3))
        )
    return found


def attempted(part: Callable[[], Any]) -> dict[str, Any]:
    """Run a part, and return its result or its error, with its seconds, device and date."""
    start = time.perf_counter()
    try:
        outcome = {"result": part()}
    except Exception as error:  # one part that fails must not cost the others
        traceback.print_exc()
        outcome = {"error": f"{type(error).__name__}: {error}"[:2000]}
    about = environment()
    return outcome | {
        "seconds": time.perf_counter() - start,
        "device": about["device"],
        "date": about["date"],
    }


def earlier(finished: bool) -> dict[str, Any]:
    """Return the saved results, or only those that this kind of device has finished."""
    kept = RESULTS / "accelerator.json"
    saved = json.loads(kept.read_text()) if kept.exists() else {"results": {}}
    if not finished:
        return saved["results"]
    device = jax.devices()[0].device_kind
    return {
        name: row
        for name, row in saved["results"].items()
        if row.get("device") == device and "result" in row
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="test the path on a CPU")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="the beginnings of the names of parts to run"
    )
    parser.add_argument("--resume", action="store_true", help="keep the parts that are done")
    asked = parser.parse_args()
    if jax.default_backend() != "gpu" and not asked.tiny:
        print("skipped benchmarks.accelerator: no GPU; --tiny tests its path.")
        sys.exit()
    results = earlier(asked.resume) if any(asked.only) or asked.resume else {}
    for name, part in parts(asked.tiny).items():
        if not name.startswith(tuple(asked.only)) or (asked.resume and name in results):
            continue
        results[name] = attempted(part)
        print(name, json.dumps(results[name], default=float), file=sys.stderr, flush=True)
        if not asked.tiny:
            save("accelerator", results, seed=0)
    if any("error" in outcome for outcome in results.values()):
        sys.exit("Some parts failed.")
