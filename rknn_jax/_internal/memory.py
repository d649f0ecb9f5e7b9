"""Memory that this process has taken and can still take."""

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
"""Most memory of this process's group and what the group has taken, in both versions."""


def available() -> int | None:
    """Return the bytes that can still be taken, or None if the system does not tell."""
    return min(_limits(), default=None)


def resident() -> int:
    """Return the bytes of memory that this process has."""
    return _numbers(Path("/proc/self/status"))["VmRSS"]


def _limits() -> Iterator[int]:
    with suppress(OSError, KeyError, ValueError):
        told = _numbers(Path("/proc/meminfo"))
        yield told["MemAvailable"] + told["SwapFree"]
    for most, taken in _CGROUPS:
        with suppress(OSError, ValueError):  # "max" is no number
            limit = int(most.read_text())
            # Pages of files count as taken, though they are given up when memory is needed.
            files = _cached(most.with_name("memory.stat"))
            yield max(0, limit - int(taken.read_text()) + files)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        with suppress(OSError, KeyError, ValueError):
            yield max(0, soft - _numbers(Path("/proc/self/status"))["VmSize"])


def _numbers(path: Path) -> dict[str, int]:
    """Return the bytes that lines such as `MemAvailable: 12 kB` tell."""
    fields = (line.split() for line in path.read_text().splitlines())
    return {
        words[0].rstrip(":"): int(words[1]) * 1024
        for words in fields
        if len(words) == 3 and words[2] == "kB"
    }


def _cached(path: Path) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(number)
    return 0
