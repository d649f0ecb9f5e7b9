"""Sums of labelers over a federation: what a unit moves, the law of the noise that clients share,
what a client refuses, and labels from three clients.
"""

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from rknn_jax.federation import publish, round_folder, wire
from rknn_jax.federation import settings as settings_of
from rknn_jax.federation.agreement import Agreement, RefusedError
from rknn_jax.federation.collector import Sum
from rknn_jax.federation.question_notice import tell_question
from rknn_jax.federation.request import Asked, Public
from rknn_jax.federation.rounds import Round
from rknn_jax.labelers.least_squares import LeastSquares
from rknn_jax.labelers.prototypes import Prototypes
from rknn_jax.labelers.public_prototypes import PublicPrototypes
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.neighbors import LARGEST
from rknn_jax.privacy import accounting, analytic_gaussian
from rknn_jax.privacy.gaussian_shares import SMALLEST_SHARE, GaussianShares
from rknn_jax.privacy.ledger import BudgetExceededError
from rknn_jax.types import Queries
from tests.conftest import sum_labelers
from tests.options import named_settings
from tests.test_federation import CLASSES, QUERIES, a_client

LABELERS = (Prototypes, LeastSquares, PublicPrototypes)
each_labeler = pytest.mark.parametrize("kind", LABELERS)
each_unit = pytest.mark.parametrize("unit", ["record", "client"])


def a_sum(kind=Prototypes, epsilon=1.0, queries=QUERIES, honest=3, unit="record", **settings):
    config = kind(epsilon=epsilon, delta=1e-4, **settings)
    return Round(queries, CLASSES, config, unit=unit, honest=honest)


def a_party(folder, seed, **fields):
    agreement = fields.pop("agreement", Agreement("central"))
    return a_client(folder, seed=seed, agreement=agreement, budget_delta="1/100", **fields)


@pytest.fixture
def without_noise(monkeypatch):
    monkeypatch.setattr(GaussianShares, "share", lambda noise, shape: np.zeros(shape, np.int64))


def test_one_process_of_a_client_is_in_a_sum(tmp_path):
    """A server counted two as two clients, and the sum was lost when one of them stopped."""
    client = a_party(tmp_path, 0)
    with client.in_sum(), pytest.raises(RefusedError, match="one process"), client.in_sum():
        pass
    with client.in_sum():
        pass


# The noise


def gaussian(stddev, reach):
    """Return the law of discrete Gaussian noise at the integers from -reach to reach."""
    law = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * stddev**2))
    return law / law.sum()


def summed(stddev, shares, reach):
    """Return the exact law of a sum of shares, by convolution."""
    one = gaussian(stddev, reach)
    law = one
    for _ in range(shares - 1):
        law = np.convolve(law, one)
    return law


@pytest.mark.parametrize("stddev", [0.7, 1.0, 1.3])
@pytest.mark.parametrize("shares", [2, 5])
def test_the_law_of_a_sum_is_as_near_the_discrete_gaussian_as_proved(stddev, shares):
    """The proof's bound at standard deviations that are far too small for a round."""
    reach = math.ceil(12 * stddev)
    law = summed(stddev, shares, reach)
    middle = slice((shares - 1) * reach, -(shares - 1) * reach)
    ratio = law[middle] / gaussian(stddev * math.sqrt(shares), shares * reach)[middle]
    decay = math.exp(-((math.pi * stddev) ** 2))  # c >= s²/2
    missed = 2 * decay / (1 - decay)
    bound = -2 * (shares - 1) * math.log1p(-missed)
    far = np.abs(np.log(ratio[law[middle] > 1e-12])).max()
    assert far <= bound
    assert far > 1e-7 * (stddev < 1.2), "two laws, not one"


def test_the_least_share_is_a_discrete_gaussian_beyond_any_rounding():
    assert math.log10(math.e) * (math.pi * SMALLEST_SHARE) ** 2 > 1000


