"""JAX's compiled programs, kept between runs or not."""

import hashlib
import importlib.util
import os
import platform
import sys
from pathlib import Path
from typing import Any

ACCELERATORS = ("jax_plugins", "libtpu")
"""Packages of JAX for GPUs and TPUs."""


def keep() -> None:
    """Keep compiled programs in `~/.cache/rknn_jax` or `JAX_COMPILATION_CACHE_DIR`.

    Compiled programs hold the constants of the program, so keep them only for experiments. `rknn
    label`, `check` and `join` call `keep_none`, so that a record in a function's closure is never
    left on disk. XLA compiles for the current processor, so every kind of processor has a folder of
    its own.
    """
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "rknn_jax" / _processor()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def keep_none() -> None:
    """Keep no compiled program, regardless of the environment.

    This is for commands that see private records.
    """
    import jax

    jax.config.update("jax_enable_compilation_cache", False)


def wide_vectors() -> dict[str, Any]:
    """Return `compiler_options` of a `jax.jit` whose loops should fill the CPU's vectors.

    XLA uses 256 bits unless it is told otherwise, and hashes up to twice as fast with the 512 bits
    of AVX-512. The options belong to one compiled function; `XLA_FLAGS` stays the user's. JAX
    refuses options of a function that another one traces, so only outermost functions take them.
    """
    return {"xla_cpu_prefer_vector_width": 512} if "avx512f" in _features().split() else {}


def brief() -> dict[str, Any]:
    """Return `compiler_options` of a `jax.jit` that takes longer to compile than to run.

    A network's initial weights compile in a fifth of the time, and have the same bits. Level 0
    would compile in an eighth, but rounds differently. As with `wide_vectors`, only outermost
    functions take the options. Those of `XLA_FLAGS` win.
    """
    return _unless_given({"xla_backend_optimization_level": 1})


def moderate() -> dict[str, Any]:
    """Return `compiler_options` of a `jax.jit` that runs often and compiles for seconds.

    A student's step compiles in 0.7 of the time that LLVM's level 3 takes. On images of 28 x 28
    pixels and more the steps are as fast, with the same bits; those on 8 x 8 take 1.4 times as
    long. Otherwise as `brief`.
    """
    return _unless_given({"xla_backend_optimization_level": 2})


def _unless_given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that `XLA_FLAGS` does not have, or none beside an accelerator.

    Only CPUs were measured. Whether there is an accelerator, JAX tells after it has started, so
    this looks for its package.
    """
    if any(importlib.util.find_spec(name) for name in ACCELERATORS):
        return {}
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in options.items() if name not in flags}


def _processor() -> str:
    text = _features() or platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _features() -> str:
    """Return Linux's line of the processor's features, or nothing."""
    try:
        return next(
            line
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith(("flags", "Features"))
        )
    except (OSError, StopIteration):
        return ""


def without_device() -> str:
    """Return why JAX has no device, with a remedy, or "" if it has one or is not loaded."""
    jax = sys.modules.get("jax")
    if jax is None:
        return ""
    try:
        jax.devices()
    except Exception as error:  # also an AssertionError without words
        found = os.environ.get("JAX_PLATFORMS", "")
        reason = " ".join(str(error).split()) or "no such device"
        return (
            f"Expected JAX_PLATFORMS to name devices of this machine, got JAX_PLATFORMS={found} "
            f"({reason}); unset it, or set it to cpu."
        )
    return ""
