"""Files of tokenizers, which lie beside the models of text."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rknn_jax._internal.extras import install
from rknn_jax._internal.option_names import option
from rknn_jax._internal.panics import called

NAME = "tokenizer.json"
"""Name of a tokenizer's file, beside that of its model."""

UNREAD = "a text that the tokenizer cannot take, such as a word that it does not know"
"""Reason why a text cannot be used."""


def tokenizer(path: Path) -> Any:
    """Return a tokenizer of the package `tokenizers`, which neither pads nor truncates.

    Raises:
      ValueError: If the package is not installed, or the file cannot be read.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError(
            f"Text needs tokenizers, which is not installed; {install('embed')}."
        ) from error
    try:
        read = called(Tokenizer.from_file, str(path))
    except Exception as error:  # the package raises nothing more special
        raise ValueError(f"Cannot read the tokenizer {path}: {error}; restore it.") from error
    read.no_padding()
    read.no_truncation()
    return read


def each(encode: Callable[[list[str]], Sequence[Any]], texts: list[str]) -> list[Any]:
    """Return what a tokenizer makes of each text, and None for one that it cannot take.

    A tokenizer without a token for unknown words fails on a batch that has one. Its error would
    reveal the text.

    Args:
      encode: Function of texts, which makes as many results and treats each by itself.
      texts: Texts.
    """
    try:
        return list(called(encode, texts))
    except Exception:  # the package raises nothing more special
        if len(texts) <= 1:
            return [None] * len(texts)
    half = len(texts) // 2
    return each(encode, texts[:half]) + each(encode, texts[half:])


def digest(files: Sequence[Path], model: str) -> str:
    """Return the SHA-256 of a model's files, one after the other, in hexadecimal.

    Raises:
      ValueError: If a file is not there.
    """
    found = hashlib.sha256()
    for path in files:
        if not path.is_file():
            raise ValueError(
                f"There is no file {path} of {option('model')} {model}; name the file of the "
                f"model, with {NAME} beside it."
            )
        found.update(path.read_bytes())
    return found.hexdigest()
