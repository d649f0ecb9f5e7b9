"""Representations: one file per encoder, its settings `Config` and `fit(key, images, config)`.

Every encoder is record-local. A file in this folder is registered by its name. The settings are a
value that learns the encoder, `Config(...).fit(key, public_images)`.
"""

import importlib
from dataclasses import Field
from pathlib import Path
from typing import Any, ClassVar, Self

import jax

from rknn_jax._internal.registry import registered
from rknn_jax.types import Array, Encoder


class Representation:
    """Public settings of a representation, a frozen dataclass.

    Attributes:
      asks: Whether the encoder has clusters or prototypes of its own, which are the queries of the
        first round. Defaults to False.
      slow: Whether `fit` trains a network for hours. Defaults to False.
      given: Names of the settings that `for_task` replaces. Defaults to none.
      backbone: Name of the network that is trained, for a student that starts from it; or None.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    asks: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    given: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:
        """Name of the representation, which is the name of its file."""
        return type(self).__module__.rsplit(".", 1)[-1]

    @property
    def backbone(self) -> str | None:
        """Name of the trained network, or None if there is none."""
        return None

    def check(self) -> None:
        """Check that the settings in `given` are left to `for_task`.

        Raises:
          ValueError: If one of them is not the default.
        """
        for name in sorted(self.given):
            found = getattr(self, name)
            if found != getattr(type(self), name):
                raise ValueError(
                    f"Expected {name} of representation={self.name} left as it is, got {found}; "
                    "it is the number of queries or of classes."
                )

    def for_task(self, num_classes: int, num_queries: int | None) -> Self:
        """Return the settings for a number of classes and of queries. Defaults to no change.

        Both numbers are public.
        """
        del num_classes, num_queries
        return self

    def fit(self, key: jax.Array, images: Array, *, folder: Path | None = None) -> Encoder:
        """Learn the encoder from public images, by the function `fit` of the settings' file.

        Args:
          key: Random key, consumed by the call.
          images: Public images, uint8 `[m, h, w, c]`.
          folder: Folder from which a long training resumes. Not used by default.
        """
        del folder
        encode: Encoder = importlib.import_module(type(self).__module__).fit(key, images, self)
        return encode


def names() -> list[str]:
    """Return the names of all representations, which are the files of this folder."""
    return registered(__path__)


def named(name: str) -> type[Representation]:
    """Return the settings' class of a name.

    Raises:
      ValueError: If the name is not in `names()`.
    """
    if name not in names():
        raise ValueError(
            f"Expected representation to be one of {', '.join(names())}, got "
            f"representation={name!r}."
        )
    found: type[Representation] = importlib.import_module(f"{__name__}.{name}").Config
    return found
