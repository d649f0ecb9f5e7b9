"""The Flower apps through a grid that loses, repeats and forges what a network can."""

import functools
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from rknn_jax._internal import disk
from rknn_jax.cli import federation
from rknn_jax.federation import collector as collectors
from rknn_jax.federation import flower
from rknn_jax.federation import settings as settings_of
from rknn_jax.federation.agreement import Agreement
from rknn_jax.federation.collector import Collector
from tests import test_federation
from tests.test_federation import a_client

a_round = functools.partial(
    test_federation.a_round, mechanism="randomized_response"
)  # messages that are drawn without JAX


class Grid:
    """Nodes by number; `behavior[node]` makes of a question a list of replies, of which each
    later pull brings one.
    """

    def __init__(self, behaviour):
        TaskIdentity.task_id = 1
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 1
        self.behaviour = behaviour
        self.activated = dict.fromkeys(behaviour, "1")
        self.asked = []
        self.sent = 0
        self.inbox = {}

    def get_nodes(self):
        return [
            SimpleNamespace(node_id=node, last_activated_at=at)
            for node, at in self.activated.items()
        ]

    def get_node_ids(self):
        return list(self.activated)

    def push_messages(self, messages):
        for message in messages:
            self.sent += 1
            message.metadata._message_id = str(self.sent)  # type: ignore[attr-defined]
            node = message.metadata.dst_node_id
            self.asked.append(node)
            reply = self.behaviour[node](message)
            if reply is not None:
                self.inbox[str(self.sent)] = reply
            yield str(self.sent)

    def pull_messages(self, numbers):
        for number in list(numbers):
            if number in self.inbox:
                yield self.inbox.pop(number)


def by_app(client, **options):
    app = flower.client_app(lambda context: client, **options)
    return lambda message: app(
        message, Context(1, message.metadata.dst_node_id, {}, RecordDict(), {})
    )


def saying(**records):
    return lambda message: Message(RecordDict(records), reply_to=message)


@pytest.fixture
def heard():
    lines = []

    def tell(name, text):
        lines.append((name, text))

    tell.lines = lines
    return tell


def collect(grid, collector, clients, tell, seconds=20.0, **options):
    flower.collect(
        grid, collector, clients, time.time() + seconds, authenticated=False, tell=tell, **options
    )


def test_all_who_come_are_asked_and_counted(tmp_path, heard):
    round = a_round()
    parties = [a_client(tmp_path / str(i), seed=i) for i in range(3)]
    grid = Grid({10 + i: by_app(party) for i, party in enumerate(parties)})
    collector = Collector(tmp_path / "server", round)
    collect(grid, collector, 3, heard)
    assert collector.num_messages == 18
    assert [name for name, _ in heard.lines] == ["counted"] * 3
    assert len(collector.clients) == 3
    assert not collector.clients & {10, 11, 12}, "tickets, not nodes, where nodes have no keys"


def test_a_client_that_comes_back_is_asked_again_and_counted_once(tmp_path, heard):
    """Once as the node that it was, activated anew after it was killed, and once as a new node;
    both give the same answer.
    """
    round = a_round()
    party = a_client(tmp_path / "a")
    other = a_client(tmp_path / "b", seed=2)
    times = []

    def killed_first(message):
        times.append(message)
        if len(times) == 1:
            grid.activated[1] = "2"
            return None
        grid.activated[3] = "1"
        grid.behaviour[3] = by_app(party)
        return by_app(party)(message)

    grid = Grid({1: killed_first})
    collector = Collector(tmp_path / "server", round)
    grid.behaviour[4] = by_app(other)
    real = grid.get_nodes

    def nodes():
        if 3 in grid.asked:
            grid.activated[4] = "1"  # the last client comes once the first has answered twice
        return real()

    grid.get_nodes = nodes
    collect(grid, collector, 2, heard)
    assert grid.asked[:3] == [1, 1, 3]
    assert [name for name, _ in heard.lines] == ["counted", "again", "counted"]
    assert collector.num_messages == 12
    assert party.ledger.spent.epsilon == 1


