"""Random label-preserving image augmentation on the device, with one draw per image.

A function here takes a key and float32 images `[n, height, width, channels]` in [0, 1], and returns
images of the same shape. Training code chooses a function by its name in `AUGMENTATIONS`.
"""

import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from rknn_jax.images.colors import grey, jittered
from rknn_jax.images.rand_augment import rand_augmented
from rknn_jax.images.warps import affine_displacement, warp

Name = Literal["warp", "crop", "crop_flip", "none"]

PADDING = 4  # largest shift of a crop, in pixels of 32


def warped(key: jax.Array, images: jax.Array) -> jax.Array:
    """Warp images by `random_displacement`.

    This suits digits and other images that must not be mirrored.
    """
    return warp(images, random_displacement(key, *images.shape[:3]))


def random_displacement(key: jax.Array, num_images: int, height: int, width: int) -> jax.Array:
    """Random displacement, from which each pixel of a warped image is read.

    Rotation is up to 15 degrees, scale up to 15% along each axis, shear up to 0.2, and shift up to
    2.5 of 28 pixels. The elastic part is a smooth surface through a 5x5 grid of normal offsets.
    Their standard deviation is 0.03 of the image's size.

    Args:
      key: Random key, consumed by the call.
      num_images: Number of images n.
      height: Height in pixels.
      width: Width in pixels.

    Returns:
      Float32 `[n, height, width, 2]`, rows before columns, in pixels.
    """
    affine_key, shift_key, elastic_key = jax.random.split(key, 3)
    limits = jnp.asarray([jnp.pi / 12, 0.15, 0.15, 0.2])
    angle, tall, wide, shear = (
        jax.random.uniform(affine_key, (4, num_images), minval=-1, maxval=1) * limits[:, None]
    )
    rotation = jnp.asarray([[jnp.cos(angle), -jnp.sin(angle)], [jnp.sin(angle), jnp.cos(angle)]])
    stretch = jnp.asarray([[1 + tall, shear], [jnp.zeros_like(shear), 1 + wide]])
    matrix = jnp.einsum("ijn,jkn->nik", rotation, stretch)
    size = jnp.asarray([[height, width]], jnp.float32)
    shift = jax.random.uniform(shift_key, (num_images, 2), minval=-1, maxval=1) * (size * 2.5 / 28)
    grid = 0.03 * size[:, None, None] * jax.random.normal(elastic_key, (num_images, 5, 5, 2))
    elastic = jax.image.resize(grid, (num_images, height, width, 2), "cubic")
    displacement: jax.Array = affine_displacement(matrix, shift, height, width) + elastic
    return displacement


