"""Benchmarks: each file is one program that writes `benchmarks/results/<name>.json`.

`tables` puts the results into the README and the documentation.
"""
