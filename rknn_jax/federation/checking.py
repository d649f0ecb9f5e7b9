"""Second question of a round on the server: ask it, and read what the answers measure.

Its folder is `check` in the round's folder, with a question, a clock and answers of its own. The
labels are in the question, so votes are sealed before it is asked, and a server that was killed
asks the same question again.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rknn_jax import randomized_bits
from rknn_jax._internal.disk import make_folder, write_whole
from rknn_jax.answers.measured import Interval, Measured, coin_quantiles, interval_under
from rknn_jax.federation import hosting, round_folder, round_labels
from rknn_jax.federation.check_rounds import CheckRound
from rknn_jax.federation.collector import QUESTION, Collector, Sum
from rknn_jax.federation.desk import Desk
from rknn_jax.federation.publish import Checked, Labeled
from rknn_jax.federation.request import Asked
from rknn_jax.federation.round_folder import Tell
from rknn_jax.federation.rounds import Round
from rknn_jax.labelers._vote_shares import VoteShares

CHECK = "check"
"""Folder of the check in the round's folder."""


def measure(
    folder: Path,
    votes: Round,
    labeled: Labeled,
    asked: Asked,
    clients: int,
    serve: Callable[[Desk], None],
    counted: Callable[[Collector], None],
    tell: Tell,
) -> Checked:
    """Ask the clients whether they agree with the labels, and return what they say.

    Args:
      folder: Folder of the round of votes.
      votes: Round of votes.
      labeled: Its labels.
      asked: Request of the server's owner.
      clients: Number of clients to wait for, those who answered the round of votes.
      serve: Function that serves a desk in place of the former one.
      counted: Function that is called with the answers that were counted. Some of their clients may
        have come too late to vote, and have spent as much as those who voted.
      tell: Function that is called with each event.

    Returns:
      The labels and their measure.
    """
    check = prepared(folder / CHECK, votes, labeled)
    closes = round_folder.closes_at(folder / CHECK, asked.deadline)
    tell("check", f"round {check.id[:12]}: {len(check.queries):,} labels to {clients} clients")
    desk = Desk(check, closes)
    serve(desk)
    if check.summed:
        answers = _summed(folder / CHECK, desk, asked, clients=clients, tell=tell)
        return Checked(labeled, None if answers is None else measured(answers))
    collector = Collector(folder / CHECK, check)
    try:
        hosting.collect(desk, collector, clients, tell)
        collector.seal()
        return Checked(labeled, measured(collector))
    finally:
        counted(collector)
        collector.close()


def prepared(folder: Path, votes: Round, labeled: Labeled) -> CheckRound:
    """Return the check of labels, from its folder or newly made and saved there.

    Args:
      folder: Folder of the check.
      votes: Round of votes.
      labeled: Its labels.

    Raises:
      ValueError: If the folder holds something else.
    """
    path = folder / QUESTION
    if not path.exists():
        labeling = round_labels.labeling(votes, labeled.found, labeled.rows)
        check = CheckRound.of_votes(votes, np.asarray(labeled.rows.features), labeling)
        make_folder(folder)
        write_whole(path, check.data)
    kept = Round.of(path.read_bytes())
    if not isinstance(kept, CheckRound) or kept.voted != votes.id:
        raise ValueError(
            f"Expected the check of round {votes.id[:12]} in {path}, got something else; restore "
            "the file from a copy."
        )
    return kept


def _summed(folder: Path, desk: Desk, asked: Asked, clients: int, tell: Tell) -> Sum | None:
    """Return the sum of a check; None if it could not be opened, as labels are there without it."""
    try:
        if (found := round_folder.kept_sum(folder, desk.round)) is not None:
            desk.change(stage="closed")
            return found
        begin = functools.partial(round_folder.begin_sum, folder)
        found = hosting.sum_up(desk, clients, asked.quorum, begin=begin, tell=tell, is_last=False)
    except ValueError as error:
        desk.change(stage="closed")
        tell("unchecked", str(error))
        return None
    hosting.when_there_is_room(functools.partial(round_folder.keep_sum, folder, found), tell)
    return found


def measured(answers: Collector | Sum) -> Measured | None:
    """Return what the answers to a check measure; None if nobody checked."""
    check = answers.round
    if isinstance(answers, Sum):
        right, wrong = map(float, answers.counts()[0].ravel())
        if right + wrong < 1:
            return None
        assert isinstance(check.sum, VoteShares)
        noise = coin_quantiles(answers.num_clients * check.sum.coins.coins_per_share)
        return _measured(interval_under(right, wrong, noise, known=False), right + wrong, check)
    size = answers.num_messages
    if not size:
        return None
    ones = int(answers.totals[randomized_bits.AGREES])
    share = randomized_bits.interval_of_bits(ones, size, check.config.epsilon)
    return _measured(share, size, check)


def _measured(share: Interval, checkers: float, check: Round) -> Measured:
    return Measured(
        *share, round(checkers), "the usual one", recall=(), majority=None, unit=check.unit
    )
