"""Results of a round: labels, a student, the guarantee and a report, from the answers.

All of it is public or post-processing, and all of it is written into the round's folder
(`rknn_jax.federation.round_folder`).
"""

import base64
import io
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from PIL import Image

from rknn_jax import trust
from rknn_jax._internal.disk import write_arrays, write_whole
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax._internal.option_names import option
from rknn_jax.answers.measured import Measured
from rknn_jax.federation import client_accounts, round_labels, wire
from rknn_jax.federation.collector import Collector, Sum, most_shift
from rknn_jax.federation.request import Asked, Public
from rknn_jax.federation.round_folder import Tell
from rknn_jax.federation.rounds import Round
from rknn_jax.labelers._sum_labeler import PublicRows, Words
from rknn_jax.labels import PublicLabels
from rknn_jax.mechanisms.local import PureProtocol
from rknn_jax.neighbors import in_metric
from rknn_jax.privacy.guarantee import Guarantee, rounded_up
from rknn_jax.privacy.statement import (
    CHOSEN_SETTINGS,
    ONE_LEDGER,
    PUBLIC_TUNING,
    UNKNOWN_MODEL,
    Statement,
    as_json,
    page,
)
from rknn_jax.question import RELEASED_BEFORE
from rknn_jax.release.tables import carried
from rknn_jax.report import pages, results
from rknn_jax.report import release as report
from rknn_jax.report.summary import summarize
from rknn_jax.students import ensemble
from rknn_jax.students import fit as students
from rknn_jax.types import Queries

EXAMPLES_OF_A_CLASS = 12

ACCURACY = "the accuracy of the network, which is computed from true labels of test images"


class Labeled(NamedTuple):
    """Labels of the public rows, before anything of them is written.

    Attributes:
      found: Labels.
      rows: Public rows.
      guarantee: Guarantee of the votes, and of a check of the labels.
    """

    found: PublicLabels
    rows: PublicRows
    guarantee: Guarantee


class Checked(NamedTuple):
    """Labels, and what they are worth.

    Attributes:
      labeled: Labels of the public rows.
      measured: Agreement with records that did not vote; None if it was not measured.
    """

    labeled: Labeled
    measured: Measured | None


def publish(
    folder: Path,
    public: Public,
    asked: Asked,
    queries: Queries,
    collector: Collector | Sum,
    tell: Tell,
    checked: Checked | None = None,
    accounts: Path | None = None,
) -> dict[str, Any]:
    """Label the public records, train the student, and write the results.

    Args:
      folder: Folder of the round.
      public: Public data of the server.
      asked: Request of the server's owner.
      queries: Queries of the round.
      collector: Answers of the clients.
      tell: Function that is called with each event.
      checked: Labels of `labeled`, with what others measured of them. Defaults to None: they are
        read here, and were not checked.
      accounts: File in which the rounds of each client add up, for the report's table. Defaults to
        None, no accounts.

    Raises:
      ValueError: If too few clients answered to publish anything.
    """
    round = collector.round
    was_checked = checked is not None
    checked = checked or Checked(
        labeled(folder, public, asked, queries=queries, collector=collector), None
    )
    (found, rows_asked, guarantee), measured = checked
    features = rows_asked.features
    doubts = round_labels.concerns(round, found, rows_asked)
    found, listed = found.judged(doubts, measured, asked.classes)
    rows = {**found.rows, "class_names": np.array(asked.classes), **carried(public.others)}
    words = round_labels.words(round, len(found.probabilities))
    check = _Check(measured, is_over=was_checked)
    told = _statement(asked, collector, guarantee, words=words, check=check, public=public)
    # The statement comes first, so that no label is ever there without one.
    write_whole(folder / "privacy.html", page(told).encode())
    write_arrays(folder / "labels.npz", rows)
    answered = round_labels.arrays(found, queries)
    if answered:
        write_arrays(folder / "queries.npz", answered)
    accuracy = None
    if public.images and asked.student != "none":
        accuracy = _train(folder, public, asked, labels=found.labels, tell=tell)
    card = _card(told, asked, collector, accuracy=accuracy, words=words, measured=measured)
    if public.former is not None:
        card["rounds_before"] = public.former.before.guarantee.asdict()
    rows_seen = np.asarray(in_metric(features, round.config.metric))
    summary = summarize(
        rows_seen, listed, found.decoded, stddev=answered.get("stddev"), measured=measured
    )
    released = results.of(rows, answered, card, summary)
    template = pages.template("report.html.j2", Path(__file__).parent)
    pictures = _pictures(public, asked, found)
    question = round_labels.question(round)
    shown = client_accounts.accounts(accounts)[: client_accounts.MOST_ROWS] if accounts else []
    report.write(folder, released, template, pictures=pictures, question=question, accounts=shown)
    write_whole(folder / "privacy.json", as_json(card).encode())
    tell("privacy", str(guarantee))
    if measured is not None:
        tell("measured", str(measured))
    if accuracy is not None and public.test is not None:
        tell("student", f"{accuracy:.2%} of {len(public.test[1]):,} test images")
    tell("report", str(folder / "report.html"))
    return card


