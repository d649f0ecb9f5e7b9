"""The statement for programs: its schema, its curve, the checklists and the registry's record.

`conftest` checks every statement that any test makes against the schema; here the schema itself is
tried with planted faults.
"""

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

from rknn_jax.mechanisms.binomial import Binomial
from rknn_jax.privacy import analytic_gaussian, checklists, profile
from rknn_jax.privacy.events import (
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Pure,
    SampledGaussian,
    ScreenedGaussian,
)
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.responsible import Responsible
from rknn_jax.privacy.statement import (
    PUBLIC_TUNING,
    AuditBound,
    Contribution,
    as_json,
    new_release,
    page,
    schema,
)
from rknn_jax.records.classes import Classes
from rknn_jax.release import planning, registry
from rknn_jax.release.inputs import data_of
from rknn_jax.release.settings import Settings
from tests.test_cli import arguments, make_files
from tests.test_statement import RELEASE, WORDS, Page

LAPLACE = DiscreteLaplace(2.0, 2)
FULL = replace(
    WORDS,
    responsible=Responsible("St. Mary's", "privacy@example.org", "Research", "The board chose it."),
    tuning=PUBLIC_TUNING,
    audit=AuditBound(0.7, 0.95, "rknn audit --mechanism discrete_laplace --epsilon 1"),
)


def card_of(statement=WORDS):
    return json.loads(as_json(statement.card()))


# The schema


def test_the_schema_is_one_and_explains_every_entry_of_its_own():
    Draft202012Validator.check_schema(schema())
    entries = schema()["properties"] | schema()["$defs"]["guarantee"]["properties"]
    assert not [
        name for name, entry in entries.items() if not {"description", "$ref"} & entry.keys()
    ]
    assert set(schema()["required"]) <= schema()["properties"].keys()


@pytest.mark.parametrize(
    "guarantee",
    [
        RELEASE,
        replace(RELEASE, epsilon=math.inf, events=(Laplace(0.0, 2),)),
        replace(RELEASE, unit="person", trust="aggregate", delta=1e-5, events=(LAPLACE,)),
        replace(RELEASE, delta=1e-5, accountant="variation ratio", trust="shuffle"),
        replace(
            RELEASE,
            delta=1e-5,
            events=(
                SampledGaussian(2.0, 3, sampling_prob=0.1, replaced=True, opposite=True),
                ScreenedGaussian(3.0, screen=(1.5, 4)),
            ),
        ),
    ],
    ids=["pure", "none", "persons", "opaque", "sampled"],
)
def test_every_guarantee_has_a_statement(guarantee):
    """`Statement.card` is checked by conftest."""
    replace(FULL, guarantee=guarantee).card()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, None) for name in schema()["required"] if name not in ("tuning", "audit")),
        ("version", 1),
        ("release", "one"),
        ("released", []),
        ("released", "a label"),
        ("time", "yesterday"),
        ("account", "two accounts"),
        ("versions", {}),
        ("audit", {"epsilon": 0.7}),
        ("tuning", {"private_data": "some", "words": "x"}),
        ("model", {"name": "words", "kind": "text"}),
        ("model", {"name": "words", "kind": "text", "sha256": "0123"}),
        ("model", {"name": "words", "kind": "text", "sha256": "a" * 64, "path": "/home"}),
        ("contribution.records", 0),
        ("contribution.records", "many"),
        ("profile.points", []),
        ("profile.rho", 0.1),
        ("profile.kind", "zcdp"),
        ("guarantee.unit", "household"),
        ("guarantee.epsilon", "1.0"),
        ("guarantee.epsilon", -1),
        ("guarantee.epsilon", None),
        ("guarantee.delta", 1),
        ("guarantee.trust", "none"),
        ("guarantee.relation", "neighbors"),
        ("guarantee.rho", 0.1),
        ("guarantee.events", [{"kind": "laplace", "parameter": 1}]),
        ("guarantee.events", [{"kind": "uniform", "parameter": 1, "count": 1}]),
        ("ledger.head", None),
        ("ledger.spent", {"epsilon": "1", "delta": 0}),
    ],
    ids=str,
)
def test_a_planted_fault_is_no_statement(name, value):
    """None leaves the entry out."""
    card = card_of(replace(WORDS, guarantee=replace(RELEASE, events=(LAPLACE,))))
    Draft202012Validator(schema()).validate(card)
    *above, last = name.split(".")
    part = card[above[0]] if above else card
    part.pop(last, None)
    if value is not None:
        part[last] = value
    with pytest.raises(ValidationError):
        Draft202012Validator(schema()).validate(card)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_lacks_is_not_written(number):
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json(WORDS.card() | {"student_accuracy": number})


