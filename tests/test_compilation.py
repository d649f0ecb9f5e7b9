"""Programs that are kept between runs."""

import os
import subprocess
import sys

PROGRAM = """
import jax, jax.numpy as jnp
from rknn_jax import compilation
compilation.keep()
hits = []
jax.monitoring.register_event_listener(lambda event, **about: hits.append(event))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.jit(lambda x: jnp.sort(x) * 3)(jnp.arange(50.0)).block_until_ready()
print(hits.count("/jax/compilation_cache/cache_hits"))
"""


def hits(folder, **environment):
    names = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    run = [sys.executable, "-c", PROGRAM]
    return int(subprocess.run(run, env=names | {"XDG_CACHE_HOME": str(folder)} | environment, check=True, capture_output=True).stdout)


def test_the_next_run_finds_what_was_compiled_and_the_users_folder_wins(tmp_path):
    assert hits(tmp_path) == 0
    assert hits(tmp_path) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["rknn_jax"]
    assert hits(tmp_path / "other", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own")) == 0
    assert (tmp_path / "own").exists()
    assert not (tmp_path / "other").exists()
