"""Resumable training checkpoints, and saved arrays with a record of their settings.

Each is on disk whole or not at all. This is the only file that uses orbax.
"""

import hashlib
import pprint
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import ranges

S = TypeVar("S")


def _orbax() -> Any:
    """Import orbax late: it takes half a second, and most programs train nothing."""
    import orbax.checkpoint

    return orbax.checkpoint


class Training:
    """Latest state of a training, to be used by `with`.

    Args:
      folder: Folder of the state. With None, nothing is kept and every training starts anew.
    """

    def __init__(self, folder: Path | None) -> None:
        ocp = _orbax()
        options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
        self._manager = (
            ocp.CheckpointManager(folder.absolute(), options=options) if folder else None
        )

    def __enter__(self) -> "Training":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._manager:
            self._manager.close()

    def resumed(self, state: S) -> tuple[S, int]:
        """Return the last saved state and its step, or `state` and 0 if there is none.

        The saved state has the structure of `state`.
        """
        ocp = _orbax()
        step = self._manager.latest_step() if self._manager else None
        if self._manager is None or step is None:
            return state, 0
        saved = jax.tree.map(
            np.asarray, self._manager.restore(step, args=ocp.args.StandardRestore(state))
        )
        # Arrays that are not bound to a device do not make JAX compile the steps anew.
        return jax.tree.map(jnp.asarray, saved), step

    def save(self, step: int, state: Any) -> None:
        """Keep the state, a pytree of arrays, at a step, and delete earlier ones."""
        ocp = _orbax()
        if self._manager:
            self._manager.save(step, args=ocp.args.StandardSave(state))


def named(name: str, settings: object, data: bytes = b"") -> str:
    """Name a folder by a hash of the training's settings and data.

    A training therefore never resumes another's state, and the same one is found by every process,
    whatever the order of sets and dictionaries is there. The name does not reveal private data.
    """
    # Lines of one item have sets in order; pprint shows a set that fits a line as it comes.
    words = pprint.pformat(settings, width=1)
    return f"{name}-{hashlib.sha256(words.encode() + data).hexdigest()[:16]}"


def save(folder: str | Path, arrays: Any, record: dict[str, Any]) -> None:
    """Write a pytree of arrays and a JSON-ready record.

    Raises:
      ValueError: If `folder` exists, or is a URL.
    """
    ranges.check_local("folder", Path(folder))
    ocp = _orbax()
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        saved = ocp.args.Composite(
            arrays=ocp.args.StandardSave(arrays), record=ocp.args.JsonSave(record)
        )
        checkpointer.save(Path(folder).absolute(), saved)
    for mark in Path(folder).rglob("commit_success.txt"):
        mark.write_text("saved\n")  # orbax names the folder on this machine there, and asks no more


def load(folder: str | Path, what: str) -> tuple[Any, dict[str, Any]]:
    """Read the arrays and the record that `save` wrote. `what` names them in an error.

    Raises:
      ValueError: If nothing was saved there.
    """
    ocp = _orbax()
    path = Path(folder).absolute()
    if not (path / "record").is_dir():
        raise ValueError(
            f"Expected the folder of a saved {what}, got folder={str(folder)!r}; use one that "
            "`save` wrote."
        )
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        parts = ocp.args.Composite(arrays=ocp.args.StandardRestore(), record=ocp.args.JsonRestore())
        saved = checkpointer.restore(path, parts)
    return saved.arrays, saved.record
