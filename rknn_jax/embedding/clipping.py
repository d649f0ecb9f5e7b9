"""Images whose pixels were cut to black or white, in words for whoever embeds them.

Of private images, the sentences are for their curator alone.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rknn_jax._internal.one_record import side_by_side
from rknn_jax.embedding.images import IMAGES_AT_ONCE, as_file
from rknn_jax.images import files as image_files

if TYPE_CHECKING:
    from rknn_jax.embedding.images import ImageFolder, ImageTable

MOST_IMAGES = 200
"""Most images that are looked at, evenly chosen."""

EXTREME = 0.98
"""Share of black and white in half of the images from which on it is told. MNIST has 0.85."""

CUT = 0.01
"""Share of pixels above the white from which on it is told."""


def doubts(source: "ImageFolder | ImageTable", white: int) -> Iterator[str]:
    """Yield that many pixels are black or white, or above the white.

    Args:
      source: Images.
      white: White of gray images of 16 bits.
    """
    found = np.array([*_extremes(source, white)]).reshape(-1, 2)
    if not len(found):
        return
    cut = float(found[:, 0].mean())
    usual = float(np.median(found[:, 1]))
    if cut > CUT:
        yield (
            f"{cut:.0%} of the pixels are above the white {white:,}, and are cut to it; save both "
            "sides with the same bits, and embed first the images with the largest pixels"
        )
    elif usual >= EXTREME:
        yield (
            f"at least {int(100 * usual)}% of the pixels of half of the images are black or white, "
            "as in masks and drawings; if these are photographs or scans, their pixels were cut or "
            "not scaled, so save them from 0 to 255"
        )


def _extremes(source: "ImageFolder | ImageTable", white: int) -> Iterator[image_files.Extremes]:
    """Yield the extremes of some images, without those that cannot be read."""
    step = -(-len(source) // MOST_IMAGES)
    place = 0
    extremes = partial(_extremes_of, white=white)
    for block in source.blocks(IMAGES_AT_ONCE):
        some = block.records[-place % step :: step] if step else []
        place += len(block.records)
        yield from filter(None, side_by_side(extremes, some, lambda image, error: None))


def _extremes_of(image: Path | bytes | str | None, white: int) -> image_files.Extremes | None:
    """Return the extremes of an image, or None if there is none, as is told later."""
    if not isinstance(image, Path | bytes):
        return None
    return image_files.extremes(as_file(image), white)
