"""Virtual clients: the apps of Flower's simulation engine, without the engine, and once with it."""

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

from rknn_jax.federation import simulation
from rknn_jax.federation.processes import ENVIRONMENT
from rknn_jax.federation.rounds import Round
from rknn_jax.labelers import rknn
from rknn_jax.mechanisms.base import client_totals
from rknn_jax.privacy.ledger import Ledger
from tests.test_federation_flower import Grid

APP = Path(simulation.__file__).parent / "app"


@pytest.fixture
def settings(tmp_path):
    rng = np.random.default_rng(0)
    centres = 6 * rng.normal(size=(3, 5))
    labels = rng.integers(0, 3, 24)
    features = (centres[labels] + rng.normal(size=(24, 5))).astype(np.float32)
    np.savez(
        tmp_path / "public.npz",
        embeddings=(centres[rng.integers(0, 3, 60)] + rng.normal(size=(60, 5))).astype(np.float32),
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
    }
    return paths | choices | {"epsilon": 2.0, "classes": "3"}


def grid_of(settings, nodes):
    app = simulation.client_app()

    def node(number):
        where = {"partition-id": number, "num-partitions": nodes}
        return lambda message: app(
            message, Context(1, message.metadata.dst_node_id, where, RecordDict(), settings)
        )

    return Grid({100 + number: node(number) for number in range(nodes)})


@pytest.mark.slow  # virtual clients with ledgers are the thin slice
@pytest.mark.parametrize("nodes", [pytest.param(24, marks=pytest.mark.slow), 5])
def test_virtual_clients_of_a_seed_are_the_simulation(settings, nodes):
    card = simulation.serve(grid_of(settings | {"seed": 7}, nodes), settings | {"seed": 7})
    assert (card["clients"], card["messages"]) == (nodes, 24)
    assert card["guarantee"]["sampler"] == "simulation"
    out = Path(settings["out"])
    round = Round.of((out / "question.bin").read_bytes())
    private = np.load(settings["private"])
    cells = rknn.connect(
        private["embeddings"], private["labels"], queries_of(round), 3, round.config
    )
    totals = np.asarray(client_totals(round.mechanism, jax.random.key(7), cells))
    expected = np.asarray(round.mechanism.estimate(jax.random.key(0), totals.astype(np.int64), 24))
    np.testing.assert_allclose(np.load(out / "queries.npz")["votes"], expected, rtol=1e-12)


def queries_of(round):
    from rknn_jax.types import Queries

    return Queries.alone(round.queries, np.arange(len(round.queries)))


def test_virtual_clients_without_a_seed_have_ledgers_of_their_own(settings):
    card = simulation.serve(grid_of(settings | {"seed": -1}, 24), settings | {"seed": -1})
    assert card["guarantee"]["sampler"] == "release"
    ledgers = sorted(Path(settings["out"]).glob("clients/*/ledger.jsonl"))
    assert len(ledgers) == 24
    assert {Ledger.open(path).spent.epsilon for path in ledgers} == {2}
    assert "vectors" not in (Path(settings["out"]) / "report.html").read_text()


@pytest.mark.slow
def test_the_simulation_engine_runs_the_app(settings, tmp_path):
    pytest.importorskip("ray")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    (tmp_path / "config.toml").write_text(
        '[superlink]\ndefault = "here"\n[superlink.here]\naddress = '
        f'"127.0.0.1:{port}"\ninsecure = true\n'
    )
    commands = Path(sys.executable).parent
    environment = (
        os.environ
        | ENVIRONMENT
        | {"FLWR_HOME": str(tmp_path), "PATH": f"{commands}:{os.environ['PATH']}"}
    )
    listen = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    superlink = subprocess.Popen(
        [commands / "flower-superlink", *listen], env=environment, start_new_session=True
    )
    try:
        time.sleep(10)
        config = (
            f'public="{settings["public"]}" private="{settings["private"]}" '
            f'out="{settings["out"]}" epsilon=2.0 classes="3" queries=3'
        )
        run = [
            commands / "flwr",
            "run",
            APP,
            "here",
            "--stream",
            "--federation-config",
            "num-supernodes=8",
            "--run-config",
            config,
        ]
        subprocess.run(run, env=environment, check=True, timeout=300)
    finally:
        os.killpg(superlink.pid, signal.SIGKILL)
    card = json.loads((Path(settings["out"]) / "privacy.json").read_text())
    assert (card["clients"], card["messages"]) == (8, 24)
