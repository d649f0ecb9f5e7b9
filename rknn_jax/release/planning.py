"""Plan of a release: its labeler, ledger and public side, before anything is spent.

`prepare` reads and checks the input; `plan` opens the ledger and works on the public rows. Both
refuse whatever can be refused, and neither changes nor spends anything. `rknn_jax.release.label`
makes the release.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rknn_jax import check as checks
from rknn_jax._internal import disk, urls
from rknn_jax.labelers._sum_labeler import Words
from rknn_jax.privacy.charges import new_ledger_affords
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.privacy.roles import Roles, guarantee
from rknn_jax.privacy.statement import Contribution
from rknn_jax.question import Before, Question
from rknn_jax.release import choosing, questions, rehearsal, release_folder
from rknn_jax.release.accounts import first_budget, open_ledger
from rknn_jax.release.choosing import Choice
from rknn_jax.release.counting import Counter
from rknn_jax.release.inputs import Data, check, read, refuse_inside, taught
from rknn_jax.release.labeler_settings import public_size
from rknn_jax.release.preview import USUAL, Expected
from rknn_jax.release.shards import Shard
from rknn_jax.settings import by_option

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

UNSEEN = (
    "ledger",
    "out",
    "json",
    "dry_run",
    "rounds",
    "public",
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
    "justification",
)
"""Settings on which the noisy sum of a release does not depend, or which are read into others."""

FILES = ("private", "private_labels")
"""Settings that name private files, which may be moved with their release."""


CLEARLY = 0.05
"""Expected accuracy by which another labeler must be better, so that it is advised.

