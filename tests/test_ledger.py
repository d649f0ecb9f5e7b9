"""The ledger under races, kills, torn and changed files: never overspent, never forgotten."""

import json
import os
import random
import resource
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rknn_jax
from rknn_jax.privacy import ledger_file, ledger_summary
from rknn_jax.privacy.accounting import compose
from rknn_jax.privacy.events import DiscreteLaplace
from rknn_jax.privacy.fingerprints import Digest, fingerprint
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import (
    BudgetExceededError,
    Ledger,
    LedgerCorruptError,
    LedgerError,
    LedgerMismatchError,
)
from rknn_jax.privacy.ledger_lines import DataSet

DATA = "sha256:of-some-records"


def released(epsilon=0.1, delta=0.0, **fields):
    return Guarantee(
        epsilon,
        delta,
        "replace-one",
        "central",
        (DiscreteLaplace(2 / epsilon, 2),),
        **{"sampler": "release"} | fields,
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "hospital.ledger"


@pytest.fixture
def ledger(path):
    return Ledger.create(path, DATA, 1)


def test_ten_tenths_are_one_and_nothing_is_left(ledger, path):
    entries = [ledger.charge(released(), f"round {i}") for i in range(10)]
    assert ledger.spent == (1, 0)
    assert ledger.remaining == (0, 0)
    assert ledger.budget == (1, 0)
    assert list(ledger.entries()[1:]) == entries
    with pytest.raises(
        BudgetExceededError,
        match=r"costs epsilon=1e-09.*has epsilon=0\.0, delta=0\.0 left of epsilon=1\.0"
        r".*rknn budget raise .* --epsilon 1.00001 --reason",
    ):
        ledger.charge(released(1e-9), "one too many")
    assert Ledger.open(path, DATA).spent == (1, 0)


def test_an_entry_keeps_what_was_released_and_why_so_that_costs_compose_tightly(ledger):
    guarantee = released(np.float32(0.25), unit="record", accountant="discrete Laplace")
    entry = ledger.charge(guarantee, "labels for the März paper")
    assert entry.guarantee == guarantee
    assert (entry.kind, entry.purpose, entry.amount) == (
        "spend",
        "labels for the März paper",
        (Fraction(1, 4), 0),
    )
    assert ledger.entries()[1] == entry
    assert ledger.head == entry.hash
    assert (
        compose([entry.guarantee for entry in ledger.entries() if entry.guarantee]).epsilon == 0.25
    )


@pytest.mark.parametrize(
    "budget",
    [0.3, "0.3", "3/10", Decimal("0.3"), Fraction(3, 10), np.float64(0.3), np.float32(0.3)],
)
def test_amounts_are_read_exactly_and_floats_by_their_shortest_decimal(path, budget):
    ledger = Ledger.create(path, DATA, budget, 1e-5)
    assert ledger.budget == (Fraction(3, 10), Fraction(1, 100_000))
    for _ in range(3):
        ledger.charge(released(), "a third")
    assert ledger.remaining.epsilon == 0


@pytest.mark.long
@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0, 1, 5])), max_size=12))
def test_spent_is_the_exact_sum_of_the_accepted_and_never_above_the_budget(
    tmp_path_factory, charges
):
    ledger = Ledger.create(tmp_path_factory.mktemp("ledger") / "file", DATA, 1, "1e-5")
    accepted = [Fraction(), Fraction()]
    for percent, millionths in charges:
        cost = Fraction(percent, 100), Fraction(millionths, 10**6)
        fits = accepted[0] + cost[0] <= 1 and accepted[1] + cost[1] <= Fraction(1, 10**5)
        try:
            ledger.charge(released(percent / 100, millionths / 10**6), "some")
            assert fits
            accepted = [accepted[0] + cost[0], accepted[1] + cost[1]]
        except BudgetExceededError:
            assert not fits
        assert ledger.spent == tuple(accepted)
    assert ledger.remaining == (1 - accepted[0], Fraction(1, 10**5) - accepted[1])


def test_delta_is_a_budget_too(path):
    ledger = Ledger.create(path, DATA, 1, 1e-5)
    ledger.charge(released(0.1, 1e-5), "all of delta")
    with pytest.raises(BudgetExceededError, match="delta=1e-06"):
        ledger.charge(released(0.1, 1e-6), "no delta left")
    ledger.charge(released(0.1), "pure still goes")


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_an_epsilon_that_depends_on_private_data_is_never_charged(tmp_path, delta):
    """As PATE's, each with a delta."""
    rich = Ledger.create(tmp_path / "rich.jsonl", "sha256:a", 9, 0.1)
    with pytest.raises(LedgerError, match="does not depend on private data"):
        rich.charge(released(0.05, delta, data_dependent=True), "refused")
    assert rich.num_spends == 0


