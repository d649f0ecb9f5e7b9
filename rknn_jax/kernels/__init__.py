"""Kernels for the hot functions, each of which replaces an XLA form with the same results.

The XLA form is the reference, and has the same signature. A Pallas kernel runs on a GPU, through
Triton; a native kernel, of `kernels.native`, on a CPU. On a TPU the XLA forms run.
`kernels.nearest` and `kernels.decode` are imported when they run, because importing Pallas takes a
second. A kernel's first use compares it with its XLA form on a small problem. A kernel that fails
there is not used.
"""

import functools
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import jax
import numpy as np

from rknn_jax.kernels import native

Implementation = Literal["xla", "pallas", "native"]

MOST_KEYS = 64
"""Most keys of a point that fit the registers of `kernels.nearest`."""


def chosen(
    implementation: Implementation | None,
    agrees: Callable[[], bool] | None,
    native_agrees: Callable[[], bool] | None = None,
) -> Implementation:
    """Return the requested implementation, or the best one for this platform.

    Args:
      implementation: `xla`; `native`, which a CPU has if the installation compiled it; `pallas`,
        which a CPU interprets, slowly, for tests; or None for the best.
      agrees: Function that compares the Pallas kernel with its XLA form on this device. It is
        called once, if None is given on a GPU. None if there is no Pallas kernel.
      native_agrees: Function that compares the native kernel with its XLA form. It is called once,
        if None is given on a CPU. Defaults to no native kernel.

    Raises:
      ValueError: If the name is unknown, or the implementation does not run here.
    """
    platform = jax.default_backend()
    has_pallas = agrees is not None and platform != "tpu"
    has_native = native_agrees is not None and platform == "cpu" and native.load() is not None
    if implementation is None:
        if platform == "gpu" and agrees is not None and _verified(agrees):
            return "pallas"
        if native_agrees is not None and has_native and _verified(native_agrees):
            return "native"
        return "xla"
    runs = {"xla": True, "pallas": has_pallas, "native": has_native}
    if not runs.get(implementation, False):
        raise ValueError(
            "Expected implementation xla, pallas (on a GPU or a CPU), native (on a CPU, outside of "
            "traced functions for neighbors, if the installation compiled it) or None, got "
            f"{implementation} on a {platform}."
        )
    return implementation


def native_agrees(run: Callable[[Implementation], jax.Array]) -> bool:
    """Compare the result of a native kernel with that of XLA, bit for bit.

    Args:
      run: Function that solves a small problem with an implementation.
    """
    # Level 0 halves the second that a comparison takes, almost all of which is for compiling.
    options = {"xla_backend_optimization_level": 0}
    native, xla = (
        jax.jit(functools.partial(run, form), compiler_options=options)()
        for form in ("native", "xla")
    )
    return np.array_equal(native, xla)


@functools.cache
def _verified(agrees: Callable[[], bool]) -> bool:
    """Run the comparison, and warn if the kernel fails it."""
    # A thread of its own, because the caller may be in the middle of tracing a function.
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(agrees)
    error = answer.exception()
    if error is None and answer.result():
        return True
    found = f"{type(error).__name__}: {error}" if error else "its result differs from XLA's"
    warnings.warn(
        f"A kernel is not used on this {jax.devices()[0].device_kind}, because "
        f"{found.splitlines()[0][:200]}. XLA computes the same, more slowly.",
        RuntimeWarning,
        stacklevel=2,
    )
    return False
