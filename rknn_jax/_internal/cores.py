"""Cores of this process, and how many of them matrix products take."""

import functools
import math
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from threadpoolctl import ThreadpoolController

CGROUPS = Path("/sys/fs/cgroup")
"""Folder of Linux's control groups. In a container, it is the container's own group."""

MEMBERSHIP = Path("/proc/self/cgroup")
"""File that tells the groups of this process."""


def num_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and its quota."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    shares = map(math.ceil, _quotas())  # part of a core is a core, for part of the time
    return max(1, min([len(os.sched_getaffinity(0)), *shares]))


def threads_of_products(most: int | None) -> AbstractContextManager[object]:
    """Hold matrix products of NumPy and SciPy to `most` threads, or to nothing if it is None.

    The threads of small products wait for each other, on a busy machine for minutes.
    """
    held: AbstractContextManager[object] = _products().limit(limits=most, user_api="blas")
    return held


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
