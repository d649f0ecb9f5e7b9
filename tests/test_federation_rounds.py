"""Several rounds of a federation: one budget and statement, in features that labels teach."""

import dataclasses
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from rknn_jax import discriminant
from rknn_jax._internal import disk
from rknn_jax.cli import federation
from rknn_jax.federation import client_roles, hosting, round_folder, round_sequence
from rknn_jax.federation.client import Client
from rknn_jax.federation.request import Asked, Public
from rknn_jax.federation.rounds import Round
from rknn_jax.federation.settings import Serve
from rknn_jax.labelers import rknn
from rknn_jax.labelers.prototypes import Prototypes
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.question import Before
from tests.options import named_settings, with_options
from tests.test_federation import QUERIES, a_client, a_round
from tests.test_federation_check import KilledError, a_federation, rows_of
from tests.test_federation_http import impatient, quick  # noqa: F401

FIRST = "1" * 64


def taught_by(seed, width=5):
    """Return a map that made-up labels teach, for rows of the clients' width."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(60, width)).astype(np.float32)
    labels = (rows[:, 0] > 0).astype(int) + (rows[:, 1] > 0)
    return discriminant.learned(rows, np.eye(3)[labels], "sqeuclidean")


def a_later_round(taught=None, after=FIRST, **fields):
    taught = taught or taught_by(0)
    first = a_round(**fields)
    return dataclasses.replace(first, queries=taught(QUERIES), taught=taught, after=after)


@pytest.mark.usefixtures("quick")
@pytest.mark.long
def test_two_rounds_share_one_budget_and_one_statement(tmp_path):
    card, found = a_federation(tmp_path, 2, 200, rounds=2, epsilon=3.0)
    out = tmp_path / "out"
    first = json.loads((out / "round-1/privacy.json").read_text())
    assert (first["guarantee"]["epsilon"], card["guarantee"]["epsilon"]) == (1, 3)
    assert card["rounds_before"] == first["guarantee"]
    assert "epsilon=1.0, delta=0.0 for the rounds before" in (out / "privacy.html").read_text()
    for number, one in enumerate(found):
        ledger = Ledger.open(tmp_path / f"R{number}.npz.ledger.jsonl")
        spends = [entry.amount.epsilon for entry in ledger.entries() if entry.kind == "spend"]
        assert spends == [1, 2]
        assert one["exit_status"] == 0
    last = Round.of((out / "question.bin").read_bytes())
    assert last.after == first["round"]
    labels = np.load(out / "labels.npz")
    assert np.mean(labels["label"] == rows_of(99, 60)[1]) > 0.9
    own, before = (
        np.load(folder / "labels.npz")["probability"] for folder in (out, out / "round-1")
    )
    assert not np.allclose(own, before)
    assert card["measured"] is not None
    assert first["measured"] is None
    told = ["agree with the labels" in " ".join(one["released"]) for one in (first, card)]
    assert told == [False, True], "the last labels alone were sent to be checked"
    assert "labels of the last round alone" in (out / "round-1/privacy.html").read_text()
    assert not list(tmp_path.glob("**/*.roles")), "a key of roles outlived the last round"


@pytest.mark.long
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("trust", ["local", "central", "shuffle"])
def test_a_server_killed_between_rounds_goes_on_and_nobody_pays_twice(trust, tmp_path, monkeypatch):
    killed = []

    def dying(served):
        def die_once(desk, *arguments, **named):
            if desk.round.after and len(killed) < 2:
                killed.append(desk.round.id)
                raise KilledError
            return served(desk, *arguments, **named)

        return die_once

    monkeypatch.setattr(hosting, "collect", dying(hosting.collect))
    monkeypatch.setattr(hosting, "sum_up", dying(hosting.sum_up))
    given = {} if trust == "local" else {"delta": 1e-3}
    given |= {"honest": 200} if trust == "shuffle" else {}
    card, found = a_federation(
        tmp_path, 3, 300, trust=trust, rounds=2, check_share=0.0, epsilon=6.0, **given
    )
    assert len(killed) == 2
    assert killed[0] == killed[1], "the same question is asked again"
    assert {one["ledger"]["spent"]["epsilon"] for one in found} == {6}
    assert card["guarantee"]["epsilon"] <= 6, "noise of one kind composes to less than the sum"
    assert card["guarantee"]["delta"] <= given.get("delta", 0.0)
    page = (tmp_path / "out/privacy.html").read_text()
    assert ("those of the rounds before add up with it" in page) == (trust == "shuffle")
    left = (tmp_path / "out/round-1/answers.bin").exists()
    assert left == (trust == "local"), "messages that were promised a shuffle are removed"


def test_a_record_says_the_same_beside_any_others(tmp_path):
    """The map treats each record alone: cells are the same by themselves and in any order."""
    round = a_later_round()
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(130, 5)).astype(np.float32)
    rows[7] = np.nan
    rows[9] = 1e30
    labels = rng.integers(0, 3, 130).astype(np.int32)

    def told(chosen):
        client = Client(rows[chosen], labels[chosen], None, tmp_path)
        return client._contribution(round)  # noqa: SLF001

    every = told(np.arange(130))
    assert (every[[7, 9]] == -1).all()
    order = rng.permutation(130)
    np.testing.assert_array_equal(told(order), every[order])
    for size in (1, 2, 65):
        np.testing.assert_array_equal(told(np.arange(size)), every[:size])


def test_who_votes_in_a_round_votes_in_the_next(tmp_path):
    client = a_client(tmp_path, records=64, budget=9)
    first = a_round(check_share=0.5)
    disk.make_folder(client.folder)
    votes = client_roles.asked(client.folder, first, client.inputs, client.labels, paid=False)[0]
    later = a_later_round(after=first.id, check_share=0.5)
    again = client_roles.asked(client.folder, later, client.inputs, client.labels, paid=False)[0]
    np.testing.assert_array_equal(votes, again)
    assert 0 < votes.sum() < 64
    other = a_later_round(after=FIRST, check_share=0.5)
    assert (
        client_roles.asked(client.folder, other, client.inputs, client.labels, paid=False)[0]
        != votes
    ).any()


def test_a_client_that_missed_rounds_keeps_its_roles(tmp_path):
    """Roles are those of the first round that a client was asked in, whichever that is."""
    client = a_client(tmp_path, records=64, budget=9)
    disk.make_folder(client.folder)
    second, fourth = (a_later_round(taught_by(i), check_share=0.5) for i in (1, 2))
    votes = client_roles.asked(client.folder, second, client.inputs, client.labels, paid=False)[0]
    again = client_roles.asked(client.folder, fourth, client.inputs, client.labels, paid=False)[0]
    np.testing.assert_array_equal(votes, again)


def test_a_later_round_tells_nothing_of_changed_records(tmp_path):
    """A refusal would say, at no cost, that a record has changed since the first round."""
    client = a_client(tmp_path, records=64, budget=9)
    disk.make_folder(client.folder)
    first = a_round(check_share=0.5)
    votes = client_roles.asked(client.folder, first, client.inputs, client.labels, paid=False)[0]
    later = a_later_round(after=first.id, check_share=0.5)
    changed = np.concatenate([client.inputs + np.eye(64, 5, dtype=np.float32), client.inputs[:2]])
    again = client_roles.asked(client.folder, later, changed, client.labels, paid=False)[0]
    np.testing.assert_array_equal(again[:64], votes)  # none checks who has voted
    # The first round is still about the records that it was drawn for.
    assert (
        client_roles.asked(client.folder, first, client.inputs, client.labels, paid=True)[0]
        is not None
    )


def test_work_of_a_clients_round_does_not_depend_on_its_number_of_records():
    later = a_later_round(unit="client", records_per_client=1)
    assert later.work(10) == later.work(10_000)


WRONG = {
    "no id": ({"after": "1" * 63}, "id of a round"),
    "no text": ({"after": 1}, "id of a round"),
    "no map": ({"taught": 3.0}, "map of features"),
    "a representation": ({"taught": QUERIES}, "map of features"),
    "another width": ({"queries": QUERIES}, "features of the queries"),
}
ARRAYS = {
    "float64": {"mean": np.zeros(5)},
    "two means": {"mean": np.zeros((5, 1), np.float32)},
    "not finite": {"mean": np.full(5, np.nan, np.float32)},
    "huge": {"directions": np.full((5, 2), 1e38, np.float32)},
    "a vector": {"kept": np.zeros(5, np.float32)},
    "nothing": {"mean": np.zeros(0, np.float32)},
    "a list": {"mean": [np.float32(0)] * 5},
    "one direction": {"directions": np.zeros(10, np.float32)},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_later_round_of_a_hostile_server_is_refused(wrong):
    fields, words = WRONG[wrong]
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(a_later_round(), **fields)


@pytest.mark.parametrize("wrong", ARRAYS)
def test_a_map_of_other_arrays_is_refused(wrong):
    taught = dataclasses.replace(taught_by(0), **ARRAYS[wrong])
    with pytest.raises(ValueError, match="float32|at most"):
        dataclasses.replace(a_later_round(), taught=taught)


def test_a_later_round_travels_and_a_first_one_has_its_former_bytes():
    later = a_later_round()
    again = Round.of(later.data)
    assert (again.id, again.after, again.width) == (later.id, FIRST, 5)
    np.testing.assert_array_equal(again.mapped(QUERIES), later.queries)
    assert b"taught" not in a_round().data
    assert b"after" not in a_round().data


def test_a_large_map_counts_as_work():
    """A map is as much work as its numbers, so that a client's bound holds for it."""
    wide = taught_by(1)
    assert a_later_round(wide).work(100) == a_round().work(100) + 100 * wide.directions.size


