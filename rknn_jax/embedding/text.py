"""Models of text, by the names that `rknn embed --model` takes."""

from pathlib import Path

from rknn_jax.embedding import Model, text_onnx, text_sentences, text_vectors


def load(name: str) -> Model:
    """Load a model by its file, its folder or its name.

    Raises:
      ValueError: If the name is none of a model, or the model or what it needs cannot be used.
    """
    path = Path(name)
    if path.suffix == ".onnx":
        return text_onnx.load(path)
    if name == text_vectors.DEFAULT or path.suffix in text_vectors.SUFFIXES:
        return text_vectors.load(name)
    if name.startswith(text_sentences.PREFIX) or path.is_dir():
        return text_sentences.load(name)
    raise ValueError(
        f"Expected --model of --text to be {text_vectors.DEFAULT}, a .safetensors, .npy or .onnx "
        f"file, {text_sentences.PREFIX}NAME or the folder of such a model, got --model {name}; "
        "name one of these."
    )
