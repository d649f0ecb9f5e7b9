"""Virtual clients of Flower's simulation engine: the same apps, on one machine.

The records of the run's private file are dealt out evenly, in order: a thousand nodes and a
thousand records are one-record clients. Their noise is simulated by the run's `seed`, and the
totals are those of `mechanisms.base.client_totals` under that seed. Nothing is released: clients of
one owner would be one release, which `rknn label` makes and charges. Here, and only here, clients
take paths from the run. `docs/flower.md` has the whole command.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context

from rknn_jax.federation.agreement import Agreement
from rknn_jax.federation.client import Client
from rknn_jax.federation.inputs import read_inputs
from rknn_jax.release.tables import read_labels


def virtual_client(context: Context) -> Client:
    """Return the client of a node of the simulation engine, which answers with simulated noise.

    Args:
      context: Context with the node's number among all, and the settings of the run.

    Raises:
      ValueError: If the private file cannot be used.
    """
    number = int(context.node_config["partition-id"])
    count = int(context.node_config["num-partitions"])
    settings: Mapping[str, Any] = context.run_config
    if not settings["private"]:
        raise ValueError("Expected private, whose records are dealt out to virtual clients.")
    inputs, labels = _records(Path(str(settings["private"])))
    first = number * len(labels) // count
    end = (number + 1) * len(labels) // count
    agreement = Agreement(settings["trust"], int(settings["honest"]) or None, simulated=True)
    return Client(
        inputs[first:end],
        labels[first:end],
        None,
        folder=Path(),
        agreement=agreement,
        first=first,
    )


@functools.cache
def _records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    inputs = read_inputs(path, "private", private=True)
    return inputs, read_labels(path)
