"""Results that are older than the code that they measure.

    python -m benchmarks.stale

A result names the source files that its program had imported, with their digests; comments and
docstrings do not count. It is stale if one of them says something else now; a table of the docs
says so if it is one of `_sources.MEASURED`, and a test fails until it does. Results of before
2026-11-26 name none: of these only the date is told. The native kernels are no part of it.
"""

from typing import Any

from benchmarks import _sources
from benchmarks._measure import RESULTS
from benchmarks._tables._format import load

MOST_NAMED = 3


def state(found: dict[str, Any]) -> str:
    """Return a few words for what has changed since a result.

    Args:
      found: Content of its file.
    """
    sources = found.get("sources")
    if sources is None:
        return f"names no sources; measured {found['date'][:10]}"
    changed = _sources.changed(sources)
    if not changed:
        return "as the code is"
    more = f" and {len(changed) - MOST_NAMED} more" if len(changed) > MOST_NAMED else ""
    return f"stale: {', '.join(changed[:MOST_NAMED])}{more} of {len(sources)} files changed"


def main() -> None:
    """Print the state of each result."""
    for path in sorted(RESULTS.glob("*.json")):
        print(f"{path.stem:24} {state(load(path.stem))}")


if __name__ == "__main__":
    main()
