"""The assignment of data that are not Gaussian beside FAISS, otherwise as `benchmarks.assignment`.

Such data leave a fast product undecided: clusters far smaller than their distances, one feature far
larger than the others, copies of a few queries, whole numbers with many ties, and sorted rows.
Texts are pieces of the standard library's modules, embedded by latent semantic analysis: a singular
value decomposition of their words' frequencies. Their queries are some of the rows. One core is
measured.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks._measure import save
from benchmarks._neighbors_worker import data
from benchmarks.assignment import NEIGHBORS, cell, peer
from benchmarks.neighbors import HOW, blas
from rknn_jax.kernels import native

RECORDS = 20_000
SHAPES = ((50, 64), (500, 128), (1_000, 324), (200, 768))  # queries, features
CLUSTERS = 50
LARGER = 100  # the dominant feature
COPIES = 10
WHOLE = 3  # numbers of a feature
DIMENSION = 128
PARAGRAPH = 200  # characters
Arrays = tuple[np.ndarray, np.ndarray]


def clusters(points: np.ndarray, queries: np.ndarray, spread: float) -> Arrays:
    """Move the rows to centers, which they lie around."""
    rng = np.random.default_rng(1)
    centers = rng.standard_normal((CLUSTERS, points.shape[1]), np.float32)

    def moved(rows: np.ndarray) -> np.ndarray:
        moves: np.ndarray = centers[rng.integers(0, CLUSTERS, len(rows))]
        return moves + np.float32(spread) * rows

    return moved(points), moved(queries)


def dominant(points: np.ndarray, queries: np.ndarray) -> Arrays:
    """Make one feature larger."""
    factors = np.ones(points.shape[1], np.float32)
    factors[0] = LARGER
    return points * factors, queries * factors


def copies(points: np.ndarray, queries: np.ndarray) -> Arrays:
    """Ask each of some queries several times."""
    few = queries[: len(queries) // COPIES]
    return points, np.random.default_rng(1).permutation(np.concatenate([few] * COPIES))


def ties(points: np.ndarray, queries: np.ndarray) -> Arrays:
    """Leave a few whole numbers."""
    rng = np.random.default_rng(1)
    whole = (rng.integers(0, WHOLE, rows.shape).astype(np.float32) for rows in (points, queries))
    one, two = whole
    return one, two


def ordered(points: np.ndarray, queries: np.ndarray) -> Arrays:
    """Sort the rows by their first feature."""
    return points[np.argsort(points[:, 0])], queries[np.argsort(queries[:, 0])]


KINDS: dict[str, Callable[[np.ndarray, np.ndarray], Arrays]] = {
    **{
        f"{CLUSTERS} clusters of spread {spread}": lambda points, queries, spread=spread: clusters(
            points, queries, spread
        )
        for spread in (0.1, 0.3, 1.0)
    },
    f"one feature {LARGER} times as large": dominant,
    f"{COPIES} copies of each query": copies,
    f"whole numbers below {WHOLE}": ties,
    "sorted": ordered,
}


def paragraphs() -> Iterator[str]:
    """Yield pieces of the source of the standard library's modules."""
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        text = path.read_text(errors="replace")
        yield from (text[i : i + PARAGRAPH] for i in range(0, len(text), PARAGRAPH))


def texts(num_queries: int) -> Arrays:
    """Return embedded texts, of unit length, and some of them as queries."""
    weights = TfidfVectorizer(max_features=20_000, sublinear_tf=True).fit_transform(paragraphs())
    rows = TruncatedSVD(DIMENSION, n_iter=2, random_state=0).fit_transform(weights)
    rows = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(rows))
    return rows[order[num_queries:]][:RECORDS], rows[order[:num_queries]]


def measure(worker: subprocess.Popen[str], name: str, arrays: Arrays) -> list[dict[str, object]]:
    """Measure some arrays, which go through a file."""
    rows = []
    size = (len(arrays[0]), *arrays[1].shape)
    with tempfile.TemporaryDirectory() as place:
        file = f"{place}/{name.replace(' ', '_')}_{size}.npz"
        np.savez(file, records=arrays[0], queries=arrays[1])
        for count in NEIGHBORS:
            rows.append({"data": name, **cell(worker, size, arrays, count, file)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    if "RKNN_PEERS_PYTHON" not in os.environ:
        sys.exit(f"Expected RKNN_PEERS_PYTHON to name an interpreter that has FAISS; {HOW}")
    with peer(1) as worker:
        found = measure(worker, "texts", texts(200))
        for shape in SHAPES:
            for name, change in KINDS.items():
                found += measure(worker, name, change(*data(RECORDS, *shape)))
    save(
        "assignment_data",
        found,
        peer=blas(1),
        kernel=native.processor(),
        load=os.getloadavg()[0],
        seed=0,
    )
