"""A client that was stopped after the server counted it: it exits 0 when it comes back."""

import contextlib
import ssl
import sys
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest

from rknn_jax.federation import connection as module
from rknn_jax.federation import participation
from rknn_jax.federation.agreement import Agreement, RefusedError
from rknn_jax.federation.connection import Connection, Received, UnreachableError
from rknn_jax.federation.participation import GONE, FailedError, take_part
from rknn_jax.federation.secure_sum_keys import STEPS
from tests.test_federation_http import (
    HERE,
    a_client,
    a_round,
    free_port,
    joined,
    quick,  # noqa: F401 a fixture
    serving,
)


def gone(client, told, port):
    """Take part where no server is."""
    server = f"http://{HERE}:{port}"
    line = lambda *line: told.append(line)  # noqa: E731
    with contextlib.closing(Connection(server, None, line, patience=0.2)) as connection:
        return take_part(client, connection, line)


class KilledError(Exception):
    """End of a process, which no code sees."""


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Return a client that was killed after it was counted, and whose server has gone."""
    client = a_client(tmp_path / "client")
    round = a_round(mechanism="randomized_response")

    def killed(*_):
        raise KilledError

    with serving(tmp_path / "server", round) as running, monkeypatch.context() as patch:
        patch.setattr(participation, "_statement", killed)
        with pytest.raises(KilledError):
            joined(client, running.port)
        running.go.set()
    assert client.counted() == [round.id]
    return client, running.port


@pytest.mark.usefixtures("quick")
def test_a_counted_client_whose_server_has_gone_took_part(stopped):
    told = []
    client, port = stopped
    spent = client.ledger.spent
    with pytest.raises(UnreachableError):
        gone(client, told, free_port())  # another server has counted nothing
    assert gone(client, told, port) == (GONE, True)
    assert "Expected a server at" in dict(told)["warning"]
    assert client.ledger.spent == spent
    with pytest.raises(UnreachableError):
        gone(client, told, port)  # of the next round, it knows nothing


@pytest.mark.usefixtures("quick")
def test_roles_stay_where_a_server_has_gone_that_may_come_back(tmp_path, monkeypatch):
    """Drawn anew for its check or its next round, they would let a record check its own labels."""
    client = a_client(tmp_path / "client")
    round = a_round(mechanism="randomized_response", check_share=0.5)

    def lost(*_):
        raise UnreachableError("no server")

    with serving(tmp_path / "server", round) as running:
        with monkeypatch.context() as patch:
            patch.setattr(participation, "_statement", lost)
            assert joined(client, running.port)[0] == (GONE, True)
        assert [path.stem for path in client.folder.glob("*.roles")] == [round.id]
        running.go.set()


@pytest.mark.usefixtures("quick")
def test_an_answer_counts_in_no_round_that_was_given_up(tmp_path, monkeypatch):
    client = a_client(tmp_path / "client")

    def failed(*_):
        raise FailedError("too few clients")

    with serving(tmp_path / "server", a_round(mechanism="randomized_response")) as running:
        with monkeypatch.context() as patch:
            patch.setattr(participation, "_statement", failed)
            with pytest.raises(FailedError):
                joined(client, running.port)
        running.go.set()
    assert client.counted() == []
    with pytest.raises(UnreachableError):
        gone(client, [], running.port)


@pytest.mark.usefixtures("quick")
def test_another_round_is_not_taken_for_the_one_that_counted(stopped, tmp_path):
    other = a_round(0.5, mechanism="randomized_response")
    with serving(tmp_path / "other", other) as running:
        running.go.set()
        assert joined(stopped[0], running.port)[0] == ("done", True)
    (kept,) = stopped[0].counted()
    assert stopped[0].counted(f"http://{HERE}:{stopped[1]}") == [kept] != [other.id]


@pytest.mark.usefixtures("quick")
def test_a_client_that_was_not_counted_still_fails(tmp_path):
    client = a_client(tmp_path / "client")
    client.answer(a_round(mechanism="randomized_response").data)
    with pytest.raises(UnreachableError, match="the same command sends it again"):
        gone(client, [], free_port())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("step", "words"),
    [("note_counted", "could not be noted"), ("clear_roles", "could be removed")],
)
def test_a_note_that_cannot_be_written_or_removed_loses_no_answer(
    tmp_path, monkeypatch, step, words
):
    client = a_client(tmp_path / "client")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(client), step, full)
    with serving(tmp_path / "server", a_round(mechanism="randomized_response")) as running:
        running.go.set()
        outcome, told = joined(client, running.port)
    assert outcome == ("done", True)
    assert words in told["warning"]


@pytest.mark.parametrize("after", ["30", "9" * 30])
def test_a_server_that_asks_for_a_long_pause_is_left_when_patience_ends(after, monkeypatch):
    """A proxy may say so for a day, and a hostile server for longer than a clock knows."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    busy = httpx.MockTransport(lambda _: httpx.Response(503, headers={"retry-after": after}))
    connection = Connection(f"http://{HERE}", None, lambda *line: None, patience=2.0)
    monkeypatch.setattr(
        connection, "_http", httpx.Client(base_url=f"http://{HERE}", transport=busy)
    )
    with contextlib.closing(connection), pytest.raises(UnreachableError):
        connection.get("/v1/round")
    assert now[0] < 2 * module.LONGEST_WAIT


