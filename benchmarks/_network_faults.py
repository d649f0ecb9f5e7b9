"""Faults that the network's world must find: duplicates, early words, waits without an end."""

from benchmarks._world_faults import WorldFault
from rknn_jax.federation import hosting
from rknn_jax.federation.client import Client
from rknn_jax.federation.collector import Collector
from rknn_jax.federation.connection import Connection
from rknn_jax.federation.listener import Protocol
from rknn_jax.federation.server import Resources

FAULTS = (
    WorldFault(
        "a duplicate is counted",
        Collector,
        "receive",
        "fresh.isdisjoint(self.clients)",
        "True",
    ),
    WorldFault(
        "a client has another ticket for each request",
        Connection,
        "_sent",
        "str(self.ticket)",
        "str(random.getrandbits(64))",
    ),
    WorldFault(
        "an answer counts before it is on disk",
        hosting,
        "_count",
        "was_full = collector.full\n",
        'was_full = collector.full\n        desk.judge(answers, ["counted"] * len(answers))\n',
    ),
    WorldFault(
        "a client that comes back draws its ticket again",
        Client,
        "said",
        'int.from_bytes(data[:8], "little")',
        "secrets.randbits(64)",
    ),
    WorldFault(
        "a round waits for a lost client",
        hosting,
        "collect",
        "(left := desk.closes - time.time()) > 0",
        "(left := TICK)",
    ),
    WorldFault(
        "the end is told by a wall clock that jumps back",
        hosting,
        "_wait_until_told",
        "time.monotonic()",
        "time.time()",
    ),
    WorldFault(
        "a server waits until everybody has heard the end",
        hosting,
        "_wait_until_told",
        "time.monotonic() < ends",
        "True",
    ),
    WorldFault(
        "a client gives up when an answer is lost",
        Connection,
        "_repeat",
        "except httpx.TransportError as error:",
        "except ZeroDivisionError as error:",
    ),
    WorldFault(
        "bytes of a request that ended are held",
        Resources,
        "_body",
        "self.unfinished -= len(body)",
        "pass",
    ),
    WorldFault(
        "a connection that ended is held",
        Protocol,
        "connection_lost",
        "self.gate.leave()",
        "pass",
    ),
    WorldFault(
        "a connection that stops is not closed",
        Protocol,
        "_check_progress",
        "self.transport.abort()",
        "pass",
    ),
    WorldFault(
        "every rejection is a line of the log",
        hosting,
        "_tell_fates",
        "rarely(fate).warn(",
        "tell(fate, ",
    ),
)
