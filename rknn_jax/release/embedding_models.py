"""Model of a release's embeddings, by the cards that `rknn embed` leaves beside them.

Of the cards of private files the model alone is used, and only to compare it with the public one.
What a release tells comes from the public card.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rknn_jax._internal.option_names import option
from rknn_jax.embedding import cards


@dataclass(frozen=True)
class EmbeddingModel:
    """Model that made the public embeddings.

    Attributes:
      name: Name of the model.
      sha256: Digest of its files, in hexadecimal.
      kind: Kind of its records: `images`, `text` or `table`.
    """

    name: str
    sha256: str
    kind: str

    def __str__(self) -> str:
        return f"{self.name} for {self.kind}, SHA-256 {self.sha256}"

    @property
    def not_covered(self) -> str:
        """Sentence on the risk that the guarantee does not cover."""
        return (
            f"what the embedding model ({self}) remembers of the records that it was trained on, "
            "and its choice, if private data had a part in it"
        )


def find(public: Sequence[str], private: Sequence[str], width: int) -> EmbeddingModel | None:
    """Return the model of the public embeddings, which must be that of the private ones.

    Args:
      public: Public files.
      private: Private files.
      width: Number f of the public features.

    Returns:
      None if a public file has no card beside it.

    Raises:
      ValueError: If a card is damaged, or two cards tell different models.
    """
    found = [_model(name, option("public")) for name in public]
    told = {name: model for name, model in zip(public, found, strict=True) if model}
    told |= {name: model for name in private if (model := _model(name, option("private")))}
    for name, model in told.items():
        first, other = next(iter(told.items()))
        if differing := cards.differences(other, model):
            raise ValueError(
                f"Expected embeddings by one model, got {_words(other)} in {first} and "
                f"{_words(model)} in {name}, which differ in {', '.join(differing)}; embed both "
                "sides with the same model, by rknn embed --card."
            )
        if model["width"] != width:
            raise ValueError(
                f"Expected embeddings of {width} dimensions by the card beside {name}, got a card "
                f"of {model['width']}; restore the card that was written with the file, or remove "
                "it."
            )
    if not all(found):
        return None
    shown = told[public[0]]
    return EmbeddingModel(shown["name"], shown["sha256"], shown["kind"])


def feature_names(public: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the features of embedded tables, by their card, or none.

    Args:
      public: Public files.

    Raises:
      ValueError: If the card is damaged.
    """
    from rknn_jax.embedding import table

    model = _model(public[0], option("public"))
    return table.of_card(model).feature_names if model and model["kind"] == "table" else ()


def _model(name: str, argument: str) -> dict[str, Any] | None:
    """Return the model of the card beside a file on this machine, or None if there is none."""
    path = Path(name)
    if path.suffix != ".parquet" or "://" in name:
        return None
    card = cards.card_path(path)
    return cards.read(card, f"{card}, beside {argument} {name},") if os.path.lexists(card) else None


def _words(model: dict[str, Any]) -> str:
    return f"{model['name']} (SHA-256 {model['sha256'][:16]})"
