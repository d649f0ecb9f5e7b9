"""One file, one encoder: `fit(key, public_images, config) -> encode`, and `encode` is record-local.

A file's presence registers it.
"""
