"""Private records and public data beyond memory: peak memory, time beside floors, growth.

    python -m benchmarks.scale
    python -m benchmarks.scale --parts memory overlap

Each part writes its results at once. `memory` counts the votes of up to 10^7 records of 256
features, 10 GB in shards. `overlap` compares one pass over 10^6 records of 768 features with its
two floors: reading with hashing, and assignment in memory. `command` times `rknn label`. `public`
compares clustering and neighbor graphs with the exact ones. `growth` and `whole` run with up to
10^6 public rows. `cluster` counts 10^9 records in 1,000 shards on Ray.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sklearn.cluster import KMeans

from benchmarks._measure import save_part
from rknn_jax import answers, lloyd, neighbor_graph, postprocessing
from rknn_jax.formats import Block, Columns
from rknn_jax.labelers._votes import VoteTally
from rknn_jax.neighbors import nearest, nearest_votes, usable_rows
from rknn_jax.privacy.fingerprints import Digest
from rknn_jax.queries import kmeans
from rknn_jax.records.classes import Classes
from rknn_jax.release import counting
from rknn_jax.release.counting import Counter
from rknn_jax.release.shards import ArrayShard, FileShard, Records

NUM_CLASSES = 10
ROWS_OF_SHARD = 100_000
GROUPS = 200


def rows(count: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return made-up embeddings around 200 centers, float32 `[count, width]`, and their labels."""
    centers = np.random.default_rng(0).standard_normal((GROUPS, width), np.float32)
    rng = np.random.default_rng(1 + seed)
    group = rng.integers(0, GROUPS, count)
    embeddings = rng.standard_normal((count, width), np.float32)
    embeddings *= 0.7
    embeddings += centers[group]
    return embeddings, (group % NUM_CLASSES).astype(np.int32)


def make_shards(folder: Path, count: int, width: int) -> list[FileShard]:
    """Write records as .npy files, shard by shard."""
    shards = []
    for number in range(-(-count // ROWS_OF_SHARD)):
        embeddings, labels = rows(min(count, ROWS_OF_SHARD), width, number)
        named = folder / f"{number:03d}.npy"
        of_labels = folder / f"labels{number:03d}.npy"
        np.save(named, embeddings)
        np.save(of_labels, labels)
        shards.append(FileShard(str(named), "--private", Columns(width=width), str(of_labels)))
    return shards


def counter(num_queries: int, width: int) -> Counter:
    """Return queries near the centers."""
    queries = rows(num_queries, width, 10**6)[0]
    return Counter(VoteTally(queries, NUM_CLASSES), Classes(NUM_CLASSES))


def memory() -> Iterator[dict[str, Any]]:
    """Yield peak memory and time of one pass, for each number of records."""
    asked = counter(500, 256)
    with tempfile.TemporaryDirectory() as folder:
        for count in (10**5, 10**6, 10**7):
            shards = make_shards(Path(folder), count, 256)
            found = isolated(_pass, shards, asked)
            yield {"records": count, "gigabytes": count * 1024 / 1e9} | found


def _pass(shards: list[FileShard], asked: Counter) -> dict[str, Any]:
    """Count in a fresh process; the library's own memory is that after a tiny count."""
    warm = ArrayShard("warm", *rows(5000, asked.tally.queries.shape[1], 0))
    counting.count_all(Records.of([warm]), asked)
    own = high_water()
    started = time.perf_counter()
    votes = counting.count_all(Records.of(shards), asked)
    seconds = time.perf_counter() - started
    assert votes.counts.sum() == votes.rows
    return {
        "library_bytes": own,
        "peak_above_library_bytes": high_water() - own,
        "pass_seconds": seconds,
        "records_per_second": votes.rows / seconds,
    }


def high_water() -> int:
    """Return the peak resident size of this program so far, in bytes.

    `getrusage` counts the process before it began this program too.
    """
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def overlap() -> Iterator[dict[str, Any]]:
    """Yield the time of one pass over 10^6 x 768, and of its floors, in turns."""
    asked = counter(200, 768)
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder), 10**6, 768)
        records = Records.of(shards)
        held = rows(ROWS_OF_SHARD, 768, 0)
        floors: dict[str, Callable[[], object]] = {
            "pass": lambda: counting.count_all(records, asked),
            "read_and_hash": lambda: _read_and_hash(shards),
            "assign_in_memory": lambda: _assign(held, asked),
        }
        times: dict[str, list[float]] = {name: [] for name in floors}
        for _ in range(3):
            for name, run in floors.items():
                times[name].append(_seconds(run))
    shortest = {name: min(values) for name, values in times.items()}
    slower = max(shortest["read_and_hash"], shortest["assign_in_memory"])
    yield {"records": 10**6, "features": 768, "seconds": times} | {
        "pass_over_slower_floor": shortest["pass"] / slower
    }


