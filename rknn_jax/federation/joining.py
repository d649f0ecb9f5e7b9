"""Client of a federation, from the settings of its owner."""

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.federation.agreement import Agreement
from rknn_jax.federation.client import Client
from rknn_jax.federation.inputs import read_inputs
from rknn_jax.federation.join_settings import Join
from rknn_jax.formats import Columns
from rknn_jax.formats._data_files import find, unchanged
from rknn_jax.privacy import ledger_index
from rknn_jax.privacy.fingerprints import fingerprint, warn_of_copies
from rknn_jax.privacy.ledger import DataSet, Ledger, LedgerMismatchError
from rknn_jax.release import accounts, adoption, known_classes, tables, widths
from rknn_jax.settings import NamedColumns


class Records(NamedTuple):
    """Private records, not checked against a question.

    Attributes:
      inputs: Images or embeddings.
      labels: Labels as stored, one a record or several, for `labels.encode`.
      features: Names of the features, in the order of `inputs`, or none.
      data: Their fingerprints, of the same files at the same time.
      classes: Names that the first file gives the class numbers among its labels, or none.
    """

    inputs: np.ndarray
    labels: np.ndarray
    features: tuple[str, ...]
    data: DataSet
    classes: tuple[str, ...] = ()


def open_client(settings: Join) -> Client:
    """Read the private records, and open their ledger or make their first one.

    Args:
      settings: Settings of the client's owner.

    Raises:
      ValueError: If the file or its ledger cannot be used, or there is no budget for a new ledger.
    """
    return opened(settings, agreed(settings), read_records(settings))


def read_records(settings: Join) -> Records:
    """Read the private records.

    Raises:
      ValueError: If the file cannot be used.
    """
    argument = option("private")
    with unchanged([str(settings.private)], argument):
        return _read_records(settings, argument)


def _read_records(settings: Join, argument: str) -> Records:
    columns = _columns(settings)
    inputs = read_inputs(settings.private, argument, columns, private=True)
    if inputs.ndim == 2:
        _check_width(settings, columns, inputs.shape[1])
    labels = tables.read_labels(settings.private)
    if len(inputs) != len(labels):
        raise ValueError(
            f"Expected one label a record in {option('private')} {settings.private}, got "
            f"{len(labels)} labels for {len(inputs)} records."
        )
    names = () if inputs.ndim > 2 else tables.feature_names(settings.private, argument, columns)
    files = find([str(settings.private)], argument).files
    declared = known_classes.declared(files, Columns().label)
    return Records(inputs, labels, names, _data_set(settings, inputs), declared)


def _check_width(settings: Join, columns: Columns, most: int) -> None:
    """Refuse lists without a length by their type, unless the owner says which one counts.

    The length of most records would decide whether this client can answer. One record can tip it.

    Args:
      settings: Settings of the client's owner.
      columns: Columns that are read.
      most: Length of most records, for the owner alone.

    Raises:
      ValueError: If nobody says which length counts.
    """
    shards = tables.file_shards(str(settings.private), option("private"), columns)
    if columns.width is None and not widths.declared_width(shards):
        raise ValueError(
            f"Expected {option('dimensions')}, as lists in {option('private')} {settings.private} "
            f"may have any length by their type, got none; most have {most}. Name the number, or "
            "save lists of one fixed size."
        )


def _columns(settings: Join) -> Columns:
    """Return the columns of the private records that are read as features."""
    return Columns(reads_label=False, width=settings.dimensions, drop=settings.drop)


def agreed(settings: Join) -> Agreement:
    """Return the agreement of the client's owner.

    Raises:
      ValueError: If a limit is out of range.
    """
    return Agreement(
        settings.trust,
        settings.honest,
        settings.dishonest,
        epsilon=settings.most_epsilon,
        delta=settings.most_delta,
        large_epsilon=settings.allow_large_epsilon,
        most_cells=settings.most_cells,
        most_bytes=settings.most_bytes,
        most_work=settings.most_work,
        networks=settings.networks,
    )


def opened(settings: Join, agreement: Agreement, records: Records) -> Client:
    """Open the ledger of private records, or make their first one.

    Raises:
      ValueError: If the ledger cannot be used, or there is no budget for a new one.
    """
    check_budget(settings)
    inputs, labels, features, data, declared = records
    path = ledger_path(settings)
    files = find([str(settings.private)], option("private")).files
    joined = fingerprint(inputs)
    ledger_index.check(path, data.prints, joined)
    noted = ledger_index.held(
        path,
        data.prints,
        [str(settings.private)],
        files,
        patience=settings.spending.patience,
        formerly=joined,
    )
    with noted:
        ledger = _ledger(settings, path, data, joined, is_images=inputs.ndim > 2)
    warn_of_copies(data.shards)
    return Client(
        inputs,
        labels,
        ledger,
        folder=answers_path(settings),
        agreement=agreement,
        features=features,
        classes=declared,
    )


def check_budget(settings: Join) -> None:
    """Check that there is a ledger, or a budget for a new one, and a folder for answers.

    Raises:
      ValueError: If there is neither, or no place for them.
    """
    path = ledger_path(settings)
    answers_path(settings)
    if settings.spending.budget is None and not os.path.lexists(path):
        raise ValueError(
            f"Expected {option('budget')} for the ledger of these records, which does not exist "
            f"yet at {path}, got none."
        )


def ledger_path(settings: Join) -> Path:
    """Return the path of the ledger."""
    return settings.spending.ledger or settings.beside("ledger.jsonl")


def answers_path(settings: Join) -> Path:
    """Return the path of the folder where each round's answer is kept."""
    return settings.rounds or settings.beside("rounds")


def _data_set(settings: Join, inputs: np.ndarray) -> DataSet:
    """Return the fingerprints of the records as every command takes them, file by file."""
    columns = _columns(settings)
    if len(tables.file_shards(str(settings.private), option("private"), columns)) == 1:
        return DataSet(fingerprint(inputs), len(inputs))
    return adoption.data_set([str(settings.private)], columns)


def _ledger(settings: Join, path: Path, data: DataSet, joined: str, *, is_images: bool) -> Ledger:
    """Open or make the ledger; `joined` is how earlier versions took several files."""
    spending = settings.spending
    if os.path.lexists(path):
        known = [one.fingerprint for one in Ledger.open(path).datasets]
        own = joined if joined in known and data.fingerprint not in known else data.fingerprint
        try:
            ledger = Ledger.open(path, own)
        except LedgerMismatchError as error:
            images = ("images",) if is_images else ()
            columns = NamedColumns(embedding=images, drop=settings.drop)
            encoder = "pixels" if is_images else None
            advice = adoption.advice(path, str(settings.private), columns, representation=encoder)
            raise LedgerMismatchError(advice) from error
        accounts.check_recorded(spending, ledger)
        if settings.unit not in ("record", ledger.unit):
            raise LedgerMismatchError(
                f"Expected {option('unit')} {ledger.unit}, for which {path} was made, got "
                f"{settings.unit}; use one unit throughout. If nothing was charged to it, remove "
                "the file."
            )
        return replace(ledger, patience=spending.patience)
    assert spending.budget is not None
    ledger = Ledger.create(
        path,
        data.fingerprint,
        spending.budget,
        spending.budget_delta or 0.0,
        unit=settings.unit,
        accounting=spending.rule,
        rows=data.rows,
        shards=data.shards,
    )
    return replace(ledger, patience=spending.patience)
