"""One budget for the people of a data set, whatever becomes of its bits, its files and its name.

Commands are called as `rknn` calls them: `label.run` and `budget.adopt`.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tyro

import rknn_jax
from rknn_jax import ReverseKNNLabeler
from rknn_jax.cli import budget, label
from rknn_jax.cli.budget import Adopt, Raise, Show
from rknn_jax.formats import Columns
from rknn_jax.privacy import ledger_index, ledger_lines
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import (
    BudgetExceededError,
    DataSet,
    Ledger,
    LedgerCorruptError,
    LedgerError,
    LedgerMismatchError,
)
from rknn_jax.release import adoption, planning
from rknn_jax.release import label as job
from rknn_jax.release.settings import Settings
from tests.options import named_settings, with_options

ROWS = 200
DATA = "sha256:of-some-records"


def people(seed=0):
    """Return records of 3 classes, float32 `[n, 4]`, and their labels."""
    generator = np.random.default_rng(seed)
    labels = np.arange(ROWS) % 3
    rows = 8 * np.eye(3, 4)[labels] + generator.normal(size=(ROWS, 4))
    return rows.astype(np.float32), labels


def released(epsilon):
    event = Pure(epsilon)
    return Guarantee(epsilon, 0.0, "replace-one", "central", (event,), sampler="release")


@pytest.fixture(autouse=True, scope="module")
def index_of_module():
    """Leave the index as it is for users."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with public rows and private records, in which commands run."""
    monkeypatch.chdir(tmp_path)
    np.savez("P.npz", embeddings=people(9)[0][:50])
    rows, labels = people()
    np.savez("R.npz", embeddings=rows, labels=labels)
    return tmp_path


def release(private="R.npz", **changes):
    """Release labels by the function of `rknn label`."""
    given = {"public": "P.npz", "epsilon": 0.5, "queries": 3, "classes": "3"}
    given["out"] = Path(f"out{len(list(Path().glob('out*')))}")
    return label.run(named_settings(Settings, private=private, **given | changes))


def adopt(ledger="R.npz.ledger.jsonl", private="R2.npz", reason="embedded by model 2", **options):
    """Adopt by the function of `rknn budget adopt`."""
    return budget.adopt(named_settings(Adopt, Path(ledger), private, reason, **options))


def account(path="R.npz.ledger.jsonl"):
    return float(Ledger.open(path).spent.epsilon)


# Acceptance


@pytest.mark.long
def test_one_budget_survives_a_new_embedding_new_records_and_another_order(folder):
    rows, labels = people()
    release(budget=2)
    generator = np.random.default_rng(1)
    turned = (rows @ generator.normal(size=(4, 4))).astype(np.float32)
    changed = np.concatenate([rows[2:], people(5)[0][:2]])  # 1% removed, 1% new
    order = generator.permutation(ROWS)
    for number, new in enumerate((turned, changed, rows[order]), 1):
        np.savez("R2.npz", embeddings=new, labels=labels)
        with pytest.raises(LedgerMismatchError, match="rknn budget adopt"):
            release("R2.npz", ledger=Path("R.npz.ledger.jsonl"))
        adopt(reason=f"change {number}")
        release("R2.npz", ledger=Path("R.npz.ledger.jsonl"))
        assert account() == 0.5 * (number + 1)
    with pytest.raises(BudgetExceededError):
        release("R2.npz", ledger=Path("R.npz.ledger.jsonl"))
    with pytest.raises(BudgetExceededError):
        release()
    assert list(folder.glob("*.jsonl")) == [folder / "R.npz.ledger.jsonl"]
    adopt(reason="once more")
    kinds = [entry.kind for entry in Ledger.open("R.npz.ledger.jsonl").entries()]
    assert kinds.count("adopt") == 3, "what is known is not adopted again"


@pytest.mark.long
def test_the_error_names_the_ledger_and_its_command_adopts_what_was_refused(folder, capsys):
    """The columns of the private file have another order than the public ones."""
    names = ["d", "a", "c", "b"]
    rows, labels = people()
    public = people(9)[0][:50]
    pq.write_table(
        pa.table(dict(zip("abcd", public.T, strict=True)) | {"id": np.arange(50)}), "P.parquet"
    )
    columns = dict(zip(names, 2 * rows[:, [3, 0, 2, 1]].T, strict=True))
    pq.write_table(pa.table(columns | {"of": labels, "id": np.arange(ROWS)}), "new data.parquet")
    given = {"public": "P.parquet", "label": "of", "ledger": Path("R.npz.ledger.jsonl")}
    given["drop"] = ("id",)
    release(budget=1)
    with pytest.raises(LedgerMismatchError) as caught:
        release("new data.parquet", **given)
    words = str(caught.value)
    assert "R.npz.ledger.jsonl, which is the ledger of another data set" in words
    assert not re.search(r"create|new (ledger|budget)|--budget", words)
    command = shlex.split(words[words.index("rknn budget adopt") :].replace("TEXT", "'the same'"))
    options = tyro.cli(budget.Budget, args=command[2:], config=(tyro.conf.OmitArgPrefixes,))
    budget.adopt(options.action)
    release("new data.parquet", **given)
    assert account() == 1.0


@pytest.mark.long
@pytest.mark.parametrize("how", ["copy", "hard link", "symbolic link to a copy", "another name"])
def test_a_second_budget_for_records_of_a_ledger_is_refused_on_any_path(folder, how):
    release(budget=1)
    options = {}
    if how == "hard link":
        os.link("R.npz", "R2.npz")
    elif how == "another name":
        os.symlink("R.npz", "R2.npz")
        options = {"ledger": Path("other.jsonl")}
    else:
        Path("copy.npz").write_bytes(Path("R.npz").read_bytes())
        os.symlink("copy.npz", "R2.npz")
    before = sorted(os.listdir())
    with pytest.raises(LedgerMismatchError) as caught:
        release("R2.npz", **options)
    own = folder / "R.npz.ledger.jsonl"
    assert f"Expected the ledger of these records, {own}, got no ledger yet" in str(caught.value)
    assert f"pass ledger {own}" in str(caught.value)
    assert sorted(os.listdir()) == before
    assert account() == 0.5
    release("R2.npz", ledger=own)
    assert account() == 1.0


