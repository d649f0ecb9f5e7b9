"""Every encoder against its contract: record-local above all, since the privacy proof stands on it."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rknn_jax import representations
from tests.conftest import modules

EXAMPLES = [(module, config) for module in modules(representations) for config in module.EXAMPLES]
IDS = [f"{module.__name__.split('.')[-1]}-{i}" for i, (module, _) in enumerate(EXAMPLES)]
SLOW = ("scan", "self_trained", "dti")  # compile for long
each = pytest.mark.parametrize(
    ("module", "config"),
    [
        pytest.param(*example, marks=pytest.mark.slow) if name.startswith(SLOW) else example
        for name, example in zip(IDS, EXAMPLES, strict=True)
    ],
    ids=IDS,
)


def images(count, size=8, seed=0):
    """Blurred dots, one blank and one constant image."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size]
    centres = rng.uniform(1, size - 2, (count, 2, 1, 1))
    made = (255 * np.exp(-((rows - centres[:, 0]) ** 2 + (columns - centres[:, 1]) ** 2) / 3)).astype(np.uint8)
    made[0], made[1] = 0, 255
    return made[..., None]


@functools.cache
def fitted(name):
    module, config = EXAMPLES[IDS.index(name)]
    return module.fit(jax.random.key(0), images(60), config)


@pytest.fixture
def encode(module, config):
    return fitted(IDS[[c is config for _, c in EXAMPLES].index(True)])


@each
def test_features_are_finite_float32_rows(module, config, encode):
    features = encode(images(7, seed=1))
    assert features.ndim == 2
    assert len(features) == 7
    chex.assert_type(features, jnp.float32)
    assert np.isfinite(np.asarray(features)).all()


@each
def test_a_row_depends_on_its_own_image_alone(module, config, encode):
    """Alone, in another order, beside other images: the same features. This is what limits a record's votes to its own k."""
    some = images(30, seed=2)
    together = np.asarray(encode(some))
    np.testing.assert_allclose(np.asarray(encode(some[::-1]))[::-1], together, atol=1e-4)
    np.testing.assert_allclose(np.asarray(encode(some[11:12]))[0], together[11], atol=1e-4)
    changed = some.copy()
    changed[17] = 255 - changed[17]
    after = np.asarray(encode(changed))
    np.testing.assert_allclose(np.delete(after, 17, 0), np.delete(together, 17, 0), atol=1e-4)


@each
def test_blocks_do_not_show(module, config, encode):
    """1,203 images cross every block size; each must equal itself encoded in a small batch."""
    many = images(1203, seed=3)
    features = np.asarray(encode(many))
    for start in (0, 98, 499, 999, 1196):
        np.testing.assert_allclose(features[start : start + 7], np.asarray(encode(many[start : start + 7])), atol=1e-4)


@each
def test_one_key_and_the_same_public_images_give_the_same_encoder(module, config, encode):
    again = module.fit(jax.random.key(0), images(60), config)
    chex.assert_trees_all_close(again, encode, atol=1e-5)


@each
def test_encoding_images_of_the_public_never_changes_the_encoder(module, config, encode):
    before = jax.tree.map(np.array, encode)
    encode(images(5, seed=9))
    chex.assert_trees_all_equal(jax.tree.map(np.array, encode), before)
