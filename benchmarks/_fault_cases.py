"""Commands whose system calls fail one by one, and what each of them promises whatever fails."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rknn_jax.federation import answer_frames
from rknn_jax.federation.collector import ANSWERS
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release.release_folder import RESULTS

DOCUMENTED = (0, 2, 3, 5)
"""Exit statuses: done, an error in a sentence, refused by the budget or apart, a damaged ledger."""

ABORTED = -6
"""End of a process in which a library in Rust, OpenDP's, finds no random numbers for a hash table.

`rknn` checks before that there are some. Nothing is paid by then.
"""

UNPAID = ("nothing was charged", "nothing was spent", "no budget was spent")
PAID = ("paid for", "the spend stands", "the same command", "was charged", "counts as spent")
"""Words that deny a charge, and those that tell of one."""


class Ended(NamedTuple):
    """End of a process.

    Attributes:
      status: Exit status, or minus a signal. None if it did not end in time.
      out: Standard output.
      err: Standard error.
      call: Name of the call that failed, or empty if there were fewer calls.
    """

    status: int | None
    out: str
    err: str
    call: str

    @property
    def words(self) -> str:
        """Everything that was told, as one line in lower case."""
        return " ".join((self.err + self.out).lower().split())


Start = Callable[..., Callable[[], Ended]]
"""Function that starts a command, its words with `fails=True` for the call that fails, and returns
a function that waits for its end.
"""


def spends(ledger: Path) -> int:
    """Return the number of spends of a ledger; 0 if there is none."""
    if not ledger.exists():
        return 0
    return sum(entry.kind == "spend" for entry in Ledger.open(ledger).entries())


def told_truly(ended: Ended, paid: int) -> Iterator[str]:
    """Yield what is wrong with the end of a command that has paid so often."""
    if ended.status is None:
        yield "it did not end"
    elif ended.status == ABORTED and ended.call == "getrandom" and not paid:
        pass
    elif ended.status not in DOCUMENTED:
        yield f"exit status {ended.status}"
    if "traceback" in ended.words:
        yield "a traceback"
    if ended.status and not ended.words:
        yield "no word"
    if paid and any(words in ended.words for words in UNPAID):
        yield "it says that nothing was paid, and something was"
    if paid and ended.status and not any(words in ended.words for words in PAID):
        yield "it does not say that something was paid"


@dataclass
class Command:
    """One command, which is run with a call that fails, and again without.

    Attributes:
      name: Name in results.
      words: Words of the command.
    """

    name: str
    words: tuple[str, ...]

    def prepare(self, folder: Path, start: Start) -> None:
        """Write the files that the command reads."""
        raise NotImplementedError

    def paid(self, folder: Path) -> int:
        """Return the number of charges on disk."""
        del folder
        return 0

    def state(self, folder: Path) -> Any:
        """Return what another run must keep."""

    def whole(self, folder: Path, ended: Ended, before: Any) -> Iterator[str]:
        """Yield what is wrong with what is on disk after an end with status 0."""
        raise NotImplementedError

    def partial(self, folder: Path) -> Iterator[str]:
        """Yield what is wrong with what is on disk after another end."""
        del folder
        yield from ()

    def run(self, folder: Path, start: Start) -> tuple[Ended, list[str]]:
        """Run the command in a prepared folder; return its end and the promises it broke."""
        ended = start(*self.words, fails=True)()
        broken = list(told_truly(ended, self.paid(folder)))
        if ended.status == 0:
            broken += self.whole(folder, ended, None)
        elif ended.call:
            broken += self.partial(folder)
            before = self.state(folder)
            again = start(*self.words)()
            if again.status != 0:
                broken.append(f"again it ends with {again.status}: {again.err[-300:]}")
            else:
                broken += self.whole(folder, again, before)
        return ended, broken


class Label(Command):
    """Release that is paid for."""

    def prepare(self, folder: Path, start: Start) -> None:
        """Write public and private rows."""
        del start
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 2, 90)
        rows = (rng.normal(size=(90, 3)) + 20 * labels[:, None]).astype(np.float32)
        np.savez(folder / "P.npz", embeddings=rows[:30])
        np.savez(folder / "R.npz", embeddings=rows[30:], labels=labels[30:])

    def paid(self, folder: Path) -> int:
        """Return the number of charges on disk."""
        return spends(folder / "R.npz.ledger.jsonl")

    def state(self, folder: Path) -> Any:
        """Return the noisy counts that were kept."""
        counts = folder / "new/.rknn-release/counts.npy"
        return np.load(counts) if counts.exists() else None

    def partial(self, folder: Path) -> Iterator[str]:
        """Yield results without a charge."""
        if not self.paid(folder) and any((folder / "new" / name).exists() for name in RESULTS):
            yield "results that nobody paid for"

    def whole(self, folder: Path, ended: Ended, before: Any) -> Iterator[str]:
        """Yield what a complete release lacks."""
        del ended
        if missing := [name for name in RESULTS if not (folder / "new" / name).exists()]:
            yield f"no {missing}"
            return
        if self.paid(folder) != 1:
            yield f"{self.paid(folder)} charges for one release"
        drawn = np.load(folder / "new/queries.npz")["noisy_counts"]
        if before is not None and not np.array_equal(before, drawn):
            yield "other draws than those that were kept"


class Classes(Command):
    """Selection of classes, which is paid for and told once."""

    def prepare(self, folder: Path, start: Start) -> None:
        """Write private rows of two classes."""
        del start
        names = np.array(["yes", "no"])[np.arange(90) % 2]
        np.savez(folder / "R.npz", embeddings=np.zeros((90, 3), np.float32), labels=names)

    def paid(self, folder: Path) -> int:
        """Return the number of charges on disk."""
        return spends(folder / "R.npz.ledger.jsonl")

    def whole(self, folder: Path, ended: Ended, before: Any) -> Iterator[str]:
        """Yield what a selection lacks."""
        del before
        if not self.paid(folder):
            yield "classes that nobody paid for"
        if "yes" not in ended.out:
            yield "no classes are told"


class Budget(Command):
    """Command on a ledger of one spend."""

    def prepare(self, folder: Path, start: Start) -> None:
        """Make a ledger of one spend."""
        Label.prepare(Label("", ()), folder, start)
        ledger = Ledger.create(folder / "L.jsonl", "sha256:a", 2)
        ledger.charge(
            Guarantee(1.0, 0.0, "replace-one", "central", (), sampler="release"), "a release"
        )

    def partial(self, folder: Path) -> Iterator[str]:
        """Yield what is wrong with the ledger."""
        yield from self.whole(folder, Ended(0, "", "", ""), None)

    def whole(self, folder: Path, ended: Ended, before: Any) -> Iterator[str]:
        """Yield what is wrong with the ledger after the command."""
        del before
        ledger = Ledger.open(folder / "L.jsonl")
        if ledger.spent.epsilon != 1 or any(ledger.unread):
            yield f"the ledger has {ledger.spent} spent, {ledger.unread} unread"
        if ledger.budget.epsilon not in (2, 5):
            yield f"the budget is {ledger.budget}"
        if ended.out and "raise" in self.words and ledger.budget.epsilon != 5:
            yield "the budget was not raised"


class Made(Command):
    """Command that makes one file, the same each time.

    Attributes:
      file: File that it makes.
      first: Command without which it has no input.
    """

    def __init__(self, name: str, words: tuple[str, ...], file: str, first: Command | None) -> None:
        super().__init__(name, words)
        self.file = file
        self.first = first
        self.expected: bytes | None = None

    def prepare(self, folder: Path, start: Start) -> None:
        """Write the input, and make the file once to know its content."""
        if self.first:
            self.first.prepare(folder, start)
            assert start(*self.first.words)().status == 0
        else:
            rows = np.random.default_rng(0).normal(size=(300, 2)).round(3)
            labels = [0, 1] * 150
            table = pa.table({"a": rows[:, 0], "b": rows[:, 1], "labels": labels})
            pq.write_table(table, folder / "T.parquet")
        made = start(*self.words)()
        assert made.status == 0, made.err
        self.expected = (folder / self.file).read_bytes()
        (folder / self.file).unlink()

    def whole(self, folder: Path, ended: Ended, before: Any) -> Iterator[str]:
        """Yield what is wrong with the file."""
        del ended, before
        made = folder / self.file
        if not made.exists() or made.read_bytes() != self.expected:
            yield f"{self.file} is not what it should be"

    def partial(self, folder: Path) -> Iterator[str]:
        """Yield a file that is there and not whole."""
        if (folder / self.file).exists():
            yield from self.whole(folder, Ended(0, "", "", ""), None)


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@dataclass
class Round(Command):
    """Round of one client, whose server's or client's calls fail one by one."""

    port: int = field(default_factory=free_port)

    def prepare(self, folder: Path, start: Start) -> None:
        """Write public and private rows."""
        Label.prepare(Label("", ()), folder, start)

    def run(self, folder: Path, start: Start) -> tuple[Ended, list[str]]:
        """Run a round; whichever side ends by a failed call is started again."""
        serve = [*SERVE, "--port", str(self.port)]
        join = [*JOIN, "--server", f"127.0.0.1:{self.port}"]
        hit, other = (serve, join) if self.name == "serve" else (join, serve)
        first = start(*hit, fails=True)
        second = start(*other)
        ended = first()
        broken = list(told_truly(ended, self._paid(folder, ended)))
        last = ended
        if ended.status and ended.call:
            last = start(*hit)()
        beside = second()
        if "refused " in ended.words:  # by the client, which takes no part
            return ended, broken + list(told_truly(beside, 0))
        server, client = (last, beside) if self.name == "serve" else (beside, last)
        over = "got a finished one" in server.err  # all was published before the call failed
        for name, one in (("server", server), ("client", client)):
            if one.status != 0 and not (one is server and over):
                broken.append(f"the {name} ends with {one.status}: {one.err[-300:]}")
        counted = sum(len(clients) for clients, _ in answer_frames.read(folder / "out" / ANSWERS))
        paid = spends(folder / "R.npz.ledger.jsonl")
        if (counted, paid) != (1, 1):
            broken.append(f"{counted} answers count, and {paid} were paid for")
        if not (folder / "out/labels.npz").exists():
            broken.append("no labels")
        return ended, broken

    def _paid(self, folder: Path, ended: Ended) -> int:
        """Return the number of charges, of which a server knows nothing."""
        del ended
        return spends(folder / "R.npz.ledger.jsonl") if self.name == "join" else 0


RELEASE = tuple(
    "label --public P.npz --private R.npz --classes 2 --queries 2 --epsilon 1 --smoothing none "
    "--out new --json".split()
)
SERVE = tuple(
    "serve --public P.npz --epsilon 1 --classes 2 --clients 1 --out out --student none "
    "--deadline 20 --json".split()
)
JOIN = tuple("join --private R.npz --budget 2 --wait 15 --json".split())


def cases() -> list[Command]:
    """Return all commands, in the order in which they are tried."""
    label = Label("label", RELEASE)
    raised = "budget raise L.jsonl --epsilon 5 --reason why --json"
    adopted = "budget adopt L.jsonl --private R.npz --reason why --unrelated --json"
    embed = "embed --table T.parquet --label labels --out out.parquet --json"
    selected = (
        "classes --private R.npz --epsilon 20 --delta 1e-3 --budget 50 --budget-delta 0.01 --json"
    )
    return [
        label,
        Round("serve", ()),
        Round("join", ()),
        Classes("classes", tuple(selected.split())),
        Budget("budget show", tuple("budget show L.jsonl --json".split())),
        Budget("budget raise", tuple(raised.split())),
        Budget("budget adopt", tuple(adopted.split())),
        Made("embed", tuple(embed.split()), "out.parquet", None),
        Made(
            "export",
            ("export", "new", "--format", "parquet", "--json"),
            "new/labels.parquet",
            label,
        ),
    ]


def wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition, and return whether it came."""
    ends = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)
    return True


def as_json(text: str) -> Any:
    """Return the last line of an output as JSON, or None."""
    try:
        return json.loads(text.splitlines()[-1])
    except (ValueError, IndexError):
        return None
