"""NearPrivate: how many votes a record can move, by construction and by search; the noise on
them, and what everything costs.
"""

import math

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import stats

from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.queries import near_private, uncertainty

FALSE_ALARM = 1e-6
"""Probability with which each test of randomness would fail for other keys than its own."""

POINTS = np.array([[0, 0], [1, 0], [2, 0], [0, 2], [3, 3]], np.float32)
THRESHOLD = 2.0
COUNT = 3
CHANGED = {
    ("threshold", "add-remove"): 1,
    ("threshold", "replace-one"): 2,
    ("top", "add-remove"): 2,
    ("top", "replace-one"): 2,
}
each = pytest.mark.parametrize(("kind", "relation"), CHANGED, ids="-".join)


def predictions(confidence):
    """Two classes, of which one has the given probability."""
    confidence = np.asarray(confidence, np.float64)
    return np.stack([confidence, 1 - confidence], axis=1)


def counts(points, scores, kind):
    return near_private.support(POINTS, points, near_private.voters(scores, kind, COUNT, THRESHOLD))


def pool(num_records, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    features = (rng.normal(size=(num_records, 4)) + shift).astype(np.float32)
    return features, predictions(rng.uniform(0.5, 1, num_records))


# What a record can move.


records = st.tuples(
    st.integers(0, 3), st.integers(0, 3), st.integers(0, 4)
)  # ties in place and in score are the rule


@pytest.mark.long
@hypothesis.settings(max_examples=80)
@hypothesis.given(st.lists(records, min_size=6, max_size=6), records, st.integers(0, 5))
def test_no_neighbour_that_a_search_finds_moves_more_votes_than_the_noise_hides(data, other, place):
    data = np.asarray(data, np.float32)
    swapped = data.copy()
    removed = np.delete(data, place, axis=0)
    swapped[place] = other
    for (kind, relation), most in CHANGED.items():
        neighbour = removed if relation == "add-remove" else swapped
        change = counts(data[:, :2], data[:, 2], kind) - counts(
            neighbour[:, :2], neighbour[:, 2], kind
        )
        hypothesis.target(int(np.abs(change).sum()), label=f"{kind}, {relation}")
        assert (
            np.abs(change).sum()
            <= most
            == near_private.changed_votes(near_private.Config(voters=kind, relation=relation))
        )
        assert np.abs(change).max(initial=0) <= 1, "each count is one unit shift"


def test_the_sensitivities_are_attained():
    """The first three of five are the top; the first one comes in where another was, or goes,
    and lets the fourth one in.
    """
    data = np.array([[0, 0, 4], [1, 0, 4], [1, 0, 4], [3, 3, 3], [0, 2, 0]], np.float32)
    swapped = np.vstack([[[2, 0, 4]], data[1:]])
    for kind, relation in CHANGED:
        neighbour = data[1:] if relation == "add-remove" else swapped
        change = counts(data[:, :2], data[:, 2], kind) - counts(
            neighbour[:, :2], neighbour[:, 2], kind
        )
        assert np.abs(change).sum() == CHANGED[kind, relation]


@pytest.mark.parametrize("kind", ["threshold", "top"])
def test_a_record_from_afar_moves_two_votes_and_by_the_published_centring_most_of_them(kind):
    """Directions are released before, and are the same for both."""
    public, public_probabilities = pool(40, 0)
    private, private_probabilities = pool(60, 1)
    components = near_private.fit_components(
        jax.random.key(0), public, private, near_private.Config(components=3)
    )
    scores = uncertainty.score(private_probabilities)
    voting = near_private.voters(
        scores, kind, 40, float(np.median(uncertainty.score(public_probabilities)))
    )
    attacked = private.copy()
    attacked[np.flatnonzero(voting)[0]] = 1e6
    before, after = (
        near_private.support(components(public), components(rows), voting)
        for rows in (private, attacked)
    )
    assert np.abs(before - after).sum() <= 2

    def published(rows):
        centred = (rows[voting] - rows[voting].mean(0)) @ components.directions.T
        return near_private.support(
            (public - public.mean(0)) @ components.directions.T,
            centred,
            np.ones(len(centred), bool),
        )

    assert np.abs(published(private) - published(attacked)).sum() > voting.sum()


@pytest.mark.parametrize("kind", ["threshold", "top"])
def test_votes_are_those_of_a_loop(kind):
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(50, 2)).astype(np.float32)
    scores = rng.integers(0, 5, 50).astype(float)
    ranked = sorted(range(50), key=lambda i: (-scores[i], i))
    voters = ranked[:COUNT] if kind == "top" else [i for i in range(50) if scores[i] >= THRESHOLD]
    expected = np.zeros(len(POINTS), int)
    for i in voters:
        expected[np.argmin([np.sum((rows[i].astype(float) - p) ** 2) for p in POINTS])] += 1
    np.testing.assert_array_equal(counts(rows, scores, kind), expected)


