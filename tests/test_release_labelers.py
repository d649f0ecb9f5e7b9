"""Releases by labelers of one noisy sum, and the choice of a labeler."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy import stats

from benchmarks._measure import RESULTS
from rknn_jax.audit.taint import Seal, Sealed, TaintError
from rknn_jax.labelers.least_squares import LeastSquares
from rknn_jax.labelers.prototypes import Prototypes
from rknn_jax.labelers.public_prototypes import PublicPrototypes
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.ledger import BudgetExceededError, Ledger
from rknn_jax.question import Question
from rknn_jax.records.classes import Classes
from rknn_jax.release import choosing, counting, inputs, label, planning, rehearsal
from rknn_jax.release.choosing import Quantities
from rknn_jax.release.counting import Counter
from rknn_jax.release.estimator import ReverseKNNLabeler
from rknn_jax.release.settings import Settings
from rknn_jax.release.shards import ArrayShard, Records
from rknn_jax.report import results
from rknn_jax.types import Queries
from rknn_jax.types import Records as Labeled
from tests.options import named_settings

SUMS = ("prototypes", "public_prototypes", "least_squares")
ROWS = 600


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(1)
    group = rng.integers(0, 3, 900)
    rows = (np.eye(3)[group] * 5 + rng.normal(size=(900, 3))).astype(np.float32)
    np.save(tmp_path / "P.npy", rows[:300])
    who = rng.integers(0, 200, ROWS)
    np.savez(tmp_path / "R.npz", embeddings=rows[300:], labels=group[300:], who=who)
    return tmp_path, group[:300]


def settings(folder, **changes):
    given = {"public": str(folder / "P.npy"), "private": str(folder / "R.npz"), "epsilon": 4.0}
    given |= {"classes": "3", "labeler": "prototypes", "out": folder / "out"}
    return named_settings(Settings, **given | changes)


def kinds(given):
    return [entry.kind for entry in Ledger.open(given.ledger_path).entries()]


@pytest.mark.parametrize("person", [None, "who"])
@pytest.mark.parametrize("labeler", SUMS)
def test_a_release_labels_the_rows_charges_and_says_what_it_was(files, labeler, person):
    folder, truth = files
    given = settings(folder, labeler=labeler, person=person)
    done = label.release(planning.prepare(given))
    assert (done.labels == truth).mean() > 0.9
    [charge] = [one for one in Ledger.open(given.ledger_path).entries() if one.kind == "spend"]
    assert charge.purpose.startswith(f"rknn label: {labeler}, 3 classes, ")
    assert charge.guarantee == done.answers.guarantee
    assert charge.guarantee.sampler == "release"
    card = json.loads((folder / "out" / "privacy.json").read_text())
    assert card["labeler"] == labeler
    assert card["guarantee"]["epsilon"] == 4.0
    assert card["guarantee"]["unit"] == ("record" if person is None else "person")
    assert card["contribution"] == {"records": 1 if person is None else "shared", "votes": None}
    pure = {"public_prototypes": "permute_and_flip"}
    assert card["mechanism"] == pure.get(labeler, "discrete_laplace")
    assert labeler in (folder / "out" / "privacy.html").read_text()
    assert not (folder / "out" / "queries.npz").exists()
    with np.load(folder / "out" / "labels.npz") as rows:
        np.testing.assert_array_equal(rows["label"], done.labels)
        np.testing.assert_array_equal(rows["query"], -1)
        assert np.isnan(rows["confidence"]).all()
        np.testing.assert_allclose(rows["probability"].sum(axis=1), 1, atol=1e-5)
    report = results.read(folder / "out")
    held = [one.labels for one in results.class_rows(report)]
    assert held == np.bincount(done.labels, minlength=3).tolist()
    assert report.counts is None
    assert "No private record checked them" in (folder / "out/report.html").read_text()


def test_a_delta_buys_gaussian_noise(files):
    folder, truth = files
    given = settings(folder, labeler="least_squares", delta=1e-6)
    done = label.release(planning.prepare(given))
    assert done.card["mechanism"] == "gaussian"
    assert done.answers.guarantee.delta == 1e-6
    assert float(Ledger.open(given.ledger_path).spent.delta) == pytest.approx(1e-6)
    assert (done.labels == truth).mean() > 0.9


@pytest.mark.parametrize("labeler", ["prototypes", "public_prototypes"])
def test_a_paid_release_is_finished_from_its_kept_draw(files, labeler, monkeypatch):
    folder, _ = files
    given = settings(folder, labeler=labeler)

    def fail(*_):
        raise OSError("no disk")

    with monkeypatch.context() as patched:
        patched.setattr(label, "write", fail)
        with pytest.raises(OSError, match="no disk") as caught:
            label.release(planning.prepare(given))
    assert "pays nothing" in " ".join(caught.value.__notes__)
    kept = np.load(folder / "out" / ".rknn-release" / "counts.npy")
    monkeypatch.setattr(Question, "draw", lambda *_: pytest.fail("drawn again"))
    plan = planning.prepare(given)
    assert plan.paid
    done = label.release(plan)
    read = plan.question.read(kept)
    np.testing.assert_array_equal(done.labels, read.probabilities.argmax(axis=1))
    assert kinds(given) == ["create", "spend", "drawn"]
    assert (folder / "out" / "privacy.json").exists()


def test_a_second_release_that_the_budget_does_not_pay_for_draws_nothing(files, monkeypatch):
    folder, _ = files
    label.release(planning.prepare(settings(folder)))
    monkeypatch.setattr(Question, "draw", lambda *_: pytest.fail("drawn"))
    with pytest.raises(BudgetExceededError):
        planning.prepare(settings(folder, out=folder / "again"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"queries": 5}, "no queries with labeler prototypes, got queries 5"),
        ({"neighbors": 2}, "no neighbors"),
        ({"metric": "cosine"}, "no metric"),
        ({"seed": 3}, "no seed"),
        ({"person": "who", "records_per_person": 2}, "no records_per_person"),
        ({"mechanism": "permute_and_flip"}, "mechanism of discrete_laplace, gaussian"),
        ({"mechanism": "gaussian"}, "delta > 0 with labeler prototypes mechanism gaussian"),
        ({"labeler": "public_prototypes", "delta": 1e-6}, "no delta with"),
        ({"labeler": "nearest"}, "labeler to be one of least_squares, prototypes, public"),
        ({"labeler": "private_knn"}, "train.distill --labeler private_knn"),
        ({"labeler": "noisy_sgd"}, "train.distill --labeler noisy_sgd"),
        ({"labeler": "auto", "queries": 5}, "no queries with labeler auto"),
        ({"labeler": "auto", "delta": 1e-6}, "no delta with labeler auto"),
        ({"labeler": "auto", "relation": "add-remove"}, "relation replace-one"),
    ],
)
def test_settings_that_a_labeler_does_not_use_are_refused_before_anything_is_read(
    files, changes, words, monkeypatch
):
    folder, _ = files
    monkeypatch.setattr(planning, "read", lambda *_: pytest.fail("read"))
    with pytest.raises(ValueError, match=words):
        planning.prepare(settings(folder, **changes))
    assert sorted(path.name for path in folder.iterdir()) == ["P.npy", "R.npz"]


def test_the_number_of_records_may_be_private(files):
    folder, truth = files
    done = label.release(planning.prepare(settings(folder, relation="add-remove")))
    assert done.card["num_records"] is None
    assert done.answers.guarantee.relation == "add-remove"
    assert (done.labels == truth).mean() > 0.9


def test_nothing_private_is_read_after_the_noise(files, monkeypatch):
    """The sums are sealed by the draw, and equal draws on other records release the same."""
    folder, _ = files
    seal = Seal()
    honest = exact_noise.discrete_laplace

    def draw(totals, scale):
        noisy = honest(totals, scale=scale)
        seal.closed = True
        return noisy

    monkeypatch.setattr(exact_noise, "discrete_laplace", draw)
    plan = planning.prepare(settings(folder))
    counted = label.count(plan)
    sealed = replace(counted, counts=Sealed(counted.counts, "sums", seal))
    label.release(plan, sealed)
    with pytest.raises(TaintError):
        np.asarray(sealed.counts)
    other = planning.prepare(settings(folder, private=str(other_records(folder)), out=folder / "b"))
    drawn = counted.counts
    first, second = (one.question.read(drawn) for one in (plan, other))
    np.testing.assert_array_equal(first.probabilities, second.probabilities)


def other_records(folder):
    path = folder / "Q.npz"
    with np.load(folder / "R.npz") as saved:
        np.savez(path, embeddings=-saved["embeddings"], labels=2 - saved["labels"])
    return path


# The sum


@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize("kind", [Prototypes, LeastSquares, PublicPrototypes])
def test_files_are_summed_as_arrays_are(kind, unit, monkeypatch):
    """Shards, blocks and records that cannot be used change nothing."""
    monkeypatch.setitem(counting.BLOCK, "cpu", 32)
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(157, 4)).astype(np.float32)
    labels = rng.integers(-1, 3, 157)
    who = rng.integers(0, 40, 157)
    rows[5], labels[7] = np.nan, 8
    queries = Queries.alone(rng.normal(size=(20, 4)), np.arange(20))
    labeler = kind(unit=unit)
    pieces = np.split(np.arange(157), [60, 61])
    shards = [ArrayShard(str(i), rows[at], labels[at], who[at]) for i, at in enumerate(pieces)]
    counter = Counter(labeler.tally(queries, 3), Classes(3))
    counted = counting.count_all(Records.of(shards), counter)
    usable = np.isfinite(rows).all(axis=1) & (labels >= 0) & (labels < 3)
    records = Labeled(rows[usable], labels[usable].astype(np.int32), who[usable].astype(np.int32))
    whole = labeler.contribute(jax.random.key(0), records, np.asarray, queries, 3)
    np.testing.assert_array_equal(counted.counts, whole.totals)
    assert counted.voters == usable.sum()
    people = len(np.unique(who[usable])) if unit == "person" else 157
    assert counted.units == people
    # A shard that tells more than its records can add is refused.
    if unit == "record":
        pairs = zip(shards, pieces, strict=True)
        counts = [counting.count(shard, len(at), counter) for shard, at in pairs]
        counts[0].totals[0, -1] += 10**6
        with pytest.raises(ValueError, match="sum over .* records in 0, got one of others"):
            counting.total(counts, ["0", "1", "2"], counter)


def planned(labeler, epsilon, tmp_path, unit="record"):
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(60, 20)).astype(np.float32)
    who = np.arange(40) if unit == "person" else None
    data = inputs.data_of(rows[:20], rows[20:], np.arange(40) % 2, Classes(2), who)
    person = "who" if unit == "person" else None
    given = named_settings(
        Settings, "P", "R", epsilon, labeler=labeler, ledger=tmp_path / "l", person=person
    )
    return planning.plan(given, data)


class Free:
    """Payer who pays for everything."""

    def charge(self, guarantee, purpose):
        pass


@pytest.mark.parametrize("unit", ["record", "person"])
def test_drawn_sums_have_discrete_laplace_noise(tmp_path, unit):
    """By a chi-square test whose false alarms have probability 1e-6."""
    plan = planned("prototypes", 0.5, tmp_path, unit)
    question = plan.question
    scale = question.noise.stddev / np.sqrt(2)
    totals = counting.count_all(plan.data.private, Counter(question.tally, Classes(2))).counts
    drawn = [question.draw(totals, 20, Free(), "a test") for _ in range(60)]
    noise = (np.array(drawn) - totals).ravel()
    assert scale >= question.labeler.sensitivity / 0.5
    shares = np.array([stats.expon.cdf(np.abs(noise) / scale)]).ravel()
    held, _ = np.histogram(shares, np.linspace(0, 1, 11))
    assert stats.chisquare(held).pvalue > 1e-6
    assert stats.binomtest(int((noise > 0).sum()), len(noise)).pvalue > 1e-6


# The choice


def test_the_choice_depends_on_public_numbers_alone():
    data = inputs.data_of(*tables(), Classes(3))
    given = Settings("P", "R", 0.1, labeler="auto")
    chosen = choosing.choose(given, data)
    other = inputs.data_of(tables()[0], 9 * tables()[1], 2 - tables()[2], Classes(3))
    assert choosing.choose(given, other) == chosen
    assert chosen.settings.labeler in choosing.names()
    assert "n·epsilon/classes" in chosen.reason


@pytest.mark.parametrize("labeler", SUMS)
def test_a_sum_that_noise_decides_is_a_concern(files, labeler):
    """Labels by noise alone looked as good as others, and nothing was said."""
    folder, _ = files
    told = []
    for epsilon in (0.001, 20.0):
        plan = planning.prepare(settings(folder, labeler=labeler, epsilon=epsilon, dry_run=True))
        expected = rehearsal.expect(plan.settings, plan.data, plan.question, plan.num_voters)
        told.append({one.kind for one in expected.concerns})
    assert "noise_decides" in told[0]
    assert "noise_decides" not in told[1]


@pytest.mark.long
def test_a_dry_run_tells_what_every_labeler_would_give_without_a_private_row(files, monkeypatch):
    folder, _ = files
    monkeypatch.setattr(counting, "count", None)  # nothing is counted
    plan = planning.prepare(settings(folder, labeler="prototypes", epsilon=0.02, dry_run=True))
    found = planning.expect(plan)
    others = {f"labeler {name}" for name in ("rknn", "public_prototypes", "least_squares")}
    assert set(found.alternatives) == others
    best = max(found.alternatives, key=found.alternatives.get)
    assert found.alternatives[best] > found.expected[0.9] + planning.CLEARLY
    assert found.advice.startswith(f"{best} is expected to give")
    hidden = settings(folder, labeler="rknn", relation="add-remove", queries=9, dry_run=True)
    assert not planning.expect(planning.prepare(hidden)).alternatives, "n is private"


def test_no_labeler_is_chosen_for_an_assumed_number_of_classes():
    """A dry run without classes previewed another labeler than the release took."""
    data = inputs.data_of(*tables(), Classes(10, source="assumed"))
    with pytest.raises(ValueError, match="classes with labeler auto"):
        choosing.choose(Settings("P", "R", 0.1, labeler="auto"), data)


def tables():
    rng = np.random.default_rng(4)
    return (
        rng.normal(size=(30, 4)).astype(np.float32),
        rng.normal(size=(50, 4)).astype(np.float32),
        rng.integers(0, 3, 50),
    )


def test_the_rule_takes_another_labeler_for_few_classes_and_a_weak_signal():
    per_epsilon = 1000 / choosing.FEW_CLASSES
    for signal, labeler in (
        (choosing.WEAK * 0.99, "rknn"),
        (choosing.WEAK * 1.01, choosing.OTHER),
        (choosing.STRONG * 0.99, choosing.OTHER),
        (choosing.STRONG * 1.01, "rknn"),
    ):
        found = Quantities(1000, choosing.FEW_CLASSES, signal / per_epsilon)
        assert choosing.rule(found).labeler == labeler
        more = replace(found, num_classes=choosing.FEW_CLASSES + 1, num_records=2000)
        assert choosing.rule(more).labeler == "rknn"


def test_the_rule_is_the_one_that_the_benchmark_fitted():
    told = json.loads((RESULTS / "choosing.json").read_text())["results"]["rule"]
    fitted = [told[name] for name in ("labeler", "most_classes", "weak", "strong")]
    ours = [choosing.OTHER, choosing.FEW_CLASSES, choosing.WEAK, choosing.STRONG]
    assert fitted == ours


@pytest.mark.parametrize("labeler", ["rknn", "public_prototypes"])
def test_auto_makes_the_release_that_it_chose(labeler, tmp_path):
    classes = 2 if labeler == "public_prototypes" else 3
    data = inputs.data_of(*tables(), Classes(classes))
    given = named_settings(
        Settings, "P", "R", 10 * classes / 50, labeler="auto", ledger=tmp_path / "l"
    )
    plan = planning.plan(given, data)
    assert plan.settings.labeler == labeler
    assert plan.choice.startswith(f"{labeler}, for n·epsilon/classes = 10, and {classes} classes")


@pytest.mark.long
def test_a_chosen_release_says_so_and_is_that_of_the_named_labeler(files):
    folder, truth = files
    given = settings(folder, labeler="auto")
    plan = planning.prepare(given)
    named = replace(given, labeler=plan.settings.labeler)
    assert planning.request(plan.settings, plan.data) == planning.request(named, plan.data)
    done = label.release(plan)
    assert done.card["labeler"] == plan.settings.labeler
    assert done.card["choice"] == plan.choice
    assert plan.choice.startswith(plan.settings.labeler)
    assert (done.labels == truth).mean() > 0.9


# The command and the estimator


@pytest.mark.long
def test_the_command_tells_what_it_releases(files, rknn):
    folder, _ = files
    given = ("label", "--public", folder / "P.npy", "--private", folder / "R.npz", "--classes", "3")
    given = (*map(str, given), "--epsilon", "4", "--labeler", "prototypes", "--json")
    expected = rknn(*given, "--dry-run")
    assert expected.json["labeler"] == "prototypes"
    assert expected.json["expected"]["1.0"] > 0.9
    assert not (folder / "R.npz.ledger.jsonl").exists()
    done = rknn(*given, "--out", str(folder / "out"))
    assert set(done.json["files"]) == {"labels", "page", "privacy", "report", "summary"}
    assert "prototypes, by one sum of 3 by 4 numbers" in done.err.replace("\n", " ")
    assert done.json["unsure"] is None


@pytest.mark.parametrize("labeler", ["least_squares", pytest.param("auto", marks=pytest.mark.long)])
def test_the_estimator_takes_a_labeler(files, labeler):
    folder, truth = files
    with np.load(folder / "R.npz") as private:
        rows, labels = private["embeddings"], private["labels"]
    one = ReverseKNNLabeler(4, labeler=labeler, classes=[0, 1, 2], ledger=folder / "l.jsonl")
    one.fit(np.load(folder / "P.npy"))
    assert one.cost(rows).epsilon == 4
    assert (one.label(rows, labels) == truth).mean() > 0.9
    assert (one.predict(rows) == labels).mean() > 0.9
    assert one.card_["labeler"] in choosing.names()
    with pytest.raises(ValueError, match=f"no n_queries with labeler {labeler}"):
        one.set_params(n_queries=5).label(rows, labels)
