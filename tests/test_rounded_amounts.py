"""Amounts in words: what is promised is never less than what was spent."""

import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest

import rknn_jax
from rknn_jax.federation.publish import trusted_with
from rknn_jax.privacy.charges import decimal_above
from rknn_jax.report.release import tiles
from rknn_jax.report.text import delta_text, epsilon_text

ROOT = Path(rknn_jax.__file__).parent
TEMPLATES = [*ROOT.rglob("*.j2"), *ROOT.parent.glob("train/**/*.j2")]
NEAREST = re.compile(r"(%\.?[1-9]?g\b|:\.?[1-9]?g\}).{0,30}\b(epsilon|delta)\b")
"""Amount that a template rounds to the nearest number of at most nine digits."""


def test_a_shuffled_message_is_promised_no_less_than_it_costs():
    """The statement said 3 of messages of epsilon = 3.00049."""
    config = SimpleNamespace(trust="shuffle")
    round = SimpleNamespace(summed=False, config=config, message_epsilon=3.00049, honest=5)
    assert "is still 3.001-private" in trusted_with(round)


def test_pages_round_amounts_up():
    assert (epsilon_text(3.00049), delta_text(1.4441e-5)) == ("3.001", "1.45e-05")
    assert (epsilon_text("infinity"), delta_text(0.0), delta_text(1e-6)) == ("∞", "0", "1e-06")
    guarantee = {"epsilon": 1.0, "delta": 1.44e-5, "unit": "record", "relation": "replace-one"}
    nothing = SimpleNamespace(sum=lambda: 0)
    shown = SimpleNamespace(
        measured=None,
        shares={},
        card={"guarantee": guarantee},
        label=[],
        labeled=nothing,
        doubtful=nothing,
        stability=[],
        classes=[],
    )
    words = {name: text for name, _, text in tiles(shown)}
    assert words["Privacy spent"].startswith("δ = 1.5e-05")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.parent.name + "/" + path.name)
def test_no_template_rounds_an_amount_to_the_nearest(path):
    assert not NEAREST.findall(path.read_text())


@pytest.mark.parametrize("value", ["0.2345672", "0.1", "1/3", "3", "1234567", "2345678901/7"])
def test_a_budget_that_is_advised_suffices(value):
    """A release that needs 0.2345672 in all was advised 0.234567, and was refused again."""
    advised, needed = Fraction(decimal_above(Fraction(value))), Fraction(value)
    assert needed <= advised <= needed * Fraction("1.00001")
