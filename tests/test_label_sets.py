"""Sets of labels: what one record can change, what noisy counts tell, and what is charged."""

import itertools
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.sparse import csr_matrix
from scipy.special import ndtr

from rknn_jax import label_sets
from rknn_jax.bsvs import NO_CELL
from rknn_jax.cli import label as command
from rknn_jax.formats import Columns, _arrow, _arrow_tables
from rknn_jax.labelers._tally import Persons
from rknn_jax.labelers._votes import Bound, SetTally
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.mechanisms.gaussian import Gaussian
from rknn_jax.neighbors import nearest_votes
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.records.classes import LONGEST_LABEL, Classes
from rknn_jax.records.labels import check_types, encode
from rknn_jax.release import counting, label_table, planning
from rknn_jax.release import label as release
from rknn_jax.release.estimator import ReverseKNNLabeler
from rknn_jax.release.settings import Settings
from rknn_jax.report import release as report
from rknn_jax.report import results
from rknn_jax.types import Queries
from tests.options import named_settings, with_options

NUM_CLASSES = 4
ALMOST_NO_NOISE = 100.0  # a draw is not 0 in one of ten million
NAMES = ("a", "b", "c", "d")
SETS = (["a", "c"], ["b"], ["d"], [])


def test_a_record_keeps_its_first_different_labels():
    labels = np.array([[2, 2, 0, 1], [-1, 9, 3, -5], [-1, -1, -1, -1], [1, 0, 1, 3]])
    assert label_sets.ballots(labels, NUM_CLASSES, 2).tolist() == [
        [2, 0, 4],
        [3, NO_CELL, 4],
        [NO_CELL, NO_CELL, 4],
        [1, 0, 4],
    ]
    assert label_sets.ballots(np.array([3, -1]), NUM_CLASSES, 2).tolist() == [
        [3, NO_CELL, 4],
        [NO_CELL, NO_CELL, 4],
    ]
    mask = np.array([[False, True, True, True], [False] * 4])
    assert label_sets.ballots(mask, NUM_CLASSES, 2).tolist() == [
        [1, 2, 4],
        [NO_CELL, NO_CELL, 4],
    ]


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("kind", ["numbers", "mask"])
def test_one_record_changes_as_many_cells_as_the_noise_covers(relation, kind):
    """Over all places and all sets of one record, the change is k(r + 1) or twice that at most, by
    1 each, and it is reached.
    """
    rng = np.random.default_rng(0)
    references = np.eye(4, dtype=np.float32)
    points = rng.normal(size=(5, 4)).astype(np.float32)
    near, most = 2, 2
    variants = []
    places = [np.float32([3, 2, 0, 0]), np.float32([0, 0, 2, 3])]
    masks = np.array(list(itertools.product([False, True], repeat=NUM_CLASSES)))
    for place, mask in itertools.product(places, masks):
        named = np.where(mask, np.arange(NUM_CLASSES), NO_CELL)[::-1]
        variants.append((place, mask if kind == "mask" else named))
    others = rng.integers(0, 2, (4, NUM_CLASSES)).astype(bool)
    if kind == "numbers":
        others = np.where(others, np.arange(NUM_CLASSES), NO_CELL)

    def votes(records):
        rows = np.concatenate([points[:4], *(place[None] for place, _ in records)])
        labels = np.concatenate([others, *(said[None] for _, said in records)])
        cast = label_sets.ballots(labels, NUM_CLASSES, most)
        return np.asarray(nearest_votes(rows, references, cast, near, NUM_CLASSES + 1))

    sums = [votes([variant]) for variant in variants]
    bases = sums if relation == "replace-one" else [votes([])]
    differences = np.array([a - b for a, b in itertools.product(sums, bases)])
    assert np.abs(differences).max() == 1
    fields = label_sets.sizes(4, NUM_CLASSES, most, near)
    mechanism = DiscreteLaplace(1.0, **fields, relation=relation)
    assert np.abs(differences).sum(axis=(1, 2)).max() == mechanism.changed_cells
    assert mechanism.noise_scale >= mechanism.changed_cells
    gaussian = Gaussian(1.0, **fields, delta=1e-6, relation=relation)
    assert gaussian.changed_cells == mechanism.changed_cells  # squared L2, as all changes are 1


