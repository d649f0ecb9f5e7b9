"""Encoder of images learned from public images alone, as ONNX for `rknn embed --images`.

Nothing is measured, and nothing is downloaded: it needs a folder of public images and the package
`onnx`. Patches of the public images are the dictionary. A patch is centered, scaled by its own
contrast and whitened, as in Coates & Ng (2011). The responses of both signs pass a soft threshold,
are averaged over each quarter of the image, and are projected on the leading principal components
of the public images. Beside the ONNX file lies its card, of the same name.

    python -m benchmarks.patch_encoder --images public --out patches.onnx

Reference: Coates & Ng, "The Importance of Encoding Versus Training with Sparse Coding and Vector
Quantization", 2011, sections 4.2 and 5.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rknn_jax.embedding.images import ImageFolder
from rknn_jax.images import files as image_files
from rknn_jax.representations import pretrained

PATCHES_PER_IMAGE = 20
"""Patches of each image from which mean and whitening are learned."""

CONTRAST = 10.0
"""Variance of pixels that is added to that of a patch, so that noise in flat ones stays small."""

RIDGE = 0.1
"""Variance that is added before whitening, relative to that of a scaled pixel, which is 1."""

THRESHOLD = 0.25
"""Soft threshold of the responses."""


@dataclass(frozen=True)
class Settings:
    """Sizes of an encoder.

    Attributes:
      side: Rows and columns to which images are resized.
      patch: Rows and columns of a patch.
      atoms: Number of patches in the dictionary.
      width: Number of features.
      seed: Seed of the patches that are drawn.
    """

    side: int = 16
    patch: int = 5
    atoms: int = 128
    width: int = 40
    seed: int = 0


@dataclass(frozen=True)
class Filters:
    """Dictionary that takes whitening upon itself.

    Attributes:
      weights: Filters of scaled patches, float32 `[atoms, 3, p, p]`.
      bias: Responses to the mean patch, negated, float32 `[atoms]`.
    """

    weights: np.ndarray
    bias: np.ndarray


def read(folder: Path, side: int) -> np.ndarray:
    """Return the images of a folder, uint8 `[m, side, side, 3]`.

    Raises:
      ValueError: If one cannot be read.
    """

    def pixels(name: str) -> np.ndarray:
        try:
            color = image_files.read(folder / name).convert("RGB")
            return pretrained.resize(np.asarray(color), (side, side))
        except Exception as error:  # a damaged file can raise many kinds of errors
            raise ValueError(
                f"Cannot read the image {folder / name}: {error}; repair or remove it."
            ) from error

    return np.stack([pixels(name) for name in ImageFolder.find(folder).files])


def learn_filters(images: np.ndarray, settings: Settings) -> Filters:
    """Return whitened patches of public images as filters.

    Args:
      images: uint8 `[m, side, side, 3]`.
      settings: Sizes of the encoder.
    """
    random = np.random.default_rng(settings.seed)
    size = settings.patch
    number = max(PATCHES_PER_IMAGE * len(images), 2 * settings.atoms)
    of = random.integers(len(images), size=number)
    rows, columns = random.integers(settings.side - size + 1, size=(2, number))
    cut = [images[i, r : r + size, c : c + size] for i, r, c in zip(of, rows, columns, strict=True)]
    plain = np.stack(cut).transpose(0, 3, 1, 2).reshape(number, -1).astype(np.float64)
    centered = plain - plain.mean(axis=1, keepdims=True)
    scaled = centered / np.sqrt(plain.var(axis=1, keepdims=True) + CONTRAST)
    mean = scaled.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(scaled.T))
    whitening = vectors / np.sqrt(values + RIDGE) @ vectors.T
    atoms = (scaled[random.permutation(number)[: settings.atoms]] - mean) @ whitening
    atoms /= np.maximum(np.linalg.norm(atoms, axis=1, keepdims=True), 1e-6)
    filters = atoms @ whitening
    # A patch is centered by its own mean, which filters of sum zero take upon themselves.
    weights = filters - filters.mean(axis=1, keepdims=True)
    shape = (settings.atoms, 3, size, size)
    return Filters(weights.reshape(shape).astype(np.float32), -(filters @ mean).astype(np.float32))


def write(out: Path, filters: Filters, settings: Settings, projection: np.ndarray) -> None:
    """Write the network and its card.

    Args:
      out: ONNX file to write.
      filters: Dictionary.
      settings: Sizes of the encoder.
      projection: float32 `[8 * atoms, f]`, from pooled responses to features.
    """
    from onnx import TensorProto, helper, numpy_helper, save

    size = settings.patch
    half = (settings.side - size + 1) // 2
    constants = {
        "weights": filters.weights,
        "bias": filters.bias[:, None, None],
        "box": np.full((1, 3, size, size), 1 / (3 * size**2), np.float32),
        "contrast": np.float32(CONTRAST),
        "threshold": np.float32(THRESHOLD),
        "projection": projection,
    }
    nodes = [
        helper.make_node("Conv", ["images", "weights"], ["products"]),
        helper.make_node("Conv", ["images", "box"], ["mean"]),
        helper.make_node("Mul", ["images", "images"], ["squares"]),
        helper.make_node("Conv", ["squares", "box"], ["mean_square"]),
        helper.make_node("Mul", ["mean", "mean"], ["square_mean"]),
        helper.make_node("Sub", ["mean_square", "square_mean"], ["variance"]),
        helper.make_node("Relu", ["variance"], ["rounded"]),  # rounding may leave less than 0
        helper.make_node("Add", ["rounded", "contrast"], ["regular"]),
        helper.make_node("Sqrt", ["regular"], ["scale"]),
        helper.make_node("Div", ["products", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["response"]),
        helper.make_node("Neg", ["response"], ["opposite"]),
        helper.make_node("Concat", ["response", "opposite"], ["both"], axis=1),
        helper.make_node("Sub", ["both", "threshold"], ["above"]),
        helper.make_node("Relu", ["above"], ["active"]),
        helper.make_node(
            "AveragePool", ["active"], ["pooled"], kernel_shape=[half] * 2, strides=[half] * 2
        ),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "projection"], ["features"]),
    ]
    sides = [settings.side] * 2
    graph = helper.make_graph(
        nodes,
        "patches",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, *sides])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", projection.shape[1]])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), out)
    card = {"size": sides, "mean": [0] * 3, "std": [1] * 3, "layout": "NCHW", "output": "features"}
    out.with_suffix(".json").write_text(json.dumps(card, indent=2))


def export(images: np.ndarray, out: Path, settings: Settings) -> int:
    """Learn an encoder from public images and write it, and return its number of features.

    Args:
      images: uint8 `[m, side, side, 3]`.
      out: ONNX file to write.
      settings: Sizes of the encoder.
    """
    filters = learn_filters(images, settings)
    write(out, filters, settings, np.eye(8 * settings.atoms, dtype=np.float32))
    pooled = np.asarray(pretrained.load(out)(images), np.float64)
    _, _, components = np.linalg.svd(pooled - pooled.mean(axis=0), full_matrices=False)
    projection = components[: settings.width].T.astype(np.float32)
    write(out, filters, settings, projection)
    return projection.shape[1]


def main(arguments: list[str] | None = None) -> None:
    """Learn the encoder of a folder and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, required=True, help="folder of public images")
    parser.add_argument("--out", type=Path, default=Path("patches.onnx"))
    parser.add_argument("--side", type=int, default=Settings.side)
    parser.add_argument("--width", type=int, default=Settings.width)
    given = parser.parse_args(arguments)
    settings = Settings(side=given.side, width=given.width)
    images = read(given.images, settings.side)
    width = export(images, given.out, settings)
    print(f"{given.out}: {width} features learned from {len(images):,} images", file=sys.stderr)


if __name__ == "__main__":
    main()