def test_a_refused_charge_leaves_every_byte(ledger, path):
    ledger.charge(released(0.9), "most")
    with path.open("ab") as file:
        file.write(b'{"delta":"0","epsilon":"1/1000","guarantee":{')  # not even this is tidied up
    before = path.read_bytes()
    refused = [
        released(0.2),
        released(unit="client"),
        replace(released(), relation="add-remove"),
        released(sampler="simulation"),
    ]
    refused += [released(0.05, data_dependent=True), released(0.05, 1e-9)]
    for guarantee in refused:
        with pytest.raises(LedgerError):
            ledger.charge(guarantee, "refused")
    with pytest.raises(LedgerError, match="at least epsilon=0.901, delta=0.0,"):
        ledger.raise_budget(0.8, 0, "less than was spent")
    with pytest.raises(LedgerMismatchError):
        Ledger(path, "sha256:another").charge(released(0.05), "refused")
    assert ledger.spent == (Fraction(901, 1000), 0)
    assert path.read_bytes() == before


@pytest.mark.parametrize("epsilon", [0.0, 9e-10, float("inf")])
def test_what_costs_nothing_or_everything_is_not_charged(ledger, epsilon):
    free = replace(released(), epsilon=epsilon)
    with pytest.raises(LedgerError, match="epsilon"):
        ledger.charge(free, "refused")
    assert ledger.spent == (0, 0)


def test_a_ledger_keeps_one_relation_and_one_unit(path):
    ledger = Ledger.create(path, DATA, 1, relation="add-remove", unit="client")
    ledger.charge(replace(released(unit="client"), relation="add-remove"), "right")
    # Whoever asks first, as a client does before the others wait for it, is told the same.
    for ask in (ledger.affords, lambda guarantee: ledger.charge(guarantee, "wrong")):
        with pytest.raises(LedgerMismatchError, match="relation='add-remove'"):
            ask(released(unit="client"))
        with pytest.raises(LedgerMismatchError, match="unit='client'"):
            ask(replace(released(), relation="add-remove"))


def test_another_data_set_is_refused_and_a_look_needs_none(ledger, path):
    with pytest.raises(LedgerMismatchError, match="ledger of another data set"):
        Ledger.open(path, "sha256:another")
    look = Ledger.open(path)
    assert look.budget == (1, 0)
    with pytest.raises(LedgerMismatchError, match="opened without a data set"):
        look.charge(released(), "of what?")


def test_a_delta_that_stays_is_the_one_under_the_lock(ledger, path):
    """An owner withdraws it while another raise, which names epsilon alone, waits for the file."""
    ledger.raise_budget(1, 1e-5, "decided")
    waiting = Ledger.open(path)
    assert waiting.budget.delta
    ledger.raise_budget(1, 0, "withdrawn")
    waiting.raise_budget(2, None, "more epsilon")
    assert ledger.budget == (2, 0)


def test_the_budget_is_raised_on_the_record_and_never_below_what_was_spent(ledger):
    ledger.charge(released(1.0), "all")
    entry = ledger.raise_budget("1.5", 1e-6, "the ethics board agreed on 3 March")
    assert (entry.kind, entry.purpose) == ("budget", "the ethics board agreed on 3 March")
    assert ledger.budget == (Fraction(3, 2), Fraction(1, 10**6))
    ledger.charge(released(0.25, 1e-6), "more")
    ledger.raise_budget(1.25, None, "no more than that")
    assert ledger.remaining == (0, 0)
    for budget, reason in (((1.2, 1e-6), "below"), ((1.5, 0), "below"), ((2, 0.1), " ")):
        with pytest.raises(LedgerError, match=r"at least|reason"):
            ledger.raise_budget(*budget, reason)


@pytest.mark.parametrize(
    "amount", [0, -1, float("nan"), float("inf"), "1e400", "much", "1/0", None, True]
)
def test_a_budget_that_is_no_amount_is_refused_and_makes_no_file(path, amount):
    with pytest.raises(LedgerError, match="epsilon"):
        Ledger.create(path, DATA, amount)
    with pytest.raises(LedgerError, match="delta"):
        Ledger.create(path, DATA, 1, -1 if amount == 0 else amount if amount != -1 else 1)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("many", ["1." + "1" * 450, "1e-450", Fraction(10**5000 + 1, 10**5000)])
