"""Sets of labels: what one record can change, what noisy counts tell, and what is charged."""

import itertools
import json

import numpy as np
import pytest
from scipy.special import ndtr

from rknn_jax import label_sets
from rknn_jax.bsvs import NO_CELL
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.mechanisms.gaussian import Gaussian
from rknn_jax.neighbors import nearest_votes
from rknn_jax.privacy.ledger import BudgetExceededError, Ledger, LedgerError, fingerprint
from rknn_jax.release import label_sets as release
from rknn_jax.types import Queries

NUM_CLASSES = 4
ALMOST_NO_NOISE = 1e6


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


def test_lists_of_names_become_numbers():
    classes = ["a", "b", "c", "d"]
    odd = label_sets.numbered([None, "abc", 3, ("c",)], classes)
    assert odd.tolist() == [[-1], [-1], [-1], [2]]
    found = label_sets.numbered([["b", "x", "a"], [], ["d"]], classes)
    assert found.tolist() == [[1, -1, 0], [-1, -1, -1], [3, -1, -1]]
    assert label_sets.ballots(found, NUM_CLASSES, 1)[:, 0].tolist() == [1, NO_CELL, 3]
    nobody = label_sets.ballots(label_sets.numbered([[], []], ["a"]), 1, 1)
    assert nobody.tolist() == [[NO_CELL, 1], [NO_CELL, 1]]


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


SETS = [[0, 2], [1, -1], [3, -1], [-1, -1]]


def table(num_rows, seed):
    rng = np.random.default_rng(seed)
    kind = np.arange(num_rows) % 4
    rows = 8 * np.eye(4)[kind] + rng.normal(size=(num_rows, 4))
    mask = np.zeros((4, NUM_CLASSES), bool)
    for number, numbers in enumerate(SETS):
        mask[number, [one for one in numbers if one >= 0]] = True
    return rows.astype(np.float32), np.array(SETS)[kind], mask[kind]


def released(tmp_path, epsilon=ALMOST_NO_NOISE, budget=ALMOST_NO_NOISE, **changes):
    public, _, _ = table(80, 0)
    private, labels, _ = table(120, 1)
    path = tmp_path / "ledger.jsonl"
    dataset = fingerprint(private)
    ledger = Ledger.open(path, dataset) if path.exists() else Ledger.create(path, dataset, budget)
    given = {
        "public": public,
        "private": private,
        "labels": labels,
        "ledger": ledger,
        "epsilon": epsilon,
        "num_classes": NUM_CLASSES,
        "labels_per_record": 2,
        "num_queries": 8,
    }
    return release.release(**(given | changes)), ledger


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """A release with almost no noise, its ledger, and its folder."""
    folder = tmp_path_factory.mktemp("exact")
    found, ledger = released(folder)
    release.write(folder / "out", found)
    return found, ledger, folder / "out"


def test_a_release_gives_each_row_its_set_and_charges_once(exact):
    found, ledger, _ = exact
    _, _, wanted = table(80, 0)
    np.testing.assert_array_equal(found.sets.present, wanted)
    assert found.counts[:, -1].sum() == 120
    assert found.counts[:, :-1].sum() == 30 * (2 + 1 + 1)
    (spend,) = (entry for entry in ledger.entries() if entry.kind == "spend")
    assert float(spend.amount.epsilon) == found.guarantee.epsilon == ALMOST_NO_NOISE
    assert found.guarantee.sampler == "release"
    assert found.guarantee.unit == "record"


def test_the_files_say_what_was_released(exact):
    found, ledger, folder = exact
    with np.load(folder / "labels.npz") as rows:
        np.testing.assert_array_equal(rows["present"], found.sets.present)
        assert rows["probability"].shape == (80, NUM_CLASSES)
    card = json.loads((folder / "privacy.json").read_text())
    assert card["guarantee"]["epsilon"] == ALMOST_NO_NOISE
    assert card["ledger"]["head"] == ledger.head
    assert card["contribution"] == {"records": 1, "votes": 1}
    assert any("most labels of a record, 2" in line for line in card["not_covered"])
    assert any(card["release"] in entry.purpose for entry in ledger.entries())
    assert "labels of a record, at most" in (folder / "privacy.html").read_text()


