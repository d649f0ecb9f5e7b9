"""Pallas kernels for the two hot functions, `neighbors.nearest` and `collision.count_support`.

Each kernel replaces an XLA form, in `assignment` or next to its caller, which has the same
signature and is the reference. Both kernels are written for GPUs, through Triton; on a TPU the XLA
forms run. `kernels.nearest` and `kernels.decode` are imported when they run, because importing
Pallas takes a second. On a GPU, a kernel's first use compares it with its XLA form on a small
random problem. A kernel that fails there is not used.
"""

import functools
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, get_args

import jax

Implementation = Literal["xla", "pallas"]

MOST_KEYS = 64
"""Most keys of a point that fit the registers of `kernels.nearest`."""


def chosen(implementation: Implementation | None, agrees: Callable[[], bool]) -> Implementation:
    """Return the requested implementation, or the best one for this platform.

    Args:
      implementation: `xla`; or `pallas`, which a CPU interprets, slowly, for tests; or None for the
        best.
      agrees: Function that compares the kernel with its XLA form on this device. It is called once,
        if None is given on a GPU.

    Raises:
      ValueError: If the name is unknown, or `pallas` is requested on a TPU.
    """
    platform = jax.default_backend()
    if implementation is None:
        return "pallas" if platform == "gpu" and _verified(agrees) else "xla"
    if implementation not in get_args(Implementation) or (implementation, platform) == (
        "pallas",
        "tpu",
    ):
        raise ValueError(
            "Expected implementation xla, pallas (on a GPU or a CPU) or None, got "
            f"{implementation} on a {platform}."
        )
    return implementation


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
        f"A Pallas kernel is not used on this {jax.devices()[0].device_kind}, because "
        f"{found.splitlines()[0][:200]}. XLA computes the same, more slowly.",
        RuntimeWarning,
        stacklevel=2,
    )
    return False
