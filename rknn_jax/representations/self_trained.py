"""Self-trained features: a network learns clusters of the public images and is clustered again.

1. The public images are embedded by `spectral` and cut into as many clusters as there are classes.
2. A student of `rknn_jax.students` is trained on the cluster numbers, with random warps. Warps,
   label smoothing, and averaged weights keep the student from memorizing the few images in the
   wrong cluster, so these images stand out.
3. The neighbor graph of the student's features is embedded, and the next round begins with it.

No label is used, public or private. Every image is placed among the public ones record-locally, as
by `spectral`. On MNIST, two rounds lift the labels of ten clusters from 98.0% to 99.1%
(`benchmarks/results/labels.json`), at no privacy cost. Few or tiny images, such as 500 digits of
8x8 pixels, gain nothing over `spectral`.

References: Caron et al., "Deep Clustering for Unsupervised Learning of Visual Features", 2018; Lee,
"Pseudo-Label", 2013.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import progress, pytree
from rknn_jax._internal.one_record import map_records
from rknn_jax.queries import kmeans
from rknn_jax.representations import Representation, spectral
from rknn_jax.students import fit as students
from rknn_jax.types import Array


@dataclass(frozen=True)
class Config(Representation):
    """Settings of self-training.

    Attributes:
      rounds: Number of networks that are trained one after the other. Defaults to 2.
      clusters: Number of clusters of the public images, about the number of classes. Defaults to
        10.
      graph: Settings of the first embedding, and of the embedding of the networks' features, which
        has no views.
      student: Settings of each network's training. Defaults to 15 epochs of `cnn` in batches of 64.
    """

    rounds: int = 2
    clusters: int = 10
    graph: spectral.Config = field(default_factory=spectral.Config)
    student: students.Config = field(
        default_factory=lambda: students.Config(model="cnn", epochs=15, batch_size=64)
    )

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(
                f"Expected rounds >= 1, got rounds={self.rounds}; use representation=spectral "
                "for none."
            )
        if self.clusters < 2:
            raise ValueError(
                f"Expected clusters >= 2, got clusters={self.clusters}; the number of classes is "
                "a good choice."
            )

    given: ClassVar[frozenset[str]] = frozenset({"clusters"})

    def for_task(self, num_classes: int, num_queries: int | None) -> Self:
        """Return the settings with a cluster for every class."""
        graph = self.graph.for_task(num_classes, num_queries)
        return replace(self, clusters=num_classes, graph=graph)


@pytree.register
@dataclass(frozen=True)
class Features:
    """Encoder by the layer before a student's head, scaled to unit length.

    Attributes:
      student: Student trained on public images and their clusters.
    """

    student: students.Student

    def __call__(self, images: Array) -> jax.Array:
        """Return unit vectors, float32 `[n, f]`, from uint8 `[n, h, w, c]`.

        Row i depends on image i alone.
        """
        return map_records(Features.describe, self, self.student.checked(images))

    def describe(self, image: jax.Array) -> jax.Array:
        """Return the unit vector of one image, float32 `[f]`, from uint8 `[h, w, c]`."""
        features = self.student.describe(image)
        return features / jnp.maximum(jnp.linalg.norm(features), 1e-12)


def fit(key: jax.Array, images: Array, config: Config = Config()) -> spectral.Encoder:
    """Embed the public images by features that networks learn from the images' clusters.

    Args:
      key: Random key of the clusterings and networks, consumed by the call.
      images: Public images, uint8 `[m, h, w, c]`.
      config: Settings of self-training.

    Raises:
      ValueError: As `spectral.fit` and `kmeans.select`.
    """
    images = np.asarray(images)
    graph_key, *round_keys = jax.random.split(key, config.rounds + 1)
    encode = spectral.fit(graph_key, images, config.graph)
    with progress.phase("training on clusters", config.rounds, "rounds") as done:
        for round_key in round_keys:
            cluster_key, student_key, graph_key = jax.random.split(round_key, 3)
            cluster = kmeans.select(cluster_key, encode.embedding, config.clusters).cluster
            targets = np.eye(config.clusters, dtype=np.float32)[cluster]
            student = students.fit(student_key, images, targets, config.student)
            encode = spectral.of(graph_key, Features(student), images, config.graph)
            done.advance()
    return encode


EXAMPLES = (
    Config(
        rounds=1,
        clusters=3,
        graph=spectral.Config(dimension=3, num_neighbors=4, tuning_neighbor=3, num_components=8),
        student=students.Config(epochs=1),
    ),
)
