"""k-means quality, medoids, and which records later rounds ask about."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_digits

from rknn_jax.neighbors import nearest
from rknn_jax.queries import kmeans, prototypes, uncertainty
from rknn_jax.release import planning
from rknn_jax.release.settings import Settings
from tests.options import named_settings


def groups(seed=0):
    rng = np.random.default_rng(seed)
    centers = 10 * np.eye(4)
    return np.concatenate([centre + rng.normal(0, 0.3, (25, 4)) for centre in centers]).astype(
        np.float32
    ), np.repeat(np.arange(4), 25)


def test_separated_groups_are_found_whatever_the_key():
    features, group = groups()
    for seed in range(5):
        cluster = kmeans.select(jax.random.key(seed), features, 4).cluster
        assert len({(g, c) for g, c in zip(group.tolist(), cluster.tolist(), strict=True)}) == 4


def test_medoids_are_public_records_and_centers_are_means():
    features, _ = groups()
    medoids = kmeans.select(jax.random.key(0), features, 4, kmeans.Config(query="medoid"))
    np.testing.assert_array_equal(medoids.features, features[medoids.index])
    centers = kmeans.select(jax.random.key(0), features, 4)
    np.testing.assert_allclose(
        centers.features, [features[centers.cluster == c].mean(0) for c in range(4)], atol=1e-4
    )
    np.testing.assert_array_equal(centers.index, medoids.index)


def test_of_two_rows_as_far_from_their_mean_the_lower_one_stands_for_them():
    """Whichever of them the mean is rounded to."""
    rng = np.random.default_rng(0)
    low = rng.standard_normal((200, 5)).astype(np.float32)
    high = (low + 1e-3 * rng.standard_normal((200, 5))).astype(np.float32)
    means = (low + high) / 2
    for nudge in (-1, 1):
        centers = np.nextafter(means, (nudge * (high - low) * np.inf).astype(np.float32))
        found = kmeans._medoids(centers, np.concatenate([low, high]))
        np.testing.assert_array_equal(found, np.arange(200))


def test_later_rounds_ask_about_exactly_the_most_uncertain():
    features, _ = groups()
    sure = np.linspace(0.5, 1.0, 100)
    order = np.random.default_rng(0).permutation(100)
    probabilities = np.stack([sure[order], 1 - sure[order]], axis=1)
    chosen = uncertainty.select(
        jax.random.key(0), features, probabilities, 3, uncertainty.Config(fraction=0.2)
    )
    asked = np.flatnonzero(chosen.cluster >= 0)
    np.testing.assert_array_equal(np.sort(sure[order][asked]), np.sort(sure)[:20])
    assert [index in asked for index in chosen.index] == [True, True, False], (
        "the last one is a bystander"
    )


@pytest.mark.parametrize("fraction", [0.0, 1.5, float("nan")])
def test_a_fraction_outside_its_range_is_named(fraction):
    with pytest.raises(ValueError, match="fraction"):
        uncertainty.Config(fraction)


def test_unknown_kinds_of_query_are_named():
    with pytest.raises(ValueError, match="median"):
        kmeans.Config(query="median")


@pytest.mark.parametrize(
    "width", [10, *[pytest.param(width, marks=pytest.mark.slow) for width in (1, 3, 40)]]
)
def test_prototypes_are_ranked_by_feature(width):
    """Any k: the features' own descending order, in steps of 1e-5."""
    rng = np.random.default_rng(width)
    features = (
        rng.permuted(np.tile(np.arange(width), (500, 1)), axis=1) * 1e-5 - rng.random((500, 1))
    ).astype(np.float32)
    chosen = prototypes.select(jax.random.key(0), features, width)
    near = nearest(features, chosen.features, width)
    np.testing.assert_array_equal(near, np.argsort(-features, axis=1))
    np.testing.assert_array_equal(chosen.cluster, np.asarray(near)[:, 0])
    np.testing.assert_array_equal(chosen.size, np.bincount(chosen.cluster, minlength=width))


def test_equal_features_are_ranked_by_number():
    """Where float32 is exact, as with 10 prototypes and features in steps of 1/64."""
    features = np.random.default_rng(0).integers(-4, 4, (500, 10)).astype(np.float32) / 64
    chosen = prototypes.select(jax.random.key(0), features, 10)
    near = nearest(features, chosen.features, 10)
    np.testing.assert_array_equal(near, np.argsort(-features, axis=1, kind="stable"))
    np.testing.assert_array_equal(chosen.cluster, np.asarray(near)[:, 0])


def test_the_record_that_has_most_of_a_prototype_stands_for_it_and_for_no_other():
    features = np.asarray([[0.9, 0.8, 0.0], [0.5, 0.7, 0.0], [0.4, 0.1, -1.0]], np.float32)
    chosen = prototypes.select(jax.random.key(0), features, 3)
    np.testing.assert_array_equal(chosen.index, [0, 1, 2])
    np.testing.assert_array_equal(chosen.cluster, [0, 1, 0])
    np.testing.assert_array_equal(chosen.size, [2, 1, 0])


