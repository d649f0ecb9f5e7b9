r"""`rknn`: label public data with private records, from the command line.

    rknn check R.npz --classes cat,dog
    rknn label --public P.npz --private R.npz --epsilon 1 --dry-run
    rknn label --public P.npz --private R.npz --epsilon 1
    rknn embed --images photos --model network.onnx --out public.parquet
    rknn classes --private R.npz --epsilon 0.1 --delta 1e-6
    rknn budget show R.npz.ledger.jsonl
    rknn inspect runs/label
    rknn export runs/label --format csv
    rknn simulate --clients 1e6 --mechanism collision --epsilon 1
    rknn account shuffle --clients 60000 --delta 1e-6 --epsilon 1
    rknn account private-knn --delta 1e-5
    rknn audit --mechanism collision --epsilon 1
    rknn budget raise R.npz.ledger.jsonl --epsilon 2 \
      --reason "second study, approved by the review board"
    rknn budget disjoint north.ledger.jsonl south.ledger.jsonl \
      --told-apart-by "hospital that made the record"
    rknn serve --public P.npz --epsilon 0.4 --classes 10 --clients 3 --out runs/round
    rknn join --private R.npz --budget 1
    rknn experiment distill --dataset digits --epsilon 1
    rknn completion bash > ~/.local/share/bash-completion/completions/rknn

Every command takes options from a file, `--config run.toml`. `rknn --version` says which one it is.

Each command has its own file here, which holds the messages; the library does the work. Exit
status: 0 done, 2 bad input, 3 budget refused, 4 a guarantee was broken, 5 corrupted ledger, 130
stopped. With --json the last line of stdout is one JSON object, and all else goes to stderr.
"""

import gc
import importlib.metadata
import json
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn, get_args, get_origin

import tyro
from tyro.conf import subcommand

from rknn_jax._internal import compilation, option_files, ranges
from rknn_jax._internal.option_names import as_flag, option_names
from rknn_jax._internal.terminal import (
    STOPPED,
    err,
    one_line,
    open_closed_streams,
    run_program,
    status_of,
    stdout,
    tell,
)
from rknn_jax.cli import (
    account,
    audit,
    budget,
    check,
    classes,
    embed,
    experiment,
    export,
    federation,
    inspect,
    label,
    simulate,
)
from rknn_jax.cli.account import Account
from rknn_jax.cli.audit_settings import Audit
from rknn_jax.cli.budget import Adopt, Budget, Disjoint, Raise, Repair, Show
from rknn_jax.cli.check import Check
from rknn_jax.cli.classes import SelectClasses
from rknn_jax.cli.embed_settings import Embed
from rknn_jax.cli.export import Export
from rknn_jax.cli.inspect import Inspect
from rknn_jax.cli.simulate import Simulate
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.settings import Serve
from rknn_jax.privacy.entropy import check_system
from rknn_jax.privacy.ledger import BudgetExceededError, LedgerCorruptError
from rknn_jax.release.settings import Settings
from rknn_jax.settings import by_option

COMMANDS: Any = (
    Annotated[Settings, subcommand("label")]
    | Annotated[Check, subcommand("check")]
    | Annotated[SelectClasses, subcommand("classes")]
    | Annotated[Embed, subcommand("embed")]
    | Annotated[Budget, subcommand("budget")]
    | Annotated[Inspect, subcommand("inspect")]
    | Annotated[Export, subcommand("export")]
    | Annotated[Simulate, subcommand("simulate")]
    | Annotated[Account, subcommand("account")]
    | Annotated[Serve, subcommand("serve")]
    | Annotated[Join, subcommand("join")]
    | Annotated[Audit, subcommand("audit")]
)

UNREAD = 141
"""Exit status if the reader of stdout has gone, as of a program that SIGPIPE ends."""

SHELLS = ("bash", "zsh", "fish")

FEW_COLLECTIONS = 50_000
"""New objects between two garbage collections of the program.

Imports and tracing make many, and with Python's 700 the collections take a tenth of a short run.
"""

NO_MEMORY = "RESOURCE_EXHAUSTED"
"""Text by which an error of XLA reports that no memory is left."""

_FILTERED = "JAX_TRACEBACK_FILTERING"
"""Word of the note by which JAX says that it has shortened a traceback, which nobody sees here."""


@option_names(as_flag)
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments == ["--version"]:
        stdout.write(f"rknn {importlib.metadata.version('rknn-jax')}\n")
        return 0
    own = arguments
    try:
        arguments = option_files.expanded(arguments)
    except (ValueError, OSError) as error:
        err.print(f"rknn: error: {one_line(str(error))}")
        return 2
    if arguments[:1] == ["completion"]:
        if len(arguments) != 2 or arguments[1] not in SHELLS:
            err.print(
                f"rknn: error: Expected rknn completion with one of {', '.join(SHELLS)}, got "
                f"{shlex.join(arguments[1:]) or 'none'}."
            )
            return 2
        arguments = ["--tyro-print-completion", arguments[1]]
    if arguments[:1] == ["experiment"]:
        return experiment.run(arguments[1:])
    command = _parsed(arguments)
    action = command.action if isinstance(command, Budget | Account) else command
    try:
        _check_once(own, action)
        _check(action)
        with _warnings_that_stop_nothing():
            result = _run(action)
        status = audit.BROKEN if result.get("broken") else result.get("exit_status", 0)
    except (
        KeyboardInterrupt,
        ValueError,
        OSError,
        MemoryError,
        RuntimeError,
        AssertionError,
    ) as error:
        words = str(error) or "stopped"
        if isinstance(error, RuntimeError | AssertionError):
            deviceless = compilation.without_device()
            if not deviceless and NO_MEMORY not in words:
                raise  # a fault of this program: show the traceback
            words = deviceless or _no_memory(words)
        elif isinstance(error, MemoryError):
            words = _no_memory(words)
        notes = [note for note in getattr(error, "__notes__", ()) if _FILTERED not in note]
        result = {"error": " ".join([*words.split(), *notes])}
        status = _status(error)
        err.print(f"rknn: error: {one_line(result['error'])}")
    if action.json:
        told = result | {"exit_status": status}
        stdout.write(json.dumps(told, allow_nan=False, default=float) + "\n")
    return _printed(status, paid="release" in result or "ledger" in result)