All are simulated on groups of public rows. Which labeler suits the classes, no public row can tell.
"""


@dataclass(frozen=True)
class Plan:
    """Everything that a release needs, checked; nothing is spent yet.

    Attributes:
      settings: Settings with a labeler and a mechanism; `prepare` adds the folder of the results.
      data: Public and private input.
      question: What the private records are asked, and how the answer is read.
      ledger: Ledger to charge; None if it is still to be made.
      checkers: Check by records that do not add to the sum. Defaults to None: all add to it.
      paid: Flag for a release that a stopped process has already paid for. Defaults to False.
      choice: Reason for a labeler that `auto` chose. Defaults to "", for one that was named.
      begun_by: Engines that took the sum of a stopped release. Defaults to none.
    """

    settings: "Settings"
    data: Data
    question: Question
    ledger: Ledger | None
    checkers: checks.Checkers | None = None
    paid: bool = False
    choice: str = ""
    begun_by: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Folder of the results; `ValueError` if the settings name none."""
        if self.settings.out is None:
            raise ValueError(
                "Expected a folder for the results, got out=None; name one, or let prepare do so."
            )
        return self.settings.out

    @property
    def cost(self) -> Guarantee:
        """Guarantee of the release and its check, which its ledger is charged for."""
        return self.question.guarantee

    @property
    def num_records(self) -> int | None:
        """Number n of private records, or of persons if they are protected; None if private."""
        return public_size(self.settings, self.data)

    @property
    def num_voters(self) -> int | None:
        """Number of records, or persons, that add to the sum, about; None if n is private."""
        if self.num_records is None or self.checkers is None:
            return self.num_records
        return round(self.num_records * self.checkers.roles.vote)

    @property
    def num_votes(self) -> int | None:
        """Number of votes of all records, or None if it is private or there are none."""
        votes = self.question.labeler.votes_per_record
        if self.num_records is None or votes is None:
            return None
        assert self.num_voters is not None
        return self.num_voters * votes

    @property
    def counter(self) -> Counter:
        """Public side of the count."""
        return Counter(
            self.question.tally,
            self.data.classes,
            self.data.encode,
            labels_per_record=self.settings.labels_per_record,
            checkers=self.checkers,
        )

    @property
    def contribution(self) -> Contribution:
        """Largest part that a record or a person has in the release."""
        return Contribution(self.question.tally.counted, self.question.labeler.votes_per_record)

    @property
    def engines(self) -> tuple[str, ...]:
        """Engines that took the sum, in this process and in those that were stopped before it."""
        return tuple(dict.fromkeys((*self.begun_by, self.settings.engine)))

    @property
    def words(self) -> Words:
        """The part of a statement that is about the labeler and its queries."""
        found = self.question.words
        if not self.question.labeler.clusters:
            return found
        # The seed of the clustering is public. No seed fixes the noise.
        return found._replace(facts=found.facts | {"clustering_seed": self.settings.seed})

    @property
    def affordable(self) -> bool:
        """True if the ledger has this release's cost left."""
        if self.paid:
            return True
        if self.ledger:
            return self.ledger.affords(self.cost)
        settings = self.settings
        return new_ledger_affords(first_budget(settings), settings.spending.rule, self.cost)

    @property
    def check_is_free(self) -> bool:
        """True if the ledger pays as much for votes with a check as for votes alone."""
        # See `privacy.roles`.
        return bool(self.question.noise.guarantee.delta) or not self.adds_curves

    @property
    def check_epsilon(self) -> float:
        """Epsilon of a check, whether records check or not."""
        return self._with_check[1]

    @property
    def adds_curves(self) -> bool:
        """True if the ledger adds Renyi divergences up."""
        rule = self.ledger.accounting if self.ledger else self.settings.spending.rule
        return rule == "renyi"

    @property
    def _with_check(self) -> tuple[Guarantee, float]:
        """Guarantee of the release with a check, and the epsilon of the check."""
        return guarantee(self.question.noise.guarantee, curves=self.adds_curves)

    def checked(self, roles: Roles) -> "Plan":
        """Return the plan with records that check, by these roles."""
        whole, epsilon = self._with_check
        checkers = checks.Checkers(
            roles,
            self.data.public,
            self.question.labeler.metric,
            num_classes=self.data.classes.count,
            epsilon=epsilon,
            relation=self.settings.relation,
            unit=self.settings.unit,
        )
        # A check may cost more than votes alone.
        ledger = open_ledger(self.settings, [whole], paid=self.paid)
        question = replace(self.question, guarantee=whole)
        return replace(self, question=question, ledger=ledger, checkers=checkers)

    def fresh_roles(self, share: float | None, epsilon: float) -> Roles | None:
        """Return fresh roles, or None if nobody checks.

        Args:
          share: Share of the units that check, as `Settings.check_share`.
          epsilon: Epsilon of the check.
        """
        several = self.question.labeler.chooses
        # Whole sets are compared, so there is no recall of a class.
        num_classes = 0 if self.settings.labels_per_record else self.data.classes.count
        known = self.num_records
        chosen = checks.NOBODY
        if share is not None:
            chosen = checks.parted(share, num_classes, several=several)
        elif known is not None and self.check_is_free:
            chosen = checks.shares(known, epsilon, num_classes, several=several)
        return Roles.drawn(*chosen) if chosen.measure else None


def prepare(
    settings: "Settings",
    private: Sequence[Shard] | None = None,
    before: Before | None = None,
    roles: Roles | None = None,
) -> Plan:
    """Read the public rows, check everything and do the long work on public rows.

    Args:
      settings: Settings of the release, or of one round of it.
      private: Shards of the private records, as for `inputs.read`. Defaults to the files that the
        settings name.
      before: Labels of the rounds before. Defaults to None, in a first round.
      roles: Roles of the records in all rounds. Defaults to None: by `settings.check_share`.

    Raises:
      ValueError: If the input or the settings cannot be used. Nothing was changed or spent then.
    """
    check(settings)
    choosing.check(settings)
    data = read(settings, private)
    settings, data = after(settings, data, before)
    choice = choosing.choose(settings, data)
    # A release that was paid for and stopped is found by what was asked, with or without its
    # folder.
    wanted = request(choice.settings, data)
    folder = (
        settings.out
        or release_folder.find_unfinished(Path("runs"), wanted, settings.ledger_path)
        or disk.new_path(Path("runs"), f"label-eps{settings.epsilon:g}")
    )
    refuse_inside(folder, settings)
    release_folder.clear_finished(folder)
    # Only the same question to the same ledger is finished at no cost.
    paid = release_folder.is_paid(folder, wanted, settings.ledger_path)
    if not paid:
        release_folder.refuse_results(folder)
    placed = Choice(replace(choice.settings, out=folder), choice.reason)
    if not paid:
        return _planned(placed, data, roles=roles)
    # The statement is about the runs before too.
    planned = _planned(placed, data, paid=True, roles=release_folder.roles_of(folder))
    return replace(planned, begun_by=release_folder.engines_of(folder))


