"""Error to expect of reverse k-NN labeling: the public side of simulated releases.

`preview` simulates. Nothing private is read but the number of records, if that is public.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from sklearn.cluster import KMeans

from rknn_jax import mechanisms
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.neighbors import in_metric
from rknn_jax.queries import kmeans
from rknn_jax.release import preview
from rknn_jax.release.asking import calibrated, cluster, labeler_of
from rknn_jax.release.inputs import Data
from rknn_jax.release.survey import public_size
from rknn_jax.types import Queries

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

ONE_START = kmeans.Config(num_starts=1)
"""Clustering into another number of queries: what is expected of it hardly depends on the start."""

MOST_REHEARSED = 4000
"""Most public rows of a simulated release. Of more, a sample stands for all.

Other numbers of queries are tried if there are no more rows, which are clustered anew.
"""


def expect(
    settings: "Settings", data: Data, queries: Queries, mechanism: CentralMechanism
) -> preview.Preview:
    """Return the error to expect of a release, by simulation on public quantities.

    Args:
      settings: Settings of the release.
      data: Public rows and number of records.
      queries: Public queries.
      mechanism: Calibrated mechanism.
    """
    public = np.asarray(in_metric(data.public, settings.metric))
    num_records = public_size(settings, data)
    mine = None
    others: dict[str, preview.Rehearsal] = {}
    if num_records is not None and preview.is_quick(mechanism):
        mine = rehearsal(settings, public, queries, mechanism)
        others = dict(_others(settings, data, queries, mine))
    return preview.preview(
        mechanism, queries.size, num_records, rehearsal=mine, others=others, features=public
    )


def accuracy(
    settings: "Settings",
    data: Data,
    queries: Queries,
    mechanism: CentralMechanism,
    agreement: float,
) -> float | None:
    """Return the expected accuracy at one agreement, or None if there is too much to simulate.

    Args:
      settings: Settings of the release.
      data: Public rows and number of records, which is public.
      queries: Public queries.
      mechanism: Calibrated mechanism.
      agreement: Part of the records near a query that agree.
    """
    num_records = public_size(settings, data)
    assert num_records is not None
    public = np.asarray(in_metric(data.public, settings.metric))
    mine = rehearsal(settings, public, queries, mechanism)
    if not mine.num_draws:
        return None
    truth = preview.class_shares(mine, agreement)[mine.cluster]
    return float(preview.simulated_accuracy(mine, num_records, truth).mean())


def _others(
    settings: "Settings", data: Data, queries: Queries, mine: preview.Rehearsal
) -> Iterator[tuple[str, preview.Rehearsal]]:
    """Yield the flags and the public sides of releases with one other setting."""
    num_queries = len(queries.size)
    asked = replace(settings, queries=num_queries)
    for name in mechanisms.names("central"):
        kind = mechanisms.named(name)
        fits = mechanisms.can_release(kind) and (settings.delta > 0 or not kind.needs_delta)
        if not fits or name == settings.mechanism:
            continue
        other = replace(asked, mechanism=name)
        with suppress(ValueError):  # not every mechanism takes these settings
            mechanism = calibrated(other, data)
            without = "" if kind.needs_delta or not settings.delta else " without --delta"
            flags = f"--mechanism {name}{without}"
            yield flags, replace(mine, mechanism=mechanism)
    public = np.asarray(in_metric(data.public, settings.metric))
    if len(public) > MOST_REHEARSED or num_queries > preview.FEW_QUERIES:
        return
    for number in (num_queries // 2, 2 * num_queries):
        fewest = max(settings.neighbors, data.classes.count)
        if not fewest <= number <= len(public):
            continue
        other = replace(settings, queries=number)
        with suppress(ValueError):  # too few distinct rows
            fewer = cluster(other, data.public, number, ONE_START)
            mechanism = calibrated(other, data)
            yield f"--queries {number}", rehearsal(other, public, fewer, mechanism)


def rehearsal(
    settings: "Settings", public: np.ndarray, queries: Queries, mechanism: CentralMechanism
) -> preview.Rehearsal:
    """Return the public side of a release, with a sample of the rows if there are many.

    Args:
      settings: Settings of the release.
      public: Public rows, of unit length under the cosine metric.
      queries: Public queries.
      mechanism: Calibrated mechanism.
    """
    rows = _sample(queries)
    sampled = replace(queries, cluster=np.asarray(queries.cluster)[rows])
    public_side = labeler_of(settings).public_side
    shown = (sampled, public[rows], mechanism.num_classes)
    side = public_side(*shown, "none")  # without a graph, which takes long
    if side.kernels is None:
        side = public_side(*shown, settings.smoothing)
    groups = KMeans(min(mechanism.num_classes, len(queries.size)), n_init=5, random_state=0)
    centers = np.asarray(queries.features)
    apart = groups.fit(centers, sample_weight=queries.size).transform(centers) ** 2
    return preview.Rehearsal(
        mechanism, queries.size, apart, sampled.cluster, side.kernels, side.graph
    )


def _sample(queries: Queries) -> np.ndarray:
    """Return the positions of about `MOST_REHEARSED` rows, in proportion of each query.

    A fixed seed is safe: the rows are public.
    """
    of_query = np.asarray(queries.cluster)
    if len(of_query) <= MOST_REHEARSED:
        return np.arange(len(of_query))
    order = np.random.default_rng(0).permutation(len(of_query))
    order = order[np.argsort(of_query[order], kind="stable")]
    held = np.bincount(of_query, minlength=len(queries.size))
    rank = np.arange(len(order)) - (np.cumsum(held) - held)[of_query[order]]
    most = np.ceil(held * MOST_REHEARSED / len(of_query))
    return np.sort(order[rank < most[of_query[order]]])
