"""Rule of a ledger that adds Rényi divergences up: valid for any adaptive analyst, and tight."""

import contextlib
import functools
import json
import math
import re
import shlex
from dataclasses import replace
from fractions import Fraction

import mpmath
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from rknn_jax.privacy import (
    accounting,
    analytic_gaussian,
    calibration,
    charges,
    filters,
    ledger_summary,
    renyi,
)
from rknn_jax.privacy.events import Binomial, DiscreteLaplace, Gaussian, Laplace, Pure
from rknn_jax.privacy.filters import Amount, Cost, Renyi, Sum
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import (
    BudgetExceededError,
    DataSet,
    Ledger,
    LedgerCorruptError,
    LedgerError,
)
from rknn_jax.privacy.sampled_gaussian import ORDERS
from rknn_jax.privacy.statement import Account
from tests.conftest import crossed

DATA = "sha256:of-some-records"
FREE = Fraction()


def amount(epsilon, delta=0):
    return Amount(Fraction(str(epsilon)), Fraction(str(delta)))


def laplace(epsilon):
    """Return the guarantee of a release of two counts, each by half of epsilon."""
    event = DiscreteLaplace(2 / epsilon, 2)
    return Guarantee(epsilon, 0.0, "replace-one", "central", (event,), sampler="release")


def gaussian(stddev, delta=1e-6):
    event = Gaussian(stddev)
    epsilon = analytic_gaussian.gaussian_epsilon(stddev, delta)
    return Guarantee(epsilon, delta, "replace-one", "central", (event,), sampler="release")


def response(epsilon):
    return Guarantee(epsilon, 0.0, "replace-one", "local", (Pure(epsilon),), sampler="release")


@pytest.mark.parametrize(
    ("epsilon", "times", "budget"), [(0.1, 10, 0.83), (0.1, 50, 2.13), (0.01, 100, 0.257)]
)
def test_many_small_releases_cost_less_than_their_sum(tmp_path, epsilon, times, budget):
    ledger = Ledger.create(tmp_path / "l.jsonl", DATA, budget, 1e-5, accounting="renyi")
    for _ in range(times):
        ledger.charge(laplace(epsilon), "a release")
    with pytest.raises(BudgetExceededError, match="left of"):
        ledger.charge(laplace(epsilon), "one more")
    spent = accounting.epsilons(laplace(epsilon).events * times, 1e-5)["RDP"]
    assert spent <= budget < 1.02 * spent, "the order of the budget is as good as the best"


def test_a_budget_never_takes_less_than_the_sum(tmp_path):
    ledger = Ledger.create(tmp_path / "l.jsonl", DATA, 1, 1e-9, accounting="renyi")
    for _ in range(10):
        assert ledger.affords(laplace(0.1))
        ledger.charge(laplace(0.1), "a release")
    assert not ledger.affords(laplace(0.1))
    assert (ledger.remaining.epsilon, ledger.spent.epsilon) == (0, 1)


def gain(rule, budget, menu, scale=1.0):
    """Return the largest delta(E) that any adaptive choice of randomized responses reaches.

    Args:
      rule: Rule under test.
      budget: Its budget (E, delta).
      menu: Epsilons to choose from; a release of epsilon e tells a bit with probability
        e^e / (1 + e^e), and its loss is +-e.
      scale: Factor of the costs: below 1, a rule that counts too little.
    """
    costs = [rule.unknown(amount(e)) for e in menu]
    cheap = [
        cost._replace(
            divergence=cost.divergence * Fraction(scale),
            amount=Amount(cost.amount.epsilon * Fraction(scale), FREE),
        )
        for cost in costs
    ]

    @functools.cache
    def best(counts, loss):
        stop = max(0.0, -math.expm1(float(budget.epsilon - loss)))
        values = [stop]
        for place, epsilon in enumerate(menu):
            more = tuple(count + (i == place) for i, count in enumerate(counts))
            if rule.fits(budget, [c for c, n in zip(cheap, more, strict=True) for _ in range(n)]):
                likely = 1 / (1 + math.exp(-epsilon))
                step = Fraction(str(epsilon))
                values.append(
                    likely * best(more, loss + step) + (1 - likely) * best(more, loss - step)
                )
        return max(values)

    return best((0,) * len(menu), Fraction())


