"""Build hook of the site: formulas become MathML, so that a page needs no script and no network."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Return a page with MathML in the place of its TeX."""
    return FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    """Return one formula; raises `ValueError` if a command of TeX is not known."""
    tex = html.unescape(found[2])
    made = convert(tex, display="block" if found[1] == "div" else "inline")
    if "\\" in made:
        raise ValueError(f"Expected TeX that latex2mathml knows, got {tex}; write it otherwise.")
    return f'<{found[1]} class="arithmatex">{made}</{found[1]}>'
