"""Static vectors of five words, as `rknn embed --text` reads them."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ("cat", "dog", "runs", "sleeps", "fast")


def write(folder: Path) -> Path:
    """Write the vectors and their tokenizer to `words` in a folder, and return their path."""
    vocabulary = {"?": 0} | {word: number for number, word in enumerate(WORDS, 1)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_padding(length=9)  # which a mean must not see
    tokenizer.enable_truncation(1)
    (folder / "words").mkdir()
    tokenizer.save(str(folder / "words/tokenizer.json"))
    path = folder / "words/vectors.npy"
    np.save(path, np.arange(18, dtype=np.float16).reshape(6, 3))
    return path
