"""Records in shards: every format and every cut into blocks gives the same votes."""

import dataclasses
import functools
import gzip
import json
import os
import re
import sys
import threading
import warnings
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import duckdb
import fsspec
import numpy as np
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rknn_jax import formats
from rknn_jax.cli import classes
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.joining import open_client
from rknn_jax.formats import Block, Columns, _csv_records
from rknn_jax.formats._data_files import find, unchanged
from rknn_jax.labelers._votes import VoteTally
from rknn_jax.privacy.fingerprints import Digest, combined, fingerprint
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.records.classes import Classes
from rknn_jax.release import counting, inputs, label, planning, tables
from rknn_jax.release.counting import Count, Counter
from rknn_jax.release.settings import Settings
from rknn_jax.release.shards import ArrowShard, FileShard, Records, regular
from rknn_jax.settings import Spending
from tests.options import named_settings

ROWS, WIDTH, NUM_CLASSES = 157, 4, 3
RANDOM = np.random.default_rng(0)
EMBEDDINGS = RANDOM.normal(size=(ROWS, WIDTH)).astype(np.float32)
LABELS = RANDOM.integers(-1, NUM_CLASSES, ROWS)
QUERIES = RANDOM.normal(size=(6, WIDTH)).astype(np.float32)
COUNTER = Counter(VoteTally(QUERIES, NUM_CLASSES, num_neighbors=2), Classes(NUM_CLASSES))


def reference_votes(embeddings=EMBEDDINGS, labels=LABELS, counter=COUNTER):
    """Votes in float64, one record at a time."""
    tally = counter.tally
    votes = np.zeros(tally.shape, np.int64)
    for row, said in zip(embeddings.astype(np.float64), labels, strict=True):
        if said < 0:
            continue
        distances = ((tally.queries.astype(np.float64) - row) ** 2).sum(axis=1)
        votes[np.argsort(distances)[: tally.num_neighbors], said] += 1
    return votes


def table(embeddings, labels):
    return pa.table({"embeddings": embeddings.tolist(), "labels": labels})


def write(path, embeddings=EMBEDDINGS, labels=LABELS):
    """Write records in the format of the path's suffix."""
    if path.suffix == ".npz":
        np.savez(path, embeddings=embeddings, labels=labels)
    elif path.suffix == ".parquet":
        pq.write_table(table(embeddings, labels), path, row_group_size=13)
    elif path.suffix == ".csv":
        columns = {f"e{i}": embeddings[:, i].astype(np.float64) for i in range(WIDTH)}
        pa.csv.write_csv(pa.table(columns | {"labels": labels}), path)
    elif path.suffix == ".jsonl":
        rows = zip(embeddings.tolist(), labels.tolist(), strict=True)
        lines = (json.dumps({"embeddings": row, "labels": one}) for row, one in rows)
        path.write_text("\n".join(lines))
    else:
        pa.feather.write_feather(table(embeddings, labels), path, chunksize=13)
    return path


def shard(path, **changes):
    columns = Columns(width=WIDTH)._replace(**changes)
    return FileShard(str(path), "--private", columns)


def counted(*shards, counter=COUNTER):
    return counting.count_all(Records.of(shards), counter)


def settings(folder, **changes):
    given = {"public": "P.npz", "private": "R.npz", "epsilon": 1.0, "classes": "3", "queries": 4}
    given |= {"out": folder / "new", "ledger": folder / "ledger.jsonl"} | changes
    for name in ("public", "private"):
        named = given[name]
        given[name] = str(folder / named) if "://" not in named else named
    return named_settings(Settings, **given)


def spent(folder):
    ledger = folder / "ledger.jsonl"
    return float(Ledger.open(ledger).spent.epsilon) if ledger.exists() else 0.0


@pytest.fixture
def public(tmp_path):
    np.savez(tmp_path / "P.npz", embeddings=QUERIES)
    return tmp_path


# One pass over every format


@pytest.mark.parametrize("suffix", ["npz", "parquet", "feather", "csv"])
def test_every_format_has_the_votes_of_the_records_and_their_fingerprint(
    tmp_path, suffix, monkeypatch
):
    monkeypatch.setitem(counting.BLOCK, "cpu", 32)
    votes = counted(shard(write(tmp_path / f"a.{suffix}")))
    np.testing.assert_array_equal(votes.counts, reference_votes())
    assert votes.counts.dtype == np.int64
    assert (votes.rows, votes.voters, votes.ignored) == (ROWS, int((LABELS >= 0).sum()), 0)
    assert votes.dataset == fingerprint(EMBEDDINGS)


