"""Other data of the same people, for a ledger that is to adopt them.

`rknn label` takes the fingerprint of the private records while it counts votes. Here the same
fingerprint is taken without queries, labels or classes.
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rknn_jax._internal.option_names import option
from rknn_jax.formats import Columns
from rknn_jax.neighbors import usable_rows
from rknn_jax.privacy.fingerprints import Digest, combined
from rknn_jax.privacy.guarantee import Relation
from rknn_jax.privacy.ledger import DataSet
from rknn_jax.records.features import real_rows
from rknn_jax.release import tables
from rknn_jax.release.shards import Records, Shard, with_one_order
from rknn_jax.release.tables import ROWS_AT_ONCE
from rknn_jax.release.widths import with_one_width
from rknn_jax.settings import NamedColumns


def data_set(
    private: Sequence[str],
    columns: Columns,
    public: Sequence[str] | None = None,
    relation: Relation = "replace-one",
) -> DataSet:
    """Return the fingerprint of private records as `rknn label` takes it.

    Args:
      private: Files, folders, patterns or URLs of the private records.
      columns: Columns to read. Labels are not read.
      public: Public embeddings, which give the columns their order and the embeddings their width.
        Defaults to None, for those of the first private file, and for the width that most private
        records have.
      relation: Neighboring relation. Under `add-remove` there may be no row. Defaults to
        `replace-one`.

    Raises:
      ValueError: If the files cannot be used, or hold no row though their number is public.
    """
    records = private_records(private, columns._replace(reads_label=False), public)
    if not len(records) and relation == "replace-one":
        raise ValueError(
            f"Expected records in {option('private')} {', '.join(private)}, got no row; save one "
            "row a record."
        )
    pairs = zip(records.shards, records.rows, strict=True)
    digests = [_digest(shard, rows, raw=columns.raw) for shard, rows in pairs]
    several = zip(digests, records.rows, strict=True) if len(digests) > 1 else ()
    shards = tuple(digest for digest, rows in several if rows)
    return DataSet(combined(digests), len(records), shards)


def private_records(
    private: Sequence[str], columns: Columns, public: Sequence[str] | None = None
) -> Records:
    """Open private records without a release.

    Args:
      private: Files, folders, patterns or URLs of the private records.
      columns: Columns to read.
      public: Public embeddings, as for `data_set`. Defaults to None.

    Raises:
      ValueError: If the files cannot be used.
    """
    order: tuple[str, ...] = ()
    shards = tables.file_shards(private, option("private"), columns)
    shown = columns.of_public()
    others = tables.file_shards(public or (), option("public"), shown)
    tables.refuse_unknown(columns.drop, [*shards, *others])
    if public is not None and not columns.raw:
        features, order = tables.read_named_embeddings(public, option("public"), shown)
        columns = columns._replace(width=features.shape[1])
        shards = [replace(shard, columns=columns) for shard in shards]
    return Records.of(with_one_width(with_one_order(shards, order)))


def _digest(shard: Shard, rows: int, *, raw: bool) -> str:
    """Return the fingerprint of a shard.

    Raises:
      ValueError: If the shard has another number of rows than it was opened with.
    """
    digest = Digest()
    found = 0
    if not rows and not raw:  # as a release begins the fingerprint of no record
        empty = shard.layout().empty.embeddings
        assert empty is not None
        digest.begin("f", (0, *empty.shape[1:]))
    for block in shard.blocks(ROWS_AT_ONCE):
        assert block.embeddings is not None
        values = block.embeddings
        if not raw:
            values = usable_rows(real_rows(values, shard.where))
        if not found:
            digest.begin(values.dtype.kind, (rows, *values.shape[1:]))
        digest.update(values)
        found += len(values)
    if found != rows:
        raise ValueError(
            f"Expected {rows} rows in {shard.where}, as when it was opened, got {found}; keep the "
            "data unchanged meanwhile."
        )
    return digest.text()


def advice(
    ledger: Path,
    private: str | Sequence[str],
    columns: NamedColumns,
    public: str | Sequence[str] | None = None,
    representation: str | None = None,
) -> str:
    """Return the error for a release on records that the ledger does not have.

    Args:
      ledger: File of the budget.
      private: Files, folders, patterns or URLs of the private records.
      columns: Columns of the records.
      public: Public embeddings. Defaults to None.
      representation: Encoder of raw records. Defaults to None, for embeddings.
    """
    words = ["rknn", "budget", "adopt", str(ledger), "--private", *_listed(private)]
    if public is not None:
        words += ["--public", *_listed(public)]
    words += columns.words()
    if representation is not None:
        words += ["--representation", representation]
    return (
        f"Expected the ledger of these people's records, got {ledger}, which is "
        "the ledger of another data set; name the ledger of these people. If this is it, and the "
        "records were embedded anew, added or removed, let it adopt them (Ledger.adopt in Python), "
        "so that they share one budget: "
        f"{shlex.join(words)} --reason TEXT"
    )


def _listed(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