def _read_and_hash(shards: list[FileShard]) -> None:
    for shard in shards:
        digest = Digest()
        digest.begin("f", (shard.num_rows(), 768))
        for block in shard.blocks(4096):
            assert block.embeddings is not None
            digest.update(usable_rows(block.embeddings))


def _assign(held: tuple[np.ndarray, np.ndarray], asked: Counter) -> None:
    """Assign 10^6 records that are in memory already: one shard's, ten times."""
    embeddings, labels = held
    queries = asked.tally.queries
    for _ in range(10):
        jax.block_until_ready(nearest_votes(embeddings, queries, labels, 1, NUM_CLASSES))


def command() -> Iterator[dict[str, Any]]:
    """Yield the time of `rknn label` with 10^5 x 768 private and 20,000 public rows."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        np.save(place / "P.npy", rows(20_000, 768, 1000)[0])
        embeddings, labels = rows(100_000, 768, 0)
        np.savez(place / "R.npz", embeddings=embeddings, labels=labels)
        del embeddings
        words = ["-m", "rknn_jax.cli.main", "label", "--public", "P.npy", "--private", "R.npz"]
        words += ["--epsilon", "1", "--classes", "10", "--queries", "200", "--out", "out"]
        times = []
        for _ in range(3):
            started = time.perf_counter()
            subprocess.run([sys.executable, *words], cwd=place, check=True, capture_output=True)
            times.append(time.perf_counter() - started)
            shutil.rmtree(place / "out")
            (place / "R.npz.ledger.jsonl").unlink()
    yield {"private": 100_000, "public": 20_000, "features": 768, "queries": 200, "seconds": times}


def public() -> Iterator[dict[str, Any]]:
    """Yield clustering and graphs of 20,000 x 768 public rows beside the exact ones."""
    features = rows(20_000, 768, 1000)[0]
    found = {}
    for name, fit in (("sampled", kmeans._fit_sample), ("scikit-learn", _by_sklearn)):
        fit(features[:2000], 20, 0, kmeans.Config())
        started = time.process_time()
        clusters = fit(features, 200, 0, kmeans.Config())
        cpu = time.process_time() - started
        inertia = float(((features - clusters.centers[clusters.labels]) ** 2).sum())
        found[name] = {"cpu_seconds": cpu, "inertia": inertia}
    yield {"clustering": found}
    for name, given in _graph_data():
        exact = np.asarray(nearest(given, given, 11))
        started = time.process_time()
        index, _ = neighbor_graph.inverted_file(given, 11)
        cpu = time.process_time() - started
        pairs = zip(index, exact, strict=True)
        recall = float(np.mean([len(set(one) & set(other)) / 11 for one, other in pairs]))
        yield {"graph": name, "rows": len(given), "recall": recall, "cpu_seconds": cpu}


def _by_sklearn(
    features: np.ndarray, num_queries: int, seed: int, config: kmeans.Config
) -> lloyd.Clusters:
    settings = {"n_init": config.num_starts, "max_iter": config.max_iterations}
    found = KMeans(num_queries, random_state=seed, **settings).fit(features)
    return lloyd.Clusters(found.cluster_centers_, found.labels_, found.inertia_)


def _graph_data() -> Iterator[tuple[str, np.ndarray]]:
    from benchmarks._measure import mnist_folder
    from rknn_jax import data

    yield "groups, 768 features", rows(20_000, 768, 1000)[0]
    yield "noise, 64 features", np.random.default_rng(0).standard_normal((20_000, 64), np.float32)
    images = data.load("mnist", 0, mnist_folder()).private.images
    yield "MNIST, pixels", np.float32(images[:20_000]).reshape(20_000, -1)


def growth() -> Iterator[dict[str, Any]]:
    """Yield the time of the public side for 10^4 to 10^6 rows of 256 features, 500 queries."""
    for count in (10_000, 30_000, 100_000, 300_000, 1_000_000):
        found = {"rows": count} | isolated(_public_side, count)
        print(found, flush=True)
        yield found


def _public_side(count: int) -> dict[str, Any]:
    features = rows(count, 256, 1000)[0]
    started = time.perf_counter()
    queries = kmeans.select(jax.random.key(0), features, 500)
    clustered = time.perf_counter()
    graph = postprocessing.public_graph(features, 500)
    joined = time.perf_counter()
    answers.kernels(queries, features, graph, num_classes=NUM_CLASSES)
    return {
        "clustering_seconds": clustered - started,
        "graph_seconds": joined - clustered,
        "kernels_seconds": time.perf_counter() - joined,
        "peak_bytes": high_water(),
    }


def whole() -> Iterator[dict[str, Any]]:
    """Yield time and memory of `rknn label` with 10^6 public and 10^6 private rows."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "P").mkdir()
        for number in range(10):
            np.save(place / f"P/{number}.npy", rows(ROWS_OF_SHARD, 256, 1000 + number)[0])
        (place / "R").mkdir()
        for number in range(10):
            embeddings, labels = rows(ROWS_OF_SHARD, 256, number)
            np.savez(place / f"R/{number}.npz", embeddings=embeddings, labels=labels)
        words = ["-m", "rknn_jax.cli.main", "label", "--public", "P", "--private", "R"]
        words += ["--epsilon", "1", "--classes", "10", "--queries", "500", "--out", "out"]
        started = time.perf_counter()
        subprocess.run([sys.executable, *words], cwd=place, check=True, capture_output=True)
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    yield {"public": 10**6, "private": 10**6, "features": 256, "queries": 500} | {
        "seconds": seconds,
        "peak_bytes": peak,
    }


