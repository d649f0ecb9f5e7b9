"""The guarantee: what compares, what the sentence says, and what is refused."""

import json
import math
from dataclasses import replace

import pytest

from rknn_jax.privacy.guarantee import Event, Guarantee

PURE = Guarantee(0.1, 0.0, "replace-one", "central", (Event("discrete_laplace", 20.0, 2),), sampler="release")


def test_smaller_epsilon_and_delta_is_stronger_and_incomparable_amounts_are_neither():
    weaker, other = replace(PURE, epsilon=0.2), replace(PURE, epsilon=0.05, delta=1e-6)
    assert PURE <= weaker
    assert PURE < weaker
    assert weaker > PURE
    assert not weaker <= PURE
    assert not PURE < PURE
    assert not PURE <= other
    assert not other <= PURE


@pytest.mark.parametrize(("field", "value"), [("relation", "add-remove"), ("unit", "client"), ("trust", "local")])
def test_guarantees_of_different_meaning_do_not_compare(field, value):
    with pytest.raises(ValueError, match=field):
        PURE <= replace(PURE, **{field: value})  # noqa: B015


def test_the_sentence_names_amount_relation_unit_trust_accountant_and_simulation():
    sentence = str(replace(PURE, delta=1e-5, unit="client", trust="shuffle", accountant="PLD", sampler="simulation"))
    for words in ("epsilon = 0.1", "delta = 1e-05", "one client's content is replaced", "shuffler", "PLD", "not a private release"):
        assert words in sentence
    assert "(pure)" in str(PURE)
    assert "simulated" not in str(PURE)
    assert "may not be published" in str(replace(PURE, data_dependent=True))
    assert str(replace(PURE, epsilon=math.inf)).startswith("No privacy")


@pytest.mark.parametrize(
    ("epsilon", "delta", "printed"), [(0.12345641, 1.0009e-5, ("0.123457", "1.01e-05")), (3 * 0.1, 1e-6, ("0.3,", "1e-06"))]
)
def test_the_sentence_never_rounds_the_amount_down(epsilon, delta, printed):
    sentence = str(replace(PURE, epsilon=epsilon, delta=delta))
    assert all(number in sentence for number in printed)


def test_the_dictionary_is_strict_json_and_holds_the_sentence():
    guarantee = replace(PURE, epsilon=math.inf, events=(Event("pure", math.inf),))
    fields = json.loads(json.dumps(guarantee.asdict(), allow_nan=False))
    assert fields["epsilon"] == fields["events"][0]["parameter"] == "infinity"
    assert PURE.asdict()["events"] == [{"kind": "discrete_laplace", "parameter": 20.0, "count": 2}]
    assert PURE.asdict()["statement"] == str(PURE)


@pytest.mark.parametrize(
    ("field", "value"),
    [("epsilon", -0.1), ("epsilon", math.nan), ("delta", 1.0), ("delta", -1e-9), ("delta", math.nan), ("relation", "both")]
    + [("unit", "silo"), ("trust", "nobody"), ("sampler", "numpy")],
)
def test_a_guarantee_without_meaning_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=field):
        replace(PURE, **{field: value})


@pytest.mark.parametrize(("field", "value"), [("kind", "uniform"), ("parameter", -1.0), ("parameter", math.nan), ("count", 0)])
def test_an_event_without_meaning_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=field):
        replace(PURE.events[0], **{field: value})
