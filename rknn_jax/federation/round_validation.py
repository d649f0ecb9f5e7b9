"""Checks of a round: settings that a hostile server may write, or that promise nothing.

Each check takes a `rounds.Round`, which calls them all as it is made.
"""

import re
from dataclasses import fields
from typing import Any, get_args

import numpy as np

from rknn_jax import mechanisms
from rknn_jax.discriminant import Discriminant
from rknn_jax.federation import wire
from rknn_jax.labelers import rknn
from rknn_jax.labelers._sum_labeler import SumLabeler
from rknn_jax.labelers._vote_mechanism import Amplification
from rknn_jax.neighbors import LARGEST, Metric

ROUND_ID = re.compile(r"[0-9a-f]{64}")

SMALLEST_EPSILON = 2.0**-30
LARGEST_EPSILON = 1000.0
"""Bounds of epsilon: below, noise is out of range; above, nothing is protected."""

LEAST_OF_A_MESSAGE = 2.0**-40
"""Least epsilon of a message: a threshold of 64 digits is off by up to 2^-42 of a rare event."""

MOST_CELLS = 2**22
"""Most queries times classes, checked first because huge mechanisms take minutes to make."""

MOST_RECORDS = 2**20
"""Most messages of one client; a client with more records joins as several."""

MOST_CHECK = 0.5
"""Most of the units that check labels."""


def check_types(round: Any) -> None:
    """Refuse what a hostile server may write in place of settings."""
    for name in ("records_per_client", "honest", "labels_per_record"):
        if type(getattr(round, name)) is not int or getattr(round, name) < 0:
            raise ValueError(
                f"Expected an integer {name} >= 0, got {name}={getattr(round, name)!r}."
            )
    if round.records_per_client > MOST_RECORDS:
        raise ValueError(
            f"Expected records_per_client <= {MOST_RECORDS}, got "
            f"records_per_client={round.records_per_client}."
        )
    if round.simulated is not None and type(round.simulated) is not int:
        raise ValueError(f"Expected an integer seed or None, got simulated={round.simulated!r}.")
    if not isinstance(round.config, SumLabeler):
        raise ValueError(f"Expected the labeler's config, got config={round.config!r}.")
    wire.check_settings(type(round.config), vars(round.config))
    try:
        wire.pack(round.config)
    except TypeError as error:
        raise ValueError(f"Expected a labeler that can travel: {error}") from error
    named = {"metric": get_args(Metric), "amplification": get_args(Amplification)}
    for name in named.keys() & {setting.name for setting in fields(round.config)}:
        if getattr(round.config, name) not in named[name]:
            raise ValueError(
                f"Expected {name} to be one of {named[name]}, got "
                f"{name}={getattr(round.config, name)!r}."
            )


def check_public(round: Any) -> None:
    """Refuse classes and queries that nobody can be asked about."""
    if not isinstance(round.classes, tuple) or not all(
        isinstance(name, str) for name in round.classes
    ):
        raise ValueError(f"Expected the names of the classes, got classes={round.classes!r}.")
    if len(round.classes) < 2:
        raise ValueError(f"Expected at least 2 classes, got classes={round.classes!r}.")
    queries = np.asarray(round.queries)
    if (
        queries.ndim != 2
        or queries.dtype != np.float32
        or not len(queries)
        or not (np.abs(queries) <= LARGEST).all()
    ):
        raise ValueError(
            f"Expected queries float32 [s > 0, f] of at most {LARGEST:g}, got "
            f"{queries.dtype} {queries.shape}."
        )
    _check_before(round)
    named = isinstance(round.features, tuple) and all(type(one) is str for one in round.features)
    if not named or len(round.features) not in (0, round.width):
        raise ValueError(
            f"Expected names of {round.width} features, or none, got features={round.features!r}."
        )


