"""A round over HTTP in one process: what a client brings counts once, whatever the network, a
stranger or a hostile party does; `tests/test_federation_processes.py` kills whole programs.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import errno
import gc
import hashlib
import http.client
import json
import os
import queue
import shlex
import socket
import ssl
import threading
import time
from types import SimpleNamespace

import httpx
import numpy as np
import pandas as pd
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from rknn_jax._internal.option_names import as_flag, option_names
from rknn_jax.cli import federation
from rknn_jax.cli import main as cli
from rknn_jax.federation import (
    certificates,
    gate,
    hosting,
    joining,
    listener,
    participation,
    server,
    tls,
)
from rknn_jax.federation import connection as connections
from rknn_jax.federation.agreement import Agreement, RefusedError
from rknn_jax.federation.collector import Collector, Reply
from rknn_jax.federation.connection import Connection
from rknn_jax.federation.desk import Arrival, Desk
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.listener import Protocol, listening
from rknn_jax.federation.participation import FailedError, take_part
from rknn_jax.federation.request import Public
from rknn_jax.federation.rounds import Round
from rknn_jax.federation.server import Resources
from rknn_jax.federation.settings import Serve, join_command, settled
from rknn_jax.privacy.ledger import Ledger
from tests.options import named_settings
from tests.test_federation import a_client, a_round, honest

HERE = certificates.HERE
PATIENCE = 30  # seconds until something counts as hanging
NOBODY = "0" * 64


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A server that ends does not wait for connections that stay open, or for silent clients."""
    monkeypatch.setattr(listener, "SHUTDOWN_SECONDS", 0)
    monkeypatch.setattr(hosting, "TICK", 0.05)


def ask(port, method, path, body=None, *, ticket=None, context=None, **headers):
    """Return status, body and headers of one request on a connection of its own."""
    kind = http.client.HTTPSConnection if context else http.client.HTTPConnection
    options = {"context": context} if context else {}
    connection = kind(HERE, port, timeout=PATIENCE, **options)
    if ticket is not None:
        headers["rknn-ticket"] = str(ticket)
    try:
        connection.request(method, path, body, headers)
        found = connection.getresponse()
        return SimpleNamespace(status=found.status, data=found.read(), headers=found.headers)
    finally:
        connection.close()


def free_port():
    with socket.socket() as listening:
        listening.bind((HERE, 0))
        return listening.getsockname()[1]


