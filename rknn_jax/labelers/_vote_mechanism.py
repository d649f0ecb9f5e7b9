"""Mechanism of the votes, calibrated for a trust model, and the guarantee of its run.

A curator's noise, and messages of a local mechanism, have the whole epsilon. Shuffled messages have
more each: `amplification.local_epsilon` finds the largest epsilon of one message for which all of
them together are (epsilon, delta)-private, and `guarantee` computes the bound once more for the
mechanism that was made.
"""

import math
from dataclasses import fields, replace
from typing import Any, Literal, Protocol

from rknn_jax import mechanisms, trust
from rknn_jax.mechanisms._repeated import Repeated
from rknn_jax.mechanisms.base import CentralMechanism, Mechanism
from rknn_jax.mechanisms.local import LocalRandomizer
from rknn_jax.privacy import amplification
from rknn_jax.privacy.contributions import SIMULATED_GRID, Protected
from rknn_jax.privacy.guarantee import Guarantee, Relation

Amplification = Literal["variation ratio", "general"]


class VoteSettings(Protocol):
    """Settings of votes, as `labelers.rknn.ReverseKNN` has them."""

    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def relation(self) -> Relation: ...
    @property
    def unit(self) -> Protected: ...
    @property
    def trust(self) -> str: ...
    @property
    def amplification(self) -> Amplification: ...
    @property
    def noise(self) -> str: ...
    @property
    def is_shuffled(self) -> bool: ...
    @property
    def has_curator(self) -> bool: ...

    def sizes(self, num_queries: int, num_classes: int) -> dict[str, int]: ...


def calibrated(
    num_queries: int,
    num_classes: int,
    num_records: int,
    config: VoteSettings,
    grid: int = SIMULATED_GRID,
) -> Mechanism:
    """Return the mechanism that `config` names, calibrated.

    Args:
      num_queries: Number of queries s.
      num_classes: Number of classes |Y|.
      num_records: Number of records n, or of persons, on which only shuffling depends.
      config: Settings of the labeler.
      grid: Units of a vote that a person's records share. Defaults to those of a simulation.
    """
    named = mechanisms.named(config.noise)
    # Mechanisms take what concerns them: a local one has no relation, and only some have a delta.
    takes = {field.name for field in fields(named)}
    optional = {
        "delta": config.delta,
        "relation": config.relation,
        "num_clients": num_records,
        "unit": config.unit,
        "grid": 1 if config.unit == "record" else grid,
    }
    fields_of: dict[str, Any] = config.sizes(num_queries, num_classes) | {
        name: value for name, value in optional.items() if name in takes
    }
    epsilon = config.epsilon
    # `multi_message` is private after shuffling by its own proof, and is calibrated as it is.
    if config.is_shuffled and issubclass(named, LocalRandomizer) and epsilon < math.inf:
        variation = (
            # The total variation of messages at a trial epsilon; None bounds it by what any ε-DP
            # message has.
            (lambda e: named(epsilon=e, **fields_of).total_variation)
            if config.amplification == "variation ratio"
            else None
        )
        epsilon = amplification.local_epsilon(
            epsilon,
            num_records,
            config.delta,
            bound=config.amplification,
            total_variation=variation,
        )
    made = named(epsilon=epsilon, **fields_of)
    running: Mechanism = made
    if isinstance(made, CentralMechanism) and config.trust not in made.trusts:
        running = Repeated.of(made, trust.named(config.trust).noises, config.trust)
    return running


def guarantee(private_step: Mechanism, num_records: int, config: VoteSettings) -> Guarantee:
    """Return the guarantee of the mechanism's run.

    It is the mechanism's own guarantee, or after shuffling the amplified guarantee of the
    calibration.

    Args:
      private_step: Calibrated mechanism.
      num_records: Number of records n, or of persons.
      config: Settings of the labeler.

    Raises:
      ValueError: If there are too few records for epsilon and delta after shuffling.
    """
    if (
        not config.is_shuffled
        or not isinstance(private_step, LocalRandomizer)
        or config.epsilon == math.inf
    ):
        return _without_amplification(private_step, num_records, config)
    # What runs is checked, not what was planned: the bound is computed for the mechanism that was
    # made.
    variation = private_step.total_variation if config.amplification == "variation ratio" else None
    cost = amplification.hockey_stick(
        config.epsilon,
        private_step.epsilon,
        num_records,
        total_variation=variation,
        tail=amplification.TAIL * config.delta,
    )
    # Fewer records than the messages were calibrated for hide each other less.
    if cost > config.delta:
        raise ValueError(
            f"Expected enough records for epsilon={config.epsilon} and delta={config.delta} once "
            f"messages of {private_step} are shuffled, "
            f"got {num_records}; calibrate the mechanism for them."
        )
    averaged = variation is not None and private_step.averages_over_hashes
    ideal = " for an ideal hash" if averaged else ""
    accountant = f"amplification by shuffling, {config.amplification} bound{ideal}"
    return Guarantee(
        config.epsilon,
        config.delta,
        "replace-one",
        trust=config.trust,
        events=(),
        unit=config.unit,
        accountant=accountant,
    )


def _without_amplification(
    private_step: Mechanism, num_records: int, config: VoteSettings
) -> Guarantee:
    """Return the mechanism's own guarantee, for the unit and the trust model of the settings."""
    found = private_step.guarantee(num_records)
    if config.unit == "person" and config.has_curator:
        # `release_guarantee` knows of persons; the noise here is simulated all the same.
        found = replace(private_step.release_guarantee(num_records), sampler="simulation")
    elif config.unit == "person":
        # A person sends one message, as a record does.
        found = replace(found, unit="person")
    # Without noise, shuffled messages are what their senders say, and their guarantee is none.
    return found if config.is_shuffled else replace(found, trust=config.trust)
