"""Every kind of page in a real browser, wide and narrow, light and dark: it fits, runs without an
error, contacts nobody, has its marks, and passes axe-core's rules of accessibility.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import axe_core_python
import pytest

from benchmarks import screenshots
from tests.test_compare import BASE, run
from tests.test_report import fake_run
from train import report

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (shutil.which("chromium") or shutil.which("google-chrome")),
        reason="no Chromium is installed here",
    ),
]

AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
KINDS = ("release", "statement", "federation", "run", "compare", "site")
NUM_CHARTS = {"release": 3, "statement": 0, "federation": 3, "run": 3, "compare": 2, "site": 0}
OWN = KINDS[:-1]
"""Pages of this project's own templates. The site's are mkdocs-material's."""

LOOKS = [(1400, "light"), (1400, "dark"), (400, "light"), (400, "dark")]

CHARTS = """() => [...document.querySelectorAll(".chart svg")].map(chart =>
  [...chart.querySelectorAll("path, rect, circle, use")].filter(mark => {
    const box = mark.getBoundingClientRect();
    return box.width + box.height > 0;
  }).length)"""
"""Number of visible marks of each chart."""

CUT = """() => [...document.querySelectorAll("main *")].filter(one => {
  const box = one.getBoundingClientRect();
  return box.width && box.right > innerWidth + 1 && !one.closest(".scroll, svg, details, pre");
}).map(one => one.outerHTML.slice(0, 100))"""
"""Elements beyond the right edge that nothing scrolls."""

BARE = """() => [...document.querySelectorAll("table")].filter(table =>
  !table.caption && !table.hasAttribute("aria-labelledby")
  || [...table.querySelectorAll("th")].some(head => !head.scope)
).map(table => table.outerHTML.slice(0, 200))"""
"""Tables without a name, or with headers of no scope."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    home = tmp_path_factory.mktemp("pages")
    released = screenshots.release(home / "label")
    (home / "run").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        run(patch, replace(BASE, out=home / "compare", epsilons=(0.1, 1.0)))
    return {
        "release": released / "report.html",
        "statement": released / "privacy.html",
        "federation": screenshots.federation(home / "federation"),
        "run": report.write(fake_run(home / "run")),
        "compare": home / "compare" / "compare.html",
        "site": screenshots.site(home / "site"),
    }


@pytest.fixture(scope="module")
def browser():
    with screenshots.chromium() as started:
        yield started


@pytest.fixture
def opened(browser, pages):
    """Open a page; whatever it says in the console, throws or asks of a host fails the test."""
    contexts = []
    faults = []

    def said(message):
        index = message.location["url"].endswith("search_index.js")  # of a site in a folder
        if message.type == "error" and not index:
            faults.append(message.text)

    def thrown(error):
        if not str(error).endswith("search_index.js"):
            faults.append(str(error))

    def heard(request):
        if not request.url.startswith(("file:", "data:", "blob:")):
            faults.append(request.url)

    def open(kind, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", said)
        tab.on("pageerror", thrown)
        tab.on("request", heard)
        tab.goto(pages[kind].as_uri())
        return tab

    yield open
    for context in contexts:
        context.close()
    assert faults == []


def look(tab, width, scheme):
    tab.set_viewport_size({"width": width, "height": 900})
    tab.emulate_media(color_scheme=scheme)


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_fits_every_screen_and_has_its_marks(opened, kind):
    tab = opened(kind)
    assert tab.title()
    for width, scheme in LOOKS:
        look(tab, width, scheme)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        if kind in OWN:
            assert tab.evaluate(CUT) == []
            charts = tab.evaluate(CHARTS)
            assert len(charts) == NUM_CHARTS[kind]
            assert all(marks > 4 for marks in charts), charts
            dark = tab.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (dark == "rgb(20, 23, 27)") == (scheme == "dark")


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_accessible(opened, kind):
    tab = opened(kind, bypass_csp=True)  # axe is a script from outside
    tab.evaluate(AXE)
    for width, scheme in ((1400, "light"), (400, "dark")):
        look(tab, width, scheme)
        found = tab.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        if kind not in OWN:
            found = [one for one in found if one["impact"] in ("serious", "critical")]
        told = {
            one["id"]: [(node["html"][:120], node["failureSummary"]) for node in one["nodes"][:2]]
            for one in found
        }
        assert told == {}
        if kind in OWN:
            assert tab.evaluate(BARE) == []


@pytest.mark.parametrize("kind", OWN)
def test_a_page_tells_all_without_javascript(opened, kind):
    shown = {}
    for on in (True, False):
        tab = opened(kind, java_script_enabled=on)
        assert not tab.locator("#filter:visible").count() or on
        shown[on] = [tab.locator(f"{tag}:visible").count() for tag in ("tr", "circle", "p")]
    assert shown[True] == shown[False]
    assert shown[True][0] > 4


@pytest.mark.parametrize("kind", ["release", "federation"])
def test_a_table_sorts_and_a_filter_leaves_one_class(opened, kind):
    tab = opened(kind)
    look(tab, 400, "light")
    tab.get_by_role("button", name="stability", exact=True).click()
    cells = tab.locator("#rows tbody tr > td:nth-child(3)").all_inner_texts()
    values = [float(cell.rstrip("%")) for cell in cells]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]
    assert tab.locator("#rows th[aria-sort=descending]").count() == 1
    tab.get_by_label("Class").select_option("1")
    assert tab.locator("#map-chart g:visible").count() == 1
    assert tab.locator("#classes tbody tr:visible").count() == 1
    tab.get_by_label("Class").select_option("")
    tab.get_by_role("slider").fill("60")
    kept = tab.locator("#map-chart circle:visible").count()
    assert 0 < kept < tab.locator("#map-chart circle").count()
