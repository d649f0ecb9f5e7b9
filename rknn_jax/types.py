"""The four records that flow down the pipe: a task, its encoder, the queries and the answers.

All are frozen. Arrays are host NumPy or JAX arrays; images are uint8 `[n, height, width,
channels]`, so that no loader, encoder or student has to ask about scale.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.privacy.guarantee import Guarantee

Array = jax.Array | np.ndarray
Encoder = Callable[[Array], Array]
"""Record-local map of images to features: row i of the result depends on image i and on public
data alone.
"""


class Classifier(Protocol):
    """What tells the class of an image: a student, or a network that a labeler has trained."""

    def predict_proba(self, images: Array) -> np.ndarray:
        """Return class probabilities, float32 `[n, num_classes]`, of uint8 images `[n, height,
        width, channels]`.
        """


@dataclass(frozen=True)
class Card:
    """Where a data set comes from."""

    name: str
    source: str
    licence: str
    classes: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """|Y|."""
        return len(self.classes)


@dataclass(frozen=True)
class Records:
    """Labelled records.

    Attributes:
      images: uint8 `[n, height, width, channels]`.
      labels: int32 `[n]` in `[0, num_classes)`.
      clients: int32 `[n]`, the owner of each record, or None where the data set knows of none.
    """

    images: np.ndarray
    labels: np.ndarray
    clients: np.ndarray | None = None


@dataclass(frozen=True)
class Public:
    """Unlabelled public records.

    Attributes:
      images: uint8 `[m, height, width, channels]`.
      true_labels: int32 `[m]`. A benchmark knows them; they score a labeler and are never given to
        one. They may be bought (train/buy.py).
    """

    images: np.ndarray
    true_labels: np.ndarray


@dataclass(frozen=True)
class Task:
    """One experiment's data: public, private and test are disjoint by construction.

    Attributes:
      card: the data set.
      public, private, test: see `Public` and `Records`.
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
    """What the private records are asked to vote on.

    Attributes:
      features: float32 `[num_queries, f]`, what private records are compared with.
      index: int32 `[num_queries]`, the public record that stands for each query.
      cluster: int32 `[m]`, the query whose label each public record takes, -1 for none.
      size: int64 `[num_queries]`, public records nearest to each query, from which its share of the
        votes can be told beforehand.
      images: uint8 `[num_queries, height, width, channels]`, those records themselves, where a
        labeler looks at images.
    """

    features: jax.Array
    index: np.ndarray
    cluster: np.ndarray
    size: np.ndarray
    images: np.ndarray | None = None

    @classmethod
    def alone(cls, features: Array, index: np.ndarray) -> "Queries":
        """Return queries about the public records `index`, each of which stands for itself
        alone; `features` `[m, f]` are of all.
        """
        index = np.asarray(index, np.int32)
        cluster = np.full(len(features), -1, np.int32)
        cluster[index] = np.arange(len(index))
        return cls(
            jnp.asarray(np.asarray(features, np.float32)[index]),
            index,
            cluster,
            np.ones(len(index), np.int64),
        )


@dataclass(frozen=True)
class Answers:
    """What came back for the queries, with what it cost.

    Attributes:
      labels: int32 `[num_queries]`.
      answered: bool `[num_queries]`; a labeler that screens leaves some queries without an answer.
      probabilities: float32 `[num_queries, num_classes]`, soft labels.
      confidence: float32 `[num_queries]`, the posterior probability that the label is the one
        without noise; 1 where it is not known.
      counts: float32 `[num_queries, num_classes]`, the noisy counts; one-hot where the mechanism
        releases labels only.
      stddev: float32 `[num_queries, num_classes]`, the noise's standard deviation; 0 where the
        mechanism releases labels only.
      guarantee: the privacy of everything here together.
      model: the network that answered, released too, of a labeler that trains one on the private
        records; None of those that count votes.
    """

    labels: np.ndarray
    answered: np.ndarray
    probabilities: np.ndarray
    confidence: np.ndarray
    counts: np.ndarray
    stddev: np.ndarray
    guarantee: Guarantee
    model: Classifier | None = None

    @classmethod
    def predicted(
        cls, probabilities: np.ndarray, guarantee: Guarantee, model: Classifier
    ) -> "Answers":
        """Return what a network predicts of all queries, float32 `[num_queries, num_classes]`,
        as answers: there are no counts.
        """
        labels = probabilities.argmax(axis=1).astype(np.int32)
        said = np.eye(probabilities.shape[1], dtype=np.float32)[labels]
        sure = np.ones(len(labels), np.float32)
        return cls(
            labels, sure > 0, probabilities, sure, said, np.zeros_like(said), guarantee, model
        )
