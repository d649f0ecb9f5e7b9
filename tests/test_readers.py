"""Every reader of a user's file: damage and odd labels end in a sentence, and labels mean the
same to all commands.
"""

import io
import json
import random
import warnings
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from rknn_jax.cli import federation
from rknn_jax.data import image_folder
from rknn_jax.federation import inputs, round_folder
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.records.classes import FOREIGN
from rknn_jax.records.labels import plain
from rknn_jax.release import export, label_table, networks, tables
from tests.fuzz.targets import round_folder as fuzzed
from train import buy

LABELS = np.arange(20) % 3


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.fixture
def private(tmp_path):
    features = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    return npz(tmp_path / "R.npz", embeddings=features, labels=LABELS)


def damaged(data, seed):
    """Return the bytes with some changed, cut or doubled."""
    rng = random.Random(seed)
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    if seed % 3 == 0:
        del changed[rng.randrange(1, len(changed)) :]
    return bytes(changed)


def refusal(read, *arguments):
    """Return what a reader says of a file that it refuses; nothing if it takes the file."""
    try:
        read(*arguments)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.long
def test_a_damaged_file_is_a_value_error_for_every_command(private, tmp_path):
    """300 damaged files, and every 25th length."""
    whole = private.read_bytes()
    cuts = [whole[:length] for length in range(0, len(whole), 25)]
    path = tmp_path / "damaged.npz"
    for number, data in enumerate([*cuts, *(damaged(whole, seed) for seed in range(300))]):
        path.write_bytes(data)
        for words in (
            refusal(inputs.read_inputs, path, "private"),
            refusal(tables.read_labels, path),
        ):
            assert not words or "private " in words, f"file {number}"


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (2**32 + 3, FOREIGN),
        (np.uint64(2**63), FOREIGN),
        (-1, -1),
        (-(2**40), -1),
        (2, 2),
        (np.nan, -1),
        (2.5, FOREIGN),
    ],
)
def test_labels_that_are_no_class_numbers_are_missing_or_foreign(tmp_path, label, expected):
    labels = np.array([0, 1, label])
    path = npz(tmp_path / "R.npz", embeddings=np.zeros((3, 2), np.float32), labels=labels)
    assert plain(tables.read_labels(path), "here").tolist() == [0, 1, expected]


def test_one_record_that_cannot_be_used_keeps_no_client_away(tmp_path):
    rows = np.float32([[0, 1], [np.nan, 1], [2, 3]])
    path = npz(tmp_path / "R.npz", embeddings=rows, labels=np.array([0, 1, 2.5]))
    found = inputs.read_inputs(path, "--private", private=True)
    np.testing.assert_array_equal(
        found, np.where([[False], [True], [False]], np.float32(np.nan), rows)
    )
    with pytest.raises(ValueError, match="row 1"):
        inputs.read_inputs(path, "public")
    public = npz(tmp_path / "P.npz", embeddings=np.zeros((4, 2), np.float32))
    test = npz(
        tmp_path / "T.npz", embeddings=np.zeros((3, 2), np.float32), labels=np.array([0, 1, 2.5])
    )
    with pytest.raises(ValueError, match="Expected class numbers as 'labels' in test"):
        inputs.read_public(public, test)


def test_a_record_of_a_signaling_nan_makes_no_warning(tmp_path, recwarn):
    """Nothing that one record holds is told."""
    rows = np.zeros((3, 2))
    rows.view(np.uint64)[1] = 0x7FF0000000000001
    found = tables.read_records(npz(tmp_path / "R.npz", embeddings=rows), "--private")
    assert np.isnan(found).all(axis=1).tolist() == [False, True, False]
    assert not recwarn.list


def test_classes_of_a_file_that_cannot_be_used_name_it(tmp_path):
    for classes in (["a", ""], ["a", "a"], ["a"], 1, 0, -1):
        path = npz(tmp_path / "R.npz", classes=classes)
        with pytest.raises(ValueError, match=r"'classes' in private .*R\.npz cannot be used"):
            tables.read_classes(path)


