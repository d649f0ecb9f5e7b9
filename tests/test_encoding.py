"""Raw records that are encoded where they are read: images, text, and records that fail."""

import dataclasses
import re
import sys
from decimal import localcontext

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from sklearn.datasets import load_digits

from rknn_jax.formats import Columns
from rknn_jax.labelers._votes import VoteTally
from rknn_jax.records.classes import Classes
from rknn_jax.release import counting, encoding, label, planning
from rknn_jax.release.counting import Counter
from rknn_jax.release.encoding import Encoding
from rknn_jax.release.settings import Settings
from rknn_jax.release.shards import ArrayShard, FileShard, Records
from tests.options import named_settings

WORDS = ["red", "green", "blue"]


def letters(texts):
    """Count the letters of each text; an encoder of text."""
    return np.array([[text.count(letter) for letter in "redgnblu"] for text in texts], np.float32)


def halved(values):
    """Flatten images at half their brightness."""
    return np.reshape(values, (len(values), -1)) / 2


def centered(values):
    """Subtract the mean of the batch, as no encoder may."""
    flat = np.reshape(values, (len(values), -1)).astype(np.float32)
    return flat - flat.mean(axis=0)


def scaled(values):
    """Scale images by the brightest of the batch."""
    return np.reshape(values, (len(values), -1)) / np.float32(values.max() + 1)


def last_bit(values):
    """Flatten images, and change the last bit of the last of a batch."""
    made = np.reshape(values, (len(values), -1)).astype(np.float32) + 1
    made[-1] = np.nextafter(made[-1], np.float32(np.inf))
    return made


CALLS = []


def remembering(values):
    """Flatten one image, and add what was there before."""
    CALLS.append(len(values))
    return np.reshape(values, (len(values), -1)).astype(np.float32) + len(CALLS)


def alone(values):
    """Flatten one image."""
    assert len(values) == 1
    return np.reshape(values, (1, -1)).astype(np.float32)


def emptied(values):
    """Flatten images, and leave zeros behind."""
    made = np.reshape(values, (len(values), -1)).astype(np.float32)
    values[:] = 0
    return made


def flattened(values):
    return np.reshape(values, (len(values), -1)).astype(np.float32)


