"""Programs that are kept between runs."""

import json
import os
import subprocess
import sys

import jax
import pytest

from rknn_jax._internal import compilation
from tests import cached_programs

PROGRAM = """
import sys
import jax, jax.numpy as jnp
from rknn_jax._internal import compilation
from tests import cached_programs
compilation.keep()
hits = []
jax.monitoring.register_event_listener(lambda event, **about: hits.append(event))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
for _ in range(int(sys.argv[1])):
    jax.clear_caches()
    jax.jit(lambda x: jnp.sort(x) * 3)(jnp.arange(50.0)).block_until_ready()
    print(hits.count("/jax/compilation_cache/cache_hits"))
"""


def hits(folder, runs=1, **environment):
    """Return how many programs were found on the disk, after each of several runs that forget
    all that is in memory.
    """
    names = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    run = [sys.executable, "-c", PROGRAM, str(runs)]
    done = subprocess.run(
        run,
        env=names | {"XDG_CACHE_HOME": str(folder)} | environment,
        check=True,
        capture_output=True,
    )
    return list(map(int, done.stdout.split()))


@pytest.mark.slow  # the folder that is used is tested without compiling
def test_the_next_run_finds_what_was_compiled(tmp_path):
    first, second = hits(tmp_path, runs=2)
    assert first == 0
    assert second > 0
    assert [path.name for path in tmp_path.iterdir()] == ["rknn_jax"]


def test_the_users_folder_wins(tmp_path, monkeypatch):
    told = {}
    monkeypatch.setattr(jax.config, "update", told.__setitem__)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "own"))
    compilation.keep()
    assert told == {}
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    compilation.keep()
    assert told["jax_compilation_cache_dir"].startswith(str(tmp_path / "rknn_jax"))


def test_options_of_the_user_win_and_accelerators_have_none(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert compilation.brief() == {"xla_backend_optimization_level": 1}
    assert compilation.moderate() == {"xla_backend_optimization_level": 2}
    monkeypatch.setattr(compilation, "ACCELERATORS", ("jax",))
    assert compilation.brief() == compilation.moderate() == {}
    monkeypatch.undo()
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert compilation.brief() == compilation.moderate() == {}


@pytest.mark.slow
def test_the_next_process_finds_what_was_compiled_and_the_users_folder_wins(tmp_path):
    assert hits(tmp_path) == [0]
    assert hits(tmp_path)[0] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["rknn_jax"]
    assert hits(tmp_path / "other", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own")) == [0]
    assert (tmp_path / "own").exists()
    assert not (tmp_path / "other").exists()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["rknn", "labelers", "experiment"])
def test_no_private_number_is_in_a_program_on_the_disk_unless_a_function_closes_over_it(
    kind, tmp_path
):
    """The search finds exactly the programs that were planted, one for each kind of array."""
    run = [sys.executable, "-m", "tests.cached_programs", kind, str(tmp_path)]
    done = subprocess.run(run, check=True, capture_output=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["programs"] > 20
    assert found["private"] == [f"jit_{name}" for name in cached_programs.PLANTED]
