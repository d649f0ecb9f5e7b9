"""Run folder as the report reads it: `read` checks every file."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rknn_jax._internal.disk import read_arrays

REQUIRED = {
    "config.json": ("dataset",),
    "result.json": ("epsilon", "delta", "relation"),
    "privacy.json": ("whole", "rounds", "accountants", "covers", "does_not_cover"),
    "queries.npz": ("image", "public_index", "round", "label", "noisy_counts", "stddev", "size"),
    "labels.npz": ("label", "query"),
}
"""Entries that a run folder must hold. True labels and all other entries may be missing."""


@dataclass(frozen=True)
class Run:
    """Content of a run folder.

    Attributes:
      config: Content of config.json.
      result: Content of result.json.
      privacy: Content of privacy.json.
      metrics: One entry an epoch; empty if none finished.
      queries: Arrays of queries.npz.
      labels: Arrays of labels.npz.
      classes: Name of each class.
      declined: Number of queries that were not answered.
    """

    config: dict[str, Any]
    result: dict[str, Any]
    privacy: dict[str, Any]
    metrics: list[dict[str, Any]]
    queries: dict[str, np.ndarray]
    labels: dict[str, np.ndarray]
    classes: tuple[str, ...]
    declined: int = 0

    @property
    def wrong(self) -> np.ndarray:
        """Mask of wrong labels, bool `[num_queries]`; False if the true label is not known."""
        labels = self.queries["label"]
        mask: np.ndarray = labels != self.queries.get("true_label", labels)
        return mask

    @property
    def lead(self) -> np.ndarray:
        """Noisy counts by which each label leads its strongest rival, `[num_queries]`.

        A lead is negative if smoothing overruled the counts.
        """
        own, rival = _own_and_rival(self)
        counts = self.queries["noisy_counts"]
        row = np.arange(len(own))
        lead: np.ndarray = counts[row, own] - counts[row, rival]
        return lead

    @property
    def lead_stddev(self) -> np.ndarray:
        """Standard deviation of the noise in `lead`, `[num_queries]`."""
        own, rival = _own_and_rival(self)
        stddev = self.queries["stddev"]
        row = np.arange(len(own))
        of_lead: np.ndarray = np.hypot(stddev[row, own], stddev[row, rival])
        return of_lead

    @property
    def counts_released(self) -> bool:
        """True if there are counts to show.

        A mechanism that releases labels only has one-hot rows instead.
        """
        counts = self.queries["noisy_counts"]
        return not (
            self.queries["stddev"].max() == 0
            and np.all(counts.max(axis=1) == 1)
            and np.all(np.abs(counts).sum(axis=1) == 1)
        )

    @property
    def benchmark(self) -> str:
        """Name of the data set, by which papers' numbers are found."""
        return str(self.config["dataset"]).removeprefix("tfds:")

    @property
    def members(self) -> int:
        """Number of students whose probabilities are averaged."""
        settings = self.config.get("student_settings")
        return int(settings.get("members", 1)) if isinstance(settings, dict) else 1

    @property
    def label_accuracy(self) -> float | None:
        """Accuracy of the labels, or None if it is not known."""
        return self.result.get("label_accuracy")

    @property
    def student_accuracy(self) -> float | None:
        """Accuracy of the student on the test set, or None if it is not known."""
        return self.result.get("test_accuracy")

    @property
    def sweep(self) -> list[dict[str, float]]:
        """Accuracy of the labels at other epsilons, which no epsilon covers; empty if not known."""
        return (self.result.get("not_covered_by_epsilon") or {}).get(
            "label_accuracy_by_epsilon"
        ) or []

    @property
    def label_accuracy_without_noise(self) -> float | None:
        """Accuracy of the labels without noise, which no epsilon covers; None if not known."""
        return (self.result.get("not_covered_by_epsilon") or {}).get("nonprivate_label_accuracy")


def _own_and_rival(run: Run) -> tuple[np.ndarray, np.ndarray]:
    own = run.queries["label"]
    others = run.queries["noisy_counts"].astype(np.float64)
    others[np.arange(len(own)), own] = -np.inf
    return own, others.argmax(axis=1)