def sections(values):
    """Make a row for each 100 in a record's corner: none of some records, and two of others."""
    return np.repeat(flattened(values), values[:, 0, 0, 0] // 100, axis=0)


def dropped(values):
    """Leave out records that are dark in a corner, without an error."""
    return flattened(values)[values[:, 0, 0, 0] >= 100]


def placed(values):
    """Flatten records, with a bit of their places, and fail if one is bright in its corner."""
    if (values[:, 0, 0, 0] > 200).any():
        raise RuntimeError("a bright corner")
    return flattened(values) + 1e-3 * np.arange(len(values), dtype=np.float32)[:, None]


def placed_alone(values):
    return placed(values)


class Panic(BaseException):
    """An end that is no Exception, as that of packages in Rust."""


def ending(values):
    """Flatten records, and exit at a dark corner, or panic at a bright one."""
    corners = values[:, 0, 0, 0]
    if (corners == 0).any():
        sys.exit(1)
    if (corners == 255).any():
        raise Panic("a bright corner")
    return flattened(values)


def ending_batched(values):
    return ending(values)


def turned(values):
    return flattened(values) * 1j


def ragged(values):
    return flattened(values)[:, : int(values[0, 0, 0, 0]) % 3 + 1]


def tired(values):
    """Flatten records, until there is no memory left."""
    CALLS.append(len(values))
    if len(CALLS) > 4:
        raise MemoryError
    return flattened(values)


def quarrelsome(values):
    """Flatten records, and fail if a bright one is beside a dark one: each alone is fine."""
    corners = values[:, 0, 0, 0]
    if (corners > 200).any() and (corners < 50).any():
        raise RuntimeError("a bright corner beside a dark one")
    return placed(np.clip(values, 0, 150))


for function in (
    centered,
    scaled,
    last_bit,
    emptied,
    dropped,
    placed,
    quarrelsome,
    ending_batched,
):
    function.batched = True


def settings(folder, **changes):
    given = {"public": str(folder / "P.npz"), "private": str(folder / "R"), "epsilon": 1.0}
    given |= {"classes": "10", "queries": 12, "ledger": folder / "ledger.jsonl"}
    given |= {"smoothing": "none"}  # it takes long, and no encoder has a part in it
    return named_settings(Settings, **given | {"out": folder / "out"} | changes)


@pytest.fixture
def images(tmp_path):
    """Digits as uint8 images: 400 public ones, and 600 private ones in three shards."""
    digits = load_digits()
    pictures = np.uint8(digits.images * 15)[..., None]
    np.savez(tmp_path / "P.npz", images=pictures[:400])
    (tmp_path / "R").mkdir()
    for start in range(400, 1000, 200):
        part = slice(start, start + 200)
        np.savez(tmp_path / f"R/{start}.npz", images=pictures[part], labels=digits.target[part])
    return tmp_path


@pytest.mark.long
def test_images_have_the_votes_of_their_features(images):
    plan = planning.prepare(settings(images, representation="pixels", embedding=("images",)))
    votes = label.count(plan)
    assert plan.data.encode is not None
    shards = []
    for shard in plan.data.private.shards:
        (block,) = shard.blocks(1000)
        features = np.asarray(plan.data.encode.encode(block.embeddings))
        shards.append(ArrayShard(shard.name, features, block.labels))
    counter = dataclasses.replace(plan.counter, encode=None)
    np.testing.assert_array_equal(
        votes.counts, counting.count_all(Records.of(shards), counter).counts
    )
    done = label.release(plan, votes)
    assert (done.labels == load_digits().target[:400]).mean() > 0.6
    assert done.card["representation"] == "pixels"


@pytest.mark.long
def test_a_fingerprint_is_of_the_records_and_not_of_their_encoder(images):
    names = ("pixels", "tests.test_encoding:halved")
    plans = [
        planning.prepare(settings(images, representation=name, embedding=("images",)))
        for name in names
    ]
    assert len({label.count(plan).dataset for plan in plans}) == 1
    assert len({planning.request(plan.settings, plan.data) for plan in plans}) == 2


def test_a_fingerprint_is_of_all_blocks_of_records(images, monkeypatch):
    monkeypatch.setattr(counting, "BLOCK", {"cpu": 16})
    given = {"representation": "pixels", "embedding": ("images",)}
    first = label.count(planning.prepare(settings(images, **given))).dataset
    path = max((images / "R").iterdir())
    with np.load(path) as saved:
        held = dict(saved)
    assert len(held["images"]) > 16
    held["images"][-1] ^= 1
    np.savez(path, **held)
    assert label.count(planning.prepare(settings(images, **given))).dataset != first


UNLIKE = {
    "float32 [8, 8, 1]": lambda images: (images / 255).astype(np.float32),
    "int32 [8, 8, 1]": lambda images: images.astype(np.int32),
    "uint16 [8, 8, 1]": lambda images: images.astype(np.uint16) * 257,
    "uint8 [8, 8]": lambda images: images[..., 0],
    "uint8 [64]": lambda images: images.reshape(len(images), -1),
    "uint8 [1, 8, 8]": lambda images: images.transpose(0, 3, 1, 2),
    "uint8 [8, 8, 3]": lambda images: images.repeat(3, axis=-1),
    "uint8 [6, 8, 1]": lambda images: images[:, :6],
}


@pytest.mark.parametrize("representation", ["pixels", "tests.test_encoding:flattened"])
def test_private_records_unlike_the_public_ones_are_refused_before_anything_is_paid(
    images, representation
):
    """Their features would be others, or none: epsilon would buy noise."""
    whole = np.load(images / "P.npz")["images"]
    given = {"representation": representation, "embedding": ("images",), "dry_run": True}
    for told, changed in UNLIKE.items():
        np.savez(images / "R/400.npz", images=changed(whole), labels=np.zeros(400))
        fits = ":" in representation and told in ("uint8 [8, 8]", "uint8 [64]", "uint8 [1, 8, 8]")
        if fits:  # a function of the owner may take several shapes
            planning.prepare(settings(images, **given))
            continue
        words = rf"uint8 \[8, 8, 1\], in .*400\.npz, got {re.escape(told)}; save both sides alike"
        with pytest.raises(ValueError, match=words):
            planning.prepare(settings(images, **given))
    np.savez(images / "R/400.npz", images=np.array(["text"] * 400), labels=np.zeros(400))
    with pytest.raises(ValueError, match="got no numbers"):
        planning.prepare(settings(images, **given))
    assert not (images / "ledger.jsonl").exists()


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_text_is_encoded_by_a_function_of_the_owner(tmp_path, suffix):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 3, 300)
    texts = [" ".join([WORDS[i]] * int(rng.integers(1, 4))) for i in ids]
    whole = pa.table({"text": texts, "labels": [WORDS[i] for i in ids]})
    write = pa.parquet.write_table if suffix == "parquet" else pa.csv.write_csv
    write(whole.slice(0, 100).select(["text"]), tmp_path / f"P.{suffix}")
    write(whole.slice(100), tmp_path / f"R.{suffix}")
    plan = planning.prepare(
        settings(
            tmp_path,
            public=str(tmp_path / f"P.{suffix}"),
            private=str(tmp_path / f"R.{suffix}"),
            classes=",".join(WORDS),
            queries=9,
            epsilon=20.0,
            representation="tests.test_encoding:letters",
        )
    )
    done = label.release(plan)
    assert (done.labels == ids[:100]).mean() > 0.95
    assert encoding.UNPROVED in done.card["not_covered"]


