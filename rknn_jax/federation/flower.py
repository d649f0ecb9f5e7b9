"""Flower apps of the protocol: a ServerApp asks through its grid, and a ClientApp answers.

    flwr run rknn_jax/federation/app --run-config '...'

Flower is a second engine beside `rknn serve` and `rknn join`, by its public interface alone
(`flwr.app`, `flwr.clientapp`, `flwr.serverapp`). It carries rounds of messages, with trust=local
and trust=shuffle. `rknn serve` takes sums under masks.

Flower ships the app's code from the server to the nodes, and each node runs it, whatever it is.
That suits research on one machine (`rknn_jax.federation.simulation`) and parties that trust the
server. Parties that do not trust it use `rknn serve` and `rknn join`.

Messages are Flower's queries of type `query.answer`. The round's bytes go out. An answer comes back
with the round's id, the client's messages and its ticket. A client that refuses says so, and gives
no reason. Nodes are asked in waves, so that memory does not grow with their number.
"""

import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tyro
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from rknn_jax import trust
from rknn_jax._internal import ranges
from rknn_jax._internal.terminal import err, tell
from rknn_jax.federation import publish, round_folder, simulation
from rknn_jax.federation.agreement import RefusedError
from rknn_jax.federation.client import Client
from rknn_jax.federation.collector import Collector, Reply
from rknn_jax.federation.inputs import read_public
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.joining import open_client
from rknn_jax.federation.question_notice import tell_question
from rknn_jax.federation.settings import Serve, asked
from rknn_jax.privacy.ledger import LedgerError
from rknn_jax.privacy.responsible import Responsible
from rknn_jax.settings import GivenClasses, by_option

ANSWER = "answer"
RUN = "run "
"""Beginning of the name of a node's server: the node sees the run's number, and no address."""

POLL = 0.05  # seconds
WAVE = 128
"""Largest number of nodes that are asked at once."""

LOOK = 1.0
"""Seconds between two looks for new nodes."""

AFTER_ERROR = 5.0
"""Seconds until a client whose answer was lost on the way is asked again."""

PATIENCE = 120.0
"""Seconds until a silent client is asked again; it gives the same answer."""

MOST_LETTERS = 500
CONNECTION = ("server", "ca", "certificate", "key", "wait", "json")
"""Options of `rknn join` that a node does not have, because Flower has the connection."""

WORDS = ("controller", "contact", "purpose", "justification")
"""Options of a run that say who answers for it, in the order of `Responsible`."""

Tell = Callable[[str, str], None]


def server_app() -> ServerApp:
    """Return the ServerApp, which takes its settings from the run."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, context.run_config)

    return app


def client_app(
    client_of: Callable[[Context], Client], told_of: Callable[[Context], Tell | None]
) -> ClientApp:
    """Return the app of a client.

    Args:
      client_of: Function that makes the client of a node. For a real party, it uses the owner's
        configuration, and nothing that a server sends.
      told_of: Function that returns who is told of a node's events, by name and text; None for
        nobody.
    """
    app = ClientApp()

    @app.query(ANSWER)
    def answer(message: Message, context: Context) -> Message:
        data = _of(message.content, "round").get("data")
        question = data if isinstance(data, bytes) else b""
        told = told_of(context)
        try:
            client = client_of(context)
            if told:
                tell_question(question, client, told)
            round, ticket, payload = client.answer(question, f"{RUN}{context.run_id}")
        except (RefusedError, LedgerError) as error:
            if told:
                told("refused", str(error))
            # The server does not learn the reason.
            return Message(RecordDict({"refused": ConfigRecord({})}), reply_to=message)
        except Exception as error:
            # Flower sends an error's words to the server, and these may name private files.
            _printed("error", f"{type(error).__name__}: {error}")
            raise RuntimeError("the client failed; its owner sees why") from None
        if told:
            told("answered", f"round {round[:12]} with {len(payload):,} bytes")
        said = ConfigRecord({"round": round, "ticket": ticket, "messages": payload})
        return Message(RecordDict({"answer": said}), reply_to=message)

    return app


def node_app() -> ClientApp:
    """Return the ClientApp of `flwr run`, for real nodes and for those of a simulation.

    A node is a virtual client if the simulation engine runs it. Any other is a party of its own,
    and names a private file in its own configuration.
    """

    def client_of(context: Context) -> Client:
        if _is_virtual(context):
            return simulation.virtual_client(context)
        return node_client(context.node_config)

    # Thousands of virtual clients have nobody to tell.
    return client_app(client_of, lambda context: None if _is_virtual(context) else _printed)


def _is_virtual(context: Context) -> bool:
    """Return whether an actor of Ray runs a node, as in the engine; a SuperNode has no Ray.

    A configuration does not tell: owners of nodes may number them as the engine does.
    """
    ray = sys.modules.get("ray")
    return "private" not in context.node_config and ray is not None and ray.is_initialized()


def node_client(config: Mapping[str, Any]) -> Client:
    """Return the client of a SuperNode, from the configuration that its owner started it with.

    Nothing comes from the run: neither paths, nor the budget, nor the agreement.

    Args:
      config: Options of `rknn join` with values, such as `private` and `budget`.

    Raises:
      ValueError: If an option is unknown, or if the private file or its ledger cannot be used.
    """
    known = by_option(Join).keys() - CONNECTION
    options = {name.replace("-", "_"): value for name, value in config.items()}
    if "private" not in options:
        raise ValueError(
            "Expected a private file in the configuration of the node, got none; start it with "
            "flower-supernode --node-config 'private=\"FILE.npz\" budget=1.0'."
        )
    if unknown := sorted(options.keys() - known):
        raise ValueError(
            f"Expected options of rknn join in --node-config, got {', '.join(unknown)}; leave "
            "out what Flower sets itself."
        )
    if len(options) < len(config):
        raise ValueError(
            f"Expected each option once in --node-config, got {', '.join(config)}; write hyphens."
        )
    words = [word for name, value in options.items() for word in _words(name, value)]
    try:
        settings = tyro.cli(
            Join, args=words, console_outputs=False, config=(tyro.conf.OmitArgPrefixes,)
        )
    except SystemExit:
        raise ValueError(
            f"Expected values of options of rknn join in --node-config, got {dict(config)!r}; "
            "`rknn join --help` says which it takes."
        ) from None
    ranges.check(settings)
    return open_client(settings)


def _words(name: str, value: object) -> list[str]:
    """Return an option of a node's configuration as words of a command line."""
    flag = f"--{name.replace('_', '-')}"
    is_flag = name == "allow_large_epsilon"
    several = name in ("networks", "drop")
    try:
        words = shlex.split(str(value)) if several else [str(value)]
    except ValueError:  # a quotation that does not end
        words = []
    odd = any(not word or word.startswith("-") for word in words)
    if isinstance(value, bool) != is_flag or not words or odd:
        what = "true or false" if is_flag else "words" if several else "a value"
        raise ValueError(f"Expected {what} for {name} in --node-config, got {value!r}.")
    if is_flag:
        return [flag] if value else []
    return [flag, *words] if several else [f"{flag}={words[0]}"]


