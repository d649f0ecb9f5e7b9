"""Releases on a user's own embeddings: read, plan, charge, draw, write and export."""
