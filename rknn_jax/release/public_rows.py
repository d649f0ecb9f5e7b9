"""Public rows of a release, with what their files say of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.embedding.file_rows import FILE
from rknn_jax.formats import EMBEDDINGS, Columns, Layout
from rknn_jax.privacy.fingerprints import Digest
from rknn_jax.records import public_values
from rknn_jax.records.features import MOST_NAMED
from rknn_jax.release import encoding, tables
from rknn_jax.release.encoding import Encoding

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

ROW = "row"
"""Column of row numbers that `rknn embed` writes."""


@dataclass(frozen=True)
class Public:
    """Public rows.

    Attributes:
      features: float32 `[m, f]`.
      names: Names of the f columns, or none if they have no names.
      encode: Encoder that made the features. Defaults to None, for embeddings.
      digest: Fingerprint of the rows as read. Defaults to "", that of `features`.
      others: Columns that have no role, `[m]` by their names. Defaults to none.
      doubts: Sentences on columns that may be no features. Defaults to none.
    """

    features: np.ndarray
    names: tuple[str, ...]
    encode: Encoding | None = None
    digest: str = ""
    others: Mapping[str, np.ndarray] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


def read(settings: "Settings", asked: Columns, num_classes: int) -> Public:
    """Read the public rows, and encode them if they are raw.

    Args:
      settings: Settings of the release.
      asked: Columns to read.
      num_classes: Number of classes, or what is assumed of it.
    """
    others = tables.read_others(settings.public, option("public"), asked)
    if settings.representation is None:
        rows, names = tables.read_named_embeddings(settings.public, option("public"), asked)
        told = () if asked.embedding else public_values.doubted(rows.T, names)
        doubts = [f"public columns {sentence}" for sentence in told]
        beside = "" if names else lists_alone(others, asked.embedding)
        return Public(rows, names, others=others, doubts=(*doubts, *filter(None, [beside])))
    digest = Digest()
    encode, rows = encoding.learned(
        settings.representation,
        tables.read_raw(settings.public, option("public"), asked, digest),
        num_classes=num_classes,
        num_queries=settings.queries,
        seed=settings.seed,
    )
    return Public(rows, (), encode, digest=digest.text(), others=others)


def unnamed_sides(public: Sequence[str], private: Sequence[Layout], width: int) -> str:
    """Return that columns of one side have names and those of the other have none, or "".

    Such columns belong together by their order, which nothing confirms.

    Args:
      public: Names of the public columns of features, or none if they have no names.
      private: Layouts of the private files, whose names are those of their schemas.
      width: Number of dimensions f.
    """
    named = [layout.features for layout in private if len(layout.features) > 1]
    bare = any(layout.declares and not len(layout.features) > 1 for layout in private)
    if width < 2 or not private or (bool(public) and not bare) or not (public or named):
        return ""
    return by_order(public or named[0], public_side=bool(public))


def by_order(names: Sequence[str], *, public_side: bool) -> str:
    """Return that columns of one side alone have names, so that order decides.

    Args:
      names: Names of the columns that have some.
      public_side: Whether these are the public ones.
    """
    side, other = ("public", "private") if public_side else ("private", "public")
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    return (
        f"columns of the {side} side have names and those of the {other} side have none, so they "
        f"belong together by their order, {', '.join(names[:MOST_NAMED])}{more}; if it may be "
        "another, save both sides with names"
    )


def lists_alone(others: Mapping[str, np.ndarray], embedding: Sequence[str] | None) -> str:
    """Return that lists are the features, and columns of numbers beside them none, or "".

    Args:
      others: Columns of the public rows that have no role.
      embedding: Names of the features that a user gave, or none.
    """
    # Beside its row or file, an embedding by `rknn embed` has what `--keep` brought along.
    if embedding or {ROW, FILE} & {*others}:
        return ""
    aside = (tables.SOURCE_FILE, tables.SOURCE_ROW)
    numbers = [
        name for name, one in others.items() if one.dtype.kind in "biuf" and name not in aside
    ]
    if not numbers:
        return ""
    more = f" and {len(numbers) - MOST_NAMED:,} more" if len(numbers) > MOST_NAMED else ""
    return (
        f"features are the lists in {EMBEDDINGS!r} alone, and the columns of numbers beside them, "
        f"{', '.join(numbers[:MOST_NAMED])}{more}, are none; to use these, join them into the "
        f"lists, or name them with {option('embedding')} in place of the lists"
    )
