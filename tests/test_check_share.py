"""Records that check instead of voting in simulations: their roles, their bits and their words."""

import dataclasses
import itertools
import json
import math

import jax
import numpy as np
import pytest
from scipy.stats import binom

from rknn_jax import check, randomized_bits
from rknn_jax.algorithm import Keys, Round
from rknn_jax.algorithm import distill as algorithm_1
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.labelers.pate import PATE
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.labels import Labels
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.roles import MEASURE, RECALL, Roles
from rknn_jax.queries import kmeans
from rknn_jax.representations import pixels
from rknn_jax.types import Records
from tests.contracts.test_labelers import EXAMPLES, case, tiny_task
from train import checking, commandline, distill, run_folder, stages, truth
from train.experiment import Experiment

TASK = tiny_task()
ENCODE = pixels.fit(jax.random.key(0), TASK.public.images)
SIZE = len(TASK.private.labels)
EVERYBODY = np.arange(SIZE)
BASE = Experiment(
    epsilon=4.0,
    queries=4,
    representation=pixels.Config(),
    student=None,
    noise_seed=0,
    check_share=0.3,
)


def pixels_of(images):
    """Return pixels as features, without a program for each number of images."""
    return np.asarray(images, np.float32).reshape(len(images), -1) / 255


def numbered(task, clients=None):
    """Return a task whose private labels tell the records apart, as classes."""
    records = Records(task.private.images, EVERYBODY.astype(np.int32), clients)
    return dataclasses.replace(task, private=records)


def run(folder, task=TASK, **changes):
    experiment = dataclasses.replace(BASE, out=folder, **changes)
    prepared = stages.Prepared(task, ENCODE, None)
    return distill.main(experiment, lambda _: prepared, benchmark=False)


def told(folder, name="result.json"):
    return json.loads((folder / name).read_text())


def sides_of(task, folder, **changes):
    experiment = dataclasses.replace(BASE, **changes)
    keys = stages.keys_of(experiment)
    return checking.sides(keys.noise, task, experiment.labeler_of_round(), experiment, folder)


@pytest.mark.parametrize("seed", range(5))
def test_each_record_votes_or_checks_and_none_does_both(seed, tmp_path):
    parted = sides_of(numbered(TASK), tmp_path, noise_seed=seed)
    voters, checkers = parted.task.private.labels, parted.checkers.labels
    assert sorted([*voters, *checkers]) == EVERYBODY.tolist()
    np.testing.assert_array_equal(parted.task.private.images, TASK.private.images[voters])
    np.testing.assert_array_equal(parted.task.private_index, TASK.private_index[voters])
    assert set(parted.role) == {MEASURE, RECALL}, "none of them votes"
    # 300 coins of 0.3: so far from 90 in 1 of 2,000 seeds.
    assert len(checkers) == pytest.approx(90, abs=28)


def test_all_records_of_a_person_have_one_role(tmp_path):
    clients = (EVERYBODY % 60).astype(np.int32)
    parted = sides_of(numbered(TASK, clients), tmp_path, unit="person")
    votes = set(parted.task.private.clients)
    checks = set(parted.checkers.clients)
    assert not votes & checks
    assert len(votes) + len(checks) == 60
    assert len(parted.task.private.labels) == 5 * len(votes)
    for person in checks:
        assert len(set(parted.role[parted.checkers.clients == person])) == 1


