r"""CIFAR-10 at epsilon = 1, by a split as that of Li et al.

The representation is SimCLR, with 500 queries, and the student starts from SimCLR's weights.

    python -m train.distill --preset cifar10 --data-dir DIR \
        --representation-dir runs/cifar10/representation

This takes an accelerator. With 250 epochs of SimCLR, 73.3% of the labels are right, and 71.7% for
the student; the paper has 77.1% and 82.1%.
"""

from rknn_jax.representations.scan import Config as SCAN
from rknn_jax.representations.simclr import Config as SimCLR
from rknn_jax.students.fit import Config as Network
from rknn_jax.students.supervised import Config as Supervised

from ..experiment import Experiment

PRETRAINING = SimCLR(backbone="resnet18", epochs=500)
ALSO = (PRETRAINING, SCAN(PRETRAINING))
"""Representations with settings of their own, which `--representation` chooses by name."""

NETWORK = Network(model="resnet18", epochs=30, batch_size=128, augmentation="crop_flip")

EXPERIMENT = Experiment(
    preset="cifar10",
    dataset="cifar10:pooled",
    epsilon=1.0,
    queries=500,
    representation=PRETRAINING,
    student=Supervised(NETWORK, fine_tune=True),
)
