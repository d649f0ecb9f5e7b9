"""Reverse k-NN labeling as a survey: votes for queries, and rows decoded from noisy counts."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from rknn_jax import labelers, mechanisms
from rknn_jax.labelers._sum_labeler import Words
from rknn_jax.labelers._votes import Bound, VoteTally
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.labels import PublicLabels
from rknn_jax.mechanisms.base import CentralMechanism, Payer, release_counts
from rknn_jax.privacy import contributions
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.statement import Contribution
from rknn_jax.release.asking import calibrated, labeler_of, select_queries
from rknn_jax.release.counting import Counted
from rknn_jax.release.inputs import Data
from rknn_jax.release.preview import Expected
from rknn_jax.release.rehearsal import accuracy, expect
from rknn_jax.release.survey import Survey

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

_log = logging.getLogger(__name__)


REDRAWN_BYTES = 1500
"""Memory of the decoder for each cell, in bytes.

With the other terms of `label.memory`, this exceeds the measured 0.5 to 1.6 GB, for 2 * 10^5 to
8 * 10^5 cells of up to 10^5 classes.
"""


@dataclass(frozen=True)
class VoteSurvey(Survey):
    """Public side of reverse k-NN labeling.

    Attributes:
      labeler: Labeler.
      mechanism: Calibrated mechanism.
    """

    labeler: ReverseKNN
    mechanism: CentralMechanism

    @staticmethod
    def usual_mechanism(settings: "Settings") -> str:
        """Return the mechanism of settings that name none."""
        return labelers.named(settings.labeler)().noise

    @staticmethod
    def check(settings: "Settings") -> None:
        """Raise ValueError for settings that are wrong for any data."""
        assert settings.mechanism is not None
        needs_delta = mechanisms.chosen(settings.mechanism, mechanisms.can_release).needs_delta
        if needs_delta and settings.delta == 0:
            raise ValueError(
                f"Expected delta > 0 with --mechanism {settings.mechanism}, got --delta 0; pass "
                "--delta 1e-5, or use discrete_laplace."
            )
        if not needs_delta and settings.delta > 0:
            raise ValueError(
                f"Expected no delta with --mechanism {settings.mechanism}, got --delta "
                f"{settings.delta}; it is pure, leave it out."
            )
        if settings.neighbors < 1 or (
            settings.queries is not None and settings.queries < settings.neighbors
        ):
            raise ValueError(
                f"Expected 1 <= neighbors <= queries, got --neighbors {settings.neighbors} and "
                f"--queries {settings.queries}; use fewer "
                "neighbors or more queries."
            )
        _check_persons(settings)
        noise = labeler_of(settings).noise
        if noise != settings.mechanism:
            raise ValueError(
                f"Expected --mechanism {noise} with --labeler {settings.labeler}, got --mechanism "
                f"{settings.mechanism}; leave it out."
            )
        if settings.relation == "add-remove" and settings.queries is None:
            raise ValueError(
                "Expected --queries with --relation add-remove, got none; the default depends on "
                "n, which is private then."
            )

    @staticmethod
    def cost_of(settings: "Settings", data: Data) -> Guarantee:
        """Return the guarantee of the release, which does not depend on n."""
        return calibrated(settings, data).release_guarantee(1)

    @classmethod
    def of(cls, settings: "Settings", data: Data) -> Self:
        """Return the survey of checked settings, with clustered public rows."""
        _log.info("clustering %s public rows into queries", f"{len(data.public):,}")
        mechanism, queries = select_queries(settings, data)
        # The graph takes long, so make it before anything is spent. A dry run spreads nothing.
        _log.info("joining similar public rows")
        labeler = labeler_of(settings)
        smoothing = "none" if settings.dry_run else settings.smoothing
        side = labeler.public_side(queries, data.public, data.classes.count, smoothing)
        return cls(settings, data, labeler, queries, side, mechanism)

    @property
    def tally(self) -> VoteTally:
        """Votes for the queries."""
        settings = self.settings
        bound = None
        if settings.person is not None:
            bound = Bound(settings.records_per_person, settings.seed, self.mechanism.norm)
        return self.labeler.tally(self.queries, self.mechanism.num_classes, bound)

    @property
    def cost(self) -> Guarantee:
        """Guarantee of the release, which does not depend on n."""
        return self.mechanism.release_guarantee(1)

    @property
    def drawn(self) -> tuple[int, int]:
        """Shape `(s, num_classes)` of the noisy counts."""
        return self.mechanism.shape

    @property
    def num_votes(self) -> int | None:
        """Number of votes n·k, or None if n is private."""
        if self.num_records is None:
            return None
        voters = 1.0 if self.checkers is None else self.checkers.roles.vote
        return round(self.num_records * voters) * self.labeler.num_neighbors

    @property
    def purpose(self) -> str:
        """A few words for the ledger."""
        return (
            f"rknn label: {self.mechanism.num_queries} queries, {self.data.classes.count} "
            f"classes, {self.settings.mechanism}"
        )

    def draw(self, counted: Counted, payer: Payer, purpose: str) -> np.ndarray:
        """Charge the ledger, then draw the noisy counts, `[s, num_classes]`; see `Survey.draw`.

        They are int64, or float64 multiples of 1 / `mechanism.grid` if that is not 1.
        """
        return release_counts(self.mechanism, counted.counts, counted.units, payer, purpose)[0]

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise, in votes."""
        return self.mechanism.noise_stddev

    def expect(self) -> Expected:
        """Return the error to expect, by simulation on public quantities."""
        if type(self.labeler) is ReverseKNN:
            return expect(self.settings, self.data, self.queries, self.mechanism)
        name = self.labeler.name
        return Expected(
            noise=self.mechanism.noise_scale,
            stddev=self.mechanism.noise_stddev,
            expected=None,
            advice=f"no release by {name} is simulated here: try python -m train.distill "
            f"--labeler {name}",
        )

    def accuracy(self, agreement: float) -> float | None:
        """Return the expected accuracy at one agreement; see `Survey.accuracy`."""
        if self.num_records is None or type(self.labeler) is not ReverseKNN:
            return None
        return accuracy(self.settings, self.data, self.queries, self.mechanism, agreement)

    @property
    def contribution(self) -> Contribution:
        """Largest part that a record or a person has in the release."""
        settings = self.settings
        if settings.person is None:
            return Contribution(1, self.labeler.num_neighbors)
        whole: Literal["shared", "clipped"] = "clipped" if self.mechanism.norm == 2 else "shared"
        return Contribution(settings.records_per_person or whole, self.labeler.num_neighbors)

    @property
    def words(self) -> Words:
        """The votes' part of the statement."""
        found = super().words
        # The seed of the clustering is public. No seed fixes the noise.
        return found._replace(facts=found.facts | {"clustering_seed": self.settings.seed})

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Lines for the terminal: the queries, and the noise."""
        settings = self.settings
        size = self.queries.size
        every = settings.queries is None and len(size) == len(self.data.public)
        rows = " (no more public rows than that)" if every else ""
        scale = self.mechanism.noise_scale
        stddev = self.mechanism.noise_stddev
        return (
            (
                "queries",
                f"{len(size)}{rows}, of {size.min()} to {size.max()} public rows each; each "
                f"private record votes for {self.labeler.num_neighbors}",
            ),
            (
                "noise",
                f"{settings.mechanism} of scale {scale:.4g}, standard deviation {stddev:.4g} votes",
            ),
        )

    @property
    def reading_memory(self) -> int:
        """Most bytes that the decoder's redrawn counts take."""
        return REDRAWN_BYTES * self.mechanism.num_cells if self.mechanism.releases_counts else 0

    @property
    def room(self) -> int:
        """Most bytes that the noisy counts, kept and shown, and the queries take on disk."""
        return 20 * self.mechanism.num_cells + 16 * self.mechanism.num_queries

    def arrays(self, found: PublicLabels) -> dict[str, Mapping[str, np.ndarray]]:
        """Return the arrays of `labels.npz`, and of `queries.npz`."""
        asked = {"index": self.queries.index, "label": found.answers.labels}
        if found.counts is not None:
            asked["noisy_counts"] = found.counts
        if found.sets is not None:
            asked["noisy_voters"] = found.sets.voters
        return super().arrays(found) | {"queries.npz": asked}


def _check_persons(settings: "Settings") -> None:
    """Refuse a bound on records of persons who are not named."""
    most = settings.records_per_person
    if most is not None and settings.person is None:
        raise ValueError(
            f"Expected --person with --records-per-person {most}, got none; name the column that "
            "tells whose a record is."
        )
    if most is not None and not 1 <= most <= contributions.GRID:
        raise ValueError(
            f"Expected 1 <= records_per_person <= {contributions.GRID}, got --records-per-person "
            f"{most}."
        )
