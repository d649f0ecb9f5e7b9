"""The students' networks, one a file.

A file registers its network under its own name and offers it as `Model`.
"""
