"""Rounds of a release: one budget, a statement of all, and features that labels teach."""

import json
import shutil
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from rknn_jax import check, discriminant, mechanisms
from rknn_jax.labels import PublicLabels
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.question import Before
from rknn_jax.records.classes import Classes
from rknn_jax.release import choosing, counting, engines, inputs, label, planning, rounds
from rknn_jax.release.estimator import ReverseKNNLabeler
from rknn_jax.release.release_folder import ROUNDS, STAGING, clear_finished
from rknn_jax.release.settings import Settings
from tests.conftest import crossed
from tests.options import named_settings

NUM_CLASSES = 4
PARTS = ["333333/1000000", "666667/1000000"]


def sides(num_public=400, num_private=4000, seed=0):
    """Return public rows, private rows and their labels, of classes that overlap."""
    rng = np.random.default_rng(seed)
    centers = 1.2 * rng.normal(size=(NUM_CLASSES, 5))
    labels = rng.integers(NUM_CLASSES, size=num_public + num_private)
    rows = (centers[labels] + rng.normal(size=(len(labels), 5))).astype(np.float32)
    return rows[:num_public], rows[num_public:], labels[num_public:], labels[:num_public]


def written(folder):
    """Write the sides, and return the options of a release."""
    public, private, labels, _ = sides()
    np.savez(folder / "public.npz", embeddings=public)
    np.savez(folder / "private.npz", embeddings=private, labels=labels)
    return ["--public", "public.npz", "--private", "private.npz", "--classes", NUM_CLASSES]


def spends(path="private.npz.ledger.jsonl"):
    return [json.loads(line) for line in Path(path).read_text().splitlines() if '"spend"' in line]


def soft(labels, num_classes=NUM_CLASSES):
    return np.full((len(labels), num_classes), 0.02) + 0.92 * np.eye(num_classes)[labels]


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_the_parts_of_an_amount_add_up_to_it_exactly(number):
    rng = np.random.default_rng(number)
    amounts = [1.0, 0.1, 0.3, 1e-5, *rng.lognormal(0, 3, 200)]
    for amount in map(float, amounts):
        parts = rounds.parts(amount, number)
        left = Fraction(repr(amount)) - sum(Fraction(repr(part)) for part in parts)
        assert 0 <= left <= amount * 1e-15
        assert parts == sorted(parts)
        assert len(parts) == number


@pytest.mark.parametrize("number", [2, 3, 4, 7])
def test_a_statement_of_all_rounds_says_what_is_charged_and_no_less(number):
    """Sums of floats were less or more than the sum of the parts: a run stopped after a charge."""
    rng = np.random.default_rng(number)
    for amount in map(float, [0.1, 1e-4, 1e-5, 1e-6, *rng.uniform(0, 0.5, 50)]):
        parts = rounds.parts(amount, number)
        whole = None
        for part in parts:
            one = Guarantee(part, part, "replace-one", trust="central", events=())
            whole = one if whole is None else Before(np.ones((1, 2)), whole).whole(one)
        charged = sum(Fraction(repr(part)) for part in parts)
        for said in (whole.epsilon, whole.delta):
            assert charged <= Fraction(repr(said)) <= charged * (1 + Fraction(1, 10**15))
            assert said == amount or charged != Fraction(repr(amount))


def test_rounds_whose_delta_covers_all_they_tell_have_an_epsilon_of_zero():
    """A release was refused so once it was paid for."""
    noise = mechanisms.make("gaussian", epsilon=1e-4, num_queries=4, num_classes=2, delta=0.03)
    part = noise.guarantee(9)
    before = Before(np.ones((1, 2)), Before(np.ones((1, 2)), part).whole(part))
    assert before.guarantee.epsilon == 0
    words = before.details(part)["rounds"]
    assert "epsilon=0.0, delta=0.06 for the rounds before" in words


