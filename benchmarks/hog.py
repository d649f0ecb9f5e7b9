"""HOG of 10,000 images of MNIST's size against scikit-image, which takes one image at a time."""

import jax.numpy as jnp
import numpy as np
from skimage.feature import hog as skimage_hog

from benchmarks._measure import save, seconds
from rknn_jax.representations.hog import hog

NUM_IMAGES = 10_000
SETTINGS = ((4, 2), (7, 2), (7, 1))  # side of a cell in pixels, side of a block in cells


def measure(images: np.ndarray, cell: int, block: int) -> dict[str, float]:
    """Time both on the same images and compare their features."""
    settings = {"pixels_per_cell": (cell, cell), "cells_per_block": (block, block)}
    batch = jnp.asarray(images, jnp.float32)
    expected = np.stack([skimage_hog(image[..., 0], **settings) for image in images])
    peer = seconds(lambda: [skimage_hog(image[..., 0], **settings) for image in images], repeats=1)
    ours = seconds(lambda: hog(batch, **settings))
    difference = float(np.abs(np.asarray(hog(batch, **settings)) - expected).max())
    about = {"cell": cell, "block": block}
    return about | {"seconds": ours, "peer_seconds": peer, "ratio": peer / ours, "greatest_difference": difference}


if __name__ == "__main__":
    images = np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, 28, 28, 1), np.uint8).astype(np.float64)
    save("hog", [measure(images, *setting) for setting in SETTINGS], num_images=NUM_IMAGES, peer="skimage.feature.hog", seed=0)