def test_a_client_without_certificates_is_told_of_a_server_with_tls(monkeypatch):
    """Such a server closes the connection, and says nothing."""

    def hang_up(request):
        raise httpx.RemoteProtocolError("Server disconnected without sending a response.")

    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    told = []
    connection = Connection(f"http://{HERE}", None, lambda *line: told.append(line), patience=-1.0)
    mock = httpx.Client(base_url=f"http://{HERE}", transport=httpx.MockTransport(hang_up))
    monkeypatch.setattr(connection, "_http", mock)
    with contextlib.closing(connection), pytest.raises(UnreachableError, match="pass ca, cert"):
        connection.get("/v1/round")
    assert "started with certificates, pass ca, certificate, key" in dict(told)["waiting"]


def to(handle):
    """Return a connection to a server that is a function."""
    connection = Connection(f"http://{HERE}", None, lambda *line: None, patience=1.0)
    mock = httpx.Client(base_url=f"http://{HERE}", transport=httpx.MockTransport(handle))
    connection._http = mock
    return connection


def stranger(round, *, shows):
    """A server that names a round it did not begin, and keeps what it is sent."""
    sent = []

    def handle(request):
        sent.append((request.method, request.url.path, request.content))
        status, body = 200, b"done"
        if request.url.path.endswith("/round"):
            status, body = (200, round.data) if shows else (404, b"")
        elif request.method == "POST":
            body = b'{"fate": "counted"}'
        headers = {"rknn-round": round.id}
        return httpx.Response(status, stream=httpx.ByteStream(body), headers=headers)

    return to(handle), sent


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "http_proxy"])
@pytest.mark.parametrize(
    "proxy", ["socks5://127.0.0.1:1", "gopher://127.0.0.1:1", "http://[::1", "http://host:abc"]
)
def test_a_proxy_that_cannot_be_used_is_named(monkeypatch, name, proxy):
    """It ended the client by a traceback."""
    monkeypatch.setenv(name, proxy)
    monkeypatch.setitem(sys.modules, "socksio", None)
    with pytest.raises(ValueError, match=f"proxy of HTTP in {name}, got"):
        Connection(f"https://{HERE}", ssl.create_default_context(), lambda *line: None)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("changed", [b"", b"another"])