@pytest.mark.long
def test_two_rounds_share_one_budget_and_one_statement(rknn, tmp_path):
    options = written(tmp_path)
    asked = ["label", *options, "--epsilon", "1", "--rounds", "2", "--out", "out"]
    assert rknn(*asked).status == 0
    final, first = (
        json.loads((tmp_path / folder / "privacy.json").read_text())
        for folder in ("out", "out/round-1")
    )
    assert final["guarantee"]["epsilon"] == 1
    assert first["guarantee"]["epsilon"] == pytest.approx(1 / 3, abs=1e-6)
    assert final["rounds_before"] == first["guarantee"]
    assert "0.333333" in (tmp_path / "out" / "privacy.html").read_text()
    assert [one["epsilon"] for one in spends()] == PARTS
    assert Ledger.open(tmp_path / "private.npz.ledger.jsonl").remaining.epsilon == 0
    again = rknn(*asked)
    assert again.status == 2
    assert "without an earlier release" in again.err
    assert len(spends()) == 2


@pytest.mark.parametrize(
    "amounts",
    [
        ("--epsilon", repr(0.1 + 0.2), "--rounds", "3"),
        pytest.param(
            ("--epsilon", "1", "--delta", repr(1 / 60_000), "--mechanism", "gaussian")
            + ("--rounds", "4"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_rounds_that_the_budget_allows_are_all_made(rknn, tmp_path, amounts):
    """The sum of those that were left was rounded up, above what was left of the budget."""
    options = [*written(tmp_path), "--check-share", "0"]
    assert rknn("label", *options, *amounts, "--out", "out").status == 0
    assert len(spends()) == int(amounts[-1])


@pytest.mark.long
def test_rounds_that_a_budget_does_not_allow_are_refused_before_the_first(rknn, tmp_path):
    options = written(tmp_path)
    asked = ["label", *options, "--out", "out", "--rounds", "2"]
    assert rknn(*asked, "--epsilon", "1", "--budget", "0.9").status != 0
    assert not (tmp_path / "private.npz.ledger.jsonl").exists()
    assert rknn("label", *options, "--epsilon", "0.5", "--budget", "1", "--out", "one").status == 0
    refused = rknn(*asked, "--epsilon", "0.6")
    assert refused.status != 0
    assert "This release costs epsilon=0.6" in refused.err
    assert len(spends()) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rounds", "2"), "Expected --out with --rounds 2"),
        (("--rounds", "2", "--labels-per-record", "2", "--out", "out"), "one label a record"),
        (("--rounds", "0", "--out", "out"), "rounds"),
        (("--rounds", "3", "--epsilon", "1e-9", "--out", "out"), "the first of --rounds 3"),
    ],
)
def test_rounds_that_cannot_be_are_refused(rknn, tmp_path, options, words):
    result = rknn("label", *written(tmp_path), "--epsilon", "1", *options)
    assert result.status == 2
    assert words in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("file", "Expected --out to be a folder that can be written, got --out file"),
        ("file/below", "Expected --out to be a folder that can be written"),
        ("linked", "No such file"),
    ],
)
def test_rounds_in_what_is_no_folder_are_refused_and_end(rknn, tmp_path, out, words):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/.rknn-rounds.json").symlink_to("gone")
    refused = rknn("label", *written(tmp_path), "--epsilon", "1", "--rounds", "2", "--out", out)
    assert refused.status == 2
    assert words in refused.err
    assert not Path("private.npz.ledger.jsonl").exists()


@pytest.mark.long
@pytest.mark.parametrize("moved", [False, True])
def test_what_a_paid_round_is_told_to_be_finished_by_finishes_it(
    rknn, tmp_path, monkeypatch, moved
):
    """The folder of the round is none that a command of all rounds names."""

    def fail(*_):
        if moved:
            (tmp_path / "out").rename(tmp_path / "away")
        raise OSError(28, "no room")

    asked = ["label", *written(tmp_path), "--epsilon", "1", "--rounds", "2", "--out", "out"]
    with monkeypatch.context() as full:
        full.setattr(label, "write", fail)
        stopped = rknn(*asked)
    if moved:
        assert "which keeps it, is gone or was moved: put it back" in stopped.err
        (tmp_path / "away").rename(tmp_path / "out")
    assert "the same command with --out out finishes the release and pays nothing" in stopped.err
    looked = rknn(*asked, "--dry-run", "--json")
    assert looked.json["affordable"], "what is paid costs nothing more"
    assert rknn(*asked).status == 0
    assert len(spends()) == 2


