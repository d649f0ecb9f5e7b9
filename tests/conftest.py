"""Strict modes for every test, set before JAX makes its devices."""

import functools
import gc
import importlib
import itertools
import json
import os
import pkgutil
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import hypothesis
import jax
import pytest

# Ledgers and rounds wait 30,000 times for a disk in all tests together, a minute by each of two
# processes. Memory is a file system too, where there is enough and programs may be run from it.
MEMORY = Path("/dev/shm")
if (
    "TMPDIR" not in os.environ
    and MEMORY.is_dir()
    and os.access(MEMORY, os.W_OK)
    and shutil.disk_usage(MEMORY).free > 1 << 30
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
):
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # of programs that tests start
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # of tests that start onnxruntime themselves
os.environ["RKNN_STATE_DIR"] = os.devnull  # no folder, until a fixture names one

from jsonschema import Draft202012Validator  # noqa: E402

from rknn_jax import labelers  # noqa: E402 once the devices are set
from rknn_jax.cli import main as cli  # noqa: E402
from rknn_jax.labelers import _simulation_only  # noqa: E402
from rknn_jax.mechanisms.local_hashing import LocalHashing  # noqa: E402
from rknn_jax.mechanisms.separation import Separation  # noqa: E402
from rknn_jax.privacy import ledger_index  # noqa: E402
from rknn_jax.privacy.statement import Statement, as_json, schema  # noqa: E402
from rknn_jax.representations import pretrained  # noqa: E402
from tests import tiny_network  # noqa: E402

# Compilation dominates the first example, so no deadline; derandomized, so a failure is everyone's;
# few examples, as each shape compiles.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, max_examples=6)
hypothesis.settings.load_profile("ci")


# The processes of one run share what they compile, and no other run has it.
if "RKNN_TEST_PROGRAMS" not in os.environ:
    PROGRAMS = tempfile.TemporaryDirectory()
    os.environ["RKNN_TEST_PROGRAMS"] = PROGRAMS.name
jax.config.update("jax_enable_compilation_cache", True)
jax.config.update("jax_compilation_cache_dir", os.environ["RKNN_TEST_PROGRAMS"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

gc.set_threshold(
    200_000, 20, 100
)  # tracing makes many objects, and each collection walks all modules that were imported


KNOWN = schema()


def _with_check(card):
    """Check every card that a test makes against the schema, whoever makes it."""

    @functools.wraps(card)
    def checked(statement, **others):
        made = card(statement, **others)
        known = (
            made["guarantee"]["trust"] in KNOWN["$defs"]["guarantee"]["properties"]["trust"]["enum"]
        )
        # A test may bring a trust model of its own, or take the disk away.
        Draft202012Validator(KNOWN if known else schema()).validate(json.loads(as_json(made)))
        return made

    return checked


Statement.card = _with_check(Statement.card)

# A pretrained network is a file, so its example is made here for all tests that walk the folder.
NETWORKS = tempfile.TemporaryDirectory()
pretrained.EXAMPLES = (pretrained.Config(str(tiny_network.write(Path(NETWORKS.name)))),)


def pytest_runtest_teardown(item):
    """Check every statement of this version in a test's own folder, also those of other programs
    that the test ran.
    """
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    for path in folder.rglob("privacy.json") if folder else ():
        try:
            card = json.loads(path.read_text())
        except ValueError:
            continue  # damaged on purpose
        if isinstance(card, dict) and "version" in card:
            Draft202012Validator(schema()).validate(card)


@pytest.fixture(scope="session")
def states(tmp_path_factory):
    """Folder of the indexes of ledgers: pytest lists all of its own to name another one."""
    return tmp_path_factory.mktemp("states")


@pytest.fixture(autouse=True, scope="module")
def index_of_module(states):
    """Give the fixtures of a module an index of ledgers, never that of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RKNN_STATE_DIR", tempfile.mkdtemp(dir=states))
        patch.setattr(ledger_index, "_entry", lambda place, dataset: {"ledgers": []})
        yield


@pytest.fixture(autouse=True)
def index(states, monkeypatch):
    """Give every test an index of its own, which remembers nothing.

    Tests compare releases on the same records, each with a budget of its own.
    """
    monkeypatch.setenv("RKNN_STATE_DIR", tempfile.mkdtemp(dir=states))


def crossed(**axes) -> pytest.MarkDecorator:
    """Parametrize by all combinations of values, most of which are in `make long`.

    In `make test` every value comes with one value of each other axis.

    Args:
      **axes: Values of each argument; of a dict, its keys.
    """
    values = [[*axis] for axis in axes.values()]
    size = max(map(len, values))
    quick = {tuple(i % len(axis) for axis in values) for i in range(size)}
    cases = []
    for place in itertools.product(*(range(len(axis)) for axis in values)):
        case = [axis[i] for axis, i in zip(values, place, strict=True)]
        words = [
            one if isinstance(one, str) else f"{type(one).__name__}{i}"
            for one, i in zip(case, place, strict=True)
        ]
        marks = () if place in quick else pytest.mark.long
        cases.append(pytest.param(*case, marks=marks, id="-".join(words)))
    return pytest.mark.parametrize(",".join(axes), cases)


def thin(mechanisms: list, ids=str) -> pytest.MarkDecorator:
    """Parametrize by mechanism: every example in `make test-all`; in `make test` of those without a
    curator the one with several votes.

    That is the harder case. A mechanism that takes no more than one vote is always run; those that
    nobody labels with, and local hashing, which is Collision with one vote, are run in `make
    test-all` only.
    """
    several = {type(mechanism) for mechanism in mechanisms if mechanism.votes_per_record > 1}

    def slow(mechanism) -> bool:
        easy = (
            "central" not in mechanism.trusts
            and type(mechanism) in several
            and mechanism.votes_per_record == 1
        )
        return easy or not mechanism.trusts or isinstance(mechanism, Separation | LocalHashing)

    return pytest.mark.parametrize(
        "mechanism",
        [pytest.param(m, marks=pytest.mark.slow) if slow(m) else m for m in mechanisms],
        ids=ids,
    )


def sum_labelers():
    """Return the labelers whose sums clients can add up, beside those of votes, by name."""
    kinds = {name: labelers.named(name) for name in labelers.names()}
    able = {name: kind for name, kind in kinds.items() if not _simulation_only.hindrance(kind)}
    return {name: kind for name, kind in able.items() if kind().votes_per_record is None}


def modules(package: ModuleType, *, leave_out: tuple[str, ...] = ()) -> list[ModuleType]:
    """Import every public file of a folder: the folder is the registry that the contract tests
    walk.
    """
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    return [
        importlib.import_module(f"{package.__name__}.{name}")
        for name in names
        if not name.startswith("_") and name not in leave_out
    ]


class Result(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out.splitlines()[-1])


@pytest.fixture
def rknn(capsys, monkeypatch, tmp_path):
    """Run the program in `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def run(*argv) -> Result:
        capsys.readouterr()
        try:
            status = cli.main([str(word) for word in argv])
        except SystemExit as exit:  # by tyro
            status = exit.code
        return Result(status, *capsys.readouterr())

    return run