@pytest.mark.parametrize("menu", [(0.3, 0.9), (0.2, 0.5, 1.1)])
def test_no_adaptive_choice_passes_the_budget(menu):
    budget = amount(1.3, 0.02)
    rule = Renyi.best(budget)
    assert 0.05 * 0.02 < gain(rule, budget, menu) <= 0.02
    assert gain(rule, budget, menu, scale=0.4) > 0.02, "the search finds a rule that is wrong"


@pytest.mark.parametrize("order", [1.5, 4.0, 30.0])
@pytest.mark.parametrize(
    ("guarantee", "event"),
    [
        (gaussian(3.0), dp_event.GaussianDpEvent(3.0)),
        (laplace(0.5), dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(4.0), 2)),
    ],
    ids=["gaussian", "laplace"],
)
def test_divergences_are_those_of_dp_accounting(order, guarantee, event):
    known = float(ORDERS[ORDERS >= order][0])
    told = RdpAccountant(orders=[known]).compose(event)._rdp[0]
    found = float(Renyi(order).cost(guarantee, amount(guarantee.epsilon)).divergence)
    if guarantee.delta:
        assert told <= found <= told * (1 + 1e-6)
    else:  # discrete Laplace noise of the same scale is no worse than randomized response
        assert found == pytest.approx(2 * filters._pure(0.25, known), rel=1e-6)
        assert told <= found


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_the_conversion_is_that_of_dp_accounting(epsilon):
    budget = amount(epsilon, 1e-6)
    rule = Renyi.best(budget)
    worth = float(rule.worth(budget))
    accountant = RdpAccountant(orders=[rule.order])
    stddev = math.sqrt(rule.order / 2 / worth)
    accountant.compose(dp_event.GaussianDpEvent(stddev))
    assert accountant.get_epsilon(1e-6) == pytest.approx(epsilon, rel=1e-6)
    assert accountant.get_epsilon(1e-6) <= epsilon * (1 + 1e-9)


def test_gaussian_noise_is_charged_by_its_divergence_not_by_its_delta(tmp_path):
    ledger = Ledger.create(tmp_path / "l.jsonl", DATA, 1, 1e-6, accounting="renyi")
    times = 0
    while ledger.affords(gaussian(40.0)):
        ledger.charge(gaussian(40.0), "a release")
        times += 1
    together = calibration.zcdp_noise_multiplier(1.0, 1e-6)
    assert times == pytest.approx(40.0**2 / together**2, rel=0.02)


@pytest.mark.parametrize(("epsilon", "times"), [(0.08, 12), (0.02, 55)])
def test_a_known_epsilon_costs_what_is_left(epsilon, times, tmp_path):
    """The epsilons of 55 releases add up to more than the budget, but not their divergences."""
    ledger = Ledger.create(tmp_path / "l.jsonl", DATA, 1, 1e-5, accounting="renyi")
    for _ in range(times):
        ledger.charge(response(epsilon), "a release")
    left = ledger.remaining
    assert left.delta == 0
    assert ledger.affords(response(float(left.epsilon) * 0.999))
    assert not ledger.affords(response(float(left.epsilon) * 1.001))
    assert ledger.spent.epsilon == 1 - left.epsilon


def test_what_is_left_after_noise_of_a_delta_is_what_one_more_release_may_cost(tmp_path):
    ledger = Ledger.create(tmp_path / "l.jsonl", DATA, 1, 1e-5, accounting="renyi")
    ledger.charge(gaussian(60.0), "a release")
    left = float(ledger.remaining.epsilon)
    assert ledger.affords(response(left * 0.999))
    assert not ledger.affords(response(left * 1.001))


