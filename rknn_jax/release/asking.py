"""Mechanism, queries and labeler of reverse k-NN labeling, from public quantities."""

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import numpy as np

from rknn_jax import label_sets, labelers, mechanisms
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.neighbors import in_metric
from rknn_jax.privacy import contributions
from rknn_jax.queries import kmeans
from rknn_jax.release import preview
from rknn_jax.release.inputs import Data
from rknn_jax.release.survey import public_size
from rknn_jax.types import Queries

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings


def calibrated(settings: "Settings", data: Data) -> CentralMechanism:
    """Return the mechanism, with the given number of queries or as many as the noise allows."""
    assert settings.mechanism is not None
    kind = mechanisms.named(settings.mechanism)
    fewest = data.classes.count if kind.query_for_each_class else settings.neighbors
    mechanism: CentralMechanism = mechanisms.make(
        settings.mechanism,
        epsilon=settings.epsilon,
        **label_sets.sizes(
            settings.queries or fewest,
            data.classes.count,
            settings.labels_per_record or 0,
            settings.neighbors,
        ),
        relation=settings.relation,
        unit=settings.unit,
        grid=_grid(settings),
        **({"delta": settings.delta} if kind.needs_delta else {}),
    )
    if settings.queries is None and not kind.query_for_each_class:
        known = public_size(settings, data)
        assert known is not None  # `VoteSurvey.check` asks for --queries otherwise
        suggested = preview.suggested_num_queries(mechanism, known, shared=shares_votes(settings))
        mechanism = replace(
            mechanism, num_queries=max(min(suggested, len(data.public)), settings.neighbors)
        )
    if mechanism.num_queries > len(data.public):
        raise ValueError(
            f"Expected at most as many queries as public rows, got {mechanism.num_queries} "
            f"queries with {len(data.public)} rows in "
            f"{settings.public}; ask fewer --queries, for fewer --neighbors, or bring more "
            "public data."
        )
    if mechanism.num_queries * mechanism.num_classes >= 2**31:
        raise ValueError(
            f"Expected queries times classes below 2^31, got {mechanism.num_queries} times "
            f"{mechanism.num_classes}; use fewer."
        )
    return mechanism


def select_queries(settings: "Settings", data: Data) -> tuple[CentralMechanism, Queries]:
    """Return the mechanism and the queries; by default at most as many as distinct public rows."""
    mechanism = calibrated(settings, data)
    by_default = settings.queries is None and not mechanism.query_for_each_class
    while True:
        number = mechanism.num_queries
        queries = _select(settings, data.public, number)
        distinct = max(len(np.unique(queries.cluster)), settings.neighbors)
        if not by_default or distinct >= number:
            return mechanism, _checked(settings, queries, number)
        mechanism = replace(mechanism, num_queries=distinct)


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
            f"{settings.public}; use --queries {distinct} or "
            "fewer, or bring more varied public data."
        )
    return queries


def shares_votes(settings: "Settings") -> bool:
    """Return whether similar queries share their noisy counts. Labels alone have no counts."""
    assert settings.mechanism is not None
    counted = mechanisms.named(settings.mechanism).releases_counts
    return settings.smoothing == "auto" and bool(counted)


def labeler_of(settings: "Settings") -> ReverseKNN:
    """Return the labeler that settings with a mechanism name.

    Raises:
      ValueError: If the settings do not suit it.
    """
    kind = labelers.named(settings.labeler)
    assert issubclass(kind, ReverseKNN)
    names = ("epsilon", "delta", "mechanism", "relation", "unit", "metric", "smoothing")
    given = {name: getattr(settings, name) for name in names}
    return kind(
        num_neighbors=settings.neighbors,
        labels_per_record=settings.labels_per_record or 0,
        **given,
    )


def _grid(settings: "Settings") -> int:
    """Return the units of a vote, in which the votes of persons are counted."""
    if settings.person is None:
        return 1
    return settings.records_per_person or contributions.GRID
