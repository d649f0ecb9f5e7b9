"""A world in a seed: processes, their disk, clock and random numbers, one call at a time.

Processes are real ones, forked from this one, and their calls are the system's own. `_calls.c`
stops each of them before every call that touches the world's folder, sleeps, or draws random
numbers. The world lets one of them go on, chosen by its seed, and waits until that one stops again.
So the order of all calls, each fault and all random numbers follow from the seed. A call may fail,
a write may be short, a process may be killed, and the power may be lost (`_disk_model`).
"""

import ctypes
import errno
import mmap
import os
import re
import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks._disk_model import DiskModel

VERDICT = struct.Struct("iiQ")
PACKET = 2**14
HASH = re.compile("[0-9a-f]{64}")
"""Name of a file in the index of ledgers, a salted hash of a path."""

HANGS = 60.0
"""Seconds of the real clock in which a process must come to its next call."""

SPARED = 900
"""Most calls of a process before the first fault may hit it, about as many as a release makes.

So faults also come late in works of many calls.
"""

FIRST_PROCESS = 1001
BEGINS = 1_800_000_000 * 10**9
CALL_TIME = 10**6
"""The world's clock at its beginning, and the time that each call takes, in nanoseconds."""

REST = 0.02
LONGEST_REST = 400
"""Probability at a call that a process rests while others go on, and the most calls that it rests.

So one may stop in the middle of what others must not see half done.
"""

NAMES = ("create", "mkdir", "rmdir", "unlink", "unlinkat", "link", "linkat", "rename", "renameat")
CONTENTS = ("write", "pwrite64", "writev", "ftruncate64", "truncate64", "posix_fallocate")
SYNCS = ("fsync", "fdatasync")
FULL = ("create", "write", "posix_fallocate", "mkdir", "link", "rename")
NEVER_FAIL = ("sleep", "close", "flock")
"""Calls that change names, contents, and what is durable; that a full disk fails; and that no fault
fails, as they either cannot fail or are followed by nothing.
"""


class Rates(NamedTuple):
    """Probability of each fault at a call."""

    error: float = 0.0
    short: float = 0.0
    kill: float = 0.0
    power: float = 0.0

    @classmethod
    def drawn(cls, random: Random) -> "Rates":
        """Draw which faults a history has, so that each is also seen without the others."""
        return cls(
            error=random.choice((0.0, 0.003, 0.03)),
            short=random.choice((0.0, 0.1, 0.5)),
            kill=random.choice((0.0, 0.003, 0.03)),
            power=random.choice((0.0, 0.001, 0.003)),
        )


class Request(NamedTuple):
    """Call that a process waits to make."""

    call: str
    size: int
    path: str
    other: str


@dataclass
class Process:
    """Process of the world.

    Attributes:
      name: Name of what it does.
      pid: Number that the operating system gives it.
      number: Number that it sees.
      socket: Socket on which it asks.
      request: Call that it waits to make.
      fault: True if a fault has hit it.
      rests: Length of the world's trace until which it rests.
      spared: Calls that it makes until a fault may hit it.
      end: Words of its end, empty after success; None while it runs.
    """

    name: str
    pid: int
    number: int
    socket: socket.socket
    request: Request
    fault: bool = False
    rests: int = 0
    spared: int = 0
    end: str | None = None