@dataclass(frozen=True)
class MadeUpShard:
    """Records that are made where they are counted, 10^6 at a time.

    Attributes:
      number: Number of the shard, its seed.
      width: Number of features f.
    """

    number: int
    width: int

    @property
    def name(self) -> str:
        """Name of the shard."""
        return f"shard {self.number}"

    where = name

    def num_rows(self) -> int:
        """Return 10^6."""
        return 10**6

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield uniform embeddings, with labels by their first two features."""
        rng = np.random.default_rng(self.number)
        for start in range(0, self.num_rows(), size):
            count = min(size, self.num_rows() - start)
            embeddings = rng.random((count, self.width), np.float32)
            labels = (embeddings[:, 0] * 5).astype(np.int32) * 2 + (embeddings[:, 1] > 0.5)
            yield Block(embeddings, labels)

    def labels(self, size: int) -> Iterator[np.ndarray]:
        """Yield the labels alone."""
        yield from (block.labels for block in self.blocks(size) if block.labels is not None)


def cluster() -> Iterator[dict[str, Any]]:
    """Yield time and memory of a count on Ray, of 1,000 shards of 10^6 records."""
    from rknn_jax.release.engines import ray

    queries = np.random.default_rng(10**6).random((200, 16), np.float32)
    asked = Counter(VoteTally(queries, NUM_CLASSES), Classes(NUM_CLASSES))
    records = Records.of([MadeUpShard(i, 16) for i in range(1000)])
    memory: list[int] = []
    done = 0
    started = time.perf_counter()

    def count(rows_of_shard: int) -> None:
        nonlocal done
        done += rows_of_shard
        if done % (len(records) // 20) == 0:
            memory.append(tree_bytes())
            seconds = time.perf_counter() - started
            print(f"{done:,} records, {memory[-1] / 1e9:.2f} GB, {seconds:.0f} s", flush=True)

    votes = ray.count_all(records, asked, count)
    seconds = time.perf_counter() - started
    assert votes.counts.sum() == votes.rows == len(records)
    yield {
        "records": votes.rows,
        "shards": len(records.shards),
        "features": 16,
        "queries": 200,
        "seconds": seconds,
        "records_per_second": votes.rows / seconds,
        "bytes_at_each_twentieth": memory,
    }


def tree_bytes() -> int:
    """Return the proportional resident size of this process and all below it, in bytes."""
    import psutil

    me = psutil.Process()
    total = 0
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


PARTS = (memory, overlap, command, public, growth, whole, cluster)


def isolated(work: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """Return what `work` returns in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, given)


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    """Run the parts that the command line names, and keep the results of the others."""
    names = [part.__name__ for part in PARTS]
    # The index of ledgers would refuse to count the same records for another folder.
    os.environ["RKNN_STATE_DIR"] = os.devnull
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=names, default=names)
    for name in parser.parse_args().parts:
        (part,) = (each for each in PARTS if each.__name__ == name)
        found = list(part())
        print(json.dumps({name: found}, indent=1))
        save_part("scale", name, found)


if __name__ == "__main__":
    main()
