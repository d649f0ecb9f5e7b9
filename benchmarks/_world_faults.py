"""Faults that the world must find: no sync, locks that end early, notes that come late.

Each changes a function of the package in this process, by its text.
"""

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from rknn_jax._internal import disk
from rknn_jax.privacy import ledger_file
from rknn_jax.release import release_folder
from rknn_jax.release.release_folder import ReleaseFolder


class WorldFault(NamedTuple):
    """Fault in a function.

    Attributes:
      words: What is wrong.
      place: Module or class of the function.
      name: Name of the function.
      old: Text of the function.
      new: Text in its place.
    """

    words: str
    place: Any
    name: str
    old: str
    new: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Change the function while the context lasts."""
        sound = getattr(self.place, self.name)
        self.plant()
        faulty = getattr(self.place, self.name)
        try:
            yield
        finally:
            self._put(faulty, sound)

    def plant(self) -> None:
        """Change the function, in every module that has imported it."""
        sound = getattr(self.place, self.name)
        source = textwrap.dedent(inspect.getsource(sound))
        assert self.old in source, f"{self.words}: {self.old}"
        module = inspect.getmodule(self.place)
        assert module is not None
        made: dict[str, Any] = {}
        exec(source.replace(self.old, self.new), vars(module), made)
        self._put(sound, made[self.name])

    def _put(self, before: Any, after: Any) -> None:
        setattr(self.place, self.name, after)
        for other in list(sys.modules.values()):
            if getattr(other, self.name, None) is before:
                setattr(other, self.name, after)


FAULTS = (
    WorldFault(
        "a file gets its name before its content is synced",
        disk,
        "write_whole",
        "os.fsync(file.fileno())",
        "pass",
    ),
    WorldFault(
        "the folder of a new file is not synced",
        disk,
        "write_whole",
        "sync_folder(path.parent)",
        "pass",
    ),
    WorldFault(
        "the folder of a new folder is not synced",
        disk,
        "make_folder",
        "sync_folder(above)",
        "pass",
    ),
    WorldFault("a charge is not synced", ledger_file, "append", "os.fsync(file.fileno())", "pass"),
    WorldFault(
        "a short write of a charge is taken for whole",
        ledger_file,
        "append",
        "while text:\n            text = text[file.write(text) :]",
        "file.write(text)",
    ),
    WorldFault(
        "a ledger is not locked",
        ledger_file,
        "lock",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
    ),
    WorldFault(
        "a ledger's lock is released early",
        ledger_file,
        "locked",
        "yield file",
        "fcntl.flock(file, fcntl.LOCK_UN)\n                    yield file",
    ),
    WorldFault(
        "a second new ledger replaces the first",
        disk,
        "write_new",
        "os.link(part, path)",
        "os.replace(part, path)",
    ),
    WorldFault("a folder is not locked", disk, "locked", "lock(descriptor, busy)", "pass"),
    WorldFault(
        "nothing is charged",
        ReleaseFolder,
        "charge",
        "self.ledger.charge(guarantee, named)",
        "pass",
    ),
    WorldFault(
        "the note of a release is written after the charge",
        ReleaseFolder,
        "charge",
        "    self._write(note | self._about)\n        self.ledger.charge(guarantee, named)",
        "    self.ledger.charge(guarantee, named)\n        self._write(note | self._about)",
    ),
    WorldFault(
        "a retry draws again and records both",
        ReleaseFolder,
        "kept",
        "if not path.exists():",
        "if True:",
    ),
    WorldFault(
        "a release that was paid for is cleared away",
        release_folder,
        "_clear_unpaid",
        "if not is_paid(path, request, ledger):",
        "if True:",
    ),
    WorldFault(
        "results are shown before their folder is synced",
        ReleaseFolder,
        "publish",
        "disk.sync_folder(self.path)",
        "pass",
    ),
)
