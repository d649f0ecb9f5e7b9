"""Flower apps of the protocol: a ServerApp asks through its grid, and a ClientApp answers.

Messages are Flower's queries of type `query.answer`. The round's bytes go out. An answer comes back
with the round's id, the client's messages and its ticket. A client that refuses says so, and gives
no reason. With trust=central, clients say whether they are ready, and their counts go through
SecAgg+ (`secure_sum`).
"""

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp

from rknn_jax.federation import secure_sum
from rknn_jax.federation.agreement import RefusedError
from rknn_jax.federation.client import Client, Prepared
from rknn_jax.federation.collector import Collector, Reply, Sum
from rknn_jax.federation.rounds import Round
from rknn_jax.privacy.ledger import LedgerError

ANSWER = "answer"
READY = "ready"
OVER = "over"
POLL = 0.05  # seconds
MOST_LETTERS = 500
GOODBYE = 10.0  # seconds that the server waits for clients to hear that the round is over
AFTER_ERROR = 5.0  # seconds until a client whose answer was lost on the way is asked again
# Seconds until a connected but silent client is asked again; it gives the same answer.
PATIENCE = 120.0
Tell = Callable[[str, str], None]


def client_app(
    client_of: Callable[[Context], Client],
    tell: Tell = lambda name, text: None,
    over: threading.Event | None = None,
) -> ClientApp:
    """Return the app of a client.

    Args:
      client_of: Function that makes the client from its owner's configuration, never from anything
        a server sends.
      tell: Function that is called with each event. Defaults to none.
      over: Event that is set when the server says that the round is over. Defaults to none.
    """
    app = ClientApp()
    said: dict[tuple[int, bytes], ConfigRecord] = {}

    def refused(error: Exception, message: Message) -> Message:
        tell("refused", str(error))
        # The server does not learn the reason.
        return Message(RecordDict({"refused": ConfigRecord({})}), reply_to=message)

    @app.query(ANSWER)
    def answer(message: Message, context: Context) -> Message:
        data = _of(message.content, "round").get("data")
        question = data if isinstance(data, bytes) else b""
        known = context.node_id, hashlib.sha256(question).digest()
        if known not in said:
            _tell_question(question, client_of(context), tell)
            try:
                round, ticket, payload = client_of(context).answer(question)
                said[known] = ConfigRecord({"round": round, "ticket": ticket, "messages": payload})
                tell("answered", f"round {round[:12]} with {len(payload):,} bytes")
            except (RefusedError, LedgerError) as error:
                return refused(error, message)
        return Message(RecordDict({"answer": said[known]}), reply_to=message)

    prepared: dict[int, Prepared] = {}  # by node, since engines run many clients in a process
    adding: dict[int, Prepared] = {}

    def begin(context: Context, clients: int) -> int:
        # From here to its end, this round is the client's only sum.
        adding[context.node_id] = prepared.pop(context.node_id)
        return adding[context.node_id].least_threshold(clients)

    @app.query(READY)
    def get_ready(message: Message, context: Context) -> Message:
        data = _of(message.content, "round").get("data")
        _tell_question(data if isinstance(data, bytes) else b"", client_of(context), tell)
        try:
            prepared[context.node_id] = client_of(context).ready(
                data if isinstance(data, bytes) else b""
            )
        except (RefusedError, LedgerError) as error:
            return refused(error, message)
        tell("ready", f"for the sum of round {prepared[context.node_id].round.id[:12]}")
        return Message(RecordDict(), reply_to=message)

    @app.train(mods=[secure_sum.Guard(begin), secaggplus_mod])
    def add(message: Message, context: Context) -> Message:
        vector = adding.pop(context.node_id).vector()
        tell("added", f"{len(vector):,} counts under masks")
        return secure_sum.vector_reply(message, vector)

    @app.query(OVER)
    def end(message: Message, context: Context) -> Message:
        tell("over", _printable(_of(message.content, "over").get("statement")))
        if over:
            over.set()
        return Message(RecordDict(), reply_to=message)

    return app


def _tell_question(question: bytes, client: Client, tell: Tell) -> None:
    """Tell the owner of the question and the number of unusable records, before any spend.

    Nobody else learns that number.
    """
    try:
        round = client.parsed(question)
    except RefusedError:
        return
    config = round.config
    labels = client.labels
    tell(
        "asked",
        f"round {round.id[:12]}: epsilon = {config.epsilon:g} a {round.unit}, "
        f"trust={config.trust}, of {len(labels):,} records",
    )
    if without := int(np.sum((labels < 0) | (labels >= len(round.classes)))):
        tell(
            "unusable",
            f"{without:,} of {len(labels):,} records have no label of the round's "
            f"{len(round.classes)} classes and cast no vote",
        )


def announce(grid: Any, statement: str) -> None:
    """Tell all connected clients the result of the round, and wait a little for their replies."""
    content = RecordDict({"over": ConfigRecord({"statement": statement})})
    nodes = list(grid.get_node_ids())
    left = set(
        grid.push_messages(
            [
                Message(content, dst_node_id=node, message_type=f"query.{OVER}", ttl=GOODBYE)
                for node in nodes
            ]
        )
    )
    ends = time.time() + GOODBYE
    while left and time.time() < ends:
        left -= {message.metadata.reply_to_message_id for message in grid.pull_messages(list(left))}
        time.sleep(POLL)