@pytest.mark.long
@crossed(stop=[OSError(28, "No space left on device"), KeyboardInterrupt()], number=[1, 2])
def test_a_round_that_cannot_begin_says_what_was_paid_before(
    rknn, tmp_path, monkeypatch, stop, number
):
    asked = ["label", *written(tmp_path), "--epsilon", "1", "--rounds", "2", "--out", "out"]
    count, left = label.count, iter([None] * (number - 1))

    def counted(plan):
        if next(left, stop):
            raise stop
        return count(plan)

    with monkeypatch.context() as stopping:
        stopping.setattr(label, "count", counted)
        told = " ".join(rknn(*asked).err.split())
    assert ("The rounds before this one are paid for" in told) == (
        number == 2 and isinstance(stop, OSError)
    )
    assert "written nothing" not in told
    assert rknn(*asked).status == 0
    assert len(spends()) == 2


@pytest.mark.long
@pytest.mark.parametrize("budget", [None, 1.0])
def test_a_budget_that_is_raised_between_rounds_loses_no_labels(tmp_path, monkeypatch, budget):
    public, private, labels, _ = sides()
    ledger = tmp_path / "l.jsonl"
    draw = label.draw

    def then_raised(*arguments, **named):
        done = draw(*arguments, **named)
        Ledger.open(ledger).raise_budget(2, None, "decided by the board")
        return done

    monkeypatch.setattr(label, "draw", then_raised)
    labeler = ReverseKNNLabeler(
        epsilon=0.5, classes=[*range(NUM_CLASSES)], rounds=2, ledger=ledger, budget=budget
    )
    labeler.fit(public).label(private, labels)
    assert len(spends(ledger)) == 2


def test_of_two_processes_that_begin_a_run_one_draws_the_roles(tmp_path, monkeypatch):
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    asked = {"classes": "4", "out": Path("out"), "rounds": 2, "check_share": 0.3}
    settings = named_settings(Settings, "public.npz", "private.npz", 1.0, **asked)
    first = rounds.prepare(settings, 1, None)
    read, looks = rounds.Note.read, iter([lambda folder: None])  # before the other one wrote
    monkeypatch.setattr(rounds.Note, "read", lambda folder: next(looks, read)(folder))
    assert rounds.prepare(settings, 1, None).checkers.roles == first.checkers.roles
    assert rounds.Note.read(Path("out")).roles == first.checkers.roles


def test_records_check_by_default_if_the_last_round_pays_for_an_answer(tmp_path, monkeypatch):
    """The first one pays half as much, for which 4,000 records tell too little."""
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    first, last = 0.2, 0.4
    assert check.fewest_units(last) < 4000 < check.fewest_units(first)
    asked = {"classes": "4", "out": Path("out"), "rounds": 2}
    settings = named_settings(Settings, "public.npz", "private.npz", first + last, **asked)
    plan = rounds.prepare(settings, 1, None)
    assert plan.question.noise.guarantee.epsilon == pytest.approx(first)
    assert plan.checkers is not None


def test_the_statement_of_all_rounds_has_the_risks_of_the_engines_of_each(
    rknn, tmp_path, monkeypatch
):
    def count_all(records, counter, on_rows=None, address=None):
        return counting.count_all(records, counter, on_rows)

    monkeypatch.setattr(engines.named("ray"), "count_all", count_all)
    options = written(tmp_path)
    named = {"classes": "4", "out": Path("out"), "rounds": 2}
    settings = named_settings(Settings, "public.npz", "private.npz", 1.0, **named, engine="ray")
    label.release(rounds.prepare(settings, 1, None))  # and the run was stopped
    rknn("label", *options, "--epsilon", "1", "--rounds", "2", "--out", "out")
    first, both = (
        json.loads(Path(folder, "privacy.json").read_text())["not_covered"]
        for folder in ("out/round-1", "out")
    )
    assert any("spill files" in one for one in first)
    assert both == first