def test_public_rows_that_are_the_private_ones_are_warned_of(folder, capsys):
    np.savez("copy.npz", embeddings=people()[0])
    release(public="copy.npz")
    assert "The public rows are the private ones" in " ".join(capsys.readouterr().err.split())


@pytest.mark.long
def test_a_copied_ledger_is_no_second_budget_and_a_moved_one_is_the_same(folder):
    release(budget=1.5)
    home = Path("R.npz.ledger.jsonl")
    copy = Path("copy.jsonl")
    copy.write_bytes(home.read_bytes())
    with pytest.raises(LedgerMismatchError, match=r"got copy\.jsonl"):
        release(ledger=copy)
    assert account(copy) == 0.5
    home.unlink()
    release(ledger=copy)
    os.rename(copy, home)
    release()
    assert account() == 1.5


@pytest.mark.long
def test_adopted_data_have_one_ledger_too(folder):
    release(budget=1)
    np.savez("R2.npz", embeddings=2 * people()[0], labels=people()[1])
    adopt()
    with pytest.raises(LedgerMismatchError, match="pass ledger"):
        release("R2.npz")
    np.savez("R3.npz", embeddings=people(3)[0], labels=people()[1])
    release("R3.npz")
    with pytest.raises(LedgerMismatchError, match=r"Expected the ledger .*R3\.npz\.ledger\.jsonl"):
        adopt(private="R3.npz")
    assert len(Ledger.open("R.npz.ledger.jsonl").datasets) == 2


# Adoption


def test_data_that_share_nothing_need_the_flag_and_a_reason(folder):
    release()
    np.savez("R2.npz", embeddings=people(3)[0][:150], labels=people()[1][:150])
    before = Path("R.npz.ledger.jsonl").read_bytes()
    for options, words in (({}, "unrelated"), ({"unrelated": True, "reason": " "}, "reason")):
        with pytest.raises(LedgerError, match=words):
            adopt(**options)
    assert Path("R.npz.ledger.jsonl").read_bytes() == before
    adopt(unrelated=True)
    assert [data.rows for data in Ledger.open("R.npz.ledger.jsonl").datasets] == [200, 150]


def test_the_command_needs_a_reason(folder, capsys):
    with pytest.raises(SystemExit):
        tyro.cli(Adopt, args=["R.npz.ledger.jsonl", "--private", "R2.npz"])
    assert "--reason" in capsys.readouterr().err


def test_a_shard_in_common_is_seen_and_the_lowest_are_kept(tmp_path):
    ledger = Ledger.create(tmp_path / "L", "sha256:a", 1, rows=7)
    grown = DataSet("sha256:b", 9, ("sha256:a", "sha256:new"))
    ledger.adopt(grown, "one more file")
    many = tuple(f"sha256:{number:04d}" for number in range(2000))
    ledger.adopt(DataSet("sha256:c", 1000, ("sha256:new", *many)), "many small files")
    assert ledger.datasets[2].shards == many[: ledger_lines.MOST_SHARDS]
    ledger.adopt(DataSet("sha256:d", 1001, many[5:]), "five removed")
    with pytest.raises(LedgerMismatchError, match="share neither"):
        ledger.adopt(DataSet("sha256:e", None, many[1000:]), "others")
    assert [data.fingerprint[-1] for data in ledger.datasets] == list("abcd")


def test_an_adoption_costs_nothing_and_is_recorded_once(tmp_path):
    ledger = Ledger.create(tmp_path / "clinic.ledger.jsonl", DATA, 1)
    ledger.charge(released(0.3), "one")
    first = ledger.adopt(DataSet("sha256:new"), "embedded anew", unrelated=True)
    assert ledger.adopt(DataSet("sha256:new"), "again") == first
    assert ledger.adopt(DataSet(DATA), "the first").kind == "create"
    assert (first.kind, first.amount, first.purpose) == ("adopt", (0, 0), "embedded anew")
    assert ledger.spent.epsilon == ledger.budget.epsilon * 3 / 10
    Ledger.open(ledger.path, "sha256:new").charge(released(0.7), "the rest")
    for dataset in (DATA, "sha256:new"):
        with pytest.raises(BudgetExceededError):
            Ledger.open(ledger.path, dataset).charge(released(0.1), "too much")


def test_a_ledger_keeps_its_name_if_the_file_is_renamed(tmp_path):
    for name, expected in ((None, "clinic"), ("Ward 3, März", "Ward 3, März")):
        ledger = Ledger.create(tmp_path / "clinic.ledger.jsonl", DATA, 1, name=name)
        assert ledger.name == expected
        assert Ledger(ledger.path.rename(tmp_path / "other"), None).name == expected


@pytest.mark.parametrize("suffix", ["npz", "parquet", "csv"])
def test_a_fingerprint_without_queries_is_that_of_a_release(folder, suffix):
    """Rows that no release can use change nothing in that."""
    rows, labels = people()
    rows[3] = np.nan
    rows[5, 1] = np.inf
    Path("many").mkdir()
    for number, part in enumerate((slice(0, 70), slice(70, ROWS), slice(0, 0))):
        name = f"many/{number}.{suffix}"
        table = pa.table(dict(zip("abcd", rows[part].T, strict=True)) | {"labels": labels[part]})
        if suffix == "npz":
            np.savez(name, embeddings=rows[part].astype(np.float64), labels=labels[part])
        elif suffix == "csv":
            table.to_pandas().to_csv(name, index=False)
        else:
            pq.write_table(table, name)
    for private in (f"many/0.{suffix}", "many"):
        settings = named_settings(
            Settings, "P.npz", private, 0.5, queries=3, classes="3", ledger=Path("L")
        )
        votes = job.count(planning.prepare(settings))
        found = adoption.data_set([private], Columns())
        assert (found.fingerprint, found.rows) == (votes.dataset, votes.rows)
        assert len(found.shards) == (2 if private == "many" else 0)  # of three, one has no rows


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_records_are_the_same_data_set_with_labels_and_without(folder, suffix):
    """Labels may be in another file, and are no part of a fingerprint."""
    rows, labels = people()
    columns = dict(zip("abcd", rows.T, strict=True))
    for name, more in (("with", {"labels": labels}), ("without", {})):
        table = pa.table(columns | more)
        if suffix == "npz":
            np.savez(f"{name}.npz", embeddings=rows.astype(np.float64), **more)
        elif suffix == "csv":
            table.to_pandas().to_csv(f"{name}.csv", index=False)
        else:
            pq.write_table(table, f"{name}.parquet")
    first, second = (
        adoption.data_set([f"{name}.{suffix}"], Columns()) for name in ("with", "without")
    )
    assert first == second


