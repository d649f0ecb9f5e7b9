"""`embedding_models.find`: the cards beside public and private embeddings."""

import json
from pathlib import Path

from rknn_jax.privacy.statement import as_json
from rknn_jax.release import embedding_models

MODEL = {
    "kind": "text",
    "name": "words",
    "path": "words.onnx",
    "sha256": "0a" * 32,
    "width": 2,
    "input": {"inputs": ["ids", "mask"], "max_length": 8},
    "output": "vectors",
    "pooling": "mean",
    "normalize": True,
}


def seeds():
    card = json.dumps({"format": 1, "model": MODEL, "rows": 3, "private": False}).encode()
    return [{"P.card.json": card, "R.card.json": card}]


def readers(folder: Path):
    def found():
        model = embedding_models.find([str(folder / "P.parquet")], [str(folder / "R.parquet")], 2)
        if model is not None:
            as_json({"not_covered": model.not_covered}).encode()
            model.not_covered.encode()

    return [found]