@pytest.fixture
def website(tmp_path):
    """Serve the folder over HTTP, and return its URL."""
    handler = functools.partial(QuietHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    """Handler that logs nothing, and tells no length of a file in a folder `open`."""

    def send_header(self, keyword, value):
        """Send a header."""
        if keyword != "Content-Length" or "/open/" not in self.path:
            super().send_header(keyword, value)

    def log_message(self, format, *args):
        """Say nothing."""


def test_a_website_that_serves_no_parts_is_read_through_a_cache(tmp_path, website):
    many = 80_000
    write(tmp_path / "a.csv", np.tile(EMBEDDINGS, (many // ROWS, 1)), np.tile(LABELS, many // ROWS))
    url = f"{website}/a.csv"
    assert (tmp_path / "a.csv").stat().st_size > 5 * 2**20  # more than is fetched at once
    given = FileShard(url, "--private", Columns(width=WIDTH))
    with pytest.raises(ValueError, match=f"through a cache, as simplecache::{url}"):
        given.num_rows()
    assert FileShard(f"simplecache::{url}", "--private", Columns(width=WIDTH)).num_rows()


def test_a_file_of_no_known_length_is_read_through_a_cache(tmp_path, website):
    """One that was cut off has as many records as arrived, and no error."""
    (tmp_path / "open").mkdir()
    for name in ("a.csv", "a.jsonl"):
        write(tmp_path / "open" / name)
        given = FileShard(f"{website}/open/{name}", "--private", Columns(width=WIDTH))
        with pytest.raises(ValueError, match="tells the length .* as simplecache::http"):
            given.num_rows()


def test_files_are_read_from_a_website_as_from_a_disk(tmp_path, website):
    """Files of object stores read whole lines alone, and text was once called damaged."""
    write(tmp_path / "a.npz")
    urls = [f"simplecache::{website}/a.npz"]
    for suffix in ("csv", "jsonl"):
        path = write(tmp_path / f"a.{suffix}")
        packed = path.with_name(f"{path.name}.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        urls += [f"{website}/{path.name}", f"{website}/{packed.name}"]
    for url in urls:
        votes = counted(FileShard(url, "--private", Columns(width=WIDTH)))
        np.testing.assert_array_equal(votes.counts, reference_votes(), err_msg=url)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4", np.int8])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_any_real_dtype_and_order_are_read_in_blocks(tmp_path, dtype, order):
    values = np.asarray((4 * EMBEDDINGS).astype(dtype), order=order)
    np.save(tmp_path / "e.npy", values)
    np.save(tmp_path / "l.npy", LABELS)
    given = FileShard(
        str(tmp_path / "e.npy"), "--private", Columns(width=WIDTH), str(tmp_path / "l.npy")
    )
    found = list(given.blocks(50))
    assert [len(block.labels) for block in found] == [50, 50, 50, 7]
    np.testing.assert_array_equal(np.concatenate([block.embeddings for block in found]), values)
    np.testing.assert_array_equal(np.concatenate([block.labels for block in found]), LABELS)


@given(cuts=st.lists(st.integers(0, 12), min_size=1, max_size=8), size=st.integers(1, 15))
def test_blocks_are_regular_however_a_file_was_written(cuts, size):
    blocks = [Block(np.full((cut, 2), i), np.full(cut, i)) for i, cut in enumerate(cuts)]
    found = list(regular(iter(blocks), size))
    assert [len(block.labels) for block in found[:-1]] == [size] * max(len(found) - 1, 0)
    for part in range(2):
        whole = np.concatenate([block[part] for block in blocks])
        again = [block[part] for block in found]
        np.testing.assert_array_equal(np.concatenate(again) if again else whole[:0], whole)


def test_shards_add_up_in_any_order_and_their_fingerprint_has_no_order(tmp_path):
    parts = [slice(0, 60), slice(60, 61), slice(61, ROWS)]
    shards = [
        shard(write(tmp_path / f"{i}.{suffix}", EMBEDDINGS[part], LABELS[part]))
        for i, (part, suffix) in enumerate(zip(parts, ("npz", "parquet", "feather"), strict=True))
    ]
    votes = counted(*shards)
    np.testing.assert_array_equal(votes.counts, reference_votes())
    again = counted(*shards[::-1])
    assert again.dataset == votes.dataset
    assert counted(*shards[:2]).dataset != votes.dataset


def test_a_fingerprint_in_blocks_is_that_of_the_array():
    digest = Digest()
    digest.begin("f", EMBEDDINGS.shape)
    for start in range(0, ROWS, 10):
        digest.update(EMBEDDINGS[start : start + 10])
    assert digest.text() == fingerprint(EMBEDDINGS) == combined([digest.text()])


def test_arrow_tables_streams_and_data_sets_are_shards(tmp_path):
    pq.write_table(table(EMBEDDINGS, LABELS), tmp_path / "a.parquet", row_group_size=13)
    columns = Columns(width=WIDTH)

    for offered in (
        table(EMBEDDINGS, LABELS),
        pa.dataset.dataset(tmp_path / "a.parquet"),
        polars.from_arrow(table(EMBEDDINGS, LABELS)),
        duckdb.sql(f"SELECT * FROM '{tmp_path}/a.parquet'"),
    ):
        votes = counted(ArrowShard("a", offered, columns))
        np.testing.assert_array_equal(votes.counts, reference_votes())
        assert votes.dataset == fingerprint(EMBEDDINGS)


def test_named_columns_are_read(tmp_path):
    columns = {f"e{i}": EMBEDDINGS[:, i] for i in range(WIDTH)}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"age": np.ones(ROWS, np.float32), "y": LABELS} | columns), path)
    votes = counted(shard(path, embedding=tuple(columns), label="y"))
    np.testing.assert_array_equal(votes.counts, reference_votes())


# No single record decides whether there is a release


def test_a_record_that_cannot_be_used_casts_no_vote_in_any_format(tmp_path):
    bad = EMBEDDINGS.copy()
    bad[3] = np.nan
    bad[5, 1] = np.inf
    expected = reference_votes(labels=np.where(np.isin(np.arange(ROWS), [3, 5]), -1, LABELS))
    for suffix in ("npz", "parquet", "feather", "csv"):
        votes = counted(shard(write(tmp_path / f"a.{suffix}", bad)))
        np.testing.assert_array_equal(votes.counts, expected)
        assert votes.ignored == int((LABELS[[3, 5]] >= 0).sum())


BROKEN = {
    "no number": b"1,2,three,4,0",
    "too few fields": b"1,2,3",
    "too many fields": b"1,2,3,4,5,6,0",
    "no Unicode": b"1,2,3,\xff\xfe,1",
    "overflow": b"1,2,3,1e400,1",
    "another label": b"1,2,3,4,wolf",
    "an open quote": b'"1,2,3,4,0',
    "a quote at the end": b'1,2,3,4,"0',
    "a carriage return": b"1,2\r,3,4,0",
    "nothing": b"",
    "a long field": b'1,2,3,"' + b"9" * (5 << 20) + b'",1',
    "a separator": b"1,2,3\x1f4,0",
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("separate", [False, True], ids=["labels inside", "labels apart"])
def test_no_line_of_a_csv_changes_another_or_raises_an_error(tmp_path, line, separate):
    path = write(tmp_path / "a.csv")
    lines = path.read_bytes().splitlines()
    lines[4] = line
    path.write_bytes(b"\n".join(lines) + b"\n")
    given = shard(path)
    if separate:
        np.save(tmp_path / "l.npy", LABELS)
        given = dataclasses.replace(given, labels_name=str(tmp_path / "l.npy"))
    silent = np.arange(ROWS) == 3
    votes = counted(given)
    without = reference_votes(labels=np.where(silent, -1, LABELS))
    moved = votes.counts - without
    assert moved.min() >= 0
    assert moved.sum() <= 2, "the record's own votes, if what is left of it can be read"
    assert votes.rows == ROWS


def test_a_csv_larger_than_what_is_read_at_once_keeps_every_line(tmp_path, monkeypatch):
    monkeypatch.setattr(_csv_records, "READ_AT_ONCE", 50)
    votes = counted(shard(write(tmp_path / "a.csv")))
    np.testing.assert_array_equal(votes.counts, reference_votes())
    assert votes.dataset == fingerprint(EMBEDDINGS)


def test_a_quoted_field_is_its_text(tmp_path):
    (tmp_path / "a.csv").write_bytes(
        b'\xef\xbb\xbf"x","y",labels\r\n"1.5","2","a, or ""b"""\r\n3,4,c\r\n'
    )
    path = FileShard(str(tmp_path / "a.csv"), "--private", Columns())
    (block,) = path.blocks(10)
    np.testing.assert_array_equal(block.embeddings, [[1.5, 2], [3, 4]])
    assert block.labels.tolist() == ['a, or "b"', "c"]


def test_a_label_file_of_one_column_keeps_its_empty_lines(tmp_path):
    text = ["" if label < 0 else str(label) for label in LABELS]
    (tmp_path / "l.csv").write_text("\n".join(["labels", *text]) + "\n")
    np.save(tmp_path / "e.npy", EMBEDDINGS)
    given = dataclasses.replace(shard(tmp_path / "e.npy"), labels_name=str(tmp_path / "l.csv"))
    np.testing.assert_array_equal(counted(given).counts, reference_votes())


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"", "names of the columns"),
        (b"x;y;labels\n1;2;0\n", "commas"),
        (b"x,x,labels\n1,2,0\n", "'x'"),
        (b"x,labels\n1,0\n", "4 columns beside the label 'labels'.* name the features with"),
        (b"x,y,z,u,wolf\n1,2,3,4,0\n", "got 5, \\['x'.*; name the label's column with"),
    ],
)
def test_a_csv_without_clear_names_is_refused(tmp_path, head, words):
    (tmp_path / "a.csv").write_bytes(head)
    with pytest.raises(ValueError, match=words):
        counted(shard(tmp_path / "a.csv"))