def test_entries_of_one_kind_of_release_are_free():
    assert WORDS.card(num_queries=40)["num_queries"] == 40
    assert new_release() != new_release()


# The curve


def test_one_pure_value_has_the_curve_of_randomized_response():
    found = profile.of(replace(RELEASE, epsilon=1.5))
    assert [epsilon for epsilon, _ in found.points] == [0, 0.375, 0.75, 1.125, 1.5]
    for epsilon, delta in found.points:
        exact = (math.exp(1.5) - math.exp(epsilon)) / (1 + math.exp(1.5))
        assert delta == pytest.approx(exact, rel=1e-12, abs=1e-15)


def test_values_of_two_noises_have_the_curve_of_all_their_outcomes():
    """Every outcome of five randomized responses, one after the other."""
    losses = [0.5, 0.5, 0.2, 0.2, 0.2]
    events = (DiscreteLaplace(2.0, 2), Pure(0.2, 3))
    found = profile.of(replace(RELEASE, epsilon=1.6, events=events))
    assert found.kind == "curve"
    for epsilon, delta in found.points:
        exact = 0.0
        for signs in product((1, -1), repeat=len(losses)):
            right = math.prod(
                1 / (1 + math.exp(-sign * loss)) for sign, loss in zip(signs, losses, strict=True)
            )
            loss = float(np.dot(signs, losses))
            exact += right * max(0.0, 1 - math.exp(epsilon - loss))
        assert delta == pytest.approx(exact, rel=1e-9, abs=1e-12)


def test_gaussian_noise_has_rho_and_its_exact_curve():
    events = (Gaussian(4.0, 3),)
    epsilon = analytic_gaussian.gaussian_epsilon(4 / math.sqrt(3), 1e-5)
    found = profile.of(replace(RELEASE, epsilon=epsilon, delta=1e-5, events=events))
    assert found.kind == "zcdp"
    assert found.rho == pytest.approx(3 / 32)
    assert (epsilon, 1e-5) in found.points
    for epsilon, delta in found.points:
        assert analytic_gaussian.gaussian_epsilon(4 / math.sqrt(3), delta) == pytest.approx(epsilon)
    assert list(found.points) == sorted(found.points)
    assert len(found.points) == len(profile.DELTAS)


def test_gaussian_noise_beside_another_costs_between_itself_and_the_sum():
    events = (Gaussian(4.0), Pure(0.1, 2))
    found = profile.of(replace(RELEASE, epsilon=2.0, delta=1e-5, events=events))
    *told, own = found.points
    assert own == (2.0, 1e-5)
    assert [delta for _, delta in told] == [1e-3, 1e-4]
    for epsilon, delta in told:
        alone = analytic_gaussian.gaussian_epsilon(4.0, delta)
        assert alone < epsilon <= alone + 0.2


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"data_dependent": True}, "point"),
        ({"delta": 1e-5}, "point"),
        ({"delta": 1e-5, "events": (SampledGaussian(2.0, 9, sampling_prob=0.1),)}, "point"),
        ({"events": tuple(Pure(1 / n, 1000) for n in (1, 2, 3))}, "point"),
        ({"epsilon": math.inf}, "none"),
    ],
    ids=["data-dependent", "opaque", "sampled", "too many", "infinite"],
)
def test_a_curve_that_is_not_known_is_not_told(changes, kind):
    found = profile.of(replace(RELEASE, **changes))
    assert found.kind == kind
    assert len(found.points) == (kind == "point")


# The checklists


def test_every_question_has_an_answer_or_is_marked():
    text = Page(page(FULL)).text
    for listed in checklists.answered(card_of(FULL)):
        assert f"{len(listed.questions)} questions, {listed.unanswered} unanswered" in text
        for one in listed.questions:
            assert f"{one.topic}. {one.question}{one.answer or 'unanswered'}" in text, one
    everything = [one for listed in checklists.answered(card_of(FULL)) for one in listed.questions]
    open_ones = {one.topic for one in everything if not one.answer}
    assert open_ones == {"Utility", "Bias", "Timing", "Access", "Collection"}


