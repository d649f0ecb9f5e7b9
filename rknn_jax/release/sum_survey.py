"""Labelers of one noisy sum as surveys: class means, least squares and public prototypes.

A labeler of `labelers._one_sum` says what a record adds, draws exact noise, and classifies every
public row by what was drawn. Similar rows share their labels afterwards. The probability that noise
did not change a label is not known, so none is stated.
"""

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self

import jax
import numpy as np
from sklearn.cluster import KMeans

from rknn_jax import labelers
from rknn_jax.answers.concerns import Concern, concerns_before
from rknn_jax.labelers._one_sum import OneSumLabeler
from rknn_jax.labelers._tally import Tally
from rknn_jax.labels import Labels, PublicLabels, PublicSide
from rknn_jax.mechanisms.base import Payer
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.statement import Contribution
from rknn_jax.release.counting import Counted
from rknn_jax.release.inputs import Data
from rknn_jax.release.preview import AGREEMENTS, LOSS, QUICK, Expected
from rknn_jax.release.rehearsal import MOST_REHEARSED
from rknn_jax.release.survey import Survey, refuse_given
from rknn_jax.types import Queries

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

OF_VOTES = (
    "queries",
    "neighbors",
    "records_per_person",
    "labels_per_record",
    "metric",
    "seed",
)
"""Settings that only reverse k-NN labeling has."""

MOST_FEATURES = 2048
"""Most features at which a release is simulated: of thousands more, reading takes minutes."""

DRAWS = 6
"""Simulated releases behind an expected accuracy."""


