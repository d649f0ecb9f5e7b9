"""Text of NumPy, whose memory may hold numbers that are not characters."""

import numpy as np

LAST = 0x10FFFF
"""Largest code point of Unicode."""

REPLACEMENT = 0xFFFD
"""Code point that stands for one that is none, as where bytes are no UTF-8."""


def in_unicode(values: np.ndarray) -> np.ndarray:
    r"""Return an array of text without code points beyond Unicode, and any other as it is.

    Python has no text with such a number. Its error would tell of the one record that holds it.

    >>> in_unicode(np.array([97, 0x110000], np.uint32).view("<U1"))[1] == "\ufffd"
    True
    """
    if values.dtype.kind != "U" or not values.dtype.itemsize:
        return values
    points = np.ascontiguousarray(values).view(values.dtype.byteorder + "u4")
    beyond = points > LAST
    if not beyond.any():
        return values
    repaired = points.copy()
    repaired[beyond] = REPLACEMENT
    return repaired.view(values.dtype)