def test_fewer_private_records_than_places_all_vote():
    assert near_private.voters(np.zeros(3), "top", 10, 0.0).all()


# The noise and its price.


@each
def test_the_noise_has_the_scale_that_its_event_speaks_of(kind, relation):
    config = near_private.Config(epsilon_support=0.7, voters=kind, relation=relation)
    changed = CHANGED[kind, relation]
    noise = near_private.noisy_support(jax.random.key(0), np.full(20_000, 5), config) - 5
    assert stats.kstest(noise, stats.laplace(scale=changed / 0.7).cdf).pvalue > FALSE_ALARM
    guarantee = near_private.support_guarantee(config)
    (event,) = guarantee.events
    assert (event.kind, event.parameter, event.count) == ("laplace", changed / 0.7, changed)
    assert accounting.epsilons(guarantee.events, 0.0) == {"pure": pytest.approx(0.7)}
    assert (guarantee.epsilon, guarantee.delta, guarantee.relation) == (0.7, 0.0, relation)


def chosen(config, num_queries=10, seed=0, private=None):
    public, public_probabilities = pool(60, 0)
    private, private_probabilities = private or pool(80, 1)
    return near_private.select(
        jax.random.key(seed),
        public,
        public_probabilities,
        private,
        private_probabilities,
        num_queries,
        config,
    )


def test_components_and_votes_compose_with_delta():
    queries, guarantee = chosen(near_private.Config(candidates=20, components=3))
    assert len(queries.index) == 10
    assert guarantee.delta == 1e-5
    assert 0.7 < guarantee.epsilon < 1.0
    assert sorted((event.kind, event.count) for event in guarantee.events) == [
        ("gaussian", 1),
        ("laplace", 2),
    ]
    model = Guarantee(2.0, 1e-5, "replace-one", "central", ())
    assert accounting.compose([model, guarantee]).delta == pytest.approx(2e-5), "deltas add up"


def test_infinite_epsilons_guarantee_nothing():
    _, guarantee = chosen(
        near_private.Config(math.inf, math.inf, delta=0.0, candidates=20, components=3)
    )
    assert guarantee.epsilon == math.inf


@pytest.mark.parametrize("kind", ["threshold", "top"])
def test_without_noise_it_takes_those_of_most_votes_among_the_most_uncertain(kind):
    config = near_private.Config(math.inf, math.inf, candidates=20, components=4, voters=kind)
    public, probabilities = pool(60, 0)
    private, private_probabilities = pool(80, 1)
    queries, _ = chosen(config)
    entropy = uncertainty.score(probabilities)
    private_entropy = uncertainty.score(private_probabilities)
    uncertain = sorted(range(60), key=lambda i: -entropy[i])[:30]
    mean = public.astype(float).mean(0)
    length = np.median([np.linalg.norm(row - mean) for row in public])

    def clipped(
        row,
    ):  # four components of four features are a rotation, which leaves distances as they are
        return (row - mean) / length / max(1, np.linalg.norm((row - mean) / length))

    votes = dict.fromkeys(uncertain, 0)
    voting = [i for i in range(80) if private_entropy[i] >= entropy[uncertain[-1]]]
    for i in (
        voting if kind == "threshold" else sorted(range(80), key=lambda i: -private_entropy[i])[:30]
    ):
        votes[
            min(uncertain, key=lambda j: np.sum((clipped(private[i]) - clipped(public[j])) ** 2))
        ] += 1
    assert (
        queries.index.tolist()
        == sorted(uncertain, key=lambda j: (-votes[j], uncertain.index(j)))[:10]
    )