def _check_before(round: Any) -> None:
    """Refuse what a round takes from the one before, if it is none."""
    if round.after != "" and not (type(round.after) is str and ROUND_ID.fullmatch(round.after)):
        raise ValueError(f"Expected the id of a round, or none, got after={round.after!r}.")
    if round.taught is None:
        return
    if type(round.taught) is not Discriminant:
        raise ValueError(f"Expected a map of features, got taught={type(round.taught)}.")
    round.taught.check()
    if round.taught.made != round.queries.shape[1]:
        raise ValueError(
            f"Expected a map to the {round.queries.shape[1]} features of the queries, got one to "
            f"{round.taught.made}."
        )


def check_privacy(round: Any) -> None:
    """Refuse settings that promise nothing, or contradict each other."""
    shared = not round.votes or mechanisms.named(round.config.noise).adds_shares
    if round.summed != shared:
        raise ValueError(
            "Expected a mechanism whose noise clients can add in shares with trust=central, "
            f"and only there, got trust={round.config.trust} and "
            f"mechanism={round.config.noise}; binomial is one."
        )
    if not SMALLEST_EPSILON < round.config.epsilon < LARGEST_EPSILON:
        raise ValueError(
            f"Expected {SMALLEST_EPSILON:.2g} < epsilon < {LARGEST_EPSILON:g}, got "
            f"epsilon={round.config.epsilon}."
        )
    messages = round.records_per_client or 1
    if not round.summed and round.config.epsilon / messages < LEAST_OF_A_MESSAGE:
        raise ValueError(
            f"Expected epsilon / records_per_client >= {LEAST_OF_A_MESSAGE:.2g} with "
            f"trust={round.config.trust}, got epsilon={round.config.epsilon} and "
            f"records_per_client={messages}; ask for fewer records of a client."
        )
    drawn = round.votes and round.unit == "client"
    if round.unit not in ("record", "client") or drawn != (round.records_per_client > 0):
        raise ValueError(
            "Expected records_per_client > 0 with unit=client and 0 with unit=record, or 0 "
            f"without votes, got labeler={round.config.name}, unit={round.unit} and "
            f"records_per_client={round.records_per_client}."
        )
    if round.labels_per_record > (len(round.classes) if round.votes else 0):
        raise ValueError(
            f"Expected labels_per_record <= {len(round.classes)}, the number of classes, and 0 "
            f"without votes, got labeler={round.config.name} and "
            f"labels_per_record={round.labels_per_record}."
        )
    if round.labels_per_record and type(round.config) is not rknn.ReverseKNN:
        raise ValueError(
            f"Expected labeler=rknn with labels_per_record={round.labels_per_record}, got "
            f"labeler={round.config.name}; sets are read as rknn reads them."
        )
    if (round.summed or round.shuffled) and round.honest < 2:
        raise ValueError(
            f"Expected honest >= 2 with trust={round.config.trust}, got honest={round.honest}; "
            "say how many "
            f"{'clients' if round.summed else 'messages'} follow the "
            "protocol."
        )
    if type(round.check_share) is not float or not 0 <= round.check_share <= MOST_CHECK:
        raise ValueError(
            f"Expected 0 <= check_share <= {MOST_CHECK}, got check_share={round.check_share!r}; "
            "half has to vote."
        )
    if round.check_share and round.simulated is not None:
        raise ValueError(
            "Expected real noise with check_share, got simulated noise; pass check_share=0."
        )
    if round.summed and round.simulated is not None:
        raise ValueError("Expected real noise with trust=central, got simulated noise.")
    if round.shuffled and round.records_per_client > 1:
        raise ValueError(
            "Expected one message of what is protected with trust=shuffle, got "
            f"records_per_client={round.records_per_client}; pass 1, or unit=record."
        )


def check_costs(round: Any) -> None:
    """Refuse what takes too much work, and mechanisms without an exact form."""
    if round.num_cells > MOST_CELLS:
        raise ValueError(
            f"Expected queries times classes <= {MOST_CELLS}, got {len(round.classes)} classes, "
            f"{len(round.queries)} queries and {round.num_cells} numbers."
        )
    if round.summed:
        _ = round.sum  # it refuses what its noise cannot protect
    elif round.simulated is None and not round.mechanism.is_exact():
        raise ValueError(
            "Expected a mechanism with an exact form, got "
            f"mechanism={round.config.noise}; use collision, or give its class `respond`."
        )
