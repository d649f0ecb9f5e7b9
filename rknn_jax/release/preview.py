"""Expected error of a release, computed from public quantities before anything is spent.

Two things are expected. The noise sets the lead that a query's first class needs (`required_gap`).
The accuracy is that of simulated releases (`simulated_accuracy`): the queries fall into as many
groups as there are classes, each group is a class, and the records between two groups are of both.
The mechanism's noise and the release's own decoder follow. Private records are assumed to fall into
the clusters as public ones do. Nothing private is read or drawn.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import softmax

from rknn_jax import answers, bsvs, postprocessing
from rknn_jax._internal import compilation
from rknn_jax._internal.option_names import option
from rknn_jax.answers.concern import Concern
from rknn_jax.answers.planned_concerns import concerns_before
from rknn_jax.mechanisms.base import CentralMechanism

FLIPS = (0.05, 0.01, 0.001)
LINE = FLIPS[0]
"""Largest probability of a flip at which a query's label still counts as clear."""

AGREEMENTS = (1.0, 0.9, 0.7)
"""Parts of the records near a query that agree, for which an accuracy is expected."""

USUAL = 0.9
"""Agreement at which settings are compared."""

BETTER = 0.05
"""Expected accuracy by which other settings must be better to be advised."""

SURE = 2.0
"""Standard errors of the simulation by which they must be better."""

LOSS = 0.2
"""Part of the agreement that noise may take before more votes are advised."""

DRAWS = 40
"""Most simulated releases behind an expected accuracy."""

FEWEST_DRAWS = 6
"""Fewest of them, if there are as many."""

ENOUGH = 0.005
"""Standard error of the accuracy at which no more are simulated."""

QUICK = "rbg"
"""Generator of the simulated noise. It compiles in a fifth of the usual one's time."""

QUERIES_AT_ONCE = 128
"""Queries whose noise one program draws, for other numbers of queries too: compiling takes longer.

Noise of a query does not depend on how many others there are.
"""

FEW_QUERIES = 120
"""Queries that are simulated in all draws together, or in a single one."""

MOST_ROWS = 4000
"""Most public rows of a simulated release. Of more, a sample stands for all.

Other numbers of queries are tried if there are no more rows, which are clustered anew.
"""

LEAST_WIDTH = 1e-6
"""Least width of the borders between groups, in units of the distance between groups."""

HALVINGS = 40
"""Steps of the search for the width."""

MOST_QUERIES = 600
"""Most queries that are simulated, which takes some seconds a release."""

MOST_CELLS = 60_000
"""Most cells, queries times classes, that are simulated, which takes as long."""


