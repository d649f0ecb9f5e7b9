"""Cards that lie beside embeddings and tell which model made them."""

import json
import re
from pathlib import Path
from typing import Any

from rknn_jax._internal.option_names import option

SAME = ("kind", "sha256", "width", "input", "output", "pooling", "normalize", "columns")
"""Entries of a model that decide its features."""


def card_path(out: Path) -> Path:
    """Return the path of the card, `public.card.json` for `public.parquet`."""
    return out.with_suffix(".card.json")


def read(path: Path, where: str) -> dict[str, Any]:
    """Return the model that a card tells.

    Args:
      path: Card.
      where: Argument and name of the card, for the error.

    Raises:
      ValueError: If the file is no card, or is damaged.
    """
    try:
        model: dict[str, Any] = json.loads(path.read_bytes())["model"]
        kind, name, digest, width = (model[one] for one in ("kind", "name", "sha256", "width"))
        if not (kind.isprintable() and name.isprintable() and isinstance(width, int)):
            raise ValueError("its kind, name or width is none")
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError("its sha256 is none")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"Expected a card of rknn embed in {where}, got none that can be read "
            f"({' '.join(str(error).split())}); restore the card, or embed the records anew."
        ) from error
    return model


def differences(model: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the entries in which two models differ, so that their features do."""
    one, two = (json.loads(json.dumps(given)) for given in (model, other))
    return [name for name in SAME if one.get(name) != two.get(name)]


def given(path: Path | None, kind: str) -> dict[str, Any]:
    """Return the model of a card that `--card` names, or nothing.

    Args:
      path: Card, or None.
      kind: Kind of the records: images, text or table.

    Raises:
      ValueError: If the file is no card of this kind.
    """
    if path is None:
        return {}
    model = read(path, f"{option('card')} {path}")
    if model["kind"] != kind:
        raise ValueError(
            f"Expected a card of {kind} in {option('card')} {path}, got one of {model['kind']}; "
            "embed both sides in the same way."
        )
    return model


def check_same(known: dict[str, Any], card: dict[str, Any], name: str) -> None:
    """Raise ValueError if a model is not the one of the card, if there is any.

    Args:
      known: Model of the card, or nothing.
      card: Model to use.
      name: Its name, for the error.
    """
    other = differences(known, card) if known else []
    if other:
        raise ValueError(
            f"Expected the model of {option('card')}, got another one in {name}, which differs in "
            f"{', '.join(other)}; embed both sides with the same model."
        )
