"""Label public data with private records at epsilon, and train a student on the labels.

    python -m train.distill --dataset digits --epsilon 1
    python -m train.distill --dataset mnist --data-dir DIR --epsilon 0.1
    python -m train.distill --preset mnist-fast --data-dir DIR
    python -m train.distill --preset mnist-fast --data-dir DIR --labeler noisy_sgd --delta 1e-5

The run folder also gets the privacy guarantee and a report. `rknn_jax.algorithm` is Algorithm 1.
This file adds the run folder, the messages, and the accuracies that only a benchmark can know.
Everything is a simulation on benchmark data. `rknn label` releases.
"""

import argparse
import logging
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro
from rich.console import Console

from rknn_jax import bsvs, data, labelers, representations
from rknn_jax._internal import compilation
from rknn_jax._internal.disk import write_arrays
from rknn_jax._internal.keys import Stage, fresh_noise_key, stage_key
from rknn_jax.algorithm import Keys, Round, Student
from rknn_jax.algorithm import distill as algorithm_1
from rknn_jax.labelers import Labeler, rknn
from rknn_jax.labels import Labels
from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.queries import kmeans, prototypes, sample, uncertainty
from rknn_jax.representations import spectral
from rknn_jax.students import ensemble, mixmatch, uda, vat
from rknn_jax.students import fit as students
from rknn_jax.types import Array, Encoder, Queries, Task
from train import buy, presets, report, truth
from train import experiment as runs
from train.experiment import Experiment

console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)

OF_REPRESENTATION = (
    "dataset",
    "data_dir",
    "seed",
    "representation",
    "self_trained",
    "simclr",
    "scan",
    "dti",
    "representation_dir",
)
"""Settings that `prepare` depends on.

It also depends on `queries` for a representation of `OWN_QUERIES`.
"""

SAMPLED_QUERIES = 1000
RECORDS_PER_SAMPLED_QUERY = 5
"""Greatest number of queries of a round, and public records for each, if every query costs.

The values are those of Private-kNN on MNIST.
"""

OWN_QUERIES = ("scan", "dti")
"""Representations whose clusters or prototypes are the queries of the first round."""


class Prepared(NamedTuple):
    """Inputs of a run that do not depend on the votes.

    Attributes:
      task: Data of the run.
      encode: Representation that was learned from the public images.
      network: Network of the representation, or None.
    """

    task: Task
    encode: Encoder
    network: Any


def main(
    experiment: Experiment,
    prepared: Callable[[Experiment], Prepared] | None = None,
    *,
    benchmark: bool = True,
    again: bool = False,
) -> Path:
    """Run Algorithm 1 in a folder of its own and return the folder.

    Args:
      experiment: Settings of the run.
      prepared: Replacement of `prepare`, which may share its results among experiments. Defaults to
        none.
      benchmark: Whether to measure accuracies that only a benchmark can know, and to write the
        report. Labels and guarantee do not depend on it. Defaults to True.
      again: Whether a run that was interrupted begins again in its folder. Defaults to False, which
        keeps its results.

    Raises:
      ValueError: If settings or data cannot be used.
    """
    folder = runs.make_folder(experiment)
    with runs.held(folder):
        runs.begin(experiment, folder, again=again)
        distill(experiment, folder, prepared, benchmark=benchmark)
    return folder


