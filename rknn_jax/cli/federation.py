"""`rknn serve` and `rknn join`: messages of a federation; `rknn_jax.federation` does the work."""

import ipaddress
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from rknn_jax._internal.disk import locked
from rknn_jax._internal.terminal import err, tell
from rknn_jax.federation.settings import Join, Serve, asked
from rknn_jax.privacy.ledger import Ledger, fingerprint

if TYPE_CHECKING:
    from rknn_jax.federation.client import Client
    from rknn_jax.federation.request import Asked, Public


def serve(settings: Serve) -> NoReturn:
    """Serve one round, and end the process."""
    keys = _server_keys(settings)
    if not 0 < settings.port < 2**16:
        raise ValueError(f"Expected 1 <= port <= {2**16 - 1}, got --port {settings.port}.")
    _needs_flower()
    with err.status("loading"):
        from rknn_jax.federation.inputs import read_public
    mine = read_public(settings.public, settings.test)
    wanted = asked(settings)

    def told(name: str, text: str) -> None:
        tell(err, name, text)

    settings.out.mkdir(parents=True, exist_ok=True)
    busy = (
        f"Expected --out that no other server has, got --out {settings.out}; wait for it, or name "
        "a new folder."
    )
    with locked(settings.out, busy):
        _serve_held(settings, mine, wanted, keys, told)


def _serve_held(
    settings: Serve,
    mine: "Public",
    wanted: "Asked",
    keys: list[str],
    told: Callable[[str, str], None],
) -> NoReturn:
    """Serve one round in a folder that this process holds, and end the process."""
    with err.status("loading"):
        from rknn_jax.federation import flower, processes, publish, round_folder
        from rknn_jax.federation.collector import Collector
    round, queries = round_folder.prepare(settings.out, mine, wanted, told)
    central = wanted.summed
    collector = None if central else Collector(settings.out, round)
    found = round_folder.kept_sum(settings.out, round) if central else None
    if collector and collector.cut:
        tell(
            err,
            "cut",
            f"{collector.cut:,} bytes of answers that were not whole; whoever is missing is "
            "asked again",
        )
    closes = round_folder.closes_at(settings.out, settings.deadline)
    if closes < time.time():
        tell(
            err,
            "deadline",
            f"it passed {time.time() - closes:,.0f} s ago: it counts from when the round began; "
            "pass a larger --deadline",
        )
    so_far = f"{collector.num_clients if collector else 0} of {wanted.clients} clients so far"
    tell(err, "round", f"{round.id[:12]}, {len(round.data):,} bytes to each client; {so_far}")
    secured = f" with TLS, for {len(keys)} keys" if keys else " without TLS, on this host only"
    tell(err, "listening", f"on {settings.host}:{settings.port}{secured}")

    def round_and_results(grid: Any, context: Any) -> None:
        answers = collector or found
        if collector:
            flower.collect(
                grid, collector, wanted.clients, closes, authenticated=bool(keys), tell=told
            )
        elif answers is None:

            def begin() -> None:
                round_folder.begin_sum(settings.out)

            answers = flower.sum_up(
                grid, context, round, wanted.clients, wanted.quorum, closes, told, begin
            )
            round_folder.keep_sum(settings.out, answers)
        assert answers is not None
        card = publish.publish(settings.out, mine, wanted, queries, answers, told)
        flower.announce(grid, card["statement"])
        round_folder.end(settings.out)
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
    """Take part in a round, and end the process."""
    _check_join(settings)
    _needs_flower()
    with err.status("loading"):
        from rknn_jax.federation import flower, processes
    client = _client(settings)
    over = threading.Event()
    ledger = client.ledger
    assert ledger
    tell(
        err, "private", f"{len(client.inputs):,} records; {ledger.remaining} left in {ledger.path}"
    )
    tell(
        err,
        "joining",
        f"{settings.server}; waiting for it where it is not there yet. Ctrl-C leaves, and loses "
        "nothing",
    )

    took_part: list[str] = []

    def status() -> int:
        return 0 if took_part else 3

    def told(name: str, text: str) -> None:
        tell(err, name, text)
        if name in ("answered", "added"):
            took_part.append(text)
        if name == "over":
            _tell_over(settings, client, text, status())

    app = flower.client_app(lambda context: client, told, over)
    processes.join(app, client.folder, settings.server, settings.ca, settings.key, over, status)


