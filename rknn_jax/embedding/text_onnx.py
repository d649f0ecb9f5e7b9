"""Transformers of text in ONNX files, run by onnxruntime.

Beside `encoder.onnx` lie `tokenizer.json` and a card, `encoder.json`, which says how tokens go in,
which output comes out and how the tokens' vectors become the text's:

    {"max_length": 128, "inputs": ["input_ids", "attention_mask"],
     "output": "last_hidden_state", "pooling": "mean", "normalize": true}
"""

import functools
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rknn_jax._internal import onnx
from rknn_jax.embedding import Embedded, rows, tokens
from rknn_jax.embedding.images import versions

PROBE = "a text of some words"
"""Text by which a transformer is tried."""

INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
"""Types of a transformer's inputs."""


@dataclass(frozen=True)
class Card:
    """Input and output of a transformer.

    Attributes:
      max_length: Most tokens of a text, the special ones included; later ones are cut off.
      inputs: Names of the inputs of the tokens' numbers, of the mask of tokens, and of the tokens'
        types if there is a third. Each is integer `[n, t]`.
      output: Name of the output that holds the tokens' vectors `[n, t, f]`.
      pooling: `mean` for the mean of the tokens' vectors, `cls` for the vector of the first token.
      normalize: Whether the text's vector is divided by its length.
    """

    max_length: int
    inputs: tuple[str, ...]
    output: str
    pooling: Literal["mean", "cls"]
    normalize: bool

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ValueError(f"Expected max_length >= 1, got {self.max_length}.")
        if len(self.inputs) not in (2, 3):
            raise ValueError(f"Expected two or three inputs, got {list(self.inputs)}.")
        if self.pooling not in ("mean", "cls"):
            raise ValueError(f"Expected pooling mean or cls, got {self.pooling!r}.")
        if not isinstance(self.normalize, bool):
            raise ValueError(f"Expected normalize true or false, got {self.normalize!r}.")


@dataclass(frozen=True)
class OnnxModel:
    """Transformer in an ONNX file.

    Attributes:
      path: Path of the ONNX file.
      digest: SHA-256 of the file, its tokenizer and its card, in hexadecimal.
      settings: Card of the transformer.
      tokenizer: Tokenizer of the package `tokenizers`, which truncates.
      session: Session of onnxruntime.
    """

    path: Path
    digest: str
    settings: Card
    tokenizer: Any
    session: Any

    @functools.cached_property
    def width(self) -> int:
        """Number of features f, as the transformer makes them of a text."""
        return len(self._features(self.tokenizer.encode(PROBE)))

    @property
    def card(self) -> dict[str, Any]:
        """Name, digest, settings and versions."""
        settings = asdict(self.settings)
        return {
            "kind": "text",
            "name": self.path.stem,
            "path": str(self.path),
            "sha256": self.digest,
            "width": self.width,
            "input": {name: settings.pop(name) for name in ("inputs", "max_length")},
            **settings,
            "versions": versions("onnxruntime", "tokenizers"),
        }

    def __call__(self, records: Any) -> Embedded:
        """Return the features of texts in one or more columns of an Arrow table.

        A row depends on its own text alone, bit for bit.
        """
        encoded = tokens.each(self.tokenizer.encode_batch, rows.texts(records))
        features = np.full((len(encoded), self.width), np.nan, np.float32)
        reasons = {}
        for row, one in enumerate(encoded):
            if one is None:
                reasons[row] = tokens.UNREAD
            elif all(one.special_tokens_mask):
                reasons[row] = "no text"
        used = [row for row in range(len(encoded)) if row not in reasons]
        if used:
            given = [encoded[row] for row in used]
            features[used] = onnx.each(self._features, given, lambda: self.width, self._longest)
        truncated = sum(one is not None and bool(one.overflowing) for one in encoded)
        return Embedded(features, reasons, truncated)

    def _longest(self) -> Any:
        """Return a tokenized text of the most tokens."""
        most, text = self.settings.max_length, PROBE
        while len(self.tokenizer.encode(text).ids) < most and len(text) < 100 * most:
            text = f"{text} {text}"
        return self.tokenizer.encode(text)

    def _features(self, encoded: Any) -> np.ndarray:
        """Return features of one tokenized text, float32 `[f]`, without padding."""
        names = self.settings.inputs
        length = len(encoded.ids)
        kinds = {one.name: INTEGERS[one.type] for one in self.session.get_inputs()}
        given = (encoded.ids, encoded.attention_mask, encoded.type_ids)
        values = {  # types are not always an input
            name: np.array([numbers], kinds[name])
            for name, numbers in zip(names, given, strict=False)
        }
        vectors = np.asarray(self.session.run([self.settings.output], values)[0])
        if vectors.ndim != 3 or vectors.shape[:2] != (1, length):
            raise ValueError(
                f"Expected vectors [n, t, f] of tokens from output {self.settings.output!r}, got "
                f"shape {vectors.shape} for a text of {length} tokens; name another output in the "
                "transformer's card."
            )
        pooled: np.ndarray = _pooled(vectors.astype(np.float32), values[names[1]], self.settings)[0]
        return pooled


