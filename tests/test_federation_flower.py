"""The Flower apps through a grid that loses, repeats and forges what a network can."""

import errno
import functools
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from rknn_jax.federation import collector as collectors
from rknn_jax.federation import flower
from rknn_jax.federation.agreement import Agreement, RefusedError
from rknn_jax.federation.collector import Collector, Reply
from rknn_jax.federation.messages import messages
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.responsible import Responsible
from tests import test_federation
from tests.test_federation import a_client

a_round = functools.partial(
    test_federation.a_round, mechanism="randomized_response"
)  # messages that are drawn without JAX


@pytest.fixture(autouse=True)
def task(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    """Nodes by number; `behavior[node]` makes of a question a list of replies, of which each
    later pull brings one.
    """

    def __init__(self, behaviour):
        self.behaviour = behaviour
        self.there = list(behaviour)
        self.asked = []
        self.most = 0
        self.sent = 0
        self.inbox = {}

    def get_node_ids(self):
        return list(self.there)

    def push_messages(self, messages):
        for message in messages:
            self.sent += 1
            message.metadata._message_id = str(self.sent)  # type: ignore[attr-defined]
            node = message.metadata.dst_node_id
            self.asked.append(node)
            reply = self.behaviour[node](message)
            if reply is not None:
                self.inbox[str(self.sent)] = reply
            self.most = max(self.most, len(self.inbox))
            yield str(self.sent)

    def pull_messages(self, numbers):
        for number in list(numbers):
            if number in self.inbox:
                yield self.inbox.pop(number)


def by_app(client, told=None, run=1):
    app = flower.client_app(lambda context: client, lambda context: told)
    return lambda message: app(
        message, Context(run, message.metadata.dst_node_id, {}, RecordDict(), {})
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


def collect(grid, collector, clients, told, seconds=20.0):
    flower.collect(grid, collector, clients, time.time() + seconds, told)


def test_all_who_come_are_asked_and_counted(tmp_path, heard):
    round = a_round()
    parties = [a_client(tmp_path / str(i), seed=i) for i in range(3)]
    grid = Grid({10 + i: by_app(party) for i, party in enumerate(parties)})
    collector = Collector(tmp_path / "server", round)
    collect(grid, collector, 3, heard)
    assert collector.num_messages == 18
    assert [name for name, _ in heard.lines] == ["counted"] * 3
    assert len(collector.clients) == 3
    assert not collector.clients & {10, 11, 12}, "tickets, not nodes"


def test_nobody_is_asked_once_results_were_published(tmp_path, heard):
    """A run that was started again with another node once published the difference of two."""
    collector = Collector(tmp_path, a_round())
    (tmp_path / "privacy.json").write_text("{}")
    collect(Grid({1: by_app(a_client(tmp_path / "client"))}), collector, 1, heard, seconds=1)
    assert (collector.num_messages, heard.lines) == (0, [])


def test_a_client_that_comes_back_as_another_node_is_counted_once(tmp_path, heard, monkeypatch):
    monkeypatch.setattr(flower, "LOOK", 0.0)
    round = a_round()
    party = a_client(tmp_path / "a")

    def killed(message):
        grid.there = [3]
        return None

    def back(message):
        grid.there = [3, 4, 5]
        return by_app(party)(message)

    grid = Grid({1: killed, 3: back, 4: by_app(party), 5: by_app(a_client(tmp_path / "b", seed=2))})
    grid.there = [1]
    collector = Collector(tmp_path / "server", round)
    collect(grid, collector, 2, heard)
    assert grid.asked == [1, 3, 4, 5]
    assert [name for name, _ in heard.lines] == ["counted", "again", "counted"]
    assert collector.num_messages == 12
    assert party.ledger.spent.epsilon == 1


@pytest.mark.parametrize("honest", [True, False])
def test_a_node_that_answers_twice_counts_once(tmp_path, heard, monkeypatch, honest):
    """An honest one says the same, and pays once. Another one says that it is somebody else."""
    monkeypatch.setattr(flower, "LOOK", 0.0)
    monkeypatch.setattr(flower, "PATIENCE", 0.1)
    first, liar, other = (a_client(tmp_path / name, seed=i) for i, name in enumerate("abc"))
    questions = []

    def twice(message):
        questions.append((str(grid.sent), message))
        if len(questions) == 2:  # silent at first, and then it answers both
            for (number, question), party in zip(
                questions, (first, first if honest else liar), strict=True
            ):
                grid.inbox[number] = by_app(party)(question)

    def late(message):
        return by_app(other)(message) if len(questions) == 2 else None

    grid = Grid({1: twice, 2: late})
    round = a_round()
    collector = Collector(tmp_path / "server", round)
    collect(grid, collector, 2, heard)
    alone = Collector(tmp_path / "alone", round)
    collect(Grid({1: by_app(first), 2: by_app(other)}), alone, 2, lambda name, text: None)
    assert collector.clients == alone.clients
    np.testing.assert_array_equal(collector.totals, alone.totals)
    assert collector.rejected == {"again": 1}
    assert sum(name == "again" for name, _ in heard.lines) == 1
    assert first.ledger.spent.epsilon == 1


def test_a_message_that_a_grid_delivers_twice_counts_once(tmp_path, heard):
    parties = [a_client(tmp_path / str(i), seed=i) for i in range(2)]
    grid = Grid({i: by_app(party) for i, party in enumerate(parties)})
    pull = grid.pull_messages

    def repeated(numbers):
        for message in pull(numbers):
            yield from (message, message)

    grid.pull_messages = repeated
    collector = Collector(tmp_path / "server", a_round())
    collect(grid, collector, 2, heard)
    assert collector.num_messages == 12
    assert [name for name, _ in heard.lines].count("counted") == 2


def test_two_answers_of_one_ticket_count_once_whatever_they_say(tmp_path, heard):
    """As those of a client whose note and ledger were restored from a copy."""
    round = a_round()
    reply = by_app(a_client(tmp_path / "a"))
    other = by_app(a_client(tmp_path / "b", seed=2))

    def forged(message):
        said = dict(reply(message).content["answer"])
        messages = other(message).content["answer"]["messages"]
        return saying(answer=ConfigRecord(said | {"messages": messages}))(message)

    collector = Collector(tmp_path / "server", round)
    collect(Grid({1: reply, 2: forged}), collector, 1, heard)
    assert [name for name, _ in heard.lines] == ["counted", "again"]
    alone = Collector(tmp_path / "alone", round)
    collect(Grid({1: reply}), alone, 1, lambda name, text: None)
    np.testing.assert_array_equal(collector.totals, alone.totals)


def test_a_silent_node_is_asked_again_and_an_answered_one_is_not(tmp_path, heard, monkeypatch):
    monkeypatch.setattr(flower, "LOOK", 0.0)
    monkeypatch.setattr(flower, "PATIENCE", 0.2)
    parties = [a_client(tmp_path / str(i), seed=i) for i in range(2)]
    silent = iter([True, False])
    grid = Grid(
        {
            1: by_app(parties[0]),
            2: lambda message: None if next(silent) else by_app(parties[1])(message),
        }
    )
    collector = Collector(tmp_path / "server", a_round())
    collect(grid, collector, 2, heard)
    assert grid.asked == [1, 2, 2]


def test_nodes_are_asked_in_waves(tmp_path, heard, monkeypatch):
    """Flower holds no more messages at once than a wave has, however many nodes there are."""
    monkeypatch.setattr(flower, "WAVE", 3)
    monkeypatch.setattr(flower, "POLL", 0.0)
    parties = [a_client(tmp_path / str(i), seed=i, records=1) for i in range(10)]
    grid = Grid({i: by_app(party) for i, party in enumerate(parties, 1)})
    collector = Collector(tmp_path / "server", a_round())
    collect(grid, collector, 10, heard)
    assert collector.num_clients == 10
    assert grid.asked == list(range(1, 11))
    assert grid.most == 3


def test_a_message_that_a_grid_did_not_take_is_sent_again(tmp_path, heard, monkeypatch):
    """Flower's grids leave out the number of such a message, or give None."""
    monkeypatch.setattr(flower, "LOOK", 0.0)
    monkeypatch.setattr(flower, "PATIENCE", 0.2)
    grid = Grid({1: by_app(a_client(tmp_path / "a"))})
    real = grid.push_messages
    outcomes = iter([lambda messages: [], lambda messages: [None], real])
    grid.push_messages = lambda messages: next(outcomes)(messages)
    collector = Collector(tmp_path / "server", a_round())
    collect(grid, collector, 1, heard)
    assert collector.num_clients == 1


def test_clients_that_a_cut_file_has_lost_are_asked_again(tmp_path, heard):
    """At every kind of cut: in a head, in a hash, in a body, and between two batches.

    They say the same, and pay once.
    """
    round = a_round()
    parties = [a_client(tmp_path / str(i), seed=i) for i in range(2)]
    said = {i: by_app(party) for i, party in enumerate(parties)}
    server = tmp_path / "server"

    def counted():
        collector = Collector(server, round)
        collect(Grid(said), collector, 2, heard)
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


def test_a_client_whose_answer_found_no_room_is_asked_again(tmp_path, heard, monkeypatch):
    monkeypatch.setattr(flower, "AFTER_ERROR", 0.0)
    monkeypatch.setattr(flower, "LOOK", 0.0)
    append = Collector._append
    tries = []

    def full_at_first(self, clients, payload):
        tries.append(clients)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, clients, payload)

    monkeypatch.setattr(Collector, "_append", full_at_first)
    round = a_round()
    collector = Collector(tmp_path / "server", round)
    grid = Grid({10: by_app(a_client(tmp_path / "client"))})
    collect(grid, collector, 1, heard)
    assert [name for name, _ in heard.lines] == ["busy", "busy", "counted"]
    assert (len(tries), len(collector.clients), collector.rejected) == (3, 1, {})


@pytest.mark.long
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


def test_an_app_in_one_process_keeps_virtual_clients_apart(tmp_path, heard):
    round = a_round()
    parties = {1: a_client(tmp_path / "1", seed=1), 2: a_client(tmp_path / "2", seed=2)}
    app = flower.client_app(lambda context: parties[context.node_id], lambda context: None)

    def one(message):
        return app(message, Context(1, message.metadata.dst_node_id, {}, RecordDict(), {}))

    collector = Collector(tmp_path / "server", round)
    collect(Grid({1: one, 2: one}), collector, 2, heard)
    assert len(collector.clients) == 2


def test_shuffled_messages_that_a_run_of_flower_took_go_to_no_other_server(tmp_path, heard):
    round = a_round(trust="shuffle", honest=500)
    agreed = Agreement(trust="shuffle", honest=600)
    client = a_client(tmp_path, budget_delta=1e-5, agreement=agreed)
    question = Message(
        RecordDict({"round": ConfigRecord({"data": round.data})}),
        dst_node_id=1,
        message_type="query.answer",
    )
    assert "answer" in by_app(client)(question).content
    assert "answer" in by_app(client)(question).content
    assert "refused" in by_app(client, run=2)(question).content
    with pytest.raises(RefusedError, match="that server has moved"):
        client.answer(round.data, "http://another:1")


def test_an_owner_is_told_what_is_asked_and_the_server_is_not_told_why_not(tmp_path, heard):
    poor = by_app(a_client(tmp_path / "a", budget="1/10"), heard)
    good = by_app(a_client(tmp_path / "b", seed=2), heard)
    collector = Collector(tmp_path / "server", a_round())
    collect(Grid({1: poor, 2: good}), collector, 1, lambda name, text: None)
    assert [name for name, _ in heard.lines] == ["asked", "refused", "asked", "answered"]
    assert "left" in heard.lines[1][1]
    question = Message(
        RecordDict({"round": ConfigRecord({"data": a_round().data})}),
        dst_node_id=1,
        message_type="query.answer",
    )
    assert dict(poor(question).content["refused"]) == {}


@pytest.mark.parametrize("kind", ["train", "evaluate", "query.ready", "query"])
def test_a_client_answers_no_other_kind_of_message(tmp_path, kind):
    node = by_app(a_client(tmp_path))
    content = RecordDict({"round": ConfigRecord({"data": a_round().data})})
    Grid({})
    with pytest.raises(ValueError, match="function registered|Unknown"):
        node(Message(content, dst_node_id=1, message_type=kind))
    assert not list((tmp_path / "rounds").glob("*"))


# Nodes with a configuration of their own


def node_config(folder, **options):
    rng = np.random.default_rng(0)
    np.savez(
        folder / "private.npz",
        embeddings=rng.normal(size=(6, 5)).astype(np.float32),
        labels=rng.integers(0, 3, 6),
    )
    return {"private": str(folder / "private.npz")} | options


def test_a_node_is_its_owners_client(tmp_path):
    options = {"budget": 3, "trust": "shuffle", "honest": 9, "most-epsilon": 2.0, "most_work": 99}
    client = flower.node_client(node_config(tmp_path, **options))
    assert len(client.inputs) == 6
    assert client.agreement == Agreement("shuffle", 9, epsilon=2.0, most_work=99)
    assert client.ledger.path == tmp_path / "private.npz.ledger.jsonl"
    assert client.ledger.remaining.epsilon == 3
    assert client.folder == tmp_path / "private.npz.rounds"
    again = flower.node_client(node_config(tmp_path, patience=7.0))
    assert (again.ledger.patience, again.ledger.remaining.epsilon) == (7.0, 3)


def test_a_run_does_not_choose_a_nodes_files_or_budget(tmp_path, capsys):
    """A real node's client is the same, whatever the run says."""
    run = {"private": "/etc/passwd", "out": str(tmp_path / "run"), "epsilon": 99.0, "seed": 7}
    config = node_config(tmp_path, budget=1.5) | {"partition-id": 0}
    Grid({})
    context = Context(1, 1, config, RecordDict(), run)
    message = Message(
        RecordDict({"round": ConfigRecord({"data": a_round(epsilon=1.0).data})}),
        dst_node_id=1,
        message_type="query.answer",
    )
    with pytest.raises(RuntimeError, match="its owner sees why"):
        flower.node_app()(message, context)
    words = " ".join(capsys.readouterr().err.split())
    assert "options of rknn join in --node-config, got partition_id" in words
    del config["partition-id"]
    reply = flower.node_app()(message, context)
    assert len(reply.content["answer"]["messages"]) > 0
    spent = flower.node_client(config).ledger
    assert (spent.budget.epsilon, spent.spent.epsilon) == (1.5, 1)
    assert not Path(run["out"]).exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("most-epsilon", float("nan")),
        ("most-epsilon", -1.0),
        ("most-epsilon", "much"),
        ("allow-large-epsilon", "false"),
        ("most-cells", 0),
        ("budget", 0.0),
        ("budget", float("inf")),
        ("trust", "everybody"),
        ("accounting", "none"),
        ("patience", "nan"),
        ("most-epsilon", False),
        ("most-epsilon", "5 --allow-large-epsilon"),
        ("networks", "a.onnx --most-epsilon 1000"),
        ("drop", "visit --server evil:1"),
        ("networks", "/data/o'neil/a.onnx"),
        ("private", ""),
    ],
)
def test_a_nodes_options_are_checked_like_those_of_join(tmp_path, option, value):
    """Text for a flag was taken as true, and NaN as no limit."""
    with pytest.raises(ValueError, match="Expected"):
        flower.node_client(node_config(tmp_path, budget=1.0) | {option: value})
    assert not (tmp_path / "private.npz.ledger.jsonl").exists()


