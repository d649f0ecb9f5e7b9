"""Several releases on the same people from Python, with what each costs and what is left.

    with rk.Session("clinic.ledger.jsonl", epsilon=1) as session:
        offer = session.offer(public, private, epsilon=0.2, classes=["benign", "malignant"])
        if offer.affordable:
            labeler = session.label(
                public, private, labels, epsilon=0.2, classes=["benign", "malignant"]
            )
        session.left

A session is a ledger with a cap: whatever is charged from its beginning on, by this program or
another, counts against the session's epsilon and delta, and against the ledger's budget. The cap is
checked before a charge, and all sessions of this program on one ledger take turns. If another
program charges at that moment, the ledger's budget alone stops it. So it does if the labeler that a
session returns is asked to label again. An offer reads no label, draws nothing and costs nothing.
"""

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import ArrayLike

from rknn_jax._internal import ranges
from rknn_jax.privacy.charges import exact_amount, new_ledger_affords
from rknn_jax.privacy.filters import Accounting, Amount, less
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import BudgetExceededError, Ledger, LedgerError
from rknn_jax.release.accounts import LABELS_LOST, spend_stands
from rknn_jax.release.estimator import ReverseKNNLabeler
from rknn_jax.release.preview import Expected

_TURNS: dict[str, threading.Lock] = {}
"""Locks of the ledgers on which sessions of this program were begun."""


@dataclass(frozen=True)
class Offer:
    """Release that has not been made.

    Attributes:
      guarantee: Guarantee that the release would have, which is its cost.
      affordable: True if session and ledger have as much left.
      expected: Expected error, from public quantities.
    """

    guarantee: Guarantee
    affordable: bool
    expected: Expected


