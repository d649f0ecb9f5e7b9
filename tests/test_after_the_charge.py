"""What is told once a release is paid for: the truth, whatever fails and wherever it is printed."""

import errno
import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

from rknn_jax.cli import label_lines
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import BudgetExceededError, Ledger
from rknn_jax.release import accounts, class_selection
from rknn_jax.release.release_folder import STAGING, ReleaseFolder
from tests.test_release_folder import FLAGS, complete, contents, files, kinds, restore
from tests.test_shell import RKNN

__all__ = ["files"]  # a fixture

CALLS = {
    "open",
    "os.link",
    "os.listdir",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.scandir",
    "os.truncate",
}
"""Calls of the operating system that Python's audit events tell of."""


class Faults:
    """Lets one call after the charge fail, by its number."""

    def __init__(self):
        self.number = None
        self.count = 0
        sys.addaudithook(self.hook)

    def hook(self, event, _):
        if event in CALLS:
            self.call()

    def call(self):
        if self.number is not None:
            self.count += 1
            if self.count == self.number:
                raise OSError(errno.EIO, "Input/output error")

    def begin(self, monkeypatch, number):
        """Let the call of this number after the next charge fail."""
        self.count, self.number = 0, None
        real = {Ledger: Ledger.charge, os: os.fsync}

        def charge(*arguments, **named):
            made = real[Ledger](*arguments, **named)
            self.number = number
            return made

        def fsync(descriptor):
            self.call()
            real[os](descriptor)

        monkeypatch.setattr(Ledger, "charge", charge)
        monkeypatch.setattr(os, "fsync", fsync)


FAULTS = Faults()


def fails_once(files, rknn, monkeypatch, number):
    """Let a call fail, check what is told, and return whether the call was reached."""
    with monkeypatch.context() as patched:
        FAULTS.begin(patched, number)
        done = rknn("label", *FLAGS, "--json")
        FAULTS.number = None
    reached = FAULTS.count >= number
    told = " ".join(done.err.split())
    if (files / "new/privacy.json").exists():
        assert done.status == 0, f"call {number}: {told}"
        assert done.json["guarantee"]["epsilon"] == 1
        left = {path.name for path in (files / "new").iterdir()}
        whole = "config.json" in left and STAGING not in left
        assert whole or "is complete, but" in told, f"call {number}: {told}"
        shutil.rmtree(files / "new" / STAGING, ignore_errors=True)
    else:
        assert done.status in (2, 3), f"call {number}: {told}"
        assert told.count("the same command with --out new finishes the release") == 1, told
        assert "nothing was charged" not in told
        assert rknn("label", *FLAGS).status == 0
    complete(files)
    assert kinds(files).count("spend") == 1
    return reached


@pytest.mark.parametrize("damaged", [False, True])
def test_an_error_after_a_charge_says_that_the_spend_stands(tmp_path, damaged):
    """Lines that a ledger cannot read count as spent."""
    path = tmp_path / "l.jsonl"
    ledger = Ledger.create(path, "sha256:a", 1)

    @accounts.spend_stands(path, "The labels are lost")
    def release():
        ledger.charge(Guarantee(0.5, 0.0, "replace-one", "central", (), sampler="release"), "a")
        if damaged:
            path.write_bytes(path.read_bytes().replace(b'"kind"', b'"kimd"', 1))
        raise MemoryError

    with pytest.raises(MemoryError) as caught:
        release()
    assert "the spend stands" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("by", ["this call", "another process"])
def test_a_refused_charge_has_a_spend_that_stands_if_it_is_of_the_same_call(tmp_path, by):
    path = tmp_path / "l.jsonl"
    ledger = Ledger.create(path, "sha256:a", 1)
    cost = Guarantee(0.6, 0.0, "replace-one", "central", (), sampler="release")

    @accounts.spend_stands(path, "The labels are lost")
    @accounts.spend_stands(path, "The second round is lost")
    def release():
        if by == "this call":
            ledger.charge(cost, "the first round")
        else:
            other = threading.Thread(target=ledger.charge, args=(cost, "of others"))
            other.start()
            other.join()
        ledger.charge(cost, "the next round")

    with pytest.raises(BudgetExceededError) as caught:
        release()
    notes = getattr(caught.value, "__notes__", [])
    assert len(notes) == (2 if by == "this call" else 0)


