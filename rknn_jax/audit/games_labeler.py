"""Neighboring inputs of labelers and adversaries' views of them, for audits.

A canary is the record in which two data sets differ, or the person with all records, if persons
are the unit. A view holds all that a labeler releases and
nothing else: counts, labels, soft labels, confidences and, if the labeler trains a network, the
network's weights. Every run labels a small task anew.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import labelers
from rknn_jax.audit.game import Game
from rknn_jax.labelers import Labeler
from rknn_jax.privacy.contributions import Protected
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.queries import kmeans
from rknn_jax.types import Answers, Array, Card, Public, Records, Task

OTHERS = 2
"""Number of queries of other classes whose pictures replace a canary's own."""


RECORDS_OF_LAST = 8
"""Number of records of the last person of a small task; all others have one."""


@dataclass(frozen=True)
class Canary:
    """A record by which two data sets differ, or all records of a person.

    Attributes:
      words: Description of the canary.
      images: Pictures in either data set, uint8 `[2, height, width, channels]`. A person has the
        picture in every record.
      labels: Labels in either data set, int32 `[2]`.
    """

    words: str
    images: np.ndarray
    labels: np.ndarray


def of_labeler(
    task: Task, encode: Any, queries: Any, labeler: Labeler[Any]
) -> tuple[list[Game], Guarantee]:
    """Return games of a labeler on a task, and the guarantee of its answers.

    The last private record is a canary, or is absent. If persons are the unit, it is the last
    record's person with all records.

    Args:
      task: Small task, as every run labels it anew.
      encode: Map from images to features.
      queries: Public queries, with their images.
      labeler: Labeler with its settings.
    """

    def answers(key: jax.Array, private: Records) -> Answers:
        votes_key, noise_key = jax.random.split(key)
        votes = labeler.contribute(
            votes_key, private, encode, queries=queries, num_classes=task.card.num_classes
        )
        return labeler.release(noise_key, votes, queries, task.card.num_classes)

    games = []
    without = without_canary(task.private, labeler.unit)
    for number, canary in enumerate(canaries(task, queries)):
        first, second = (
            with_record(task.private, canary.images[world], int(canary.labels[world]), labeler.unit)
            for world in (0, 1)
        )
        if labeler.relation == "replace-one":
            games.append(Game(canary.words, _answers(answers, [first, second])))
            continue
        # The first picture is always the same.
        records = (first, second) if number == 0 else (second,)
        games += [
            Game(f"there or not: one of {canary.words}", _answers(answers, [without, record]))
            for record in records
        ]
    return games, answers(jax.random.key(0), task.private).guarantee


def telling(name: str, **given: Any) -> Labeler[Any]:
    """Return a labeler under whose settings one record counts for much.

    Args:
      name: File of `rknn_jax.labelers`.
      **given: Settings, such as epsilon.
    """
    labeler = labelers.named(name)
    return labeler(**{**labeler.telling, **given})


def canaries(task: Task, queries: Any) -> list[Canary]:
    """Return canaries, each of which shows the picture of a query in one data set.

    The other data set has another label, the picture of another query, or a random picture.
    """
    labels = task.public.true_labels[queries.index]
    pictures = task.public.images[queries.index]
    elsewhere = np.flatnonzero(labels != labels[0])[:OTHERS]
    other = (labels[0] + 1) % task.card.num_classes
    noise = np.random.default_rng(0).integers(0, 2, pictures.shape[1:]).astype(np.uint8) * 255
    own = "the picture of a query with its label, "
    found = [Canary(own + "or with another", pictures[[0, 0]], np.array([labels[0], other]))]
    found += [
        Canary(own + "or that of another with its own", pictures[[0, i]], labels[[0, i]])
        for i in elsewhere
    ]
    found += [
        Canary(own + "or that of another with the same", pictures[[0, i]], labels[[0, 0]])
        for i in elsewhere
    ]
    return [
        *found,
        Canary(
            own + "or a picture like nothing",
            np.stack([pictures[0], noise]),
            np.array([labels[0], other]),
        ),
    ]


