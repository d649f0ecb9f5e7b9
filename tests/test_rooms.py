"""Rooms of the package: imports point one way, and nothing needs the command line."""

import ast
import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from rknn_jax import federation

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "rknn_jax"


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in LIBRARY.rglob("*.py")}


def imported(path):
    """Modules of the package that a file imports, late and for types alone too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("rknn_jax"):
            continue
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield whole if whole in MODULES else node.module


@pytest.fixture(scope="module")
def graph():
    """Modules that each module imports, found when a test asks: all files are parsed for it."""
    return {name: set(imported(path)) - {name} for name, path in MODULES.items()}


def test_no_module_imports_itself_by_way_of_others(graph):
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_nothing_imports_the_command_line(graph):
    inside = {name for name in graph if name.startswith(("rknn_jax.cli", "rknn_jax.__main__"))}
    users = {name for name, needs in graph.items() if needs & inside} - inside
    assert not users


def test_rooms_point_one_way(graph):
    """A room that another one stands on does not stand on it."""
    rooms = defaultdict(set)
    for name, needs in graph.items():
        room = name.split(".")[1:2]
        rooms["".join(room)] |= {"".join(need.split(".")[1:2]) for need in needs}
    order = {room: needs - {room, ""} for room, needs in rooms.items() if room}
    both = {(a, b) for a, needs in order.items() for b in needs if a in order.get(b, ())}
    assert not both


def test_the_table_of_the_federation_has_every_file():
    named = {
        name for row in federation.__doc__.splitlines() for name in re.findall(r"`(\w+)`", row)
    }
    assert {path.stem for path in (LIBRARY / "federation").glob("*.py")} - {"__init__"} <= named
