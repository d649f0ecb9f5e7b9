"""Content of a disk after a loss of power: some of what was not synced, in part, in any order.

The folder is a real one. The model follows it call by call, and knows for each file what content
has reached the disk, and for each folder which names have. `sync` makes a file's content durable,
and not its name, or a folder's names. A rename is one change, and durable once either of its
folders is synced. A crash keeps what is durable. Of all other changes of names it keeps any, and of
each file any content since the last sync, or a torn one: the first bytes of a content and then
those of an earlier one, or zeros.
"""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

MOST_BYTES = 2**20
"""Bytes of a file whose content is followed; of larger ones, which only reserve room, the size."""


@dataclass
class Node:
    """File or folder: its durable content, and those since; of a folder its durable names."""

    is_folder: bool
    contents: list[bytes] = field(default_factory=lambda: [b""])
    names: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)


Change = list[tuple[int, str, int | None]]
"""Names of one call that now mean another file, or none."""

ROOT = 0


class DiskModel:
    """Model of a folder.

    Args:
      folder: Folder that is followed, with what is in it, all of which is durable.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._begin()

    def _begin(self) -> None:
        """Take everything in the folder as durable."""
        self.nodes = {ROOT: Node(is_folder=True)}
        self.changes: list[Change] = []
        self._numbers: dict[int, int] = {self.folder.stat().st_ino: ROOT}
        for path in sorted(self.folder.rglob("*")):
            self.look(path)
        for node in self.nodes.values():
            node.durable = dict(node.names)
            node.contents = node.contents[-1:]
        self.changes = []

    def look(self, *paths: Path) -> None:
        """Note what these names mean after one call, and the contents of their files."""
        change: Change = []
        for path in paths:
            above = self._number(path.parent)
            if above is None:
                continue
            found = self._number(path)
            if self.nodes[above].names.get(path.name) != found:
                change.append((above, path.name, found))
        for above, name, found in change:
            if found is None:
                del self.nodes[above].names[name]
            else:
                self.nodes[above].names[name] = found
        if change:
            self.changes.append(change)
            linked = {n for node in self.nodes.values() for n in node.names.values()} | {ROOT}
            self._numbers = {real: n for real, n in self._numbers.items() if n in linked}
        for path in paths:
            self.read(path)

    def read(self, path: Path) -> None:
        """Note the content of a file after one call."""
        number = self._number(path)
        if number is None or self.nodes[number].is_folder:
            return
        size = path.stat().st_size
        data = path.read_bytes() if size <= MOST_BYTES else bytes(size)
        if data != self.nodes[number].contents[-1]:
            self.nodes[number].contents.append(data)

    def sync(self, path: Path) -> None:
        """Note that a file's content, or a folder's names, have reached the disk."""
        number = self._number(path)
        if number is None:
            return
        node = self.nodes[number]
        node.contents = node.contents[-1:]
        reached = [change for change in self.changes if any(one[0] == number for one in change)]
        self._apply(reached)
        self.changes = [change for change in self.changes if change not in reached]

    def _apply(self, changes: list[Change]) -> None:
        for change in changes:
            for above, name, found in change:
                if found is None:
                    self.nodes[above].durable.pop(name, None)
                else:
                    self.nodes[above].durable[name] = found

    def durable_content(self, name: str) -> bytes | None:
        """Return the content of a file that a loss of power cannot take away; None if it can."""
        number = ROOT
        for part in Path(name).parts:
            found = self.nodes[number].durable.get(part)
            if found is None:
                return None
            number = found
        return self.nodes[number].contents[0]

    def crash(self, random: Random) -> None:
        """Leave in the folder what a loss of power leaves, and begin anew with it."""
        share = random.choice((0.0, 0.5, 1.0))
        self._apply([change for change in self.changes if random.random() < share])
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        made: dict[int, Path] = {}
        self._write(ROOT, self.folder, made, random, share)
        self._begin()

    def _write(
        self, number: int, folder: Path, made: dict[int, Path], random: Random, share: float
    ) -> None:
        for name, found in sorted(self.nodes[number].durable.items()):
            path = folder / name
            node = self.nodes[found]
            if found in made:
                if not node.is_folder:
                    os.link(made[found], path)
                continue  # no folder has two names
            made[found] = path
            if node.is_folder:
                path.mkdir(mode=0o700)
                self._write(found, path, made, random, share)
            else:
                path.write_bytes(_left(node.contents, random, share))

    def _number(self, path: Path) -> int | None:
        """Return the model's number of what a path means now, which is new if it is a new file."""
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if found.st_ino not in self._numbers:
            number = len(self.nodes)
            self._numbers[found.st_ino] = number
            self.nodes[number] = Node(is_folder=path.is_dir())
        return self._numbers[found.st_ino]


def _left(contents: list[bytes], random: Random, share: float) -> bytes:
    """Return a content of a file of which the first one was synced."""
    if share == 1 or len(contents) == 1:
        return contents[-1]
    if share == 0:
        return contents[0]
    at = random.randrange(len(contents))
    whole = contents[at]
    if at == 0 or random.random() < 0.5:
        return whole
    # What was synced stays where nothing else was written: a write takes no other bytes with it.
    before = contents[at - 1] if random.random() < 0.5 else contents[0]
    cut = random.randint(0, len(whole))
    rest = before[cut : len(whole)]
    return whole[:cut] + rest + bytes(len(whole) - cut - len(rest)) * random.choice((0, 1))