def test_a_damaged_release_is_a_value_error_for_export(tmp_path):
    """Bytes of labels.npz, and odd but valid JSON in privacy.json."""
    folder = tmp_path / "run"
    folder.mkdir()
    arrays = {
        "label": LABELS,
        "query": LABELS,
        "confidence": LABELS / 3,
        "probability": np.eye(3)[LABELS],
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    guarantee = Guarantee(1.0, 0.0, "replace-one", "central", ())
    (folder / "privacy.json").write_text(json.dumps({"guarantee": guarantee.asdict()}))
    for seed in range(200):
        (folder / "labels.npz").write_bytes(damaged(buffer.getvalue(), seed))
        words = refusal(label_table.read, folder)
        assert not words or "damaged or something else" in words, f"seed {seed}"
    (folder / "labels.npz").write_bytes(buffer.getvalue())
    odd = json.dumps({"guarantee": guarantee.asdict() | {"more": float("nan")}})
    for text in (odd, "1", "null", "[]", "{}", '{"guarantee": 3}', "[" * 100_000, ""):
        (folder / "privacy.json").write_text(text)
        with pytest.raises(ValueError, match="damaged or something else|Expected"):
            label_table.read(folder)


def test_many_classes_cost_no_square_of_them(monkeypatch):
    """A square matrix of 100,000 classes would take 75 GiB, after the budget was charged."""
    from rknn_jax import postprocessing
    from rknn_jax.mechanisms.permute_and_flip import PermuteAndFlip

    monkeypatch.setattr(postprocessing, "GRID", 4)
    counts = np.zeros((1, 100_000), np.float32)
    counts[0, 7] = 9
    assert postprocessing.posterior(counts, np.zeros_like(counts))[0].argmax() == 7
    mechanism = PermuteAndFlip(100.0, 1, 100_000)
    assert mechanism.release(counts.astype(np.int64)).shape == counts.shape


def test_no_reader_loads_pickles():
    """Neither by name nor by default."""
    for path in Path(tables.__file__).parent.rglob("*.py"):
        assert "allow_pickle=True" not in path.read_text(), path


def zipped(path, **members):
    """Write an .npz file whose members are these bytes."""
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def twice_in_one_archive(path):
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("embeddings", "labels", "labels"):
            data = io.BytesIO()
            np.save(data, np.zeros((9, 2)) if name == "embeddings" else np.arange(9) % 2)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the name that comes twice
                archive.writestr(f"{name}.npy", data.getvalue())


def fewer_persons(path):
    np.savez(path, embeddings=np.zeros((9, 2)), labels=np.arange(9) % 2, who=np.arange(8))


def goes_on(path):
    with path.open("wb") as file:
        np.save(file, np.zeros((9, 2)))
        np.save(file, np.ones((9, 2)))


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("R.npz", twice_in_one_archive, "two arrays of one name"),
        ("R.npz", fewer_persons, "Expected one label a record, got 9 embeddings, 9 labels, 8 who"),
        ("R.npy", goes_on, "goes on after its array"),
        (
            "R.csv",
            lambda path: path.write_text("x,x,labels\n1,2,0\n3,4,1\n"),
            "Expected every name once in the first line, got ['x'] twice",
        ),
    ],
)
def test_a_file_that_says_more_than_is_read_is_refused(tmp_path, rknn, name, write, words):
    """By which of two arrays, columns or lengths it is read, nobody has said."""
    write(tmp_path / name)
    np.save(tmp_path / "P.npy", np.zeros((4, 2)))
    np.save(tmp_path / "y.npy", np.arange(9) % 2)
    labels = ("--private-labels", tmp_path / "y.npy") if name == "R.npy" else ()
    columns = ("--embedding", "x") if name == "R.csv" else ()
    persons = ("--person", "who") if "who" in words else ()
    done = rknn(
        *("label", "--public", tmp_path / "P.npy", "--private", tmp_path / name, *labels),
        *("--epsilon", 1, "--budget", 1, "--classes", 2, "--out", tmp_path / "out", "--json"),
        *(*columns, *persons),
    )
    assert done.status == 2
    assert words in done.json["error"]
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_member_that_is_no_array_is_a_value_error_for_every_command(tmp_path):
    """NumPy returns the bytes of such a member."""
    path = zipped(
        tmp_path / "R.npz", embeddings=b"some bytes", labels=b"more", classes=b"", images=b"x"
    )
    for read in (
        inputs.read_inputs,
        tables.read_embeddings,
        tables.read_records,
    ):
        assert "is no .npy file" in refusal(read, path, "--private")
    assert "is no .npy file" in refusal(tables.read_labels, path)
    assert "is no .npy file" in refusal(tables.read_classes, path)


def test_a_damaged_image_names_its_file(tmp_path):
    """A PNG of which a chunk is damaged is a SyntaxError in Pillow, and a huge one
    DecompressionBombError.
    """
    for part in ("train", "test"):
        (tmp_path / part / "a").mkdir(parents=True)
        Image.fromarray(np.zeros((5, 5, 3), np.uint8)).save(tmp_path / part / "a" / "0.png")
    path = tmp_path / "train" / "a" / "0.png"
    whole = path.read_bytes()
    huge = whole[:16] + (2**20).to_bytes(4, "big") * 2 + whole[24:]
    header = huge[12:29]
    huge = huge[:29] + zlib.crc32(header).to_bytes(4, "big") + huge[33:]
    for data in (huge, whole[:12] + b"IDAT" + whole[16:], whole[:40], b""):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="Cannot read the image .*train/a/0.png"):
            image_folder.read(tmp_path)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"centre": 1},
        {"centre": 1, "scale": 1},
        {"centre": 1, "scale": 1, "Dense_0.kernel": 3},
        {"centre": 1, "scale": 1, "a.b": [1]},
    ],
)
def test_a_damaged_head_names_its_file(tmp_path, arrays):
    (tmp_path / "model").mkdir()
    path = npz(tmp_path / "model" / "head.npz", **arrays)
    with pytest.raises(ValueError, match="head.npz"):
        networks.networks(tmp_path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match="head.npz"):
        networks.networks(tmp_path)