def test_raw_records_are_adopted_as_they_are(folder):
    images = np.random.default_rng(0).integers(0, 256, (20, 4, 4, 1), dtype=np.uint8)
    np.savez("raw.npz", images=images, labels=np.zeros(20))
    release()
    adopt(private="raw.npz", embedding=("images",), representation="own:code", unrelated=True)
    assert Ledger.open("R.npz.ledger.jsonl").datasets[1].fingerprint == fingerprint(images)


def test_show_lists_the_name_and_the_data_sets_with_dates_and_reasons(folder, capsys):
    release()
    np.savez("R2.npz", embeddings=2 * people()[0], labels=people()[1])
    adopt(reason="March export, model 2")
    capsys.readouterr()
    told = budget.show(Show(Path("R.npz.ledger.jsonl")))
    shown = capsys.readouterr().out
    assert told["name"] == "R.npz"
    assert [one["reason"] for one in told["datasets"]] == ["the first one", "March export, model 2"]
    assert re.search(r"data set +March export, model 2, since \d{4}-\d\d-\d\dT", shown)
    assert not any(
        data.fingerprint[7:] in shown + json.dumps(told, default=str)
        for data in Ledger.open("R.npz.ledger.jsonl").datasets
    )


# Old and damaged ledgers


OLD = (
    '{"dataset":"%s","delta":"0","epsilon":"2","format":"rknn-jax privacy ledger 1",'
    '"kind":"create","purpose":"the first budget","relation":"replace-one",'
    '"salt":"00112233445566778899aabbccddeeff","time":"2026-10-01T00:00:00+00:00","unit":"record"}'
)


def test_a_ledger_of_an_older_version_is_read_charged_and_adopts(folder):
    """It has neither a name nor a number of rows."""
    path = Path("R.npz.ledger.jsonl")
    header = OLD % fingerprint(people()[0])
    path.write_bytes(ledger_lines.seal(header.encode(), "") + b"\n")
    release()
    assert account() == 0.5
    assert Ledger.open(path).name == "R.npz"
    np.savez("R2.npz", embeddings=2 * people()[0], labels=people()[1])
    with pytest.raises(LedgerMismatchError, match="unrelated"):
        adopt()
    adopt(unrelated=True)
    release("R2.npz", ledger=path)
    assert account() == 1.0


def test_a_program_that_knows_no_adoption_refuses_and_does_not_misread(tmp_path, monkeypatch):
    ledger = Ledger.create(tmp_path / "L", DATA, 1)
    ledger.adopt(DataSet("sha256:new"), "embedded anew", unrelated=True)
    old = tuple(kind for kind in ledger_lines.KINDS if kind != "adopt")
    monkeypatch.setattr(ledger_lines, "KINDS", old)
    before = ledger.path.read_bytes()
    for dataset in (DATA, "sha256:new"):
        with pytest.raises(LedgerCorruptError, match="Nothing can be spent"):
            Ledger(ledger.path, dataset).charge(released(0.1), "refused")
    assert ledger.path.read_bytes() == before


def test_an_adoption_cut_at_any_byte_adopts_nothing_and_leaves_no_more_than_before(tmp_path):
    ledger = Ledger.create(tmp_path / "L", DATA, 1, "0.01")
    ledger.charge(released(0.25), "one")
    truth = ledger.remaining
    before = ledger.path.read_bytes()
    ledger.adopt(DataSet("sha256:new", 5, ("sha256:x",)), "embedded anew", unrelated=True)
    line = ledger.path.read_bytes()[len(before) : -1]
    exact = 0
    for cut in range(1, len(line)):
        ledger.path.write_bytes(before + line[:cut])
        left = ledger.remaining
        assert left.epsilon <= truth.epsilon, f"cut at byte {cut}"
        assert left.delta <= truth.delta, f"cut at byte {cut}"
        exact += left == truth
        with pytest.raises(LedgerMismatchError):
            Ledger.open(ledger.path, "sha256:new")
    assert exact >= len(line) - 60, "a line that shows that it is free costs nothing"
    ledger.adopt(DataSet("sha256:new", 5), "again", unrelated=True)
    Ledger.open(ledger.path, "sha256:new").charge(released(0.75), "the rest")
    assert [entry.kind for entry in ledger.entries()][2:] == ["repair", "adopt", "spend"]


ODD = [{"fingerprint": None}, {"rows": "5"}, {"rows": True}, {"shards": "ab"}, {"shards": [1]}]


@pytest.mark.parametrize("change", ODD, ids=str)
def test_an_adoption_with_a_right_hash_and_odd_values_is_corrupt(tmp_path, change):
    ledger = Ledger.create(tmp_path / "L", DATA, 1)
    record = ledger_lines.adopted(DataSet("sha256:new", 5), "embedded anew") | change
    with ledger.path.open("ab") as file:
        file.write(ledger_lines.sealed(record, ledger.head) + b"\n")
    with pytest.raises(LedgerCorruptError):
        Ledger.open(ledger.path, DATA)


# The index