def test_a_sum_of_shares_is_private_as_it_says():
    """Delta of the exact law of three shares, for the largest change of one number, summed up."""
    noise = GaussianShares(1.0, 1e-3, 64.0, 3)
    law = summed(noise.share_stddev, 3, 1200)
    moved = np.pad(law, (64, 0))
    law = np.pad(law, (0, 64))

    def delta(epsilon):
        return np.maximum(law - math.exp(epsilon) * moved, 0).sum()

    assert delta(1.0) <= 1e-3
    assert delta(0.85) > 1e-3, "the noise is not much larger than it needs to be"
    assert accounting.compose([noise.guarantee]).epsilon <= 1.0


def test_the_noise_of_clients_has_the_law_of_the_guarantee():
    """Chi-square of 2,000 sums of three real shares, which fails one sound run in a million."""
    noise = GaussianShares(2.0, 1e-2, 40.0, 3)
    found = sum(noise.share((2000,)) for _ in range(3))
    stddev = noise.stddev(3)
    assert stddev >= noise.multiplier * 40.0
    edges = stats.norm.ppf(np.arange(1, 20) / 20, scale=stddev)
    law = stats.norm.cdf(np.append(np.floor(edges), np.inf) + 0.5, scale=stddev)
    seen = np.bincount(np.searchsorted(np.floor(edges), found), minlength=20)
    assert stats.chisquare(seen, 2000 * np.diff(law, prepend=0)).pvalue > 1e-6


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epsilon": 1e-9, "sensitivity": 1e9}, "change epsilon"),
        ({"sensitivity": 1.0, "epsilon": 50.0}, "change epsilon"),
        ({"shares": 0}, "shares >= 1"),
        ({"sensitivity": math.nan}, "0 < sensitivity"),
        ({"sensitivity": 0.0}, "0 < sensitivity"),
        ({"delta": 0.0}, "0 < delta < 1"),
    ],
)
def test_noise_that_cannot_be_shared_is_refused(wrong, words):
    given = {"epsilon": 1.0, "delta": 1e-5, "sensitivity": 100.0, "shares": 2}
    with pytest.raises(ValueError, match=words):
        GaussianShares(**(given | wrong))


# What a unit moves

PAIR = np.array([[1, 0], [-1, 0]], np.float32)


def extremes(width):
    """Rows that move sums far: along axes and diagonals, near and beyond any radius, or nothing."""
    rng = np.random.default_rng(2)
    signs = rng.choice([-1.0, 1.0], (4, width)) * 1e6
    rows = [*(np.eye(width) * 1e6), *(np.eye(width) * -1e6), *signs, *-signs, *np.zeros((1, width))]
    return np.array(rows, np.float32)


def largest_change(round):
    """Return the largest change of a client's part that a search over pairs of units finds."""
    rows = extremes(round.queries.shape[1])
    told = [
        round.contribute(rows[[i]], np.array([label], np.int32)).ravel()
        for i in range(len(rows))
        for label in (-1, 0, 1)
    ]
    if round.unit == "client":  # clients of several records, in one class or in two
        for chosen in itertools.islice(itertools.permutations(range(len(rows)), 3), 0, None, 200):
            for labels in ((0, 0, 0), (0, 1, 2), (1, 1, -1)):
                told.append(
                    round.contribute(rows[list(chosen)], np.array(labels, np.int32)).ravel()
                )
    stacked = np.stack(told)
    return max(np.linalg.norm(stacked - one, axis=1).max() for one in stacked)


def test_clients_that_are_scaled_to_more_are_found(monkeypatch):
    """A planted bug: the norm of a client's vector that only nonnegative scores may have."""
    reach = PublicPrototypes.aggregate_reach
    more = lambda *given: reach(*given)._replace(norm=reach(*given).change)  # noqa: E731
    monkeypatch.setattr(PublicPrototypes, "aggregate_reach", more)
    round = a_sum(PublicPrototypes, queries=PAIR, unit="client")
    assert largest_change(round) > 1.4 * round.sum.shares.sensitivity


@each_labeler
@each_unit
def test_a_unit_moves_the_sum_by_the_sensitivity_and_no_more(kind, unit):
    """Of two candidates opposite to each other, a record likes one in full and the other not."""
    round = a_sum(kind, queries=PAIR if kind is PublicPrototypes else QUERIES, unit=unit)
    most = round.sum.shares.sensitivity
    assert 0.999 * most <= largest_change(round) <= most
    assert round.sum.shares.multiplier >= analytic_gaussian.gaussian_noise_multiplier(1.0, 1e-4)


