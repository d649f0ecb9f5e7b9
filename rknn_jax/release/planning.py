"""Plan of a release: its labeler, ledger and public side, before anything is spent.

`prepare` reads and checks the input; `plan` opens the ledger and works on the public rows. Both
refuse whatever can be refused, and neither changes nor spends anything. `rknn_jax.release.label`
makes the release.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rknn_jax import check as checks
from rknn_jax._internal import disk
from rknn_jax.privacy.charges import new_ledger_affords
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.privacy.roles import Roles, guarantee
from rknn_jax.release import release_folder, surveys
from rknn_jax.release.accounts import first_budget, open_ledger
from rknn_jax.release.counting import Question
from rknn_jax.release.inputs import Data, check, read, refuse_inside
from rknn_jax.release.preview import USUAL, Expected
from rknn_jax.release.shards import Shard
from rknn_jax.release.survey import Survey, public_size
from rknn_jax.release.surveys import Choice

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

UNSEEN = (
    "ledger",
    "out",
    "json",
    "dry_run",
    "private",
    "public",
    "private_labels",
    "embedding",
    "label",
    "drop",
    "classes_file",
    "budget",
    "budget_delta",
    "accounting",
    "patience",
    "engine",
    "address",
    "controller",
    "contact",
    "purpose",
)
"""Settings on which the noisy sum of a release does not depend."""


CLEARLY = 0.05
"""Expected accuracy by which another labeler must be better, so that it is advised.

All are simulated on groups of public rows. Which labeler suits the classes, no public row can tell.
"""


@dataclass(frozen=True)
class Plan:
    """Everything that a release needs, checked; nothing is spent yet.

    Attributes:
      survey: Public side of the release, with its settings and data.
      ledger: Ledger to charge; None if it is still to be made.
      paid: Flag for a release that a stopped process has already paid for. Defaults to False.
      choice: Reason for a labeler that `auto` chose. Defaults to "", for one that was named.
    """

    survey: Survey
    ledger: Ledger | None
    paid: bool = False
    choice: str = ""

    @property
    def settings(self) -> "Settings":
        """Settings with a labeler and a mechanism; `prepare` adds the folder of the results."""
        return self.survey.settings

    @property
    def data(self) -> Data:
        """Public and private input."""
        return self.survey.data

    @property
    def folder(self) -> Path:
        """Folder of the results; `ValueError` if the settings name none."""
        if self.settings.out is None:
            raise ValueError(
                "Expected a folder for the results, got out=None; name one, or let prepare do so."
            )
        return self.settings.out

    @property
    def num_records(self) -> int | None:
        """Number n of private records, or of persons if they are protected; None if private."""
        return self.survey.num_records

    @property
    def question(self) -> Question:
        """Public side of the count."""
        return Question(
            self.survey.tally,
            self.data.classes,
            self.data.encode,
            self.settings.labels_per_record,
            self.survey.checkers,
        )

    @property
    def affordable(self) -> bool:
        """True if the ledger has this release's cost left."""
        if self.paid:
            return True
        if self.ledger:
            return self.ledger.affords(self.cost)
        settings = self.settings
        return new_ledger_affords(first_budget(settings), settings.accounting or "sum", self.cost)

    @property
    def cost(self) -> Guarantee:
        """Guarantee of the release, which its ledger is charged for."""
        return self.survey.guarantee

    @property
    def check_is_free(self) -> bool:
        """True if the ledger pays as much for votes with a check as for votes alone."""
        return _is_free(self.survey, self.ledger)

    @property
    def check_epsilon(self) -> float:
        """Epsilon of a check, whether records check or not."""
        return _of_both(self.survey, self.ledger)[1]


def prepare(settings: "Settings", private: Sequence[Shard] | None = None) -> Plan:
    """Read the public rows, check everything and do the long work on public rows.

    Args:
      settings: Settings of the release.
      private: Shards of the private records, as for `inputs.read`. Defaults to the files that the
        settings name.

    Raises:
      ValueError: If the input or the settings cannot be used. Nothing was changed or spent then.
    """
    check(settings)
    surveys.check(settings)
    data = read(settings, private)
    choice = surveys.choose(settings, data)
    wanted = request(choice.settings, data)
    folder = (
        settings.out
        or release_folder.find_unfinished(Path("runs"), wanted, settings.ledger_path)
        or disk.new_path(Path("runs"), f"label-eps{settings.epsilon:g}")
    )
    refuse_inside(folder, settings)
    paid = release_folder.is_paid(folder, wanted, settings.ledger_path)
    if not paid:
        release_folder.refuse_results(folder)
    placed = Choice(replace(choice.settings, out=folder), choice.reason)
    return _planned(
        placed, data, paid=paid, roles=release_folder.roles_of(folder) if paid else None
    )