@pytest.mark.parametrize("state", ["damaged", "repaired", "summed up"])
@pytest.mark.parametrize("before", [(), (20.0,)], ids=["the first", "a later one"])
def test_damage_may_have_been_a_release_with_a_delta(tmp_path, monkeypatch, state, before):
    """It costs the divergence that remained at least, and is in no sum of pure epsilons."""
    path = tmp_path / "l.jsonl"
    ledger = Ledger.create(path, DATA, 1, 1e-4, accounting="renyi")
    for stddev in (*before, 4.5):
        ledger.charge(gaussian(stddev), "a release")
    charged = sum(one.divergence for one in ledger._chain().costs)
    path.write_bytes(path.read_bytes()[:-5])
    ledger = Ledger.open(path, DATA)
    if state != "damaged":
        monkeypatch.setattr(ledger_summary, "EVERY", 3)
        ledger.repair("a crash")
    if state == "summed up":
        for number in range(3):
            ledger.adopt(DataSet(f"sha256:{number}", None), "embedded anew", unrelated=True)
        assert ledger._chain().past.cost is not None
    divergence = sum(one.divergence for one in ledger._chain().costs) + 4 * filters.STEP
    assert divergence >= max(charged, ledger._chain().rule.worth(amount(1, "0.0001")))
    for epsilon, delta in ((1.1, 1e-12), (1.1, 1e-6), (5, 0)):
        with pytest.raises(LedgerError, match="at least"):
            ledger.raise_budget(epsilon, delta, "decided")
    assert ledger.remaining.epsilon < 0.01
    with pytest.raises(LedgerError) as refused:
        ledger.raise_budget(0.99, None, "decided")
    least = float(re.search(r"at least epsilon=([\d.]+)", str(refused.value))[1])
    assert 0.99 < least < 3
    ledger.raise_budget(least + 0.1, None, "decided")
    assert 0 < ledger.remaining.epsilon < 0.2


def test_noise_that_is_not_known_is_refused_and_costs_nothing(tmp_path):
    path = tmp_path / "l.jsonl"
    ledger = Ledger.create(path, DATA, 1, 1e-5, accounting="renyi")
    before = path.read_bytes()
    for events, said in [((), "noise is known"), ((Binomial(9.0),), "binomial noise")]:
        with pytest.raises(LedgerError, match=said):
            ledger.charge(replace(gaussian(9.0), events=events), "a release")
    assert path.read_bytes() == before


def test_the_rule_is_of_the_file_and_other_ledgers_keep_the_sum(tmp_path):
    path = tmp_path / "l.jsonl"
    made = Ledger.create(path, DATA, 1, 1e-5, accounting="renyi")
    made.charge(laplace(0.2), "a release")
    header, spend = map(json.loads, path.read_text().splitlines())
    assert (header["format"], float(header["order"])) == (
        "rknn-jax privacy ledger 2",
        Renyi.best(amount(1, 1e-5)).order,
    )
    assert Fraction(spend["renyi"]) == made.entries()[1].divergence > 0
    assert Ledger.open(path, DATA).accounting == "renyi"
    plain = Ledger.create(tmp_path / "s.jsonl", DATA, 1, 1e-5)
    assert (plain.accounting, plain.affords(laplace(1)), plain.affords(laplace(1.1))) == (
        "sum",
        True,
        False,
    )


@pytest.mark.parametrize(("delta", "rule"), [(0, "renyi"), (1e-5, "rényi")])
def test_a_budget_without_delta_and_an_unknown_rule_make_no_ledger(tmp_path, delta, rule):
    with pytest.raises(LedgerError, match="accounting"):
        Ledger.create(tmp_path / "l.jsonl", DATA, 1, delta, accounting=rule)
    assert not list(tmp_path.iterdir())


def test_a_raised_budget_has_the_same_order_and_more_room(tmp_path):
    ledger = Ledger.create(tmp_path / "l.jsonl", DATA, 0.5, 1e-5, accounting="renyi")
    while ledger.affords(laplace(0.1)):
        ledger.charge(laplace(0.1), "a release")
    with pytest.raises(LedgerError, match="at least"):
        ledger.raise_budget(0.4, 1e-5, "less")
    ledger.raise_budget(0.8, 1e-5, "decided by the board")
    assert ledger.affords(laplace(0.1))


@pytest.mark.parametrize("accounting", ["sum", "renyi"])
@pytest.mark.parametrize(
    "asked", [laplace(0.9), laplace(30.0), gaussian(0.3), gaussian(0.9, 2e-5), response(2.0)]
)
def test_a_refusal_names_the_budget_that_is_enough(asked, accounting, tmp_path):
    ledger = Ledger.create(tmp_path / "l of mine", DATA, 0.5, 1e-5, accounting=accounting)
    ledger.charge(laplace(0.3), "a release")
    assert not ledger.affords(asked)
    words = shlex.split(ledger.advice(asked).partition(": ")[2])
    assert words[:4] == ["rknn", "budget", "raise", str(ledger.path)]
    named = [words[words.index(name) + 1] for name in ("--epsilon", "--delta") if name in words]
    enough = amount(*named, *["1e-5"][len(named) - 1 :])
    if enough.epsilon > ledger.budget.epsilon:
        assert not ledger.affords(
            asked, within=enough._replace(epsilon=enough.epsilon * 99999 / 100000)
        )
    if enough.delta > ledger.budget.delta:
        assert not ledger.affords(asked, within=enough._replace(delta=ledger.budget.delta))
    ledger.raise_budget(*enough, "decided by the board")
    ledger.charge(asked, "what was refused")


