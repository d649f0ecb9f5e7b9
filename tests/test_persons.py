"""A person as the unit: bounds on the votes of all records of a person, wherever they lie."""

import dataclasses
import hashlib
import json
import math
import uuid
from decimal import Decimal
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from rknn_jax import mechanisms
from rknn_jax.audit import games_release, verdict
from rknn_jax.formats import Columns, _arrow
from rknn_jax.labelers import _vote_mechanism
from rknn_jax.labelers._votes import Bound, VoteTally
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.mechanisms.gaussian import Gaussian
from rknn_jax.mechanisms.permute_and_flip import PermuteAndFlip
from rknn_jax.privacy import accounting, analytic_gaussian, calibration, contributions
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.ledger import Ledger, LedgerMismatchError
from rknn_jax.records.classes import Classes
from rknn_jax.records.persons import person_names
from rknn_jax.release import counting, label, planning
from rknn_jax.release.counting import Counter
from rknn_jax.release.estimator import ReverseKNNLabeler
from rknn_jax.release.settings import Settings
from rknn_jax.release.shards import ArrayShard, FileShard, Records
from rknn_jax.settings import by_option
from tests.options import named_settings

NEW = {
    "check_share",
    "labels_per_record",
    "representation",
    "standardize",
    "person",
    "records_per_person",
    "labeler",
}
RANDOM = np.random.default_rng(0)
ROWS, NUM_CLASSES = 240, 3
EMBEDDINGS = RANDOM.normal(size=(ROWS, 4)).astype(np.float32)
LABELS = RANDOM.integers(-1, NUM_CLASSES, ROWS)
PERSONS = RANDOM.zipf(1.6, ROWS) % 40
QUERIES = RANDOM.normal(size=(6, 4)).astype(np.float32)
BOUNDS = [Bound(), Bound(1), Bound(3, seed=5)]


def counter(bound, num_neighbors=2):
    return Counter(
        VoteTally(QUERIES, NUM_CLASSES, num_neighbors, bound=bound), Classes(NUM_CLASSES)
    )


def votes_of(bound, keep=True, num_neighbors=2):
    """Votes of the records to keep; all others have no label, so that nothing compiles anew."""
    shard = ArrayShard("all", EMBEDDINGS, np.where(keep, LABELS, -1), PERSONS)
    return counting.count_all(Records.of([shard]), counter(bound, num_neighbors))


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
@pytest.mark.parametrize("num_neighbors", [1, 2])
def test_a_person_moves_the_votes_no_more_than_a_record_may(bound, num_neighbors):
    """Every person leaves: k votes in L1, k in squared L2, 1 a cell, and nobody else's change."""
    whole = votes_of(bound, num_neighbors=num_neighbors)
    alone = np.zeros_like(whole.counts)
    for person in np.unique(PERSONS):
        moved = whole.counts - votes_of(bound, person != PERSONS, num_neighbors).counts
        mine = votes_of(bound, person == PERSONS, num_neighbors).counts
        np.testing.assert_array_equal(moved, mine)
        alone += mine
        assert mine.min() >= 0
        assert mine.max() <= whole.grid
        assert mine.sum() <= num_neighbors * whole.grid
        assert (mine.astype(object) ** 2).sum() <= num_neighbors * whole.grid**2
    np.testing.assert_array_equal(alone, whole.counts)
    assert whole.persons == len(np.unique(PERSONS[LABELS >= 0]))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 9))
def test_a_person_who_shares_has_one_unit_in_all(persons, grid):
    _, person = np.unique(persons, return_inverse=True)
    units = contributions.shared(person, grid).units
    assert np.all(np.bincount(person, units) == grid)
    for i in np.unique(person):
        assert np.ptp(units[person == i]) <= 1


@pytest.mark.parametrize(
    ("grid", "most"),
    [(contributions.GRID, 16), (contributions.SIMULATED_GRID, 10)],
    ids=["release", "simulation"],
)
def test_records_of_a_person_with_few_weigh_the_same(grid, most):
    for records in range(1, most + 1):
        weights = contributions.shared(np.zeros(records, np.int64), grid)
        assert (weights.units * records == grid).all()


