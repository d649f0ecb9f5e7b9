"""One folder, one release: paid for once, drawn once, shown when it is whole, and finished if
the program was stopped.
"""

import dataclasses
import errno
import fcntl
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rknn_jax import postprocessing
from rknn_jax._internal import disk
from rknn_jax.labelers import _vote_labels
from rknn_jax.privacy import exact_noise, ledger_file
from rknn_jax.privacy import ledger as ledgers
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger, LedgerError
from rknn_jax.privacy.roles import Roles
from rknn_jax.release import counting, encoding, label, planning, release_folder
from rknn_jax.release.release_folder import RESULTS, STAGING
from rknn_jax.release.settings import Settings
from rknn_jax.settings import NamedColumns
from tests.fuzz import npy
from tests.options import named_settings, with_options

FLAGS = (
    "--public",
    "P.npz",
    "--private",
    "R.npz",
    "--classes",
    2,
    "--queries",
    2,
    "--epsilon",
    1,
    "--smoothing",
    "none",
    "--out",
    "new",
)
# The decoder touches no disk, and takes longer than the rest.
SETTINGS = named_settings(
    Settings, "P.npz", "R.npz", 1.0, classes="2", queries=2, smoothing="none", out=Path("new")
)

OPTIONS = "config.json"


@pytest.fixture
def files(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 90)
    embeddings = (rng.normal(size=(90, 3)) + 20 * labels[:, None]).astype(np.float32)
    np.savez(tmp_path / "P.npz", embeddings=embeddings[:30])
    np.savez(tmp_path / "R.npz", embeddings=embeddings[30:], labels=labels[30:])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(settings=SETTINGS):
    return label.release(planning.prepare(settings))


def kinds(folder):
    return [entry.kind for entry in Ledger.open(folder / "R.npz.ledger.jsonl").entries()]


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def restore(folder, state):
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for name, data in state.items():
        if data is None:
            (folder / name).mkdir(exist_ok=True)
        else:
            (folder / name).write_bytes(data)


def complete(folder, name="new"):
    """Return the noisy counts of a release that is complete and was paid for and drawn once."""
    # `rknn label` keeps its options beside the results, and `label.release` has none.
    assert {path.name for path in (folder / name).iterdir()} - {OPTIONS} == set(RESULTS)
    assert kinds(folder) == ["create", "spend", "drawn"]
    with (
        np.load(folder / name / "queries.npz") as asked,
        np.load(folder / name / "labels.npz") as rows,
    ):
        assert len(rows["label"]) == 30
        assert json.loads((folder / name / "summary.json").read_text())["noise_stddev"] > 1
        return asked["noisy_counts"]


def states_of_a_release(folder, settings=SETTINGS):
    """Return what is on disk before each line of a release: what `kill -9` there leaves."""
    modules = (label, release_folder, disk, ledgers, ledger_file)
    traced = {module.__file__ for module in modules}
    found = []

    def line(frame, event, _):
        if frame.f_code.co_filename not in traced:
            return None
        if event == "line":
            state = contents(folder)
            if not found or found[-1] != state:
                found.append(state)
        return line

    plan = planning.prepare(settings)
    before = sys.gettrace()
    sys.settrace(line)
    try:
        label.release(plan)
    finally:
        sys.settrace(before)
    return [*found, contents(folder)]


@pytest.mark.parametrize("share", [pytest.param(0.0, marks=pytest.mark.long), 0.4])
@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_a_release_that_is_killed_at_any_line_is_finished_by_the_same_command(files, step, share):
    settings = dataclasses.replace(SETTINGS, check_share=share)
    states = states_of_a_release(files, settings)
    counts = complete(files)
    measured = json.loads((files / "new/summary.json").read_text())["measured"]
    assert (measured is None) == (not share)
    assert len(states) > 20
    for number, state in list(enumerate(states))[::step]:
        restore(files, state)
        shown = [name for name in RESULTS if (files / "new" / name).exists()]
        if "privacy.json" in shown:
            with pytest.raises(ValueError, match="the release there is complete"):
                run(settings)
            assert kinds(files) == ["create", "spend", "drawn"], f"state {number}"
            continue
        kept = files / "new" / STAGING / "counts.npy"
        was_kept = kept.exists()
        was_checked = (files / "new" / STAGING / "check.npy").exists()
        assert was_kept or not was_checked, f"state {number}: counts are kept before a check"
        assert was_checked or not (shown and share), f"state {number}: nor before the check is"
        assert "privacy.html" in shown or not shown, f"state {number}: no label without statement"
        assert was_kept or not shown, f"state {number}: nothing is shown before the counts are kept"
        noted = files / "new" / STAGING / "note.json"
        roles = json.loads(noted.read_text()).get("roles") if noted.exists() else None
        assert (roles is None) or share
        plan = planning.prepare(settings)
        if plan.paid and share:
            assert plan.checkers.roles == Roles.of(roles.splitlines()[0])
        label.release(plan)
        finished = complete(files)
        if was_kept:
            again = json.loads((files / "new/summary.json").read_text())["measured"]
            assert again == measured or not was_checked, f"state {number}: the check is drawn once"
            np.testing.assert_array_equal(
                finished, counts, err_msg=f"state {number}: the noise is drawn once"
            )


