"""Noisy SGD: a network trained privately on the private records predicts the public labels.

Its answers are predictions, and cost no extra privacy, so all public records may be queries. The
network is one of:

| network           | input                            | use                                   |
|-------------------|----------------------------------|---------------------------------------|
| `linear`, `mlp`   | the features of `encode`         | the paper's Layer-1 and Layer-2 heads |
| a student's, `m5` | images, from first weights       | the usual private training            |
| `encoder`         | images, from what `encode` knows | fine-tuning after public training     |

`part` restricts the training to a head, the normalization, or a sparse part of the largest weights.

Features are centered and scaled as the public ones are. `rknn_jax.students.dpsgd` has the training
and its guarantee.

The code that the reverse k-NN paper compares with differs in three ways. It divides its learning
rate a second time by the same number. Its samples are shuffled batches, but its accountant assumes
Poisson samples. Its noise on CIFAR-10 is 0.

References: Abadi et al., "Deep Learning with Differential Privacy", 2016; Tramèr & Boneh,
"Differentially Private Learning Needs Better Features", 2021; Luo et al., "Scalable Differential
Privacy with Sparse Network Finetuning", 2021.
"""

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from rknn_jax import bsvs
from rknn_jax._internal.disk import write_arrays
from rknn_jax.labelers import Labeler, _persons
from rknn_jax.representations import scan, self_trained, simclr, spectral
from rknn_jax.students import clipped_gradients, dpsgd, models
from rknn_jax.students import fit as students
from rknn_jax.types import Answers, Array, Encoder, Queries, Records

HEADS = ("linear", "mlp")
"""Networks that take features as input."""

PREDICT_BLOCK = 4096
"""Number of rows of features in one forward pass."""


class Votes(NamedTuple):
    """Training set of the private records: private.

    Attributes:
      inputs: float32 features `[n, f]` or uint8 images `[n, height, width, channels]`.
      labels: int32 `[n]`, -1 for a record that trains nothing.
      encode: Encoder of the run, which is public.
      key: Random key of the first weights.
      person: Number of each record's person, int64 `[n]`, if persons are the unit. Defaults to
        None.
    """

    inputs: np.ndarray
    labels: np.ndarray
    encode: Encoder
    key: jax.Array
    person: np.ndarray | None = None


