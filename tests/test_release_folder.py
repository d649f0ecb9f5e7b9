"""One folder, one release: other processes are kept out, and what a killed one left behind is cleared."""

import fcntl
import os

import numpy as np
import pytest

from rknn_jax.label import RESULTS


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 90)
    embeddings = (rng.normal(size=(90, 3)) + 20 * labels[:, None]).astype(np.float32)
    np.savez(tmp_path / "P.npz", embeddings=embeddings[:30])
    np.savez(tmp_path / "R.npz", embeddings=embeddings[30:], labels=labels[30:])
    return tmp_path


FLAGS = ("--public", "P.npz", "--private", "R.npz", "--classes", 2, "--queries", 2, "--epsilon", 1, "--out", "new")


def test_a_folder_that_another_process_writes_to_is_refused_before_anything_is_spent(files, rknn):
    (files / "new").mkdir()
    handle = os.open(files / "new", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    refused = rknn("label", *FLAGS)
    os.close(handle)
    assert refused.status == 2
    assert "to which one does; nothing was spent" in " ".join(refused.err.split())
    assert not (files / "R.npz.ledger.jsonl").exists()


def test_what_a_killed_release_left_is_cleared_and_a_users_files_stay(files, rknn):
    (files / "new/.rknn-left").mkdir(parents=True)
    (files / "new/.rknn-left/labels.npz").write_text("half")
    (files / "new/notes.txt").write_text("mine")
    assert rknn("label", *FLAGS).status == 0
    assert sorted(path.name for path in (files / "new").iterdir()) == sorted([*RESULTS, "notes.txt"])
    assert rknn("label", *FLAGS, "--budget", 1).status == 2, "a second release into the folder"
