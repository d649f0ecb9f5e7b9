"""Engines that count shards: the same votes bit for bit, whatever dies on the way.

The tests that start a Ray cluster are slow: each takes half a minute.
"""

import dataclasses
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

from rknn_jax import simulate
from rknn_jax._internal import ray_map
from rknn_jax.formats import Columns
from rknn_jax.labelers._votes import VoteTally
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.records.classes import Classes
from rknn_jax.release import counting, engines, label, planning
from rknn_jax.release.counting import Counter
from rknn_jax.release.encoding import Encoding
from rknn_jax.release.engines import local, ray
from rknn_jax.release.release_folder import ReleaseFolder
from rknn_jax.release.settings import Settings
from rknn_jax.release.shards import FileShard, Records
from tests.contracts.test_representations import IDS, MANY, fitted
from tests.options import named_settings
from tests.test_locality import queries_beside

SHARDS, ROWS = 8, 200
POINTS = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
COUNTER = Counter(VoteTally(POINTS, 3, num_neighbors=2), Classes(3))


@dataclasses.dataclass(frozen=True)
class FatalShard(FileShard):
    """File whose first reading kills a process.

    Attributes:
      mark: File that is made before, so that it happens once.
      raylet: Whether the raylet of the machine dies, and with it all of its workers.
    """

    mark: str = ""
    raylet: bool = False

    def blocks(self, size):
        """Kill, or yield the rows."""
        try:
            Path(self.mark).touch(exist_ok=False)
        except FileExistsError:
            yield from super().blocks(size)
            return
        os.kill(os.getppid() if self.raylet else os.getpid(), signal.SIGKILL)
        time.sleep(60)


class BrokenShard(FileShard):
    """File that cannot be read."""

    def blocks(self, size):
        """Fail."""
        raise ValueError(f"{self.where} is damaged")


def shards(folder, kind=FileShard, **changes):
    """Write shards, of which the sixth is of another kind."""
    rng = np.random.default_rng(1)
    found = []
    for number in range(SHARDS):
        path = folder / f"{number}.npz"
        embeddings = rng.normal(size=(ROWS, 4)).astype(np.float32)
        np.savez(path, embeddings=embeddings, labels=rng.integers(-1, 3, ROWS))
        given = (str(path), "--private", Columns(width=4))
        found.append(kind(*given, **changes) if number == 5 else FileShard(*given))
    return found


def settings(folder, **changes):
    np.savez(folder / "P.npz", embeddings=np.asarray(POINTS))
    given = {"public": str(folder / "P.npz"), "private": "R", "epsilon": 1.0, "classes": "3"}
    given |= {"queries": 4, "out": folder / "new", "ledger": folder / "ledger.jsonl"}
    return named_settings(Settings, **given | changes)


def test_an_unknown_engine_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match=r"one of local, ray, got engine spark"):
        planning.prepare(settings(tmp_path, engine="spark"))


def test_an_address_belongs_to_a_cluster(tmp_path):
    with pytest.raises(ValueError, match=r"no address with engine local"):
        local.count_all(Records.of(shards(tmp_path)), COUNTER, address="auto")


def test_the_card_says_who_sees_votes_without_noise(tmp_path, monkeypatch):
    def count_all(records, counter, on_rows=None, address=None):
        return counting.count_all(records, counter, on_rows)

    monkeypatch.setattr(engines.named("ray"), "count_all", count_all)
    for name in ("local", "ray"):
        given = settings(tmp_path, engine=name, out=tmp_path / name, budget=9)
        done = label.release(planning.prepare(given, shards(tmp_path)))
        told = any("spill files" in line for line in done.card["not_covered"])
        assert told == (name == "ray")