@crossed(
    asked=[
        [laplace(part) for part in (0.0523048, 0.10461, 0.1569144, 0.78456808866811)],
        [gaussian(stddev) for stddev in (9.0, 7.0, 3.1)],
        [gaussian(7.0), response(0.3), laplace(0.7)],
    ],
    accounting=["sum", "renyi"],
)
def test_releases_that_fit_together_fit_one_after_the_other(asked, accounting, tmp_path):
    """In a budget that takes them all and not a digit more: sums of floats refused the last one,
    which the first ones were paid for.
    """
    low, high = Fraction(0), Fraction(50)
    while high - low > Fraction(1, 10**20):
        budget = (low + high) / 2
        fits = charges.new_ledger_affords(Amount(budget, Fraction(1, 10**5)), accounting, *asked)
        low, high = (low, budget) if fits else (budget, high)
    ledger = Ledger.create(tmp_path / "l.jsonl", DATA, high, 1e-5, accounting=accounting)
    assert not ledger.affords(*asked, within=Amount(low, ledger.budget.delta))
    for number, one in enumerate(asked):
        assert ledger.affords(*asked[number:])
        ledger.charge(one, "a release")


def test_damage_counts_as_all_that_remained(tmp_path):
    path = tmp_path / "l.jsonl"
    ledger = Ledger.create(path, DATA, 1, 1e-5, accounting="renyi")
    ledger.charge(laplace(0.1), "a release")
    whole = path.read_bytes()
    for torn in (b'{"del', b'{"delta":"0","epsilon":"1/10","guarantee"'):
        path.write_bytes(whole + torn)
        assert ledger.remaining.epsilon == 0
        assert not ledger.affords(laplace(0.01))
        assert "rknn budget repair" in ledger.advice(laplace(0.01))
    path.write_bytes(whole[:-9])
    assert ledger.remaining.epsilon == 0, "the part of a line tells no divergence"
    path.write_bytes(whole + b'{"delta":"1/100000","epsilon":"1/10","guar')
    assert ledger.remaining == (0, 0), "unknown noise with a delta may have cost everything"
    assert not ledger.affords(laplace(0.01))
    with pytest.raises(LedgerError, match="delta=0"):
        ledger.repair("a torn line", 0.1, 1e-5)
    with pytest.raises(LedgerError, match="shows a release with a delta, got epsilon=0.1"):
        ledger.repair("a torn line, of a release of 0.1", 0.1, 0)
    path.write_bytes(whole + b'{"delta":"0","epsilon":"1/10","guar')
    ledger.repair("a torn line, of a release of 0.1", 0.1, 0)
    assert ledger.affords(laplace(0.1))


def test_a_repair_of_more_than_the_budget_is_promised_as_that(tmp_path, rknn):
    path = tmp_path / "l.jsonl"
    ledger = Ledger.create(path, DATA, 1, 1e-5, accounting="renyi")
    ledger.charge(laplace(0.1), "a release")
    path.write_bytes(path.read_bytes()[:-9])
    assert not ledger.is_overspent
    assert ledger.spent == ledger.budget
    ledger.repair("a crash", 100, 0)
    assert ledger.is_overspent
    assert ledger.spent.epsilon > 50
    assert "promised the budget alone" not in rknn("budget", "show", path).out
    account = Account("", "", ledger.budget, ledger.spent, ledger.remaining, ledger.accounting)
    assert account.guaranteed.epsilon == ledger.spent.epsilon


def test_damage_does_not_fit_into_a_budget_without_a_delta(tmp_path):
    path = tmp_path / "l.jsonl"
    ledger = Ledger.create(path, DATA, 1, 1e-5, accounting="renyi")
    ledger.raise_budget(1, 0, "pure releases alone")
    ledger.charge(laplace(0.1), "a release")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(LedgerError, match="Expected a budget with a delta"):
        ledger.raise_budget(5, 0, "more")


