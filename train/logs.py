"""Progress and results of a run in TensorBoard or MLflow: `--log tensorboard`, `--log mlflow`.

| what                                | name                      | step              |
|-------------------------------------|---------------------------|-------------------|
| steps done of a phase that counts   | `<phase>/<unit>`          | seconds since 0   |
| time that its other steps will take | `<phase>/seconds_left`    | seconds since 0   |
| memory of the process, in GB        | `memory`                  | seconds since 0   |
| a network's losses and accuracies   | as in `metrics.jsonl`     | epoch             |
| numbers of `result.json`, at the end| `result/<name>`           | 0                 |

0 is the time at which the run was started last. MLflow gets the settings of `config.json` as
parameters, too. All of it is benchmark data: like `result.json` it tells what no epsilon covers.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rknn_jax._internal import progress

Log = Literal["none", "tensorboard", "mlflow"]

FOLDER = "tensorboard"
"""Folder of TensorBoard's files in that of the run."""

GIGABYTE = 1e9

COUNTS = ("round", "epoch", "epochs")
"""Fields of a line of `metrics.jsonl` that say which epoch it is of."""

MOST_LETTERS = 500
"""Letters of a parameter that every MLflow takes."""

Write = Callable[[str, float, int], None]
"""Function of the name of a number, the number and its step."""


@contextmanager
def logged(log: Log, folder: Path) -> Iterator[None]:
    """Log what runs inside.

    Args:
      log: Program to log for, or none.
      folder: Folder of the run.

    Raises:
      ValueError: If the program's package is not installed.
    """
    if log == "none":
        yield
        return
    with _WRITERS[log](folder) as write, progress.listening(_listener(write)):
        yield
        for name, number, step in _numbers(folder):
            write(name, number, step)


def _listener(write: Write) -> progress.Listener:
    began = time.monotonic()

    def told(event: progress.Event) -> None:
        step = round(time.monotonic() - began)
        if event.memory is not None:
            write("memory", event.memory / GIGABYTE, step)
        if event.steps is not None:
            write(f"{event.phase}/{event.unit}", event.step, step)
        if event.left is not None:
            write(f"{event.phase}/seconds_left", event.left, step)

    return told


def _numbers(folder: Path) -> Iterator[tuple[str, float, int]]:
    """Yield the numbers of a run that has ended: name, number and step."""
    path = folder / "metrics.jsonl"
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        for name, number in row.items():
            if name not in COUNTS and _is_finite(number):
                yield f"student/{name}", number, row.get("epoch", 0)
    path = folder / "result.json"
    for name, number in json.loads(path.read_text()).items() if path.exists() else ():
        if _is_finite(number):
            yield f"result/{name}", number, 0


def _is_finite(number: object) -> bool:
    return (
        isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
    )


@contextmanager
def _tensorboard(folder: Path) -> Iterator[Write]:
    try:
        from tensorboard.summary import Writer
    except ImportError as error:
        raise ValueError(
            "--log tensorboard needs tensorboard, which is not installed; pip install tensorboard."
        ) from error
    writer = Writer(str(folder / FOLDER))
    try:
        yield writer.add_scalar
    finally:
        writer.close()


@contextmanager
def _mlflow(folder: Path) -> Iterator[Write]:
    """Start a run at the address that the variable MLFLOW_TRACKING_URI names, or MLflow's own."""
    try:
        import mlflow
    except ImportError as error:
        raise ValueError(
            "--log mlflow needs mlflow, which is not installed; pip install mlflow."
        ) from error
    with mlflow.start_run(run_name=folder.name):

        def write(name: str, number: float, step: int) -> None:
            mlflow.log_metric(_allowed(name), number, step=step)

        yield write
        path = folder / "config.json"
        for name, value in json.loads(path.read_text()).items() if path.exists() else ():
            mlflow.log_param(_allowed(name), str(value)[:MOST_LETTERS])


def _allowed(name: str) -> str:
    """Return a name without what MLflow refuses in one."""
    return "".join(one if one.isalnum() or one in "_-. /" else " " for one in name)


_WRITERS: dict[str, Any] = {"tensorboard": _tensorboard, "mlflow": _mlflow}