@pytest.mark.long
def test_roles_are_those_of_the_noise_key_and_change_no_other_stream(tmp_path):
    first, again, other = (sides_of(TASK, tmp_path, noise_seed=seed).role for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    for share in (0.0, 0.3):
        run(tmp_path / f"{share}", check_share=share)
    plain, checked = (np.load(tmp_path / f"{share}" / "queries.npz") for share in (0.0, 0.3))
    np.testing.assert_array_equal(plain["public_index"], checked["public_index"])
    assert told(tmp_path / "0.0")["measured"] is None
    assert told(tmp_path / "0.0")["num_voters"] == SIZE


def test_a_stopped_training_goes_on_with_its_roles(tmp_path):
    first, other = (Roles(bytes([number] * 32), 0.0, 0.1, 0.1) for number in (1, 2))
    assert run_folder.kept_roles(tmp_path, first, "records") == first
    assert run_folder.kept_roles(tmp_path, other, "records") == first
    with pytest.raises(ValueError, match="private records with which the training .* got others"):
        run_folder.kept_roles(tmp_path, first, "others")
    path = tmp_path / "training" / "roles.json"
    for damage in ("{}", "[1", '"[]"', '{"roles": {}}', '{"records": "records", "roles": {}}'):
        path.write_text(damage)
        with pytest.raises(ValueError, match=r"roles\.json, got something else"):
            run_folder.kept_roles(tmp_path, first, "records")


def test_a_training_that_goes_on_with_other_records_is_refused(tmp_path):
    """Of which some that it has seen would check its labels."""
    labeler = NoisySGD(epsilon=1.0, delta=1e-5, folder=tmp_path / "training")
    moved = dataclasses.replace(TASK.private, images=TASK.private.images[::-1])
    key = jax.random.key(0)
    for _ in range(2):
        checking.sides(key, TASK, labeler, BASE, tmp_path)
    with pytest.raises(ValueError, match="got others"):
        checking.sides(key, dataclasses.replace(TASK, private=moved), labeler, BASE, tmp_path)


FIRST = {name: labeler for name, labeler in EXAMPLES.items() if name.endswith(" 0")}


@pytest.mark.long
@pytest.mark.parametrize(
    "labeler", [case(*example) for example in FIRST.items()] + [ReverseKNN(trust="local")]
)
def test_every_labeler_is_run_on_the_voters_alone(labeler, tmp_path):
    given = {one.name: one for one in dataclasses.fields(labeler) if one.name in labeler.given}
    plain = {name: one.default for name, one in given.items()}
    if hasattr(labeler, "epochs"):
        plain["epochs"] = 1.0  # each is saved, which takes longer than the training
    settings = {
        "epsilon": labeler.epsilon,
        "delta": getattr(labeler, "delta", 0.0),
        "labeler": dataclasses.replace(labeler, **plain),
    }
    checked = run(tmp_path / "checked", **settings)
    voters = sides_of(TASK, tmp_path, **settings).task
    alone = run(tmp_path / "alone", voters, check_share=0.0, **settings)
    for name in ("labels.npz", "queries.npz"):
        with np.load(checked / name) as mine, np.load(alone / name) as theirs:
            for key in mine:
                np.testing.assert_array_equal(mine[key], theirs[key])
    one, other = told(checked), told(alone)
    for name in ("epsilon", "delta", "relation", "trust", "unit", "label_accuracy", "num_voters"):
        assert one[name] == other[name], name
    assert one["num_units"] == SIZE
    assert one["num_voters"] == len(voters.private.labels) < SIZE
    measured = one["measured"]
    assert 0 <= measured["low"] <= measured["right"] <= measured["high"] <= 1
    assert len(measured["recall"]) == (3 if labeler.trust == "central" else 0)
    whole = told(checked, "privacy.json")["whole"]
    assert [event["kind"] for event in whole["events"]] == ([] if one["delta"] else ["pure"])
    assert "did not vote" in told(checked, "privacy.json")["covers"][-1]


@pytest.mark.long
@pytest.mark.parametrize("trust", ["central", "local"])
@pytest.mark.parametrize("unit", ["record", "person"])
def test_measures_are_within_their_intervals_of_the_agreement_of_all(trust, unit, tmp_path):
    """At most 4 misses of 20: with intervals that miss 1 of 20, 5 come in 1 of 390 loops."""
    rng = np.random.default_rng(0)
    wrong = rng.random(SIZE) < 0.2
    clients = EVERYBODY.astype(np.int32) // (2 if unit == "person" else 1)
    labels = np.where(wrong, (TASK.private.labels + 1) % 3, TASK.private.labels)
    private = Records(TASK.private.images, labels.astype(np.int32), clients)
    task = dataclasses.replace(TASK, private=private)
    experiment = dataclasses.replace(
        BASE, labeler=ReverseKNN(trust=trust), unit=unit, check_share=0.5
    )
    labeler = experiment.labeler_of_round()
    queries = kmeans.select(jax.random.key(1), pixels_of(task.public.images), 4)
    keys = Keys(jax.random.key(0), jax.random.key(0))
    [last] = algorithm_1(labeler, lambda *_: queries, pixels_of, None, task, keys, 1)
    votes = last.answers.guarantee
    features = pixels_of(task.public.images)
    nobody = Roles.drawn(0.0, 0.5, 0.0)
    everybody = check.Checkers(
        nobody, features, "sqeuclidean", 3, votes.epsilon, "replace-one", "record"
    )
    found = checking.checks_of(private, np.ones(SIZE, np.int8), everybody, last)
    agreement = everybody.agrees(found, checking.labeling_of(last, experiment)).mean()
    misses = 0
    for seed in range(20):
        noise = jax.random.key(seed)
        parted = checking.sides(noise, task, labeler, experiment, tmp_path)
        checked = checking.check(noise, parted, last, votes, labeler, experiment)
        misses += not checked.measured.low <= agreement <= checked.measured.high
        assert checked.num_voters == labeler.num_units(parted.task.private)
        assert checked.measured.unit == unit
    assert misses <= 4


@pytest.mark.long
def test_a_row_without_a_label_agrees_with_nobody(tmp_path):
    """PATE answers four of forty rows. The others have no label, which is not class 0."""
    records = Records(TASK.private.images, np.zeros(SIZE, np.int32))
    folder = run(
        tmp_path / "run",
        dataclasses.replace(TASK, private=records),
        labeler=PATE(num_teachers=20, steps=10, hidden=0),
        epsilon=math.inf,
        smoothing="none",
    )
    labels = np.load(folder / "labels.npz")["label"]
    assert set(labels) == {-1, 0}
    assert (labels == 0).sum() <= 4
    assert told(folder)["measured"]["right"] < 0.5


def checked(parted, probabilities, **changes):
    """Return the measure of a run that gave public rows these labels, at an epsilon of 4."""
    experiment = dataclasses.replace(BASE, **changes)
    labels = dataclasses.replace(Labels.none(*probabilities.shape), probabilities=probabilities)
    last = Round(None, None, None, side=None, labels=labels, student=None, encode=pixels_of)
    votes = Guarantee(4.0, 0.0, "replace-one", "central", ())
    labeler = experiment.labeler_of_round()
    return checking.check(jax.random.key(0), parted, last, votes, labeler, experiment).measured


def test_a_row_without_a_label_does_not_agree_with_the_first_class(tmp_path):
    private = Records(TASK.private.images, np.zeros(SIZE, np.int32))
    parted = sides_of(dataclasses.replace(TASK, private=private), tmp_path)
    one = np.zeros((len(TASK.public.images), 3), np.float32)
    one[0, 0] = 1
    assert checked(parted, one, smoothing="none").right < 0.5


def test_a_row_without_a_label_is_not_right_where_the_truth_is_the_first_class():
    none = Labels.none(len(TASK.public.images), 3)
    assert (TASK.public.true_labels == 0).any()
    assert truth.label_accuracy(TASK, none) == 0.0
    known = np.eye(3, dtype=np.float32)[TASK.public.true_labels]
    known[:10] = 0
    assert truth.label_accuracy(TASK, dataclasses.replace(none, probabilities=known)) == 0.75


def test_a_person_who_checks_sends_one_bit_however_many_records_there_are(tmp_path):
    private = Records(TASK.private.images, TASK.private.labels, (EVERYBODY % 60).astype(np.int32))
    persons = {"unit": "person", "labeler": ReverseKNN(trust="local")}
    parted = sides_of(dataclasses.replace(TASK, private=private), tmp_path, **persons)
    measured = checked(parted, np.eye(3, dtype=np.float32)[TASK.public.true_labels], **persons)
    assert measured.checkers == len(set(parted.checkers.clients)) < len(parted.role)


def test_a_person_who_checks_for_a_curator_counts_once(tmp_path):
    """Of five records each, of which every one agrees."""
    private = Records(TASK.private.images, TASK.private.labels, (EVERYBODY % 60).astype(np.int32))
    parted = sides_of(dataclasses.replace(TASK, private=private), tmp_path, unit="person")
    truths = np.eye(3, dtype=np.float32)[TASK.public.true_labels]
    measured = checked(parted, truths, unit="person")
    measures = parted.role == MEASURE  # others tell the recall of classes
    assert measured.checkers == len(set(parted.checkers.clients[measures])) < measures.sum()
    assert measured.right > 0.8


def test_a_record_that_cannot_be_used_sends_the_bit_of_one_that_does_not_agree(tmp_path):
    """All public rows are of its class, which it would agree with at any place."""
    nothing = np.full(TASK.private.images.shape, np.nan, np.float32)
    private = Records(nothing, np.zeros(SIZE, np.int32))
    local = {"labeler": ReverseKNN(trust="local")}
    parted = sides_of(dataclasses.replace(TASK, private=private), tmp_path, **local)
    all_of_one = np.eye(3, dtype=np.float32)[np.zeros(len(TASK.public.images), int)]
    assert checked(parted, all_of_one, **local).right < 0.2


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, math.inf])
def test_a_randomized_bit_is_epsilon_private_and_unbiased(epsilon):
    keep = randomized_bits.keep_probability(epsilon)
    if epsilon < math.inf:
        assert keep / (1 - keep) == pytest.approx(math.exp(epsilon))
    # By enumeration: all results of three records, two of which agree.
    bits = np.array([True, True, False])
    mean = second = 0.0
    for sent in itertools.product([False, True], repeat=3):
        law = np.prod(np.where(np.array(sent) == bits, keep, 1 - keep))
        # Any one bit turned over changes the probability by at most e^epsilon.
        for place in range(3):
            other = bits ^ (np.arange(3) == place)
            turned = np.prod(np.where(np.array(sent) == other, keep, 1 - keep))
            if epsilon < math.inf:
                assert law <= math.exp(epsilon) * turned * (1 + 1e-12)
        found = randomized_bits.debiased(np.mean(sent), epsilon)
        mean += law * found
        second += law * found**2
    assert mean == pytest.approx(2 / 3)
    variance = keep * (1 - keep) / 3 / math.tanh(epsilon / 2) ** 2
    assert second - mean**2 == pytest.approx(variance, abs=1e-9)
    drawn = randomized_bits.randomized(jax.random.key(3), np.arange(20_000) % 4 == 0, epsilon)
    kept = np.mean(drawn == (np.arange(20_000) % 4 == 0))
    # Five standard deviations, about 1 in two million.
    assert kept == pytest.approx(keep, abs=5 * 0.5 / math.sqrt(20_000))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, math.inf])
