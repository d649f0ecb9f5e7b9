"""Audits of labelers whose unit is a person: the canary is a person with eight of 24 records."""

import jax
import numpy as np
import pytest

from rknn_jax.audit import games_labeler, verdict
from rknn_jax.cli import audit, audit_subjects
from rknn_jax.cli.audit_settings import Audit
from rknn_jax.labelers import _persons

RUNS = {"rknn": 400, "noisy_sgd": 600}
TELLING = {"rknn": {"epsilon": 0.5, "num_neighbors": 1, "smoothing": "none"}}


def one_game(name):
    """One game of a labeler: the canary has the pictures of one query, or those of another."""
    task = games_labeler.small_task()
    given = {"epsilon": 1.0, "delta": 1e-5, "unit": "person"} | TELLING.get(name, {})
    labeler = games_labeler.telling(name, **given)
    played, guarantee = games_labeler.of_labeler(task, *games_labeler.small_queries(task), labeler)
    return played[1:2], guarantee


def audited(name):
    played, guarantee = one_game(name)
    assert guarantee.unit == "person"
    return verdict.audit(jax.random.key(0), played, guarantee, RUNS[name], 0.9999)


def take_rows_for_persons(monkeypatch):
    monkeypatch.setattr(_persons, "numbered", lambda records: np.arange(len(records.labels)))
    monkeypatch.setattr(_persons, "num_persons", lambda records: len(records.labels))


@pytest.mark.slow  # tests/contracts/test_persons.py finds the same bug by search
@pytest.mark.parametrize("name", RUNS)
def test_a_labeler_that_protects_rows_and_promises_persons_is_found(name, monkeypatch):
    assert not audited(name).broken
    take_rows_for_persons(monkeypatch)
    assert audited(name).broken


def test_the_canary_has_all_records_of_its_person():
    private = games_labeler.small_task().private
    mine = private.clients == private.clients[-1]
    assert mine.sum() == games_labeler.RECORDS_OF_LAST
    image = np.full_like(private.images[0], 7)
    replaced = games_labeler.with_record(private, image, 2, "person")
    assert (replaced.images[mine] == 7).all()
    assert (replaced.labels[mine] == 2).all()
    np.testing.assert_array_equal(replaced.images[~mine], private.images[~mine])
    without = games_labeler.without_canary(private, "person")
    np.testing.assert_array_equal(without.clients, private.clients[~mine])
    assert len(games_labeler.without_canary(private).labels) == len(private.labels) - 1


def test_the_command_asks_for_a_labeler():
    settings = Audit(epsilon=1.0, labeler="rknn", unit="person")
    assert audit_subjects.configured(settings, 1.0).unit == "person"
    with pytest.raises(ValueError, match="--labeler without --one-run with --unit person"):
        audit.run(Audit(epsilon=1.0, mechanism="collision", unit="person"))
