"""HOG of many images against scikit-image.

scikit-image takes one image at a time, so it is measured on the first images. In random color
images a feature may differ by some hundredths. If two channels have gradients of equal length, this
package takes the first. scikit-image takes the one whose root was rounded up (64 of the 21,860
lengths that integer gradients have).
"""

import jax.numpy as jnp
import numpy as np
from skimage.feature import hog as skimage_hog

from benchmarks._measure import least, save
from rknn_jax.representations import hog

PEER_IMAGES = 5_000
# Images, shape, side of a cell in pixels, side of a block in cells.
SETTINGS = (
    (60_000, (28, 28, 1), 4, 2),
    (60_000, (28, 28, 1), 7, 2),
    (60_000, (28, 28, 1), 7, 1),
    (600_000, (32, 32, 3), 8, 2),
)


def measure(
    num_images: int, shape: tuple[int, int, int], cell: int, block: int
) -> dict[str, object]:
    """Time an image in both libraries and compare the features."""
    images = np.random.default_rng(0).integers(0, 256, (num_images, *shape), np.uint8)
    some = images[:PEER_IMAGES].astype(np.float64)
    encode = hog.Encoder(hog.Config(cells=(cell,), block=block))
    batch = jnp.asarray(images)
    settings = {
        "pixels_per_cell": (cell, cell),
        "cells_per_block": (block, block),
        "channel_axis": -1,
    }
    expected = np.stack([skimage_hog(image, **settings) for image in some])
    difference = float(np.abs(np.asarray(encode(batch[:PEER_IMAGES])) - expected).max())
    took = least(
        {
            "ours": lambda: encode(batch),
            "peer": lambda: [skimage_hog(image, **settings) for image in some],
        },
        repeats=3,
    )
    ours = took["ours"]["seconds"] / num_images
    peer = took["peer"]["seconds"] / PEER_IMAGES
    about = {"num_images": num_images, "shape": shape, "cell": cell, "block": block}
    return about | {
        "seconds": ours,
        "peer_seconds": peer,
        "ratio": peer / ours,
        "greatest_difference": difference,
    }


if __name__ == "__main__":
    save(
        "hog",
        [measure(*setting) for setting in SETTINGS],
        timed="an image",
        peer="skimage.feature.hog",
        peer_images=PEER_IMAGES,
        seed=0,
    )