def test_the_interval_of_bits_covers_exactly(epsilon):
    """By the whole law of the sum, for every share: nothing is drawn."""
    keep = randomized_bits.keep_probability(epsilon)
    for size in (1, 20, 150):
        found = [randomized_bits.interval_of_bits(ones, size, epsilon) for ones in range(size + 1)]
        assert all(0 <= one.low <= one.right <= one.high <= 1 for one in found)
        for share in (0.0, 0.03, 0.5, 0.8, 0.97, 1.0):
            law = binom.pmf(np.arange(size + 1), size, share * keep + (1 - share) * (1 - keep))
            covers = [one.low - 1e-12 <= share <= one.high + 1e-12 for one in found]
            assert law[covers].sum() >= 0.95 - 1e-9


def test_bits_measure_as_finely_as_the_rule_says():
    for epsilon in (0.5, 1.0, 3.0):
        size = round(check.needed_bits(check.WORST, epsilon))
        found = randomized_bits.interval_of_bits(size // 2, size, epsilon)
        assert (found.high - found.low) / 2 == pytest.approx(check.WORST, rel=0.1)
    assert check.shares(11_000, 1.0, 0, several=False, local=True).measure == pytest.approx(0.05)
    assert check.shares(9_000, 1.0, 0, several=False, local=True) == check.NOBODY
    assert check.shares(8_000, 1.0, 0, several=False).measure > 0


def test_shares_that_leave_nobody_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"0 <= check_share <= 0\.5, got check_share 0\.7"):
        dataclasses.replace(BASE, check_share=0.7)
    with pytest.raises(ValueError, match="relation=add-remove, got check_share=auto"):
        dataclasses.replace(BASE, check_share="auto", relation="add-remove")
    with pytest.raises(ValueError, match="leaves a record to measure, got check_share=1e-07"):
        run(tmp_path / "none", check_share=1e-7)
    one = dataclasses.replace(
        TASK, private=checking.subset(TASK.private, EVERYBODY < 1), private_index=EVERYBODY[:1]
    )
    words = set()
    for seed in range(12):
        with pytest.raises(ValueError, match=r"check_share=0\.5 with 1 of them") as error:
            sides_of(one, tmp_path, check_share=0.5, noise_seed=seed)
        words.add(str(error.value).split(",")[0])
    assert len(words) == 2  # to vote, and to measure
    with pytest.raises(ValueError, match="num_teachers=290"):
        run(tmp_path / "few", labeler=PATE(num_teachers=290), delta=1e-5)