def test_an_amount_that_a_ledger_could_not_read_again_is_not_written(tmp_path, ledger, many):
    before = ledger.path.read_bytes()
    with pytest.raises(LedgerError, match="at most 400 digits each.*nothing was written"):
        ledger.raise_budget(many, None, "more digits than a line may have")
    assert ledger.path.read_bytes() == before
    with pytest.raises(LedgerError, match="at most 400 digits"):
        Ledger.create(tmp_path / "new.jsonl", DATA, many)
    assert not (tmp_path / "new.jsonl").exists()
    assert ledger.affords(released(0.1))


def test_what_a_ledger_affords_counts_all_releases_before(ledger):
    for number in range(2):
        ledger.charge(released(0.4), f"round {number}")
    assert ledger.affords(released(0.2))
    assert not ledger.affords(released(0.21))


def test_the_same_data_are_adopted_once_and_related_data_need_no_flag(path):
    ledger = Ledger.create(path, DATA, 1)
    related = DataSet("sha256:the-same-grown", 4, (DATA, "sha256:new"))
    first = ledger.adopt(related, "one more file")
    assert ledger.adopt(related, "again") == first
    with pytest.raises(LedgerMismatchError, match="share neither"):
        ledger.adopt(DataSet("sha256:others", 9), "no relation")
    ledger.adopt(DataSet("sha256:others", 9), "embedded anew", unrelated=True)


# Files and folders


def test_an_existing_file_is_never_replaced(ledger, path):
    ledger.charge(released(), "one")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(path, DATA, 100)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_no_ledger_and_is_not_waited_for(kind, path):
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    ledger = Ledger(path, DATA)
    for use in (
        lambda: Ledger.open(path),
        lambda: Ledger.create(path, DATA, 1),
        lambda: ledger.charge(released(), "a release"),
        lambda: ledger.repair("it was a pipe"),
    ):
        with pytest.raises(LedgerError, match="which is a pipe or a device"):
            use()


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for folder in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(LedgerError, match="could not be created"):
            Ledger.create(folder / "ledger", DATA, 1)
        with pytest.raises(LedgerError, match="could not be read"):
            Ledger.open(folder / "ledger", DATA)
    with pytest.raises(LedgerError, match="could not be read"):
        Ledger.open(tmp_path, DATA)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_without_permission_nothing_is_charged(ledger, path):
    path.chmod(0o400)
    with pytest.raises(LedgerError, match="could not be written"):
        ledger.charge(released(), "refused")
    path.parent.chmod(0o500)
    with pytest.raises(LedgerError, match="could not be created"):
        Ledger.create(path.parent / "other", DATA, 1)
    path.parent.chmod(0o700)
    assert ledger.spent == (0, 0)


def test_a_disk_that_fills_up_in_the_middle_of_a_line_leaves_the_ledger_as_it_was(ledger, path):
    ledger.charge(released(), "one")
    before = path.read_bytes()
    (soft, hard) = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (len(before) + 50, hard)
    )  # a write beyond stops short, the next one fails
    try:
        with pytest.raises(LedgerError, match="nothing was charged"):
            ledger.charge(released(), "does not fit")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    ledger.charge(released(), "fits again")
    assert ledger.spent == (Fraction(1, 5), 0)


def test_a_line_is_on_disk_before_the_charge_returns(ledger, path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor)))
    ledger.charge(released(), "one")
    # The name first, in case its maker was stopped before it was on disk.
    assert [one.st_ino for one in synced] == [path.parent.stat().st_ino, path.stat().st_ino]
    assert synced[1].st_size == path.stat().st_size
    ledger.charge(released(), "two")
    assert [one.st_ino for one in synced[2:]] == [path.stat().st_ino]
    Ledger.create(path.with_name("other"), DATA, 1)
    assert len(synced) == 5  # its bytes, and the folder that names it


def test_an_error_when_a_ledger_is_closed_does_not_deny_the_charge(ledger, monkeypatch):
    class Remote(ledger_file.FileIO):
        """File of a server whose connection is lost once everything is on its disk."""

        def close(self):
            super().close()
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as lost:
        lost.setattr(ledger_file, "FileIO", Remote)
        assert ledger.charge(released(), "one").kind == "spend"
    assert ledger.num_spends == 1


