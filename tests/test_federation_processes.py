"""`rknn serve` and `rknn join` as processes on this host: rounds that end well whoever is
killed, and ports that let nobody else in. tests/test_federation_http.py has the faults that need
no process.
"""

import http.client
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import rknn_jax
from rknn_jax.federation import certificates
from rknn_jax.federation.client import Client
from rknn_jax.federation.collector import ANSWERS, QUESTION
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.ledger import Ledger

PATIENCE = 120  # seconds until something counts as hanging
HERE = "127.0.0.1"
CLIENTS = 3
RECORDS = 40
KNOWN = ("party0", "party1", "party2")

RUN = """
import os, sys, time
from pathlib import Path
def die(*arguments, **named):
    os.kill(os.getpid(), 9)
def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.05)
{patch}
from rknn_jax.cli.main import main
sys.exit(main(sys.argv[1:]))
"""

TEMPLATE = """
import json, os, sys
from rknn_jax.cli import main as cli
from rknn_jax.federation import connection, hosting, listener, merge, publish, server

def forked(log, words, code):
    number = os.fork()
    if number:
        return number
    os.setsid()
    for standard, path in enumerate((os.devnull, log, log)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), standard)
    sys.argv[1:] = words
    exec(code, {"__name__": "__main__"})
    os._exit(1)  # what was run exits

def status_of(number):
    ended, status = os.waitpid(number, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None

for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps(forked(*asked) if isinstance(asked, list) else status_of(asked)), flush=True)
"""

NOT_ON_DISK = """
from rknn_jax._internal import disk
write = disk.write_whole
disk.write_whole = lambda path, *rest: die() if path.suffix == ".answer" else write(path, *rest)
"""

HALF_SENT = """
from rknn_jax.federation.connection import Connection
sent = Connection._sent
def halves(data):
    yield data[: len(data) // 2]
    die()
Connection._sent = lambda self, method, path, data: sent(
    self, method, path, None if data is None else halves(data))
"""

NO_FATE = """
from rknn_jax.federation.connection import Connection
post = Connection.post
Connection.post = lambda *arguments: die(post(*arguments))
"""

CLIENT_DIES = {  # where: how, and what its ledger says then
    "at work": ("from rknn_jax.federation.rounds import Round; Round.connect = die", []),
    "noted and not charged": (
        "from rknn_jax.privacy.ledger import Ledger; Ledger.charge = die",
        [],
    ),
    "charged and not randomized": ("from rknn_jax.federation import wire; wire.encode = die", [1]),
    "randomized and not on disk": (NOT_ON_DISK, [1]),
    "on disk and not sent": (
        "from rknn_jax.federation.connection import Connection; Connection.post = die",
        [1],
    ),
    "half sent": (HALF_SENT, [1]),
    "sent and no fate heard": (NO_FATE, [1]),
}

SUM_DIES = {  # where: how, and what each ledger says then
    "begun": ("from rknn_jax.federation import hosting; hosting.Summation = die", []),
    "opened": ("from rknn_jax.federation import publish; publish.publish = die", [1]),
}

AT_WORK = """
from rknn_jax.federation.rounds import Round
connect = Round.connect
def wait_and_connect(*arguments):
    Path(f"{name}.works").touch()
    wait_for("go")
    return connect(*arguments)
Round.connect = wait_and_connect
"""

COUNTED_ONE = """
from rknn_jax.federation.collector import Collector
receive = Collector.receive
def receive_and_die(self, replies, **named):
    fates = receive(self, replies, **named)
    return die() if self.clients else fates
Collector.receive = receive_and_die
"""

HALF_A_FRAME = """
from rknn_jax.federation.collector import Collector
append = Collector._append
def append_half_and_die(self, *arguments):
    size = self._path.stat().st_size
    append(self, *arguments)
    os.truncate(self._path, (size + self._path.stat().st_size) // 2)
    die()
Collector._append = append_half_and_die
"""

SERVER_DIES_BEFORE_THE_END = {  # where: how
    "before it asks": "from rknn_jax.federation import hosting; hosting.collect = die",
    "an answer came": "from rknn_jax.federation.collector import Collector; Collector._append = "
    "die",
    "half an answer is on disk": HALF_A_FRAME,
    "an answer was counted": COUNTED_ONE,
}
SERVER_DIES_AT_THE_END = {
    "before publishing": "from rknn_jax.federation import publish; publish.publish = die",
    "between results": "from rknn_jax.federation import publish; publish._pictures = die",
    "published and nobody told": "from rknn_jax.federation import hosting; hosting.announce = die",
}

