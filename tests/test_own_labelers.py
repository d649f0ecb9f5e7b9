"""Labelers of one's own: what is planned runs at every door, or is refused before it is paid."""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from rknn_jax import labelers
from rknn_jax.cli import federation, label
from rknn_jax.federation import connection as connections
from rknn_jax.federation import hosting, wire
from rknn_jax.federation.agreement import Agreement, RefusedError
from rknn_jax.federation.client import Client
from rknn_jax.federation.rounds import Round
from rknn_jax.federation.settings import Serve, asked
from rknn_jax.labelers.prototypes import Prototypes
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release import choosing
from rknn_jax.release.estimator import ReverseKNNLabeler
from rknn_jax.release.settings import Settings
from rknn_jax.types import Queries, Records
from tests.options import named_settings
from tests.test_federation_http import HERE, free_port, side_by_side

HEAD = """
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import numpy as np

from rknn_jax.labelers._class_sums import SumsLabeler
from rknn_jax.labelers._votes import VoteTally
from rknn_jax.labelers.prototypes import class_means
from rknn_jax.labelers.rknn import ReverseKNN


@dataclass(frozen=True)
class Own({base}):
{body}
"""

SHIFTED_VOTES = """
    def tally(self, queries, num_classes, bound=None, labels_per_record=0):
        return Shifted(queries.features, num_classes, self.num_neighbors, self.metric, bound)


class Shifted(VoteTally):
    def parts(self, points, ids):
        return super().parts(points, next_class(ids, self.num_classes))

    def total(self, points, ids):
        return super().total(points, next_class(ids, self.num_classes))


def next_class(ids, num_classes):
    ids = np.asarray(ids)
    return np.where(ids < 0, ids, (ids + 1) % num_classes)
"""

SHIFTED_ANSWERS = """
    def read(self, counts, stddev, guarantee, queries):
        return super().read(np.roll(counts, 1, axis=1), stddev, guarantee, queries)
"""

NEAREST_MEAN = """
    flipped: bool = False

    def solve(self, noisy, spectrum):
        means, _ = class_means(noisy, spectrum)
        sign = -1.0 if self.flipped else 1.0
        return sign * means.T, -sign * (means**2).sum(axis=1) / 2, "softmax"
"""

CONTRIBUTES = """
    def contribute(self, key, private, encode, queries, num_classes):
        private = replace(private, labels=(np.asarray(private.labels) + 1) % num_classes)
        return super().contribute(key, private, encode, queries, num_classes)
"""

RELEASES = """
    def release(self, key, contribution, queries, num_classes, predicted=None):
        return super().release(key, contribution, queries, num_classes)
"""

UNDONE = """
    pass
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A function that adds a labeler of one's own to the folder of labelers."""
    folder = tmp_path / "labelers"
    folder.mkdir()
    monkeypatch.setattr(labelers, "__path__", [*labelers.__path__, str(folder)])
    made = []

    def add(body, base="ReverseKNN", name="own"):
        (folder / f"{name}.py").write_text(HEAD.format(base=base, body=body))
        made.append(name)
        return labelers.named(name)

    yield add
    for name in made:
        sys.modules.pop(f"rknn_jax.labelers.{name}", None)
        if hasattr(labelers, name):
            delattr(labelers, name)


@pytest.fixture
def files(tmp_path):
    """Three far groups of rows, each of a class, as public and private files."""
    group = np.arange(90) % 3
    rows = (8 * np.eye(3)[group] + np.random.default_rng(0).normal(size=(90, 3))).astype(np.float32)
    np.savez(tmp_path / "P.npz", embeddings=rows[:30])
    np.savez(tmp_path / "R.npz", embeddings=rows[30:], labels=group[30:], who=np.arange(60))
    return tmp_path, group


def settings_of(folder, **given):
    usual = {"epsilon": 20.0, "classes": "3", "labeler": "own", "out": folder / "out"}
    return named_settings(Settings, str(folder / "P.npz"), str(folder / "R.npz"), **(usual | given))


def serve_of(folder, **given):
    usual = {"epsilon": 20.0, "classes": "3", "clients": 3, "labeler": "own"}
    usual |= {"trust": "central", "student": "none", "out": folder / "served"}
    return named_settings(Serve, folder / "P.npz", **(usual | given))


