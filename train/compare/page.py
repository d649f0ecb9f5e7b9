"""Page of a comparison as HTML and as Markdown."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rknn_jax.report import pages

from .sections import Section

TEMPLATE = pages.template("compare.html.j2", Path(__file__).parent)
"""Template of the page, read once, so that a change during a run of an hour has no effect."""


def markdown(found: dict[str, Any], parts: Sequence[Section]) -> str:
    """Return the text and tables of the page as Markdown."""
    text = io.StringIO()
    text.write(f"# {title(found)}\n")
    for part in parts:
        text.write(f"\n## {part.title}\n")
        for words in part.words:
            text.write(f"\n{words}\n")
        if part.header:
            text.write(
                "\n"
                + "\n".join(
                    "| " + " | ".join(row) + " |"
                    for row in (part.header, ["---"] * len(part.header), *part.rows)
                )
                + "\n"
            )
        if part.items:
            text.write("\n" + "\n".join(f"- {item}" for item in part.items) + "\n")
        if part.charts:
            text.write("\nThe curves are in compare.html, and their points in compare.json.\n")
    return text.getvalue()


def title(found: dict[str, Any]) -> str:
    """Return the heading."""
    whole = (
        ""
        if found["measured"] == found["runs"]
        else f", {found['measured']} of {found['runs']} runs so far"
    )
    return f"{found['dataset']}: {len(found['settings'])} methods on the same splits{whole}"


def page(found: dict[str, Any], parts: Sequence[Section]) -> str:
    """Return the page, which loads nothing."""
    return TEMPLATE.render(title=title(found), found=found, parts=parts)