@pytest.mark.parametrize(
    ("shape", "words"),
    [((9, 4), "num_queries=4, .* num_queries=7"), ((5, 7), "5 public records"), ((9, 0), "=0")],
)
def test_as_many_prototypes_as_queries_are_needed(shape, words):
    with pytest.raises(ValueError, match=words):
        prototypes.select(jax.random.key(0), np.zeros(shape, np.float32), 7)


# Large public data


def inertia(features, queries):
    centers = np.asarray(queries.features, np.float64)[queries.cluster]
    return float(((features - centers) ** 2).sum())


@pytest.mark.long
def test_seeding_on_a_sample_costs_at_most_two_percent_of_inertia(monkeypatch):
    images = load_digits().data.astype(np.float32)
    before = inertia(images, kmeans.select(jax.random.key(0), images, 40))
    monkeypatch.setattr(kmeans, "LARGE", 0)
    monkeypatch.setattr(kmeans, "ROWS_SEEDED", 10)
    monkeypatch.setattr(kmeans, "ROWS_TRAINED", 30)
    sampled = kmeans.select(jax.random.key(0), images, 40)
    assert inertia(images, sampled) <= 1.02 * before
    nearest_centre = np.asarray(nearest(images, sampled.features, 1))[:, 0]
    np.testing.assert_array_equal(sampled.cluster, nearest_centre)
    np.testing.assert_array_equal(sampled.size, np.bincount(sampled.cluster, minlength=40))


@pytest.mark.long
def test_a_seed_is_drawn_in_proportion_to_the_squared_distance():
    """By a chi-square test of 4,000 draws, with a false-alarm rate of 1e-6."""
    points = np.float32([[0.0], [1.0], [2.0], [5.0]])
    keys = jax.random.split(jax.random.key(0), 4000)
    chosen = np.asarray(
        jax.vmap(lambda key: kmeans.plus_plus(key, jnp.asarray(points), 2, 1)[0])(keys)
    )
    distances = (points - points.T) ** 2
    expected = distances / distances.sum(axis=1, keepdims=True) / 4
    observed = np.zeros((4, 4))
    np.add.at(observed, (chosen[:, 0], chosen[:, 1]), 1)
    drawn = expected > 0
    assert observed[~drawn].sum() == 0, "a seed is at distance 0 from itself"
    statistic = ((observed - 4000 * expected)[drawn] ** 2 / (4000 * expected[drawn])).sum()
    assert stats.chi2.sf(statistic, drawn.sum() - 1) > 1e-6


@pytest.mark.long
def test_the_best_of_several_draws_becomes_a_seed():
    points = np.float32([[0.0], [0.1], [10.0], [10.1], [20.0]])
    for seed in range(20):
        chosen, left = kmeans.plus_plus(jax.random.key(seed), jnp.asarray(points), 3, 30)
        distances = (points - points[np.asarray(chosen)].T) ** 2
        assert float(left) == pytest.approx(distances.min(axis=1).sum(), abs=1e-3)
        assert {int(points[i, 0] / 9) for i in np.asarray(chosen)} == {0, 1, 2}


@pytest.mark.parametrize(("width", "least", "most"), [(4, 0.7, 1.1), (400, 0, 0.4)])
def test_rows_of_many_dimensions_reach_few_of_the_queries(width, least, most):
    rows = np.random.default_rng(0).normal(size=(400, width)).astype(np.float32)
    assert least < kmeans.reached(rows, 60) < most


def test_uneven_clusters_are_reached_as_they_are():
    """Most rows are in one of them, whoever made them: lengths of a lognormal law."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(2000, 16)) * np.exp(1.5 * rng.normal(size=2000))[:, None]
    for number in (20, 50, 100):
        assert kmeans.reached(rows, number) > 0.55


@pytest.mark.parametrize(
    ("width", "most", "least"), [(6, 200, 200), pytest.param(400, 60, 8, marks=pytest.mark.long)]
)
def test_a_release_asks_no_more_queries_than_records_reach(tmp_path, width, most, least):
    """In 400 dimensions, votes would go to the few largest of 200 clusters."""
    rng = np.random.default_rng(2)
    classes = rng.integers(4, size=3600)
    rows = 2 * np.eye(4, width)[classes] + rng.normal(size=(3600, width))
    np.savez(tmp_path / "public.npz", embeddings=rows[:600])
    np.savez(tmp_path / "private.npz", embeddings=rows[600:], labels=classes[600:])
    settings = named_settings(
        Settings, str(tmp_path / "public.npz"), str(tmp_path / "private.npz"), 1.0, classes="4"
    )
    asked = planning.prepare(replace(settings, out=tmp_path / "out")).question.tally.shape[0]
    assert least <= asked <= most
    named = replace(settings, queries=120, out=tmp_path / "named")
    assert planning.prepare(named).question.tally.shape[0] == 120


@pytest.mark.filterwarnings("error")
def test_equal_public_rows_are_no_cause_for_a_warning():
    """Python may be told to make warnings errors."""
    rows = np.repeat(np.eye(4, dtype=np.float32), 100, axis=0)
    assert kmeans.reached(rows, 40) == pytest.approx(1, abs=0.1)