def test_a_nodes_lists_are_words(tmp_path):
    table = tmp_path / "R.csv"
    table.write_text("a,b,visit,labels\n1,2,7,0\n3,4,8,1\n")
    client = flower.node_client({"private": str(table), "budget": 1.0, "drop": "visit"})
    assert client.inputs.shape == (2, 2)
    flags = {"private": str(table), "drop": "visit", "allow-large-epsilon": True}
    assert flower.node_client(flags).agreement.large_epsilon


@pytest.mark.parametrize("name", ["server", "key", "json", "num-partitions", "epsilon"])
def test_a_node_has_no_other_options(tmp_path, name):
    with pytest.raises(ValueError, match="Expected options of rknn join"):
        flower.node_client(node_config(tmp_path, budget=1.0, **{name: "x"}))


def test_a_nodes_file_and_ledger_must_fit(tmp_path):
    with pytest.raises(ValueError, match="Expected budget"):
        flower.node_client(node_config(tmp_path))
    np.savez(tmp_path / "odd.npz", embeddings=np.zeros((3, 5), np.float32), labels=[1, 2])
    with pytest.raises(ValueError, match="got 2 labels for 3 records"):
        flower.node_client({"private": str(tmp_path / "odd.npz"), "budget": 1.0})


@pytest.mark.parametrize("config", [{}, {"partition-id": 0, "num-partitions": 2}])
def test_a_node_without_a_file_of_its_own_is_told_to_name_one(config, tmp_path, capsys):
    """Owners of nodes number them as the simulation engine does, in Flower's own tutorials."""
    np.savez(tmp_path / "found.npz", embeddings=np.zeros((4, 2), np.float32), labels=[0, 1, 0, 1])
    run = {"private": str(tmp_path / "found.npz"), "out": str(tmp_path / "out"), "seed": -1}
    run |= {"trust": "local", "honest": 0, "delta": 0.0, "epsilon": 40.0}
    Grid({})
    message = Message(
        RecordDict({"round": ConfigRecord({"data": a_round(epsilon=1.0).data})}),
        dst_node_id=1,
        message_type="query.answer",
    )
    with pytest.raises(RuntimeError, match="its owner sees why"):
        flower.node_app()(message, Context(1, 1, config, RecordDict(), run))
    assert "flower-supernode --node-config" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


