"""One file, one system that labels public data with private records. A file's presence registers it."""
