"""Folder of a run: made, held, begun, and found again.

```
runs/<name>/
  config.json     every setting as it was resolved, versions, device, options for `--config`
  result.json     accuracies, epsilon and its meaning, seconds; `not_covered_by_epsilon` apart
  privacy.json    the guarantee of the whole run and of every round
  privacy.html    the promise of that guarantee, in plain words
  metrics.jsonl   one line an epoch
  events.jsonl    one line for each phase that begins, goes on or ends: steps, time left, memory
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
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rknn_jax._internal import progress
from rknn_jax._internal.disk import is_partial, locked, new_path
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.roles import Roles
from rknn_jax.types import Queries

from . import logs
from .experiment import TRAINING, Experiment, plain_settings
from .json_files import append_jsonl, plain, write_json

FILES = (
    *("config.json", "result.json", "privacy.json", "privacy.html", "labels.npz", "queries.npz"),
    *("bought.npz", "metrics.jsonl", "report.html"),
)

EVENTS = "events.jsonl"
"""Progress of the run, written from its first second on, before `config.json` is."""

FOLDERS = ("student", "model", "generator", logs.FOLDER)
"""Folders that a run writes into its own folder. With `FILES`, everything but `TRAINING`."""

ROLES = "roles.json"
"""File in `TRAINING` with the roles of the records, if some check and the training is saved."""

CHOICE = "choice.json"
"""File in `TRAINING` with the choice of labels to buy, if the choice cost privacy."""


def make_folder(experiment: Experiment) -> Path:
    """Create the run's folder before any work is done.

    Raises:
      ValueError: If the folder cannot be created or written.
    """
    name = f"{experiment.dataset.replace(':', '-')}-eps{experiment.epsilon:g}"
    folder = experiment.out or new_path(Path("runs"), name)
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
            with (
                progress.listening(partial(_write_event, folder / EVENTS)),
                logs.logged(experiment.log, folder),
            ):
                yield folder
        except BaseException:
            if not (folder / "config.json").exists():
                clear_partial_run(folder)
                if not any(folder.iterdir()):
                    folder.rmdir()
            raise


def _write_event(path: Path, event: progress.Event) -> None:
    append_jsonl(path, {"time": datetime.now(UTC).isoformat(timespec="seconds"), **event.asdict()})


def find_result(experiment: Experiment) -> dict[str, Any] | None:
    """Return the result in the experiment's folder, or None if it is not finished. Changes nothing.

    Raises:
      ValueError: If the folder holds a run of other settings, files that are not a run, or a result
        that cannot be read.
    """
    folder = experiment.out
    if folder is None or not folder.exists():
        return None
    if all(_is_temporary(path) for path in folder.iterdir()):
        return None
    if not (folder / "config.json").exists():
        raise ValueError(
            f"Expected a run or nothing in out={folder}, got other files; choose another folder."
        )
    # Every record voted in folders that are older than the setting.
    config = {"check_share": 0.0} | _read_settings(folder / "config.json")
    path = folder / "result.json"
    asked = json.loads(json.dumps(plain_settings(experiment), default=plain))
    # `buy` may change until the labels to buy have been chosen.
    chosen = path.exists() or (folder / TRAINING / CHOICE).exists()
    open_to_change = {"out", "log"} if chosen else {"out", "log", "buy"}
    other: list[str] = []
    for name, value in asked.items():
        if name not in open_to_change and config.get(name) != value:
            other += _differing(name, config, asked)
    if other:
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
    part = name.removesuffix("_settings")
    words: list[str] = []
    for key in wanted:
        if was.get(key) != wanted[key]:
            words += [f"{part}.{word}" for word in _differing(key, was, wanted)]
    return words


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
    """Return whether a killed run left this file, which holds no result."""
    if path.name == EVENTS:
        with path.open(errors="replace") as file:
            return file.readline().startswith('{"time": ')
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


def kept_roles(folder: Path, drawn: Roles, records: str) -> Roles:
    """Return the roles with which a stopped training began, or save those drawn for a new one.

    With other roles, or with others in the places of the records, a record that the training has
    seen could check its labels, and would spend epsilon twice.

    Args:
      folder: Folder of the run.
      drawn: Roles of a run that begins.
      records: Fingerprint of the private records in their order.

    Raises:
      ValueError: If the saved roles cannot be read, or belong to other records.
    """
    path = folder / TRAINING / ROLES
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_json(path, {"records": records, "roles": drawn.words()})
    try:
        saved = json.loads(path.read_text())
        begun, roles = saved["records"], Roles.of(saved["roles"])
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(
            f"Expected the roles of the records in {path}, got something else ({error}); restore "
            "the file from a copy, or choose another folder with --out."
        ) from error
    if begun != records:
        raise ValueError(
            f"Expected the private records with which the training in {folder} began, got others: "
            "some that it has seen would check its labels, and spend epsilon twice; restore the "
            "records, or choose another folder with --out."
        )
    return roles


def choice_of(
    folder: Path, network: str, select: Callable[[], tuple[Queries, Guarantee | None]]
) -> tuple[np.ndarray, Guarantee | None]:
    """Return the public records whose labels are bought, int `[num_bought]`, and their cost.

    A choice with noise is saved in the folder before its use. After that `buy` may not change
    there, because another choice would cost anew.

    Args:
      folder: Folder of the run.
      network: Fingerprint of the private network that chooses. The choice of another one would be
        a second release of the records.
      select: Choice of the records and its guarantee, None if the choice costs no privacy.

    Raises:
      ValueError: If the saved choice cannot be read, or is that of another network.
    """
    path = folder / TRAINING / CHOICE
    if not path.exists():
        queries, chosen = select()
        if chosen is None:
            return queries.index, None
        path.parent.mkdir(exist_ok=True)
        made = {"network": network, "index": queries.index, "guarantee": chosen.full_dict()}
        write_json(path, made)
    try:
        saved = json.loads(path.read_text())
        chooser = saved["network"]
        found = np.asarray(saved["index"], np.int32), Guarantee.of(saved["guarantee"])
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
    if chooser != network:
        raise ValueError(
            f"Expected the network that chose the labels to buy in {path}, got another one: both "
            "would be released, and one of them was not paid for; choose another folder with --out."
        )
    return found