@pytest.mark.parametrize(
    ("labels", "most"),
    [
        (np.zeros((2, 3)), 1),
        (np.array([["a"], ["b"]]), 1),
        (np.zeros((2, 2, 2), int), 1),
        (np.zeros((2, 3), bool), 1),  # a mask of another number of classes
        (np.zeros(2, int), 0),
        (np.zeros(2, int), NUM_CLASSES + 1),
    ],
)
def test_other_labels_are_refused(labels, most):
    with pytest.raises(ValueError, match="Expected"):
        label_sets.ballots(labels, NUM_CLASSES, most)


def queries_of(cluster):
    size = np.bincount(cluster)
    return Queries(np.eye(len(size), dtype=np.float32), np.arange(len(size)), cluster, size)


def test_counts_without_noise_are_read_as_majorities():
    counts = np.array([[10, 4, 0, 6, 10], [0, 20, 11, 0, 20], [0, 0, 0, 0, 8]])
    cluster = np.array([2, 0, 0, 1])
    found = label_sets.read(counts, 1e-9, queries_of(cluster))
    wanted = np.array([[1, 0, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0]], bool)
    np.testing.assert_array_equal(found.present, wanted[cluster])
    assert found.stability.min() == 1


def test_a_lead_over_half_of_the_votes_has_the_noise_that_is_said():
    """The stated probability is that of the noise, by simulation of noisy counts."""
    stddev, lead = 6.0, 5.0
    rng = np.random.default_rng(0)
    true = np.array([50 + lead, 100.0])
    noisy = true + rng.normal(0, stddev, (200_000, 2))
    right = np.mean(noisy[:, 0] > noisy[:, 1] / 2)
    assert right == pytest.approx(ndtr(lead / (stddev * 1.25**0.5)), abs=0.004)
    found = label_sets.read(true[None], stddev, queries_of(np.zeros(3, int)))
    np.testing.assert_allclose(found.probabilities[:, 0], right, atol=0.004)
    np.testing.assert_allclose(found.stability[:, 0], right, atol=0.004)


HELD = [["c", "a", "c"], ["x", "b"], None, ["d", "b", "a"]]
"""Labels of four records, of which the second has a foreign one, and the last one more than two."""

BALLOTS = [[2, 0, 4], [1, NO_CELL, 4], [NO_CELL, NO_CELL, 4], [3, 1, 4]]
"""Their ballots for r = 2."""


@pytest.mark.parametrize(
    "labels",
    [
        pa.array(HELD),
        pa.array(HELD, pa.large_list(pa.string())),
        pa.array(HELD, pa.list_(pa.dictionary(pa.int32(), pa.string()))),
        pa.array([[2, 0, 2], [9, 1], None, [3, 1, 0]]),
        pa.array([[2.0, 0], [1.5, 1], [None, -1], [3, 1, 0]]),
        pa.chunked_array([pa.array(HELD[:2]), pa.array(HELD[2:])]),
        pa.array([None, *HELD]).slice(1),
        pa.array(["c;a;c", "x; b", None, "d ;b;a"]),
        np.array([["c", "a", ""], ["x", "b", ""], ["", "", ""], ["d", "b", "a"]]),
        np.array([[2, 0, -1], [7, 1, -1], [-1, -1, -5], [3, 1, 0]]),
        np.array([[2, 0, np.nan], [1.5, 1, np.nan], [np.nan] * 3, [3, 1, 0]]),
    ],
    ids=str,
)
def test_every_stored_form_of_labels_casts_the_same_ballots(labels):
    read = labels if isinstance(labels, np.ndarray) else _arrow.label_column(labels)
    found = encode(read, Classes(NUM_CLASSES, NAMES), 2, "here")
    assert found.ids.tolist() == BALLOTS
    assert found.told.tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize(
    "labels",
    [
        np.zeros((0, 3), int),
        np.zeros((0, NUM_CLASSES), bool),
        np.zeros(0, "U3"),
        pa.array([], pa.list_(pa.string())),
    ],
    ids=str,
)
def test_no_records_cast_no_ballots(labels):
    read = labels if isinstance(labels, np.ndarray) else _arrow.label_column(labels)
    found = encode(read, Classes(NUM_CLASSES, NAMES), 2, "here")
    assert found.ids.shape == (0, 3)


