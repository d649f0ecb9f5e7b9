"""Session: several releases under one cap, each known before it is made."""

import concurrent.futures
import threading
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import rknn_jax as rk
from rknn_jax.privacy.events import DiscreteLaplace
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import BudgetExceededError, Ledger, LedgerError, LedgerMismatchError

CLASSES = [0, 1, 2]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Public rows, private rows and their labels; the ledger lies in the current folder."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    labels = np.arange(240) % 3
    rows = 8 * np.eye(3, 4)[labels] + generator.normal(size=(240, 4))
    return rows[:60], rows[60:], labels[60:]


def settings(epsilon):
    return {"epsilon": epsilon, "classes": CLASSES, "n_queries": 3}


def released(epsilon):
    event = (DiscreteLaplace(2 / epsilon, 2),)
    return Guarantee(epsilon, 0.0, "replace-one", "central", event, sampler="release")


@pytest.mark.long
def test_an_offer_says_what_the_call_then_costs(data):
    public, private, labels = data
    with rk.Session("l.jsonl", epsilon=1) as session:
        assert session.left == (1, 0)
        offer = session.offer(public, private, **settings(0.4))
        assert (offer.affordable, offer.guarantee.epsilon) == (True, 0.4)
        assert offer.expected.noise > 0
        assert session.spent == (0, 0)
        assert not offer.guarantee.data_dependent
        labeler = session.label(public, private, labels, **settings(0.4))
        assert np.mean(labeler.labels_ == np.arange(60) % 3) > 0.9
        assert labeler.guarantee_ == offer.guarantee
        assert (session.spent.epsilon, session.left.epsilon) == (Fraction(2, 5), Fraction(3, 5))
        assert not session.offer(public, private, **settings(0.7)).affordable
        with pytest.raises(BudgetExceededError, match="left"):
            session.label(public, private, labels, **settings(0.7))
    with pytest.raises(LedgerError, match="ended"):
        session.label(public, private, labels, **settings(0.1))
    assert Ledger.open("l.jsonl").budget == (1, 0)


@pytest.mark.long
def test_a_session_caps_what_a_richer_ledger_allows_and_counts_every_charge(data):
    public, private, labels = data
    rk.Session("l.jsonl", epsilon=3).label(public, private, labels, **settings(1))
    ledger = Ledger.open("l.jsonl")
    with rk.Session("l.jsonl", epsilon=0.5) as session:
        assert session.left.epsilon == Fraction(1, 2)
        Ledger.open("l.jsonl", ledger.datasets[0].fingerprint).charge(released(0.4), "elsewhere")
        assert session.left.epsilon == Fraction(1, 10)
        with pytest.raises(BudgetExceededError):
            session.label(public, private, labels, **settings(0.2))
    assert ledger.spent.epsilon == Fraction(7, 5)


@pytest.mark.long
def test_threads_do_not_pass_the_cap_together(data):
    public, private, labels = data
    rk.Session("l.jsonl", epsilon=5).label(public, private, labels, **settings(0.1))
    Path("link.jsonl").symlink_to("l.jsonl")
    one, other = (rk.Session(name, epsilon=1) for name in ("l.jsonl", "link.jsonl"))
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        calls = [
            pool.submit(session.label, public, private, labels, **settings(0.6))
            for session in (one, one, other)
        ]
    refused = [call.exception() for call in calls if call.exception()]
    assert [type(one) for one in refused] == [BudgetExceededError] * 2
    assert Ledger.open("l.jsonl").spent.epsilon == Fraction(7, 10)


def test_threads_that_look_while_others_charge_see_the_ledger_of_the_session(tmp_path):
    ledger = Ledger.create(tmp_path / "l.jsonl", "0" * 64, 9, 0)
    session = rk.Session(ledger.path, epsilon=9)
    charged = threading.Event()

    def look():
        while not charged.is_set():
            assert session.left.epsilon <= 9

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        looks = [pool.submit(look) for _ in range(4)]
        for number in range(60):
            ledger.charge(released(0.01), f"{number}")
        charged.set()
        for one in looks:
            one.result()


def test_the_cap_is_asked_for_each_round_as_it_is_charged(data, monkeypatch):
    """Together, rounds of renyi accounting would be rounded up once, and are charged one by one."""
    public, private, labels = data
    asked, affords = [], rk.Session.affords

    def noted(session, *guarantees):
        asked.append([one.epsilon for one in guarantees])
        return affords(session, *guarantees)

    monkeypatch.setattr(rk.Session, "affords", noted)
    with rk.Session("l.jsonl", epsilon=1) as session:
        session.label(public, private, labels, rounds=2, **settings(0.6))
    charged = [entry.amount for entry in Ledger.open("l.jsonl").entries() if entry.kind == "spend"]
    assert asked == [[float(one.epsilon) for one in charged]]
    assert len(charged) == 2


@pytest.mark.long
def test_a_ledger_with_less_than_the_cap_decides(data):
    public, private, labels = data
    rk.Session("l.jsonl", epsilon=0.5).label(public, private, labels, **settings(0.4))
    with rk.Session("l.jsonl", epsilon=9) as session:
        assert session.left.epsilon == Fraction(1, 10)
        assert not session.offer(public, private, **settings(0.2)).affordable


def test_what_is_left_is_the_less_of_cap_and_ledger_in_epsilon_and_in_delta(tmp_path):
    Ledger.create(tmp_path / "l.jsonl", "sha256:0", 1, 1e-7)
    for cap, left in [((0.5, 1e-5), (0.5, 1e-7)), ((3, 1e-9), (1, 1e-9)), ((3, 1e-5), (1, 1e-7))]:
        session = rk.Session(tmp_path / "l.jsonl", epsilon=cap[0], delta=cap[1])
        assert session.spent == (0, 0), "of its cap, of which the ledger may have less"
        assert (float(session.left.epsilon), float(session.left.delta)) == left
        assert session.affords(released(left[0]))
        assert not session.affords(released(left[0] + 0.1))


