"""Noisy SGD (DP-SGD): private training with clipped per-example gradients and Gaussian noise.

Each gradient is clipped to norm C, and noise is added to the sum of a step:

    w  <-  w - rate · momentum of  (sum_i min(1, C/|g_i|) g_i + N(0, (sigma C)² I)) / B

Every step takes a Poisson sample: each record joins independently with probability q. B is the
expected sample size. Samples differ in size, so they are cut into blocks of one size. The last
block is padded with records that do not count; no record is dropped. Predictions use the moving
average of the weights, which is post-processing.

**Guarantee.** One record moves the sum by at most C, so the noise multiplier is sigma under
add-remove. Under replace-one, a record and its replacement may each move the sum by C in opposite
directions. The dominating pair is then (1-q)N(0) + qN(+1/sigma) against (1-q)N(0) + qN(-1/sigma)
(`rknn_jax.privacy.sampled_gaussian`). The number of records is public under replace-one. The number
is private under add-remove, so q must be given there.

**Persons.** With unit=person, every step takes a Poisson sample of persons. A person's gradient is
that of the mean loss over `records_per_person` records, which the person draws from all own records
with replacement, anew in each step. It is clipped to norm C as a record's is. So one person moves
the sum by at most C, whatever records and however many: given the draws, the proof is that for
records, and the draws are the person's own. A hockey-stick divergence is jointly convex, so the
mixture over draws loses no more. Memory does not grow with a person's number of records. q and B
count persons.

- Float32 rounding may leave a norm above C, and may round a batch's sum differently. The noise is
  increased by `SLACK` and `SUMMED` to cover both.
- Batch statistics are the only way in which a network mixes records. They come from public images
  and are learned anew for every epoch's weights.
- Every leaf of the weights has its own noise key. The code of DiversePublic uses one key for all
  leaves. Leaves of equal shape then get equal noise, and their difference is released without
  noise.

Gradients are clipped and summed by `clipped_gradients`.

References: Abadi et al., "Deep Learning with Differential Privacy", 2016, Algorithm 1; De et al.,
"Unlocking High-Accuracy Differentially Private Image Classification through Scale", 2022 (weight
averaging, large batches).
"""

import functools
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rknn_jax._internal import checkpoints, progress
from rknn_jax._internal.option_names import option
from rknn_jax.privacy import accounting, analytic_gaussian, calibration
from rknn_jax.privacy.events import Event, gaussian_event
from rknn_jax.privacy.guarantee import Guarantee, Relation
from rknn_jax.privacy.parameters import PrivacyParameters
from rknn_jax.students import fit as students
from rknn_jax.students.clipped_gradients import Part, add_clipped, joined, parted, scaled
from rknn_jax.types import Array

SLACK = 1e-5
"""Bound on the relative error of float32's sum of a million squares.

The noise exceeds sigma C by this factor, and by `SUMMED` for each of B.
"""

SUMMED = 2.0**-22
"""Bound on the relative change of a sum's rounding by one record, per other record in the sum.

The bound is four times the largest change that a search found.
"""

MOST_EXAMPLES = 256
MOST_NUMBERS = 2**25
"""Limits of a block, whose gradients are in memory at once.

They bound the examples, and weights times examples, which take 130 MB.
"""

HEAD_STEPS = 60
HEAD_BATCH = 2**16
HEAD_NOISE = 1.0
HEAD_RATE = 10.0
"""Choices of `settled` for a head: steps, most records of a step, noise of a weight, most rate."""

STATISTICS_BATCHES = 30
STATISTICS_BATCH_SIZE = 64
"""Number and size of the batches of public images that batch statistics are learned from.

After 30 batches, 4% of the earlier statistics are left.
"""