@pytest.mark.long
def test_a_stopped_run_goes_on_after_its_first_round(rknn, tmp_path):
    options = written(tmp_path)
    settings = named_settings(
        Settings, "public.npz", "private.npz", 1.0, classes="4", out=Path("out"), rounds=2
    )
    plan = rounds.prepare(settings, 1, None)
    label.release(plan)  # all that a run leaves that was stopped here
    assert (tmp_path / "out" / ROUNDS).stat().st_mode & 0o077 == 0
    asked = ["label", *options, "--epsilon", "1", "--rounds", "2", "--out", "out"]
    public = dict(np.load("public.npz"))
    np.savez("public.npz", embeddings=public["embeddings"][::-1])
    (tmp_path / "elsewhere").mkdir()
    shutil.copy("private.npz", "elsewhere")
    ledger = ["--ledger", str(settings.ledger_path)]
    other = ["elsewhere/private.npz" if one == "private.npz" else one for one in asked] + ledger
    for changed in (asked, [*asked, "--seed", "5"], [*asked, "--metric", "cosine"], other):
        refused = rknn(*changed)
        assert refused.status == 2
        assert "settings, public rows and private files of the rounds" in " ".join(
            refused.err.split()
        )
        np.savez("public.npz", **public)
    looked = rknn(*asked, "--dry-run", "--json")
    assert looked.json["affordable"]
    assert "this is number 2" in looked.err
    done = rknn(*asked)
    assert done.status == 0
    assert "its labels are in out/round-1" in done.err
    assert [one["epsilon"] for one in spends()] == PARTS
    assert not (tmp_path / "out" / ROUNDS).exists()
    (tmp_path / "out" / STAGING).mkdir()  # of a process that was killed while it removed it
    assert "the release there is complete" in rknn(*asked).err
    (tmp_path / "out" / STAGING).rmdir()
    for path in (tmp_path / "out").iterdir():
        if path.is_file():
            path.unlink()
    leftover = rknn(*asked)
    assert leftover.status == 2
    assert "which holds round-1" in leftover.err
    assert len(spends()) == 2


@pytest.mark.long
def test_a_record_that_checks_the_last_labels_has_voted_in_no_round(tmp_path, monkeypatch):
    """Votes are counted without noise, and roles are those of the run's note."""
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = named_settings(
        Settings,
        "public.npz",
        "private.npz",
        9.0,
        classes="4",
        out=Path("out"),
        rounds=2,
        check_share=0.4,
    )
    first = rounds.prepare(settings, 1, None)
    label.release(first)
    second = rounds.prepare(settings, 2, rounds.finished(rounds.of(settings)[0]))
    assert first.checkers.roles == second.checkers.roles
    voters = [label.count(plan).voters for plan in (first, second)]
    assert voters[0] == voters[1] < 4000


@pytest.mark.parametrize("num_private", [0, 1])
def test_rounds_do_not_tell_whether_there_is_a_record(tmp_path, num_private):
    public, private, labels, _ = sides()
    labeler = ReverseKNNLabeler(
        epsilon=1.0,
        rounds=2,
        relation="add-remove",
        n_queries=6,
        classes=range(NUM_CLASSES),
        ledger=tmp_path / "ledger.jsonl",
    ).fit(public)
    found = labeler.label(private[:num_private], labels[:num_private])
    assert len(found) == len(public)


@pytest.mark.long
@pytest.mark.parametrize("accounting", ["sum", "renyi"])
def test_rounds_of_gaussian_noise_cost_what_was_asked_at_most(tmp_path, accounting):
    public, private, labels, _ = sides(num_private=1500)
    ledger = tmp_path / "ledger.jsonl"
    labeler = ReverseKNNLabeler(
        epsilon=1.0,
        delta=1e-5,
        mechanism="gaussian",
        rounds=2,
        classes=range(NUM_CLASSES),
        accounting=accounting,
        budget=1.0,
        budget_delta=1e-5,
        ledger=ledger,
    ).fit(public)
    assert labeler.cost(private).epsilon == 1
    labeler.label(private, labels)
    assert labeler.guarantee_.epsilon <= 1
    assert labeler.guarantee_.delta <= 1e-5
    assert Ledger.open(ledger).spent.epsilon <= 1
    assert Ledger.open(ledger).num_spends == 2


