"""M7 of An et al.: four 7x7 convolutions and one dense layer.

    conv 7x7 valid 48, 96, 144, 192; flatten; dense; batch normalization

All else is as in M5. Forward takes 148 million multiplications per image. Forward and backward take
7 ms of one core per image of 28x28 pixels in batches of 32. XLA's own convolution takes 29 ms.

Reference: An, Lee, Park, Yang & So, "An Ensemble of Simple Convolutional Neural Network Models for
MNIST Digit Recognition", 2020.
"""

from rknn_jax.students.models.m5 import ValidCNN

EPOCHS = 6
"""Default passes over the data, as for M5."""

MIN_SIZE = 25
"""Smallest image height and width, in pixels: four valid 7x7 convolutions leave one pixel."""


class M7(ValidCNN):
    """M7, for images of 25x25 pixels or more. Features: float32 `[n, 192]`."""

    channels = (48, 96, 144, 192)
    kernel_size = 7


Model = M7