def until(condition):
    """Wait for a condition, and fail if it does not come."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


def fate(found):
    return found.status, json.loads(found.data)["fate"]


@contextlib.contextmanager
def serving(folder, round, clients=1, *, seconds=PATIENCE, context=None, known=None):
    """Serve a round beside the test, and end it with the statement `done`."""
    collector = Collector(folder, round)
    desk = Desk(round, time.time() + seconds)
    told = []
    resources = Resources(desk)
    with listening(resources.app, HERE, 0, context, known) as served:
        port = served.port

        def course():
            hosting.collect(desk, collector, clients, lambda *line: told.append(line))
            running.collected.set()
            running.go.wait(PATIENCE)
            hosting.announce(desk, "done")

        running = SimpleNamespace(
            port=port,
            gate=served,
            resources=resources,
            desk=desk,
            collector=collector,
            told=told,
            collected=threading.Event(),
            go=threading.Event(),
            path=f"/v1/rounds/{round.id}",
        )
        running.go.set()
        thread = threading.Thread(target=course)
        thread.start()
        try:
            yield running
        finally:
            desk.closes = 0
            running.go.set()
            thread.join(PATIENCE)
            collector.close()
    assert not thread.is_alive()


def joined(client, port, context=None, scheme=None):
    """Take part as a client; return the outcome and what its owner was told."""
    told = []
    scheme = scheme or ("https" if context else "http")
    with contextlib.closing(
        Connection(f"{scheme}://{HERE}:{port}", context, lambda *line: told.append(line))
    ) as connection:
        return take_part(client, connection, lambda *line: told.append(line)), dict(told)


def side_by_side(commands):
    """Run a server's and its clients' commands, words without `rknn`; return all statements.

    They are parsed one after the other, because the parser is not made for threads.
    """
    actions = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cli, "_run", lambda action: actions.append(action) or {})
        for words in commands:
            assert cli.main(words) == 0
    run = {Serve: federation.serve, Join: federation.join}
    with concurrent.futures.ThreadPoolExecutor(len(actions)) as pool:
        ended = [pool.submit(run[type(action)], action) for action in actions]
        found = [one.result(PATIENCE) for one in ended]
    assert all(one.get("exit_status", 0) == 0 for one in found)
    return [one["statement"] for one in found]


@pytest.fixture
def quick(monkeypatch):
    """Wait less."""
    monkeypatch.setattr(connections, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(participation, "CLOSED_SECONDS", 0.02)
    monkeypatch.setattr(connections, "LONGEST_WAIT", 0.05)
    monkeypatch.setattr(hosting, "GOODBYE", 0.3)


# A round


@pytest.mark.usefixtures("quick")
def test_a_client_answers_hears_the_end_and_sends_the_same_when_it_comes_back(tmp_path):
    round = a_round(mechanism="randomized_response")
    client = a_client(tmp_path / "client")
    with serving(tmp_path / "server", round, 2) as running:
        found = []
        first = threading.Thread(target=lambda: found.append(joined(client, running.port)))
        first.start()
        while not running.collector.num_clients:
            time.sleep(0.01)
        ticket, payload = client.said(round.id)
        again = ask(running.port, "POST", f"{running.path}/answers", payload, ticket=ticket)
        assert fate(again) == (200, "again")
        second, events = joined(a_client(tmp_path / "other", seed=2), running.port)
        first.join(PATIENCE)
    assert found[0][0] == second == ("done", True)
    assert list(events) == ["asked", "answering", "answered", "over"]
    assert running.collector.rejected == {"again": 1}
    assert running.collector.num_messages == 12
    assert client.ledger.spent.epsilon == 1
    assert payload in (tmp_path / "server/answers.bin").read_bytes()


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_no_answer_counts_once_results_were_published(tmp_path):
    """A server that was killed before its clients heard the end once published again, with more."""
    round = a_round(mechanism="randomized_response")
    answers = [a_client(tmp_path / str(i), seed=i).answer(round.data)[1:] for i in range(2)]
    for clients, expected in ((1, (200, "counted")), (2, (410, "late"))):
        with serving(tmp_path / "server", round, clients) as running:
            ticket, payload = answers[clients - 1]
            path = f"{running.path}/answers"
            assert fate(ask(running.port, "POST", path, payload, ticket=ticket)) == expected
            assert running.collected.wait(1)
        assert running.collector.num_clients == 1
        (tmp_path / "server/privacy.json").write_text("{}")


@pytest.mark.usefixtures("quick")
def test_a_client_that_comes_too_late_spends_nothing_and_a_counted_one_hears_the_end(tmp_path):
    round = a_round(mechanism="randomized_response")
    counted = a_client(tmp_path / "client")
    ticket, payload = counted.answer(round.data)[1:]
    late = a_client(tmp_path / "late", seed=2)
    with serving(tmp_path / "server", round) as running:
        running.go.clear()
        answers = f"{running.path}/answers"
        assert fate(ask(running.port, "POST", answers, payload, ticket=ticket)) == (200, "counted")
        assert running.collected.wait(PATIENCE)
        assert fate(ask(running.port, "GET", "/v1/round")) == (410, "late")
        assert fate(ask(running.port, "POST", answers, payload, ticket=ticket + 1)) == (410, "late")
        back = []  # a killed client that was started again, and one that did not hear its fate
        for _ in range(2):
            thread = threading.Thread(target=lambda: back.append(joined(counted, running.port)[0]))
            thread.start()
            time.sleep(0.1)
            running.go.set()
            thread.join(PATIENCE)
        assert back == [("done", True)] * 2

        def leave(name, text):
            raise KeyboardInterrupt(f"{name}: {text}")  # as Ctrl-C does

        silent = Connection(f"http://{HERE}:{running.port}", None, lambda *line: None)
        with pytest.raises(KeyboardInterrupt, match="too late: .* Nothing was spent"):
            take_part(late, silent, leave)
    assert late.ledger.spent.epsilon == 0
    assert running.collector.rejected == {}


@pytest.mark.usefixtures("quick")
def test_a_refusal_has_no_reason_and_counts_once(tmp_path):
    round = a_round(epsilon=2.0)
    poor = a_client(tmp_path / "client", budget=1)
    heard = []
    with serving(tmp_path / "server", round) as running:
        bring = running.desk.bring

        async def listened(kind, reply, step=0):
            heard.append((kind, reply.payload))
            return await bring(kind, reply, step)

        running.desk.bring = listened
        thread = threading.Thread(target=lambda: heard.append(joined(poor, running.port)))
        thread.start()
        while not running.collector.rejected:
            time.sleep(0.01)
        running.desk.closes = 0
        thread.join(PATIENCE)
    (kind, payload), (outcome, events) = heard
    assert (kind, payload, outcome) == ("refusal", b"", ("done", False))
    assert "has epsilon=1.0" in events["refused"]
    assert "Ctrl-C leaves" in events["waiting"]
    assert running.collector.rejected == {"refused by the client": 1}
    assert poor.ledger.spent.epsilon == 0


@pytest.mark.usefixtures("quick")
def test_answers_that_come_together_share_a_write_and_none_is_acknowledged_before(tmp_path):
    round = a_round(mechanism="generalized_randomized_response")
    payloads = honest(round, 40)
    with serving(tmp_path / "server", round, len(payloads)) as running:
        writes = []
        heard = []
        append = running.collector._append

        def append_when_all_are_there(clients, payload):
            first = not writes
            writes.append(len(clients))
            while first and running.desk._arrivals.qsize() < len(payloads) - len(clients):
                time.sleep(0.01)
            assert len(heard) <= sum(writes[:-1])
            append(clients, payload)

        running.collector._append = append_when_all_are_there

        async def send(client, number):
            headers = {"rknn-ticket": str(number)}
            path = f"{running.path}/answers"
            found = await client.post(path, content=payloads[number], headers=headers)
            heard.append(found.json()["fate"])

        async def send_all():
            url = f"http://{HERE}:{running.port}"
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
                await asyncio.gather(*(send(client, number) for number in range(len(payloads))))

        asyncio.run(send_all())
    assert heard == ["counted"] * len(payloads)
    assert len(writes) <= 2
    assert running.collector.num_clients == len(payloads)


@pytest.mark.usefixtures("quick")
def test_serve_and_join_end_with_a_statement_and_the_ledger(tmp_path):
    settings = named_settings(
        Serve,
        public=tmp_path / "public.npz",
        epsilon=1.0,
        classes="3",
        clients=1,
        out=tmp_path / "out",
        mechanism="generalized_randomized_response",
        collect_only=True,
        port=free_port(),
    )
    rng = np.random.default_rng(0)
    np.savez(settings.public, embeddings=rng.normal(size=(9, 4)).astype(np.float32))
    np.savez(
        tmp_path / "R.npz",
        embeddings=rng.normal(size=(5, 4)).astype(np.float32),
        labels=np.zeros(5, np.int32),
    )
    served = []
    thread = threading.Thread(target=lambda: served.append(federation.serve(settings)))
    thread.start()
    found = federation.join(
        named_settings(Join, tmp_path / "R.npz", f"{HERE}:{settings.port}", budget=2)
    )
    thread.join(PATIENCE)
    assert (served[0]["clients"], served[0]["messages"]) == (1, 5)
    assert not (settings.out / "privacy.json").exists()  # it collects only
    assert found["statement"] == served[0]["statement"]
    assert (found["exit_status"], found["ledger"]["spent"]["epsilon"]) == (0, 1)
    with pytest.raises(ValueError, match="got a finished one"):
        federation.serve(settings)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"server": "host"}, "host:port, got --server host"),
        ({"server": "host:port"}, "host:port"),
        ({"server": "ftp://host:1"}, "host:port"),
        ({"server": "hospital.example:9092"}, "--ca, --certificate and --key"),
        ({"server": "https://127.0.0.1:9092"}, "--ca, --certificate and --key"),
        ({"ca": "file"}, "without --certificate and --key"),
        ({"ca": "file", "certificate": "file"}, "without --key"),
        ({"key": "none"}, "file as --key"),
        ({"server": "http://a:1", "ca": "file", "certificate": "file", "key": "file"}, "https"),
    ],
)
def test_what_would_go_in_the_clear_is_refused(tmp_path, words, message):
    (tmp_path / "file").touch()
    files = ("ca", "certificate", "key")
    words = {name: tmp_path / value if name in files else value for name, value in words.items()}
    with pytest.raises(ValueError, match=message):
        federation.join(named_settings(Join, tmp_path / "R.npz", **words))


def test_a_record_of_another_length_casts_no_vote(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [[0.0, 1.0], [2.0], None, [3.0, 4.0]]
    table = pyarrow.table({"embeddings": rows, "labels": [0, 1, 0, 1]})
    parquet.write_table(table, tmp_path / "R.parquet")
    client = joining.open_client(
        named_settings(Join, tmp_path / "R.parquet", budget=1, dimensions=2)
    )
    np.testing.assert_array_equal(np.isnan(client.inputs).all(axis=1), [False, True, True, False])
    round = Round(np.zeros((2, 2), np.float32), ("a", "b"), a_round().config)
    assert len(client.answer(round.data)[2]) == round.answer_bytes(4)


def test_a_server_hears_of_all_that_is_wrong_at_once(tmp_path):
    settings = named_settings(
        Serve, tmp_path / "P.npz", 1.0, 3, tmp_path / "out", "2", quorum=4, port=0
    )
    with option_names(as_flag), pytest.raises(ValueError, match="--public") as caught:
        federation.serve(dataclasses.replace(settings, host="0.0.0.0"))
    for words in ("--certificates and --keys", "got --port 0", "P.npz", "got --quorum 4"):
        assert words in str(caught.value)
    assert not settings.out.exists()


def test_a_client_hears_of_all_that_is_wrong_at_once(tmp_path):
    settings = Join(tmp_path / "R.npz", server="nowhere", ca=tmp_path / "ca", wait=-1, most_cells=0)
    with option_names(as_flag), pytest.raises(ValueError, match="--server") as caught:
        federation.join(settings)
    for words in ("--wait -1", "--budget", "file as --ca", "--most-cells 0", "R.npz"):
        assert words in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_client_without_a_server_ends_and_spends_nothing(tmp_path, capsys):
    np.savez(tmp_path / "R.npz", embeddings=np.zeros((9, 2), np.float32), labels=np.zeros(9, int))
    server = f"{HERE}:{free_port()}"
    with pytest.raises(ValueError, match=rf"server at http://{server}, got none for 0.3 s"):
        federation.join(named_settings(Join, tmp_path / "R.npz", server=server, budget=1, wait=0.3))
    assert capsys.readouterr().err.count("its round may be over") == 1
    assert Ledger.open(tmp_path / "R.npz.ledger.jsonl").spent.epsilon == 0


@pytest.mark.long
def test_test_certificates_are_made_once_and_let_each_client_in(tmp_path):
    np.savez(tmp_path / "P.npz", embeddings=np.zeros((9, 2), np.float32))
    folder = tmp_path / "tls"
    settings = named_settings(
        Serve, tmp_path / "P.npz", 1.0, 2, tmp_path / "out", "2", make_test_certificates=folder
    )
    told = federation.serve(dataclasses.replace(settings, dry_run=True))
    assert {str(folder / name) for name in ("ca.pem", "party0.pem", "party0.key")} < set(
        shlex.split(told["join"])
    )
    assert not folder.exists()
    known = federation._made_test_certificates(settings, folder)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert all(certificates.PURPOSE.encode() in der for der in known)
    with serving(
        tmp_path / "server", a_round(), context=tls.server_context(folder, known), known=known
    ) as running:
        for name in ("party0", "party1"):
            context = client_tls(folder, name, "ca.pem")
            assert ask(running.port, "GET", "/v1/round", context=context).status == 200
    with pytest.raises(ValueError, match="use its certificates with certificates"):
        federation.serve(settings)
    with pytest.raises(ValueError, match="--make-test-certificates alone"):
        federation.serve(dataclasses.replace(settings, keys=tmp_path))
    assert not settings.out.exists()


def test_what_follows_from_the_data_need_not_be_given(tmp_path, capsys):
    given = named_settings(Serve, tmp_path / "P.npz", 1.0, 3, tmp_path / "out", "2", quorum=2)
    assert settled(given, images=True).student == "cnn"
    assert settled(given, images=False).student == "none"
    assert settled(given, images=False).honest == 0
    summed = dataclasses.replace(given, trust="central")
    assert settled(summed, images=False).honest == 2
    chosen = dataclasses.replace(summed, honest=3, student="linear")
    assert settled(chosen, images=False) == chosen
    federation._settle(summed, Public(np.zeros((3, 2), np.float32)))
    told = capsys.readouterr().err
    assert "none; a student learns from images" in told
    assert "2 clients, the quorum" in told


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"trust": "shuffle", "honest": 50, "delta": 1e-5},
        {"trust": "central", "unit": "client"},
        {"epsilon": 60.0, "allow_large_epsilon": True},
    ],
)
def test_a_dry_run_tells_a_command_that_agrees_to_the_round(tmp_path, monkeypatch, words):
    np.savez(tmp_path / "P.npz", embeddings=np.zeros((9, 2), np.float32))
    given = {"public": tmp_path / "P.npz", "epsilon": 0.1234567, "classes": "2", "clients": 3}
    settings = named_settings(Serve, **{**given, "out": tmp_path / "out", "dry_run": True, **words})
    told = federation.serve(settings)
    assert not settings.out.exists()
    found = []
    monkeypatch.setattr(cli, "_run", lambda action: found.append(action) or {})
    assert cli.main(shlex.split(told["join"])[1:]) == 0
    [mine] = found
    assert mine.spending.budget >= settings.epsilon
    assert (mine.spending.budget_delta or 0) >= (settings.delta if settings.trust != "local" else 0)
    assert (mine.trust, mine.unit) == (settings.trust, settings.unit)
    assert mine.honest == (settings.honest or None)
    assert mine.allow_large_epsilon == settings.allow_large_epsilon
    secured = dataclasses.replace(settings, keys=tmp_path, host="0.0.0.0")
    assert {"HOST:9092", "--ca", "--certificate", "--key"} <= set(join_command(secured))


def test_requests_that_break_off_flood_no_log(tmp_path, caplog):
    """Each left a traceback of 36 lines, as often as anybody liked."""
    broken = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZZZ\r\nabc"
    with serving(tmp_path / "server", a_round()) as running:
        for _ in range(5):
            with socket.create_connection((HERE, running.port), timeout=PATIENCE) as line:
                line.sendall(broken)
                while line.recv(1024):
                    pass
        running.go.set()
    assert not [one.getMessage() for one in caplog.records if one.exc_info]
    told = [one.getMessage() for one in caplog.records if "a request failed" in one.getMessage()]
    assert len(told) == 1


def test_a_server_that_others_reach_wants_certificates(tmp_path):
    settings = named_settings(Serve, tmp_path / "P.npz", 1.0, 3, tmp_path / "out", "2")
    hosts = ({"host": host} for host in ("0.0.0.0", "::", "192.168.1.5", "clinic.example"))
    for words in (*hosts, {"keys": tmp_path}, {"certificates": tmp_path}):
        with pytest.raises(ValueError, match="--certificates and --keys"):
            federation.serve(dataclasses.replace(settings, **words))
    assert not settings.out.exists()


# Hostile clients


@pytest.mark.usefixtures("quick")
def test_hostile_requests_get_a_status_and_nothing_is_counted(tmp_path):
    round = a_round(mechanism="generalized_randomized_response")
    good = honest(round, 2)
    with serving(tmp_path / "server", round, 9) as running:
        answers = f"{running.path}/answers"

        def post(body, path=answers, ticket=1, **headers):
            return fate(ask(running.port, "POST", path, body, ticket=ticket, **headers))

        assert post(b"") == (400, "malformed")
        assert post(good[0], ticket=None) == (400, "malformed")
        for odd in ("x", "-1", "1.5", "9" * 21, "\u0663".encode()):
            assert post(good[0], ticket=odd.decode("latin1") if isinstance(odd, bytes) else odd)[0]
        assert post(good[0], f"/v1/rounds/{NOBODY}/answers") == (404, "another round")
        assert post(b"\xff") == (422, "outside the alphabet")
        largest = running.collector._most * len(good[0])
        assert post(None, **{"content-length": str(largest + 1)}) == (413, "too many")
        others = {"/": 404, "/docs": 404, "/v1": 404, "/v1/round/": 404, "/v1/rounds/": 404}
        others[f"{running.path}/../../round"] = 404
        others[f"{running.path}/sum/0"] = 404
        others[f"{running.path}/sum/{'9' * 5000}"] = 404
        for path, status in others.items():
            found = ask(running.port, "GET", path)
            assert (found.status, found.headers["server"]) == (status, None)
        known = {"if-none-match": f'"{round.id}"'}
        assert ask(running.port, "GET", "/v1/round", **known).status == 304
        assert ask(running.port, "POST", "/v1/round").status == 405
        assert ask(running.port, "GET", answers).status == 405
        assert post(good[0]) == (200, "counted")
    assert running.collector.clients == {1}


def test_a_step_of_a_sum_is_one_digit():
    """More digits than Python converts end in no error of the server."""
    told = {"0": 0, "3": 3, "": None, "x": None, "-1": None, "\u0663": None, "9" * 5000: None}
    for text, step in told.items():
        assert server._step(SimpleNamespace(path_params={"step": text})) == step


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_bodies_without_end_and_garbage_end_the_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "MOST_RECORDS", 2**10)
    monkeypatch.setattr(listener, "CHECK_SECONDS", 0.1)
    round = a_round(mechanism="generalized_randomized_response")
    post = f"POST /v1/rounds/{round.id}/answers HTTP/1.1\r\nhost: h\r\nrknn-ticket: 1\r\n".encode()
    chunked = post + b"transfer-encoding: chunked\r\n\r\n"
    with serving(tmp_path / "server", round, 9) as running:

        def left_by(first, more=b""):
            """Return what the server said before it closed the connection."""
            with socket.create_connection((HERE, running.port), PATIENCE) as raw:
                came = b""
                with contextlib.suppress(ConnectionError):
                    raw.sendall(first)
                    while more:
                        raw.sendall(more)
                        time.sleep(0.002)
                with contextlib.suppress(ConnectionError):
                    while piece := raw.recv(2**16):
                        came += piece
                return came

        chunk = b"400\r\n" + b"x" * 0x400 + b"\r\n"
        assert b"too many" in left_by(chunked + 3 * chunk)
        left_by(chunked, chunk)  # without end
        assert left_by(b"") == b""  # nothing at all
        assert left_by(post) == b""  # headers without end
        assert left_by(post + b"content-length: 500\r\n\r\n" + b"x") == b""  # stops
        assert left_by(post + b"x-more: " + b"y" * 2**15)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431")
        assert left_by(b"\x16\x03\x01\x00\xff not http\r\n\r\n")[:12] == b"HTTP/1.1 400"
        slow = threading.Thread(target=left_by, args=(post, b"a: b\r\n"))
        slow.start()
        slow.join(PATIENCE)
        assert not slow.is_alive()
        found = ask(running.port, "GET", "/v1/round")
        assert hashlib.sha256(found.data).hexdigest() == round.id
    assert running.collector.num_clients == 0


@pytest.mark.usefixtures("quick")
def test_a_wait_is_bounded_and_a_long_wait_is_no_idleness(tmp_path, monkeypatch):
    monkeypatch.setattr(listener, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(server, "POLL_SECONDS", 0.5)
    round = a_round()
    with serving(tmp_path / "server", round) as running:
        since = time.monotonic()
        found = ask(running.port, "GET", f"{running.path}/statement")
        assert (found.status, found.headers["retry-after"]) == (204, "0")
        assert time.monotonic() - since >= 0.5
        monkeypatch.setattr(server, "MOST_WAITING", 0)
        found = ask(running.port, "GET", f"{running.path}/statement")
        assert (found.status, found.headers["retry-after"]) == (204, str(server.RETRY_SECONDS))
        assert ask(running.port, "GET", f"/v1/rounds/{NOBODY}/statement").status == 404


@pytest.mark.usefixtures("quick")
def test_all_bodies_together_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "MOST_UNFINISHED", 8)
    round = a_round(mechanism="generalized_randomized_response")
    (one,) = honest(round, 1)
    with serving(tmp_path / "server", round, 9) as running:
        path = f"{running.path}/answers"
        for body, expected in ((9 * one, "busy"), (8 * one, "counted"), (one, "counted")):
            assert fate(ask(running.port, "POST", path, body, ticket=len(body)))[1] == expected
    assert running.collector.num_clients == 2


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_a_full_disk_makes_clients_wait_and_the_round_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "RETRY_SECONDS", 0)
    round = a_round(mechanism="generalized_randomized_response")
    room = threading.Event()
    append = Collector._append

    def when_there_is_room(self, clients, payload):
        if not room.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, clients, payload)

    monkeypatch.setattr(Collector, "_append", when_there_is_room)
    (one,) = honest(round, 1)
    with serving(tmp_path / "server", round) as running:
        found = ask(running.port, "POST", f"{running.path}/answers", one, ticket=1)
        assert fate(found) == (503, "busy")
        assert found.headers["retry-after"] == "0"
        threading.Timer(0.5, room.set).start()
        outcome, _ = joined(a_client(tmp_path / "client"), running.port)
        assert outcome.took_part
    told = [name for name, _ in running.told]
    assert told[:1] == ["no room"]
    assert told.count("no room") == told.count("room") == 1
    assert str(tmp_path / "server") in running.told[0][1]


def test_what_clients_have_paid_for_is_written_once_there_is_room(monkeypatch):
    monkeypatch.setattr(hosting, "TICK", 0.01)
    tries, told = [], []

    def write():
        tries.append(None)
        if len(tries) < 4:
            raise OSError(errno.ENOSPC, "No space left on device", "sum.npz")

    hosting.when_there_is_room(write, lambda *line: told.append(line))
    assert len(tries) == 4
    assert told == [("no room", "for sum.npz: make some; clients wait for it")]

    def broken():
        raise OSError(errno.EIO, "Input/output error", "sum.npz")

    with pytest.raises(OSError, match=r"sum\.npz"):
        hosting.when_there_is_room(broken, lambda *line: told.append(line))


# Certificates


@pytest.fixture
def secured(tmp_path):
    """Certificates of a server and of two clients that it knows; both sides' contexts."""
    certificates.write_server(tmp_path / "tls")
    names = ("party0", "party1")
    for name in names:
        certificates.write_client(tmp_path, name, authority=True)  # as openssl req -x509 does
    (tmp_path / "clients.pem").write_bytes(
        b"".join((tmp_path / f"{name}.pem").read_bytes() for name in names)
    )
    known = tls.read_clients(tmp_path / "clients.pem")
    context = tls.server_context(tmp_path / "tls", known)
    return SimpleNamespace(server={"context": context, "known": known}, client=client_tls)


