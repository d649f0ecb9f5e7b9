"""Random label-preserving image augmentation on the device, with one draw per image.

A function here takes a key and float32 images `[n, height, width, channels]` in [0, 1], and returns
images of the same shape. Training code chooses a function by its name in `AUGMENTATIONS`.
"""

import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

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


def jittered(key: jax.Array, images: jax.Array) -> jax.Array:
    """Jitter brightness, contrast, saturation, and hue.

    Factors are in [0.6, 1.4], and the hue turns by up to 0.1 of a circle. Each image has its own
    amounts. The order is drawn once for all images, so that each change is computed once. Images
    without colors change only in brightness and contrast.
    """
    order_key, amount_key = jax.random.split(key)
    amount = jax.random.uniform(amount_key, (4, len(images), 1, 1, 1), minval=-1, maxval=1)
    factor = 1 + 0.4 * amount
    changes = [
        lambda x: blended(x, jnp.zeros_like(x), factor[0]),
        lambda x: blended(x, grey(x).mean((1, 2, 3), keepdims=True), factor[1]),
        lambda x: blended(x, grey(x), factor[2]),
        lambda x: hue_turned(x, 0.1 * amount[3]),
    ]
    if images.shape[-1] != 3:
        changes = changes[:2]
    for change in jax.random.permutation(order_key, len(changes)):
        images = jax.lax.switch(change, changes, images)
    return images


def blended(images: jax.Array, other: jax.Array, factor: jax.Array) -> jax.Array:
    """Return `factor images + (1 - factor) other`, clipped to [0, 1].

    A factor below 1 moves toward `other`; a factor above 1 moves away from it.
    """
    return jnp.clip(other + factor * (images - other), 0, 1)


def grey(images: jax.Array) -> jax.Array:
    """Luma of each pixel (ITU-R BT.601), float32 `[n, height, width, 1]`.

    Images without three channels give the mean over channels.
    """
    channels = images.shape[-1]
    weights = jnp.asarray([0.299, 0.587, 0.114] if channels == 3 else [1 / channels] * channels)
    return jnp.sum(images * weights[None, None, None], axis=-1, keepdims=True)


def hue_turned(images: jax.Array, turns: jax.Array) -> jax.Array:
    """Rotate the hue of RGB images `[n, height, width, 3]` by `turns` `[n, 1, 1, 1]`.

    Saturation and value (of HSV) stay.
    """
    red = images[..., 0]
    green = images[..., 1]
    blue = images[..., 2]
    value = images.max(-1)
    low = images.min(-1)
    spread = value - low
    scale = jnp.where(spread > 0, spread, 1)
    other = jnp.where(value == green, 2 + (blue - red) / scale, 4 + (red - green) / scale)
    sixths = jnp.where(value == red, (green - blue) / scale, other)
    place = (sixths[..., None] + 6 * turns + jnp.asarray([5.0, 3.0, 1.0])[None, None, None]) % 6
    return value[..., None] - spread[..., None] * jnp.clip(jnp.minimum(place, 4 - place), 0, 1)


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


NUM_MOVES = 5
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