@pytest.mark.parametrize(
    "wrong",
    [
        {"collect_only": True},
        {"merge": (Path("a"), Path("b"))},
        {"question": Path("a")},
        {"labels_per_record": 2},
    ],
)
def test_rounds_that_cannot_follow_each_other_are_refused(wrong, tmp_path):
    np.savez(tmp_path / "public.npz", embeddings=rows_of(1, 9)[0])
    settings = named_settings(
        Serve, tmp_path / "public.npz", 1.0, 1, tmp_path / "out", "3", rounds=2, **wrong
    )
    with pytest.raises(ValueError, match="--rounds 2"):
        federation.serve(settings)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_other_rounds_is_refused(tmp_path):
    """Neither files of something else, nor a finished first round of another epsilon."""
    np.savez(tmp_path / "public.npz", embeddings=rows_of(1, 9)[0])
    out = tmp_path / "out"
    settings = named_settings(Serve, tmp_path / "public.npz", 1.0, 1, out, "3", rounds=2)
    out.mkdir()
    (out / "notes.txt").touch()
    done = tmp_path / "done"
    done.mkdir()
    (done / "over.json").write_text("{}")
    with pytest.raises(ValueError, match="a finished one"):
        federation.serve(dataclasses.replace(settings, out=done))
    assert not (done / "round-1").exists(), "nobody is asked"
    with pytest.raises(ValueError, match="other files"):
        federation.serve(settings)
    asked = Asked(rknn.ReverseKNN(1.0, mechanism="collision", trust="local"), ("a", "b", "c"))
    asked = dataclasses.replace(asked, student="none")
    first, _ = round_sequence.of(tmp_path / "other", asked, 2)
    public = Public(rows_of(1, 9)[0])
    round, _ = round_folder.prepare(first.folder, public, first.asked, lambda *line: None)
    assert round_sequence.finished(first) is None
    round_folder.end(first.folder, round)
    third, *_ = round_sequence.of(tmp_path / "other", asked, 3)
    with pytest.raises(ValueError, match="got others for delta, epsilon"):
        round_sequence.finished(third)


