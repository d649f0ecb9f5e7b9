"""Algorithm 1's labeling steps transcribed slowly in NumPy float64, loop by loop: what the fast
path must equal at zero noise.
"""

import numpy as np


def label(
    private: np.ndarray,
    labels: np.ndarray,
    queries: np.ndarray,
    num_classes: int,
    num_neighbors: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return counts `[s, num_classes]` and the label of each query; `labels` is `[n]` or `[n,
    r]`, negative for none.
    """
    counts = np.zeros((len(queries), num_classes), np.int64)
    for record, own in zip(
        private.astype(np.float64), np.asarray(labels).reshape(len(labels), -1), strict=True
    ):
        distances = [float(np.sum((record - query) ** 2)) for query in queries.astype(np.float64)]
        for query in sorted(range(len(queries)), key=lambda q: (distances[q], q))[:num_neighbors]:
            for y in {int(y) for y in own if y >= 0}:
                counts[query, y] += 1
    return counts, counts.argmax(axis=1)


def gap(counts: np.ndarray) -> np.ndarray:
    """Return first minus second count of each row."""
    ordered = np.sort(counts, axis=1)
    return ordered[:, -1] - ordered[:, -2]
