"""Networks of a finished folder, as other programs take them.

| form        | content                                                      | for             |
|-------------|--------------------------------------------------------------|-----------------|
| stablehlo   | one function of a batch, with its weights; CPU, CUDA and TPU | JAX             |
| onnx        | one function of a batch, with its weights                    | onnxruntime     |
| safetensors | weights by name, to build the network again                  | PyTorch and all |

A function takes records as `predict_proba` does, and returns float32 probabilities
`[n, num_classes]`:

    from jax import export
    student = export.deserialize(open("student.stablehlo", "rb").read())
    student.call(images)  # uint8 [n, height, width, channels]

    import onnxruntime
    student = onnxruntime.InferenceSession("student.onnx")
    student.run(["probability"], {"records": images})

ONNX and safetensors files carry the guarantee as JSON, under `guarantee` in their metadata.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import export

from rknn_jax._internal.disk import read_arrays
from rknn_jax._internal.extras import install
from rknn_jax._internal.onnx_file import onnx_bytes
from rknn_jax._internal.option_names import option
from rknn_jax.labelers.noisy_sgd import Head
from rknn_jax.students import ensemble
from rknn_jax.students import fit as students
from rknn_jax.students.ensemble import Ensemble
from rknn_jax.students.fit import Student
from rknn_jax.students.inputs import prepared
from rknn_jax.students.models import linear, mlp

PLATFORMS = ("cpu", "cuda", "tpu")

Network = Ensemble | Student | Head


def networks(folder: Path) -> dict[str, Network]:
    """Return the networks of a folder by subfolder: `student`, and the labeler's own `model`.

    A linear head or prototypes, which are one file of arrays in `model`, are no network.

    Raises:
      ValueError: If the folder has no network.
    """
    found: dict[str, Network] = {}
    if (folder / "student").is_dir():
        found["student"] = ensemble.load(folder / "student")
    if (folder / "model" / "head.npz").exists():
        found["model"] = _head(folder / "model" / "head.npz")
    elif (folder / "model").is_dir() and not any((folder / "model").glob("*.npz")):
        found["model"] = students.load(folder / "model")
    if not found:
        raise ValueError(
            f"Expected a folder with a network in student/ or model/, got {folder}, which has "
            "none; train a student first."
        )
    return found


def _of_one(model: Network) -> tuple[Callable[[jax.Array], jax.Array], tuple[int, ...], Any]:
    """Return class probabilities of one record as a function, with its shape and dtype."""
    if isinstance(model, Head):
        variables = {"params": model.params}

        def one(given: jax.Array) -> jax.Array:
            return jax.nn.softmax(
                model.network.apply(
                    variables, ((given - model.centre) / model.scale)[None], train=False
                )
            )[0]

        shape, dtype = model.centre.shape, jnp.float32
    else:
        members = model.members if isinstance(model, Ensemble) else (model,)

        def one(given: jax.Array) -> jax.Array:
            return jnp.mean(
                jnp.stack([_probabilities(member, given[None])[0] for member in members]), axis=0
            )

        shape = members[0].image_shape
        dtype = jnp.uint8 if members[0].scale is None else jnp.float32
    return one, shape, dtype


def exported(model: Network) -> export.Exported:
    """Return a network's class probabilities as a function of a batch of any size n.

    The function runs on all `PLATFORMS`.

    Args:
      model: Students that take uint8 images `[n, height, width, channels]` or float32 features
        `[n, f]`, or a head, which takes features of the encoder that it was trained behind.

    Returns:
      A function to float32 `[n, num_classes]`, which agrees with `predict_proba` up to rounding.
    """
    one, shape, dtype = _of_one(model)
    (n,) = export.symbolic_shape("n")
    frames = jax.config.values["jax_traceback_in_locations_limit"]
    jax.config.update("jax_traceback_in_locations_limit", 0)  # keeps local paths out of the file
    try:
        # Networks read the number of their images, which the symbolic n does not give. So export
        # the function of one record, which vmap makes a batch.
        return export.export(jax.jit(jax.vmap(one)), platforms=PLATFORMS)(
            jax.ShapeDtypeStruct((n, *shape), dtype)
        )
    finally:
        jax.config.update("jax_traceback_in_locations_limit", frames)


def stablehlo(model: Network, metadata: dict[str, str]) -> bytes:
    """Return the bytes that `jax.export.deserialize` reads, which carry no metadata.

    Raises:
      ValueError: If flatbuffers is not installed.
    """
    del metadata
    try:
        return bytes(exported(model).serialize())
    except ImportError as error:
        raise ValueError(
            f"{option('format')} stablehlo needs flatbuffers: {install('stablehlo')}."
        ) from error


def onnx(model: Network, metadata: dict[str, str]) -> bytes:
    """Return an ONNX model from `records` to `probability`, for a batch of any size.

    It agrees with `predict_proba` to about 1e-5.

    Raises:
      ValueError: If onnx is not installed.
    """
    return onnx_bytes(*_of_one(model), metadata)


def safetensors(model: Network, metadata: dict[str, str]) -> bytes:
    """Return the weights as a safetensors file, each under its name in the network.

    Kernels are as JAX has them: of a dense layer `[in, out]`, of a convolution
    `[height, width, in, out]`. The metadata name the network of each member, and its inputs.

    Raises:
      ValueError: If safetensors is not installed, or if a weight is no number.
    """
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise ValueError(
            f"{option('format')} safetensors needs safetensors: {install('embed')}."
        ) from error
    if isinstance(model, Head):
        arrays: Any = {"params": model.params, "centre": model.centre, "scale": model.scale}
        about = {"network": type(model.network).__name__, "input": "features"}
    else:
        members = model.members if isinstance(model, Ensemble) else (model,)
        arrays = {str(number): _arrays(member) for number, member in enumerate(members)}
        first = members[0]
        about = {
            "network": first.config.model,
            "members": str(len(members)),
            "num_classes": str(first.num_classes),
            "input": "features" if first.scale is not None else "uint8 images, divided by 255",
            "input_shape": json.dumps(first.image_shape),
        }
    flat = flatten_dict(arrays, sep=".")
    plain = {name: np.ascontiguousarray(array) for name, array in flat.items()}
    for name, array in plain.items():
        if array.dtype.kind not in "biuf":
            raise ValueError(
                f"Expected weights that are numbers, got {array.dtype} in {name}; the model is "
                "damaged, so train it again."
            )
    return bytes(save(plain, metadata=metadata | about))


def _arrays(student: Student) -> dict[str, Any]:
    """Return what a student computes with, by name."""
    kept = {"params": student.params, "batch_stats": student.batch_stats}
    return kept if student.scale is None else kept | {"scale": vars(student.scale)}


def _probabilities(student: Student, given: jax.Array) -> jax.Array:
    scale = student.scale
    if scale is not None:  # float32 rounds a mean that is large beside its deviation
        mean = scale.mean[None].astype(np.float32)
        rest = (scale.mean - mean).astype(np.float32)
        given = ((given - mean) - rest) / scale.stddev[None].astype(np.float32)
    rows = prepared(given)
    variables = {"params": student.params, "batch_stats": student.batch_stats}
    return jax.nn.softmax(
        students.network_of(student.config, student.num_classes).apply(variables, rows, train=False)
    )


def _head(path: Path) -> Head:
    """Read a file of `Head.save` as a head that takes features as they are.

    The file does not hold the head's encoder.

    Raises:
      ValueError: If the file is damaged or holds something else.
    """
    arrays = read_arrays(path, "centre", "scale")
    centre = arrays.pop("centre")
    scale = arrays.pop("scale")
    try:
        params = unflatten_dict(arrays, sep=".")
        last = params[f"Dense_{len(params) - 1}"]["kernel"]
        network = (
            linear.Model(last.shape[1]) if len(params) == 1 else mlp.Model(last.shape[1], len(last))
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"Expected the weights of a head in {path}, got {', '.join(arrays) or 'none'}; "
            "restore the file from a copy."
        ) from error
    return Head(params, centre, scale, network=network, encode=lambda features: features)


FORMS: dict[str, Callable[[Network, dict[str, str]], bytes]] = {
    "stablehlo": stablehlo,
    "onnx": onnx,
    "safetensors": safetensors,
}
"""Content of a file, by its form, from a network and the text that the file carries."""