def client_tls(folder, name="party0", ca="tls/ca.pem"):
    return tls.client_context(folder / ca, folder / f"{name}.pem", folder / f"{name}.key")


def test_a_certificate_that_is_not_valid_now_is_named_also_in_a_dry_run(tmp_path, monkeypatch):
    """A server started, and told each of its clients only that the handshake failed."""
    folder = tmp_path / "tls"
    certificates.write_federation(folder, (HERE,), 1)
    np.savez(tmp_path / "P.npz", embeddings=np.zeros((9, 2), np.float32))
    words = (tmp_path / "P.npz", 1.0, 1, tmp_path / "out", "2")
    given = {"certificates": folder, "keys": folder / "clients.pem", "dry_run": True, "queries": 2}
    asked = named_settings(Serve, *words, **given)
    assert federation.serve(asked)["dry_run"]
    key = certificates.new_key()
    found = [certificates.certificate("server", key, life=-certificates.DAY)]
    monkeypatch.setattr(certificates, "DAY", -certificates.DAY)
    found += [certificates.certificate("server", key)]  # of tomorrow
    for one in found:
        certificates.write_pair(folder, "server", key, one)
        with pytest.raises(ValueError, match="valid now .*server.pem, valid from .* renew it"):
            federation.serve(asked)


@pytest.mark.usefixtures("quick")
def test_a_client_counts_once_by_its_key_whatever_it_calls_itself(tmp_path, secured):
    round = a_round(mechanism="generalized_randomized_response")
    good = honest(round, 3)
    with serving(tmp_path / "server", round, 2, **secured.server) as running:
        context = client_tls(tmp_path)
        for ticket, expected in ((1, "counted"), (2, "again")):
            found = ask(
                running.port,
                "POST",
                f"{running.path}/answers",
                good[ticket],
                ticket=ticket,
                context=context,
            )
            assert fate(found) == (200, expected)
        other = a_client(tmp_path / "client")
        assert joined(other, running.port, client_tls(tmp_path, "party1"))[0].took_part
    assert running.collector.clients == set(secured.server["known"].values())