def test_drawn_records_are_m_of_each_person_and_any_of_them():
    """Each of a person's four records is drawn in half of 2,000 draws, within 5 deviations."""
    person = np.repeat([0, 1, 2], [4, 1, 2])
    names = person.astype(np.uint64) * np.uint64(10**15)
    drawn = np.array([contributions.limited(person, names, 2, seed).units for seed in range(2000)])
    assert np.all(drawn[:, :4].sum(axis=1) == 2)
    assert drawn[:, 4:].all()
    assert np.abs(drawn[:, :4].mean(axis=0) - 0.5).max() < 5 * np.sqrt(0.25 / 2000)


def test_a_draw_is_the_same_in_every_version():
    """A release that was paid for is finished with the records that it has counted."""
    person = np.repeat([0, 1], 5)
    names = np.array([3, 2**63 + 5], np.uint64)[person]
    drawn = [contributions.limited(person, names, 2, seed).units.tolist() for seed in range(2)]
    assert drawn == [[0, 1, 0, 1, 0, 1, 1, 0, 0, 0], [0, 1, 1, 0, 0, 1, 0, 0, 1, 0]]


def test_bits_are_mixed_as_by_splitmix64():
    """The first two outputs for the seed 0, as published."""
    mixed = contributions._mixed(np.array([0, 0x9E3779B97F4A7C15], np.uint64))
    assert mixed.tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_a_draw_does_not_change_with_other_persons():
    """Others come before, between and after a person's records."""
    names = np.array([7, 7, 9, 7, 8, 9, 7], np.uint64)
    _, person = np.unique(names, return_inverse=True)
    mine = names == 7
    whole = contributions.limited(person, names, 2).units[mine]
    alone = contributions.limited(np.zeros(4, int), names[mine], 2).units
    np.testing.assert_array_equal(whole, alone)


