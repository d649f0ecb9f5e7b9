"""Programs that run from a checkout and call the library `rknn_jax`."""