def simulated(kind, files):
    """Labels of the queries in simulation, where each group is one query."""
    folder, group = files
    with np.load(folder / "P.npz") as public, np.load(folder / "R.npz") as private:
        rows, points = public["embeddings"], private["embeddings"]
    queries = Queries(rows[:3], np.arange(3), group[:30], np.full(3, 10))
    records = Records(points, group[30:].astype(np.int32))
    key = jax.random.key(0)
    labeler = kind(epsilon=20.0)
    made = labeler.contribute(key, records, np.asarray, queries, 3)
    return labeler.release(key, made, queries, 3).labels


@pytest.mark.long
@pytest.mark.parametrize("person", [None, "who"])
@pytest.mark.parametrize("body", [SHIFTED_VOTES, SHIFTED_ANSWERS], ids=["tally", "read"])
def test_what_a_subclass_changes_runs_in_a_release_and_its_statement_names_it(
    files, write, body, person
):
    folder, group = files
    kind = write(body)
    np.testing.assert_array_equal(simulated(kind, files), [1, 2, 0])
    given = settings_of(folder, queries=3, person=person)
    told = label.run(given)
    assert told["labeler"] == "own"
    with np.load(folder / "out/labels.npz") as found:
        np.testing.assert_array_equal(found["label"], (group[:30] + 1) % 3)
    assert json.loads((folder / "out/privacy.json").read_text())["labeler"] == "own"
    dry = label.run(dataclasses.replace(given, dry_run=True, out=None, epsilon=1.0))
    assert dry["expected"] is None, "no other labeler is simulated in its place"


def test_what_a_subclass_changes_runs_in_the_estimator(files, write):
    folder, group = files
    write(SHIFTED_ANSWERS)
    with np.load(folder / "P.npz") as public, np.load(folder / "R.npz") as private:
        rows, points = public["embeddings"], private["embeddings"]
    ledger = folder / "e.jsonl"
    own = ReverseKNNLabeler(20.0, classes=[0, 1, 2], ledger=ledger, n_queries=3, labeler="own")
    found = own.fit(rows).label(points, group[30:])
    np.testing.assert_array_equal(found, (group[:30] + 1) % 3)
    assert own.card_["labeler"] == "own"


