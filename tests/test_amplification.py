"""Amplification by shuffling against golden values, exact enumeration, and itself."""

import itertools
import math

import numpy as np
import pytest

from rknn_jax.privacy import amplification


@pytest.mark.parametrize(
    ("n", "local", "closed", "general"),
    [(1e4, 1, 0.214026, 0.043206), (1e4, 2, 0.500920, 0.114400), (1e4, 3, 0.824114, 0.226079), (1e4, 4, None, 0.410812),
     (6e4, 1, 0.092750, 0.016408), (6e4, 2, 0.234575, 0.043702), (6e4, 4, 0.649241, 0.155431), (1e6, 1, 0.023497, 0.003514),
     (1e6, 4, 0.200985, 0.034280)],
)  # fmt: skip
def test_epsilon_agrees_with_the_tables(n, local, closed, general):
    assert amplification.epsilon(local, int(n), 1e-6) == pytest.approx(general, abs=5e-6)
    if closed is None:
        with pytest.raises(ValueError, match=r"local epsilon <= ln\(n / \(16 ln\(2/delta\)\)\) = 3\.76301"):
            amplification.epsilon(local, int(n), 1e-6, "closed form")
    else:
        assert amplification.epsilon(local, int(n), 1e-6, "closed form") == pytest.approx(closed, abs=1e-6)


@pytest.mark.parametrize(
    ("n", "delta", "closed", "general"),
    [(1e4, 1e-5, (0.5645, 2.1035, 3.6470), (2.0573, 4.5994, 5.7149)), (1e4, 1e-6, (0.5281, 1.9970, 3.5037), (1.8300, 4.3364, 5.4700)),
     (6e4, 1e-5, (1.1250, 3.5252, 5.3548), (3.5425, 6.3659, 7.4983)), (6e4, 1e-6, (1.0598, 3.3811, 5.1986), (3.2413, 6.0955, 7.2511)),
     (1e6, 1e-6, (2.6985, 6.0683, 7.9915), (5.9444, 8.9026, 10.0625))],
)  # fmt: skip
def test_local_epsilon_agrees_with_the_tables_and_is_never_optimistic(n, delta, closed, general):
    for central, by_formula, by_sum in zip((0.1, 0.5, 1.0), closed, general, strict=True):
        for bound, expected in (("closed form", by_formula), ("general", by_sum)):
            found = amplification.local_epsilon(central, int(n), delta, bound)
            assert found == pytest.approx(expected, abs=3e-4)
            assert amplification.epsilon(found, int(n), delta, bound) <= central + 2e-9


def binary_views(n, local, epsilon):
    """Hockey-stick divergence of n shuffled bits, flipped at random: first client 0 or 1, the others 0; exact."""
    keep = 1 / (1 + math.exp(-local))
    others = [math.comb(n - 1, ones) * (1 - keep) ** ones * keep ** (n - 1 - ones) for ones in range(n)]
    view = lambda one: [one * (others[k - 1] if k else 0) + (1 - one) * (others[k] if k < n else 0) for k in range(n + 1)]  # noqa: E731
    zero, one = np.array(view(1 - keep)), np.array(view(keep))
    return max(np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in ((zero, one), (one, zero)))


@pytest.mark.parametrize(("n", "local"), list(itertools.product((2, 8, 50), (0.5, 1.0, 3.0))))
def test_the_bound_holds_for_shuffled_randomized_response_and_is_tight_for_it(n, local):
    for share in (0.1, 0.4, 0.8):
        exact, bound = binary_views(n, local, share * local), amplification.general_delta(share * local, local, n)
        assert exact <= bound * (1 + 1e-9) + 1e-15
    assert amplification.general_delta(0.0, local, 1) == pytest.approx(math.tanh(local / 2)), "one client hides among nobody"


def grr_views(n, local, epsilon, num_symbols):
    """The same for generalized randomized response with all others at the last symbol, over all histograms by enumeration."""
    keep = math.exp(local) / (math.exp(local) + num_symbols - 1)
    other = np.full(num_symbols, (1 - keep) / (num_symbols - 1))

    def law(symbol):
        row = other.copy()
        row[symbol] = keep
        return row

    histograms = {tuple([0] * num_symbols): 1.0}
    for _ in range(n - 1):
        grown = {}
        for histogram, probability in histograms.items():
            for symbol, chance in enumerate(law(num_symbols - 1)):
                key = tuple(count + (i == symbol) for i, count in enumerate(histogram))
                grown[key] = grown.get(key, 0.0) + probability * chance
        histograms = grown
    views = []
    for first in (0, 1):
        view = {}
        for histogram, probability in histograms.items():
            for symbol, chance in enumerate(law(first)):
                key = tuple(count + (i == symbol) for i, count in enumerate(histogram))
                view[key] = view.get(key, 0.0) + probability * chance
        views.append(view)
    return sum(max(views[0][key] - math.exp(epsilon) * views[1][key], 0) for key in views[0])


def variation_ratio_delta(n, local, epsilon, num_symbols):
    """The published variation-ratio bound of generalized randomized response: a first message of neither kind is pooled with the rest."""
    p = math.exp(local)
    kind = 1 / (p + num_symbols - 1)  # alpha = beta / (p - 1), and r = alpha as p = q

    def others(count, first):
        if not 0 <= first <= count <= n - 1:
            return 0.0
        return math.comb(n - 1, count) * (2 * kind) ** count * (1 - 2 * kind) ** (n - 1 - count) * math.comb(count, first) / 2**count

    def view(count, first, weight_first, weight_second):
        own = weight_first * others(count - 1, first - 1) + weight_second * others(count - 1, first)
        return kind * own + (1 - kind * (p + 1)) * others(count, first)

    pairs = [(count, first) for count in range(n + 1) for first in range(count + 1)]
    return sum(max(view(*pair, p, 1) - math.exp(epsilon) * view(*pair, 1, p), 0) for pair in pairs)


def test_general_covers_what_the_published_variation_ratio_bound_misses():
    """n = 8, d = 4, ε₀ = 1, ε = 0.6: exact δ 0.00622 from all histograms; the published bound says 0.00596."""
    exact = grr_views(8, 1.0, 0.6, 4)
    assert exact == pytest.approx(0.0062186970, abs=1e-9)
    assert variation_ratio_delta(8, 1.0, 0.6, 4) == pytest.approx(0.00596172, abs=1e-7)
    assert exact <= amplification.general_delta(0.6, 1.0, 8)


def test_shuffling_never_costs_more_than_one_message_and_helps_more_in_a_larger_crowd():
    found = [amplification.epsilon(2.0, n, 1e-6) for n in (1, 2, 10, 100, 1000, 10_000)]
    assert found[0] == pytest.approx(2.0, abs=1e-5)
    assert found == sorted(found, reverse=True)
    assert amplification.local_epsilon(0.5, 1, 1e-6) == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((0.0, 10, 1e-6), "got 0.0"), ((math.nan, 10, 1e-6), "got nan"), ((1.0, 0, 1e-6), "num_clients=0"), ((1.0, 10, 0.0), "delta=0.0"),
     ((1.0, 10, 1.0), "delta=1.0")],
)  # fmt: skip
def test_bad_arguments_are_named(arguments, words):
    for function in (amplification.epsilon, amplification.local_epsilon):
        with pytest.raises(ValueError, match=words):
            function(*arguments)


def test_too_few_clients_for_the_closed_form_are_refused():
    with pytest.raises(ValueError, match="num_clients=100"):
        amplification.local_epsilon(1.0, 100, 1e-6, "closed form")
