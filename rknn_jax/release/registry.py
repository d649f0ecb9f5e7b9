"""Record of a release in the form of the OpenDP Deployments Registry.

The registry (https://registry.opendp.org) keeps one YAML file for each deployment of differential
privacy. `record` fills in what `privacy.json` tells, and lists the fields that a person still has
to answer. Such a field is an empty text, as in the registry's template. A field of the registry's
enumerations cannot be empty, so it is left out if it is not known.

Field names and enumerations are those of `schemas/deployments-schema.yaml` in the repository
opendp/deployments-registry-data, at its version of 15 July 2026. A statement without a version, by
an earlier program, gives fewer answers.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rknn_jax import trust
from rknn_jax.privacy import checklists
from rknn_jax.privacy.guarantee import Guarantee

OPTIONAL = (
    "deployment.basic.data_product_sector",
    "deployment.deployment_model.data_source_type",
)
"""Fields of enumerations that a statement never answers, and that the record leaves out."""

LABELS = "Labels of public records"
POST_PROCESSING = (
    "Labels, their probabilities and confidences, and any network trained on them, are computed "
    "from what was released with noise and from public data alone."
)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writer of YAML that keeps the lines of a text, as the registry wants it."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Return a text as a node, in the style `|` if it has lines."""
        style = "|" if "\n" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


@dataclass(frozen=True)
class Record:
    """Record for the registry.

    Attributes:
      fields: Content of the YAML file.
      unanswered: Names of the fields that a person still has to answer, with dots between levels.
    """

    fields: dict[str, Any]
    unanswered: tuple[str, ...]

    def as_yaml(self) -> bytes:
        """Return the record as the registry's YAML file."""
        text: str = yaml.dump(
            self.fields, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf
        )
        return text.encode()


def read(folder: Path) -> Record:
    """Return the record of a finished folder.

    Raises:
      ValueError: If the folder has no statement that can be read, or the statement of a simulation.
    """
    path = folder / "privacy.json"
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        # An experiment of an earlier program calls its guarantee `whole`.
        card = card | {"guarantee": card["whole"] if "whole" in card else card["guarantee"]}
        guarantee = Guarantee.of(card["guarantee"])
        made = record(card)
        made.as_yaml()
    except Exception as error:  # a damaged file fails in many ways
        reason = " ".join(str(error).split())
        raise ValueError(
            f"Expected the statement of a release in {path}, got something else ({reason}); name "
            "another folder."
        ) from error
    if guarantee.sampler != "release":
        raise ValueError(
            f"Expected the statement of a release in {path}, got that of a simulation, which "
            "deploys nothing; name the folder of rknn label or rknn serve."
        )
    return made


def record(card: Mapping[str, Any]) -> Record:
    """Return the record of a release, from the content of its `privacy.json`."""
    fields = {
        "url_slug": _slug(card),
        "status": "Draft",
        "tier": 2,
        "deployment": {
            "basic": _basic(card),
            "dp_variant": _variant(card),
            "privacy_loss": _loss(card),
            "deployment_model": _model(card),
            "accounting": {
                "post_processing": POST_PROCESSING,
                "composition": checklists.account(card),
            },
            "implementation": _implementation(card),
            "administrative": {
                "sources": "",
                "notes": f"Made from the statement of release {card.get('release', 'unknown')}.",
                "registry_authors": [""],
            },
        },
    }
    clean = _printable(fields)
    return Record(clean, tuple(sorted([*_empty(clean), *OPTIONAL])))


def _slug(card: Mapping[str, Any]) -> str:
    named = f"{card.get('controller', '')} labels {card.get('release', '')[:16]}"
    return "-".join(re.findall("[a-z0-9]+", named.lower()))


def _basic(card: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": LABELS,
        "data_curators": [card.get("controller", "")],
        "intended_use": card.get("purpose", ""),
        "data_product_type": "Dataset",
        "data_product_region": "",
        "description": _sentences(card.get("released", ())),
        "publication_date": card.get("time", "")[:10],
    }


def _variant(card: Mapping[str, Any]) -> dict[str, Any]:
    pure = not card["guarantee"]["delta"]
    return {
        "variant_name": "Pure DP" if pure else "Approximate DP",
        "data_domain": "",
        "unprotected_quantities": _sentences(card.get("not_covered", ())),
    }


def _loss(card: Mapping[str, Any]) -> dict[str, Any]:
    guarantee = card["guarantee"]
    rho = card.get("profile", {}).get("rho")
    told = {"epsilon": guarantee["epsilon"], "delta": guarantee["delta"], "rho": rho}
    # The registry takes numbers alone, so an infinite epsilon is told by the sentence.
    numbers = {name: value for name, value in told.items() if isinstance(value, int | float)}
    if not guarantee["delta"]:
        del numbers["delta"]
    sentence = f"{card.get('statement', '')} {checklists.curve(card)}".strip()
    return {
        "privacy_unit": guarantee["unit"],
        "privacy_unit_details": f"{checklists.adjacency(card)} {checklists.unit(card)}",
        "privacy_parameters": numbers,
        "privacy_parameters_details": sentence,
    }


def _model(card: Mapping[str, Any]) -> dict[str, Any]:
    model = trust.named(card["guarantee"]["trust"])
    assumptions = card.get("assumptions") or [model.words]
    actors = [card.get("holders", ""), card.get("trusted_with", "")]
    return {
        "model_name": model.deployment,
        "model_name_details": _sentences(assumptions),
        "actors": " ".join(filter(None, actors)),
        "release_type": "One release",
        "release_type_details": checklists.account(card),
        "access_type": "Non-interactive",
    }


def _implementation(card: Mapping[str, Any]) -> dict[str, Any]:
    tuning = card.get("tuning") or {}
    mechanism = checklists.mechanism(card)
    return {
        "preprocessing_and_hyperparameter_tuning": tuning.get("words", ""),
        "mechanisms": f"{mechanism} Exact noise: {checklists.exactness(card)}" if mechanism else "",
        "justification": card.get("justification", ""),
    }


def _sentences(lines: Any) -> str:
    """Return lines as a list in Markdown, which the registry shows."""
    return "\n".join(f"- {line}" for line in lines)


def _empty(fields: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the names of empty fields."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _empty(value, f"{above}{name}.")
        elif value in ("", [""]):
            yield f"{above}{name}"


def _printable(value: Any) -> Any:
    """Return a value whose texts can be written, whatever bytes a name of a file held."""
    if isinstance(value, dict):
        return {name: _printable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
