"""M3 of An et al.: ten 3x3 convolutions and one dense layer.

    conv 3x3 valid 32, 48, 64, ..., 176; flatten; dense; batch normalisation

As M5 otherwise. 173 million multiplications an image forward; forward and backward take 8 ms of one
core an image of 28x28 pixels in batches of 32, by XLA's own convolution 13 ms.

Reference: An, Lee, Park, Yang & So, "An Ensemble of Simple Convolutional Neural Network Models for
MNIST Digit Recognition", 2020.
"""

from rknn_jax.students.models.m5 import ValidCNN

EPOCHS = 6
"""Passes over the data, as M5's."""

MIN_SIZE = 21
"""Smallest image height and width: ten valid 3x3 convolutions leave one pixel."""


class M3(ValidCNN):
    """For images of 21x21 pixels or more. Features: float32 `[n, 176]`."""

    channels = tuple(range(32, 177, 16))
    kernel_size = 3


Model = M3