def test_a_record_that_cannot_be_encoded_casts_no_vote_and_no_error_tells_of_it():
    texts = np.array(["red", None, "blue", "green"] * 50, object)
    encode = Encoding(letters, np.array(["red"], object), 8)
    counter = Counter(VoteTally(letters(WORDS), 3), Classes(3), encode)
    shard = ArrayShard("texts", texts, np.arange(200) % 3)
    votes = counting.count_all(Records.of([shard]), counter)
    assert (votes.rows, votes.voters, votes.ignored) == (200, 150, 50)
    usable = texts != None  # noqa: E711 elementwise
    told = np.argmin(
        ((letters(texts[usable])[:, None] - counter.tally.queries) ** 2).sum(-1), axis=1
    )
    expected = np.zeros((3, 3), int)
    np.add.at(expected, (told, (np.arange(200) % 3)[usable]), 1)
    np.testing.assert_array_equal(votes.counts, expected)


def test_an_encoder_that_breaks_down_is_an_error():
    def broken(texts):
        raise MemoryError

    encode = Encoding(broken, np.array(["red"], object), 8)
    counter = Counter(VoteTally(letters(WORDS), 3), Classes(3), encode)
    shard = ArrayShard("texts", np.array(["red", "blue"], object), np.zeros(2, int))
    with pytest.raises(ValueError, match="fails on a public record"):
        counting.count(shard, 2, counter)


def test_an_encoder_is_tried_among_the_smallest_the_largest_and_mirrored_records():
    values = np.arange(12, dtype=np.uint8).reshape(2, 3, 2)
    least, most, mirrored = encoding._extreme(values)
    assert (least == 0).all()
    assert (most == 255).all()
    np.testing.assert_array_equal(mirrored, values[:, [2, 1, 0]])


@pytest.mark.parametrize(
    ("encode", "shape"),
    [
        (lambda values: values[1:], "(2, 4)"),
        (lambda values: values[0], "(4,)"),
        (lambda values: np.full_like(values, np.nan), "(3, 4)"),
    ],
)
def test_features_that_are_not_one_finite_row_a_record_are_refused_with_their_shape(encode, shape):
    words = f"finite features [b, f] of 3 public records from representation f, got shape {shape}"
    with pytest.raises(ValueError, match=re.escape(words)):
        encoding.checked(encode, np.ones((5, 4), np.float32), "f")


@pytest.mark.parametrize("name", ["centered", "scaled", "last_bit", "remembering"])
def test_an_encoder_that_mixes_records_is_refused(images, name):
    given = {"representation": f"tests.test_encoding:{name}", "embedding": ("images",)}
    with pytest.raises(ValueError, match="treat every record by itself"):
        planning.prepare(settings(images, **given))


def test_an_encoder_that_one_large_record_alone_changes_is_refused():
    """Public records are small, and a private one need not be."""

    def encode(values):
        rows = np.asarray(values, np.float32).reshape(len(values), -1)
        return rows / max(1000.0, float(np.abs(rows).max()))

    values = np.random.default_rng(0).uniform(0, 9, (8, 4)).astype(np.float32)
    with pytest.raises(ValueError, match="treat every record by itself"):
        encoding.checked(encode, values, "f")


def test_an_encoder_that_does_not_say_that_it_is_batched_gets_one_record_at_a_time(images):
    given = {"representation": "tests.test_encoding:alone", "embedding": ("images",)}
    plan = planning.prepare(settings(images, **given))
    assert label.count(plan).voters == 600