@pytest.mark.parametrize(
    "odd",
    [
        {"query": LABELS / 2},
        {"label": LABELS[:5]},
        {"confidence": LABELS},
        {"probability": LABELS / 3},
    ],
)
def test_rows_of_other_types_or_lengths_are_not_exported(tmp_path, odd):
    arrays = {
        "label": LABELS,
        "query": LABELS,
        "confidence": LABELS / 3,
        "probability": np.eye(3)[LABELS],
    }
    npz(tmp_path / "labels.npz", **arrays | odd)
    guarantee = Guarantee(1.0, 0.0, "replace-one", "central", ())
    (tmp_path / "privacy.json").write_text(json.dumps({"guarantee": guarantee.asdict()}))
    with pytest.raises(ValueError, match="label, query, confidence and probability"):
        export.write(tmp_path, "csv")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_class_whose_name_is_no_unicode_is_not_exported(tmp_path, form):
    npz(
        tmp_path / "labels.npz",
        label=LABELS,
        query=LABELS,
        confidence=LABELS / 3,
        probability=np.eye(3)[LABELS],
    )
    guarantee = Guarantee(1.0, 0.0, "replace-one", "central", ())
    (tmp_path / "privacy.json").write_text(json.dumps({"guarantee": guarantee.asdict()}))
    (tmp_path / "config.json").write_text(json.dumps({"classes": ["a", "b", "\ud800"]}))
    with pytest.raises(ValueError, match="damaged or something else"):
        export.write(tmp_path, form)


@pytest.fixture
def begun(tmp_path):
    """A folder of a round that a server began, with a sum."""
    for name, data in fuzzed.seeds()[0].items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        "{}",
        '{"opened": null}',
        '{"opened": "1"}',
        '{"opened": NaN}',
        '{"opened": 1e300}',
    ],
)
def test_a_damaged_clock_of_a_round_names_its_file(begun, text):
    (begun / "opened.json").write_text(text)
    with pytest.raises(ValueError, match="opened.json"):
        round_folder.closes_at(begun, 60)


@pytest.mark.parametrize("name", ["settings.json", "public.npz", "question.bin"])
@pytest.mark.parametrize("data", [b"", b"null", b"[1]"])
def test_a_damaged_round_of_a_server_names_its_file(begun, name, data):
    (begun / name).write_bytes(data)
    with pytest.raises(ValueError, match=name):
        fuzzed.readers(begun)[2]()


@pytest.mark.parametrize(
    "odd",
    [
        {"index": [0, 1, 2, 9]},
        {"cluster": [0, 1, 2]},
        {"features": np.zeros((4, 5))},
        {"size": [0.5] * 4},
    ],
)
def test_queries_about_other_records_are_refused(begun, odd):
    with np.load(begun / "public.npz") as file:
        arrays = dict(file)
    npz(begun / "public.npz", **arrays | odd)
    with pytest.raises(ValueError, match="public.npz"):
        fuzzed.readers(begun)[2]()


@pytest.mark.parametrize(
    "odd",
    [
        {"totals": [1, 2]},
        {"totals": [0.5] * 12},
        {"num_clients": -1},
        {"num_clients": [3]},
        {"refused": "a"},
    ],
)
def test_a_damaged_sum_names_its_file(begun, odd):
    arrays = {"totals": np.arange(12), "num_clients": 5, "refused": 0}
    npz(begun / round_folder.SUM, **arrays | odd)
    with pytest.raises(ValueError, match=round_folder.SUM):
        fuzzed.readers(begun)[1]()


def test_an_oracle_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "oracle.npy"
    for data in (b"", b"\x93NUMPY\x01\x00\x40\x00" + b"{" * 64, b"PK\x03\x04"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"oracle\.npy"):
            buy._read(path)


def test_keys_that_are_no_certificates_are_named(tmp_path):
    (tmp_path / "keys").write_bytes(b"\xff\xfe\x00")
    settings = SimpleNamespace(
        certificates=("a", "b", "c"), keys=tmp_path / "keys", make_test_certificates=None
    )
    with pytest.raises(ValueError, match="certificates of clients in keys"):
        federation._admitted(settings)
