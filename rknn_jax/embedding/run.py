"""Embeddings of a source as one Parquet file, with the card of their model beside it.

Blocks of rows are parts in a hidden folder beside the result. A run that was stopped goes on after
its last part, and makes the same file as one that was not. The result is on disk whole or not at
all.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rknn_jax._internal import disk
from rknn_jax._internal.option_names import option
from rknn_jax.embedding import Embedded, Model, Rows, Source
from rknn_jax.embedding.cards import card_path
from rknn_jax.formats import EMBEDDINGS, LABELS, _arrow, _hub

ROWS_A_PART = 1024
"""Rows that are embedded between two parts."""

PLAN = "plan.json"
JOINED = "joined"
"""Files in the folder of parts: what is embedded, and the result before it is complete."""

REASONS = b"unusable"
TRUNCATED = b"truncated"
"""Keys of a part's metadata: why records cannot be used, by their names; the number of those of
which the model took the beginning alone.
"""


class Written(NamedTuple):
    """Result of a run.

    Attributes:
      card: Card that lies beside the embeddings.
      unusable: Why records cannot be used, by their names.
      resumed: Number of rows that were there from an earlier run.
      truncated: Number of records of which the model took the beginning alone.
    """

    card: dict[str, Any]
    unusable: dict[str, str]
    resumed: int
    truncated: int


def embed(
    source: Source,
    model: Model,
    out: Path,
    *,
    private: bool,
    advance: Callable[[int], None] = lambda rows: None,
) -> Written:
    """Write the embeddings of a source and their card, or go on where a run was stopped.

    A public record that cannot be used is left out and named. A private one stays as a row of NaN,
    which casts no vote, so that the number of rows does not depend on what a record holds.

    Args:
      source: Records, which must not change until the result is complete.
      model: Model of these records.
      out: Parquet file to write.
      private: Whether the records are private.
      advance: Function that is told the number of rows after each part. Defaults to none.

    Raises:
      ValueError: If the records are public and none can be used, `out` holds something else, or
        what is embedded has changed since the run began.
    """
    known = {name: value for name, value in model.card.items() if name != "path"}
    plan = {"model": known, "private": private, "source": source.state}
    digest = hashlib.sha256(json.dumps(plan).encode()).hexdigest()
    parts = out.with_name(f".{out.name}.parts")
    if out.exists():
        written = _finished(out, digest)
        _clear(parts)
        return written
    disk.make_folder(parts, 0o700 if private else 0o777)
    with disk.locked(
        parts, f"Another process writes {out}; wait for it, or name another {option('out')}."
    ):
        _check_plan(parts, digest, out)
        files, resumed = _make_parts(source, model, parts, private=private, advance=advance)
        unusable, rows, truncated = _join(files, parts / JOINED, private)
        # If that of private records raised an error, the only one would decide on the result.
        if not private and len(unusable) == len(source):
            _clear(parts)
            first = next((f"{name}: {why}" for name, why in unusable.items()), "there is none")
            raise ValueError(
                f"Expected records that can be used in {source.where}, got none ({first}); name "
                "others."
            )
        card = {
            "format": 1,
            "model": model.card,
            "rows": rows,
            "private": private,
            "unusable": {} if private else unusable,
            "truncated": None if private else truncated,
            "digest": digest,
        }
        if source.state != plan["source"]:
            _clear(parts)
            raise ValueError(
                f"Expected {source.where} to stay as it is while it is embedded, and it was "
                "changed; wait until it is written, and try again."
            )
        mode = disk.OWNER if private else disk.PUBLIC
        disk.write_whole(card_path(out), json.dumps(card, indent=2).encode(), mode)
        os.replace(parts / JOINED, out)
        disk.sync_folder(out.parent)
    _clear(parts)
    return Written(card, unusable, resumed, truncated)


def has_labels(out: Path) -> bool:
    """Return whether an embedded file has labels."""
    return LABELS in _arrow.pyarrow().parquet.read_schema(out).names


def all_same(out: Path) -> bool:
    """Return whether an embedded file has several rows, and all have the same features."""
    pa = _arrow.pyarrow()
    first = None
    rows = 0
    for batch in pa.parquet.ParquetFile(out).iter_batches(columns=[EMBEDDINGS]):
        found = _arrow.plain(batch.column(0)).flatten().to_numpy().reshape(batch.num_rows, -1)
        first = found[:1] if first is None else first
        if not (found == first).all():
            return False
        rows += len(found)
    return rows > 1


def _finished(out: Path, digest: str) -> Written:
    """Return the result of a complete run of the same plan.

    Raises:
      ValueError: If the file is the result of another one.
    """
    path = card_path(out)
    card = disk.read_json(path) if path.exists() else {}
    if not isinstance(card, dict) or card.get("digest") != digest:
        raise ValueError(
            f"Expected {option('out')} {out} to be new, or the result of this command, got another "
            "file; name another, or remove it."
        )
    return Written(card, card["unusable"], card["rows"], card.get("truncated") or 0)


def _check_plan(parts: Path, digest: str, out: Path) -> None:
    """Note what is embedded, or compare it with what a stopped run has noted.

    Raises:
      ValueError: If that was something else.
    """
    plan = parts / PLAN
    if not plan.exists():
        disk.write_whole(plan, json.dumps(digest).encode(), disk.OWNER)
    elif disk.read_json(plan) != digest:
        raise ValueError(
            f"Expected the records, model and versions with which {out} was begun, got others; "
            f"restore them, or remove the folder {parts} to begin anew."
        )


def _make_parts(
    source: Source, model: Model, parts: Path, private: bool, advance: Callable[[int], None]
) -> tuple[list[Path], int]:
    """Embed the blocks that have no part yet.

    Returns:
      `(files, resumed)`: parts in order, and the number of rows that were there before.
    """
    pa = _arrow.pyarrow()
    files = []
    resumed = 0
    for number, rows in enumerate(source.blocks(ROWS_A_PART)):
        path = parts / f"{number:08}.parquet"
        if path.exists():
            resumed += len(rows.names)
        else:
            sink = pa.BufferOutputStream()
            table = _table(rows, model, source.name_column, private)
            pa.parquet.write_table(table, sink, use_dictionary=False)
            disk.write_whole(path, sink.getvalue().to_pybytes(), disk.OWNER)
        files.append(path)
        advance(len(rows.names))
    return files, resumed


def _table(rows: Rows, model: Model, name_column: str, private: bool) -> Any:
    """Return a block as an Arrow table, whose metadata name the records that cannot be used."""
    pa = _arrow.pyarrow()
    copied = {name: _arrow.storable(column) for name, column in rows.columns.items()}
    none = Embedded(np.zeros((0, model.width), np.float32), {})
    made = model(rows.records) if len(rows.names) else none
    reasons = {row: rows.broken.get(row, why) for row, why in made.reasons.items()}
    for row in np.flatnonzero(~np.isfinite(made.features).all(axis=1)):
        reasons.setdefault(int(row), "its features are not finite")
    features = made.features.copy()
    features[list(reasons)] = np.nan
    flat = pa.array(features.reshape(-1), pa.float32())
    columns = {
        EMBEDDINGS: pa.FixedSizeListArray.from_arrays(flat, model.width),
        name_column: pa.array(rows.names),
        **copied,
    }
    kept = np.ones(len(features), bool)
    if not private:
        kept[list(reasons)] = False
    named = {f"{name_column} {rows.names[row]}": reasons[row] for row in sorted(reasons)}
    table = pa.table(columns).filter(pa.array(kept))
    told = {REASONS: json.dumps(named).encode(), TRUNCATED: str(made.truncated).encode()}
    return table.replace_schema_metadata(told | _hub.metadata_of(rows.classes))


def _join(files: list[Path], joined: Path, private: bool) -> tuple[dict[str, str], int, int]:
    """Write the parts as one file.

    Returns:
      `(unusable, rows, truncated)`: why records cannot be used, by their names, the number of rows,
      and the number of records of which the model took the beginning alone.
    """
    pa = _arrow.pyarrow()
    unusable: dict[str, str] = {}
    rows = 0
    truncated = 0
    writer = None
    mode = disk.OWNER if private else disk.PUBLIC
    descriptor = os.open(joined, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        for path in files:
            part = pa.parquet.read_table(path)
            unusable |= json.loads(part.schema.metadata[REASONS])
            truncated += int(part.schema.metadata[TRUNCATED])
            declared = part.schema.metadata.get(_hub.KEY)
            plain = part.replace_schema_metadata(declared and {_hub.KEY: declared})
            writer = writer or pa.parquet.ParquetWriter(file, plain.schema, use_dictionary=False)
            writer.write_table(plain)
            rows += plain.num_rows
        if writer is not None:
            writer.close()
        file.flush()
        os.fsync(file.fileno())
    return unusable, rows, truncated


def _clear(parts: Path) -> None:
    """Delete the folder of parts, which holds nothing that another program wrote."""
    if not parts.is_dir():
        return
    for path in parts.iterdir():
        path.unlink()
    parts.rmdir()