def test_a_question_that_arrives_otherwise_is_waited_for_as_long_as_any(tmp_path, changed):
    """It was asked for without an end and without a word."""
    round = a_round()
    told = []

    def handle(_):
        headers = {"rknn-round": round.id}
        return httpx.Response(200, stream=httpx.ByteStream(changed), headers=headers)

    with contextlib.closing(to(handle)) as connection:
        connection.tell = lambda *line: told.append(line)
        with pytest.raises(ValueError, match="the question that its id names .* got another one"):
            take_part(a_client(tmp_path), connection, connection.tell)
    assert [name for name, _ in told] == ["waiting"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("lost", [False, True])
def test_a_second_answer_by_one_key_is_told_of(tmp_path, lost):
    """Two data sets of one certificate: the second was charged, and is none of the counted."""
    round = a_round()
    client = a_client(tmp_path)
    losses = [httpx.ReadTimeout("lost")] * lost

    def handle(request):
        body = b"done"
        if request.url.path.endswith("/round"):
            body = round.data
        elif request.method == "POST":
            body = b'{"fate": "again"}'
            if losses:
                raise losses.pop()
        headers = {"rknn-round": round.id}
        return httpx.Response(200, stream=httpx.ByteStream(body), headers=headers)

    told = []
    for _ in range(2):  # the answer is on disk the second time
        with contextlib.closing(to(handle)) as connection:
            take_part(client, connection, lambda *line: told.append(line))
    warned = [text for name, text in told if name == "warning"]
    assert len(warned) == (not lost)
    assert "a certificate of its own" in "".join(warned) or lost


def test_an_answer_that_comes_too_late_was_charged(tmp_path):
    round = a_round()
    client = a_client(tmp_path)

    def handle(request):
        body = b'{"fate": "late"}' if request.method == "POST" else b"done"
        body = round.data if request.url.path.endswith("/round") else body
        headers = {"rknn-round": round.id}
        return httpx.Response(200, stream=httpx.ByteStream(body), headers=headers)

    told = []
    with contextlib.closing(to(handle)) as connection:
        take_part(client, connection, lambda *line: told.append(line))
    assert dict(told)["not counted"] == "the server calls the answer late; it was charged"
    assert client.ledger.num_spends == 1


@pytest.mark.parametrize(("voted", "words"), [(True, "charged for both"), (False, "Nothing was")])
def test_a_client_that_comes_when_a_check_has_closed_is_told_what_it_paid(tmp_path, voted, words):
    """Its vote was charged with the check, under the id of the votes, which nobody shows now."""
    client = a_client(tmp_path)
    if voted:
        client.answer(a_round(check_share=0.5).data)
    closed = SimpleNamespace(status=410, round="c" * 64, data=b"")
    connection = SimpleNamespace(get=lambda *_, **__: closed, ends="a server")

    def leave(name, text):
        raise KeyboardInterrupt(f"{name}: {text}")

    with pytest.raises(KeyboardInterrupt, match=f"too late: .* {words}"):
        participation._question(client, connection, leave)


def test_an_answer_that_another_client_paid_for_is_not_sent(tmp_path):
    """Two clients with one folder: the second sent the first one's messages, and paid nothing."""
    round = a_round()
    first = a_client(tmp_path / "first")
    sent = first.answer(round.data)
    other = replace(a_client(tmp_path / "other"), folder=first.folder)
    with pytest.raises(RefusedError, match="got those of another"):
        other.answer(round.data)
    assert other.ledger.num_spends == 0
    assert first.answer(round.data) == sent


def test_a_second_process_of_a_client_in_a_sum_refuses(tmp_path):
    """The server counted it as another client, and the sum was lost when it stopped."""
    round = a_round(trust="central", mechanism="binomial", honest=3)
    client = a_client(tmp_path, budget_delta="1/100", agreement=Agreement("central"))
    connection, sent = stranger(round, shows=True)
    told = []
    with contextlib.closing(connection), client.in_sum():
        take_part(client, connection, lambda *line: told.append(line))
    assert ["one process" in text for name, text in told if name == "refused"] == [True]
    assert [path.rpartition("/")[2] for method, path, _ in sent if method == "POST"] == ["refusal"]


def restarted(round, steps):
    """A server that is at another round for one request of each kind, after so many steps.

    So is one that was stopped in a check, until it has read the votes again. It then waits for an
    answer, so that nobody hears the end who has sent none.
    """
    fates, away = [], {"GET": 1, "POST": 1}

    def handle(request):
        path = request.url.path
        status, body = 200, b"done"
        if path.endswith("/round"):
            body = round.data
        elif path.endswith("/statement"):
            assert 200 in dict(fates[-1:]), "a client waits for what waits for it"
        # The requests are those for answers, for a refusal, and for a step of a sum.
        elif away[request.method] and path[-1] in ("s", "l", str(steps)):
            away[request.method] -= 1
            status = 404
        if request.method == "POST":
            fates.append((status, path.rpartition(round.id)[2]))
            body = b'{"fate": "%s"}' % (b"counted" if status == 200 else b"another round")
        headers = {"rknn-round": round.id}
        return httpx.Response(status, stream=httpx.ByteStream(body), headers=headers)

    return to(handle), fates


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("most", "path"), [(1.0, "/answers"), (0.1, "/refusal")])
def test_a_server_that_is_at_another_round_for_a_moment_is_answered_after_it(tmp_path, most, path):
    """The client waited for the end of a round that came back, and that waited for the client."""
    client = a_client(tmp_path, agreement=Agreement(epsilon=most))
    connection, fates = restarted(a_round(), steps=0)
    with contextlib.closing(connection):
        outcome = take_part(client, connection, lambda *line: None)
    assert fates == [(404, path), (200, path)]
    assert outcome.took_part == (path == "/answers")
    assert client.ledger.num_spends == outcome.took_part


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_sum_is_joined_after_its_server_was_at_another_round(tmp_path, monkeypatch, steps):
    """Numbers that were sent under masks are in the sum, and are not sent again."""
    monkeypatch.setattr(
        participation, "Participant", lambda *_: SimpleNamespace(step=lambda *_: b"")
    )
    client = a_client(tmp_path, budget_delta="1/100", agreement=Agreement("central"))
    round = a_round(trust="central", mechanism="binomial", honest=3)
    connection, fates = restarted(round, steps)
    with contextlib.closing(connection):
        outcome = take_part(client, connection, lambda *line: None)
    assert outcome.took_part
    sent = [path for status, path in fates if status == 200]
    assert sent.count("/sum/2") == 1
    assert sent[-1] == f"/sum/{STEPS - 1 if steps < 3 else 2}"


