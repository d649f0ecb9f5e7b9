"""Settings of privacy that labelers share: defaults, what is refused, and what travels."""

import pytest

from rknn_jax.federation import wire
from rknn_jax.labelers.pate import PATE
from rknn_jax.labelers.prototypes import Prototypes
from rknn_jax.labelers.public_prototypes import PublicPrototypes
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.privacy.parameters import PrivacyParameters

SHARED = (PrivacyParameters, PATE, Prototypes, PublicPrototypes)


def test_the_defaults_are_the_documented_ones():
    asked = PrivacyParameters()
    assert (asked.epsilon, asked.delta) == (1.0, 1e-5)
    assert (asked.relation, asked.unit) == ("replace-one", "record")


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("setting", ["relation", "unit"])
def test_an_unknown_relation_or_unit_is_refused_by_name(kind, setting):
    with pytest.raises(ValueError, match=rf"Expected {setting} to be one of .*{setting}='swap'"):
        kind(**{setting: "swap"})


@pytest.mark.parametrize("kind", [PublicPrototypes, ReverseKNN])
def test_the_unit_of_a_labeler_does_not_travel(kind):
    sent = [wire.pack(kind(unit=unit)) for unit in ("record", "person")]
    assert sent[0] == sent[1]
    assert wire.unpack(sent[1]).unit == "record"