def test_labels_that_are_no_class_are_told_to_the_owner(tmp_path):
    path = write(tmp_path / "a.csv", labels=np.full(ROWS, "wolf"))
    votes = counted(shard(path))
    assert (votes.voters, votes.ignored) == (0, ROWS)
    numbers = write(tmp_path / "b.csv")
    names = ("ant", "bee", "wolf")
    counter = Counter(VoteTally(QUERIES, 3, num_neighbors=2), Classes(3, names))
    same = counted(shard(numbers), counter=counter)
    np.testing.assert_array_equal(same.counts, reference_votes())


def test_columns_are_taken_by_name_and_not_by_place(public):
    names = [f"e{i}" for i in range(WIDTH)]
    mixed = [names[i] for i in (2, 0, 3, 1)]
    for file, order, rows in (("P", names, QUERIES), ("R", mixed, EMBEDDINGS)):
        columns = {name: rows[:, names.index(name)].astype(np.float64) for name in order}
        labels = {"labels": LABELS} if file == "R" else {}
        pa.csv.write_csv(pa.table(labels | columns), public / f"{file}.csv")
    plan = planning.prepare(settings(public, public="P.csv", private="R.csv", queries=6))
    features = np.asarray(plan.question.queries.features)
    counter = dataclasses.replace(COUNTER, tally=VoteTally(features, NUM_CLASSES))
    np.testing.assert_array_equal(label.count(plan).counts, reference_votes(counter=counter))
    columns = {name: EMBEDDINGS[:, 0].astype(np.float64) for name in ("e0", "e1", "e2", "f")}
    pa.csv.write_csv(pa.table({"labels": LABELS} | columns), public / "R.csv")
    with pytest.raises(ValueError, match=r"others in .*R\.csv: \['e3', 'f'\]"):
        planning.prepare(settings(public, public="P.csv", private="R.csv"))


