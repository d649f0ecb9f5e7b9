"""Pallas twins of the two hot functions, `neighbors.nearest` and `collision.count_support`.

A twin replaces the inner XLA form, which stands beside its caller, has the same signature, and is
the reference. Both are written for GPUs, through Triton; on a TPU the XLA forms run.
`kernels.nearest` and `kernels.decode` are imported where they run, because importing Pallas takes a
second.
"""

from typing import Literal, get_args

import jax

Implementation = Literal["xla", "pallas"]


def chosen(implementation: Implementation | None) -> Implementation:
    """Return the one that is asked for, or the best of this platform.

    Args:
      implementation: xla; pallas, which a CPU interprets, slowly, for tests; or None.

    Raises:
      ValueError: for another name, and for pallas on a TPU.
    """
    platform = jax.default_backend()
    if implementation is None:
        return "pallas" if platform == "gpu" else "xla"
    if implementation not in get_args(Implementation) or (implementation, platform) == (
        "pallas",
        "tpu",
    ):
        raise ValueError(
            "Expected implementation xla, pallas (on a GPU or a CPU) or None, got "
            f"{implementation} on a {platform}."
        )
    return implementation
