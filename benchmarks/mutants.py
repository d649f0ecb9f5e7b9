"""Mutation testing of the modules that privacy depends on.

The result is the share of small faults that the tests of `make test` notice. Cosmic Ray proposes
the faults: another comparison, another operator, another number, a loop that never runs. Each
module gets a fixed sample of faults, at most one per line, drawn by a hash. A later run therefore
tries the same faults again if the line is the same. Each fault is planted in a copy of the project,
in a fresh process. The tests named for the module run until the first failure.

`equivalent_mutants.json` lists faults that no test can notice because no promise changes, each with
its reason.

`make mutants` runs all of it. It writes each result as it comes, and the same command continues: a
result is used again as long as the module and its tests are as they were. `python -m
benchmarks.mutants --only ledger` runs one module.
"""

import argparse
import ast
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from benchmarks._mutated import TESTS
from benchmarks._planting import Fault, at_work, state

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
EQUIVALENT = Path(__file__).parent / "equivalent_mutants.json"
PER_MODULE = 10
CPU_SECONDS = 400  # more than the tests of any module need, to notice a fault that loops forever
WORKERS = 2

OPERATORS = (
    *(
        f"ReplaceComparisonOperator_{pair}"
        for pair in (
            "Lt_LtE",
            "LtE_Lt",
            "Gt_GtE",
            "GtE_Gt",
            "Lt_Gt",
            "Gt_Lt",
            "Eq_NotEq",
            "NotEq_Eq",
        )
    ),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Is_IsNot", "IsNot_Is")),
    *(
        f"ReplaceBinaryOperator_{pair}"
        for pair in (
            "Add_Sub",
            "Sub_Add",
            "Mul_Div",
            "Div_Mul",
            "FloorDiv_Mul",
            "Mod_FloorDiv",
            "Pow_Mul",
        )
    ),
    *(
        f"ReplaceBinaryOperator_{pair}"
        for pair in ("BitAnd_BitOr", "BitOr_BitAnd", "RShift_LShift", "LShift_RShift")
    ),
    *(
        f"ReplaceUnaryOperator_{pair}"
        for pair in ("USub_UAdd", "Delete_USub", "Delete_Not", "Delete_Invert")
    ),
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "AddNot",
    "NumberReplacer",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ZeroIterationForLoop",
)
"""Cosmic Ray's operators that keep the types of a program.

Few of these faults are noticed by a crash alone.
"""


def mutants(root: Path, path: str, count: int) -> list[Fault]:
    """Return a module's sample of faults: `count` lines, the first by hash.

    Each line contributes its first fault by hash.
    """
    source = (root / path).read_text()
    lines = source.splitlines()
    meaning = _meaning(source)
    by_line: dict[int, list[tuple[str, int]]] = {}
    for name in OPERATORS:
        for occurrence, line in enumerate(_lines_of(source, name)):
            by_line.setdefault(line, []).append((name, occurrence))
    found: list[Fault] = []
    for line in sorted(by_line, key=lambda line: _hash(path, lines[line - 1])):
        first = by_line[line][0][1]
        for name, occurrence in sorted(
            by_line[line], key=lambda fault: _hash(lines[line - 1], fault[0], str(fault[1] - first))
        ):
            code = mutate_code(source, plugins.get_operator(f"core/{name}")(), occurrence)
            if code is not None and _meaning(code) not in (None, meaning):
                after = code.splitlines()[line - 1]
                found.append(Fault(path, line, lines[line - 1].strip(), after.strip(), code))
                break
        if len(found) == count:
            break
    return sorted(found, key=lambda mutant: mutant.line)


def _lines_of(source: str, operator: str) -> list[int]:
    """Return the line of each place at which an operator can be used, in Cosmic Ray's order."""
    mutated = plugins.get_operator(f"core/{operator}")()
    return [
        position[0][0] for node in _nodes(source) for position in mutated.mutation_positions(node)
    ]


@functools.lru_cache(maxsize=1)
def _nodes(source: str) -> list[Any]:
    return list(ast_nodes(get_ast(source)))


def _hash(*words: str) -> bytes:
    return hashlib.sha256("\n".join(words).encode()).digest()


class _Promised(ast.NodeTransformer):
    """Transformer that leaves out what no test should fix.

    These are annotations, decorators, texts of errors, and examples for tests.
    """

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
        node.posonlyargs = []
        node.kwonlyargs = []
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        node.decorator_list = []
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list = []
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        examples = isinstance(node.targets[0], ast.Name) and node.targets[0].id == "EXAMPLES"
        return ast.Pass() if examples else self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.Raise()


def _meaning(code: str) -> str | None:
    """Return the meaning of a file as text; None if the file is not Python."""
    try:
        return ast.dump(_Promised().visit(ast.parse(code)))
    except SyntaxError:
        return None


def scores(rows: list[dict[str, Any]], equivalent: dict[str, str]) -> dict[str, Any]:
    """Return each module's share of noticed faults, among those that change a promise."""
    found: dict[str, Any] = {}
    for path in dict.fromkeys(row["path"] for row in rows):
        mine = [row for row in rows if row["path"] == path]
        noticed = sum(row["outcome"] != "survived" for row in mine)
        excused = sum(row["outcome"] == "survived" and _name(row) in equivalent for row in mine)
        found[path] = {
            "mutants": len(mine),
            "noticed": noticed,
            "equivalent": excused,
            "score": noticed / (len(mine) - excused),
        }
    return found


def _name(row: dict[str, Any]) -> str:
    return f"{row['path']}: {row['before']} -> {row['after']}"


def kept(name: str, root: Path) -> list[dict[str, Any]]:
    """Return the last results of modules that are as they were, and whose tests are, too."""
    file = RESULTS / f"{name}.json"
    if not file.exists():
        return []
    states = {path: state(root, path, words) for path, words in TESTS.items()}
    last = json.loads(file.read_text())["results"]["mutants"]
    return [row for row in last if row.get("state") == states.get(row["path"], "")]


def main() -> None:
    """Run all faults, two at a time, and write the results as they come."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="modules whose path contains this")
    parser.add_argument("--count", type=int, default=PER_MODULE, help="faults of each module")
    parser.add_argument("--name", default="mutants", help="of the JSON under benchmarks/results")
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="of another checkout whose tests to try"
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help="faults at a time")
    settings = parser.parse_args()
    from benchmarks._measure import (
        save,
    )  # imported late, because a process forked for a fault must not hold the project's modules

    paths = [path for path in TESTS if settings.only in path]
    equivalent = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    last = kept(settings.name, settings.root)
    rows: list[dict[str, Any]] = []
    with at_work(settings.root, settings.workers, CPU_SECONDS) as plant:
        for path in paths:
            sample = mutants(settings.root, path, settings.count)
            known = {_name(row): row for row in last if row["path"] == path}
            rows += [known[mutant.name] for mutant in sample if mutant.name in known]
            todo = [mutant for mutant in sample if mutant.name not in known]
            for row in plant(todo, [TESTS[path]] * len(todo)):
                rows.append(row)
                place = f"{row['path']}:{row['line']}"
                print(
                    f"{row['outcome']:8} {row['seconds']:6.1f} s  {place}  {row['before']}  ->  "
                    f"{row['after']}",
                    flush=True,
                )
                rest = [row for row in last if row["path"] not in {row["path"] for row in rows}]
                save(
                    settings.name,
                    {"scores": scores(rows + rest, equivalent), "mutants": rows + rest},
                    sample=settings.count,
                    modules=len(TESTS),
                    load=os.getloadavg()[0],
                )


if __name__ == "__main__":
    main()
