"""`rknn classes`: classes of private labels where the set of classes is private too."""

import os
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rknn_jax._internal import progress
from rknn_jax._internal.ranges import PositiveDelta, ReleaseEpsilon
from rknn_jax._internal.terminal import err, out, stdout, sure_interrupts, tell
from rknn_jax.privacy.guarantee import Guarantee, Relation, Unit
from rknn_jax.settings import NamedColumns, Spending

if TYPE_CHECKING:
    from rich.console import Console

    from rknn_jax.privacy.ledger import DataSet, Ledger
    from rknn_jax.release.class_selection import Selection


@dataclass(frozen=True)
class SelectClasses:
    """Select the classes that enough private records have, and charge it to their ledger.

    A class of few records stays unknown. Pass the result to rknn label as --classes. Name the records as in rknn label. If the program is stopped after the charge, the selection is lost and has to be paid for again. Files of `datasets` may declare their classes: without --epsilon and --delta, these names are printed, no record is read and nothing is spent.

    Attributes:
      private: private records, in files, folders, patterns or URLs.
      epsilon: privacy budget that the selection spends. Without --epsilon and --delta, the classes that the files declare are printed.
      delta: largest probability that a class with a single record is shown.
      public: public embeddings, if their columns are in another order.
      columns: columns of the records. Of a person, one record is drawn.
      relation: replace-one or add-remove, as in every release on these records.
      representation: encoder as in rknn label, for raw records.
      spending: what may be spent in all.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    private: str | tuple[str, ...]
    epsilon: ReleaseEpsilon | None = None
    delta: PositiveDelta | None = None
    public: str | tuple[str, ...] | None = None
    columns: NamedColumns = field(default_factory=NamedColumns)
    relation: Relation = "replace-one"
    representation: str | None = None
    spending: Spending = field(default_factory=Spending)
    json: bool = False

    @property
    def unit(self) -> Unit:
        """Privacy unit that epsilon protects."""
        return self.columns.unit


def run(settings: SelectClasses) -> dict[str, Any]:
    """Select the classes, print them, and return what `--json` prints.

    Raises:
      LedgerError: If the ledger does not allow the selection; nothing was drawn then.
      ValueError: If the settings or the records cannot be used; nothing was spent then.
    """
    with progress.phase("loading"):
        from rknn_jax.formats._data_files import find, unchanged
        from rknn_jax.privacy.ledger import LedgerError
        from rknn_jax.release import accounts, adoption, class_selection, known_classes
    columns = settings.columns.read(raw=settings.representation is not None)
    private = _listed(settings.private)
    declared = known_classes.declared(find(private, "--private").files, columns.label)
    if settings.epsilon is None and settings.delta is None:
        return _tell_declared(settings, declared)
    epsilon, delta = _amount(settings)
    if declared:
        tell(
            err,
            "declared",
            f"the files name {len(declared)} classes, which the same command prints without "
            "--epsilon and --delta, and spends nothing",
        )
    cost = class_selection.cost(epsilon, delta, settings.relation, settings.unit)
    public = None if settings.public is None else _listed(settings.public)
    with (
        progress.phase("reading the private records"),
        sure_interrupts(),
        unchanged(private, "--private"),
    ):
        data = adoption.data_set(private, columns, public, settings.relation)
        records = adoption.private_records(private, columns, public)
        found = class_selection.occurrences(records.shards, settings.unit)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ledger = _ledger(settings, data, cost, [shard.name for shard in records.shards])
    for one in caught:
        tell(err, "warning", str(one.message))
    with accounts.spend_stands(ledger.path, "The selection is lost"):
        selected = class_selection.select(
            found,
            epsilon,
            delta,
            ledger,
            relation=settings.relation,
            unit=settings.unit,
        )
    _tell_selection(err if settings.json else out, selected, settings.unit)
    if stdout.failure and not settings.json:  # the only copy of what was paid for
        _tell_selection(err, selected, settings.unit)
    account = {}
    try:
        account = {"head": ledger.head, "remaining": ledger.remaining._asdict()}
        left = f"{ledger.path}: {ledger.remaining} left; head {ledger.head}"
        tell(err if settings.json else out, "ledger", left)
    except LedgerError as error:
        tell(err, "warning", f"the selection is complete and paid for, but: {error}")
    return {
        "classes": list(selected.counts),
        "counts": selected.counts,
        "guarantee": selected.guarantee.asdict(),
        "ledger": account,
    }


def _amount(settings: SelectClasses) -> tuple[float, float]:
    """Return epsilon and delta of a selection."""
    if settings.epsilon is None or settings.delta is None:
        name = "--epsilon" if settings.epsilon is None else "--delta"
        raise ValueError(
            f"Expected --epsilon and --delta for a selection, got no {name}; such as --epsilon 0.1 "
            "--delta 1e-6."
        )
    return settings.epsilon, settings.delta


def _tell_declared(settings: SelectClasses, names: tuple[str, ...]) -> dict[str, Any]:
    """Print the classes that the files declare, and return what `--json` prints."""
    if not names:
        label = settings.columns.label
        raise ValueError(
            f"Expected files that declare the classes of {label!r}, or --epsilon and "
            "--delta for a private selection, got neither; pass, for example, --epsilon 0.1 "
            "--delta 1e-6, or --label with the name of a ClassLabel column."
        )
    told = err if settings.json else out
    for name in names:
        told.print(f"  {name if name.isprintable() else ascii(name)}")
    tell(told, "classes", _named_option(list(names)))
    tell(
        told,
        "privacy",
        "the files declare these names, and no record was read; they become public if you pass "
        "them on. Nothing was spent.",
    )
    return {"classes": list(names), "declared": True}


def _tell_selection(told: "Console", selected: "Selection", unit: Unit) -> None:
    for name, count in selected.counts.items():
        shown = name if name.isprintable() else ascii(name)
        told.print(f"  {shown:<24} about {max(count, 0):,} {unit}s")
    tell(told, "classes", _option(selected))
    tell(told, "privacy", str(selected.guarantee))


def _option(selected: "Selection") -> str:
    """Return the option of `rknn label` that names the classes, if it can name them."""
    if not selected.counts:
        return "none"
    # As names, also of class numbers: these fit labels that are numbers and labels in text, while
    # their number fits numbers alone, and one text among the labels makes text of them.
    return _named_option(list(selected.counts))


def _named_option(names: list[str]) -> str:
    """Return the option of `rknn label` that has these names, if it can have them."""
    words = names if any("," in name for name in names) else names[:1]
    shown = len(names) > 1 and "".join(names).isprintable()
    if not shown or any(word[:1] == "-" or word != word.strip(",") for word in words):
        return "as above; --classes-file can name them, with others"
    if any("," in name for name in names):
        return f"--classes {shlex.join(names)}"
    return f"--classes {shlex.quote(','.join(names))}"


def _ledger(
    settings: SelectClasses, data: "DataSet", cost: Guarantee, files: Sequence[str]
) -> "Ledger":
    """Open the ledger of these people, or make their first one, and note it in the index."""
    from rknn_jax.privacy import ledger_index
    from rknn_jax.privacy.charges import exact_amount, new_ledger_affords
    from rknn_jax.privacy.fingerprints import warn_of_copies
    from rknn_jax.privacy.ledger import BudgetExceededError, Ledger, LedgerMismatchError
    from rknn_jax.release import adoption
    from rknn_jax.release.accounts import check_recorded

    spending, person = settings.spending, settings.columns.person
    path = spending.ledger_of(settings.private)
    ledger_index.check(path, data.prints)
    warn_of_copies(data.shards)
    names = _listed(settings.private)
    with ledger_index.held(path, data.prints, names, files, patience=spending.patience):
        if os.path.lexists(path):
            try:
                ledger = Ledger.open(path, data.fingerprint, spending.patience, person or "")
            except LedgerMismatchError as error:
                named = (
                    settings.private,
                    settings.columns,
                    settings.public,
                    settings.representation,
                )
                raise LedgerMismatchError(adoption.advice(path, *named)) from error
            ledger.check_person(person)
            check_recorded(spending, ledger)
            return ledger
        budget = spending.first_budget(cost.epsilon, cost.delta)
        if not new_ledger_affords(budget, spending.rule, cost):
            asked = exact_amount(cost.epsilon, cost.delta)
            raise BudgetExceededError(
                f"This selection costs {asked}, and the first budget is to be {budget}; ask for "
                "less, or set a larger --budget and --budget-delta."
            )
        tell(err, "budget", ledger_index.notice(path))
        return Ledger.create(
            path,
            data.fingerprint,
            *budget,
            accounting=spending.rule,
            relation=settings.relation,
            unit=settings.unit,
            rows=data.rows,
            shards=data.shards,
            person=person or "",
        )


def _listed(names: str | tuple[str, ...]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
