"""Private selection of the classes: its guarantee, its threshold and its command."""

import csv
import math
import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas
import pytest

from rknn_jax.cli import classes, label, main
from rknn_jax.cli.classes import SelectClasses
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.disjoint import compose_disjoint
from rknn_jax.privacy.ledger import BudgetExceededError, Ledger, LedgerError
from rknn_jax.records import class_names
from rknn_jax.release import class_selection
from rknn_jax.release.class_selection import Occurrences, least_threshold, noise_scale, occurrences
from rknn_jax.release.settings import Settings
from rknn_jax.release.shards import ArrayShard
from tests.options import named_settings, with_options

EPSILON = 1.0
DELTA = 0.01
ROWS = 600


REACH = 400


def law(count, scale, threshold):
    """Return the law of one class's outcome: it does not show, or its noisy count, float64."""
    values = np.arange(-REACH, REACH)
    a = math.exp(-1 / scale)
    shown = (1 - a) / (1 + a) * a ** np.abs(values - count) * (values >= threshold) * (count > 0)
    return np.append(1 - shown.sum(), shown)


def distance(mine, theirs, epsilon, scale, threshold):
    """Return the least delta of two data sets, given the counts of two classes in each."""
    first, second = (
        np.outer(*(law(count, scale, threshold) for count in counts)) for counts in (mine, theirs)
    )
    return np.maximum(first - math.exp(epsilon) * second, 0).sum()


SCALE = noise_scale(EPSILON, "replace-one")
THRESHOLD = least_threshold(SCALE, DELTA)


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize(
    "pair", [((1, 0), (0, 1)), ((5, 0), (4, 1)), ((1, 4), (0, 5)), ((9, 9), (8, 10))]
)
def test_delta_is_what_two_neighbors_differ_by(pair, direction):
    """Replacing one record moves it from one class to another."""
    mine, theirs = pair[::direction]
    assert distance(mine, theirs, EPSILON, SCALE, THRESHOLD) <= DELTA * (1 + 1e-9)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_no_two_neighbors_differ_by_more_than_delta_however_large_it_is(relation):
    """A class that is not shown tells more than a count does if delta is above 1 - e^(-1/b)."""
    replaced = [((1, 0), (0, 1)), ((2, 0), (1, 1)), ((1, 4), (0, 5)), ((3, 2), (2, 3))]
    changed = [((1, 3), (0, 3)), ((2, 0), (1, 0)), ((4, 1), (3, 1))]
    for epsilon, delta in [(0.3, 0.5), (0.3, 0.9), (1.0, 0.6), (4.0, 0.3)]:
        scale = noise_scale(epsilon, relation)
        threshold = least_threshold(scale, delta)
        assert threshold >= 1
        for pair in replaced if relation == "replace-one" else changed:
            for mine, theirs in (pair, pair[::-1]):
                found = distance(mine, theirs, epsilon, scale, threshold)
                assert found <= delta * (1 + 1e-9), (epsilon, delta, mine, theirs)


def test_the_threshold_is_the_least_one_and_opendps_own_delta_is_too_small():
    """`make_laplace_threshold` of OpenDP states a delta that its own releases pass."""
    a = math.exp(-1 / SCALE)
    shows = [a ** (threshold - 1) / (1 + a) for threshold in (THRESHOLD, THRESHOLD - 1)]
    assert shows[0] <= DELTA < shows[1]
    from opendp import domains, measurements, metrics

    with exact_noise._opendp():
        domain = domains.map_domain(domains.atom_domain(T=str), domains.atom_domain(T="i64"))
        metric = metrics.l01inf_distance(metrics.absolute_distance(T="i64"))
        theirs = measurements.make_laplace_threshold(domain, metric, scale=SCALE, threshold=5)
        _, stated = theirs.map((1, 1, 1))
        shown = len(theirs({str(number): 1 for number in range(20_000)})) / 20_000
    truth = a**4 / (1 + a)
    assert stated == pytest.approx(a * truth, rel=1e-3)
    # Five standard deviations: fails by chance in one run of two million.
    assert shown == pytest.approx(truth, abs=5 * math.sqrt(truth / 20_000))


