"""Settings of an experiment and the run folder that it writes.

```
runs/<name>/
  config.json     every setting as it was resolved, versions, device
  result.json     accuracies, epsilon and its meaning, seconds; `not_covered_by_epsilon` apart
  privacy.json    the guarantee of the whole run and of every round
  privacy.html    the promise of that guarantee, in plain words
  metrics.jsonl   one line an epoch
  bought.npz      index and label of the public records whose labels were bought, if any
  labels.npz      label, query, confidence and probability of every public record
  queries.npz     the queries with their pictures, noisy votes and labels
  student/        one orbax checkpoint a member
  model/          the network of a labeler that trains one
  generator/      the generator of dpdfd
  training/       state from which a stopped run resumes
  report.html     the page to open
```
"""

import json
import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from rknn_jax._internal.disk import is_partial, locked, write_arrays, write_whole
from rknn_jax.algorithm import Round
from rknn_jax.labelers import Labeler
from rknn_jax.labelers.noisy_sgd import Head
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.labels import Labels
from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import Guarantee, Relation
from rknn_jax.privacy.statement import Statement, page
from rknn_jax.representations import Representation
from rknn_jax.representations.spectral import Config as Spectral
from rknn_jax.students import ensemble
from rknn_jax.students import fit as students
from rknn_jax.students.base import StudentSettings
from rknn_jax.students.supervised import Config as Supervised
from rknn_jax.types import Answers, Classifier, Queries, Records, Task

from .buy import Config as Buy

FILES = (
    *("config.json", "result.json", "privacy.json", "privacy.html", "labels.npz", "queries.npz"),
    *("bought.npz", "metrics.jsonl", "report.html"),
)
FOLDERS = ("student", "model", "generator")
"""Folders that a run writes into its own folder. With `FILES`, everything but `TRAINING`."""

TRAINING = "training"
"""Subfolder of a run in which a labeler saves the training of a network."""

CHOICE = "choice.json"
"""File in `TRAINING` with the choice of labels to buy, if the choice cost privacy."""

VERSIONS = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "scikit-learn", "dp-accounting")


