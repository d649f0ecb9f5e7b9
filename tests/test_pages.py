"""Pages can be read: none is long, and no help of an option is half a sentence."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SETTINGS = [
    *sorted((ROOT / "rknn_jax/cli").glob("*.py")),
    ROOT / "rknn_jax/federation/join_settings.py",
    ROOT / "rknn_jax/federation/settings.py",
    ROOT / "rknn_jax/release/settings.py",
    ROOT / "rknn_jax/settings.py",
]
HALF = re.compile(r"^ +\w+: (?:of|that|whose|by which|with which) .*", re.MULTILINE)
RIDDLES = re.compile(
    r"likewise|where (?:it is|they are|none is|nothing is) (?:not )?(?:given|named|said)"
    r"|of nobody|no finite number|that are no (?!larger|longer|more|less)|in the place of"
    r"|with commas between them or as",
    re.IGNORECASE,
)
MOST_WORDS = 2_500


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_read_in_ten_minutes(page):
    text = re.sub(r"^( *)```.*?^\1``` *$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    prose = [line for line in text.splitlines() if not line.lstrip().startswith("|")]
    words = len(" ".join(prose).split())
    assert words <= MOST_WORDS, f"{words} words beside tables and code; part the page"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_riddles(page):
    assert not RIDDLES.findall(page.read_text())


@pytest.mark.parametrize("file", SETTINGS, ids=lambda file: str(file.relative_to(ROOT)))
def test_help_names_the_thing_that_an_option_sets(file):
    text = "\n".join(re.findall(r'"""(?:.*?)"""', file.read_text(), re.DOTALL))
    assert not HALF.findall(text), "begin with the thing: 'seed of the clustering'"
    assert not RIDDLES.findall(text)