def test_a_spend_without_its_divergence_blocks_the_ledger(tmp_path, monkeypatch):
    path = tmp_path / "l.jsonl"
    ledger = Ledger.create(path, DATA, 1, 1e-5, accounting="renyi")
    monkeypatch.setattr(Renyi, "cost", lambda self, guarantee, amount: Cost(amount))
    monkeypatch.setattr(Renyi, "fits", lambda self, budget, costs: True)
    ledger.charge(laplace(0.1), "a release")
    with pytest.raises(LedgerCorruptError, match="divergence"):
        Ledger.open(path, DATA)


EPSILONS = (1e-200, 1e-9, 1e-5, 1.01e-4, 1e-3, 0.01, 0.1, 0.5, 0.99, 1.01, 3.0, 10.0, 100.0, 500.0)


@pytest.mark.parametrize("order", [1.001, 1.01, 1.5, 2.0, 7.3, 32.0, 101.0, 1001.0])
def test_the_divergence_of_a_pure_release_is_never_below_the_true_one(order):
    """Against 60 digits, and no more than 2 parts in 10^9 above."""
    for epsilon in EPSILONS:
        with mpmath.workdps(460 if epsilon < 1e-9 else 60):
            e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
            both = mpmath.exp((a - 1) * e) + mpmath.exp(-a * e)
            true = mpmath.log(both / (1 + mpmath.exp(-e))) / (a - 1)
            [counted] = [Renyi(order).unknown(Amount(Fraction(epsilon), FREE)).divergence]
            counted = mpmath.mpf(counted.numerator) / counted.denominator
            assert true <= counted <= true * (1 + 2e-9) + mpmath.mpf(filters.STEP.denominator) ** -1
            assert abs(filters._pure(epsilon, order) - true) <= 1e-12 * true + 1e-300


@pytest.mark.parametrize("noise", [DiscreteLaplace, Laplace])
@pytest.mark.parametrize("loss", [1.01e-4, 1e-3, 0.05, 0.29, 0.31, 0.99, 3.0, 40.0])
def test_the_divergence_of_known_noise_is_never_below_the_true_one(noise, loss):
    """Against 60 digits, at every 300th order, with the slack that the rule adds."""
    event = noise(1 / loss)
    for order in ORDERS[::300]:
        with mpmath.workdps(60):
            a, x = mpmath.mpf(float(order)), 1 / mpmath.mpf(1 / loss)
            up, down = mpmath.exp((a - 1) * x), mpmath.exp(-a * x)
            both = (up + down) / (1 + mpmath.exp(-x))
            if noise is Laplace:
                both = (a * up + (a - 1) * down) / (2 * a - 1)
            true = mpmath.log(both) / (a - 1)
            assert abs(renyi.renyi_divergence([event], float(order)) - true) <= 1e-11 * true


@pytest.mark.parametrize("order", [1.001, 1.01, 1.5, 7.3, 1001.0])
@pytest.mark.parametrize("budget", [amount(1, 1e-5), amount(0.01, 1e-9), amount(30, 0.1)])
def test_the_worth_of_a_budget_is_never_above_the_true_one(order, budget):
    with mpmath.workdps(60):
        a = mpmath.mpf(order)
        epsilon, delta = (mpmath.mpf(x.numerator) / x.denominator for x in budget)
        true = epsilon - mpmath.log(1 - 1 / a) + mpmath.log(delta * a) / (a - 1)
        worth = Renyi(order).worth(budget)
        worth = mpmath.mpf(worth.numerator) / worth.denominator
        assert true - 2e-9 * abs(true - epsilon) - 2**-39 <= worth <= true


@pytest.mark.parametrize(
    ("budget", "spends", "fits"),
    [
        # Together these cost epsilon 4.95 by the tight accountant: deltas are no pure releases.
        (amount(1, 1e-5), [(amount(0.1, 0.1), None)] * 10, False),
        (amount(1, 1e-5), [(amount(0.1, 1e-6), None)], False),
        (amount(1, 1e-5), [(amount(0.1, 1e-9), Fraction(9))], False),
        (amount(1, 1e-5), [(amount(0.5), Fraction(9)), (amount(0.4, 1e-9), FREE)], False),
        (amount(1, 1e-5), [(amount(9, 0.5), Fraction(1, 10))], True),
        (amount(1, 1e-5), [(amount(0.5), Fraction(9)), (amount(0.5), Fraction(9))], True),
        (amount(1, 1e-5), [(amount(0.5), Fraction(9)), (amount(0.6), Fraction(9))], False),
    ],
)
def test_a_spend_with_a_delta_fits_by_its_divergence_alone(budget, spends, fits):
    costs = [Cost(*spend) for spend in spends]
    assert Renyi.best(budget).fits(budget, costs) is fits