class Session:
    """Releases that share one ledger and one cap.

    Attributes:
      ledger: Path of the ledger, absolute.
    """

    def __init__(
        self,
        ledger: str | os.PathLike[str],
        epsilon: float,
        delta: float = 0.0,
        *,
        accounting: Accounting | None = None,
    ) -> None:
        """Begin a session; nothing is spent or written.

        Args:
          ledger: Path of the ledger. If it does not exist, the first release makes it, with the
            session's epsilon and delta as its budget.
          epsilon: Epsilon that may be spent from now on.
          delta: Delta that may be spent from now on. Defaults to 0.
          accounting: Rule of a ledger that does not exist yet: `sum` adds epsilons up, `renyi`
            lets many small releases cost less. A ledger keeps its rule, and the session follows
            it. Defaults to None, `sum`.

        Raises:
          LedgerError: If the ledger is damaged or has another rule, or an amount is out of range.
          ValueError: If the ledger is a URL.
        """
        ranges.check_local("ledger", Path(ledger))
        self.ledger = Path(os.path.abspath(ledger))  # a program may change its folder
        self._cap = exact_amount(epsilon, delta)
        self._accounting = accounting
        self._first = 0
        self._open = True
        self._turn = _TURNS.setdefault(os.path.realpath(self.ledger), threading.Lock())
        self._look = threading.Lock()
        self._seen: tuple[str, int] | None = None
        known = self._known()
        if known is None:
            return
        if accounting not in (None, known.accounting):
            raise LedgerError(
                f"Expected accounting={known.accounting!r} as {self.ledger} has it, got "
                f"accounting={accounting!r}; leave it out."
            )
        self._first = known.num_lines

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open = False

    @property
    def spent(self) -> Amount:
        """Amount of the session's cap that is used up."""
        return less(self._cap, self._left_of_cap())

    @property
    def left(self) -> Amount:
        """Amount that one more release may cost, within the cap and the ledger."""
        known = self._known()
        own = self._left_of_cap()
        return own if known is None else Amount(*map(min, own, known.remaining))

    def affords(self, *guarantees: Guarantee) -> bool:
        """Return True if releases of these guarantees would fit the cap and the ledger together.

        Raises:
          LedgerError: If a guarantee cannot be charged.
        """
        known = self._known()
        if known is None:
            return new_ledger_affords(self._cap, self._accounting or "sum", *guarantees)
        return known.affords(*guarantees) and known.affords(
            *guarantees, within=self._cap, since=self._first
        )

    def offer(
        self,
        public: ArrayLike,
        private: ArrayLike,
        *,
        epsilon: float,
        classes: ArrayLike,
        person: ArrayLike | None = None,
        **settings: Any,
    ) -> Offer:
        """Return what a release would cost and which error to expect. It costs nothing.

        Args:
          public: `[m, f]`, public rows.
          private: `[n, f]`, private rows.
          epsilon: Epsilon of the release.
          classes: All classes that a label can be, public.
          person: As for `label`. Defaults to None.
          **settings: Other settings of `ReverseKNNLabeler`.

        Raises:
          LedgerError: If the ledger belongs to another data set or is damaged.
          ValueError: If the input or the settings cannot be used.
        """
        labeler = self._labeler(epsilon, classes, settings).fit(public)
        guarantee = labeler.cost(private, person)
        expected = labeler.preview(private, person)
        return Offer(guarantee, self.affords(*labeler.costs(private, person)), expected)

    def label(
        self,
        public: ArrayLike,
        private: ArrayLike,
        labels: ArrayLike,
        *,
        epsilon: float,
        classes: ArrayLike,
        person: ArrayLike | None = None,
        **settings: Any,
    ) -> ReverseKNNLabeler:
        """Release labels of the public rows, charged to the ledger.

        Args:
          public: `[m, f]`, public rows.
          private: `[n, f]`, private rows.
          labels: `[n]`, private, as for `ReverseKNNLabeler.label`.
          epsilon: Epsilon of the release.
          classes: All classes that a label can be, public.
          person: `[n]`, whose the records are, private. Epsilon then protects a person. Defaults to
            None.
          **settings: Other settings of `ReverseKNNLabeler`.

        Returns:
          The labeler, with `labels_`, `guarantee_`, `card_` and `predict`.

        Raises:
          BudgetExceededError: If session or ledger have too little left; nothing was drawn then.
          LedgerError: If the session has ended, or the ledger cannot be charged.
          ValueError: If the input or the settings cannot be used; nothing was spent then.
        """
        labeler = self._labeler(epsilon, classes, settings).fit(public)
        costs = labeler.costs(private, person)
        with self._turn:
            if not self.affords(*costs):
                cost = labeler.cost(private, person)
                raise BudgetExceededError(
                    f"This release costs epsilon={cost.epsilon}, delta={cost.delta}, and the "
                    f"session has {self.left} left; ask for less, or begin a session that may "
                    "spend more."
                )
            with spend_stands(self.ledger, LABELS_LOST):
                try:
                    labeler.label(private, labels, person)
                finally:
                    # The next call tells such an error, and not one that is paid.
                    with suppress(LedgerError):
                        self._known()
                self._seen = self._seen or ("", 0)  # a ledger was made, and has gone since
                return labeler

    def _labeler(
        self, epsilon: float, classes: ArrayLike, settings: dict[str, Any]
    ) -> ReverseKNNLabeler:
        if not self._open:
            raise LedgerError(
                f"Expected a session on {self.ledger} that goes on, got one that has ended; begin "
                "another."
            )
        given = sorted({"ledger", "budget", "budget_delta", "accounting"} & settings.keys())
        if given:
            raise ValueError(f"Expected no {given[0]} in a call, got one; it is the session's own.")
        new = self._known() is None
        return ReverseKNNLabeler(
            epsilon=epsilon,
            classes=classes,
            ledger=self.ledger,
            budget=float(self._cap.epsilon) if new else None,
            budget_delta=float(self._cap.delta) if new else None,
            accounting=self._accounting if new else None,
            **settings,
        )

    def _known(self) -> Ledger | None:
        """Return the ledger, or None if it does not exist yet.

        Raises:
          LedgerError: If it is not the ledger that this session has seen before, with all its
            lines: what was charged there would count no more.
        """
        with self._look:  # in turns, so that no look is older than what was seen
            known = Ledger.open(self.ledger) if os.path.lexists(self.ledger) else None
            now = None if known is None else (known.head_of_first_line, known.num_lines)
            seen = self._seen
            if seen is not None and (now is None or now[0] != seen[0] or now[1] < seen[1]):
                got = "none" if now is None else "another one, or an earlier copy"
                raise LedgerError(
                    f"Expected the ledger of this session at {self.ledger}, with all that it was "
                    f"charged, got {got}; put it back, or begin another session after a repair."
                )
            self._seen = now
        return known

    def _left_of_cap(self) -> Amount:
        known = self._known()
        return self._cap if known is None else known.left(within=self._cap, since=self._first)