# Torn and changed files


@pytest.mark.long
def test_a_change_of_any_byte_refuses_all_spending(ledger, path):
    ledger.charge(released(), "one")
    ledger.charge(released(), "two")
    sound = path.read_bytes()
    flip = random.Random(0)
    for position in range(len(sound)):
        changed = bytearray(sound)
        changed[position] ^= 1 << flip.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(LedgerCorruptError, match="Nothing can be spent"):
            ledger.charge(released(0.01), "refused")
        assert path.read_bytes() == changed


def test_lines_that_were_removed_doubled_or_moved_refuse_all_spending(ledger, path):
    for i in range(4):
        ledger.charge(released(), str(i))
    create, *spends = path.read_bytes().splitlines(keepends=True)
    other = Ledger.create(path.with_name("other"), DATA, 100)
    other.charge(released(), "0")
    foreign = path.with_name("other").read_bytes().splitlines(keepends=True)
    orders = [
        [create, *spends[1:]],
        [create, spends[0], *spends],
        [create, *spends[::-1]],
        spends,
        [create, foreign[1]],
        [foreign[0], *spends],
    ]
    for lines in orders:
        path.write_bytes(b"".join(lines))
        with pytest.raises(LedgerCorruptError):
            ledger.charge(released(0.01), "refused")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"epsilon,delta\n",
        b'{"kind": "create"}\n',
        b"\x89PNG\r\n\x1a\n",
        b"{}",
        b'{"kind',
    ],
)
def test_a_file_that_is_no_ledger_is_refused_and_left_alone(path, content):
    path.write_bytes(content)
    with pytest.raises(LedgerCorruptError, match="hospital.ledger"):
        Ledger.open(path, DATA)
    with pytest.raises(LedgerCorruptError):
        Ledger(path, DATA).charge(released(), "refused")
    assert path.read_bytes() == content


def test_a_ledger_of_another_format_is_refused(ledger, path, monkeypatch):
    monkeypatch.setattr("rknn_jax.privacy.ledger_lines.FORMAT", "rknn-jax privacy ledger 2")
    with pytest.raises(LedgerCorruptError, match="does not begin"):
        Ledger.open(path, DATA)


def spend(ledger):
    ledger.charge(released(), "another")