@pytest.mark.long
def test_many_small_releases_share_a_session(data):
    public, private, labels = data
    with rk.Session("l.jsonl", epsilon=0.6, delta=1e-5, accounting="renyi") as session:
        session.label(public, private, labels, **settings(0.05))
        own = Ledger.open("l.jsonl", Ledger.open("l.jsonl").datasets[0].fingerprint)
        for _ in range(14):
            own.charge(released(0.05), "an equal release")
        assert session.affords(released(0.05)), "sixteen times 0.05 is more than 0.6"
    with pytest.raises(LedgerError, match="renyi"):
        rk.Session("l.jsonl", epsilon=1, accounting="sum")


@pytest.mark.long
def test_persons_are_protected_in_a_session_and_cost_a_ledger_of_their_own(data):
    public, private, labels = data
    persons = np.arange(len(labels)) // 3
    with rk.Session("l.jsonl", epsilon=1) as session:
        labeler = session.label(public, private, labels, person=persons, **settings(0.5))
        assert labeler.guarantee_.unit == "person"
        with pytest.raises(LedgerMismatchError):
            session.label(public, private, labels, **settings(0.1))


@pytest.mark.parametrize(
    ("wrong", "said"), [({"budget": 2}, "budget"), ({"ledger": "other"}, "ledger")]
)
def test_what_is_the_sessions_own_is_no_argument_of_a_call(data, wrong, said):
    public, private, labels = data
    with rk.Session("l.jsonl", epsilon=1) as session, pytest.raises(ValueError, match=said):
        session.label(public, private, labels, **settings(0.5), **wrong)


def test_a_session_that_may_spend_nothing_is_refused(data):
    with pytest.raises(LedgerError, match="0 < epsilon"):
        rk.Session("l.jsonl", epsilon=0)


@pytest.mark.parametrize("leaves", ["folder", "moved", "another", "earlier copy"])
def test_a_session_knows_its_ledger_again(data, tmp_path, monkeypatch, leaves):
    """A notebook changes its folder, or somebody moves the file: the cap was then whole again."""
    public, private, labels = data
    session = rk.Session("l.jsonl", epsilon=1)
    path = tmp_path / "l.jsonl"
    session.label(public, private, labels, **settings(0.1))
    before = path.read_bytes()
    session.label(public, private, labels, **settings(0.9))
    (tmp_path / "sub").mkdir()
    if leaves == "folder":
        monkeypatch.chdir(tmp_path / "sub")
        assert session.spent.epsilon == 1
        with pytest.raises(BudgetExceededError):
            session.label(public, private + 1, labels, **settings(1))
        assert not (tmp_path / "sub/l.jsonl").exists()
        return
    path.rename(tmp_path / "sub/l.jsonl")
    if leaves == "another":
        Ledger.create(path, "0" * 64, 1, 0)
    elif leaves == "earlier copy":
        path.write_bytes(before)
    got = "got none" if leaves == "moved" else "got another one, or an earlier copy"
    for asked in (
        lambda: session.spent,
        lambda: session.left,
        lambda: session.offer(public, private + 1, **settings(0.5)),
        lambda: session.label(public, private + 1, labels, **settings(0.5)),
    ):
        with pytest.raises(LedgerError, match=f"{got}; put it back"):
            asked()


def test_a_first_budget_beside_others_is_a_warning(data):
    public, private, labels = data
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rk.Session("l.jsonl", epsilon=1).label(public, private, labels, **settings(0.1))
    with pytest.warns(UserWarning, match="a new budget is for people of whom nothing was released"):
        rk.Session("m.jsonl", epsilon=1).label(public, private + 1, labels, **settings(0.1))


@pytest.mark.parametrize("value", [np.nan, 1e300, 1e-320, "public"])
def test_no_record_decides_by_a_warning_whether_labels_are_released(data, value):
    """A program may turn warnings into errors: a release was paid for and lost, or not made."""
    public, private, labels = data
    if value == "public":
        public = private
    else:
        private[5] = value
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")
        session = rk.Session("l.jsonl", epsilon=1)
        found = session.label(public, private, labels, **settings(1))
    assert len(found.labels_) == len(public)
    assert len([one for one in caught if "ell nobody" in str(one.message)]) == (value != 1e-320)


def test_a_paid_release_is_not_lost_with_its_ledger(data, monkeypatch):
    public, private, labels = data
    session = rk.Session("l.jsonl", epsilon=1)
    label = rk.ReverseKNNLabeler.label

    def moved(*given):
        label(*given)
        session.ledger.rename("m.jsonl")

    monkeypatch.setattr(rk.ReverseKNNLabeler, "label", moved)
    assert len(session.label(public, private, labels, **settings(0.5)).labels_) == len(public)
    with pytest.raises(LedgerError, match="put it back"):
        _ = session.left


def test_labels_that_a_session_loses_were_paid_for(data, monkeypatch):
    """Ctrl-C while the session looks at its ledger after the release, which nothing told."""
    public, private, labels = data
    session = rk.Session("l.jsonl", epsilon=3)
    session.label(public, private, labels, **settings(0.5))
    known = rk.Session._known

    def interrupted(self):
        if Ledger.open("l.jsonl").num_spends > 1:
            raise KeyboardInterrupt
        return known(self)

    monkeypatch.setattr(rk.Session, "_known", interrupted)
    with pytest.raises(KeyboardInterrupt) as error:
        session.label(public, private, labels, **settings(0.5))
    [note] = error.value.__notes__
    assert "did not reach the caller, and the spend stands" in note