@each_labeler
def test_the_parts_of_records_add_up_and_wait_for_nobody(kind):
    """Each record's part depends on that record alone."""
    round = a_sum(kind)
    rows = extremes(5)[:8]
    labels = np.arange(8, dtype=np.int32) % 3
    alone = [round.contribute(rows[[i]], labels[[i]]) for i in range(8)]
    np.testing.assert_array_equal(round.contribute(rows, labels), sum(alone))


@each_labeler
def test_a_record_adds_the_same_however_many_there_are(kind):
    """BLAS adds in another order for more rows, which moved records at the end of the range."""
    rows = np.random.default_rng(0).normal(size=(10, 64)).astype(np.float32)
    config = kind(epsilon=1.0, delta=1e-4)
    round = Round(rows, CLASSES[:2], config, honest=3)  # the range ends at the cosine of a pair
    for row in rows:
        alone, many = (
            round.contribute(np.repeat(row[None], n, axis=0), np.zeros(n, np.int32))
            for n in (1, 500)
        )
        np.testing.assert_array_equal(many, 500 * alone)


@each_labeler
@pytest.mark.parametrize("spread", [0.0, 1e-45, LARGEST])
def test_rows_of_a_hostile_server_move_no_bound(kind, spread):
    """Public rows that are all alike, a subnormal number apart, or as far apart as can be."""
    queries = np.zeros((3, 5), np.float32)
    queries[0] = spread
    round = Round.of(a_sum(kind, queries=queries).data)
    rows = np.vstack([extremes(5), np.full((1, 5), LARGEST), np.full((1, 5), -LARGEST)])
    told = [round.contribute(rows[[i]], np.zeros(1, np.int32)).ravel() for i in range(len(rows))]
    for one, two in itertools.combinations(told, 2):
        assert np.linalg.norm(one - two) <= round.sum.shares.sensitivity


@each_labeler
@pytest.mark.usefixtures("without_noise")
def test_a_client_has_the_norm_of_one_record_however_many_it_has(kind, tmp_path):
    """Many records keep the direction of their sum, and are as long as the proof allows.

    It leaves room for the cut of each number, so that two vectors are as far apart as may be.
    """
    round = a_sum(kind, unit="client")
    cut = 2 * math.sqrt(math.prod(round.sum.shape)) / round.sum.reach.change
    most = round.sum.reach.norm * (1 - cut)
    for records in (1, 7, 400):
        party = a_party(tmp_path / str(records), 1, records=records, unit="client")
        vector = party.ready(round.data).vector()
        length = np.linalg.norm(vector)
        assert length <= most
        whole = round.sum.tally.total(party.inputs, party.labels).ravel()
        assert whole @ vector >= 0.999999 * np.linalg.norm(whole) * length
        assert length >= (records == 400) * 0.999 * most


# The question


@each_labeler
def test_a_question_arrives_with_its_labeler(kind):
    round = a_sum(kind, unit="client")
    arrived = Round.of(round.data)
    assert arrived.id == round.id
    assert type(arrived.config) is kind
    assert arrived.config == round.config
    assert arrived.sum.shape == round.sum.shape
    assert arrived.guarantee() == round.guarantee()
    told = arrived.guarantee()
    assert (told.unit, told.trust, told.sampler) == ("client", "aggregate", "release")
    assert arrived.answer_bytes(10**6) == 8 * math.prod(round.sum.shape)


def test_every_labeler_of_one_sum_travels():
    assert set(sum_labelers().values()) == set(LABELERS)
    for kind in sum_labelers().values():
        assert wire.unpack(wire.pack(kind())) == kind()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"mechanism": "laplace"}, "mechanism=gaussian"),
        ({"relation": "add-remove"}, "relation=replace-one"),
        ({"unit": "person"}, "unit of its own|unit=person"),
        ({"epsilon": True}, "epsilon of type float"),
        ({"epsilon": math.inf}, "< epsilon <"),
        ({"epsilon": 2.0**-29, "delta": 1e-300}, "standard deviation"),
        ({"delta": 0.0}, "0 < delta < 1"),
        ({"delta": "1"}, "delta of type float"),
    ],
)
def test_a_sum_that_cannot_keep_its_word_is_not_made(wrong, words):
    config = replace(Prototypes(), **wrong)
    with pytest.raises(ValueError, match=words):
        Round(QUERIES, CLASSES, config, honest=3)


