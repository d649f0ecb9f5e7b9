"""Labels of the text tutorial's docstrings on embeddings of several models.

    RKNN_TEXT_EMBEDDINGS=DIR python -m benchmarks.text_models

The folder holds `NAME-public.parquet`, `NAME-private.parquet` and `NAME-test.parquet` of each
model, as the tutorial makes them with `rknn embed`, with their cards. Public labels judge alone.
All models have the same texts. The noise is simulated.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pyarrow.parquet as pq
from sklearn.linear_model import LogisticRegression

from benchmarks import choosing
from benchmarks._measure import save, summary
from rknn_jax import postprocessing
from rknn_jax._internal.disk import read_json
from rknn_jax.embedding.run import card_path
from rknn_jax.records.classes import Classes
from rknn_jax.release import inputs

EPSILONS = (0.1, 1.0)
SEED = 0
DRAWS = 5


class Part(NamedTuple):
    """Embedded texts: unit rows `[n, f]`, whose distances are those of the cosine, and packages."""

    rows: np.ndarray
    names: np.ndarray


def read(path: Path) -> Part:
    """Read embedded texts."""
    table = pq.read_table(path)
    rows = np.array(table["embeddings"].to_pylist(), np.float32)
    return Part(
        rows / np.linalg.norm(rows, axis=1, keepdims=True), np.array(table["labels"].to_pylist())
    )


def student(public: Part, names: np.ndarray, test: Part) -> float:
    """Return the test accuracy of logistic regression on public rows of these names."""
    fitted = LogisticRegression(max_iter=1000).fit(public.rows, names)
    return float(fitted.score(test.rows, test.names))


def measure(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the accuracies on one model's embeddings, by epsilon."""
    public, private, test = (
        read(folder / f"{name}-{part}.parquet") for part in ("public", "private", "test")
    )
    classes, ids = np.unique(private.names, return_inverse=True)
    data = inputs.data_of(public.rows, private.rows, ids.astype(np.int32), Classes(len(classes)))
    graph = postprocessing.public_graph(public.rows, len(classes))
    counts = np.unique(public.names, return_counts=True)[1]
    card = read_json(card_path(folder / f"{name}-public.parquet"))["model"]
    model = {field: card[field] for field in ("name", "width", "sha256", "versions")}
    about = {
        "model": model,
        "max_length": card.get("input", {}).get("max_length"),
        "num_public": len(public.rows),
        "num_private": len(private.rows),
        "num_test": len(test.rows),
        "ceiling": student(public, public.names, test),
        "one_class": float(counts.max() / len(public.names)),
    }
    found = []
    split = choosing.Public(data, graph, SEED)
    for _, epsilon, question, totals in choosing.asked(split, ()):
        if epsilon not in EPSILONS:
            continue
        runs = []
        for draw in range(DRAWS):
            key = jax.random.fold_in(jax.random.key(SEED), draw)
            said = classes[question.read(choosing.drawn(question, totals, key)).labels]
            right = said == public.names
            worst = min(right[public.names == one].mean() for one in classes)
            runs.append((right.mean(), worst, student(public, said, test)))
        rights, worsts, students = (list(map(float, each)) for each in zip(*runs, strict=True))
        found.append(
            about
            | {"epsilon": epsilon, "labels": summary(rights) | {"worst": min(rights)}}
            | {"worst_class": summary(worsts), "student": summary(students)}
        )
        print(name, epsilon, rights, students, flush=True)
    return found


def main() -> None:
    """Measure all models of the folder."""
    named = os.environ.get("RKNN_TEXT_EMBEDDINGS")
    if named is None:
        print("skipped: name the folder of embedded texts in RKNN_TEXT_EMBEDDINGS")
        return
    folder = Path(named)
    suffix = "-public.parquet"
    names = sorted(path.name.removesuffix(suffix) for path in folder.glob(f"*{suffix}"))
    results = [row for name in names for row in measure(folder, name)]
    save("text_models", results, seed=SEED, draws=DRAWS, noise="simulated")


if __name__ == "__main__":
    main()
