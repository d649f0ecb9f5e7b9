"""Virtual clients: the apps of Flower's simulation engine, without the engine, and once with it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from rknn_jax.federation import flower, simulation
from rknn_jax.federation.agreement import RefusedError
from rknn_jax.federation.rounds import Round
from rknn_jax.labelers import rknn
from rknn_jax.mechanisms.base import client_totals
from rknn_jax.privacy.ledger import Ledger
from tests.test_federation_flower import Grid, a_round, task  # noqa: F401

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
APP = Path(flower.__file__).parent / "app"


@pytest.fixture
def settings(tmp_path):
    rng = np.random.default_rng(0)
    centers = 6 * rng.normal(size=(3, 5))
    labels = rng.integers(0, 3, 24)
    features = (centers[labels] + rng.normal(size=(24, 5))).astype(np.float32)
    np.savez(
        tmp_path / "public.npz",
        embeddings=(centers[rng.integers(0, 3, 60)] + rng.normal(size=(60, 5))).astype(np.float32),
    )
    np.savez(tmp_path / "private.npz", embeddings=features, labels=labels)
    paths = {
        "public": str(tmp_path / "public.npz"),
        "private": str(tmp_path / "private.npz"),
        "out": str(tmp_path / "out"),
        "test": "",
    }
    choices = {
        "mechanism": "collision",
        "representation": "spectral",
        "student": "none",
        "queries": 3,
        "neighbors": 1,
        "clients": 0,
        "quorum": 0,
        "deadline": 60.0,
        "trust": "local",
        "honest": 0,
        "delta": 1e-6,
    }
    return paths | choices | {"epsilon": 2.0, "classes": "3"}


def grid_of(settings, nodes):
    app = flower.client_app(simulation.virtual_client, lambda context: None)

    def node(number):
        where = {"partition-id": number, "num-partitions": nodes}
        return lambda message: app(
            message, Context(1, message.metadata.dst_node_id, where, RecordDict(), settings)
        )

    return Grid({100 + number: node(number) for number in range(nodes)})


@pytest.mark.parametrize(
    "nodes", [pytest.param(24, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.long)]
)
def test_virtual_clients_of_a_seed_are_the_simulation(settings, nodes):
    card = flower.serve(grid_of(settings | {"seed": 7}, nodes), settings | {"seed": 7})
    assert (card["clients"], card["messages"]) == (nodes, 24)
    assert card["guarantee"]["sampler"] == "simulation"
    out = Path(settings["out"])
    round = Round.of((out / "question.bin").read_bytes())
    private = np.load(settings["private"])
    cells = rknn.vote_cells(
        private["embeddings"], private["labels"], queries_of(round), 3, round.config
    )
    totals = np.asarray(client_totals(round.mechanism, jax.random.key(7), cells))
    expected = np.asarray(round.mechanism.estimate(jax.random.key(0), totals.astype(np.int64), 24))
    np.testing.assert_allclose(np.load(out / "queries.npz")["votes"], expected, rtol=1e-12)


def queries_of(round):
    from rknn_jax.types import Queries

    return Queries.alone(round.queries, np.arange(len(round.queries)))


def test_virtual_clients_release_nothing(settings):
    """Each new `out` had a budget of its own, and clients dealt out anew answered again."""
    settings |= {"seed": -1}
    with pytest.raises(ValueError, match="use rknn label"):
        flower.serve(grid_of(settings, 2), settings)
    assert not Path(settings["out"]).exists()
    where = {"partition-id": 0, "num-partitions": 2}
    context = Context(1, 2, where, RecordDict(), settings)
    with pytest.raises(RefusedError, match="without one"):
        simulation.virtual_client(context).answer(a_round().data)


@pytest.mark.long
def test_virtual_clients_hide_among_each_other_when_shuffled(settings):
    shuffled = settings | {"seed": 7, "trust": "shuffle", "honest": 24, "delta": 0.01}
    card = flower.serve(grid_of(shuffled, 24), shuffled)
    assert (card["clients"], card["guarantee"]["trust"]) == (24, "shuffle")
    assert card["guarantee"]["sampler"] == "simulation"


def test_sums_are_refused_with_the_command_that_takes_them(settings):
    with pytest.raises(ValueError, match="got trust=central; take sums with rknn serve --trust"):
        flower.serve(grid_of(settings, 3), settings | {"seed": 7, "trust": "central"})
    assert not Path(settings["out"]).exists()


@contextlib.contextmanager
def flower_processes(folder):
    """A function that starts one of Flower's commands until the end, and the SuperLink's port."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    (folder / "config.toml").write_text(
        '[superlink]\ndefault = "here"\n[superlink.here]\naddress = '
        f'"127.0.0.1:{port}"\ninsecure = true\n'
    )
    commands = Path(sys.executable).parent
    environment = os.environ | ENVIRONMENT | {"FLWR_HOME": str(folder)}
    environment["PATH"] = f"{commands}:{os.environ['PATH']}"
    begun = []

    def start(name, *arguments):
        command = [commands / name, "--insecure", "--host", "127.0.0.1", *arguments]
        begun.append(subprocess.Popen(command, env=environment, start_new_session=True))

    def run(*arguments, **config):
        settings = " ".join(
            f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
            for name, value in config.items()
        )
        command = [commands / "flwr", "run", APP, "here", "--stream", *arguments]
        subprocess.run(
            [*command, "--run-config", settings], env=environment, check=True, timeout=300
        )

    try:
        yield start, run, port
    finally:
        for process in begun:
            os.killpg(process.pid, signal.SIGTERM)  # a SuperNode ends its own processes
        time.sleep(2)
        for process in begun:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_the_simulation_engine_runs_the_app(settings, tmp_path):
    pytest.importorskip("ray")
    with flower_processes(tmp_path) as (start, run, port):
        start("flower-superlink", "--simulation", "--port", str(port))
        time.sleep(10)
        paths = {name: settings[name] for name in ("public", "private", "out")}
        engine = ("--federation-config", "num-supernodes=8")
        run(*engine, **paths, epsilon=2.0, classes="3", queries=3, seed=7)
    card = json.loads((Path(settings["out"]) / "privacy.json").read_text())
    assert (card["clients"], card["messages"]) == (8, 24)