def labeled(
    folder: Path, public: Public, asked: Asked, queries: Queries, collector: Collector | Sum
) -> Labeled:
    """Return the labels of the public rows; no further answer counts from then on.

    Raises:
      ValueError: If too few clients answered to publish anything.
    """
    round = collector.round
    _check_answers(folder, asked, collector)
    collector.seal()
    guarantee = round.guarantee(round.honest or None)
    features = public.inputs if round.encode is None else np.asarray(round.encode(public.inputs))
    rows = round_labels.rows_of(round, queries, round.mapped(features))
    found = round_labels.read(collector, guarantee, rows)
    if public.former is not None:
        before = public.former.before
        found, guarantee = found.beside(before.probabilities), before.whole(guarantee)
    return Labeled(found, rows, guarantee)


def collected(collector: Collector | Sum) -> dict[str, Any]:
    """Return the statement of a server that publishes nothing, as `publish` does."""
    round = collector.round
    return {
        "statement": f"round {round.id[:12]}: the answers are collected here, and the results are "
        "published for all servers together",
        "round": round.id,
        "clients": collector.num_clients,
        "messages": collector.num_messages,
        "rejected": dict(collector.rejected),
    }


def _check_answers(folder: Path, asked: Asked, collector: Collector | Sum) -> None:
    """Check that enough clients and messages are there to publish anything."""
    round = collector.round
    kept = (
        f"nothing is published. The answers are kept in {folder}: serve there by the same options "
        f"with a later {option('deadline')}"
    )
    if not asked.shuffled:  # whose servers were all merged, if there are several
        kept += ", or merge it with the folders of more servers"
    if collector.num_clients < asked.quorum:
        raise ValueError(
            f"Expected a quorum of {asked.quorum} clients, got {collector.num_clients}; {kept}."
        )
    if collector.num_messages < max(1, round.honest):
        raise ValueError(
            f"Expected at least {max(1, round.honest)} messages of votes, got "
            f"{collector.num_messages}; {kept}."
        )


def _train(
    folder: Path, public: Public, asked: Asked, labels: np.ndarray, tell: Tell
) -> float | None:
    tell("training", f"{asked.student} on {len(labels):,} labeled public images")
    config = students.Config(model=asked.student, epochs=asked.epochs)
    targets = np.eye(len(asked.classes), dtype=np.float32)[labels]
    student = ensemble.fit(
        stage_key(jax.random.key(asked.seed), Stage.STUDENT),
        public.inputs,
        targets,
        config=config,
        num_members=1,
    )
    ensemble.save(student, folder / "student")
    if public.test is None:
        return None
    images, truth = public.test
    return float(np.mean(student.predict_proba(images).argmax(axis=1) == truth))


def _card(
    told: Statement,
    asked: Asked,
    collector: Collector | Sum,
    accuracy: float | None,
    words: Words,
    measured: Measured | None,
) -> dict[str, Any]:
    """Return the content of `privacy.json`."""
    round = collector.round
    told_of_check = {"check_share": round.check_share, "measured": measured and measured.asdict()}
    if asked.summed:
        message_bytes = 8 * round.num_cells
        most_votes_of_a_liar = None  # nobody can look into a vector
    else:
        message_bytes = wire.message_bytes(round.mechanism)
        mechanism, most_votes_of_a_liar = round.mechanism, None
        if isinstance(mechanism, PureProtocol):  # all but some of simulations
            most_votes_of_a_liar = most_shift(mechanism)
    return told.card(
        round=round.id,
        clients=collector.num_clients,
        messages=collector.num_messages,
        rejected=dict(collector.rejected),
        message_bytes=message_bytes,
        most_votes_of_a_liar=most_votes_of_a_liar,
        classes=list(asked.classes),
        student_accuracy=accuracy,
        **words.facts,
        **(told_of_check if round.check_share else {}),
    )


