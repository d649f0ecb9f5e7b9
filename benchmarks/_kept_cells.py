"""Cells of a long benchmark, each in a file of its own once it is done."""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from train.json_files import write_json

Cell = tuple[str, Callable[[], dict[str, Any]]]


def work(folder: Path, cells: Iterable[Cell], description: str | None) -> list[dict[str, Any]]:
    """Work on all cells, or with --resume on those that are not done, and return all.

    Args:
      folder: Folder of the cells.
      cells: Name of each cell, and the function that works on it.
      description: Description of the program, for --help.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--resume", action="store_true", help="keep the cells that are there")
    given = parser.parse_args()
    folder.mkdir(parents=True, exist_ok=True)
    for name, found in cells:
        path = folder / f"{name.replace(' ', '_')}.json"
        if not (given.resume and path.exists()):
            write_json(path, found())
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
