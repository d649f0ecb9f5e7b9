"""Several rounds of one server: Algorithm 1, each round in features that earlier labels teach.

Each round is a round of its own, with its part of epsilon and delta, its question, its folder and
its statement, and each client charges its ledger for it. The last one's folder is that of all, and
its statement has the guarantee of all. What a later round takes from an earlier one are public rows
and published labels, so that it costs nothing.

A client hears of a later round as its first one closes. It sends answers to it only if its ledger
allows both.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from rknn_jax._internal.disk import make_folder, read_arrays, read_json
from rknn_jax.federation.collector import QUESTION
from rknn_jax.federation.request import Asked, Former
from rknn_jax.federation.round_folder import OVER, check_folder, check_settings, refuse_other_files
from rknn_jax.federation.rounds import Round
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.question import Before
from rknn_jax.release.rounds import parts


class Step(NamedTuple):
    """One round of several.

    Attributes:
      folder: Folder of the round.
      asked: Request of the server's owner for it.
    """

    folder: Path
    asked: Asked

    def following(self, former: Former | None) -> Self:
        """Return the round after another one, which waits for the clients that answered that."""
        if former is None:
            return self
        return self._replace(asked=replace(self.asked, clients=former.num_clients))


def of(folder: Path, asked: Asked, num_rounds: int) -> list[Step]:
    """Return all rounds, in order. Labels are checked, and a student is trained, after the last.

    Args:
      folder: Folder of the last round, in which the others have theirs.
      asked: Request for all of them.
      num_rounds: Number of rounds T.
    """
    if num_rounds == 1:
        return [Step(folder, asked)]
    config = asked.config
    amounts = zip(parts(config.epsilon, num_rounds), parts(config.delta, num_rounds), strict=True)
    found = []
    for number, (epsilon, delta) in enumerate(amounts, 1):
        one = replace(asked, config=replace(config, epsilon=epsilon, delta=delta))
        if number < num_rounds:
            found.append(Step(folder / f"round-{number}", replace(one, student="none")))
        else:
            found.append(Step(folder, one))
    return found


def begin(steps: Sequence[Step]) -> None:
    """Make the folder of all rounds; refuse one that is finished, or holds something else."""
    folder = steps[-1].folder
    check_folder(folder, steps[-1].asked)
    make_folder(folder)
    if not steps[0].folder.exists():
        refuse_other_files(folder)


def finished(step: Step) -> Former | None:
    """Return what the next round needs of one that is over, or None if it is not over.

    Raises:
      ValueError: If it was begun with other settings, or if a file of it is damaged.
    """
    if not (step.folder / OVER).exists():
        return None
    check_settings(step.folder, step.asked)
    card = read_json(step.folder / "privacy.json")
    probabilities = read_arrays(step.folder / "labels.npz")["probability"]
    guarantee = Guarantee.of(card["guarantee"])
    before = Before(np.asarray(probabilities, np.float32), guarantee)
    round = Round.of((step.folder / QUESTION).read_bytes())
    return Former(round, before, int(card["clients"]))
