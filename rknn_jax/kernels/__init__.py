"""Pallas kernels for the two hot functions, `neighbors.nearest` and `collision.count_support`.

Each kernel replaces an XLA form, which is next to its caller, has the same signature, and is the
reference. Both kernels are written for GPUs, through Triton; on a TPU the XLA forms run.
`kernels.nearest` and `kernels.decode` are imported when they run, because importing Pallas takes a
second.
"""

from typing import Literal, get_args

import jax

Implementation = Literal["xla", "pallas"]


def chosen(implementation: Implementation | None) -> Implementation:
    """Return the requested implementation, or the best one for this platform.

    Args:
      implementation: `xla`; or `pallas`, which a CPU interprets, slowly, for tests; or None for the
        best.

    Raises:
      ValueError: If the name is unknown, or `pallas` is requested on a TPU.
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
