"""Health and metrics of a server, and the bounds on what strangers and hostile clients cause."""

import contextlib
import re
import socket
import threading
import time

import pytest

from rknn_jax.cli import serving as serving_commands
from rknn_jax.federation import collector as collectors
from rknn_jax.federation import gate
from rknn_jax.federation.desk import Desk
from rknn_jax.federation.listener import listening
from rknn_jax.federation.monitor import CONNECTIONS, LOOPBACK, Family, Monitor, exposition
from rknn_jax.federation.settings import Serve
from tests.options import named_settings
from tests.test_federation import a_client, a_round, honest
from tests.test_federation_http import (
    ask,
    client_tls,
    fate,
    free_port,
    impatient,  # noqa: F401 a fixture
    joined,
    quick,  # noqa: F401 a fixture
    secured,  # noqa: F401 a fixture
    serving,
    strangers,
    until,
)

pytestmark = pytest.mark.usefixtures("quick")

SAMPLE = re.compile(r'([a-z_]+)(\{[a-z]+="[^"\n]*"(?:,[a-z]+="[^"\n]*")*\})? (-?[0-9.e+]+)')
"""Line of Prometheus's text format, as this program writes it."""


@contextlib.contextmanager
def watching(running, folder):
    monitor = Monitor(folder, running.resources, running.gate)
    monitor.answers = running.collector
    with listening(monitor.app, LOOPBACK, 0, most=CONNECTIONS) as watched:
        yield watched.port


def read(port):
    """Return the metrics as numbers by name and labels."""
    found = ask(port, "GET", "/metrics")
    assert found.status == 200
    assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in found.data.decode().splitlines() if not line.startswith("#")]
    matches = [SAMPLE.fullmatch(line) for line in lines]
    assert all(matches), lines
    return {match[1] + (match[2] or ""): float(match[3]) for match in matches}


@pytest.mark.long
def test_metrics_count_what_came_and_name_nobody(tmp_path):
    round = a_round(mechanism="generalized_randomized_response")
    (one,) = honest(round, 1)
    with serving(tmp_path, round, 2) as running, watching(running, tmp_path) as port:
        before = read(port)
        assert ask(port, "GET", "/health").data == b"ok"
        path = f"{running.path}/answers"
        for ticket, body in ((77123, one), (77123, one), (77124, b""), (77125, b"")):
            ask(running.port, "POST", path, body, ticket=ticket)
        after = read(port)
        text = ask(port, "GET", "/metrics").data.decode()
    assert before["rknn_clients_counted"] == 0
    assert before["rknn_round_open"] == after["rknn_round_open"] == 1
    assert after["rknn_clients_counted"] == 1
    assert after["rknn_clients_joined"] == 3
    messages = {
        name: value for name, value in after.items() if name.startswith("rknn_messages_total")
    }
    assert messages == {
        f'rknn_messages_total{{kind="answer",fate="{fate}"}}': number
        for fate, number in {"counted": 1, "again": 1, "malformed": 2}.items()
    }
    assert after["process_resident_memory_bytes"] > 2**24
    assert 0 < after["process_open_fds"] < after["process_max_fds"]
    assert after["rknn_disk_free_bytes"] > 0
    assert after["rknn_unfinished_bytes"] == after["rknn_requests_waiting"] == 0
    assert "7712" not in text


def test_a_page_of_another_name_reads_no_metrics(tmp_path):
    with serving(tmp_path, a_round()) as running, watching(running, tmp_path) as port:
        assert ask(port, "GET", "/metrics", host="evil.example").status == 400
        assert ask(running.port, "GET", "/metrics").status == 404, "clients see none"


def test_metrics_are_for_this_host_alone_if_clients_come_from_others(tmp_path):
    port = free_port()
    settings = named_settings(
        Serve, tmp_path, 1.0, 2, tmp_path, "3", host="0.0.0.0", port=0, metrics_port=port
    )
    with contextlib.ExitStack() as stack:
        serving_commands._Place(settings, None, stack).serve(Desk(a_round(), time.time() + 60))
        socket.create_connection((LOOPBACK, port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))


def test_labels_are_written_in_order():
    family = Family("x_total", "Things.", {(("a", "2"),): 2, (("a", "1"),): 1.5})
    assert exposition(family) == (
        '# HELP x_total Things.\n# TYPE x_total counter\nx_total{a="1"} 1.5\nx_total{a="2"} 2\n'
    )


def test_a_server_that_takes_up_nothing_is_not_healthy(tmp_path, monkeypatch):
    monkeypatch.setattr("rknn_jax.federation.monitor.PULSE_SECONDS", 0.1)
    free = threading.Event()
    with serving(tmp_path, a_round()) as running, watching(running, tmp_path) as port:
        running.desk._call(free.wait)
        found = ask(port, "GET", "/health")
        free.set()
        assert found.status == 503
        assert b"no request is taken up" in found.data
        until(lambda: ask(port, "GET", "/health").status == 200)


def test_answers_leave_room_for_results(tmp_path, monkeypatch):
    """The disk is nearly full, so nothing is begun: 503, and not a byte is written."""
    round = a_round(mechanism="generalized_randomized_response")
    (one,) = honest(round, 1)
    answers = tmp_path / collectors.ANSWERS
    with serving(tmp_path, round) as running, watching(running, tmp_path) as port:
        with monkeypatch.context() as full:
            for module in ("collector", "monitor"):
                full.setattr(f"rknn_jax.federation.{module}.LEAST_FREE", 2**62)
            found = ask(running.port, "POST", f"{running.path}/answers", one, ticket=1)
            assert fate(found) == (503, "busy")
            assert answers.read_bytes() == b""
            unhealthy = ask(port, "GET", "/health")
            assert unhealthy.status == 503
            assert str(tmp_path) in unhealthy.data.decode()
        assert ask(port, "GET", "/health").status == 200
        found = ask(running.port, "POST", f"{running.path}/answers", one, ticket=1)
        assert fate(found) == (200, "counted")
    assert [name for name, _ in running.told][:2] == ["no room", "room"]


@pytest.mark.long
@pytest.mark.parametrize("bound", ["HANDSHAKES", "HANDSHAKES_OF_AN_ADDRESS"])
def test_handshakes_have_a_rate(tmp_path, secured, monkeypatch, caplog, bound):  # noqa: F811
    monkeypatch.setattr(gate, bound, 3)
    monkeypatch.setattr(gate, "HANDSHAKE_SECONDS", 1.0)
    with serving(tmp_path / "server", a_round(), **secured.server) as running:
        while running.gate.turned_away["too many handshakes"] < 5:
            [one] = strangers(running.port, 1)
            one.close()  # so that few are open
        outcome, _ = joined(a_client(tmp_path / "client"), running.port, client_tls(tmp_path))
        assert outcome.took_part
    assert sum(one.name == gate.__name__ for one in caplog.records) == 1, "one line a minute"


def test_a_client_that_is_rejected_again_and_again_fills_no_log(tmp_path):
    with serving(tmp_path, a_round()) as running:
        path = f"{running.path}/answers"
        for ticket in range(30):
            assert fate(ask(running.port, "POST", path, b"", ticket=ticket))[1] == "malformed"
    assert [line for line in running.told if line[0] == "malformed"] == [
        ("malformed", "client 0, 0 bytes; 0 of 1 clients")
    ]
    assert running.collector.rejected["malformed"] == 30
