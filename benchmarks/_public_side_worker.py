"""Measures the decoder's public side of whichever code is imported; see `benchmarks.public_side`.

Reads a problem, and prints CPU seconds, bytes and labels as JSON.
"""

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from rknn_jax import answers
from rknn_jax.answers import covariance
from rknn_jax.types import Queries

CLASSES = 10
NOISE = (3.0, 20.0)


def memory(name: str) -> int:
    """Return a number of bytes of this process by its name in Linux."""
    status = Path("/proc/self/status").read_text()
    [found] = re.findall(rf"{name}:\s+(\d+) kB", status)
    return int(found) * 1024


def taken(run: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the result of a step, its CPU seconds and the bytes that it takes at most."""
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before = memory("VmRSS")
    start = time.process_time()
    found = run()
    seconds = time.process_time() - start
    return found, {"cpu_seconds": seconds, "bytes": memory("VmHWM") - before}


def stages(spent: Counter[str]) -> None:
    """Have the parts of the kernels add their CPU seconds to `spent`."""
    for name in ("radial", "_radial", "_walks", "_mixture"):
        part = getattr(covariance, name, None)
        if part is None:
            continue  # of the other code

        def timed(
            *given: Any, name: str = name, part: Callable[..., Any] = part, **named: Any
        ) -> Any:
            start = time.process_time()
            found = part(*given, **named)
            found = found if name == "_mixture" else list(found)
            spent[name.strip("_")] += time.process_time() - start
            return found

        setattr(covariance, name, timed)


def main() -> None:
    """Measure one problem, after a small one that loads what is loaded once."""
    file = np.load(sys.argv[1])
    features, cluster = file["features"], file["cluster"]
    queries = Queries(file["centers"], file["index"], cluster, file["size"])
    count, number = len(features), len(queries.index)
    graph = scipy.sparse.csr_matrix(
        (file["data"], file["indices"], file["indptr"]), shape=(count, count)
    )
    few = np.arange(90)
    small = Queries(features[:9], few[:9], few % 9, np.full(9, 10))
    ready = answers.kernels(small, features[:90], scipy.sparse.identity(90, format="csr"))
    assert ready is not None
    answers.decode(np.ones((9, CLASSES)), np.ones((9, CLASSES)), ready)
    spent = Counter[str]()
    stages(spent)
    # The code before has no mixtures.
    classes = {"num_classes": CLASSES} if hasattr(covariance, "_mixture") else {}
    kernels, whole = taken(lambda: answers.kernels(queries, features, graph, **classes))
    rng = np.random.default_rng(0)
    truth = 3 * rng.dirichlet(np.full(CLASSES, 0.15), number) * kernels.size[:, None]
    decodes, labels = [], []
    for stddev in NOISE:
        counts = truth + rng.laplace(scale=stddev / np.sqrt(2), size=truth.shape)
        noise = np.full(truth.shape, stddev)
        decoded, cost = taken(
            lambda counts=counts, noise=noise: answers.decode(counts, noise, kernels)
        )
        decodes.append(cost | {"stddev": stddev})
        labels.append(decoded.labels.tolist())
    print(json.dumps({"kernels": whole | spent, "decode": decodes, "labels": labels}))


if __name__ == "__main__":
    main()
