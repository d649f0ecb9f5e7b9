"""`rknn`: label public data with private records, from the command line.

    rknn label --public P.npz --private R.npz --epsilon 1 --dry-run
    rknn label --public P.npz --private R.npz --epsilon 1
    rknn budget show R.npz.ledger.jsonl
    rknn export runs/label --format csv
    rknn simulate --clients 1e6 --mechanism collision --epsilon 1
    rknn account shuffle --clients 60000 --delta 1e-6 --epsilon 1
    rknn account private-knn --delta 1e-5
    rknn audit --mechanism collision --epsilon 1
    rknn budget raise R.npz.ledger.jsonl --epsilon 2 --reason "second study, approved by the review board"
    rknn serve --public P.npz --epsilon 0.4 --classes 10 --clients 3 --out runs/round
    rknn join --private R.npz --budget 1

This file holds the settings and the words, `cli_account` those of `rknn account`, `cli_audit` those of `rknn audit` and `cli_federation`
those of the last two; `rknn_jax.label` does the work. Exit status: 0 done, 2 bad input, 3 budget refused, 4 a guarantee was broken,
5 corrupted ledger, 130 stopped. With --json the last line of stdout is one JSON object, and all else goes to stderr.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro
from rich.console import Console
from tyro.conf import Positional, subcommand

from rknn_jax import cli_account, cli_audit, cli_federation, compilation
from rknn_jax.cli_account import Account
from rknn_jax.cli_audit import Audit
from rknn_jax.cli_federation import Join, Serve
from rknn_jax.privacy.guarantee import Relation
from rknn_jax.privacy.ledger import PATIENCE, Amount, BudgetExceededError, Ledger, LedgerCorruptError
from rknn_jax.release_folder import RESULTS
from rknn_jax.terminal import err, out, tell, whole

NO_MEMORY = "RESOURCE_EXHAUSTED"
"""How an error of XLA says that there is no memory left."""

if TYPE_CHECKING:  # JAX, scikit-learn and OpenDP take seconds to import, and --help needs none of them
    from rknn_jax.label import Plan, Release
    from rknn_jax.preview import Preview


@dataclass(frozen=True)
class Label:
    """Label public embeddings with private records: a real release at epsilon, charged to the private data set's ledger.

    Both files hold embeddings by one model: .npz (arrays `embeddings` and, for the private side, `labels`), .npy or .parquet. A label that is NaN, null, negative or '' is missing, and its record casts no vote; nor does a record whose embedding is no finite number or whose label is none of the classes. The set of classes is public: name it with --classes or in an array `classes` of the private .npz. If the program is stopped after the budget was charged, the same command finishes the release and costs nothing.

    Attributes:
      public: file of the public embeddings.
      private: file of the private embeddings and labels.
      epsilon: what this release may cost.
      private_labels: file of the private labels, where --private does not hold them.
      queries: number of queries s; chosen from n, epsilon and the classes where it is not given.
      neighbors: number of queries k that each private record votes for.
      delta: for --mechanism gaussian; 0 is pure differential privacy.
      mechanism: discrete_laplace; permute_and_flip for fewer wrong labels but no probabilities; gaussian for many neighbors.
      relation: replace-one takes n as public; add-remove hides n, and needs --queries.
      metric: of the embeddings.
      smoothing: auto lets similar queries share votes as far as the noise asks for it, and similar public rows their labels; none does neither.
      classes: number of classes, or their names with commas between them.
      infer_classes: read the classes from the private labels. Epsilon does not cover what that shows, and the statement says so.
      allow_large_epsilon: allow an epsilon above 50, which protects nobody.
      budget: epsilon that may be spent on this data set in all, set at its first release; this epsilon where it is not given.
      budget_delta: likewise for delta.
      ledger: file of the budget; <private file>.ledger.jsonl where it is not given. Keep one for all copies of the same records.
      out: folder for the results; a new one under runs/ where it is not given.
      patience: seconds to wait for another process that holds the ledger.
      seed: of the clustering, which is public. No option fixes the noise.
      dry_run: tell what error to expect. Reads no private labels, spends nothing, draws nothing.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    public: Path
    private: Path
    epsilon: float
    private_labels: Path | None = None
    queries: int | None = None
    neighbors: int = 1
    delta: float = 0.0
    mechanism: Literal["discrete_laplace", "permute_and_flip", "gaussian"] = "discrete_laplace"
    relation: Relation = "replace-one"
    metric: Literal["sqeuclidean", "cosine"] = "sqeuclidean"
    smoothing: Literal["auto", "none"] = "auto"
    classes: str | None = None
    infer_classes: bool = False
    allow_large_epsilon: bool = False
    budget: float | None = None
    budget_delta: float | None = None
    ledger: Path | None = None
    out: Path | None = None
    patience: float = 60.0
    seed: int = 0
    dry_run: bool = False
    json: bool = False

    @property
    def ledger_path(self) -> Path:
        """Where the budget of this data set is kept."""
        private = self.private.resolve()  # a link to a data set shares its budget
        return self.ledger or private.with_name(f"{private.name}.ledger.jsonl")