def test_votes_have_the_unit_of_their_round():
    """A labeler's own would say that a person is protected, where a message is."""
    config = ReverseKNN(1.0, trust="local", mechanism="collision")
    assert Round(QUERIES, CLASSES, config).unit == "record"
    with pytest.raises(ValueError, match="unit of its own"):
        wire.check_settings(ReverseKNN, {"unit": "person"})
    with pytest.raises(ValueError, match="unit"):
        Round(QUERIES, CLASSES, replace(config, unit="person"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"honest": 1}, "honest >= 2"),
        ({"simulated": 7}, "real noise"),
        ({"records_per_client": 2, "unit": "client"}, "0 without votes"),
        ({"queries": np.full((3, 2), np.nan, np.float32)}, "Expected queries"),
        ({"queries": np.zeros((0, 5), np.float32)}, "Expected queries"),
        ({"classes": ("only",)}, "at least 2 classes"),
        ({"classes": (), "config": PublicPrototypes()}, "at least 2 classes"),
        ({"queries": np.zeros((2**12, 2**12 + 1), np.float32)}, "pass fewer queries"),
    ],
)
def test_a_question_for_a_sum_is_checked_like_any_other(wrong, words):
    given = {"queries": QUERIES, "classes": CLASSES, "config": Prototypes(), "honest": 3}
    with pytest.raises(ValueError, match=words):
        Round(**(given | wrong))


# Clients


@each_labeler
def test_a_client_is_charged_before_it_adds_and_adds_once(kind, tmp_path):
    round = a_sum(kind)
    party = a_party(tmp_path, 1)
    prepared = party.ready(round.data)
    assert party.ledger.spent.epsilon == 0
    vector = prepared.vector()
    assert (vector.dtype, vector.shape) == (np.int64, (round.num_cells,))
    assert (party.ledger.spent.epsilon, float(party.ledger.spent.delta)) == (1, 1e-4)
    for again in (prepared.vector, lambda: a_party(tmp_path, 1).ready(round.data)):
        with pytest.raises(RefusedError, match="takes part once"):
            again()
    assert party.ledger.spent.epsilon == 1
    [entry] = [entry for entry in party.ledger.entries() if entry.kind == "spend"]
    asked = f"round {round.id}: {round.config.name}, 3 classes, discrete_gaussian"
    assert entry.purpose.partition(", note ")[0] == asked


def test_a_client_refuses_what_its_owner_did_not_allow(tmp_path):
    round = a_sum()
    for number, (agreement, words) in enumerate(
        (
            (Agreement(), "trusts nobody"),
            (Agreement("central", epsilon=0.5), "epsilon <= 0.5"),
            (Agreement("central", delta=1e-9), "delta <= 1e-09"),
            (Agreement("central", most_cells=17), "at most 17 cells"),
            (Agreement("central", most_bytes=100), "bytes in a question"),
            (Agreement("central", most_work=100), "work of cells"),
        )
    ):
        party = a_party(tmp_path / str(number), 1, agreement=agreement)
        with pytest.raises(RefusedError, match=words):
            party.ready(round.data)
        assert party.ledger.spent.epsilon == 0
    poor = a_party(tmp_path / "poor", 1, budget="1/10")
    with pytest.raises(BudgetExceededError):
        poor.ready(round.data)
    narrow = Round(QUERIES[:, :4].copy(), CLASSES, Prototypes(delta=1e-4), honest=3)
    with pytest.raises(RefusedError, match="got 5; embed"):
        a_party(tmp_path / "narrow", 1).ready(narrow.data)


