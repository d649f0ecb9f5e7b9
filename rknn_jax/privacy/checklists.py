"""Two public checklists for claims of differential privacy, answered from a statement.

Each question is answered by the values of `privacy.json`, or is left unanswered. An empty answer
means that the statement does not tell. The topics are those of

- Ponomareva et al., "How to DP-fy ML: A Practical Guide to Machine Learning with Differential
  Privacy", 2023, section 5.3.3;
- Near, Darais, Lefkovitz & Howarth, "Guidelines for Evaluating Differential Privacy Guarantees",
  NIST SP 800-226, 2025: the parts of its pyramid, from the parameters to the collection of data.

The wording of the questions is this package's own.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rknn_jax import trust
from rknn_jax.privacy.guarantee import RELATION_WORDS, rounded_up

Card = Mapping[str, Any]
"""Content of `privacy.json`; a statement of an older version may lack entries."""

ACCOUNTANTS = {
    "pure": "Pure differential privacy: epsilons add up",
    "basic": "Basic composition: epsilons and deltas add up",
    "analytic Gaussian": "The exact curve of Gaussian noise",
    "RDP": "Rényi differential privacy, converted to epsilon and delta",
    "PLD": "Privacy loss distributions",
}
"""Explanation of each accountant of `rknn_jax.privacy.accounting`."""

SHARED = "All of them together count as one record."
CLIPPED = "All of them together have the L2 norm of one record's votes."
UNBOUNDED = "Any number of them count; the labeler bounds what they do together."


class Question(NamedTuple):
    """Question of a checklist with its answer.

    Attributes:
      topic: Topic in a few words.
      question: Question, in full.
      answer: Answer by the statement; empty if the statement does not tell.
    """

    topic: str
    question: str
    answer: str


class Checklist(NamedTuple):
    """Questions of one document.

    Attributes:
      title: Title of the document.
      source: Authors, year and section.
      questions: Questions with their answers.
    """

    title: str
    source: str
    questions: tuple[Question, ...]

    @property
    def unanswered(self) -> int:
        """Number of questions that the statement leaves open."""
        return sum(not question.answer for question in self.questions)


def answered(card: Card) -> tuple[Checklist, ...]:
    """Return both checklists, answered from the content of `privacy.json`."""
    return (
        Checklist(
            "How to DP-fy ML: reporting of guarantees",
            "Topics of section 5.3.3 of Ponomareva et al., 2023, in our words.",
            _dp_fy_ml(card),
        ),
        Checklist(
            "NIST SP 800-226: evaluation of guarantees",
            "Topics of Near et al., 2025, in our words.",
            _nist(card),
        ),
    )


def _dp_fy_ml(card: Card) -> tuple[Question, ...]:
    guarantee = card["guarantee"]
    return (
        Question(
            "Setting",
            "Who adds the noise, and who is trusted with the data?",
            _sentence(trust.named(guarantee["trust"]).words),
        ),
        Question(
            "Data accesses covered",
            "Which uses of the private data does the guarantee cover: training, choice of "
            "settings, selection?",
            _covered(card),
        ),
        Question(
            "Output",
            "Which results does the guarantee cover?",
            _listed(card.get("released", ())),
        ),
        Question("Unit of privacy", "What is protected: a record, or a person?", unit(card)),
        Question("Adjacency", "Which data sets are neighbors?", adjacency(card)),
        Question(
            "Accounting",
            "By which accountant was epsilon computed?",
            _sentence(ACCOUNTANTS.get(guarantee["accountant"], guarantee["accountant"])),
        ),
        Question(
            "Assumptions",
            "Under which assumptions does the accountant hold?",
            _listed(card.get("assumptions", ())),
        ),
        Question(
            "Formal statement",
            "What is the guarantee, with epsilon, delta and the curve?",
            f"{card.get('statement', '')} {curve(card)}".strip(),
        ),
        Question("Verifiability", "Can others check the program?", _software(card)),
    )


def _nist(card: Card) -> tuple[Question, ...]:
    guarantee = card["guarantee"]
    trusted = [trust.named(guarantee["trust"]).words, card.get("trusted_with", "")]
    return (
        Question(
            "Privacy parameters",
            "How large are epsilon and delta?",
            f"Epsilon {guarantee['epsilon']}, delta {guarantee['delta']}.",
        ),
        Question("Unit of privacy", "What does one unit hold, and what may it add?", unit(card)),
        Question(
            "Several releases",
            "What do all releases on these data cost together?",
            account(card),
        ),
        Question("Algorithm", "Which mechanism adds the noise?", mechanism(card)),
        Question(
            "Exact noise", "Is the noise free of the faults of rounded numbers?", exactness(card)
        ),
        Question(
            "Test of the claim",
            "Has anybody tried to break the guarantee, with what result?",
            audit(card),
        ),
        Question("Utility", "How large is the error?", ""),
        Question("Bias", "Is the error larger for some classes or groups of people?", ""),
        Question("Trust", "Who must be trusted, and with what?", _listed(filter(None, trusted))),
        Question("Timing", "Do running time or other side channels tell about the data?", ""),
        Question("Access", "Who can read the private data, and how are they kept safe?", ""),
        Question("Collection", "How were the data collected, and is all of it needed?", ""),
        Question("Purpose", "What is the release for?", card.get("purpose", "")),
        Question(
            "Not covered",
            "What does the guarantee leave out?",
            _listed(card.get("not_covered", card.get("does_not_cover", ()))),
        ),
    )


def unit(card: Card) -> str:
    """Return sentences on the unit of privacy and on its largest part in the release."""
    name = card["guarantee"]["unit"]
    bound = card.get("contribution")
    if bound is None:
        return f"One {name}."
    records = bound["records"]
    said = f"One {name}."
    if name != "record":
        words = {"shared": SHARED, "clipped": CLIPPED, "all": UNBOUNDED}
        rest = words.get(records, f"At most {records} count.")
        said = f"One {name} with all records. {rest}"
    if bound["votes"] is not None:
        queries = "query" if bound["votes"] == 1 else "queries"
        each = " in each round" if "rounds" in card else ""
        said += f" A record votes for {bound['votes']} {queries}{each}."
    return said


def adjacency(card: Card) -> str:
    """Return a sentence on the neighboring relation."""
    guarantee = card["guarantee"]
    return _sentence(RELATION_WORDS[guarantee["relation"]].format(unit=guarantee["unit"]))


def curve(card: Card) -> str:
    """Return a sentence on the profile of the guarantee, or an empty text if it has no curve."""
    found = card.get("profile", {})
    points = found.get("points", ())
    if len(points) < 2:
        return ""
    pairs = ", ".join(
        f"({rounded_up(point['epsilon'], 4)}, {rounded_up(point['delta'], 3)})" for point in points
    )
    rho = f" It is {rounded_up(found['rho'], 4)}-zCDP." if "rho" in found else ""
    return f"Each of these pairs of epsilon and delta holds: {pairs}.{rho}"


def account(card: Card) -> str:
    """Return a sentence on the account of all releases on the same data."""
    ledger = card.get("ledger")
    if ledger is None:
        return str(card.get("account", ""))
    spent, budget = (
        f"epsilon {float(ledger[name]['epsilon']):.12g}, delta {float(ledger[name]['delta']):.12g}"
        for name in ("spent", "budget")
    )
    if ledger.get("accounting", "sum") != "sum":
        return (
            f"A ledger adds Rényi divergences up. All releases together are within {budget}, if "
            "the budget was not raised in view of results."
        )
    return f"{_sentence(spent)[:-1]} so far. A ledger keeps account and allows {budget} in all."


def mechanism(card: Card) -> str:
    """Return a sentence on the mechanism and on the software that made the noise."""
    name = card.get("mechanism")
    return f"{name}, by {_versions(card)}." if name and _versions(card) else str(name or "")


def exactness(card: Card) -> str:
    """Return a sentence on the arithmetic of the noise."""
    if card["guarantee"]["sampler"] == "release":
        return "Yes. It consists of exact integers, drawn on the operating system's entropy."
    return "No. It was simulated, which shows a cost and protects nothing."


def audit(card: Card) -> str:
    """Return a sentence on the lower bound of an audit, or an empty text if there is none."""
    found = card.get("audit")
    if found is None:
        return ""
    return (
        f"An audit shows that epsilon is at least {found['epsilon']:.4g}, with confidence "
        f"{found['confidence']:g}: {found['command']}."
    )


def _covered(card: Card) -> str:
    tuning = card.get("tuning")
    left_out = card.get("not_covered", ())
    said = tuning["words"] if tuning else ""
    return f"{said} Not covered: {_listed(left_out)}".strip() if left_out else said


def _software(card: Card) -> str:
    versions = _versions(card)
    return f"The program is under an open license, Apache-2.0: {versions}." if versions else ""


def _versions(card: Card) -> str:
    return ", ".join(f"{name} {version}" for name, version in card.get("versions", {}).items())


def _listed(lines: Any) -> str:
    """Return lines as one sentence, with semicolons between them."""
    return _sentence("; ".join(lines))


def _sentence(words: str) -> str:
    """Return words with a capital letter and a full stop; nothing stays nothing."""
    if not words:
        return ""
    return words[0].upper() + words[1:] + ("" if words.endswith(".") else ".")