def test_what_the_statement_leaves_open_is_unanswered():
    everything = [one for listed in checklists.answered(card_of()) for one in listed.questions]
    answers = {one.topic: one.answer for one in everything}
    assert not answers["Test of the claim"]
    assert not answers["Purpose"]
    assert answers["Several releases"].startswith(
        "Epsilon 1.5, delta 0 so far. A ledger keeps account"
    )


@pytest.mark.parametrize(
    ("unit", "contribution", "words"),
    [
        ("record", Contribution(1, 3), "One record. A record votes for 3 queries."),
        ("person", Contribution("shared", 1), "All of them together count as one record."),
        ("person", Contribution(5, 1), "At most 5 count. A record votes for 1 query."),
        (
            "client",
            Contribution("all"),
            "One client with all records. Any number of them count; the labeler bounds what they "
            "do together.",
        ),
    ],
)
def test_the_bound_of_a_unit_is_told(unit, contribution, words):
    guarantee = replace(RELEASE, unit=unit)
    card = card_of(replace(WORDS, guarantee=guarantee, contribution=contribution))
    assert words in checklists.unit(card)
    several = checklists.unit(card | {"rounds": "one and another"})
    assert ("in each round." in several) == (contribution.votes is not None)


def test_noise_is_exact_in_a_release_and_not_in_a_simulation():
    card = card_of()
    assert checklists.exactness(card).startswith("Yes")
    simulated = card | {"guarantee": card["guarantee"] | {"sampler": "simulation"}}
    assert checklists.exactness(simulated).startswith("No")
    assert checklists.mechanism({"mechanism": "laplace"}) == "laplace"
    assert not checklists.mechanism({})


def test_a_closed_list_opens_in_print():
    html = page(WORDS)
    assert html.count("<details>") == 2
    assert "details::details-content" in html[html.index("@media print") :]


# The controller's words, and the registry


REGISTRY = {
    "basic": "name data_curators intended_use data_product_type data_product_region description "
    "publication_date",
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "privacy_loss": "privacy_unit privacy_unit_details privacy_parameters "
    "privacy_parameters_details",
    "deployment_model": "model_name model_name_details actors release_type release_type_details "
    "access_type",
    "accounting": "post_processing composition",
    "implementation": "preprocessing_and_hyperparameter_tuning mechanisms justification",
    "administrative": "sources notes registry_authors",
}
"""The registry's fields that a record has."""


def test_a_release_tells_who_answers_for_it_and_is_ready_for_the_registry(rknn, tmp_path):
    make_files(tmp_path)
    words = {"controller": "Clinic Ä <b>", "contact": "a@b.org", "purpose": "triage: a study"}
    words["justification"] = "the ethics board, 3 March"
    assert rknn(*arguments(budget=2, **words)).status == 0
    card = json.loads((tmp_path / "new/privacy.json").read_text())
    assert {name: card[name] for name in words} == words
    assert card["class_names"] == []
    assert card["release"] in (tmp_path / "R.npz.ledger.jsonl").read_text()
    text = Page((tmp_path / "new/privacy.html").read_text()).text
    assert all(word in text for word in words.values())
    done = rknn("export", "new", "--format", "registry", "--json")
    assert done.status == 0, done.err
    assert done.json["files"] == {"registry": "new/registry.yaml"}
    text = (tmp_path / "new/registry.yaml").read_text(encoding="utf-8")
    assert "description: |-\n" in text, "the registry keeps lines"
    record = yaml.safe_load(text)
    assert list(record) == ["url_slug", "status", "tier", "deployment"]
    fields = record["deployment"]
    assert {name: " ".join(part) for name, part in fields.items()} == REGISTRY
    assert fields["basic"]["data_curators"] == ["Clinic Ä <b>"]
    assert fields["basic"]["intended_use"] == "triage: a study"
    assert fields["implementation"]["justification"] == "the ethics board, 3 March"
    assert fields["basic"]["publication_date"] == card["time"][:10]
    assert fields["dp_variant"]["variant_name"] == "Pure DP"
    for name, part, lines in (
        ("unprotected_quantities", "dp_variant", card["not_covered"]),
        ("description", "basic", card["released"]),
    ):
        assert fields[part][name].splitlines() == [f"- {line}" for line in lines]
    assert fields["privacy_loss"]["privacy_parameters"] == {"epsilon": 1.0}
    assert fields["deployment_model"]["model_name"] == "Central"
    assert "deployment.basic.data_product_region" in done.json["unanswered"]
    assert "deployment.basic.data_product_sector" in done.json["unanswered"]
    assert "deployment.basic.intended_use" not in done.json["unanswered"]
    for name in done.json["unanswered"]:
        assert name in done.err.replace("\n", " ").replace("  ", "")
        value = record
        for part in name.split("."):
            value = value.get(part, "")
        assert value in ("", [""])