def test_a_class_of_one_record_shows_as_often_as_delta(tmp_path):
    ledger = Ledger.create(tmp_path / "l.jsonl", "sha256:0", 10, 0.5)
    lonely = Occurrences({f"class {number}": 1 for number in range(20_000)})
    shown = len(class_selection.select(lonely, 1.0, 0.01, ledger).counts) / 20_000
    a = math.exp(-1 / SCALE)
    truth = a ** (THRESHOLD - 1) / (1 + a)
    # Five standard deviations: fails by chance in one run of two million.
    assert shown == pytest.approx(truth, abs=5 * math.sqrt(truth / 20_000))


def shards(labels, persons=None):
    labels = np.asarray(labels)
    rows = np.zeros((len(labels), 2), np.float32)
    return [ArrayShard("r", rows, labels, None if persons is None else np.asarray(persons))]


def test_missing_labels_are_no_class():
    text = shards(["cat", " cat", "", "dog", "nan", "None"])
    assert occurrences(text, "record") == Occurrences({"cat": 2, "dog": 1})
    numbers = shards([0, 2, 2, -1])
    assert occurrences(numbers, "record") == Occurrences({"0": 1, "2": 2})


def test_a_person_moves_one_count_by_one_whatever_her_records_are():
    """The sensitivity found by search: other people's draws do not depend on hers."""
    generator = np.random.default_rng(0)
    others = generator.integers(0, 3, 40)
    owners = generator.integers(1, 9, 40)

    def counts(hers):
        labels = np.concatenate([others, np.asarray(hers, int)])
        persons = np.concatenate([owners, np.zeros(len(hers), int)])
        return occurrences(shards(labels, persons), "person").counts

    alone = counts([])
    assert sum(alone.values()) == 8
    for hers in ([0], [1] * 30, [0, 1, 2] * 5, [2] + [-1] * 9):
        mine = counts(hers)
        moved = [mine.get(name, 0) - alone.get(name, 0) for name in {*mine, *alone}]
        assert sorted(moved)[-1] == sum(moved) == 1
    nameless = shards([0, 0, 1, 1], ["a", "a", "", ""])
    assert occurrences(nameless, "person").counts == {"0": 1}


@pytest.mark.parametrize("labels", [None, np.zeros((4, 2), int)])
def test_records_without_one_label_each_are_refused_by_their_type(labels):
    found = [ArrayShard("r", np.zeros((4, 2), np.float32), one) for one in (np.arange(4), labels)]
    words = "got none" if labels is None else "got lists or rows of labels"
    with pytest.raises(ValueError, match=words):
        occurrences(found, "record")


ALONE = {
    "numbers from 0": (range(12), "--classes 0,1,2,3,4,5,6,7,8,9,10,11"),
    "numbers": ((0, 2, 10), "--classes 0,2,10"),
    "floats": ((1.0, 2.0, 2.5), "--classes 1,2,2.5"),
    "signs": ((-1, 0, 1), "--classes 0,1"),
    "bools": ((False, True), "--classes 0,1"),
    "large numbers": ((5, 2**40), f"--classes 5,{2**40}"),
}


def as_read(labels, kind, tmp_path):
    """Return labels as they come from NumPy, from JSON lines, or from the CSV file of a frame."""
    if kind == "array":
        return np.array(labels)
    if kind == "objects":
        return np.array([*labels, None], object)[:-1]
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.csv"
    pandas.DataFrame({"label": labels}).to_csv(path, index=False)
    with open(path, newline="") as file:
        return np.array([row["label"] for row in csv.DictReader(file)])


