"""Data sets prepared by tensorflow-datasets on this machine, read without TensorFlow.

`tfds:<name>` reads `<data_dir>/<name>/<version>` in the ArrayRecord format. Only the preparation
from the source needs TensorFlow, once and on any machine:

    tfds build mnist --file_format=array_record --data_dir DIR
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rknn_jax._internal.cores import num_cores
from rknn_jax._internal.extras import MissingExtraError, install
from rknn_jax.data import _pool
from rknn_jax.types import Card, Task

DIGITS = tuple("0123456789")
BATCH = 1000  # records read at once


@dataclass(frozen=True)
class Layout:
    """Mapping from a data set's splits to a task.

    Attributes:
      card: Source, license, and classes.
      train: Splits of private records. Defaults to `train`.
      test: Split of public and test records, or only of test records if `num_public` is positive.
        Defaults to `test`.
      num_test: Number of test records in `test`; the others are public. Defaults to half of them.
      num_public: Number of public records drawn from `train` at random. Defaults to 0, which takes
        the public records from `test`.
      attribute: Name of the CelebA attribute that is the label. Defaults to none.
      size: Side in pixels to which images are resized. Defaults to no resizing.
    """

    card: Card
    train: tuple[str, ...] = ("train",)
    test: str = "test"
    num_test: int | None = None
    num_public: int = 0
    attribute: str | None = None
    size: int | None = None


LAYOUTS = {
    "mnist": Layout(Card("mnist", "LeCun, Cortes & Burges", "CC BY-SA 3.0", DIGITS)),
    "fashion_mnist": Layout(
        Card(
            "fashion_mnist",
            "Xiao, Rasul & Vollgraf, Zalando Research, 2017",
            "MIT",
            (
                "T-shirt/top",
                "Trouser",
                "Pullover",
                "Dress",
                "Coat",
                "Sandal",
                "Shirt",
                "Sneaker",
                "Bag",
                "Ankle boot",
            ),
        )
    ),
    "svhn_cropped": Layout(
        Card(
            "svhn_cropped",
            "Netzer et al., Reading Digits in Natural Images, 2011",
            "non-commercial use",
            DIGITS,
        ),
        train=("train", "extra"),
        num_test=1000,
    ),
    "cifar10": Layout(
        Card(
            "cifar10",
            "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
            "unstated by its author",
            (
                "airplane",
                "automobile",
                "bird",
                "cat",
                "deer",
                "dog",
                "frog",
                "horse",
                "ship",
                "truck",
            ),
        ),
        num_public=29_000,
    ),
    "celeb_a": Layout(
        Card(
            "celeb_a",
            "Liu et al., Deep Learning Face Attributes in the Wild, 2015",
            "non-commercial research",
            ("not Male", "Male"),
        ),
        attribute="Male",
        size=64,
    ),
}
"""Data sets of the papers."""


def load(seed: int, data_dir: Path | None = None, name: str = "mnist") -> Task:
    """Read a prepared data set.

    Args:
      seed: Seed of the split, 0 to 2^32 - 1.
      data_dir: Folder of the prepared data sets. Defaults to `~/tensorflow_datasets`.
      name: Name in `LAYOUTS`. Defaults to `mnist`.

    Raises:
      MissingExtraError: If tensorflow-datasets is missing, with the command that installs it.
      FileNotFoundError: If the data set is not prepared, with the command that prepares it.
      ValueError: For another name, or a data set that is not in ArrayRecord format.
    """
    if name not in LAYOUTS:
        raise ValueError(
            f"Expected dataset to be one of {', '.join(f'tfds:{known}' for known in LAYOUTS)}, "
            f"got dataset='tfds:{name}'."
        )
    layout = LAYOUTS[name]
    builder = _builder(name, Path(data_dir) if data_dir else Path.home() / "tensorflow_datasets")
    parts = [_read(builder.as_data_source(split), layout) for split in (*layout.train, layout.test)]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    num_train = len(images) - len(parts[-1][0])
    random = np.random.RandomState(seed)
    if layout.num_public:
        order = random.permutation(num_train)
        public, private = np.split(order, [layout.num_public])
        test = np.arange(num_train, len(images))
    else:
        order = num_train + random.permutation(len(images) - num_train)
        num_test = len(order) // 2 if layout.num_test is None else layout.num_test
        public, test = np.split(order, [len(order) - num_test])
        private = np.arange(num_train)
    return _pool.task(layout.card, images, labels, public=public, private=private, test=test)


def _builder(name: str, data_dir: Path) -> Any:
    prepared = sorted(
        (path.parent for path in (data_dir / name).glob("**/dataset_info.json")),
        key=lambda path: path.name,
    )
    if not prepared:
        raise FileNotFoundError(
            f"There is no prepared {name} in data_dir={data_dir}; prepare it with TensorFlow: "
            f"tfds build {name} --file_format=array_record --data_dir {data_dir}"
        )
    return _library().builder_from_directory(prepared[-1])


def _library() -> Any:
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise MissingExtraError(
            f"dataset=tfds:... needs tensorflow-datasets: {install('tfds')}."
        ) from error
    return tensorflow_datasets


def _read(source: Any, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Return one split's images, uint8 `[n, h, w, c]`, and labels."""
    with ThreadPoolExecutor(num_cores()) as pool:
        batches = (
            source.__getitems__(list(range(start, min(start + BATCH, len(source)))))
            for start in range(0, len(source), BATCH)
        )
        records = [
            record
            for batch in batches
            for record in pool.map(lambda record: _record(record, layout), batch)
        ]
    images, labels = zip(*records, strict=True)
    return np.stack(images), np.array(labels)