@pytest.mark.usefixtures("secured")
@pytest.mark.parametrize(
    ("known", "other"),
    [
        (("party0",), ("party1",)),
        (("party0",), ("party0", "other/ca.pem")),
        (("party0", "pin0.pem"), ("party0", "pin1.pem")),  # no authority's
    ],
)
def test_shuffled_messages_are_sent_under_one_key_to_one_root_alone(tmp_path, known, other):
    """Under two keys they would count twice, and show among others whose they are."""
    certificates.write_server(tmp_path / "other")
    for name in ("pin0", "pin1"):
        certificates.write_client(tmp_path, name)
    round = a_round(trust="shuffle", honest=500)
    trusting = Agreement(trust="shuffle", honest=600)
    client = a_client(tmp_path / "client", budget=1, budget_delta=1e-5, agreement=trusting)
    first, other = (
        Connection("https://hospital.example", client_tls(tmp_path, *names), lambda *line: None)
        for names in (known, other)
    )
    with contextlib.closing(first), contextlib.closing(other):
        sent = client.answer(round.data, first.ends)
        assert client.answer(round.data, first.ends) == sent
        with pytest.raises(RefusedError, match="by the key .* whose they are"):
            client.answer(round.data, other.ends)


@pytest.mark.usefixtures("quick")
def test_a_stranger_learns_its_mistake_and_spends_nothing(tmp_path, secured):
    certificates.write_client(tmp_path, "stranger")
    certificates.write_client(tmp_path, "party0.expired")
    certificates.write_server(tmp_path / "other")
    client = a_client(tmp_path / "client")
    bare = ssl.create_default_context(cafile=tmp_path / "tls/ca.pem")
    reasons = {
        "does not know this certificate": client_tls(tmp_path, "stranger"),
        "wants a certificate": bare,
        "check ca": client_tls(tmp_path, ca="other/ca.pem"),
    }
    with serving(tmp_path / "server", a_round(), **secured.server) as running:
        for reason, context in reasons.items():
            with pytest.raises(ValueError, match=reason):
                joined(client, running.port, context)
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(running.port, "GET", "/v1/round")
    with (
        serving(tmp_path / "plain", a_round()) as running,
        pytest.raises(ValueError, match="does not speak TLS"),
    ):
        joined(client, running.port, client_tls(tmp_path))
    assert client.ledger.spent.epsilon == 0


