"""Versions and device, which every result records."""

import os
import platform
import time
from importlib import metadata
from typing import Any

import jax

VERSIONS = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "scikit-learn", "dp-accounting")


def own_version() -> str:
    """Return the version of this library, also in a checkout that is not installed."""
    try:
        return metadata.version("rknn-jax")
    except metadata.PackageNotFoundError:
        return "not installed"


def environment() -> dict[str, Any]:
    """Return versions and device, which every result records."""
    return {
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in VERSIONS},
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
