"""Principal components of public pixels or HOG.

The spectral representation uses the same components.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax._internal.one_record import map_records
from rknn_jax.representations import Representation, hog, pixels
from rknn_jax.types import Array


@dataclass(frozen=True)
class Config(Representation):
    """Settings of PCA.

    Attributes:
      num_components: Maximum number of components; components without variance are left out.
        Defaults to 50.
      base: Descriptor of the images, `pixels` or `hog`. Defaults to `pixels`.
      flatten: Power of their standard deviation by which components are divided. 0 is plain PCA, 1
        whitens. Defaults to 0.
    """

    num_components: int = 50
    base: Literal["pixels", "hog"] = "pixels"
    flatten: float = 0.0

    def __post_init__(self) -> None:
        if self.num_components < 1:
            raise ValueError(
                f"Expected num_components >= 1, got num_components={self.num_components}."
            )
        if self.base not in ("pixels", "hog"):
            raise ValueError(f"Expected base to be 'pixels' or 'hog', got base={self.base!r}.")


@pytree.register
@dataclass(frozen=True)
class Encoder:
    """Encoder that projects descriptors on principal components of the public ones.

    Attributes:
      base: Encoder that describes images.
      mean: Mean of the public descriptors, float32 `[f]`.
      components: Principal components, float32 `[f, c]`.
    """

    base: pixels.Encoder | hog.Encoder
    mean: jax.Array
    components: jax.Array

    def __call__(self, images: Array) -> jax.Array:
        """Return float32 `[n, c]` from uint8 `[n, h, w, c]`; row i depends on image i alone."""
        return map_records(Encoder.describe, self, images)

    def describe(self, image: jax.Array) -> jax.Array:
        """Return the components of one image, float32 `[c]`, from uint8 `[h, w, c]`."""
        centered = self.base.describe(image) - self.mean
        return jnp.matmul(centered, self.components, precision=jax.lax.Precision.HIGHEST)


def fit(key: jax.Array, images: Array, config: Config = Config()) -> Encoder:
    """Fit principal components of public images, uint8 `[m, h, w, c]`; `key` is not needed."""
    base: pixels.Encoder | hog.Encoder = (
        hog.fit(key, images) if config.base == "hog" else pixels.fit(key, images)
    )
    return of(base, images, config)


def of(base: pixels.Encoder | hog.Encoder, images: Array, config: Config) -> Encoder:
    """Fit principal components of public images as `base` describes them.

    The computation is in float64 on the host. Each component's largest entry is positive, so that
    equal data give equal components.
    """
    features = np.asarray(base(images), np.float64)
    mean = features.mean(axis=0)
    variance, directions = np.linalg.eigh((features - mean).T @ (features - mean) / len(features))
    kept = np.flatnonzero(variance > 1e-9 * variance[-1])[::-1][: config.num_components]
    components = directions[:, kept]
    components = components * np.sign(
        components[np.abs(components).argmax(axis=0), np.arange(len(kept))]
    )
    components = components / variance[kept] ** (config.flatten / 2)
    return Encoder(base, jnp.asarray(mean, jnp.float32), jnp.asarray(components, jnp.float32))


EXAMPLES = (Config(num_components=5), Config(num_components=3, flatten=1.0))
