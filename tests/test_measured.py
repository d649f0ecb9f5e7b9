"""What labels are worth, measured at every door by records that did not vote."""

import json
import re
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.stats import binom

from rknn_jax import ReverseKNNLabeler, check, check_noise
from rknn_jax.answers import calibration
from rknn_jax.answers.concern import Concern
from rknn_jax.answers.measured import Interval, Measured, interval
from rknn_jax.cli import label_lines
from rknn_jax.labelers._sum_labeler import Labeling
from rknn_jax.labelers._votes import Bound, VoteTally
from rknn_jax.privacy.ledger import Ledger, LedgerError
from rknn_jax.privacy.roles import MEASURE, VOTE, Roles
from rknn_jax.privacy.statement import percent, right_guesses
from rknn_jax.records.classes import Classes
from rknn_jax.release import counting, estimator, label, planning, questions
from rknn_jax.release.counting import Counter
from rknn_jax.release.release_folder import STAGING
from rknn_jax.release.settings import Settings
from rknn_jax.release.shards import ArrayShard
from tests.options import named_settings
from tests.test_checkers import winners

NUM_CLASSES = 4
NAMES = ("ash", "oak", "elm", "yew")


def rows_of(rng, size, spread=0.6):
    """Return points around four centers, and their classes."""
    centers = 2.5 * np.eye(NUM_CLASSES, 6)
    labels = rng.integers(0, NUM_CLASSES, size)
    points = centers[labels] + spread * rng.normal(size=(size, 6))
    return points.astype(np.float32), labels


@pytest.fixture(scope="module")
def sides():
    rng = np.random.default_rng(0)
    return (*rows_of(rng, 200), *rows_of(rng, 3000))


@pytest.fixture
def files(tmp_path, sides, monkeypatch):
    public, _, private, labels = sides
    monkeypatch.chdir(tmp_path)
    np.savez("public.npz", embeddings=public)
    np.savez("private.npz", embeddings=private, labels=labels)
    (tmp_path / "shards").mkdir()
    for number in range(3):
        part = slice(1000 * number, 1000 * (number + 1))
        name = f"shards/{number}.npz"
        np.savez(name, embeddings=private[part], labels=labels[part])
    return tmp_path


def settings(private="private.npz", **others):
    chosen = {"classes": ",".join(NAMES), "queries": 12}
    chosen |= {"out": Path("out"), "ledger": Path("ledger.jsonl")}
    return named_settings(Settings, "public.npz", private, **{"epsilon": 1.0} | chosen | others)


def agreement(done, sides):
    """Return the share of all private records that agree with the labels, without privacy."""
    public, _, private, labels = sides
    checkers = check.Checkers(
        Roles.drawn(0.0, 0.5, 0.0), public, "sqeuclidean", NUM_CLASSES, 1.0, "replace-one", "record"
    )
    role = np.full(len(labels), MEASURE, np.int8)
    ones = np.ones(len(labels), np.int64)
    everyone = check.Checks(role, private, labels, ones, np.bincount(role))
    smooth = done.measured.labeling != "the label of each query"
    labeling = Labeling("", done.probabilities, lambda: done.found, smooth)
    return checkers.agrees(everyone, labeling).mean()


@pytest.mark.parametrize("private", ["private.npz", "shards"])
def test_a_release_measures_itself_and_says_so_everywhere(files, rknn, private):
    flags = ["--public", "public.npz", "--private", private, "--classes", ",".join(NAMES)]
    flags += ["--epsilon", 1, "--queries", 12, "--out", "out", "--ledger", "ledger.jsonl", "--json"]
    told = json.loads(rknn("label", *flags).out)
    measured = told["measured"]
    assert measured["low"] < measured["right"] <= measured["high"]
    assert 90 < measured["checkers"] < 220
    assert told["guarantee"]["epsilon"] == 1
    assert told["expected_accuracy"] is None
    with np.load("out/labels.npz") as saved:  # as probable as labels were measured to be right
        sure = saved["probability"].max(axis=1)
        assert np.array_equal(saved["label"], saved["probability"].argmax(axis=1))
    assert sure.mean() == pytest.approx(min(measured["right"], 0.999), abs=0.005)
    summary = json.loads((files / "out/summary.json").read_text())
    card = json.loads((files / "out/privacy.json").read_text())
    assert summary["measured"] == card["measured"] == measured
    words = f"Measured on {measured['checkers']} private records that did not vote"
    assert words in (files / "out/privacy.html").read_text()
    assert words in (files / "out/report.html").read_text()
    assert json.loads(rknn("inspect", "out", "--json").out)["measured"] == measured
    assert "did not vote" in card["released"][-1]
    ledger = Ledger.open(files / "ledger.jsonl")
    assert float(ledger.spent.epsilon) == 1
    [told] = re.findall(r"([\d.]+)% of them check", ledger.entries()[1].purpose)
    assert 5 < float(told) < 50


