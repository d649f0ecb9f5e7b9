"""SVHN at epsilon = 0.1, labeled as by Li et al.

There are 500 queries among HOG features, 604,388 private records and 25,032 public ones.

    python -m train.distill --preset svhn --data-dir DIR

DIR is the folder in which tensorflow-datasets has prepared `svhn_cropped`. The student needs an
accelerator. Not measured yet; the paper has 95.6%.
"""

from rknn_jax.representations import hog
from rknn_jax.students.fit import Config as Network
from rknn_jax.students.supervised import Config as Supervised

from ..experiment import Experiment

EXPERIMENT = Experiment(
    preset="svhn",
    dataset="tfds:svhn_cropped",
    epsilon=0.1,
    queries=500,
    representation=hog.Config(),
    student=Supervised(Network(model="wrn28_2", batch_size=64, augmentation="crop")),
)