@pytest.mark.parametrize(
    ("spends", "fits"),
    [
        ([amount(0.5, 1e-6)] * 2, True),
        ([amount(0.5, 6e-6)] * 2, False),
        ([amount(0.1, 2e-5)], False),
        ([amount(1.1)], False),
        ([amount(1, 1e-5), amount(0, 1e-9)], False),
    ],
)
def test_a_sum_counts_deltas_like_epsilons(spends, fits):
    assert Sum().fits(amount(1, 1e-5), [Cost(spend) for spend in spends]) is fits


def test_gaussian_releases_that_claim_a_small_epsilon_are_charged_what_they_cost(tmp_path):
    """Ten releases of (0.1, 0.1) cost epsilon 4.95 at 1e-5, and their epsilons add up to 1."""
    ledger = Ledger.create(tmp_path / "l.jsonl", DATA, 1, 1e-5, accounting="renyi")
    stddev = analytic_gaussian.gaussian_noise_multiplier(0.1, 0.1)
    event = Gaussian(stddev)
    release = Guarantee(0.1, 0.1, "replace-one", "central", (event,), sampler="release")
    with contextlib.suppress(BudgetExceededError):
        for _ in range(10):
            ledger.charge(release, "a release")
    paid = len(ledger.entries()) - 1
    assert paid == 0 or analytic_gaussian.gaussian_epsilon(stddev / math.sqrt(paid), 1e-5) <= 1
    assert paid < 10


def test_sums_are_exact():
    rule = Sum()
    tenth = Cost(amount(0.1))
    assert rule.fits(amount(1), [tenth] * 10)
    assert not rule.fits(amount(1), [tenth] * 11)
    assert rule.left(amount(1), [tenth] * 3) == amount(0.7)


# Other data of the same people


def releases_until_refused(path, cost, *, adopts):
    """Charge a new ledger until it refuses, with an adoption after each charge or with none."""
    ledger = Ledger.create(path, "sha256:0", 1.0, 1e-5, accounting="renyi")
    dataset = "sha256:0"
    spent = 0
    while ledger.affords(cost):
        Ledger.open(path, dataset).charge(cost, f"release {spent}")
        spent += 1
        if adopts:
            dataset = f"sha256:{spent}"
            before = ledger.spent, ledger.remaining
            ledger.adopt(DataSet(dataset), "embedded anew", unrelated=True)
            assert (ledger.spent, ledger.remaining) == before
    with pytest.raises(BudgetExceededError):
        ledger.charge(cost, "one more on the first data")
    kept = [entry.divergence for entry in ledger.entries() if entry.kind == "spend"]
    return [kept, ledger.spent]


def test_an_adoption_loses_no_divergence_and_the_total_holds(tmp_path):
    """The exact law of a Gaussian says what all releases cost together."""
    sigma = analytic_gaussian.gaussian_noise_multiplier(0.2, 1e-6)
    cost = gaussian(sigma)
    without = releases_until_refused(tmp_path / "one", cost, adopts=False)
    assert releases_until_refused(tmp_path / "many", cost, adopts=True) == without
    shift = math.sqrt(len(without[0])) / sigma
    low, high = (stats.norm.cdf(sign * shift / 2 - 1.0 / shift) for sign in (1, -1))
    assert low - math.e * high <= 1e-5


def test_no_adoption_can_hide_or_shrink_a_spend(tmp_path):
    """A line that is left out, or says less, breaks the chain, and then nothing can be spent."""
    ledger = Ledger.create(tmp_path / "L", "sha256:0", 1.0, 1e-5, accounting="renyi")
    cost = gaussian(analytic_gaussian.gaussian_noise_multiplier(0.2, 1e-6))
    ledger.charge(cost, "a release")
    ledger.adopt(DataSet("sha256:1"), "embedded anew", unrelated=True)
    Ledger.open(ledger.path, "sha256:1").charge(cost, "another")
    create, first, adopt, last = ledger.path.read_bytes().splitlines(keepends=True)
    divergence = json.loads(first)["renyi"].encode()
    for lines in (
        [create, adopt, last],
        [create, first.replace(divergence, b"1/1099511627776"), adopt, last],
        [create, first, last],
    ):
        changed = tmp_path / "changed"
        changed.write_bytes(b"".join(lines))
        with pytest.raises(LedgerCorruptError):
            Ledger.open(changed)
