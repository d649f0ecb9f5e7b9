"""The peers' side of `benchmarks.neighbors`, in the interpreter that has the peers installed.

A line of JSON goes in; seconds and the first ids come out.
"""

import json
import sys
import time
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np


def data(num_records: int, num_queries: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gaussian records and queries, float32."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((num_records, width), np.float32), rng.standard_normal(
        (num_queries, width), np.float32
    )


def with_faiss(records: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    """Search a flat index of squared Euclidean distances."""
    import faiss

    index = faiss.IndexFlatL2(queries.shape[1])
    index.add(queries)
    return index.search(records, count)[1]


def with_faiss_gpu(records, queries, count: int):  # type: ignore[no-untyped-def]
    """Search a flat index on the GPU, from tensors and to tensors there."""
    import faiss
    import faiss.contrib.torch_utils  # lets FAISS take tensors

    index = faiss.GpuIndexFlatL2(faiss.StandardGpuResources(), queries.shape[1])
    index.add(queries)
    return index.search(records, count)[1]


def gpu_versions() -> dict[str, str]:
    """Return FAISS's version for GPUs if it sees one."""
    if not find_spec("faiss"):
        return {}
    import faiss

    sees = getattr(faiss, "get_num_gpus", lambda: 0)()
    return {"faiss-gpu": faiss.__version__} if sees else {}


def with_torch(records, queries, count: int):  # type: ignore[no-untyped-def]
    """Multiply and take the top k, on the tensors' device or on the CPU.

    Blocks of 65,536 records are faster for torch than the whole matrix.
    """
    import torch

    records = torch.as_tensor(records)
    queries = torch.as_tensor(queries)
    norms = (queries**2).sum(1)
    parts = records.split(65_536)
    found = torch.cat(
        [
            torch.topk(torch.addmm(norms, part, queries.T, alpha=-2), count, largest=False).indices
            for part in parts
        ]
    )
    if found.is_cuda:
        torch.cuda.synchronize()
    return found


def with_sklearn(records: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    """Search by brute force."""
    from sklearn.neighbors import NearestNeighbors

    return (
        NearestNeighbors(n_neighbors=count, algorithm="brute")
        .fit(queries)
        .kneighbors(records, return_distance=False)
    )


def saved(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Return records and queries of a file."""
    with np.load(path) as file:
        return file["records"], file["queries"]


PEERS = {"faiss-cpu": with_faiss, "torch": with_torch, "scikit-learn": with_sklearn}
ON_GPU = {"faiss-gpu": with_faiss_gpu}
MODULES = {"faiss-cpu": "faiss", "torch": "torch", "scikit-learn": "sklearn"}


def on(device: str, arrays: tuple[np.ndarray, np.ndarray]) -> tuple:
    """Return the arrays, as tensors on the GPU if `device` asks for one."""
    if device == "cpu":
        return arrays
    import torch

    tensors = tuple(torch.from_numpy(array).to(device) for array in arrays)
    torch.cuda.synchronize()
    return tensors


if __name__ == "__main__":
    print(
        json.dumps(
            {peer: version(peer) for peer in PEERS if find_spec(MODULES[peer])} | gpu_versions()
        ),
        flush=True,
    )
    given = None
    for line in sys.stdin:
        asked = json.loads(line)
        new = asked["size"], asked.get("device", "cpu"), asked.get("file")
        if new != given:
            given = new
            arrays = on(given[1], saved(given[2]) if given[2] else data(*given[0]))
        start = time.perf_counter()
        cpu = time.process_time()
        found = (PEERS | ON_GPU)[asked["peer"]](*arrays, asked["num_neighbors"])
        print(
            json.dumps(
                {
                    "seconds": time.perf_counter() - start,
                    "cpu": time.process_time() - cpu,
                    "some": found[: asked.get("rows", 1000)].tolist(),
                }
            ),
            flush=True,
        )
