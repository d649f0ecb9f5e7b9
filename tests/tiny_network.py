"""Tiny ONNX networks for tests, written to files with their cards."""

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

CARD = {
    "size": [6, 6],
    "mean": [127, 120, 110],
    "std": [128, 128, 64],
    "layout": "NCHW",
    "output": "features",
}


def write(folder: Path, name="tiny", *, seed=0, width=5, batch="n", mixes=False, **card) -> Path:
    """Write a random linear map of the pixels and its card, and return the ONNX file.

    Args:
      folder: Folder of both files.
      name: Name of the files.
      seed: Seed of the weights.
      width: Number of features.
      batch: Name of the batch's axis, or the fixed number of images.
      mixes: True to subtract the mean of the batch, as a network in training mode does.
      **card: Entries of the card that differ.
    """
    card = CARD | card
    rows, columns = card["size"]
    channels_first = card["layout"] == "NCHW"
    shape = [batch, 3, rows, columns] if channels_first else [batch, rows, columns, 3]
    weights = np.random.default_rng(seed).normal(size=(3 * rows * columns, width))
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"], axis=1),
        helper.make_node("MatMul", ["flat", "weights"], ["features"]),
    ]
    if mixes:
        nodes[1].output[0] = "product"
        nodes += [
            helper.make_node("ReduceMean", ["product"], ["mean"], axes=[0], keepdims=1),
            helper.make_node("Sub", ["product", "mean"], ["features"]),
        ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, [batch, width])],
        [numpy_helper.from_array(weights.astype(np.float32), "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path = folder / f"{name}.onnx"
    save(model, path)
    path.with_suffix(".json").write_text(json.dumps(card))
    return path