RUN = {
    "public": "P.npz",
    "epsilon": 1.5,
    "classes": "a,b",
    "clients": 100,
    "out": "out",
    "quorum": 40,
    "deadline": 5.0,
    "trust": "shuffle",
    "honest": 30,
    "delta": 1e-9,
    "mechanism": "collision",
    "queries": 7,
    "neighbors": 3,
    "representation": "pca",
    "student": "none",
    "test": "T.npz",
    "controller": "Clinic",
    "contact": "clinic@example.org",
}


def test_a_run_asks_for_what_its_options_say():
    asked = flower._request(RUN, 10)
    names = set(RUN) - {"classes", "controller", "contact"}
    usual = flower._request(RUN | {"quorum": 0, "queries": 0, "test": "", "clients": 0}, 10)
    for name in names:
        found = getattr(asked, name)
        assert (str(found) if isinstance(found, Path) else found) == RUN[name], name
    assert asked.responsible == Responsible("Clinic", "clinic@example.org")
    assert (usual.quorum, usual.queries, usual.test, usual.clients) == (None, None, None, 10)


def test_shuffled_messages_do_not_outlive_a_run(tmp_path, monkeypatch):
    """Each is under its client's number, and promises less than all of them mixed."""
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    np.savez(tmp_path / "P.npz", embeddings=rows)
    run = {"public": tmp_path / "P.npz", "out": tmp_path / "out", "clients": 60, "honest": 50}
    run |= {"epsilon": 1.0, "delta": 1e-3, "quorum": 0, "queries": 2, "neighbors": 1, "test": ""}
    run |= {"seed": -1, "private": "", "representation": "pixels"}

    def collect(_, collector, *__, **___):
        cells = collector.round.contribute(rows[:1], np.int32([0]))
        for number in range(60):
            drawn = messages(collector.round, cells, Entropy(bytes([number]) * 32))
            collector.receive([Reply(number, collector.round.id, drawn)])

    monkeypatch.setattr(flower, "collect", collect)
    flower.serve(Grid({}), RUN | run)
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert "privacy.json" in left
    assert collectors.ANSWERS not in left


def test_only_public_names_of_flower_are_used():
    """Versions of Flower change the others without notice."""
    folder = Path(flower.__file__).parent
    lines = {
        line.strip()
        for path in [*folder.glob("*.py"), *(folder / "app").glob("*.py")]
        for line in path.read_text().splitlines()
        if line.strip().startswith(("import flwr", "from flwr"))
    }
    assert {line.split()[1] for line in lines} <= {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
