"""M7 of An et al.: four 7x7 convolutions and one dense layer.

    conv 7x7 valid 48, 96, 144, 192; flatten; dense; batch normalisation

As M5 otherwise. 148 million multiplications an image forward; forward and backward take 7 ms of one
core an image of 28x28 pixels in batches of 32, by XLA's own convolution 29 ms.

Reference: An, Lee, Park, Yang & So, "An Ensemble of Simple Convolutional Neural Network Models for
MNIST Digit Recognition", 2020.
"""

from rknn_jax.students.models.m5 import ValidCNN

EPOCHS = 6
"""Passes over the data, as M5's."""

MIN_SIZE = 25
"""Smallest image height and width: four valid 7x7 convolutions leave one pixel."""


class M7(ValidCNN):
    """For images of 25x25 pixels or more. Features: float32 `[n, 192]`."""

    channels = (48, 96, 144, 192)
    kernel_size = 7


Model = M7