def test_auto_takes_the_rule_of_a_release(tmp_path):
    assert sides_of(TASK, tmp_path, check_share="auto").roles is None
    many = Records(np.repeat(TASK.private.images, 20, 0), np.repeat(TASK.private.labels, 20))
    task = dataclasses.replace(TASK, private=many, private_index=np.arange(20 * SIZE))
    roles = sides_of(task, tmp_path, check_share="auto").roles
    assert (roles.choose, roles.measure) == (
        0.0,
        check.shares(20 * SIZE, 4.0, 3, several=False).measure,
    )
    for words, share in ((["auto"], "auto"), (["0.05"], 0.05)):
        assert commandline.parsed(["--check-share", *words]).check_share == share
    assert commandline.options(BASE)["check_share"] == 0.3


def test_folders_that_are_older_than_checks_are_those_of_no_check(tmp_path):
    folder = run(tmp_path / "old", check_share=0.0)
    config = told(folder, "config.json")
    config.pop("check_share")
    (folder / "config.json").write_text(json.dumps(config))
    old = dataclasses.replace(BASE, out=folder, check_share=0.0)
    assert run_folder.find_result(old) is not None
    with pytest.raises(ValueError, match=r"check_share=0\.0 for 0\.3"):
        run_folder.find_result(dataclasses.replace(old, check_share=0.3))


@pytest.mark.long
def test_a_report_tells_the_measure_beside_the_truth(tmp_path, monkeypatch):
    monkeypatch.setattr(truth, "EPSILONS", (4.0,))
    monkeypatch.setattr(truth, "DRAWS", 2)
    prepared = stages.Prepared(TASK, ENCODE, None)
    experiment = dataclasses.replace(BASE, out=tmp_path / "run", dataset="digits")
    folder = distill.main(experiment, lambda _: prepared)
    page = (folder / "report.html").read_text()
    found = told(folder)["measured"]
    assert f"Measured on {found['checkers']} private records that did not vote" in page
    assert "of the public labels are right" in page
