"""Image files as pixels of 8 bits, whatever mode they have."""

from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps


def read(path: Path | IO[bytes], *, upright: bool = False) -> Image.Image:
    """Return an image file in gray (`L`) or color (`RGB`).

    Pixels of 16 bits are scaled to 8 by their depth, so that black and white stay as they are. An
    image has the same pixels whatever other images there are.

    Args:
      path: Path of the file, or the open file.
      upright: Whether to turn the image as its EXIF says. Defaults to False.

    Raises:
      ValueError: If the pixels have no scale, as floats and 32 bits have none.
      OSError: If the file cannot be read.
    """
    with Image.open(path) as file:
        image = ImageOps.exif_transpose(file) if upright else file
        return _eight_bits(image, str(file.format))


def _eight_bits(image: Image.Image, kind: str) -> Image.Image:
    mode = image.mode
    if mode in ("L", "RGB"):
        return image.copy()  # of a file that is closed later
    if mode.startswith("I;16") or (mode == "I" and kind == "PNG"):  # PNG has no more than 16
        pixels = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((pixels * 255 + 32767) // 65535).astype(np.uint8))
    if mode in ("I", "F"):
        raise ValueError(
            f"Expected pixels of 8 or 16 bits, got mode {mode}, whose black and white are not "
            "known; save the image with 16 bits"
        )
    return image.convert("RGB")
