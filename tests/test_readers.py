"""Every reader of a user's file: damage and odd labels end in a sentence, and labels mean the same to all commands."""

import io
import json
import random
from pathlib import Path

import numpy as np
import pytest

from rknn_jax import cli_federation, interchange, tables
from rknn_jax.privacy.guarantee import Guarantee

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


def test_a_damaged_file_is_a_value_error_for_every_command(private, tmp_path):
    """300 damaged files, and every 25th length."""
    whole = private.read_bytes()
    cuts = [whole[:length] for length in range(0, len(whole), 25)]
    path = tmp_path / "damaged.npz"
    for number, data in enumerate([*cuts, *(damaged(whole, seed) for seed in range(300))]):
        path.write_bytes(data)
        for read in (cli_federation.read_inputs, cli_federation.read_labels):
            words = refusal(read, path, "--private")
            assert not words or "--private" in words, f"file {number}"


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (2**32 + 3, tables.FOREIGN),
        (np.uint64(2**63), tables.FOREIGN),
        (-1, -1),
        (-(2**40), -1),
        (2, 2),
        (np.nan, -1),
        (2.5, tables.FOREIGN),
    ],
)
def test_federation_and_label_read_a_label_alike(tmp_path, label, expected):
    labels = np.array([0, 1, label])
    path = npz(tmp_path / "R.npz", embeddings=np.zeros((3, 2), np.float32), labels=labels)
    for read in (lambda: cli_federation.read_labels(path, "--private"), lambda: tables.read_labels(path, None)):
        assert read().tolist() == [0, 1, expected]


def test_one_record_that_cannot_be_used_keeps_no_client_away(tmp_path):
    rows = np.float32([[0, 1], [np.nan, 1], [2, 3]])
    path = npz(tmp_path / "R.npz", embeddings=rows, labels=np.array([0, 1, 2.5]))
    found = cli_federation.read_inputs(path, "--private", private=True)
    np.testing.assert_array_equal(found, np.where([[False], [True], [False]], np.float32(np.nan), rows))
    with pytest.raises(ValueError, match="row 1"):
        cli_federation.read_inputs(path, "--public")
    public = npz(tmp_path / "P.npz", embeddings=np.zeros((4, 2), np.float32))
    test = npz(tmp_path / "T.npz", embeddings=np.zeros((3, 2), np.float32), labels=np.array([0, 1, 2.5]))
    with pytest.raises(ValueError, match="Expected class numbers as 'labels' in --test"):
        cli_federation.public(public, test)


def test_text_labels_are_refused_where_classes_are_numbers(tmp_path):
    path = npz(tmp_path / "R.npz", embeddings=np.zeros((2, 2), np.float32), labels=np.array(["a", "b"]))
    with pytest.raises(ValueError, match="got text; number the classes"):
        cli_federation.read_labels(path, "--private")


def test_a_damaged_release_is_a_value_error_for_export(tmp_path):
    """Bytes of labels.npz, and odd but valid JSON in privacy.json."""
    folder = tmp_path / "run"
    folder.mkdir()
    arrays = {"label": LABELS, "query": LABELS, "confidence": LABELS / 3, "probability": np.eye(3)[LABELS]}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    guarantee = Guarantee(1.0, 0.0, "replace-one", "central", ())
    (folder / "privacy.json").write_text(json.dumps({"guarantee": guarantee.asdict()}))
    for seed in range(200):
        (folder / "labels.npz").write_bytes(damaged(buffer.getvalue(), seed))
        words = refusal(interchange.read, folder)
        assert not words or "damaged or something else" in words, f"seed {seed}"
    (folder / "labels.npz").write_bytes(buffer.getvalue())
    for text in ("1", "null", "[]", "{}", '{"guarantee": 3}', "[" * 100_000, ""):
        (folder / "privacy.json").write_text(text)
        with pytest.raises(ValueError, match="damaged or something else|Expected"):
            interchange.read(folder)


def test_many_classes_cost_no_square_of_them(monkeypatch):
    """A square matrix of 100,000 classes would take 75 GiB, after the budget was charged."""
    from rknn_jax import voting
    from rknn_jax.mechanisms.permute_and_flip import PermuteAndFlip

    monkeypatch.setattr(voting, "GRID", 4)
    counts = np.zeros((1, 100_000), np.float32)
    counts[0, 7] = 9
    assert voting.posterior(counts, np.zeros_like(counts))[0].argmax() == 7
    mechanism = PermuteAndFlip(100.0, 1, 100_000)
    assert mechanism.release(counts.astype(np.int64)).shape == counts.shape


def test_no_reader_loads_pickles():
    """Neither by name nor by default."""
    for path in Path(tables.__file__).parent.rglob("*.py"):
        assert "allow_pickle=True" not in path.read_text(), path
