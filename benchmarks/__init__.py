"""Measurements.

Each file is one program that writes `benchmarks/results/<name>.json`; `tables` puts them into the
README.
"""
