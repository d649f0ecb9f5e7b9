"""The papers' networks against their definitions; M5 and `cnn` are in test_students.py, with the
training.
"""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rknn_jax.students.models import densenet121, m3, m5, m7, tanh_cnn, wrn28_2


@functools.cache
def traced(network, image_shape):
    """Return the shapes of the logits of 5 images and of the variables, and every layer called
    with its output's shape.
    """
    called = []

    def record(call, args, kwargs, context):
        out = call(*args, **kwargs)
        called.append((context.module, out.shape[1:]))
        return out

    with nn.intercept_methods(record):
        out = jax.eval_shape(
            lambda: network.init_with_output(
                jax.random.key(0), jnp.zeros((5, *image_shape)), train=False
            )
        )
    return *out, called


def layers(network, image_shape, kind):
    return [
        (layer, shape)
        for layer, shape in traced(network, image_shape)[2]
        if isinstance(layer, kind)
    ]


def valid_cnn(kernel_size, channels, flat, colours):
    """Convolutions, their batch normalization (scale and shift), dense layer and its own, after
    An et al.
    """
    pairs = zip((colours, *channels), channels, strict=False)
    return (
        kernel_size**2 * sum(before * after for before, after in pairs)
        + 2 * sum(channels)
        + flat * 10
        + 2 * 10
    )


def wide_resnet(colours):
    """Two 3x3 convolutions a block, of which the first may change the channels and then needs a
    1x1 convolution too.
    """
    total = 9 * colours * 16
    before = 16
    for channels in (32, 64, 128):
        total += (
            9 * before * channels + before * channels + 2 * before + 9 * channels**2 + 2 * channels
        )
        total += 3 * (2 * 9 * channels**2 + 4 * channels)
        before = channels
    return total + 2 * 128 + 128 * 10 + 10


def densenet(colours):
    """A layer adds 32 channels by way of 128; a transition halves them."""
    total = 9 * colours * 64
    channels = 64
    for layers in (6, 12, 24, 16):
        if layers != 6:
            total += 2 * channels + channels * (channels // 2)
            channels //= 2
        for _ in range(layers):
            total += 2 * channels + channels * 128 + 2 * 128 + 9 * 128 * 32
            channels += 32
    return total + 2 * channels + channels * 10 + 10


@pytest.mark.slow  # networks take any image, and the layers are counted
@pytest.mark.parametrize(
    ("network", "image_shape", "expected", "published"),
    [
        (m3.M3(10), (28, 28, 1), valid_cnn(3, range(32, 177, 16), 11264, 1), 1.12),
        (m7.M7(10), (28, 28, 1), valid_cnn(7, (48, 96, 144, 192), 3072, 1), 2.29),
        (wrn28_2.WideResNet(10), (32, 32, 3), wide_resnet(3), 1.47),
        pytest.param(
            densenet121.DenseNet(10), (32, 32, 3), densenet(3), 6.96, marks=pytest.mark.slow
        ),
    ],
    ids=["m3", "m7", "wrn28_2", "densenet121"],
)
def test_parameter_counts_are_those_of_the_definition(network, image_shape, expected, published):
    """And the known ones, in millions: an error in both formulas would show there."""
    assert (
        sum(leaf.size for leaf in jax.tree.leaves(traced(network, image_shape)[1]["params"]))
        == expected
    )
    assert round(expected / 1e6, 2) == published


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "image_shape", "num_features"),
    [
        (m3, (21, 23, 3), 176),
        (m7, (25, 31, 1), 192),
        (tanh_cnn, (13, 17, 3), 32),
        (wrn28_2, (1, 2, 1), 128),
        pytest.param(densenet121, (8, 13, 1), 1024, marks=pytest.mark.slow),
    ],
    ids=["m3", "m7", "tanh_cnn", "wrn28_2", "densenet121"],
)
def test_networks_take_any_image_they_claim_to(module, image_shape, num_features):
    network = module.Model(7)
    images = jnp.zeros((5, *image_shape))
    logits, variables, _ = traced(network, image_shape)
    features = jax.eval_shape(
        lambda v: network.apply(v, images, train=False, features=True), variables
    )
    chex.assert_shape([logits, features], [(5, 7), (5, num_features)])
    assert logits.dtype == features.dtype == jnp.float32
    assert min(image_shape[:2]) == module.MIN_SIZE


@pytest.mark.parametrize("module", [m3, m5, m7], ids=["m3", "m5", "m7"])
def test_the_smallest_image_leaves_one_pixel(module):
    """So `MIN_SIZE` refuses no image that the network could take."""
    lost = len(module.Model.channels) * (module.Model.kernel_size - 1)
    assert module.MIN_SIZE - lost == 1


