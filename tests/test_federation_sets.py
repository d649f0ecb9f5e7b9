"""Sets of labels over a federation: what a record moves, what travels, and sets from clients."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rknn_jax.bsvs import NO_CELL
from rknn_jax.federation import inputs, publish, round_folder
from rknn_jax.federation import settings as settings_of
from rknn_jax.federation.agreement import Agreement, RefusedError
from rknn_jax.federation.collector import Collector, Reply, Sum
from rknn_jax.federation.question_notice import tell_question
from rknn_jax.federation.request import Asked, Public
from rknn_jax.federation.rounds import Round
from rknn_jax.labelers import rknn
from rknn_jax.labelers.prototypes import Prototypes
from rknn_jax.release.tables import read_labels
from rknn_jax.report import results
from tests.options import named_settings
from tests.test_federation import CLASSES, QUERIES, a_client

SETS = ((0, 2), (1,), ())
CENTERS = 8 * np.eye(3, 5, dtype=np.float32)


def config_of(trust, epsilon=1.0, **fields):
    mechanism = {"central": "binomial"}.get(trust, "collision")
    return rknn.ReverseKNN(epsilon, 1e-4, mechanism=mechanism, trust=trust, **fields)


def a_round(trust="central", most=2, **fields):
    config = config_of(trust, num_neighbors=2)
    honest = {"central": 3, "shuffle": 10_000}.get(trust, 0)
    return Round(QUERIES, CLASSES, config, honest=honest, labels_per_record=most, **fields)


def rows_of(seed, size):
    """Return rows of three groups, and a mask of the classes of each, which are `SETS`."""
    rng = np.random.default_rng(seed)
    kind = np.arange(size) % 3
    mask = np.zeros((3, len(CLASSES)), bool)
    for number, classes in enumerate(SETS):
        mask[number, list(classes)] = True
    return CENTERS[kind] + rng.normal(size=(size, 5)).astype(np.float32), mask[kind]


@pytest.mark.parametrize("trust", ["central", "shuffle", "local"])
def test_a_record_moves_as_many_cells_as_its_noise_covers(trust):
    round = a_round(trust)
    labels = np.array([[0, 1, 2, -1], [2, 2, -1, -1], [-1] * 4, [7, 1, 0, -1]], np.int32)
    cells = round.contribute(QUERIES[[0, 0, 1, 2]] + 0.01, round.encoded(labels).ids)
    held = [sorted(row[row >= 0]) for row in cells]
    assert [len(set(row)) for row in held] == [6, 4, 2, 6]
    width = len(CLASSES) + 1
    for number, row in enumerate(held):
        voted = [cell for cell in row if cell % width == width - 1]
        assert len(voted) == 2, f"record {number} votes once at each of two queries"
    if trust == "central":
        assert round.sum.coins.changed_cells == 2 * 2 * (2 + 1)
        assert round.sum.shape == (len(QUERIES), width)
    else:
        assert round.mechanism.votes_per_record == 2 * (2 + 1)
    assert round.num_cells == len(QUERIES) * width


def test_a_question_for_sets_arrives_and_others_have_the_bytes_of_before():
    round = a_round()
    assert Round.of(round.data).labels_per_record == 2
    assert "up to 2 labels a record" in round.subject
    assert b"labels_per_record" not in a_round(most=0).data


@pytest.mark.parametrize("most", [-1, 4, 2.0, "2", True])
def test_a_hostile_number_of_labels_is_refused(most):
    with pytest.raises(ValueError, match="labels_per_record"):
        a_round(most=most)
    with pytest.raises(ValueError, match="labels_per_record"):
        Round(QUERIES, CLASSES, Prototypes(1.0, 1e-4), honest=3, labels_per_record=1)


def test_a_client_refuses_labels_that_do_not_fit_the_round(tmp_path):
    party = a_client(tmp_path, agreement=Agreement("central"), budget_delta="1/100")
    several = replace(party, labels=np.ones((6, 3), bool))
    with pytest.raises(RefusedError, match="one label a record"):
        several.ready(a_round(most=0).data)
    with pytest.raises(RefusedError, match="mask of bool"):
        replace(party, labels=np.ones((6, 2), bool)).ready(a_round().data)
    one = party.ready(a_round().data).contribution
    listed = replace(party, labels=party.labels[:, None]).ready(a_round().data).contribution
    np.testing.assert_array_equal(one, listed)
    assert party.ledger.spent.epsilon == 0


def test_the_owner_hears_of_labels_beyond_those_that_count(tmp_path):
    party = a_client(tmp_path, agreement=Agreement("central"), budget_delta="1/100")
    said = []
    for labels in (np.ones((6, 3), bool), np.tile([0, 1, 2, 2], (6, 1))):
        told = replace(party, labels=labels)
        tell_question(a_round().data, told, lambda *line: said.append(line))
    assert said.count(("cut", "6 of 6 records have labels that do not count")) == 2


def test_an_unusable_record_votes_nowhere(tmp_path):
    party = a_client(tmp_path, agreement=Agreement("central"), budget_delta="1/100")
    party.inputs[2, 1] = np.nan
    told = replace(party, labels=np.ones((6, 3), bool)).ready(a_round().data).contribution
    assert (told[2] == NO_CELL).all()
    assert (told[[0, 1, 3, 4, 5]] >= 0).all()
    said = []
    tell_question(a_round().data, party, lambda *line: said.append(line))
    (odd,) = [text for name, text in said if name == "unusable"]
    assert odd.startswith("1 of 6 records have no features")


def published(folder, trust, epsilon, asks):
    """Return the results of a round of three clients, and what their ledgers have spent."""
    public = Public(rows_of(9, 90)[0])
    asked = Asked(
        config_of(trust, epsilon),
        CLASSES,
        student="none",
        honest=3 if trust == "central" else 0,
        clients=3,
        quorum=3,
        labels_per_record=2,
    )
    folder.mkdir()
    round, queries = round_folder.prepare(folder / "out", public, asked, lambda *line: None)
    parties = []
    for number in range(3):
        agreement = Agreement(trust)
        party = a_client(folder / str(number), 6, 50, number, agreement, budget_delta="1/100")
        features, mask = rows_of(number, 3000)
        parties.append(replace(party, inputs=features, labels=mask))
    found = asks(folder / "out", round, parties)
    publish.publish(folder / "out", public, asked, queries, found, lambda *line: None)
    return results.read(folder / "out"), [party.ledger.spent.epsilon for party in parties]


def summed(folder, round, parties):
    totals = sum(party.ready(round.data).vector() for party in parties)
    return Sum(round, totals, 3, Counter())


def received(folder, round, parties):
    collector = Collector(folder, round)
    replies = [
        Reply(ticket, id, said) for id, ticket, said in (p.answer(round.data) for p in parties)
    ]
    assert collector.receive(replies) == ["counted"] * 3
    return collector


@pytest.mark.parametrize(
    ("trust", "epsilon", "asks"), [("central", 1.0, summed), ("local", 6.0, received)]
)
def test_three_clients_give_the_rows_of_a_server_their_sets(tmp_path, trust, epsilon, asks):
    found, spent = published(tmp_path / trust, trust, epsilon, asks)
    np.testing.assert_array_equal(found.sets.present, rows_of(9, 90)[1])
    assert spent == [epsilon] * 3
    assert found.card["labels_per_record"] == 2
    assert (found.label[2::3] == -1).all()
    # 3,000 records a group; five standard deviations of noise.
    names = ["ant", "bee", "cow"]
    for one, votes in zip(results.class_rows(found), (3000, 3000, 3000), strict=True):
        assert one.name in names
        assert abs(one.votes - votes) < 5 * one.noise
    assert np.abs(found.sets.voters - 3000).max() < 5 * found.stddev.max()
    page = (tmp_path / trust / "out" / "privacy.html").read_text()
    assert "labels of a record, at most" in page


def test_a_folder_of_one_label_goes_on_as_before(tmp_path):
    asked = Asked(config_of("local"), CLASSES, student="none")
    public = Public(rows_of(9, 90)[0])
    tell = lambda *line: None  # noqa: E731
    round_folder.prepare(tmp_path / "out", public, asked, tell)
    assert "labels_per_record" not in json.loads((tmp_path / "out/settings.json").read_text())
    several = replace(asked, labels_per_record=1)
    with pytest.raises(ValueError, match="others for labels_per_record"):
        round_folder.prepare(tmp_path / "out", public, several, tell)
    round_folder.prepare(tmp_path / "sets", public, several, tell)
    with pytest.raises(ValueError, match="others for labels_per_record"):
        round_folder.prepare(tmp_path / "sets", public, asked, tell)


def test_a_folder_of_an_earlier_version_goes_on(tmp_path):
    """It has attributes of the labeler's class, and no field that came later."""
    asked = Asked(config_of("local"), CLASSES, student="none")
    public = Public(rows_of(9, 90)[0])
    tell = lambda *line: None  # noqa: E731
    round_folder.prepare(tmp_path / "out", public, asked, tell)
    path = tmp_path / "out/settings.json"
    begun = json.loads(path.read_text())
    del begun["config"]["labels_per_record"]
    begun["config"] |= {"telling": {"num_neighbors": 2}, "clusters": True}
    path.write_text(json.dumps(begun))
    round_folder.prepare(tmp_path / "out", public, asked, tell)
    begun["config"]["num_neighbors"] += 1
    path.write_text(json.dumps(begun))
    with pytest.raises(ValueError, match="others for num_neighbors"):
        round_folder.prepare(tmp_path / "out", public, asked, tell)


