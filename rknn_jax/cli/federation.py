"""`rknn serve` and `rknn join`: messages of a federation; `rknn_jax.federation` does the work."""

import contextlib
import importlib.util
import ipaddress
import os
import shlex
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rknn_jax._internal import progress, ranges
from rknn_jax._internal.checks import check_together
from rknn_jax._internal.disk import locked, make_folder
from rknn_jax._internal.extras import install
from rknn_jax.cli.serving import merge_folders, say, serve_rounds
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.settings import Serve, asked, join_command, settled
from rknn_jax.privacy import ledger_index
from rknn_jax.privacy.ledger import LedgerError

if TYPE_CHECKING:
    from rknn_jax.federation.request import Asked, Public
    from rknn_jax.federation.round_sequence import Step
    from rknn_jax.federation.tls import ClientContext
    from rknn_jax.privacy.ledger import Ledger

REFUSED = 3
"""Exit status of a client that did not take part."""


def serve(settings: Serve) -> dict[str, Any]:
    """Serve one round, or merge what servers have collected; return the statement of privacy."""
    with progress.phase("loading"):
        from rknn_jax.federation.inputs import read_public
        from rknn_jax.federation.round_folder import check_request
    settings = _with_test_certificates(settings)
    check_together(
        lambda: ranges.check(settings),
        lambda: _admitted(settings),
        lambda: read_public(settings.public, settings.test, settings.drop),
        lambda: asked(settings),
        lambda: _check_accounts(settings),
    )
    clients = _admitted(settings)
    mine = read_public(settings.public, settings.test, settings.drop)
    settings = _settle(settings, mine)
    wanted = asked(settings)
    if wanted.check_share and (settings.collect_only or settings.merge or settings.question):
        raise ValueError(
            f"Expected no --check-share with --collect-only, --merge or --question, got "
            f"--check-share {settings.check_share}; the labels of several servers are there when "
            "the clients have left."
        )
    if wanted.config.votes_per_record is not None and settings.queries:
        rows = len(mine.inputs)
        if settings.queries > rows:
            raise ValueError(
                f"Expected --queries <= {rows}, the number of public rows, got --queries "
                f"{settings.queries}; ask fewer queries, or bring more public rows."
            )
    if wanted.summed:
        _check_sum(settings, wanted)
    steps = _checked_rounds(settings, wanted)
    for step in steps:
        check_request(step.asked)
    if len(steps) > 1:
        shares = ", ".join(f"{step.asked.config.epsilon:g}" for step in steps)
        say("rounds", f"{len(steps)}, at epsilon = {shares}; clients need a budget for all")
    if settings.dry_run:
        command = shlex.join(join_command(settings))
        own = "--private"
        if settings.make_test_certificates:
            own += f", and party0 to party{settings.clients - 1}"
        say("clients", f"{command}  # at each of {settings.clients}, with its own {own}")
        say("checked", "nobody was asked, and nothing was written")
        return {"dry_run": True, "join": command}
    make_folder(settings.out)
    busy = (
        f"Expected --out that no other server has, got --out {settings.out}; wait for it, or name "
        "a new folder."
    )
    with locked(settings.out, busy):
        if settings.merge:
            return merge_folders(settings, mine, wanted)
        if settings.make_test_certificates:
            clients = _made_test_certificates(settings, settings.make_test_certificates)
        return serve_rounds(settings, mine, wanted, clients)


def _check_accounts(settings: Serve) -> None:
    """Check the file of clients' accounts, if there is one."""
    from rknn_jax.federation import client_accounts

    if settings.accounts is not None:
        client_accounts.check(settings.accounts)


def _with_test_certificates(settings: Serve) -> Serve:
    """Return the settings with the names of the test certificates that are to be made."""
    folder = settings.make_test_certificates
    if folder is None:
        return settings
    if settings.certificates or settings.keys or settings.merge:
        raise ValueError(
            "Expected --make-test-certificates alone, got it with --certificates, --keys or "
            "--merge; certificates that are there are not made anew."
        )
    return replace(settings, certificates=folder, keys=folder / "clients.pem")


