"""Pace of Flower's processes: how often they ask, and how soon a killed client is back.

Like `rknn_jax.federation.processes`, this reaches into Flower and is written for flwr 1.41.
"""

import time
from pathlib import Path
from typing import Any

LONGEST_UPLOAD = 30  # seconds; a client that was killed during an upload is asked again
POLL = 0.05  # seconds
HEARTBEAT = 10  # seconds, the least that a SuperLink accepts
LONGEST_WAIT = 2  # seconds between attempts to reach a server


def no_waiting() -> None:
    """Poll as often as a round of seconds needs.

    Flower's SuperNode sleeps 3 s between messages, and one second for each new message.
    """
    import types

    import flwr.supercore.inflatable.inflatable_utils as inflatable
    import flwr.supernode.start_client_internal as supernode

    soon: Any = types.SimpleNamespace(
        sleep=lambda seconds: time.sleep(min(seconds, 2 * POLL)), time=time.time
    )
    supernode.time = soon
    functions: tuple[Any, ...] = (
        inflatable.pull_objects,
        inflatable.pull_and_inflate_object_from_tree,
    )
    for function in functions:
        function.__kwdefaults__["initial_backoff"] = POLL
    functions[0].__kwdefaults__["max_time"] = LONGEST_UPLOAD


def come_back_soon(node: Path | None) -> None:
    """Let a client that was killed take its place again at once.

    Flower would hold the place for the old process, for twice its heartbeat.
    """
    import flwr.supercore.heartbeat as heartbeat
    import flwr.supercore.retry.http_retry as retry
    import flwr.supernode.fleet_http_connection as connection
    import httpx
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.supernode.fleet_http_client import FleetHttpClient

    retry.MAX_RETRY_DELAY = LONGEST_WAIT
    connection.HEARTBEAT_DEFAULT_INTERVAL = heartbeat.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    if node is None:
        return
    activate = FleetHttpClient.ActivateNode

    def sign_off_and_on(self: Any, request: Any) -> Any:
        if node.exists():
            try:
                self.DeactivateNode(DeactivateNodeRequest(node_id=int(node.read_text())))
            except httpx.HTTPStatusError:
                pass  # the server does not know the node any more
        response = activate(self, request)
        node.write_text(str(response.node_id))
        return response

    FleetHttpClient.ActivateNode = sign_off_and_on  # type: ignore[method-assign]
