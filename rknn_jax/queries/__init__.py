"""One file, one way to choose what the private records are asked about.

A file's presence registers it.
"""
