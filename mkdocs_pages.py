"""Build hook of the site: pages that are made from code, and links of notebooks.

Each module has a page, the usual names a table, and all commands the page of their help.
A page of `docs/api` names folders and modules by `:::`. It becomes a table of them, and each has a
page of its own, so that no page holds a whole folder.
"""

import contextlib
import importlib
import importlib.util
import inspect
import io
import os
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

import rknn_jax

SHOWN = re.compile(
    r"^::: ([\w.]+)\n(?P<folder>    options:\n      show_submodules: true\n)?\n*", re.MULTILINE
)
PAGES = Path(__file__).parent / "docs/api"
BASIC = "index.md"
COMMANDS = (
    *("label", "check", "classes", "embed", "budget", "inspect", "export", "simulate", "account"),
    *("serve", "join", "audit"),
)
WIDTH = "110"
"""Columns of a command's help."""


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the page of each module, and that of the commands."""
    for page in sorted(PAGES.glob("*.md")):
        for name in modules(page.read_text()) if page.name != BASIC else ():
            made = File.generated(config, _page(name), content=f"# {name}\n\n::: {name}\n")
            made.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(made)
    files.append(File.generated(config, "cli.md", content=commands()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put tables into the pages of folders, and into that of the usual names."""
    folder, _, name = page.file.src_uri.rpartition("/")
    if folder != "api":
        return markdown
    intro = SHOWN.split(markdown, maxsplit=1)[0]
    if name == BASIC:
        return f"{intro}{usual()}"
    rows = [
        (f"[`{one}`](modules/{one}.md)", importlib.import_module(one)) for one in modules(markdown)
    ]
    return f"{intro}{_table(rows)}"


def on_page_content(content: str, page: Page, **_: Any) -> str:
    """Let the links of a notebook lead to pages of the site, as mkdocs does for other documents."""
    if not page.file.src_uri.endswith(".ipynb"):
        return content
    return re.sub(r'(<a href="[\w./-]+)\.md\b', r"\1.html", content)


def modules(text: str) -> Iterator[str]:
    """Yield the names of the public modules that a page names, and of those in its folders."""
    for found in SHOWN.finditer(f"{text}\n"):
        name = found[1]
        yield name
        if found["folder"]:
            inside = pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}.")
            names = (module.name for module in inside)
            yield from (one for one in names if not re.search(r"\._", one) and _is_python(one))


def usual() -> str:
    """Return the names of `rknn_jax` with their first sentences."""
    rows = []
    own = []
    for name, module in rknn_jax._MODULES.items():
        path = f"rknn_jax.{module}.{name}"
        rows.append((f"[`{name}`][{path}]", getattr(rknn_jax, name)))
        if module.startswith("_"):  # its module has no page
            own.append(f"::: {path}")
    return "\n\n".join([_table(rows), *own]) + "\n"


def commands() -> str:
    """Return the help of all commands as a page."""
    from rknn_jax.cli.main import main

    os.environ["COLUMNS"] = WIDTH
    parts = ["# Commands", "Every option of `rknn`, as `rknn COMMAND --help` prints it."]
    for name in COMMANDS:
        told = io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
            main([name, "--help"])
        parts.append(f"## rknn {name}\n\n```text\n{told.getvalue().strip()}\n```")
    return "\n\n".join(parts) + "\n"


def _is_python(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and str(spec.origin).endswith(".py")


def _page(module: str) -> str:
    return f"api/modules/{module}.md"


def _table(rows: list[tuple[str, Any]]) -> str:
    """Return links and the first sentence of what each leads to."""
    cells = [
        f"| {link} | {' '.join((inspect.getdoc(one) or '').split(chr(10) * 2)[0].split())} |"
        for link, one in rows
    ]
    return "\n".join(["| name | |", "| --- | --- |", *(cell.replace("\\|", "|") for cell in cells)])
