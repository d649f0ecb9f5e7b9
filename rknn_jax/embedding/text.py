"""Models of text, by the names that `rknn embed --model` takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rknn_jax._internal.option_names import option
from rknn_jax.embedding import Embedded, Model, text_onnx, text_sentences, text_vectors

COLUMNS = ("text",)
"""Usual columns of the text."""


@dataclass(frozen=True)
class ColumnsModel:
    """Model of text, whose card keeps the columns that are one text.

    Attributes:
      model: Model of the text.
      columns: Names of the columns, in order.
    """

    model: Model
    columns: tuple[str, ...]

    @property
    def card(self) -> dict[str, Any]:
        """Card of the model, with the columns."""
        return {**self.model.card, "columns": list(self.columns)}

    @property
    def width(self) -> int:
        """Number of features f."""
        return self.model.width

    def __call__(self, records: Any) -> Embedded:
        """Return the features of texts, as the model makes them."""
        return self.model(records)


def columns_of(given: Sequence[str], card: dict[str, Any], where: str) -> tuple[str, ...]:
    """Return the columns of the text, in order.

    Args:
      given: Columns that the user names, or none.
      card: Model of the card, or nothing. One without columns decides none.
      where: Argument and name of the card, for the errors.

    Raises:
      ValueError: If the user names others than the card, or the card names none that can be used.
    """
    known = card.get("columns")
    if known is None:
        return tuple(given) or COLUMNS
    if not (isinstance(known, list) and known and all(isinstance(one, str) for one in known)):
        raise ValueError(
            f"Expected names of columns in {where}, got {known!r}; restore the card, or embed the "
            "public texts anew."
        )
    if given and list(given) != known:
        raise ValueError(
            f"Expected {option('columns')} {' '.join(known)}, as {where} has them, got "
            f"{option('columns')} {' '.join(given)}; leave {option('columns')} out, or embed the "
            "public texts with the same columns in the same order."
        )
    return tuple(known)


def load(name: str) -> Model:
    """Load a model by its file, its folder or its name.

    Raises:
      ValueError: If the name is none of a model, or the model or what it needs cannot be used.
    """
    path = Path(name)
    if path.suffix == ".onnx":
        return text_onnx.load(path)
    if name == text_vectors.DEFAULT or path.suffix in text_vectors.SUFFIXES:
        return text_vectors.load(name)
    if name.startswith(text_sentences.PREFIX) or path.is_dir():
        return text_sentences.load(name)
    raise ValueError(
        f"Expected {option('model')} of {option('text')} to be {text_vectors.DEFAULT}, a "
        f".safetensors, .npy or .onnx file, {text_sentences.PREFIX}NAME or the folder of such a "
        f"model, got {option('model')} {name}; name one of these."
    )