@pytest.mark.parametrize("name", ["sections", "dropped"])
def test_an_encoder_that_makes_no_row_of_a_record_moves_no_other_record(name):
    records = np.full((10, 2, 2, 1), 100, np.uint8)
    records[:, 1, 1, 0] = np.arange(10)
    encode = Encoding(encoding.Imported(f"tests.test_encoding:{name}"), records[:1], 4)
    expected = encode(records)
    np.testing.assert_array_equal(expected, flattened(records))
    records[2, 0, 0, 0] = 0  # makes no row
    expected[2] = np.nan
    np.testing.assert_array_equal(encode(records), expected)
    records[7, 0, 0, 0] = 200  # makes two rows, so that all together are as many as records
    expected[7] = np.nan if name == "sections" else flattened(records)[7]
    np.testing.assert_array_equal(encode(records), expected)


@pytest.mark.parametrize("odd", [(0,), (5,), (149, 70, 3), range(64), range(64, 140)])
def test_records_on_which_a_batch_fails_leave_all_others_in_their_places(odd):
    """Features that depend on a place would show that batches were formed anew."""
    records = np.full((150, 2, 2, 1), 100, np.uint8)
    records[:, 1, 1, 0] = np.arange(150)
    encode = Encoding(encoding.Imported("tests.test_encoding:placed"), records[:1].copy(), 4)
    expected = encode(records)
    assert not np.array_equal(expected[0, :3], expected[1, :3]), "or this shows nothing"
    expected[list(odd)] = np.nan
    records[list(odd), 0, 0, 0] = 255
    np.testing.assert_array_equal(encode(records), expected)
    records[:, 0, 0, 0] = 255
    np.testing.assert_array_equal(encode(records), np.full_like(expected, np.nan))


@pytest.mark.parametrize("name", ["ending", "ending_batched"])
def test_a_record_at_which_a_function_exits_or_panics_moves_no_other_and_ends_nothing(name):
    records = np.full((10, 2, 2, 1), 100, np.uint8)
    records[:, 1, 1, 0] = np.arange(10)
    records[3, 0, 0, 0], records[8, 0, 0, 0] = 0, 255
    encode = Encoding(encoding.Imported(f"tests.test_encoding:{name}"), records[:1], 4)
    expected = flattened(records)
    expected[[3, 8]] = np.nan
    np.testing.assert_array_equal(encode(records), expected)


def test_a_batch_that_fails_as_a_whole_costs_no_record_its_vote():
    """The function takes each record alone, so one record must not silence the others."""
    records = np.full((150, 2, 2, 1), 100, np.uint8)
    records[:, 1, 1, 0] = np.arange(150)
    records[1, 0, 0, 0] = 255
    encode = Encoding(encoding.Imported("tests.test_encoding:quarrelsome"), records[:1].copy(), 4)
    expected = encode(records)
    assert np.isfinite(expected).all()
    records[70, 0, 0, 0] = records[2, 0, 0, 0] = 0  # in a batch without a bright one, and with one
    found = encode(records)
    others = np.delete(np.arange(150), [2, 70])
    np.testing.assert_array_equal(found[others], expected[others])
    np.testing.assert_array_equal(found[[2, 70], 1:], expected[[2, 70], 1:])


def test_an_encoder_that_breaks_down_in_between_is_an_error():
    CALLS.clear()
    records = np.zeros((10, 2, 2, 1), np.uint8)
    encode = Encoding(encoding.Imported("tests.test_encoding:tired"), records[:1], 4)
    with pytest.raises(ValueError, match="fails on a public record"):
        encode(records)


@pytest.mark.parametrize("name", ["turned", "ragged"])
def test_features_that_no_row_of_numbers_holds_are_refused_with_a_remedy(name):
    public = np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1)
    function = f"tests.test_encoding:{name}"
    with pytest.raises(ValueError, match="fails on public records.*mend it"):
        encoding.learned(function, [public], num_classes=2, num_queries=2, seed=0)


def test_a_public_record_without_features_is_named():
    public = np.full((6, 2, 2, 1), 100, np.uint8)
    public[4, 0, 0, 0] = 255
    given = {"num_classes": 2, "num_queries": 2, "seed": 0}
    with pytest.raises(ValueError, match="got none of record 4, from 0 on"):
        encoding.learned("tests.test_encoding:placed_alone", [public], **given)


@pytest.mark.long
def test_an_encoder_may_change_what_it_gets_and_the_fingerprint_stays(images):
    given = {"representation": "tests.test_encoding:emptied", "embedding": ("images",)}
    other = {"representation": "pixels", "embedding": ("images",)}
    plans = [planning.prepare(settings(images, **one)) for one in (given, other)]
    assert len({label.count(plan).dataset for plan in plans}) == 1


