"""Representations: one file per encoder, `fit(key, public_images, config) -> encode`.

Every `encode` is record-local. A file in this folder is registered by its name.
"""