def test_clients_read_masks_and_lists(tmp_path):
    round = a_round()
    mask = np.array([[True, False, True], [False] * 3])
    np.savez(tmp_path / "mask.npz", embeddings=np.ones((2, 2)), labels=mask)
    found = round.encoded(read_labels(tmp_path / "mask.npz")).ids
    np.testing.assert_array_equal(found, [[0, 2, 3], [-1, -1, 3]])
    lists = pa.table({"embeddings": [[1.0, 2.0]] * 3, "labels": [[2, 0], None, [1, 5, 1]]})
    pq.write_table(lists, tmp_path / "lists.parquet")
    found = round.encoded(read_labels(tmp_path / "lists.parquet")).ids
    assert found.tolist() == [[2, 0, 3], [-1, -1, 3], [1, -1, 3]]
    with pytest.raises(ValueError, match="mask or class numbers"):
        round.encoded(np.eye(3, dtype=int))


def test_test_images_have_one_label(tmp_path):
    images = np.zeros((2, 4, 4), np.uint8)
    np.savez(tmp_path / "public.npz", images=images)
    np.savez(tmp_path / "test.npz", images=images, labels=np.eye(2, dtype=bool))
    with pytest.raises(ValueError, match=r"labels \[n\] in test"):
        inputs.read_public(tmp_path / "public.npz", tmp_path / "test.npz")


def test_a_student_of_sets_is_refused_at_once(tmp_path):
    given = named_settings(
        settings_of.Serve,
        tmp_path / "public.npz",
        1.0,
        3,
        tmp_path / "out",
        "a,b",
        labels_per_record=2,
    )
    with pytest.raises(ValueError, match="student none"):
        settings_of.asked(replace(given, student="cnn"))
    assert settings_of.asked(given).labels_per_record == 2
    assert settings_of.settled(given, images=True).student == "none"