def _made_test_certificates(settings: Serve, folder: Path) -> dict[bytes, int]:
    """Make certificates for tests, and return the numbers of the clients, by certificate."""
    from rknn_jax.federation import certificates, tls

    anywhere = settings.host in ("0.0.0.0", "::")
    hosts = (socket.gethostname(), "localhost", "127.0.0.1") if anywhere else (settings.host,)
    certificates.write_federation(folder, hosts, settings.clients)
    say(
        "tests only",
        f"certificates of {', '.join(hosts)} and {settings.clients} clients in {folder}, which end "
        f"after {certificates.LIFE.days} days; beyond tests every client makes its own",
    )
    return tls.read_clients(folder / "clients.pem")


def _settle(settings: Serve, mine: "Public") -> Serve:
    """Return the settings with what follows from the data, and tell the owner of each."""
    from rknn_jax.records import public_values
    from rknn_jax.records.features import MOST_NAMED
    from rknn_jax.release.public_rows import lists_alone

    for sentence in public_values.doubted(mine.inputs.T, mine.features):
        say("warning", f"public columns {sentence}")
    if mine.features:
        more = f" and {len(mine.features) - MOST_NAMED:,} more" * (len(mine.features) > MOST_NAMED)
        named = f"{', '.join(mine.features[:MOST_NAMED])}{more}"
        say("features", f"{named}; of a client whose columns have no names, their order decides")
    elif beside := lists_alone(mine.others, None):
        say("warning", beside)
    found = settled(settings, images=mine.images)
    if settings.student is None and found.student == "none":
        say("student", "none; a student learns from images, and one label of each")
    if settings.honest != found.honest:
        say(
            "honest",
            f"{found.honest} clients, the quorum: the promise counts on each of them to add its "
            "share of the noise; pass --honest to count on fewer",
        )
    return found


def _checked_rounds(settings: Serve, wanted: "Asked") -> "list[Step]":
    """Return the rounds; raise ValueError if there are several that cannot follow each other."""
    from rknn_jax.federation import round_sequence

    alone = {
        "--collect-only": settings.collect_only,
        "--merge": settings.merge,
        "--question": settings.question,
        "--labels-per-record": settings.labels_per_record,
    }
    for flag, given in alone.items():
        if settings.rounds > 1 and given:
            raise ValueError(
                f"Expected no {flag} with --rounds {settings.rounds}, got {flag}; a later round "
                "needs labels, one of each public row, that this server has published. Leave out "
                "--rounds."
            )
    return round_sequence.of(settings.out, wanted, settings.rounds)


def _check_sum(settings: Serve, wanted: "Asked") -> None:
    """Check what a round with trust=central cannot do, before anybody is asked."""
    from rknn_jax.federation.secure_sum_keys import MOST_CLIENTS

    if settings.collect_only or settings.merge:
        raise ValueError(
            "Expected a round of messages with --collect-only or --merge, got --trust central; "
            "sums are taken by one server."
        )
    if not 2 <= wanted.quorum <= wanted.clients <= MOST_CLIENTS:
        raise ValueError(
            f"Expected 2 <= quorum <= clients <= {MOST_CLIENTS} with --trust central, got "
            f"--quorum {wanted.quorum} and --clients {wanted.clients}."
        )


