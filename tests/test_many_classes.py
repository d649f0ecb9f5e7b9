"""A release of very many classes is bounded in its dry run, and refused without enough memory."""

import time

import numpy as np
import pytest

from rknn_jax import ReverseKNNLabeler
from rknn_jax._internal import memory
from rknn_jax.answers import process
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release import label, planning
from rknn_jax.release.settings import Settings
from tests.options import named_settings
from tests.test_cli import arguments, contents
from tests.test_inputs import LABELS, PRIVATE, PUBLIC


def save(folder):
    np.savez(folder / "P.npz", embeddings=PUBLIC)
    np.savez(folder / "R.npz", embeddings=PRIVATE, labels=LABELS)


@pytest.mark.long
@pytest.mark.parametrize("free", [10**9, 10**10])
def test_what_does_not_fit_in_memory_is_refused_by_the_dry_run_too(
    rknn, tmp_path, monkeypatch, free
):
    save(tmp_path)
    monkeypatch.setattr(memory, "available", lambda: free)
    before = contents(tmp_path)
    for more in (["--dry-run"], []):
        done = rknn(*arguments(classes=300_000, queries=60), *more)
        told = " ".join(done.err.split())
        assert done.status == 2
        assert f"got {free / 1e9:.2g} GB; nothing was spent" in told
        assert "for a sum of 60 by 300,000 and 60 public rows of 300,000 classes" in told
        assert contents(tmp_path) == before


def test_a_release_wants_as_much_memory_as_it_takes_and_no_more(tmp_path, monkeypatch):
    save(tmp_path)
    given = {"private": str(tmp_path / "R.npz"), "ledger": tmp_path / "l", "out": tmp_path / "o"}
    plan = planning.prepare(
        named_settings(Settings, str(tmp_path / "P.npz"), epsilon=1.0, classes="3", **given)
    )
    needed = label.memory(plan)
    monkeypatch.setattr(memory, "available", lambda: needed)
    label.check_memory(plan)
    label._reserve_memory(plan)
    monkeypatch.setattr(memory, "available", lambda: needed - 1)
    for check in (label.check_memory, label._reserve_memory):
        with pytest.raises(ValueError, match="nothing was spent"):
            check(plan)


def test_an_estimator_looks_for_memory_before_it_pays(tmp_path, monkeypatch):
    """Its labels were lost in a MemoryError after the charge."""
    ledger = tmp_path / "ledger.jsonl"
    labeler = ReverseKNNLabeler(ledger=ledger, budget=1.0, classes=[0, 1, 2]).fit(PUBLIC)
    monkeypatch.setattr(memory, "available", lambda: 10**6)
    with pytest.raises(ValueError, match="got 0.001 GB; nothing was spent"):
        labeler.label(PRIVATE, LABELS)
    assert not ledger.exists() or not Ledger.open(ledger).num_spends
    free = iter([10**12, 10**6])
    monkeypatch.setattr(memory, "available", lambda: next(free))
    labeler = ReverseKNNLabeler(ledger=ledger, budget=1.0, classes=[0, 1, 2], rounds=2).fit(PUBLIC)
    labeler.label(PRIVATE, LABELS)  # it looks once, before the first round
    assert Ledger.open(ledger).num_spends == 2


def test_many_classes_are_not_simulated(rknn, tmp_path, monkeypatch):
    save(tmp_path)
    monkeypatch.setattr(memory, "available", lambda: 10**12)
    start = time.process_time()
    done = rknn(*arguments(classes=300_000, queries=60), "--dry-run", "--json")
    assert done.status == 0, done.err
    assert time.process_time() - start < 60
    assert done.json["expected"] is None
    assert "not simulated, because a sum of 60 by 300,000" in " ".join(done.err.split())


def test_the_system_tells_its_memory(tmp_path, monkeypatch):
    found = memory.available()
    assert found is None or 2**20 < found < 2**60
    most, taken = tmp_path / "memory.max", tmp_path / "memory.current"
    monkeypatch.setattr(memory, "_CGROUPS", ((most, taken),))
    taken.write_text("1000\n")
    most.write_text("max\n")
    unlimited = memory.available()
    most.write_text("5000\n")
    assert memory.available() == 4000
    (tmp_path / "memory.stat").write_text("anon 7\ninactive_file 500\n")
    assert memory.available() == 4500
    assert unlimited is None or unlimited > 4500


def test_counts_redrawn_in_parts_are_those_redrawn_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    counts = rng.poisson(20, (3, 40)).astype(float)
    seen = process.standardized(counts, np.full((3, 40), 2.0), np.ones(3), np.ones(40))
    between = 0.1 * np.eye(3)
    whole = process.redrawn(seen, between, 5, np.random.default_rng(1))
    monkeypatch.setattr(process, "DRAWN_AT_ONCE", 100)
    parts = process.redrawn(seen, between, 5, np.random.default_rng(1))
    np.testing.assert_allclose(parts, whole, rtol=1e-9)
