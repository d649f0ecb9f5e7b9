"""Size and density of the code: what a reader meets, in numbers.

    python -m benchmarks.architecture

Lines of a body are lines with code between a function's first and last statement. A node is one of
Python's syntax tree. Comments are counted for 100 lines of code, without pragmas. A
field counts once for each dataclass that declares it.
"""

import ast
import io
import statistics
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._measure import save

ROOT = Path(__file__).parents[1]

PRAGMAS = ("# noqa", "# type:", "# fmt:")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield all functions and methods."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def body_of(function: Function) -> list[ast.stmt]:
    """Return the statements of a function without its docstring."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return function.body[documented:]


def code_lines(source: str) -> set[int]:
    """Return the numbers of lines that hold code."""
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped and token.string:
            found |= set(range(token.start[0], token.end[0] + 1))
    return found


def is_comment(token: tokenize.TokenInfo) -> bool:
    """Return whether a token is a comment for a reader."""
    return token.type == tokenize.COMMENT and not token.string.startswith(PRAGMAS)


def quantile(values: list[int], share: float) -> int:
    """Return a quantile of whole numbers."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def repeated_fields(tree_of: list[ast.Module], most: int = 5) -> dict[str, int]:
    """Return the fields that most dataclasses declare, and how many do."""
    found = Counter(
        line.target.id
        for tree in tree_of
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any("dataclass" in ast.unparse(one) for one in node.decorator_list)
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    )
    return dict(found.most_common(most))


def measure(folder: str) -> dict[str, Any]:
    """Return the numbers of one folder of Python files."""
    paths = [path for path in sorted((ROOT / folder).rglob("*.py")) if ".venv" not in path.parts]
    sources = [path.read_text() for path in paths]
    trees = [ast.parse(source) for source in sources]
    lines = [len(source.splitlines()) for source in sources]
    widths = [len(line) for source in sources for line in source.splitlines() if line.strip()]
    code = sum(len(code_lines(source)) for source in sources)
    tokens = (
        token
        for source in sources
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
    )
    comments = sum(is_comment(token) for token in tokens)
    bodies = []
    nodes = 0
    for source, tree in zip(sources, trees, strict=True):
        held = code_lines(source)
        for function in functions(tree):
            body = body_of(function)
            if not body:
                continue
            own = set(range(body[0].lineno, (body[-1].end_lineno or 0) + 1)) & held
            bodies.append(len(own))
            nodes += sum(1 for statement in body for _ in ast.walk(statement))
    every = [node for tree in trees for node in ast.walk(tree)]
    statements = sum(isinstance(node, ast.stmt) for node in every)
    pairs = sum(
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
        for node in every
    )
    comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    return {
        "folder": folder,
        "files": len(paths),
        "lines": sum(lines),
        "file_median": int(statistics.median(lines)),
        "file_p90": quantile(lines, 0.9),
        "file_most": max(lines),
        "body_median": int(statistics.median(bodies)),
        "body_p90": quantile(bodies, 0.9),
        "body_most": max(bodies),
        "nodes_per_body_line": round(nodes / sum(bodies), 1),
        "width_mean": round(statistics.mean(widths), 1),
        "share_over_100_columns": round(sum(width > 100 for width in widths) / len(widths), 4),
        "comments_per_100_lines": round(100 * comments / code, 1),
        "fields_of_most_dataclasses": repeated_fields(trees),
        "per_1000_statements": {
            "pairs of assignments": round(1000 * pairs / statements, 1),
            "conditional expressions": round(
                1000 * sum(isinstance(node, ast.IfExp) for node in every) / statements, 1
            ),
            "comprehensions": round(
                1000 * sum(isinstance(node, comprehensions) for node in every) / statements, 1
            ),
        },
    }


def main() -> None:
    """Measure the library, the programs, the benchmarks and the tests."""
    rows = [measure(folder) for folder in ("rknn_jax", "train", "benchmarks", "tests")]
    for row in rows:
        print(row)
    save("architecture", rows)


if __name__ == "__main__":
    main()
