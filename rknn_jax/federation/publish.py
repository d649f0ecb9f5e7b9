"""Server side before and after a round: queries from public data, and results from the answers.

The results are labels, a student, the guarantee and a report. All of this is public or
post-processing, and all of it is in the run's folder. So a server that was killed continues from
there:

```
runs/<name>/
  settings.json    the settings; a command with others may not continue here
  public.npz       the queries, and which public records they stand for
  question.bin     the round, as sent
  opened.json      the time at which the round began
  answers.bin      the counted messages; with trust=central begun.json and sum.npz
  rejected.json    the number of answers not counted, by reason
  labels.npz       labels of the public records
  queries.npz      the estimated votes of each query, and their standard deviations
  student/         the trained network
  privacy.json     the guarantee, and the trust that it needs in the server
  privacy.html     the promise, in plain words
  report.html
  over.json        a mark that all connected clients have been told of the end
```
"""

import base64
import io
import json
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jinja2
import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from rknn_jax import postprocessing, representations
from rknn_jax._internal.disk import read_arrays, read_json, write_arrays, write_whole
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.federation import wire
from rknn_jax.federation.collector import QUESTION, Collector, Sum, most_shift
from rknn_jax.federation.rounds import Round
from rknn_jax.labelers import rknn
from rknn_jax.privacy.guarantee import Guarantee, Unit
from rknn_jax.privacy.statement import Statement, page
from rknn_jax.queries import kmeans
from rknn_jax.students import ensemble
from rknn_jax.students import fit as students
from rknn_jax.types import Answers, Encoder, Queries

BEGUN = "begun.json"
SUM = "sum.npz"
OVER = "over.json"
Tell = Callable[[str, str], None]

EXAMPLES_OF_A_CLASS = 12
LATEST = 1e11  # seconds since 1970
TRUSTED = {
    "local": "nothing: every message is epsilon-private by itself, whoever sees it",
    "shuffle": "not to tell, nor to look, which client sent which message: the server is the "
    "shuffler. If it does, every message is still "
    "{epsilon:.4g}-private by itself",
    "central": "to follow the protocol of secure aggregation, by which it sees nothing but the "
    "sum; one that lies about the clients' keys "
    "sees single clients' counts with a share of the noise. And {honest} of the clients in the "
    "sum must have added their share, and keep "
    "it to themselves",
}


@dataclass(frozen=True)
class Asked:
    """Request of a server's owner.

    Attributes:
      config: Settings of the labeler; epsilon is per unit.
      classes: Names of the classes, in order.
      num_queries: Number of queries s. Defaults to None, the number of classes.
      representation: Name of a file of `rknn_jax.representations`, fitted to public images.
        Defaults to spectral.
      unit, records_per_client, honest, simulated: Settings of the round, as in `Round`.
      clients: Number of clients to wait for. Defaults to 1.
      quorum: Least number of clients for a publication after the deadline. Defaults to 1.
      deadline: Time for which the round is open, in seconds. Defaults to 3600.
      student: Name of a network of `rknn_jax.students.models`, or none. Defaults to cnn.
      epochs: Number of epochs of the student. Defaults to 0, the network's own number.
      seed: Seed of clustering and training, which are public. Defaults to 0.
      authenticated: Flag for clients that are identified by keys. Defaults to False.
    """

    config: rknn.ReverseKNN
    classes: tuple[str, ...]
    num_queries: int | None = None
    representation: str = "spectral"
    unit: Unit = "record"
    records_per_client: int = 0
    honest: int = 0
    simulated: int | None = None
    clients: int = 1
    quorum: int = 1
    deadline: float = 3600.0
    student: str = "cnn"
    epochs: int = 0
    seed: int = 0
    authenticated: bool = False

    @property
    def summed(self) -> bool:
        """True if clients' counts are added under masks, with trust=central."""
        return self.config.trust == "central"


@dataclass(frozen=True)
class Public:
    """Data of the server.

    Attributes:
      inputs: uint8 images `[m, h, w, c]` or float32 features `[m, f]`.
      test: Images and labels that measure the student. Defaults to None.
    """

    inputs: np.ndarray
    test: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def images(self) -> bool:
        """True if the records are images."""
        return self.inputs.dtype == np.uint8