@pytest.mark.long
def test_a_ledger_of_patients_pays_for_no_visits(rknn, tmp_path):
    """A patient of three visits was once charged for one of them."""
    rows = np.random.default_rng(0).standard_normal((40, 2))
    number = np.arange(12)
    np.savez(tmp_path / "P.npz", embeddings=rows[12:])
    who = {"patient": number // 3, "visit": number}
    np.savez(tmp_path / "R.npz", embeddings=rows[:12], labels=number % 2, **who)
    label = ("label", "--public", "P.npz", "--private", "R.npz", "--classes", "2")
    label += ("--epsilon", "1", "--budget", "3", "--queries", "2", "--smoothing", "none")
    assert rknn(*label, "--person", "patient").status == 0
    ledger = tmp_path / "R.npz.ledger.jsonl"
    before = ledger.read_bytes()
    classes = ("classes", "--private", "R.npz", "--epsilon", "1", "--delta", "1e-6")
    for command in (label, (*label, "--dry-run"), classes):
        done = rknn(*command, "--person", "visit")
        assert done.status == 2
        assert "Expected --person patient" in done.err
    assert ledger.read_bytes() == before
    assert rknn(*label, "--person", "patient").status == 0


def test_records_of_a_person_in_several_shards_are_bounded_as_one(tmp_path):
    """By every cut, format and order of the shards."""
    shards = []
    for number, part in enumerate(np.array_split(np.arange(ROWS), 3)):
        table = pa.table(
            {"e": EMBEDDINGS[part].tolist(), "y": LABELS[part], "who": PERSONS[part].astype(str)}
        )
        pa.parquet.write_table(table, tmp_path / f"{number}.parquet")
        columns = Columns(("e",), "y", width=4, person="who")
        shards.append(FileShard(str(tmp_path / f"{number}.parquet"), "--private", columns))
    for bound in BOUNDS:
        found = counting.count_all(Records.of(shards[::-1]), counter(bound))
        np.testing.assert_array_equal(found.counts, votes_of(bound).counts)
    assert counting.num_persons(shards) == len(np.unique(PERSONS))


def test_a_record_of_nobody_casts_no_vote():
    persons = np.array([str(person) for person in PERSONS], object)
    persons[::3] = None
    persons[1::9] = "  "
    shard = ArrayShard("some", EMBEDDINGS, LABELS, persons)
    found = counting.count_all(Records.of([shard]), counter(Bound()))
    known = np.array([bool(person and person.strip()) for person in persons])
    np.testing.assert_array_equal(found.counts, votes_of(Bound(), known).counts)
    assert found.ignored == np.sum(~known & (LABELS >= 0))


def num_names(values):
    names, known = person_names(np.fromiter(values, object, len(values)), "")
    assert known.all()
    return len(np.unique(names, axis=0))


def test_names_keep_persons_apart_and_kinds_of_numbers_together():
    long = "x" * 500
    apart = np.array([long + "a", long + "b", "1", "-1", "2", "A", "a", "1.5"], object)
    names, known = person_names(apart, "")
    assert len(np.unique(names, axis=0)) == len(apart)
    assert known.all()
    same = [np.array([2**53 + 1]), np.array([str(2**53 + 1)]), np.array([b" 9007199254740993"])]
    assert len({person_names(each, "")[0].tobytes() for each in same}) == 1
    written = ["7", "7.0", "07", "+7", " 7\u00a0", "7E+00", "70e-1", "0.7E1", b"7", 7, 7.0]
    written += [np.float32(7), np.longdouble(7), Decimal("7.00"), memoryview(b"7"), bytearray(b"7")]
    assert num_names(written) == 1
    assert num_names([100_000, 1e5, "1E+05", "1.0E5", Decimal("1E+5"), "100000."]) == 1
    assert num_names([10**17, np.longdouble(10**17)]) == 1
    assert num_names([10**15, "1e+15", "1000000000000000.0", 1e15]) == 1
    assert num_names([0, "-0", "0e+9", ".0", "-0.0", False]) == 1
    assert num_names([True, np.bool_(True), 1]) == 1
    assert num_names([7, 7 + 0j, "(7+0j)", b"(7.0-0j)"]) == 1
    assert num_names([7, 7 + 1j, "(7+1j)x j)"]) == 3
    assert (
        num_names([b"7\0\0", "7\0", 7, b"7\0 ", "7 \0"]) == 1
    )  # NumPy's bytes end before zeros, and Arrow's do not
    keys = [(1, 7), [1.0, "07"], np.array([1, 7]), (np.float64(1), 7 + 0j), (True, Decimal("7.0"))]
    assert num_names(keys) == num_names([*keys, ("1", b"7"), np.rec.array([(1, 7.0)])[0]]) == 1
    assert num_names([(1, 7), (17,), "17", (1, (7,)), (7, 1), (1, 7, 7), "(1, 7)", "1, 7"]) == 8
    # No number in one form is taken for text in another, whatever its size.
    assert num_names(["1.5", "1.50", "1e400", "1e4000", ".001", "1,000", "e5", "1e"]) == 8
    one = uuid.UUID("A987fbc9-4bed-3078-af07-9141ba07c9f3")
    column = pa.array([one.bytes, None, bytes(16)], pa.uuid())
    [stored, missing, nil] = _arrow.person_column(column, "patient")
    assert missing is None
    forms = [one, str(one), str(one).upper(), f"{{{one}}}", one.urn, one.hex, stored]
    assert num_names(forms) == 1
    assert num_names([one, f"{one}0", one.hex[1:], one.bytes, "1" * 32, "01" * 16]) == 6
    assert not person_names(np.array([nil, uuid.UUID(int=0)], object), "")[1].any()
    forms = np.array(["Jos\u00e9", "Jose\u0301", "Jos\u00e9".encode()], object)
    assert len(np.unique(person_names(forms, "")[0], axis=0)) == 1
    # The text of an object without one is its place, which is another for each record.
    nobody = [
        "",
        " ",
        None,
        "nan",
        "NA",
        "None",
        "null",
        np.nan,
        "<NA>",
        object(),
        memoryview(b" "),
        (),
        [memoryview(b"7"), None],
        (1, np.nan),
        "(nan+0j)",
        "(1e17+0j)",
        (1, 2.0**53),
        (object(),),
        {"site": 1},
        np.array([7, np.nan]),
        {0, 8},
        frozenset("a"),
    ]
    assert not person_names(np.fromiter(nobody, object, len(nobody)), "")[1].any()
    assert person_names(np.array([2.0**53, 5.0]), "")[1].tolist() == [False, True]
    assert person_names(np.array([2**24, 5], np.float32), "")[1].tolist() == [False, True]
    mixed = np.array([2.0**53, 1e17, np.float32(2**24), 10**17, 5.0], object)
    assert person_names(mixed, "")[1].tolist() == [False, False, False, True, True]
    assert person_names(np.array(["\ud800", "b"], object), "")[1].all()
    numbers = np.array([1.0, np.nan, 2.5])
    assert num_names([1.1, *np.array([1.1], np.float32)]) == 1
    for short in (np.float16, np.float32):  # in one shard, beside longer floats in another
        names = [person_names(np.array([1.1, 7], kind), "")[0] for kind in (short, float)]
        np.testing.assert_array_equal(*names)
    names, known = person_names(numbers, "")
    assert known.tolist() == [True, False, True]
    np.testing.assert_array_equal(names[0], person_names(np.array([1]), "")[0][0])
    for odd in (np.zeros((2, 2)), np.array([True]), np.zeros(2, "M8[s]")):
        with pytest.raises(ValueError, match="whose a record is"):
            person_names(odd, "--private")


@pytest.mark.parametrize("kind", [DiscreteLaplace, PermuteAndFlip, Gaussian])
def test_a_mechanism_for_persons_is_that_for_records_on_a_finer_grid(kind):
    """4,000 draws of each; their variance within 5 standard errors, false alarms below 1e-4."""
    delta = {"delta": 1e-5} if kind.needs_delta else {}
    person = kind(2.0, 1000, 4, unit="person", grid=6, **delta)
    guarantee = person.release_guarantee(10)
    assert guarantee.unit == "person"
    assert (guarantee.epsilon, guarantee.delta) == (2.0, delta.get("delta", 0.0))
    votes = np.tile([0, 6, 12, 60], (1000, 1))
    released = person.release(votes)
    if kind is PermuteAndFlip:
        record = kind(2.0, 1000, 4).release(votes // 6)
        assert abs(released[:, 3].mean() - record[:, 3].mean()) < 0.05
        return
    noise = released - votes / 6
    kurtosis = 6 if kind is DiscreteLaplace else 3
    error = abs(noise.var() / person.stddev(votes, 1)[0, 0] ** 2 - 1)
    assert error < 5 * np.sqrt((kurtosis - 1) / noise.size)
    assert not np.allclose(noise, np.round(noise)), "the grid is finer than a vote"


@pytest.mark.parametrize("kind", [DiscreteLaplace, Gaussian])
@pytest.mark.parametrize("grid", [1, 2])
def test_noisy_counts_are_votes_whatever_the_grid(kind, grid):
    """Without fractions they are integers, which a release writes."""
    delta = {"delta": 1e-5} if kind.needs_delta else {}
    unit = "record" if grid == 1 else "person"
    mechanism = kind(100.0, 3, 4, unit=unit, grid=grid, **delta)
    released = mechanism.release(np.full((3, 4), 1000 * grid, np.int64))
    assert released.dtype == (np.int64 if grid == 1 else np.float64)
    assert np.abs(released - 1000).max() < 50


def test_simulated_noise_is_on_the_grid_of_a_release():
    """Otherwise the fractions of the totals would show. One key, 4,000 draws within 12%."""
    person = DiscreteLaplace(2.0, 1000, 4, unit="person", grid=6)
    votes = np.tile([0, 1, 12, 60], (1000, 1))
    counts = np.asarray(person.estimate(jax.random.key(0), votes, 10), np.float64)
    np.testing.assert_allclose(counts * 6, np.round(counts * 6), atol=1e-4)
    noise = counts - votes / 6
    assert abs(noise.var() / person.stddev(votes, 1)[0, 0] ** 2 - 1) < 0.12
    assert abs(noise.mean()) < 5 * noise.std() / np.sqrt(noise.size)


def test_simulated_gaussian_noise_is_added_to_votes():
    """A vote is `grid` units of the totals."""
    person = Gaussian(2.0, 1000, 4, delta=1e-5, unit="person", grid=6)
    votes = np.tile([0, 6, 12, 60], (1000, 1))
    noise = np.asarray(person.estimate(jax.random.key(0), votes, 10), np.float64) - votes / 6
    assert abs(noise.std() / person.sigma - 1) < 0.06
    assert np.abs(noise.mean(axis=0)).max() < 5 * person.sigma / np.sqrt(1000)


def test_concentrated_noise_is_enough_for_whichever_cells_a_person_moves():
    z = calibration.zcdp_noise_multiplier(1.0, 1e-5)
    analytic = analytic_gaussian.gaussian_noise_multiplier(1.0, 1e-5)
    assert analytic < z < 1.2 * analytic


@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-2])
def test_concentrated_noise_keeps_its_promise_at_every_epsilon(epsilon, delta):
    """By a conversion at any real order, which the calibration's own table may lack."""
    rho = 1 / (2 * calibration.zcdp_noise_multiplier(epsilon, delta) ** 2)

    def cost(log_order):
        order = 1 + np.exp(log_order)
        loss = rho * order + np.log1p(-1 / order) - np.log(delta * order) / (order - 1)
        return max(0.0, float(loss))

    best = optimize.minimize_scalar(cost, bounds=(-20, 30), method="bounded").fun
    grid = min(cost(value) for value in np.linspace(-20, 30, 20_001))
    assert min(best, grid) <= epsilon * (1 + 1e-9)


