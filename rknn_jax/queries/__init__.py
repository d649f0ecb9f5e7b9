"""Query selectors: one file per way to choose what the private records are asked about.

A file in this folder is registered by its name.
"""