CHANGES = {
    "spend": spend,
    "summary": spend,
    "drawn": lambda ledger: ledger.mark_drawn("one", 64 * "0"),
    "budget": lambda ledger: ledger.raise_budget(10, 0, "a reason"),
    "adopt": lambda ledger: ledger.adopt(DataSet("sha256:1", 5, ()), "a reason", unrelated=True),
    "repair": lambda ledger: ledger.repair("a reason"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_no_line_can_be_guessed_from_the_line_before(kind, path, monkeypatch):
    """Both heads may be published, and a reader may know all that the line between says.

    So the same line, after the same lines, has another head each time: its salt is new.
    """
    if kind == "summary":
        monkeypatch.setattr(ledger_summary, "EVERY", 2)
    Ledger.create(path, DATA, 9).charge(released(), "one")
    if kind == "repair":
        path.write_bytes(path.read_bytes() + b'{"delta":"0"')
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    lines = []
    for one in (path, copy):
        CHANGES[kind](Ledger.open(one, DATA))
        lines.append(json.loads(one.read_bytes().splitlines()[-1]))
    assert [line["kind"] for line in lines] == [kind, kind]
    assert [len(line["salt"]) for line in lines] == [32, 32]
    assert lines[0]["salt"] != lines[1]["salt"]
    assert lines[0]["hash"] != lines[1]["hash"]


def test_the_head_commits_to_the_history_and_says_nothing_of_the_data(path):
    ledgers = [Ledger.create(path.with_name(name), DATA, 1) for name in "ab"]
    assert ledgers[0].head != ledgers[1].head  # salted: nobody can confirm a guess of the records
    before = ledgers[0].head
    ledgers[0].charge(released(), "one")
    assert ledgers[0].head != before
    assert len(before) == 64


# Processes

COMMON = """
import json, os, random, signal, sys, time
from rknn_jax.privacy.events import DiscreteLaplace, Pure
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import BudgetExceededError, Ledger
PATH, DATA = sys.argv[1:]
def release(percent):
    events = (Pure(percent / 100),)
    return Guarantee(percent / 100, 0.0, "replace-one", "central", events, sampler="release")
def fork(work):
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    return child
"""

RACE = """
Ledger.create(PATH, DATA, "0.75")
def charge_a_hundred():
    ledger, accepted = Ledger.open(PATH, DATA), 0
    for _ in range(100):
        try:
            ledger.charge(
                Guarantee(0.005, 0.0, "replace-one", "central", (), sampler="release"),
                str(os.getpid()),
            )
            accepted += 1
        except BudgetExceededError:
            pass
    os.write(write, f"{accepted}\\n".encode())
read, write = os.pipe()
children = [fork(charge_a_hundred), fork(charge_a_hundred)]
for child in children:
    assert os.waitpid(child, 0)[1] == 0
print(json.dumps([int(n) for n in os.read(read, 100).split()]))
"""

KILLS = """
Ledger.create(PATH, DATA, 4)
delays = random.Random(0)
read, write = os.pipe()
def charge_for_ever():
    ledger = Ledger.open(PATH, DATA)
    while True:
        try:
            ledger.charge(release(1), "killed at some instant")
        except BudgetExceededError:
            os._exit(0)
        os.write(write, b".")  # acknowledged: a release may follow
acknowledged = 0
for _ in range(25):
    child = fork(charge_for_ever)
    for _ in range(delays.randrange(5)):  # so that a slow machine is killed at work too
        acknowledged += len(os.read(read, 1))
    time.sleep(delays.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
os.close(write)
rest = iter(lambda: os.read(read, 65536), b"")
print(json.dumps(acknowledged + sum(len(chunk) for chunk in rest)))
"""

CREATES = """
delays, half, made = random.Random(0), 0, 0
for i in range(25):
    path = f"{PATH}.{i}"
    child = fork(lambda: [Ledger.create(f"{path}.{j}", DATA, 1) for j in range(200)])
    time.sleep(delays.uniform(0.001, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for j in range(200):
        if os.path.exists(f"{path}.{j}"):
            Ledger.open(f"{path}.{j}", DATA)  # raises on half a header
            made += 1
print(json.dumps(made))
"""


def run(script, path):
    """Run a script that forks from one thread, which this process, with JAX in it, must not."""
    environment = os.environ | {"PYTHONPATH": str(Path(rknn_jax.__file__).parents[1])}
    command = [sys.executable, "-c", COMMON + script, str(path), DATA]
    return json.loads(
        subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, check=True, timeout=120
        ).stdout
    )


@pytest.mark.long
def test_two_processes_racing_never_overspend_and_waste_nothing(path):
    accepted = run(RACE, path)
    assert sum(accepted) == 150
    ledger = Ledger.open(path, DATA)
    assert ledger.spent == ledger.budget
    assert len({entry.purpose for entry in ledger.entries()[1:]}) == sum(
        count > 0 for count in accepted
    )


def test_kill_9_at_any_instant_forgets_no_acknowledged_spend_and_passes_no_budget(path):
    acknowledged = run(KILLS, path)
    ledger = Ledger.open(path, DATA)
    spent = ledger.spent.epsilon * 100
    assert acknowledged > 25  # the kills did hit a working process
    assert acknowledged <= spent <= acknowledged + 25  # a kill burns at most the charge under way
    assert ledger.spent.epsilon <= ledger.budget.epsilon


def test_kill_9_never_leaves_half_a_header(path):
    assert run(CREATES, path) > 0


# Fingerprints


def test_a_fingerprint_is_of_the_values_not_of_their_storage():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(50, 3)).astype(np.float32)
    labels = rng.integers(0, 10, 50)
    expected = fingerprint(features, labels)
    for same in (
        (features.astype(np.float64), labels.astype(np.int32)),
        (np.asfortranarray(features), labels.astype(np.uint8)),
        (features.astype(">f8"), labels[::-1][::-1]),
        (np.where(features == 0, -0.0, features), labels.tolist()),
    ):
        assert fingerprint(*same) == expected
    assert fingerprint(np.zeros(3)) == fingerprint(-np.zeros(3))
    gray = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    assert fingerprint(gray) == fingerprint(gray[..., None]) != fingerprint(gray.reshape(3, 4))
    assert expected.startswith("sha256:")


def test_a_fingerprint_is_what_ledgers_have_on_disk():
    """Another fingerprint of the same records would make them another data set, with a budget."""
    features = np.array([[1.5, -2.0], [0.0, 3.25]], np.float32)
    known = "sha256:8e4864492e6cc131aa7a72ce919f04becbed57100fbf30ef8d455dd4645cdc3f"
    assert fingerprint(features, np.array([3, 1])) == known


