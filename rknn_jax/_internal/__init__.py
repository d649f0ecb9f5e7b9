"""Internals: files, keys, pytrees, checkpoints, compiled programs and terminal output."""