def test_rounds_with_a_check_cost_what_they_are_charged(tmp_path):
    public, private, labels, _ = sides(num_public=60, num_private=300)
    labeler = ReverseKNNLabeler(
        epsilon=1.0,
        rounds=2,
        check_share=0.3,
        n_queries=6,
        classes=range(NUM_CLASSES),
        accounting="renyi",
        budget=1.0,
        budget_delta=1e-6,
        ledger=tmp_path / "ledger.jsonl",
    ).fit(public)
    cost = labeler.cost(private)
    labeler.label(private, labels)
    assert cost.events == labeler.guarantee_.events
    assert {event.kind for event in cost.events} == {"pure"}


@pytest.mark.long
def test_the_key_of_the_roles_does_not_outlive_a_complete_run(rknn, tmp_path):
    options = written(tmp_path)
    asked = ["label", *options, "--epsilon", "9", "--rounds", "2", "--out", "out"]
    asked += ["--check-share", "0.2"]
    assert "20.0% of the private records do not vote" in rknn(*asked, "--dry-run").err
    assert rknn(*asked).status == 0
    left = [tmp_path / "out" / ROUNDS]
    for folder in ("out", "out/round-1"):  # as a process leaves them that is killed at its end
        hidden = tmp_path / folder / STAGING
        hidden.mkdir()
        left.append(hidden / "note.json")
    for path in left[1:]:
        card = json.loads((path.parents[1] / "privacy.json").read_text())
        note = {"request": "", "ledger": "", "purpose": f"a release; release {card['release']}"}
        path.write_text(json.dumps(note))
    left[0].write_text("{}")
    (tmp_path / "other").mkdir()  # a paid release beside the results of another one stays
    shutil.copytree(tmp_path / "out" / STAGING, tmp_path / "other" / STAGING)
    card = json.loads((tmp_path / "out" / "privacy.json").read_text())
    (tmp_path / "other" / "privacy.json").write_text(json.dumps(card | {"release": "0" * 16}))
    assert clear_finished(tmp_path / "other")
    assert (tmp_path / "other" / STAGING / "note.json").exists()
    again = rknn(*asked)
    assert again.status == 2
    assert "without an earlier release" in again.err
    assert not left[0].exists()
    assert not left[1].exists()


@pytest.mark.long
def test_what_holds_for_a_release_holds_for_its_rounds_together(rknn, tmp_path):
    options = written(tmp_path)
    refused = rknn("label", *options, "--epsilon", "90", "--rounds", "3", "--out", "out")
    assert refused.status == 2
    assert "which protects nobody" in refused.err
    assert rknn("label", *options, "--epsilon", "0.5", "--budget", "1", "--out", "one").status == 0
    asked = ["label", *options, "--epsilon", "0.8", "--rounds", "2", "--out", "out"]
    dry = rknn(*asked, "--dry-run", "--json")
    assert json.loads(dry.out)["affordable"] is False
    assert "this release would cost epsilon=0.8" in dry.err
    done = rknn("label", *options, "--epsilon", "0.5", "--rounds", "2", "--out", "out")
    assert done.status == 0
    chosen = json.loads((tmp_path / "out" / "config.json").read_text())
    assert '"rounds": 2' in json.dumps(chosen)
    assert '"epsilon": 0.5' in json.dumps(chosen)


@pytest.mark.long
def test_a_run_that_is_killed_pays_once_for_each_round(tmp_path):
    options = [str(one) for one in written(tmp_path)]
    command = [sys.executable, "-m", "rknn_jax", "label", *options, "--epsilon", "1"]
    command += ["--rounds", "2", "--out", "out"]
    waited = tmp_path / "out" / "round-1" / "privacy.json"
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not waited.exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    found = spends(tmp_path / "private.npz.ledger.jsonl")
    assert [one["epsilon"] for one in found] == PARTS


@pytest.mark.long
@pytest.mark.parametrize(("rounds", "parts"), [(2, ["2", "4"]), (3, ["1", "2", "3"])])
def test_the_estimator_asks_in_rounds(tmp_path, rounds, parts):
    public, private, labels, truth = sides()
    ledger = tmp_path / "ledger.jsonl"
    labeler = ReverseKNNLabeler(
        epsilon=6.0, rounds=rounds, classes=range(NUM_CLASSES), ledger=ledger, metric="cosine"
    ).fit(public)
    assert labeler.cost(private).epsilon == 6
    found = labeler.label(private, labels)
    assert labeler.guarantee_.epsilon == pytest.approx(6)
    assert labeler.card_["guarantee"]["epsilon"] == pytest.approx(6)
    assert np.mean(found == truth) > 0.6
    assert [one["epsilon"] for one in spends(ledger)] == parts
    assert (labeler.confidence_ >= 0).all()


