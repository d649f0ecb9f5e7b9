"""The site: every formula is MathML, and a page fetches nothing from another host."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

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


@pytest.mark.long
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


class Addresses(HTMLParser):
    """Return what a page links to, and the places in it that others may link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        held = dict(attributes)
        self.places |= {held[name] or "" for name in ("id", "name") if name in held}
        if tag == "a" and held.get("href"):
            self.links.append(held["href"] or "")


@pytest.mark.slow
def test_every_link_of_the_built_site_leads_to_a_place_that_is_there():
    """Also those of notebooks and of pages that were generated, which mkdocs does not check."""
    if not SITE.exists():
        pytest.skip("make docs builds the site")
    pages = {path: Addresses(path.read_text()) for path in SITE.rglob("*.html")}
    lost = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are those of the site's root
            continue
        for link in page.links:
            address, _, place = link.partition("#")
            if re.match(r"\w+:|//", address):
                continue
            target = (path.parent / unquote(address)).resolve() if address else path
            there = target.exists() and (not place or target not in pages)
            if not there and unquote(place) not in getattr(pages.get(target), "places", ()):
                lost.append(f"{path.relative_to(SITE)}: {link}")
    assert lost == []
