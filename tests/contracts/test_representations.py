"""Every encoder against its contract: record-local above all, since the privacy proof stands on
it.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rknn_jax import representations
from rknn_jax.representations import simclr
from tests.conftest import modules

EXAMPLES = [(module, config) for module in modules(representations) for config in module.EXAMPLES]
IDS = [f"{module.__name__.split('.')[-1]}-{i}" for i, (module, _) in enumerate(EXAMPLES)]
SLOW = ("scan", "self_trained", "dti", "simclr")  # their training compiles for long
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
    centers = rng.uniform(1, size - 2, (count, 2, 1, 1))
    made = (
        255 * np.exp(-((rows - centers[:, 0]) ** 2 + (columns - centers[:, 1]) ** 2) / 3)
    ).astype(np.uint8)
    made[0] = 0
    made[1] = 255
    return made[..., None]


MANY = images(1001, seed=3)
"""They cross every size of a block, and the last one is left over: so all tests together need
programs for a block and for one image.
"""


@functools.cache
def fitted(name):
    module, config = EXAMPLES[IDS.index(name)]
    return module.fit(jax.random.key(0), images(60), config)


@functools.cache
def described(name):
    return fitted(name)(MANY)


@pytest.fixture
def name(config):
    return IDS[[c is config for _, c in EXAMPLES].index(True)]


@pytest.fixture
def encode(name):
    return fitted(name)


@pytest.fixture
def features(name):
    return described(name)


@pytest.mark.long
@each
def test_features_are_finite_float32_rows(module, config, features):
    assert features.ndim == 2
    assert len(features) == len(MANY)
    chex.assert_type(features, jnp.float32)
    assert np.isfinite(np.asarray(features)).all()


@each
def test_a_row_depends_on_its_own_image_alone(module, config, encode, features):
    """In another order, beside other images: the same features.

    This is what limits a record's votes to its own k.
    """
    changed = MANY[::-1].copy()
    changed[17] = 255 - changed[17]
    after = np.asarray(encode(changed))
    np.testing.assert_array_equal(np.delete(after, 17, 0), np.delete(features[::-1], 17, 0))


@pytest.mark.long
@each
def test_blocks_do_not_show(module, config, encode, features):
    """Each image must equal itself encoded alone, bit for bit: the first and the last of a block,
    and the blank and the constant one; and in every number of images.
    """
    for row in (0, 1, 31, 32, 255, 256, 499, 500, 999, 1000):
        alone = np.asarray(encode(MANY[row : row + 1]))
        np.testing.assert_array_equal(alone, features[row : row + 1], err_msg=f"image {row}")
    for count in (*range(2, 131, 8), 257, 513):
        some = np.asarray(encode(MANY[:count]))
        np.testing.assert_array_equal(some, features[:count], err_msg=f"{count} images")


@each
def test_one_key_and_the_same_public_images_give_the_same_encoder(module, config, encode):
    again = module.fit(jax.random.key(0), images(60), config)
    chex.assert_trees_all_close(again, encode, atol=1e-5)


@each
def test_encoding_images_of_the_public_never_changes_the_encoder(module, config, encode):
    before = jax.tree.map(np.array, encode)
    encode(MANY)
    chex.assert_trees_all_equal(jax.tree.map(np.array, encode), before)


@pytest.mark.long
def test_a_network_describes_each_image_by_itself():
    """The thin slice of those that train one: with first weights, and statistics of
    normalization that no batch has.
    """
    network = simclr.Network("cnn", 128, hidden=True)
    drawn = jax.jit(functools.partial(network.init, train=False))(
        jax.random.key(0), np.zeros((2, 8, 8, 1), np.float32)
    )
    encode = simclr.Encoder(drawn, network, "projection")
    features = encode(MANY)
    test_features_are_finite_float32_rows(simclr, None, features)
    test_a_row_depends_on_its_own_image_alone(simclr, None, encode, features)
    test_blocks_do_not_show(simclr, None, encode, features)
