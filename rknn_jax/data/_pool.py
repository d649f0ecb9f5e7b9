"""Disjoint parts of a task, taken from one pool of labeled images."""

from pathlib import Path

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.types import Card, Public, Records, Task


def task(
    card: Card,
    images: np.ndarray,
    labels: np.ndarray,
    public: np.ndarray,
    private: np.ndarray,
    test: np.ndarray,
    clients: np.ndarray | None = None,
) -> Task:
    """Return the task whose parts are the given positions of the pool.

    Args:
      card: Card of the data set.
      images: Images of the pool, uint8 `[pool, h, w, c]`.
      labels: Integer labels `[pool]` in `[0, card.num_classes)`.
      public: Positions of the public part, which is unlabeled for a labeler.
      private: Positions of the private part.
      test: Positions of the test part.
      clients: Owners of the records, integers `[pool]`. Defaults to none.

    Raises:
      ValueError: If labels are out of range or do not match the images, or if a part is empty or
        shares a record with another part.
    """
    labels = np.asarray(labels)
    if len(labels) != len(images):
        raise ValueError(
            f"{card.name}: expected one label an image, got {len(labels)} labels for "
            f"{len(images)} images."
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < card.num_classes:
        raise ValueError(
            f"{card.name}: expected labels in [0, {card.num_classes}), got values from "
            f"{labels.min()} to {labels.max()}; "
            "are these the right label files?"
        )
    parts = {"public": public, "private": private, "test": test}
    for name, part in parts.items():
        if len(part) == 0:
            raise ValueError(
                f"{card.name}: the {name} part is empty; choose other sizes for the parts."
            )
    if len(np.unique(np.concatenate(list(parts.values())))) != sum(map(len, parts.values())):
        raise ValueError(f"{card.name}: public, private and test parts share records.")
    labels = labels.astype(np.int32)

    def records(index: np.ndarray) -> Records:
        return Records(
            np.ascontiguousarray(images[index]),
            labels[index],
            None if clients is None else clients[index].astype(np.int32),
        )

    return Task(
        card,
        Public(np.ascontiguousarray(images[public]), labels[public]),
        records(private),
        test=records(test),
        public_index=public,
        private_index=private,
        test_index=test,
    )


def folder(data_dir: Path | None, name: str) -> Path:
    """Return the data set's folder.

    Raises ValueError if `data_dir` is None, and FileNotFoundError if the folder does not exist.
    """
    if data_dir is None:
        raise ValueError(
            f"Expected data_dir for dataset={name}, got none; pass {option('data_dir')} with the "
            "folder of its files."
        )
    if not Path(data_dir).is_dir():
        raise FileNotFoundError(
            f"There is no folder data_dir={data_dir}; pass {option('data_dir')} with the folder of "
            f"{name}'s files."
        )
    return Path(data_dir)
