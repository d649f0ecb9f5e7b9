"""Public rows of a release, with what their files say of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rknn_jax.formats import Columns
from rknn_jax.privacy.fingerprints import Digest
from rknn_jax.records import public_values
from rknn_jax.release import encoding, tables
from rknn_jax.release.encoding import Encoding

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings


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
    others = tables.read_others(settings.public, "--public", asked)
    if settings.representation is None:
        rows, names = tables.read_named_embeddings(settings.public, "--public", asked)
        doubts = () if asked.embedding else tuple(public_values.doubted(rows.T, names))
        return Public(rows, names, others=others, doubts=doubts)
    digest = Digest()
    encode, rows = encoding.learned(
        settings.representation,
        tables.read_raw(settings.public, "--public", asked, digest),
        num_classes=num_classes,
        num_queries=settings.queries,
        seed=settings.seed,
    )
    return Public(rows, (), encode, digest.text(), others)
