"""Random changes of images that leave what is in them, drawn and applied on the device, each image with a draw of its own.

A function here takes a key and float32 images `[n, height, width, channels]` in [0, 1], and returns images of the same shape. Whoever
trains on images chooses one by name from `AUGMENTATIONS`.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from rknn_jax.warps import affine_displacement, warp

Name = Literal["warp", "crop", "crop_flip", "none"]

PADDING = 4  # of 32 pixels, by which a crop moves at most


def warped(key: jax.Array, images: jax.Array) -> jax.Array:
    """Move the pixels by `random_displacement`, for images whose mirror image is something else, such as digits."""
    return warp(images, random_displacement(key, *images.shape[:3]))


def random_displacement(key: jax.Array, num_images: int, height: int, width: int) -> jax.Array:
    """Draw where each pixel of a randomly warped image comes from.

    Rotation up to 15 degrees, scale up to 15% along each axis, shear up to 0.2, shift up to 2.5 of 28 pixels, and an elastic part: a
    smooth surface through a 5x5 grid of normal offsets with standard deviation 0.03 of the image's size.

    Args:
      key: is consumed.
      num_images: n.
      height: in pixels.
      width: in pixels.

    Returns:
      float32 `[n, height, width, 2]`, rows before columns, in pixels.
    """
    affine_key, shift_key, elastic_key = jax.random.split(key, 3)
    limits = jnp.asarray([jnp.pi / 12, 0.15, 0.15, 0.2])
    angle, tall, wide, shear = jax.random.uniform(affine_key, (4, num_images), minval=-1, maxval=1) * limits[:, None]
    rotation = jnp.asarray([[jnp.cos(angle), -jnp.sin(angle)], [jnp.sin(angle), jnp.cos(angle)]])
    stretch = jnp.asarray([[1 + tall, shear], [jnp.zeros_like(shear), 1 + wide]])
    matrix = jnp.einsum("ijn,jkn->nik", rotation, stretch)
    size = jnp.asarray([[height, width]], jnp.float32)
    shift = jax.random.uniform(shift_key, (num_images, 2), minval=-1, maxval=1) * (size * 2.5 / 28)
    grid = 0.03 * size[:, None, None] * jax.random.normal(elastic_key, (num_images, 5, 5, 2))
    elastic = jax.image.resize(grid, (num_images, height, width, 2), "cubic")
    return affine_displacement(matrix, shift, height, width) + elastic


def cropped(key: jax.Array, images: jax.Array) -> jax.Array:
    """Shift by up to `PADDING` of 32 pixels along each axis; what comes in is reflected at the edge."""
    amount = max(1, images.shape[1] * PADDING // 32)
    padded = jnp.pad(images, ((0, 0), (amount, amount), (amount, amount), (0, 0)), "reflect")
    corner = jax.random.randint(key, (len(images), 2), 0, 2 * amount + 1)
    return jax.vmap(lambda image, at: jax.lax.dynamic_slice(image, (at[0], at[1], 0), images.shape[1:]))(padded, corner)


def flipped(key: jax.Array, images: jax.Array) -> jax.Array:
    """Mirror half of the images."""
    return jnp.where(jax.random.bernoulli(key, 0.5, (len(images), 1, 1, 1)), images[:, :, ::-1], images)


def cropped_and_flipped(key: jax.Array, images: jax.Array) -> jax.Array:
    """As `cropped` and `flipped`: the usual one for photographs of 32x32 pixels."""
    crop_key, flip_key = jax.random.split(key)
    return flipped(flip_key, cropped(crop_key, images))


AUGMENTATIONS: dict[Name, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "warp": warped,
    "crop": cropped,
    "crop_flip": cropped_and_flipped,
    "none": lambda key, images: images,
}