def cropped(key: jax.Array, images: jax.Array) -> jax.Array:
    """Shift images by up to `PADDING` of 32 pixels along each axis.

    Pixels from outside are reflected at the edge.
    """
    amount = max(1, images.shape[1] * PADDING // 32)
    padded = jnp.pad(images, ((0, 0), (amount, amount), (amount, amount), (0, 0)), "reflect")
    corner = jax.random.randint(key, (len(images), 2), 0, 2 * amount + 1)
    return jax.vmap(
        lambda image, at: jax.lax.dynamic_slice(image, (at[0], at[1], 0), images.shape[1:])
    )(padded, corner)


def flipped(key: jax.Array, images: jax.Array) -> jax.Array:
    """Mirror a random half of the images."""
    return jnp.where(
        jax.random.bernoulli(key, 0.5, (len(images), 1, 1, 1)), images[:, :, ::-1], images
    )


def cropped_and_flipped(key: jax.Array, images: jax.Array) -> jax.Array:
    """Crop and flip, the usual augmentation for photographs of 32x32 pixels."""
    crop_key, flip_key = jax.random.split(key)
    return flipped(flip_key, cropped(crop_key, images))


AUGMENTATIONS: dict[Name, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "warp": warped,
    "crop": cropped,
    "crop_flip": cropped_and_flipped,
    "none": lambda key, images: images,
}

# Views for learning without labels, and the strong augmentation of SCAN. A mirrored photograph
# shows the same thing, a mirrored digit does not, and a digit's colors carry no information.

# Number of windows drawn for a crop. The first window that fits in the image is taken, or the whole
# image if none fits.
TRIES = 10


def photo_view(key: jax.Array, images: jax.Array) -> jax.Array:
    """Augment photographs as SimCLR does.

    The changes are crop, flip, color jitter (4 of 5 images), and gray (1 of 5).

    Reference: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations",
    2020.
    """
    crop_key, flip_key, colour_key, jitter_key, grey_key = jax.random.split(key, 5)
    images = flipped(flip_key, zoomed(crop_key, images, 0.2))
    images = jnp.where(
        jax.random.bernoulli(jitter_key, 0.8, (len(images), 1, 1, 1)),
        jittered(colour_key, images),
        images,
    )
    return jnp.where(
        jax.random.bernoulli(grey_key, 0.2, (len(images), 1, 1, 1)), grey(images), images
    )


def digit_view(key: jax.Array, images: jax.Array) -> jax.Array:
    """Crop at least half of the area and warp by `random_displacement`, in one interpolation."""
    crop_key, warp_key = jax.random.split(key)
    zoom, shift = random_window(crop_key, images.shape, 0.5)
    inner = zoom[:, None, None] * random_displacement(warp_key, *images.shape[:3])
    return warp(images, _window_displacement(zoom, shift, *images.shape[1:3]) + inner)


def strong_photo(key: jax.Array, images: jax.Array) -> jax.Array:
    """Augment photographs as SCAN does: flip, four draws of RandAugment, and a hole.

    Reference: Van Gansbeke et al., "SCAN: Learning to Classify Images without Labels", 2020.
    """
    flip_key, change_key = jax.random.split(key)
    return strong_digit(change_key, flipped(flip_key, images))


def strong_digit(key: jax.Array, images: jax.Array) -> jax.Array:
    """Augment as `strong_photo`, but never mirror."""
    change_key, hole_key = jax.random.split(key)
    return holed(hole_key, rand_augmented(change_key, images))


def zoomed(key: jax.Array, images: jax.Array, smallest: float) -> jax.Array:
    """Stretch a window drawn by `random_window` over the whole image."""
    zoom, shift = random_window(key, images.shape, smallest)
    return warp(images, _window_displacement(zoom, shift, *images.shape[1:3]))


def random_window(
    key: jax.Array, shape: tuple[int, ...], smallest: float
) -> tuple[jax.Array, jax.Array]:
    """Draw a window at a random place inside each image.

    The relative area is uniform in [smallest, 1], and the aspect ratio log-uniform in [3/4, 4/3].

    Args:
      key: Random key, consumed by the call.
      shape: Shape of the images, `(n, height, width, channels)`.
      smallest: Smallest area, relative to the image's.

    Returns:
      zoom: Height and width of the window relative to the image's, float32 `[n, 2]`.
      shift: Offset of the window's center from the image's center in pixels, float32 `[n, 2]`.
    """
    num_images, height, width, _ = shape
    drawn = jax.random.uniform(
        key, (num_images, 2 * TRIES + 2)
    )  # one draw for all values, because a draw takes half a second to compile
    area = (smallest + (1 - smallest) * drawn[:, :TRIES]) * (height * width)
    root = jnp.exp((2 * drawn[:, TRIES:-2] - 1) * (math.log(4 / 3) / 2))
    whole = jnp.asarray([[height, width]], jnp.float32)
    sides = jnp.stack([jnp.sqrt(area) / root, jnp.sqrt(area) * root], -1)
    sides = jnp.concatenate([sides, jnp.broadcast_to(whole[None], (num_images, 1, 2))], 1)
    first = jnp.argmax((sides <= whole[None]).all(-1), axis=1)
    side = jnp.take_along_axis(sides, first[:, None, None], axis=1)[:, 0]
    shift = (2 * drawn[:, -2:] - 1) * ((whole - side) / 2)
    return side / whole, shift


def holed(key: jax.Array, images: jax.Array) -> jax.Array:
    """Fill a random square with the image's mean color.

    The side is drawn from 1 to half of the image, and the square is cut off at the edge.

    Reference: DeVries & Taylor, "Improved Regularization of Convolutional Neural Networks with
    Cutout", 2017.
    """
    n, height, width, _ = images.shape
    size, row, column = jax.random.uniform(key, (3, n, 1))
    side = 1 + jnp.floor(max(height // 2, 1) * size)

    def covered(place: jax.Array, length: int) -> jax.Array:
        start = jnp.floor(length * place) - jnp.floor(side / 2)
        pixels = jnp.arange(length, dtype=jnp.float32)[None]
        return (pixels >= start) & (pixels < start + side)

    hole = covered(row, height)[:, :, None, None] & covered(column, width)[:, None, :, None]
    return jnp.where(hole, images.mean((1, 2), keepdims=True), images)


def _window_displacement(zoom: jax.Array, shift: jax.Array, height: int, width: int) -> jax.Array:
    return affine_displacement(zoom[:, :, None] * jnp.eye(2)[None], shift, height, width)


VIEWS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "photo": photo_view,
    "digit": digit_view,
}

STRONG: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "photo": strong_photo,
    "digit": strong_digit,
}
