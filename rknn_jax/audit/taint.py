"""Private arrays that raise an error if they are read after the mechanism.

A `Sealed` array reads as the array that it holds until its `Seal` is closed. A mechanism from
`closing` closes the seal as soon as it has drawn its noise. All later code must be post-processing:
it may ask for the number of records, if that is public, and no more.
"""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from rknn_jax.mechanisms.base import CentralMechanism


class TaintError(RuntimeError):
    """Private values were read after the mechanism."""


@dataclass
class Seal:
    """Switch that all private arrays of one release share.

    Attributes:
      closed: True once the mechanism has drawn its noise. Defaults to False.
    """

    closed: bool = False


class Sealed(np.lib.mixins.NDArrayOperatorsMixin):
    """Array whose values cannot be read once its seal is closed; shape and dtype can."""

    def __init__(self, array: Any, name: str, seal: Seal) -> None:
        self._array = np.asarray(array)
        self._name = name
        self._seal = seal
        self.shape, self.dtype, self.ndim = self._array.shape, self._array.dtype, self._array.ndim

    def _read(self) -> np.ndarray:
        if self._seal.closed:
            raise TaintError(
                f"{self._name} were read after the mechanism, and no noise covers that."
            )
        return self._array

    def __len__(self) -> int:
        length: int = self.shape[0]
        return length

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._read(), dtype=dtype)

    def __getitem__(self, index: Any) -> np.ndarray:
        part: np.ndarray = self._read()[index]
        return part

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # NumPy, JAX and `copy` probe for such names.
            raise AttributeError(name)
        return getattr(self._read(), name)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        read = [value._read() if isinstance(value, Sealed) else value for value in inputs]
        return getattr(ufunc, method)(*read, **options)


def closing(mechanism: CentralMechanism, seal: Seal) -> CentralMechanism:
    """Return the mechanism, changed to close a seal once its `release` has drawn the noise."""
    watched = copy.copy(mechanism)

    def release(totals: np.ndarray) -> np.ndarray:
        counts = mechanism.release(totals)
        seal.closed = True
        return counts

    object.__setattr__(watched, "release", release)
    return watched
