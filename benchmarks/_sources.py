"""Source files that a result depends on, as far as they change what a program does."""

import ast
import functools
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDERS = ("rknn_jax", "train", "benchmarks")

EQUIVALENT = ROOT / "benchmarks/equivalent_sources.json"

MEASURED = (
    "rknn_jax/answers/",
    "rknn_jax/labelers/",
    "rknn_jax/mechanisms/",
    "rknn_jax/queries/",
    "rknn_jax/representations/",
    "rknn_jax/students/",
)
"""Places whose code decides which labels come out. Kernels only change how fast they do."""


def loaded() -> dict[str, str]:
    """Return the digest of each source file of the project that this process has imported."""
    return digests(_imported())


def deciding() -> dict[str, str]:
    """Return the digests of all that can decide what this program finds, imported or not yet."""
    ours = (path for place in ("rknn_jax", "train") for path in (ROOT / place).rglob("*.py"))
    return digests({*_imported(), *(path.relative_to(ROOT).as_posix() for path in ours)})


def _imported() -> Iterator[str]:
    for found in {getattr(module, "__file__", None) for module in list(sys.modules.values())}:
        if found and Path(found).is_relative_to(ROOT):
            yield Path(found).relative_to(ROOT).as_posix()


def parts(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return date and sources of each part of a result, or those of the whole, named "".

    Args:
      found: Content of the result's file.
    """
    return found.get("parts", {"": found})


def changed(sources: dict[str, str]) -> list[str]:
    """Return the files that say something else now than when these digests were taken.

    A file of `EQUIVALENT` that went from one of the digests before to that after says the same.
    """
    now = digests(sources)
    return [
        path
        for path, digest in sources.items()
        if digest not in (now[path], *_before(path, now[path]))
    ]


def _before(path: str, digest: str) -> list[str]:
    one = equivalent().get(path, {})
    return one["before"].split() if one.get("after") == digest else []


@functools.cache
def equivalent() -> dict[str, dict[str, str]]:
    """Return digests of files before and after changes by which no result can differ, and why."""
    found: dict[str, dict[str, str]] = json.loads(EQUIVALENT.read_text())
    return found


def digests(paths: Iterable[str]) -> dict[str, str]:
    """Return the digests of source files, without comments and docstrings; "" for one that is gone.

    Args:
      paths: Paths from the root of the project.
    """
    chosen = sorted(path for path in paths if path.startswith(FOLDERS) and path.endswith(".py"))
    return {path: digest(ROOT / path) for path in chosen}


def digest(path: Path) -> str:
    """Return the digest of a source file, without comments and docstrings; "" if it is gone."""
    return _of_text(path.read_text()) if path.exists() else ""


@functools.cache
def _of_text(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12]


def _is_text(node: ast.AST) -> bool:
    """Return whether a statement is a text alone, as docstrings are."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
