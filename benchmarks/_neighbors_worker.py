"""The peers' side of `benchmarks.neighbors`, in an interpreter that has them: a line of JSON in, seconds and the ids' hash out."""

import json
import sys
import time
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
import torch


def data(num_records: int, num_queries: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the records and queries of `benchmarks.neighbors`."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((num_records, width), np.float32), rng.standard_normal((num_queries, width), np.float32)


def with_faiss(records: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    """Search a flat index of squared Euclidean distances."""
    import faiss

    index = faiss.IndexFlatL2(queries.shape[1])
    index.add(queries)
    return index.search(records, count)[1]


def with_torch(records: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    """Multiply and take the top k, 65,536 records at a time, which is kinder than the whole matrix."""
    both = torch.from_numpy(queries)
    norms = (both**2).sum(1)
    parts = torch.from_numpy(records).split(65_536)
    return torch.cat([torch.topk(torch.addmm(norms, part, both.T, alpha=-2), count, largest=False).indices for part in parts]).numpy()


def on_cuda(records: torch.Tensor, queries: torch.Tensor, count: int) -> torch.Tensor:
    """Multiply and take the top k of records that are on the GPU already, 65,536 at a time."""
    norms = (queries**2).sum(1)
    parts = records.split(65_536)
    found = torch.cat([torch.topk(torch.addmm(norms, part, queries.T, alpha=-2), count, largest=False).indices for part in parts])
    torch.cuda.synchronize()
    return found


def with_sklearn(records: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    """Search by brute force."""
    from sklearn.neighbors import NearestNeighbors

    return NearestNeighbors(n_neighbors=count, algorithm="brute").fit(queries).kneighbors(records, return_distance=False)


PEERS = {"faiss-cpu": with_faiss, "torch": with_torch, "scikit-learn": with_sklearn}

MODULES = {"faiss-cpu": "faiss", "torch": "torch", "scikit-learn": "sklearn"}

if __name__ == "__main__":
    print(json.dumps({peer: version(peer) for peer in PEERS if find_spec(MODULES[peer])}), flush=True)
    size = None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["size"] != size:
            size = asked["size"]
            records, queries = data(*size)
        if asked.get("device") == "cuda":
            device = [torch.from_numpy(array).cuda() for array in (records, queries)]
            torch.cuda.synchronize()
            start = time.perf_counter()
            found = on_cuda(*device, asked["num_neighbors"])
            print(json.dumps({"seconds": time.perf_counter() - start, "some": found[:1000].tolist()}), flush=True)
            continue
        start = time.perf_counter()
        found = PEERS[asked["peer"]](records, queries, asked["num_neighbors"])
        print(json.dumps({"seconds": time.perf_counter() - start, "some": found[:1000].tolist()}), flush=True)