@each_labeler
def test_no_value_in_the_data_keeps_a_client_from_answering(kind, tmp_path, monkeypatch):
    """Records that are not numbers, or have no class, add nothing."""
    round = a_sum(kind)
    party = a_party(tmp_path, 1)
    broken = party.inputs.copy()
    broken[0] = np.nan
    broken[1] = 1e38
    labels = party.labels.copy()
    labels[2:4] = (-1, 99)
    told = replace(party, inputs=broken, labels=labels).ready(round.data).contribution
    expected = round.contribute(party.inputs[4:], party.labels[4:])
    np.testing.assert_array_equal(told, expected)


def test_the_owner_hears_which_labeler_asks(tmp_path):
    said = []
    tell_question(a_sum(LeastSquares).data, a_party(tmp_path, 1), lambda *line: said.append(line))
    assert "labeler=least_squares" in said[0][1]


@each_labeler
@each_unit
@pytest.mark.usefixtures("without_noise")
def test_the_parts_of_clients_are_the_sum_of_the_labeler(kind, unit, tmp_path):
    round = a_sum(kind, unit=unit)
    parties = [a_party(tmp_path / str(i), i, records=9, unit=unit) for i in range(3)]
    totals = sum(party.ready(round.data).vector() for party in parties)
    found, stddev = Sum(round, totals, 3, Counter()).counts()
    labeler = round.labeler
    tally = labeler.aggregate_tally(Queries.alone(QUERIES, np.arange(len(QUERIES))), 3)
    if unit == "record":
        every = (np.concatenate([getattr(party, name) for party in parties]) for name in COLUMNS)
        expected = tally.total(*every)
    else:
        units = [tally.grid * tally.total(party.inputs, party.labels) for party in parties]
        most = round.sum.reach.norm
        expected = sum(one * min(1, most / np.linalg.norm(one)) for one in units)
    np.testing.assert_allclose(found, expected, atol=3 * (unit == "client"), rtol=1e-5)
    assert (stddev == round.sum.shares.stddev(3)).all()


COLUMNS = ("inputs", "labels")


# Three clients, from the question to the labels

CENTERS = 4 * np.eye(3, 5, dtype=np.float32)


def clusters(seed, size):
    rng = np.random.default_rng(seed)
    labels = np.arange(size, dtype=np.int32) % 3
    return CENTERS[labels] + rng.normal(size=(size, 5)).astype(np.float32), labels


def a_request(kind, epsilon=1.0, **fields):
    given = {"student": "none", "honest": 3, "clients": 3, "quorum": 3} | fields
    return Asked(kind(epsilon=epsilon, delta=1e-4), CLASSES, **given)


def published(folder, asked, records=3000):
    """Return the folder of a round of three clients, and what was told of it."""
    public = Public(clusters(9, 120)[0])
    round, queries = round_folder.prepare(folder, public, asked, lambda *line: None)
    totals = 0
    parties = []
    for number in range(3):
        party = a_party(folder.parent / f"party{number}", number, records=6, unit=asked.unit)
        rows, labels = clusters(number, records)
        parties.append(replace(party, inputs=rows, labels=labels))
        totals = totals + parties[-1].ready(round.data).vector()
    found = Sum(round, totals, 3, Counter())
    round_folder.keep_sum(folder, found)
    kept = round_folder.kept_sum(folder, round)
    np.testing.assert_array_equal(kept.totals, totals)
    card = publish.publish(folder, public, asked, queries, kept, lambda *line: None)
    assert all(party.ledger.spent.epsilon == 1 for party in parties)
    return round, card


@each_labeler
def test_three_clients_label_the_rows_of_a_server(kind, tmp_path):
    asked = a_request(kind)
    round, card = published(tmp_path / "out", asked)
    rows = np.load(tmp_path / "out/labels.npz")
    assert np.mean(rows["label"] == clusters(9, 120)[1]) > 0.95
    assert (rows["query"] == -1).all()
    assert not (tmp_path / "out/queries.npz").exists()
    told = json.loads((tmp_path / "out/privacy.json").read_text())
    assert told["guarantee"] == round.guarantee().asdict()
    assert (told["guarantee"]["unit"], told["guarantee"]["trust"]) == ("record", "aggregate")
    assert told["labeler"] == card["labeler"] == round.config.name
    assert told["sum_shape"] == list(round.sum.shape)
    assert told["clients_whose_noise_suffices"] == 2
    assert told["not_covered"][0] == "that a client took part, and so has a private record"
    page = (tmp_path / "out/privacy.html").read_text()
    assert f"made by {round.config.name} from one sum, with noise" in page
    assert "discrete_gaussian" in page
    assert (tmp_path / "out/report.html").exists()