@dataclass
class World:
    """World that a seed decides.

    Attributes:
      folder: Folder of its disk, which holds what is there at the beginning.
      random: Random numbers of all decisions.
      rates: Faults that it has.
      processes: Processes that run.
      trace: What happened, in order.
      changed: Paths whose meaning or content the last call changed; None after a loss of power.
    """

    folder: Path
    random: Random
    rates: Rates
    processes: list[Process] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    changed: list[Path] | None = None
    started: int = 0

    def __post_init__(self) -> None:
        self._page = mmap.mmap(-1, 8)
        self._now = ctypes.c_int64.from_buffer(self._page)
        self._now.value = BEGINS
        self.disk = DiskModel(self.folder)

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Start a process."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.started += 1
        number = FIRST_PROCESS + self.started
        pid = os.fork()
        if not pid:
            self._become(theirs, number, work)
        theirs.close()
        mine.settimeout(HANGS)
        spared = self.random.choice((0, self.random.randrange(SPARED)))
        process = Process(name, pid, number, mine, Request("", 0, "", ""), spared=spared)
        self.processes.append(process)
        self.trace.append(f"{name}: starts as {number}")
        self._await(process)

    def _become(self, asks: socket.socket, number: int, work: Callable[[], None]) -> None:
        words = ""
        try:
            silent = os.open(os.devnull, os.O_RDWR)
            for standard in range(3):
                os.dup2(silent, standard)
            os.chdir(self.folder)
            clock = ctypes.c_void_p(ctypes.addressof(self._now))
            ctypes.CDLL(None).join_world(os.fsencode(self.folder), asks.fileno(), number, clock)
            work()
        except BaseException as error:
            notes = " ".join(getattr(error, "__notes__", []))
            words = ": ".join(filter(None, (type(error).__name__, f"{error} {notes}".strip())))
        finally:
            asks.send(f"!\t{words}".encode()[: PACKET - 1])
            os._exit(0)

    def _await(self, process: Process) -> None:
        """Wait until a process stops at a call, or ends."""
        kind, *words = process.socket.recv(PACKET).decode(errors="replace").split("\t")
        if kind == "!":
            self._bury(process, words[0])
        else:
            process.request = Request(kind, int(words[0]), words[1], words[2])

    def _bury(self, process: Process, end: str) -> None:
        process.end = end
        os.waitpid(process.pid, 0)
        process.socket.close()
        self.processes.remove(process)
        self._note(f"{process.name}: ends: {end[:300] or 'done'}")

    def kill(self, process: Process) -> None:
        """Kill a process before its next call."""
        os.kill(process.pid, signal.SIGKILL)
        self._bury(process, "killed")

    def step(self) -> Process | None:
        """Let one process make its call, or a fault come; return the process if it ended."""
        awake = [one for one in self.processes if not self._sleeps(one)]
        if not awake:
            self._now.value = min(one.request.size for one in self.processes)
            return None
        self._now.value += CALL_TIME
        self.changed = []
        if self.random.random() < self.rates.power:
            return self._lose_power()
        if self.random.random() < REST:
            self.random.choice(awake).rests = len(self.trace) + self.random.randrange(LONGEST_REST)
        ready = [one for one in awake if one.rests <= len(self.trace)]
        process = self.random.choice(ready or awake)
        process.spared -= 1
        if process.spared < 0 and self.random.random() < self.rates.kill:
            self.kill(process)
            return process
        self._grant(process)
        return process if process.end is not None else None

    def _sleeps(self, process: Process) -> bool:
        return process.request.call == "sleep" and process.request.size > self._now.value

    def _lose_power(self) -> None:
        self.trace.append("power is lost")
        for process in list(self.processes):
            self.kill(process)
        self.disk.crash(self.random)
        self.changed = None

    def _grant(self, process: Process) -> None:
        request = process.request
        error, most = self._fault(request) if process.spared < 0 else (0, -1)
        process.fault |= error != 0 or most >= 0
        seed = self.random.getrandbits(64)
        process.socket.send(VERDICT.pack(error, most, seed))
        _, result, failed = process.socket.recv(PACKET).decode().split("\t")
        told = f" = {result}" + (f" ({os.strerror(int(failed))})" if int(failed) else "")
        fault = " FAULT" * (error != 0 or most >= 0)
        paths = " ".join(path for path in (request.path, request.other) if path)
        self._note(f"{process.name}: {request.call} {paths}{told}{fault}")
        self._follow(request)
        self._await(process)

    def _fault(self, request: Request) -> tuple[int, int]:
        """Return the error that a call fails with, or 0, and the most bytes of its write, or -1."""
        chance = self.random.random()
        if request.call in NEVER_FAIL:
            return 0, -1
        if chance < self.rates.error:
            full = request.call in FULL and chance < self.rates.error / 2
            return errno.ENOSPC if full else errno.EIO, -1
        if request.call == "write" and request.size > 1 and self.random.random() < self.rates.short:
            return 0, self.random.randrange(1, request.size)
        return 0, -1

    def _follow(self, request: Request) -> None:
        """Let the model of the disk follow a call."""
        paths = [self.folder / path for path in (request.path, request.other) if path]
        if request.call in NAMES:
            self.disk.look(*paths)
            self.changed = paths
        elif request.call in CONTENTS:
            self.disk.read(paths[0])
            self.changed = paths
        elif request.call in SYNCS:
            self.disk.sync(paths[0])

    def _note(self, words: str) -> None:
        """Note what happened, without what depends on where the folder is."""
        words = words.replace(f"{self.folder}/", "").replace(str(self.folder), ".")
        self.trace.append(HASH.sub("#", words))

    def end(self) -> None:
        """Kill all processes."""
        for process in list(self.processes):
            self.kill(process)
