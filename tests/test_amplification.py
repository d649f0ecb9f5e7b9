"""Amplification by shuffling against golden values, exact enumeration, and itself."""

import collections
import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from rknn_jax import mechanisms
from rknn_jax.privacy import amplification


@pytest.mark.parametrize(
    ("n", "local", "closed", "general"),
    [
        (1e4, 1, 0.214026, 0.043206),
        (1e4, 2, 0.500920, 0.114400),
        (1e4, 3, 0.824114, 0.226079),
        (1e4, 4, None, 0.410812),
        (6e4, 1, 0.092750, 0.016408),
        (6e4, 2, 0.234575, 0.043702),
        (6e4, 4, 0.649241, 0.155431),
        (1e6, 1, 0.023497, 0.003514),
        (1e6, 4, 0.200985, 0.034280),
    ],
)
def test_epsilon_agrees_with_the_tables(n, local, closed, general):
    assert amplification.epsilon(local, int(n), 1e-6) == pytest.approx(general, abs=5e-6)
    if closed is None:
        with pytest.raises(
            ValueError, match=r"local epsilon <= ln\(n / \(16 ln\(2/delta\)\)\) = 3\.76301"
        ):
            amplification.epsilon(local, int(n), 1e-6, "closed form")
    else:
        assert amplification.epsilon(local, int(n), 1e-6, "closed form") == pytest.approx(
            closed, abs=1e-6
        )


@pytest.mark.long
@pytest.mark.parametrize(
    ("n", "delta", "closed", "general"),
    [
        (1e4, 1e-5, (0.5645, 2.1035, 3.6470), (2.0573, 4.5994, 5.7149)),
        (1e4, 1e-6, (0.5281, 1.9970, 3.5037), (1.8300, 4.3364, 5.4700)),
        (6e4, 1e-5, (1.1250, 3.5252, 5.3548), (3.5425, 6.3659, 7.4983)),
        (6e4, 1e-6, (1.0598, 3.3811, 5.1986), (3.2413, 6.0955, 7.2511)),
        (1e6, 1e-6, (2.6985, 6.0683, 7.9915), (5.9444, 8.9026, 10.0625)),
    ],
)
def test_local_epsilon_agrees_with_the_tables_and_is_never_optimistic(n, delta, closed, general):
    for central, by_formula, by_sum in zip((0.1, 0.5, 1.0), closed, general, strict=True):
        for bound, expected in (("closed form", by_formula), ("general", by_sum)):
            found = amplification.local_epsilon(central, int(n), delta, bound)
            assert found == pytest.approx(expected, abs=3e-4)
            assert amplification.epsilon(found, int(n), delta, bound) <= central + 2e-9


def binary_views(n, local, epsilon):
    """Hockey-stick divergence of n shuffled bits, flipped at random: first client 0 or 1, the
    others 0; exact.
    """
    keep = 1 / (1 + math.exp(-local))
    others = [
        math.comb(n - 1, ones) * (1 - keep) ** ones * keep ** (n - 1 - ones) for ones in range(n)
    ]

    def view(one):
        return [
            one * (others[k - 1] if k else 0) + (1 - one) * (others[k] if k < n else 0)
            for k in range(n + 1)
        ]

    zero = np.array(view(1 - keep))
    one = np.array(view(keep))
    return max(
        np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in ((zero, one), (one, zero))
    )


@pytest.mark.parametrize(("n", "local"), list(itertools.product((2, 8, 50), (0.5, 1.0, 3.0))))
def test_the_bound_holds_for_shuffled_randomized_response_and_is_tight_for_it(n, local):
    for share in (0.1, 0.4, 0.8):
        exact = binary_views(n, local, share * local)
        bound = amplification.hockey_stick(share * local, local, n)
        assert exact <= bound * (1 + 1e-9) + 1e-15
    assert amplification.hockey_stick(0.0, local, 1) == pytest.approx(math.tanh(local / 2)), (
        "one client hides among nobody"
    )


