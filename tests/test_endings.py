"""No command ends by a signal: unreadable files end it with 2, and nothing that is torn down with
the process changes its exit status.
"""

import collections
import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests import tiny_network

FORKS = """
import json, os, sys
import rknn_jax.cli.main as cli
import pyarrow.dataset, pyarrow.parquet
import rknn_jax.embedding.images, rknn_jax.embedding.run, rknn_jax.embedding.table
import rknn_jax.federation.joining, rknn_jax.release.adoption, rknn_jax.release.class_selection
import rknn_jax.release.label, rknn_jax.release.usability

for words, times in json.load(open("jobs.json")):
    ends = []
    for _ in range(times):
        child = os.fork()
        if not child:
            log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.argv = ["rknn", *words]
            cli.command()
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps([ends, open("log.txt", errors="replace").read()]), flush=True)
"""
"""Every command in a fork of one process that has imported everything, and no thread yet."""

ABORTING = """
import ctypes, sys, threading
from rknn_jax._internal.terminal import run_program
libc = ctypes.CDLL(None)
libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)
threading.Thread(target=threading.Event().wait).start()
def program():
    print("told")
    {}
run_program(program)
"""
"""A library that aborts when it is torn down, and a thread that never ends."""


def forms() -> dict[str, bytes]:
    """Return a sound file of each format."""
    table = pa.table({"embeddings": [[float(i), 0.0] for i in range(300)], "labels": [0, 1] * 150})
    made = {}
    parquet = io.BytesIO()
    pq.write_table(table, parquet)
    made["parquet"] = parquet.getvalue()
    for suffix, new in (("feather", pa.ipc.new_file), ("arrow", pa.ipc.new_stream)):
        sink = pa.BufferOutputStream()
        with new(sink, table.schema) as writer:
            writer.write_table(table, 50)
        made[suffix] = sink.getvalue().to_pybytes()
    npz = io.BytesIO()
    np.savez(npz, embeddings=np.zeros((300, 2)), labels=np.zeros(300, int))
    made["npz"] = npz.getvalue()
    return made


