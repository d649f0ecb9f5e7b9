"""MNIST at epsilon = 0.01 in two or three minutes on two cores.

python -m train.distill --preset mnist-fast --data-dir DIR
"""

from train.experiment import Experiment

EXPERIMENT = Experiment(preset="mnist-fast", dataset="mnist", epsilon=0.01, representation="self_trained", queries=10, decode="assignment")
