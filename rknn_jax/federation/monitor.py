"""Health of a server, for who runs it, and metrics in Prometheus's text format.

They are served on the loopback interface, to whoever is on this host. So they hold what the server
is shown anyway, as numbers: how many clients, messages and connections, never whose, and nothing
of what a message says.
"""

import asyncio
import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rknn_jax._internal import memory
from rknn_jax._internal.disk import free_bytes
from rknn_jax.federation.collector import LEAST_FREE, Collector, Sum
from rknn_jax.federation.gate import Gate
from rknn_jax.federation.server import Resources

LOOPBACK = "127.0.0.1"

CONNECTIONS = 16
"""Most connections at once of those who watch."""

PULSE_SECONDS = 5.0
"""Longest time in which a healthy server takes up a request."""

FORMAT = "text/plain; version=0.0.4"
"""Content type of Prometheus's text format."""


class Monitor:
    """Health and metrics of a round, as an ASGI application `app`.

    Args:
      folder: Folder of the round, on the disk whose room is watched.
      resources: Resources that clients use.
      gate: Connections of the clients.

    Attributes:
      answers: Answers that are counted now. None, as at first, while none are.
    """

    def __init__(self, folder: Path, resources: Resources, gate: Gate) -> None:
        self._folder = folder
        self._resources = resources
        self._gate = gate
        self.answers: Collector | Sum | None = None
        self.app = Starlette(
            routes=[Route("/health", self.health), Route("/metrics", self.metrics)],
            # A page in a browser of this host reaches this address by a name of its own.
            middleware=[Middleware(TrustedHostMiddleware, [LOOPBACK, "localhost"])],
        )

    async def health(self, request: Request) -> Response:
        """Say `ok`, or with status 503 what is wrong."""
        del request
        if free_bytes(self._folder) < LEAST_FREE:
            words = f"no room: less than {LEAST_FREE / 1e6:,.0f} MB are free in {self._folder}"
            return PlainTextResponse(words, 503)
        if not await asyncio.to_thread(self._resources.desk.has_pulse, PULSE_SECONDS):
            return PlainTextResponse(f"no request is taken up in {PULSE_SECONDS:g} s", 503)
        return PlainTextResponse("ok")

    async def metrics(self, request: Request) -> Response:
        """Send all metrics."""
        del request
        return PlainTextResponse("".join(map(exposition, self._families())), media_type=FORMAT)

    def _families(self) -> Iterator["Family"]:
        desk, gate, resources = self._resources.desk, self._gate, self._resources
        if isinstance(self.answers, Collector):
            counted = self.answers.num_clients
            yield Family("rknn_clients_counted", "Clients whose answers count.", counted)
        yield Family("rknn_clients_joined", "Clients that have made a request.", len(desk.seen))
        yield Family("rknn_round_closes_seconds", "End of the round, since 1970.", desk.closes)
        yield Family("rknn_round_open", "1 while answers are taken.", desk.stage != "closed")
        yield Family(
            "rknn_messages_total",
            "Messages of clients, by fate.",
            {(("kind", kind), ("fate", fate)): n for (kind, fate), n in resources.fates.items()},
        )
        yield Family("rknn_unfinished_bytes", "Bytes of messages in memory.", resources.unfinished)
        yield Family("rknn_requests_waiting", "Requests that wait for news.", resources.waiting)
        yield Family(
            "rknn_connections",
            "Open connections of clients, and of those who have not identified themselves.",
            {(("identified", "yes"),): gate.identified, (("identified", "no"),): gate.unidentified},
        )
        yield Family(
            "rknn_connections_turned_away_total",
            "Connections that were closed without an answer.",
            {(("reason", reason),): count for reason, count in gate.turned_away.items()},
        )
        free = free_bytes(self._folder)
        yield Family("rknn_disk_free_bytes", "Free room on the disk of the round.", free)
        if (held := memory.taken()) is not None:
            yield Family("process_resident_memory_bytes", "Memory of the server.", held)
        files = len(os.listdir("/proc/self/fd"))
        yield Family("process_open_fds", "Open files of the server.", files)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        yield Family("process_max_fds", "Files that the server may open.", most)


Labels = tuple[tuple[str, str], ...]


class Family(NamedTuple):
    """Metric with its values: a counter if its name ends with `_total`, or else a gauge.

    Attributes:
      name: Name.
      meaning: What it counts, in a sentence.
      values: Value of each set of labels, or one value without labels.
    """

    name: str
    meaning: str
    values: float | Mapping[Labels, float]


def exposition(family: Family) -> str:
    """Return a metric in Prometheus's text format."""
    kind = "counter" if family.name.endswith("_total") else "gauge"
    values = family.values if isinstance(family.values, Mapping) else {(): family.values}
    lines = [f"# HELP {family.name} {family.meaning}", f"# TYPE {family.name} {kind}"]
    for labels, value in sorted(values.items()):
        named = ",".join(f'{name}="{text}"' for name, text in labels)
        lines.append(f"{family.name}{named and f'{{{named}}}'} {value + 0:.15g}")
    return "".join(f"{line}\n" for line in lines)