@pytest.mark.parametrize("kind", ["array", "objects", "csv"])
@pytest.mark.parametrize(("names", "option"), ALONE.values(), ids=ALONE)
def test_one_odd_label_changes_no_other_class(names, option, kind, tmp_path):
    """NumPy makes text of all labels of an array if one is text, and pandas 1.0 of 1."""
    labels = np.repeat(list(names), 40).tolist()
    shown = []
    for odd in (labels[0], "rare", math.nan, 0.5, 7):
        given = as_read([odd, *labels[1:]], kind, tmp_path)
        found = occurrences([ArrayShard("r", np.zeros((len(given), 2)), given)], "record")
        kept = {name: count for name, count in found.counts.items() if count > 1}
        ordered = {name: kept[name] for name in class_selection.in_order(kept)}
        assert sum(kept.values()) >= 39 * (len(names) - (-1 in names))
        shown.append(classes._option(class_selection.Selection(ordered, None)))
    assert shown == [option] * 5


@pytest.mark.parametrize(
    "names", [["a", "b,"], [",a", "b"], ["a"], ["-a", "b"], ["a\n", "b"], ["(a, b)", "-c"]]
)
def test_names_that_no_option_can_have_are_for_a_file(names):
    assert "--classes-file" in classes._named_option(names)


def test_labels_that_no_program_writes_as_numbers_keep_their_text():
    codes = ["01", "1.00", "+1", "1E10", "true", "250.0", "\u0661"]
    assert class_names.names_of(np.array(codes), "r") == [*codes[:5], "250", codes[6]]
    odd = np.array([None, [1], {}, math.inf, "inf", "-1.0", -0.0, 10**5000, np.int64(1)], object)
    assert class_names.names_of(odd, "r") == [*[""] * 6, "0", "", "1"]
    halves = np.array([0.1, 2], np.float32)
    assert class_names.names_of(halves, "r") == ["0.1", "2"]


@pytest.mark.parametrize("odd", [3.0, "rare"])
def test_files_of_labels_of_two_types_are_counted_together(odd):
    """A refusal would tell of the one record that made text of a file's labels."""
    other = np.array([1, 2, odd])
    found = occurrences([*shards([1, 2, 2]), *shards(other)], "record")
    assert found.counts == {"1": 2, "2": 3, str(odd).removesuffix(".0"): 1}


def test_a_class_of_many_digits_is_text():
    names = ["2", "10", "9" * 5_000]
    assert class_selection.in_order(names) == sorted(names)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Private records of three classes and a rare one, whose names nobody has published."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    names = np.array(["flu", "cold", "measles"])[np.arange(ROWS) % 3]
    names[-1] = "plague"
    rows = 8 * np.eye(3, 4)[np.arange(ROWS) % 3] + generator.normal(size=(ROWS, 4))
    patient = np.arange(ROWS) // 2
    np.savez("R.npz", embeddings=rows.astype(np.float32), labels=names, patient=patient)
    np.savez("P.npz", embeddings=rows[:60].astype(np.float32) + 0.1)
    return tmp_path


ASKED = named_settings(SelectClasses, "R.npz", 1.0, 1e-6, budget=2.0)


@pytest.mark.parametrize("person", [None, "patient"])
def test_classes_are_selected_and_then_label(folder, capsys, person):
    asked = with_options(ASKED, person=person)
    told = classes.run(asked)
    assert told["classes"] == ["cold", "flu", "measles"]
    truth = ROWS / 3 if person is None else ROWS / 6
    assert all(abs(count - truth) < 60 for count in told["counts"].values())
    shown = capsys.readouterr().out
    assert "--classes cold,flu,measles\n" in shown
    unit = "record" if person is None else "person"
    assert shown.count(f" {unit}s\n") == 3
    assert (told["guarantee"]["unit"], told["guarantee"]["delta"]) == (unit, 1e-6)
    label.run(
        named_settings(
            Settings,
            "P.npz",
            "R.npz",
            1.0,
            person=person,
            classes=",".join(told["classes"]),
            queries=3,
        )
    )
    ledger = Ledger.open("R.npz.ledger.jsonl")
    assert ledger.spent == (2, pytest.approx(1e-6))
    with pytest.raises(BudgetExceededError):
        classes.run(asked)


