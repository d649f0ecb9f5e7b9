"""Neighbouring inputs of mechanisms and labelers, and what is seen of them: what `privacy.audit` plays.

A canary is the record in which two inputs differ. What is seen is all that a release shows and nothing else: counts, labels, soft labels,
confidences and, of a labeler that trains one, the network's weights; of a client in the local model its message.

Of local randomizers with few cells the law itself is enumerated, `exact`: every input, missing votes too, and every message. That is about
the mathematics of a file, and the game about the code that draws.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import labelers
from rknn_jax.mechanisms.base import CentralMechanism, estimate_counts
from rknn_jax.mechanisms.local import LocalRandomizer
from rknn_jax.mechanisms.multi_message import MultiMessage
from rknn_jax.privacy.audit import Bound, Finding, Game
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.guarantee import Guarantee, Sampler
from rknn_jax.queries import kmeans
from rknn_jax.types import Answers, Array, Card, Public, Records, Task

RUNS_AT_ONCE = 2000
"""Drawn together, so that one program is compiled for searches and long runs."""

COINS = 4
"""Draws of the public coins under which a law is enumerated."""

MOST_CELLS = 12
"""Of a law that is enumerated: its messages may be all sets of cells."""

ROUNDING = 1e-9
"""Relative error of epsilon that an enumeration in float64 may have."""

TELLING: dict[str, dict[str, Any]] = {
    "private_knn": {"num_neighbors": 3, "sampling_prob": 0.5, "threshold": 0.5},
    "pate": {"num_teachers": 12, "hidden": 0, "steps": 20, "threshold": 0.5},
    "noisy_sgd": {"batch_size": 12, "epochs": 1.0},
    "dpdfd": {"num_teachers": 12, "steps": 1, "batch_size": 4, "updates": 1, "teacher_steps": 20},
}
"""Settings under which one record of `small_task` counts for much; a labeler without is audited as its first example."""

OTHERS = 2
"""Queries of other classes whose pictures a canary takes instead."""

CROWDS = (1, 3)
"""Other records, all of whom vote as the canary does: what is released may depend on how close a race is."""


def of_mechanism(mechanism: Any, sampler: Sampler = "simulation") -> list[Game]:
    """Return games of a mechanism: a record that changes its queries, its label or both, or casts no vote, alone or in a close race.

    Args:
      mechanism: any.
      sampler: `simulation` for `jax.random`'s noise, `release` for exact noise on the operating system's entropy.
    """
    votes = _votes(mechanism)
    if isinstance(mechanism, LocalRandomizer):
        pairs = [(f"a client that votes for {_told(a)} or for {_told(b)}", a, b) for a, b in itertools.combinations(votes, 2)]
        return [Game(words, _messages(mechanism, a, b, sampler)) for words, a, b in pairs]
    if isinstance(mechanism, MultiMessage):
        if sampler == "release":
            raise ValueError("Expected sampler=simulation for MultiMessage, got release; it is simulated, and has no exact form.")
        crowd = np.repeat(votes[:1], mechanism.num_clients - 1, axis=0)
        changes = [(f"a client among {mechanism.num_clients}, for {_told(votes[0])} or {_told(b)}", votes[0], b) for b in votes[1:]]
        return [Game(words, _shuffled(mechanism, np.stack([[*crowd, a], [*crowd, b]]))) for words, a, b in changes]
    games = []
    for size in CROWDS:
        crowd = np.where(np.arange(max(CROWDS))[:, None] < size, votes[:1], -1)  # of one shape
        others = f"{size} for {_told(votes[0])}"
        if mechanism.relation == "replace-one":
            for a, b in itertools.combinations(votes, 2):
                worlds = [np.stack([*crowd, a]), np.stack([*crowd, b])]
                games.append(of_cells(f"{others}, and one for {_told(a)} or {_told(b)}", mechanism, worlds, sampler))
        else:
            for a in votes[:-1]:
                worlds = [crowd, np.stack([*crowd, a])]
                games.append(of_cells(f"{others}, and one more for {_told(a)} or none", mechanism, worlds, sampler))
    return games


def exact(mechanism: Any) -> Finding | None:
    """Return the largest log ratio of probabilities of any message from any two inputs; None for laws that are not enumerated.

    These are the laws of local randomizers with `MOST_CELLS` cells at most. Inputs are every choice of up to k·r cells, and messages all
    that share public coins, under `COINS` draws of the coins.
    """
    if not isinstance(mechanism, LocalRandomizer) or mechanism.num_cells > MOST_CELLS:
        return None
    votes, epsilon, words, claimed = inputs(mechanism), 0.0, "", mechanism.guarantee(1).epsilon
    for coin in range(COINS):
        messages = mechanism.alphabet(jax.random.key(coin))
        law = np.stack([mechanism.log_prob(messages, cells) for cells in votes])
        law = law[:, law.max(axis=0) > -np.inf]  # what nobody sends tells nothing
        spread = law.max(axis=0) - law.min(axis=0)
        if (largest := float(spread.max())) > epsilon:
            pair = [votes[int(order(law[:, spread.argmax()]))] for order in (np.argmin, np.argmax)]
            epsilon, words = largest, f"a client that votes for {_told(pair[0])} or for {_told(pair[1])}"
    broken = epsilon > claimed * (1 + ROUNDING)
    bound, event = Bound(0.0, claimed, epsilon), f"the most telling of all messages, under {COINS} draws of public coins"
    return Finding(claimed, 0.0, epsilon, 1.0, exact=True, broken=broken, evidence=bound, neighbours=words, event=event, runs=0)


def inputs(mechanism: Any) -> list[np.ndarray]:
    """Return every input of up to k·r votes, int `[k·r]` each, missing votes last and negative."""
    most = mechanism.votes_per_record
    return [
        np.array([*cells, *[-1] * (most - count)])
        for count in range(most + 1)
        for cells in itertools.combinations(range(mechanism.num_cells), count)
    ]


@dataclass(frozen=True)
class Canary:
    """A record by which two data sets differ.

    Attributes:
      words: what it is.
      images: uint8 `[2, height, width, channels]`, in either data set.
      labels: int32 `[2]`.
    """

    words: str
    images: np.ndarray
    labels: np.ndarray


def of_labeler(task: Task, encode: Any, queries: Any, name: str, config: Any) -> tuple[list[Game], Guarantee]:
    """Return games of a labeler on a task: its last private record is a canary, or is not there; and the guarantee of its answers.

    Args:
      task: small, as every run labels it anew.
      encode: images to features.
      queries: public, with their images.
      name: a file of `rknn_jax.labelers`.
      config: its `Config`.
    """
    labeler = labelers.named(name)

    def answers(key: jax.Array, private: Records) -> Answers:
        votes_key, noise_key = jax.random.split(key)
        votes = labeler.votes(votes_key, private, encode, queries, task.card.num_classes, config)
        return labeler.tally(noise_key, votes, queries, task.card.num_classes, config)

    games, without = [], Records(task.private.images[:-1], task.private.labels[:-1])
    for number, canary in enumerate(canaries(task, queries)):
        first, second = (with_record(task.private, canary.images[world], int(canary.labels[world])) for world in (0, 1))
        if config.relation == "replace-one":
            games.append(Game(canary.words, _answers(answers, [first, second])))
            continue
        records = (first, second) if number == 0 else (second,)  # the first picture is always the same
        games += [Game(f"there or not: one of {canary.words}", _answers(answers, [without, record])) for record in records]
    return games, answers(jax.random.key(0), task.private).guarantee


def telling(name: str, **given: Any) -> Any:
    """Return the `Config` of a labeler under which one record counts for much, with what is given, such as epsilon."""
    return replace(labelers.named(name).EXAMPLES[0], **{**TELLING.get(name, {}), **given})


def canaries(task: Task, queries: Any) -> list[Canary]:
    """Return canaries: the picture of a query, and in its place another label, the picture of another query, or one like nothing."""
    labels = task.public.true_labels[queries.index]
    pictures = task.public.images[queries.index]
    elsewhere = np.flatnonzero(labels != labels[0])[:OTHERS]
    other = (labels[0] + 1) % task.card.num_classes
    noise = np.random.default_rng(0).integers(0, 2, pictures.shape[1:]).astype(np.uint8) * 255
    own = "the picture of a query with its label, "
    found = [Canary(own + "or with another", pictures[[0, 0]], np.array([labels[0], other]))]
    found += [Canary(own + "or that of another with its own", pictures[[0, i]], labels[[0, i]]) for i in elsewhere]
    found += [Canary(own + "or that of another with the same", pictures[[0, i]], labels[[0, 0]]) for i in elsewhere]
    return [*found, Canary(own + "or a picture like nothing", np.stack([pictures[0], noise]), np.array([labels[0], other]))]


def with_record(private: Records, image: np.ndarray, label: int) -> Records:
    """Return the records with another in the last one's place."""
    images, labels = private.images.copy(), private.labels.copy()
    images[-1], labels[-1] = image, label
    return replace(private, images=images, labels=labels)