def _pooled(vectors: np.ndarray, mask: np.ndarray, settings: Card) -> np.ndarray:
    """Return vectors of texts, float32 `[b, f]`.

    Args:
      vectors: Vectors of tokens, float32 `[b, t, f]`.
      mask: Integer `[b, t]`, 1 for a token and 0 for padding.
      settings: Card of the transformer.
    """
    if settings.pooling == "cls":
        pooled = vectors[:, 0]
    else:
        kept = np.where(mask[:, :, None] > 0, vectors, 0)  # padding may hold any number, NaN too
        pooled = kept.sum(axis=1) / mask.sum(axis=1, keepdims=True).astype(np.float32)
    if not settings.normalize:
        return pooled
    lengths = np.linalg.norm(pooled, axis=1, keepdims=True)
    unit: np.ndarray = pooled / np.maximum(lengths, np.finfo(np.float32).tiny)
    return unit


def load(path: Path) -> OnnxModel:
    """Load a transformer, whose tokenizer and card lie beside its file.

    A text is embedded twice, so that a transformer that draws at random is refused. A text of the
    most tokens is tried too.

    Raises:
      ValueError: If the file, its tokenizer, its card or its output cannot be used.
    """
    settings = _card(path.with_suffix(".json"))
    files = (path, path.with_name(tokens.NAME))
    told = json.dumps(asdict(settings))
    digest = hashlib.sha256((tokens.digest(files, str(path)) + told).encode()).hexdigest()
    session = onnx.session(path, onnx.digest(path))
    inputs = {one.name: one for one in session.get_inputs()}
    outputs = [one.name for one in session.get_outputs()]
    fits = all(
        one.type in INTEGERS and not any(isinstance(size, int) for size in one.shape)
        for one in inputs.values()
    )
    if not fits or set(inputs) != set(settings.inputs) or settings.output not in outputs:
        kinds = [(one.name, one.type, one.shape) for one in inputs.values()]
        raise ValueError(
            f"Expected integer inputs {list(settings.inputs)} of any size and an output "
            f"{settings.output!r} in {path}, got {kinds} and {outputs}; export it so, or name "
            "others in its card."
        )
    tokenizer = tokens.tokenizer(files[1])
    tokenizer.enable_truncation(settings.max_length)
    model = OnnxModel(path, digest, settings, tokenizer=tokenizer, session=session)
    onnx.check_repeats(model._features, tokenizer.encode(PROBE), str(path))
    _check_longest(model)
    return model


def _check_longest(model: OnnxModel) -> None:
    """Refuse a card that allows more tokens than the transformer has positions."""
    most, longest = model.settings.max_length, model._longest()
    try:
        model._features(longest)
    except Exception as error:  # onnxruntime raises errors of many types
        raise ValueError(
            f"Expected a transformer of at least max_length={most} tokens in {model.path}, got one "
            f"that fails on {len(longest.ids)}; name fewer in its card."
        ) from error


def _card(path: Path) -> Card:
    """Read a card.

    Raises:
      ValueError: If it is absent, or does not say all that is needed.
    """
    try:
        given = json.loads(path.read_bytes())
        inputs = tuple(given["inputs"])
        names = ("output", "pooling", "normalize")
        return Card(int(given["max_length"]), inputs, *(given[name] for name in names))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"Expected the transformer's card in {path}, with max_length, inputs, output, pooling "
            f"and normalize, got none that can be used ({error}); write one as in "
            "docs/embedding.md."
        ) from error