def test_an_id_among_public_features_is_refused(public):
    rows = RANDOM.normal(size=(40, 2))
    write(public / "R.npz", EMBEDDINGS[:, :3])
    table_ = pa.table({"id": np.arange(40), "x": rows[:, 0], "y": rows[:, 1]})
    pa.csv.write_csv(table_, public / "P.csv")
    with pytest.raises(ValueError, match=r"\['id'\] with another whole number"):
        planning.prepare(settings(public, public="P.csv", private="R.npz"))


def test_unclear_columns_of_parquet_are_refused(tmp_path):
    columns = {"embedding": EMBEDDINGS.tolist(), "score": EMBEDDINGS[:, 0], "labels": LABELS}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(
        ValueError,
        match=r"\['embedding'\] of .* too; leave them out with drop, or name the features",
    ):
        counted(shard(tmp_path / "a.parquet"))


def test_a_dry_run_takes_no_label_for_a_feature(public):
    columns = {"x": EMBEDDINGS[:, 0], "y": EMBEDDINGS[:, 1], "cls": LABELS.astype(np.float32)}
    pq.write_table(pa.table(columns), public / "R.parquet")
    np.savez(public / "P.npz", embeddings=QUERIES[:, :2])
    given = settings(public, private="R.parquet", label="cls", dry_run=True)
    assert planning.prepare(given).data.public.shape[1] == 2