def distill(
    experiment: Experiment,
    folder: Path,
    prepared: Callable[[Experiment], Prepared] | None = None,
    *,
    benchmark: bool = True,
) -> None:
    """Run Algorithm 1 in a folder that is held by `runs.held`, with the arguments of `main`."""
    started = time.perf_counter()
    try:
        task, encode, network = (prepared or prepare)(experiment)
        buy.check(task, experiment.buy, experiment.delta)
    except BaseException:
        if not any(folder.iterdir()):
            folder.rmdir()  # leave no empty folder of a failed run
        raise
    keys = keys_of(experiment)
    labeler = labeler_of(experiment, folder)
    num_queries = experiment.queries or default_num_queries(task, labeler, experiment)
    resolved = resolved_settings(experiment, labeler, num_queries, task)
    runs.write_json(folder / "config.json", resolved)

    def ask(key: jax.Array, features: Array, labels: Labels, student: Student | None) -> Queries:
        return select_queries(key, task, features, num_queries, labels, student, experiment)

    def fit(key: jax.Array, step: int, labels: Labels) -> ensemble.Ensemble | None:
        return fit_student(key, task, labels, experiment, folder, step, network)

    without_student = experiment.student == "none" or experiment.buy.labels
    smoothing = experiment.smoothing
    rounds: list[Round] = []
    for one in algorithm_1(
        labeler,
        ask,
        encode,
        None if without_student else fit,
        task,
        keys,
        experiment.rounds,
        smoothing,
    ):
        rounds.append(one)
        console.print(
            f"round {len(rounds)}: {one.answers.answered.sum()} of {num_queries} queries "
            f"answered, {truth.label_accuracy(task, one.labels):.2%} of the public labels right"
        )
    noise_key = stage_key(keys.noise, Stage.BENCHMARK)
    not_covered = truth.not_covered(noise_key, task, labeler, rounds[0]) if benchmark else {}
    student, chosen = rounds[-1].student, None
    if experiment.buy.labels:
        noise_key = stage_key(keys.noise, Stage.NOISE, experiment.rounds)
        model = rounds[-1].answers.model
        tune_key = stage_key(keys.public, Stage.STUDENT)
        student, chosen = buy_labels(tune_key, noise_key, task, model, experiment, folder)
    guarantees = [one.answers.guarantee for one in rounds] + ([chosen] if chosen else [])
    guarantee = accounting.compose(guarantees, experiment.delta)
    seconds = time.perf_counter() - started
    assert student is None or isinstance(student, ensemble.Ensemble)
    labels = rounds[-1].labels
    asked = [(one.queries, one.answers) for one in rounds]
    runs.finish(
        folder, experiment, task, labels, asked, student, guarantee, chosen, not_covered, seconds
    )
    console.print(f"\n{guarantee}\n")
    if benchmark:
        console.print(f"The report: {report.write(folder)}")


def keys_of(experiment: Experiment) -> Keys:
    """Return the keys of the run.

    The public key is that of its seed. The noise key has the operating system's entropy, or the
    noise seed.
    """
    if experiment.noise_seed is None:
        noise = fresh_noise_key()
    else:
        noise = stage_key(jax.random.key(experiment.noise_seed), Stage.NOISE, experiment.seed)
    return Keys(jax.random.key(experiment.seed), noise)


def resolved_settings(
    experiment: Experiment, labeler: Labeler[Any], num_queries: int, task: Task
) -> dict[str, Any]:
    """Return the content of `config.json`: resolved settings, versions and device."""
    student = None if experiment.student == "none" else asdict(student_config(experiment))
    resolved = {
        "mechanism": experiment.private_step,
        "resolved_labeler": asdict(labeler),  # type: ignore[call-overload]
        "resolved_queries": num_queries,
        "resolved_student": student,
        "classes": task.card.classes,
    }
    return runs.settings(experiment) | resolved | runs.environment()


def run(
    experiment: Experiment, prepared: Callable[[Experiment], Prepared] | None = None
) -> dict[str, Any]:
    """Return the experiment's result, from its folder if it is finished, otherwise from `main`.

    Raises:
      KeyboardInterrupt: If the run was stopped, even during the student's training, whose state
        `main` keeps.
      ValueError: If the folder is that of another run, and for the errors of `main`.
    """
    result = runs.find_result(experiment)
    if result is None:
        main(experiment, prepared, again=True)
        result = runs.find_result(experiment)
    if result is None:
        raise KeyboardInterrupt
    return result