def test_one_long_record_takes_no_memory_for_the_others():
    """A list of a thousand labels, and long names, beside two thousand records of one label."""
    others = [["b"]] * 2000
    lists = np.empty(2001, object)
    lists[:] = [["c", *["x" * 300] * 1000], *others]
    tracemalloc.start()
    found = encode(lists, Classes(NUM_CLASSES, NAMES), 2, "here")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.ids[:2].tolist() == [[2, NO_CELL, 4], [1, NO_CELL, 4]]
    assert most < 2**26


@pytest.mark.parametrize(
    "labels", [[["a"] * 300 + ["b"]], ["a;" * 300 + "b"]], ids=["list", "text"]
)
def test_the_owner_is_told_of_labels_that_are_not_read(labels):
    read = _arrow.label_column(pa.array(labels))
    found = encode(read, Classes(NUM_CLASSES, NAMES), 2, "here")
    assert found.ids.tolist() == [[0, NO_CELL, 4]]
    assert found.told.tolist() == [2]


def test_the_beginning_of_a_long_name_is_no_other_class():
    names = ("b" * LONGEST_LABEL, "c")
    read = _arrow.label_column(pa.array([names[0] + "x", names[0]]))
    found = encode(read, Classes(2, names), 1, "here")
    assert found.ids.tolist() == [[NO_CELL, 2], [0, 2]]


def test_text_needs_names_whatever_a_record_holds():
    """An error for lists with a label alone would tell that some record has one."""
    schema = pa.schema({"embeddings": pa.list_(pa.float32()), "labels": pa.list_(pa.string())})
    found = _arrow_tables.layout(schema, Columns()).empty.labels
    with pytest.raises(ValueError, match="classes to name"):
        check_types(found, Classes(NUM_CLASSES), 2, "here", typed=True)
    check_types(found, Classes(NUM_CLASSES, NAMES), 2, "here", typed=True)


@pytest.mark.parametrize("kind", ["array", "arrow"])
def test_a_mask_casts_ballots_in_the_order_of_the_classes(kind):
    mask = np.array([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1]], bool)
    read = mask
    if kind == "arrow":
        lists = [*mask[:2].tolist(), None, [True, True, None, True]]
        read = _arrow.label_column(pa.array(lists, pa.list_(pa.bool_(), 4)))
    found = encode(read, Classes(NUM_CLASSES, NAMES), 2, "here")
    assert found.ids.tolist() == [[0, 2, 4], *BALLOTS[1:3], [0, 1, 4]]
    assert found.told.tolist() == [1, 1, 1, 2]


def test_forms_that_could_mean_two_things_are_refused():
    """A matrix of 0 and 1 read as class numbers would give every record the first two classes."""
    classes = Classes(NUM_CLASSES, NAMES)
    for labels in (np.eye(4, dtype=int), np.eye(4), np.zeros((4, 3), bool), np.zeros((2, 2, 2))):
        with pytest.raises(ValueError, match="bool"):
            encode(labels, classes, 2, "here")
    for column in (pa.array([[True, False]]), pa.array([[["a"]]])):
        with pytest.raises(ValueError, match="of names or class numbers"):
            _arrow.label_column(column)
    views = pa.array([[True, False]], pa.list_view(pa.bool_()))
    for column in (pa.array([{"a": True, "b": False}]), pa.array([None], pa.date32()), views):
        with pytest.raises(ValueError, match="numbers, text or lists"):
            _arrow.label_column(column)


