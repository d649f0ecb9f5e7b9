"""Data sets that tensorflow-datasets has prepared on this machine, read without TensorFlow.

`tfds:<name>` looks for `<data_dir>/<name>/<version>` in the ArrayRecord format, which is random access and needs no TensorFlow. Preparing one
from its source does need TensorFlow, once and anywhere:

    tfds build mnist --file_format=array_record --data_dir DIR

Images are compared with a student's test set as the papers do: SVHN's extra images are private, CIFAR-10's training images are split.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rknn_jax.data import _pool
from rknn_jax.types import Card, Task

DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class Layout:
    """How a data set becomes a task.

    Attributes:
      classes: names of the classes.
      private: splits that are private.
      held: split of which `num_test` records test and the others are public.
      num_test: how many.
      test: split that tests, where the held one is public and private instead: then `num_test` of it are private.
      attribute: of CelebA, the label.
      size: to which images are resized.
    """

    classes: tuple[str, ...]
    private: tuple[str, ...]
    public: tuple[str, float] | None = None