def collect(
    grid: Any, collector: Collector, clients: int, closes: float, *, authenticated: bool, tell: Tell
) -> None:
    """Ask every client that connects, until enough have answered or the round closes.

    A client that was killed and comes back is asked again, and gives the same answer. A client's
    number is its node's number if Flower has checked its key. Otherwise it is its ticket, made from
    its seed, because a node without a key gets a new number at every start.

    Args:
      grid: Grid of Flower.
      collector: Collector of the round.
      clients: Number of clients to wait for.
      closes: End of the round, in seconds since 1970.
      authenticated: Flag for nodes with keys.
      tell: Function that is called with each answer, refusal and rejection.
    """

    def hear(answers: Sequence[tuple[int, RecordDict]]) -> None:
        replies = [_reply(node, _of(content, "answer"), authenticated) for node, content in answers]
        for reply, fate in zip(
            replies, collector.receive(replies, late=time.time() >= closes), strict=True
        ):
            tell(
                fate,
                f"client {reply.client}, {len(reply.payload):,} bytes; {len(collector.clients)} "
                f"of {clients} clients",
            )

    known: set[int] = collector.clients if authenticated else set()
    _ask(
        grid,
        ANSWER,
        collector.round,
        lambda: len(collector.clients) >= clients,
        hear,
        known,
        closes,
        collector.rejected,
        tell,
    )


def sum_up(
    grid: Any,
    context: Context,
    round: Round,
    clients: int,
    threshold: int,
    closes: float,
    tell: Tell,
    begin: Callable[[], None],
) -> Sum:
    """Add up the clients' counts and noise by secure aggregation.

    Clients are asked first, until enough of them are ready or the round closes.

    Args:
      grid: Grid of Flower.
      context: Context of the ServerApp.
      round: Round with trust=central.
      clients: Number of clients to wait for.
      threshold: Least number of clients for a sum to be opened.
      closes: End of the wait for clients, in seconds since 1970.
      tell: Function that is called with each client that is ready or refuses.
      begin: Function that is called before clients spend anything.

    Raises:
      ValueError: If too few clients are ready, or if the sum could not be opened.
    """
    rejected: Counter[str] = Counter()
    ready: dict[int, None] = {}

    def hear(answers: Sequence[tuple[int, RecordDict]]) -> None:
        for node, _ in answers:
            ready[node] = None
            tell("ready", f"client {node}; {len(ready)} of {clients} clients")

    def enough() -> bool:
        here = {node.node_id for node in grid.get_nodes()}
        for node in set(ready) - here:
            del ready[node]
        return len(ready) >= clients

    _ask(grid, READY, round, enough, hear, set(), closes, rejected, tell)
    if len(ready) < threshold:
        raise ValueError(
            f"Expected {threshold} clients to be ready, got {len(ready)} by the deadline; "
            "nothing was spent, nothing is published."
        )
    begin()
    found = secure_sum.secure_sum(grid, context, list(ready), threshold)
    if found is None:
        raise ValueError(
            "The sum could not be opened: too many clients were lost on the way. Those that took "
            "part have spent; begin another round."
        )
    return Sum(round, *found, rejected)


def _ask(
    grid: Any,
    kind: str,
    round: Round,
    enough: Callable[[], bool],
    hear: Callable[[Sequence[tuple[int, RecordDict]]], None],
    known: set[int],
    closes: float,
    rejected: Counter[str],
    tell: Tell,
) -> None:
    """Ask every node that connects, until it is enough or the round closes.

    Known nodes are skipped, and nodes that come back are asked anew.
    """
    asked: dict[int, float] = {}
    seen: dict[int, Any] = {}
    done: set[int] = set()
    waiting: dict[str, int] = {}
    question = RecordDict({"round": ConfigRecord({"data": round.data})})

    def pull() -> None:
        answers = []
        for message in grid.pull_messages(list(waiting)) if waiting else []:
            node = waiting.pop(message.metadata.reply_to_message_id)
            if message.has_error():
                tell("error", f"of client {node}: {_printable(message.error.reason)}")
                asked[node] = time.time() + AFTER_ERROR - PATIENCE
                continue
            done.add(node)
            if "refused" in message.content:
                tell("refused", f"by client {node}")
                rejected["refused by the client"] += 1
            else:
                answers.append((node, message.content))
        hear(answers)

    while not enough() and (now := time.time()) < closes:
        due = []
        for node in grid.get_nodes():
            again = seen.get(node.node_id) not in (None, node.last_activated_at)
            if again or (
                node.node_id not in done and now - asked.get(node.node_id, 0.0) > PATIENCE
            ):
                seen[node.node_id] = node.last_activated_at
                asked[node.node_id] = now
                if node.node_id not in known:
                    due.append(node.node_id)
        messages = [
            Message(
                question, dst_node_id=node, message_type=f"query.{kind}", ttl=max(1.0, closes - now)
            )
            for node in due
        ]
        waiting |= (
            {
                number: node
                for number, node in zip(grid.push_messages(messages), due, strict=True)
                if number
            }
            if messages
            else {}
        )
        pull()
        time.sleep(POLL)
    pull()


def _of(content: Any, name: str) -> Mapping[str, Any]:
    """Return a message's record of this name, or an empty mapping for anything else."""
    found = content.get(name)
    return found if isinstance(found, ConfigRecord) else {}


def _printable(text: Any) -> str:
    """Return text of others for printing, without characters that could control a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:MOST_LETTERS])


def _reply(node: int, answer: Mapping[str, Any], authenticated: bool) -> Reply:
    """Return a client's answer; values of a wrong type count as malformed."""
    round, ticket, payload = (answer.get(name) for name in ("round", "ticket", "messages"))
    number = node if authenticated or type(ticket) is not int else ticket % 2**64
    return Reply(number, str(round), payload if isinstance(payload, bytes) else b"")