def test_coins_hide_whole_votes_alone():
    with pytest.raises(ValueError, match="whole votes"):
        mechanisms.make(
            "binomial", epsilon=1.0, num_queries=4, num_classes=2, unit="person", grid=2
        )


@pytest.mark.parametrize(("unit", "grid"), [("record", 2), ("person", 0), ("household", 1)])
def test_a_grid_belongs_to_persons(unit, grid):
    with pytest.raises(ValueError, match="grid"):
        DiscreteLaplace(1.0, 4, 2, unit=unit, grid=grid)


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(1)
    group = rng.integers(0, 3, 900)
    rows = (np.eye(3)[group] * 5 + rng.normal(size=(900, 3))).astype(np.float32)
    np.save(tmp_path / "P.npy", rows[:300])
    person = rng.integers(0, 200, 600)
    np.savez(
        tmp_path / "R.npz", embeddings=rows[300:], labels=group[300:], who=person, text=person > 9
    )
    return tmp_path, group[:300], person


def settings(folder, **changes):
    given = {"public": str(folder / "P.npy"), "private": str(folder / "R.npz"), "epsilon": 2.0}
    given |= {"classes": "3", "queries": 3, "person": "who", "out": folder / "out"}
    return named_settings(Settings, **given | changes)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("most", [None, 2])