@pytest.mark.parametrize("moved", [False, True])
def test_probabilities_are_as_measured_unless_private_records_lie_elsewhere(files, sides, moved):
    _, _, private, labels = sides
    shift = np.float32([2, 2, 0, 0, 0, 0]) if moved else np.zeros(6, np.float32)
    np.savez("private.npz", embeddings=private + shift, labels=labels)
    done = label.release(planning.prepare(settings(check_share=0.5, epsilon=4.0)))
    assert done.card["check"]["choose"] > 0
    assert done.card["tuning"]["private_data"] == "charged", "they choose how the sum is read"
    assert str(done.measured) in done._repr_html_()
    assert "not measured" in replace(done, measured=None)._repr_html_()
    kinds = {one.kind for one in done.concerns}
    assert bool(kinds & {"crowded_rows", "distant_rows"}) == moved
    own = calibration.doubted(done.decoded.probabilities)
    assert np.array_equal(done.probabilities, own) == moved
    sure = done.probabilities.max(axis=1).mean()
    assert moved or sure == pytest.approx(min(done.measured.right, 0.999), abs=0.02)


def test_no_record_checks_where_it_would_tell_nothing_or_is_turned_off(files, rknn):
    for flags in (["--epsilon", 0.1], ["--epsilon", 1, "--check-share", 0]):
        done = rknn(
            *("label", "--public", "public.npz", "--private", "private.npz", "--queries", 12),
            *("--classes", ",".join(NAMES), "--out", f"out{flags[1]}", *flags, "--json"),
            *("--ledger", f"{flags[1]}.jsonl"),
        )
        assert json.loads(done.out)["measured"] is None
        words = " ".join(done.err.split())
        assert "nobody measures" in words or "it takes" in words


@pytest.mark.long
def test_a_resumed_release_refuses_files_in_another_order(files, monkeypatch):
    given = settings(("shards/0.npz", "shards/1.npz", "shards/2.npz"))

    def fail(*_):
        raise OSError("no disk")

    with monkeypatch.context() as patched:
        patched.setattr(label, "write", fail)
        with pytest.raises(OSError, match="no disk"):
            label.release(planning.prepare(given))
    other = settings(("shards/1.npz", "shards/0.npz", "shards/2.npz"))
    with pytest.raises(LedgerError, match="records that voted would check"):
        label.release(planning.prepare(other))
    # The counts are gone too: they would be drawn anew, for other voters.
    kept = (files / "out" / STAGING / "counts.npy").read_bytes()
    (files / "out" / STAGING / "counts.npy").unlink()
    with pytest.raises(LedgerError):
        label.release(planning.prepare(other))
    (files / "out" / STAGING / "counts.npy").write_bytes(kept)
    assert label.release(planning.prepare(given)).measured is not None


def test_a_class_is_warned_of_where_its_recall_is_surely_low():
    def warned(low, high):
        recall = (Interval((low + high) / 2, low, high),)
        found = Measured(0.9, 0.85, 0.95, 1000, "labels", recall, None).concerns(["a"])
        return [one.kind for one in found] == ["low_recall"]

    assert warned(0.1, 0.45)
    assert not warned(0.1, 0.7), "it may be more than half"