def read(folder: Path) -> Run:
    """Read a run folder.

    Raises:
      ValueError: If a file is missing or cannot be read; the message names it.
    """
    config, result, privacy = (
        _read_json(folder / name) for name in ("config.json", "result.json", "privacy.json")
    )
    asked = _read_arrays(folder / "queries.npz")
    labels = _read_arrays(folder / "labels.npz")
    _check_queries(folder / "queries.npz", asked)
    asked["number"] = np.arange(len(asked["label"]))
    # Declined queries have neither label nor counts.
    queries = {name: array[asked["label"] >= 0] for name, array in asked.items()}
    num_classes = queries["noisy_counts"].shape[1]
    _check_classes(folder / "queries.npz", asked, -1, num_classes)
    _check_classes(folder / "labels.npz", labels, -1, num_classes)
    named = config.get("classes") or range(num_classes)
    if not isinstance(named, list | range):
        raise ValueError(f"Expected a list of classes in {folder / 'config.json'}, got {named!r}.")
    classes = tuple(map(str, named))
    if len(classes) != num_classes:
        raise ValueError(
            f"Expected {num_classes} classes in {folder / 'config.json'}, as in queries.npz, got "
            f"{len(classes)}."
        )
    declined = len(asked["label"]) - len(queries["label"])
    return Run(
        config,
        result,
        privacy,
        metrics=_read_lines(folder / "metrics.jsonl"),
        queries=queries,
        labels=labels,
        classes=classes,
        declined=declined,
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    return _complete(path, value if isinstance(value, dict) else {})


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        arrays = read_arrays(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    _complete(path, arrays)
    shapes = {name: array.shape for name, array in arrays.items()}
    if len({shape[:1] for shape in shapes.values()}) != 1 or len(shapes["label"]) != 1:
        raise ValueError(
            f"Expected arrays of one length, and label of one dimension, in {path}, got {shapes}."
        )
    return arrays


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return one dict a line. A last line without its end is skipped, as its write was cut off."""
    if not path.exists():
        return []
    try:
        lines = [
            json.loads(line)
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True)
            if line.endswith("\n")
        ]
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if not all(isinstance(line, dict) for line in lines):
        raise ValueError(f"Expected one JSON object a line in {path}.")
    return lines


def _complete(path: Path, value: dict[str, Any]) -> dict[str, Any]:
    if missing := [name for name in REQUIRED[path.name] if name not in value]:
        raise ValueError(
            f"Cannot read {path}: it lacks {', '.join(missing)}; pass a folder that a whole run "
            "of train.distill wrote."
        )
    return value


def _unreadable(path: Path, error: Exception) -> ValueError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return ValueError(
        f"Cannot read {path}: {why}; pass a folder that a whole run of train.distill wrote."
    )


def _check_queries(path: Path, queries: dict[str, np.ndarray]) -> None:
    counts = queries["noisy_counts"]
    image = queries["image"]
    if (
        counts.ndim != 2
        or counts.shape[1] < 2
        or not len(counts)
        or queries["stddev"].shape != counts.shape
    ):
        raise ValueError(
            f"Expected noisy_counts and stddev [S, C] in {path}, got {counts.shape} and "
            f"{queries['stddev'].shape}."
        )
    if image.ndim != 4 or image.dtype != np.uint8:
        raise ValueError(
            f"Expected image uint8 [S, height, width, channels] in {path}, got {image.dtype} "
            f"{image.shape}."
        )


def _check_classes(
    path: Path, arrays: dict[str, np.ndarray], lowest: int, num_classes: int
) -> None:
    for name in {"label", "true_label"} & arrays.keys():
        array = arrays[name]
        if array.dtype.kind != "i" or (
            len(array) and not lowest <= array.min() <= array.max() < num_classes
        ):
            raise ValueError(
                f"Expected {name} in {path} to be integers in [{lowest}, {num_classes}), got "
                f"{array.dtype} {array}."
            )