def exact_views(laws, n, epsilon):
    """The same for any laws `[3, symbols]` of a message: of the first client's two inputs and of
    all others', over all histograms.
    """
    kinds, counts = np.unique(laws, axis=1, return_counts=True)
    first, second, other = kinds * counts

    def join(histograms, law):
        grown = collections.Counter()
        for histogram, probability in histograms.items():
            for symbol, chance in enumerate(law):
                grown[(*histogram[:symbol], histogram[symbol] + 1, *histogram[symbol + 1 :])] += (
                    probability * chance
                )
        return grown

    histograms = {(0,) * len(counts): 1.0}
    for _ in range(n - 1):
        histograms = join(histograms, other)
    zero = join(histograms, first)
    one = join(histograms, second)
    return sum(max(zero[histogram] - math.exp(epsilon) * one[histogram], 0) for histogram in zero)


def grr_laws(local, num_symbols):
    """Of generalized randomized response, with all others at the last symbol."""
    laws = np.ones((3, num_symbols))
    laws[[0, 1, 2], [0, 1, -1]] = math.exp(local)
    return laws / laws[0].sum()


def hash_laws(local, num_buckets):
    """Of local hashing, with all others at a third cell: a message is a bucket and the hash, one
    of l³ as likely ones.
    """
    buckets = np.array(list(itertools.product(range(num_buckets), repeat=3)))
    laws = np.where(buckets.T[:, :, None] == np.arange(num_buckets), math.exp(local), 1.0).reshape(
        3, -1
    )
    return laws / laws[0].sum()


def variation_ratio_delta(n, local, epsilon, num_symbols):
    """The published variation-ratio bound of generalized randomized response: a first message of
    neither kind is pooled with the rest.
    """
    p = math.exp(local)
    kind = 1 / (p + num_symbols - 1)  # alpha = beta / (p - 1), and r = alpha as p = q

    def others(count, first):
        if not 0 <= first <= count <= n - 1:
            return 0.0
        return (
            math.comb(n - 1, count)
            * (2 * kind) ** count
            * (1 - 2 * kind) ** (n - 1 - count)
            * math.comb(count, first)
            / 2**count
        )

    def view(count, first, weight_first, weight_second):
        own = weight_first * others(count - 1, first - 1) + weight_second * others(count - 1, first)
        return kind * own + (1 - kind * (p + 1)) * others(count, first)

    pairs = [(count, first) for count in range(n + 1) for first in range(count + 1)]
    return sum(max(view(*pair, p, 1) - math.exp(epsilon) * view(*pair, 1, p), 0) for pair in pairs)


def test_general_covers_what_the_published_variation_ratio_bound_misses():
    """n = 8, d = 4, ε₀ = 1, ε = 0.6: exact δ 0.00622 from all histograms; the published bound
    says 0.00596.
    """
    exact = exact_views(grr_laws(1.0, 4), 8, 0.6)
    assert exact == pytest.approx(0.0062186970, abs=1e-9)
    assert variation_ratio_delta(8, 1.0, 0.6, 4) == pytest.approx(0.00596172, abs=1e-7)
    assert exact <= amplification.hockey_stick(0.6, 1.0, 8)


def reduced_views(n, local, epsilon, variation):
    """The variation-ratio bound as `docs/amplification.md` reduces it: counts of n - 1 others
    and the first client, one by one.
    """
    p = math.exp(local)
    kind = variation / (p - 1)
    blank = 1 - variation * (p + 1) / (p - 1)
    counts = np.stack(np.meshgrid(*[np.arange(n + 1)] * 3, indexing="ij"), axis=-1)
    rest = n - 1 - counts.sum(axis=-1, keepdims=True)
    others = stats.multinomial.pmf(
        np.concatenate([counts, rest], axis=-1),
        n - 1,
        [kind, kind, blank / p, 1 - 2 * kind - blank / p],
    )
    with_first, with_second, with_blank = (np.roll(others, 1, axis) for axis in range(3))
    zero, one = (
        x * with_first + y * with_second + blank * with_blank
        for x, y in ((kind * p, kind), (kind, kind * p))
    )
    return [np.maximum(x - math.exp(epsilon) * y, 0).sum() for x, y in ((zero, one), (one, zero))]