def join(settings: Join) -> dict[str, Any]:
    """Take part in a round; return the server's statement and what is left in the ledger."""
    with progress.phase("loading"):
        from rknn_jax.federation import joining
    *_, context, agreement, records = check_together(
        _needs_libraries,
        lambda: ranges.check(settings),
        lambda: _check_server(settings),
        lambda: joining.check_budget(settings),
        lambda: _secured(settings),
        lambda: joining.agreed(settings),
        lambda: joining.read_records(settings),
    )
    from rknn_jax.federation.connection import Connection
    from rknn_jax.federation.participation import take_part

    path = joining.ledger_path(settings)
    if not os.path.lexists(path):
        say("budget", ledger_index.notice(path))
    client = joining.opened(settings, agreement, records)
    ledger = client.ledger
    assert ledger
    say("private", f"{len(client.inputs):,} records; {ledger.remaining} left in {ledger.path}")
    say(
        "joining",
        f"{settings.server}; waiting {settings.wait:g} s for it if it does not answer. Ctrl-C "
        "leaves, and loses nothing",
    )
    server = _url(settings.server, secured=context is not None)
    said = ["waiting for the server"]
    with (
        progress.phase("joining", note=lambda: said[-1]),
        contextlib.closing(Connection(server, context, say, settings.wait)) as connection,
    ):

        def told(name: str, text: str) -> None:
            say(name, text)
            said.append(name)

        outcome = take_part(client, connection, told)
    if not outcome.took_part:
        say(
            "apart",
            "this client did not take part; see above, and rknn budget raise if it is the budget",
        )
    return {
        "statement": outcome.statement,
        "ledger": {"path": str(ledger.path), **_amounts(ledger)},
        "exit_status": 0 if outcome.took_part else REFUSED,
    }


def _amounts(ledger: "Ledger") -> dict[str, dict[str, Any] | None]:
    """Return the amounts of a ledger after a round, or None for each if it cannot be read."""
    names = ("budget", "spent", "remaining")
    try:
        return {name: getattr(ledger, name)._asdict() for name in names}
    except LedgerError as error:
        # The round is over, and its statement must not be lost.
        say("warning", f"what this round spent, and what is left, is unknown: {error}")
        return dict.fromkeys(names)


def _secured(settings: Join) -> "ClientContext | None":
    """Return the TLS settings of a client; None without certificates."""
    from rknn_jax.federation import tls

    given = (settings.ca, settings.certificate, settings.key)
    for name, path in zip(("ca", "certificate", "key"), given, strict=True):
        if path is not None and not path.is_file():
            raise ValueError(f"Expected a file as --{name}, got {path}, which is none.")
    if not all(given):
        return None
    return tls.client_context(*filter(None, given))


def _check_server(settings: Join) -> None:
    """Check the server's address, and that certificates are given if they are needed."""
    parts = urlsplit(_url(settings.server, secured=settings.ca is not None))
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port:
        raise ValueError(f"Expected --server host:port, got --server {settings.server}.")
    missing = [name for name in ("ca", "certificate", "key") if getattr(settings, name) is None]
    secured = not missing
    wanted = len(missing) < 3 or parts.scheme == "https" or not _on_this_host(parts.hostname)
    if not secured and wanted:
        raise ValueError(
            "Expected --ca, --certificate and --key together, for a server with TLS or on another "
            f"host, got --server {settings.server} without --{' and --'.join(missing)}."
        )
    if secured and parts.scheme == "http":
        raise ValueError(
            f"Expected https for a key, got --server {settings.server}; name it host:port."
        )


def _url(server: str, *, secured: bool) -> str:
    return server if "://" in server else f"{'https' if secured else 'http'}://{server}"


def _admitted(settings: Serve) -> dict[bytes, int] | None:
    """Return the numbers of the clients that may connect, by certificate; None without TLS."""
    if (settings.certificates is None) != (settings.keys is None):
        raise ValueError(
            "Expected --certificates and --keys together: clients are known by keys, over TLS only."
        )
    _needs_libraries()
    if settings.make_test_certificates:
        from rknn_jax.federation import certificates

        certificates.check_free(settings.make_test_certificates)
        return {}
    if settings.keys is None:
        if not _on_this_host(settings.host):
            raise ValueError(
                "Expected --certificates and --keys if others can connect, got --host "
                f"{settings.host} without them."
            )
        return None
    from rknn_jax.federation import tls

    assert settings.certificates is not None
    clients = tls.read_clients(settings.keys)
    tls.server_context(settings.certificates, clients)  # a dry run also says what is wrong
    return clients


def _on_this_host(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _needs_libraries() -> None:
    needed = ("cryptography", "httpx", "starlette", "uvicorn")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise ValueError(
            f"Expected {', '.join(missing)} for a federation, got none installed; "
            f"{install('federation')}."
        )
