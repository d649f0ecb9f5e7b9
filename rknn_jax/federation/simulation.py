"""Virtual clients of Flower's simulation engine: the same apps, on one machine.

The records of the run's private file are dealt out evenly, in order: a thousand nodes and a
thousand records are one-record clients. With `seed` -1, the run is a release of that file, charged
to its ledger; every virtual client has a ledger and sealed randomness of its own under `out`, as a
real one has. With another seed the noise is simulated, and the totals are those of
`mechanisms.base.client_totals` under that seed. Here, and only here, clients take paths from the
run. `docs/flower.md` has the whole command.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context

from rknn_jax import trust
from rknn_jax.federation.agreement import Agreement
from rknn_jax.federation.client import Client
from rknn_jax.federation.inputs import read_inputs
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.joining import open_client
from rknn_jax.federation.rounds import Round
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release.tables import read_labels
from rknn_jax.settings import Spending


def virtual_client(context: Context) -> Client:
    """Return the client of a node of the simulation engine.

    Args:
      context: Context with the node's number among all, and the settings of the run.

    Raises:
      ValueError: If the private file cannot be used.
    """
    number = int(context.node_config["partition-id"])
    count = int(context.node_config["num-partitions"])
    settings: Mapping[str, Any] = context.run_config
    inputs, labels = _records(Path(str(settings["private"])))
    first = number * len(labels) // count
    end = (number + 1) * len(labels) // count
    simulated = int(settings["seed"]) >= 0
    honest = int(settings["honest"]) or None
    agreement = Agreement(settings["trust"], honest, simulated=simulated)
    if simulated:
        return Client(
            inputs[first:end],
            labels[first:end],
            None,
            folder=Path(),
            agreement=agreement,
            first=first,
        )
    folder = Path(str(settings["out"])) / "clients" / str(number)
    delta = float(settings["delta"]) if trust.named(settings["trust"]).is_shuffled else 0.0
    ledger = _ledger(
        folder, inputs[first:end], number, epsilon=float(settings["epsilon"]), delta=delta
    )
    return Client(
        inputs[first:end], labels[first:end], ledger, folder=folder / "rounds", agreement=agreement
    )


def pay(private: Path, round: Round) -> None:
    """Charge a round of virtual clients to the ledger of their file, once.

    No record has two clients, so that all of them cost what one does. A file without a ledger gets
    one, whose budget is this round.

    Args:
      private: Private file of the run.
      round: Round that no client has answered.

    Raises:
      LedgerError: If the budget does not allow the round.
      ValueError: If the file or its ledger cannot be used.
    """
    cost = Agreement(round.config.trust, round.honest or None).cost(round)
    spending = Spending(budget=cost.epsilon, budget_delta=cost.delta)
    ledger = open_client(Join(private, spending=spending)).ledger
    assert ledger is not None
    once = f"round {round.account}: "
    if not ledger.entries_of(once):
        ledger.charge(cost, f"{once}{round.subject}, of virtual clients", once=once)


def _ledger(folder: Path, inputs: np.ndarray, number: int, epsilon: float, delta: float) -> Ledger:
    folder.mkdir(parents=True, exist_ok=True)
    # The number makes clients with equal records different data sets.
    dataset = fingerprint(inputs, np.array([number]))
    path = folder / "ledger.jsonl"
    if path.exists():
        return Ledger.open(path, dataset)
    return Ledger.create(path, dataset, epsilon, delta)


@functools.cache
def _records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    inputs = read_inputs(path, "private", private=True)
    return inputs, read_labels(path)