def test_what_a_subclass_changes_runs_at_a_client(files, write):
    folder, group = files
    write(SHIFTED_VOTES)
    config = asked(serve_of(folder, trust="local")).config
    with np.load(folder / "R.npz") as private:
        points = private["embeddings"]
    round = Round.of(Round(points[:3], ("a", "b", "c"), config).data)
    shifted = round.contribute(points, group[30:].astype(np.int32))
    plain = Round(
        points[:3], ("a", "b", "c"), asked(serve_of(folder, labeler="rknn", trust="local")).config
    )
    usual = plain.contribute(points, group[30:].astype(np.int32))
    np.testing.assert_array_equal(shifted // 3, usual // 3)
    np.testing.assert_array_equal(shifted % 3, (usual % 3 + 1) % 3)


REFUSED = [
    (CONTRIBUTES, "ReverseKNN", "has its own contribute in place of tally and read"),
    (RELEASES, "ReverseKNN", "has its own release"),
    (CONTRIBUTES + RELEASES, "ReverseKNN", "its own contribute and release"),
    (CONTRIBUTES, "SumsLabeler", "has its own contribute"),
    (NEAREST_MEAN + RELEASES, "SumsLabeler", "has its own release"),
    (UNDONE, "SumsLabeler", "lacks solve"),
]
OF_MANY = "    trust: str = 'shuffle'\n"


@pytest.mark.parametrize(("body", "base", "reason"), REFUSED)
def test_what_only_simulation_can_run_is_refused_before_anything_is_paid(
    files, write, body, base, reason
):
    folder, _ = files
    write(body, base)
    assert "own" not in choosing.names()
    for dry_run in (True, False):
        with pytest.raises(ValueError, match=f"got labeler own, which .*{reason}"):
            label.run(settings_of(folder, dry_run=dry_run))
        with pytest.raises(ValueError, match=f"got labeler own, which .*{reason}"):
            federation.serve(serve_of(folder, dry_run=dry_run))
    own = ReverseKNNLabeler(1.0, classes=[0, 1, 2], ledger=folder / "e.jsonl", labeler="own")
    with pytest.raises(ValueError, match=reason):
        own.fit(np.eye(3)).label(np.eye(3), [0, 1, 2])
    assert {path.name for path in folder.iterdir()} == {"P.npz", "R.npz", "labelers"}


def test_a_curator_releases_under_no_other_trust(files, write):
    """A statement would say that somebody else shuffled the votes."""
    folder, _ = files
    write(OF_MANY)
    with pytest.raises(ValueError, match="labeler own, which needs other parties, with trust=shu"):
        label.run(settings_of(folder))


def test_an_exact_release_of_what_only_simulation_can_run_charges_nothing(files, write):
    kind = write(CONTRIBUTES.replace("+ 1", "+ 0") + NEAREST_MEAN, "SumsLabeler")
    folder, group = files
    with np.load(folder / "R.npz") as private:
        points = private["embeddings"]
    records = Records(points, group[30:].astype(np.int32))
    queries = Queries.alone(points, np.arange(len(points)))
    made = kind().contribute(jax.random.key(0), records, np.asarray, queries, 3)
    ledger = Ledger.create(folder / "x.jsonl", "a data set", 2.0, 1e-4)
    with pytest.raises(ValueError, match="its own contribute; nothing was charged"):
        kind().release_exact(made, queries, ledger, "a test")
    assert ledger.spent.epsilon == 0


def test_simulation_runs_what_it_alone_can_run(files, write):
    np.testing.assert_array_equal(simulated(write(CONTRIBUTES), files), [1, 2, 0])


def test_sets_are_for_the_labeler_that_reads_them(files, write):
    folder, _ = files
    write(SHIFTED_ANSWERS)
    with pytest.raises(ValueError, match="labeler rknn with labels_per_record 2"):
        label.run(settings_of(folder, labels_per_record=2))
    with pytest.raises(ValueError, match="labeler=rknn with labels_per_record=2"):
        federation.serve(serve_of(folder, trust="local", labels_per_record=2, dry_run=True))


def test_settings_that_a_subclass_fixes_are_what_runs(files, write):
    folder, _ = files
    write("    mechanism: str = 'gaussian'\n")
    with pytest.raises(ValueError, match="delta > 0 with labeler own mechanism gaussian"):
        label.run(settings_of(folder, queries=3))
    told = label.run(settings_of(folder, queries=3, delta=1e-5))
    assert told["mechanism"] == "gaussian"
    write("    @property\n    def noise(self):\n        return 'discrete_laplace'\n", name="fixed")
    with pytest.raises(ValueError, match="mechanism discrete_laplace with labeler fixed"):
        label.run(settings_of(folder, labeler="fixed", mechanism="permute_and_flip"))


# Questions


@pytest.mark.parametrize("base", ["ReverseKNN", "SumsLabeler"])
def test_a_labeler_of_a_file_travels_with_its_settings(write, base):
    kind = write(NEAREST_MEAN if base == "SumsLabeler" else "    own: bool = False\n", base)
    labeler = dataclasses.replace(
        kind(epsilon=2.0), **{"flipped" if base == "SumsLabeler" else "own": True}
    )
    assert wire.unpack(wire.pack(labeler)) == labeler


def test_a_client_without_the_file_refuses_and_spends_nothing(files, write, monkeypatch):
    folder, group = files
    kind = write(NEAREST_MEAN, "SumsLabeler")
    with np.load(folder / "R.npz") as private:
        points = private["embeddings"]
    data = Round(points[:4], ("a", "b", "c"), kind(1.0, 1e-5), honest=3).data
    monkeypatch.setattr(labelers, "__path__", labelers.__path__[:1])
    ledger = Ledger.create(folder / "l.jsonl", fingerprint(points), 2.0, 1e-4)
    client = Client(points, group[30:], ledger, folder / "rounds", Agreement("central"))
    with pytest.raises(RefusedError, match="the class rknn_jax.labelers.own:Own"):
        client.ready(data)
    assert ledger.spent.epsilon == 0


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("rknn_jax.labelers.own:Other", {}),
        ("rknn_jax.labelers.own:SumsLabeler", {}),
        ("rknn_jax.labelers.own:Path", {}),
        ("rknn_jax.labelers.pate:PATE", {}),
        ("rknn_jax.labelers._class_sums:SumsLabeler", {}),
        ("rknn_jax.labelers:Labeled", {}),
        ("rknn_jax.labelers.rknn.mine:ReverseKNN", {}),
        ("rknn_jax.release.settings:Settings", {}),
        ("pathlib:Path", {}),
        ("rknn_jax.labelers.own:Own", {"flipped": 1}),
        ("rknn_jax.labelers.own:Own", {"flipped": None}),
        ("rknn_jax.labelers.own:Own", {"epsilon": "1"}),
        ("rknn_jax.labelers.own:Own", {"unheard": 1}),
        ("rknn_jax.labelers.own:Own", {"unit": "person"}),
        ("rknn_jax.labelers.own:Own", {"relation": "neither"}),
        ("rknn_jax.labelers.own:Own", {"epsilon": {"list": []}}),
    ],
)
def test_a_message_names_labelers_of_this_installation_with_sound_settings(write, name, fields):
    write(NEAREST_MEAN, "SumsLabeler")
    tree = json.dumps({"class": name, "fields": fields}).encode()
    data = len(tree).to_bytes(8, "little") + (2).to_bytes(8, "little") + tree + b"[]"
    with pytest.raises(ValueError, match="Expected a question"):
        wire.unpack(data)