def test_the_wide_resnet_halves_the_image_twice_and_forgets_a_thousandth_a_step():
    network = wrn28_2.WideResNet(10)
    kernels = [(conv.kernel_size, shape) for conv, shape in layers(network, (32, 32, 3), nn.Conv)]
    assert (
        sum(size == (3, 3) for size, _ in kernels) == 1 + 3 * 4 * 2
    )  # 28 with the three 1x1 and the head
    assert [shape for size, shape in kernels if size == (1, 1)] == [
        (32, 32, 32),
        (16, 16, 64),
        (8, 8, 128),
    ]
    assert {shape for _, shape in kernels} == {
        (32, 32, 16),
        (32, 32, 32),
        (16, 16, 64),
        (8, 8, 128),
    }
    norms = layers(network, (32, 32, 3), nn.BatchNorm)
    assert len(norms) == 25
    assert {norm.momentum for norm, _ in norms} == {0.999}


@pytest.mark.slow  # its parameters are counted
def test_the_densenet_halves_the_image_after_each_block_but_the_last():
    kernels = layers(densenet121.DenseNet(10), (32, 32, 3), nn.Conv)
    grown = [shape for conv, shape in kernels[1:] if conv.kernel_size == (3, 3)]
    assert grown == [(32, 32, 32)] * 6 + [(16, 16, 32)] * 12 + [(8, 8, 32)] * 24 + [(4, 4, 32)] * 16
    assert [shape for conv, shape in kernels if conv.kernel_size == (1, 1) and shape[2] != 128] == [
        (16, 16, 256),
        (8, 8, 512),
    ]
    assert len(kernels) + 1 == 121


def test_the_tanh_network_is_the_published_one_of_26010_parameters():
    logits, variables, called = traced(tanh_cnn.TanhCNN(10), (28, 28, 1))
    assert (
        sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
        == 26_010
        == 1040 + 8224 + 512 * 32 + 32 + 330
    )
    assert set(variables) == {"params"}, "nothing that mixes records"
    assert [shape for layer, shape in called if isinstance(layer, nn.Dense)] == [
        (14, 14, 16),
        (5, 5, 32),
        (32,),
        (10,),
    ]
    smallest = traced(tanh_cnn.TanhCNN(10), (tanh_cnn.MIN_SIZE, tanh_cnn.MIN_SIZE, 1))[1]
    chex.assert_shape(
        smallest["params"]["Dense_0"]["kernel"], (32, 32)
    )  # one pixel of 32 channels is left


def patches_as_kernel(kernel, size, channels):
    """What multiplies patches of 2x2 pixels as a kernel of `size` pixels."""
    kernel = kernel.reshape(size // 2, size // 2, 2, 2, channels, -1)
    return kernel.transpose(0, 2, 1, 3, 4, 5).reshape(size, size, channels, -1)


@jax.jit
def by_convolutions(params, images):
    """Features and logits of the tanh network."""

    def conv(x, name, size, padding):
        kernel = patches_as_kernel(params[name]["kernel"], size, x.shape[-1])
        out = jax.lax.conv_general_dilated(
            x, kernel, (2, 2), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.tanh(out + params[name]["bias"][None, None, None])

    def pooled(x):
        return nn.max_pool(x, (2, 2), (1, 1), "VALID")

    x = pooled(conv(pooled(conv(2 * images - 1, "conv1", 8, "SAME")), "conv2", 4, "VALID"))
    dense = [params[name] for name in ("Dense_0", "Dense_1")]
    features = jnp.tanh(x.reshape(len(x), -1) @ dense[0]["kernel"] + dense[0]["bias"][None])
    return features, features @ dense[1]["kernel"] + dense[1]["bias"][None]


@jax.jit
def by_the_network(params, images):
    network = tanh_cnn.TanhCNN(10)
    run = functools.partial(network.apply, {"params": params}, images, train=False)
    return run(features=True), run()


@pytest.mark.parametrize(
    "image_shape", [pytest.param((28, 28, 1), marks=pytest.mark.slow), (13, 16, 3)], ids=str
)
def test_its_products_of_patches_are_convolutions(image_shape):
    rng = np.random.default_rng(0)
    images = rng.random((3, *image_shape), np.float32)
    shapes = traced(tanh_cnn.TanhCNN(10), image_shape)[1]["params"]
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.1, leaf.shape).astype(np.float32), shapes)
    found = by_the_network(params, images)
    expected = by_convolutions(params, images)
    assert np.std(expected[0]) > 0.1
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), found, expected)


@pytest.mark.parametrize(("size", "height", "width"), [(3, 15, 8), (7, 13, 8)])
def test_winograd_of_other_kernels_equals_the_convolution_in_float64(size, height, width):
    """Whole tiles and cut ones, tiles of two blocks and of four; 5x5 is in test_students.py."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, height, width, 6))
    kernel = rng.normal(size=(size, size, 6, 4))
    patches = np.lib.stride_tricks.sliding_window_view(images, (size, size), (1, 2))
    expected = np.einsum("nhwcij,ijcd->nhwd", patches, kernel)
    actual = jax.jit(m5.convolve)(images.astype(np.float32), kernel.astype(np.float32))
    chex.assert_shape(actual, expected.shape)
    assert np.abs(actual - expected).max() < 1e-4 * expected.std()
