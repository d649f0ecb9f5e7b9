"""k-means beside scikit-learn's of the same seed."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from rknn_jax import lloyd


def digits():
    return load_digits().data.astype(np.float32)


@pytest.mark.long
@pytest.mark.parametrize("num_clusters", [1, 10, 60])
def test_clusters_are_those_of_scikit_learn(num_clusters):
    """The same draws; a row may change sides where two centers are as near up to rounding."""
    rows = digits()[:700]
    for seed in range(2):
        expected = KMeans(num_clusters, n_init=2, max_iter=50, random_state=seed).fit(rows)
        found = lloyd.fit(rows, num_clusters, seed, num_starts=2, max_iterations=50)
        assert found.labels.dtype == np.int32
        assert np.mean(found.labels == expected.labels_) > 0.99
        assert found.inertia == pytest.approx(expected.inertia_, rel=1e-3)
        np.testing.assert_array_equal(found.labels, lloyd.assigned(rows, found.centers))


def test_rows_of_weights_pull_their_centers():
    rows = digits()[:60].astype(np.float64)
    weights = np.random.default_rng(0).integers(1, 50, 60) + 1e-9
    expected = KMeans(5, n_init=4, random_state=0).fit(rows, sample_weight=weights)
    found = lloyd.fit(rows, 5, 0, num_starts=4, weights=weights)
    assert found.centers.dtype == np.float64
    np.testing.assert_array_equal(found.labels, expected.labels_)
    np.testing.assert_allclose(found.centers, expected.cluster_centers_, atol=1e-5)
    assert found.inertia == pytest.approx(expected.inertia_)


def test_given_centers_are_the_start():
    rows = digits()[:300]
    expected = KMeans(20, init=rows[:20], n_init=1, max_iter=30).fit(rows)
    found = lloyd.fit_from(rows, rows[:20], 30)
    np.testing.assert_array_equal(found.labels, expected.labels_)
    np.testing.assert_allclose(found.centers, expected.cluster_centers_, atol=1e-4)


def test_an_empty_cluster_takes_the_row_farthest_from_its_center():
    rows = np.float32([[0, 0], [0, 1], [1, 0], [9, 9]])
    start = np.float32([[0, 0], [50, 50], [60, 60]])
    found = lloyd.fit_from(rows, start, 20)
    expected = KMeans(3, init=start, n_init=1, max_iter=20).fit(rows)
    assert len(np.unique(found.labels)) == 3
    assert found.inertia == pytest.approx(expected.inertia_)


@pytest.mark.parametrize("num_clusters", [3, 7])
def test_fewer_distinct_rows_than_clusters_leave_clusters_empty(num_clusters):
    rows = np.repeat(np.float32([[0, 1], [5, 5], [9, 0]]), 4, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lloyd.fit(rows, num_clusters, 0, num_starts=3)
    assert found.inertia == pytest.approx(0, abs=1e-6)
    assert len(np.unique(found.labels)) == 3
    assert np.isfinite(found.centers).all()


def test_squared_distances_far_from_the_origin():
    rng = np.random.default_rng(0)
    points, centers = rng.normal(size=(30, 4)) + 1e4, rng.normal(size=(6, 4)) + 1e4
    expected = ((points[:, None] - centers) ** 2).sum(axis=2)
    np.testing.assert_allclose(lloyd.sq_distances(points, centers), expected, rtol=1e-8)
    np.testing.assert_array_equal(lloyd.sq_distances(centers[:1], centers[:1]), [[0]])


RELEASE = """
import sys
import numpy as np
from rknn_jax.cli.main import main

rows = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
np.savez("public.npz", embeddings=rows[:200])
np.savez("private.npz", embeddings=rows[200:], labels=np.arange(200) % 3)
words = "label --public public.npz --private private.npz --classes 3 --epsilon 1 --budget 1"
assert main(words.split()) == 0
heavy = {"sklearn", "scipy.stats", "pandas", "flax"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.long
def test_a_release_imports_no_library_that_takes_a_second(tmp_path):
    environment = os.environ | {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", RELEASE], cwd=tmp_path, env=environment, check=True)
