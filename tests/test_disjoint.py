"""Ledgers on disjoint groups of records: the largest amount counts, and overlaps are refused.

The cost of two adaptive releases is computed exactly, from all outcomes; nothing here is drawn.
"""

import itertools
import json
import math
from fractions import Fraction

import pytest

from rknn_jax.cli.main import main
from rknn_jax.privacy.disjoint import compose_disjoint
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import DataSet, Ledger, LedgerError, LedgerMismatchError


@pytest.fixture
def ledger(tmp_path):
    """Return a function that makes a ledger of some records."""
    names = itertools.count()

    def make(dataset="a", epsilon=1, delta=0, **options):
        path = tmp_path / f"{next(names)}.jsonl"
        options = {"relation": "add-remove", "name": dataset} | options
        return Ledger.create(path, dataset, epsilon, delta, **options)

    return make


def spend(ledger, epsilon):
    guarantee = Guarantee(
        epsilon, 0.0, ledger.relation, "central", (Pure(epsilon),), sampler="release"
    )
    ledger.charge(guarantee, "a test")


def test_the_largest_amount_of_each_kind_counts(ledger):
    """Epsilon and delta may be those of two ledgers, and charges of one add up first."""
    north, south = ledger("a", 1, 1e-6), ledger("b", 2)
    for epsilon in (0.1, 0.2, 0.4):
        spend(north, epsilon)
    spend(south, 0.5)
    together = compose_disjoint([north, south])
    assert together.budget == (2, Fraction(1, 10**6))
    assert together.spent == (Fraction(7, 10), 0)
    assert (together.relation, together.unit) == ("add-remove", "record")


def test_only_the_budget_is_promised_where_divergences_add_up(ledger):
    """The amount spent of such a ledger is the budget less what is left, and no guarantee."""
    north, south = ledger("a", 0.2, 0.05, accounting="renyi"), ledger("b", 0.1)
    assert compose_disjoint([north, south]).spent == (0, 0)
    spend(north, 0.001)
    assert compose_disjoint([north, south]).spent == (Fraction(1, 5), Fraction(1, 20))


def test_damage_of_one_ledger_counts_as_spent(ledger):
    north, south = ledger("a", 3), ledger("b", 2)
    with open(north.path, "ab") as file:
        file.write(b'{"kind":')
    assert compose_disjoint([Ledger.open(north.path), south]).spent.epsilon == 3


@pytest.mark.parametrize("accounting", ["sum", "renyi"])
def test_a_torn_first_charge_counts_and_a_repair_beyond_the_budget_promises_nothing(
    ledger, accounting
):
    north, south = ledger("a", 1, 1e-5, accounting=accounting), ledger("b", 0.5)
    spend(north, 0.25)
    north.path.write_bytes(north.path.read_bytes()[:-30])
    assert compose_disjoint([Ledger.open(north.path), south]).spent.epsilon >= 0.25
    Ledger(north.path, None).repair("a disk", 100, 0)
    for both in ([Ledger.open(north.path), south], [south, Ledger.open(north.path)]):
        with pytest.raises(LedgerError, match="within their budgets"):
            compose_disjoint(both)


def test_every_pair_of_ledgers_is_compared(ledger):
    """Records of the first and the third pay for both."""
    made = [ledger(name, epsilon) for name, epsilon in (("a", 1), ("b", 2), ("a", 3))]
    with pytest.raises(LedgerMismatchError, match="disjoint records"):
        compose_disjoint(made)


def test_a_record_pays_no_more_than_its_group_even_if_releases_follow_each_other():
    """South's second epsilon depends on what north released, as adaptive releases may."""

    def probability(bits, outcome):
        north, south = bits
        first, second, third = outcome
        later = 0.3 if first else 0.8
        return (
            told(north, first, 1.0) * told(south, second, 0.5) * told(south, third, later)
        )  # south spends at most 1.3

    def told(bit, said, epsilon):
        right = math.exp(epsilon) / (1 + math.exp(epsilon))
        return right if bit == said else 1 - right

    losses = {"north": 0.0, "south": 0.0}
    for outcome in itertools.product((0, 1), repeat=3):
        for bit in (0, 1):
            for name, neighbors in (
                ("north", ((0, bit), (1, bit))),
                ("south", ((bit, 0), (bit, 1))),
            ):
                one, other = (probability(bits, outcome) for bits in neighbors)
                losses[name] = max(losses[name], abs(math.log(one / other)))
    assert losses["north"] == pytest.approx(1.0)
    assert losses["south"] == pytest.approx(1.3)  # the largest, and far from the sum of 2.3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"relation": "replace-one"}, "one relation"),
        ({"unit": "person"}, "one unit"),
        ({"dataset": "a"}, "data in common"),
        ({"shards": ["x", "z"]}, "data in common"),
    ],
)
def test_ledgers_that_may_share_a_record_are_refused(ledger, options, words):
    with pytest.raises(LedgerMismatchError, match=words):
        compose_disjoint([ledger("c"), ledger(shards=["x"]), ledger(**{"dataset": "b"} | options)])


def test_data_that_were_adopted_are_compared_too(ledger):
    north, south = ledger("a"), ledger("b")
    south.adopt(DataSet("a", 3), "a mistake", unrelated=True)
    with pytest.raises(LedgerMismatchError, match="data in common"):
        compose_disjoint([north, south])


def test_persons_one_ledger_and_the_same_ledger_twice_are_refused(ledger):
    for unit in ("person", "client"):
        with pytest.raises(LedgerMismatchError, match=f"unit={unit}.*pays for all of them"):
            compose_disjoint([ledger(name, unit=unit) for name in "ab"])
    with pytest.raises(ValueError, match="two ledgers or more"):
        compose_disjoint([ledger()])
    twice = ledger()
    with pytest.raises(LedgerMismatchError, match="which are one"):
        compose_disjoint([twice, twice])


def test_the_command_says_what_it_holds_for(ledger, capsys):
    paths = [str(ledger(name, epsilon).path) for name, epsilon in (("a", 1), ("b", 2))]
    fact = "hospital that made the record"
    assert main(["budget", "disjoint", *paths, "--told-apart-by", fact, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["budget"] == {"epsilon": 2.0, "delta": 0.0}
    assert found["holds"].endswith(fact)
    assert main(["budget", "disjoint", *paths, "--told-apart-by", " "]) == 2
    assert "--told-apart-by" in capsys.readouterr().err