def _record(record: dict[str, Any], layout: Layout) -> tuple[np.ndarray, int]:
    image = np.asarray(record["image"], np.uint8)
    if layout.size is not None:
        image = np.asarray(
            Image.fromarray(image).resize((layout.size, layout.size), Image.Resampling.BILINEAR)
        )
    return image, int(
        record["attributes"][layout.attribute] if layout.attribute else record["label"]
    )


def prepare(name: str, data_dir: Path, splits: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write arrays as a prepared data set in ArrayRecord format, without TensorFlow.

    Args:
      name: Name of the data set, such as `mnist`.
      data_dir: Folder that gets `<name>/1.0.0`.
      splits: Records of equal structure by split: `{"image": uint8 [h, w, c], "label": int}`, or
        `attributes` of booleans for celeb_a.
    """
    tfds = _library()

    def feature(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {field: feature(inner) for field, inner in value.items()}
        value = np.asarray(value)
        return tfds.features.Tensor(shape=value.shape, dtype=value.dtype)

    first = next(iter(splits.values()))[0]
    members = {
        "__module__": __name__,
        "VERSION": tfds.core.Version("1.0.0"),
        "name": name,
        "_info": lambda self: self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(feature(first))
        ),
        "_split_generators": lambda self, manager: {
            split: self._generate_examples(records) for split, records in splits.items()
        },
        "_generate_examples": lambda self, records: enumerate(records),
    }
    with tfds.core.registered.skip_registration():
        builder = type("Arrays", (tfds.core.GeneratorBasedBuilder,), members)
    builder(data_dir=data_dir, file_format="array_record").download_and_prepare()


def _example(folder: Path, seed: int) -> Task:
    """Prepare 30 and 20 synthetic records as fashion_mnist and load them."""
    random = np.random.RandomState(0)
    made_up = [
        {"image": random.randint(0, 256, (6, 6, 1)).astype(np.uint8), "label": random.randint(10)}
        for _ in range(50)
    ]
    prepare("fashion_mnist", folder, {"train": made_up[:30], "test": made_up[30:]})
    return load(seed, folder, "fashion_mnist")


EXAMPLES = (_example,)