def test_an_encoder_that_fails_on_public_records_is_named(images):
    given = {"representation": "tests.test_encoding:letters", "embedding": ("images",)}
    with pytest.raises(ValueError, match="letters fails on public records"):
        planning.prepare(settings(images, **given))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("simcrl", "one of .*simclr"),
        ("nowhere.at_all:encode", "can be imported"),
        ("tests.test_encoding:absent", "can be imported"),
        ("tests.test_encoding:WORDS", "a function"),
    ],
)
def test_an_unknown_encoder_is_refused(images, name, words):
    with pytest.raises(ValueError, match=words):
        planning.prepare(settings(images, representation=name, embedding=("images",)))


@pytest.mark.parametrize(
    "public", [np.eye(20, dtype=np.float32), np.eye(20, dtype=np.uint8), np.zeros((20, 8, 8, 1))]
)
def test_embeddings_are_no_images(public, tmp_path):
    np.savez(tmp_path / "P.npz", embeddings=public)
    np.savez(tmp_path / "R.npz", embeddings=np.eye(20, dtype=np.float32), labels=np.arange(20) % 10)
    given = settings(tmp_path, private=str(tmp_path / "R.npz"), representation="hog")
    with pytest.raises(ValueError, match=r"images uint8 \[m, h, w, c\]"):
        planning.prepare(given)


def test_blocks_of_large_records_are_small():
    probe = np.zeros((1, 1024, 1024, 3), np.uint8)
    assert Encoding(letters, probe, 8).rows_at_once == encoding.BYTES_AT_ONCE // probe.nbytes


def test_columns_of_lists_and_tensors_are_arrays(tmp_path):
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    lists = pa.FixedSizeListArray.from_arrays(values.ravel(), 12)
    pa.parquet.write_table(pa.table({"tensor": tensors, "list": lists}), tmp_path / "P.parquet")
    for name, expected in (("tensor", values), ("list", values.reshape(2, 12))):
        columns = Columns((name,), reads_label=False, raw=True)
        (block,) = FileShard(str(tmp_path / "P.parquet"), "--public", columns).blocks(5)
        np.testing.assert_array_equal(block.embeddings, expected)


def test_a_missing_record_changes_no_other_and_casts_no_vote(tmp_path):
    """Neither the dtype of a column nor a row beside it."""
    values = np.arange(24, dtype=np.uint8).reshape(2, 12)
    for holes in (
        [None, values[1].tolist()],
        [[None, *values[0, 1:].tolist()], values[1].tolist()],
    ):
        lists = pa.array(holes, pa.list_(pa.uint8(), 12))
        table = pa.table({"image": lists, "labels": ["a", "b"]})
        pa.parquet.write_table(table, tmp_path / "R.parquet")
        columns = Columns(("image",), raw=True)
        (block,) = FileShard(str(tmp_path / "R.parquet"), "--private", columns).blocks(5)
        assert block.embeddings.dtype == np.uint8
        np.testing.assert_array_equal(block.embeddings[1], values[1])
        assert block.labels.tolist() == ["", "b"]


LOUD = """
import decimal
import numpy as np
import scipy.special

np.seterr(all="raise")
scipy.special.seterr(all="raise")
decimal.getcontext().prec = 3

def encode(values):
    np.seterr(all="raise")
    return np.asarray(values, np.float32) * 1e-30
"""


def test_a_module_that_makes_errors_of_underflow_loses_no_paid_release(tmp_path, monkeypatch):
    """The same command failed again and again after the charge."""
    rng = np.random.default_rng(0)
    (tmp_path / "loud.py").write_text(LOUD)
    monkeypatch.syspath_prepend(tmp_path)
    np.savez(tmp_path / "P.npz", embeddings=rng.normal(size=(12, 3)))
    rows, labels = rng.normal(size=(30, 3)), np.arange(30) % 2
    rows[3, 1] = 1e-12
    np.savez(tmp_path / "R.npz", embeddings=rows, labels=labels)
    given = {"private": str(tmp_path / "R.npz"), "representation": "loud:encode"}
    given |= {"embedding": ("embeddings",), "classes": "2", "queries": 3, "epsilon": 40.0}
    with localcontext():
        plan = planning.prepare(settings(tmp_path, **given, budget=40.0))
        assert len(label.release(plan).labels) == 12
    assert np.geterr()["under"] != "raise"