def plan(settings: "Settings", data: Data) -> Plan:
    """Choose the labeler, open the ledger and do the long work on public rows.

    Args:
      settings: Settings of the release, which `surveys.check` and `inputs.check` have passed.
      data: Input of the release.

    Raises:
      ValueError: As in `prepare`.
    """
    return _planned(surveys.choose(settings, data), data)


def _planned(choice: Choice, data: Data, *, paid: bool = False, roles: Roles | None = None) -> Plan:
    """Return the plan; a paid release goes on with the roles that it began with, if any."""
    settings = choice.settings
    kind = surveys.of(settings)
    ledger = open_ledger(settings, kind.cost_of(settings, data), paid=paid)
    survey = kind.of(settings, data)
    whole, epsilon = _of_both(survey, ledger)
    if not paid:
        roles = _roles(survey, epsilon, free=_is_free(survey, ledger))
    if roles is not None:
        survey = _checked(survey, roles, whole, epsilon)
        ledger = open_ledger(settings, whole, paid=paid)  # a check may cost more than votes alone
    return Plan(survey, ledger, paid, choice.reason)


def _of_both(survey: Survey, ledger: Ledger | None) -> tuple[Guarantee, float]:
    """Return the guarantee of a release with its check, and the epsilon of the check."""
    return guarantee(survey.cost, curves=_adds_curves(survey, ledger))


def _adds_curves(survey: Survey, ledger: Ledger | None) -> bool:
    """Return True if the ledger adds Renyi divergences up."""
    rule = ledger.accounting if ledger else survey.settings.accounting or "sum"
    return rule == "renyi"


def _is_free(survey: Survey, ledger: Ledger | None) -> bool:
    """Return True if a check costs the ledger nothing beside the votes; see `privacy.roles`."""
    return bool(survey.cost.delta) or not _adds_curves(survey, ledger)


def _roles(survey: Survey, epsilon: float, *, free: bool) -> Roles | None:
    """Return fresh roles, or None if nobody checks; see `Settings.check_share`.

    Args:
      survey: Survey without a check.
      epsilon: Epsilon of the check.
      free: True if the check costs the ledger nothing. If it does, nobody checks by default.
    """
    settings, labeler = survey.settings, survey.labeler
    # Whole sets are compared, so there is no recall of a class.
    num_classes = 0 if settings.labels_per_record else survey.data.classes.count
    known = survey.num_records
    chosen = checks.NOBODY
    if settings.check_share is not None:
        chosen = checks.parted(settings.check_share, num_classes, several=labeler.chooses)
    elif known is not None and free:
        chosen = checks.shares(known, epsilon, num_classes, several=labeler.chooses)
    return Roles.drawn(*chosen) if chosen.measure else None


def _checked(survey: Survey, roles: Roles, whole: Guarantee, epsilon: float) -> Survey:
    """Return the survey with records that check, by these roles; see `_of_both`."""
    settings = survey.settings
    checkers = checks.Checkers(
        roles,
        survey.data.public,
        survey.labeler.metric,
        survey.data.classes.count,
        epsilon,
        settings.relation,
        settings.unit,
    )
    return replace(survey, checkers=checkers, charged=whole)


def expect(plan: Plan) -> Expected:
    """Return the error to expect of a release, by simulation on public quantities.

    The alternatives are other settings of the labeler, and the other labelers. Nothing private is
    read but the number of records, if that is public, and none is drawn.

    Args:
      plan: Release to make, or dry run.
    """
    expected = plan.survey.expect()
    if expected.expected is None:
        return expected
    others = surveys.expected_of_others(plan.settings, plan.data)
    if not others:
        return expected
    advice = expected.advice
    best = max(others, key=lambda flags: others[flags])
    mine = expected.expected[USUAL]
    if others[best] > max([mine, *expected.alternatives.values()]) + CLEARLY:
        advice = (
            f"{best} is expected to give {others[best]:.0%} at {USUAL:.0%} agreement, where these "
            f"settings give {mine:.0%}"
        )
    return replace(expected, alternatives=expected.alternatives | others, advice=advice)


def request(settings: "Settings", data: Data) -> str:
    """Return a hash of all public input that the noisy sum of a release depends on."""
    settings = surveys.choose(settings, data).settings
    public = {name: value for name, value in asdict(settings).items() if name not in UNSEEN}
    optional = ("representation", "person", "records_per_person", "labels_per_record")
    for name in (*optional, "check_share"):
        if public[name] is None:  # as before there were any
            del public[name]
    if public["labeler"] == "rknn":  # as before there were others
        del public["labeler"]
    if not public["standardize"]:  # as before it could be set
        del public["standardize"]
    public["records"] = public_size(settings, data)
    rows = data.digest or fingerprint(data.public)
    words = repr([sorted(public.items()), data.classes, rows])
    return hashlib.sha256(words.encode()).hexdigest()
