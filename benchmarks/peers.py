"""Local mechanisms against pure-ldp, multi-freq-ldpy, and the limits of the machine.

All rows have kr = 1, epsilon = 1, and ratios in one run. The work is the same: n clients randomize
one vote each, and a server makes d estimates from the votes. Peers run in their own interpreter,
named by RKNN_PEERS_PYTHON. Their time is linear in n, so they run on as many clients as take them
seconds. Decoding is compared with C that keeps a tile of cells in registers (`_bound.c`). Random
bits are compared with `jax.random.bernoulli`. Each repeat measures all libraries once, so that
other load on the machine slows all of them. The best of the repeats counts.
"""

import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._measure import least, save
from rknn_jax import mechanisms
from rknn_jax.kernels import hashing, native
from rknn_jax.mechanisms.base import estimate_counts
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.local import LocalRandomizer
from rknn_jax.mechanisms.randomized_response import bernoulli_bits

HERE = Path(__file__).parent
CLIENTS = (100_000, 1_000_000)
PEER_CLIENTS = {100: 20_000, 5_000: 2_000, 10_000: 1_000}
MECHANISMS = ("local_hashing", "optimized_unary_encoding", "randomized_response")
PEERS = ("pure-ldp", "multi-freq-ldpy")
EPSILON = 1.0
NUM_CLASSES = 10
REPEATS = 3

OPERATIONS = 16  # operations of a message and a cell, as in _bound.c
TILES = (4, 6, 7, 8)
NATIVE = 0  # stands for the native kernels beside these
WIDTHS = (256, 512)  # bits of a vector register that XLA may use: its default, and that of AVX-512
DECODE_REPEATS = 15