def test_a_stream_that_can_be_read_once_is_refused():
    reader = table(EMBEDDINGS, LABELS).to_reader()
    with pytest.raises(ValueError, match="more than once"):
        Records.of([ArrowShard("a", reader, Columns())])


@pytest.mark.parametrize("others", ["xyz", "yz"])
def test_labels_of_other_names_are_not_paired_by_place(public, others):
    for folder, names in (("R", "abc"[-len(others) :]), ("L", others)):
        (public / folder).mkdir()
        for name in names:
            np.save(public / f"{folder}/{name}.npy", EMBEDDINGS if folder == "R" else LABELS)
    given = settings(public, private="R", private_labels=str(public / "L"))
    with pytest.raises(ValueError, match="same names"):
        planning.prepare(given)


def test_csv_labels_are_text_if_the_classes_have_names(tmp_path):
    names = np.array(["ant", "bee", "wolf"])
    labels = np.where(LABELS < 0, "", names[LABELS])
    path = write(tmp_path / "a.csv", labels=labels)
    counter = Counter(VoteTally(QUERIES, 3, num_neighbors=2), Classes(3, tuple(names)))
    votes = counted(shard(path), counter=counter)
    np.testing.assert_array_equal(votes.counts, reference_votes())


# A shard counts once


def counts_of(*names, rows=5):
    votes = np.zeros((6, NUM_CLASSES), np.int64)
    votes[0, 0] = 2 * rows
    return [Count(name, rows, rows, rows, votes, f"sha256:{name}") for name in names]


@pytest.mark.parametrize("told", [("a",), ("a", "a"), ("a", "b", "b"), ("a", "b", "c")])
def test_a_shard_that_is_missing_or_counted_twice_is_refused(told):
    with pytest.raises(ValueError, match="every one of 2 shards once"):
        counting.total(counts_of(*told), ["a", "b"], COUNTER)


@pytest.mark.parametrize("change", [1, -1])
def test_votes_that_are_not_k_of_each_voter_are_refused(change):
    counts = counts_of("a", "b")
    counts[1].totals[1, 1] += change
    with pytest.raises(ValueError, match="sum over 5 records in a"):
        counting.total(counts, ["a", "b"], COUNTER)


