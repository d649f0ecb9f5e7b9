"""Tiny ONNX networks for tests, of images and of text, written to files with their cards."""

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save
from tokenizers import Tokenizer, models, pre_tokenizers, processors

CARD = {
    "size": [6, 6],
    "mean": [127, 120, 110],
    "std": [128, 128, 64],
    "layout": "NCHW",
    "output": "features",
}


def write(
    folder: Path, name="tiny", *, seed=0, width=5, batch="n", mixes=False, draws="", **card
) -> Path:
    """Write a random linear map of the pixels and its card, and return the ONNX file.

    Args:
      folder: Folder of both files.
      name: Name of the files.
      seed: Seed of the weights.
      width: Number of features.
      batch: Name of the batch's axis, or the fixed number of images.
      mixes: True to subtract the mean of the batch, as a network in training mode does.
      draws: Where it draws at random: `nowhere`, `branch`, `function`, `dropout`, or `inner` and
        `shadow` for a dropout in a branch or a function. The first has a dropout that is off, and
        the last two one that is off by a name outside. Defaults to no node that could.
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
    constants = [numpy_helper.from_array(weights.astype(np.float32), "weights")]
    functions = []
    if draws:
        last = nodes[-1]
        last.output[0] = "steady"
        added, more, functions = _drawing(draws)
        nodes += added
        constants += more
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, [batch, width])],
        constants,
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)
    return _written(model, folder / f"{name}.onnx", card)


def _drawing(where):
    """Nodes from `steady` to `features`, their constants, and functions of the model."""
    if where in ("branch", "inner"):  # one that no image takes
        drawn = {
            "branch": helper.make_node("RandomUniformLike", ["steady"], ["drawn"], seed=7.0),
            "inner": helper.make_node("Dropout", ["steady", "", "never"], ["drawn"]),
        }
        steady = helper.make_node("Identity", ["steady"], ["same"])
        branches = {
            f"{name}_branch": helper.make_graph(
                [node],
                name,
                [],
                [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)],
                [numpy_helper.from_array(np.array(True), "never")],  # a name of its own
            )
            for name, node in (("then", drawn[where]), ("else", steady))
        }
        taken = helper.make_node("If", ["never"], ["features"], **branches)
        return [taken], [numpy_helper.from_array(np.array(False), "never")], []
    constants = [
        numpy_helper.from_array(np.array(where == "dropout"), "trains"),
        numpy_helper.from_array(np.array(True), "on"),
        numpy_helper.from_array(np.float32(0.1), "ratio"),
    ]
    if where in ("function", "shadow"):
        noisy = {
            "function": [
                helper.make_node("RandomNormalLike", ["x"], ["drawn"]),
                helper.make_node("Identity", ["x"], ["y"]),
            ],
            "shadow": [helper.make_node("Dropout", ["x", "", "trains"], ["y"])],
        }
        opsets = [helper.make_opsetid("", 13)]
        function = helper.make_function(
            "own", "Noisy", ["x", "trains"], ["y"], noisy[where], opsets
        )
        called = helper.make_node("Noisy", ["steady", "on"], ["features"], domain="own")
        return [called], constants, [function]
    return [helper.make_node("Dropout", ["steady", "ratio", "trains"], ["features"])], constants, []


def _written(model, path: Path, card) -> Path:
    save(model, path)
    path.with_suffix(".json").write_text(json.dumps(card))
    return path


WORDS = ("cat", "dog", "runs", "sleeps", "fast")

TEXT_CARD = {
    "max_length": 6,
    "inputs": ["input_ids", "attention_mask"],
    "output": "vectors",
    "pooling": "mean",
    "normalize": False,
}


def token_vectors(seed=0, width=3) -> np.ndarray:
    """Vectors of the padding, of an unknown word, of [CLS] and [SEP], and of `WORDS`."""
    rows = 4 + len(WORDS)
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def write_text(folder: Path, *, seed=0, attends="mask", axes=("n", "t"), **card) -> Path:
    """Write a transformer of one layer, its tokenizer and its card, and return the ONNX file.

    A token's vector is its own plus the mean of its text's, as by attention of equal weights.

    Args:
      folder: Folder of the three files.
      seed: Seed of the vectors.
      attends: `mask` to take the mean of the text's own tokens, `all` to take padding too, and
        `batch` to take all texts of the batch.
      axes: Names of the axes of texts and tokens, or fixed numbers.
      **card: Entries of the card that differ.
    """
    vocabulary = {word: row for row, word in enumerate(("[PAD]", "?", "[CLS]", "[SEP]", *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, ends)
    tokenizer.enable_padding(length=9)  # which the model must not keep
    tokenizer.save(str(folder / "tokenizer.json"))
    means = {
        "mask": [
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["kept"]),
            helper.make_node("Mul", ["own", "kept"], ["masked"]),
            helper.make_node("ReduceSum", ["masked", "tokens"], ["sums"]),
            helper.make_node("ReduceSum", ["kept", "tokens"], ["counts"]),
            helper.make_node("Div", ["sums", "counts"], ["mean"]),
        ],
        "all": [helper.make_node("ReduceMean", ["own"], ["mean"], axes=[1])],
        "batch": [helper.make_node("ReduceMean", ["own"], ["mean"], axes=[0, 1])],
    }
    vectors = token_vectors(seed)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["own"]),
            *means[attends],
            helper.make_node("Add", ["own", "mean"], ["vectors"]),
        ],
        "tiny",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, list(axes))
            for name in TEXT_CARD["inputs"]
        ],
        [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, [*axes, vectors.shape[1]])],
        [
            numpy_helper.from_array(vectors, "table"),
            numpy_helper.from_array(np.array([2]), "last"),
            numpy_helper.from_array(np.array([1]), "tokens"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return _written(model, folder / "words.onnx", TEXT_CARD | card)