def prepare(folder: Path, public: Public, asked: Asked, tell: Tell) -> tuple[Round, Queries]:
    """Return the round and its queries, from the folder or newly made and saved there.

    Raises:
      ValueError: If the folder is another run's or finished, or if the data do not suffice.
    """
    if asked.student != "none" and not public.images:
        raise ValueError(
            f"Expected images for a student, got embeddings and student={asked.student}; pass "
            "--student none."
        )
    settings = json.dumps(_plain(asked), indent=2)
    if (folder / "settings.json").exists() and (
        begun := _settings(folder / "settings.json")
    ) != json.loads(settings):
        changed = [name for name, value in json.loads(settings).items() if begun.get(name) != value]
        raise ValueError(
            f"Expected the settings that --out {folder} was begun with, got others for "
            f"{', '.join(changed)}; change them back, or name "
            "a new folder."
        )
    if (folder / OVER).exists():
        raise ValueError(
            f"Expected a round that is not over in --out {folder}, got a finished one; name a "
            "new folder."
        )
    if (folder / QUESTION).exists():
        tell("goes on", f"with the round in {folder}")
        return _begun(folder, public)
    folder.mkdir(parents=True, exist_ok=True)
    if (
        any(name != "settings.json" for name in (path.name for path in folder.iterdir()))
        and not (folder / "settings.json").exists()
    ):
        raise ValueError(
            f"Expected a new folder as --out, got {folder}, which holds other files; name another."
        )
    encode = None
    features = public.inputs
    if public.images:
        tell("learning", f"{asked.representation} from {len(public.inputs):,} public images")
        encode = _representation(
            stage_key(jax.random.key(asked.seed), Stage.ENCODER), public.inputs, asked
        )
        features = np.asarray(encode(public.inputs))
    num_queries = asked.num_queries or len(asked.classes)
    if num_queries > len(features):
        raise ValueError(
            f"Expected at most {len(features)} queries, one a public record, got {num_queries}; "
            "pass --queries."
        )
    queries = kmeans.select(
        stage_key(jax.random.key(asked.seed), Stage.QUERIES), features, num_queries
    )
    sent = np.asarray(queries.features, np.float32)
    round = Round(
        sent,
        asked.classes,
        asked.config,
        encode,
        asked.unit,
        asked.records_per_client,
        asked.honest,
        asked.simulated,
    )
    write_whole(folder / "settings.json", settings.encode())
    asked_of = {"index": queries.index, "cluster": queries.cluster, "size": queries.size}
    write_arrays(folder / "public.npz", {"features": sent} | asked_of)
    write_whole(folder / QUESTION, round.data)
    return round, queries


def closes_at(folder: Path, deadline: float) -> float:
    """Return the time at which the round ends, in seconds since 1970.

    The clock starts at the first call; a restart does not change it.
    """
    path = folder / "opened.json"
    if not path.exists():
        write_whole(path, json.dumps({"opened": time.time()}).encode())
    opened: Any = _settings(path).get("opened")
    if type(opened) not in (int, float) or not 0 <= opened < LATEST:
        raise ValueError(
            f"Expected the time at which the round began in {path}, got {opened!r}; restore the "
            "file from a copy."
        )
    closes: float = opened + deadline
    return closes


def begin_sum(folder: Path) -> None:
    """Record that clients are about to spend on a sum, which cannot be resumed."""
    write_whole(folder / BEGUN, b"{}")


def end(folder: Path) -> None:
    """Record that the clients know of the end.

    Before that, a restart publishes the same results again and tells the clients.
    """
    write_whole(folder / OVER, b"{}")


def keep_sum(folder: Path, found: Sum) -> None:
    """Save a sum before anything is made from it."""
    refused = sum(found.rejected.values())
    kept: dict[str, ArrayLike] = {
        "totals": found.totals,
        "num_clients": found.num_clients,
        "refused": refused,
    }
    write_arrays(folder / SUM, kept)


def kept_sum(folder: Path, round: Round) -> Sum | None:
    """Return the sum that the folder holds, if any.

    Raises:
      ValueError: If a sum was begun and is missing. Its clients have spent, and take part in it
        only once.
    """
    if (folder / SUM).exists():
        return _sum(folder / SUM, round)
    if (folder / BEGUN).exists():
        raise ValueError(
            f"The sum in {folder} was begun and not opened, and its clients add to it once; "
            "begin another round with another --out."
        )
    return None