def with_record(
    private: Records, image: np.ndarray, label: int, unit: Protected = "record"
) -> Records:
    """Return the records with the canary's replaced.

    Args:
      private: Private records.
      image: Picture that takes their place, uint8 `[height, width, channels]`.
      label: Label that takes their place.
      unit: Privacy unit. Defaults to record: the last record alone is replaced. With person, all
        records of its person are.
    """
    mine = _of_canary(private, unit)
    images = private.images.copy()
    labels = private.labels.copy()
    images[mine] = image
    labels[mine] = label
    return replace(private, images=images, labels=labels)


def without_canary(private: Records, unit: Protected = "record") -> Records:
    """Return the records without the last one, or without those of its person."""
    others = ~_of_canary(private, unit)
    clients = None if private.clients is None else private.clients[others]
    return Records(private.images[others], private.labels[others], clients)


def _of_canary(private: Records, unit: Protected) -> np.ndarray:
    """Return a mask of the canary's records, bool `[n]`."""
    if unit == "person" and private.clients is not None:
        return np.asarray(private.clients == private.clients[-1])
    return np.asarray(np.arange(len(private.labels)) == len(private.labels) - 1)


def small_task(num_records: int = 24) -> Task:
    """Return a task of three classes of pictures of 6 x 6, each with a bright quarter.

    It has 12 public, `num_records` private and 3 test records. `RECORDS_OF_LAST` private records
    are of one person.
    """
    rng = np.random.default_rng(0)
    sizes = np.cumsum([0, 12, num_records, 3])
    labels = np.arange(sizes[-1]) % 3
    images = rng.integers(0, 60, (len(labels), 6, 6, 1))
    for image, label in zip(images, labels, strict=True):
        image[3 * (label // 2) : 3 * (label // 2) + 3, 3 * (label % 2) : 3 * (label % 2) + 3] += 180
    index = [np.arange(start, end) for start, end in itertools.pairwise(sizes)]
    parts = [(images[rows].astype(np.uint8), labels[rows].astype(np.int32)) for rows in index]
    others = max(num_records - RECORDS_OF_LAST, 0)
    clients = np.minimum(np.arange(num_records), others).astype(np.int32)
    return Task(
        Card("bright quarters", "made here", "none", ("a", "b", "c")),
        Public(*parts[0]),
        Records(*parts[1], clients),
        Records(*parts[2]),
        *index,
    )


def small_queries(task: Task, num_queries: int = 3) -> tuple[Any, Any]:
    """Return an encoder of plain pixels, and queries about a small task."""

    def encode(images: Array) -> jax.Array:
        return jnp.asarray(images, jnp.float32).reshape(len(images), -1) / 255

    queries = kmeans.select(jax.random.key(1), encode(task.public.images), num_queries)
    return encode, replace(queries, images=task.public.images[queries.index])


def seen(answers: Answers) -> np.ndarray:
    """Return all that answers show, float64 `[f]`."""
    shown = [
        answers.labels,
        answers.answered,
        answers.probabilities,
        answers.confidence,
        answers.counts,
        answers.stddev,
    ]
    weights = [
        getattr(answers.model, name)
        for name in ("params", "batch_stats")
        if hasattr(answers.model, name)
    ]
    return np.concatenate(
        [np.ravel(np.asarray(array, np.float64)) for array in [*shown, *jax.tree.leaves(weights)]]
    )


def _answers(
    answers: Callable[[jax.Array, Records], Answers], worlds: Sequence[Records]
) -> Callable[[jax.Array, int, int], np.ndarray]:
    def observe(key: jax.Array, world: int, runs: int) -> np.ndarray:
        return np.stack(
            [
                seen(answers(k, worlds[world]))
                for k in map(partial(jax.random.fold_in, key), range(runs))
            ]
        )

    return observe