@dataclass(frozen=True)
class Show:
    """Show the budget of a private data set, what was spent of it and on what.

    Attributes:
      ledger: file of the budget.
      expect_head: a head that was noted elsewhere. The exit status is 5 if the ledger has forgotten it.
      json: end with one line of JSON on stdout.
    """

    ledger: Positional[Path]
    expect_head: str | None = None
    json: bool = False


@dataclass(frozen=True)
class Repair:
    """Close the damage at the end of a ledger: count it as spent, on the record.

    Attributes:
      ledger: file of the budget.
      reason: what happened to the file, and who decided what it counts as.
      epsilon: what the damaged bytes count as. Defaults to what they tell, or to all that remained.
      delta: likewise for delta.
      patience: seconds to wait for another process that holds the ledger.
      json: end with one line of JSON on stdout.
    """

    ledger: Positional[Path]
    reason: str
    epsilon: float | None = None
    delta: float | None = None
    patience: float = PATIENCE
    json: bool = False


@dataclass(frozen=True)
class Raise:
    """Set the whole budget of a private data set anew. The ledger records it, with the reason.

    Attributes:
      ledger: file of the budget.
      epsilon: that may be spent in all, what was spent before counted in.
      reason: why more may be spent on these people's data than was promised at first, and who decided it.
      delta: that may be spent in all; left as it is where it is not given.
      patience: seconds to wait for another process that holds the ledger.
      json: end with one line of JSON on stdout.
    """

    ledger: Positional[Path]
    epsilon: float
    reason: str
    delta: float | None = None
    patience: float = PATIENCE
    json: bool = False


@dataclass(frozen=True)
class Budget:
    """Show, raise or repair the budget of a private data set."""

    action: Annotated[Show, subcommand("show")] | Annotated[Raise, subcommand("raise")] | Annotated[Repair, subcommand("repair")]


@dataclass(frozen=True)
class Export:
    """Write the labels or networks of a finished folder in a form that other programs read, beside the files that are there.

    Attributes:
      folder: that rknn label, rknn serve or train.distill wrote.
      format: parquet or csv, for the labels; stablehlo, for networks that jax.export loads without this package.
      json: end with one line of JSON on stdout.
    """

    folder: Positional[Path]
    format: Literal["parquet", "csv", "stablehlo"]
    json: bool = False


