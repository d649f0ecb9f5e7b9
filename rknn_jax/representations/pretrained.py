"""Features of a pretrained network in an ONNX file, run by onnxruntime.

Nothing is learned here. The network must be public and must not have seen the private records,
because epsilon does not cover what it remembers. Beside `network.onnx` lies a card, `network.json`,
which says how images go in and which output comes out:

    {"size": [112, 112], "mean": [127, 127, 127], "std": [128, 128, 128],
     "layout": "NCHW", "output": "features"}
"""

import functools
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from rknn_jax._internal import onnx, pytree
from rknn_jax.representations import Representation
from rknn_jax.types import Array

MOST_PIXELS = 2**24
"""Most pixels of an image as a network takes it: a card may come from a stranger."""


@dataclass(frozen=True)
class Card:
    """Input and output of a network.

    Attributes:
      size: Rows and columns to which images are resized, bilinearly.
      mean: Mean of each of the three color channels, in units of pixels from 0 to 255.
      std: Standard deviation of each channel, in the same units.
      layout: Order of the input's axes, `NCHW` or `NHWC`.
      output: Name of the output that holds the features `[n, f]`.
    """

    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    layout: Literal["NCHW", "NHWC"]
    output: str

    def __post_init__(self) -> None:
        if len(self.size) != 2 or min(self.size) < 1:
            raise ValueError(f"Expected size [rows, columns] of at least 1, got {self.size}.")
        if math.prod(self.size) > MOST_PIXELS:
            raise ValueError(f"Expected size of at most {MOST_PIXELS:,} pixels, got {self.size}.")
        if len(self.mean) != 3 or len(self.std) != 3 or not min(self.std) > 0:
            raise ValueError(
                f"Expected three means and three positive standard deviations, got {self.mean} and "
                f"{self.std}."
            )
        if self.layout not in ("NCHW", "NHWC"):
            raise ValueError(f"Expected layout NCHW or NHWC, got {self.layout!r}.")


@dataclass(frozen=True)
class Config(Representation):
    """Settings of a pretrained network.

    Attributes:
      onnx: Path of the ONNX file, with its card beside it. There is no default network.
    """

    # Where every representation runs with its defaults, one without a default is left out.
    slow: ClassVar[bool] = True
    onnx: str = ""


@pytree.register
@dataclass(frozen=True)
class Encoder:
    """Encoder by a network that whoever calls it has as a file.

    Attributes:
      path: Path of the ONNX file.
      digest: SHA-256 of the file, in hexadecimal. A file that has changed is refused.
      card: Input and output of the network.
    """

    path: str = field(metadata=pytree.STATIC | {"file": "digest"})
    digest: str = field(metadata=pytree.STATIC)
    card: Card = field(metadata=pytree.STATIC)

    def __call__(self, images: Array) -> jax.Array:
        """Return features; row i depends on image i alone.

        Args:
          images: uint8 `[n, h, w, c]`, of one or three channels and any size.

        Returns:
          float32 `[n, f]`.

        Raises:
          ValueError: If the file is absent or has changed, or its output is not `[n, f]`.
        """
        network = _network(self.path, self.digest, self.card.output)

        def describe(image: np.ndarray) -> np.ndarray:
            return network(self._input(image))

        given = np.asarray(images)
        blank = np.zeros(given.shape[1:], given.dtype)
        return jnp.asarray(
            onnx.each(describe, list(given), lambda: len(describe(blank)), lambda: blank)
        )

    def _input(self, image: np.ndarray) -> np.ndarray:
        """Return an image as the network's input, float32 `[1, 3, h, w]` or `[1, h, w, 3]`."""
        resized = resize(image, self.card.size)[None]
        mean, std = (np.asarray(values, np.float32) for values in (self.card.mean, self.card.std))
        scaled = (resized.astype(np.float32) - mean) / std
        if self.card.layout == "NCHW":
            scaled = scaled.transpose(0, 3, 1, 2)
        return np.ascontiguousarray(scaled)


def fit(key: jax.Array, images: Array, config: Config = Config()) -> Encoder:
    """Return the encoder; `key` and the public `images`, uint8 `[m, h, w, c]`, are not needed.

    Raises:
      ValueError: If the settings name no network that can be used.
    """
    del key, images
    if not config.onnx:
        raise ValueError(
            "Expected onnx, the file of a network, with representation=pretrained, got none; name "
            "it, or embed the records by `rknn embed` first and pass the embeddings."
        )
    return load(config.onnx)


def load(path: str | Path) -> Encoder:
    """Return the encoder of an ONNX file, whose card lies beside it.

    An image of noise is encoded twice, so that a network that draws at random is refused.

    Raises:
      ValueError: If the file, its card or its output cannot be used.
    """
    file = Path(path)
    encode = Encoder(str(path), onnx.digest(file), _card(file.with_suffix(".json")))
    noise = np.random.default_rng(0).integers(0, 256, (1, *encode.card.size, 3)).astype(np.uint8)
    onnx.check_repeats(lambda image: np.asarray(encode(image)), noise, str(path))
    return encode


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize an image and give it three channels.

    Args:
      image: uint8 `[h, w, c]`, of one or three channels.
      size: Rows and columns of the result.

    Returns:
      uint8 `[*size, 3]`.
    """
    plain = image[..., 0] if image.shape[-1] == 1 else image
    rows, columns = size
    color = Image.fromarray(plain).convert("RGB")
    return np.asarray(color.resize((columns, rows), Image.Resampling.BILINEAR))


@dataclass(frozen=True)
class Network:
    """ONNX network, ready to run.

    Attributes:
      session: Session of onnxruntime.
      output: Name of the output.
      batch: Number of images that the file fixes; only the first of them is used.
    """

    session: Any
    output: str
    batch: int

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Return features, float32 `[f]`, of one prepared image `[1, ...]`."""
        [given] = self.session.get_inputs()
        blank = np.zeros((self.batch - 1, *image.shape[1:]), np.float32)
        values = np.concatenate([image, blank])  # a fixed place: always the first
        features = np.asarray(self.session.run([self.output], {given.name: values})[0])
        if features.ndim != 2 or len(features) != self.batch:
            raise ValueError(
                f"Expected features [n, f] from output {self.output!r}, got shape "
                f"{features.shape} for {self.batch} images; name a pooled output in the network's "
                "card."
            )
        row: np.ndarray = features[0].astype(np.float32)
        return row


@functools.lru_cache(maxsize=2)
def _network(path: str, digest: str, output: str) -> Network:
    session = onnx.session(Path(path), digest)
    inputs, outputs = session.get_inputs(), [one.name for one in session.get_outputs()]
    if len(inputs) != 1 or inputs[0].type != "tensor(float)" or output not in outputs:
        kinds = [(one.name, one.type) for one in inputs]
        raise ValueError(
            f"Expected one input of type tensor(float) and an output {output!r} in {path}, got "
            f"{kinds} and {outputs}; export it so, or name another output in its card."
        )
    first = inputs[0].shape[0]
    return Network(session, output, first if isinstance(first, int) else 1)


def _card(path: Path) -> Card:
    """Read a card.

    Raises:
      ValueError: If it is absent, or does not say all that is needed.
    """
    try:
        given = json.loads(path.read_bytes())
        size, mean, std = (tuple(given[name]) for name in ("size", "mean", "std"))
        return Card(size, mean, std, layout=given["layout"], output=given["output"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"Expected the network's card in {path}, with size, mean, std, layout and output, got "
            f"none that can be used ({error}); write one as in docs/embedding.md."
        ) from error


EXAMPLES: tuple[Config, ...] = ()  # They need a file; tests/conftest.py writes a small one.