def _settings(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(
            f"Expected a JSON object in {path}, got something else; restore the file from a copy."
        )
    return found


def _begun(folder: Path, public: Public) -> tuple[Round, Queries]:
    """Return the round that the folder holds, and its queries.

    Raises:
      ValueError: If a file of the round is damaged, or is about other public records.
    """
    path = folder / "public.npz"
    arrays = read_arrays(path, "features", "index", "cluster", "size")
    try:
        round = Round.of((folder / QUESTION).read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{folder / QUESTION} is damaged, restore the file from a copy: {error}"
        ) from error
    features, index, cluster, size = (
        arrays[name] for name in ("features", "index", "cluster", "size")
    )
    count = len(round.queries)
    rows = len(public.inputs)
    shapes = {
        "features": round.queries.shape,
        "index": (count,),
        "cluster": (rows,),
        "size": (count,),
    }
    fits = (
        all(arrays[name].shape == shape for name, shape in shapes.items())
        and features.dtype == np.float32
    )
    fits = fits and all(array.dtype.kind in "iu" for array in (index, cluster, size))
    if not fits or not _within(index, 0, rows) or not _within(cluster, -1, count):
        raise ValueError(
            f"Expected {count} queries about {rows:,} public records in {path}, got others; "
            "restore the file from a copy."
        )
    return round, Queries(features, index, cluster, size)  # type: ignore[arg-type]


def _within(numbers: np.ndarray, low: int, high: int) -> bool:
    return bool(np.all((numbers >= low) & (numbers < high)))


def _sum(path: Path, round: Round) -> Sum:
    """Read a sum that `keep_sum` wrote."""
    arrays = read_arrays(path, "totals", "num_clients", "refused")
    totals, clients, refused = (arrays[name] for name in ("totals", "num_clients", "refused"))
    fits = totals.shape == (round.num_cells,) and clients.shape == refused.shape == ()
    if (
        not fits
        or any(array.dtype.kind not in "iu" for array in arrays.values())
        or clients < 0
        or refused < 0
    ):
        raise ValueError(
            f"Expected {round.num_cells:,} totals of clients in {path}, got something else; "
            "restore the file from a copy."
        )
    return Sum(
        round,
        totals,
        int(clients),
        Counter({"refused by the client": int(refused)} if refused else {}),
    )


def publish(
    folder: Path,
    public: Public,
    asked: Asked,
    queries: Queries,
    collector: Collector | Sum,
    tell: Tell,
) -> dict[str, Any]:
    """Label the public records, train the student, and write the results.

    Raises:
      ValueError: If too few clients answered to publish anything.
    """
    round = collector.round
    if collector.num_clients < asked.quorum:
        raise ValueError(
            f"Expected a quorum of {asked.quorum} clients, got {collector.num_clients} by the "
            "deadline; nothing is published. The answers "
            f"are kept in {folder}: run the same command with a later --deadline."
        )
    if collector.num_messages < round.honest:
        raise ValueError(
            f"Expected at least {round.honest} messages to shuffle, got "
            f"{collector.num_messages}; nothing is published."
        )
    guarantee = round.guarantee(round.honest or None)
    counts, stddev = collector.counts()
    answers = rknn.answer(counts, stddev, guarantee, queries, asked.config)
    features = public.inputs if round.encode is None else np.asarray(round.encode(public.inputs))
    graph = postprocessing.public_graph(
        features, len(queries.index), metric=asked.config.metric, smoothing=asked.config.smoothing
    )
    probabilities = postprocessing.public_labels(
        graph, answers.probabilities[queries.cluster], len(queries.index)
    )
    labels = probabilities.argmax(axis=1).astype(np.int32)
    confidence = answers.confidence[queries.cluster]
    names = np.array(asked.classes)
    rows = {
        "label": labels,
        "query": queries.cluster,
        "confidence": confidence,
        "probability": probabilities,
        "class_names": names,
    }
    write_arrays(folder / "labels.npz", rows)
    answered = {"index": queries.index, "label": answers.labels, "votes": counts, "stddev": stddev}
    write_arrays(folder / "queries.npz", answered)
    accuracy = None
    if public.images and asked.student != "none":
        accuracy = _train(folder, public, asked, labels, tell)
    card = _card(asked, collector, guarantee, accuracy)
    write_whole(
        folder / "report.html",
        _report(public, asked, collector, answers, labels, confidence, card).encode(),
    )
    write_whole(folder / "privacy.html", page(_statement(asked, guarantee, card)).encode())
    write_whole(
        folder / "privacy.json", (json.dumps(card, indent=2, allow_nan=False) + "\n").encode()
    )
    tell("privacy", str(guarantee))
    if accuracy is not None:
        tell(
            "student",
            f"{accuracy:.2%} of {len(public.test[1]):,} test images" if public.test else "",
        )
    tell("report", str(folder / "report.html"))
    return card


def _train(
    folder: Path, public: Public, asked: Asked, labels: np.ndarray, tell: Tell
) -> float | None:
    tell("training", f"{asked.student} on {len(labels):,} labeled public images")
    config = students.Config(model=asked.student, epochs=asked.epochs)
    targets = np.eye(len(asked.classes), dtype=np.float32)[labels]
    student = ensemble.fit(
        stage_key(jax.random.key(asked.seed), Stage.STUDENT), public.inputs, targets, config, 1
    )
    ensemble.save(student, folder / "student")
    if public.test is None:
        return None
    images, truth = public.test
    return float(np.mean(student.predict_proba(images).argmax(axis=1) == truth))


def _representation(key: jax.Array, images: np.ndarray, asked: Asked) -> Encoder:
    """Fit the representation on public images, with its settings for the number of classes."""
    settings = representations.named(asked.representation)()
    return settings.for_task(len(asked.classes), asked.num_queries).fit(key, images)


def _card(
    asked: Asked, collector: Collector | Sum, guarantee: Guarantee, accuracy: float | None
) -> dict[str, Any]:
    round = collector.round
    central = asked.summed
    return {
        "statement": str(guarantee),
        "guarantee": guarantee.asdict(),
        "trusted_with": TRUSTED[asked.config.trust].format(
            epsilon=math.nan if central else round.message_epsilon, honest=round.honest
        ),
        "round": round.id,
        "clients": collector.num_clients,
        "messages": collector.num_messages,
        "rejected": dict(collector.rejected),
        "message_bytes": 8 * round.shares.num_cells
        if central
        else wire.message_bytes(round.mechanism),
        "most_votes_of_a_liar": None  # nobody can look into a vector
        if central
        else most_shift(round.mechanism),
        "mechanism": asked.config.noise,
        "num_queries": len(round.queries),
        "num_neighbors": asked.config.num_neighbors,
        "classes": list(asked.classes),
        "student_accuracy": accuracy,
        "not_covered": [
            "that a client took part"
            if asked.unit == "client" or central
            else "how many messages a client sent",
            "the set of classes, which is taken as public",
            "results of other rounds: each client's own ledger adds them up",
        ],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _statement(asked: Asked, guarantee: Guarantee, card: dict[str, Any]) -> Statement:
    summed = asked.summed
    holders = "1 client holds" if card["clients"] == 1 else f"{card['clients']:,} clients hold"
    sent = (
        "numbers that were masked and of which the server saw the sum"
        if summed
        else "answers that it had made random"
    )
    released = [
        "the noisy number of votes for each class, and the label, of each query",
        "a label for each public record, made from that",
    ]
    student = [] if asked.student == "none" else ["a network trained on these labels"]
    return Statement(
        guarantee,
        f"{holders} private records, each its own. The records stayed there; each client sent "
        f"{sent}.",
        (*released, *student),
        tuple(card["not_covered"]),
        asked.config.noise,
        "No ledger keeps account of a simulation."
        if guarantee.sampler == "simulation"
        else "Every client has a ledger of its own, which was charged before anything was sent; "
        "the server sees none of them.",
        card["time"],
        f"The server is trusted with {card['trusted_with']}.",
        {
            "round": card["round"],
            "clients": card["clients"],
            "messages": card["messages"],
            "votes of a record": card["num_neighbors"],
            "queries": card["num_queries"],
            "classes": len(asked.classes),
        },
    )


def _report(
    public: Public,
    asked: Asked,
    collector: Collector | Sum,
    answers: Answers,
    labels: np.ndarray,
    confidence: np.ndarray,
    card: dict[str, Any],
) -> str:
    classes = []
    for number, name in enumerate(asked.classes):
        mine = np.flatnonzero(labels == number)
        shown = mine[np.argsort(-confidence[mine], kind="stable")[:EXAMPLES_OF_A_CLASS]]
        pictures = [_picture(public.inputs[i]) for i in shown] if public.images else []
        classes.append({"name": name, "count": len(mine), "pictures": pictures})
    shade = np.clip(answers.counts / np.maximum(10 * answers.stddev, 1e-9), 0, 1)
    rows = [
        {
            "label": asked.classes[label],
            "confidence": sure,
            "cells": list(zip(counts, shades, strict=True)),
        }
        for label, sure, counts, shades in zip(
            answers.labels,
            answers.confidence.tolist(),
            answers.counts.tolist(),
            shade.tolist(),
            strict=True,
        )
    ]
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        resources.files("rknn_jax.federation").joinpath("report.html.j2").read_text()
    )
    return template.render(
        card=card,
        classes=classes,
        rows=rows,
        names=asked.classes,
        stddev=float(answers.stddev.mean()),
    )


def _picture(image: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _plain(asked: Asked) -> dict[str, Any]:
    """Return the settings as JSON-ready values, except those that may change in an open round."""
    values = {
        name: getattr(asked, name)
        for name in asked.__dataclass_fields__
        if name not in ("deadline", "quorum", "clients")
    }
    return values | {
        "config": {name: getattr(asked.config, name) for name in asked.config.__dataclass_fields__}
    }
