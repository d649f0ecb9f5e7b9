"""Private knowledge distillation by reverse k-NN labeling.

Private records vote for their nearest public queries. The votes are summed under differential
privacy, the arg max of each query labels the public records, and a student learns the labels.

The names below are the usual ones; each comes with its module when it is first used, so that
`import rknn_jax` takes no time. Reading order of the modules: `types` (what flows), `neighbors` and
`bsvs` (who votes for what, and the sum), `mechanisms.discrete_laplace` (the private step),
`labelers.rknn` (the labels), `privacy.guarantee` (what it cost), `algorithm` (Algorithm 1). Without
a trusted curator: `mechanisms.collision`, `privacy.amplification`, `simulate`. Rivals: the other
files of `labelers`. A real release: `release`. Attempts to break it: `audit`.
"""

import importlib
from typing import Any

_MODULES = {
    "Answers": "types",
    "Collision": "mechanisms.collision",
    "DiscreteLaplace": "mechanisms.discrete_laplace",
    "Guarantee": "privacy.guarantee",
    "Keys": "algorithm",
    "Labels": "labels",
    "Ledger": "privacy.ledger",
    "Queries": "types",
    "ReverseKNN": "labelers.rknn",
    "ReverseKNNLabeler": "release.estimator",
    "Round": "algorithm",
    "Session": "release.session",
    "Task": "types",
    "cells": "bsvs",
    "compose": "privacy.accounting",
    "distill": "algorithm",
    "fresh_noise_key": "_internal.keys",
    "label": "labelers",
    "load": "data",
    "nearest": "neighbors",
    "nearest_votes": "neighbors",
    "show_progress": "_internal.terminal",
    "sum_votes": "bsvs",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("rknn-jax")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