def test_labels_cost_persons_and_say_so(files, relation, most):
    folder, truth, person = files
    given = settings(folder, relation=relation, records_per_person=most)
    plan = planning.prepare(given)
    public = len(np.unique(person)) if relation == "replace-one" else None
    assert plan.num_records == public
    done = label.release(plan)
    assert (done.labels == truth).mean() > 0.9
    card = json.loads((folder / "out" / "privacy.json").read_text())
    assert card["guarantee"]["unit"] == "person"
    assert card["num_persons"] == public
    assert "num_records" not in card
    assert card["records_per_person"] == (most or "all, sharing one vote")
    assert card["contribution"] == {"records": most or "shared", "votes": 1}
    told = [line for line in card["not_covered"] if "number of private persons" in line]
    assert len(told) == (public is not None)
    assert "one person" in card["statement"]
    assert Ledger.open(given.ledger_path).entries()[1].guarantee.unit == "person"
    page = (folder / "out" / "privacy.html").read_text()
    assert "private persons" in page


@pytest.mark.long
def test_a_ledger_of_records_pays_for_no_person(files):
    folder, _, _ = files
    label.release(planning.prepare(settings(folder, person=None, budget=9)))
    with pytest.raises(LedgerMismatchError, match="unit"):
        label.release(planning.prepare(settings(folder, out=folder / "again")))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"person": "whom"}, "'whom'"),
        ({"person": None, "records_per_person": 2}, "person with records_per_person 2"),
        ({"records_per_person": 0}, "1 <= records_per_person"),
        ({"mechanism": "binomial", "delta": 1e-6}, "whole votes"),
    ],
)
def test_settings_of_persons_that_cannot_be_are_refused(files, changes, words):
    folder, _, _ = files
    with pytest.raises(ValueError, match=words):
        planning.prepare(settings(folder, **changes))
    assert not (folder / "R.npz.ledger.jsonl").exists()