@dataclass(frozen=True)
class Simulate:
    """Simulate one-record clients under a local mechanism, and compare the error with what the exact variances say.

    Attributes:
      clients: number of clients, such as 1e6.
      mechanism: a local one, or best.
      queries: number of queries s.
      classes: number of classes.
      neighbors: number of queries k that each client votes for.
      epsilon: of each client's message.
      level: message draws every message; count draws the totals from their exact joint law.
      seed: of votes and messages.
      processes: number of processes, on as many hosts, that simulate together; each is started with the same arguments but for process.
      process: number of this one, from 0.
      coordinator: host:port of process 0.
      json: end with one line of JSON on stdout.
    """

    clients: float
    mechanism: str = "collision"
    queries: int = 100
    classes: int = 10
    neighbors: int = 1
    epsilon: float = 1.0
    level: Literal["message", "count"] = "message"
    seed: int = 0
    processes: int = 1
    process: int = 0
    coordinator: str = "localhost:12300"
    json: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    commands: Any = (
        Annotated[Label, subcommand("label")]
        | Annotated[Budget, subcommand("budget")]
        | Annotated[Export, subcommand("export")]
        | Annotated[Simulate, subcommand("simulate")]
        | Annotated[Account, subcommand("account")]
        | Annotated[Serve, subcommand("serve")]
        | Annotated[Join, subcommand("join")]
        | Annotated[Audit, subcommand("audit")]
    )
    flags = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff)
    description = "Label public data with private records at a stated privacy, and keep the budget."
    command: Label | Budget | Export | Simulate | Account | Serve | Join | Audit = tyro.cli(
        commands, args=argv, prog="rknn", description=description, config=flags
    )
    action = command.action if isinstance(command, Budget | Account) else command
    try:
        result = _run(action)
        status = cli_audit.BROKEN if result.get("broken") else 0
    except (KeyboardInterrupt, ValueError, OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and NO_MEMORY not in str(error):
            raise  # a fault of this program, with where it happened
        words = str(error) or "stopped"
        if isinstance(error, MemoryError | RuntimeError):
            words = f"There is not enough memory ({words.splitlines()[0]}); use fewer queries, classes or public rows."
        result, status = {"error": " ".join([*words.split(), *getattr(error, "__notes__", [])])}, _status(error)
        err.print(f"rknn: error: {result['error']}")
    if action.json:
        sys.stdout.write(json.dumps(result | {"exit_status": status}, allow_nan=False, default=float) + "\n")
    return status


def label(settings: Label) -> dict[str, Any]:
    """Release labels for the public rows, or tell what to expect of that. Returns what `--json` prints."""
    with err.status("loading"):  # shows on a terminal only
        from rknn_jax import label as job
        from rknn_jax import preview
    with err.status("reading both files and clustering the public rows"):
        plan = job.prepare(settings)
    _tell_plan(plan)
    if settings.dry_run:
        expected = preview.preview(plan.mechanism, plan.queries.size, plan.num_records, job.weights(plan, plan.num_votes))
        _tell_preview(plan, expected)
        told = {name: _text_keys(value) for name, value in asdict(expected).items()}
        counts = {"num_queries": plan.mechanism.num_queries, "num_classes": plan.data.classes.count, "num_records": plan.num_records}
        return {"dry_run": True, "affordable": plan.affordable, **counts, **told}
    if plan.paid:
        tell(err, "finishing", f"the release that was paid for and stopped, in {plan.folder}; it costs nothing more")
    if plan.data.ignored:
        tell(err, "ignored", f"{plan.data.ignored:,} labelled private records that cannot be used cast no vote; tell nobody how many")
    if plan.data.labels is not None and not np.any(plan.data.labels >= 0):
        tell(err, "warning", "no private record casts a vote, so noise alone is released; tell nobody")
    with err.status("releasing"):
        done = job.release(plan)
    unsure = None if done.counts is None else job.unsure_share(plan, done.counts)
    _tell_release(plan, done, unsure)
    files = {"page" if name.endswith(".html") else name.split(".")[0]: str(plan.folder / name) for name in RESULTS}
    return {"files": files, "unsure": unsure, **done.card}


def show_budget(settings: Show) -> dict[str, Any]:
    """Print a ledger. Returns what `--json` prints."""
    ledger = Ledger.open(settings.ledger)
    told = err if settings.json else out
    _tell_account(told, ledger)
    entries = ledger.entries()
    if settings.expect_head is not None and settings.expect_head not in [entry.hash for entry in entries]:
        raise LedgerCorruptError(
            f"Expected {settings.ledger} to have had the head {settings.expect_head}, and it has not: lines were removed, or the file was "
            "replaced by an older one. Put the last good copy back before anything is spent."
        )
    for entry in entries:
        told.print(f"  {entry.time}  {entry.kind:<6}  {entry.amount!s:<28}  {entry.purpose}")
    lines = [{"time": e.time, "kind": e.kind, **e.amount._asdict(), "purpose": e.purpose, "hash": e.hash} for e in entries]
    return _account(ledger) | {"entries": lines}


def repair_budget(settings: Repair) -> dict[str, Any]:
    """Close the damage of a ledger and print it. Returns what `--json` prints."""
    ledger = Ledger(settings.ledger, None, settings.patience)
    ledger.repair(settings.reason, settings.epsilon, settings.delta)
    _tell_account(err if settings.json else out, ledger)
    return _account(ledger)


def raise_budget(settings: Raise) -> dict[str, Any]:
    """Set the budget anew and print it. Returns what `--json` prints."""
    ledger = Ledger.open(settings.ledger, patience=settings.patience)
    delta = ledger.budget.delta if settings.delta is None else settings.delta
    ledger.raise_budget(settings.epsilon, delta, settings.reason)
    _tell_account(err if settings.json else out, ledger)
    return _account(ledger)


def export(settings: Export) -> dict[str, Any]:
    """Write the folder's results in another form. Returns what `--json` prints."""
    with err.status("loading"):
        from rknn_jax import interchange
    with err.status("writing"):
        paths = interchange.write(settings.folder, settings.format)
    tell(err, "files", ", ".join(map(str, paths)))
    return {"files": {path.stem: str(path) for path in paths}}


def simulate(settings: Simulate) -> dict[str, Any]:
    """Simulate, and print the error. Returns what `--json` prints."""
    os.environ["XLA_FLAGS"] = f"--xla_cpu_prefer_vector_width=512 {os.environ.get('XLA_FLAGS', '')}"  # decodes twice as fast
    with err.status("loading"):
        import jax

        from rknn_jax import mechanisms
        from rknn_jax import simulate as job
    compilation.keep()
    if not 0 <= settings.process < settings.processes:
        raise ValueError(f"Expected 0 <= --process < {settings.processes} processes, got --process {settings.process}.")
    if settings.processes > 1:
        jax.distributed.initialize(settings.coordinator, settings.processes, settings.process)
    sizes = {"num_queries": settings.queries, "num_classes": settings.classes, "num_neighbors": settings.neighbors}
    if settings.mechanism == "best":
        mechanism, reason = mechanisms.best(settings.epsilon, **sizes)
        tell(err, "best", reason)
    else:
        mechanism = job.make(settings.mechanism, epsilon=settings.epsilon, **sizes)
    tell(err, "mechanism", str(mechanism))
    with err.status("simulating") as status:
        found = job.simulate(
            mechanism,
            whole("clients", settings.clients),
            settings.level,
            settings.seed,
            on_progress=lambda share: status.update(f"simulating: {share:.0%}"),
        )
    tell(err, "speed", f"{found.clients:,} clients in {found.seconds:.3g} s, {found.clients_per_second:,.0f} a second")
    tell(err, "error", f"mean square {found.mse:.6g}, predicted {found.predicted_mse:.6g}; bias {found.bias_z:+.2f} standard errors")
    return asdict(found)


def _run(action: Label | Show | Raise | Repair | Export | Simulate | Serve | Join | Audit | cli_account.Action) -> dict[str, Any]:
    match action:
        case Label():
            compilation.keep_none()
            return label(action)
        case Show():
            return show_budget(action)
        case Raise():
            return raise_budget(action)
        case Repair():
            return repair_budget(action)
        case Export():
            return export(action)
        case Simulate():
            return simulate(action)
        case Serve():
            return cli_federation.serve(action)
        case Join():
            compilation.keep_none()
            return cli_federation.join(action)
        case Audit():
            return cli_audit.run(action)
        case _:
            return cli_account.run(action)


def _status(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 3 if isinstance(error, BudgetExceededError) else 5 if isinstance(error, LedgerCorruptError) else 2


def _account(ledger: Ledger) -> dict[str, Any]:
    amounts = {name: getattr(ledger, name)._asdict() for name in ("budget", "spent", "remaining")}
    return {"path": str(ledger.path), "head": ledger.head, **amounts}


def _tell_account(told: Console, ledger: Ledger) -> None:
    for name in ("budget", "spent", "remaining", "head"):
        tell(told, name, str(getattr(ledger, name)))
    if any(ledger.unread):
        tell(told, "damaged", f"the last line; {ledger.unread} of what is spent is on its account; see `rknn budget repair`")


def _tell_plan(plan: "Plan") -> None:
    from rknn_jax import preview

    data, sizes, settings = plan.data, plan.queries.size, plan.settings
    records = "private records" if plan.num_records is None else f"{plan.num_records:,} private records"
    assumed = " assumed, since a dry run reads no labels (pass --classes)" if data.classes.source == "assumed" else ""
    tell(
        err,
        "read",
        f"{len(data.public):,} public rows and {records} of {data.public.shape[1]} dimensions; {data.classes.count} classes{assumed}",
    )
    all_rows = " (no more public rows than that)" if settings.queries is None and len(sizes) == len(data.public) else ""
    tell(
        err,
        "queries",
        f"{len(sizes)}{all_rows}, of {sizes.min()} to {sizes.max()} public rows each; each private record votes for {settings.neighbors}",
    )
    scale, stddev = preview.noise_scale(plan.mechanism), preview.noise_stddev(plan.mechanism)
    tell(err, "noise", f"{settings.mechanism} of scale {scale:.4g}, standard deviation {stddev:.4g} votes")


def _tell_preview(plan: "Plan", expected: "Preview") -> None:
    tell(err, "lead", ", ".join(f"{gap:,} votes for {flips:.1%}" for flips, gap in expected.required_gaps.items()) + " of labels flipped")
    if expected.expected_votes and expected.clear:
        tell(err, "votes", "about {:,.1f} for the smallest query, {:,.1f} for the median one".format(*expected.expected_votes))
        clear = ", ".join(f"{share:.0%} at {purity:.0%} agreement" for purity, share in expected.clear.items())
        tell(err, "clear", f"public rows whose label noise flips in under 5% of runs: {clear} within a query")
    tell(err, "advice", expected.advice)
    left = f"{plan.ledger.remaining} left" if plan.ledger else "does not exist yet"
    refused = "" if plan.affordable else ", so this release would be refused"
    tell(err, "ledger", f"{plan.settings.ledger_path}: {left}{refused}. Nothing was spent.")


def _tell_release(plan: "Plan", done: "Release", unsure: float | None) -> None:
    classes, account = plan.data.classes, done.card["ledger"]
    per_class = np.bincount(done.labels, minlength=classes.count)
    most = np.sort(np.argsort(-per_class, kind="stable")[:20])
    rest = f"; {classes.count - len(most)} more classes" if len(most) < classes.count else ""
    tell(err, "labels", ", ".join(f"{classes.name(int(c))} {per_class[c]:,}" for c in most) + rest)
    if unsure is not None:
        tell(err, "unsure", f"{unsure:.1%} of the public rows: their query leads by less than what noise flips in 5% of runs")
    tell(err, "files", ", ".join(str(plan.folder / name) for name in RESULTS))
    spent, left = (Amount(**account[name]) for name in ("spent", "remaining"))
    tell(err, "ledger", f"{plan.settings.ledger_path}: {spent} spent in all; {left} left; head {account['head']}")
    tell(err, "privacy", done.card["statement"])
    for number, line in enumerate(done.card["not_covered"]):
        tell(err, "" if number else "not covered", line)


def _text_keys(value: Any) -> Any:
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else value


if __name__ == "__main__":
    sys.exit(main())