@pytest.mark.parametrize(
    ("n", "local", "variation"),
    [
        (1, 1.0, 0.3),
        (2, 1.0, 0.1),
        (8, 1.0, 0.2),
        (9, 0.01, 0.003),
        (9, 5.0, 0.98),
        (9, 5.0, 0.4),
        (25, 3.0, 0.7),
        (25, 12.0, 0.9),
        (40, 2.0, 0.5),
    ],
)
def test_the_variation_ratio_bound_is_the_sum_over_all_counts_in_both_directions(
    n, local, variation
):
    for share in (0.05, 0.3, 0.6, 0.9):
        found = amplification.hockey_stick(share * local, local, n, variation)
        assert reduced_views(n, local, share * local, variation) == pytest.approx(
            [found, found], rel=1e-9, abs=1e-18
        )
        for tail in (1e-8, 0.3):
            bound = amplification.hockey_stick(share * local, local, n, variation, tail)
            assert found <= bound <= found + 1.00001 * tail
        assert (
            amplification.hockey_stick(share * local, local, n, variation * 0.9)
            <= found
            <= amplification.hockey_stick(share * local, local, n) * (1 + 1e-9)
        )


@pytest.mark.parametrize(
    ("n", "golden"),
    [
        (8, (0.1055517086, 0.0497938935, 0.0145022394)),
        (60, (0.0178144229, 0.0006762402, 4.3688e-7)),
    ],
)
def test_the_variation_ratio_bound_has_golden_values(n, golden):
    for epsilon, delta in zip((0.1, 0.3, 0.6), golden, strict=True):
        assert amplification.hockey_stick(
            epsilon, 1.0, n, math.expm1(1) / (math.e + 3)
        ) == pytest.approx(delta, abs=1e-10)


def test_the_variation_ratio_bound_covers_what_the_published_one_misses():
    for symbols, n, epsilon in ((3, 8, 0.6), (4, 8, 0.6), (4, 8, 0.3), (6, 8, 0.6), (4, 12, 0.5)):
        laws = grr_laws(1.0, symbols)
        bound = amplification.hockey_stick(epsilon, 1.0, n, math.expm1(1) / (math.e + symbols - 1))
        assert exact_views(laws, n, epsilon) <= bound <= amplification.hockey_stick(epsilon, 1.0, n)


def test_the_variation_ratio_bound_may_average_over_hashes():
    """n = 8, l = 3, ε₀ = 1, ε = 0.6: the hash is part of the message."""
    laws = hash_laws(1.0, 3)
    average = np.abs(laws[0] - laws[1]).sum() / 2
    assert average == pytest.approx(
        mechanisms.make(
            "local_hashing", epsilon=1.0, num_queries=3, num_classes=3, num_buckets=3
        ).total_variation
    )
    assert exact_views(laws, 8, 0.6) == pytest.approx(0.00179685, abs=1e-8)
    assert amplification.hockey_stick(0.6, 1.0, 8, average) == pytest.approx(0.01027101, abs=1e-8)