@pytest.mark.parametrize("trust", ["local", "central"])
def test_the_budget_in_the_clients_command_is_for_all_rounds(trust, tmp_path):
    given = {} if trust == "local" else {"honest": 2, "delta": 1e-5}
    asked = Asked(rknn.ReverseKNN(1.1, given.get("delta", 0.0)), ("a", "b"), student="none")
    steps = round_sequence.of(tmp_path, asked, 3)
    for name in ("epsilon", "delta"):
        every = [Fraction(repr(getattr(step.asked.config, name))) for step in steps]
        assert sum(every) <= Fraction(repr(getattr(asked.config, name)))
    assert [step.folder.name for step in steps[:-1]] == ["round-1", "round-2"]
    assert steps[-1].folder == tmp_path


@pytest.mark.parametrize("labeler", [rknn.ReverseKNN(1.0, metric="cosine"), Prototypes(1.0, 1e-5)])
def test_a_round_after_another_asks_in_features_that_it_taught(labeler, tmp_path):
    rows, labels = rows_of(5, 80)
    soft = (0.9 * np.eye(3)[labels] + 0.03).astype(np.float32)
    asked = Asked(
        dataclasses.replace(labeler, trust="central", mechanism="binomial")
        if isinstance(labeler, rknn.ReverseKNN)
        else labeler,
        ("a", "b", "c"),
        honest=3,
        student="none",
    )
    tell = lambda *line: None  # noqa: E731
    first, _ = round_folder.prepare(tmp_path / "first", Public(rows), asked, tell)
    before = Before(soft, Guarantee(1.0, 0.0, "replace-one", trust="aggregate", events=()))
    public = Public(rows, former=round_sequence.Former(first, before, 3))
    second, queries = round_folder.prepare(tmp_path / "second", public, asked, tell)
    expected = discriminant.learned(rows, soft, labeler.metric)
    np.testing.assert_array_equal(second.mapped(rows), expected(rows))
    assert second.labeler.metric == "sqeuclidean"
    assert second.after == first.id
    assert second.width == rows.shape[1]
    again, kept = round_folder.prepare(tmp_path / "second", public, asked, tell)
    assert again.id == second.id
    np.testing.assert_array_equal(kept.cluster, queries.cluster)


@pytest.mark.usefixtures("quick")
@pytest.mark.long
def test_a_client_whose_budget_ends_after_the_first_round_is_told(tmp_path, capsys):
    joined = federation.join

    def poor(settings):
        return joined(with_options(settings, budget=1.5, wait=2.0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federation, "join", poor)
        patch.setattr(round_folder, "closes_at", closes_soon)
        with pytest.raises(ValueError, match="quorum"):
            a_federation(tmp_path, 2, 200, rounds=2, epsilon=3.0, check_share=0.0)
    assert (tmp_path / "out/round-1/labels.npz").exists()
    assert not (tmp_path / "out/labels.npz").exists()
    assert "has epsilon=0.5" in capsys.readouterr().err


CLOSES_AT = round_folder.closes_at


def closes_soon(folder, deadline):
    return CLOSES_AT(folder, deadline if folder.name == "round-1" else 2.0)