def test_a_shard_that_is_passed_twice_is_refused(tmp_path, monkeypatch):
    """A release takes shards from Python too, under any name."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.npz")
    np.savez("public.npz", embeddings=EMBEDDINGS[:20])
    given = {"classes": "3", "queries": 4, "ledger": tmp_path / "l.jsonl", "out": tmp_path / "out"}
    settings = named_settings(Settings, "public.npz", "all", 1.0, **given)
    columns = Columns(("embeddings",), "labels", width=WIDTH)
    files = [FileShard(name, "--private", columns) for name in ("a.npz", "./a.npz")]
    rows = table(EMBEDDINGS, LABELS)
    tables = [ArrowShard(name, rows, columns) for name in "ab"]
    for twice in (files, tables):
        with pytest.raises(ValueError, match="once"):
            planning.prepare(settings, twice)
    public = FileShard("./public.npz", "--private", columns)
    with pytest.raises(ValueError, match="got the private file"):
        planning.prepare(settings, [public])


def test_results_do_not_lie_in_a_private_folder_that_a_url_names(tmp_path):
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder/a.npz")
    np.savez(tmp_path / "public.npz", embeddings=EMBEDDINGS[:20])
    given = {"classes": "3", "queries": 4, "ledger": tmp_path / "l.jsonl"}
    settings = named_settings(
        Settings,
        str(tmp_path / "public.npz"),
        f"file://{tmp_path}/folder",
        1.0,
        **given | {"out": tmp_path / "folder/out"},
    )
    with pytest.raises(ValueError, match="outside of the private files"):
        planning.prepare(settings)


def test_a_file_that_is_named_twice_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    one = write(tmp_path / "folder/a.npz")
    for other, make in {
        "link.npz": lambda path: path.symlink_to(one),
        "hard.npz": lambda path: path.hardlink_to(one),
        "a.npz.gz": lambda path: path.write_bytes(gzip.compress(one.read_bytes())),
    }.items():
        path = tmp_path / "folder" / other
        make(path)
        with pytest.raises(ValueError, match="twice"):
            find([str(tmp_path / "folder")], "--private")
        path.unlink()
    for names in (
        [one, one],
        [one, tmp_path],
        [one, f"file://{one}"],
        [f"{tmp_path}/./folder", one],
    ):
        with pytest.raises(ValueError, match="twice"):
            find([str(name) for name in names], "--private")
    for cache in ("simplecache", "filecache"):
        with pytest.raises(ValueError, match="twice"):
            find([str(one), f"{cache}::file://{one}"], "--private")
    fsspec.filesystem("memory").pipe("/twice/x.npz", one.read_bytes())
    for name in ("memory:///twice/x.npz", "memory://twice"):
        with pytest.raises(ValueError, match="twice"):
            find(["memory://twice/x.npz", name], "--private")


def test_hidden_files_and_folders_are_no_shards(tmp_path):
    one = write(tmp_path / "a.npz")
    for hidden in (".ipynb_checkpoints/a-checkpoint.npz", "_temporary/0.npz", ".a.npz", "_b.npz"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).write_bytes(one.read_bytes() + b" ")
    for name in (tmp_path, tmp_path / "*", tmp_path / "**"):
        assert find([str(name)], "--private").files == [str(one)]
    named = find([f"{tmp_path}/.*"], "--private").files
    assert named == [str(tmp_path / ".a.npz")]


def test_results_may_not_lie_among_the_private_files(public):
    (public / "R").mkdir()
    write(public / "R/0.npz")
    with pytest.raises(ValueError, match="outside of the private files"):
        planning.prepare(settings(public, private="R", out=public / "R/results"))
    (public / "elsewhere").mkdir()
    write(public / "elsewhere/1.npz")
    (public / "R/link").symlink_to("../elsewhere")
    for private, out in (
        ("R", "elsewhere/results"),
        ("elsewhere/**/*.npz", "elsewhere/results"),
        ("R/link/**/*.npz", "elsewhere/results"),
        ("elsewhere/*/*.npz", "R/link/results"),
        ("elsewhere/**", "elsewhere/a/b"),
        ("R/*/*.npz", "elsewhere"),
        ("R/*/*/*.npz", "elsewhere/results"),
        ("R/**/*.npz", "elsewhere/results"),
    ):
        with pytest.raises(ValueError, match=f"of the private files .*{re.escape(private)}"):
            inputs.refuse_inside(public / out, settings(public, private=private))
    (public / "elsewhere/results").mkdir()
    for private in ("R/*/*/*.npz", "R/link/*/labels*"):
        with pytest.raises(ValueError, match=f"of the private files .*{re.escape(private)}"):
            inputs.refuse_inside(public / "elsewhere/results", settings(public, private=private))
    for private in ("R/*/*/*.csv", "elsewhere/*.npz", "R/0.npz", "elsewhere/[1]*"):
        inputs.refuse_inside(public / "elsewhere/results", settings(public, private=private))


def test_a_shard_that_changed_since_it_was_opened_is_refused(tmp_path):
    records = Records.of([shard(write(tmp_path / "a.npz"))])
    write(tmp_path / "a.npz", EMBEDDINGS[:-1], LABELS[:-1])
    with pytest.raises(ValueError, match="unchanged"):
        counting.count_all(records, COUNTER)


def test_a_file_of_the_same_size_and_time_that_was_written_meanwhile_is_refused(tmp_path):
    path = write(tmp_path / "a.npz")
    before = path.stat()

    def overwrite(content):
        while path.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of files has ticks
            path.write_bytes(content)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    with (
        pytest.raises(ValueError, match="to stay as it is while it is read"),
        unchanged([str(path)], "--private"),
    ):
        overwrite(path.read_bytes()[::-1])
    after = path.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    with unchanged([str(path)], "--private"):
        path.read_bytes()


@pytest.mark.parametrize("last", [False, True])
def test_files_that_are_written_while_they_are_counted_are_refused(public, monkeypatch, last):
    """A record that moved to a place that was not read yet counted twice."""
    (public / "R").mkdir()
    paths = [write(public / f"R/{number}.npz") for number in range(2)]
    np.savez(paths[1], embeddings=EMBEDDINGS[::-1], labels=LABELS)
    read = FileShard.blocks

    def written(shard, size):
        if shard.name == str(paths[last]):
            paths[1].write_bytes(paths[1].read_bytes())
        return read(shard, size)

    plan = planning.prepare(settings(public, private="R"))
    with monkeypatch.context() as patch:
        patch.setattr(FileShard, "blocks", written)
        with pytest.raises(ValueError, match="to stay as it is while it is read"):
            label.release(plan)
    assert not spent(public)
    label.release(plan)
    assert spent(public)


def test_a_file_on_a_website_that_is_written_meanwhile_is_refused(tmp_path, website):
    path = write(tmp_path / "a.csv")
    names = [f"{website}/a.csv"]
    with unchanged(names, "--private"):
        path.read_bytes()
    with pytest.raises(ValueError, match="to stay as it is"), unchanged(names, "--private"):
        path.write_bytes(path.read_bytes() + b"\n")


# Where shards are found


@pytest.mark.parametrize("names", [["folder"], ["folder/*.npz"], ["folder/0.npz", "folder/1.npz"]])
def test_a_folder_a_pattern_and_a_list_name_the_same_files(tmp_path, names):
    (tmp_path / "folder").mkdir()
    for number in range(2):
        write(tmp_path / f"folder/{number}.npz")
    (tmp_path / "folder/notes.txt").write_text("not a shard")
    found = find([str(tmp_path / name) for name in names], "--private")
    assert found.files == [str(tmp_path / f"folder/{number}.npz") for number in range(2)]
    assert found.skipped == ([str(tmp_path / "folder/notes.txt")] if names == ["folder"] else [])


@pytest.mark.long
def test_a_release_of_shards_on_another_file_system_is_that_of_one_file(public):
    system = fsspec.filesystem("memory")
    write(public / "R.npz")
    for number, part in enumerate((slice(0, 100), slice(100, ROWS))):
        path = write(public / f"{number}.parquet", EMBEDDINGS[part], LABELS[part])
        system.pipe(f"/hospital/{number}.parquet", path.read_bytes())
    plans = [
        planning.prepare(settings(public, private=name, out=public / f"out{i}", epsilon=0.5))
        for i, name in enumerate(("R.npz", "memory://hospital"))
    ]
    votes = [label.count(plan) for plan in plans]
    np.testing.assert_array_equal(votes[0].counts, votes[1].counts)
    done = label.release(plans[1], votes[1])
    assert done.card["num_records"] == ROWS
    assert spent(public) == 0.5
    with pytest.raises(ValueError, match="ledger of another data set"):
        label.count(plans[0])


def test_several_files_need_a_named_ledger(public):
    content = write(public / "R.npz").read_bytes()
    fsspec.filesystem("memory").pipe("/clinic/x.npz", content)
    with pytest.raises(ValueError, match="Expected ledger"):
        planning.prepare(settings(public, private="memory://clinic/x.npz", ledger=None))


# Bad shards are named, and nothing is spent


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), "damaged"),
        (lambda path: write(path, EMBEDDINGS[:, :2]), "one width"),
        (lambda path: np.savez(path, embeddings=EMBEDDINGS.astype(str), labels=LABELS), "real"),
        (lambda path: np.savez(path, embeddings=EMBEDDINGS), "labels"),
        (lambda path: np.savez(path, embeddings=EMBEDDINGS, labels=LABELS[1:]), "one label"),
        (lambda path: path.unlink(), "No such file"),
    ],
    ids=["truncated", "width", "type", "no labels", "fewer labels", "gone"],
)
def test_one_bad_shard_among_many_is_named_and_nothing_is_spent(public, damage, words):
    (public / "R").mkdir()
    for number in range(9):
        write(public / f"R/{number}.npz")
    names = [str(public / f"R/{number}.npz") for number in range(9)]
    damage(public / "R/7.npz")
    given = settings(public, private="R")
    with pytest.raises(ValueError, match=rf"R/7\.npz.*{words}|{words}.*R/7\.npz"):  # noqa: RUF043
        label.release(planning.prepare(given, [shard(name) for name in names]))
    assert spent(public) == 0
    assert not (public / "new").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gs://bucket/x.parquet", r"package that is not installed: .*[Ii]nstall"),
        ("nothing://bucket/x.parquet", "Protocol not known"),
        ("nowhere/", "No such file"),
        ("", "name a file or a folder"),
    ],
)
def test_a_name_without_files_says_why(name, words):
    with pytest.raises(ValueError, match=words):
        find([name], "--private")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("gone.npz")])
def test_what_is_no_file_in_a_folder_is_named_and_not_waited_for(tmp_path, make):
    write(tmp_path / "a.npz")
    make(tmp_path / "b.npz")
    with pytest.raises(ValueError, match=r"b\.npz, a pipe, .*remove it"):
        find([str(tmp_path)], "--private")


@pytest.mark.parametrize("options", [{}, {"mechanism": "gaussian", "delta": 1e-6}])
def test_nothing_is_paid_where_no_noise_can_be_drawn(public, monkeypatch, options):
    write(public / "R.npz")
    plan = planning.prepare(settings(public, **options), [shard(public / "R.npz")])
    monkeypatch.delattr("opendp.measurements", raising=False)
    monkeypatch.setitem(sys.modules, "opendp.measurements", None)  # as a library that fails to load
    with pytest.raises(ImportError):
        label.release(plan)
    assert spent(public) == 0


def test_a_private_shard_is_no_public_data(public):
    write(public / "R.npz")
    with pytest.raises(ValueError, match="got the private file"):
        planning.prepare(settings(public, public="R.npz"))


def test_every_format_says_which_suffixes_it_reads():
    assert formats.suffixes() == {
        ".arrow": "feather",
        ".arrows": "feather",
        ".csv": "csv",
        ".feather": "feather",
        ".ipc": "feather",
        ".jsonl": "jsonl",
        ".npy": "npy",
        ".npz": "npz",
        ".parquet": "parquet",
        ".pq": "parquet",
    }


def test_whole_files_are_read_by_the_same_readers(tmp_path):
    for suffix in ("npz", "parquet", "feather", "csv"):
        path = write(tmp_path / f"a.{suffix}")
        np.testing.assert_array_equal(tables.read_embeddings(path, "--public"), EMBEDDINGS)


# Shards of equal content


def test_two_shards_of_equal_content_both_count_and_the_owner_is_told(public, capsys):
    """Equal records in two files are two records. To refuse them would tell of one record, since a
    neighboring file differs.
    """
    (public / "parts").mkdir()
    one, two = (write(public / "parts" / name) for name in ("a.npz", "b.npz"))
    alone, both = counted(shard(one)), counted(shard(one), shard(two))
    assert (both.rows, both.voters) == (2 * alone.rows, 2 * alone.voters)
    np.testing.assert_array_equal(both.counts, 2 * alone.counts)
    assert both.dataset != alone.dataset
    assert both.shards == (alone.dataset,) * 2
    assert alone.shards == ()
    with pytest.warns(UserWarning, match="hold the same records"):
        label.count(planning.prepare(settings(public, private="parts")))
    spending = Spending(budget=1.0, ledger=public / "ledger")
    with pytest.warns(UserWarning, match="hold the same records"):
        open_client(Join(public / "parts", spending=spending, rounds=public / "rounds"))
    classes.run(named_settings(classes.SelectClasses, str(public / "parts"), 0.1, 1e-5))
    assert "hold the same records" in " ".join(capsys.readouterr().err.split())
    write(two, EMBEDDINGS[::-1], LABELS[::-1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        label.count(planning.prepare(settings(public, private="parts")))
