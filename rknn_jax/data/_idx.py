"""Reader and writer of idx files, plain or gzipped.

MNIST's format is a big-endian header and an array.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from rknn_jax._internal.disk import write_whole

DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read(folder: Path, name: str) -> np.ndarray:
    """Return the array of `folder/name` or `folder/name.gz`.

    Raises:
      FileNotFoundError: If neither file exists.
      ValueError: If the file is not an idx file, is too short or too long, or does not unzip.
    """
    path = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"There is no {name} or {name}.gz in data_dir={folder}; put the data set's idx files "
            "there."
        )
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"Cannot read {path}: {error}; fetch the file again.") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in DTYPES or len(data) < 4 + 4 * data[3]:
        raise ValueError(
            f"{path} is not an idx file (it starts with {data[:4].hex() or 'nothing'}); fetch "
            "the file again."
        )
    dtype = np.dtype(DTYPES[data[2]])
    start = 4 + 4 * data[3]
    shape = tuple(np.frombuffer(data, ">u4", data[3], 4).tolist())
    expected = start + dtype.itemsize * math.prod(shape)
    if len(data) != expected:
        raise ValueError(
            f"{path} holds {len(data)} bytes where its header tells {expected}; fetch the file "
            "again."
        )
    array = np.frombuffer(data, dtype, offset=start)
    try:
        array = array.reshape(shape)
    except ValueError as error:  # the header has too many axes, or a length of 0 beside huge ones
        raise ValueError(
            f"{path} has a header of an impossible shape ({error}); fetch the file again."
        ) from error
    return array.astype(dtype.newbyteorder("="))


def write(path: Path, array: np.ndarray) -> None:
    """Write an array as idx, gzipped if the name ends in .gz."""
    code = next(
        code for code, dtype in DTYPES.items() if np.dtype(dtype) == array.dtype.newbyteorder(">")
    )
    data = (
        bytes([0, 0, code, array.ndim])
        + np.array(array.shape, ">i4").tobytes()
        + array.astype(DTYPES[code]).tobytes()
    )
    write_whole(path, gzip.compress(data) if path.suffix == ".gz" else data)
