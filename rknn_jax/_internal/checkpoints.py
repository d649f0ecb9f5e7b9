"""What is kept on disk of networks, whole or not at all: trainings that go on where they were, and
arrays with a record of what they are.

The only file that touches orbax.
"""

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

S = TypeVar("S")


class Training:
    """A training's latest state, to be used by `with`.

    Args:
      folder: where it is kept; with None nothing is, and every training begins anew.
    """

    def __init__(self, folder: Path | None) -> None:
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
        """Return the state that was saved last and its step, or `state`, which has its
        structure, and 0.
        """
        step = self._manager.latest_step() if self._manager else None
        if self._manager is None or step is None:
            return state, 0
        saved = jax.tree.map(
            np.asarray, self._manager.restore(step, args=ocp.args.StandardRestore(state))
        )
        return jax.tree.map(
            jnp.asarray, saved
        ), step  # not bound to a device, so that steps are not compiled anew

    def save(self, step: int, state: Any) -> None:
        """Keep the state, a pytree of arrays, after so many steps, and none before it."""
        if self._manager:
            self._manager.save(step, args=ocp.args.StandardSave(state))


def named(name: str, settings: object, data: bytes = b"") -> str:
    """Name a folder by what a training depends on, hashed, so that it never goes on with
    something else; private data are not told.
    """
    return f"{name}-{hashlib.sha256(repr(settings).encode() + data).hexdigest()[:16]}"


def save(folder: str | Path, arrays: Any, record: dict[str, Any]) -> None:
    """Write a pytree of arrays and a JSON-ready record. Raises ValueError where `folder` exists."""
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        saved = ocp.args.Composite(
            arrays=ocp.args.StandardSave(arrays), record=ocp.args.JsonSave(record)
        )
        checkpointer.save(Path(folder).absolute(), saved)


def load(folder: str | Path, what: str) -> tuple[Any, dict[str, Any]]:
    """Read what `save` wrote, of a `what`. Raises ValueError where it is not there."""
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