def small_task(num_records: int = 24) -> Task:
    """Return three classes of pictures of 6 x 6, each with a bright quarter: 12 public, `num_records` private and 3 test records."""
    rng = np.random.default_rng(0)
    sizes = np.cumsum([0, 12, num_records, 3])
    labels = np.arange(sizes[-1]) % 3
    images = rng.integers(0, 60, (len(labels), 6, 6, 1))
    for image, label in zip(images, labels, strict=True):
        image[3 * (label // 2) : 3 * (label // 2) + 3, 3 * (label % 2) : 3 * (label % 2) + 3] += 180
    index = [np.arange(start, end) for start, end in itertools.pairwise(sizes)]
    parts = [(images[rows].astype(np.uint8), labels[rows].astype(np.int32)) for rows in index]
    return Task(
        Card("bright quarters", "made here", "none", ("a", "b", "c")), Public(*parts[0]), Records(*parts[1]), Records(*parts[2]), *index
    )


def small_queries(task: Task, num_queries: int = 3) -> tuple[Any, Any]:
    """Return an encoder of plain pixels, and queries about a small task."""

    def encode(images: Array) -> jax.Array:
        return jnp.asarray(images, jnp.float32).reshape(len(images), -1) / 255

    queries = kmeans.select(jax.random.key(1), encode(task.public.images), num_queries)
    return encode, replace(queries, images=task.public.images[queries.index])


def seen(answers: Answers) -> np.ndarray:
    """Return all that answers show, float64 `[f]`."""
    shown = [answers.labels, answers.answered, answers.probabilities, answers.confidence, answers.counts, answers.stddev]
    weights = [getattr(answers.model, name) for name in ("params", "batch_stats") if hasattr(answers.model, name)]
    return np.concatenate([np.ravel(np.asarray(array, np.float64)) for array in [*shown, *jax.tree.leaves(weights)]])


def _votes(mechanism: Any) -> np.ndarray:
    """Return ways to vote, int32 `[4, k·r]`: some cells, other labels there, other queries as far as there are any, and none."""
    k, r, s, c = mechanism.num_neighbors, mechanism.labels_per_record, mechanism.num_queries, mechanism.num_classes
    ways = [
        np.ravel(near[:, None] * c + said[None])
        for near, said in (
            (np.arange(k), np.arange(r)),
            (np.arange(k), c - 1 - np.arange(r)),
            (s - 1 - np.arange(k), np.arange(r)),
            (s - 1 - np.arange(k), c - 1 - np.arange(r)),
        )
    ]
    return np.unique(np.stack([*ways, np.full(k * r, -1)]).astype(np.int32), axis=0)[::-1]


def _told(cells: np.ndarray) -> str:
    named = [str(cell) for cell in np.sort(cells) if cell >= 0]
    return f"cells {', '.join(named)}" if len(named) > 1 else f"cell {named[0]}" if named else "none"


def _blocks(key: jax.Array, runs: int) -> list[tuple[jax.Array, int]]:
    """Return a key and the size of each block of runs, of which the last may be smaller."""
    sizes = [min(RUNS_AT_ONCE, runs - start) for start in range(0, runs, RUNS_AT_ONCE)]
    return [(jax.random.fold_in(key, block), size) for block, size in enumerate(sizes)]


@jax.jit
def _noisy(mechanism: CentralMechanism, key: jax.Array, cells: jax.Array) -> jax.Array:
    return jax.vmap(lambda key: estimate_counts(mechanism, key, cells).ravel())(jax.random.split(key, RUNS_AT_ONCE))


@jax.jit
def _randomized(mechanism: LocalRandomizer, key: jax.Array, cells: jax.Array) -> Any:
    messages = jax.vmap(lambda key: mechanism.randomize(key, cells))(jax.random.split(key, RUNS_AT_ONCE))
    return messages, jax.vmap(mechanism.support)(messages)


@jax.jit
def _supported(mechanism: LocalRandomizer, messages: Any) -> jax.Array:
    return jax.vmap(mechanism.support)(messages)


@jax.jit
def _sent(mechanism: MultiMessage, key: jax.Array, votes: jax.Array) -> jax.Array:
    def run(key: jax.Array) -> jax.Array:
        return jnp.sum(jax.vmap(mechanism.randomize)(jax.random.split(key, len(votes)), votes), axis=0).ravel()

    return jax.lax.map(run, jax.random.split(key, RUNS_AT_ONCE), batch_size=100)


def of_cells(words: str, mechanism: CentralMechanism, worlds: Sequence[Array], sampler: Sampler = "simulation") -> Game:
    """Return the game of a central mechanism between two tables of votes, int32 `[n, k·r]` each."""

    def observe(key: jax.Array, world: int, runs: int) -> np.ndarray:
        cells = jnp.asarray(worlds[world])
        if sampler == "release":
            # Cells have noise of their own, so that one release of many queries is many releases of a few.
            totals = np.tile(np.asarray(mechanism.aggregate(cells), np.int64).reshape(mechanism.shape), (runs, 1))
            return np.asarray(replace(mechanism, num_queries=len(totals)).release(totals)).reshape(runs, -1)
        return np.concatenate([np.asarray(_noisy(mechanism, k, cells))[:size] for k, size in _blocks(key, runs)])

    return Game(words, observe)


def _messages(mechanism: LocalRandomizer, first: np.ndarray, second: np.ndarray, sampler: Sampler) -> Any:
    """See a client's message: its bits, the cells that it supports, and how much likelier the law makes it from either input."""

    def described(messages: Any, support: Any) -> np.ndarray:
        ratio = mechanism.log_prob(messages, second) - mechanism.log_prob(messages, first)
        bits = [np.asarray(leaf, np.float64).reshape(len(ratio), -1) for leaf in jax.tree.leaves(messages)]
        return np.concatenate([*bits, np.asarray(support, np.float64), ratio[:, None]], axis=1)

    def observe(key: jax.Array, world: int, runs: int) -> np.ndarray:
        cells = (first, second)[world]
        if sampler == "release":
            messages = mechanism.respond(Entropy.fresh(), np.repeat(cells[None], runs, axis=0))
            return described(messages, _supported(mechanism, messages))
        parts = [(_randomized(mechanism, k, jnp.asarray(cells)), size) for k, size in _blocks(key, runs)]
        return np.concatenate([described(*drawn)[:size] for drawn, size in parts])

    return observe


def _shuffled(mechanism: MultiMessage, worlds: np.ndarray) -> Any:
    """See all clients' messages in no order: how often each cell came with either sign."""

    def observe(key: jax.Array, world: int, runs: int) -> np.ndarray:
        return np.concatenate([np.asarray(_sent(mechanism, k, jnp.asarray(worlds[world])))[:size] for k, size in _blocks(key, runs)])

    return observe


def _answers(answers: Any, worlds: Sequence[Records]) -> Any:
    def observe(key: jax.Array, world: int, runs: int) -> np.ndarray:
        return np.stack([seen(answers(k, worlds[world])) for k in map(partial(jax.random.fold_in, key), range(runs))])

    return observe