def test_the_index_says_nothing_of_the_data_and_is_the_users_alone(folder):
    release()
    index = ledger_index.folder()
    told = b"".join(os.fsencode(path.name) + path.read_bytes() for path in index.iterdir())
    assert index != Path.home() / ".local/state/rknn_jax/ledgers"
    dataset = Ledger.open("R.npz.ledger.jsonl").datasets[0].fingerprint
    assert dataset.removeprefix("sha256:").encode() not in told
    assert os.fsencode(folder / "R.npz.ledger.jsonl") in told
    modes = {path.stat().st_mode & 0o777 for path in index.iterdir()}
    assert modes == {0o600}
    names = {path.name for path in index.glob("*.json")}
    (index / "salt").write_bytes(bytes(32))
    with ledger_index.held(folder / "R.npz.ledger.jsonl", [dataset]):
        pass
    assert {path.name for path in index.glob("*.json")} - names, "another salt, another name"


def test_the_index_lies_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("RKNN_STATE_DIR", str(tmp_path / "own"))
    assert ledger_index.folder() == tmp_path / "own"
    monkeypatch.delenv("RKNN_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert ledger_index.folder() == tmp_path / "rknn_jax/ledgers"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ledger_index.folder() == tmp_path / ".local/state/rknn_jax/ledgers"


def test_a_ledger_that_is_gone_is_not_replaced_in_silence(folder):
    release()
    os.rename("R.npz.ledger.jsonl", "moved.jsonl")
    again = named_settings(Settings, "P.npz", "R.npz", 0.5, queries=3, classes="3", out=Path("o"))
    with pytest.raises(LedgerMismatchError, match=r"is gone or has.*new place by ledger"):
        job.release(planning.prepare(again))
    with np.load("R.npz") as whole:
        changed = {name: whole[name].copy() for name in ("embeddings", "labels")}
    changed["embeddings"][0] += 1
    np.savez("R.npz", **changed)
    with pytest.raises(LedgerMismatchError, match=r"changed since.*new place by ledger") as found:
        job.release(planning.prepare(again))
    assert not Path("R.npz.ledger.jsonl").exists()
    subprocess.run(str(found.value).split("these records alone: ")[1], shell=True, check=True)
    job.release(planning.prepare(again))
    assert account() == 0.5


@pytest.fixture
def ledger_of_others(folder):
    """Two ledgers, of which that of R.npz is spent."""
    with np.load("R.npz") as whole:
        others = {name: whole[name].copy() for name in ("embeddings", "labels")}
    others["embeddings"] = others["embeddings"][::-1] + 1
    np.savez("others.npz", **others)
    release()
    release(private="others.npz", ledger=Path("others.jsonl"), budget=9, out=Path("others"))


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("place", ["others.jsonl", "R.npz.ledger.jsonl"])
def test_a_ledger_of_others_adopts_no_records_whose_own_is_gone(ledger_of_others, place, changed):
    """It knows nothing of what was spent: twice the budget was, by the command that was told."""
    os.rename("R.npz.ledger.jsonl", "moved.jsonl")
    os.rename("others.jsonl", place)
    if changed:
        without_first()
    before = Path(place).read_bytes()
    with pytest.raises(LedgerMismatchError, match="does not know what was spent"):
        adopt(place, "R.npz", unrelated=True)
    if not changed:
        with pytest.raises(LedgerMismatchError, match="does not know what was spent"):
            release(ledger=Path(place))
    assert Path(place).read_bytes() == before
    adopt("moved.jsonl", "R.npz", unrelated=True)  # the one that is gone


def test_a_copy_of_a_ledger_adopts_no_changed_file_of_the_one_that_is_there(ledger_of_others):
    shutil.copy("R.npz.ledger.jsonl", "copy.jsonl")
    without_first()
    with pytest.raises(LedgerMismatchError, match=r"ledger of these records, .*/R\.npz\.ledger"):
        adopt("copy.jsonl", "R.npz", unrelated=True)
    os.rename("R.npz.ledger.jsonl", "moved.jsonl")
    adopt("copy.jsonl", "R.npz", unrelated=True)


@pytest.fixture
def moved(folder):
    """The ledger of R.npz and of R2.npz, which was moved and is used by R2.npz alone since."""
    release(budget=3)
    shutil.copy("R.npz.ledger.jsonl", "early.jsonl")
    np.savez("R2.npz", embeddings=people(5)[0] + 1, labels=people(5)[1])
    adopt("R.npz.ledger.jsonl", unrelated=True)
    os.rename("R.npz.ledger.jsonl", "moved.jsonl")
    release("R2.npz", ledger=Path("moved.jsonl"))


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize(
    ("name", "copy"),
    [("R.npz", "copy.jsonl"), ("R2.npz", "copy.jsonl"), ("R.npz", "early.jsonl")],
)
def test_a_copy_of_a_moved_ledger_is_no_ledger_of_what_is_on_it(moved, name, copy, changed):
    """Copy and ledger each had the whole budget for the data set that had not been asked for."""
    shutil.copy("moved.jsonl", "copy.jsonl")
    if changed:
        without_first(name)
        with pytest.raises(LedgerMismatchError, match=r"ledger .*moved\.jsonl"):
            adopt(copy, name)
        return
    with pytest.raises(LedgerMismatchError, match=r"ledger of these records, .*moved\.jsonl"):
        release(name, ledger=Path(copy))
    os.remove("moved.jsonl")
    release(name, ledger=Path(copy))


def test_a_copy_of_a_ledger_is_none_of_other_records_either(moved):
    shutil.copy("moved.jsonl", "copy.jsonl")
    np.savez("new.npz", embeddings=people(6)[0] + 2, labels=people(6)[1])
    with pytest.raises(LedgerMismatchError, match=r"ledger of these records, .*moved\.jsonl"):
        adopt("copy.jsonl", "new.npz")
    adopt("moved.jsonl", "new.npz", unrelated=True)


def test_a_part_of_records_is_told_where_their_ledger_is_though_it_was_moved(folder):
    data = DataSet("sha256:whole", 9, ("sha256:part", "sha256:rest"))
    other = DataSet("sha256:other", 5)
    with ledger_index.held(Path("L"), data.prints):
        ledger = Ledger.create("L", data.fingerprint, 1.0, rows=9, shards=data.shards)
    with ledger_index.held(Path("L"), other.prints, adopts=True):
        ledger.adopt(other, "the same people", unrelated=True)
    os.rename("L", "M")
    with ledger_index.held(Path("M"), other.prints):
        pass
    with pytest.raises(LedgerMismatchError, match=r"ledger of these records, .*/M, got no ledger"):
        ledger_index.check(Path("new"), ["sha256:part"])


def test_records_are_looked_up_as_earlier_versions_knew_them_too(folder):
    with ledger_index.held(Path("L"), ["sha256:joined"]):
        Ledger.create("L", "sha256:joined", 1.0)
    data = DataSet("sha256:whole", 9, ("sha256:part",))
    with pytest.raises(LedgerMismatchError, match="ledger of these records, .*L, got no ledger"):
        ledger_index.check(Path("new"), data.prints, formerly="sha256:joined")
    ledger_index.check(Path("L"), data.prints, formerly="sha256:joined")


def test_a_ledger_that_is_named_by_a_relative_path_is_that_at_its_place(folder):
    np.savez("e.npz", embeddings=np.zeros((0, 4)), labels=np.zeros(0, int))
    with ledger_index.held(Path("e.jsonl"), [], ["e.npz"]):
        Ledger.create("e.jsonl", "sha256:of-none", 1.0, relation="add-remove", rows=0)
    with ledger_index.held(Path("e.jsonl"), ["sha256:some"], ["e.npz"], adopts=True):
        Ledger.open("e.jsonl").adopt(DataSet("sha256:some", 3), "some came", unrelated=True)


def test_a_second_copy_that_is_in_use_is_told_of_also_once_the_file_has_changed(folder):
    release(budget=3)
    home = Path("R.npz.ledger.jsonl")
    os.rename(home, "moved.jsonl")
    release(ledger=Path("moved.jsonl"))
    shutil.copy("moved.jsonl", home)
    without_first()
    data = adoption.data_set(["R.npz"], Columns(reads_label=False))
    told = r"charged to .*moved\.jsonl as well as"
    with (
        pytest.warns(UserWarning, match=told),
        ledger_index.held(home, data.prints, ["R.npz"], adopts=True),
    ):
        Ledger.open(home).adopt(data, "one has left", unrelated=True)
    with pytest.warns(UserWarning, match=told):
        ledger_index.check(home, data.prints)


def test_a_process_that_is_killed_while_it_notes_leaves_no_half_of_a_data_set(folder, monkeypatch):
    whole, part = "sha256:whole", "sha256:part"
    ledger = Ledger.create("L", DATA, 3.0)
    note, noted = ledger_index._note, []

    def killed(place, path, dataset, of):
        if len(noted) == 1:
            raise KeyboardInterrupt
        noted.append(dataset)
        note(place, path, dataset, of)

    monkeypatch.setattr(ledger_index, "_note", killed)
    data = DataSet(whole, 9, (part,))
    with pytest.raises(KeyboardInterrupt), ledger_index.held(Path("L"), data.prints):
        ledger.adopt(data, "a part of it is noted", unrelated=True)
    monkeypatch.setattr(ledger_index, "_note", note)
    with ledger_index.held(Path("L"), [DATA]):
        pass
    for one in (whole, part):
        with pytest.raises(LedgerMismatchError, match="ledger of these records, .*L"):
            ledger_index.check(Path("new"), [one])


def test_a_damaged_entry_hides_no_other(folder):
    data = DataSet("sha256:whole", 9, ("sha256:part",))
    with ledger_index.held(Path("L"), data.prints):
        Ledger.create("L", data.fingerprint, 1.0, rows=9, shards=data.shards)
    index = ledger_index.folder()
    known = ledger_index._name((index / "salt").read_bytes(), data.fingerprint)
    (index / known).write_text("{")
    refused = partial(pytest.raises, LedgerMismatchError, match="ledger of these records")
    with refused():
        ledger_index.check(Path("new"), data.prints)
    with refused(), ledger_index.held(Path("new"), data.prints):
        pass
    with pytest.warns(UserWarning, match="index of ledgers cannot be used"):
        ledger_index.check(Path("L"), data.prints)


def test_files_without_a_record_are_not_those_of_one_another(folder):
    for name in ("a", "b"):
        np.savez(f"{name}.npz", embeddings=np.zeros((0, 4)), labels=np.zeros(0, int))
        data = adoption.data_set([f"{name}.npz"], Columns(reads_label=False), relation="add-remove")
        with ledger_index.held(Path(f"{name}.jsonl"), data.prints, [f"{name}.npz"]):
            Ledger.create(f"{name}.jsonl", data.fingerprint, 1.0, relation="add-remove", rows=0)


def test_a_changed_file_is_told_where_its_ledger_is_though_it_was_moved(moved):
    without_first("R.npz")
    with pytest.raises(LedgerMismatchError, match=r"are charged to, .*moved\.jsonl"):
        release(ledger=Path("new.jsonl"))


def test_forgetting_a_ledger_that_is_gone_forgets_none_of_others_in_its_place(ledger_of_others):
    os.remove("R.npz.ledger.jsonl")
    os.rename("others.jsonl", "R.npz.ledger.jsonl")
    release("others.npz", ledger=Path("R.npz.ledger.jsonl"))
    with pytest.raises(LedgerMismatchError, match="does not know what was spent") as found:
        release(ledger=Path("new.jsonl"))
    subprocess.run(str(found.value).split("these records alone: ")[1], shell=True, check=True)
    release(ledger=Path("new.jsonl"))
    without_first("others.npz")
    with pytest.raises(LedgerMismatchError, match=r"charged to, .*R\.npz\.ledger"):
        release("others.npz", ledger=Path("new2.jsonl"))


def test_a_damaged_entry_of_a_file_alone_is_a_warning(folder, capsys):
    release(budget=2)
    index = ledger_index.folder()
    known = ledger_index._name(
        (index / "salt").read_bytes(), Ledger.open("R.npz.ledger.jsonl").datasets[0][0]
    )
    for path in {*index.glob("*.json")} - {index / known}:
        path.write_text("{")
    without_first()
    release(ledger=Path("new.jsonl"))
    assert capsys.readouterr().err.count("index of ledgers cannot be used") == 1


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_a_ledger_at_the_place_of_another_one_is_not_that_one(ledger_of_others, changed, used):
    """A ledger is its records: another one that was charged at its place had its records too."""
    os.rename("R.npz.ledger.jsonl", "moved.jsonl")
    if used:
        Ledger.open("moved.jsonl").raise_budget(2, 0, "another release")
        release(ledger=Path("moved.jsonl"))
    os.rename("others.jsonl", "R.npz.ledger.jsonl")
    release(private="others.npz", ledger=Path("R.npz.ledger.jsonl"))
    if changed:
        without_first()
    with pytest.raises(LedgerMismatchError, match=r"moved\.jsonl" if used else "what was spent"):
        adopt("R.npz.ledger.jsonl", "R.npz", unrelated=True)
    adopt("moved.jsonl", "R.npz", unrelated=True)
    os.link("moved.jsonl", "linked.jsonl")
    without_first()
    adopt("linked.jsonl", "R.npz", unrelated=True)  # one file of two names


def test_a_link_to_a_ledger_that_is_gone_is_no_leave_for_another_one(ledger_of_others):
    os.rename("R.npz.ledger.jsonl", "moved.jsonl")
    os.symlink("gone.jsonl", "R.npz.ledger.jsonl")
    with pytest.raises(LedgerMismatchError, match=r"pass ledger \S*R\.npz\.ledger"):
        adopt("others.jsonl", "R.npz", unrelated=True)


@pytest.mark.parametrize("moved", [False, True])
def test_an_index_of_an_earlier_version_knows_a_ledger_by_places_of_its_records(
    ledger_of_others, moved
):
    for entry in ledger_index.folder().glob("*.json"):
        entry.write_text(json.dumps({"ledgers": json.loads(entry.read_text())["ledgers"]}))
    own = Path("R.npz.ledger.jsonl")
    if moved:
        own = own.rename("moved.jsonl")
        os.rename("others.jsonl", "R.npz.ledger.jsonl")
    without_first()
    with pytest.raises(LedgerMismatchError):
        adopt("R.npz.ledger.jsonl" if moved else "others.jsonl", "R.npz", unrelated=True)
    adopt(str(own), "R.npz", unrelated=True)


def test_what_an_earlier_version_noted_is_kept_when_more_is_noted(ledger_of_others):
    """A file held the records of two ledgers, one after the other."""
    for entry in ledger_index.folder().glob("*.json"):
        entry.write_text(json.dumps({"ledgers": json.loads(entry.read_text())["ledgers"]}))
    shutil.copy("R.npz", "first.npz")
    shutil.copy("others.npz", "R.npz")
    release(ledger=Path("others.jsonl"))
    os.rename("others.jsonl", "moved.jsonl")
    shutil.copy("first.npz", "R.npz")
    without_first()
    with pytest.raises(LedgerMismatchError, match=r"charged to, .*/R\.npz\.ledger"):
        adopt("moved.jsonl", "R.npz", unrelated=True)
    adopt("R.npz.ledger.jsonl", "R.npz", unrelated=True)


def test_an_index_of_an_earlier_version_knows_the_places_of_a_file(ledger_of_others):
    for entry in ledger_index.folder().glob("*.json"):
        entry.write_text(json.dumps({"ledgers": json.loads(entry.read_text())["ledgers"]}))
    without_first()
    with pytest.raises(LedgerMismatchError, match=r"charged to, .*/R\.npz\.ledger"):
        adopt("others.jsonl", "R.npz", unrelated=True)
    adopt("R.npz.ledger.jsonl", "R.npz", unrelated=True)


def without_first(name="R.npz"):
    """Leave the first record out of a file."""
    with np.load(name) as whole:
        rest = {part: whole[part][1:] for part in ("embeddings", "labels")}
    np.savez(name, **rest)


def test_a_shard_of_known_records_has_their_ledger(folder):
    os.mkdir("parts")
    with np.load("R.npz") as whole:
        rows = {name: whole[name] for name in ("embeddings", "labels")}
    for i, part in enumerate(np.array_split(np.arange(len(rows["labels"])), 2)):
        np.savez(f"parts/{i}.npz", **{name: values[part] for name, values in rows.items()})
    given = named_settings(
        Settings, "P.npz", "parts", 0.5, queries=3, classes="3", ledger=Path("people.jsonl")
    )
    job.release(planning.prepare(replace(given, out=Path("a"))))
    alone = with_options(given, private="parts/0.npz", ledger=None, out=Path("b"))
    with pytest.raises(LedgerMismatchError, match=r"people\.jsonl"):
        job.release(planning.prepare(alone))


def damage_entry(index):
    for path in index.glob("*.json"):
        path.write_text("{")


def odd_entry(index):
    for path in index.glob("*.json"):
        path.write_text('{"ledgers": [5]}')


def short_salt(index):
    (index / "salt").write_bytes(b"short")


def no_salt(index):
    (index / "salt").unlink()


def no_folder(index):
    for path in index.iterdir():
        path.unlink()
    index.rmdir()
    index.write_text("a file")


@pytest.mark.parametrize("damage", [damage_entry, odd_entry, short_salt, no_salt, no_folder])
def test_a_damaged_index_is_a_warning_and_loses_no_release(folder, damage):
    release(budget=2)
    damage(ledger_index.folder())
    plan = planning.prepare(
        named_settings(Settings, "P.npz", "R.npz", 0.5, queries=3, classes="3", out=Path("o"))
    )
    with pytest.warns(UserWarning, match="index of ledgers cannot be used"):
        votes = job.count(plan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job.release(plan, votes)
    assert account() == 1.0
    if damage is not no_folder:  # it began anew
        with pytest.raises(LedgerMismatchError, match="pass ledger"):
            release(ledger=Path("other.jsonl"))


def test_a_home_that_is_no_absolute_path_has_no_index(monkeypatch):
    for name in ("RKNN_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "home")
    with pytest.raises(OSError, match="home.* is no absolute path"):
        ledger_index.folder()


@pytest.mark.parametrize("name", ["s3://bucket/ledgers", "state", "./state", "~/state"])
def test_an_index_is_in_no_folder_of_the_program_that_asks(monkeypatch, name):
    """Each working folder would have another one, one named `s3:` too."""
    monkeypatch.setenv("RKNN_STATE_DIR", name)
    with pytest.raises(OSError, match=f"{name} is no absolute path"):
        ledger_index.folder()


def test_an_index_that_cannot_be_used_stops_no_adoption_where_warnings_are_errors(
    folder, rknn, monkeypatch
):
    release()
    rows, labels = people()
    np.savez("R2.npz", embeddings=rows[::-1], labels=labels[::-1])
    monkeypatch.setenv("RKNN_STATE_DIR", str(folder / "R.npz"))
    warnings.simplefilter("error")
    adopted = ("R.npz.ledger.jsonl", "--private", "R2.npz", "--reason", "other order")
    assert rknn("budget", "adopt", *adopted).status == 0


def test_a_release_is_refused_while_another_process_holds_the_index(folder):
    """It once went on without the index, and a copy of the records had a second budget."""
    Path("x").touch()
    with (
        ledger_index.held(Path("x"), [DATA]),
        pytest.raises(LedgerError, match=f"lock is held by process {os.getpid()}, .*the index of"),
    ):
        release(patience=0.05)
    assert not Path("R.npz.ledger.jsonl").exists()
    release()


def test_a_ledger_that_cannot_be_read_still_counts_as_one(folder):
    release()
    Path("R.npz.ledger.jsonl").write_text("damaged")
    with pytest.raises(
        LedgerMismatchError, match=r"Expected the ledger of these records, .*R\.npz"
    ):
        release(ledger=Path("other.jsonl"))


def test_two_ledgers_that_are_in_use_already_stay_usable_with_a_warning(folder):
    release()
    home = Path("R.npz.ledger.jsonl")
    other = Path("other.jsonl")
    dataset = Ledger.open(home).datasets[0].fingerprint
    Ledger.create(other, dataset, 1.0)
    ledger_index._note(ledger_index.folder(), other, dataset, [dataset])
    plan = planning.prepare(
        named_settings(
            Settings, "P.npz", "R.npz", 0.5, queries=3, classes="3", out=Path("o"), dry_run=True
        )
    )
    with pytest.warns(UserWarning, match=r"charged to .*other\.jsonl as well as"):
        ledger_index.check(home, [dataset])
    assert plan.ledger is not None


# Processes

RACE = """
import json, os, sys, warnings
from pathlib import Path
from rknn_jax.privacy import ledger_index
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import BudgetExceededError, DataSet, Ledger, LedgerMismatchError
warnings.simplefilter("error")
def released(epsilon):
    event = (Pure(epsilon),)
    return Guarantee(epsilon, 0.0, "replace-one", "central", event, sampler="release")
def fork(work):
    child = os.fork()
    if not child:
        os.write(write, f"{work()}\\n".encode())
        os._exit(0)
    return child
def race(*works):
    children = [fork(work) for work in works]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(works)
    return [int(n) for n in os.read(read, 4096).split()]
read, write = os.pipe()
"""

ADOPT_AND_CHARGE = """
Ledger.create("L", "sha256:0", 1)
def adopt_and_charge(first):
    accepted = 0
    for number in range(first, first + 20):
        data = DataSet(f"sha256:{number}")
        with ledger_index.held(Path("L"), data.prints):
            Ledger.open("L").adopt(data, "embedded anew", unrelated=True)
        try:
            Ledger.open("L", data.fingerprint).charge(released(0.04), str(number))
            accepted += 1
        except BudgetExceededError:
            pass
    return accepted
accepted = race(lambda: adopt_and_charge(1), lambda: adopt_and_charge(11))
ledger = Ledger.open("L")
prints = [data.fingerprint for data in ledger.datasets]
print(json.dumps([sum(accepted), len(prints), len(set(prints)), float(ledger.spent.epsilon)]))
"""

CREATE = """
def create(name):
    made = 0
    for number in range(30):
        path, dataset = Path(f"{name}{number}"), f"sha256:{number}"
        try:
            with ledger_index.held(path, [dataset]):
                Ledger.create(path, dataset, 1)
            made += 1
        except LedgerMismatchError:
            pass
    return made
print(json.dumps(race(*[lambda name=name: create(name) for name in "abc"])))
"""


def run(script, folder):
    environment = os.environ | {"PYTHONPATH": str(Path(rknn_jax.__file__).parents[1])}
    command = [sys.executable, "-c", RACE + script]
    done = subprocess.run(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, check=True, timeout=120
    )
    return json.loads(done.stdout)


def test_two_processes_that_adopt_and_charge_lose_no_line_and_pass_no_budget(tmp_path):
    accepted, lines, distinct, spent = run(ADOPT_AND_CHARGE, tmp_path)
    assert (accepted, spent) == (25, 1.0)
    assert lines == distinct == 31


def test_of_processes_that_would_each_make_a_ledger_one_does(tmp_path):
    assert sum(run(CREATE, tmp_path)) == 30
    assert len([name for name in os.listdir(tmp_path) if re.fullmatch(r"[abc]\d+", name)]) == 30


def test_a_raised_budget_holds_for_adopted_data(folder):
    release(budget=0.5)
    np.savez("R2.npz", embeddings=2 * people()[0], labels=people()[1])
    adopt()
    with pytest.raises(BudgetExceededError):
        release("R2.npz", ledger=Path("R.npz.ledger.jsonl"))
    budget.set_anew(Raise(Path("R.npz.ledger.jsonl"), 1.0, "the board agreed"))
    release("R2.npz", ledger=Path("R.npz.ledger.jsonl"))
    assert account() == 1.0


def test_small_releases_are_composed_where_the_ledger_was_made_so(folder, capsys):
    """Sixteen releases of 0.05 cost 0.8 as a sum, and fit into 0.6 by their divergences."""
    given = {"epsilon": 0.05, "mechanism": "discrete_laplace"}
    release(budget=0.6, budget_delta=1e-5, accounting="renyi", **given)
    ledger = Ledger.open("R.npz.ledger.jsonl")
    cost = ledger.entries()[1].guarantee
    own = Ledger.open(ledger.path, ledger.datasets[0].fingerprint)
    for _ in range(14):
        own.charge(cost, "an equal release")
    release(**given)
    assert account() < 0.6 < 16 * 0.05
    while own.affords(cost):
        own.charge(cost, "an equal release")
    with pytest.raises(BudgetExceededError, match="left of"):
        release(**given)
    with pytest.raises(LedgerError, match="accounting renyi"):
        release(accounting="sum", **given)
    budget.show(Show(Path("R.npz.ledger.jsonl")))
    told = capsys.readouterr().out
    assert "renyi" in told
    assert "all releases so far are promised the budget alone" in told


@pytest.mark.parametrize("budget_delta", [None, 0.0])
def test_divergences_need_a_delta_in_the_budget(folder, budget_delta):
    with pytest.raises(LedgerError, match="delta > 0"):
        release(accounting="renyi", budget_delta=budget_delta)
    assert not list(folder.glob("*.jsonl"))


@pytest.mark.parametrize("smoothing", ["auto", "none"])
def test_a_release_labels_the_rows_whatever_the_smoothing(folder, smoothing):
    """At an epsilon of 4, where noise hardly ever turns a query, as it sometimes does at 1."""
    told = release(epsilon=4.0, smoothing=smoothing, queries=6)
    with np.load(told["files"]["labels"]) as saved:
        assert np.mean(saved["label"] == np.arange(50) % 3) > 0.9
        assert ((saved["confidence"] > 0.3) & (saved["confidence"] <= 1)).all()
    assert account() == 4


# The records less one


def less_one(name="R.npz"):
    """Save the records without the first one."""
    rows, labels = people()
    np.savez(name, embeddings=rows[1:], labels=labels[1:])


@pytest.mark.long
def test_a_changed_file_gets_no_second_ledger(folder):
    """With its own ledger it is adopted; under another name it is another data set."""
    release(budget=1.0)
    less_one()
    for ledger in (None, Path("other.jsonl")):
        with pytest.raises(ValueError, match=r"rknn budget adopt.*") as refused:
            release(ledger=ledger)
        assert "R.npz.ledger.jsonl" in str(refused.value)
    assert not Path("other.jsonl").exists()
    assert not list(Path().glob("out*/privacy.json"))[1:]
    adopt(private="R.npz", unrelated=True)
    release()
    with pytest.raises(BudgetExceededError):
        release()
    rows, labels = people(5)
    np.savez("R.npz", embeddings=rows, labels=labels)
    with pytest.raises(LedgerMismatchError, match="save them under another name"):
        release(ledger=Path("third.jsonl"))
    os.rename("R.npz", "people_of_another_town.npz")
    release("people_of_another_town.npz", ledger=Path("third.jsonl"))


def test_the_index_names_no_file(folder):
    release()
    names = [path.name for path in ledger_index.folder().iterdir()]
    assert not any("R.npz" in name for name in names)
    assert ledger_index.known_ledgers() == [str(folder / "R.npz.ledger.jsonl")]


def test_an_estimators_arrays_are_no_file(folder):
    """Its private rows have no name, so two people's ledgers in one folder are two."""
    for seed in (1, 2):
        rows, labels = people(seed)
        labeler = ReverseKNNLabeler(
            epsilon=0.5, classes=range(3), n_queries=3, ledger=f"{seed}.jsonl"
        )
        labeler.fit(rows[:50]).label(rows, labels)
    assert len(ledger_index.known_ledgers()) == 2


def test_ledgers_of_other_folders_are_counted_and_not_named(folder, monkeypatch):
    release(budget=1)
    (folder / "new").mkdir()
    beside = folder / "R2.npz.ledger.jsonl"
    assert "R.npz.ledger.jsonl" in ledger_index.notice(beside)
    assert "other folders" not in ledger_index.notice(beside)
    monkeypatch.chdir("new")
    for path in ("R2.npz.ledger.jsonl", folder / "new" / "x.jsonl"):
        told = ledger_index.notice(Path(path))
        assert "R.npz.ledger.jsonl" not in told
        assert "pass ledger with its ledger, and let it adopt" in told
        assert told.endswith("Ledgers of yours in other folders: 1")
    monkeypatch.chdir(folder)
    assert "R.npz.ledger.jsonl" in ledger_index.notice(Path("new/../R2.jsonl"))


def test_an_owner_is_told_before_a_budget_is_made(folder, capsys):
    """Records less one under another name cannot be told from others, so the owner is asked."""
    release(budget=1)
    assert "is new" in capsys.readouterr().err
    less_one("R2.npz")
    release("R2.npz")
    said = " ".join(capsys.readouterr().err.split())
    assert "pass ledger with its ledger, such as" in said
    assert "R.npz.ledger.jsonl" in said
    release("R.npz", ledger=Path("R.npz.ledger.jsonl"))
    assert "is new" not in capsys.readouterr().err
    assumptions = json.loads(Path("out1/privacy.json").read_text())["assumptions"]
    assert any("charged to the same ledger" in line for line in assumptions)
