"""`rknn serve` and `rknn join`: the settings and the words of a federation; `rknn_jax.federation` does the work."""

import ipaddress
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from rknn_jax.disk import locked
from rknn_jax.privacy.guarantee import LARGE_EPSILON, Unit
from rknn_jax.privacy.ledger import PATIENCE, Ledger, fingerprint
from rknn_jax.terminal import err, tell

if TYPE_CHECKING:
    from rknn_jax.federation.client import Client
    from rknn_jax.federation.publish import Asked, Public

PORT = 9092


@dataclass(frozen=True)
class Serve:
    """Ask the clients of a federation to label public data, train a student, and publish labels and guarantee.

    Killed at any time, the same command goes on where it was. Outside this host it needs certificates and the clients' keys.

    Attributes:
      public: .npz with `images` uint8 [m, h, w, c] or `embeddings` [m, f].
      epsilon: of one record, or with --unit client of one client; above 50 only with --allow-large-epsilon.
      classes: their number, or their names with commas between them.
      clients: that are waited for.
      out: folder of the round.
      quorum: clients of whom something is published after the deadline, and with --trust central that must stay until the end; all of --clients where it is not given.
      deadline: seconds that the round is open.
      trust: local trusts nobody; shuffle trusts this server not to look who sent what, and counts on --honest messages; central trusts it to follow the protocol of secure aggregation, and --honest clients to add their share of the noise.
      honest: messages, or with --trust central clients, that follow the protocol; nothing is published of fewer.
      delta: for --trust shuffle and central.
      amplification: bound that --trust shuffle counts by; variation-ratio looks at the mechanism and needs less noise, general holds for every mechanism.
      mechanism: of each message: collision, subset_selection, randomized_response, optimized_unary_encoding or generalized_randomized_response; binomial with --trust central. Chosen where it is not given.
      queries: number of queries s; as many as classes where it is not given.
      neighbors: number of queries k that each record votes for.
      metric: of the features.
      unit: what is protected: a record, or all that a client holds.
      records_per_client: messages of a client under --unit client.
      representation: learned from the public images.
      student: trained on the labelled public images; none for labels alone.
      epochs: of the student; its own where it is not given.
      test: .npz with `images` and `labels` that measure the student.
      seed: of clustering and training, which are public. No option fixes the noise.
      host: that clients reach.
      port: likewise.
      certificates: folder of ca.pem, server.pem and server.key.
      keys: file of the clients' public keys, one a line, as OpenSSH writes them.
      allow_large_epsilon: ask at an epsilon above 50, which protects next to nothing.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    public: Path
    epsilon: float
    classes: str
    clients: int
    out: Path
    quorum: int | None = None
    deadline: float = 3600.0
    trust: Literal["local", "shuffle", "central"] = "local"
    honest: int = 0
    delta: float = 1e-6
    amplification: Literal["variation-ratio", "general"] = "variation-ratio"
    mechanism: str | None = None
    queries: int | None = None
    neighbors: int = 1
    metric: Literal["sqeuclidean", "cosine"] = "sqeuclidean"
    unit: Unit = "record"
    records_per_client: int = 1
    representation: Literal["spectral", "self_trained", "pca", "hog", "pixels"] = "spectral"
    student: str = "cnn"
    epochs: int = 0
    test: Path | None = None
    seed: int = 0
    host: str = "127.0.0.1"
    port: int = PORT
    certificates: Path | None = None
    keys: Path | None = None
    allow_large_epsilon: bool = False
    json: bool = False


@dataclass(frozen=True)
class Join:
    """Take part in a federation with private records, as far as their ledger and these options allow.

    What is sent is randomized here, on the operating system's entropy, and charged first. Asked the same again, after a crash too, it says the same again and spends nothing. Leaves when the server says that the round is over.

    Attributes:
      private: .npz with `images` uint8 [n, h, w, c] or `embeddings` [n, f], and `labels` [n], negative where there is none.
      server: host:port.
      budget: epsilon that may be spent on these records in all, for a ledger that does not exist yet.
      budget_delta: likewise for delta.
      unit: what the ledger protects, likewise: a record, or all that is in the file.
      most_epsilon: that one round may cost.
      most_delta: likewise.
      allow_large_epsilon: answer a round that costs an epsilon above 50, which protects next to nothing.
      most_cells: cells, queries times classes, that one round may have.
      most_bytes: bytes that one question may have, and one answer.
      most_work: cells times records that one round may have; an answer of the default's size takes some minutes.
      trust: shuffle believes the server not to look who sent what, among --honest messages; central believes it to follow the protocol of secure aggregation.
      honest: messages that you believe to follow the protocol, your own counted, for --trust shuffle.
      dishonest: clients of a sum that you believe may not follow it, for --trust central.
      ledger: file of the budget; <private file>.ledger.jsonl where it is not given.
      patience: seconds to wait for another process that holds the ledger; after that the round is refused.
      rounds: folder where each round's answer is kept, as it was sent; <private file>.rounds where it is not given.
      ca: the server's root certificate.
      key: private key by which the server knows this client.
      json: end with one line of JSON on stdout.
    """  # noqa: E501

    private: Path
    server: str = f"127.0.0.1:{PORT}"
    budget: float | None = None
    budget_delta: float = 0.0
    unit: Unit = "record"
    most_epsilon: float | None = None
    most_delta: float | None = None
    allow_large_epsilon: bool = False
    most_cells: int = 2**20
    most_bytes: int = 2**28
    most_work: int = 2**30
    trust: Literal["local", "shuffle", "central"] = "local"
    honest: int | None = None
    dishonest: int = 0
    ledger: Path | None = None
    patience: float = PATIENCE
    rounds: Path | None = None
    ca: Path | None = None
    key: Path | None = None
    json: bool = False

    def beside(self, suffix: str) -> Path:
        """Return a path beside the private file, also where that is a link."""
        private = self.private.resolve()
        return private.with_name(f"{private.name}.{suffix}")


def serve(settings: Serve) -> NoReturn:
    """Serve one round. Ends the process."""
    keys = _server_keys(settings)
    if not 0 < settings.port < 2**16:
        raise ValueError(f"Expected 1 <= port <= {2**16 - 1}, got --port {settings.port}.")
    _needs_flower()
    with err.status("loading"):
        mine, wanted = public(settings.public, settings.test), asked(settings)

    def told(name: str, text: str) -> None:
        tell(err, name, text)

    settings.out.mkdir(parents=True, exist_ok=True)
    busy = f"Expected --out that no other server has, got --out {settings.out}; wait for it, or name a new folder."
    with locked(settings.out, busy):
        _serve_held(settings, mine, wanted, keys, told)


def _serve_held(settings: Serve, mine: "Public", wanted: "Asked", keys: list[str], told: Callable[[str, str], None]) -> NoReturn:
    """Serve one round in a folder that this process holds. Ends the process."""
    with err.status("loading"):
        from rknn_jax.federation import flower, processes, publish
        from rknn_jax.federation.collector import Collector
    round, queries = publish.prepare(settings.out, mine, wanted, told)
    central = wanted.config.trust == "central"
    collector = None if central else Collector(settings.out, round)
    found = publish.kept_sum(settings.out, round) if central else None
    if collector and collector.cut:
        tell(err, "cut", f"{collector.cut:,} bytes of answers that were not whole; whoever is missing is asked again")
    closes = publish.closes_at(settings.out, settings.deadline)
    if closes < time.time():
        tell(err, "deadline", f"it passed {time.time() - closes:,.0f} s ago: it counts from when the round began; pass a larger --deadline")
    so_far = f"{collector.num_clients if collector else 0} of {wanted.clients} clients so far"
    tell(err, "round", f"{round.id[:12]}, {len(round.data):,} bytes to each client; {so_far}")
    secured = f" with TLS, for {len(keys)} keys" if keys else " without TLS, on this host only"
    tell(err, "listening", f"on {settings.host}:{settings.port}{secured}")

    def round_and_results(grid: Any, context: Any) -> None:
        answers = collector or found
        if collector:
            flower.collect(grid, collector, wanted.clients, closes, authenticated=bool(keys), tell=told)
        elif answers is None:

            def begin() -> None:
                publish.begin_sum(settings.out)

            answers = flower.sum_up(grid, context, round, wanted.clients, wanted.quorum, closes, told, begin)
            publish.keep_sum(settings.out, answers)
        assert answers is not None
        card = publish.publish(settings.out, mine, wanted, queries, answers, told)
        flower.announce(grid, card["statement"])
        publish.end(settings.out)
        _print_json(settings, card | {"exit_status": 0})

    def app(grid: Any, context: Any) -> None:
        try:
            round_and_results(grid, context)
        except (ValueError, OSError) as error:
            err.print(f"rknn: error: {error}")
            _print_json(settings, {"error": str(error), "exit_status": 2})
            raise SystemExit(2) from error

    processes.serve(app, settings.out, settings.host, settings.port, settings.certificates, keys)


def join(settings: Join) -> NoReturn:
    """Take part. Ends the process."""
    host, _, port = settings.server.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"Expected --server host:port, got --server {settings.server}.")
    for name in ("ca", "key"):
        if (path := getattr(settings, name)) is not None and not path.is_file():
            raise ValueError(f"Expected a file as --{name}, got {path}, which is none.")
    if not _on_this_host(host) and (settings.ca is None or settings.key is None):
        raise ValueError(f"Expected --ca and --key for a server on another host, got --server {settings.server} without them.")
    _needs_flower()
    with err.status("loading"):
        from rknn_jax.federation import flower, processes
    client = _client(settings)
    over = threading.Event()
    tell(err, "private", f"{len(client.inputs):,} records; {client.ledger.remaining} left in {client.ledger.path}")  # type: ignore[union-attr]
    tell(err, "joining", f"{settings.server}; waiting for it where it is not there yet. Ctrl-C leaves, and loses nothing")

    took_part: list[str] = []

    def told(name: str, text: str) -> None:
        tell(err, name, text)
        if name in ("answered", "added"):
            took_part.append(text)
        if name == "over" and not took_part:
            tell(
                err,
                "apart",
                "this client did not take part, and nothing was spent; see above, and rknn budget raise where it is the budget",
            )
        if name == "over" and client.ledger:
            amounts = {name: getattr(client.ledger, name)._asdict() for name in ("budget", "spent", "remaining")}
            line = {"statement": text, "ledger": {"path": str(client.ledger.path), **amounts}, "exit_status": 0 if took_part else 3}
            _print_json(settings, line)

    app = flower.client_app(lambda context: client, told, over)
    processes.join(app, client.folder, settings.server, settings.ca, settings.key, over, lambda: 0 if took_part else 3)


def asked(settings: Serve, simulated: int | None = None) -> "Asked":
    """Return what the settings ask for; `simulated` is the seed of simulated noise.

    Raises:
      ValueError: for what no data could make right.
    """
    from rknn_jax import tables
    from rknn_jax.federation.publish import Asked
    from rknn_jax.labelers import rknn
    from rknn_jax.students import fit as students

    classes = tables.parse_classes(settings.classes)
    names = classes.names or tuple(map(str, range(classes.count)))
    if settings.clients < 1 or not 1 <= (settings.quorum or settings.clients) <= settings.clients or not settings.deadline > 0:
        raise ValueError(
            f"Expected 1 <= quorum <= clients and deadline > 0, got --quorum {settings.quorum}, --clients {settings.clients} and "
            f"--deadline {settings.deadline}."
        )
    if settings.epsilon > LARGE_EPSILON and not settings.allow_large_epsilon and simulated is None:
        raise ValueError(
            f"Expected --epsilon <= {LARGE_EPSILON:g}, got --epsilon {settings.epsilon:g}, which protects next to nothing; pass "
            "--allow-large-epsilon if that is meant, and every client has to pass it too."
        )
    config = rknn.Config(
        epsilon=settings.epsilon,
        delta=settings.delta,
        num_neighbors=settings.neighbors,
        mechanism=settings.mechanism or ("binomial" if settings.trust == "central" else "collision"),
        trust=settings.trust,
        amplification="general" if settings.amplification == "general" else "variation ratio",
        metric=settings.metric,
    )
    if settings.student != "none":
        students.Config(model=settings.student, epochs=settings.epochs)  # refuses now what training would after the round
    by_client = settings.unit == "client"
    return Asked(
        config,
        names,
        settings.queries,
        settings.representation,
        settings.unit,
        settings.records_per_client if by_client else 0,
        settings.honest,
        simulated,
        settings.clients,
        settings.quorum or settings.clients,
        settings.deadline,
        settings.student,
        settings.epochs,
        settings.seed,
        settings.keys is not None,
    )


def public(path: Path, test: Path | None) -> "Public":
    """Read the server's own data.

    Raises:
      ValueError: for whatever cannot be used.
    """
    from rknn_jax import tables
    from rknn_jax.federation.publish import Public

    inputs = read_inputs(path, "--public")
    if test is None:
        return Public(inputs)
    images, labels = read_inputs(test, "--test"), read_labels(test, "--test")
    if len(images) != len(labels) or images.shape[1:] != inputs.shape[1:]:
        raise ValueError(
            f"Expected images as in --public and one label for each in --test {test}, got {images.shape} and {len(labels)} labels."
        )
    if np.any(labels == tables.FOREIGN):
        raise ValueError(f"Expected class numbers as 'labels' in --test {test}, got other numbers; number the classes 0..C-1.")
    return Public(inputs, (images, labels))


def _client(settings: Join) -> "Client":
    from rknn_jax.federation.client import Agreement, Client

    inputs = read_inputs(settings.private, "--private", private=True)
    labels = read_labels(settings.private, "--private")
    if len(inputs) != len(labels):
        raise ValueError(
            f"Expected one label a record in --private {settings.private}, got {len(labels)} labels for {len(inputs)} records."
        )
    path, dataset = settings.ledger or settings.beside("ledger.jsonl"), fingerprint(inputs)
    if not os.path.lexists(path):
        if settings.budget is None:
            raise ValueError(f"Expected --budget for the ledger of these records, which does not exist yet at {path}, got none.")
        ledger = Ledger.create(path, dataset, settings.budget, settings.budget_delta, unit=settings.unit)
    else:
        ledger = Ledger.open(path, dataset)
    ledger = replace(ledger, patience=settings.patience)
    agreement = Agreement(
        settings.trust,
        settings.honest,
        settings.dishonest,
        settings.most_epsilon,
        settings.most_delta,
        large_epsilon=settings.allow_large_epsilon,
        most_cells=settings.most_cells,
        most_bytes=settings.most_bytes,
        most_work=settings.most_work,
    )
    return Client(inputs, labels, ledger, settings.rounds or settings.beside("rounds"), agreement)


def read_inputs(path: Path, argument: str, *, private: bool = False) -> np.ndarray:
    """Read `images` uint8 `[n, h, w, c]`, or else `embeddings` float32 `[n, f]`, from an .npz file.

    Args:
      path: File to read.
      argument: Command-line argument that named the file, for the errors.
      private: Whether a row that cannot be used is NaN and no error: one record must not decide whether a client takes part.

    Raises:
      ValueError: for whatever cannot be used.
    """
    from rknn_jax import tables

    images = tables.read_optional(path, argument, "images") if path.suffix == ".npz" else None
    if images is None:
        return tables.read_records(path, argument) if private else tables.read_embeddings(path, argument)
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not len(images):
        raise ValueError(f"Expected images uint8 [n, h, w, c] in {argument} {path}, got {images.dtype} {images.shape}.")
    return images if images.ndim == 4 else images[..., None]


def read_labels(path: Path, argument: str) -> np.ndarray:
    """Read class numbers `labels`, int32 `[n]`, negative if there is none and `tables.FOREIGN` if it is no class number.

    Raises:
      ValueError: for whatever cannot be used.
    """
    from rknn_jax import tables

    labels = tables.read_labels(path, None)
    if labels.dtype.kind == "U":
        raise ValueError(f"Expected class numbers 'labels', integers [n], in {argument} {path}, got text; number the classes 0..C-1.")
    return labels.astype(np.int32)


def _server_keys(settings: Serve) -> list[str]:
    if (settings.certificates is None) != (settings.keys is None):
        raise ValueError("Expected --certificates and --keys together: clients are known by keys, over TLS only.")
    if settings.keys is None:
        if not _on_this_host(settings.host):
            raise ValueError(f"Expected --certificates and --keys where others can connect, got --host {settings.host} without them.")
        return []
    try:
        keys = [line.strip() for line in settings.keys.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ValueError(f"Expected a file of public keys as --keys, got {settings.keys}: {reason}.") from error
    if not keys:
        raise ValueError(f"Expected public keys in --keys {settings.keys}, got none; ssh-keygen -t ecdsa -b 384 makes one.")
    return keys


def _on_this_host(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _needs_flower() -> None:
    import importlib.util

    if importlib.util.find_spec("flwr") is None:
        raise ValueError("Expected Flower for a federation, which is not installed; pip install 'rknn-jax[flower]'.")


def _print_json(settings: Serve | Join, line: dict[str, Any]) -> None:
    if settings.json:  # this process ends before main could
        sys.stdout.write(json.dumps(line, allow_nan=False, default=float) + "\n")
        sys.stdout.flush()
