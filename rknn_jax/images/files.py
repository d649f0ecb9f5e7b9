"""Image files as pixels of 8 bits, whatever mode they have."""

from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from PIL import Image, ImageOps

WHITE = 65535
"""White of 16 bits."""

DARK = 4095
"""Largest pixel of 16 bits up to which images look black."""


FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that are read. Pillow gives others to programs, as PostScript to Ghostscript."""


class Largest(NamedTuple):
    """Largest pixels of an image of 16 bits; both are None for one of 8.

    Attributes:
      gray: Largest pixel of a gray image. Defaults to None.
      color: Bound on the pixels of a color image, of which 8 bits are read. Defaults to None.
    """

    gray: int | None = None
    color: int | None = None


class Extremes(NamedTuple):
    """Shares of an image's pixels.

    Attributes:
      cut: Share above the white of 16 bits.
      ends: Share of the values 0, 1, 254 and 255 once the image has 8 bits.
    """

    cut: float
    ends: float


def read(path: Path | IO[bytes], *, upright: bool = False, white: int = WHITE) -> Image.Image:
    """Return an image file in gray (`L`) or color (`RGB`).

    Gray pixels of 16 bits are scaled to 8, so that black and white stay as they are. An image has
    the same pixels whatever other images there are. Of colors of 16 bits, the upper 8 are read.
    A transparent image lies on white.

    Args:
      path: Path of the file, or the open file.
      upright: Whether to turn the image as its EXIF says. Defaults to False.
      white: White of gray images of 16 bits, 1 to 65535; larger pixels are white too. Defaults to
        65535.

    Raises:
      ValueError: If the pixels have no scale, as floats and 32 bits have none, or if the file has
        several pages.
      OSError: If the file cannot be read.
    """
    with _open(path) as file:
        _refuse_pages(file)
        image = ImageOps.exif_transpose(file) if upright else file
        return _eight_bits(image, str(file.format), white)


def num_pixels(path: Path | IO[bytes]) -> int:
    """Return the number of pixels that the head of an image file tells; raises as `largest`."""
    with _open(path) as file:
        return file.width * file.height


def _open(path: Path | IO[bytes]) -> Image.Image:
    if isinstance(path, Path) and path.exists() and not path.is_file():
        raise OSError("Expected a file, got a pipe or a device")  # it would never end
    return Image.open(path, formats=FORMATS)


def _refuse_pages(file: Image.Image) -> None:
    """Raise ValueError for an image of several pages, of which one is not the whole.

    Photos of some cameras are `MPO` files, whose further pictures are views of the first one.
    """
    pages = getattr(file, "n_frames", 1)
    if pages > 1 and file.format != "MPO":
        raise ValueError(
            f"Expected an image of one page, got {pages} pages; save each page as an image"
        )


def largest(path: Path | IO[bytes]) -> Largest:
    """Return the largest pixels of an image file of 16 bits. One of 8 is not read.

    Raises:
      OSError: If the file cannot be read.
    """
    with _open(path) as file:
        if _is_deep(file.mode, str(file.format)):
            return Largest(gray=int(np.asarray(file).max(initial=0)))
        if any(";16" in str(tile) for tile in getattr(file, "tile", ())):
            seen = _on_white(file) if file.has_transparency_data else file.convert("RGB")
            upper = np.asarray(seen).max(initial=0)
            return Largest(color=256 * int(upper) + 255)
    return Largest()


def extremes(path: Path | IO[bytes], white: int) -> Extremes:
    """Return how many pixels of an image file are black, white, or cut to white.

    Args:
      path: Path of the file, or the open file.
      white: White of gray images of 16 bits.

    Raises:
      OSError: If the file cannot be read.
      ValueError: As for `read`.
    """
    with _open(path) as file:
        _refuse_pages(file)
        is_deep = _is_deep(file.mode, str(file.format))
        cut = float(np.mean(np.asarray(file) > white)) if is_deep else 0.0
        pixels = np.asarray(_eight_bits(file, str(file.format), white))
    return Extremes(cut, float(np.mean((pixels <= 1) | (pixels >= 254))))


def white_of(pixel: int) -> int:
    """Return the white of images whose largest pixel is known: the next 2^b - 1, or 65535 for 0.

    >>> [white_of(pixel) for pixel in (0, 1, 255, 256, 4000, 40000)]
    [65535, 1, 255, 511, 4095, 65535]
    """
    return 2 ** pixel.bit_length() - 1 if pixel else WHITE


def _is_deep(mode: str, kind: str) -> bool:
    return mode.startswith("I;16") or (mode == "I" and kind == "PNG")  # PNG has no more than 16


def _eight_bits(image: Image.Image, kind: str, white: int) -> Image.Image:
    mode = image.mode
    if _is_deep(mode, kind):
        pixels = np.minimum(np.asarray(image).astype(np.uint32), white)
        if isinstance(clear := image.info.get("transparency"), int):
            pixels[np.asarray(image) == clear] = white
        return Image.fromarray(((pixels * 255 + white // 2) // white).astype(np.uint8))
    if mode in ("I", "F"):
        raise ValueError(
            f"Expected pixels of 8 or 16 bits, got mode {mode}, whose black and white are not "
            "known; save the image with 16 bits"
        )
    if image.has_transparency_data:
        return _on_white(image)
    if mode in ("L", "RGB"):
        return image.copy()  # of a file that is closed later
    return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    """Return a transparent image on a white background. Opaque pixels keep their bits."""
    clear = image.convert("LA") if image.mode == "La" else image
    clear = clear.convert("RGBA")
    white = Image.new("RGB", clear.size, "white")
    white.paste(clear.convert("RGB"), mask=clear.getchannel("A"))
    return white
