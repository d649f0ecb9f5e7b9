"""The guarantee: what compares, what the sentence says, and what is refused."""

import json
import math
from dataclasses import replace

import pytest

from rknn_jax.privacy.events import (
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Pure,
    SampledGaussian,
    ScreenedGaussian,
)
from rknn_jax.privacy.guarantee import LARGE_EPSILON, Guarantee

PURE = Guarantee(0.1, 0.0, "replace-one", "central", (DiscreteLaplace(20.0, 2),), sampler="release")


def test_smaller_epsilon_and_delta_is_stronger_and_incomparable_amounts_are_neither():
    weaker = replace(PURE, epsilon=0.2)
    other = replace(PURE, epsilon=0.05, delta=1e-6)
    assert PURE <= weaker
    assert PURE < weaker
    assert weaker > PURE
    assert not weaker <= PURE
    assert not PURE < PURE
    assert not PURE <= other
    assert not other <= PURE


def test_an_equal_guarantee_is_as_strong_and_no_stronger_and_either_amount_alone_may_differ():
    loose = replace(PURE, delta=1e-5)
    assert loose <= replace(loose)
    assert not loose < replace(loose)
    for weaker in (replace(loose, epsilon=0.2), replace(loose, delta=2e-5)):
        assert loose <= weaker
        assert loose < weaker
        assert not weaker <= loose
        assert not weaker < loose


@pytest.mark.parametrize(
    ("field", "value"), [("relation", "add-remove"), ("unit", "client"), ("trust", "local")]
)
def test_guarantees_of_different_meaning_do_not_compare(field, value):
    with pytest.raises(ValueError, match=field):
        PURE <= replace(PURE, **{field: value})  # noqa: B015


def test_the_sentence_names_amount_relation_unit_trust_accountant_and_simulation():
    sentence = str(
        replace(
            PURE, delta=1e-5, unit="client", trust="shuffle", accountant="PLD", sampler="simulation"
        )
    )
    for words in (
        "epsilon = 0.1",
        "delta = 1e-05",
        "one client's content is replaced",
        "shuffler",
        "PLD",
        "not a private release",
    ):
        assert words in sentence
    assert "(pure)" in str(PURE)
    assert "simulated" not in str(PURE)
    assert "may not be published" in str(replace(PURE, data_dependent=True))
    assert str(replace(PURE, epsilon=math.inf)).startswith("No privacy")


@pytest.mark.parametrize(
    ("epsilon", "delta", "printed"),
    [(0.12345641, 1.0009e-5, ("0.123457", "1.01e-05")), (3 * 0.1, 1e-6, ("0.3,", "1e-06"))],
)
def test_the_sentence_never_rounds_the_amount_down(epsilon, delta, printed):
    sentence = str(replace(PURE, epsilon=epsilon, delta=delta))
    assert all(number in sentence for number in printed)


def test_the_dictionary_is_strict_json_and_holds_the_sentence():
    guarantee = replace(PURE, epsilon=math.inf, events=(Pure(math.inf),))
    fields = json.loads(json.dumps(guarantee.asdict(), allow_nan=False))
    assert fields["epsilon"] == fields["events"][0]["parameter"] == "infinity"
    assert PURE.asdict()["events"] == [{"kind": "discrete_laplace", "parameter": 20.0, "count": 2}]
    assert PURE.asdict()["statement"] == str(PURE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", -0.1),
        ("epsilon", math.nan),
        ("delta", 1.0),
        ("delta", -1e-9),
        ("delta", math.nan),
        ("relation", "both"),
    ]
    + [("unit", "silo"), ("trust", "nobody"), ("sampler", "numpy")],
)
def test_a_guarantee_without_meaning_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=field):
        replace(PURE, **{field: value})


# Defaults, and the last values that are taken


def test_what_is_not_said_is_the_plain_case():
    plain = Guarantee(0.1, 0.0, "replace-one", "central", ())
    assert (plain.unit, plain.accountant, plain.sampler) == ("record", "pure", "simulation")
    assert plain.data_dependent is False


@pytest.mark.parametrize(
    "fields",
    [
        {"epsilon": 0.0},
        {"epsilon": 0.5},
        {"epsilon": math.inf},
        {"delta": 0.999},
        {"trust": "aggregate"},
        {"trust": "shuffle"},
        {"trust": "local"},
        {"relation": "add-remove"},
        {"unit": "client"},
        {"sampler": "simulation"},
    ],
    ids=str,
)
def test_a_guarantee_at_the_end_of_its_range_is_one(fields):
    found = replace(PURE, **fields)
    assert {name: getattr(found, name) for name in fields} == fields


# The sentence, word by word