@contextmanager
def _warnings_that_stop_nothing() -> Iterator[None]:
    """Make no warning an error: one broken private record would stop the command, and show."""
    with warnings.catch_warnings():
        if any(action == "error" for action, *_ in warnings.filters):
            warnings.resetwarnings()
        yield


def _check_once(arguments: Sequence[str], action: Any) -> None:
    """Raise ValueError if an option of several words has two values, as the last would count alone.

    Args:
      arguments: Words of the command line, without those of a file of options.
      action: Settings of the command.
    """
    values: dict[str, list[list[str]]] = {}
    words: list[str] = []
    for word in arguments:
        if word.startswith("--"):
            name, _, first = word.partition("=")
            words = [first] if first else []
            values.setdefault(name.replace("_", "-"), []).append(words)
        else:
            words.append(word)
    for name, (field, _) in by_option(action).items():
        flag = as_flag(name)
        several = any(get_origin(kind) is tuple for kind in (field.type, *get_args(field.type)))
        given = values.get(flag, [])
        if several and any(one != given[0] for one in given):
            raise ValueError(
                f"Expected {flag} once, got it {len(given)} times; write all names after one, as "
                f"in {flag} a b."
            )


def _check(action: Any) -> None:
    """Raise ValueError for numbers out of range, or if no random numbers can be drawn."""
    if not isinstance(action, Serve | Join):  # they tell all that is wrong at once
        ranges.check(action)
    if isinstance(action, Settings | SelectClasses | Serve | Join):
        check_system()


def _no_memory(words: str) -> str:
    return (
        f"There is not enough memory ({words.splitlines()[0]}); free some, or use "
        "fewer queries, classes or public rows."
    )


def _parsed(arguments: Sequence[str]) -> Any:
    """Return the settings of a command. Help and errors of the parser end the program."""
    style = (
        tyro.conf.OmitArgPrefixes,
        tyro.conf.OmitSubcommandPrefixes,
        tyro.conf.FlagCreatePairsOff,
    )
    description = (
        "Label public data with private records at a stated privacy, and keep the budget. "
        "`rknn experiment` runs the programs on benchmark data; `rknn completion bash`, zsh or "
        "fish prints a script that completes commands and options."
    )
    with stdout.lossy():
        return tyro.cli(
            COMMANDS, args=arguments, prog="rknn", description=description, config=style
        )
    raise SystemExit(0)  # its help could not be printed


def _printed(status: int, *, paid: bool = False) -> int:
    """Return the exit status once it is known whether standard output could be written.

    Args:
      status: Exit status of the command.
      paid: True for a release that was paid for, which is there and has not failed.
    """
    stdout.flush()
    failure, stdout.failure = stdout.failure, None
    if failure is None:
        return status
    reason = f"standard output could not be written ({failure.strerror})"
    if status == 0 and paid:
        tell(err, "warning", f"{reason}; the command has done its work, which is paid for.")
        return 0
    if isinstance(failure, BrokenPipeError):  # as in `rknn --help | head -1`
        return UNREAD
    err.print(f"rknn: error: {reason}; make room there, or name another file.")
    return status or 2


def _run(
    action: Settings
    | Check
    | SelectClasses
    | Embed
    | Show
    | Raise
    | Repair
    | Adopt
    | Disjoint
    | Inspect
    | Export
    | Simulate
    | Serve
    | Join
    | Audit
    | account.Action,
) -> dict[str, Any]:
    match action:
        case Settings():
            compilation.keep_none()
            return label.run(action)
        case Check():
            compilation.keep_none()
            return check.run(action)
        case SelectClasses():
            return classes.run(action)
        case Embed():
            return embed.run(action)
        case Show() | Raise() | Repair() | Adopt() | Disjoint():
            return _run_budget(action)
        case Inspect():
            return inspect.run(action)
        case Export():
            return export.run(action)
        case Simulate():
            return simulate.run(action)
        case Serve():
            return federation.serve(action)
        case Join():
            compilation.keep_none()
            return federation.join(action)
        case Audit():
            return audit.run(action)
        case _:
            return account.run(action)


def _run_budget(action: Show | Raise | Repair | Adopt | Disjoint) -> dict[str, Any]:
    match action:
        case Show():
            return budget.show(action)
        case Raise():
            return budget.set_anew(action)
        case Repair():
            return budget.repair(action)
        case Adopt():
            return budget.adopt(action)
        case Disjoint():
            return budget.disjoint(action)


def _status(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return STOPPED
    return (
        3
        if isinstance(error, BudgetExceededError)
        else 5
        if isinstance(error, LedgerCorruptError)
        else 2
    )


def command() -> NoReturn:
    """Run as the program `rknn`."""
    gc.set_threshold(FEW_COLLECTIONS)
    open_closed_streams()
    run_program(_program)


def _program() -> int:
    try:
        status = main()
    except SystemExit as end:  # by tyro, with --help too
        status = status_of(end)
    return _printed(status)


if __name__ == "__main__":
    command()
