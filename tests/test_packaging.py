"""What a package says of itself: its metadata, and the image that it is installed into."""

import importlib.metadata
import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml

from rknn_jax.cli import main as cli
from rknn_jax.kernels import native

ROOT = Path(__file__).parent.parent
INSTRUCTIONS = {"ARG", "FROM", "COPY", "RUN", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}


def runs_native_kernels() -> bool:
    """Return whether this processor is one that the kernels are for."""
    processor = Path("/proc/cpuinfo")
    return processor.exists() and {"avx2", "fma"} <= set(processor.read_text().split())


def test_metadata_name_the_author_the_license_and_every_python_that_is_supported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["authors"]
    assert project["keywords"]
    assert project["license-files"] == ["LICENSE"]
    assert (ROOT / "rknn_jax" / "py.typed").exists()
    assert "Typing :: Typed" in project["classifiers"]
    lowest = project["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {lowest}" in project["classifiers"]
    assert importlib.metadata.version("rknn-jax") == project["version"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == project["version"]


def test_workflows_run_every_python_that_is_supported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = set(re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"])))
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert set(jobs["try"]["strategy"]["matrix"]["python-version"]) == supported
    steps = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["ci"]["steps"]
    [chosen] = [step["with"] for step in steps if "python-version" in step.get("with", {})]
    assert set(re.findall(r"3\.\d+", chosen["python-version"])) == supported


def test_conda_installs_what_pip_does():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = yaml.safe_load((ROOT / "packaging/conda/recipe.yaml").read_text())
    wanted = {one.replace(",", ", ") for one in project["dependencies"]}
    found = {one.replace(" >", ">", 1) for one in recipe["requirements"]["run"]}
    assert recipe["context"]["version"] == project["version"]
    assert found - {f"python{project['requires-python']}"} == {
        one.replace("matplotlib", "matplotlib-base").replace(", ", ",") for one in wanted
    }


def test_the_app_for_flower_explains_every_option():
    app = ROOT / "rknn_jax/federation/app"
    settings = tomllib.loads((app / "pyproject.toml").read_text())
    explained = re.findall(
        r"^\| (`.*?) \|", (app / settings["project"]["readme"]).read_text(), re.M
    )
    named = {name for cell in explained for name in re.findall(r"`(\w+)`", cell)}
    assert named == set(settings["tool"]["flwr"]["app"]["config"])


def test_the_containers_find_each_other_and_their_certificates():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    server = cli._parsed(services.pop("server")["command"].split())
    host = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["server"]["hostname"]
    assert server.host == "0.0.0.0", "certificates name the host then"
    assert len(services) == server.clients
    for name, service in services.items():
        client = cli._parsed(service["command"].split())
        assert client.server == f"{host}:{server.port}"
        assert client.private == Path(f"{name}.npz")
        held = (client.ca, client.certificate, client.key)
        folder = server.make_test_certificates
        assert held == (folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key")


def test_the_image_runs_rknn_and_not_as_root():
    text = (ROOT / "Dockerfile").read_text()
    lines = re.sub(r"\\\n", " ", text).splitlines()
    told = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert {name for name, _ in told} == INSTRUCTIONS
    last = dict(told)
    assert re.fullmatch(r"PYTHON=python:3[.]\d+-slim@sha256:[0-9a-f]{64}", last["ARG"])
    assert all(words.split()[0] == "$PYTHON" for name, words in told if name == "FROM")
    assert last["ENTRYPOINT"] == '["rknn"]'
    assert last["USER"] not in ("root", "0")
    names = [name for name, _ in told]
    assert names.index("USER") > max(i for i, name in enumerate(names) if name == "RUN")
    extras = re.findall(r"--extra (\w+)", text)
    assert extras
    assert "--require-hashes" in last["RUN"]
    version = re.search(r"UV_VERSION = (\S+)", (ROOT / "Makefile").read_text())[1]
    assert f"uv=={version}" in text
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) <= set(known["optional-dependencies"])


def test_other_peoples_actions_are_named_by_commit():
    files = sorted((ROOT / ".github/workflows").glob("*.yml"))
    used = [one for path in files for one in re.findall(r"uses: (\S+)", path.read_text())]
    assert len(files) == 2
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", one) for one in used), used


@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "c++")), reason="no C++ compiler")
@pytest.mark.skipif(not runs_native_kernels(), reason="another processor")
@pytest.mark.skipif(os.environ.get("RKNN_NATIVE") == "0", reason="RKNN_NATIVE=0")
def test_an_installation_with_a_compiler_has_native_kernels():
    """Other tests pass over kernels that are missing, and XLA would do the work without a word."""
    assert native.load(), "run `touch hatch_build.py` and `make .venv/.dev` to compile them"