@pytest.mark.long
def test_a_record_moves_a_later_round_by_no_more_than_its_own_votes():
    public, private, labels, truth = sides(num_private=60)
    guarantee = Guarantee(1.0, 0.0, "replace-one", "central", ())
    before = Before(soft(truth).astype(np.float32), guarantee)
    settings = named_settings(
        Settings, "", "", 1.0, check_share=0.0, ledger=Path("none"), queries=40
    )
    inputs.check(settings)
    choosing.check(settings)

    def counted(rows, classes):
        data = inputs.data_of(public, rows, classes, Classes(NUM_CLASSES), None)
        return label.count(planning.plan(settings, data, before)).counts

    counts = counted(private, labels)
    assert counts.sum() == len(private)
    for row in range(0, 60, 7):
        moved, other = private.copy(), labels.copy()
        moved[row], other[row] = [np.inf, 0, 0, 0, 0], 0
        assert np.abs(counted(moved, other) - counts).sum() == 1
        moved[row], other[row] = -5 * private[row], (labels[row] + 1) % NUM_CLASSES
        assert np.abs(counted(moved, other) - counts).sum() == 2


def test_a_label_that_earlier_rounds_decided_is_not_as_sure_as_the_last_rounds_noise():
    sure = np.array([0.9, 0.8, 0.7], np.float32)
    last = PublicLabels(None, soft([0, 1, 2]).astype(np.float32), sure, np.arange(3))
    before = np.array([[0.97, 0.01, 0.01, 0.01], [0.999, 3e-4, 4e-4, 3e-4], [0.3, 0.2, 0.1, 0.4]])
    found = last.beside(before)
    assert found.labels.tolist() == [0, 0, 2]
    np.testing.assert_array_equal(found.confidence, sure * [1, 0, 1])


@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine"])
def test_a_record_is_mapped_by_itself_bit_for_bit(metric):
    public, private, _, truth = sides(num_private=130)
    learned = discriminant.learned(public, soft(truth), metric)
    together = learned(private)
    for size, start in ((1, 0), (1, 77), (2, 5), (31, 40), (129, 1)):
        assert np.array_equal(learned(private[start : start + size]), together[start:][:size])
    doubled = learned(2 * private)
    near = metric == "cosine"
    assert np.allclose(doubled, together, atol=1e-5) == near


def test_the_directions_are_those_of_the_linear_discriminant():
    public, private, labels, truth = sides(num_public=3000)
    learned = discriminant.learned(public, np.eye(NUM_CLASSES)[truth], "sqeuclidean")
    peer = LinearDiscriminantAnalysis().fit(public, truth)
    own = learned(private)[:, : NUM_CLASSES - 1]
    theirs = peer.transform(private)
    # The ridge turns them a little.
    for axis in range(2):
        assert abs(np.corrcoef(own[:, axis], theirs[:, axis])[0, 1]) > 0.98


@pytest.mark.parametrize("kind", ["wide", "one class", "constant", "one feature", "huge", "tiny"])
def test_features_of_any_kind_are_mapped_to_finite_ones(kind):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 1500 if kind == "wide" else 3)).astype(np.float32)
    labels = np.zeros(50, int) if kind == "one class" else rng.integers(NUM_CLASSES, size=50)
    if kind == "constant":
        rows[:] = 3
    if kind == "one feature":
        rows = rows[:, :1]
    if kind == "huge":
        rows *= np.float32(2e14)
    if kind == "tiny":
        rows *= np.float32(1e-40)
    learned = discriminant.learned(rows, soft(labels), "sqeuclidean")
    learned.check()  # as a client does
    found = learned(rows)
    assert found.shape[1] >= rows.shape[1]
    assert np.isfinite(found).all()