@pytest.mark.parametrize(
    ("share", "majority", "kinds"),
    [
        (Interval(0.65, 0.5, 0.8), None, []),
        (Interval(0.5, 0.3, 0.69), None, ["low_measure"]),
        (Interval(0.75, 0.6, 0.9), 0.7, ["no_better"]),
        (Interval(0.75, 0.72, 0.9), 0.7, []),
    ],
)
def test_labels_are_warned_of_by_the_end_of_the_interval(share, majority, kinds):
    found = Measured(*share, 100, "labels", (), majority)
    assert [one.kind for one in found.concerns(["a"])] == kinds
    opinion = Concern("low_agreement", 0.3, "these embeddings are poor", "use others", opinion=True)
    fact = Concern("missing_classes", 0.3, "a class is missing", "ask for more")
    beside = [one.kind for one in found.beside([opinion, fact], ["a"])]
    assert sorted(beside) == sorted([*kinds, "missing_classes"])


def test_an_interval_leaves_out_one_in_twenty():
    """Without noise, its ends are those of Clopper and Pearson."""
    low, high = interval(80, 20, 1e-3, known=True)[1:]
    assert binom.sf(79, 100, low) == pytest.approx(0.025, abs=2e-3)
    assert binom.cdf(80, 100, high) == pytest.approx(0.025, abs=2e-3)


def test_a_release_of_before_there_were_checks_is_finished_without(files, monkeypatch):
    given = settings(check_share=0.0)
    monkeypatch.setattr(label, "write", lambda *_: (_ for _ in ()).throw(OSError("no disk")))
    with pytest.raises(OSError, match="no disk"):
        label.release(planning.prepare(given))
    note = json.loads((files / "out" / STAGING / "note.json").read_text())
    assert "roles" not in note
    plan = planning.prepare(given)
    assert plan.paid
    assert plan.checkers is None


@pytest.mark.long
def test_a_release_of_before_queries_were_left_out_is_finished(files, monkeypatch):
    given = settings(queries=None)
    assert planning.prepare(given).question.tally.shape[0] != 23
    with monkeypatch.context() as patched:
        # An earlier version might have chosen 23.
        patched.setattr(questions, "_worth", lambda *_: 23)
        patched.setattr(label, "write", lambda *_: (_ for _ in ()).throw(OSError("no disk")))
        with pytest.raises(OSError, match="no disk"):
            label.release(planning.prepare(given))
    done = label.release(planning.prepare(given))
    assert len(done.counts) == 23
    assert float(Ledger.open(files / "ledger.jsonl").spent.epsilon) == 1


def counted(parts, checkers, *, order=None):
    """Return the count of arrays as shards, in some order of arrival."""
    shards = [
        ArrayShard(f"{number}", points, labels) for number, (points, labels) in enumerate(parts)
    ]
    tally = VoteTally(checkers.rows[:7], NUM_CLASSES)
    counter = Counter(tally, Classes(NUM_CLASSES), checkers=checkers)
    counts = [
        counting.count(shard, len(parts[number][0]), counter, number=number)
        for number, shard in enumerate(shards)
    ]
    names = [shard.name for shard in shards]
    arrived = counts if order is None else [counts[number] for number in order]
    return counting.total(arrived, names, counter)


@pytest.fixture
def checkers(sides):
    roles = Roles.drawn(0.1, 0.1, 0.1)
    kind = ("sqeuclidean", NUM_CLASSES, 1.0, "replace-one", "record")
    return check.Checkers(roles, sides[0], *kind)


def test_every_record_votes_or_checks_once_and_replacing_one_changes_no_other(sides, checkers):
    _, _, private, labels = sides
    halves = [(private[:1700], labels[:1700]), (private[1700:], labels[1700:])]
    whole = counted(halves, checkers)
    role = np.concatenate(
        [checkers.roles.of_rows(0, 0, 1700), checkers.roles.of_rows(1, 0, len(private) - 1700)]
    )
    assert whole.counts.sum() == np.sum(role == VOTE) == whole.voters
    assert len(whole.checks.role) == np.sum(role != VOTE)
    assert whole.checks.sizes.tolist() == np.bincount(role, minlength=4).tolist()
    assert whole.ignored == 0
    late = counted(halves, checkers, order=[1, 0])
    for one, other in zip(whole.checks, late.checks, strict=True):
        assert np.array_equal(one, other)
    rng = np.random.default_rng(1)
    for place in rng.integers(0, len(private), 12):
        points, given = private.copy(), labels.copy()
        points[place], given[place] = rng.normal(size=6), (given[place] + 1) % NUM_CLASSES
        if place % 3 == 0:
            points[place] = np.nan
        other = counted([(points[:1700], given[:1700]), (points[1700:], given[1700:])], checkers)
        moved = int(np.abs(other.counts - whole.counts).sum())
        changed = np.sum(
            (other.checks.points != whole.checks.points).any(axis=1)
            | (other.checks.ids != whole.checks.ids)
        )
        assert np.array_equal(other.checks.sizes, whole.checks.sizes)
        if role[place] == VOTE:
            assert moved in (1, 2)
            assert changed == 0
        else:
            assert moved == 0
            assert changed == 1


