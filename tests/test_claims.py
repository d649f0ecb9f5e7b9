"""Numbers in the prose of README.md and docs come from cells of JSON, or from no measurement.

Tables are made of the JSON (tests/test_documentation.py). A sentence beside a table is written by
hand, and stays as it was when the table changes. So every number with a unit in the prose of `READ`
is in a phrase of phrases.py: of `MEASURED`, which names its cells, or of `ELSEWHERE`. A number
without a unit, or one in words such as "half a point", is compared only if a phrase has it.
"""

import re

import pytest

from benchmarks import tables
from tests.phrases import ELSEWHERE, MEASURED

FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(
    r"(?<![\w.^{/$-])\d[\d,]*(?:\.\d+)?"
    r"(?:%| (?:points?|s|ms|min|minutes|hours|days|[kMG]i?B|images a second|times)\b"
    r"| of (?:the |all )?\d)"
)
"""A number and the unit that makes it a measurement."""

UNREAD = {
    "docs/reproducing.md",  # its times are those that the JSON of each row records
    "docs/tutorial_images.md",  # its bounds are those of tests/test_documentation.py
}
READ = [
    name
    for path in tables.documents()
    if (name := path.relative_to(tables.ROOT).as_posix()) not in UNREAD
]


def prose(document: str) -> str:
    """Return a document in one line, without blocks of code and without tables of results."""
    text = tables.PLACE.sub("", FENCE.sub("", (tables.ROOT / document).read_text()))
    return " ".join(text.split())


def told(document: str) -> list[str]:
    """Return the phrases of a document whose numbers are measured, with the numbers of JSON."""
    found = []
    for phrase, of in MEASURED.get(document, []):
        numbers = of()
        found.append(phrase.format(*((numbers,) if isinstance(numbers, str) else numbers)))
    return found


@pytest.mark.parametrize("document", MEASURED)
def test_phrases_say_what_their_cells_say(document):
    text = prose(document)
    for phrase in told(document):
        assert phrase in text, f"{document} does not say, as JSON does: {phrase}"


@pytest.mark.parametrize("document", READ)
def test_every_number_with_a_unit_names_its_cells(document):
    text = prose(document)
    phrases = told(document) + ELSEWHERE.get(document, [])
    spans = [found.span() for one in phrases for found in re.finditer(re.escape(one), text)]
    for number in NUMBER.finditer(text):
        first, last = number.span()
        around = text[max(0, first - 60) : last + 40]
        assert any(start <= first and last <= end for start, end in spans), (
            f"nothing backs {number[0]!r} of {document} in: {around}; add a phrase to MEASURED"
        )


def test_phrases_without_a_measurement_are_there():
    for document, phrases in ELSEWHERE.items():
        missing = [one for one in phrases if one not in prose(document)]
        assert not missing, f"{document} no longer says {missing}; take them out of ELSEWHERE"


@pytest.mark.parametrize(
    "text", ["up to 1.6 points", "12.5% of", "in 2.3 s", "13 of the 18 rows", "4 times as fast"]
)
def test_numbers_with_a_unit_are_found(text):
    assert NUMBER.search(text)