@dataclass(frozen=True)
class Experiment:
    """Settings of a run: labels by private records, a student trained on them, the guarantee.

    Attributes:
      preset: Name of a file of train/presets, whose settings replace the defaults: mnist-fast,
        mnist, svhn, cifar10 or cifar10-end-to-end.
      dataset: Data set: digits, mnist, mnist:half, cifar10, cifar10:pooled, image_folder or
        tfds:<name>.
      data_dir: Folder of the data set; not needed for digits.
      epsilon: Privacy budget of the whole run, split evenly over the rounds; inf means no privacy.
      delta: Probability delta of the composed guarantee; 0 keeps a pure guarantee pure.
      labeler: Labeler and its settings. rknn is reverse k-NN labeling. For comparison, private_knn
        and pate label public records drawn at random, noisy_sgd trains a network on the private
        records, and dpdfd distills one from teachers by generated images. Its epsilon, delta,
        relation, smoothing and folder are those of the run.
      buy: Purchase of true labels of public records from an oracle, to fine-tune noisy_sgd's
        network on images. It replaces the student. The epsilon of near_private's choice comes on
        top of epsilon.
      queries: Number of queries a round. For rknn, defaults to a number that fits records, classes
        and epsilon. For records drawn at random, defaults to one for five public records, 1,000 at
        most. If a network is trained, defaults to all public records.
      rounds: Number of rounds of Algorithm 1.
      representation: Representation and its settings, learned on public data. spectral is the best
        for images in seconds, self_trained in a minute or two. Numbers of classes and of queries
        are those of the run.
      representation_dir: Folder in which simclr, scan and dti save their training and from which
        they resume.
      relation: Neighboring relation of the data sets.
      smoothing: Use of similar records: auto borrows votes from similar queries as far as the noise
        requires, and spreads labels between similar public records; none does neither.
      uncertain: Share of the public records that a later round's queries cover.
      student: Students and their settings, or None for the labels alone. `supervised` learns from
        the labels; mixmatch, uda and vat learn from public records without labels too.
      seed: Seed of the split, the clustering and the student.
      noise_seed: Seed of the simulated noise. Defaults to the operating system's entropy.
      out: Run folder. Defaults to a new one under runs/.
    """

    preset: str | None = None
    dataset: str = "digits"
    data_dir: Path | None = None
    epsilon: float = 0.1
    delta: float = 0.0
    labeler: Labeler[Any] = field(default_factory=ReverseKNN)
    buy: Buy = field(default_factory=Buy)
    queries: int | None = None
    rounds: int = 1
    representation: Representation = field(default_factory=Spectral)
    representation_dir: Path | None = None
    relation: Relation = "replace-one"
    smoothing: Literal["auto", "none"] = "auto"
    uncertain: float = 0.1
    student: StudentSettings | None = field(default_factory=Supervised)
    seed: int = 42
    noise_seed: int | None = None
    out: Path | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.epsilon) or self.epsilon <= 0:
            raise ValueError(
                f"Expected epsilon > 0, got epsilon={self.epsilon}; choose a positive privacy "
                "budget."
            )
        if not 0 <= self.delta < 1:
            raise ValueError(
                f"Expected 0 <= delta < 1, got delta={self.delta}; 1e-5 is a common choice, 0 is "
                "pure privacy."
            )
        for name, value in (("queries", self.queries), ("rounds", self.rounds)):
            if value is not None and value < 1:
                raise ValueError(f"Expected {name} >= 1, got {name}={value}; ask one or more.")
        if self.student is None and self.rounds > 1:
            raise ValueError(
                f"Expected a student with rounds={self.rounds}, got student=none; choose one, such "
                "as --student cnn, because a later round asks what it is unsure of."
            )
        self._check_parts()

    def _check_parts(self) -> None:
        """Let each part refuse what does not suit it."""
        self.representation.check()
        self.buy.check_labeler(self.labeler)
        labeler = self.labeler_of_round()
        if self.queries is not None or not self.representation.asks:
            labeler.check_queries(self.queries)
        if self.student is not None:
            self.student.check(labeler.clusters, self.representation.backbone)

    def labeler_of_round(self, folder: Path | None = None) -> Labeler[Any]:
        """Return the labeler with an even share of the budget.

        A network's training is saved in the run's folder.
        """
        return self.labeler.for_round(
            self.epsilon,
            self.delta,
            self.relation,
            self.smoothing,
            self.rounds,
            folder and folder / TRAINING,
        )