@pytest.mark.parametrize("bound", [Bound(), Bound(most=2), Bound(norm=2)], ids=str)
def test_a_person_with_several_records_changes_no_more_than_the_noise_covers(bound):
    """Over all persons of up to three records at two places, for k = 2 queries and r = 2 labels."""
    references = np.eye(4, dtype=np.float32)
    tally = SetTally(references, NUM_CLASSES + 1, 2, bound=bound, labels_per_record=2)
    points = np.float32([[3, 2, 0, 0], [0, 0, 2, 3]])
    said = np.array([[0, 1, 4], [2, NO_CELL, 4], [NO_CELL, NO_CELL, 4]])
    each = [
        tally.parts(points[[place]], said[[number]])
        for place, number in itertools.product(range(2), range(3))
    ]
    sums = []
    for size in (1, 2, 3):
        for parts in itertools.combinations_with_replacement(each, size):
            persons = Persons(np.zeros(size, int), np.zeros(size, np.uint64))
            sums.append(tally.bounded(np.concatenate(parts), persons).ravel())
    grid = tally.grid
    differences = np.array([a - b for a, b in itertools.product(sums, sums)], float) / grid
    covered = 2 * 2 * 3
    if bound.norm == 1:
        assert np.abs(differences).sum(axis=1).max() == covered
        assert np.max(sums) <= grid
    assert (differences**2).sum(axis=1).max() <= covered
    assert (differences**2).sum(axis=1).max() > covered - 1e-3


def test_sums_that_no_records_have_are_noticed():
    tally = SetTally(np.eye(2, dtype=np.float32), 4, 1, labels_per_record=2)
    sound = np.array([[3, 2, 1, 3], [0, 0, 0, 1]])
    assert tally.fits(sound, 4)
    for place, value in (((0, 0), 4), ((0, 2), 2), ((1, 3), 2), ((1, 0), -1)):
        changed = sound.copy()
        changed[place] = value
        assert not tally.fits(changed, 4)


def table(num_rows, seed):
    """Return four groups of rows, and the number of each row's group, whose classes are `SETS`."""
    rng = np.random.default_rng(seed)
    kind = np.arange(num_rows) % 4
    rows = 8 * np.eye(4)[kind] + rng.normal(size=(num_rows, 4))
    return rows.astype(np.float32), kind


def mask_of(kind):
    return np.array([[name in SETS[number] for name in NAMES] for number in kind])


def saved(folder, form):
    """Write public and private rows, and return their names. The third private one is unusable."""
    public, _ = table(80, 0)
    private, kind = table(120, 1)
    private[2, 1] = np.nan
    lists = [SETS[number] for number in kind]
    lists[4] = ["a", "zebra", "c"]
    lists[8] = ["c", "a", "d"]
    mask = np.array([[name in names for name in NAMES] for names in lists])
    mask[8, 3] = False  # a mask keeps the first classes, and a list its own first ones
    np.savez(folder / "public.npz", embeddings=public)
    name = folder / f"private.{form}"
    if form == "npz":
        np.savez(name, embeddings=private, labels=mask)
    elif form == "parquet":
        pq.write_table(pa.table({"embeddings": list(private), "labels": lists}), name)
    else:
        columns = {f"x{number}": column for number, column in enumerate(private.T)}
        frame = pd.DataFrame(columns | {"labels": [";".join(names) for names in lists]})
        frame.to_csv(name, index=False)
    return str(folder / "public.npz"), str(name)


def settings_of(folder, form="parquet", **changes):
    public, private = saved(folder, form)
    given = {
        "public": public,
        "private": private,
        "epsilon": ALMOST_NO_NOISE,
        "allow_large_epsilon": True,
        "classes": ",".join(NAMES),
        "labels_per_record": 2,
        "queries": 8,
        "smoothing": "none",
        "out": folder / "out",
        "ledger": folder / "ledger.jsonl",
    }
    return named_settings(Settings, **(given | changes))


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """Folder of a release with almost no noise, and what its command said."""
    folder = tmp_path_factory.mktemp("sets")
    told = command.run(settings_of(folder, smoothing="auto"))
    return folder, told


