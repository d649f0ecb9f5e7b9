"""PATE: an ensemble of teachers, each trained on its own part of the private records, votes on
every query.

A record is in one part, so it moves the vote of one teacher whatever the query is, and no sampling
is needed; but every query costs anew.

| aggregator        | a query is answered by                            | for              |
|-------------------|---------------------------------------------------|------------------|
| `lnmax`           | arg max of votes + Laplace(b)                     | all queries      |
| `gnmax`           | arg max of votes + N(0, s2²)                      | all queries      |
| `confident_gnmax` | the same, once greatest count + N(0, s1²) >= T    | those that agree |
| `interactive`     | the same, if teachers and student differ that far | those that teach |

`interactive` takes effect once there is a student, whose probabilities times the number of teachers
are taken off the votes before the screen; a query on which the teachers add nothing, but of which
the student is sure, is answered by the student itself. Where nothing is known of a student it is
`confident_gnmax`.

Guarantee: noise is calibrated independently of the votes, for the whole noisy counts and for all
queries together. What the votes themselves would say is smaller and private: `not_covered`, and of
the arg max alone.

**The teachers** are networks with one hidden layer on the features of `encode`, trained side by
side by full-batch Adam: 250 of them take seconds on two cores where the convolutional ones of the
paper would take hours. They are as good as the features are.

Parts: dealt at random, equal in size where the number of records is public; where it is not
(add-remove), every record draws its own, so that one more moves no other. `clients` makes each
client a part, and the guarantee is then that of a client with all its records, whose number is
public.

References: Papernot et al., "Semi-supervised Knowledge Transfer for Deep Learning from Private
Training Data", 2017 (`lnmax`); Papernot et al., "Scalable Private Learning with PATE", 2018,
Algorithms 1 and 2.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rknn_jax import bsvs
from rknn_jax.labelers import Labeler, _screening
from rknn_jax.labelers._screening import Noise, Release
from rknn_jax.privacy import accounting, smooth_sensitivity
from rknn_jax.privacy import pate as accounts
from rknn_jax.privacy.guarantee import RELATIONS, Event, Guarantee, Relation, Unit
from rknn_jax.types import Answers, Array, Encoder, Queries, Records

Aggregator = Literal["lnmax", "gnmax", "confident_gnmax", "interactive"]
Parts = Literal["random", "clients"]

SURE = 0.9
"""Probability from which on a student answers a query itself, which the teachers' screen has
declined (`interactive`).
"""

TEACHERS = "teachers"


@dataclass(frozen=True)
class PATE(Labeler[np.ndarray]):
    """How to vote.

    The defaults are those of the 2018 paper for MNIST, but for epsilon and the teachers.

    Attributes:
      epsilon: privacy of all queries together; infinity for no noise and no privacy.
      delta: of the same; `lnmax` can do with 0.
      relation: which data sets are neighbours.
      num_teachers: parts of the private records.
      parts: how they are made.
      aggregator: see the table above.
      threshold: share of the teachers that the largest class must reach, with noise.
      ratio: how much stronger the screen's noise is than that of the counts.
      max_answers: queries that are answered at most; all that are asked where it is not given.
      hidden: units of a teacher's hidden layer; 0 for none.
      steps: of a teacher's training, each on all its records.
      learning_rate: at the first step; it falls to 0 along a cosine.
      weight_decay: as AdamW's.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    relation: Relation = "replace-one"
    num_teachers: int = 250
    parts: Parts = "random"
    aggregator: Aggregator = "confident_gnmax"
    threshold: float = 0.8
    ratio: float = 3.75
    max_answers: int | None = None
    hidden: int = 64
    steps: int = 100
    learning_rate: float = 0.02
    weight_decay: float = 0.1

    telling: ClassVar[Mapping[str, Any]] = {
        "num_teachers": 12,
        "hidden": 0,
        "steps": 20,
        "threshold": 0.5,
    }

    def __post_init__(self) -> None:
        for name, choices in (
            ("relation", RELATIONS),
            ("parts", get_args(Parts)),
            ("aggregator", get_args(Aggregator)),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"Expected {name} to be one of {choices}, got {name}={getattr(self, name)!r}."
                )
        for name, least in (("num_teachers", 1), ("max_answers", 1), ("hidden", 0), ("steps", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"Expected {name} >= {least}, got {name}={value}.")
        if not math.isfinite(self.threshold):
            raise ValueError(
                f"Expected a finite threshold, got threshold={self.threshold}; a very low one "
                "lets every query pass."
            )
        if self.parts == "clients" and self.relation == "add-remove":
            raise ValueError(
                "Expected relation=replace-one with parts=clients, got add-remove; the number of "
                "teachers is taken for public."
            )
        if not self.learning_rate > 0 or not self.weight_decay >= 0:
            raise ValueError(
                f"Expected learning_rate > 0 and weight_decay >= 0, got {self.learning_rate} and "
                f"{self.weight_decay}."
            )

    @property
    def unit(self) -> Unit:
        """What the guarantee protects."""
        return "client" if self.parts == "clients" else "record"

    @property
    def screens(self) -> bool:
        """Whether queries are screened."""
        return self.aggregator in ("confident_gnmax", "interactive")

    def contribute(
        self, key: jax.Array, private: Records, encode: Encoder, queries: Queries, num_classes: int
    ) -> np.ndarray:
        """Train the teachers and let them vote on the queries.

        Args:
          key: of the parts and the teachers; is consumed.
          private: records.
          encode: of the queries' features.
          queries: `[s, f]`.
          num_classes: |Y|.

        Returns:
          int32 `[s, num_classes]`, private.

        Raises:
          ValueError: where a teacher would have no record and their number is public, or clients are
            asked for and the data set knows of none.
        """
        part_key, teacher_key = jax.random.split(key)
        part = parts_of(part_key, private, self)
        num_teachers = int(part.max()) + 1 if self.parts == "clients" else self.num_teachers
        if num_teachers < num_classes:
            raise ValueError(
                f"Expected as many votes as classes or more, got {num_teachers} teachers with "
                f"{num_classes} classes; ask more."
            )
        said = predictions(
            teacher_key,
            encode(private.images),
            private.labels,
            part,
            num_teachers,
            queries.features,
            num_classes,
            self,
        )
        return np.stack(
            [(said == label).sum(axis=0) for label in range(num_classes)], axis=1
        ).astype(np.int32)

    def release(
        self,
        key: jax.Array,
        votes: np.ndarray,
        queries: Queries,
        num_classes: int,
        predicted: np.ndarray | None = None,
    ) -> Answers:
        """Make the votes private, in simulation.

        Args:
          key: of the noise; is consumed.
          votes: int32 `[s, num_classes]` from `votes`.
          queries: that were asked.
          num_classes: |Y|.
          predicted: float32 `[s, num_classes]`, a student's probabilities, for `interactive`.
        """
        del queries, num_classes
        num_teachers = int(votes[0].sum())
        calibrated = noise(len(votes), num_teachers, self)
        screen_key, count_key = jax.random.split(key)
        if self.aggregator == "lnmax":
            drawn = (
                calibrated.aggregation_stddev
                / math.sqrt(2)
                * np.asarray(jax.random.laplace(count_key, votes.shape))
            )
            spread = np.full(votes.shape, calibrated.aggregation_stddev, np.float32)
            return _screening.answers_of(
                (votes + drawn).astype(np.float32),
                spread,
                np.ones(len(votes), bool),
                calibrated.guarantee,
            )
        answered = np.ones(len(votes), bool)
        known = self.aggregator == "interactive" and predicted is not None
        if self.screens:
            news = votes - num_teachers * predicted if known and predicted is not None else votes
            answered = _screening.passed(
                screen_key, news, self.threshold * num_teachers, calibrated, self.max_answers
            )
        answers = _screening.aggregated(
            count_key, votes, answered, calibrated.aggregation_stddev, calibrated.guarantee
        )
        return (
            _screening.confirmed(answers, predicted, SURE)
            if known and predicted is not None
            else answers
        )

    def not_covered(
        self, key: jax.Array, votes: np.ndarray, answers: Answers
    ) -> dict[str, dict[str, float]]:
        """Return, for a benchmark, what the votes themselves say that their labels cost.

        All but the sanitized bound is private, and none is `answers.guarantee`.

        Args:
          key: of the noise of the sanitized values; is consumed.
          votes: from `votes`.
          answers: from `tally`.
        """
        if self.epsilon == math.inf or self.aggregator == "interactive" or not self.delta:
            return {"epsilons_that_look_at_the_votes": {}}
        num_queries, num_classes = votes.shape
        num_teachers = int(votes[0].sum())
        calibrated = noise(num_queries, num_teachers, self)
        if self.aggregator == "lnmax":
            found = accounts.report(
                votes, accounts.LNMax(calibrated.aggregation_stddev / math.sqrt(2)), self.delta
            )
            return {"epsilons_that_look_at_the_votes": found}
        screen = (
            accounts.Screen(self.threshold * num_teachers, calibrated.screening_stddev)
            if self.screens
            else None
        )
        mechanism = accounts.GNMax(calibrated.aggregation_stddev, screen)
        found = accounts.report(
            votes, mechanism, self.delta, answered=answers.answered if screen else None
        )
        plan = smooth_sensitivity.plan_release(
            smooth_sensitivity.expected_votes(num_queries, num_teachers, num_classes),
            mechanism,
            self.delta,
        )
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        found |= smooth_sensitivity.sanitize(rng, votes, mechanism, plan, self.delta).told()
        return {"epsilons_that_look_at_the_votes": found}


def release(num_queries: int, num_teachers: int, config: PATE) -> Release:
    """Return what a run of `num_queries` queries releases, for `screening.calibrated` and
    accountants.
    """
    whole = (
        config.aggregator == "confident_gnmax"
    )  # less a student's probabilities, counts are no whole numbers
    return Release(
        num_queries if config.screens else 0,
        min(config.max_answers or num_queries, num_queries) if config.screens else num_queries,
        screen=(config.threshold * num_teachers, num_teachers) if whole else None,
    )


def noise(num_queries: int, num_teachers: int, config: PATE) -> Noise:
    """Return the noise that `config` asks for, and its guarantee; of `lnmax` the standard
    deviation is that of Laplace noise.
    """
    if config.aggregator == "lnmax":
        return _laplace(num_queries, config)
    released = release(num_queries, num_teachers, config)
    return _screening.calibrated(
        released, config.ratio, config.epsilon, config.delta, config.relation, config.unit
    )


@functools.lru_cache(maxsize=64)
def _laplace(num_queries: int, config: PATE) -> Noise:
    """Calibrate Laplace noise: a teacher that changes its mind moves two counts of every query
    by 1 each.
    """
    if not config.epsilon > 0:
        raise ValueError(
            f"Expected epsilon > 0, got epsilon={config.epsilon}; choose a positive privacy budget."
        )
    if config.epsilon == math.inf:
        return Noise(
            0.0, 0.0, Guarantee(math.inf, 0.0, config.relation, "central", (), unit=config.unit)
        )

    def events(scale: float) -> tuple[Event, ...]:
        return (Event("laplace", scale, 2 * num_queries),)

    pure = 2 * num_queries / config.epsilon
    scale = (
        accounting.calibrate(events, config.epsilon, config.delta, start=pure)
        if config.delta
        else pure
    )
    found = accounting.epsilons(events(scale), config.delta)
    accountant = min((cost, name) for name, cost in found.items())[1]
    delta = 0.0 if accountant == "pure" else config.delta
    guarantee = Guarantee(
        config.epsilon,
        delta,
        config.relation,
        "central",
        events(scale),
        unit=config.unit,
        accountant=accountant,
    )
    return Noise(0.0, math.sqrt(2) * scale, guarantee)


def parts_of(key: jax.Array, private: Records, config: PATE) -> np.ndarray:
    """Return which teacher learns from each record, int64 `[n]`; see the module's docstring.

    `key` is consumed.
    """
    if config.parts == "clients":
        if private.clients is None:
            raise ValueError(
                "Expected private records with clients for parts=clients, got none; use "
                "parts=random."
            )
        return np.unique(private.clients, return_inverse=True)[1]
    n = len(private.labels)
    num_teachers = config.num_teachers
    if config.relation == "replace-one":
        part = np.empty(n, np.int64)
        part[np.asarray(jax.random.permutation(key, n))] = np.arange(n) % num_teachers
    else:
        part = np.asarray(jax.random.randint(key, (n,), 0, num_teachers), np.int64)
    if config.relation == "replace-one" and (empty := num_teachers - len(np.unique(part))):
        raise ValueError(
            f"Expected a record for every teacher, got num_teachers={num_teachers} with {n} "
            f"private records, which leaves {empty} "
            "without; ask fewer teachers."
        )
    return part


def rows_of(part: np.ndarray, num_teachers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the records of each teacher, int64 `[num_teachers, most]`, filled up with nobody's
    record n, and which are somebody's.
    """
    size = np.bincount(part, minlength=num_teachers)
    order = np.argsort(part, kind="stable")
    place = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
    index = np.full((num_teachers, size.max()), len(order))
    present = np.zeros(index.shape, np.float32)
    index[part[order], place] = order
    present[part[order], place] = 1
    return index, present


def predictions(
    key: jax.Array,
    features: Array,
    labels: Array,
    part: np.ndarray,
    num_teachers: int,
    asked: Array,
    num_classes: int,
    config: PATE,
) -> np.ndarray:
    """Train all teachers, over the devices that there are, and return what each says.

    Args:
      key: of the first weights; is consumed.
      features: float32 `[n, f]`, private.
      labels: int32 `[n]`. Nobody learns from a record whose label no class has.
      part: int64 `[n]`, from 0 to num_teachers - 1.
      num_teachers: one without records says what its first weights say.
      asked: float32 `[s, f]`, public, by which features are centred and scaled.
      num_classes: |Y|.
      config: see `Config`.

    Returns:
      int32 `[num_teachers, s]`, private.
    """
    asked = np.asarray(asked, np.float32)
    centre = asked.mean(axis=0)
    scale = np.sqrt(asked.var(axis=0).mean()) + 1e-12
    index, present = rows_of(part, num_teachers)
    known = np.append(bsvs.voting_labels(np.asarray(labels, np.int32), num_classes), 0)[index]
    devices = jax.devices()[
        : max(count for count in range(1, jax.device_count() + 1) if len(index) % count == 0)
    ]
    over_teachers = NamedSharding(Mesh(np.array(devices), (TEACHERS,)), PartitionSpec(TEACHERS))
    scaled = np.vstack(
        [(np.asarray(features, np.float32) - centre) / scale, np.zeros_like(asked[:1])]
    )
    learned = present * (known >= 0).astype(np.float32)
    shards = jax.device_put((scaled[index], np.maximum(known, 0), learned), over_teachers)
    keys = jax.device_put(jax.random.split(key, len(index)), over_teachers)
    return np.asarray(
        _predictions(keys, *shards, (asked - centre) / scale, num_classes, _traced(config))
    )


@functools.partial(jax.jit, static_argnames=("num_classes", "config"))
def _predictions(
    keys: jax.Array,
    features: jax.Array,
    labels: jax.Array,
    present: jax.Array,
    asked: jax.Array,
    num_classes: int,
    config: PATE,
) -> jax.Array:
    def teacher(
        key: jax.Array, features: jax.Array, labels: jax.Array, present: jax.Array
    ) -> jax.Array:
        params = _first_weights(key, features.shape[1], config.hidden, num_classes)
        params = taught(
            params,
            _logits,
            features,
            labels,
            present,
            config.steps,
            config.learning_rate,
            config.weight_decay,
        )
        return jnp.argmax(_logits(params, asked), axis=1).astype(jnp.int32)

    return jax.vmap(teacher)(keys, features, labels, present)


def _traced(config: PATE) -> PATE:
    """Return the settings that are part of a trace: one program serves every epsilon and
    aggregator.
    """
    return PATE(
        hidden=config.hidden,
        steps=config.steps,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
    )


def taught(
    params: Any,
    logits_of: Callable[[Any, jax.Array], jax.Array],
    features: jax.Array,
    labels: jax.Array,
    present: jax.Array,
    steps: int,
    learning_rate: float,
    weight_decay: float,
) -> Any:
    """Train one teacher by AdamW on all its records at once, the rate falling to 0 along a cosine;
    to be vmapped over teachers.

    Args:
      params: to begin with.
      logits_of: of parameters and features.
      features: float32 `[most, f]`.
      labels: int32 `[most]`.
      present: float32 `[most]`, 0 for rows that are nobody's; one without records follows the decay
        alone.
      steps: of the training.
      learning_rate: at the first step.
      weight_decay: as AdamW's.
    """
    optimizer = optax.adamw(
        optax.cosine_decay_schedule(learning_rate, steps), weight_decay=weight_decay
    )

    def loss_of(params: Any) -> jax.Array:
        lost = optax.softmax_cross_entropy_with_integer_labels(logits_of(params, features), labels)
        return jnp.sum(present * lost) / jnp.maximum(jnp.sum(present), 1)

    def step(_: Any, state: Any) -> Any:
        params, moments = state
        with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
            change, moments = optimizer.update(jax.grad(loss_of)(params), moments, params)
        return optax.apply_updates(params, change), moments

    return jax.lax.fori_loop(0, steps, step, (params, optimizer.init(params)))[0]


def _first_weights(
    key: jax.Array, width: int, hidden: int, num_classes: int
) -> list[tuple[jax.Array, jax.Array]]:
    sizes = [width, hidden, num_classes] if hidden else [width, num_classes]
    keys = jax.random.split(key, len(sizes) - 1)
    draw = jax.nn.initializers.he_normal()
    return [
        (draw(k, (a, b), jnp.float32), jnp.zeros((b,), jnp.float32))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def _logits(params: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    for number, (weight, bias) in enumerate(params):
        x = jnp.matmul(jax.nn.relu(x) if number else x, weight) + bias[None]
    return x


EXAMPLES = (
    PATE(epsilon=20.0, num_teachers=30, steps=30, hidden=0),
    PATE(epsilon=8.0, num_teachers=30, steps=30, hidden=0, aggregator="lnmax"),
    PATE(
        epsilon=10.0, num_teachers=30, steps=30, hidden=0, aggregator="gnmax", relation="add-remove"
    ),
)