def _statement(
    asked: Asked,
    collector: Collector | Sum,
    guarantee: Guarantee,
    words: Words,
    check: "_Check",
    public: Public,
) -> Statement:
    """Return the content of `privacy.html`."""
    round = collector.round
    before = public.former and public.former.before
    clients = collector.num_clients
    who, hold = ("1 client", "holds") if clients == 1 else (f"{clients:,} clients", "hold")
    if before is not None:
        who += " that answered the last round"  # one may have answered earlier rounds alone
    sent = (
        "numbers that were masked and of which the server saw the sum"
        if asked.summed
        else "answers that it had made random"
    )
    if asked.summed or asked.unit == "client":
        hidden = "that a client took part, and so has a private record"
    else:
        hidden = "how many messages a client sent"
    student = [] if asked.student == "none" else ["a network trained on these labels"]
    counted = "clients of the sum" if asked.summed else "messages"
    earlier = [] if before is None else [RELEASED_BEFORE]
    more = ", and those of the rounds before add up with it" if earlier and asked.shuffled else ""
    assumptions = []
    if round.honest:
        assumptions.append(f"at least {round.honest} {counted} were made by this protocol")
    if guarantee.sampler == "release":
        assumptions.append(ONE_LEDGER)
    return Statement(
        guarantee,
        f"{who} {hold} private records, each its own. The records stayed there; each client sent "
        f"{sent}.",
        (*words.released, *student, *_released_by_check(round, check), *earlier),
        not_covered=(
            hidden,
            "the set of classes, which is taken as public",
            *([] if round.encode else [UNKNOWN_MODEL]),
            CHOSEN_SETTINGS,
            *([ACCURACY] if student and public.test is not None else []),
            "results of other rounds: each client's own ledger adds them up",
        ),
        mechanism=round.noise,
        account="No ledger keeps account of a simulation."
        if guarantee.sampler == "simulation"
        else "Every client has a ledger of its own, which was charged before anything was sent; "
        "the server sees none of them.",
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        trusted_with=f"The server is trusted {trusted_with(round)}{more}.",
        details={
            "round": round.id,
            "clients": clients,
            "messages": collector.num_messages,
            **({} if before is None else before.details(round.guarantee(round.honest or None))),
            **words.details,
            "classes": len(asked.classes),
            **_details_of_check(round, check),
        },
        release=round.id,
        responsible=asked.responsible,
        contribution=round_labels.contribution(round),
        tuning=PUBLIC_TUNING,
        assumptions=tuple(assumptions),
        class_names=asked.classes,
    )


def trusted_with(round: Round) -> str:
    """Return the words after "The server is trusted".

    The epsilon that is promised of a message is rounded up, and never less than what it costs.
    """
    message_epsilon = math.nan if round.summed else float(rounded_up(round.message_epsilon, 4))
    server = trust.named(round.config.trust).server
    return server.format(epsilon=message_epsilon, honest=round.honest)


class _Check(NamedTuple):
    """Check of the labels of a round, or of those of a later one.

    Attributes:
      measured: Agreement with records that did not vote; None if it was not measured.
      is_over: False if these labels were not to be checked.
    """

    measured: Measured | None
    is_over: bool


def _released_by_check(round: Round, check: _Check) -> list[str]:
    """Return what is released of a check; nothing if there is none."""
    if not round.check_share or not check.is_over:
        return []
    form = "a noisy sum" if round.summed else "a randomized bit of each"
    return [
        f"how many private {round.unit}s that did not vote agree with the labels, by {form}; the "
        "labels themselves were sent to all clients"
    ]


def _details_of_check(round: Round, check: _Check) -> dict[str, str]:
    """Return the lines of `privacy.html` about a check; none if there is none."""
    if not round.check_share:
        return {}
    told = "nothing, as too few answered" if check.measured is None else str(check.measured)
    told = told if check.is_over else "nothing, as the labels of the last round alone are checked"
    who = f"{round.check_share:.1%}, by coins of the clients, which do not depend on data"
    return {f"{round.unit}s that check instead of voting": who, "measured": told}


def _pictures(public: Public, asked: Asked, found: PublicLabels) -> list[tuple[str, list[str]]]:
    """Return the pictures of each class with the surest labels, as PNG in base64."""
    if not public.images:
        return []
    pictures = []
    for number, name in enumerate(asked.classes):
        mine = np.flatnonzero(found.labels == number)
        shown = mine[np.argsort(-found.confidence[mine], kind="stable")[:EXAMPLES_OF_A_CLASS]]
        pictures.append((name, [_picture(public.inputs[i]) for i in shown]))
    return pictures


def _picture(image: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