def serve(grid: Grid, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one round with the nodes of the grid, and return the content of `privacy.json`.

    Args:
      grid: Grid of Flower.
      settings: Settings of the run, as in the `pyproject.toml` of the app. Without `clients`, all
        nodes that are there at the beginning are waited for.

    Raises:
      ValueError: If settings are wrong, if trust is central, or if too few clients answered.
    """

    def told(name: str, text: str) -> None:
        if name != "counted":  # it would print thousands of lines
            _printed(name, text)

    started = time.perf_counter()
    request = _request(settings, len(list(grid.get_node_ids())))
    seed = int(settings["seed"])
    if settings["private"] and seed < 0:
        raise ValueError(
            "Expected seed >= 0 with private, whose records are dealt out to virtual clients, got "
            f"seed={seed}: their noise is simulated. To release labels by one file use rknn label; "
            "nodes of a deployment name their own file by --node-config."
        )
    wanted = asked(request, simulated=None if seed < 0 else seed)
    public = read_public(request.public, request.test)
    round, queries = round_folder.prepare(request.out, public, wanted, told)
    collector = Collector(request.out, round)
    closes = round_folder.closes_at(request.out, request.deadline)
    collect(grid, collector, request.clients, closes=closes, told=told)
    seconds = time.perf_counter() - started
    _printed("round", f"{collector.num_clients:,} clients in {seconds:.1f} s")
    card = publish.publish(
        request.out, public, wanted, queries=queries, collector=collector, tell=told
    )
    round_folder.end(request.out, round)
    return card


def _request(settings: Mapping[str, Any], nodes: int) -> Serve:
    if settings["trust"] not in trust.names() or trust.named(settings["trust"]).has_curator:
        raise ValueError(
            "Expected trust local or shuffle in a run of Flower, got "
            f"trust={settings['trust']}; take sums with rknn serve --trust central."
        )
    return Serve(
        public=Path(str(settings["public"])),
        epsilon=float(settings["epsilon"]),
        classes=GivenClasses(str(settings["classes"])),
        clients=int(settings["clients"]) or nodes,
        out=Path(str(settings["out"])),
        quorum=int(settings["quorum"]) or None,
        deadline=float(settings["deadline"]),
        trust=settings["trust"],
        honest=int(settings["honest"]),
        delta=float(settings["delta"]),
        mechanism=str(settings["mechanism"]),
        queries=int(settings["queries"]) or None,
        neighbors=int(settings["neighbors"]),
        representation=settings["representation"],
        student=str(settings["student"]),
        test=Path(str(settings["test"])) if settings["test"] else None,
        responsible=Responsible(*(str(settings.get(name, "")) for name in WORDS)),
    )


def collect(grid: Grid, collector: Collector, clients: int, closes: float, told: Tell) -> None:
    """Ask every node that connects, until enough clients have answered or the round closes.

    A client's number is its ticket, because a node gets a new number when it is started again. A
    client that was killed and comes back is asked again, and gives the same answer.

    Args:
      grid: Grid of Flower.
      collector: Collector of the round.
      clients: Number of clients to wait for.
      closes: End of the round, in seconds since 1970.
      told: Function that is called with each answer, refusal and rejection.
    """
    asking = _Asking(grid, collector.round.data, closes, told)

    def hear(late: bool) -> None:
        came, rejected = asking.answers()
        for reason, count in rejected.items():
            collector.reject(reason, count)
        replies = [_reply(_of(content, "answer")) for _, content in came]
        fates = collector.receive(replies, late=late)
        for (node, _), reply, fate in zip(came, replies, fates, strict=True):
            if fate == "busy":
                asking.ask_later(node)
            told(
                fate,
                f"client {reply.client}, {len(reply.payload):,} bytes; {collector.num_clients} "
                f"of {clients} clients",
            )

    wanted = 0 if collector.is_sealed else clients
    while collector.num_clients < wanted and time.time() < closes:
        asking.ask()
        time.sleep(POLL)
        hear(late=time.time() >= closes)


class _Asking:
    """Nodes of a grid, each asked until it has answered.

    At most `WAVE` nodes are asked at once, because Flower keeps every message that is on its way in
    memory, and looks through all of them for each node.
    """

    def __init__(self, grid: Grid, question: bytes, closes: float, told: Tell) -> None:
        self._grid = grid
        self._question = RecordDict({"round": ConfigRecord({"data": question})})
        self._closes = closes
        self._tell = told
        self._looked = 0.0
        self._due: dict[int, None] = {}
        self._asked: dict[int, float] = {}  # nodes that are on their way, and when to ask again
        self._done: set[int] = set()
        self._waiting: dict[str, int] = {}  # nodes by number of the message

    def ask(self) -> None:
        """Ask the next nodes that are due."""
        now = time.time()
        if now - self._looked > LOOK:
            self._looked = now
            self._look(now)
        for node in list(self._due)[: max(0, WAVE - len(self._asked))]:
            del self._due[node]
            self._asked[node] = now + PATIENCE
            message = Message(
                self._question,
                dst_node_id=node,
                message_type=f"query.{ANSWER}",
                ttl=max(1.0, self._closes - now),
            )
            # One at a time, because a grid may leave out the numbers of messages that it lost.
            for number in filter(None, self._grid.push_messages([message])):
                self._waiting[number] = node

    def _look(self, now: float) -> None:
        """Note the nodes that are due: new ones, and those that were silent for too long."""
        for node in [node for node, again in self._asked.items() if again < now]:
            del self._asked[node]
        for node in self._grid.get_node_ids():
            if node not in self._asked and node not in self._done:
                self._due[node] = None

    def ask_later(self, node: int) -> None:
        """Note that a node is due again, a little later."""
        self._done.discard(node)
        self._asked[node] = time.time() + AFTER_ERROR

    def answers(self) -> tuple[list[tuple[int, RecordDict]], Counter[str]]:
        """Return the nodes and contents of the answers, and the numbers of others by reason.

        A node that was asked twice may answer twice. Its second answer does not count, whatever its
        ticket says.
        """
        contents: list[tuple[int, RecordDict]] = []
        rejected = Counter[str]()
        for message in self._grid.pull_messages(list(self._waiting)) if self._waiting else ():
            node = self._waiting.pop(message.metadata.reply_to_message_id, None)
            if node is None or node in self._done:
                known = "a message that came before" if node is None else f"by client {node}"
                self._tell("again", known)
                rejected["again"] += 1
            elif message.has_error():
                self._tell("error", f"of client {node}: {_printable(message.error.reason)}")
                self._asked[node] = time.time() + AFTER_ERROR
            else:
                self._asked.pop(node, None)
                self._due.pop(node, None)
                self._done.add(node)
                if "refused" in message.content:
                    self._tell("refused", f"by client {node}")
                    rejected["refused by the client"] += 1
                else:
                    contents.append((node, message.content))
        return contents, rejected


def _of(content: Any, name: str) -> Mapping[str, Any]:
    """Return a message's record of this name, or an empty mapping for anything else."""
    found = content.get(name)
    return found if isinstance(found, ConfigRecord) else {}


def _printed(name: str, text: str) -> None:
    tell(err, name, text)


def _printable(text: Any) -> str:
    """Return text of others for printing, without characters that could control a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:MOST_LETTERS])


def _reply(answer: Mapping[str, Any]) -> Reply:
    """Return a client's answer; values of a wrong type count as malformed."""
    round, ticket, payload = (answer.get(name) for name in ("round", "ticket", "messages"))
    number = ticket % 2**64 if type(ticket) is int else 0
    return Reply(number, str(round), payload if isinstance(payload, bytes) else b"")