@dataclass(frozen=True)
class Config(PrivacyParameters):
    """Settings of noisy SGD: those of `PrivacyParameters` for the whole training, and these.

    Attributes:
      noise_multiplier: Noise multiplier sigma. If given, the guarantee is what sigma costs, which
        must not exceed epsilon. Defaults to the smallest sigma that keeps epsilon.
      clip: Clipping norm C. Defaults to 1, which suits records; for persons take 0.1
        (`benchmarks.noisy_sgd_persons`).
      batch_size: Expected number of records, or of persons, per step, B. Defaults to `settled`'s
        choice.
      sampling_prob: Sampling probability q. Defaults to B divided by the number of records or
        persons.
      records_per_person: Number of records that a sampled person draws with replacement, if persons
        are the unit. Defaults to 16.
      epochs: Expected number of times that a record, or a person, takes part. Defaults to
        `settled`'s choice.
      learning_rate: Constant learning rate. Defaults to `settled`'s choice.
      momentum: Momentum of SGD. Defaults to 0.9.
      ema_decay: Decay of the average of the weights over steps. Defaults to 0.98.
    """

    noise_multiplier: float | None = None
    clip: float = 1.0
    batch_size: int | None = None
    sampling_prob: float | None = None
    records_per_person: int = 16
    epochs: float | None = None
    learning_rate: float | None = None
    momentum: float = 0.9
    ema_decay: float = 0.98

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1e-10 <= self.clip <= 1e10:
            raise ValueError(
                f"Expected clip > 0, from 1e-10 to 1e10, got clip={self.clip}; 1 is a common "
                "choice, and float32 squares no others."
            )
        if self.noise_multiplier is not None and not 0 < self.noise_multiplier < math.inf:
            raise ValueError(
                "Expected a finite noise_multiplier > 0, got "
                f"noise_multiplier={self.noise_multiplier}; pass epsilon=inf and no "
                "noise_multiplier to train without privacy."
            )
        for name in ("batch_size", "records_per_person"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Expected {name} >= 1, got {name}={value}.")
        if self.sampling_prob is not None and not 1e-6 <= self.sampling_prob <= 1:
            raise ValueError(
                f"Expected 1e-6 <= sampling_prob <= 1, got sampling_prob={self.sampling_prob}; 1 "
                "takes every record every time."
            )
        for name in ("epochs", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"Expected a finite {name} > 0, got {name}={value}.")
        for name in ("momentum", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"Expected 0 <= {name} < 1, got {name}={getattr(self, name)}.")


@dataclass(frozen=True)
class Settled(Config):
    """Settings of noisy SGD of which none is left open."""

    batch_size: int = 1024
    epochs: float = 20.0
    learning_rate: float = 0.5


def settled(config: Config, num_units: int, *, head: bool) -> Settled:
    """Return settings without None, chosen from public quantities alone.

    These are n, epsilon, delta, and what `config` states. Under add-remove n is private and never
    read; B then defaults to 1024, a public guess of the expected number.

    A head on features takes all records in each of `HEAD_STEPS` steps, or `HEAD_BATCH` of them if
    there are more. At small epsilon no samples leave less noise in the sum of all steps, and more
    steps leave as much. If all steps point one way, their noise moves a weight by

        rate · sigma · C · sqrt(T) / ((1 - momentum) · B)

    standard deviations. The learning rate makes this `HEAD_NOISE`, and is at most `HEAD_RATE`.
    Features have a norm near 1, so logits have noise of that size, whatever n and epsilon. With
    more, noise makes the probabilities 0 or 1, and gradients tell nothing; with less, the first
    gradients decide alone.

    A network on images needs more steps, and its gradients cost more time. It takes 1024 records,
    or a quarter if there are fewer than 4096, for 20 epochs at the rate 0.5.

    `benchmarks.noisy_sgd_defaults` compares the choice for a head with the best of a grid.
    References: De et al., 2022 (large batches); Tramèr & Boneh, 2021 (normalized features); Mehta
    et al., "Towards Large Scale Transfer Learning for Differentially Private Image Classification",
    TMLR 2023 (all records in each of few steps for a head).

    Args:
      config: Settings of noisy SGD.
      num_units: Number of records, or of persons if they are the unit.
      head: True if the network takes features, False if it takes images.

    Raises:
      ValueError: As `noise`.
    """
    batch_size = config.batch_size or _batch_size(config, num_units, head)
    q = config.sampling_prob or batch_size / num_units
    given = {one.name: getattr(config, one.name) for one in fields(Config)}
    given["batch_size"] = batch_size
    given["epochs"] = config.epochs or (HEAD_STEPS * q if head else Settled.epochs)
    given["learning_rate"] = config.learning_rate or Settled.learning_rate
    found = Settled(**given)
    if config.learning_rate or not head:
        return found
    multiplier, _ = noise(found, num_units)
    noise_at_rate_1 = multiplier * found.clip * math.sqrt(schedule(found, num_units).steps)
    noise_at_rate_1 /= (1 - found.momentum) * batch_size
    rate = HEAD_NOISE / max(noise_at_rate_1, HEAD_NOISE / HEAD_RATE)
    return replace(found, learning_rate=rate)


def _batch_size(config: Config, num_units: int, head: bool) -> int:
    """Return the expected number of records of a step."""
    if config.relation == "add-remove":
        return Settled.batch_size
    if config.sampling_prob is not None:
        return max(1, round(config.sampling_prob * num_units))
    return min(num_units, HEAD_BATCH) if head else min(-(-num_units // 4), Settled.batch_size)


class Schedule(NamedTuple):
    """Values that the privacy of a training depends on.

    Attributes:
      sampling_prob: Sampling probability q.
      steps: Number of steps T.
    """

    sampling_prob: float
    steps: int


def schedule(config: Settled, num_units: int) -> Schedule:
    """Return q and T, which do not depend on the number of units under add-remove.

    Args:
      config: Settings of noisy SGD.
      num_units: Number of records, or of persons if they are the unit.

    Raises:
      ValueError: For add-remove without a sampling probability, and for a batch of more records
        than there are.
    """
    q = config.sampling_prob
    if q is None:
        if config.relation == "add-remove":
            raise ValueError(
                "Expected sampling_prob with relation=add-remove, got none: the number of "
                f"{config.unit}s is private, and batch_size divided by it "
                "would tell it; name a public guess."
            )
        if config.batch_size > num_units:
            raise ValueError(
                f"Expected batch_size <= number of private {config.unit}s, got "
                f"batch_size={config.batch_size} with {num_units}; take fewer "
                f"({option('noisy_sgd.batch_size')})."
            )
        q = config.batch_size / num_units
    return Schedule(q, max(1, round(config.epochs / q)))


def events(noise_multiplier: float, schedule: Schedule, relation: Relation) -> tuple[Event, ...]:
    """Return the privacy events of a training, as the module docstring states them."""
    if relation == "add-remove":
        return (gaussian_event(noise_multiplier, schedule.steps, schedule.sampling_prob),)
    replaced = schedule.sampling_prob < 1
    return (
        gaussian_event(
            noise_multiplier / 2,
            schedule.steps,
            schedule.sampling_prob,
            replaced=replaced,
            opposite=replaced,
        ),
    )


def noise(config: Settled, num_units: int) -> tuple[float, Guarantee]:
    """Return the noise multiplier for `config` and the guarantee.

    At infinite epsilon without a given multiplier, the noise multiplier is 0.

    Args:
      config: Settings of noisy SGD.
      num_units: Number of records, or of persons if they are the unit.

    Raises:
      ValueError: For an epsilon or delta out of range, and as `schedule`.
    """
    multiplier, guarantee = _noise(
        config.noise_multiplier,
        config.epsilon,
        config.delta,
        relation=config.relation,
        plan=schedule(config, num_units),
    )
    return multiplier, replace(guarantee, unit=config.unit)


@functools.lru_cache(maxsize=64)
def _noise(
    given: float | None, epsilon: float, delta: float, relation: Relation, plan: Schedule
) -> tuple[float, Guarantee]:
    if not epsilon > 0:
        raise ValueError(
            f"Expected epsilon > 0, got epsilon={epsilon}; choose a positive privacy budget."
        )
    if epsilon == math.inf and given is None:
        return 0.0, Guarantee(math.inf, 0.0, relation, trust="central", events=())
    if not 0 < delta < 1:
        raise ValueError(
            f"Expected 0 < delta < 1, got delta={delta}; Gaussian noise gives no pure "
            f"differential privacy, pass {option('delta')} 1e-5."
        )
    multiplier = given
    if multiplier is None:
        whole = analytic_gaussian.gaussian_noise_multiplier(epsilon, delta)
        start = max(plan.sampling_prob * math.sqrt(plan.steps) * whole, min(0.5, whole))
        multiplier = calibration.calibrate(
            lambda sigma: events(sigma, plan, relation), epsilon, delta, start
        )
    released = events(multiplier, plan, relation)
    cost, accountant = min(
        (cost, name) for name, cost in accounting.epsilons(released, delta).items()
    )
    if cost > epsilon * (1 + 1e-9):
        raise ValueError(
            f"Expected noise that keeps epsilon={epsilon}, got noise_multiplier={given}, which "
            f"costs {cost:.6g}; raise either."
        )
    return multiplier, Guarantee(
        cost if given else epsilon,
        delta,
        relation,
        trust="central",
        events=released,
        accountant=accountant,
    )


class State(NamedTuple):
    """State that a step changes.

    Attributes:
      step: Number of finished steps, int32.
      trained: Trained weights, flat by path.
      average: Average of the trained weights over steps.
      momentum: State of the optimizer.
    """

    step: jax.Array
    trained: Any
    average: Any
    momentum: Any


class Trained(NamedTuple):
    """A network that was trained privately.

    Attributes:
      variables: `params`, averaged over steps, and `batch_stats` if the network has them.
      guarantee: Privacy guarantee of the variables.
    """

    variables: Any
    guarantee: Guarantee


def fit(
    key: jax.Array,
    network: Any,
    variables: Any,
    inputs: Array,
    labels: Array,
    public: Array,
    config: Config,
    *,
    part: Part = "all",
    density: float = 0.01,
    folder: Path | None = None,
    person: np.ndarray | None = None,
) -> Trained:
    """Train a network on private records, in simulation.

    Args:
      key: Random key of the samples and the noise, consumed by the call. The key must stay secret.
      network: Flax module whose call takes `train`.
      variables: Initial `params`, drawn or learned from public data, and `batch_stats` if the
        network has them.
      inputs: Private inputs `[n, ...]`: float32, or uint8 images, which are divided by 255.
      labels: Private labels, int32 `[n]`.
      public: Public inputs of the same kind. Batch statistics are learned from them if the network
        has any.
      config: Settings of noisy SGD.
      part: Trained part of the network. Defaults to `all`.
      density: Share of the other weights that `sparse` trains too, the largest of `variables`.
        Defaults to 0.01.
      folder: Folder of the checkpoints, written after every epoch. A training with the same key
        resumes there and reaches bit-identical weights. The key is not saved. Trainings with other
        settings get their own place in the folder. Trainings on other records do not, so give each
        data set its own folder. Defaults to no checkpoints.
      person: Number of each record's person, int `[n]`, from 0 on without gaps, if persons are the
        unit. Defaults to None.

    Raises:
      ValueError: For records that do not fit each other or name no persons if these are the unit, a
        density outside (0, 1), and as `noise`.
    """
    # Under add-remove, whether there is a record is private.
    if len(inputs) != len(labels) or not (len(labels) or config.relation == "add-remove"):
        raise ValueError(
            f"Expected one label a record and one record or more, got {len(inputs)} records and "
            f"{len(labels)} labels."
        )
    if (config.unit == "person") != (person is not None):
        raise ValueError(
            f"Expected the persons of the records for unit=person alone, got unit={config.unit} "
            f"and {'no' if person is None else 'some'} persons."
        )
    owned = None if person is None else Owned.of(person)
    num_units = len(labels) if owned is None else len(owned.size)
    config = settled(config, num_units, head=np.ndim(inputs) == 2)
    plan = schedule(config, num_units)
    multiplier, guarantee = noise(config, num_units)
    trained, fixed, mask = parted(variables["params"], part, density)
    state = _first_state(trained, config)
    statistics = variables.get("batch_stats", {})
    records = (jax.device_put(jnp.asarray(inputs)), jax.device_put(jnp.asarray(labels, jnp.int32)))
    shapes = {path: leaf.shape for path, leaf in trained.items()}
    # A change of anything here is another training, with its own place in the folder. Progress
    # tells the place's name, and under add-remove the numbers are private.
    numbers = (None, None) if config.relation == "add-remove" else (len(labels), num_units)
    settings = (config, part, density, network, shapes, *numbers, multiplier)
    place = folder and Path(folder) / checkpoints.named("noisy_sgd", settings)
    width = 1 if owned is None else config.records_per_person
    block_size = _block_size(
        trained, width, num_units if config.relation == "replace-one" else None
    )
    steps_per_epoch = max(1, round(1 / plan.sampling_prob))
    pace = Pace.of(config, multiplier)
    with checkpoints.Training(place) as training:
        (state, statistics), done = training.resumed((state, statistics))
        with progress.phase("training privately", plan.steps, done=done) as counted:
            for step in range(done, plan.steps):
                if step % steps_per_epoch == 0:
                    if step > done:
                        training.save(step, (state, statistics))
                        counted.kept(place)
                    if statistics:
                        params = joined(state.trained, fixed)
                        statistics = _statistics(network, params, statistics, public)
                sample_key, noise_key = jax.random.split(jax.random.fold_in(key, step))
                draw_key = sample_key
                if owned is not None:
                    sample_key, draw_key = jax.random.split(sample_key)
                blocks = sampled(sample_key, num_units, plan.sampling_prob, block_size)
                total = jax.tree.map(jnp.zeros_like, state.trained)
                for number, (index, present) in enumerate(blocks):
                    rows = index
                    if owned is not None:
                        rows = owned.drawn(jax.random.fold_in(draw_key, number), index, width)
                    total = add_clipped(
                        network,
                        config.clip,
                        total,
                        trained=state.trained,
                        fixed=fixed,
                        mask=mask,
                        statistics=statistics,
                        records=records,
                        index=rows,
                        present=present,
                    )
                state = _descend(
                    config.momentum,
                    config.ema_decay,
                    pace,
                    key=noise_key,
                    state=state,
                    total=total,
                    mask=mask,
                )
                counted.advance()
        if done < plan.steps:
            training.save(plan.steps, (state, statistics))
    result = {"params": joined(state.average, fixed)}
    if statistics:
        result["batch_stats"] = _statistics(network, result["params"], statistics, public)
    return Trained(jax.tree.map(np.asarray, result), guarantee)


class Owned(NamedTuple):
    """Records of each person: private.

    Attributes:
      order: int64 `[n]`, records in the order of their persons.
      first: int64 `[num_persons]`, place of a person's first record in that order.
      size: int64 `[num_persons]`, number of a person's records.
    """

    order: np.ndarray
    first: np.ndarray
    size: np.ndarray

    @classmethod
    def of(cls, person: np.ndarray) -> "Owned":
        """Return the records of each person.

        Args:
          person: Number of each record's person, int `[n]`, from 0 on without gaps.
        """
        size = np.bincount(person)
        return cls(np.argsort(person, kind="stable"), np.cumsum(size) - size, size)

    def drawn(self, key: jax.Array, index: np.ndarray, width: int) -> np.ndarray:
        """Draw records of persons with replacement, int64 `[b, width]`. `key` is consumed.

        Args:
          key: Random key, which is consumed.
          index: Persons who draw, int `[b]`.
          width: Number of records that each person draws.
        """
        share = np.asarray(jax.random.uniform(key, (len(index), width)), np.float64)
        size = self.size[index][:, None]
        place = np.minimum((share * size).astype(np.int64), size - 1)
        rows: np.ndarray = self.order[self.first[index][:, None] + place]
        return rows


def _first_state(trained: Any, config: Settled) -> State:
    """Return the state before the first step.

    Steps donate the buffers of their state, so weights and average are copies.
    """
    average, trained = (jax.tree.map(jnp.copy, trained) for _ in range(2))
    momentum = optax.sgd(config.learning_rate, config.momentum).init(trained)
    return State(jnp.zeros((), jnp.int32), trained, average, momentum)


def _block_size(trained: Any, width: int, num_units: int | None) -> int:
    """Return the number of records, or of persons, whose gradients are in memory at once.

    It is public: the gradients of a block are rounded together, those of one more record too.

    Args:
      trained: Trained weights.
      width: Number of records that enter one gradient.
      num_units: Number of records, or of persons; None if it is private.
    """
    num_weights: int = sum(leaf.size for leaf in trained.values())
    most = max(1, min(MOST_EXAMPLES // width, MOST_NUMBERS // num_weights))
    return most if num_units is None else min(most, num_units)


def sampled(
    key: jax.Array, num_records: int, sampling_prob: float, block_size: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw a Poisson sample in blocks.

    Args:
      key: Random key, consumed by the call.
      num_records: Number of records n.
      sampling_prob: Probability with which each record is sampled, independently.
      block_size: Records per block.

    Returns:
      For each block `index`, int32 `[block_size]`, and `present`, bool `[block_size]`, which is
      False for padding in the last block.
    """
    # Mode "high" is exact to 2^-45 and not only to 2^-23.
    takes_part = jax.random.bernoulli(key, sampling_prob, (num_records,), mode="high")
    chosen = np.flatnonzero(takes_part)
    blocks = -(-len(chosen) // block_size)
    index = np.zeros(blocks * block_size, np.int32)
    index[: len(chosen)] = chosen
    present = np.arange(len(index)) < len(chosen)
    return list(
        zip(index.reshape(blocks, block_size), present.reshape(blocks, block_size), strict=True)
    )


class Pace(NamedTuple):
    """Numbers of a step that are traced, so that one compiled program serves all of them.

    Attributes:
      stddev: Standard deviation of the noise in a sum.
      batch_size: Expected number of records, or of persons, per step, B.
      learning_rate: Learning rate.
    """

    stddev: float
    batch_size: float
    learning_rate: float

    @classmethod
    def of(cls, config: Settled, multiplier: float) -> "Pace":
        """Return the numbers of a training with this noise multiplier."""
        stddev = multiplier * config.clip * (1 + SLACK + SUMMED * config.batch_size)
        return cls(stddev, config.batch_size, config.learning_rate)


@functools.partial(jax.jit, static_argnames=("momentum", "ema_decay"), donate_argnames="state")
def _descend(
    momentum: float,
    ema_decay: float,
    pace: Pace,
    key: jax.Array,
    state: State,
    total: Any,
    mask: Any,
) -> State:
    """Add noise to a step's sum, and descend along the result."""
    stddev, batch_size, learning_rate = (jnp.asarray(one, jnp.float32) for one in pace)
    drawn = optax.tree.random_like(key, total)  # every leaf gets its own key
    noisy = {
        path: jnp.where(mask[path], total[path] + stddev * drawn[path], 0) / batch_size
        for path in total
    }
    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
        change, trace = optax.sgd(learning_rate, momentum).update(noisy, state.momentum)
    trained = optax.apply_updates(state.trained, change)
    return State(
        state.step + 1,
        trained,
        students.average(state.average, trained, state.step, ema_decay),
        trace,
    )


def _statistics(network: Any, params: Any, statistics: Any, public: Array) -> Any:
    """Learn batch statistics anew, from public inputs alone."""
    rows = np.arange(STATISTICS_BATCHES * STATISTICS_BATCH_SIZE).reshape(
        STATISTICS_BATCHES, -1
    ) % len(public)
    for index in rows:
        statistics = _updated_statistics(
            network, params, statistics, jnp.asarray(np.asarray(public)[index])
        )
    return statistics


@functools.partial(jax.jit, static_argnames="network")
def _updated_statistics(network: Any, params: Any, statistics: Any, inputs: jax.Array) -> Any:
    variables = {"params": params, "batch_stats": statistics}
    return network.apply(variables, scaled(inputs), train=True, mutable=["batch_stats"])[1][
        "batch_stats"
    ]
