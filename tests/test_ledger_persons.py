"""A ledger of persons pays for the persons that it was made for, through every door."""

import numpy as np
import pandas as pd
import pytest

from rknn_jax import ReverseKNNLabeler, Session
from rknn_jax.cli import budget, classes
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger, LedgerMismatchError
from rknn_jax.release import label, planning
from rknn_jax.release.settings import Settings
from tests.conftest import crossed
from tests.options import named_settings

LEDGER = "pri.npz.ledger.jsonl"
NUM_RECORDS = 120
NAMED = "patient"
UNNAMED = ""


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    public = rng.normal(size=(60, 3)).astype(np.float32)
    private = rng.normal(size=(NUM_RECORDS, 3)).astype(np.float32)
    labels = (private[:, 0] > 0).astype(int)
    persons = {"patient": np.arange(NUM_RECORDS) // 20, "visit": np.arange(NUM_RECORDS) // 2}
    np.savez("pub.npz", embeddings=public)
    np.savez("pri.npz", embeddings=private, labels=labels, **persons)
    return public, private, labels, persons


def by_command(files, person):
    if not person:  # a file has no column without a name
        by_estimator(files, person)
        return
    asked = named_settings(
        Settings, "pub.npz", "pri.npz", 0.5, person=person, classes="2", budget=5, queries=4
    )
    plan = planning.prepare(asked)
    label.draw(plan, label.count(plan))


def by_estimator(files, person, **changes):
    public, private, labels, persons = files
    given = {"epsilon": 0.5, "classes": [0, 1], "n_queries": 4, "ledger": LEDGER, "budget": 5}
    whose = pd.Series(persons[person or "visit"], name=person or None)
    ReverseKNNLabeler(**(given | changes)).fit(public).label(private, labels, whose)


def by_session(files, person):
    public, private, labels, persons = files
    Session(LEDGER, epsilon=5).label(
        public,
        private,
        labels,
        epsilon=0.5,
        classes=[0, 1],
        n_queries=4,
        person=persons[person or "visit"],
        person_name=person or None,
    )


def by_classes(files, person):
    if not person:
        by_estimator(files, person)
    else:
        classes.run(
            named_settings(
                classes.SelectClasses,
                "pri.npz",
                0.5,
                1e-3,
                person=person,
                budget=5,
                budget_delta=0.1,
            )
        )


def by_charge(files, person):
    dataset = fingerprint(files[1])
    guarantee = Guarantee(
        0.5, 0.0, "replace-one", "central", (), unit="person", accountant="pure", sampler="release"
    )
    Ledger.open(LEDGER, dataset, person=person).charge(guarantee, "a release from Python")


DOORS = [by_command, by_estimator, by_session, by_classes, by_charge]


def spent():
    return Ledger.open(LEDGER).spent.epsilon


@crossed(door=DOORS, made_for=[NAMED, UNNAMED])
def test_no_door_charges_a_ledger_of_other_persons(files, door, made_for):
    budgets = {"budget": 5.0, "budget_delta": 0.1}
    by_estimator(files, made_for, **budgets)
    before = spent()
    others = {NAMED, UNNAMED, "visit"} - {made_for}
    for other in sorted(others):
        with pytest.raises(LedgerMismatchError, match="person"):
            door(files, other)
        assert spent() == before
    if door is by_session or (door is by_command and made_for):
        return  # these have another budget than the ledger that is there
    door(files, made_for)
    assert spent() > before


@pytest.mark.long
def test_the_estimator_takes_the_name_of_a_series_or_its_parameter(files):
    public, private, labels, persons = files
    visits = persons["visit"]
    by_estimator(files, "visit")
    for whose, name in (
        (visits, "visit"),
        (visits.tolist(), "visit"),
        (pd.DataFrame({"visit": visits}), None),
        (pd.Series(visits, name="visit"), "visit"),
    ):
        made = ReverseKNNLabeler(0.1, classes=[0, 1], n_queries=4, ledger=LEDGER, person_name=name)
        made.fit(public).label(private, labels, whose)
    with pytest.raises(ValueError, match="person_name='visit'"):
        made.set_params(person_name="patient").label(
            private, labels, pd.Series(visits, name="visit")
        )
    with pytest.raises(ValueError, match="Expected person to tell"):
        made.label(private, labels)
    with pytest.raises(LedgerMismatchError, match="person_name='visit'"):
        made.set_params(person_name=None).label(private, labels, visits)


def test_preview_refuses_other_persons_too(files):
    public, private, _, persons = files
    by_estimator(files, "patient")
    labeler = ReverseKNNLabeler(0.1, classes=[0, 1], n_queries=4, ledger=LEDGER).fit(public)
    with pytest.raises(LedgerMismatchError, match="patient"):
        labeler.preview(private, pd.Series(persons["visit"], name="visit"))


def test_a_ledger_adopts_no_records_under_other_persons(files):
    by_estimator(files, "patient")
    asked = named_settings(budget.Adopt, LEDGER, "pri.npz", "another export", person="visit")
    with pytest.raises(LedgerMismatchError, match="patient"):
        budget.adopt(asked)