def test_blocks_and_files_in_which_nobody_checks_are_counted(sides, checkers):
    _, _, private, labels = sides
    parts = [(private[first : first + 2], labels[first : first + 2]) for first in range(0, 24, 2)]
    found = counted(parts, checkers)
    assert found.voters + len(found.checks.role) == 24
    nobody = replace(checkers, roles=Roles.drawn(0.0, 1e-12, 0.0))
    assert counted(parts, nobody).voters == 24


def test_a_person_votes_or_checks_with_all_records(sides, checkers):
    public, _, private, labels = sides
    kind = ("sqeuclidean", NUM_CLASSES, 1.0, "replace-one", "person")
    of_persons = check.Checkers(checkers.roles, public, *kind)
    rng = np.random.default_rng(2)
    who = rng.integers(0, 300, len(private))
    counter = Counter(
        VoteTally(public[:7], NUM_CLASSES, bound=Bound()),
        Classes(NUM_CLASSES),
        checkers=of_persons,
    )
    shard = ArrayShard("all", private, labels, who)
    found = counting.total([counting.count(shard, len(private), counter)], ["all"], counter)
    assert found.checks.sizes[1:].sum() + found.persons == 300
    checks = found.checks
    assert checks.units.sum() == checks.sizes[1:].sum() * of_persons.grid
    assert len(checks.role) + found.voters == len(private)


def test_a_number_that_is_too_small_decides_nothing_where_underflow_is_an_error(files, sides):
    _, _, private, labels = sides
    rows = private.astype(np.float64)
    rows[3, 2] = 1e-50
    np.savez("private.npz", embeddings=rows, labels=labels)
    with np.errstate(all="raise"):
        done = label.release(planning.prepare(settings(smoothing="none")))
    assert len(done.labels) == 200


