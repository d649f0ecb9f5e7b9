"""Records a second of one encoder, in the checkout whose folder is the current one."""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path.cwd()))  # the package of this folder, whichever is installed

import jax
import numpy as np

SHAPE = (28, 28, 1)
PUBLIC = 300
SEED = 0
RECORDS = {
    "pixels": 60_000,
    "pca": 60_000,
    "hog": 20_000,
    "hog, deskewed": 20_000,
    "spectral": 2_000,
    "cnn": 4_000,
    "m5": 500,
    "m3": 200,
    "resnet18": 50,
    "ONNX, a linear map": 20_000,
}
"""Encoders, and how many records each gets: about a second of work."""


def encoder(name: str, public: np.ndarray) -> Callable[[np.ndarray], Any]:
    """Return an encoder that learned from public images. Networks keep their first weights."""
    from rknn_jax.representations import hog, pca, pixels, pretrained, simclr, spectral

    key = jax.random.key(SEED)
    fits: dict[str, Any] = {
        "pixels": pixels.Config(),
        "pca": pca.Config(),
        "hog": hog.Config(),
        "hog, deskewed": hog.Config(deskew=True),
        "spectral": spectral.Config(),
    }
    if name in fits:
        return fits[name].fit(key, public)
    if name.startswith("ONNX"):
        from tests import tiny_network

        folder = Path(tempfile.mkdtemp())
        return pretrained.Config(str(tiny_network.write(folder))).fit(key, public)
    network = simclr.Network(name, 128, hidden=True)
    return simclr.Encoder(simclr.init(network, key, public[:1]), network, "backbone")


def main() -> None:
    """Print the records a second of the second and third call; the first one compiles."""
    name = sys.argv[1]
    random = np.random.default_rng(SEED)
    public = random.integers(0, 256, (PUBLIC, *SHAPE), np.uint8)
    images = random.integers(0, 256, (RECORDS[name], *SHAPE), np.uint8)
    encode = encoder(name, public)
    np.asarray(encode(images))
    rates = []
    for _ in range(2):
        start = time.perf_counter()
        np.asarray(encode(images))
        rates.append(len(images) / (time.perf_counter() - start))
    print(json.dumps(max(rates)))


if __name__ == "__main__":
    main()