def test_the_words_do_not_make_another_release(tmp_path):
    rows = np.eye(3, dtype=np.float32)
    data = data_of(rows, rows, np.arange(3, dtype=np.int32), Classes(3))
    plain = Settings("P", "R", 1.0, queries=3)
    named = replace(plain, responsible=Responsible("A", "B", "C", "D"))
    assert planning.request(plain, data) == planning.request(named, data)


def test_the_statement_names_the_classes_that_were_given_and_no_others(rknn, tmp_path):
    make_files(tmp_path)
    given = {"classes": "<b>cat,dog,rat", "person": None}
    assert rknn(*arguments(**given, budget=3)).status == 0
    card = json.loads((tmp_path / "new/privacy.json").read_text())
    assert card["class_names"] == ["<b>cat", "dog", "rat"]
    text = Page((tmp_path / "new/privacy.html").read_text()).text
    assert "The classes: <b>cat, dog, rat." in text
    inferred = arguments(classes=None, infer_classes=True, out="other", budget=None)
    assert rknn(*inferred).status == 0
    assert json.loads((tmp_path / "other/privacy.json").read_text())["class_names"] == []


def written(folder: Path, card) -> Path:
    (folder / "privacy.json").write_text(card if isinstance(card, str) else json.dumps(card))
    return folder


def test_classes_that_were_read_from_private_labels_are_a_private_choice(rknn, tmp_path):
    make_files(tmp_path)
    done = rknn(*arguments(classes=None, infer_classes=True), "--json")
    assert done.json["tuning"]["private_data"] == "uncharged"
    assert "classes" in done.json["tuning"]["words"]


def test_a_statement_without_a_version_can_be_exported(tmp_path):
    old = {"statement": "ε = 1", "guarantee": RELEASE.asdict(), "time": "2025-01-02T03:04:05Z"}
    made = registry.read(written(tmp_path, old))
    assert made.fields["deployment"]["basic"]["publication_date"] == "2025-01-02"
    assert "deployment.basic.data_curators" in made.unanswered
    assert "deployment.accounting.composition" in made.unanswered


def test_gaussian_noise_and_clients_are_told_in_the_registrys_words():
    guarantee = Guarantee(1.0, 1e-6, "replace-one", "aggregate", (Gaussian(5.0),), "client", "RDP")
    fields = registry.record(card_of(replace(WORDS, guarantee=guarantee))).fields["deployment"]
    assert fields["dp_variant"]["variant_name"] == "Approximate DP"
    assert fields["privacy_loss"]["privacy_unit"] == "client"
    assert fields["privacy_loss"]["privacy_parameters"] == {
        "epsilon": 1.0,
        "delta": 1e-6,
        "rho": pytest.approx(0.02),
    }
    assert fields["deployment_model"]["model_name"] == "Federated"
    infinite = replace(RELEASE, epsilon=math.inf)
    told = registry.record(card_of(replace(WORDS, guarantee=infinite))).fields["deployment"]
    assert told["privacy_loss"]["privacy_parameters"] == {}


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ("{", "got something else"),
        ("[]", "got something else"),
        ({"guarantee": RELEASE.asdict(), "release": 7}, "got something else"),
        ({"whole": replace(RELEASE, sampler="simulation").asdict()}, "that of a simulation"),
    ],
    ids=["damaged", "list", "number", "simulation"],
)
def test_what_is_no_release_is_not_registered(rknn, tmp_path, card, words):
    written(tmp_path, card)
    done = rknn("export", ".", "--format", "registry")
    assert done.status == 2
    assert words in done.err
    assert not (tmp_path / "registry.yaml").exists()


@pytest.mark.parametrize(("epsilon", "delta"), [(2.0, 1e-3), (6.0, 1e-3), (2.0, 3e-4)])
def test_noise_of_bounded_support_has_no_point_of_infinite_epsilon(epsilon, delta):
    """At a small delta binomial noise hides nothing. JSON has no word for that."""
    found = profile.of(Binomial(epsilon, 3, 3, 1, delta=delta, shares=3).guarantee(3))
    assert all(math.isfinite(one) for one, _ in found.points)
    assert len(found.points) > (epsilon < 6)
