"""Faults of plans of releases and of their statements."""

from benchmarks._faults._known import Known

FOLDER = ("tests/test_release_folder.py",)
MEASURED = ("tests/test_measured.py",)
PERSONS = ("tests/test_persons.py",)
SETS = ("tests/test_label_sets.py",)

FAULTS = (
    Known(
        "statements",
        "sets are checked by their recall of a class, which ends in an error after the charge",
        "rknn_jax/release/planning.py",
        "num_classes = 0 if self.settings.labels_per_record else self.data.classes.count",
        "num_classes = self.data.classes.count",
        SETS,
    ),
    Known(
        "statements",
        "a check of Gaussian votes is said to cost, and nobody checks by default",
        "rknn_jax/release/planning.py",
        "return bool(self.question.noise.guarantee.delta) or not self.adds_curves",
        "return not self.adds_curves",
        MEASURED,
    ),
    Known(
        "statements",
        "a page tells the share of those that vote as that of those that check",
        "rknn_jax/release/statements.py",
        "{1 - checkers.roles.vote:.1%}, by a coin",
        "{checkers.roles.vote:.1%}, by a coin",
        MEASURED,
    ),
    Known(
        "statements",
        "the shares of those that choose and of those that measure are exchanged",
        "rknn_jax/release/statements.py",
        '{"choose": roles.choose, "measure": roles.measure, "recall": roles.recall}',
        '{"choose": roles.measure, "measure": roles.choose, "recall": roles.recall}',
        MEASURED,
    ),
    Known(
        "statements",
        "a check is told at the epsilon of the votes",
        "rknn_jax/release/statements.py",
        '{"epsilon": checkers.epsilon}',
        '{"epsilon": plan.question.noise.guarantee.epsilon}',
        MEASURED,
    ),
    Known(
        "statements",
        "a ledger that adds divergences up is told as one that adds epsilons up",
        "rknn_jax/release/statements.py",
        "            accounting=ledger.accounting,\n",
        "",
        MEASURED,
    ),
    Known(
        "statements",
        "the part of a person is told as that of one record",
        "rknn_jax/release/statements.py",
        "        contribution=plan.contribution,\n",
        "",
        PERSONS,
    ),
    Known(
        "statements",
        "a private number of persons is told as taken as public",
        "rknn_jax/release/statements.py",
        '            if plan.num_records is None\n            else [f"the number',
        '            if plan.num_records is None and plan.settings.unit == "record"\n'
        '            else [f"the number',
        PERSONS,
    ),
    Known(
        "statements",
        "a stopped release is finished for labels of another file of the same name",
        "rknn_jax/release/planning.py",
        'FILES = ("private", "private_labels")',
        'FILES = ("private",)',
        FOLDER,
    ),
    Known(
        "statements",
        "the password of a URL is kept in the note of a release",
        "rknn_jax/release/planning.py",
        "urls.plain_url(name) if local is None",
        "name if local is None",
        ("tests/test_one_budget.py",),
    ),
    Known(
        "statements",
        "a release that is paid for is not affordable",
        "rknn_jax/release/planning.py",
        "        if self.paid:\n            return True\n",
        "",
        FOLDER,
    ),
    Known(
        "statements",
        "records that check count among those that vote",
        "rknn_jax/release/planning.py",
        "return round(self.num_records * self.checkers.roles.vote)",
        "return self.num_records",
        SETS,
    ),
)
