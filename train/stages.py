"""Stages of an experiment that see public data alone: data, representation, queries."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from rknn_jax import bsvs, data, mechanisms
from rknn_jax._internal import progress
from rknn_jax._internal.keys import Stage, fresh_noise_key, stage_key
from rknn_jax._internal.terminal import err
from rknn_jax.algorithm import Keys, Student
from rknn_jax.labelers import Labeler, _vote_mechanism, rknn
from rknn_jax.labels import Labels
from rknn_jax.neighbors import in_metric
from rknn_jax.queries import kmeans, prototypes, sample, uncertainty
from rknn_jax.types import Array, Encoder, Queries, Task

from .experiment import Experiment

console = err

OF_REPRESENTATION = (
    "dataset",
    "data_dir",
    "seed",
    "representation",
    "representation_dir",
)
"""Settings that `prepare` depends on.

It also depends on `queries` for a representation that asks its own.
"""


SAMPLED_QUERIES = 1000


RECORDS_PER_SAMPLED_QUERY = 5
"""Greatest number of queries of a round, and public records for each, if every query costs.

The values are those of Private-kNN on MNIST.
"""


class Prepared(NamedTuple):
    """Inputs of a run that do not depend on the votes.

    Attributes:
      task: Data of the run.
      encode: Representation that was learned from the public images.
      network: Network of the representation, or None.
    """

    task: Task
    encode: Encoder
    network: Any


def load(experiment: Experiment) -> Task:
    """Load the data."""
    with progress.phase(f"loading {experiment.dataset}"):
        return data.load(experiment.dataset, experiment.seed, experiment.data_dir)


def prepare(experiment: Experiment) -> Prepared:
    """Load the data and fit the representation."""
    task = load(experiment)
    console.print(
        f"{task.card.name}: {len(task.public.images):,} public, {len(task.private.labels):,} "
        f"private, {len(task.test.labels):,} test"
    )
    check(task, experiment)
    console.print(f"learning {experiment.representation.name} from the public images ...")
    key = stage_key(jax.random.key(experiment.seed), Stage.ENCODER)
    with progress.phase(f"learning {experiment.representation.name}"):
        encode = fit_representation(key, task, experiment)
    trained = experiment.representation.backbone is not None
    return Prepared(task, encode, network_of(encode) if trained else None)


def check(task: Task, experiment: Experiment) -> None:
    """Check that there are enough records, before a representation is learned for hours.

    Raises:
      ValueError: If queries exceed the public records, or teachers the private ones, or if persons
        are the unit and the data set names none.
    """
    num_public = len(task.public.images)
    if experiment.queries is not None and experiment.queries > num_public:
        raise ValueError(
            f"Expected queries <= number of public records, got num_queries={experiment.queries} "
            f"with {num_public} public records; "
            "ask fewer queries or bring more public records."
        )
    if experiment.queries is not None and experiment.queries > _most_queries(task, experiment):
        raise ValueError(
            f"Expected --queries up to {_most_queries(task, experiment)}, got "
            f"{experiment.queries}: later rounds ask about the --uncertain share of "
            f"{num_public} public records, {experiment.uncertain}, and as many others; ask fewer "
            "queries or about a larger share."
        )
    if experiment.unit == "person" and task.private.clients is None:
        raise ValueError(
            f"Expected a data set that names the person of each record with unit=person, got "
            f"dataset={experiment.dataset}; use mnist with its writers' files, or unit=record."
        )
    labeler = experiment.labeler_of_round()
    labeler.check(labeler.num_units(task.private))


def _most_queries(task: Task, experiment: Experiment) -> int:
    """Return the largest number of queries that every round finds among the public records."""
    number = len(task.public.images)
    if experiment.rounds == 1 or not experiment.labeler.clusters:
        return number
    return uncertainty.most_queries(number, uncertainty.Config(experiment.uncertain))


def default_num_queries(task: Task, config: Labeler[Any], experiment: Experiment) -> int:
    """Return the number of queries that n, epsilon and k support.

    n counts privacy units. It is public under replace-one, and always public for a benchmark.
    """
    num_records = config.num_units(task.private)
    num_classes = task.card.num_classes
    if config.trains:
        return len(task.public.images)
    if not isinstance(config, rknn.ReverseKNN):
        return max(
            1,
            min(
                SAMPLED_QUERIES,
                len(task.public.images) // (RECORDS_PER_SAMPLED_QUERY * experiment.rounds),
            ),
        )
    if experiment.representation.asks:
        return task.card.num_classes
    shared = config.smoothing == "auto" and mechanisms.named(config.noise).releases_counts
    scale = 2 * config.num_neighbors / config.epsilon
    # Without a curator, use Laplace noise of the same spread. The spread hardly depends on the
    # number of queries.
    if not config.has_curator:
        spread = _vote_mechanism.calibrated(num_classes, num_classes, num_records, config).stddev(
            np.zeros((num_classes, num_classes)), num_records
        )
        scale = float(spread[0, 0]) / math.sqrt(2)
    suggested = bsvs.suggested_num_queries(
        num_records, num_classes, scale, config.num_neighbors, shared=shared
    )
    return min(suggested, _most_queries(task, experiment))


def sharing(
    labeler: Labeler[Any], task: Task, num_queries: int, experiment: Experiment
) -> Labeler[Any]:
    """Return the labeler of a round with its share of the budget, once its queries are known."""
    return labeler.sharing(
        experiment.epsilon,
        experiment.delta * (1 - 1e-12),
        experiment.rounds,
        num_units=labeler.num_units(task.private),
        num_queries=num_queries,
        num_classes=task.card.num_classes,
    )


def fit_representation(key: jax.Array, task: Task, experiment: Experiment) -> Encoder:
    """Fit the representation on the public images alone."""
    own = experiment.representation.for_task(task.card.num_classes, experiment.queries)
    return own.fit(key, task.public.images, folder=experiment.representation_dir)


def select_queries(
    key: jax.Array,
    task: Task,
    features: Array,
    num_queries: int,
    labels: Labels,
    student: Student | None,
    experiment: Experiment,
) -> Queries:
    """Choose the queries of a round, from public data.

    The first round clusters all public records. Later rounds cluster those that the student is
    least sure of, in the student's features. A representation with prototypes or clusters of its
    own uses these as queries in the first round. Labelers that pay for every query get records that
    are drawn at random and were not answered before.
    """
    features = in_metric(features, experiment.labeler.metric)
    if not experiment.labeler.clusters:
        return sample.select(key, features, num_queries, among=labels.query < 0)
    if student is None and experiment.representation.asks:
        return prototypes.select(key, features, num_queries)
    if student is None:
        return kmeans.select(key, features, num_queries)
    config = uncertainty.Config(experiment.uncertain)
    return uncertainty.select(
        key,
        features,
        student.predict_proba(task.public.images),
        num_queries=num_queries,
        config=config,
    )


def network_of(encode: Encoder) -> Any:
    """Return the `params` and `batch_stats` of the backbone that simclr or scan has trained."""
    return {kind: arrays["backbone"] for kind, arrays in encode.variables.items()}  # type: ignore[attr-defined]


def keys_of(experiment: Experiment) -> Keys:
    """Return the keys of the run.

    The public key is that of its seed. The noise key has the operating system's entropy, or the
    noise seed.
    """
    if experiment.noise_seed is None:
        noise = fresh_noise_key()
    else:
        noise = stage_key(jax.random.key(experiment.noise_seed), Stage.NOISE, experiment.seed)
    return Keys(jax.random.key(experiment.seed), noise)
