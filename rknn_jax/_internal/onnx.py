"""Networks in ONNX files: reading, digests, sessions, and the check that records do not mix."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 1e-3
"""Largest difference that the other records of a batch may make, relative to the features."""


def read(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
      ValueError: If there is no file, or it cannot be opened.
    """
    # In a federation the server names the path, and a device may never end.
    if not path.is_file():
        raise ValueError(f"There is no file {path}; name an ONNX file.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"The network {path} could not be opened: {error.strerror}; name an ONNX file."
        ) from error


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal; raises as `read`."""
    return hashlib.sha256(read(path)).hexdigest()


def session(path: Path, expected: str) -> Any:
    """Return a session of onnxruntime.

    Args:
      path: ONNX file.
      expected: SHA-256 that it must have.

    Raises:
      ValueError: If onnxruntime is not installed, or the file is absent, changed or no network.
    """
    data = read(path)
    if hashlib.sha256(data).hexdigest() != expected:
        raise ValueError(
            f"Expected the network {path} as it was, of SHA-256 {expected}, got another file; "
            "restore it, or encode all records anew."
        )
    try:
        import onnxruntime
    except ImportError as error:
        raise ValueError(
            "A pretrained network needs onnxruntime, which is not installed; pip install "
            "'rknn-jax[embed]'."
        ) from error
    try:
        return onnxruntime.InferenceSession(data, providers=onnxruntime.get_available_providers())
    except Exception as error:  # onnxruntime raises errors of many types
        raise ValueError(f"Cannot load the network {path}: {error}; export it anew.") from error


def check_each_by_itself(alone: np.ndarray, among: np.ndarray, path: str) -> None:
    """Refuse a network whose features of a record depend on the other records of a batch.

    Args:
      alone: Features of records that were encoded one by one, `[n, f]`.
      among: Features of the same records, encoded at once, `[n, f]`.
      path: Path or name of the network, for the error.

    Raises:
      ValueError: If they differ by more than rounding, or are not finite.
    """
    size = max(float(np.abs(one).max(initial=0)) for one in (alone, among))
    close = float(np.abs(alone - among).max(initial=0)) <= TOLERANCE * size
    if not np.isfinite(among).all() or not close:
        raise ValueError(
            f"Expected finite features of each record by itself from {path}, got other features "
            "for a record among others than alone; one private record would move the votes of "
            "others. Export the network for evaluation."
        )