@dataclass(frozen=True)
class SumSurvey(Survey):
    """Public side of a release by a labeler of one noisy sum.

    Attributes:
      labeler: Labeler. Each of its queries is a public row.
    """

    labeler: OneSumLabeler

    @staticmethod
    def usual_mechanism(settings: "Settings") -> str:
        """Return the first mechanism that needs a delta, if one is given, or none."""
        kinds = _kinds(settings)
        suited = [name for name in kinds if kinds[name].needs_delta == (settings.delta > 0)]
        return (suited or list(kinds))[0]

    @staticmethod
    def check(settings: "Settings") -> None:
        """Raise ValueError for settings of other labelers, and a delta that is not needed."""
        refuse_given(settings, OF_VOTES, "--labeler rknn")
        kinds = _kinds(settings)
        named = f"--labeler {settings.labeler} --mechanism {settings.mechanism}"
        if settings.mechanism not in kinds:
            raise ValueError(
                f"Expected --mechanism of {', '.join(kinds)} with --labeler {settings.labeler}, "
                f"got --mechanism {settings.mechanism}; leave it out for the one that suits delta."
            )
        needed = kinds[settings.mechanism].needs_delta
        if needed and settings.delta == 0:
            raise ValueError(
                f"Expected delta > 0 with {named}, got --delta 0; pass --delta 1e-5, or leave "
                "--mechanism out."
            )
        if not needed and settings.delta > 0:
            raise ValueError(
                f"Expected no delta with {named}, got --delta {settings.delta}; it is pure, leave "
                "it out."
            )

    @staticmethod
    def cost_of(settings: "Settings", data: Data) -> Guarantee:
        """Return the guarantee of the release, which does not depend on the data."""
        return _labeler(settings).exact().guarantee

    @classmethod
    def of(cls, settings: "Settings", data: Data) -> Self:
        """Return the survey of checked settings, with the graph of the public rows."""
        queries = Queries.alone(data.public, np.arange(len(data.public)))
        labeler = _labeler(settings)
        smoothing = "none" if settings.dry_run else settings.smoothing
        side = labeler.public_side(queries, data.public, data.classes.count, smoothing)
        return cls(settings, data, labeler, queries, side)

    @property
    def tally(self) -> Tally:
        """Sum of the labeler."""
        return self.labeler.tally(self.queries, self.data.classes.count)

    @property
    def cost(self) -> Guarantee:
        """Guarantee of the release."""
        return self.labeler.exact().guarantee

    @property
    def drawn(self) -> tuple[int, ...]:
        """Shape of what the labeler draws."""
        return self.labeler.drawn(self.tally)

    @property
    def purpose(self) -> str:
        """A few words for the ledger."""
        return (
            f"rknn label: {self.labeler.name}, {self.data.classes.count} classes, "
            f"{self.settings.mechanism}"
        )

    def draw(self, counted: Counted, payer: Payer, purpose: str) -> np.ndarray:
        """Charge the ledger, then draw exact noise, int64 `drawn`."""
        noise = self.labeler.exact()
        payer.charge(noise.guarantee, purpose)
        return np.asarray(noise.draw(np.asarray(counted.counts)), np.int64)

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise, in units."""
        return self.labeler.exact().stddev

    def concerns(self, found: PublicLabels) -> tuple[Concern, ...]:
        """Return the reasons to doubt the labels, from them and public data alone."""
        return (*super().concerns(found), *self._noise_decides())

    def _concerns_before(self) -> list[Concern]:
        classes = self.data.classes.count
        return concerns_before(self.data.public, self.queries.size, classes, None, 0.0)

    @functools.cached_property
    def _expected(self) -> dict[float, float] | None:
        """Expected accuracy for each agreement, by simulation; None if nothing is simulated."""
        if not self._is_rehearsed:
            return None
        return {agreement: self._rehearsed(agreement) for agreement in AGREEMENTS}

    def accuracy(self, agreement: float) -> float | None:
        """Return the expected accuracy at one agreement; see `Survey.accuracy`."""
        return self._rehearsed(agreement) if self._is_rehearsed else None

    @property
    def _is_rehearsed(self) -> bool:
        """True if n is public, and the features are few enough to simulate releases."""
        return self.num_records is not None and self.data.public.shape[1] <= MOST_FEATURES

    def _noise_decides(self) -> tuple[Concern, ...]:
        """Return a concern if many labels are wrong even where all records agree."""
        share = 1.0 if self._expected is None else self._expected[AGREEMENTS[0]]
        if share >= 1 - LOSS:
            return ()
        sentence = (
            f"noise decides: of records that all agree, about {share:.0%} of the labels would be "
            "right"
        )
        remedy = "use a larger --epsilon or more private records, or --labeler rknn"
        return (Concern("noise_decides", share, sentence, remedy),)

    def expect(self) -> Expected:
        """Return the error to expect, by releases that are simulated on the public rows.

        Private records are assumed to be as the public rows, in as many groups as classes. Each
        group is a class, and the rest of the records, by their agreement, are of any class.
        """
        noise = self.labeler.exact()
        return Expected(
            noise=noise.stddev,
            stddev=noise.stddev,
            expected=self._expected,
            advice="no other labeler is expected to be much better",
            concerns=(*self._noise_decides(), *self._concerns_before()),
        )

    @functools.cached_property
    def _stage(self) -> "_Stage":
        """Public rows that stand for the private records of simulated releases."""
        # A fixed seed is safe: these records are made up, and no private one is counted.
        order = np.random.default_rng(0).permutation(len(self.data.public))
        public = self.data.public[np.sort(order[:MOST_REHEARSED])]
        num_classes = self.data.classes.count
        groups = KMeans(min(num_classes, len(public)), n_init=1, random_state=0).fit_predict(public)
        queries = Queries.alone(public, np.arange(len(public)))
        side = self.labeler.public_side(queries, public, num_classes, self.settings.smoothing)
        return _Stage(queries, groups, side)

    def _rehearsed(self, agreement: float) -> float:
        """Return the expected accuracy at an agreement, of `num_records` records."""
        assert self.num_records is not None
        queries, groups, side = self._stage
        num_classes, num_rows = self.data.classes.count, len(groups)
        rng = np.random.default_rng(0)  # as in `_stage`
        # The labels of the rest include the right one by chance.
        kept = (agreement * num_classes - 1) / max(num_classes - 1, 1)
        others = rng.random(num_rows) >= kept
        assumed = np.where(others, rng.integers(num_classes, size=num_rows), groups)
        tally = self.labeler.tally(queries, num_classes)
        totals = tally.total(np.asarray(queries.features), assumed.astype(np.int32))
        totals = totals * self.num_records // num_rows * tally.grid
        before = Labels.none(num_rows, num_classes)
        right = []
        for draw in range(DRAWS):
            noise = self.labeler.simulated(jax.random.key(draw, impl=QUICK))
            drawn = noise.draw(totals)
            told = self.labeler.read(drawn, noise.stddev, np.asarray, queries, noise.guarantee)
            right.append(np.mean(before.after(queries, told, 0, side).hard == groups))
        share = float(np.mean(right))
        by_chance = (1 - agreement) / max(num_classes - 1, 1)
        return share * agreement + (1 - share) * by_chance

    @property
    def contribution(self) -> Contribution:
        """Largest part that a record or a person has in the release."""
        return Contribution(1 if self.settings.person is None else "shared")

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Lines for the terminal: the labeler, and the noise."""
        shape = " by ".join(f"{size:,}" for size in self.tally.shape)
        stddev = self.labeler.exact().stddev / self.tally.grid
        unit = self.settings.unit
        return (
            ("labeler", f"{self.labeler.name}, by one sum of {shape} numbers"),
            (
                "noise",
                f"{self.settings.mechanism} of standard deviation {stddev:.4g}, where one {unit} "
                f"moves the sum by {self.labeler.sensitivity / self.tally.grid:,.0f} at most",
            ),
        )


class _Stage(NamedTuple):
    """Public side of simulated releases.

    Attributes:
      queries: Public rows, each of which stands for the private records like it.
      groups: Group of each row, which is taken for its class, int `[m]`.
      side: Public side of the reading.
    """

    queries: Queries
    groups: np.ndarray
    side: PublicSide


def _class(settings: "Settings") -> type[OneSumLabeler]:
    found = labelers.named(settings.labeler)
    assert issubclass(found, OneSumLabeler)
    return found


def _kinds(settings: "Settings") -> dict[str, OneSumLabeler]:
    """Return the labeler with each mechanism, by the mechanism's name."""
    found = _class(settings)
    return {name: found(**kind) for name, kind in found.exact_mechanisms.items()}


def _labeler(settings: "Settings") -> OneSumLabeler:
    """Return the labeler of checked settings."""
    assert settings.mechanism is not None
    kind = _kinds(settings)[settings.mechanism]
    delta = {"delta": settings.delta} if kind.needs_delta else {}
    return replace(
        kind, epsilon=settings.epsilon, relation=settings.relation, unit=settings.unit, **delta
    )
