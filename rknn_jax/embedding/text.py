"""Text, embedded by static vectors of tokens.

A text's embedding is the mean of its tokens' vectors. The vectors are a matrix in a `.safetensors`
or `.npy` file, with `tokenizer.json` beside it, or those that the package `wordllama` ships.
"""

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rknn_jax.embedding import Embedded
from rknn_jax.embedding.images import versions

DEFAULT = "wordllama"
"""Package whose vectors are used if no model is named."""

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
        """Return the features of texts in one or more columns of an Arrow table.

        Columns are joined with a line break. Missing ones are left out.
        """
        columns = [text_values(records.column(name), name) for name in records.column_names]
        texts = ["\n".join(filter(None, values)) for values in zip(*columns, strict=True)]
        encoded = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        features = np.full((len(texts), self.width), np.nan, np.float32)
        reasons = {}
        for row, tokens in enumerate(encoded):
            if not tokens.ids:
                reasons[row] = "no text"
            else:
                features[row] = self.vectors[tokens.ids].mean(axis=0)
        return Embedded(features, reasons)


def text_values(column: Any, name: str) -> list[str | None]:
    """Return an Arrow column of text as a list, with None for missing values.

    Raises:
      ValueError: If the column holds something else.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise ValueError(
            f"Expected text in column {name!r}, got {kind}; name the columns of the text with "
            "--columns."
        )
    values: list[str | None] = column.to_pylist()
    return values


def load(model: str) -> StaticModel:
    """Load a model by the name of the package, or by the path of its vectors.

    Raises:
      ValueError: If the model or what it needs is not there, or its files do not fit.
    """
    vectors_path, tokenizer_path = _packaged() if model == DEFAULT else _beside(Path(model))
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError(
            "Text needs tokenizers, which is not installed; pip install 'rknn-jax[embed]'."
        ) from error
    digest = hashlib.sha256()
    for path in (vectors_path, tokenizer_path):
        if not path.is_file():
            raise ValueError(
                f"There is no file {path} of --model {model}; name the .safetensors or .npy file "
                "of the vectors, with tokenizer.json beside it."
            )
        digest.update(path.read_bytes())
    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_path))
        vectors = _vectors(vectors_path)
    except Exception as error:  # both libraries raise errors of many types
        raise ValueError(f"Cannot read --model {model}: {error}; restore its files.") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokens = tokenizer.get_vocab_size(with_added_tokens=True)
    if vectors.ndim != 2 or len(vectors) < tokens:
        raise ValueError(
            f"Expected vectors [num_tokens, f] for {tokens} tokens in {vectors_path}, got shape "
            f"{vectors.shape}; use the tokenizer that the vectors were made with."
        )
    name = model if model == DEFAULT else vectors_path.stem
    return StaticModel(name, model, digest.hexdigest(), tokenizer, vectors)


def _packaged() -> tuple[Path, Path]:
    found = importlib.util.find_spec(DEFAULT)
    if found is None or found.origin is None:
        raise ValueError(
            f"Expected --model, since {DEFAULT}, whose vectors are the default, is not installed; "
            "pip install 'rknn-jax[embed]', or name a file of vectors."
        )
    folder = Path(found.origin).parent
    vectors, tokenizer = (folder / name for name in PACKAGED)
    return vectors, tokenizer


def _beside(path: Path) -> tuple[Path, Path]:
    if path.suffix not in (".safetensors", ".npy"):
        raise ValueError(
            f"Expected --model {DEFAULT}, or a .safetensors or .npy file, for --text, got {path}."
        )
    return path, path.with_name("tokenizer.json")


def _vectors(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.asarray(np.load(path, allow_pickle=False), np.float32)
    from safetensors.numpy import load_file

    tensors = load_file(path)
    if len(tensors) != 1:
        raise ValueError(f"expected one tensor, found {', '.join(sorted(tensors))}")
    return np.asarray(next(iter(tensors.values())), np.float32)
