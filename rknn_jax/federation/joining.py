"""Client of a federation, from the settings of its owner."""

from dataclasses import replace
from pathlib import Path

from rknn_jax.federation.agreement import Agreement
from rknn_jax.federation.client import Client
from rknn_jax.federation.inputs import read_inputs, read_labels
from rknn_jax.federation.settings import Join
from rknn_jax.privacy import ledger_index
from rknn_jax.privacy.ledger import Ledger, fingerprint


def open_client(settings: Join) -> Client:
    """Read the private records, and open their ledger or make their first one.

    Args:
      settings: Settings of the client's owner.

    Raises:
      ValueError: If the file or its ledger cannot be used, or there is no budget for a new ledger.
    """
    argument = "--private"
    inputs = read_inputs(settings.private, argument, private=True, dimensions=settings.dimensions)
    labels = read_labels(settings.private, argument)
    if len(inputs) != len(labels):
        raise ValueError(
            f"Expected one label a record in --private {settings.private}, got {len(labels)} "
            f"labels for {len(inputs)} records."
        )
    agreement = Agreement(
        settings.trust,
        settings.honest,
        settings.dishonest,
        settings.most_epsilon,
        settings.most_delta,
        large_epsilon=settings.allow_large_epsilon,
        most_cells=settings.most_cells,
        most_bytes=settings.most_bytes,
        most_work=settings.most_work,
    )
    path = settings.ledger or settings.beside("ledger.jsonl")
    dataset = fingerprint(inputs)
    with ledger_index.held(path, dataset):
        ledger = _ledger(settings, path, dataset)
    return Client(inputs, labels, ledger, settings.rounds or settings.beside("rounds"), agreement)


def _ledger(settings: Join, path: Path, dataset: str) -> Ledger:
    if path.exists() or path.is_symlink():
        return replace(Ledger.open(path, dataset), patience=settings.patience)
    if settings.budget is None:
        raise ValueError(
            "Expected --budget for the ledger of these records, which does not exist yet at "
            f"{path}, got none."
        )
    ledger = Ledger.create(
        path,
        dataset,
        settings.budget,
        settings.budget_delta,
        unit=settings.unit,
        accounting=settings.accounting,
    )
    return replace(ledger, patience=settings.patience)
