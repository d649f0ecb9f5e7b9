"""Question of a release: its labeler, queries, sum and noise, from settings and public quantities.

Records that vote do so for clusters of the public rows, by default for as many as the noise allows.
Any other sum is read for each public row.
"""

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import numpy as np

from rknn_jax import mechanisms
from rknn_jax._internal import progress
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax._internal.option_names import option
from rknn_jax.labelers._sum_labeler import PublicRows
from rknn_jax.labelers._votes import VoteNoise
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.neighbors import in_metric
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.queries import kmeans
from rknn_jax.question import Question
from rknn_jax.release import preview
from rknn_jax.release.inputs import Data
from rknn_jax.release.labeler_settings import check_classes, labeler_of, public_size
from rknn_jax.types import Queries

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

REACHED = 0.5
"""Share of the queries that other rows than their own are to reach, so that they are asked.

In `benchmarks.query_numbers`, it is .6 and more where 200 queries do no harm, and a third at most
where they lose labels.
"""


def cost_of(settings: "Settings", data: Data) -> Guarantee:
    """Return the guarantee of the noisy sum, before the long work on public rows.

    Raises:
      ValueError: If the data do not suit the settings.
    """
    labeler = labeler_of(settings)
    if settings.labels_per_record is not None:
        check_classes(settings.labels_per_record, data)
    if labeler.votes_per_record is not None:
        return VoteNoise(calibrated(settings, data)).guarantee
    return labeler.exact(len(data.public), data.classes.count).guarantee


def ask(settings: "Settings", data: Data, num_queries: int | None = None) -> Question:
    """Return the question of checked settings, after the long work on public rows.

    A dry run spreads no labels, so its question has no graph.

    Args:
      settings: Settings of the release.
      data: Input of the release.
      num_queries: Number of queries s of a paid release whose settings leave it open. Defaults to
        None: it is chosen here.

    Raises:
      ValueError: If the data do not suit the settings.
    """
    labeler = labeler_of(settings)
    num_classes = data.classes.count
    if labeler.votes_per_record is None:
        queries = Queries.alone(data.public, np.arange(len(data.public)))
        noise = labeler.exact(len(data.public), num_classes)
    else:
        with progress.phase("choosing queries"):
            mechanism, queries = select_queries(settings, data, num_queries)
        noise = VoteNoise(mechanism)
    smoothing = "none" if settings.dry_run else settings.smoothing
    # The graph takes long, so make it before anything is spent.
    with progress.phase("joining similar public rows"):
        side = labeler.public_side(queries, data.public, num_classes, smoothing)
    names = [data.classes.name(number) for number in range(num_classes)]
    bound = (settings.records_per_person, settings.seed)
    tally = labeler.bounded_tally(queries, num_classes, *bound)
    rows = PublicRows(queries, data.public, names, side)
    assert settings.mechanism is not None
    return Question(
        labeler,
        settings.mechanism,
        rows,
        tally=tally,
        noise=noise,
        guarantee=noise.guarantee,
        before=data.before,
    )


def calibrated(settings: "Settings", data: Data) -> CentralMechanism:
    """Return the mechanism, with the given number of queries or as many as the noise allows."""
    assert settings.mechanism is not None
    kind = mechanisms.named(settings.mechanism)
    fewest = data.classes.count if kind.query_for_each_class else settings.neighbors
    sizes = (settings.queries or fewest, data.classes.count, settings.records_per_person)
    noise = labeler_of(settings).exact(*sizes)
    assert isinstance(noise, VoteNoise)
    mechanism = noise.mechanism
    if settings.queries is None and not kind.query_for_each_class:
        known = public_size(settings, data)
        assert known is not None  # `check` asks for --queries otherwise
        suggested = preview.suggested_num_queries(mechanism, known, shared=shares_votes(settings))
        mechanism = replace(
            mechanism, num_queries=max(min(suggested, len(data.public)), settings.neighbors)
        )
    if mechanism.num_queries > len(data.public):
        raise ValueError(
            f"Expected at most as many queries as public rows, got {mechanism.num_queries} queries "
            f"with {len(data.public)} rows in {settings.public}; ask fewer {option('queries')}, "
            f"for fewer {option('neighbors')}, or bring more public data."
        )
    if mechanism.num_queries * mechanism.num_classes >= 2**31:
        raise ValueError(
            f"Expected queries times classes below 2^31, got {mechanism.num_queries} times "
            f"{mechanism.num_classes}; use fewer."
        )
    return mechanism


def select_queries(
    settings: "Settings", data: Data, num_queries: int | None = None
) -> tuple[CentralMechanism, Queries]:
    """Return the mechanism and the queries; by default no more than records reach."""
    mechanism = calibrated(settings, data)
    by_default = settings.queries is None and not mechanism.query_for_each_class
    if by_default:
        chosen = num_queries or _worth(settings, data, mechanism.num_queries)
        mechanism = replace(mechanism, num_queries=chosen)
    while True:
        number = mechanism.num_queries
        queries = _select(settings, data.public, number)
        distinct = max(len(np.unique(queries.cluster)), settings.neighbors)
        if not by_default or distinct >= number:
            return mechanism, _checked(settings, queries, number)
        mechanism = replace(mechanism, num_queries=distinct)


def _worth(settings: "Settings", data: Data, num_queries: int) -> int:
    """Return the number of queries, halved as long as records would reach less than half of them.

    It stays at least twice the number of classes. See `kmeans.reached`.
    """
    features = np.asarray(in_metric(data.public, settings.metric))
    fewest = max(2 * data.classes.count, settings.neighbors)
    while num_queries // 2 >= fewest and kmeans.reached(features, num_queries) < REACHED:
        num_queries //= 2
    return num_queries


def cluster(
    settings: "Settings",
    public: np.ndarray,
    num_queries: int,
    clustering: kmeans.Config = kmeans.Config(),
) -> Queries:
    """Cluster the public rows into queries, by their directions under the cosine metric.

    Args:
      settings: Settings of the release.
      public: Public rows, float32 `[m, f]`.
      num_queries: Number of queries s.
      clustering: Settings of k-means. Defaults to those of a release.

    Raises:
      ValueError: If there are fewer distinct rows.
    """
    selected = _select(settings, public, num_queries, clustering)
    return _checked(settings, selected, num_queries)


def _select(
    settings: "Settings",
    public: np.ndarray,
    num_queries: int,
    clustering: kmeans.Config = kmeans.Config(),
) -> Queries:
    public = np.asarray(in_metric(public, settings.metric))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of too few distinct rows, which `_checked` refuses
        key = stage_key(jax.random.key(settings.seed), Stage.QUERIES)
        return kmeans.select(key, public, num_queries, clustering)


def _checked(settings: "Settings", queries: Queries, num_queries: int) -> Queries:
    distinct = len(np.unique(queries.cluster))
    if distinct < num_queries:
        raise ValueError(
            f"Expected at least {num_queries} distinct public rows, got {distinct} in "
            f"{settings.public}; use {option('queries')} {distinct} or "
            "fewer, or bring more varied public data."
        )
    return queries


def shares_votes(settings: "Settings") -> bool:
    """Return whether similar queries share their noisy counts. Labels alone have no counts."""
    assert settings.mechanism is not None
    counted = mechanisms.named(settings.mechanism).releases_counts
    return settings.smoothing == "auto" and bool(counted)
