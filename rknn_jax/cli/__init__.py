"""Command line: one file for each command of `rknn`."""