def test_the_sentence_of_a_release_and_of_a_simulation():
    assert str(PURE) == (
        "Differential privacy with epsilon = 0.1 (pure), for neighboring data sets where one "
        "record's content is "
        "replaced by any other; a trusted curator sees what the records say, without noise, and "
        "adds it "
        "(accountant: pure)."
    )
    noted = replace(PURE, delta=1e-5, data_dependent=True, sampler="simulation", accountant="PLD")
    assert str(noted) == (
        "Differential privacy with epsilon = 0.1, delta = 1e-05, for neighboring data sets "
        "where one record's "
        "content is replaced by any other; a trusted curator sees what the records say, without "
        "noise, and adds it "
        "(accountant: PLD). This epsilon depends on the private data and may not be published as "
        "it is. The noise "
        "is simulated: the number tells what a release would cost, and this is not a private "
        "release."
    )
    assert str(replace(PURE, epsilon=math.inf)) == "No privacy is guaranteed (epsilon is infinite)."


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"relation": "add-remove"}, "one record is added or removed;"),
        ({"relation": "add-remove", "unit": "client"}, "one client is added or removed;"),
        ({"trust": "local"}, "every client randomizes its own message and trusts nobody"),
        ({"trust": "aggregate"}, "clients add the noise in shares"),
        ({"trust": "shuffle"}, "a trusted shuffler hides which client sent which message"),
    ],
    ids=str,
)
def test_the_sentence_says_what_it_is_about(fields, words):
    assert words in str(replace(PURE, **fields))


@pytest.mark.parametrize(
    ("epsilon", "printed"),
    [
        (1 / 3, "0.333334 "),
        (2 / 3, "0.666667 "),
        (0.1000000000010, "0.100001 "),
        (0.10000000000001, "0.1 "),
        (1234567.0, "1.23457e+06 "),
    ],
)
def test_six_digits_of_epsilon_are_printed_and_none_beyond_the_twelfth_counts(epsilon, printed):
    assert f"epsilon = {printed}(pure)" in str(replace(PURE, epsilon=epsilon))


# As JSON and back

SAMPLED = SampledGaussian(3.0, 7, sampling_prob=0.25)
EVENTS = (
    Pure(math.inf),
    Laplace(2.0, 3),
    Gaussian(2.0, 3, replaced=True),
    SAMPLED,
    replace(SAMPLED, replaced=True, opposite=True),
    ScreenedGaussian(3.0, 7, screen=(150.5, 250), sampling_prob=0.25),
    ScreenedGaussian(3.0, screen=(150.5, 250)),
)
EVERYTHING = Guarantee(
    2.0,
    1e-5,
    "add-remove",
    "aggregate",
    EVENTS,
    "client",
    "PLD",
    data_dependent=True,
    sampler="release",
)


@pytest.mark.parametrize(
    "guarantee",
    [PURE, EVERYTHING, replace(EVERYTHING, epsilon=math.inf, events=())],
    ids=["pure", "all", "none"],
)
def test_a_guarantee_is_read_back_as_it_was_told(guarantee):
    for told in (guarantee.asdict(), guarantee.full_dict()):
        assert Guarantee.of(told) == guarantee
    assert Guarantee.of(json.loads(json.dumps(guarantee.asdict(), allow_nan=False))) == guarantee
    assert Guarantee.of(json.loads(json.dumps(guarantee.full_dict()))) == guarantee
    assert hash(Guarantee.of(json.loads(json.dumps(guarantee.asdict())))) == hash(guarantee)


def test_of_events_only_what_differs_from_the_plain_case_is_told():
    told = EVERYTHING.asdict()["events"]
    assert told == [
        {"kind": "pure", "parameter": "infinity", "count": 1},
        {"kind": "laplace", "parameter": 2.0, "count": 3},
        {"kind": "gaussian", "parameter": 2.0, "count": 3, "replaced": True},
        {"kind": "gaussian", "parameter": 3.0, "count": 7, "sampling_prob": 0.25},
        {
            "kind": "gaussian",
            "parameter": 3.0,
            "count": 7,
            "sampling_prob": 0.25,
            "replaced": True,
            "opposite": True,
        },
        {
            "kind": "gaussian",
            "parameter": 3.0,
            "count": 7,
            "sampling_prob": 0.25,
            "screen": [150.5, 250],
        },
        {"kind": "gaussian", "parameter": 3.0, "count": 1, "screen": [150.5, 250]},
    ]
    assert EVERYTHING.asdict() | {"events": None} == {
        "epsilon": 2.0,
        "delta": 1e-5,
        "relation": "add-remove",
        "trust": "aggregate",
        "events": None,
        "unit": "client",
        "accountant": "PLD",
        "data_dependent": True,
        "sampler": "release",
        "statement": str(EVERYTHING),
    }


def test_an_epsilon_above_fifty_wants_a_flag_as_the_commands_say():
    assert LARGE_EPSILON == 50


def test_a_notebook_shows_epsilon_and_delta_rounded_up():
    shown = replace(EVERYTHING, epsilon=1.00000001, delta=1.2341e-5)._repr_html_()
    assert "<th>epsilon</th><td>1.00001</td>" in shown
    assert "<th>delta</th><td>1.24e-05</td>" in shown
    assert "<th>delta</th><td>0</td>" in PURE._repr_html_()
