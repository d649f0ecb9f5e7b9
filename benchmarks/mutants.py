"""Mutation testing of the modules that privacy depends on.

The result is the share of small faults that `make test` and `make long` notice. Cosmic Ray proposes
the faults: another comparison, another operator, another number, a loop that never runs. Each
module gets a fixed sample of faults, one per line while there are lines, drawn by a hash. A later
run therefore tries the same faults again if the line is the same. Each fault is planted in a copy
of the project, in a fresh process. The tests named for the module run until the first failure.

`equivalent_mutants.json` lists faults that no test can notice because no promise changes, each with
its reason.

`make mutants` runs all of it. It writes each result as it comes, and the same command continues: a
result is used again as long as the module is as it was, and the file of the test that found the
fault; all tests, if none did. `python -m benchmarks.mutants --only bsvs ledger` runs the modules of
these names, in this order.
"""

import argparse
import ast
import collections
import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from benchmarks._mutated import TESTS
from benchmarks._planting import Fault, at_work, check_finders, state

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
EQUIVALENT = Path(__file__).parent / "equivalent_mutants.json"
PER_MODULE = 10
CPU_SECONDS = 120  # more than the tests of any module need, to notice a fault that loops forever
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
    """Return a module's sample of faults: of `count` lines, the first by hash.

    Each line contributes its first fault by hash. Where there are fewer lines than `count`, they
    contribute their second ones, and so on.
    """
    source = (root / path).read_text()
    lines = source.splitlines()
    by_line: dict[int, list[tuple[str, int]]] = {}
    for name in OPERATORS:
        for occurrence, line in enumerate(_lines_of(source, name)):
            by_line.setdefault(line, []).append((name, occurrence))
    waiting = collections.deque(
        _faults(path, source, line, by_line[line])
        for line in sorted(by_line, key=lambda line: _hash(path, lines[line - 1]))
    )
    found: dict[str, Fault] = {}
    while waiting and len(found) < count:
        faults = waiting.popleft()
        fault = next(faults, None)
        if fault is not None:
            found.setdefault(fault.name, fault)
            waiting.append(faults)
    return sorted(found.values(), key=lambda mutant: mutant.line)


def _faults(path: str, source: str, line: int, places: list[tuple[str, int]]) -> Iterator[Fault]:
    """Yield the faults of a line that change its meaning, by hash.

    Args:
      path: Path of the file.
      source: Text of the file.
      line: Number of the line, from 1.
      places: Operators that apply to the line, and their occurrences in the file.
    """
    before = source.splitlines()[line - 1]
    first = places[0][1]
    for name, occurrence in sorted(
        places, key=lambda fault: _hash(before, fault[0], str(fault[1] - first))
    ):
        code = mutate_code(source, plugins.get_operator(f"core/{name}")(), occurrence)
        if code is not None and _meaning(code) not in (None, _meaning(source)):
            after = code.splitlines()[line - 1]
            yield Fault(path, line, before.strip(), after.strip(), code)


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
        node.defaults += [default for default in node.kw_defaults if default is not None]
        node.kw_defaults = []
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


@functools.lru_cache(maxsize=2)
def _meaning(code: str) -> str | None:
    """Return the meaning of a file as text; None if the file is not Python."""
    try:
        return ast.dump(_Promised().visit(ast.parse(code)))
    except SyntaxError:
        return None


def scores(rows: list[dict[str, Any]], equivalent: dict[str, str]) -> dict[str, Any]:
    """Return each module's number of faults, of noticed ones, and of those that change nothing."""
    found: dict[str, Any] = {}
    for path in dict.fromkeys(row["path"] for row in rows):
        mine = [row for row in rows if row["path"] == path]
        noticed = sum(row["outcome"] != "survived" for row in mine)
        excused = sum(row["outcome"] == "survived" and _name(row) in equivalent for row in mine)
        found[path] = {
            "mutants": len(mine),
            "noticed": noticed,
            "equivalent": excused,
        }
    return found


def _name(row: dict[str, Any]) -> str:
    return f"{row['path']}: {row['before']} -> {row['after']}"


def parts(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the date of each module's last fault, and the module's digest as it was then."""
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["date"]):
        found[row["path"]] = {
            "date": row["date"],
            "sources": {row["path"]: row["state"].partition(" ")[0]},
        }
    return found


def last_rows(name: str) -> list[dict[str, Any]]:
    """Return the last results."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text())["results"]["mutants"] if file.exists() else []


def is_current(row: dict[str, Any], root: Path) -> bool:
    """Return True if a fault's module, and the tests that did or did not find it, are the same."""
    path = row["path"]
    return path in TESTS and row["state"] == state(root, path, TESTS[path], row["by"])


def chosen(words: list[str]) -> list[str]:
    """Return the modules whose path contains one of the words, in the order of the words."""
    return list(dict.fromkeys(path for word in words for path in TESTS if word in path))


def main() -> None:
    """Run all faults and write the results as they come."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], help="modules whose path contains this")
    parser.add_argument("--count", type=int, default=PER_MODULE, help="faults of each module")
    parser.add_argument("--name", default="mutants", help="of the JSON under benchmarks/results")
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="of another checkout whose tests to try"
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help="faults at a time")
    settings = parser.parse_args()
    # Imported late: a process forked for a fault must not hold the project's modules.
    from benchmarks._measure import git, save

    equivalent = json.loads(EQUIVALENT.read_text())
    last = last_rows(settings.name)
    finders = [row["by"] for row in last if row["by"]]
    current = [row for row in last if is_current(row, settings.root)]
    commit = git("-C", str(settings.root), "rev-parse", "HEAD")
    rows: list[dict[str, Any]] = []

    def write() -> None:
        done = {row["path"] for row in rows}
        # Those of a module that has changed stay until it is tried again; its part says so.
        every = rows + [row for row in last if row["path"] in TESTS and row["path"] not in done]
        every.sort(key=lambda row: list(TESTS).index(row["path"]))
        found = {"scores": scores(every, equivalent), "mutants": every}
        about = {"sample": settings.count, "modules": len(TESTS), "commit": commit}
        about["command"] = "python -m benchmarks.mutants"  # whichever modules came last
        save(settings.name, found, **about, parts=parts(every))

    with at_work(settings.root, settings.workers, CPU_SECONDS, finders) as plant:
        for path in chosen(settings.only):
            sample = mutants(settings.root, path, settings.count)
            known = {_name(row): row for row in current if row["path"] == path}
            rows += [known[mutant.name] for mutant in sample if mutant.name in known]
            todo = [mutant for mutant in sample if mutant.name not in known]
            for row in plant(todo, [TESTS[path]] * len(todo)):
                rows.append(row)
                told = f"{row['outcome']:8} {row['seconds']:6.1f} s  {path}:{row['line']}"
                print(f"{told}  {row['before']}  ->  {row['after']}", flush=True)
                write()
            write()  # also if only the list of equivalent faults has changed
        check_finders(plant, settings.root, rows)


if __name__ == "__main__":
    main()