@pytest.mark.parametrize("draw", range(4))
def test_a_record_that_names_no_person_checks_nothing(sides, draw):
    """All such records had one role; in a tenth of draws it was to vote."""
    public, _, private, labels = sides
    kind = ("sqeuclidean", NUM_CLASSES, 1.0, "replace-one", "person")
    of_persons = check.Checkers(Roles.drawn(0.3, 0.3, 0.3), public, *kind)
    who = np.array([f"p{number % 200}" if number % 7 else "" for number in range(900)])

    def checks(chosen):
        shard = ArrayShard("all", private[:900][chosen], labels[:900][chosen], who[chosen])
        tally = VoteTally(public[:7], NUM_CLASSES, bound=Bound())
        counter = Counter(tally, Classes(NUM_CLASSES), checkers=of_persons)
        found = counting.count(shard, int(chosen.sum()), counter)
        return counting.total([found], ["all"], counter).checks

    all_of_them, named = checks(np.ones(900, bool)), checks(who != "")
    assert len(named.role) > 100
    for one, other in zip(all_of_them, named, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_estimator_measures_and_one_call_is_one_charge(tmp_path, sides):
    public, truth, private, labels = sides
    labeler = ReverseKNNLabeler(1.0, classes=range(4), n_queries=12, ledger=tmp_path / "l.jsonl")
    labeler.fit(public).label(private, labels)
    found = labeler.measured_
    assert found.low <= found.right <= found.high
    assert np.mean(labeler.labels_ == truth) > 0.9
    assert float(Ledger.open(tmp_path / "l.jsonl").spent.epsilon) == 1
    off = ReverseKNNLabeler(
        1.0, classes=range(4), n_queries=12, ledger=tmp_path / "m.jsonl", check_share=0
    )
    off.fit(public).label(private, labels)
    assert off.measured_ is None


def test_an_interrupt_leaves_a_labeler_with_one_whole_release(tmp_path, sides, monkeypatch):
    """New labels stood beside the statement of the release before, at a smaller epsilon."""
    public, _, private, labels = sides
    labeler = ReverseKNNLabeler(
        0.5, classes=range(4), n_queries=12, ledger=tmp_path / "l.jsonl", budget=3, check_share=0
    )
    labeler.fit(public).label(private, labels)
    before = dict(labeler.__dict__)
    monkeypatch.setattr(estimator, "as_json", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    labeler.set_params(epsilon=2.0)
    with pytest.raises(KeyboardInterrupt):
        labeler.label(private, labels)
    for name in (name for name in before if name.endswith("_")):
        assert labeler.__dict__[name] is before[name], name
    assert float(Ledger.open(tmp_path / "l.jsonl").spent.epsilon) == 2.5


@pytest.mark.long
def test_intervals_hold_the_agreement_of_all_records(files, sides):
    covered = []
    for number in range(12):
        mechanism = ("discrete_laplace", "permute_and_flip")[number % 2]
        given = settings(
            ledger=files / f"{number}.jsonl", out=files / f"{number}", mechanism=mechanism
        )
        done = label.release(planning.prepare(given))
        truth = agreement(done, sides)
        assert done.measured.low <= done.measured.right <= done.measured.high
        covered.append(done.measured.low <= truth <= done.measured.high)
    # At 95%, fewer than 9 of 12 happen once in 4,000 runs; noise of a release has no seed.
    assert sum(covered) >= 9


@pytest.mark.parametrize("labeler", ["prototypes", "least_squares", "public_prototypes"])
def test_labelers_of_one_sum_are_measured(files, sides, labeler):
    given = settings(labeler=labeler, queries=None)
    done = label.release(planning.prepare(given))
    assert done.measured.right == pytest.approx(agreement(done, sides), abs=0.25)
    assert done.answers.guarantee.epsilon == 1


def test_a_measure_by_persons_says_so(files, sides):
    _, _, private, labels = sides
    np.savez("private.npz", embeddings=private, labels=labels, who=np.arange(len(labels)) // 2)
    done = label.release(planning.prepare(settings(person="who", check_share=0.3)))
    words = f"Measured on {done.measured.checkers} private persons that did not vote"
    assert words in (files / "out/privacy.html").read_text()
    assert words in (files / "out/report.html").read_text()
    saved = done.measured.asdict()
    assert Measured.of(saved) == done.measured
    del saved["unit"]
    assert Measured.of(saved).unit == "record"


@pytest.mark.long
def test_sets_are_compared_with_no_class(files, sides):
    _, _, private, labels = sides
    sets = np.eye(NUM_CLASSES, dtype=bool)[labels]
    sets[:, 0] = True
    np.savez("private.npz", embeddings=private, labels=sets)
    done = label.release(planning.prepare(settings(labels_per_record=2, epsilon=3.0)))
    assert done.measured.majority is None
    assert "no_better" not in [one.kind for one in done.concerns]


@pytest.mark.long
@pytest.mark.parametrize(
    "chosen",
    [{"mechanism": "gaussian"}, {"labeler": "least_squares", "queries": None}, {"person": "who"}],
)
def test_a_ledger_of_divergences_pays_for_gaussian_votes_and_their_check(files, sides, chosen):
    _, _, private, labels = sides
    if "person" in chosen:
        chosen |= {"mechanism": "gaussian"}
        who = np.arange(len(labels)) // 2
        np.savez("private.npz", embeddings=private, labels=labels, who=who)
    budget = {"accounting": "renyi", "budget": 5.0, "budget_delta": 1e-4}
    plan = planning.prepare(settings(delta=1e-5, check_share=0.3, **budget, **chosen))
    assert plan.checkers.epsilon == plan.check_epsilon < 0.5
    assert label.release(plan).measured is not None


def test_who_checks_depends_on_the_epsilon_of_the_check(files):
    budget = {"accounting": "renyi", "budget": 5.0, "budget_delta": 1e-4}
    plan = planning.prepare(settings(delta=1e-5, mechanism="gaussian", **budget))
    assert check.shares(3000, 1.0, NUM_CLASSES, several=True).measure
    assert plan.checkers is None


def test_a_plan_refuses_a_check_that_its_ledger_cannot_pay(files, monkeypatch):
    calls = []
    known = planning.open_ledger

    def opened(settings, costs, *others, **flags):
        calls.append(costs)
        return known(settings, costs, *others, **flags)

    monkeypatch.setattr(planning, "open_ledger", opened)
    budget = {"accounting": "renyi", "budget": 5.0, "budget_delta": 1e-4}
    plan = planning.prepare(settings(check_share=0.1, **budget))
    assert calls[-1] == [plan.cost] != [plan.question.noise.guarantee]


@pytest.mark.parametrize(
    ("rule", "price"), [("sum", "at no epsilon"), ("renyi", "and the ledger's divergence grows")]
)
def test_the_terminal_says_what_a_check_costs(files, capsys, rule, price):
    budget = {"accounting": rule, "budget": 5.0, "budget_delta": 1e-4}
    label_lines.tell_plan(planning.prepare(settings(check_share=0.3, **budget)))
    told = " ".join(capsys.readouterr().err.split())
    assert f"do not vote but check the labels, {price}" in told


def test_a_check_of_gaussian_votes_is_free_on_a_ledger_of_divergences(files, capsys):
    """So records check by default, and the terminal does not say that the divergence grows."""
    budget = {"accounting": "renyi", "budget": 9.0, "budget_delta": 1e-4}
    plan = planning.prepare(settings(epsilon=6.0, delta=1e-5, mechanism="gaussian", **budget))
    assert plan.check_is_free
    assert plan.checkers is not None
    label_lines.tell_plan(plan)
    told = " ".join(capsys.readouterr().err.split())
    assert "do not vote but check the labels, at no epsilon" in told


def test_a_statement_tells_who_checks_at_which_epsilon_and_what_the_ledger_promises(files):
    budget = {"accounting": "renyi", "budget": 5.0, "budget_delta": 1e-4}
    votes = {"delta": 1e-5, "mechanism": "gaussian", "smoothing": "none"}
    plan = planning.prepare(settings(check_share=0.3, **votes, **budget))
    card = label.release(plan).card
    page = (files / "out/privacy.html").read_text()
    assert "30.0%, by a coin" in page
    # No labeling is chosen without smoothing.
    shares = {"choose": 0.0, "measure": 0.225, "recall": 0.075}
    assert card["check"] == pytest.approx(shares | {"epsilon": plan.check_epsilon})
    assert card["tuning"]["private_data"] == "none"
    (checked,) = [one for one in card["released"] if "agree with the labels" in one]
    assert "in all and of each class" in checked
    assert "choice among" not in checked
    assert plan.check_epsilon < card["guarantee"]["epsilon"]
    # Divergences add up, so that the budget is promised and not the epsilon that was spent.
    assert card["ledger"]["accounting"] == "renyi"
    assert percent(right_guesses(5.0, 1e-4)) in page


@pytest.mark.long
def test_nobody_checks_by_default_if_the_ledger_would_pay_for_it(files):
    budget = {"budget": 5.0, "budget_delta": 1e-4}
    assert planning.prepare(settings(**budget)).checkers is not None
    plan = planning.prepare(settings(accounting="renyi", **budget))
    assert plan.checkers is None
    assert plan.cost == plan.question.noise.guarantee
    assert not plan.check_is_free


@pytest.mark.long
def test_simulated_and_exact_noise_have_one_law():
    simulated = check_noise.SimulatedNoise(jax.random.key(0))
    draws = simulated.laplace(np.zeros(20_000, np.int64), 3.0)
    exact = check_noise.ExactNoise().laplace(np.zeros(20_000, np.int64), 3.0)
    for values in (draws, exact):
        q = np.exp(-1 / 3.0)
        variance = 2 * q / (1 - q) ** 2
        # Five standard errors of a variance whose kurtosis is 6.
        assert values.var() == pytest.approx(variance, rel=5 * np.sqrt(5 / 20_000))
        assert abs(values.mean()) < 5 * np.sqrt(variance / 20_000)
    counts = np.array([10, 9, 4], np.int64)
    for noise in (simulated, check_noise.ExactNoise()):
        chosen = np.bincount([noise.winner(counts, 2.0) for _ in range(3000)], minlength=3)
        expected = 3000 * winners(counts, 2.0)
        assert np.abs(chosen - expected).max() < 5 * np.sqrt(3000 / 4)
