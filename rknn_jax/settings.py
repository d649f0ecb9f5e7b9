"""Parts that the settings of several commands have: columns, classes, and the budget.

A command's settings are a dataclass whose fields are options or parts. On a command line, in a file
of options and in messages an option has its own name, whatever part it is in: `--ledger`, not
`--spending.ledger`. `by_option` lists options so.

JAX takes seconds to import, and --help does not need it, so nothing here imports it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from rknn_jax._internal.option_names import option
from rknn_jax._internal.ranges import Delta, Epsilon, Seconds, make_plain
from rknn_jax.formats import LABELS, Columns
from rknn_jax.privacy.charges import exact_amount
from rknn_jax.privacy.contributions import Protected
from rknn_jax.privacy.filters import Accounting, Amount
from rknn_jax.privacy.ledger import PATIENCE
from rknn_jax.records import features


@dataclass(frozen=True)
class NamedColumns:
    """Columns of tables, or arrays of .npz files, by their names.

    Attributes:
      embedding: name of the array or list column of the embeddings, or names of the feature columns.
      label: name of the array or column of the labels.
      drop: table columns that are not features, such as an id, in both data sets. Those of the public data are copied to the labels.
      person: name of the array or column that identifies the person of each record. Epsilon then protects all records of a person together, and n is the number of persons. A record that names no person casts no vote.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    embedding: tuple[str, ...] = ()
    label: str = LABELS
    drop: tuple[str, ...] = ()
    person: str | None = None

    @property
    def unit(self) -> Protected:
        """Privacy unit that epsilon protects."""
        return "record" if self.person is None else "person"

    def read(self, *, raw: bool = False) -> Columns:
        """Return the columns to read of private records.

        Args:
          raw: True for records that an encoder takes, such as images. Defaults to False.

        Raises:
          ValueError: If a column is named for two roles.
        """
        features.refuse_shared(self.embedding, self.label, self.person, self.drop)
        return Columns(
            self.embedding or None, self.label, raw=raw, person=self.person, drop=self.drop
        )

    def words(self) -> list[str]:
        """Return the options by which a command names the same columns."""
        given = {
            "embedding": list(self.embedding),
            "label": [self.label] if self.label != LABELS else [],
            "drop": list(self.drop),
            "person": [] if self.person is None else [self.person],
        }
        return [word for name, names in given.items() if names for word in (f"--{name}", *names)]


@dataclass(frozen=True)
class GivenClasses:
    """Classes of the labels, which are public. Name them in one of two ways.

    Attributes:
      classes: number of classes, or their names, separated by commas or spaces; in a file of options, a list. If a name is a number, numbers among the labels are names. Otherwise they are class numbers from 0 on.
      classes_file: file with one class name per line, or a .json file with a list of names.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    classes: str | tuple[str, ...] | None = None
    classes_file: Path | None = None

    def __bool__(self) -> bool:
        return self.classes is not None or self.classes_file is not None


@dataclass(frozen=True)
class Spending:
    """Budget of private records for all releases together, and the ledger that keeps account of it.

    Attributes:
      budget: total epsilon that may ever be spent on these records, for a new ledger. The default is the epsilon of this release; rknn join has no default.
      budget_delta: total delta that may ever be spent on these records, for a new ledger. The default is the delta of this release, or 0 for rknn join.
      accounting: how a new ledger adds up costs. sum, the default, adds epsilons. renyi lets many small releases cost less than their sum, and needs --budget-delta. With both, you may choose later releases after seeing earlier ones.
      ledger: file that keeps the budget. The default is <private file>.ledger.jsonl. Use one ledger for all copies of the same records.
      patience: seconds to wait while another process uses the ledger.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    budget: Epsilon | None = None
    budget_delta: Delta | None = None
    accounting: Accounting | None = None
    ledger: Path | None = None
    patience: Seconds = PATIENCE

    def __post_init__(self) -> None:
        make_plain(self)

    @property
    def rule(self) -> Accounting:
        """Rule by which a new ledger adds up."""
        return self.accounting or "sum"

    def first_budget(self, epsilon: float, delta: float) -> Amount:
        """Return the budget of a new ledger, exactly.

        Args:
          epsilon: Cost of its first release, which is the budget if none is named.
          delta: Delta of that release. The same holds for it.
        """
        return exact_amount(
            epsilon if self.budget is None else self.budget,
            delta if self.budget_delta is None else self.budget_delta,
        )

    def ledger_of(self, private: str | Sequence[str]) -> Path:
        """Return the file of the ledger of private records.

        Args:
          private: Names of their files.

        Raises:
          ValueError: If none is named, and the records have no folder beside which it may lie.
        """
        if self.ledger is not None:
            return self.ledger
        names = [private] if isinstance(private, str) else private
        path = Path(names[0])
        if len(names) > 1 or "://" in names[0] or not path.exists():
            raise ValueError(
                f"Expected {option('ledger')} with several files, a pattern or a URL in "
                f"{option('private')}, got none; name a file on this machine, and the same one for "
                "every release on these records."
            )
        own = path.resolve()  # a link to a data set shares its budget
        return own.with_name(f"{own.name}.ledger.jsonl")


def by_option(settings: Any) -> dict[str, tuple[Field[Any], Any]]:
    """Return the field and the value of every option, by its name.

    Args:
      settings: Settings of a command, whose parts are dataclasses, or their class. A class has
        None for values.
    """
    return {field.name: (field, value) for field, value in _options(settings)}


def _options(settings: Any) -> Iterator[tuple[Field[Any], Any]]:
    for field in fields(settings):
        value = None if isinstance(settings, type) else getattr(settings, field.name)
        part = field.type if isinstance(settings, type) else value
        if is_dataclass(part):
            yield from _options(part)
        else:
            yield field, value
