"""Sum of clients' integer vectors by Flower's SecAgg+, revealing nothing else to the server.

This holds as long as the server follows the protocol. Every client hides its vector under masks
that cancel in the sum of all. If clients drop out, shares of the masks let the sum be opened, by no
fewer than a threshold of clients. Flower's implementation is for averages of clipped floating-point
weights. This module changes three things:

- The quantization has a step of exactly one vote, so that integers come back exactly. Flower's
  defaults were off by 237 votes.
- Masks are SHAKE-256 of the whole key (`strengthen`). Flower's masks come from a generator of 32
  bits, which hours of one core break.
- A client accepts only these parameters, and only a threshold that its owner agreed to. It helps to
  open one sum, once (`Guard`).

**Remaining trust.** The server must follow the protocol. It relays the clients' keys, so a server
that lies about the keys sees single vectors, each with its own share of the noise alone. The guard
refuses the known ways to help a server that deviates, which is not a proof. Vectors cannot be
checked: a dishonest client moves any count by any amount. If a client is lost in the first two of
the four steps, the round ends (flwr 1.41).

Reference: Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", 2020.
"""

import hashlib
import importlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext, ServerConfig
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

# By import_module, because both packages have a function of the module's name.
client_side = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
server_side = importlib.import_module("flwr.server.workflow.secure_aggregation.secaggplus_workflow")

BOUND = 2**28
"""Largest number in a vector: a client's votes and coins."""

MODULUS = 2**40
MOST_CLIENTS = MODULUS // (2 * BOUND) - 1
RECORD = "secaggplus_configs"
POLL = 0.05  # seconds
STEP = 120.0  # seconds for each of the four steps


def strengthen() -> None:
    """Make the masks of both sides from all bits of their keys."""

    def masks(
        seed: bytes, num_range: int, dimensions_list: list[tuple[int, ...]]
    ) -> list[np.ndarray]:
        made = []
        for number, shape in enumerate(dimensions_list):
            count = math.prod(shape)
            digest = hashlib.shake_256(number.to_bytes(8, "little") + seed).digest(8 * count)
            made.append(
                (np.frombuffer(digest, "<u8") & np.uint64(num_range - 1))
                .astype(np.int64)
                .reshape(shape)
            )
        return made

    for module in (client_side, server_side):
        if not callable(getattr(module, "pseudo_rand_gen", None)):
            raise ImportError(
                f"Expected {module.__name__} of flwr 1.41, got another that makes its masks "
                "otherwise."
            )
        module.pseudo_rand_gen = masks  # type: ignore[attr-defined]


strengthen()


class Guard:
    """Flower mod that takes part in at most one sum at a time, and protects the client's vector.

    It refuses steps that would reveal more than the sum. A client that passes the steps knows three
    things. Its vector goes into one set of masks. The masks open for at least as many clients as
    its owner requires. The client helps to open them once: with the seeds of clients in the sum,
    and the keys of the others.

    Args:
      begin: Function that is called when a sum begins, with the number of clients. Returns the
        least threshold that the owner agrees to.
    """

    def __init__(self, begin: Callable[[Context, int], int]) -> None:
        self.begin = begin
        self.threshold: dict[int, tuple[int, int]] = {}
        self.together: dict[int, set[int]] = {}

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        """Pass a step on, or raise PermissionError."""
        asked = message.content.get(RECORD)
        node = context.node_id
        if message.metadata.message_type != "train" or not isinstance(asked, ConfigRecord):
            raise PermissionError(
                "Expected a step of SecAgg+, got another message, which would not be masked."
            )
        match asked.get("stage"):
            case "setup":
                wanted = {
                    "clipping_range": float(BOUND),
                    "target_range": 2 * BOUND,
                    "mod_range": MODULUS,
                    "max_weight": 1.0,
                }
                if (
                    any(asked.get(name) != value for name, value in wanted.items())
                    or asked["sample_num"] != asked["share_num"]
                ):
                    raise PermissionError(
                        "Expected the parameters of exact sums among all clients, got others."
                    )
                threshold = asked["threshold"]
                clients = asked["sample_num"]
                if (
                    type(threshold) is not int
                    or type(clients) is not int
                    or threshold < self.begin(context, clients)
                ):
                    raise PermissionError(
                        f"Expected a larger threshold, got {threshold!r} of {clients!r} clients."
                    )
                self.threshold[node] = threshold, clients
            case "share_keys":
                together = {int(name) for name in asked if name != "stage"}
                if node not in self.threshold or len(together) > self.threshold[node][1]:
                    raise PermissionError("Expected keys of no more clients than were told of.")
                self.together[node] = together
            case "collect_masked_vectors":
                if not set(asked["srcs"]) <= self.together.get(node, set()):  # type: ignore[arg-type]
                    raise PermissionError("Expected shares of clients whose keys were told.")
            case "unmask":
                active = list(asked["active_nids"])  # type: ignore[arg-type]
                dead = list(asked["dead_nids"])  # type: ignore[arg-type]
                all_once = len(set(active + dead)) == len(active + dead)
                if not all_once or node not in active or len(active) < self.threshold[node][0]:
                    raise PermissionError(
                        "Expected to help open the sum of those that are in it, got asked for "
                        "something else."
                    )
                if not set(active + dead) <= self.together[node]:
                    raise PermissionError("Expected to open a sum of clients whose keys were told.")
            case stage:
                raise PermissionError(f"Expected a step of SecAgg+, got {stage!r}.")
        reply: Message = call_next(message, context)
        return reply


