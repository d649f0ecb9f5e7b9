"""Put `benchmarks/results/*.json` into README.md and docs, as tables and pictures.

A table goes to every place between `<!-- name -->` and `<!-- end -->`. `_tables` makes them.
"""

import re
from pathlib import Path

from benchmarks import _pictures, _tables
from benchmarks._tables._format import load

ROOT = Path(__file__).parent.parent
PLACE = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
TABLES = {make.__name__: make for make in _tables.makers()}


def documents() -> list[Path]:
    """Return the Markdown files that may show tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def with_tables(text: str) -> str:
    """Return a document with all its tables made anew.

    Raises KeyError for a place whose table does not exist.
    """
    return PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", text)


def main() -> None:
    """Rewrite the tables and pictures."""
    for document in documents():
        text = document.read_text()
        if (rewritten := with_tables(text)) != text:
            document.write_text(rewritten)
    _pictures.compare(load("compare"))
    _pictures.figure4(load("cifar10_rows"))
    _pictures.figure5(load("local"))
    _pictures.figure6(load("appendix_b"))
    _pictures.rivals(load("rivals"))
    _pictures.buying(load("buying")["results"])
    _pictures.screening(load("accountants"))
    _pictures.evolution(load("evolution"))
    _pictures.scale(load("scale"))


if __name__ == "__main__":
    main()
