"""The wheel is complete: in an empty environment and another folder it runs what the pages say.

`make wheel` runs these. Each environment has the dependencies of uv.lock, whose jax is a newer one
from Python 3.12 on. A Python that is not on this machine is skipped, by name.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.test_documentation import ROOT, Block, blocks, commands

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
SEARCH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
UV = shutil.which("uv", path=SEARCH)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(UV is None, reason="uv is not installed")]


def completed(words: list[str | Path], **options) -> str:
    """Run a program and return what it prints."""
    done = subprocess.run(words, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def runs(program: str) -> bool:
    """Return whether a program starts. That of a version that is not chosen may be a stub."""
    found = shutil.which(program)
    return bool(found) and subprocess.run([found, "--version"], capture_output=True).returncode == 0


def quickstart() -> list[Block]:
    """Return the blocks of README.md that label one's own data."""
    lines = (ROOT / "README.md").read_text().splitlines()
    first = lines.index("## Label your own data")
    last = next(i for i in range(first + 1, len(lines)) if lines[i].startswith("## "))
    return [block for block in blocks(ROOT / "README.md") if first < block.line <= last]


def program(given: list[Block]) -> str:
    """Return a Python program that runs blocks of Python and bash in their order."""
    lines = ["import subprocess"]
    for block in given:
        if block.language == "python":
            lines.append(block.text)
        elif block.language == "bash":
            for words, status, _ in commands(block):
                lines.append(f"done = subprocess.run({words!r}).returncode")
                lines.append(f"assert done == {status}, ({words!r}, done)")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> list[Path]:
    """Build the sdist, and the wheel from the sdist. Returns both files."""
    folder = tmp_path_factory.mktemp("dist")
    completed([UV, "build", "--quiet", "--out-dir", folder], cwd=ROOT)
    return sorted(folder.glob("rknn_jax-*"))


def installed(python: str, built: list[Path], folder: Path, *options: str) -> dict[str, str]:
    """Install the wheel and what uv.lock names for it. Returns the variables of its shell."""
    if not runs(python):
        pytest.skip(f"{python} is not on this machine")
    pinned = folder / "requirements.txt"
    export = [UV, "export", "--quiet", "--frozen", "--no-default-groups", "--no-emit-project"]
    completed([*export, *options, "--no-hashes", "--output-file", pinned], cwd=ROOT)
    completed([UV, "venv", "--quiet", "--python", python, folder / "venv"])
    program = folder / "venv" / "bin" / "python"
    [wheel] = [path for path in built if path.suffix == ".whl"]
    install = [UV, "pip", "install", "--quiet", "--python", program]
    completed([*install, "--requirements", pinned, wheel])
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return own | {"PATH": f"{program.parent}{os.pathsep}{own['PATH']}"}


@pytest.fixture(scope="module", params=PYTHONS)
def environment(request, built, tmp_path_factory) -> dict[str, str]:
    """Install the wheel alone for one Python."""
    return installed(f"python{request.param}", built, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def with_embed(built, tmp_path_factory) -> dict[str, str]:
    """Install the wheel for the first Python, with what the pages install."""
    folder = tmp_path_factory.mktemp("with_embed")
    shell = installed(f"python{PYTHONS[0]}", built, folder, "--extra", "embed")
    completed([UV, "pip", "install", "--quiet", "--python", folder / "venv/bin/python", "onnx"])
    return shell


def test_an_index_takes_the_description_and_the_metadata(built):
    twine = [UV, "run", "--quiet", "--isolated", "--frozen", "--only-group", "wheel", "twine"]
    said = completed([*twine, "check", "--strict", *built], cwd=ROOT)
    assert said.count("PASSED") == 2


def test_the_installed_wheel_runs_the_quickstart_and_an_experiment(environment, tmp_path):
    place = {"cwd": tmp_path, "env": environment | {"RKNN_STATE_DIR": str(tmp_path / "state")}}
    assert completed(["rknn", "--version"], **place) == f"rknn {PROJECT['version']}\n"
    completed(["python", "-c", program(quickstart())], **place)
    assert list(tmp_path.glob("runs/*/privacy.json"))
    digits = ["--dataset", "digits", "--epsilon", "1", "--student", "none"]
    completed(["rknn", "experiment", "distill", *digits, "--out", "distilled"], **place)
    assert (tmp_path / "distilled" / "report.html").exists()


@pytest.mark.parametrize("page", ["tutorial.md", "tutorial_images.md", "tutorial_text.md"])
def test_the_installed_wheel_runs_the_tutorials(with_embed, tmp_path, page):
    """`benchmarks.patch_encoder` is a program of the repository and comes from there."""
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks" / "patch_encoder.py", tmp_path / "benchmarks")
    place = {"cwd": tmp_path, "env": with_embed | {"RKNN_STATE_DIR": str(tmp_path / "state")}}
    completed(["python", "-c", program(blocks(ROOT / "docs" / page))], **place)
    assert (tmp_path / "labels" / "report.html").exists()