def _check_join(settings: Join) -> None:
    """Check the server's address, and that certificate and key are there if they are needed."""
    host, _, port = settings.server.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"Expected --server host:port, got --server {settings.server}.")
    for name in ("ca", "key"):
        path = getattr(settings, name)
        if path is not None and not path.is_file():
            raise ValueError(f"Expected a file as --{name}, got {path}, which is none.")
    if not _on_this_host(host) and (settings.ca is None or settings.key is None):
        raise ValueError(
            "Expected --ca and --key for a server on another host, got --server "
            f"{settings.server} without them."
        )


def _tell_over(settings: Join, client: "Client", statement: str, status: int) -> None:
    """Tell that the round is over, and what is left in the client's ledger.

    `status` is the exit status: 0 if the client took part.
    """
    if status:
        tell(
            err,
            "apart",
            "this client did not take part, and nothing was spent; see above, and rknn "
            "budget raise where it is the budget",
        )
    ledger = client.ledger
    if ledger:
        names = ("budget", "spent", "remaining")
        amounts = {name: getattr(ledger, name)._asdict() for name in names}
        line = {
            "statement": statement,
            "ledger": {"path": str(ledger.path), **amounts},
            "exit_status": status,
        }
        _print_json(settings, line)


def _client(settings: Join) -> "Client":
    from rknn_jax.federation.agreement import Agreement
    from rknn_jax.federation.client import Client
    from rknn_jax.federation.inputs import read_inputs, read_labels

    inputs = read_inputs(settings.private, "--private", private=True)
    labels = read_labels(settings.private, "--private")
    if len(inputs) != len(labels):
        raise ValueError(
            f"Expected one label a record in --private {settings.private}, got {len(labels)} "
            f"labels for {len(inputs)} records."
        )
    path = settings.ledger or settings.beside("ledger.jsonl")
    dataset = fingerprint(inputs)
    if not os.path.lexists(path):
        if settings.budget is None:
            raise ValueError(
                "Expected --budget for the ledger of these records, which does not exist yet at "
                f"{path}, got none."
            )
        ledger = Ledger.create(
            path, dataset, settings.budget, settings.budget_delta, unit=settings.unit
        )
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


def _server_keys(settings: Serve) -> list[str]:
    if (settings.certificates is None) != (settings.keys is None):
        raise ValueError(
            "Expected --certificates and --keys together: clients are known by keys, over TLS only."
        )
    if settings.keys is None:
        if not _on_this_host(settings.host):
            raise ValueError(
                "Expected --certificates and --keys where others can connect, got --host "
                f"{settings.host} without them."
            )
        return []
    try:
        keys = [line.strip() for line in settings.keys.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ValueError(
            f"Expected a file of public keys as --keys, got {settings.keys}: {reason}."
        ) from error
    if not keys:
        raise ValueError(
            f"Expected public keys in --keys {settings.keys}, got none; ssh-keygen -t ecdsa -b "
            "384 makes one."
        )
    return keys


def _on_this_host(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _needs_flower() -> None:
    import importlib.util

    if importlib.util.find_spec("flwr") is None:
        raise ValueError(
            "Expected Flower for a federation, which is not installed; pip install "
            "'rknn-jax[flower]'."
        )


def _print_json(settings: Serve | Join, line: dict[str, Any]) -> None:
    if settings.json:  # main cannot print it, because this process ends earlier
        sys.stdout.write(json.dumps(line, allow_nan=False, default=float) + "\n")
        sys.stdout.flush()
