"""Reverse k-NN labeling for sets of labels: records with several classes, and rows with several.

`rknn_jax.label_sets` has the votes, their sensitivity and the way in which counts are read.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import labelers, mechanisms
from rknn_jax.label_sets import HALF
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.records.labels import SEPARATOR
from rknn_jax.release.inputs import Data
from rknn_jax.release.preview import AGREEMENTS, LOSS, QUICK, USUAL, Expected
from rknn_jax.release.vote_survey import VoteSurvey

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings


DRAWS = 20_000
"""Simulated draws of the noise behind an expected accuracy, of all classes together."""

FEWEST_DRAWS = 500
"""Fewest sets that are simulated."""


@dataclass(frozen=True)
class SetSurvey(VoteSurvey):
    """Public side of a release of sets of classes.

    Its mechanism has one class more, of all votes.
    """

    @staticmethod
    def check(settings: "Settings") -> None:
        """Raise ValueError for settings that are wrong for any data."""
        VoteSurvey.check(settings)
        assert settings.mechanism is not None
        most = _most(settings)
        if labelers.named(settings.labeler) is not ReverseKNN:
            raise ValueError(
                f"Expected --labeler rknn with --labels-per-record {most}, got --labeler "
                f"{settings.labeler}; sets are read as rknn reads them."
            )
        if most < 1:
            raise ValueError(
                f"Expected labels_per_record >= 1, got --labels-per-record {most}; name the most "
                "labels that a record can have, or leave it out for one label a record."
            )
        if not mechanisms.named(settings.mechanism).releases_counts:
            raise ValueError(
                f"Expected a mechanism that releases counts with --labels-per-record, got "
                f"--mechanism {settings.mechanism}; use discrete_laplace, or gaussian with --delta."
            )
        if settings.infer_classes:
            raise ValueError(
                "Expected --classes with --labels-per-record, got --infer-classes; name all "
                "classes."
            )
        if settings.representation is not None:
            raise ValueError(
                f"Expected embeddings with --labels-per-record, got --representation "
                f"{settings.representation}; embed the records first, as rknn embed does."
            )

    @staticmethod
    def cost_of(settings: "Settings", data: Data) -> Guarantee:
        """Return the guarantee of the release, which does not depend on n."""
        classes = data.classes
        if _most(settings) > classes.count:
            raise ValueError(
                f"Expected labels_per_record <= {classes.count}, the number of classes, got "
                f"--labels-per-record {_most(settings)}; name the most labels that a record can "
                "have."
            )
        odd = [name for name in classes.names or () if SEPARATOR in name]
        if odd:
            raise ValueError(
                f"Expected --classes without {SEPARATOR!r}, which stands between the classes of a "
                f"record, got {odd[0]!r}; rename it."
            )
        return VoteSurvey.cost_of(settings, data)

    @property
    def purpose(self) -> str:
        """A few words for the ledger."""
        return f"{super().purpose}, up to {_most(self.settings)} labels a record"

    def expect(self) -> Expected:
        """Return the share of whole sets to expect, if records near a query agree on r classes."""
        noise = self.mechanism.noise_scale
        stddev = self.mechanism.noise_stddev
        if self.num_votes is None:
            advice = "n is private under add-remove: compare the noise with your number of records"
            return Expected(noise=noise, stddev=stddev, expected=None, advice=advice)
        share = self.queries.size / self.queries.size.sum()
        against = np.sort(self._least_noise())
        expected = {}
        for agreement in AGREEMENTS:
            leads = (agreement - HALF) * self.num_votes * share
            right = 1 - np.searchsorted(against, -leads) / len(against)
            expected[agreement] = float(share @ right)
        advice = "the number of queries suits this epsilon"
        if expected[USUAL] < (1 - LOSS / 2):
            advice = (
                "the votes are thin for this noise: use fewer --queries, a larger --epsilon or "
                "more private records"
            )
        return Expected(noise=noise, stddev=stddev, expected=expected, advice=advice)

    def accuracy(self, agreement: float) -> float | None:
        """Return the expected share of whole sets at one agreement; see `Survey.accuracy`."""
        expected = self.expect().expected
        return None if expected is None else expected[agreement]

    def _least_noise(self) -> np.ndarray:
        """Return simulated noise of the class that it moves farthest against its set, `[draws]`.

        The first r classes are in the set, and lead half of the votes; the others fall short of it.
        """
        num_classes = self.mechanism.num_classes
        rows = max(DRAWS // num_classes, self.settings.neighbors, FEWEST_DRAWS)
        mechanism = replace(self.mechanism, num_queries=rows)
        nothing = jnp.zeros((rows, num_classes), jnp.int32)
        # A fixed seed is safe: no private record is counted.
        noise = np.asarray(mechanism.estimate(jax.random.key(0, impl=QUICK), nothing, 1))
        leads = noise[:, :-1] - HALF * noise[:, -1:]
        present = np.arange(num_classes - 1) < _most(self.settings)
        least: np.ndarray = np.where(present, leads, -leads).min(axis=1)
        return least

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Lines for the terminal: the queries, the labels of a record, and the noise."""
        most = _most(self.settings)
        words = f"the first {most} of a record count; a row gets the classes of half of those near"
        return (*super().lines, ("sets", words))

    @property
    def ignored(self) -> str:
        """Words for private records that are counted in part or not at all."""
        return (
            f"private records have more than {_most(self.settings)} labels, a label that is none "
            "of the classes, or an embedding that cannot be used; only the rest of them counts"
        )

    @property
    def room(self) -> int:
        """Most bytes that the noisy counts, the queries and the sets take on disk."""
        return super().room + 5 * len(self.data.public) * self.data.classes.count


def _most(settings: "Settings") -> int:
    assert settings.labels_per_record is not None
    return settings.labels_per_record