@dataclass(frozen=True)
class NoisySGD(Labeler[Votes], dpsgd.Config):
    """Noisy SGD and its settings.

    Attributes:
      network: Network that is trained: `linear` or `mlp` on features, a file of
        `rknn_jax/students/models` on images, or `encoder`, the representation's own network.
      part: Part of the network that is trained. All but `all` need `network=encoder`.
      density: Share of the weights that `part=sparse` trains beside normalization and head.
      folder: Folder in which the training is saved and from which it resumes.
    """

    network: str = "linear"
    part: clipped_gradients.Part = "all"
    density: float = 0.01
    folder: Path | None = None

    trains: ClassVar[bool] = True
    telling: ClassVar[Mapping[str, Any]] = {"batch_size": 12, "epochs": 1.0}

    @classmethod
    def for_canaries(cls, num_canaries: int, epsilon: float, delta: float) -> Self:
        """Return settings under which the weights show all that the steps release.

        Each of the four steps takes all records, weights are not averaged, and the descent has no
        momentum. The weights begin at 0, so the final weights are the sum of all noisy gradients.
        """
        return cls(
            epsilon=epsilon,
            delta=delta,
            batch_size=num_canaries,
            epochs=4.0,
            learning_rate=0.5,
            momentum=0.0,
            ema_decay=0.0,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network not in (choices := (*students.MODELS, "encoder")):
            raise ValueError(
                f"Expected network to be one of {', '.join(choices)}, got network={self.network!r}."
            )
        if self.part != "all" and self.network != "encoder":
            raise ValueError(
                f"Expected part=all with network={self.network}, got part={self.part}; weights "
                "that are drawn and then left alone are "
                "of no use, take network=encoder with representation=self_trained, simclr or scan."
            )
        if self.relation == "add-remove" and self.sampling_prob is None:
            raise ValueError(
                "Expected sampling_prob with relation=add-remove, got none; the number of records "
                "is private."
            )

    @property
    def needs_delta(self) -> bool:
        """Always, because the noise is Gaussian."""
        return True

    def contribute(
        self, key: jax.Array, private: Records, encode: Encoder, queries: Queries, num_classes: int
    ) -> Votes:
        """Encode each private record by itself, or keep its image, as training data.

        Args:
          key: Random key of the first weights, which is consumed.
          private: Private records.
          encode: Encoder of the queries' features.
          queries: Public records to predict for.
          num_classes: Number of classes |Y|.
        """
        del queries
        inputs = np.asarray(encode(private.images)) if self.network in HEADS else private.images
        person = _persons.numbered(private) if self.unit == "person" else None
        known = bsvs.voting_labels(np.asarray(private.labels), num_classes)
        return Votes(inputs, known, encode, key=key, person=person)

    def release(
        self,
        key: jax.Array,
        contribution: Votes,
        queries: Queries,
        num_classes: int,
        predicted: np.ndarray | None = None,
    ) -> Answers:
        """Train privately, in simulation, and predict.

        Args:
          key: Random key of the samples and the noise, which is consumed.
          contribution: Result of `contribute`.
          queries: Public records, with their images for a network on images.
          num_classes: Number of classes |Y|.
          predicted: Probabilities of a student, which are not used. Defaults to none.

        Raises:
          ValueError: If the network takes images and the queries have none, and for the errors of
            `dpsgd.fit`.
        """
        del predicted
        if self.network in HEADS:
            head, guarantee = _train_head(
                key, contribution, queries, num_classes=num_classes, config=self
            )
            return Answers.predicted(head.of_features(queries.features), guarantee, head)
        if queries.images is None:
            raise ValueError(
                f"Expected queries with images for network={self.network}, got none; set "
                "Queries.images, or take a head."
            )
        student, guarantee = _train_network(
            key, contribution, queries.images, num_classes=num_classes, config=self
        )
        return Answers.predicted(student.predict_proba(queries.images), guarantee, student)


@dataclass(frozen=True, eq=False)
class Head:
    """Network on the features of an encoder.

    Attributes:
      params: Weights of the network.
      centre: float32 `[f]`, public center of the features.
      scale: float32, public scale of the features.
      network: Network of the weights.
      encode: Map of images to features.
    """

    params: Any
    centre: np.ndarray
    scale: np.ndarray
    network: Any
    encode: Encoder

    def predict_proba(self, images: Array) -> np.ndarray:
        """Return class probabilities, float32 `[n, num_classes]`.

        Args:
          images: uint8 `[n, height, width, channels]`.
        """
        return self.of_features(self.encode(images))

    def save(self, folder: Path) -> None:
        """Write `head.npz`: the weights by their path, and the center and scale of the features."""
        folder.mkdir(parents=True)
        arrays: dict[str, Any] = {"centre": self.centre, "scale": self.scale} | flatten_dict(
            self.params, sep="."
        )
        write_arrays(folder / "head.npz", arrays, compress=False)

    def of_features(self, features: Array) -> np.ndarray:
        """Return class probabilities, float32 `[n, num_classes]`, of features `[n, f]`."""
        inputs = (np.asarray(features, np.float32) - self.centre) / self.scale
        blocks = [
            inputs[start : start + PREDICT_BLOCK]
            for start in range(0, max(len(inputs), 1), PREDICT_BLOCK)
        ]
        return np.concatenate(
            [_probabilities(self.network, self.params, block) for block in blocks]
        )


@jax.jit(static_argnames="network")
def _probabilities(network: Any, params: Any, inputs: jax.Array) -> jax.Array:
    return jax.nn.softmax(network.apply({"params": params}, inputs, train=False))


def _train_head(
    key: jax.Array, votes: Votes, queries: Queries, num_classes: int, config: NoisySGD
) -> tuple[Head, Any]:
    public = np.asarray(queries.features, np.float32)
    centre = public.mean(axis=0)
    scale = np.sqrt(public.var(axis=0).sum()) + np.float32(1e-12)
    network = _network(config.network, num_classes)
    # What overflows has a gradient that is not finite, and counts as 0.
    with np.errstate(over="ignore", invalid="ignore"):
        inputs = ((votes.inputs - centre) / scale).astype(np.float32)
    variables = network.init(votes.key, jnp.asarray(public[:1]), train=False)
    trained = dpsgd.fit(
        key,
        network,
        variables,
        inputs=inputs,
        labels=votes.labels,
        public=public,
        config=config,
        folder=config.folder,
        person=votes.person,
    )
    return Head(
        trained.variables["params"], centre, scale, network=network, encode=votes.encode
    ), trained.guarantee


def _train_network(
    key: jax.Array, votes: Votes, public: np.ndarray, num_classes: int, config: NoisySGD
) -> tuple[students.Student, Any]:
    name, learned = (
        pretrained(votes.encode) if config.network == "encoder" else (config.network, {})
    )
    student = students.Config(model=name)
    # Of the records' shape alone: under add-remove, whether there are any is private.
    shown = np.zeros((2, *votes.inputs.shape[1:]), votes.inputs.dtype)
    # Fail now if the images are too small for the network.
    students.checked(student, shown, np.eye(num_classes, dtype=np.float32)[:2], None)
    network = _network(name, num_classes)
    drawn = students.drawn(network, votes.key, shown[:1])
    # It replaces the pretrained head, which has other classes.
    head = clipped_gradients.head_of(drawn["params"])
    body = {
        kind: {name: layers[name] for name in drawn[kind] if name in layers and name != head}
        for kind, layers in learned.items()
    }
    variables = students.begun_at(body, drawn)
    trained = dpsgd.fit(
        key,
        network,
        variables,
        inputs=votes.inputs,
        labels=votes.labels,
        public=public,
        config=config,
        part=config.part,
        density=config.density,
        folder=config.folder,
        person=votes.person,
    )
    found = {"batch_stats": {}, **trained.variables}
    return students.Student(
        **found, config=student, num_classes=num_classes, image_shape=votes.inputs.shape[1:]
    ), trained.guarantee


def pretrained(encode: Encoder) -> tuple[str, dict[str, Any]]:
    """Return the network of a representation that learned it from public images.

    Returns:
      Name of the network among the students' models, and its variables.

    Raises:
      ValueError: If the representation has no network.
    """
    encode = inspect.unwrap(encode)
    if isinstance(encode, spectral.Encoder) and isinstance(encode.describe, self_trained.Features):
        student = encode.describe.student
        return student.config.model, {"params": student.params, "batch_stats": student.batch_stats}
    if isinstance(encode, simclr.Encoder | scan.Encoder):
        return encode.network.backbone, {
            kind: arrays["backbone"] for kind, arrays in encode.variables.items()
        }
    raise ValueError(
        "Expected a representation with a network for network=encoder, got "
        f"{type(encode).__module__}; take self_trained, simclr or scan."
    )


def _network(name: str, num_classes: int) -> Any:
    return importlib.import_module(f"{models.__name__}.{name}").Model(num_classes)


EXAMPLES = (
    NoisySGD(epsilon=20.0),
    NoisySGD(
        epsilon=30.0,
        network="mlp",
        relation="add-remove",
        sampling_prob=0.3,
    ),
)
