"""One seed gives one result on any number of devices and processes."""

import dataclasses
import functools
import json
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from rknn_jax import simulate
from rknn_jax.mechanisms import _distributed, base
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace

MECHANISM = Collision(1.0, 20, 10, num_neighbors=2)


def mesh(devices):
    return Mesh(np.array(jax.devices()[:devices]), (_distributed.CLIENTS,))


def timeless(found):
    return dataclasses.replace(found, seconds=0.0, clients_per_second=0.0)


@pytest.mark.long
@pytest.mark.parametrize(
    "mechanism",
    [MECHANISM, DiscreteLaplace(1.0, 20, 10, num_neighbors=2)],
    ids=["local", "central"],
)
@pytest.mark.parametrize(
    "devices", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 8]
)
def test_totals_of_many_devices_are_those_of_one(mechanism, devices):
    cells = np.random.default_rng(0).integers(-1, 200, (1600, 2)).astype(np.int32)
    expected = base.client_totals(mechanism, jax.random.key(0), cells, 5)
    spread = jax.device_put(cells, _distributed.over_clients(mesh(devices)))
    found = _distributed.client_totals(mechanism, jax.random.key(0), spread, 5, mesh=mesh(devices))
    np.testing.assert_array_equal(found, expected)


def test_totals_of_all_processes_are_added_and_each_does_its_share(monkeypatch):
    mine, theirs = np.array([2**40, -3, 0]), np.array([2**40 + 1, 1, -(2**33)])
    np.testing.assert_array_equal(_distributed.sum_over_processes(mine), mine)
    assert _distributed.my_share([5, 6, 7]) == [5, 6, 7]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(
        _distributed.multihost_utils,
        "process_allgather",
        lambda words: np.stack([theirs.view(np.uint32), words]),
    )
    np.testing.assert_array_equal(_distributed.sum_over_processes(mine), mine + theirs)
    assert _distributed.my_share([5, 6, 7]) == [6]


@functools.cache
def alone(level):
    """What this process finds, on 8 devices: a block of 4,000 clients and 3 more."""
    return timeless(simulate.simulate(MECHANISM, 4003, level, seed=3))


@pytest.mark.slow  # `make processes` runs it
def test_a_simulation_is_the_same_on_1_and_8_devices(monkeypatch):
    monkeypatch.setattr(simulate, "CLIENTS_AT_ONCE", 500)  # 8 blocks on one device
    found = timeless(simulate.simulate(MECHANISM, 4003, seed=3, mesh=mesh(1)))
    assert found == alone("message")
    assert found != timeless(simulate.simulate(MECHANISM, 4003, seed=4, mesh=mesh(1)))


@pytest.mark.slow  # a simulation on 1 and 8 devices is the thin slice
@pytest.mark.parametrize("level", ["message", "count"])
def test_two_processes_on_loopback_find_what_one_finds(level):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    arguments = [
        "simulate",
        "--clients",
        "4003",
        "--queries",
        "20",
        "--neighbors",
        "2",
        "--level",
        level,
        "--seed",
        "3",
        "--json",
    ]
    together = [*arguments, "--processes", "2", "--coordinator", f"localhost:{port}"]
    start = [sys.executable, "-m", "rknn_jax.cli.main"]
    running = [
        subprocess.Popen(
            [*start, *together, "--process", str(process)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in (0, 1)
    ]
    try:
        done = [process.communicate(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    for stdout, stderr in done:
        found = json.loads(stdout.splitlines()[-1]) if stdout else pytest.fail(stderr)
        assert {name: found[name] for name in ("clients", "level", "mse", "bias_z")} == {
            name: getattr(alone(level), name) for name in ("clients", "level", "mse", "bias_z")
        }