def test_a_fingerprint_sees_every_value_shape_and_order():
    features = np.arange(6.0).reshape(2, 3)
    labels = np.array([1, 2])
    changed = features.copy()
    changed[1, 2] = np.nextafter(changed[1, 2], 9)
    others = [
        (changed, labels),
        (features.reshape(3, 2), labels),
        (features[::-1], labels),
        (features, labels[::-1]),
        (features,),
    ]
    others += [
        (labels, features),
        (features.astype(int), labels),
        (features.ravel()[:3], features.ravel()[3:], labels),
    ]
    assert (
        len({fingerprint(*arrays) for arrays in [(features, labels), *others]}) == len(others) + 1
    )


def test_a_fingerprint_does_not_depend_on_the_block(monkeypatch):
    array = np.arange(1000)
    expected = fingerprint(array)
    monkeypatch.setattr("rknn_jax.privacy.fingerprints.BLOCK", 7)
    assert fingerprint(array) == expected


def test_a_fingerprint_sees_every_text_and_where_it_ends():
    def of(*texts):
        digest = Digest()
        digest.begin("O", (len(texts),))
        for text in texts:
            digest.update(np.array([text], object))
        return digest.text()

    others = [("ab", "c"), ("a", "bc"), ("c", "ab"), (b"ab", "c"), ("ab", None), ("ab", "None")]
    assert len({of(*texts) for texts in others}) == len(others)


def test_what_has_no_values_has_no_fingerprint():
    with pytest.raises(ValueError, match="got none"):
        fingerprint()
    for array in (np.array(["a"]), np.array([None]), np.array([1j])):
        with pytest.raises(ValueError, match="dtype"):
            fingerprint(array)


@pytest.mark.parametrize(
    ("kind", "options", "refused"),
    [
        ("ext4", "rw,nolock", False),
        ("nfs4", "rw,vers=4.2,local_lock=none", False),
        ("nfs4", "rw,local_lock=all", True),
        ("nfs", "rw,nolock", True),
        ("cifs", "rw,nobrl", True),
        ("cifs", "rw", False),
        ("fuse.sshfs", "rw", True),
        ("fuse.rclone", "rw", True),
    ],
)
def test_no_budget_is_kept_where_a_lock_stops_one_machine_alone(
    tmp_path, monkeypatch, kind, options, refused
):
    """The folder's own mount decides, and of two on one folder the later one."""
    folder = tmp_path / "with space"
    folder.mkdir()
    ledger = Ledger.create(folder / "old.jsonl", DATA, 1.0)
    escaped = str(folder).replace(" ", "\\040")
    lines = [
        "1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda rw",
        f"2 1 0:40 / {tmp_path}/with rw - nfs host:/a rw,nolock",
        f"3 1 0:41 / {escaped} rw - nfs host:/a rw,nolock",
        f"4 1 0:42 / {escaped} rw - {kind} host:/b {options}",
    ]
    (tmp_path / "mountinfo").write_text("\n".join(lines))
    monkeypatch.setattr("rknn_jax._internal.mounts.MOUNTS", tmp_path / "mountinfo")
    if not refused:
        ledger.charge(released(), "a release")
        Ledger.create(folder / "new.jsonl", DATA, 1.0)
        return
    with pytest.raises(LedgerError, match=f"{kind} and locks files for one machine"):
        ledger.charge(released(), "a release")
    with pytest.raises(LedgerError, match="local disk"):
        Ledger.create(folder / "new.jsonl", DATA, 1.0)
    assert ledger.spent.epsilon == 0


def test_a_link_to_nothing_is_called_so(path):
    link = path.with_name("link")
    link.symlink_to(path.with_name("gone.jsonl"))
    with pytest.raises(LedgerError, match=r"is a link to .*gone\.jsonl, which is not there"):
        Ledger.open(link)


def test_a_draw_that_cannot_be_recorded_says_nothing_of_a_charge(ledger, path, monkeypatch):
    """The charge was made before, so that an error must not deny it."""
    ledger.charge(released(), "one")

    def fail(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LedgerError, match="so the draw is not on record"):
        ledger.mark_drawn("one", "ab" * 32)
    with pytest.raises(LedgerError, match="so nothing was charged"):
        ledger.charge(released(), "two")
    with pytest.raises(LedgerError, match="so the budget is as it was"):
        ledger.raise_budget(20, 0, "more")
