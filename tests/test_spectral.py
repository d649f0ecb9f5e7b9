"""The spectral embedding against its definition, PCA against scikit-learn, and what the default
is for: labels of real digits.
"""

import dataclasses
import functools
from dataclasses import dataclass

import jax
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from sklearn.decomposition import PCA

from rknn_jax._internal import pytree
from rknn_jax.data import digits
from rknn_jax.images.deskew import deskew
from rknn_jax.queries import kmeans
from rknn_jax.representations import hog, pca, pixels, spectral


def purity(cluster, labels):
    counts = np.zeros((cluster.max() + 1, labels.max() + 1))
    np.add.at(counts, (cluster, labels), 1)
    return counts.max(axis=1).sum() / len(labels)


def test_the_embedding_separates_the_components_of_a_graph():
    blocks = scipy.sparse.csr_matrix(
        scipy.linalg.block_diag(*[np.ones((n, n)) - np.eye(n) for n in (6, 9, 15)])
    )
    rows = np.asarray(spectral.spectral_embedding(jax.random.key(0), blocks, 3))
    group = np.repeat([0, 1, 2], (6, 9, 15))
    np.testing.assert_allclose(rows @ rows.T, group[:, None] == group[None], atol=1e-4)


def test_the_embedding_spans_the_leading_eigenvectors_of_the_dense_matrix():
    weights = np.random.default_rng(0).uniform(size=(30, 30))
    weights = weights + weights.T
    scale = np.diag(weights.sum(1) ** -0.5)
    _, vectors = np.linalg.eigh(scale @ weights @ scale)
    expected = vectors[:, -3:] / np.linalg.norm(vectors[:, -3:], axis=1, keepdims=True)
    rows = np.asarray(
        spectral.spectral_embedding(jax.random.key(1), scipy.sparse.csr_matrix(weights), 3)
    )
    np.testing.assert_allclose(rows @ rows.T, expected @ expected.T, atol=1e-3)


@functools.cache
def placed():
    """Digits, what was fitted on the public ones, and where these lie."""
    task = digits.load(0)
    encode = spectral.fit(jax.random.key(0), task.public.images)
    return task, encode, np.asarray(encode(task.public.images))


@pytest.mark.long
def test_a_public_image_is_placed_where_it_stands():
    _, encode, rows = placed()
    agreement = np.sum(rows * np.asarray(encode.embedding), axis=1)
    assert np.median(agreement) > 0.99


@pytest.mark.long
def test_public_and_private_images_are_straightened():
    task, encode, _ = placed()
    public = np.asarray(encode.describe(deskew(task.public.images[:20])))
    np.testing.assert_allclose(encode.views[0][:20], public, atol=1e-4)
    as_they_are = dataclasses.replace(
        encode, config=dataclasses.replace(encode.config, deskew=False)
    )
    private = task.private.images[:20]
    np.testing.assert_array_equal(encode(private), as_they_are(deskew(private)))


@pytest.mark.long
def test_spectral_clusters_are_purer_than_pixel_clusters_and_place_unseen_digits():
    """Split 0, 20 clusters: 0.93 against 0.86 in public purity; 1,000 unseen digits by the
    majority of their cluster: > 0.9.
    """
    task, encode, rows = placed()
    queries = kmeans.select(jax.random.key(1), rows, 20)
    by_pixels = kmeans.select(
        jax.random.key(1), task.public.images.reshape(len(rows), -1) / 255, 20
    )
    labels = task.public.true_labels
    assert purity(queries.cluster, labels) > purity(by_pixels.cluster, labels) + 0.03
    unseen = np.asarray(encode(task.private.images))
    cluster = ((unseen[:, None] - np.asarray(queries.features)) ** 2).sum(-1).argmin(1)
    assert purity(cluster, task.private.labels) > 0.9


@pytest.mark.long
def test_views_are_the_images_and_their_stretched_and_turned_copies():
    images = np.zeros((1, 9, 9, 1), np.uint8)
    images[0, 4, 1:8] = 200
    views = spectral._views(images, spectral.Config(stretch=0.5, turn=90))
    assert len(views) == 5
    np.testing.assert_array_equal(views[0], images)
    inner = [int((view[0, 4, :, 0] > 100).sum()) for view in views[1:3]]
    assert inner[0] < 7 < inner[1]
    assert (views[3][0, 1:8, 4, 0] > 190).all()


@pytest.mark.long
def test_images_that_another_encoder_describes_are_placed_as_they_are():
    """Public ones were not deskewed."""
    images = random_images()
    found = spectral.of(jax.random.key(0), pixels.Encoder(), images)
    plain = spectral.of(jax.random.key(0), pixels.Encoder(), images, spectral.Config(deskew=False))
    np.testing.assert_allclose(found(images[:5]), plain(images[:5]), atol=1e-4)


def test_too_few_public_images_are_named():
    with pytest.raises(ValueError, match="at least 12 public images"):
        spectral.fit(jax.random.key(0), np.zeros((5, 8, 8, 1), np.uint8))


def random_images():
    return np.random.default_rng(0).integers(0, 256, (80, 16, 16, 1)).astype(np.uint8)


@pytest.mark.long
@pytest.mark.parametrize("base", ["pixels", pytest.param("hog", marks=pytest.mark.slow)])
def test_principal_components_are_scikit_learns(base):
    images = random_images()
    module = {"pixels": pixels, "hog": hog}[base]
    described = np.asarray(module.fit(jax.random.key(0), images)(images))
    config = pca.Config(num_components=6, base=base)
    ours = np.asarray(pca.fit(jax.random.key(0), images, config)(images))
    theirs = PCA(6, svd_solver="full").fit_transform(described)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-4)


@pytree.register
@dataclass(frozen=True)
class UpsideDown:
    def __call__(self, images):
        return pixels.Encoder()(images[:, ::-1])

    def describe(self, image):
        return pixels.Encoder().describe(image[::-1])


@pytest.mark.long
def test_images_are_described_by_hog_where_that_is_the_base(monkeypatch):
    """Whose encoder would compile for a second: here it is that of pixels, upside down."""
    images = random_images()
    monkeypatch.setattr(hog, "fit", lambda key, images: UpsideDown())
    found, turned = (
        pca.fit(jax.random.key(0), given, pca.Config(num_components=6, base=base))(given)
        for base, given in (("hog", images), ("pixels", images[:, ::-1]))
    )
    np.testing.assert_array_equal(found, turned)


def test_whitened_components_have_unit_variance():
    images = random_images()
    config = pca.Config(num_components=6, flatten=1.0)
    features = pca.fit(jax.random.key(0), images, config)(images)
    np.testing.assert_allclose(np.asarray(features).var(axis=0), 1, rtol=1e-3)
