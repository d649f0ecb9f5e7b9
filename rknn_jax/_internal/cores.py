"""Cores of this process, and how many of them matrix products take."""

import functools
import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from threadpoolctl import ThreadpoolController

CGROUPS = Path("/sys/fs/cgroup")
"""Folder of Linux's control groups. In a container, it is the container's own group."""

MEMBERSHIP = Path("/proc/self/cgroup")
"""File that tells the groups of this process."""

_LOCK = threading.Lock()
_asking = 0  # who hold products to one thread now
_held: Any = None  # how many threads there were before


def num_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and its quota."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    shares = map(math.ceil, _quotas())  # part of a core is a core, for part of the time
    return max(1, min([len(os.sched_getaffinity(0)), *shares]))


@contextmanager
def one_thread_for_products(asked: bool = True) -> Iterator[None]:
    """Hold matrix products of NumPy and SciPy to one thread, if asked.

    The threads of small products wait for each other, on a busy machine for minutes. The whole
    process is held until the last of those who asked has left, in whatever order.
    """
    global _asking, _held
    if not asked:
        yield
        return
    with _LOCK:
        if not _asking:
            _held = _products().limit(limits=1, user_api="blas")
        _asking += 1
    try:
        yield
    finally:
        with _LOCK:
            _asking -= 1
            if not _asking:
                _held.restore_original_limits()


@functools.cache
def _products() -> ThreadpoolController:
    """Return the libraries of products. Finding them reads the map of all memory, so once."""
    import scipy.linalg  # noqa: F401 it brings a library of its own, which is found only then

    return ThreadpoolController()


def _quotas() -> Iterator[float]:
    """Yield the shares of time, in cores, of this process's groups and those above them."""
    for folder in _groups():
        with suppress(OSError, ValueError):  # "max" is no number
            quota, period = (folder / "cpu.max").read_text().split()
            yield int(quota) / int(period)
        with suppress(OSError, ValueError):
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
            if int(quota) > 0:  # -1 stands for no limit
                yield int(quota) / int(period)


def _groups() -> Iterator[Path]:
    """Yield the folders of this process's groups, in both versions of control groups."""
    yield CGROUPS
    yield CGROUPS / "cpu"
    with suppress(OSError):
        for line in MEMBERSHIP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = CGROUPS / "cpu" if controllers else CGROUPS
            group = top / path.lstrip("/")
            while group != top and top in group.parents:
                yield group
                group = group.parent