class Peers:
    """Process of the interpreter that has the peers."""

    def __init__(self, python: str) -> None:
        command = [python, str(HERE / "_peers_worker.py")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        first = self._answer()
        if not first:
            sys.exit(
                f"Expected RKNN_PEERS_PYTHON to have pure-ldp and multi-freq-ldpy, got {python}, "
                f"which failed as above; {HOW}"
            )
        self.versions = json.loads(first)

    def _answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def run(self, peer: str, mechanism: str, d: int, clients: int) -> dict[str, float]:
        """Return seconds and CPU seconds of one run."""
        assert self.process.stdin
        print(
            json.dumps({"peer": peer, "mechanism": mechanism, "d": d, "clients": clients}),
            file=self.process.stdin,
            flush=True,
        )
        answer = json.loads(self._answer())
        assert answer.pop("estimates") == d
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def make(name: str, d: int) -> LocalRandomizer:
    """Return the mechanism over d cells."""
    return mechanisms.make(
        name, epsilon=EPSILON, num_queries=d // NUM_CLASSES, num_classes=NUM_CLASSES
    )


def throughput(peers: Peers, name: str, d: int) -> list[dict[str, Any]]:
    """Measure one mechanism at one d: rows for each n, with each peer's clients per second."""
    mechanism = make(name, d)
    key = jax.random.key(0)
    rng = np.random.default_rng(0)
    work: dict[str, Callable[[], Any]] = {}
    for clients in CLIENTS:
        values = rng.integers(0, d, clients)
        cells = jnp.asarray(values[:, None], jnp.int32)
        counts = np.bincount(values, minlength=d)

        def message(cells: jax.Array = cells) -> Any:
            return estimate_counts(mechanism, key, cells)

        def count(counts: np.ndarray = counts, clients: int = clients) -> Any:
            return mechanism.estimate(
                key, mechanism.sample_totals(rng, np.arange(d)[:, None], counts), clients
            )

        work |= {f"message {clients}": message, f"count {clients}": count}
    theirs = {peer: {"seconds": np.inf, "cpu_seconds": np.inf} for peer in PEERS}
    ours: dict[str, dict[str, float]] = {}
    for _ in range(REPEATS):
        for peer in PEERS:
            took = peers.run(peer, name, d, PEER_CLIENTS[d])
            theirs[peer] = {kind: min(theirs[peer][kind], value) for kind, value in took.items()}
        for run, took in least(work, 1).items():
            ours[run] = {
                kind: min(ours.get(run, took)[kind], value) for kind, value in took.items()
            }
    rows = []
    for clients in CLIENTS:
        row: dict[str, Any] = {
            "mechanism": name,
            "d": d,
            "clients": clients,
            "peer_clients": PEER_CLIENTS[d],
        }
        for peer in PEERS:
            row[peer] = theirs[peer] | {
                "clients_per_second": PEER_CLIENTS[d] / theirs[peer]["seconds"]
            }
        for level in ("message", "count"):
            took = ours[f"{level} {clients}"]
            row[level] = took | {"clients_per_second": clients / took["seconds"]}
            row[f"{level}_ratio"] = {
                peer: row[level]["clients_per_second"] / row[peer]["clients_per_second"]
                for peer in PEERS
            }
            per_core = {
                peer: clients / took["cpu_seconds"] * row[peer]["cpu_seconds"] / PEER_CLIENTS[d]
                for peer in PEERS
            }
            row[f"{level}_ratio_of_cpu_seconds"] = per_core
        print(name, d, clients, row["message_ratio"], row["count_ratio"], file=sys.stderr)
        rows.append(row)
    return rows


def linearity(peers: Peers) -> list[dict[str, Any]]:
    """Return the ratio of a peer's time per client with four times the clients.

    The ratio is 1 if the time is linear.
    """
    rows = []
    for peer in PEERS:
        for name in MECHANISMS:
            took = {
                clients: [
                    peers.run(peer, name, 100, clients)["cpu_seconds"] for _ in range(REPEATS)
                ]
                for clients in (5_000, 20_000)
            }
            ratio = min(took[20_000]) / 4 / min(took[5_000])
            rows.append(
                {
                    "peer": peer,
                    "mechanism": name,
                    "d": 100,
                    "clients": list(took),
                    "seconds_a_client_ratio": ratio,
                }
            )
    return rows


def bound(folder: Path, tile: int) -> ctypes.CDLL:
    """Compile `_bound.c`."""
    library = folder / f"bound{tile}.so"
    flags = ["-O3", "-march=native", "-shared", "-fPIC", "-pthread", "-Wno-psabi", f"-DTILE={tile}"]
    subprocess.run(["gcc", *flags, "-o", str(library), str(HERE / "_bound.c")], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.additions.restype = ctypes.c_long
    return loaded


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    """Return an array's address for C."""
    return array.ctypes.data_as(ctypes.c_void_p)


def decode_and_bits(cores: int, width: int) -> dict[str, list[dict[str, Any]]]:
    """Measure decoding against the bound, and random bits against `jax.random.bernoulli`.

    Only some of this machine's cores are used.
    """
    os.sched_setaffinity(
        0, sorted(os.sched_getaffinity(0))[:cores]
    )  # set before JAX starts its threads
    library = native.load() if width == NATIVE else None
    kernels = mock.patch.object(native, "load", return_value=library)
    with kernels, tempfile.TemporaryDirectory() as folder:
        tiles = {tile: bound(Path(folder), tile) for tile in TILES}
        return {
            "decode": [decode(tiles, d, cores) for d in PEER_CLIENTS],
            "bits": [bits(d, cores) for d in PEER_CLIENTS],
        }


def decode(tiles: dict[int, ctypes.CDLL], d: int, cores: int) -> dict[str, Any]:
    """Decode 2e8 hashes' worth of Collision messages."""
    mechanism = make("collision", d)
    assert isinstance(mechanism, Collision)
    messages = 200_000_000 // d
    keys = jax.random.split(jax.random.key(0), messages)
    made = jax.jit(jax.vmap(mechanism.randomize))(
        keys, (jnp.arange(messages, dtype=jnp.int32) % d)[:, None]
    )
    first, width = (
        np.ascontiguousarray(x) for x in hashing.interval(made.bucket, mechanism.num_buckets)
    )
    seeds = np.ascontiguousarray(made.seed)
    totals = np.zeros((cores, d), np.int32)
    sums = np.zeros(1, np.uint32)
    aggregate = jax.jit(lambda mechanism, made: mechanism.aggregate(made))

    def by_hand(tile: int) -> np.ndarray:
        arrays = map(pointer, (seeds, first, width, totals))
        tiles[tile].decode(*arrays, ctypes.c_long(messages), ctypes.c_long(d), cores)
        return totals[0]

    times = 4_000_000
    library = next(iter(tiles.values()))
    runs: dict[str, Callable[[], Any]] = {"ours": lambda: aggregate(mechanism, made)}
    runs |= {f"tile {tile}": lambda tile=tile: by_hand(tile) for tile in tiles}
    runs["additions"] = lambda: library.additions(ctypes.c_long(times), pointer(sums))
    for tile in tiles:
        np.testing.assert_array_equal(by_hand(tile), aggregate(mechanism, made))
    took = least(runs, DECODE_REPEATS)
    kind = (
        "cpu_seconds" if cores == 1 else "seconds"
    )  # CPU seconds of one core do not count the work of other programs
    rate = {run: messages * d / took[run][kind] / 1e9 for run in runs if run != "additions"}
    operations = runs["additions"]() / took["additions"]["cpu_seconds"] / 1e9 * cores
    fastest = max((rate[f"tile {tile}"], tile) for tile in tiles)
    return {
        "d": d,
        "messages": messages,
        "cores": cores,
        "timed": kind,
        "giga_cells_per_second": rate["ours"],
        "bound_giga_cells_per_second": fastest[0],
        "bound_tile": fastest[1],
        "share_of_bound": rate["ours"] / fastest[0],
        "giga_additions_per_second": operations,
        "arithmetic_bound_giga_cells_per_second": operations / OPERATIONS,
    }


def bits(d: int, cores: int) -> dict[str, Any]:
    """Draw 1e7 bits at the q of unary encoding: alone, and as whole messages."""
    clients = 10_000_000 // d
    q = make("optimized_unary_encoding", d).q
    keys = jax.random.split(jax.random.key(0), clients)
    cells = (jnp.arange(clients, dtype=jnp.int32) % d)[:, None]
    plain = jax.jit(lambda key, q: jax.random.bernoulli(key, q, (clients, d)))
    drawn = jax.jit(jax.vmap(lambda key, q: bernoulli_bits(key, q, d), in_axes=(0, None)))
    randomized = jax.jit(lambda mechanism, keys, cells: jax.vmap(mechanism.randomize)(keys, cells))
    runs: dict[str, Callable[[], Any]] = {
        "bernoulli": lambda: plain(keys[0], q),
        "bits": lambda: drawn(keys, q),
    }
    for name in MECHANISMS[1:]:
        runs[name] = lambda mechanism=make(name, d): randomized(mechanism, keys, cells)
    took = least(runs, 2 * REPEATS)
    kind = "cpu_seconds" if cores == 1 else "seconds"
    rate = {run: clients * d / took[run][kind] / 1e9 for run in runs}
    ratio = {run: rate[run] / rate["bernoulli"] for run in runs if run != "bernoulli"}
    return {
        "d": d,
        "clients": clients,
        "cores": cores,
        "timed": kind,
        "gigabits_per_second": rate,
        "ratio": ratio,
    }


def at_width(width: int, cores: int) -> dict[str, list[dict[str, Any]]]:
    """Run `decode_and_bits` in a process of its own.

    XLA may use vector registers of the width there, or native kernels are used.
    """
    before = os.environ.get("XLA_FLAGS", "")
    if width != NATIVE:
        os.environ["XLA_FLAGS"] = f"{before} --xla_cpu_prefer_vector_width={width}"
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            found = pool.submit(decode_and_bits, cores, width).result()
    finally:
        os.environ["XLA_FLAGS"] = before
    return {kind: [{"vector_width": width} | row for row in rows] for kind, rows in found.items()}


HOW = (
    "make one with `python3 -m venv PEERS && PEERS/bin/pip install pure-ldp multi-freq-ldpy "
    'scikit-learn statsmodels "xxhash<4"` and set '
    "RKNN_PEERS_PYTHON=PEERS/bin/python."
)

if __name__ == "__main__":
    if "RKNN_PEERS_PYTHON" not in os.environ:
        print(
            "skipped benchmarks.peers: RKNN_PEERS_PYTHON does not name an interpreter that has "
            f"pure-ldp and multi-freq-ldpy; {HOW}"
        )
        sys.exit()
    parts = [
        at_width(width, cores)
        for width in (*WIDTHS, *([NATIVE] if native.processor() else []))
        for cores in sorted({1, len(os.sched_getaffinity(0))})
    ]
    results: dict[str, Any] = {
        kind: [row for part in parts for row in part[kind]] for kind in ("decode", "bits")
    }
    for row in results["decode"] + results["bits"]:
        print(row, file=sys.stderr)
    peers = Peers(os.environ["RKNN_PEERS_PYTHON"])
    results["peers"] = [
        row for name in MECHANISMS for d in PEER_CLIENTS for row in throughput(peers, name, d)
    ]
    results["linearity"] = linearity(peers)
    peers.close()
    save(
        "peers",
        results,
        peers=peers.versions,
        epsilon=EPSILON,
        operations_of_a_message_and_cell=OPERATIONS,
        repeats=REPEATS,
    )