def test_a_client_is_protected_as_a_whole(tmp_path):
    """A client has the norm of one record, so that noise decides among three."""
    _, card = published(tmp_path / "out", a_request(Prototypes, unit="client"))
    assert card["guarantee"]["unit"] == "client"
    assert "client" in (tmp_path / "out/privacy.html").read_text()


def test_the_server_reads_a_sum_as_a_release_does(tmp_path):
    """The same noisy sum gives the same model as the labeler's own reading."""
    asked = a_request(LeastSquares)
    round, _ = published(tmp_path / "out", asked)
    kept = round_folder.kept_sum(tmp_path / "out", round)
    noisy, stddev = kept.counts()
    rows = Queries.alone(round.queries, np.arange(len(round.queries)))
    read = round.labeler.read(noisy, stddev[0, 0], np.asarray, rows, round.guarantee())
    expected = read.model.of_features(clusters(9, 120)[0]).argmax(axis=1)
    assert np.mean(np.load(tmp_path / "out/labels.npz")["label"] == expected) > 0.95


def test_a_folder_goes_on_with_its_labeler_alone(tmp_path):
    public = Public(clusters(9, 120)[0])
    tell = lambda *line: None  # noqa: E731
    round, queries = round_folder.prepare(tmp_path / "out", public, a_request(Prototypes), tell)
    again, kept = round_folder.prepare(tmp_path / "out", public, a_request(Prototypes), tell)
    assert again.id == round.id
    np.testing.assert_array_equal(kept.index, queries.index)
    with pytest.raises(ValueError, match="others for labeler"):
        round_folder.prepare(tmp_path / "out", public, a_request(LeastSquares), tell)
    (tmp_path / "out" / round_folder.BEGUN).write_text("{}")
    with pytest.raises(ValueError, match="begin another round"):
        round_folder.kept_sum(tmp_path / "out", round)
    totals = np.zeros(7, np.int64)
    round_folder.keep_sum(tmp_path / "out", Sum(round, totals, 3, Counter()))
    with pytest.raises(ValueError, match="restore the file"):
        round_folder.kept_sum(tmp_path / "out", round)


@pytest.mark.parametrize(("kind", "size"), [(Prototypes, 120), (PublicPrototypes, 9)])
def test_candidates_are_few_and_other_rows_are_many(kind, size, tmp_path):
    public = Public(clusters(9, 120)[0])
    round, _ = round_folder.prepare(tmp_path / "out", public, a_request(kind), lambda *line: None)
    assert len(round.queries) == size


# Settings


def a_server(**settings):
    given = {"public": Path("p"), "epsilon": 1.0, "classes": "3", "clients": 3, "out": Path("o")}
    given |= {"labeler": "prototypes", "trust": "central", "honest": 3, "student": "none"}
    return named_settings(settings_of.Serve, **(given | settings))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"trust": "local"}, "trust central with labeler prototypes.*Choose labeler rknn"),
        ({"trust": "shuffle"}, "got trust shuffle"),
        ({"labeler": "pate"}, "to be one of least_squares, prototypes"),
        ({"labeler": "what"}, "got labeler what"),
        ({"neighbors": 2}, "no neighbors"),
        ({"mechanism": "binomial"}, "no mechanism"),
        ({"metric": "cosine"}, "no metric"),
        ({"records_per_client": 4, "unit": "client"}, "no records_per_client"),
        ({"epsilon": 60.0}, "epsilon <= 50"),
    ],
)
def test_settings_that_do_not_suit_a_sum_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        settings_of.asked(a_server(**wrong))


def test_settings_name_the_labeler():
    asked = settings_of.asked(a_server(labeler="least_squares", unit="client", delta=1e-7))
    assert asked.config == LeastSquares(epsilon=1.0, delta=1e-7)
    assert (asked.summed, asked.unit, asked.records_per_client) == (True, "client", 0)