@pytest.mark.usefixtures("quick")
def test_a_server_under_another_name_and_an_expired_certificate_are_named(tmp_path):
    certificates.write_server(tmp_path / "tls", ["elsewhere"])
    certificates.write_server(tmp_path / "right")
    certificates.write_client(tmp_path, "old", life=-certificates.DAY)
    known = tls.read_clients(tmp_path / "old.pem")
    client = a_client(tmp_path / "client")
    for folder, reason in (("tls", "check ca and the server's name"), ("right", "has expired")):
        context = tls.server_context(tmp_path / folder, known)
        with (
            serving(tmp_path / f"{folder}.out", a_round(), context=context, known=known) as running,
            pytest.raises(ValueError, match=reason),
        ):
            joined(client, running.port, client_tls(tmp_path, "old", f"{folder}/ca.pem"))


@pytest.mark.usefixtures("quick")
def test_a_known_client_cannot_let_others_in_and_holds_few_connections(tmp_path, secured):
    """A certificate made by `openssl req -x509` is an authority's: it could sign any number."""
    folder = tmp_path / "signed"
    folder.mkdir()
    key = certificates.new_key()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    signer = load_pem_private_key((tmp_path / "party0.key").read_bytes(), None)
    made = certificates.certificate("sybil", key, signer, "party0")
    certificates.write_pair(tmp_path, "sybil", key, made)
    with serving(tmp_path / "server", a_round(), **secured.server) as running:
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(running.port, "GET", "/v1/round", context=client_tls(tmp_path, "sybil"))
        context = client_tls(tmp_path)
        with contextlib.ExitStack() as held:
            for _ in range(listener.CONNECTIONS_OF_A_CLIENT):
                raw = held.enter_context(socket.create_connection((HERE, running.port)))
                held.enter_context(context.wrap_socket(raw, server_hostname=HERE))
            # A handshake ends for a client before it ends for its server.
            until(lambda: not is_let_in(running.port, context))
            other = client_tls(tmp_path, "party1")
            assert ask(running.port, "GET", "/v1/round", context=other).status == 200
        until(lambda: is_let_in(running.port, context))


def is_let_in(port, context):
    """True if the server answers a client."""
    try:
        return ask(port, "GET", "/v1/round", context=context).status == 200
    except (http.client.HTTPException, OSError):
        return False


def strangers(port, count):
    """Connections that send nothing."""
    return [socket.create_connection((HERE, port), PATIENCE) for _ in range(count)]


def is_open(raw):
    """True if the other side has not closed a connection."""
    raw.settimeout(0.05)
    try:
        return raw.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


@pytest.mark.long
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("bound", ["STRANGERS", "STRANGERS_OF_AN_ADDRESS"])
def test_strangers_hold_few_connections_and_not_for_long(
    tmp_path, secured, monkeypatch, caplog, bound
):
    monkeypatch.setattr(gate, bound, 3)
    monkeypatch.setattr(gate, "HANDSHAKE_SECONDS", 1.0)
    with serving(tmp_path / "server", a_round(), **secured.server) as running:
        silent = strangers(running.port, 12)
        until(lambda: sum(map(is_open, silent)) == 3)
        for _ in range(30):  # they come again and again
            silent += strangers(running.port, 2)
        until(lambda: sum(map(is_open, silent)) <= 3)
        # A client that is turned away comes again, and is let in once they have had their time.
        outcome, _ = joined(a_client(tmp_path / "client"), running.port, client_tls(tmp_path))
        assert outcome.took_part
        until(lambda: not any(map(is_open, silent)))
        for raw in silent:
            raw.close()
    lines = [one for one in caplog.records if one.name == gate.__name__]
    assert len(lines) == 1, "one line a minute"
    assert not any(one.exc_info for one in caplog.records)


@pytest.mark.usefixtures("quick")
def test_a_handshake_that_stops_is_ended(tmp_path, secured, monkeypatch):
    monkeypatch.setattr(gate, "HANDSHAKE_SECONDS", 0.3)
    with serving(tmp_path / "server", a_round(), **secured.server) as running:
        hello = bytes.fromhex("1603010200010001fc0303")
        [raw] = strangers(running.port, 1)
        raw.sendall(hello)
        since = time.monotonic()
        raw.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionError):
            assert raw.recv(2**16) == b""
        assert time.monotonic() - since < listener.CHECK_SECONDS / 2
        raw.close()


