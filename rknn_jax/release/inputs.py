"""Input of a release, read from its files and checked, and the checks of its settings."""

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rknn_jax import mechanisms
from rknn_jax.privacy.guarantee import LARGE_EPSILON
from rknn_jax.privacy.ledger import fingerprint
from rknn_jax.release import tables
from rknn_jax.release.tables import MISSING, Classes

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

ASSUMED_CLASSES = 10
"""Number of classes that a dry run assumes if none are given.

A dry run reads no private labels, and its results depend on the logarithm of this number.
"""


@dataclass(frozen=True)
class Data:
    """Input of a release.

    Attributes:
      public: float32 `[m, f]`.
      private: float32 `[n, f]`.
      labels: int32 `[n]`, private; None in a dry run.
      classes: Set of labels, taken as public.
      dataset: Fingerprint of the private embeddings alone, so that a corrected label does not make
        a new budget.
      ignored: Number of private records with a label that cast no vote, for the owner's eyes alone.
        Their embedding is not finite, or their label is none of the classes. Defaults to 0.
    """

    public: np.ndarray
    private: np.ndarray
    labels: np.ndarray | None
    classes: Classes
    dataset: str
    ignored: int = 0


def check(settings: "Settings") -> None:
    """Raise ValueError for settings that are wrong for any data."""
    if not 0 < settings.epsilon < math.inf:
        raise ValueError(
            f"Expected 0 < epsilon < infinity, got --epsilon {settings.epsilon}; choose a finite "
            "privacy budget, such as 1."
        )
    if settings.epsilon > LARGE_EPSILON and not settings.allow_large_epsilon:
        raise ValueError(
            f"Expected --epsilon of at most {LARGE_EPSILON:g}, got --epsilon "
            f"{settings.epsilon:g}, which protects nobody; choose one "
            "below 10, or pass --allow-large-epsilon if the records need no protection."
        )
    for name in ("delta", "budget_delta"):
        value = getattr(settings, name)
        if value is not None and not 0 <= value < 1:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"Expected 0 <= {name} < 1, got {flag} {value}; 1e-5 is a common choice, 0 is "
                "pure privacy."
            )
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
    if settings.budget is not None and not 0 < settings.budget < math.inf:
        raise ValueError(
            f"Expected 0 < budget < infinity, got --budget {settings.budget}; it bounds what may "
            "be spent in all."
        )
    if settings.neighbors < 1 or (
        settings.queries is not None and settings.queries < settings.neighbors
    ):
        raise ValueError(
            f"Expected 1 <= neighbors <= queries, got --neighbors {settings.neighbors} and "
            f"--queries {settings.queries}; use fewer "
            "neighbors or more queries."
        )
    if settings.relation == "add-remove" and settings.queries is None:
        raise ValueError(
            "Expected --queries with --relation add-remove, got none; the default depends on n, "
            "which is private then."
        )
    if not 0 <= settings.seed < 2**32:
        raise ValueError(
            f"Expected 0 <= seed < 2^32, got --seed {settings.seed}; it only starts the clustering."
        )


def read(settings: "Settings") -> Data:
    """Read and check both files, and the private labels unless it is a dry run.

    A private record that cannot be used casts no vote. It raises no error, because a refused
    release would reveal that record.
    """
    if (
        os.path.lexists(settings.public)
        and os.path.lexists(settings.private)
        and settings.public.samefile(settings.private)
    ):
        raise ValueError(
            f"Expected --public to hold public data, got the private file {settings.private}; "
            "bring data that is public."
        )
    public = tables.read_embeddings(settings.public, "--public")
    private = tables.read_records(settings.private, "--private", public.shape[1])
    if public.shape[1] != private.shape[1]:
        raise ValueError(
            f"Expected embeddings of one width, got --public {settings.public} of "
            f"{public.shape[1]} and --private {settings.private} of "
            f"{private.shape[1]} dimensions; embed both with the same model."
        )
    given = (
        tables.parse_classes(settings.classes)
        if settings.classes is not None
        else tables.read_classes(settings.private)
    )
    if settings.dry_run:
        return data_of(public, private, None, given or Classes(ASSUMED_CLASSES, source="assumed"))
    labels = tables.read_labels(settings.private, settings.private_labels)
    if len(labels) != len(private):
        raise ValueError(
            f"Expected one label a private record, got {len(labels)} labels for {len(private)} "
            f"embeddings of {settings.private}; save both "
            "in the same order."
        )
    if given is None and not settings.infer_classes:
        raise ValueError(
            "Expected --classes, got none; name all classes, or pass --infer-classes to read "
            "them from the private labels, which "
            "epsilon does not cover."
        )
    classes = given or tables.infer_classes(labels)
    return data_of(
        public,
        private,
        tables.label_ids(labels, classes),
        classes,
        num_given=tables.num_given(labels),
    )


def data_of(
    public: np.ndarray,
    private: np.ndarray,
    labels: np.ndarray | None,
    classes: Classes,
    num_given: int = 0,
) -> Data:
    """Return the data of a release. A private record with a row of NaN casts no vote.

    Args:
      public: float32 `[m, f]`.
      private: float32 `[n, f]`, from `tables.usable_rows`.
      labels: int32 `[n]`, private, `MISSING` if a record casts no vote; None in a dry run.
      classes: Set of labels.
      num_given: Number of private records that have a label, usable or not. Defaults to 0.
    """
    dataset = fingerprint(private)
    usable = ~np.isnan(private[:, 0])
    private = np.where(usable[:, None], private, np.float32(0))
    if labels is None:
        return Data(public, private, None, classes, dataset)
    labels = np.where(usable, labels, MISSING).astype(np.int32)
    return Data(
        public, private, labels, classes, dataset, num_given - int(np.sum(labels != MISSING))
    )