def test_any_error_of_a_labelers_settings_is_a_refusal(write):
    write("    def __post_init__(self):\n        raise ZeroDivisionError\n")
    tree = json.dumps({"class": "rknn_jax.labelers.own:Own", "fields": {}}).encode()
    data = len(tree).to_bytes(8, "little") + (2).to_bytes(8, "little") + tree + b"[]"
    with pytest.raises(ValueError, match="Expected a question"):
        wire.unpack(data)


@pytest.mark.parametrize(
    "setting",
    [
        "    where: Path = Path()\n",
        "    sizes: tuple = (1, 2)\n",
        "    sizes: list = field(default_factory=list)\n",
        "    rule: object = None\n",
    ],
)
def test_what_cannot_travel_is_refused_by_the_dry_run_too(files, write, setting):
    folder, _ = files
    write(setting + NEAREST_MEAN, "SumsLabeler")
    for dry_run in (True, False):
        with pytest.raises(ValueError, match="default of a plain type for"):
            federation.serve(serve_of(folder, dry_run=dry_run))
    assert not (folder / "served").exists()


def test_a_labeler_without_gaussian_noise_is_refused_by_the_dry_run_too(files, write):
    folder, _ = files
    write("    mechanism: str = 'laplace'\n" + NEAREST_MEAN, "SumsLabeler")
    with pytest.raises(ValueError, match="mechanism=gaussian for a sum of clients"):
        federation.serve(serve_of(folder, dry_run=True))


@pytest.mark.long
def test_one_file_is_served_joined_and_published(files, write, monkeypatch):
    folder, group = files
    write(NEAREST_MEAN, "SumsLabeler")
    monkeypatch.setattr(connections, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(hosting, "GOODBYE", 0.3)
    with np.load(folder / "R.npz") as private:
        parts = [(private["embeddings"][i::3], private["labels"][i::3]) for i in range(3)]
    port = free_port()
    commands = [
        f"serve --public {folder}/P.npz --epsilon 20 --classes 3 --clients 3 --labeler own "
        f"--trust central --delta 1e-5 --port {port} --out {folder}/served"
    ]
    for number, (rows, labels) in enumerate(parts):
        np.savez(folder / f"R{number}.npz", embeddings=rows, labels=labels)
        commands.append(
            f"join --private {folder}/R{number}.npz --server {HERE}:{port} --budget 20 "
            f"--budget-delta 1e-5 --trust central"
        )
    assert len(set(side_by_side([line.split() for line in commands]))) == 1
    card = json.loads(Path(folder / "served/privacy.json").read_text())
    assert card["labeler"] == "own"
    with np.load(folder / "served/labels.npz") as found:
        assert np.mean(found["label"] == group[:30]) > 0.9


def test_pack_takes_no_class_that_the_registry_does_not_find():
    @dataclasses.dataclass(frozen=True)
    class Local(Prototypes):
        pass

    with pytest.raises(TypeError, match="Expected labelers"):
        wire.pack(Local())
    with pytest.raises(ValueError, match="Expected a labeler that can travel"):
        Round(np.eye(3, dtype=np.float32), ("a", "b"), Local(1.0, 1e-5), honest=3)