def vector_reply(message: Message, vector: np.ndarray) -> Message:
    """Return a client's vector, integers in [0, `BOUND`], for SecAgg+ to mask."""
    if vector.min() < 0 or vector.max() > BOUND:
        raise ValueError(
            f"Expected a vector in [0, {BOUND}], got {vector.min()} to {vector.max()}; join with "
            "fewer records."
        )
    result = FitRes(
        Status(Code.OK, ""),
        ndarrays_to_parameters([vector.astype(np.float64)]),
        num_examples=1,
        metrics={},
    )
    return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)


def secure_sum(
    grid: Any, context: Context, nodes: Sequence[int], threshold: int
) -> tuple[np.ndarray, int] | None:
    """Return the sum of the nodes' vectors, and the number of vectors in it.

    Args:
      grid: Grid of Flower.
      context: Context of the ServerApp.
      nodes: Node numbers, at least two and at most `MOST_CLIENTS`.
      threshold: Least number of nodes that open the sum.

    Returns:
      `(sum, count)`, int64 and int, or None if too few nodes are left or the protocol was halted.
    """
    if not 2 <= len(nodes) <= MOST_CLIENTS or not 2 <= threshold <= len(nodes):
        raise ValueError(
            f"Expected 2 <= threshold <= clients <= {MOST_CLIENTS}, got threshold={threshold} of "
            f"{len(nodes)} clients."
        )
    everybody: Any = _Everybody(nodes)
    legacy = LegacyContext(
        context=context,
        config=ServerConfig(num_rounds=1),
        strategy=everybody,
        client_manager=everybody,
    )
    legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    legacy.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(
        ndarrays_to_parameters([]), True
    )
    quantization = {
        "max_weight": 1.0,
        "clipping_range": float(BOUND),
        "quantization_range": 2 * BOUND,
        "modulus_range": MODULUS,
    }
    server_side.SecAggPlusWorkflow(1.0, threshold, timeout=STEP, **quantization)(
        _Soon(grid), legacy
    )
    opened: tuple[np.ndarray, int] | None = everybody.result
    return opened


class _Everybody:
    """Strategy and client manager, as far as the workflow uses them.

    It asks every node, and keeps the sum.
    """

    def __init__(self, nodes: Sequence[int]) -> None:
        self.nodes = nodes
        self.result: tuple[np.ndarray, int] | None = None

    def num_available(self) -> int:
        return len(self.nodes)

    def configure_fit(self, number: int, parameters: Any, manager: Any) -> list[tuple[Any, FitIns]]:
        return [(_Proxy(node), FitIns(parameters, {})) for node in self.nodes]

    def aggregate_fit(
        self, number: int, results: Any, failures: Any
    ) -> tuple[None, dict[str, Any]]:
        mean = parameters_to_ndarrays(results[0][1].parameters)[0]
        self.result = np.rint(mean * len(results)).astype(np.int64), len(results)
        return None, {}


class _Proxy:
    def __init__(self, node: int) -> None:
        self.node_id = node
        self.cid = str(node)


class _Soon:
    """Grid that polls for replies as often as a protocol of four steps needs."""

    def __init__(self, grid: Any) -> None:
        self.grid = grid

    def send_and_receive(
        self, messages: Sequence[Message], *, timeout: float | None = None
    ) -> list[Message]:
        left = set(self.grid.push_messages(messages))
        heard = []
        ends = time.time() + (timeout or STEP)
        while left and time.time() < ends:
            came = list(self.grid.pull_messages(list(left)))
            heard += came
            left -= {message.metadata.reply_to_message_id for message in came}
            time.sleep(POLL)
        return heard
