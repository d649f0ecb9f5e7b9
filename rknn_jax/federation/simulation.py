r"""Federation in Flower's simulation engine: the same apps, with virtual clients on one machine.

    flwr run rknn_jax/federation/app local --stream \
      --federation-config num-supernodes=1000 --run-config '...'

`docs/federation.md` has the whole command. The records of `private` are dealt out evenly, in order:
a thousand nodes and a thousand records are one-record clients. With `seed` -1, every virtual client
has its own ledger and sealed randomness under `out`, as a real one has. With another seed the noise
is simulated, and the totals are those of `mechanisms.base.client_totals` under that seed. Paths are
those of this machine. Here, and only here, clients take paths from the run. The engine runs
whatever code it is given, so use `rknn serve` for parties that do not trust each other.
"""

import functools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from rknn_jax._internal.terminal import err, tell
from rknn_jax.federation import flower, publish, round_folder
from rknn_jax.federation.agreement import Agreement
from rknn_jax.federation.client import Client
from rknn_jax.federation.collector import Collector
from rknn_jax.federation.inputs import read_inputs, read_labels, read_public
from rknn_jax.federation.settings import Serve, asked
from rknn_jax.privacy.ledger import Ledger, fingerprint

DEADLINE = 3600.0


def server_app() -> ServerApp:
    """Return the ServerApp of a simulation, which takes its settings from the run."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, context.run_config)

    return app


def client_app() -> ClientApp:
    """Return the ClientApp of a simulation."""
    return flower.client_app(_client)


def serve(grid: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one round with all nodes of the grid, and return the content of `privacy.json`."""

    def told(name: str, text: str) -> None:
        if name != "counted":  # it would print thousands of lines
            tell(err, name, text)

    started = time.perf_counter()
    nodes = len(list(grid.get_node_ids()))
    out = Path(str(settings["out"]))
    wanted = asked(
        Serve(
            public=Path(str(settings["public"])),
            epsilon=float(settings["epsilon"]),
            classes=str(settings["classes"]),
            clients=nodes,
            out=out,
            mechanism=str(settings["mechanism"]),
            queries=int(settings["queries"]) or None,
            neighbors=int(settings["neighbors"]),
            representation=settings["representation"],
            student=str(settings["student"]),
            test=Path(str(settings["test"])) if settings["test"] else None,
            deadline=DEADLINE,
        ),
        simulated=None if int(settings["seed"]) < 0 else int(settings["seed"]),
    )
    public = read_public(
        Path(str(settings["public"])), Path(str(settings["test"])) if settings["test"] else None
    )
    round, queries = round_folder.prepare(out, public, wanted, told)
    collector = Collector(out, round)
    flower.collect(
        grid,
        collector,
        nodes,
        round_folder.closes_at(out, DEADLINE),
        authenticated=False,
        tell=told,
    )
    tell(
        err, "round", f"{len(collector.clients):,} clients in {time.perf_counter() - started:.1f} s"
    )
    return publish.publish(out, public, wanted, queries, collector, told)


def _client(context: Context) -> Client:
    number = int(context.node_config["partition-id"])
    count = int(context.node_config["num-partitions"])
    settings = context.run_config
    inputs, labels = _records(Path(str(settings["private"])))
    first = number * len(labels) // count
    end = (number + 1) * len(labels) // count
    mine = inputs[first:end]
    if int(settings["seed"]) >= 0:
        return Client(mine, labels[first:end], None, Path(), Agreement(simulated=True), first)
    folder = Path(str(settings["out"])) / "clients" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    # The number makes clients with equal records different data sets.
    path = folder / "ledger.jsonl"
    dataset = fingerprint(mine, np.array([number]))
    ledger = (
        Ledger.open(path, dataset)
        if path.exists()
        else Ledger.create(path, dataset, float(settings["epsilon"]))
    )
    return Client(mine, labels[first:end], ledger, folder / "rounds")


@functools.cache
def _records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    inputs = read_inputs(path, "private", private=True)
    return inputs, read_labels(path, "private")