def prepare(experiment: Experiment) -> Prepared:
    """Load the data and fit the representation."""
    task = data.load(experiment.dataset, experiment.seed, experiment.data_dir)
    console.print(
        f"{task.card.name}: {len(task.public.images):,} public, {len(task.private.labels):,} "
        f"private, {len(task.test.labels):,} test"
    )
    check(task, experiment)
    console.print(f"learning {experiment.representation} from the public images ...")
    encode = fit_representation(
        stage_key(jax.random.key(experiment.seed), Stage.ENCODER), task, experiment
    )
    return Prepared(
        task,
        encode,
        network_of(encode) if experiment.representation in ("simclr", "scan") else None,
    )


def check(task: Task, experiment: Experiment) -> None:
    """Check that there are enough records, before a representation is learned for hours.

    Raises:
      ValueError: If queries exceed the public records, or teachers the private ones.
    """
    num_public = len(task.public.images)
    num_private = len(task.private.labels)
    if experiment.queries is not None and experiment.queries > num_public:
        raise ValueError(
            f"Expected queries <= number of public records, got num_queries={experiment.queries} "
            f"with {num_public} public records; "
            "ask fewer queries or bring more public records."
        )
    teachers = experiment.pate
    shared_out = (
        experiment.labeler == "pate"
        and teachers.parts == "random"
        and experiment.relation == "replace-one"
    )
    if shared_out and teachers.num_teachers > num_private:
        raise ValueError(
            f"Expected a record for every teacher, got num_teachers={teachers.num_teachers} with "
            f"{num_private} private records, which "
            f"leaves {teachers.num_teachers - num_private} without; ask fewer teachers."
        )


def labeler_of(experiment: Experiment, folder: Path | None = None) -> Labeler[Any]:
    """Return the labeler of one round. A network's training is saved in the run's folder."""
    if experiment.labeler == "rknn":
        return reverse_knn(experiment)
    own = getattr(experiment, experiment.labeler, None)
    labeler: Any = own or labelers.named(experiment.labeler)()
    epsilon, delta = budget_of_round(experiment)
    saved = {"folder": folder and folder / runs.TRAINING} if experiment.trains else {}
    return replace(labeler, epsilon=epsilon, delta=delta, relation=experiment.relation, **saved)


def reverse_knn(experiment: Experiment) -> rknn.ReverseKNN:
    """Return reverse k-NN labeling with the settings of one round of an experiment."""
    epsilon, delta = budget_of_round(experiment)
    return rknn.ReverseKNN(
        epsilon=epsilon,
        delta=delta or rknn.ReverseKNN.delta,
        num_neighbors=experiment.neighbors,
        mechanism=experiment.private_step,
        trust=experiment.trust,
        amplification=experiment.amplification,
        relation=experiment.relation,
        smoothing=experiment.smoothing,
        decode=experiment.decode,
    )


def budget_of_round(experiment: Experiment) -> tuple[float, float]:
    """Return an even share of epsilon and of delta, which is rounded down.

    However the rounds are composed, they cost no more than the whole.
    """
    epsilon = experiment.epsilon / experiment.rounds
    delta = experiment.delta * (1 - 1e-12) / experiment.rounds
    return epsilon, delta


def default_num_queries(task: Task, config: Any, experiment: Experiment) -> int:
    """Return the number of queries that n, epsilon and k support.

    n is public under replace-one, and always public for a benchmark.
    """
    num_records = len(task.private.labels)
    num_classes = task.card.num_classes
    if experiment.trains:
        return len(task.public.images)
    if experiment.labeler != "rknn":
        return max(
            1,
            min(
                SAMPLED_QUERIES,
                len(task.public.images) // (RECORDS_PER_SAMPLED_QUERY * experiment.rounds),
            ),
        )
    if experiment.representation in OWN_QUERIES:
        return own_queries(task, experiment)
    shared = config.smoothing == "auto" and config.mechanism != "permute_and_flip"
    scale = 2 * config.num_neighbors / config.epsilon
    # Without a curator, use Laplace noise of the same spread. The spread hardly depends on the
    # number of queries.
    if config.trust != "central":
        spread = rknn.mechanism(num_classes, num_classes, num_records, config).stddev(
            np.zeros((num_classes, num_classes)), num_records
        )
        scale = float(spread[0, 0]) / math.sqrt(2)
    suggested = bsvs.suggested_num_queries(
        num_records, num_classes, scale, config.num_neighbors, shared=shared
    )
    return min(suggested, len(task.public.images))