def test_records_of_other_things_are_left_alone_where_uncertainty_asks_about_them():
    """Half of the pool is far from all private records, and the least sure."""
    rng = np.random.default_rng(0)
    near = pool(100, 0)[0]
    far = pool(100, 1, shift=8.0)[0]
    public = np.concatenate([near, far])
    probabilities = predictions(
        np.concatenate([rng.uniform(0.6, 0.9, 100), rng.uniform(0.5, 0.6, 100)])
    )
    private, private_probabilities = pool(4000, 2)
    config = near_private.Config(
        0.3, 0.7, candidates=170, components=3, voters="threshold"
    )  # many: there are 20 private for a public one
    queries, _ = near_private.select(
        jax.random.key(0), public, probabilities, private, private_probabilities, 20, config
    )
    assert np.mean(queries.index < 100) > 0.9
    assert np.mean(uncertainty.candidates(public, probabilities, 20) < 100) == 0


def test_other_keys_draw_other_noise():
    config = near_private.Config(candidates=20, components=3)
    first, again, other = (set(chosen(config, seed=seed)[0].index.tolist()) for seed in (0, 0, 1))
    assert first == again != other


# Bad input.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon_pca", 0.0),
        ("epsilon_support", -1.0),
        ("epsilon_support", math.nan),
        ("delta", 0.0),
        ("delta", 1.0),
        ("relation", "both"),
        ("candidates", -1),
        ("components", 0),
        ("voters", "all"),
        ("measure", "margin"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        near_private.Config(**{name: value})


@pytest.mark.parametrize(
    ("num_queries", "config", "words"),
    [
        (0, {}, "num_queries=0"),
        (61, {"candidates": 0}, "num_queries=61 .* 60 public records"),
        (41, {}, "candidates=20 with 60 public records"),
        (10, {"components": 5}, "num_components=5"),
    ],
    ids=str,
)
def test_what_a_pool_cannot_give_is_named(num_queries, config, words):
    with pytest.raises(ValueError, match=words):
        chosen(near_private.Config(**{"candidates": 20, "components": 3, **config}), num_queries)


def test_an_empty_pool_is_refused():
    none = np.zeros((0, 4), np.float32), predictions([])
    with pytest.raises(ValueError, match="0 public records"):
        near_private.select(jax.random.key(0), *none, *pool(5, 0), 3)


def test_private_arrays_have_to_fit():
    with pytest.raises(ValueError, match="got 80 for 79 private_features"):
        chosen(
            near_private.Config(candidates=20, components=3),
            private=(pool(79, 1)[0], pool(80, 1)[1]),
        )
    with pytest.raises(ValueError, match=r"\(80, 3\)"):
        chosen(
            near_private.Config(candidates=20, components=3),
            private=(pool(80, 1)[0][:, :3], pool(80, 1)[1]),
        )


@pytest.mark.parametrize("measure", ["entropy", "difference"])
@pytest.mark.parametrize("kind", ["threshold", "top"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.5])
def test_a_private_prediction_that_is_none_is_a_certain_one(value, kind, measure):
    """It was an error, by which one record decided whether there was a release."""
    config = near_private.Config(
        math.inf, math.inf, candidates=20, components=4, voters=kind, measure=measure
    )
    features, probabilities = pool(80, 1)
    chosen_by = []
    for odd in ([value, value], [0.5, value], [1.0, 0.0]):
        some = probabilities.copy()
        some[7] = odd
        chosen_by.append(chosen(config, private=(features, some))[0].index.tolist())
    assert chosen_by[0] == chosen_by[1] == chosen_by[2]
