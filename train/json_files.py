"""JSON files of a program: written in full, or appended to line by line."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rknn_jax._internal.disk import write_whole


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, in full or not at all."""
    write_whole(path, (json.dumps(value, indent=2, default=plain) + "\n").encode())


def append_jsonl(path: Path, value: dict[str, Any]) -> None:
    """Append one line of JSON."""
    with path.open("a") as file:
        file.write(json.dumps(value, default=plain) + "\n")


def plain(value: Any) -> Any:
    """Return what JSON can hold of a value that it cannot: an array's numbers, or a string."""
    if isinstance(value, np.ndarray | jax.Array):
        return np.asarray(value).tolist()
    if isinstance(value, np.generic):
        return value.item()
    return str(value)
