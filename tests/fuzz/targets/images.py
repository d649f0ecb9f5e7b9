"""`data.image_folder.read`: a user's folder of pictures."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from rknn_jax.data import image_folder

FORMATS = (
    ("jpg", "JPEG", "RGB"),
    ("png", "PNG", "P"),
    ("webp", "WEBP", "RGB"),
    ("png", "PNG", "L"),
    ("gif", "GIF", "P"),
)


def seeds():
    pixels = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3)
    made = []
    for suffix, form, mode in FORMATS:
        buffer = io.BytesIO()
        Image.fromarray(pixels).convert(mode).save(buffer, form)
        name = f"0.{suffix}"
        if f".{suffix}" in image_folder.SUFFIXES:
            made.append({f"train/a/{name}": buffer.getvalue(), f"test/a/{name}": buffer.getvalue()})
    return made


def readers(folder: Path):
    return [lambda: image_folder.read(folder), lambda: image_folder.read(folder, 4)]