def own_queries(task: Task, experiment: Experiment) -> int:
    """Return the number of clusters or prototypes of a representation of `OWN_QUERIES`.

    It is the number of queries of the experiment, or the number of classes by default.
    """
    return experiment.queries or task.card.num_classes


def fit_representation(key: jax.Array, task: Task, experiment: Experiment) -> Encoder:
    """Fit the representation on the public images alone."""
    module = representations.named(experiment.representation)
    num_classes = task.card.num_classes
    graph = spectral.Config(dimension=num_classes)
    configs = {
        "spectral": graph,
        "self_trained": replace(
            experiment.self_trained,
            clusters=num_classes,
            graph=replace(experiment.self_trained.graph, dimension=num_classes),
        ),
        "simclr": experiment.simclr,
        "scan": replace(experiment.scan, clusters=own_queries(task, experiment)),
        "dti": replace(experiment.dti, prototypes=own_queries(task, experiment)),
    }
    config = configs.get(experiment.representation, module.Config())
    if experiment.representation in ("simclr", "scan", "dti"):
        return module.fit(key, task.public.images, config, folder=experiment.representation_dir)
    return module.fit(key, task.public.images, config)


def select_queries(
    key: jax.Array,
    task: Task,
    features: Array,
    num_queries: int,
    labels: Labels,
    student: Student | None,
    experiment: Experiment,
) -> Queries:
    """Choose the queries of a round, from public data.

    The first round clusters all public records. Later rounds cluster those that the student is
    least sure of, in the student's features. A representation with prototypes or clusters of its
    own uses these as queries in the first round. Labelers that pay for every query get records that
    are drawn at random and were not answered before.
    """
    if experiment.labeler != "rknn":
        return sample.select(key, features, num_queries, among=labels.query < 0)
    if student is None and experiment.representation in OWN_QUERIES:
        return prototypes.select(key, features, num_queries)
    if student is None:
        return kmeans.select(key, features, num_queries)
    config = uncertainty.Config(experiment.uncertain)
    return uncertainty.select(
        key, features, student.predict_proba(task.public.images), num_queries, config
    )


def fit_student(
    key: jax.Array,
    task: Task,
    labels: Labels,
    experiment: Experiment,
    folder: Path,
    step: int,
    network: Any,
) -> ensemble.Ensemble | None:
    """Train students on all public records labeled so far, and log every epoch.

    Returns:
      Students, or None if they were stopped in the first epoch.

    Raises:
      ValueError: If semi-supervised training has no public record without a label.
    """
    learned = labels.surest(1 - experiment.unlabelled)
    config = student_config(experiment)
    unlabelled = None if isinstance(config, students.Config) else task.public.images[~learned]
    if unlabelled is not None and not len(unlabelled):
        raise ValueError(
            "Expected public records without a label with "
            f"semi_supervised={experiment.semi_supervised}, got none; pass --unlabelled 0.1, "
            "or --smoothing none where queries are declined."
        )
    try:
        return ensemble.fit(
            key,
            task.public.images[learned],
            labels.targets(experiment.targets)[learned],
            config,
            experiment.members,
            unlabelled=unlabelled,
            start=network if experiment.fine_tune else None,
            on_epoch=epoch_log(task, folder, step),
        )
    except KeyboardInterrupt:
        console.print("Stopped before the student's first epoch; keeping the labels.")
        return None


