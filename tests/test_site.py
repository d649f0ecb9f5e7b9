"""The site: every formula is MathML, and a page fetches nothing from another host."""

import re
from pathlib import Path

import markdown
import pytest

import mkdocs_math

ROOT = Path(__file__).parent.parent
SITE = ROOT / "site"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'> ]+"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|icon|preconnect))[^>]*https?://[^\"'> ]+"
    r"|@import\s+(?:url\()?[\"']?https?://[^\"') ]+"
    r"|\burl\([\"']?(?:https?:)?//[^\"') ]+",
    re.IGNORECASE,
)
"""Ways in which a page has a browser ask another host. A link that a reader follows is none."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_every_formula_becomes_mathml(page):
    made = markdown.markdown(
        page.read_text(),
        extensions=["tables", "md_in_html", "pymdownx.superfences", "pymdownx.arithmatex"],
        extension_configs={"pymdownx.arithmatex": {"generic": True}},
    )
    shown = mkdocs_math.on_page_content(made)
    assert shown.count("<math ") == made.count('class="arithmatex"')
    assert not re.search(r"\\[(\[]", re.sub(r"<(pre|code).*?</\1>", "", shown, flags=re.DOTALL))


def test_tex_that_is_not_known_ends_the_build():
    with pytest.raises(ValueError, match=r"Expected TeX .* got \\nonsense"):
        mkdocs_math.on_page_content(r'<span class="arithmatex">\(\nonsense{x}\)</span>')


def test_a_way_to_another_host_is_found():
    for text in (
        '<script src="https://a.example/x.js">',
        "<img alt=x src=//a.example/x.png>",
        '<link href="https://a.example/x.css" rel="stylesheet">',
        "@import 'https://a.example/x.css'",
        "background: url(https://a.example/x.png)",
    ):
        assert FETCHED.search(text), text
    assert not FETCHED.search(
        '<a href="https://a.example">a</a> <link rel="canonical" href="https://b">'
    )


@pytest.mark.slow
def test_no_page_of_the_built_site_fetches_from_another_host():
    if not SITE.exists():
        pytest.skip("make docs builds the site")
    files = [path for path in SITE.rglob("*") if path.suffix in (".html", ".css")]
    assert len(files) > len(PAGES)
    found = {}
    for path in files:
        text = path.read_text()
        shown = re.sub(r"<(pre|code|script).*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r"\\[(\[]", shown), f"TeX in {path}, perhaps in a heading"
        if addresses := FETCHED.findall(text):
            found[str(path.relative_to(SITE))] = addresses[:3]
    assert found == {}