def test_every_public_row_gets_its_set_and_the_ledger_is_charged_once(released):
    folder, told = released
    with np.load(folder / "out" / "labels.npz") as rows:
        np.testing.assert_array_equal(rows["present"], mask_of(np.arange(80) % 4))
        assert (rows["label"][3::4] == -1).all()
        assert rows["probability"].shape == rows["stability"].shape == (80, NUM_CLASSES)
    with np.load(folder / "out" / "queries.npz") as asked:
        assert asked["noisy_voters"].sum() == 119
        assert asked["noisy_counts"].sum(axis=0).tolist() == [30, 30, 30, 29]
    entries = Ledger.open(folder / "ledger.jsonl").entries()
    (spend,) = [one for one in entries if one.kind == "spend"]
    assert float(spend.amount.epsilon) == told["guarantee"]["epsilon"] == ALMOST_NO_NOISE
    assert "up to 2 labels a record" in spend.purpose
    assert told["labels_per_record"] == 2
    assert told["contribution"] == {"records": 1, "votes": 1}
    assert "labels of a record, at most" in (folder / "out" / "privacy.html").read_text()


@pytest.mark.parametrize("form", ["npz", "csv"])
def test_other_formats_count_the_same(released, tmp_path, form):
    folder, _ = released
    plan = planning.prepare(settings_of(tmp_path, form, epsilon=1))
    counted = counting.count_all(plan.data.private, plan.counter)
    with np.load(folder / "out" / "queries.npz") as asked:
        np.testing.assert_array_equal(counted.counts[:, :-1], asked["noisy_counts"])
    assert (counted.rows, counted.voters) == (120, 119)
    # A mask has no foreign label, and its third class was dropped by the one who made it.
    assert counted.ignored == (1 if form == "npz" else 3)


def test_noise_is_that_of_all_votes_of_a_record(tmp_path):
    plan = planning.prepare(settings_of(tmp_path, epsilon=0.3, budget=300.0))
    counted = counting.count_all(plan.data.private, plan.counter)
    ledger = Ledger.create(tmp_path / "l.jsonl", counted.dataset, 300.0)
    residuals = []
    for _ in range(50):
        drawn = plan.question.draw(counted.counts, counted.units, ledger, "noise")
        residuals.append(drawn - counted.counts)
    scale = 2 * (2 + 1) / 0.3
    stddev = plan.question.noise.mechanism.noise_stddev
    assert stddev == pytest.approx(0.5**0.5 / np.sinh(0.5 / scale), rel=1e-6)
    assert np.mean(residuals) == pytest.approx(0, abs=4.5 * stddev / len(residuals) ** 0.5)
    # 2,000 draws: the ratio has a standard deviation of .025, so this fails in 10^-8 of the runs.
    assert 0.86 < np.std(residuals) / stddev < 1.14


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"labels_per_record": 0}, "labels_per_record 0"),
        ({"labels_per_record": 5}, "labels_per_record <= 4"),
        ({"mechanism": "permute_and_flip"}, "releases counts"),
        ({"mechanism": "gaussian"}, "delta > 0"),
        ({"delta": 1e-5}, "no delta"),
        ({"labeler": "prototypes", "queries": None}, "labels_per_record"),
        ({"labeler": "auto", "queries": None}, "labels_per_record"),
        ({"classes": None, "infer_classes": True}, "infer_classes"),
        ({"classes": "a,b,c;d"}, "without ';'"),
        ({"labels_per_record": None}, "labels_per_record"),
    ],
    ids=str,
)
def test_settings_that_do_not_suit_are_refused_before_a_spend(tmp_path, changes, match):
    with pytest.raises(ValueError, match=match):
        command.run(settings_of(tmp_path, **changes))
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_dry_run_expects_what_the_noise_lets(tmp_path, capsys):
    """Of a set of two classes of four, by simulated noise."""
    told = command.run(settings_of(tmp_path, epsilon=0.6, queries=4, dry_run=True))
    assert "of sets right" in " ".join(capsys.readouterr().err.split())
    rng = np.random.default_rng(0)
    noise = rng.laplace(0, 2 * 3 / 0.6, (100_000, 5))
    leads = noise[:, :4] - noise[:, 4:] / 2
    for agreement, expected in told["expected"].items():
        gap = 30 * (float(agreement) - 0.5)
        right = (leads[:, :2] > -gap).all(axis=1) & (leads[:, 2:] < gap).all(axis=1)
        assert expected == pytest.approx(np.mean(right), abs=0.04)