@pytest.mark.parametrize(
    ("agreed", "shows", "is_sent"),
    [
        ({}, False, False),
        ({}, True, False),
        ({"trust": "shuffle", "honest": 600}, False, False),
        ({"trust": "shuffle", "honest": 600, "epsilon": 0.1}, True, False),
        ({"trust": "shuffle", "honest": 100}, True, False),
        ({"trust": "shuffle", "honest": 600}, True, True),
        ({"trust": "shuffle", "honest": 600}, "elsewhere", False),
    ],
)
def test_shuffled_messages_are_sent_again_under_the_agreement_of_now(
    tmp_path, agreed, shows, is_sent
):
    """A server had them for the id of their round, whatever the owner agreed to by then."""
    round = a_round(trust="shuffle", honest=500)
    trusting = Agreement(trust="shuffle", honest=600)
    client = a_client(tmp_path, budget=1, budget_delta=1e-5, agreement=trusting)
    connection, sent = stranger(round, shows=shows)
    server = "http://another:1" if shows == "elsewhere" else connection.ends
    _, _, messages = client.answer(round.data, server)
    with contextlib.closing(connection):
        wary = replace(client, agreement=Agreement(**agreed))
        outcome = take_part(wary, connection, lambda *_: None)
    assert outcome.took_part == (is_sent or not shows)  # where it was not shown, its ticket counts
    bodies = [body for method, _, body in sent if method == "POST"]
    assert bodies == [messages if is_sent else b""]


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("answered", range(STEPS + 1))
def test_numbers_are_in_a_sum_once_they_were_sent_under_masks(
    tmp_path, monkeypatch, answered, silent
):
    """A server that ends a sum after some steps, the third of which takes the numbers."""
    client = a_client(tmp_path)
    polls, told = [], []
    prepared = SimpleNamespace(round=SimpleNamespace(num_cells=3), least_threshold=2, vector=None)
    monkeypatch.setattr(type(client), "ready", lambda *_: prepared)
    monkeypatch.setattr(
        participation, "Participant", lambda *_: SimpleNamespace(step=lambda *_: b"")
    )

    def poll(path, _):
        polls.append(path)
        return Received(410 if silent and len(polls) > answered else 200, "", b"")

    def post(*_):
        return "counted" if len(polls) <= answered else "late"

    connection = SimpleNamespace(poll=poll, post=post, ticket=None, ends="")
    round_id = "ab" * 32
    added = participation._add(client, connection, round_id, b"", lambda *line: told.append(line))
    assert added == (answered >= 3)
    assert client.counted() == [round_id] * added
    assert [name for name, _ in told] == ["ready", "added" if added else "not counted"]
    assert len(polls) == min(answered + 1, STEPS)