def test_the_variation_ratio_bound_holds_for_extreme_messages_of_three_inputs():
    """Random corners of all ε₀-DP laws, whose symbols are 1 or e^ε₀ as likely for an input, and
    mixtures of two such messages.
    """
    patterns = np.array(list(itertools.product((1.0, math.e), repeat=3))).T
    rng = np.random.default_rng(0)
    tight = 0.0
    for _ in range(40):
        corners = [
            optimize.linprog(rng.normal(size=8), A_eq=patterns, b_eq=np.ones(3)).x for _ in range(2)
        ]
        for weight in (corners[0], sum(corners) / 2):
            laws = (patterns * weight)[:, weight > 1e-9]
            bound = amplification.hockey_stick(0.4, 1.0, 5, np.abs(laws[0] - laws[1]).sum() / 2)
            exact = exact_views(laws, 5, 0.4)
            assert exact <= bound * (1 + 1e-9) + 1e-15
            tight = max(tight, exact / bound) if bound > 1e-9 else tight
    assert tight > 0.9


def mechanism_variation(name, **fields):
    """Total variation at an ε₀, of a mechanism that chooses its own size for it."""
    return lambda local: (
        mechanisms.make(
            name, epsilon=local, num_queries=100, num_classes=10, **fields
        ).total_variation
    )


@pytest.mark.parametrize(
    ("variation", "golden"),
    [
        (mechanism_variation("wheel"), {1: 0.029746, 2: 0.078978, 3: 0.156375}),
        (
            mechanism_variation("randomized_response"),
            {1: 0.030696, 2: 0.087596, 3: 0.187278, 4: 0.362832},
        ),
        pytest.param(
            lambda local: math.expm1(local) / (2 * math.exp(local)),
            {1: 0.035218, 2: 0.084529, 3: 0.160468, 4: 0.287709},
            marks=pytest.mark.long,
        ),
        pytest.param(
            lambda local: (
                4
                * math.expm1(local)
                / (4 * math.exp(local) + math.floor(4 * math.exp(local) + 7) - 4)
            ),
            {1: 0.033491, 2: 0.082717, 3: 0.159074, 4: 0.286806},
            marks=pytest.mark.long,
        ),
    ],
    ids=["wheel", "randomized response", "wheel, worst hash", "collision of 4 votes, published l"],
)
def test_variation_ratio_epsilon_agrees_with_the_tables(variation, golden):
    for local, epsilon in golden.items():
        assert amplification.epsilon(
            local, 10_000, 1e-6, "variation ratio", variation
        ) == pytest.approx(epsilon, abs=8e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("n", "golden"), [(10_000, (2.3206, 4.9411, 5.9403)), (60_000, (3.8741, 6.7158, 7.7261))]
)
def test_variation_ratio_local_epsilon_agrees_with_the_tables_and_is_never_optimistic(n, golden):
    """Also for Collision, which loses a little by its whole number of buckets."""
    for name, most in (("wheel", 2e-3), ("collision", 6e-3)):
        variation = mechanism_variation(name)
        for central, expected in zip((0.1, 0.5, 1.0), golden, strict=True):
            found = amplification.local_epsilon(central, n, 1e-6, "variation ratio", variation)
            assert found == pytest.approx(expected, abs=most)
            assert amplification.hockey_stick(central, found, n, variation(found), 1e-10) <= 1e-6
            assert (
                amplification.hockey_stick(central, found + 0.01, n, variation(found + 0.01), 1e-10)
                > 1e-6
            )


def test_a_total_variation_that_falls_costs_accuracy_and_not_privacy():
    """Full between 2 and 4, else half of that: the search may stop at either, but not above what
    holds.
    """
    variation = lambda local: math.tanh(local / 2) * (1.0 if 2 < local < 4 else 0.5)  # noqa: E731
    found = amplification.local_epsilon(0.1, 10_000, 1e-6, "variation ratio", variation)
    assert found >= amplification.local_epsilon(0.1, 10_000, 1e-6)
    assert amplification.hockey_stick(0.1, found, 10_000, variation(found), 1e-10) <= 1e-6