CHECK_DIES = {  # who, and where: how
    "client, before its roles are noted": "from rknn_jax.federation import client_roles; "
    "client_roles.Note.write = die",
    "client, before it checks": "from rknn_jax.federation.check_rounds import CheckRound; "
    "CheckRound.connect = die",
    "client, charged and not begun": "from rknn_jax.federation import client_roles; "
    "client_roles.begin = die",
    "server, before it asks": "from rknn_jax.federation import checking; checking.prepared = die",
    "server, asked and nobody counted": "from rknn_jax.federation import checking; "
    "checking.Collector = die",
    "server, all counted": "from rknn_jax.federation import checking; checking.measured = die",
}


class Running(NamedTuple):
    """A process of ours and what it says."""

    process: "subprocess.Popen | Forked"
    log: Path

    def ends(self, status=0):
        try:
            found = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            found = "still running"
        assert found == status, self.log.read_text()

    def says(self, *words):
        ends = time.monotonic() + PATIENCE
        while not all(word in self.log.read_text() for word in words):
            assert self.process.poll() is None, (
                f"ended before it said {words}: {self.log.read_text()}"
            )
            assert time.monotonic() < ends, f"did not say {words}: {self.log.read_text()}"
            time.sleep(0.05)

    def kill(self):
        assert self.process.poll() is None, self.log.read_text()
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Forked:
    """A process that `template` has forked: as much of `subprocess.Popen` as is used here."""

    def __init__(self, template, *asked):
        self.template = template
        self.returncode = None
        self.pid = self.told(asked)

    def told(self, asked):
        self.template.stdin.write(json.dumps(asked) + "\n")
        self.template.stdin.flush()
        return json.loads(self.template.stdout.readline())

    def poll(self):
        if self.returncode is None:
            self.returncode = self.told(self.pid)
        return self.returncode

    def wait(self, seconds=PATIENCE):
        ends = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > ends:
                raise subprocess.TimeoutExpired("a fork", seconds)
            time.sleep(0.05)
        return self.returncode


