"""Programs that run from a checkout; `rknn_jax` is the library that they call."""