def make_folder(experiment: Experiment) -> Path:
    """Create the run's folder before any work is done.

    Raises:
      ValueError: If the folder cannot be created or written.
    """
    name = (
        f"{time.strftime('%Y%m%d-%H%M%S')}-{experiment.dataset.replace(':', '-')}"
        f"-eps{experiment.epsilon:g}"
    )
    folder = experiment.out or Path("runs") / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError as error:
        raise ValueError(
            f"Cannot make the run folder out={folder}: {error.strerror}; choose another with --out."
        ) from error
    if not writable:
        raise ValueError(f"The run folder out={folder} is not writable; choose another with --out.")
    return folder


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run's folder.

    The lock ends with the process, also on `kill -9`.

    Raises:
      ValueError: If another process runs there.
    """
    with locked(
        folder,
        f"Another process runs in out={folder}; wait for it, or choose another folder with --out.",
    ):
        yield


def begin(experiment: Experiment, folder: Path, *, again: bool) -> None:
    """Clear the files of a killed run of the same settings from the folder.

    The private training of a network resumes from its saved state.

    Args:
      experiment: Settings of the run.
      folder: Folder of the run, held by `held`.
      again: Whether an interrupted run that has kept its results starts again too.

    Raises:
      ValueError: If the folder holds a finished run, a run of other settings, or other files.
    """
    if (folder / "config.json").exists():
        kept = (folder / "result.json").exists() and not (folder / TRAINING).exists() and not again
        occupied = kept or find_result(replace(experiment, out=folder)) is not None
    else:
        # Without config.json, such files belong to something else.
        occupied = any((folder / name).exists() for name in (*FILES, *FOLDERS, TRAINING))
    if occupied:
        raise ValueError(
            f"The run folder out={folder} already holds a run; choose another with --out, or "
            "remove it."
        )
    clear_partial_run(folder)


@contextmanager
def opened(experiment: Experiment, *, again: bool) -> Iterator[Path]:
    """Make the run's folder, keep other processes out, and clear what a killed run left there.

    A run that fails before it has written anything leaves no folder.

    Args:
      experiment: Settings of the run.
      again: Whether an interrupted run that has kept its results starts again too.

    Yields:
      The folder.
    """
    folder = make_folder(experiment)
    with held(folder):
        begin(experiment, folder, again=again)
        try:
            yield folder
        except BaseException:
            if not any(folder.iterdir()):
                folder.rmdir()
            raise


def find_result(experiment: Experiment) -> dict[str, Any] | None:
    """Return the result in the experiment's folder, or None if it is not finished. Changes nothing.

    Raises:
      ValueError: If the folder holds a run of other settings, files that are no run, or a result
        that cannot be read.
    """
    folder = experiment.out
    if (
        folder is None
        or not folder.exists()
        or not any(not _is_temporary(path) for path in folder.iterdir())
    ):
        return None
    if not (folder / "config.json").exists():
        raise ValueError(
            f"Expected a run or nothing in out={folder}, got other files; choose another folder."
        )
    config = _read_settings(folder / "config.json")
    path = folder / "result.json"
    asked = json.loads(json.dumps(settings(experiment), default=_plain))
    # `buy` may change until the labels to buy have been chosen.
    open_to_change = (
        {"out"} if path.exists() or (folder / TRAINING / CHOICE).exists() else {"out", "buy"}
    )
    differ = [
        name
        for name, value in asked.items()
        if name not in open_to_change and config.get(name) != value
    ]
    if other := [word for name in differ for word in _differing(name, config, asked)]:
        raise ValueError(
            f"The folder out={folder} holds a run of other settings: {', '.join(other)}; choose "
            "another, or remove it."
        )
    result = _read_settings(path) if path.exists() else {"interrupted": True}
    if "interrupted" not in result:
        raise ValueError(
            f"Expected the result of a run in {path}, got something else; remove it, and the run "
            "begins again."
        )
    return None if result["interrupted"] else result


def _differing(name: str, config: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """Return what a setting is and what it was asked to be, by its own settings if it has some."""
    was = config.get(name)
    wanted = asked[name]
    if not isinstance(was, dict) or not isinstance(wanted, dict):
        return [f"{name}={was} for {wanted}"]
    inner = [key for key in wanted if was.get(key) != wanted[key]]
    part = name.removesuffix("_settings")
    return [f"{part}.{word}" for key in inner for word in _differing(key, was, wanted)]


def clear_partial_run(folder: Path) -> None:
    """Remove everything that a run writes, and nothing else.

    A saved training of a network is kept, with its config.json.
    """
    for path in folder.iterdir():
        if path.name == "config.json" and (folder / TRAINING).exists():
            continue
        if path.is_dir() and path.name in FOLDERS:
            shutil.rmtree(path)
        elif path.is_file() and (path.name in FILES or _is_temporary(path)):
            path.unlink()


def _is_temporary(path: Path) -> bool:
    """Return whether a killed write of one of our files left this file."""
    before = path.name.removesuffix(".partial")  # name in earlier versions
    return path.name != before in FILES or any(is_partial(path.name, name) for name in FILES)


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); choose another folder with --out, or remove this one."
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{path} is damaged (no JSON object); choose another folder with --out, or remove "
            "this one."
        )
    return found


def choice_of(
    folder: Path, select: Callable[[], tuple[Queries, Guarantee | None]]
) -> tuple[np.ndarray, Guarantee | None]:
    """Return the public records whose labels are bought, int `[num_bought]`, and their cost.

    A choice with noise is saved in the folder before its use. After that `buy` may not change
    there, because another choice would cost anew.

    Args:
      folder: Folder of the run.
      select: Choice of the records and its guarantee, None if the choice costs no privacy.

    Raises:
      ValueError: If the saved choice cannot be read.
    """
    path = folder / TRAINING / CHOICE
    if not path.exists():
        queries, chosen = select()
        if chosen is None:
            return queries.index, None
        path.parent.mkdir(exist_ok=True)
        write_json(path, {"index": queries.index, "guarantee": asdict(chosen)})
    try:
        saved = json.loads(path.read_text())
        return np.asarray(saved["index"], np.int32), Guarantee.of(saved["guarantee"])
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ValueError(
            f"Expected the choice of labels to buy in {path}, which was paid for, got something "
            f"else ({error}); restore the file from a "
            "copy, or choose another folder with --out."
        ) from error


def environment() -> dict[str, Any]:
    """Return versions and device, which every result records."""
    return {
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in VERSIONS},
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, in full or not at all."""
    write_whole(path, (json.dumps(value, indent=2, default=_plain) + "\n").encode())


