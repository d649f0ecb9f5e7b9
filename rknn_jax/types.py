"""Core records of the pipeline: a task, its encoder, the queries and the answers.

All are frozen. Arrays are host NumPy or JAX arrays. Images are uint8 `[n, height, width,
channels]`, so that no loader, encoder or student has to ask about scale.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.privacy.guarantee import Guarantee

Array = jax.Array | np.ndarray
Encoder = Callable[[Array], Array]
"""Record-local map of images to features.

Row i of the result depends on image i and on public data alone.
"""
Smoothing = Literal["auto", "none"]
"""Use of similar public rows in the labels of each: `none` reads each row by itself."""


class Classifier(Protocol):
    """Classifier of images: a student, or a network that a labeler has trained."""

    def predict_proba(self, images: Array) -> np.ndarray:
        """Return the class probabilities of images.

        Args:
          images: uint8 `[n, height, width, channels]`.

        Returns:
          float32 `[n, num_classes]`.
        """


@dataclass(frozen=True)
class Card:
    """Source, license and classes of a data set."""

    name: str
    source: str
    licence: str
    classes: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """Number of classes |Y|."""
        return len(self.classes)


@dataclass(frozen=True)
class Records:
    """Labeled records.

    Attributes:
      images: uint8 `[n, height, width, channels]`.
      labels: int32 `[n]` in `[0, num_classes)`.
      clients: int32 `[n]`, the owner of each record. Defaults to None, for a data set without known
        owners.
    """

    images: np.ndarray
    labels: np.ndarray
    clients: np.ndarray | None = None


@dataclass(frozen=True)
class Public:
    """Unlabeled public records.

    Attributes:
      images: uint8 `[m, height, width, channels]`.
      true_labels: int32 `[m]`, known in benchmarks. These labels score a labeler and are never
        given to one, but they may be bought (train/buy.py).
    """

    images: np.ndarray
    true_labels: np.ndarray


@dataclass(frozen=True)
class Task:
    """Data of one experiment: public, private and test are disjoint by construction.

    Attributes:
      card: Description of the data set.
      public: Public records, whose true labels are used for scores alone.
      private: Private records.
      test: Test records.
      public_index, private_index, test_index: int64 positions in the data set's pool, which prove
        the disjointness. A pool is the whole data set with its official parts joined in order,
        train before test.
    """

    card: Card
    public: Public
    private: Records
    test: Records
    public_index: np.ndarray
    private_index: np.ndarray
    test_index: np.ndarray


@dataclass(frozen=True)
class Queries:
    """Queries that the private records vote on.

    Attributes:
      features: float32 `[num_queries, f]`, compared with the features of private records.
      index: int32 `[num_queries]`, the public record that stands for each query.
      cluster: int32 `[m]`, the query whose label each public record takes, -1 for none.
      size: int64 `[num_queries]`, the number of public records nearest to each query. The sizes
        predict each query's share of the votes before any vote is cast.
      images: uint8 `[num_queries, height, width, channels]`, the records that stand for the
        queries. Defaults to None, for labelers that do not read images.
    """

    features: jax.Array
    index: np.ndarray
    cluster: np.ndarray
    size: np.ndarray
    images: np.ndarray | None = None

    @classmethod
    def alone(cls, features: Array, index: np.ndarray) -> "Queries":
        """Return queries about public records, each of which stands for itself alone.

        Args:
          features: `[m, f]`, of all public records.
          index: Positions of the records to ask about, `[num_queries]`.
        """
        index = np.asarray(index, np.int32)
        cluster = np.full(len(features), -1, np.int32)
        cluster[index] = np.arange(len(index))
        return cls(
            jnp.asarray(np.asarray(features, np.float32)[index], jnp.float32),
            index,
            cluster,
            np.ones(len(index), np.int64),
        )


@dataclass(frozen=True)
class Answers:
    """Answers to the queries, with their privacy guarantee.

    Attributes:
      labels: int32 `[num_queries]`.
      answered: bool `[num_queries]`. A labeler that screens leaves some queries without an answer.
      probabilities: float32 `[num_queries, num_classes]`, soft labels.
      confidence: float32 `[num_queries]`, the posterior probability that the label equals the label
        without noise; 1 if unknown.
      counts: float32 `[num_queries, num_classes]`, the noisy counts; one-hot if the mechanism
        releases labels only.
      stddev: float32 `[num_queries, num_classes]`, the standard deviation of the noise; 0 if the
        mechanism releases labels only.
      guarantee: Privacy guarantee of everything here together.
      model: Released network that answered, for a labeler that trains one on the private records.
        Defaults to None, for labelers that count votes.
      counted: False if labels alone were released, without counts. Defaults to True.
    """

    labels: np.ndarray
    answered: np.ndarray
    probabilities: np.ndarray
    confidence: np.ndarray
    counts: np.ndarray
    stddev: np.ndarray
    guarantee: Guarantee
    model: Classifier | None = None
    counted: bool = True

    @classmethod
    def predicted(
        cls, probabilities: np.ndarray, guarantee: Guarantee, model: Classifier
    ) -> "Answers":
        """Return a network's predictions for all queries as answers, without counts.

        Args:
          probabilities: float32 `[num_queries, num_classes]`.
          guarantee: Privacy guarantee of the network.
          model: Network that made the predictions.
        """
        labels = probabilities.argmax(axis=1).astype(np.int32)
        said = np.eye(probabilities.shape[1], dtype=np.float32)[labels]
        sure = np.ones(len(labels), np.float32)
        return cls(
            labels,
            sure > 0,
            probabilities,
            confidence=sure,
            counts=said,
            stddev=np.zeros_like(said),
            guarantee=guarantee,
            model=model,
            counted=False,
        )
