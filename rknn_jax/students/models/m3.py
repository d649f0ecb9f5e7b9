"""M3 of An et al.: ten 3x3 convolutions and one dense layer.

    conv 3x3 valid 32, 48, 64, ..., 176; flatten; dense; batch normalization

All else is as in M5. Forward takes 173 million multiplications per image. Forward and backward take
8 ms of one core per image of 28x28 pixels in batches of 32. XLA's own convolution takes 13 ms.

Reference: An, Lee, Park, Yang & So, "An Ensemble of Simple Convolutional Neural Network Models for
MNIST Digit Recognition", 2020.
"""

from rknn_jax.students.models.m5 import ValidCNN

EPOCHS = 6
"""Default passes over the data, as for M5."""

MIN_SIZE = 21
"""Smallest image height and width, in pixels: ten valid 3x3 convolutions leave one pixel."""


class M3(ValidCNN):
    """M3, for images of 21x21 pixels or more. Features: float32 `[n, 176]`."""

    channels = tuple(range(32, 177, 16))
    kernel_size = 3


Model = M3