def buy_labels(
    key: jax.Array,
    noise_key: jax.Array,
    task: Task,
    model: Any,
    experiment: Experiment,
    folder: Path,
) -> tuple[ensemble.Ensemble, Guarantee | None]:
    """Buy true labels of public records and fine-tune the private network on them.

    The choice is saved before anything is bought, so that a resumed run makes no other choice.

    Returns:
      Fine-tuned network, and the guarantee of the choice of records, None if it costs nothing.
    """
    select_key, tune_key = jax.random.split(key)
    index, chosen = runs.choice_of(
        folder,
        lambda: buy.select(
            select_key,
            noise_key,
            task,
            model,
            experiment.buy,
            experiment.relation,
            experiment.delta,
        ),
    )
    bought = buy.bought_labels(task, index, experiment.buy)
    student = buy.fine_tune(
        tune_key, task, model, index, bought, experiment.buy, epoch_log(task, folder, 0)
    )
    write_arrays(folder / "bought.npz", {"public_index": index, "label": bought})
    console.print(
        f"{len(bought)} labels bought, {np.sum(bought >= 0)} of them of one of the classes"
    )
    return ensemble.Ensemble((student,)), chosen


def epoch_log(task: Task, folder: Path, step: int) -> students.OnEpoch:
    """Return a callback that writes every epoch of a student to `metrics.jsonl` and prints it."""

    def log(epoch: int, epochs: int, metrics: dict[str, float], student: students.Student) -> None:
        accuracy = float(
            np.mean(student.predict_proba(task.test.images).argmax(axis=1) == task.test.labels)
        )
        runs.append_jsonl(
            folder / "metrics.jsonl",
            {"round": step, "epoch": epoch, "epochs": epochs, **metrics, "test_accuracy": accuracy},
        )
        left = metrics["seconds"] * (
            epochs - epoch
        )  # too long after the first epoch, which compiles
        console.print(
            f"  epoch {epoch:>3}/{epochs}  loss {metrics['loss']:.3f}  test {accuracy:.2%}  "
            f"{left:.0f} s left"
        )

    return log


def student_config(experiment: Experiment) -> ensemble.Config:
    """Return the training settings of each student."""
    config = students.Config(
        model=experiment.student,
        epochs=experiment.epochs or 0,
        batch_size=experiment.batch_size,
        augmentation=experiment.augmentation,
    )
    if experiment.semi_supervised == "none":
        return config
    config = replace(config, label_smoothing=0.0)
    weight: dict[str, Any] = (
        {}
        if experiment.unlabelled_weight is None
        else {"unlabelled_weight": experiment.unlabelled_weight}
    )
    if experiment.semi_supervised == "mixmatch":
        return mixmatch.Config(config, **{"unlabelled_weight": 75.0, **weight})
    module = {"uda": uda, "vat": vat}[experiment.semi_supervised]
    own = module.Config(**weight)
    changed = (
        {"strong": "photo"}
        if experiment.semi_supervised == "uda" and experiment.augmentation.startswith("crop")
        else {}
    )
    return replace(
        own, student=replace(config, epochs=experiment.epochs or own.student.epochs), **changed
    )


def network_of(encode: Encoder) -> Any:
    """Return the `params` and `batch_stats` of the backbone that simclr or scan has trained."""
    return {kind: arrays["backbone"] for kind, arrays in encode.variables.items()}  # type: ignore[attr-defined]


def from_arguments(arguments: list[str]) -> Experiment:
    """Return the experiment of a command line.

    Its options replace a preset's settings or the defaults.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset")
    preset = first.parse_known_args(arguments)[0].preset
    return tyro.cli(
        Experiment,
        description=__doc__,
        args=arguments,
        default=presets.named(preset) if preset else Experiment(),
    )


def cli() -> int:
    """Run from the command line.

    Exit status 2 means bad input, and 130 that the run was stopped with nothing to keep.
    """
    compilation.keep()
    progress = logging.getLogger("rknn_jax")
    progress.addHandler(logging.StreamHandler())
    progress.setLevel(logging.INFO)
    progress.propagate = False
    try:
        main(from_arguments(sys.argv[1:]))
    except (ValueError, OSError) as error:
        console.print(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        console.print("Stopped before anything was labelled.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(cli())
