"""The simulated disk, and slices of the histories and of the failing calls that benchmarks run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from benchmarks import _network_faults, _sum_faults, _world_faults
from benchmarks._disk_model import DiskModel
from benchmarks._network_program import run as run_history
from benchmarks._sums import SumHistory
from rknn_jax.federation import hosting

ROOT = Path(__file__).parents[1]
NEEDS_CC = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def left(folder, calls, watched, seeds=60):
    """Return what a name may hold after the calls and a loss of power: contents, or None."""
    found = set()
    for seed in range(seeds):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "old").write_bytes(b"old!")
        disk = DiskModel(folder)
        calls(folder, disk)
        disk.crash(Random(seed))
        path = folder / watched
        found.add(path.read_bytes() if path.exists() else None)
    return found


def write(disk, path, data):
    path.write_bytes(data)
    disk.look(path)


def rename(disk, path, new):
    os.replace(path, new)
    disk.look(path, new)


def test_what_is_not_synced_may_be_lost_or_torn(tmp_path):
    found = left(tmp_path / "w", lambda w, disk: write(disk, w / "a", b"12345678"), "a", 400)
    assert {None, b"", b"12345678"} < found
    assert any(one and 0 < len(one) < 8 for one in found), "torn"
    assert any(one and b"\0" in one for one in found), "zeros"


def test_a_rename_before_a_sync_may_leave_nothing_in_the_file(tmp_path):
    def calls(world, disk):
        write(disk, world / "part", b"new!")
        rename(disk, world / "part", world / "old")
        disk.sync(world)

    assert b"" in left(tmp_path / "w", calls, "old")
    assert b"old!" not in left(tmp_path / "w", calls, "old")


def test_what_is_written_in_order_is_old_or_new_and_once_synced_new(tmp_path):
    def calls(world, disk, *, to_the_end):
        write(disk, world / "part", b"new!")
        disk.sync(world / "part")
        rename(disk, world / "part", world / "old")
        if to_the_end:
            disk.sync(world)

    found = left(tmp_path / "w", lambda w, disk: calls(w, disk, to_the_end=False), "old")
    assert found == {b"old!", b"new!"}
    assert left(tmp_path / "w", lambda w, disk: calls(w, disk, to_the_end=True), "old") == {b"new!"}


def test_files_are_lost_with_a_folder_whose_name_is_not_synced(tmp_path):
    def calls(world, disk):
        (world / "new").mkdir()
        disk.look(world / "new")
        write(disk, world / "new/a", b"1")
        disk.sync(world / "new/a")
        disk.sync(world / "new")

    assert left(tmp_path / "w", calls, "new/a") == {None, b"1"}


def test_a_name_that_was_removed_and_given_again_means_the_new_file(tmp_path):
    def calls(world, disk):
        (world / "old").unlink()
        disk.look(world / "old")
        write(disk, world / "old", b"again")
        disk.sync(world / "old")
        disk.sync(world)

    assert left(tmp_path / "w", calls, "old") == {b"again"}


def test_planted_faults_fit_the_source():
    for fault in (*_world_faults.FAULTS, *_network_faults.FAULTS, *_sum_faults.FAULTS):
        sound = getattr(fault.place, fault.name)
        with fault.planted():
            assert getattr(fault.place, fault.name) is not sound
        assert getattr(fault.place, fault.name) is sound


def run(module, *words):
    """Run a program of the benchmarks; return its exit status and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr[-3000:]


SEEDS = (0, 163, 207, 315, 361)
"""Seeds that failed once.

The first finds folders whose own names are not synced, by which a paid release was once lost. The
next two end with a torn line of the ledger, which counts as spent. In the fourth, a charge was
killed while it closed the torn line of another, and no charge was possible any more. In the last
one, a ledger's maker was killed before the file's name was synced, others charged it, and a loss of
power took the file.
"""


@NEEDS_CC
@pytest.mark.long
def test_no_history_breaks_a_promise():
    status, told = run("simulate", "--steps", "10000")
    assert status == 0, told


@NEEDS_CC
@pytest.mark.slow
def test_a_seed_is_one_history():
    for seed in SEEDS:
        once, again = (run("simulate", "--seed", str(seed)) for _ in range(2))
        assert once == again
        assert once[0] == 0, once[1]


@NEEDS_CC
@pytest.mark.long
def test_a_planted_fault_is_found():
    words = ("--planted", "--only", "a charge is not synced")
    status, told = run("simulate", *words)
    assert status == 0, told
    assert "a charge is not synced: seed " in told, told  # whichever promise breaks first


NETWORK_SEEDS = (3, 59, 69)
"""In the second one a server was killed at its first file, and could not begin again there. In the
last one it was killed once all was on disk.
"""


@pytest.mark.long
def test_no_round_breaks_a_promise():
    status, told = run("simulate_network", "--steps", "10000")
    assert status == 0, told


@pytest.mark.long
def test_no_secure_sum_breaks_a_promise():
    status, told = run("simulate_sums", "--steps", "10000")
    assert status == 0, told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "seeds"), [("simulate_network", NETWORK_SEEDS), ("simulate_sums", (0, 1))]
)
def test_a_seed_is_one_history_of_a_network(program, seeds):
    for seed in seeds:
        once, again = (run(program, "--seed", str(seed)) for _ in range(2))
        assert once == again
        assert once[0] == 0, once[1]


@pytest.mark.long
@pytest.mark.parametrize("only", ["a duplicate is counted", "a round waits for a lost client"])
def test_a_planted_fault_of_the_network_is_found(only):
    status, told = run("simulate_network", "--planted", "--only", only)
    assert status == 0, told


SHORT_SEED = 3
"""Seed of one sum, which a client leaves between its shares and its vector."""


class ShortHistory(SumHistory):
    """History of a sum with few faulty steps, and short ones of the sum."""

    faulty_steps = 120

    def _changes(self):
        return [*super()._changes(), (hosting, "STEP_SECONDS", 15.0)]


def planted(words):
    """Plant a fault of sums while a context lasts."""
    [fault] = [one for one in _sum_faults.FAULTS if one.words == words]
    return fault.planted()


@pytest.fixture
def short(tmp_path, monkeypatch):
    """Return a function that runs a short history of a seed, and returns it and what it broke."""
    monkeypatch.setenv("RKNN_STATE_DIR", "set by each history")
    return lambda seed: run_history(ShortHistory, tmp_path, seed)


@pytest.mark.long
def test_a_sum_is_that_of_its_clients_in_a_faulty_network(short):
    history, broken = short(SHORT_SEED)
    assert broken is None
    found = history.found()
    assert (found["sums opened"], found["left before vectors"]) == (1, 1)
    assert found["vectors in sums"] == found["vectors paid"] == 4


@pytest.mark.long
def test_a_sum_with_a_fault_breaks_a_promise(short):
    with planted("nothing is charged for a sum"):
        _, broken = short(SHORT_SEED)
    assert "has paid 0 times for its vector" in str(broken)


SUM_FAULTS = ("the masks of a client that left", "a share of the mask key", "has noted the sum")


@pytest.mark.long
@pytest.mark.parametrize("only", SUM_FAULTS)
def test_a_planted_fault_of_secure_sums_is_found(only):
    status, told = run("simulate_sums", "--planted", "--only", only)
    assert status == 0, told


@NEEDS_CC
@pytest.mark.long
@pytest.mark.parametrize(("only", "step"), [("label", 61), ("budget raise", 31), ("export", 31)])
def test_a_call_that_fails_is_told_truly(only, step):
    status, told = run("faults", "--only", only, "--step", str(step))
    assert status == 0, told