@dataclass(frozen=True)
class Rehearsal:
    """Public side of a release that is simulated.

    Attributes:
      mechanism: Calibrated mechanism.
      size: int `[s]`, public rows of each query.
      apart: float `[s, groups]`, squared distance of each query from the center of each group of
        queries. Each group is taken for a class.
      cluster: int `[m]`, query of each public row, or of a sample of the rows.
      kernels: Public side of the decoder for the same rows; None if rows take their query's label.
      graph: Graph of the same rows along which labels spread then, or None.
    """

    mechanism: CentralMechanism
    size: np.ndarray
    apart: np.ndarray
    cluster: np.ndarray
    kernels: answers.Kernels | None
    graph: csr_matrix | None

    @property
    def num_draws(self) -> int:
        """Number of simulated releases; 0 if there are too many queries or classes."""
        num_queries = len(self.size)
        if not is_quick(self.mechanism):
            return 0
        return min(DRAWS, max(1, FEW_QUERIES // num_queries))


def is_quick(mechanism: CentralMechanism) -> bool:
    """Return whether a release by the mechanism is simulated in some seconds."""
    cells = mechanism.num_queries * mechanism.num_classes
    return mechanism.num_queries <= MOST_QUERIES and cells <= MOST_CELLS


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Expected error of a release by any labeler.

    Attributes:
      noise: Scale of the noise; its standard deviation for Gaussian noise.
      stddev: Standard deviation of the noise of one cell.
      expected: For each of `AGREEMENTS`, the expected accuracy of the public rows' labels; None if
        n is private, or if nothing was simulated.
      alternatives: Expected accuracy at the agreement `USUAL` with other settings, by their flags.
        Defaults to none.
      advice: Suggested change, in one line.
      concerns: Reasons to doubt the labels of such a release, from public data. Defaults to none.
    """

    noise: float
    stddev: float
    expected: dict[float, float] | None
    alternatives: dict[str, float] = field(default_factory=dict)
    advice: str
    concerns: tuple[Concern, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Preview(Expected):
    """Expected error of a release by reverse k-NN labeling, whose noise is in votes.

    Attributes:
      required_gaps: For each probability of `FLIPS`, the least lead, in votes, that the noise turns
        over no more often.
      expected_votes: Votes of the smallest and of the median query; None if n is private.
      records_needed: Least number of private records at which a median query of 90% purity is
        clear.
      suggested_queries: Suggested number of queries s for this noise; None if n is private.
    """

    required_gaps: dict[float, int]
    expected_votes: tuple[float, float] | None
    records_needed: int
    suggested_queries: int | None


def preview(
    mechanism: CentralMechanism,
    sizes: np.ndarray,
    num_records: int | None,
    *,
    rehearsal: Rehearsal | None = None,
    others: Mapping[str, Rehearsal] | None = None,
    features: np.ndarray | None = None,
) -> Preview:
    """Return the expected error of one release.

    Args:
      mechanism: Calibrated mechanism.
      sizes: int `[num_queries]`, public records of each query.
      num_records: Number of private records n, or None if n is private.
      rehearsal: Public side of the release. Defaults to None, which simulates nothing.
      others: Public sides of releases with other settings, by their flags. Defaults to none.
      features: float32 `[m, f]`, of the public rows, for the concerns. Defaults to None, which
        looks for none.
    """
    gaps = {flips: required_gap(mechanism, flips) for flips in FLIPS}
    share = sizes * mechanism.num_neighbors / sizes.sum()  # votes per private record
    needed = math.ceil(gaps[LINE] / (0.8 * np.median(share)))
    noise = mechanism.noise_scale
    stddev = mechanism.noise_stddev
    if num_records is None:
        advice = (
            f"n is private under {mechanism.relation}: go on if there are well over {needed:,} "
            "private records"
        )
        return Preview(
            noise=noise,
            stddev=stddev,
            required_gaps=gaps,
            expected_votes=None,
            expected=None,
            records_needed=needed,
            suggested_queries=None,
            advice=advice,
            concerns=_concerns(mechanism, sizes, None, features),
        )
    votes = num_records * share
    clear = float(sizes[votes * (2 * USUAL - 1) >= gaps[LINE]].sum() / sizes.sum())
    simulated: dict[float, np.ndarray] = {}
    others_simulated: dict[str, np.ndarray] = {}
    if rehearsal is not None and rehearsal.num_draws:
        truths = {
            agreement: class_shares(rehearsal, agreement)[rehearsal.cluster]
            for agreement in AGREEMENTS
        }
        simulated = {
            agreement: simulated_accuracy(rehearsal, num_records, truth)
            for agreement, truth in truths.items()
        }
        others_simulated = {
            flags: simulated_accuracy(other, num_records, truths[USUAL])
            for flags, other in (others or {}).items()
            if other.num_draws
        }
    expected = {agreement: float(found.mean()) for agreement, found in simulated.items()} or None
    alternatives = {flags: float(found.mean()) for flags, found in others_simulated.items()}
    suggested = min(
        suggested_num_queries(mechanism, num_records, shared=bool(mechanism.releases_counts)),
        int(sizes.sum()),
    )
    advice = _better(simulated.get(USUAL), others_simulated)
    if not advice:
        # Without a simulation, a clear label stands for a right one.
        enough = clear >= 1 - LOSS if expected is None else expected[USUAL] >= (1 - LOSS) * USUAL
        advice = _advice(mechanism, enough, suggested, needed, simulated=bool(alternatives))
    return Preview(
        noise=noise,
        stddev=stddev,
        required_gaps=gaps,
        expected_votes=(float(votes.min()), float(np.median(votes))),
        expected=expected,
        alternatives=alternatives,
        records_needed=needed,
        suggested_queries=suggested,
        advice=advice,
        concerns=_concerns(mechanism, sizes, num_records, features),
    )


def simulated_accuracy(rehearsal: Rehearsal, num_records: int, truth: np.ndarray) -> np.ndarray:
    """Return the accuracy of the public rows' labels in each simulated release, float64 `[draws]`.

    No more releases are simulated once the mean is known well enough.

    Args:
      rehearsal: Public side of the release.
      num_records: Number of private records n.
      truth: Probability that a row, and the private records like it, are of each class, float
        `[m, num_classes]`.
    """
    mechanism = rehearsal.mechanism
    held = np.bincount(rehearsal.cluster, minlength=len(rehearsal.size))
    shares = np.zeros((len(held), mechanism.num_classes))
    np.add.at(shares, rehearsal.cluster, truth)
    shares /= np.maximum(held, 1)[:, None]
    votes = num_records * mechanism.num_neighbors * rehearsal.size / rehearsal.size.sum()
    num_queries = len(held)
    at_once = num_queries if mechanism.query_for_each_class else QUERIES_AT_ONCE
    drawn = replace(mechanism, num_queries=-(-num_queries // at_once) * at_once)
    totals = np.zeros((drawn.num_queries, mechanism.num_classes), np.int32)
    # A fixed seed is safe: these records are made up, and no private one is counted.
    rng = np.random.default_rng(0)
    right = []
    for draw in range(rehearsal.num_draws):
        totals[:num_queries] = rng.poisson(votes[:, None] * shares) * mechanism.grid
        noise = jax.random.key(draw, impl=QUICK)
        noisy = np.asarray(_estimate(drawn, noise, jnp.asarray(totals, jnp.int32)))[:num_queries]
        labels = _labels(rehearsal, noisy, num_records)
        right.append(np.mean(truth[np.arange(len(labels)), labels]))
        if len(right) >= FEWEST_DRAWS and np.std(right) <= ENOUGH * math.sqrt(len(right)):
            break
    return np.array(right)


@functools.partial(jax.jit, compiler_options=compilation.brief())
def _estimate(mechanism: CentralMechanism, key: jax.Array, totals: jax.Array) -> jax.Array:
    """Return noisy counts by one program for a mechanism: one for each step takes far longer."""
    return mechanism.estimate(key, totals, 1)  # of no central mechanism does it depend on n


def class_shares(rehearsal: Rehearsal, agreement: float) -> np.ndarray:
    """Return made-up shares of the classes among the records near each query, `[s, num_classes]`.

    Shares fall with the distance from the groups, so that queries between two groups are of both
    classes. How fast they fall is chosen such that the greatest ones are `agreement` on average.

    Args:
      rehearsal: Public side of a release.
      agreement: Mean of the greatest shares, over the public rows.
    """
    num_queries, groups = rehearsal.apart.shape
    num_classes = rehearsal.mechanism.num_classes
    if groups == 1:
        other = (1 - agreement) / max(num_classes - 1, 1)
        return np.tile([agreement, *[other] * (num_classes - 1)], (num_queries, 1))
    nearer = rehearsal.apart - rehearsal.apart.min(axis=1, keepdims=True)
    unit = float(nearer.mean()) or 1.0
    weight = rehearsal.size / rehearsal.size.sum()
    low, high = LEAST_WIDTH, 1 / LEAST_WIDTH
    for _ in range(HALVINGS):
        width = math.sqrt(low * high)
        found = softmax(-nearer / (unit * width), axis=1)
        low, high = (width, high) if weight @ found.max(axis=1) > agreement else (low, width)
    shares = np.zeros((num_queries, num_classes))
    shares[:, :groups] = found
    return shares


def _labels(rehearsal: Rehearsal, counts: np.ndarray, num_records: int) -> np.ndarray:
    """Return the labels that a release gives the rows, int `[m]`."""
    if rehearsal.kernels is not None:
        if not rehearsal.mechanism.releases_counts:
            chosen = counts.argmax(axis=1)
            likely = answers.decode_labels(chosen, counts.shape[1], rehearsal.kernels)
            return np.asarray(likely.argmax(axis=1))
        stddev = rehearsal.mechanism.stddev(counts, num_records)
        return answers.decode(counts, stddev, rehearsal.kernels, redraws=0).labels
    hot = np.eye(counts.shape[1], dtype=np.float32)[postprocessing.noisy_max(counts)]
    own = hot[rehearsal.cluster]
    spread = postprocessing.public_labels(rehearsal.graph, own, len(counts))
    labels: np.ndarray = spread.argmax(axis=1)
    return labels


def _concerns(
    mechanism: CentralMechanism,
    sizes: np.ndarray,
    num_records: int | None,
    features: np.ndarray | None,
) -> tuple[Concern, ...]:
    if features is None:
        return ()
    num_votes = None if num_records is None else num_records * mechanism.num_neighbors
    return tuple(
        concerns_before(
            features,
            sizes,
            mechanism.num_classes,
            num_votes=num_votes,
            noise=mechanism.noise_stddev,
        )
    )


def required_gap(mechanism: CentralMechanism, failure_prob: float) -> int:
    """Return the least lead, in votes, that the mechanism turns over rarely enough.

    Args:
      mechanism: Calibrated mechanism.
      failure_prob: Largest probability of a flip, whatever the rivals' votes are.
    """
    high = 1
    while mechanism.flip_prob(high) > failure_prob:
        high *= 2
    low = high // 2
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if mechanism.flip_prob(middle) <= failure_prob else (middle + 1, high)
        )
    return low


def suggested_num_queries(mechanism: CentralMechanism, num_records: int, *, shared: bool) -> int:
    """Suggest the number of queries s for n records, by `bsvs.suggested_num_queries`.

    The mechanism's own s plays no part.
    """
    return bsvs.suggested_num_queries(
        num_records,
        mechanism.num_classes,
        mechanism.laplace_scale,
        mechanism.num_neighbors,
        shared=shared,
    )


def _better(own: np.ndarray | None, others: Mapping[str, np.ndarray]) -> str:
    """Return the advice to take the best other settings, or an empty string.

    Args:
      own: Accuracies of simulated releases; None if there are none.
      others: Accuracies of simulated releases with other settings, by their flags.
    """
    if own is None or not others:
        return ""
    best = max(others, key=lambda flags: float(others[flags].mean()))
    gain = others[best].mean() - own.mean()
    error = math.hypot(*(np.std(found) / math.sqrt(len(found)) for found in (own, others[best])))
    if gain <= max(BETTER, SURE * error):
        return ""
    return (
        f"{best} is expected to give {others[best].mean():.0%} at {USUAL:.0%} agreement, where "
        f"this gives {own.mean():.0%}"
    )


def _advice(
    mechanism: CentralMechanism, enough: bool, suggested: int, needed: int, *, simulated: bool
) -> str:
    """Return what to change.

    Args:
      mechanism: Calibrated mechanism.
      enough: True if noise leaves most labels as they are.
      suggested: Suggested number of queries.
      needed: Number of private records that are needed.
      simulated: True if other settings were simulated, and are no better.
    """
    if not enough and suggested < mechanism.num_queries and not simulated:
        return (
            f"the votes are thin for this noise: use fewer queries, about {option('queries')} "
            f"{suggested}"
        )
    if not enough:
        return (
            f"the votes are thin for this noise: raise {option('epsilon')}, or bring about "
            f"{needed:,} private records"
        )
    if suggested > 2 * mechanism.num_queries:
        return (
            f"epsilon is ample: try more queries, about {option('queries')} {suggested}, which "
            "follow the data more finely"
        )
    return "the number of queries suits this epsilon"
