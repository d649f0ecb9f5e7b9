"""SVHN as Li et al.

label it at epsilon = 0.1: 500 queries among HOG features, 604,388 private records, 25,032 public
ones.

    python -m train.distill --preset svhn --data-dir DIR

DIR is where tensorflow-datasets has prepared `svhn_cropped`. The student wants an accelerator. Not
measured yet; the paper has 95.6%.
"""

from train.experiment import Experiment

EXPERIMENT = Experiment(
    preset="svhn",
    dataset="tfds:svhn_cropped",
    epsilon=0.1,
    queries=500,
    representation="hog",
    student="wrn28_2",
    batch_size=64,
    augmentation="crop",
)
