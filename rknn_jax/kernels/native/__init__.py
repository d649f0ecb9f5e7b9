"""Native kernels for CPUs: C++ that the installation compiled, if there was a compiler.

`hatch_build.py` compiles each `.cc` of this folder into one library for each kind of processor.
`load` loads the best one that this processor runs. Where there is none, XLA does the work: the
results are the same. `call` runs a kernel inside of a traced function.
"""

import ctypes
import functools
import warnings
from pathlib import Path
from typing import Any

import jax

PROCESSORS = ("avx512", "avx2")
"""Names of the libraries, the fastest first."""


@functools.cache
def load() -> ctypes.CDLL | None:
    """Return the fastest library that this processor runs, loaded once, or None."""
    for name in PROCESSORS:
        path = Path(__file__).with_name(f"{name}.so")
        if path.exists():
            try:
                loaded = ctypes.CDLL(str(path))
            except OSError as error:
                warnings.warn(
                    f"The native kernels of {path} are not used: {error}.",
                    RuntimeWarning,
                    stacklevel=2,
                )
                continue
            if loaded.rknn_supported():
                return loaded
    return None


def processor() -> str | None:
    """Return the one of `PROCESSORS` whose library is loaded, or None."""
    found = load()
    return Path(found._name).stem if found else None


def call(
    name: str,
    result: Any,
    *arguments: jax.Array,
    vmap_method: Any = "broadcast_all",
    **settings: Any,
) -> Any:
    """Call a kernel of the library from a function that may be traced or mapped.

    Under `jax.vmap`, every argument and the result have the mapped axes in front.

    Args:
      name: Name that the kernel is exported by.
      result: `jax.ShapeDtypeStruct` of the result.
      *arguments: Arrays of the types that the kernel expects.
      vmap_method: `expand_dims` if the kernel takes axes of length 1 in place of mapped ones that
        an argument has not, or `broadcast_all`. Defaults to the latter.
      **settings: NumPy scalars of the types that the kernel expects.
    """
    found = load()
    assert found is not None, "callers ask `kernels.chosen` first"
    target = _registered(name, found)
    kernel: Any = jax.ffi.ffi_call(target, result, vmap_method=vmap_method)
    return kernel(*arguments, **settings)


@functools.cache
def _registered(name: str, found: ctypes.CDLL) -> str:
    """Register a kernel with XLA, and return its name there."""
    target = f"{processor()}_{name}"
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(found, name)), platform="cpu")
    return target