@pytest.mark.parametrize(
    "stops",
    [
        [("ray", "seal")],
        pytest.param([("local", "keep"), ("ray", "keep")], marks=pytest.mark.long),
        [("local", "keep"), ("ray", "seal")],
    ],
)
def test_a_release_that_another_engine_finishes_names_those_before(tmp_path, monkeypatch, stops):
    def count_all(records, counter, on_rows=None, address=None):
        return counting.count_all(records, counter, on_rows)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(engines.named("ray"), "count_all", count_all)
    for engine, step in stops:
        given = settings(tmp_path, engine=engine, smoothing="none")
        begun = planning.prepare(given, shards(tmp_path))
        with monkeypatch.context() as stopped:
            stopped.setattr(ReleaseFolder, step, killed)
            with pytest.raises(KeyboardInterrupt):
                label.release(begun)
    plan = planning.prepare(settings(tmp_path, smoothing="none"), shards(tmp_path))
    assert plan.paid
    done = label.release(plan)
    assert any("spill files" in line for line in done.card["not_covered"])


def test_a_process_of_a_cluster_keeps_no_compiled_program(tmp_path):
    """It sees private records, and the environment may name a folder for programs."""
    kept = jax.config.jax_enable_compilation_cache
    try:
        jax.config.update("jax_enable_compilation_cache", True)
        ray._Worker(Records.of(shards(tmp_path)), COUNTER)
        assert not jax.config.jax_enable_compilation_cache
    finally:
        jax.config.update("jax_enable_compilation_cache", kept)


@pytest.fixture(scope="module")
def two_machines():
    """Address of a cluster of two machines with a core each, and a head that only directs."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=2**27)
    yield cluster.address
    cluster.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("raylet", [False, True], ids=["worker", "machine"])
def test_a_killed_process_changes_nothing_and_costs_once(tmp_path, two_machines, raylet):
    given = settings(tmp_path, engine="ray", address=two_machines)
    mark = tmp_path / "mark"
    plan = planning.prepare(given, shards(tmp_path, FatalShard, mark=str(mark), raylet=raylet))
    votes = label.count(plan)
    assert mark.exists()
    expected = counting.count_all(Records.of(shards(tmp_path)), plan.counter)
    np.testing.assert_array_equal(votes.counts, expected.counts)
    assert (votes.rows, votes.dataset) == (SHARDS * ROWS, expected.dataset)
    label.release(plan, votes)
    assert float(Ledger.open(given.ledger_path).spent.epsilon) == 1.0


@pytest.mark.slow
def test_a_shard_that_cannot_be_read_ends_the_job_and_nothing_is_spent(tmp_path):
    given = settings(tmp_path, engine="ray")
    plan = planning.prepare(given, shards(tmp_path, BrokenShard))
    with pytest.raises(ValueError, match=r"5\.npz is damaged.*Nothing was spent"):
        label.count(plan)
    assert not given.ledger_path.exists()


STRANGER = """
import sys
import tempfile
from ray._raylet import GcsClient
keys = GcsClient(address=sys.argv[1]).internal_kv_keys(b"", b"fun", timeout=5)
print("read", len(keys))
"""


class Visited:
    """Worker that sees another program, without the token, call the cluster."""

    def __call__(self, row):
        import ray

        place = ray.get_runtime_context().gcs_address
        plain = {name: text for name, text in os.environ.items() if "RAY_AUTH" not in name}
        command = [sys.executable, "-c", STRANGER, place]
        done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=60)
        return {"number": row["number"], "said": done.stdout + done.stderr}


@pytest.mark.slow
def test_a_cluster_on_this_machine_takes_no_call_of_a_stranger():
    """Its servers listen on all addresses, and who may call them can run code in the workers."""
    before = {name: text for name, text in os.environ.items() if "RAY_AUTH" in name}
    (found,) = ray_map.results(Visited, (), 1, None)
    assert "InvalidAuthToken" in found["said"]
    assert "read" not in found["said"].split()
    assert {name: text for name, text in os.environ.items() if "RAY_AUTH" in name} == before


@pytest.mark.slow
def test_a_simulation_on_machines_is_that_of_one(two_machines):
    mechanism = Collision(1.0, 5, 3, num_neighbors=2)
    clients = simulate.CLIENTS_AT_ONCE + 1000
    far = simulate.simulate_on_ray(mechanism, clients, 7, two_machines)
    near = simulate.simulate(mechanism, clients, seed=7)
    assert (far.mse, far.bias_z) == (near.mse, near.bias_z)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hog", "pca", "pretrained"])
def test_features_on_the_machines_are_those_of_this_one(tmp_path, two_machines, kind):
    """To the last bit, which would move a vote between two queries that are equally far."""
    name = next(one for one in IDS if one.startswith(kind))
    encode, images = fitted(name), MANY[2:82]
    queries = queries_beside(np.asarray(encode(images)))
    tally = VoteTally(queries, 2)
    counter = Counter(tally, Classes(2), Encoding(encode, images[:1], queries.shape[1]))
    found = []
    for start in range(0, 80, 20):
        path = tmp_path / f"{start}.npz"
        np.savez(path, images=images[start : start + 20], labels=np.arange(20) % 2)
        columns = Columns(("images",), raw=True)
        found.append(FileShard(str(path), "--private", columns))
    records = Records.of(found)
    near = counting.count_all(records, counter)
    far = engines.named("ray").count_all(records, counter, address=two_machines)
    assert near.counts.sum() == 80
    np.testing.assert_array_equal(near.counts, far.counts)


@pytest.mark.slow
def test_images_are_encoded_and_persons_bounded_on_the_machines(tmp_path, two_machines):
    """Seven persons have records in both shards."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (90, 8, 8, 1)).astype(np.uint8)
    np.savez(tmp_path / "images.npz", images=pictures[:30])
    (tmp_path / "R").mkdir()
    for start in (30, 60):
        part = {"images": pictures[start : start + 30], "who": rng.integers(0, 7, 30)}
        np.savez(tmp_path / f"R/{start}.npz", labels=np.arange(30) % 3, **part)
    given = {"public": str(tmp_path / "images.npz"), "private": str(tmp_path / "R")}
    given |= {"representation": "pca", "embedding": ("images",), "person": "who"}
    near = planning.prepare(settings(tmp_path, **given))
    far = planning.prepare(settings(tmp_path, **given, engine="ray", address=two_machines))
    votes = [label.count(plan) for plan in (near, far)]
    np.testing.assert_array_equal(votes[0].counts, votes[1].counts)
    assert votes[0].dataset == votes[1].dataset
    assert votes[1].persons == 7
    assert votes[1].counts.sum() == 7 * votes[1].grid


