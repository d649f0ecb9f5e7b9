"""Common frame and components of all HTML pages.

`base.html.j2` is the frame with the style, and `parts.html.j2` has the components: tables, charts
and lists of concerns. A program's own template extends the frame. All text is escaped.
"""

import functools
from pathlib import Path

import jinja2

from rknn_jax.report.text import delta_text, epsilon_text, percent, plain, shortened

COLOURS = {
    "ink": ("#1b1f24", "#e6e8eb"),
    "muted": ("#68707c", "#9aa3af"),
    "line": ("#dcdfe4", "#343a43"),
    "paper": ("#ffffff", "#14171b"),
    "card": ("#f6f7f9", "#1c2026"),
    "label": ("#2563eb", "#6ea2ff"),
    "student": ("#0d8a63", "#35c794"),
    "wrong": ("#d1242f", "#ff6b70"),
    "published": ("#a15c07", "#e0a030"),
}
"""Light and dark colors of pages and charts, which templates use as CSS variables."""


@functools.cache  # compiling a template takes far longer than rendering it
def template(name: str, folder: Path | None = None) -> jinja2.Template:
    """Return a template that may extend the frame and import the components.

    Args:
      name: Name of the template's file.
      folder: Folder of the template. Defaults to None, for those of this package.
    """
    folders = [Path(__file__).parent] if folder is None else [folder, Path(__file__).parent]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "epsilon": epsilon_text,
        "delta": delta_text,
        "plain": plain,
        "short": shortened,
    }
    environment.globals["colours"] = COLOURS
    return environment.get_template(name)
