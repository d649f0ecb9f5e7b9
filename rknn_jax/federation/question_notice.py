"""Words about a question for the owner of a client, before anything is spent."""

from collections.abc import Callable

import numpy as np

from rknn_jax.bsvs import NO_CELL
from rknn_jax.federation.agreement import RefusedError
from rknn_jax.federation.client import Client
from rknn_jax.neighbors import LARGEST
from rknn_jax.privacy.guarantee import rounded_up
from rknn_jax.release.public_rows import by_order

Tell = Callable[[str, str], None]


def tell_question(question: bytes, client: Client, tell: Tell) -> None:
    """Tell the owner of the question and the number of unusable records, before any spend.

    Nobody else learns that number.

    Args:
      question: Bytes that the server sent.
      client: Client that is asked.
      tell: Function that is called with the name and the text of an event.
    """
    try:
        round = client.parsed(question)
    except RefusedError:
        return
    config = round.config
    tell(
        "asked",
        f"round {round.id[:12]}: epsilon = {rounded_up(config.epsilon, 6)} a {round.unit}, "
        f"trust={config.trust}, {round.asks}, of {len(client.labels):,} records",
    )
    if client.inputs.ndim == 2 and client.inputs.shape[1] > 1:
        if bool(round.features) != bool(client.features):
            names = round.features or client.features
            tell("warning", by_order(names, public_side=bool(round.features)))
    if client.inputs.ndim == 2:
        able = np.all(np.abs(client.inputs) <= LARGEST, axis=1)
        if not able.all():
            tell(
                "unusable",
                f"{np.sum(~able):,} of {len(able):,} records have no features, or some that are no "
                "usable numbers, and cast no vote",
            )
    try:
        ids, told = round.encoded(client.labels)
    except ValueError:
        return  # the answer refuses the round
    if round.labels_per_record:
        if beyond := int(np.sum(told - 1)):
            tell("cut", f"{beyond:,} of {len(ids):,} records have labels that do not count")
        return
    if without := int(np.sum(ids == NO_CELL)):
        tell(
            "unusable",
            f"{without:,} of {len(ids):,} records have no label of the round's "
            f"{len(round.classes)} classes and cast no vote",
        )
