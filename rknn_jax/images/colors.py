"""Luma, blends, and hue of images, and the random color jitter of SimCLR's views.

Images are float32 `[n, height, width, channels]` in [0, 1].
"""

import jax
import jax.numpy as jnp


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
