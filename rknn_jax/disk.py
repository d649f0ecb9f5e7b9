"""Files that are on disk whole, or not there."""

import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is on disk, whole, or not there."""
    temporary = path.with_name(f".{path.name}.new")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
