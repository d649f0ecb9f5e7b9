"""Networks of the students, one per file.

A file's name is the network's name, and its `Model` is the network.
"""