class Warned:
    """Worker that warns of a private record, and tells where its log is and who may look for it."""

    def __call__(self, row):
        warnings.warn(f"SECRET of piece {row['number']}", stacklevel=2)
        log = Path("/proc/self/fd/2").resolve()
        return row | {"log": str(log), "modes": [above.stat().st_mode for above in log.parents]}


@pytest.mark.slow
def test_warnings_of_a_worker_are_its_owners_and_in_no_log(two_machines):
    """A cluster's logs are readable by everybody on its machines, and stay."""
    with pytest.warns(UserWarning, match="SECRET of piece 0"):
        (row,) = ray_map.results(Warned, (), 1, two_machines)
    logs = [path for path in Path(row["log"]).parent.rglob("*") if path.is_file()]
    assert logs
    assert not [path for path in logs if b"SECRET of piece" in path.read_bytes()]


def test_a_folder_for_a_cluster_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"in RAY_TMPDIR, got .*none: No such file"):
        ray_map._own_folder()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:SECRET")
@pytest.mark.parametrize("given", [False, True])
def test_files_of_a_cluster_on_this_machine_are_its_owners_and_do_not_stay(monkeypatch, given):
    """Votes of a shard are among them, where the memory of the cluster is too small."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # Ray's sockets want a short path
        if given:
            Path(place).chmod(0o777)
            monkeypatch.setenv("RAY_TMPDIR", place)
        (row,) = ray_map.results(Warned, (), 1, None)
        assert (place in row["log"]) == given
        assert 0o700 in [stat.S_IMODE(mode) for mode in row["modes"]]
        assert not Path(row["log"]).parent.exists()
        assert not os.listdir(place)