@pytest.mark.slow
def test_stock_supernodes_answer_from_their_own_files_and_ledgers(settings, tmp_path):
    private = np.load(settings["private"])
    parties = [tmp_path / f"party{i}.npz" for i in range(2)]
    for i, path in enumerate(parties):
        np.savez(path, **{name: values[i * 12 : (i + 1) * 12] for name, values in private.items()})
    with flower_processes(tmp_path) as (start, run, port):
        start("flower-superlink", "--port", str(port))
        time.sleep(10)
        for path in parties:
            with socket.socket() as listening:
                listening.bind(("127.0.0.1", 0))
                own = listening.getsockname()[1]
            config = f'private="{path}" budget=60.0 allow-large-epsilon=true'
            link = ("--superlink", f"127.0.0.1:{port}", "--port", str(own))
            start("flower-supernode", *link, "--node-config", config)
        time.sleep(10)
        run(
            public=settings["public"],
            out=settings["out"],
            epsilon=50.0,
            classes="3",
            queries=3,
            clients=2,
        )
    card = json.loads((Path(settings["out"]) / "privacy.json").read_text())
    assert (card["clients"], card["messages"]) == (2, 24)
    for path in parties:
        ledger = Ledger.open(path.with_name(f"{path.name}.ledger.jsonl"))
        assert (ledger.budget.epsilon, ledger.spent.epsilon) == (60, 50)
    labels = np.load(Path(settings["out"]) / "labels.npz")["label"]
    centers = np.stack(
        [private["embeddings"][private["labels"] == label].mean(axis=0) for label in range(3)]
    )
    public = np.load(settings["public"])["embeddings"]
    nearest = ((public[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
    assert np.mean(labels == nearest) > 0.9