def broken(whole: bytes) -> dict[str, bytes]:
    """Return what becomes of a file on its way, by the kind of damage."""
    noise = np.random.default_rng(0).bytes(len(whole))
    return {"cut": whole[: len(whole) // 2], "nothing": b"", "noise": noise, "text": b"hello"}


def doors(name: str) -> list[list[str]]:
    """Return every command that reads a file, with the file on either side."""
    release = ["--epsilon", "1", "--classes", "2", "--out", "out"]
    found = [
        ["label", "--public", "good.npz", "--private", name, *release],
        ["label", "--public", name, "--private", "good.npz", *release],
        ["label", "--public", "good.npz", "--private", name, *release, "--dry-run"],
        ["check", name, "--classes", "2"],
        ["classes", "--private", name, "--epsilon", "1", "--delta", "1e-5"],
        ["join", "--private", name, "--budget", "1", "--wait", "1"],
        ["serve", "--public", name, "--epsilon", "1", "--classes", "2", "--clients", "3"]
        + ["--out", "round"],
    ]
    if name.endswith(("parquet", "arrow")):
        found.append(["embed", "--table", name, "--label", "labels", "--out", "out.parquet"])
    return found


def ends(folder, jobs: list[tuple[list[str], int]]) -> list[tuple[list[int], str]]:
    """Run commands in forks, and return their exit statuses and what the last one printed."""
    random = np.random.default_rng(0)
    np.savez(folder / "good.npz", embeddings=random.normal(size=(60, 2)), labels=np.arange(60) % 2)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run(
        [sys.executable, "-c", FORKS],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize(
    "times", [1, pytest.param(2, marks=pytest.mark.long)], ids=["once", "often"]
)
def test_unreadable_files_end_every_command_with_2(tmp_path, times):
    """Once with one that stands for all, and often with every format and damage."""
    jobs = []
    for suffix, whole in forms().items():
        for kind, data in broken(whole).items():
            if times > 1 or (kind, suffix) == ("cut", "arrow"):
                (tmp_path / f"{kind}.{suffix}").write_bytes(data)
                jobs += [(words, times) for words in doors(f"{kind}.{suffix}")]
    found = ends(tmp_path, jobs)
    for (words, _), (statuses, told) in zip(jobs, found, strict=True):
        assert collections.Counter(statuses) == {2: times}, (words, statuses, told)
        assert "rknn: error: " in told, words
        assert "Traceback" not in told, words
    assert not list(tmp_path.glob("*.jsonl")), "nothing was charged"


@pytest.mark.long
def test_images_that_cannot_be_read_end_nothing_by_a_signal(tmp_path):
    network = str(tiny_network.write(tmp_path))
    whole = io.BytesIO()
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(whole, "PNG")
    for form in ("PNG", "JPEG", "TIFF", "WEBP", "BMP"):
        buffer = io.BytesIO()
        Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(buffer, form)
        for kind, data in broken(buffer.getvalue()).items():
            path = tmp_path / f"pictures/{kind}.{form.lower()}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    words = ["embed", "--images", "pictures", "--model", network, "--out", "out.parquet"]
    [[statuses, told]] = ends(tmp_path, [(words, 3)])
    assert statuses == [2] * 3, told
    (tmp_path / "pictures/good.png").write_bytes(whole.getvalue())
    [[statuses, told]] = ends(tmp_path, [(words, 3)])
    assert statuses == [0] * 3, told
    assert "unusable" in told


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("return 0", 0),
        ("return 2", 2),
        ("raise SystemExit", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('words')", 1),
        ("raise KeyboardInterrupt", 130),
        ("raise RuntimeError('a fault')", 1),
        ("raise MemoryError", 1),
    ],
)
def test_neither_threads_nor_what_is_torn_down_change_the_exit_status(last, status):
    done = subprocess.run(
        [sys.executable, "-c", ABORTING.format(last)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (status, "told\n"), done.stderr
    assert ("a fault" in done.stderr) == ("a fault" in last)


def test_exit_handlers_run_after_success_and_a_full_output_is_told():
    code = (
        "import atexit\nfrom rknn_jax._internal.terminal import leave\n"
        "atexit.register(print, 'handler')\nprint('told')\nleave(0)"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "told\nhandler\n")
    with open("/dev/full", "w") as full:
        assert subprocess.run(run, stdout=full, check=False).returncode != 0


NO_ENTROPY = """
#include <errno.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
ssize_t getrandom(void *bytes, size_t count, unsigned flags) {
  if (access("fails", F_OK)) return syscall(SYS_getrandom, bytes, count, flags);
  errno = EIO;
  return -1;
}
"""

RELEASE = """
import pathlib, sys
import rknn_jax.cli.main as cli
import rknn_jax.release.label
from rknn_jax.privacy.ledger import Ledger
fails = pathlib.Path("fails")
charge = Ledger.charge
def charged(*words, **others):
    done = charge(*words, **others)
    fails.touch()
    return done
if sys.argv[1] == "before":
    fails.touch()
if sys.argv[1] == "after":
    Ledger.charge = charged
sys.argv[1:] = "label --public good.npz --private good.npz --ledger l.jsonl".split()
sys.argv += "--epsilon 1 --classes 2 --out out".split()
import rknn_jax.release.inputs as inputs
inputs._refuse_private_as_public = lambda *_: None
cli.command()
"""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_no_random_numbers_are_an_error_and_no_abort(tmp_path):
    """Before the charge nothing is spent, and after it the same command finishes."""
    (tmp_path / "none.c").write_text(NO_ENTROPY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "none.so", "none.c"], cwd=tmp_path, check=True)
    random = np.random.default_rng(0)
    np.savez(tmp_path / "good.npz", embeddings=random.normal(size=(60, 2)), labels=[0, 1] * 30)

    def released(when: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-c", RELEASE, when],
            cwd=tmp_path,
            env=os.environ | {"LD_PRELOAD": str(tmp_path / "none.so")},
            capture_output=True,
            text=True,
            check=False,
        )

    before = released("before")
    assert before.returncode == 2, before.stderr
    assert "Expected random numbers of the operating system" in before.stderr
    assert not (tmp_path / "l.jsonl").exists()
    (tmp_path / "fails").unlink()
    after = released("after")
    assert after.returncode == 2, after.stderr
    assert "Expected random numbers of the operating system" in after.stderr
    assert "finishes the release and pays nothing" in after.stderr
    (tmp_path / "fails").unlink()
    finished = released("never")
    assert finished.returncode == 0, finished.stderr
    assert "epsilon=1.0, delta=0.0 spent in all" in finished.stderr + finished.stdout
