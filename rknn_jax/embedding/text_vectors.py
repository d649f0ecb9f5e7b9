"""Static vectors of tokens.

A text's embedding is the mean of its tokens' vectors. The vectors are a matrix in a `.safetensors`
or `.npy` file, with `tokenizer.json` beside it, or those that the package `wordllama` ships.
"""

import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rknn_jax._internal.extras import install
from rknn_jax._internal.option_names import option
from rknn_jax.embedding import Embedded, rows, tokens
from rknn_jax.embedding.images import versions

DEFAULT = "wordllama"
"""Package whose vectors are used if no model is named."""

SUFFIXES = (".npy", ".safetensors")

AT_ONCE = 2**14
"""Tokens whose vectors are added at once."""

PACKAGED = ("weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json")
"""Files of the package: vectors of 256 dimensions, and their tokenizer."""


@dataclass(frozen=True)
class StaticModel:
    """Static vectors of tokens.

    Attributes:
      name: Name of the model.
      path: Path of the vectors, or the package that ships them.
      digest: SHA-256 of the vectors' file and the tokenizer's, in hexadecimal.
      tokenizer: Tokenizer of the package `tokenizers`.
      vectors: Vectors of the tokens, float32 `[num_tokens, f]`.
    """

    name: str
    path: str
    digest: str
    tokenizer: Any
    vectors: np.ndarray

    @property
    def width(self) -> int:
        """Number of features f."""
        return int(self.vectors.shape[1])

    @property
    def card(self) -> dict[str, Any]:
        """Name, digest, sizes and versions."""
        return {
            "kind": "text",
            "name": self.name,
            "path": self.path,
            "sha256": self.digest,
            "width": self.width,
            "tokens": len(self.vectors),
            "pooling": "mean",
            "versions": versions("tokenizers"),
        }

    def __call__(self, records: Any) -> Embedded:
        """Return the features of texts in one or more columns of an Arrow table."""
        texts = rows.texts(records)
        encode = functools.partial(self.tokenizer.encode_batch, add_special_tokens=False)
        features = np.full((len(texts), self.width), np.nan, np.float32)
        reasons = {}
        for row, tokenized in enumerate(tokens.each(encode, texts)):
            if tokenized is None:
                reasons[row] = tokens.UNREAD
            elif not tokenized.ids:
                reasons[row] = "no text"
            else:
                features[row] = _mean(self.vectors, tokenized.ids)
        return Embedded(features, reasons)


def _mean(vectors: np.ndarray, ids: Sequence[int]) -> np.ndarray:
    """Return the mean of some vectors, float32 `[f]`, in memory that the text does not decide."""
    starts = range(0, len(ids), AT_ONCE)
    total = sum(vectors[ids[start : start + AT_ONCE]].sum(axis=0) for start in starts)
    return np.asarray(total / np.float32(len(ids)))


def load(model: str) -> StaticModel:
    """Load vectors by the name of the package, or by the path of their file.

    Raises:
      ValueError: If the model or what it needs is not there, or its files do not fit.
    """
    vectors_path, tokenizer_path = _files(model)
    digest = tokens.digest((vectors_path, tokenizer_path), model)
    tokenizer = tokens.tokenizer(tokenizer_path)
    try:
        vectors = _vectors(vectors_path)
    except Exception as error:  # the libraries raise errors of many types
        raise ValueError(
            f"Cannot read {option('model')} {model}: {error}; restore its files."
        ) from error
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if vectors.ndim != 2 or len(vectors) < size:
        raise ValueError(
            f"Expected vectors [num_tokens, f] for {size} tokens in {vectors_path}, got shape "
            f"{vectors.shape}; use the tokenizer that the vectors were made with."
        )
    name = model if model == DEFAULT else vectors_path.stem
    return StaticModel(name, model, digest, tokenizer=tokenizer, vectors=vectors)


def _files(model: str) -> tuple[Path, Path]:
    """Return the files of the vectors and of their tokenizer."""
    if model != DEFAULT:
        return Path(model), Path(model).with_name(tokens.NAME)
    found = importlib.util.find_spec(DEFAULT)
    if found is None or found.origin is None:
        raise ValueError(
            f"Expected {option('model')}, since {DEFAULT}, whose vectors are the default, is not "
            f"installed; {install('embed')}; or name a file of vectors."
        )
    folder = Path(found.origin).parent
    vectors, tokenizer = (folder / name for name in PACKAGED)
    return vectors, tokenizer


def _vectors(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.asarray(np.load(path, allow_pickle=False), np.float32)
    from safetensors.numpy import load_file

    tensors = load_file(path)
    if len(tensors) != 1:
        raise ValueError(f"expected one tensor, found {', '.join(sorted(tensors))}")
    return np.asarray(next(iter(tensors.values())), np.float32)
