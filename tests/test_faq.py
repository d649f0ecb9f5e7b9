"""Messages of docs/faq.md are those of the program."""

import re

from rknn_jax._internal.option_names import as_flag
from tests.test_documentation import ROOT


def literals():
    """Return the text of the package's sources, as a command line shows it.

    Neighboring strings are joined, and settings are flags.
    """
    source = "\n".join(path.read_text() for path in (ROOT / "rknn_jax").rglob("*.py"))
    source = re.sub(r"\{option\('(\w+)'\)\}", lambda found: as_flag(found[1]), source)
    return re.sub(r"\"\s*f?\"", "", source)


def test_every_message_of_the_page_is_one_of_the_program():
    text = (ROOT / "docs/faq.md").read_text()
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    messages = [title for title in titles if not title.endswith("?")]
    assert len(messages) >= 7
    source = literals()
    for message in messages:
        for part in message.split("…"):
            assert part.strip() in source, part