@pytest.mark.usefixtures("quick")
def test_all_connections_together_are_bounded(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(listener, "MOST_CONNECTIONS", 5)
    with serving(tmp_path / "server", a_round()) as running:
        silent = strangers(running.port, 20)
        until(lambda: sum(map(is_open, silent)) == 5)
        for raw in silent:
            raw.close()
        outcome, _ = joined(a_client(tmp_path / "client"), running.port)
        assert outcome.took_part
    assert sum(one.name == gate.__name__ for one in caplog.records) == 1


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_without_tls_nobody_is_a_stranger(tmp_path, monkeypatch):
    """Connections that come while the server is busy are accepted all at once."""
    monkeypatch.setattr(gate, "STRANGERS", 3)
    with serving(tmp_path / "server", a_round()) as running:
        running.desk._call(lambda: time.sleep(0.5))
        several = strangers(running.port, 12)
        until(lambda: is_let_in(running.port, None))
        assert all(map(is_open, several))
        for raw in several:
            raw.close()


def test_networks_of_ipv6_count_as_one_address():
    assert gate._network("2001:db8::1") == gate._network("2001:db8::ffff:1")
    assert gate._network("2001:db8::1%eth0") == gate._network("2001:db8::2")
    assert gate._network("2001:db8::1") != gate._network("2001:db8:0:1::1")
    assert gate._network("10.0.0.1") != gate._network("10.0.0.2")


def test_strangers_of_one_network_are_counted_together():
    with (
        gate.Gate(socket.create_server((HERE, 0)), 10, True, gate.Rarely()) as served,
        socket.socket() as open_one,
    ):
        for number in range(gate.STRANGERS_OF_AN_ADDRESS):
            assert not served._beyond(gate._network("2001:db8::ffff"))
            served._strangers[f"2001:db8::{number:x}", 4430] = open_one
        assert served._beyond(gate._network("2001:db8::ffff")) == "strangers"
        assert not served._beyond(gate._network("2001:db8:0:1::1"))


def test_a_server_is_known_by_all_roots_of_a_file_in_any_order(tmp_path):
    certificates.write_server(tmp_path / "tls")
    certificates.write_server(tmp_path / "other")
    certificates.write_client(tmp_path, "party0")
    roots = [(tmp_path / name / "ca.pem").read_bytes() for name in ("tls", "other")]
    (tmp_path / "both.pem").write_bytes(b"".join(roots))
    (tmp_path / "turned.pem").write_bytes(b"".join(roots[::-1]))
    names = ("tls/ca.pem", "other/ca.pem", "both.pem", "turned.pem")
    first, second, both, turned = (client_tls(tmp_path, ca=name).root for name in names)
    assert both == turned
    assert len({first, second, both}) == 3


def test_errors_that_anybody_can_cause_take_one_line(caplog):
    log = gate.Rarely()
    for number in range(1000):
        context = {"message": "socket.accept() has no descriptor", "exception": OSError(number)}
        gate.quiet(log)(None, context)
    [line] = caplog.records
    assert "has no descriptor" in line.getMessage()
    assert not line.exc_info


def test_files_that_are_no_certificates_are_named(tmp_path, secured):
    (tmp_path / "text").write_text("no certificate")
    with pytest.raises(ValueError, match=r"keys .*text.*makes one"):
        tls.read_clients(tmp_path / "text")
    with pytest.raises(ValueError, match="certificates"):
        tls.server_context(tmp_path / "none", secured.server["known"])
    with pytest.raises(ValueError, match="certificate and key"):
        tls.client_context(
            tmp_path / "tls/ca.pem", tmp_path / "party0.pem", tmp_path / "party1.key"
        )
    with pytest.raises(ValueError, match="ca"):
        tls.client_context(tmp_path / "text", tmp_path / "party0.pem", tmp_path / "party0.key")


# A network and servers that cannot be relied on


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_a_proxy_that_loses_repeats_cuts_and_lies_delays_a_client_and_no_more(tmp_path):
    """Each request meets every fault in turn before it passes."""
    round = a_round(mechanism="generalized_randomized_response")
    faults = queue.SimpleQueue()
    for fault in ["bad gateway", "captive", "cut", "damaged", "lost", "none"] + [
        "bad gateway",
        "lost",
        "twice",
        "lost",
        "too many requests",
        "none",
    ]:
        faults.put(fault)
    with serving(tmp_path / "server", round) as running:

        async def forward(request):
            fault = "none" if faults.empty() else faults.get()
            if fault == "bad gateway":
                return PlainTextResponse("upstream", 502)
            if fault == "too many requests":
                return PlainTextResponse("slower", 429)
            if fault == "captive":
                return PlainTextResponse("<html>please log in</html>")
            url = f"http://{HERE}:{running.port}{request.url.path}"
            body = await request.body()
            async with httpx.AsyncClient(timeout=PATIENCE) as http_client:
                for _ in range(1 + (fault == "twice")):
                    found = await http_client.request(
                        request.method, url, content=body, headers=request.headers.raw
                    )
            if fault == "lost":
                raise asyncio.CancelledError
            data = found.content
            headers = {
                name: found.headers[name]
                for name in ("rknn-round", "retry-after")
                if name in found.headers
            }
            if fault == "damaged":
                data = data[:-1] + bytes([data[-1] ^ 1])
            if fault == "cut":
                headers["content-length"] = str(len(data))
                data = data[:-1]
            return Response(data, found.status_code, headers)

        methods = ["GET", "POST"]
        proxy = Starlette(routes=[Route("/{path:path}", forward, methods=methods)])
        with listening(proxy, HERE, 0) as served:
            port = served.port
            client = a_client(tmp_path / "client", records=1)
            outcome, events = joined(client, port)
    assert outcome == ("done", True)
    assert "waiting" in events
    assert client.ledger.spent.epsilon == 1
    assert running.collector.num_messages == 1
    assert set(running.collector.rejected) <= {"again"}


@pytest.mark.usefixtures("quick")
def test_a_hostile_server_fills_no_memory_and_controls_no_terminal(tmp_path):
    import gzip

    round = a_round()
    client = a_client(tmp_path / "client", agreement=Agreement(most_bytes=2**12))
    told = []
    streamed = []

    async def endless():
        while len(streamed) < 10_000:
            streamed.append(1)
            yield bytes(2**10)
            await asyncio.sleep(0.001)

    bombs = [
        StreamingResponse(endless()),
        Response(gzip.compress(bytes(2**20)), headers={"content-encoding": "gzip"}),
        Response(status_code=307, headers={"location": "http://127.0.0.1:1/"}),
        Response(bytes(2**13)),
    ]

    async def question(request):
        found = bombs.pop(0)
        found.headers["rknn-round"] = round.id
        return found

    async def refusal(request):
        told.append(await request.body())
        return Response(b"[]" * 10, headers={"rknn-round": round.id})

    async def statement(request):
        return PlainTextResponse("\x1b[2Jall \u202eclear", headers={"rknn-round": round.id})

    hostile = Starlette(
        routes=[
            Route("/v1/round", question),
            Route("/v1/rounds/{round}/refusal", refusal, methods=["POST"]),
            Route("/v1/rounds/{round}/statement", statement),
        ]
    )
    with listening(hostile, HERE, 0) as served:
        port = served.port
        outcome, events = joined(client, port)
    assert outcome == ("?[2Jall ?clear", False)
    assert "most_bytes" in events["refused"]
    assert len(streamed) < 10_000
    assert told == [b""]
    assert client.ledger.spent.epsilon == 0


@pytest.mark.usefixtures("quick")
def test_loopback_traffic_goes_to_no_proxy_and_other_traffic_to_the_one_that_is_named(
    tmp_path, secured, monkeypatch
):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(tmp_path / "server", a_round()) as running:
        plain = Connection(f"http://{HERE}:{running.port}", None, lambda *line: None)
        assert plain.get("/v1/round", 2**20).status == 200
    tunnels = []

    async def refuse(reader, writer):
        tunnels.append(await reader.readline())
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async def through():
        found = await asyncio.start_server(refuse, HERE, 0)
        port = found.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://{HERE}:{port}")
        remote = Connection("https://hospital.example", client_tls(tmp_path), lambda *line: None)
        with pytest.raises(httpx.ProxyError):
            await asyncio.to_thread(remote._sent("GET", "/v1/round", None).__enter__)
        found.close()

    asyncio.run(through())
    assert tunnels == [b"CONNECT hospital.example:443 HTTP/1.1\r\n"]


# Sums


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("leaves", [pytest.param(None, marks=pytest.mark.long), 1, 2])
def test_a_sum_is_opened_without_whoever_leaves_and_given_up_if_too_few_stay(
    tmp_path, monkeypatch, leaves
):
    """`leaves` is the number of clients that stop before they send their vectors."""
    monkeypatch.setattr(hosting, "STEP_SECONDS", 2.0)
    round = a_round(mechanism="binomial", trust="central", honest=2)
    desk = Desk(round, time.time() + PATIENCE)
    agreement = Agreement(trust="central")
    clients = [
        a_client(tmp_path / f"{n}", seed=n, agreement=agreement, budget_delta=0.5) for n in range(4)
    ]
    found = {}

    def run(number):
        try:
            found[number] = joined(clients[number], port)[0]
        except FailedError as error:
            found[number] = error

    if leaves:
        vector = type(clients[0].ready(round.data)).vector

        def stop_or_vector(prepared):
            if prepared.client.folder.parent.name in map(str, range(leaves)):
                raise participation.SumRefusedError("stops")
            return vector(prepared)

        monkeypatch.setattr(type(clients[0].ready(round.data)), "vector", stop_or_vector)
    begun = []
    told = lambda *line: None  # noqa: E731
    with listening(Resources(desk).app, HERE, 0) as served:
        port = served.port
        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        if leaves == 2:
            with pytest.raises(ValueError, match="could not be opened"):
                hosting.sum_up(desk, 4, 3, lambda: begun.append(1), told)
        else:
            opened = hosting.sum_up(desk, 4, 3, lambda: begun.append(1), told)
            hosting.announce(desk, "done")
        for thread in threads:
            thread.join(PATIENCE)
    assert begun == [1]
    if leaves == 2:
        assert all(isinstance(error, FailedError) for error in found.values())
        return
    inside = 4 - (leaves or 0)
    assert opened.num_clients == inside
    assert opened.rejected == ({"refused by the client": leaves} if leaves else {})
    assert [found[n].took_part for n in range(4)] == [False] * (4 - inside) + [True] * inside
    spent = [client.ledger.spent.epsilon for client in clients]
    assert spent == [0] * (4 - inside) + [1] * inside
    coins = inside * round.sum.coins.coins_per_share
    votes = sum(len(client.inputs) for client in clients[4 - inside :])
    assert opened.totals.min() >= 0
    assert opened.totals.sum() <= votes + coins * round.num_cells
    assert np.abs(opened.counts()[0]).max() < 20 * opened.counts()[1].max() + votes


@pytest.mark.usefixtures("quick")
def test_a_server_that_was_restarted_waits_for_its_clients_to_hear_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(hosting, "GOODBYE", PATIENCE)
    round = a_round()
    desk = Desk(round, time.time())
    found = []

    def come_back(number):
        time.sleep(0.3)
        path = f"/v1/rounds/{round.id}/statement"
        found.append(ask(port, "GET", path, ticket=number).data)

    with listening(Resources(desk).app, HERE, 0) as served:
        port = served.port
        threads = [threading.Thread(target=come_back, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        hosting.announce(desk, "done", 2)
    for thread in threads:
        thread.join(PATIENCE)
    assert found == [b"done"] * 2


def test_too_few_clients_for_a_sum_spend_nothing(tmp_path):
    round = a_round(mechanism="binomial", trust="central", honest=2)
    desk = Desk(round, time.time())
    with (
        listening(Resources(desk).app, HERE, 0),
        pytest.raises(ValueError, match="nothing was spent"),
    ):
        hosting.sum_up(desk, 4, 3, lambda: pytest.fail("begun"), lambda *line: None)


class AtOnce(Desk):
    """Desk without an HTTP server, whose clients have come and wait."""

    def _call(self, function):
        function()

    def come(self, kind, reply):
        """Bring a message, and return where its fate will be."""
        fate = asyncio.Future(loop=asyncio.new_event_loop())
        self._arrivals.put(Arrival(kind, reply, late=False, step=0, fate=fate))
        return fate


def test_answers_that_come_as_the_round_closes_count(tmp_path):
    """Their clients have paid."""
    round = a_round()
    desk = AtOnce(round, time.time())
    fates = [desk.come("answer", Reply(1, round.id, honest(round, 1)[0]))]
    fates += [desk.come("refusal", Reply(2, round.id, b"")) for _ in range(2)]
    with contextlib.closing(Collector(tmp_path, round)) as collector:
        hosting.collect(desk, collector, 5, lambda *line: None)
        assert [fate.result() for fate in fates] == ["counted", "refused", "refused"]
        assert (collector.num_clients, collector.rejected["refused by the client"]) == (1, 1)


def test_a_client_that_refused_is_not_waited_for_in_a_sum():
    round = a_round(mechanism="binomial", trust="central", honest=2)
    desk = AtOnce(round, time.time() + 0.2)
    desk.ready |= dict.fromkeys((1, 2, 3), time.monotonic())
    desk.come("refusal", Reply(1, round.id, b""))
    hosted = []

    def begin():
        hosted.append(1)
        raise OSError(errno.EIO, "no further")

    with pytest.raises(ValueError, match="Expected 3 clients to be ready, got 2"):
        hosting.sum_up(desk, 4, 3, begin, lambda *line: None)
    assert not hosted


def test_a_sum_waits_for_room_before_it_begins(monkeypatch):
    """Its server ended with an error, and its clients waited."""
    monkeypatch.setattr(hosting, "TICK", 0.01)
    errors = [OSError(errno.EIO, "broken"), OSError(errno.ENOSPC, "full", "begun.json")]
    told = []

    def begin():
        raise errors.pop()

    round = a_round(mechanism="binomial", trust="central", honest=2)
    with pytest.raises(OSError, match="broken"):
        hosting.sum_up(Desk(round, time.time()), 0, 0, begin, lambda *line: told.append(line))
    assert told == [("no room", "for begun.json: make some; clients wait for it")]


def test_a_client_whose_answer_counts_has_taken_part_though_its_server_is_gone(
    tmp_path, monkeypatch
):
    def gone(*_, **__):
        raise connections.UnreachableError("no server")

    monkeypatch.setattr(participation, "_question", lambda *_, **__: ("ab" * 32, b""))
    monkeypatch.setattr(participation, "_statement", gone)
    told = []
    monkeypatch.setattr(participation, "_answer", lambda *_, **__: True)
    client = a_client(tmp_path)
    server = SimpleNamespace(ends="")
    outcome = take_part(client, server, lambda *line: told.append(line))
    assert outcome.took_part
    assert "The answer was counted" in outcome.statement
    assert ("warning", "no server") in told
    monkeypatch.setattr(participation, "_answer", lambda *_, **__: False)
    with pytest.raises(connections.UnreachableError):
        take_part(client, server, lambda *_: None)


def served(folder, form, **given):
    """Settings of a round of one client that is over, on P and R of a format in a folder."""
    settings = named_settings(
        Serve,
        public=folder / f"P.{form}",
        clients=1,
        out=folder / "out",
        mechanism="generalized_randomized_response",
        student="none",
        port=free_port(),
        **given,
    )
    thread = threading.Thread(target=lambda: federation.serve(settings))
    thread.start()
    server = f"{HERE}:{settings.port}"
    federation.join(named_settings(Join, folder / f"R.{form}", server, budget=10, dimensions=3))
    thread.join(PATIENCE)
    return settings


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_published_labels_carry_the_source_row_and_the_kept_columns(tmp_path, rknn):
    """As those of `rknn label` do, also through the export."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 3)).round(3)
    rows[[0, 7]] = np.nan
    table = pd.DataFrame(rows, columns=[*"abc"]).assign(who=[f"p{i}" for i in range(30)], id=7)
    table.to_csv(tmp_path / "P.csv", index=False)
    private = pd.DataFrame(rng.normal(size=(60, 3)), columns=[*"abc"])
    private.assign(labels=1).to_csv(tmp_path / "R.csv", index=False)
    columns = ["--columns", *"abc"]
    done = rknn("embed", "--table", "P.csv", *columns, "--keep", "who", "--out", "P.parquet")
    assert done.status == 0, done.err
    given = ["--table", "R.csv", "--private", "--card", "P.card.json", "--out", "R.parquet"]
    assert rknn("embed", *given).status == 0
    settings = served(tmp_path, "parquet", epsilon=1.0, classes="2")
    kept = np.delete(np.arange(30), [0, 7])
    with np.load(settings.out / "labels.npz") as found:
        np.testing.assert_array_equal(found["row"], kept)
        assert found["public_who"].tolist() == [f"p{i}" for i in kept]
    for form, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        assert rknn("export", "out", "--format", form).status == 0
        exported = read(settings.out / f"labels.{form}")
        np.testing.assert_array_equal(exported["row"], kept)
        assert exported["who"].tolist() == [f"p{i}" for i in kept]
    shown = rknn("inspect", "out", "--json").json["rows"]
    assert {one["row"] for one in shown} <= set(kept.tolist())


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_columns_of_features_are_those_of_their_names_on_both_sides(tmp_path):
    """In another order of columns, every label would be that of another class."""
    rng = np.random.default_rng(0)
    group = np.arange(90) % 3
    rows = (40 * np.eye(3)[group] + rng.normal(size=(90, 3))).round(3)
    table = pd.DataFrame(rows, columns=[*"abc"])
    table[:30].to_csv(tmp_path / "P.csv", index=False)
    private = table[30:].assign(labels=group[30:])
    private[["c", "labels", "a", "b"]].to_csv(tmp_path / "R.csv", index=False)
    settings = served(tmp_path, "csv", epsilon=8.0, classes="3")
    with np.load(settings.out / "labels.npz") as found:
        assert np.mean(found["label"] == group[:30]) > 0.9


def test_names_of_features_travel_and_without_names_no_byte_changes(tmp_path):
    width = a_round().queries.shape[1]
    names = tuple("abcdefgh"[:width])
    named = a_round(features=names)
    assert Round.of(named.data).features == names
    assert b'"features"' not in a_round().data
    for features in (names[1:], (*names[1:], 1), list(names)):
        with pytest.raises(ValueError, match=f"names of {width} features"):
            a_round(features=features)
    other = a_client(tmp_path / "other", features=(*names[1:], "z"))
    with pytest.raises(RefusedError, match=r"got others: \['a', 'z'\]"):
        other.answer(named.data)
    assert other.ledger.spent.epsilon == 0
    unnamed = a_client(tmp_path / "unnamed")
    assert len(unnamed.answer(named.data)[2]), "arrays have an order alone"


@pytest.mark.usefixtures("quick")
def test_messages_for_a_sum_are_turned_away_at_once():
    """They waited until the end before, held the room of others, and ended in tracebacks."""
    round = a_round(mechanism="binomial", trust="central", honest=2)
    desk = Desk(round, time.time() + PATIENCE)
    failed = []

    def course():
        try:
            hosting.sum_up(desk, 4, 3, lambda: None, lambda *line: None)
        except ValueError as error:
            failed.append(error)

    with listening(Resources(desk).app, HERE, 0) as served:
        port = served.port
        thread = threading.Thread(target=course)
        thread.start()
        brought = fate(ask(port, "POST", f"/v1/rounds/{round.id}/answers", b"x" * 9, ticket=7))
        desk.closes = 0
        thread.join(PATIENCE)
    assert brought == (400, "malformed")
    assert len(failed) == 1


@pytest.mark.usefixtures("quick")
def test_whoever_waits_is_dismissed_when_the_server_ends(caplog):
    """Requests were cut off before, with tracebacks on the server's terminal."""
    resources = Resources(Desk(a_round(), time.time() + PATIENCE))
    path = f"/v1/rounds/{resources.desk.round.id}/statement"
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        listening(resources.app, HERE, 0) as served,
    ):
        waiting = pool.submit(ask, served.port, "GET", path)
        until(lambda: resources.waiting == 1)
        resources.dismiss()
        found = waiting.result(PATIENCE)
    assert (found.status, found.headers["retry-after"]) == (204, "0")
    assert not any(one.exc_info for one in caplog.records)


@pytest.mark.usefixtures("quick")
def test_a_message_that_nobody_judges_comes_again_when_the_server_ends(caplog):
    """A server whose disk failed ended with the traceback of each client that waited."""
    resources = Resources(Desk(a_round(), time.time() + PATIENCE))
    path = f"/v1/rounds/{resources.desk.round.id}/answers"
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        listening(resources.app, HERE, 0) as served,
    ):
        brought = pool.submit(ask, served.port, "POST", path, b"x" * 9, ticket=7)
        until(lambda: resources.desk._unjudged)
        resources.dismiss()
        assert fate(brought.result(PATIENCE)) == (503, "busy")
        assert fate(ask(served.port, "POST", path, b"x" * 9, ticket=8)) == (503, "busy")
    assert not any(one.exc_info for one in caplog.records)


def test_a_closed_connection_leaves_nothing_behind():
    """A timer that outlived it kept its buffers: a server grew by 130 MB in five minutes."""
    others = connections_in_memory()
    with listening(Resources(Desk(a_round(), time.time() + PATIENCE)).app, HERE, 0) as served:
        for _ in range(3):
            connection = http.client.HTTPConnection(HERE, served.port, timeout=PATIENCE)
            connection.request("GET", "/nothing")
            connection.getresponse().read()
            assert connections_in_memory() == others + 1
            connection.close()
            ends = time.monotonic() + PATIENCE / 2
            while connections_in_memory() > others and time.monotonic() < ends:
                time.sleep(0.05)
            assert connections_in_memory() == others


def connections_in_memory():
    gc.collect()
    return sum(isinstance(one, Protocol) for one in gc.get_objects())


@pytest.mark.parametrize("request_line", ["GET / HTTP/1.0", "GET / HTTP/1.1"])
def test_whoever_never_reads_a_long_answer_is_dropped(monkeypatch, request_line):
    """With HTTP/1.0 the server closes by itself, which waited for the reader for ever."""
    monkeypatch.setattr(listener, "CHECK_SECONDS", 0.1)

    async def long(_):
        return Response(b"x" * 2**25)

    with listening(Starlette(routes=[Route("/", long)]), HERE, 0) as served:
        with socket.create_connection((HERE, served.port)) as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(f"{request_line}\r\nhost: here\r\n\r\n".encode())
            ends = time.monotonic() + PATIENCE
            while not served.identified and time.monotonic() < ends:
                time.sleep(0.01)
            while served.identified and time.monotonic() < ends:
                time.sleep(0.05)
            assert served.identified == 0