def append_jsonl(path: Path, value: dict[str, Any]) -> None:
    """Append one line of JSON."""
    with path.open("a") as file:
        file.write(json.dumps(value, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | jax.Array):
        return np.asarray(value).tolist()
    if isinstance(value, np.generic):
        return value.item()
    return str(value)


def settings(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment's settings, ready for JSON.

    Labeler, representation and student are named, and have their settings beside them. A mechanism
    is spelled out, so that a later default does not change what the settings mean.
    """
    labeler = experiment.labeler
    representation = experiment.representation
    student = experiment.student
    parts: dict[str, Any] = {
        "labeler": labeler.name,
        "labeler_settings": {
            name: value for name, value in asdict(labeler).items() if name not in labeler.given
        },
        "trust": labeler.trust,
        "mechanism": labeler.noise,
        "representation": representation.name,
        "representation_settings": {
            name: value
            for name, value in asdict(representation).items()
            if name not in representation.given
        },
        "student": "none" if student is None else student.student.model,
        "semi_supervised": "none" if student is None else student.semi_supervised,
        "student_settings": {} if student is None else student.plain(),
    }
    own = {
        one.name: getattr(experiment, one.name)
        for one in fields(experiment)
        if one.name not in parts
    }
    told = {name: str(value) if isinstance(value, Path) else value for name, value in own.items()}
    if isinstance(labeler, ReverseKNN):
        parts["labeler_settings"] |= {"mechanism": labeler.noise}
    return told | {"buy": asdict(experiment.buy)} | parts


def finish(
    folder: Path,
    experiment: Experiment,
    task: Task,
    found: Sequence[Round],
    student: ensemble.Ensemble | None,
    chosen: Guarantee | None,
    benchmark: dict[str, Any],
    seconds: float,
) -> Guarantee:
    """Write everything but the report, and return the guarantee of the whole run.

    Args:
      folder: Folder of the run.
      experiment: Settings of the run.
      task: Data of the run.
      found: Results of every round.
      student: Student of the last round, or None if none was wanted or none finished an epoch.
      chosen: Guarantee of the choice of labels to buy, or None if the choice cost nothing.
      benchmark: Result of `truth.not_covered`.
      seconds: Duration of the run in seconds.
    """
    labels = found[-1].labels
    rounds = [(one.queries, one.answers) for one in found]
    parts = [answers.guarantee for _, answers in rounds] + ([chosen] if chosen else [])
    guarantee = accounting.compose(parts, experiment.delta)
    predicted = None if student is None else student.predict_proba(task.test.images).argmax(axis=1)
    right = labels.known & (labels.hard == task.public.true_labels)
    model = rounds[-1][1].model
    wanted = experiment.student is not None
    result = {
        "label_accuracy": float(right.mean()),
        "test_accuracy": None
        if predicted is None
        else float(np.mean(predicted == task.test.labels)),
        "model_test_accuracy": None if model is None else _accuracy(model, task.test),
        "labels_bought": experiment.buy.labels,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "relation": guarantee.relation,
        "trust": guarantee.trust,
        "seed": experiment.seed,
        "seconds": seconds,
        "interrupted": wanted if student is None else student.interrupted,
        "num_public": len(task.public.images),
        "num_private": len(task.private.labels),
        "num_test": len(task.test.labels),
        "not_covered_by_epsilon": benchmark,
    }
    events = (
        [event for part in parts for event in part.events]
        if all(part.events or not part.delta for part in parts)
        else []
    )
    accountants = (
        accounting.epsilons(events, experiment.delta)
        if events and guarantee.epsilon < math.inf
        else {}
    )
    privacy: dict[str, Any] = {
        "whole": guarantee.asdict(),
        "rounds": [answers.guarantee.asdict() for _, answers in rounds],
        "accountants": accountants or {guarantee.accountant: guarantee.epsilon},
        "choice_of_labels_to_buy": chosen and chosen.asdict(),
        "covers": [
            "the noisy counts" if model is None else "the network",
            "the labels of the public records",
            "the student",
        ],
        "does_not_cover": [
            f"the number of private {guarantee.unit}s, which "
            + (
                "a benchmark's result.json tells"
                if guarantee.relation == "add-remove"
                else "replace-one takes as public"
            ),
            "settings chosen by looking at private data or at accuracies, such as this page's",
            "everything under not_covered_by_epsilon in result.json",
        ],
    }
    rows = {
        "label": np.where(labels.known, labels.hard, -1),
        "query": labels.query,
        "confidence": labels.confidence,
        "probability": labels.probabilities,
        "true_label": task.public.true_labels,
    }
    write_arrays(folder / "labels.npz", rows)
    write_arrays(folder / "queries.npz", _queries(task, labels, rounds))
    if isinstance(model, students.Student):
        students.save(model, folder / "model")
    elif isinstance(model, Head):
        model.save(folder / "model")
    for path in (folder / TRAINING).glob("*/generator"):
        shutil.copytree(path, folder / "generator")
    if student is not None:
        ensemble.save(student, folder / "student")
    write_whole(
        folder / "privacy.html", page(_statement(experiment, task, guarantee, privacy)).encode()
    )
    write_json(folder / "privacy.json", privacy)
    write_json(folder / "result.json", result)
    if not result["interrupted"]:
        shutil.rmtree(folder / TRAINING, ignore_errors=True)  # nothing is left to resume
    return guarantee


def _statement(
    experiment: Experiment, task: Task, guarantee: Guarantee, privacy: dict[str, Any]
) -> Statement:
    about = environment()
    records = (
        f"{len(task.private.labels):,} of its"
        if guarantee.relation == "replace-one"
        else "Some of its"
    )
    return Statement(
        guarantee,
        f"This is an experiment on the data set {experiment.dataset}. {records} records play the "
        "part of private ones, and whoever runs it "
        "holds all of them.",
        tuple(privacy["covers"]),
        tuple(privacy["does_not_cover"]),
        experiment.labeler.noise,
        "No ledger keeps account of experiments: every one of them sees the same records again.",
        about["date"],
        details={
            "data set": experiment.dataset,
            "labeler": experiment.labeler.name,
            "rounds": experiment.rounds,
        },
        versions={"rknn-jax": metadata.version("rknn-jax")} | about["versions"],
    )


def _accuracy(model: Classifier, records: Records) -> float:
    return float(np.mean(model.predict_proba(records.images).argmax(axis=1) == records.labels))


def _queries(
    task: Task, labels: Labels, rounds: Sequence[tuple[Queries, Answers]]
) -> dict[str, np.ndarray]:
    """Return all rounds' queries with their pictures, votes and true labels.

    The true label of a query is the most frequent one of its records, for a benchmark.
    """
    index = np.concatenate([queries.index for queries, _ in rounds])
    counts = np.zeros((len(index), task.card.num_classes), np.int64)
    asked = labels.query >= 0
    np.add.at(counts, (labels.query[asked], task.public.true_labels[asked]), 1)
    joined = {
        name: np.concatenate([getattr(answers, field) for _, answers in rounds])
        for name, field in (
            ("label", "labels"),
            ("noisy_counts", "counts"),
            ("stddev", "stddev"),
            ("probability", "probabilities"),
        )
    }
    own = task.public.true_labels[index]
    return joined | {
        "image": task.public.images[index],
        "public_index": index,
        "round": np.repeat(np.arange(len(rounds)), [len(queries.index) for queries, _ in rounds]),
        "size": counts.sum(axis=1),
        "true_label": np.where(counts.sum(axis=1) > 0, counts.argmax(axis=1), own).astype(np.int32),
    }