def test_records_that_name_no_person_are_released_like_others(files):
    folder, _, _ = files
    rows = np.zeros((5, 3), np.float32)
    for number, named in enumerate((np.full(5, np.nan), np.array([7.0, *[np.nan] * 4]))):
        np.savez(folder / "R.npz", embeddings=rows, labels=np.arange(5) % 3, who=named)
        out = {"out": folder / str(number), "ledger": folder / f"{number}.jsonl"}
        assert label.release(planning.prepare(settings(folder, **out))).card["num_persons"] == 1


def test_a_request_without_persons_is_what_it_was(files):
    folder, _, _ = files
    plan = planning.prepare(settings(folder, person=None))
    assert plan.question.noise.mechanism == DiscreteLaplace(2.0, 3, 3)
    assert "unit" not in repr(plan.question.noise.mechanism)
    asked = by_option(plan.settings)
    seen = {name: asked[name][1] for name in asked.keys() - set(planning.UNSEEN) - NEW}
    seen |= {
        name: sorted(Path(one).name for one in planning.files_of(plan.settings, name))
        for name in planning.FILES
    }
    words = repr([sorted((seen | {"records": 600}).items()), plan.data.classes])
    rows = repr(fingerprint(plan.data.public))
    told = hashlib.sha256(f"{words[:-1]}, {rows}]".encode()).hexdigest()
    assert planning.request(plan.settings, plan.data) == told


@pytest.mark.long
def test_the_estimator_protects_persons(files):
    folder, truth, person = files
    with np.load(folder / "R.npz") as private:
        X, y = private["embeddings"], private["labels"]
    labeler = ReverseKNNLabeler(2.0, classes=[0, 1, 2], n_queries=3, ledger=folder / "l.jsonl")
    labeler.fit(np.load(folder / "P.npy"))
    names = [f"writer {number}" for number in person]
    assert labeler.preview(X, names).expected_votes[0] < 100
    assert (labeler.label(X, y, names) == truth).mean() > 0.9
    assert labeler.guarantee_.unit == "person"
    assert labeler.card_["num_persons"] == len(np.unique(person))
    with pytest.raises(ValueError, match="inconsistent"):
        labeler.label(X, y, names[1:])


def test_a_bound_on_records_needs_persons(files):
    folder, _, _ = files
    labeler = ReverseKNNLabeler(classes=[0, 1, 2], records_per_person=2, ledger=folder / "l.jsonl")
    labeler.fit(np.load(folder / "P.npy"))
    with pytest.raises(ValueError, match="person"):
        labeler.label(np.zeros((5, 3)), np.zeros(5))


@pytest.mark.long
def test_the_audit_of_a_person_finds_a_release_that_protects_rows(monkeypatch):
    """The planted one weighs each of the canary's 300 records as a person."""

    def by_row(person, grid=contributions.GRID):
        return contributions.Weights(np.full(len(person), grid, np.int64), grid)

    monkeypatch.setattr(contributions, "shared", by_row)
    monkeypatch.setattr(counting.Counted, "units", property(lambda votes: votes.rows))
    games, guarantee = games_release.of_release(0.25, person="person", smoothing="none")
    assert guarantee.unit == "person"
    assert verdict.audit(jax.random.key(0), [games[0]], guarantee, 48, 0.99).broken


