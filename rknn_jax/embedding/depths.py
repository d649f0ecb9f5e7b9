"""Bits of gray images, and the white that a card of images tells."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rknn_jax._internal.one_record import side_by_side
from rknn_jax._internal.option_names import option
from rknn_jax.embedding.images import IMAGES_AT_ONCE, ImageFolder, ImageTable, as_file
from rknn_jax.images import files as image_files

FAR = 8
"""Times that white is above the usual largest pixel from which on images are nearly black."""


class Depths(NamedTuple):
    """Gray images by their bits.

    Attributes:
      largest: Largest pixel of each gray image of 16 bits, int `[g]`.
      others: Number of images of 8 bits.
    """

    largest: np.ndarray
    others: int

    @property
    def most(self) -> int:
        """Largest pixel of all gray images of 16 bits, or 0 if there are none."""
        return int(self.largest.max(initial=0))

    def doubts(self, white: int) -> list[str]:
        """Return what may be wrong with the images under a white, in words."""
        found = []
        if len(self.largest) and self.others:
            found.append(
                f"{len(self.largest):,} images have 16 bits and {self.others:,} have 8, and the "
                "two are not scaled alike; save all images with the same bits"
            )
        usual = float(np.median(self.largest)) if len(self.largest) else white
        if usual < white / FAR:
            found.append(
                f"half of the gray images of 16 bits have no pixel above {usual:,.0f} of the white "
                f"{white:,}, and are nearly black; save both sides with the same bits, and without "
                "dead pixels"
            )
        return found


def depths(source: ImageFolder | ImageTable, *, refuse: bool) -> Depths:
    """Return the bits of the images, of which those of 16 are read.

    Args:
      source: Images.
      refuse: Whether dark colors are an error, as for public images.

    Raises:
      ValueError: If `refuse`, and there are color images of 16 bits that are all nearly black.
        Their lower bits cannot be read.
    """
    found: list[image_files.Largest] = []
    for block in source.blocks(IMAGES_AT_ONCE):
        found += filter(None, side_by_side(_largest, block.records, lambda image, error: None))
    grays = [one.gray for one in found if one.gray is not None]
    colors = [one.color for one in found if one.color is not None]
    color = max(colors, default=image_files.WHITE)
    if refuse and color <= image_files.DARK:
        raise ValueError(
            f"Expected colors of 16 bits up to {image_files.WHITE:,} in {source.where}, got at "
            f"most {color:,}, which look black; save the images of both sides with 8 bits, "
            "scaled by one number."
        )
    return Depths(np.array(grays, np.int64), len(found) - len(grays) - len(colors))


def _largest(image: Path | bytes | str | None) -> image_files.Largest | None:
    """Return the largest pixels of an image, or None if there is none, as is told later."""
    if not isinstance(image, Path | bytes):
        return None
    return image_files.largest(as_file(image))


def card_white(model: dict[str, Any]) -> int:
    """Return the white of gray images of 16 bits that a card of images tells.

    Raises:
      ValueError: If the card tells none that can be used.
    """
    given = model.get("input")
    found = given.get("white", image_files.WHITE) if isinstance(given, dict) else image_files.WHITE
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= image_files.WHITE:
        raise ValueError(
            f"Expected a white of 1 to {image_files.WHITE} in the input of {option('card')}, got "
            f"{found!r}; restore the card, or embed the public images anew."
        )
    return found
