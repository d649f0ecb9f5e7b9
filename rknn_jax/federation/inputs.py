"""Input files of a server and its clients: images or embeddings, and class numbers."""

from pathlib import Path

import numpy as np

from rknn_jax.federation.request import Public
from rknn_jax.records.classes import FOREIGN
from rknn_jax.records.labels import plain
from rknn_jax.release import tables


def read_public(path: Path, test: Path | None) -> Public:
    """Read the server's own data.

    Raises:
      ValueError: If a file cannot be used.
    """
    inputs = read_inputs(path, "--public")
    if test is None:
        return Public(inputs)
    images = read_inputs(test, "--test")
    labels = plain(tables.read_labels(test, argument="--test"), f"--test {test}")
    if len(images) != len(labels) or images.shape[1:] != inputs.shape[1:]:
        raise ValueError(
            f"Expected images as in --public and one label for each in --test {test}, got "
            f"{images.shape} and {len(labels)} labels."
        )
    if labels.dtype.kind == "U" or np.any(labels == FOREIGN):
        raise ValueError(
            f"Expected class numbers as 'labels' in --test {test}, got others; number the classes "
            "0..C-1."
        )
    return Public(inputs, (images, labels.astype(np.int32)))


def read_inputs(
    path: Path, argument: str, *, private: bool = False, dimensions: int | None = None
) -> np.ndarray:
    """Read `images` uint8 `[n, h, w, c]`, or else `embeddings` float32 `[n, f]`, from a file.

    Images come from .npz files alone.

    Args:
      path: File to read.
      argument: Command-line argument that named the file, for the errors.
      private: Flag for private records, whose unusable rows become NaN instead of an error. One
        record must not decide whether a client takes part. Defaults to False.
      dimensions: Number of dimensions f of private embeddings; lists of another length become NaN.
        Defaults to that of the file, whose lists must have one length then.

    Raises:
      ValueError: If the file cannot be used.
    """
    images = tables.read_optional(path, argument, "images") if path.suffix == ".npz" else None
    if images is None:
        return (
            tables.read_records(path, argument, dimensions)
            if private
            else tables.read_embeddings(path, argument)
        )
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not len(images):
        raise ValueError(
            f"Expected images uint8 [n, h, w, c] in {argument} {path}, got {images.dtype} "
            f"{images.shape}."
        )
    return images if images.ndim == 4 else images[..., None]
