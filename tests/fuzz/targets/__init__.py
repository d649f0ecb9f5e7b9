"""One file for each reader of bytes; see `tests.fuzz`."""