def test_the_largest_epsilons_are_not_rounded_away():
    """One message at ε₀ = 50 hides among none of 99: δ(ε) = 1 - e^(ε - ε₀), times β where that
    is less.
    """
    for epsilon in (30.0, 40.0, 49.0, 50 - 1e-6):
        assert amplification.hockey_stick(epsilon, 50.0, 100) == pytest.approx(
            -math.expm1(epsilon - 50), rel=1e-6
        )
        assert amplification.hockey_stick(epsilon, 50.0, 100, 0.3) == pytest.approx(
            -0.3 * math.expm1(epsilon - 50), rel=1e-6
        )
    assert amplification.epsilon(50.0, 100, 1e-6) == pytest.approx(50, abs=2e-6)


@pytest.mark.slow  # the tables
def test_a_large_crowd_and_a_small_delta_are_cheap():
    variation = mechanism_variation("collision")
    found = amplification.epsilon(4.0, 1_000_000, 1e-12, "variation ratio", variation)
    assert amplification.hockey_stick(found, 4.0, 1_000_000, variation(4.0), 1e-16) <= 1e-12
    assert (
        amplification.hockey_stick(found * (1 - 1e-4), 4.0, 1_000_000, variation(4.0), 1e-16)
        > 1e-12
    )
    assert found < 0.71 * amplification.epsilon(4.0, 1_000_000, 1e-12)


def test_the_variation_ratio_bound_needs_a_total_variation_and_no_other_takes_one():
    for function in (amplification.epsilon, amplification.local_epsilon):
        with pytest.raises(ValueError, match="got it with|Expected total_variation"):
            function(1.0, 100, 1e-6, "variation ratio")
        with pytest.raises(ValueError, match="bound='general'"):
            function(1.0, 100, 1e-6, "general", math.tanh)


def test_shuffling_never_costs_more_than_one_message_and_helps_more_in_a_larger_crowd():
    found = [amplification.epsilon(2.0, n, 1e-6) for n in (1, 2, 10, 100, 1000, 10_000)]
    assert found[0] == pytest.approx(2.0, abs=1e-5)
    assert found == sorted(found, reverse=True)
    assert amplification.local_epsilon(0.5, 1, 1e-6) == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0.0, 10, 1e-6), "got 0.0"),
        ((math.nan, 10, 1e-6), "got nan"),
        ((1.0, 0, 1e-6), "num_clients=0"),
        ((1.0, 10, 0.0), "delta=0.0"),
        ((1.0, 10, 1.0), "delta=1.0"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    for function in (amplification.epsilon, amplification.local_epsilon):
        with pytest.raises(ValueError, match=words):
            function(*arguments)


def test_too_few_clients_for_the_closed_form_are_refused():
    with pytest.raises(ValueError, match="num_clients=100"):
        amplification.local_epsilon(1.0, 100, 1e-6, "closed form")


@pytest.mark.long
@pytest.mark.parametrize(("local", "delta"), [(0.5, 1e-9), (3.0, 1e-7)])
def test_blocks_of_clones_are_just_above_all_clones(monkeypatch, local, delta):
    n = 2_000_000
    exact = amplification.epsilon(local, n, delta)
    summed = amplification.hockey_stick(exact / 2, local, n)
    monkeypatch.setattr(amplification, "MOST_SUMMANDS", 0)
    in_blocks = amplification.hockey_stick(exact / 2, local, n)
    assert summed < in_blocks < summed * (1 + 1e-3)
    assert exact <= amplification.epsilon(local, n, delta) <= exact * (1 + 1e-4)


@pytest.mark.long
def test_many_clients_have_the_general_bound_of_bounded_work():
    variation = lambda local: 0.5 * math.tanh(local / 2)  # noqa: E731
    many = 10**12
    found = amplification.epsilon(1.0, many, 1e-14, "variation ratio", variation)
    assert found == amplification.epsilon(1.0, many, 1e-14)
    assert found < amplification.epsilon(1.0, many // 100, 1e-14) / 9
    assert amplification.bound_for(many, "variation ratio") == "general"
    assert amplification.bound_for(10**6, "variation ratio") == "variation ratio"