def test_persons_share_one_vote(tmp_path):
    settings = settings_of(tmp_path, epsilon=1)
    table = pq.read_table(settings.private)
    table = table.append_column("who", pa.array(np.arange(120) // 8))
    pq.write_table(table, settings.private)
    plan = planning.prepare(with_options(settings, person="who"))
    counted = counting.count_all(plan.data.private, plan.counter)
    voted = counted.counts[:, -1].sum() / counted.grid
    assert (counted.persons, voted) == (15, 15)
    assert plan.cost.unit == "person"


def test_records_with_sets_that_check_do_not_vote_and_have_no_recall(tmp_path):
    """A recall of classes would end in an error once the release is paid for."""
    given = settings_of(tmp_path, "npz", epsilon=1, check_share=0.5)
    plan = planning.prepare(given)
    assert plan.num_voters == plan.num_votes == 60
    with np.load(given.private) as saved:
        np.savez(tmp_path / "half.npz", **{name: saved[name][:60] for name in saved})
    half = with_options(given, private=str(tmp_path / "half.npz"), check_share=0.0)
    assert planning.expect(plan) == planning.expect(planning.prepare(half))
    assert plan.checkers.roles.recall == 0
    assert release.release(plan).measured.recall == ()


def test_the_folder_is_read_shown_and_exported(released, tmp_path):
    folder, _ = released
    found = results.read(folder / "out")
    assert [one.labels for one in results.class_rows(found)] == [20] * 4
    gap = results.gaps(found)[0]
    assert gap.second is None
    noise = float(found.stddev[0, 0])
    assert gap.noise == pytest.approx(np.hypot(noise, noise / 2)), "of votes, less half of all"
    page = report.page(found)
    assert "have no class" in page
    assert "half of the votes" in page
    made = label_table.read(folder / "out")
    listed = pq.read_table(pa.BufferReader(label_table.parquet(made))).column("labels").to_pylist()
    assert listed[:4] == [list(names) for names in SETS]
    lines = label_table.as_csv(made).decode().splitlines()
    assert [line.rsplit(",", 1)[1] for line in lines[:5]] == ["labels", "a;c", "b", "d", ""]


def test_a_class_is_as_stable_as_its_own_place_in_the_sets_that_have_it(released):
    folder, _ = released
    found = results.read(folder / "out")
    stability = np.random.default_rng(0).uniform(0.5, 1, (80, NUM_CLASSES))
    found = replace(
        found,
        sets=replace(found.sets, stability=stability),
        confidence=stability.min(axis=1),
    )
    for number, one in enumerate(results.class_rows(found)):
        own = stability[found.sets.present[:, number], number]
        assert one.stability == pytest.approx(own.mean())
        assert one.doubtful == (own < results.SURE).sum()


def test_doubtful_sets_are_worth_a_second_look(tmp_path):
    command.run(settings_of(tmp_path, epsilon=0.5))
    found = results.read(tmp_path / "out")
    least_stable = found.sets.stability.min(axis=1)
    assert found.shares["stability"] == pytest.approx(least_stable.mean())
    assert least_stable.mean() < found.sets.stability.mean() - 0.01
    rows = results.second_look(found, 5)
    assert [one.stability for one in rows] == sorted(found.confidence)[:5]
    for one in rows:
        least = found.classes.index(one.rival)
        assert found.sets.stability[one.row, least] == one.stability
        names = [
            name for name, there in zip(NAMES, found.sets.present[one.row], strict=True) if there
        ]
        assert one.label == (", ".join(names) or "none")
        said = np.where(found.sets.present[one.row], 1, -1) * (found.probability[one.row] - 0.5)
        assert one.probability == pytest.approx(0.5 + said.min()), "of what it says of a class"


def test_a_damaged_set_is_refused(released, tmp_path):
    folder, _ = released
    with np.load(folder / "out" / "labels.npz") as file:
        arrays = dict(file)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("queries.npz", "privacy.json", "summary.json"):
        (copy / name).write_bytes((folder / "out" / name).read_bytes())
    for name in ("present", "stability"):
        np.savez(copy / "labels.npz", **(arrays | {name: arrays[name][:, :3]}))
        with pytest.raises(ValueError, match="damaged"):
            results.read(copy)
    np.savez(copy / "labels.npz", **(arrays | {"present": arrays["present"].astype(int)}))
    with pytest.raises(ValueError, match="damaged"):
        label_table.read(copy)


ORDER = ["d", "b", "a", "c"]


def labeler_of(folder, **changes):
    given = {
        "epsilon": ALMOST_NO_NOISE,
        "allow_large_epsilon": True,
        "classes": ORDER,
        "labels_per_record": 2,
        "n_queries": 8,
        "smoothing": "none",
        "ledger": folder / "ledger.jsonl",
    }
    return ReverseKNNLabeler(**(given | changes)).fit(table(80, 0)[0])


FORMS = {
    "lists": lambda mask: [
        [name for name, there in zip(ORDER, row, strict=True) if there] for row in mask
    ],
    "bool": lambda mask: mask,
    "numbers": lambda mask: mask.astype(int),
    "sparse": lambda mask: csr_matrix(mask.astype(int)),
    "frame": lambda mask: pd.DataFrame(mask, columns=ORDER),
    "frame of two types": lambda mask: pd.DataFrame(mask, columns=ORDER).astype({"d": int}),
    "frame with missing values": lambda mask: _holes(pd.DataFrame(mask, columns=ORDER)),
    "arrays": lambda mask: [np.array(ORDER)[row] for row in mask],
}


def _holes(frame):
    return frame.astype("boolean").mask(~frame)


@pytest.mark.parametrize("form", FORMS)
def test_the_estimator_takes_indicators_and_lists(tmp_path, form):
    mask = mask_of(table(120, 1)[1])[:, [NAMES.index(name) for name in ORDER]]
    labeler = labeler_of(tmp_path)
    found = labeler.label(table(120, 1)[0], FORMS[form](mask))
    np.testing.assert_array_equal(found, mask[:80])
    np.testing.assert_array_equal(labeler.predict(labeler.X_), found)
    assert labeler.classes_.tolist() == ORDER
    assert labeler.card_["labels_per_record"] == 2


def test_the_estimator_refuses_columns_of_other_classes(tmp_path):
    X, kind = table(120, 1)
    mask = mask_of(kind)
    for y, match in (
        (mask[:, :3], "indicator"),
        (pd.DataFrame(mask, columns=NAMES), "columns"),
        (mask.astype(object), "may be either"),
    ):
        with pytest.raises(ValueError, match=match):
            labeler_of(tmp_path).label(X, y)
    with pytest.raises(ValueError, match="every class once"):
        labeler_of(tmp_path, classes=["a", "a", "b", "c"]).label(X, mask)
    with pytest.raises(ValueError, match="Expected classes"):
        labeler_of(tmp_path, classes=None, infer_classes=True).label(X, mask)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_the_estimator_warns_of_labels_that_do_not_count(tmp_path):
    X, kind = table(120, 1)
    y = [SETS[number] for number in kind]
    y[0] = ["a", "c", "d"]
    y[1] = ["b", object()]
    y[2] = np.array("d")  # an array of one label, without an axis
    X[3] = np.inf
    with pytest.warns(UserWarning, match="3 private records have more than 2 labels"):
        labeler_of(tmp_path).label(X, y)
