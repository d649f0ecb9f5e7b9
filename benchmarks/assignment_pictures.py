"""The assignment of MNIST's private images beside FAISS, with queries of public ones by k-means.

No default of the assignment was chosen on them: those follow from Gaussian points. One core is
measured, otherwise as in `benchmarks.assignment`.
"""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import jax
import numpy as np

from benchmarks._measure import mnist_folder, save
from benchmarks.assignment import NEIGHBORS, cell, peer
from benchmarks.neighbors import HOW, blas
from rknn_jax import data
from rknn_jax.kernels import native
from rknn_jax.queries import kmeans
from rknn_jax.representations import hog, pixels

QUERIES = (40, 200, 1_000)


def measure(
    worker: subprocess.Popen[str], name: str, representation: Any, place: str
) -> list[dict[str, Any]]:
    """Measure one representation, whose arrays go through files in a folder."""
    task = data.load("mnist", seed=0, data_dir=mnist_folder())
    encode = representation.fit(jax.random.key(0), task.public.images)
    records = np.asarray(encode(task.private.images))
    public = np.asarray(encode(task.public.images))
    rows = []
    for num_queries in QUERIES:
        asked = kmeans.select(jax.random.key(1), public, num_queries)
        queries = public[np.asarray(asked.index)]
        file = f"{place}/{name}{num_queries}.npz"
        np.savez(file, records=records, queries=queries)
        size = (len(records), *queries.shape)
        for count in NEIGHBORS:
            row = cell(worker, size, (records, queries), count, file)
            rows.append({"data": f"MNIST, {name}", **row})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    if "RKNN_PEERS_PYTHON" not in os.environ:
        sys.exit(f"Expected RKNN_PEERS_PYTHON to name an interpreter that has FAISS; {HOW}")
    with peer(1) as worker, tempfile.TemporaryDirectory() as place:
        found = measure(worker, "pixels", pixels, place)
        found += measure(worker, "HOG", hog, place)
    save(
        "assignment_pictures",
        found,
        peer=blas(1),
        kernel=native.processor(),
        load=os.getloadavg()[0],
        seed=0,
    )
