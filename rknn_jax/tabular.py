"""Former place of `rknn_jax.ReverseKNNLabeler`. It stays for one version."""

import warnings

from rknn_jax.release.estimator import ReverseKNNLabeler

__all__ = ["ReverseKNNLabeler"]

words = "rknn_jax.tabular has moved; import ReverseKNNLabeler from rknn_jax."
warnings.warn(words, DeprecationWarning, stacklevel=2)