@pytest.mark.long
def test_an_old_copy_of_the_hidden_folder_draws_no_second_noise(files):
    noted = [
        state
        for state in states_of_a_release(files)
        if any(path.name == "note.json" for path in state)
    ]
    old = {path: data for path, data in noted[0].items() if STAGING in path.parts}
    shutil.rmtree(files / "new")
    (files / "new" / STAGING).mkdir(parents=True)
    for path, data in old.items():
        if data is not None:
            (files / path).write_bytes(data)
    with pytest.raises(LedgerError, match="not drawn again") as lost:
        run()
    assert not hasattr(lost.value, "__notes__"), "the counts are lost, and no command finds them"
    assert kinds(files) == ["create", "spend", "drawn"]


def test_a_hidden_folder_is_the_owner_s_alone_and_ends_with_its_release(files, monkeypatch):
    """A process that is killed at its end leaves the key of the roles, which is secret."""
    settings = dataclasses.replace(SETTINGS, check_share=0.4)
    staging = files / "new" / STAGING
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        run(settings)
    assert staging.stat().st_mode & 0o777 == 0o700
    assert release_folder.clear_finished(files / "new")
    assert not staging.exists()


def test_what_another_release_was_paid_for_stays_beside_a_complete_one(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl", fingerprint(np.ones((2, 2))), 1.0)
    paid = release_folder.ReleaseFolder(tmp_path / "new", "request", ledger)
    paid.staging.mkdir(parents=True)
    spent = Guarantee(1.0, 0.0, "replace-one", "central", (Pure(1.0),), sampler="release")
    paid.charge(spent, "a test")
    paid.keep(np.array([3]))
    for complete, stays in (("0" * 16, True), (paid.release, False)):
        (paid.path / RESULTS[-1]).write_text(json.dumps({"release": complete}))
        assert release_folder.clear_finished(paid.path)
        assert (paid.staging / "counts.npy").exists() == stays


def test_a_release_begun_with_other_roles_is_neither_paid_nor_shown(tmp_path):
    def words():
        return Roles.drawn(0.1, 0.1, 0.1).words()

    ledger = Ledger.create(tmp_path / "ledger.jsonl", fingerprint(np.ones((2, 2))), 2.0)
    begun = release_folder.ReleaseFolder(tmp_path / "new", "request", ledger, words())
    begun.staging.mkdir(parents=True)
    with pytest.raises(ValueError, match="got none"):
        _ = begun.release
    spent = Guarantee(1.0, 0.0, "replace-one", "central", (Pure(1.0),), sampler="release")
    begun.charge(spent, "a test")
    other = dataclasses.replace(begun, roles=words())
    with pytest.raises(LedgerError, match="begun, got others"):
        other.charge(spent, "a test")
    begun.keep(np.array([3]))
    assert begun.kept((1,))[1] is None
    begun.keep_check(np.array([1]))
    begun.seal()
    with pytest.raises(LedgerError, match="begun, got others"):
        other.kept((1,))
    counts, check = begun.kept((1,))
    assert (counts.tolist(), check.tolist()) == ([3], [1])
    assert ledger.spent.epsilon == 1
    begun.keep_check(np.array([2]))  # as from a copy of the folder, made before the check
    for again in (begun.seal, lambda: begun.kept((1,))):
        with pytest.raises(LedgerError, match="one charge pays for one draw"):
            again()
    (begun.staging / "check.npy").unlink()
    with pytest.raises(LedgerError, match="one charge pays for one draw"):
        begun.kept((1,))


@pytest.mark.parametrize("block", [7, counting.BLOCK["cpu"]])
def test_a_person_who_voted_under_another_name_checks_nothing(files, monkeypatch, block):
    """Roles are by name: with new names, a person whose records voted could check them."""

    def write(prefix):
        held = dict(np.load("R.npz")) | {"who": [f"{prefix}{row // 2}" for row in range(60)]}
        np.savez("R.npz", **held)

    write("a")
    settings = dataclasses.replace(
        SETTINGS, check_share=0.4, columns=NamedColumns(person="who"), out=Path("new")
    )
    with monkeypatch.context() as patched:
        patched.setattr(release_folder.ReleaseFolder, "keep_check", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(settings)
    write("b")
    with pytest.raises(LedgerError, match="their persons, .* got others"):
        run(settings)
    assert not (files / "new" / RESULTS[-1]).exists()
    write("a")
    monkeypatch.setitem(counting.BLOCK, "cpu", block)
    run(settings)
    complete(files)


def stopped_before_the_mark(files):
    """Leave the disk as it is when the counts are kept, and the ledger does not say yet that
    they were drawn.
    """
    states = states_of_a_release(files)
    state = next(state for state in states if any(path.name == "counts.npy" for path in state))
    restore(files, state)
    assert kinds(files) == ["create", "spend"]


@pytest.mark.long
def test_a_copied_folder_shows_no_second_draw(files):
    stopped_before_the_mark(files)
    shutil.copytree(files / "new", files / "copy")
    (files / "copy" / STAGING / "counts.npy").unlink()
    run(dataclasses.replace(SETTINGS, out=Path("copy")))
    complete(files, "copy")
    with pytest.raises(LedgerError, match="got others, which are not shown"):
        run()
    assert not (files / "new/labels.npz").exists()


@pytest.mark.long
def test_counts_whose_spend_is_not_on_the_ledger_are_neither_shown_nor_removed(files):
    stopped_before_the_mark(files)
    path = files / "R.npz.ledger.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b"\n") + 1])
    with pytest.raises(ValueError, match="though its noise was drawn"):
        run()
    path.write_bytes(whole)
    run()
    complete(files)


@pytest.mark.long
def test_a_folder_that_was_moved_with_its_ledger_is_finished(files, monkeypatch):
    stopped_before_the_mark(files)
    moved = files.with_name(files.name + "-moved")
    files.rename(moved)
    monkeypatch.chdir(moved)
    run()
    complete(moved)


CALLS = (
    (os, ("open", "fsync", "replace", "link", "posix_fallocate", "fdopen")),
    (np, ("save", "savez_compressed", "load")),
    (exact_noise, ("discrete_laplace",)),
    (postprocessing, ("public_labels",)),
    (_vote_labels, ("answer", "of_answers")),
    (label, ("page", "card")),
)
ERRORS = (
    (OSError, errno.ENOSPC, "No space left"),
    (OSError, errno.EIO, "Input/output error"),
    (MemoryError,),
)


def fails_at(monkeypatch, number, kind, *words):
    """Let the call of this number fail; return how many there were."""
    count = [0]

    def counted(real):
        def call(*args, **kwargs):
            count[0] += 1
            if count[0] == number:
                raise kind(*words)
            return real(*args, **kwargs)

        return call

    for module, names in CALLS:
        for name in names:
            monkeypatch.setattr(module, name, counted(getattr(module, name)))
    return count


def check_fault(files, monkeypatch, number, error):
    """Let one call of a release fail, run it again, and return whether the call was reached."""
    plan = planning.prepare(SETTINGS)
    with monkeypatch.context() as patched:
        count = fails_at(patched, number, *error)
        try:
            label.release(plan)
        except (ValueError, OSError, MemoryError) as raised:
            notes = " ".join(getattr(raised, "__notes__", []))
            paid = (files / "R.npz.ledger.jsonl").exists() and "spend" in kinds(files)
            shown = (files / "new/privacy.json").exists()
            assert ("pays nothing" in notes) == (paid and not shown), (
                f"call {number}: the error says what is lost"
            )
    if not (files / "new/privacy.json").exists():
        run()
    shutil.rmtree(files / "new" / STAGING, ignore_errors=True)
    complete(files)
    return count[0] >= number


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "step"), [(3, 9), *(pytest.param(n, 1, marks=pytest.mark.slow) for n in (1, 2, 3))]
)
def test_no_fault_of_disk_or_memory_loses_a_release_or_pays_twice(files, monkeypatch, first, step):
    number = first
    inputs = contents(files)
    while check_fault(files, monkeypatch, number, ERRORS[(first + number) % len(ERRORS)]):
        restore(files, inputs)
        number += step
    assert number > 50