@pytest.mark.parametrize("num_neighbors", [1, 3])
def test_clipped_votes_move_no_further_than_two_records(num_neighbors):
    """The L2 sensitivity of a replaced person, found by search, is that of a replaced record."""
    generator = np.random.default_rng(num_neighbors)
    num_cells, grid = 12, 5040
    longest = 0.0
    for _ in range(300):
        both = []
        for _ in range(2):
            records = int(generator.integers(0, 30))
            favourite = generator.permutation(num_cells)
            width = int(generator.integers(num_neighbors, num_cells + 1))
            cells = [
                generator.choice(favourite[:width], num_neighbors, replace=False)
                for _ in range(records)
            ]
            shaped = np.array(cells, int).reshape(records, num_neighbors)
            person = np.zeros(records, int)
            both.append(contributions.clipped_votes(shaped, person, num_cells, grid) / grid)
        longest = max(longest, float(np.linalg.norm(both[0] - both[1])))
    most = np.sqrt(2 * num_neighbors)
    assert 0.9 * most < longest <= most


def test_clipping_leaves_at_least_what_sharing_leaves():
    cells = np.array([[0], [1], [2], [3], [0], [0], [5]])
    person = np.array([0, 0, 0, 0, 1, 1, 2])
    clipped = contributions.clipped_votes(cells, person, 6) / contributions.GRID
    shared = contributions.shared_votes(cells, person, 6) / contributions.GRID
    assert clipped == pytest.approx([1.5, 0.5, 0.5, 0.5, 0, 1], abs=1e-5)
    assert shared == pytest.approx([1.25, 0.25, 0.25, 0.25, 0, 1], abs=1e-5)


def test_persons_under_gaussian_noise_are_clipped_and_their_releases_compose(tmp_path):
    """The event of concentrated DP tells what several releases cost together."""
    one = Gaussian(1.0, 4, 3, delta=1e-6, unit="person", grid=contributions.GRID)
    guarantee = one.release_guarantee(50)
    [event] = guarantee.events
    assert event.kind == "concentrated"
    four = accounting.compose([guarantee] * 4, 1e-6)
    assert four.epsilon < 2.2
    assert accounting.epsilons([event], 1e-6) == {"RDP": pytest.approx(1.0, abs=1e-6)}
    assert one.most_votes == pytest.approx(np.sqrt(12))


@pytest.mark.parametrize("name", ["discrete_laplace", "laplace", "gaussian"])
def test_a_simulation_composes_for_persons_as_a_release_does(name):
    """A person's votes lie in any cells, so the events of a record's two would be too good."""
    settings = {"epsilon": 1.0, "delta": 1e-5 if name == "gaussian" else 0.0, "mechanism": name}
    person, record = (ReverseKNN(unit=unit, **settings) for unit in ("person", "record"))
    found = person.guarantee_of(100, 5, 3)
    made = _vote_mechanism.calibrated(5, 3, 100, config=person)
    assert found == dataclasses.replace(made.release_guarantee(100), sampler="simulation")
    assert found.events != record.guarantee_of(100, 5, 3).events
    made = _vote_mechanism.calibrated(5, 3, 100, config=record)
    assert record.guarantee_of(100, 5, 3) == made.guarantee(100)


def test_a_name_of_many_marks_takes_no_time():
    """Its normal form took the square of their number: half a minute for one record."""
    long = "a" + 50_000 * "\u0301\u0323"
    assert num_names([long, long + "a"]) == 2


@pytest.mark.parametrize(
    "mechanism", ["discrete_laplace", "laplace", "gaussian", "permute_and_flip"]
)
def test_without_noise_a_person_has_no_guarantee(mechanism):
    """`train.distill` counts so, to tell what noise costs."""
    delta = {"delta": 1e-5} if mechanism == "gaussian" else {}
    noise = mechanisms.make(
        mechanism, epsilon=math.inf, num_queries=4, num_classes=3, unit="person", **delta
    )
    assert noise.release_guarantee(10).epsilon == math.inf