@pytest.mark.parametrize("step", ["keep", "seal", "publish"])
def test_a_folder_that_goes_away_after_the_charge_is_asked_for(files, rknn, monkeypatch, step):
    """Whoever cleans up took it: the same command alone would pay a second time."""
    real = getattr(ReleaseFolder, step)

    def moved(*arguments):
        os.rename("new", "moved")
        return real(*arguments)

    monkeypatch.setattr(ReleaseFolder, step, moved)
    done = rknn("label", *FLAGS)
    assert done.status in (2, 3)
    assert "The release is paid for, and new/.rknn-release, which keeps it, is gone" in done.err
    monkeypatch.undo()
    monkeypatch.chdir(files)
    os.rename("moved", "new")
    assert rknn("label", *FLAGS).status == 0
    complete(files)


@pytest.mark.parametrize(("first", "step"), [(1, 17), pytest.param(1, 1, marks=pytest.mark.slow)])
def test_every_call_fails_once_after_the_charge(files, rknn, monkeypatch, first, step):
    inputs = contents(files)
    number = first
    while fails_once(files, rknn, monkeypatch, number):
        restore(files, inputs)
        number += step
    assert number > 40


def test_options_that_cannot_be_written_fail_no_release(files, rknn):
    (files / "new/config.json").mkdir(parents=True)
    done = rknn("label", *FLAGS)
    assert done.status == 0
    assert "its options could not be written to config.json" in done.err
    complete(files)


def test_what_cannot_be_told_fails_no_release(files, rknn, monkeypatch):
    def fails(*_):
        raise MemoryError

    monkeypatch.setattr(label_lines, "tell_release", fails)
    done = rknn("label", *FLAGS, "--json")
    assert done.status == done.json["exit_status"] == 0
    assert "not all of it could be told" in done.err
    complete(files)


def test_warnings_that_are_errors_fail_no_release(files, rknn):
    (files / "new/config.json").mkdir(parents=True)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rknn("label", *FLAGS).status == 0
    complete(files)


def in_shell(redirected, *words):
    """Run the program in a shell that redirects its streams; return its exit status and output."""
    line = f'"$@" {redirected}'
    return subprocess.run(
        ["sh", "-c", line, "sh", *RKNN, *map(str, words)], capture_output=True, text=True
    )


@pytest.mark.long
@pytest.mark.parametrize("redirected", [">&-", ">/dev/full", ">&- 2>&-", "2>/dev/full"])
def test_streams_that_cannot_be_written_fail_no_release(files, redirected):
    done = in_shell(redirected, "label", *FLAGS, "--json")
    assert done.returncode == 0, done.stderr
    if "2>" not in redirected:
        assert "standard output could not be written" in done.stderr
    complete(files)


@pytest.mark.long
@pytest.mark.parametrize("redirected", [">&-", ">/dev/full", ">&- 2>&-", ">/dev/full 2>/dev/full"])
def test_a_result_that_cannot_be_printed_is_an_error_where_it_is_all_there_is(redirected):
    done = in_shell(redirected, "account", "rounds", "--epsilon", 1, "--rounds", 2)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    if "2>" not in redirected:
        assert "standard output could not be written" in done.stderr


SELECT = ("classes", "--private", "R.npz", "--epsilon", 20, "--delta", 1e-3)


@pytest.mark.long
def test_a_selection_that_cannot_be_printed_is_printed_on_the_other_stream(files):
    labels = np.array(["yes", "no"])[np.arange(90) % 2]
    np.savez(files / "R.npz", embeddings=np.zeros((90, 3), np.float32), labels=labels)
    done = in_shell(">/dev/full", *SELECT)
    assert done.returncode == 0
    assert "--classes no,yes" in done.stderr
    assert "which is paid for" in done.stderr


def test_a_selection_that_is_lost_after_its_charge_says_so(files, rknn, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(class_selection.exact_noise, "discrete_laplace", fail)
    done = rknn(*SELECT)
    assert done.status == 2
    assert "The selection is lost, and the spend stands" in " ".join(done.err.split())


@pytest.mark.long
@pytest.mark.parametrize("platform", ["cuda", "nonsense"])
def test_a_platform_that_is_not_there_is_named_by_its_variable(platform):
    words = ("simulate", "--clients", "10", "--queries", "4", "--classes", "2")
    done = subprocess.run(
        [*RKNN, *words],
        env=os.environ | {"JAX_PLATFORMS": platform},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert f"got JAX_PLATFORMS={platform}" in done.stderr
    assert "Traceback" not in done.stderr