def test_without_out_the_unfinished_folder_is_found(files, rknn, monkeypatch):
    flags = FLAGS[:-2]
    with monkeypatch.context() as patched:
        patched.setattr(
            label, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        assert rknn("label", *flags).status == 2
    (folder,) = (files / "runs").iterdir()
    done = rknn("label", *flags)
    assert done.status == 0, done.err
    assert "finishing" in done.err
    complete(files, folder.relative_to(files))
    assert rknn("label", *flags, "--out", "another").status == 3, "the next one is another release"


ENCODER = """
import numpy as np
def features(rows):
    return np.asarray(rows, np.float32)[:, COLUMNS]
"""


@pytest.mark.parametrize("drawn", [True, False])
def test_counts_are_read_about_the_queries_that_were_asked(files, rknn, monkeypatch, drawn):
    """An encoder that changed since makes other queries, by settings that are the same."""
    module = files / "my_encoder.py"
    module.write_text(ENCODER.replace("COLUMNS", "[0, 1]"))
    flags = (*FLAGS, "--representation", "my_encoder:features")

    def forget():  # as another process
        sys.modules.pop("my_encoder", None)
        encoding._function.cache_clear()

    forget()
    stopped = "write" if drawn else "_checked"
    with monkeypatch.context() as patched:
        patched.setattr(
            label, stopped, lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        if not drawn:
            patched.setattr(release_folder.ReleaseFolder, "keep", lambda *_: None)
        assert rknn("label", *flags).status == 2
    assert kinds(files) == ["create", "spend", "drawn"][: 3 if drawn else 2]
    module.write_text(ENCODER.replace("COLUMNS", "[-1, 1]"))
    forget()
    after = rknn("label", *flags)
    if drawn:
        assert after.status != 0
        assert "an encoder has changed" in " ".join(after.err.split())
        assert not (files / "new/labels.npz").exists()
        module.write_text(ENCODER.replace("COLUMNS", "[0, 1]"))
        forget()
        after = rknn("label", *flags)
    assert after.status == 0, after.err
    complete(files)
    assert kinds(files) == ["create", "spend", "drawn"]


@pytest.mark.parametrize("out", [(), ("--out", "new")])
@pytest.mark.parametrize(
    "other", [("--label", "outcome"), ("--private", "S.npz"), ("--embedding", "other")]
)
def test_a_release_is_not_finished_as_that_of_other_records(files, rknn, monkeypatch, out, other):
    """A stopped release of one label was once shown as labels of another."""
    for name in ("R.npz", "P.npz"):
        with np.load(name) as saved:
            arrays = dict(saved)
        arrays["other"] = arrays["embeddings"]
        if name == "R.npz":
            arrays["outcome"] = 1 - arrays["labels"]
        np.savez(name, **arrays)
    shutil.copy("R.npz", "S.npz")
    given = (*FLAGS[4:-2], *out, "--check-share", 0, "--ledger", "R.npz.ledger.jsonl")

    def asked(*changed):
        files = {"--public": "P.npz", "--private": "R.npz"} | dict([changed] if changed else [])
        return rknn("label", *given, *(word for pair in files.items() for word in pair))

    with monkeypatch.context() as patched:
        patched.setattr(label, "write", lambda *_: (_ for _ in ()).throw(MemoryError()))
        assert rknn("label", *FLAGS[:4], *given, "--budget", 2).status != 0
    after = asked(*other)
    if out:
        assert after.status != 0
        assert "finish it by its own command" in " ".join(after.err.split())
        assert asked().status == 0
    else:
        assert after.status == 0, after.err
        assert "finishing" not in after.err
        assert kinds(files).count("spend") == 2


@pytest.mark.parametrize("changed", ["rows", "labels", "nothing", "another file", "moved"])
def test_a_release_of_records_that_changed_since_says_so(files, rknn, monkeypatch, changed):
    with monkeypatch.context() as patched:
        patched.setattr(label, "write", lambda *_: (_ for _ in ()).throw(MemoryError()))
        rknn("label", *FLAGS)
    with np.load("R.npz") as saved:
        rows, labels = saved["embeddings"], saved["labels"]
    path = Path("R.npz")
    if changed in ("another file", "moved"):
        path = Path("elsewhere/R.npz")
        path.parent.mkdir()
    rows = rows[::-1] if changed == "rows" else rows
    labels = 1 - labels if changed in ("labels", "another file") else labels
    np.savez(path, embeddings=rows, labels=labels)
    adopted = ("adopt", "R.npz.ledger.jsonl", "--private", path, "--reason", "a correction")
    assert rknn("budget", *adopted).status == 0
    given = ("--private", path, "--ledger", "R.npz.ledger.jsonl")
    after = rknn("label", *FLAGS[:2], *given, *FLAGS[4:])
    told = " ".join(after.err.split())
    assert (after.status == 0) == (changed != "another file"), after.err
    assert ("its labels are of the records of then" in told) == (changed in ("rows", "labels"))
    assert ("others of the same names" in told) == (changed == "another file")
    assert kinds(files).count("spend") == 1


@pytest.mark.parametrize("moved", [False, True])
def test_labels_in_a_file_of_their_own_are_known_by_place_and_name(files, monkeypatch, moved):
    """A stopped release is not finished for other labels, and is found if its labels have moved."""
    with np.load("R.npz") as saved:
        np.save("R.npy", saved["embeddings"])
        labels = saved["labels"]
    for folder, held in (("a", labels), ("b", labels if moved else 1 - labels)):
        Path(folder).mkdir()
        np.save(f"{folder}/y.npy", held)
    given = with_options(SETTINGS, private="R.npy", ledger=files / "R.npz.ledger.jsonl")
    first, then = (with_options(given, private_labels=f"{folder}/y.npy") for folder in "ab")
    with monkeypatch.context() as patched:
        patched.setattr(label, "write", lambda *_: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            run(first)
    if moved:
        shutil.rmtree("a")
        run(then)
    else:
        with pytest.raises(LedgerError, match="finish it by its own command"):
            run(then)
    assert kinds(files) == ["create", "spend", "drawn"]


def test_a_paid_release_is_affordable_though_nothing_is_left(files, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(label, "write", lambda *_: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            run()
    plan = planning.prepare(SETTINGS)
    assert plan.ledger.remaining.epsilon == 0
    assert plan.affordable


def test_the_note_of_a_release_confirms_no_guess_of_its_sum(files, rknn, monkeypatch):
    """Records in another order have the same sum; who knows no record cannot tell from the note."""
    seen = []
    for name in ("R", "S"):
        with monkeypatch.context() as patched:
            patched.setattr(label, "write", lambda *_: (_ for _ in ()).throw(MemoryError()))
            rknn("label", *FLAGS[:3], f"{name}.npz", *FLAGS[4:-1], name)
        seen.append(json.loads((files / name / STAGING / "note.json").read_bytes())["records"])
        with np.load("R.npz") as saved:
            np.savez("S.npz", **{key: saved[key][::-1] for key in saved})
    assert seen[0] != seen[1]


def test_a_paid_release_is_not_given_up_for_another(files, rknn, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(label, "write", lambda *_: (_ for _ in ()).throw(MemoryError()))
        assert "not enough memory" in rknn("label", *FLAGS).err
    refused = rknn("label", *FLAGS, "--seed", 1)
    assert refused.status == 2
    assert "finish it by its own command" in " ".join(refused.err.split())
    assert rknn("label", *FLAGS).status == 0
    complete(files)


@pytest.mark.parametrize(("name", "value"), [("BYTES_PER_CELL", 10**15), ("ROOM_FOR_WORDS", 2**62)])
def test_too_little_memory_or_room_is_found_before_anything_is_spent(
    files, rknn, monkeypatch, name, value
):
    monkeypatch.setattr(label, name, value)
    refused = rknn("label", *FLAGS)
    assert refused.status == 2
    assert "nothing was spent" in " ".join(refused.err.split())
    assert sorted(path.name for path in files.iterdir()) == ["P.npz", "R.npz"]


def test_the_room_that_a_release_asks_for_holds_all_that_it_writes(files):
    """Long texts of the public rows are carried to the labels."""
    letters = np.random.default_rng(0).choice([*"abcdefgh"], (30, 60_000))
    rows = pa.table(
        {
            "embeddings": [*np.load("P.npz")["embeddings"].astype(float)],
            "notes": ["".join(row) for row in letters],
        }
    )
    pq.write_table(rows, "P.parquet")
    plan = planning.prepare(dataclasses.replace(SETTINGS, public="P.parquet"))
    asked = label._room(plan)
    label.release(plan)
    [notes] = plan.data.others.values()
    written = sum(path.stat().st_size for path in Path("new").glob("*") if path.is_file())
    assert written + notes.nbytes - os.path.getsize("new/labels.npz") <= asked < 2 * notes.nbytes


@pytest.mark.parametrize("labeler", ["rknn", "prototypes", "public_prototypes"])
def test_a_sum_that_no_such_records_have_is_neither_charged_nor_drawn(files, labeler):
    """Too many votes for three records, or numbers that are not integers."""
    voted = labeler == "rknn"
    settings = dataclasses.replace(SETTINGS, labeler=labeler, queries=2 if voted else None)
    question = planning.prepare(settings).question
    totals = np.full(question.tally.shape, 100, np.int64 if voted else np.float64)
    ledger = Ledger.create("L", "sha256:0", 9, 1e-3)
    with pytest.raises(ValueError, match="Expected integer votes|Expected totals of int64"):
        question.draw(totals, 3, ledger, "the sum of others")
    assert ledger.spent.epsilon == 0


def test_a_folder_that_another_process_writes_to_is_refused_before_anything_is_spent(files, rknn):
    (files / "new").mkdir()
    handle = os.open(files / "new", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    refused = rknn("label", *FLAGS)
    os.close(handle)
    assert refused.status == 2
    assert "to which one does; nothing was spent" in " ".join(refused.err.split())
    assert not (files / "R.npz.ledger.jsonl").exists()


def test_what_a_killed_release_left_is_cleared_and_a_users_files_stay(files, rknn):
    (files / "new" / STAGING).mkdir(parents=True)
    (files / "new" / STAGING / "labels.npz").write_text("half")
    (files / "new/notes.txt").write_text("mine")
    assert rknn("label", *FLAGS).status == 0
    assert sorted(path.name for path in (files / "new").iterdir()) == sorted(
        [*RESULTS, OPTIONS, "notes.txt"]
    )
    assert rknn("label", *FLAGS, "--budget", 1).status == 2, "a second release into the folder"


def test_a_damaged_note_or_count_is_named(files, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(label, "write", lambda *_: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            run()
    counts, note = (files / "new" / STAGING / name for name in ("counts.npy", "note.json"))
    spoilt = [(path, path.read_bytes()[:20]) for path in (counts, note)]
    spoilt += [
        (note, json.dumps(json.loads(note.read_text()) | {"ledger": odd}).encode())
        for odd in ("\ud800", "a\0b")
    ]
    spoilt += [
        (counts, b"\x93NUMPY\x01\x00\x40\x00" + b"{" * 64),
        (counts, npy(np.array(3))),
        (counts, npy(np.array([["a"]]))),
    ]
    for path, data in spoilt:
        whole = path.read_bytes()
        path.write_bytes(data)
        with pytest.raises(ValueError, match=path.name):
            run()
        path.write_bytes(whole)
    run()
    complete(files)


@pytest.mark.long
def test_the_time_after_the_charge_is_told_before_it(files, rknn, monkeypatch):
    assert "time " not in rknn("label", *FLAGS, "--dry-run").err
    monkeypatch.setattr(label, "SECONDS_PER_CELL", 100.0)
    told = " ".join(rknn("label", *FLAGS, "--dry-run").err.split())
    assert "time about 7 min after the charge, with" in told
    assert "GB of memory; fewer classes" in told


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_was_there_stays_if_nothing_was_paid(files, there):
    folder = files / "new"
    if there:
        folder.mkdir()

    def refuse():
        raise LedgerError("no budget")

    with (
        pytest.raises(LedgerError, match="no budget"),
        release_folder.held(folder, "request", files / "L", refuse, 10),
    ):
        pass
    assert folder.exists() == there
    assert not there or not [*folder.iterdir()]