@pytest.mark.parametrize("authenticated", [False, True])
def test_clients_that_a_cut_file_has_lost_are_asked_again(tmp_path, heard, authenticated):
    """At every kind of cut: in a head, in a hash, in a body, and between two batches.

    They say the same, and pay once.
    """
    round = a_round()
    parties = [a_client(tmp_path / str(i), seed=i) for i in range(2)]
    said = {i: by_app(party) for i, party in enumerate(parties)}
    server = tmp_path / "server"

    def counted():
        collector = Collector(server, round)
        flower.collect(
            Grid(said), collector, 2, time.time() + 20, authenticated=authenticated, tell=heard
        )
        collector.close()
        return collector.totals, sorted(collector.clients)

    totals, clients = counted()
    whole = (server / collectors.ANSWERS).read_bytes()
    for size in (0, 10, 40, len(whole) // 2, len(whole) // 2 + 20, len(whole) - 1):
        (server / collectors.ANSWERS).write_bytes(whole[:size])
        again = counted()
        np.testing.assert_array_equal(again[0], totals)
        assert again[1] == clients
    assert [party.ledger.spent.epsilon for party in parties] == [1, 1]


def test_a_second_server_on_one_folder_writes_nothing(tmp_path):
    np.savez(
        tmp_path / "P.npz",
        embeddings=np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32),
    )
    settings = settings_of.Serve(tmp_path / "P.npz", 1.0, "3", 2, tmp_path / "out", student="none")
    settings.out.mkdir()
    with (
        disk.locked(settings.out, "busy"),
        pytest.raises(ValueError, match="--out that no other server has"),
    ):
        federation.serve(settings)
    assert not list(settings.out.iterdir())


def test_a_node_with_a_key_is_counted_once_whatever_ticket_it_shows(tmp_path, heard):
    round = a_round()
    answer = a_client(tmp_path / "a").answer(round.data)

    def liar(message):
        grid.activated[1] = str(time.time())  # as if it had been started again
        return saying(
            answer=ConfigRecord(
                {"round": answer[0], "ticket": len(grid.asked), "messages": answer[2]}
            )
        )(message)

    grid = Grid({1: liar})
    collector = Collector(tmp_path / "server", round)
    flower.collect(grid, collector, 2, time.time() + 2, authenticated=True, tell=heard)
    assert collector.clients == {1}
    assert collector.num_messages == 6


def test_refusals_errors_and_garbage_stop_nobody(tmp_path, heard, monkeypatch):
    monkeypatch.setattr(flower, "AFTER_ERROR", 0.2)
    round = a_round()
    fails = iter([True, False])
    late = by_app(a_client(tmp_path / "late", seed=5))

    def lost_once(message):
        return (
            Message(Error(code=3, reason="lost \x1b[31m"), reply_to=message)
            if next(fails)
            else late(message)
        )

    behaviour = {
        1: by_app(a_client(tmp_path / "poor", budget="1/10")),
        2: by_app(a_client(tmp_path / "wary", agreement=Agreement(epsilon=0.5))),
        3: lost_once,
        4: saying(answer=ConfigRecord({"round": 7, "ticket": "x", "messages": "text"})),
        5: saying(answer=ArrayRecord([np.zeros(3)])),
        6: saying(refused=ConfigRecord({"nothing": 1.0})),
        7: saying(),
        8: saying(refused=ArrayRecord([np.zeros(3)])),
        9: saying(answer=ConfigRecord({"round": round.id, "ticket": -1, "messages": b"\x00"})),
        10: by_app(a_client(tmp_path / "good", seed=6)),
    }
    collector = Collector(tmp_path / "server", round)
    collect(Grid(behaviour), collector, 2, heard)
    assert len(collector.clients) == 2
    assert collector.rejected == {"refused by the client": 4, "another round": 3, "malformed": 1}
    assert ("refused", "by client 1") in heard.lines
    assert not any("\x1b" in text for _, text in heard.lines)


def test_a_round_closes_at_its_deadline_and_what_comes_after_is_late(tmp_path, heard):
    round = a_round()
    real = by_app(a_client(tmp_path / "slow"))

    def slow(message):
        time.sleep(0.6)
        return real(message)

    collector = Collector(tmp_path / "server", round)
    collect(
        Grid({1: by_app(a_client(tmp_path / "fast", seed=2)), 2: slow}),
        collector,
        3,
        heard,
        seconds=0.5,
    )
    assert collector.num_messages == 0
    assert collector.rejected == {"late": 2}


def test_the_end_reaches_clients_and_cannot_steer_their_terminal(tmp_path, heard):
    import threading

    over = threading.Event()
    grid = Grid({1: by_app(a_client(tmp_path), tell=heard, over=over), 2: lambda message: None})
    flower.GOODBYE, real = 0.3, flower.GOODBYE
    try:
        flower.announce(grid, "done \x1b[2J")
    finally:
        flower.GOODBYE = real
    assert over.is_set()
    assert heard.lines == [("over", "done ?[2J")]


def test_an_app_in_one_process_keeps_virtual_clients_apart(tmp_path, heard):
    round = a_round()
    parties = {1: a_client(tmp_path / "1", seed=1), 2: a_client(tmp_path / "2", seed=2)}
    app = flower.client_app(lambda context: parties[context.node_id])

    def one(message):
        return app(message, Context(1, message.metadata.dst_node_id, {}, RecordDict(), {}))

    collector = Collector(tmp_path / "server", round)
    collect(Grid({1: one, 2: one}), collector, 2, heard)
    assert len(collector.clients) == 2
