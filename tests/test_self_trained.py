"""Self-trained clusters are purer than those of pixels, and bad settings are named."""

import jax
import numpy as np
import pytest

from rknn_jax import data
from rknn_jax.queries import kmeans
from rknn_jax.representations import pixels, self_trained
from rknn_jax.students import fit as students


def purity(cluster, labels):
    """Share of the records whose cluster's commonest label is theirs; the labels score here and
    train nothing.
    """
    return sum(np.bincount(labels[cluster == c]).max() for c in np.unique(cluster)) / len(labels)


@pytest.mark.slow
def test_ten_clusters_of_the_digits_are_purer_than_by_pixels():
    """0.90 against 0.77.

    Of 500 images of 8x8 pixels a network learns little more than `spectral` knows.
    """
    public = data.load("digits", 4).public
    config = self_trained.Config(rounds=1, student=students.Config(epochs=15))
    encoders = (
        pixels.fit(jax.random.key(0), public.images),
        self_trained.fit(jax.random.key(0), public.images, config),
    )
    found = [
        purity(
            kmeans.select(jax.random.key(1), encode(public.images), 10).cluster, public.true_labels
        )
        for encode in encoders
    ]
    assert found[1] > found[0] + 0.05


@pytest.mark.parametrize(
    ("changes", "words"), [({"rounds": 0}, "rounds=0"), ({"clusters": 1}, "clusters=1")]
)
def test_bad_settings_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        self_trained.Config(**changes)
