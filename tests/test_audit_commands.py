"""Every audit command of README and docs, run as a user runs it, to its verdict.

Each is a program of its own, with an index of ledgers that works and none of the patches of
tests/conftest.py. The list is read from the documents, so that a new command is run too. Files
that a page adds to the package are added to a copy of it.

An honest guarantee is called broken with a probability of 1e-4 at most, the commands' own error.
"""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_documentation import DOCUMENTS, ROOT, blocks, commands

FEWER = {
    "--one-run": math.inf,
    "--release": 40,
    "--labeler": 60,
    "train.audit": 40,
    "--sampler": 1_000,
}
"""Most runs of each input, by a word of the command, where those of the page take minutes: 40 are
the least that give a verdict.
"""

PROGRAMS = {"rknn": ["-m", "rknn_jax.cli.main"], "python": []}


def wanted(words: list[str]) -> bool:
    return words[:2] == ["rknn", "audit"] or words[1:3] == ["-m", "train.audit"]


def shortened(words: list[str]) -> tuple[str, ...]:
    """Return the command with fewer runs where it takes minutes."""
    most = next((FEWER[word] for word in FEWER if word in words), math.inf)
    if "--runs" in words:
        place = words.index("--runs")
        most = min(most, float(words[place + 1]))
        words = words[:place] + words[place + 2 :]
    return tuple(words) if most == math.inf else (*words, "--runs", f"{most:.0f}")


def documented() -> dict[tuple[str, ...], Path]:
    """Return the audit commands of all documents, and the document of each."""
    found = {}
    for document in DOCUMENTS:
        for block in blocks(document):
            for command in commands(block) if block.language == "bash" else ():
                if wanted(command.words):
                    found.setdefault(shortened(command.words), document)
    return found


COMMANDS = documented()


def with_files(document: Path, folder: Path) -> None:
    """Copy the package, with the files that a page adds to it."""
    for package in ("rknn_jax", "train"):
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for block in blocks(document):
        if block.title:
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text)


def test_commands_are_found_and_all_kinds_of_subjects_are_among_them():
    """Sixteen and more; a new subject of `rknn audit` is documented with a command."""
    text = [" ".join(words) for words in COMMANDS]
    for subject in (
        "--mechanism",
        "--sampler release",
        "--labeler",
        "--release",
        "--release --unit person",
        "--selection",
        "--federation messages",
        "--federation sum",
        "--ledger",
        "--one-run",
        "train.audit",
    ):
        assert any(subject in words for words in text), subject
    assert shortened(["rknn", "audit", "--release", "--runs", "90", "--json"]) == (
        *("rknn", "audit", "--release", "--json", "--runs", "40"),
    )


@pytest.mark.long
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_command_gives_a_verdict_and_leaves_the_user_alone(words, tmp_path):
    place, home = tmp_path / "place", tmp_path / "home"
    home.mkdir()
    with_files(COMMANDS[words], place)
    program = [sys.executable, *PROGRAMS[words[0]], *words[1:]]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RKNN_", "XDG_", "XLA_"))
    }
    done = subprocess.run(
        program,
        cwd=place,
        env=environment | {"HOME": str(home)},
        capture_output=True,
        text=True,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert re.search("Not broken|Inconclusive", told), told
    assert "warning" not in told.lower(), told
    assert not list(home.rglob("ledgers")), "an index of ledgers was made"


@pytest.mark.long
@pytest.mark.parametrize("damaged", [False, True], ids=["sound", "damaged"])
def test_an_audit_does_not_depend_on_the_users_index(tmp_path, damaged):
    """Releases of an audit are of the same records, which a sound index would refuse; and neither
    a sound index nor a damaged one is written.
    """
    state = tmp_path / "state"
    state.mkdir()
    (state / "salt").write_bytes(b"too short" if damaged else bytes(32))
    before = {path.name: path.read_bytes() for path in state.iterdir()}
    program = "import sys; from rknn_jax.audit import games_release as g; w = g.worlds(1.0)[0]; "
    program += "sys.exit(bool(g.differing(w)) or bool(g.read_after(w.plans[0])))"
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", program],
        cwd=ROOT,
        env=os.environ | {"RKNN_STATE_DIR": str(state)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in state.iterdir()} == before