def test_a_mask_says_the_same_as_numbers(tmp_path, exact, monkeypatch):
    monkeypatch.setattr(label_sets, "read", lambda *given: None)
    _, _, mask = table(120, 1)
    found, _ = released(tmp_path, labels=mask)
    np.testing.assert_array_equal(found.counts, exact[0].counts)


def test_a_row_that_cannot_be_used_casts_no_vote_and_raises_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(label_sets, "read", lambda *given: None)
    private, _, _ = table(120, 1)
    private[5, 2] = np.nan
    ledger = Ledger.create(tmp_path / "other.jsonl", fingerprint(private), ALMOST_NO_NOISE)
    found, _ = released(tmp_path, private=private, ledger=ledger)
    assert found.counts[:, -1].sum() == 119


def test_noise_is_that_of_all_votes_of_a_record(tmp_path, monkeypatch):
    """Clusters far apart, so the exact counts are known: 30 records each."""
    monkeypatch.setattr(label_sets, "read", lambda *given: None)
    epsilon = 0.3
    residuals = []
    for _ in range(6):
        found, _ = released(tmp_path, epsilon=epsilon, budget=2, num_queries=4)
        exact = np.zeros((4, NUM_CLASSES + 1))
        for query, row in enumerate(np.asarray(found.queries.features)):
            numbers = SETS[int(row.argmax())]
            exact[query, [one for one in numbers if one >= 0] + [NUM_CLASSES]] = 30
        residuals.append(found.counts - exact)
    scale = 2 * (2 + 1) / epsilon
    assert found.stddev == pytest.approx(0.5**0.5 / np.sinh(0.5 / scale), rel=1e-6)
    ratio = np.std(residuals) / found.stddev
    assert 0.7 < ratio < 1.4  # 120 draws of Laplace noise: five standard deviations


def test_a_refused_release_draws_nothing(tmp_path, monkeypatch):
    def drawn(self, totals):
        raise AssertionError("noise was drawn")

    monkeypatch.setattr(DiscreteLaplace, "release", drawn)
    with pytest.raises(BudgetExceededError):
        released(tmp_path, epsilon=2, budget=1)
    ledger = Ledger.open(tmp_path / "ledger.jsonl")
    assert [entry.kind for entry in ledger.entries()] == ["create"]
    others = Ledger.create(tmp_path / "others.jsonl", fingerprint(np.ones((3, 2))), 5)
    with pytest.raises(LedgerError):
        released(tmp_path, epsilon=1, ledger=others)
    with pytest.raises(ValueError, match="releases counts"):
        released(tmp_path, mechanism="permute_and_flip")
    assert [entry.kind for entry in others.entries()] == ["create"]


def test_nothing_that_is_not_covered_reaches_the_mechanism(tmp_path):
    """Persons were certified as the unit, although nothing bounds their votes."""
    for name in ("unit", "grid", "noise_multiplier"):
        with pytest.raises(TypeError, match=name):
            released(tmp_path, **{name: "person"})
    for mechanism, delta in (("gaussian", 0.0), ("discrete_laplace", 1e-5)):
        with pytest.raises(ValueError, match=f"delta={delta}"):
            released(tmp_path, mechanism=mechanism, delta=delta)


def test_public_rows_that_make_no_queries_are_refused_before_a_spend(tmp_path):
    public, _, _ = table(40, 0)
    for rows in (
        np.repeat(public[:2], 20, axis=0),
        np.where(public == public.max(), np.nan, public),
    ):
        with pytest.raises(ValueError, match="distinct|finite"):
            released(tmp_path, public=rows)
    ledger = Ledger.open(tmp_path / "ledger.jsonl")
    assert [entry.kind for entry in ledger.entries()] == ["create"]
