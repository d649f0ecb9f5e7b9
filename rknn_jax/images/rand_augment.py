"""RandAugment on the device: random moves and changes of value, with draws for each image.

Images are float32 `[n, height, width, channels]` in [0, 1]. A change of value takes images and an
amount `[n, 1, 1, 1]` in [0, 1].
"""

import jax
import jax.numpy as jnp

from rknn_jax.images.colors import blended, grey
from rknn_jax.images.warps import affine_displacement, warp

NUM_MOVES = 5


def rand_augmented(key: jax.Array, images: jax.Array) -> jax.Array:
    """Apply four random changes of RandAugment to each image, drawn with replacement.

    The amounts are uniform. Five changes move pixels: rotation up to 30 degrees, shear up to 0.1,
    and shift up to 0.1 of the image along either axis. The moves of all four draws are one warp,
    which comes first, because value changes hardly depend on the order. Eight changes alter values:
    `VALUE_CHANGES`, without the last one for images without colors. One change does nothing.

    Reference: Cubuk et al., "RandAugment: Practical Automated Data Augmentation with a Reduced
    Search Space", 2020.
    """
    changes = VALUE_CHANGES if images.shape[-1] == 3 else VALUE_CHANGES[:-1]
    which, amount = jax.random.uniform(key, (2, 4, len(images)))
    choice = jnp.floor((NUM_MOVES + len(changes) + 1) * which).astype(jnp.int32)
    images = warp(
        images,
        affine_displacement(
            *composed_moves(choice, 2 * amount - 1, *images.shape[1:3]), *images.shape[1:3]
        ),
    )

    def change(images: jax.Array, draw: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        chosen, share = (array[:, None, None, None] for array in draw)
        for number, apply in enumerate(changes, NUM_MOVES):
            images = jnp.where(
                chosen == number, apply(images, share), images
            )  # at most one of the changes applies to an image
        return images, None

    return jax.lax.scan(change, images, (choice, amount))[0]


def composed_moves(
    choice: jax.Array, amount: jax.Array, height: int, width: int
) -> tuple[jax.Array, jax.Array]:
    """Compose drawn moves into one affine map.

    Args:
      choice: Move of each draw and image, int32 `[draws, n]`. 0 rotates, 1 and 2 shear columns and
        rows, 3 and 4 shift them; other values do nothing.
      amount: Amount relative to the largest move, float32 `[draws, n]` in [-1, 1].
      height: Height in pixels.
      width: Width in pixels.

    Returns:
      Matrix `[n, 2, 2]` and shift `[n, 2]` for `affine_displacement`. The first draw moves the
      image first.
    """
    angle, across, along, down, right = (
        jnp.where(choice == move, amount, 0) for move in range(NUM_MOVES)
    )
    cosine = jnp.cos(angle * (jnp.pi / 6))
    sine = jnp.sin(angle * (jnp.pi / 6))
    matrices = jnp.stack(
        [jnp.stack([cosine, 0.1 * along - sine], -1), jnp.stack([0.1 * across + sine, cosine], -1)],
        -2,
    )
    shifts = jnp.stack([0.1 * height * down, 0.1 * width * right], -1)
    matrix = matrices[0]
    shift = shifts[0]
    for later in range(
        1, len(choice)
    ):  # a later draw reads from the result of the earlier ones: x -> first(second(x))
        shift = shift + jnp.einsum("nij,nj->ni", matrix, shifts[later])
        matrix = jnp.einsum("nij,njk->nik", matrix, matrices[later])
    return matrix, shift


def autocontrasted(images: jax.Array, amount: jax.Array) -> jax.Array:
    """Stretch each channel over [0, 1]; `amount` is ignored."""
    del amount
    low = images.min((1, 2), keepdims=True)
    high = images.max((1, 2), keepdims=True)
    return jnp.where(high > low, (images - low) / jnp.where(high > low, high - low, 1), images)


def equalised(images: jax.Array, amount: jax.Array) -> jax.Array:
    """Equalize the histogram of each channel over 256 values; `amount` is ignored.

    A value becomes the share of darker pixels in its channel, among all but the brightest pixels.
    """
    del amount
    n, height, width, channels = images.shape
    level = (
        jnp.round(255 * images)
        .astype(jnp.int32)
        .transpose(0, 3, 1, 2)
        .reshape(n * channels, height * width)
    )
    count = jax.vmap(lambda channel: jnp.bincount(channel, length=256))(level)
    brightest = jnp.take_along_axis(count, level.max(1, keepdims=True), 1)
    share = (jnp.cumsum(count, 1) - count) / jnp.maximum(height * width - brightest, 1)
    made = (
        jnp.take_along_axis(share, level, 1)
        .reshape(n, channels, height, width)
        .transpose(0, 2, 3, 1)
    )
    return jnp.where(
        images.max((1, 2), keepdims=True) > images.min((1, 2), keepdims=True), made, images
    )


def posterised(images: jax.Array, amount: jax.Array) -> jax.Array:
    """Keep 4 to 7 bits of 8."""
    step = 2 ** (4 - jnp.minimum(jnp.floor(4 * amount), 3))
    return jnp.floor(jnp.round(255 * images) / step) * step / 255


def solarised(images: jax.Array, amount: jax.Array) -> jax.Array:
    """Invert values that are at least `amount`."""
    return jnp.where(images >= amount, 1 - images, images)


def darkened(images: jax.Array, amount: jax.Array) -> jax.Array:
    """Keep 5% to 95% of the brightness."""
    return blended(images, jnp.zeros_like(images), 0.05 + 0.9 * amount)


def flattened(images: jax.Array, amount: jax.Array) -> jax.Array:
    """Keep 5% to 95% of the contrast."""
    return blended(images, grey(images).mean((1, 2, 3), keepdims=True), 0.05 + 0.9 * amount)


def smoothed(images: jax.Array, amount: jax.Array) -> jax.Array:
    """Keep 5% to 95% of the detail that a 3x3 mean removes, whose center counts five times."""
    height, width = images.shape[1:3]
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), "edge")
    around = sum(padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3))
    return blended(images, (around + 4 * images) / 13, 0.05 + 0.9 * amount)


def desaturated(images: jax.Array, amount: jax.Array) -> jax.Array:
    """Keep 5% to 95% of the colors."""
    return blended(images, grey(images), 0.05 + 0.9 * amount)


VALUE_CHANGES = (
    autocontrasted,
    equalised,
    posterised,
    solarised,
    darkened,
    flattened,
    smoothed,
    desaturated,
)