@pytest.fixture
def template(tmp_path):
    """A process that has imported what a program imports, most of what it does, and forks: with
    it, `start` takes a third of the time.
    """
    command = [sys.executable, "-W", "ignore:os.fork", "-c", TEMPLATE]
    environment = os.environ | {"PYTHONPATH": str(Path(rknn_jax.__file__).parents[1])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, **pipes) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def start(tmp_path, request):
    """Start programs in `tmp_path`, and end with them."""
    started = []

    def popen(log, words, patch):
        environment = os.environ | {"PYTHONPATH": str(Path(rknn_jax.__file__).parents[1])}
        command = ["-c", RUN.format(patch=patch)] if patch else ["-m", "rknn_jax.cli.main"]
        with log.open("w") as file:
            return subprocess.Popen(
                [sys.executable, *command, *words],
                cwd=tmp_path,
                env=environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def fork(log, words, patch):
        log.touch()
        template = request.getfixturevalue("template")
        return Forked(template, str(log), words, RUN.format(patch=patch))

    begin = fork if "template" in request.fixturenames else popen

    def run(name, words, patch=""):
        log = tmp_path / f"{name}.{len(started)}.log"
        started.append(Running(begin(log, list(map(str, words)), patch), log))
        return started[-1]

    yield run
    for running in started:
        try:
            os.killpg(
                running.process.pid, signal.SIGKILL
            )  # children too, of which there should be none
        except ProcessLookupError:
            pass
        running.process.wait()


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def serve(start, port, tmp_path):
    """Start the server of a round of three clients about 60 embeddings of three classes."""
    rng = np.random.default_rng(0)
    centers = 6 * np.eye(3, 4)
    np.savez(
        tmp_path / "public.npz",
        embeddings=(centers[np.arange(60) % 3] + rng.normal(size=(60, 4))).astype(np.float32),
    )
    for number in range(CLIENTS):
        labels = rng.integers(0, 3, RECORDS)
        np.savez(
            tmp_path / private(number),
            embeddings=(centers[labels] + rng.normal(size=(RECORDS, 4))).astype(np.float32),
            labels=labels,
        )
    words = (
        "serve --public public.npz --epsilon 1 --classes 3 --out out --student none --json --port"
    ).split()
    return lambda *more, patch="": start(
        "server", [*words, port, "--clients", CLIENTS, *more], patch
    )


@pytest.fixture
def join(start, port):
    """Start a client."""

    def run(number, *more, patch="", budget=2):
        words = [
            "join",
            "--private",
            private(number),
            "--server",
            f"{HERE}:{port}",
            "--budget",
            budget,
            *more,
        ]
        return start(f"client{number}", words, f"name = 'client{number}'\n{patch}" if patch else "")

    return run


@pytest.fixture
def secured(tmp_path):
    """Make certificates of a server, of three clients that it knows and of one that it does not.
    Return what both sides pass.
    """
    for folder in ("tls", "other"):
        certificates.write_server(tmp_path / folder)
    for name in (*KNOWN, "stranger"):
        certificates.write_client(tmp_path, name)
    (tmp_path / "clients.pem").write_bytes(
        b"".join((tmp_path / f"{name}.pem").read_bytes() for name in KNOWN)
    )
    return ["--certificates", "tls", "--keys", "clients.pem"], lambda name, ca="tls/ca.pem": [
        "--ca",
        ca,
        "--certificate",
        f"{name}.pem",
        "--key",
        f"{name}.key",
    ]


def private(number):
    return f"private{number}.npz"


def free_port():
    with socket.socket() as listening:
        listening.bind((HERE, 0))
        return listening.getsockname()[1]


def appears(path):
    ends = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < ends, f"{path} did not appear"
        time.sleep(0.05)


def spends(folder, number):
    path = folder / f"{private(number)}.ledger.jsonl"
    return [entry.amount.epsilon for entry in Ledger.open(path).entries() if entry.kind == "spend"]


def assert_published(folder, numbers=range(CLIENTS)):
    """Each client is counted once, with the very messages that it was charged for."""
    card = json.loads((folder / "out/privacy.json").read_text())
    assert (card["clients"], card["messages"]) == (len(numbers), RECORDS * len(numbers))
    assert card["guarantee"]["epsilon"] == 1
    assert "epsilon = 1" in (folder / "out/report.html").read_text()
    assert len(np.load(folder / "out/labels.npz")["label"]) == 60
    answers = (folder / "out" / ANSWERS).read_bytes()
    for number in numbers:
        assert spends(folder, number) == [1]
        assert answers.count(said_again(folder, number)) == 1
    return card


def assert_closed(port, ca):
    """Whoever has no listed certificate gets no answer, in the clear or under TLS."""
    bare = ssl.create_default_context(cafile=ca)
    for scheme, context in (("http", None), ("https", bare)):
        url = f"{scheme}://{HERE}:{port}/v1/round"
        with pytest.raises((http.client.HTTPException, OSError)):
            urllib.request.urlopen(url, timeout=PATIENCE, context=context)


def said_again(folder, number):
    """Return what a client says when it is asked again."""
    records = np.load(folder / private(number))
    ledger = Ledger.open(
        folder / f"{private(number)}.ledger.jsonl", fingerprint(records["embeddings"])
    )
    rounds = folder / f"{private(number)}.rounds"
    client = Client(records["embeddings"], records["labels"].astype(np.int32), ledger, rounds)
    return client.answer((folder / "out" / QUESTION).read_bytes())[2]


@pytest.mark.slow  # half a minute of processes: make processes, which CI runs
@pytest.mark.usefixtures("template")
def test_a_client_killed_between_noise_and_sending_is_counted_once_and_nobody_else_is_let_in(
    serve, join, secured, port, tmp_path
):
    theirs, ours = secured
    patch, charged = CLIENT_DIES["on disk and not sent"]
    server = serve(*theirs, "--clients", 1, "--mechanism", "randomized_response")
    killed = join(0, *ours("party0"), patch=patch)
    killed.ends(-signal.SIGKILL)
    assert spends(tmp_path, 0) == charged
    assert_closed(port, tmp_path / "tls/ca.pem")
    back = join(0, *ours("party0"))
    for running in (server, back):
        running.ends()
    card = assert_published(tmp_path, [0])
    assert card["rejected"] == {}
    assert json.loads(server.log.read_text().splitlines()[-1]) == card | {"exit_status": 0}


@pytest.mark.slow
def test_a_server_and_three_clients_finish_a_round(serve, join, tmp_path):
    clients = [join(number) for number in range(CLIENTS)]
    clients[0].says("joining")  # before there is a server
    watched = free_port()
    server = serve("--metrics-port", watched)
    server.says("metrics")
    with urllib.request.urlopen(f"http://127.0.0.1:{watched}/health") as health:
        assert health.read() == b"ok"
    for running in (server, *clients):
        running.ends()
    card = assert_published(tmp_path)
    assert card["rejected"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("where", CLIENT_DIES)
def test_a_client_killed_anywhere_comes_back_and_is_charged_and_counted_once(
    serve, join, tmp_path, where
):
    patch, charged = CLIENT_DIES[where]
    server = serve()
    killed = join(0, patch=patch)
    other = join(1)
    third = join(2)
    killed.ends(-signal.SIGKILL)
    assert spends(tmp_path, 0) == charged
    back = join(0)
    for running in (server, other, third, back):
        running.ends()
    rejected = assert_published(tmp_path)["rejected"]
    heard_nothing = (
        where == "sent and no fate heard"
    )  # it may come back while others are waited for
    assert rejected == {} or (heard_nothing and rejected == {"again": 1})


@pytest.mark.slow
def test_a_client_killed_after_it_was_counted_is_not_counted_again(serve, join, tmp_path):
    server = serve()
    killed = join(0)
    server.says("1 of 3 clients")
    killed.kill()
    back = join(0)
    server.says("again")
    others = join(1), join(2)
    for running in (server, back, *others):
        running.ends()
    assert assert_published(tmp_path)["rejected"] == {"again": 1}


@pytest.mark.slow
@pytest.mark.parametrize("where", SERVER_DIES_BEFORE_THE_END)
def test_a_server_killed_in_the_middle_of_a_round_goes_on(serve, join, tmp_path, where):
    killed = serve(patch=SERVER_DIES_BEFORE_THE_END[where])
    clients = [join(1, patch=AT_WORK), join(2, patch=AT_WORK)]
    if where != "before it asks":
        for number in (1, 2):
            appears(tmp_path / f"client{number}.works")
    clients.append(join(0))
    killed.ends(-signal.SIGKILL)
    server = serve()
    server.says("goes on", f"{int('counted' in where)} of 3 clients so far")
    (tmp_path / "go").touch()
    for running in (server, *clients):
        running.ends()
    assert_published(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("where", SERVER_DIES_AT_THE_END)
def test_a_server_killed_when_it_has_all_answers_publishes_them(serve, join, tmp_path, where):
    killed = serve(patch=SERVER_DIES_AT_THE_END[where])
    clients = [join(number) for number in range(CLIENTS)]
    killed.ends(-signal.SIGKILL)
    assert (tmp_path / "out/privacy.json").exists() == ("published" in where)
    server = serve()
    for running in (server, *clients):
        running.ends()
    assert_published(tmp_path)


@pytest.mark.slow
def test_a_round_is_published_without_whoever_refuses_or_is_late(serve, join, tmp_path):
    poor = join(0, budget=0.5)
    late = join(1, patch=AT_WORK)
    able = join(2)
    for running in (poor, late, able):
        running.says("joining")
    server = serve("--quorum", 1, "--deadline", 45)
    appears(tmp_path / "out/privacy.json")
    assert (tmp_path / "client1.works").exists()
    (tmp_path / "go").touch()
    for running in (server, able):
        running.ends()
    poor.ends(3)
    assert "did not take part" in poor.log.read_text()
    assert spends(tmp_path, 0) == []
    assert assert_published(tmp_path, [2])["rejected"] == {"refused by the client": 1}


@pytest.mark.slow
def test_too_few_clients_publish_nothing_and_the_same_command_goes_on_with_a_later_deadline(
    serve, join, tmp_path
):
    clients = [join(0)]
    early = serve("--deadline", 0.1)
    assert early.process.wait(PATIENCE) > 0
    assert "quorum of 3 clients, got 0" in " ".join(early.log.read_text().split())
    assert not (tmp_path / "out/privacy.json").exists()
    server = serve()
    clients += [join(1), join(2)]
    for running in (server, *clients):
        running.ends()
    assert_published(tmp_path)


@pytest.mark.slow
def test_a_client_that_comes_when_the_round_is_over_spends_nothing_and_waits_for_the_next(
    serve, join, tmp_path
):
    for running in (serve("--clients", 1), join(0)):
        running.ends()
    assert_published(tmp_path, [0])
    late = join(1)
    late.says("joining")
    time.sleep(5)
    assert late.process.poll() is None
    assert spends(tmp_path, 1) == []
    for running in (serve("--clients", 1, "--out", "next"), late):
        running.ends()
    assert spends(tmp_path, 1) == [1]
    assert json.loads((tmp_path / "next/privacy.json").read_text())["messages"] == RECORDS


@pytest.mark.slow
def test_a_server_without_a_client_it_knows_takes_nobody_else(serve, join, secured, tmp_path):
    theirs, ours = secured
    server = serve(*theirs)
    known = join(0, *ours("party0"))
    server.says("1 of 3 clients")
    refused = {
        "does not know this certificate": ours("stranger"),
        "check --ca": ours("party1", "other/ca.pem"),
        # It would send in the clear what its key protects.
        "without --ca and --certificate": ["--key", "party1.key"],
    }
    for reason, words in refused.items():
        stranger = join(1, *words)
        stranger.ends(2)
        assert reason in stranger.log.read_text()
    plain = join(1)
    plain.says("joining", "waiting")
    time.sleep(5)
    assert known.process.poll() is None
    assert spends(tmp_path, 1) == []
    plain.kill()
    others = join(1, *ours("party1")), join(2, *ours("party2"))
    for running in (server, known, *others):
        running.ends()
    assert assert_published(tmp_path)["rejected"] == {}


@pytest.mark.slow
def test_a_server_and_its_clients_know_each_other_by_their_keys_after_kills(
    serve, join, secured, tmp_path
):
    theirs, ours = secured
    at_work = join(1, *ours("party1"), patch=AT_WORK)
    counted = join(0, *ours("party0"))
    killed = serve(*theirs)
    killed.says("1 of 3 clients")
    appears(tmp_path / "client1.works")
    killed.kill()
    counted.kill()
    server = serve(*theirs)
    back = join(0, *ours("party0"))
    server.says("1 of 3 clients so far")
    at_work.kill()
    clients = [back, join(1, *ours("party1")), join(2, *ours("party2"))]
    for running in (server, *clients):
        running.ends()
    assert assert_published(tmp_path)["rejected"] == {"again": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "labeler"), [(where, "rknn") for where in SUM_DIES] + [("opened", "prototypes")]
)
def test_a_sum_is_published_once_it_is_open_and_given_up_before_whoever_is_killed(
    serve, join, tmp_path, where, labeler
):
    patch, spent = SUM_DIES[where]
    words = ["--trust", "central", "--honest", 2, "--delta", 1e-5, "--labeler", labeler]
    killed = serve(*words, patch=patch)
    clients = [
        join(number, "--trust", "central", "--budget-delta", 1e-5) for number in range(CLIENTS)
    ]
    killed.ends(-signal.SIGKILL)
    server = serve(*words)
    if not spent:
        server.ends(2)
        assert "begin another round" in " ".join(server.log.read_text().split())
    else:
        for running in (server, *clients):
            running.ends()
        card = json.loads((tmp_path / "out/privacy.json").read_text())
        assert (card["clients"], card["rejected"], card["guarantee"]["epsilon"]) == (CLIENTS, {}, 1)
    assert [spends(tmp_path, number) for number in range(CLIENTS)] == [spent] * CLIENTS


@pytest.mark.slow
@pytest.mark.parametrize("where", CHECK_DIES)
def test_whoever_is_killed_each_record_votes_or_checks_once(serve, join, tmp_path, where):
    patch = CHECK_DIES[where]
    words = ("--check-share", 0.4)
    mine, theirs = (patch, "") if "server" in where else ("", patch)
    server = serve(*words, patch=mine)
    clients = [join(0, patch=theirs), join(1), join(2)]
    (server if mine else clients[0]).ends(-signal.SIGKILL)
    if mine:
        server = serve(*words)
    else:
        clients[0] = join(0)
    for running in (server, *clients):
        running.ends()
    card = json.loads((tmp_path / "out/privacy.json").read_text())
    assert card["messages"] + card["measured"]["checkers"] == RECORDS * CLIENTS
    assert [spends(tmp_path, number) for number in range(CLIENTS)] == [[1]] * CLIENTS


@pytest.mark.slow
def test_kills_of_anybody_at_any_time_lose_nothing_and_count_nothing_twice(serve, join, tmp_path):
    rng = random.Random(0)
    started = {"server": serve, "first": partial(join, 0), "second": partial(join, 1)}
    running = {name: again() for name, again in started.items()}
    for _ in range(8):
        time.sleep(rng.uniform(0, 10))
        name = rng.choice(sorted(started))
        running[name].kill()
        running[name] = started[name]()
    for process in (*running.values(), join(2)):
        process.ends()
    assert_published(tmp_path)
