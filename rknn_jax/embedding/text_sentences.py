"""Models of the package `sentence_transformers`, if it is installed.

A model is a folder, or a name such as `sentence-transformers/all-MiniLM-L6-v2`, which is looked up
in the user's own cache of the Hugging Face hub. Nothing is downloaded.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rknn_jax._internal import onnx
from rknn_jax._internal.option_names import option
from rknn_jax._internal.panics import called
from rknn_jax.embedding import Embedded, rows, tokens
from rknn_jax.embedding.images import versions
from rknn_jax.embedding.text_onnx import PROBE

PREFIX = "sentence-transformers/"
"""Beginning of the names of models on the hub."""


@dataclass(frozen=True)
class SentenceModel:
    """Model of the package `sentence_transformers`.

    Attributes:
      path: Folder or name of the model.
      digest: SHA-256 of the weights, the tokenizer and the modules' settings, in hexadecimal.
      network: The `SentenceTransformer`.
    """

    path: str
    digest: str
    network: Any

    @property
    def width(self) -> int:
        """Number of features f."""
        return int(self.network.get_sentence_embedding_dimension())

    @property
    def card(self) -> dict[str, Any]:
        """Name, digest and versions."""
        return {
            "kind": "text",
            "name": Path(self.path).name,
            "path": self.path,
            "sha256": self.digest,
            "width": self.width,
            "input": {"max_length": self.network.max_seq_length},
            "versions": versions("sentence-transformers", "torch"),
        }

    def __call__(self, records: Any) -> Embedded:
        """Return the features of texts in one or more columns of an Arrow table.

        A row depends on its own text alone, bit for bit.
        """
        texts = rows.texts(records)
        used = [row for row, text in enumerate(texts) if text.strip()]
        features = np.full((len(texts), self.width), np.nan, np.float32)
        given = [texts[row] for row in used]
        if given:
            features[used] = self._features(given)
        reasons = {row: "no text" for row, text in enumerate(texts) if not text.strip()}
        return Embedded(features, reasons, self._num_truncated(given))

    def _features(self, texts: list[str]) -> np.ndarray:
        # One text a batch: others would change its padding, and the order of sums.
        try:
            made = called(self.network.encode, texts, batch_size=1, show_progress_bar=False)
            if np.shape(made) != (len(texts), self.width):
                raise ValueError(f"features {np.shape(made)} of {len(texts)} texts")
        except Exception as error:  # the package raises errors of many types
            if len(texts) > 1:
                return np.concatenate([self._features([text]) for text in texts])
            self._check_memory(error)
            made = np.full((1, self.width), np.nan)  # an error would tell which text it is
        return np.asarray(made, np.float32)

    def _check_memory(self, error: Exception) -> None:
        """Raise MemoryError if a public text of the most tokens fails too, so not for its sake."""
        text = " ".join([PROBE] * (self.network.max_seq_length or 1))
        try:
            called(self.network.encode, [text], batch_size=1, show_progress_bar=False)
        except Exception as short:  # the package raises errors of many types
            raise MemoryError(f"a model failed on a public text too: {short}") from error

    def _num_truncated(self, texts: list[str]) -> int:
        longest = self.network.max_seq_length
        if longest is None or not texts:
            return 0

        def ids_of(some: list[str]) -> Any:
            return self.network.tokenizer(some, truncation=False, verbose=False)["input_ids"]

        encoded = tokens.each(ids_of, texts)
        return sum(ids is not None and len(ids) > longest for ids in encoded)


def load(name: str) -> SentenceModel:
    """Load a model from its folder or from the user's cache.

    Raises:
      ValueError: If the package is not installed, the model cannot be loaded, or its features of a
        text do not repeat.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ValueError(
            f"{option('model')} {name} needs sentence_transformers, which is not installed; pip "
            "install sentence-transformers, or name an .onnx file or vectors."
        ) from error
    try:
        network = SentenceTransformer(name, local_files_only=True)
    except Exception as error:  # the package raises errors of many types
        raise ValueError(
            f"Cannot load {option('model')} {name}: {error}; name the folder of a model, or "
            f"download it to your cache first, by hf download {name}."
        ) from error
    network.eval()
    model = SentenceModel(name, _digest(network), network)
    onnx.check_repeats(lambda text: model._features([text]), PROBE, name)
    return model


def _digest(network: Any) -> str:
    """Return the SHA-256 of everything that decides the features."""
    found = hashlib.sha256(repr(network).encode())
    found.update(network.tokenizer.backend_tokenizer.to_str().encode())
    for name, tensor in sorted(network.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().double().numpy().tobytes())
    return found.hexdigest()