def after(settings: "Settings", data: Data, before: Before | None) -> tuple["Settings", Data]:
    """Return the settings and the input of a round after others; see `inputs.taught`."""
    if before is None:
        return settings, data
    return replace(settings, metric="sqeuclidean"), taught(data, before, settings.metric)


def plan(
    settings: "Settings", data: Data, before: Before | None = None, roles: Roles | None = None
) -> Plan:
    """Choose the labeler, open the ledger and do the long work on public rows.

    Args:
      settings: Settings of the release, which `choosing.check` and `inputs.check` have passed.
      data: Input of the release.
      before: Labels of the rounds before. Defaults to None, in a first round.
      roles: Roles of the records in all rounds. Defaults to None: by `settings.check_share`.

    Raises:
      ValueError: As in `prepare`.
    """
    settings, data = after(settings, data, before)
    return _planned(choosing.choose(settings, data), data, roles=roles)


def _planned(choice: Choice, data: Data, *, paid: bool = False, roles: Roles | None = None) -> Plan:
    """Return the plan, with these roles; a paid release goes on with those that it began with."""
    settings = choice.settings
    ledger = open_ledger(settings, [questions.cost_of(settings, data)], paid=paid)
    # An earlier version may have chosen another number of queries.
    asked = release_folder.num_queries_of(settings.out) if paid and settings.out else None
    question = questions.ask(settings, data, asked)
    planned = Plan(settings, data, question, ledger, paid=paid, choice=choice.reason)
    if not paid and roles is None:
        roles = planned.fresh_roles(settings.check_share, planned.check_epsilon)
    return planned if roles is None else planned.checked(roles)


def expect(plan: Plan) -> Expected:
    """Return the error to expect of a release, by simulation on public quantities.

    The alternatives are other settings of the labeler, and the other labelers. Nothing private is
    read but the number of records, if that is public, and none is drawn.

    Args:
      plan: Release to make, or dry run.
    """
    expected = rehearsal.expect(plan.settings, plan.data, plan.question, plan.num_voters)
    if expected.expected is None:
        return expected
    # By simulation on groups of public rows: no label, and nothing private but n, is read.
    others = choosing.expected_of_others(plan.settings, plan.data, plan.num_voters)
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


def files_of(settings: "Settings", name: str) -> list[str]:
    """Return the files that a setting names."""
    given: str | Sequence[str] | None = getattr(settings, name)
    return [given] if isinstance(given, str) else list(given or ())


def places(settings: "Settings") -> str:
    """Return the private files, absolute, one a line, in any order."""
    files = [one for name in FILES for one in files_of(settings, name)]
    return "\n".join(sorted(map(_place, files)))


def _place(name: str) -> str:
    local = urls.local_path(name)
    return urls.plain_url(name) if local is None else os.path.abspath(local)


def request(settings: "Settings", data: Data) -> str:
    """Return a hash of all public input that the noisy sum of a release depends on.

    Private records are known by their files' names and columns, so that a release is not finished
    as that of another file or label.
    """
    settings = choosing.choose(settings, data).settings
    public = {name: value for name, (_, value) in by_option(settings).items() if name not in UNSEEN}
    optional = ("representation", "person", "records_per_person", "labels_per_record")
    for name in (*optional, "check_share"):
        if public[name] is None:  # as before there were any
            del public[name]
    for name in FILES:
        public[name] = sorted(Path(one).name for one in files_of(settings, name))
    if public["labeler"] == "rknn":  # as before there were others
        del public["labeler"]
    if not public["standardize"]:  # as before it could be set
        del public["standardize"]
    # What is asked may depend on n, where it is public.
    public["records"] = public_size(settings, data)
    rows = data.digest or fingerprint(data.public)
    found: list[object] = [sorted(public.items()), data.classes, rows]
    if data.before is not None:
        found += [fingerprint(data.before.probabilities), data.before.metric]
    words = repr(found)
    return hashlib.sha256(words.encode()).hexdigest()