def test_a_budget_that_the_ledger_does_not_have_is_refused(folder):
    asked = with_options(ASKED, epsilon=0.1)
    classes.run(asked)
    with pytest.raises(ValueError, match=r"budget.* 0\.15"):
        classes.run(with_options(asked, budget=0.15))
    assert Ledger.open("R.npz.ledger.jsonl").spent.epsilon == Fraction(1, 10)


def test_a_ledger_of_several_files_knows_each_of_them(folder, monkeypatch):
    whole = dict(np.load("R.npz"))
    for name, rows in (("a.npz", slice(300)), ("b.npz", slice(300, None))):
        np.savez(name, **{key: array[rows] for key, array in whole.items()})
    asked = with_options(ASKED, epsilon=0.1)
    classes.run(with_options(asked, private=("a.npz", "b.npz"), ledger=Path("both.jsonl")))
    monkeypatch.setenv("RKNN_STATE_DIR", str(folder / "of another user"))
    classes.run(with_options(asked, private="b.npz", ledger=Path("one.jsonl")))
    with pytest.raises(LedgerError, match="in common"):
        compose_disjoint([Ledger.open(name) for name in ("both.jsonl", "one.jsonl")])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"delta": 0.0}, "0 < delta < 1"),
        ({"delta": 1.0}, "0 < delta < 1"),
        ({"epsilon": 0.0}, "0 < epsilon"),
        ({"label": "diagnosis"}, "diagnosis"),
        ({"person": "nobody"}, "nobody"),
        ({"budget": 0.5}, "0.5"),
    ],
)
def test_what_cannot_be_selected_spends_nothing(folder, wrong, said):
    with pytest.raises(ValueError, match=said):
        classes.run(with_options(ASKED, **wrong))
    assert not Path("R.npz.ledger.jsonl").exists()


def test_files_that_change_while_they_are_read_are_refused(folder, monkeypatch):
    count = class_selection.occurrences

    def changed(*given):
        np.savez("R.npz", **{**np.load("R.npz"), "labels": np.full(ROWS, "flu")})
        return count(*given)

    monkeypatch.setattr(class_selection, "occurrences", changed)
    with pytest.raises(ValueError, match="while it is read"):
        classes.run(ASKED)
    assert not Path("R.npz.ledger.jsonl").exists()


def test_a_ledger_of_divergences_refuses_it(folder):
    first = named_settings(Settings, "P.npz", "R.npz", 0.1, classes="cold,flu", queries=3)
    label.run(with_options(first, budget=2, budget_delta=1e-5, accounting="renyi"))
    with pytest.raises(LedgerError, match="noise is known"):
        classes.run(ASKED)


def test_the_command_line_prints_it_as_json(folder, capsys):
    asked = "classes --private R.npz --epsilon 1 --delta 1e-6 --json"
    assert main.main(asked.split()) == 0
    assert '"classes": ["cold", "flu", "measles"]' in capsys.readouterr().out


def test_a_class_that_controls_a_terminal_is_shown_by_its_codes(folder, capsys):
    with np.load("R.npz") as file:
        arrays = dict(file)
    arrays["labels"] = np.char.replace(arrays["labels"], "flu", "flu\x1b[2J")
    np.savez("R.npz", **arrays)
    assert classes.run(ASKED)["classes"] == ["cold", "flu\x1b[2J", "measles"]
    said = capsys.readouterr()
    assert "'flu\\x1b[2J'" in said.out
    assert "\x1b" not in said.out + said.err


def test_a_long_label_makes_no_other_one_long():
    """An array of text has the length of its longest one: 160 MB for these records."""
    labels = np.array(["a", "b"] * 10_000)
    odd = labels.astype("U400")
    odd[0] = "x" * 400
    blocks = [odd, *[labels] * 4]

    class Blocks(ArrayShard):
        def labels(self, size):
            yield from blocks

    shard = Blocks("a file", np.zeros((100_000, 1)), np.concatenate([labels] * 5))
    tracemalloc.start()
    try:
        found = occurrences([shard], "record")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.counts == {"a": 49_999, "b": 50_000, "x" * 400: 1}
    assert most < 120e6, "of which the first block takes a part by itself"
