"""The page for people: its numbers are bounds that hold and are reached, its words fit the
guarantee, and every release has one.
"""

import json
import math
import os
import re
from dataclasses import replace
from fractions import Fraction
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy.stats import norm

from rknn_jax.federation import publish, round_folder, wire
from rknn_jax.federation.collector import Collector, Reply
from rknn_jax.federation.messages import messages
from rknn_jax.federation.request import Asked, Former, Public
from rknn_jax.labelers import rknn as labeler
from rknn_jax.mechanisms.local import LocalRandomizer
from rknn_jax.privacy import statement
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.events import Gaussian, SampledGaussian
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Amount
from rknn_jax.privacy.responsible import Responsible
from rknn_jax.privacy.statement import (
    CHOSEN_SETTINGS,
    ONE_LEDGER,
    UNKNOWN_MODEL,
    Account,
    Statement,
    belief,
    exception,
    one_in,
    page,
    percent,
    right_guesses,
    two_steps,
)
from rknn_jax.question import Before
from rknn_jax.release import label
from rknn_jax.representations import pca
from tests.test_cli import arguments, blobs, make_files
from train import distill
from train.experiment import Experiment

RELEASE = Guarantee(1.0, 0.0, "replace-one", "central", (), sampler="release")
ACCOUNT = Account(
    "0123456789abcdef", "ab" * 32, *(Amount(Fraction(e), Fraction(0)) for e in ("3", "1.5", "1.5"))
)
WORDS = Statement(
    RELEASE,
    "One hospital.",
    ("a label",),
    ("the classes",),
    "discrete_laplace",
    ACCOUNT,
    "2026-01-02T03:04:05Z",
    "Nothing else.",
    {"queries": 40},
    release="0123456789abcdef",
)
HOSTILE = """<script>alert("1")</script>&amp;'{{ 7 * 7 }}"""


# The numbers


def test_where_divergences_add_up_the_whole_budget_is_what_is_guaranteed():
    """The epsilon that was spent is then no bound for all releases together."""
    assert ACCOUNT.guaranteed == ACCOUNT.spent
    assert ACCOUNT._replace(accounting="renyi").guaranteed == ACCOUNT.budget


@pytest.mark.parametrize("accounting", ["sum", "renyi"])
def test_the_page_tells_the_best_guess_from_all_that_is_guaranteed_with_its_delta(accounting):
    account = ACCOUNT._replace(
        budget=Amount(Fraction(3), Fraction(1, 10)),
        spent=Amount(Fraction(3, 2), Fraction(1, 20)),
        accounting=accounting,
    )
    told = page(replace(WORDS, account=account))
    assert ("not raised in view of results" in told) == (accounting == "renyi")
    guess = percent(right_guesses(*map(float, account.guaranteed)))
    assert guess != percent(right_guesses(float(account.guaranteed.epsilon), 0.0))
    assert guess in told


def test_the_page_rounds_up_what_it_promises_and_tells_no_chance_above_one():
    told = page(replace(WORDS, guarantee=replace(RELEASE, delta=1.4441e-5)))
    assert "<dd>1.45e-05, or" in told
    told = page(replace(WORDS, guarantee=replace(RELEASE, delta=0.2)))
    shown = [factor for factor in statement.FACTORS if exception(0.2, factor) < 1]
    assert 0 < len(shown) < len(statement.FACTORS)
    assert told.count("but for a chance of") == len(shown)


@pytest.mark.parametrize(("epsilon", "protects"), [(10.0, True), (30.0, False)])
def test_an_epsilon_that_leaves_a_guess_as_good_as_certain_protects_nobody(epsilon, protects):
    told = page(replace(WORDS, guarantee=replace(RELEASE, epsilon=epsilon)))
    assert ("NO PROTECTION" in told) != protects
    assert right_guesses(30.0, 0.0) < 1


def test_the_assumptions_are_those_of_all_events():
    sampled = SampledGaussian(9.0, sampling_prob=0.1)
    guarantee = replace(RELEASE, delta=1e-5, events=(Gaussian(9.0), sampled))
    told = replace(WORDS, guarantee=guarantee).card()["assumptions"]
    assert set(sampled.assumptions) <= set(told)


def worst_pair(epsilon, delta):
    """The pair of laws that every (ε, δ)-private one is post-processing of: two answers, and one
    that only each side gives.
    """
    often = (1 - delta) / (1 + math.exp(-epsilon))
    seldom = (1 - delta) / (1 + math.exp(epsilon))
    return np.array([delta, often, seldom, 0.0]), np.array([0.0, seldom, often, delta])


def hockey_stick(p, q, epsilon):
    return np.maximum(p - math.exp(epsilon) * q, 0).sum()


def random_laws(count, seed):
    """Laws on six outcomes, some of them impossible under one and not under another."""
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=(count, 6)) ** 3 * (rng.random((count, 6)) > 0.15)
    weights[:, 0] += 0.1
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.1, 0.0), (1.0, 0.0), (3.0, 0.0), (0.1, 1e-3), (1.0, 0.2)]
)
def test_the_best_guess_between_the_worst_pair_is_as_good_as_the_page_says(epsilon, delta):
    p, q = worst_pair(epsilon, delta)
    assert hockey_stick(p, q, epsilon) == pytest.approx(delta, abs=1e-15)
    assert right_guesses(epsilon, delta) == pytest.approx(
        (math.exp(epsilon) + delta) / (math.exp(epsilon) + 1), rel=1e-12
    )
    assert right_guesses(epsilon, delta) == pytest.approx(np.maximum(p, q).sum() / 2, rel=1e-12)


def test_no_pair_of_laws_lets_anybody_guess_or_believe_more():
    """At every epsilon with the pair's own exact delta, for every factor and prior, whichever
    law is true.
    """
    laws = random_laws(200, 0)
    for p, q in zip(laws[::2], laws[1::2], strict=True):
        for epsilon in (0.0, 0.3, 1.0, 2.0):
            delta = max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
            assert np.maximum(p, q).sum() / 2 <= right_guesses(epsilon, delta) + 1e-12
            for before in (0.01, 0.5, 0.9):
                believed = before * p / np.maximum(before * p + (1 - before) * q, 1e-300)
                for factor in (1.1, 2.0, 50.0):
                    more = believed > belief(before, epsilon, factor) + 1e-12
                    assert max(p[more].sum(), q[more].sum()) <= exception(delta, factor) + 1e-12


def test_without_a_delta_the_belief_is_reached_and_never_passed():
    p, q = worst_pair(1.3, 0.0)
    for before in statement.BELIEFS:
        believed = before * p[1:3] / (before * p[1:3] + (1 - before) * q[1:3])
        assert believed.max() == pytest.approx(belief(before, 1.3), rel=1e-12)


def test_the_exception_is_as_large_as_told_and_certainty_has_probability_delta():
    epsilon = 0.7
    delta = 0.01
    for factor in (1.1, 2.0, 30.0):
        share = exception(
            delta, factor
        )  # on one outcome, of which the other law has as little as these odds leave
        p = np.array([share, 1 - share])
        q = np.array([share / factor * math.exp(-epsilon), 0])
        q[1] = 1 - q[0]
        assert hockey_stick(p, q, epsilon) == pytest.approx(delta, rel=1e-12)
    assert exception(delta, math.inf) == delta


def test_a_gaussian_mechanism_shows_that_the_folk_version_is_false_and_ours_holds():
    """e^ε itself is passed with more than probability δ: the loss of N(0, σ²) against N(1, σ²)
    is normal, and δ(ε) is known exactly.
    """
    sigma = 4.0
    epsilon = 0.5
    mean = 1 / (2 * sigma**2)
    spread = 1 / sigma
    delta = norm.cdf(1 / (2 * sigma) - epsilon * sigma) - math.exp(epsilon) * norm.cdf(
        -1 / (2 * sigma) - epsilon * sigma
    )
    assert norm.sf(epsilon, mean, spread) > 5 * delta
    for factor in statement.FACTORS:
        assert norm.sf(epsilon + math.log(factor), mean, spread) <= exception(delta, factor)


def test_two_steps_cover_neighbours_of_neighbours():
    laws = random_laws(300, 1).reshape(-1, 3, 6)
    for p, between, q in laws:
        for epsilon in (0.2, 1.0):
            steps = ((p, between), (between, p), (between, q), (q, between))
            delta = max(hockey_stick(a, b, epsilon) for a, b in steps)
            twice, slack = two_steps(epsilon, delta)
            assert max(hockey_stick(p, q, twice), hockey_stick(q, p, twice)) <= slack + 1e-12


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "50.00%"),
        (0.7310585786, "73.11%"),
        (0.1, "10.00%"),
        (1 - 1e-6, "99.9999%"),
        (0.99996, "99.996%"),
        (1 - 1e-10, "100%"),
        (1, "100%"),
    ],
)
def test_percentages_are_rounded_up_and_reach_100_last(value, text):
    assert percent(value) == text


def test_rare_events_are_never_told_as_rarer_than_they_are():
    assert [one_in(p) for p in (1e-6, 2e-6, 1.1e-5, 1 / 3)] == [
        "1 in 1,000,000",
        "1 in 500,000",
        "1 in 90,909",
        "1 in 3",
    ]


# The page


class Page(HTMLParser):
    """A page's tags, whether they close, its visible text and its tables."""

    def __init__(self, html):
        super().__init__()
        self.tags = []
        self.open = []
        self.balanced = True
        self.parts = []
        self.addresses = []
        self.rows = []
        self.feed(html)
        self.text = re.sub(r"\s+", " ", "".join(self.parts))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [
            value for name, value in attrs if name in ("src", "href", "action", "srcset")
        ]
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self.balanced = self.balanced and bool(self.open) and self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.parts.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def page_of(**changes):
    fields = {name: changes.pop(name) for name in list(changes) if hasattr(RELEASE, name)}
    read = Page(page(replace(WORDS, guarantee=replace(RELEASE, **fields), **changes)))
    assert read.balanced
    assert not read.open
    return read


def bounds(read):
    """The table of beliefs: before, and afterwards by column, as numbers."""
    numbers = [
        [float(cell.removesuffix("%")) / 100 for cell in row]
        for row in read.rows
        if row and row[0].endswith("%")
    ]
    return [row[0] for row in numbers], np.array([row[1:] for row in numbers])


@pytest.mark.parametrize("epsilon", [0.02, 0.4, 1.0, 6.0])
def test_the_numbers_of_a_pure_guarantee_are_those_of_the_formula(epsilon):
    read = page_of(epsilon=epsilon)
    before, after = bounds(read)
    odds = np.array(before) / (1 - np.array(before)) * math.exp(epsilon)
    assert before == list(statement.BELIEFS)
    assert after.shape == (4, 1)
    assert np.all((after[:, 0] >= odds / (1 + odds)) & (after[:, 0] < odds / (1 + odds) + 1e-4))
    told = (
        float(
            re.search(
                r"that guess is right at most ([\d.]+)% of the time. Guessing blindly", read.text
            )[1]
        )
        / 100
    )
    exact = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert exact <= told < exact + 1e-4
    shown, factor = re.search(
        r"epsilon \(ε\)([\d.]+). It limits .* by a factor of ([\d.]+)\. Smaller", read.text
    ).groups()
    assert float(shown) == epsilon
    assert math.exp(epsilon) <= float(factor) < math.exp(epsilon) * 1.001
    assert "chance" not in read.text
    assert "There are no exceptions" in read.text
    assert "REAL RELEASE" in read.text
    assert "SIMULATION" not in read.text


def test_the_numbers_of_an_approximate_guarantee_are_those_of_the_formula():
    read = page_of(epsilon=0.5, delta=1e-5)
    before, after = bounds(read)
    for column, factor in enumerate((1.1, 2.0)):
        odds = np.array(before) / (1 - np.array(before)) * factor * math.exp(0.5)
        assert np.all(
            (after[:, column] >= odds / (1 + odds)) & (after[:, column] < odds / (1 + odds) + 1e-4)
        )
    header = next(row for row in read.rows if row[0] == "before")
    assert [re.search(r"chance of (1 in [\d,]+)", cell)[1] for cell in header[1:]] == [
        "1 in 9,090",
        "1 in 50,000",
    ]  # 11 δ and 2 δ
    assert "with a chance of 1 in 100,000 at most (delta) they may become certain" in read.text
    assert "Whatever the outcome was" not in read.text
    assert "There are no exceptions" not in read.text


@pytest.mark.parametrize(
    ("changes", "words", "not_words"),
    [
        (
            {},
            [
                "has been replaced by any other",
                "is taken as public",
                "that it has one label or another",
                "88.08%",
            ],
            ["was not.", "client"],
        ),
        (
            {"relation": "add-remove"},
            [
                "with this record and without it",
                "so is how many records there are",
                "two possible contents: that guess is right at most 88.08%",
            ],
            ["replaced by any other", "is taken as public"],
        ),
        (
            {"unit": "client", "trust": "aggregate"},
            [
                "A client is one participating party",
                "everything about the private data but one client",
                "sum of all clients",
            ],
            ["A record is one entry", "A person with several", "88.08%"],
        ),
        ({"trust": "local"}, ["Nobody. Every client makes its own answer random"], ["A curator"]),
        ({"trust": "shuffle", "delta": 1e-6}, ["A shuffler"], ["A curator"]),
        ({"data_dependent": True}, ["NOT TO BE PUBLISHED AS IT IS"], []),
        (
            {"sampler": "simulation"},
            ["SIMULATION, NOT A RELEASE", "In a release by these settings: A curator"],
            ["REAL RELEASE"],
        ),
        ({"account": "Each keeps its own."}, ["Each keeps its own."], ["A ledger, a file"]),
    ],
)
def test_the_words_fit_the_guarantee(changes, words, not_words):
    text = page_of(**changes).text
    assert not [word for word in words if word not in text], text
    assert not [word for word in not_words if word in text], text


@pytest.mark.parametrize("epsilon", [math.inf, 1e6, 50.0])
@pytest.mark.parametrize("sampler", ["release", "simulation"])
def test_an_epsilon_that_promises_nothing_is_told_in_big_letters(epsilon, sampler):
    read = page_of(epsilon=epsilon, sampler=sampler)
    assert "NO PROTECTION" in read.text
    assert "REAL RELEASE" not in read.text
    assert ("SIMULATION" in read.text) == (sampler == "simulation")
    shown = "infinite" if math.isinf(epsilon) else f"{epsilon:g}"
    assert f"what may be learned about one record, is {shown}:" in read.text
    assert f"epsilon (ε){shown}" in read.text
    assert bounds(read)[0] == []
    assert "guess is right at most" not in read.text.split("What was spent")[0]
    assert "There are no exceptions" not in read.text
    assert not re.search(r"\bnan\b", read.text)


def test_the_page_tells_the_account_the_settings_and_the_rest():
    text = page_of(versions={"rknn-jax": "1.2.3"}).text
    wanted = [
        "ab" * 32,
        "0123456789abcdef",
        "allowed in all30",
        "this release included1.50",
        "left1.50",
        "One hospital.",
        "a label",
        "the classes",
    ]
    wanted += [
        "2026-01-02T03:04:05Z",
        "discrete_laplace",
        "Nothing else.",
        "queries40",
        "rknn-jax 1.2.3",
        str(RELEASE),
    ]
    assert not [word for word in wanted if word not in text], text
    assert "right at most 81.76% of the time" in text, "e^1.5 / (1 + e^1.5), of all that was spent"


def test_hostile_text_is_text_and_nothing_else():
    names = ("holders", "mechanism", "date", "trusted_with", "release", "remark")
    named = {name: HOSTILE for name in names} | {"responsible": Responsible(*[HOSTILE] * 3)}
    lists = {name: (HOSTILE,) for name in ("released", "not_covered")}
    dicts = {name: {HOSTILE: HOSTILE} for name in ("details", "versions")}
    read = page_of(**named, **lists, **dicts, account=ACCOUNT._replace(id=HOSTILE, head=HOSTILE))
    assert "script" not in read.tags
    assert read.text.count(HOSTILE) == 29
    assert "script" not in page_of(account=HOSTILE).tags


def test_a_file_name_that_is_no_text_can_be_written():
    made = page(replace(WORDS, details={"a name": os.fsdecode(b"R\xff.npz")}))
    assert "R?.npz" in Page(made.encode().decode()).text


def test_the_page_loads_nothing_and_prints():
    html = page(WORDS)
    assert not Page(html).addresses
    assert not re.search(r"https?:|url\(|@import|<script|<link", html)
    assert "@media print" in html
    assert page(WORDS) == html


# Who writes it


def test_a_release_leaves_its_page(rknn, tmp_path):
    make_files(tmp_path)
    done = rknn(*arguments(budget=2, classes=3, private="R.npz"), "--json")
    assert done.status == 0, done.err
    read = Page((tmp_path / "new/privacy.html").read_text())
    card = json.loads((tmp_path / "new/privacy.json").read_text())
    wanted = [
        "REAL RELEASE",
        "all 90 private records",
        card["ledger"]["head"],
        card["statement"],
        *card["not_covered"],
        "73.11%",
        "left10",
    ]
    wanted += [
        UNKNOWN_MODEL,
        CHOSEN_SETTINGS,
        "the noisy number of votes for each of 3 classes",
        "for each of 60 public records",
        card["ledger"]["id"],
        card["time"],
    ]
    assert not [word for word in wanted if word not in read.text], read.text
    assert done.json["files"]["page"] == "new/privacy.html"
    assert done.json["files"]["privacy"] == "new/privacy.json"


def test_a_page_of_labels_alone_under_add_remove_tells_neither_counts_nor_n(rknn, tmp_path):
    make_files(tmp_path)
    embeddings, labels = blobs(977, 1)
    np.savez(tmp_path / "R.npz", embeddings=embeddings, labels=labels)
    assert (
        rknn(*arguments(mechanism="permute_and_flip", relation="add-remove", classes=3)).status == 0
    )
    text = Page((tmp_path / "new/privacy.html").read_text()).text
    assert "all private records" in text
    assert not re.search(r"(?<![\w.])977(?![\w.])", text), "n is private"
    assert "noisy number" not in text
    assert "the label of each of 4 queries" in text


def test_a_release_is_complete_only_with_its_page(rknn, tmp_path, monkeypatch):
    make_files(tmp_path)
    monkeypatch.setattr(
        label, "page", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    done = rknn(*arguments())
    assert done.status == 2
    assert "The release is paid for" in done.err
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".rknn-release"], (
        "nothing is shown"
    )


@pytest.mark.slow  # the words fit the guarantee
@pytest.mark.parametrize("epsilon", [pytest.param(4.0, marks=pytest.mark.slow), math.inf])
def test_an_experiment_calls_itself_a_simulation(epsilon, tmp_path):
    settings = Experiment(
        dataset="digits",
        epsilon=epsilon,
        queries=20,
        noise_seed=0,
        representation=pca.Config(),
        student=None,
        out=tmp_path / "run",
    )
    text = Page((distill.main(settings) / "privacy.html").read_text()).text
    told = json.loads((tmp_path / "run/privacy.json").read_text())
    wanted = [
        "SIMULATION, NOT A RELEASE",
        "data set digits. 1,000 of its records",
        told["whole"]["statement"],
        *told["covers"],
        *told["does_not_cover"],
    ]
    assert not [word for word in wanted if word not in text], text
    assert "REAL RELEASE" not in text
    assert ("NO PROTECTION" in text) == (epsilon == math.inf)


@pytest.mark.parametrize("simulated", [None, 3])
def test_a_round_among_clients_leaves_its_page(simulated, tmp_path):
    rng = np.random.default_rng(0)
    mine = Public(rng.normal(size=(30, 5)).astype(np.float32))
    config = labeler.ReverseKNN(epsilon=2.0, mechanism="randomized_response", trust="local")
    asked = Asked(config, ("ant", "<b>bee</b>"), 3, simulated=simulated, student="none")
    round, queries = round_folder.prepare(tmp_path / "out", mine, asked, lambda *_: None)
    collector = Collector(tmp_path / "out", round)
    assert isinstance(round.mechanism, LocalRandomizer)
    message = bytes(wire.message_bytes(round.mechanism))
    collector.receive([Reply(i, round.id, message) for i in range(1200)])
    card = publish.publish(tmp_path / "out", mine, asked, queries, collector, lambda *_: None)
    read = Page((tmp_path / "out/privacy.html").read_text())
    wanted = [
        "1,200 clients hold private records",
        "Nobody. Every client",
        "The server is trusted with nothing",
        card["round"],
        card["statement"],
    ]
    wanted += ["88.08%", *card["not_covered"]]
    assert {UNKNOWN_MODEL, CHOSEN_SETTINGS} <= set(card["not_covered"])
    assert publish.ACCURACY not in card["not_covered"]
    assert not [word for word in wanted if word not in read.text], read.text
    assert ("SIMULATION" in read.text) == (simulated is not None)
    assert ("ledger of its own" in read.text) == (simulated is None)
    assert (ONE_LEDGER in card["assumptions"]) == (simulated is None)
    if simulated:
        return
    before = Before(np.full((30, 2), 0.5, np.float32), round.guarantee(None))
    again = replace(mine, former=Former(round, before, 1201))
    publish.publish(tmp_path / "out", again, asked, queries, collector, lambda *_: None)
    last = "1,200 clients that answered the last round hold private records"
    assert last in Page((tmp_path / "out/privacy.html").read_text()).text


def test_a_round_says_that_no_noise_covers_how_its_network_was_tested(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (12, 4, 4, 1)).astype(np.uint8)
    mine = Public(images, (images, np.arange(12) % 2))
    config = labeler.ReverseKNN(epsilon=2.0, mechanism="randomized_response", trust="local")
    asked = Asked(config, ("ant", "bee"), 3, representation="pixels", student="linear", epochs=1)
    round, queries = round_folder.prepare(tmp_path / "out", mine, asked, lambda *_: None)
    collector = Collector(tmp_path / "out", round)
    message = bytes(wire.message_bytes(round.mechanism))
    collector.receive([Reply(i, round.id, message) for i in range(3)])
    card = publish.publish(tmp_path / "out", mine, asked, queries, collector, lambda *_: None)
    assert card["student_accuracy"] is not None
    assert publish.ACCURACY in card["not_covered"]
    assert publish.ACCURACY in Page((tmp_path / "out/privacy.html").read_text()).text


def test_a_shuffled_round_says_how_many_must_follow_the_protocol(tmp_path):
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    config = labeler.ReverseKNN(1.0, delta=1e-3, mechanism="collision", trust="shuffle")
    asked = Asked(config, ("ant", "bee"), 2, honest=50, student="none", check_share=0.2)
    round, queries = round_folder.prepare(tmp_path / "out", Public(rows), asked, lambda *_: None)
    collector = Collector(tmp_path / "out", round)
    cells = round.contribute(rows[:1], np.int32([0]))
    for number in range(60):
        drawn = messages(round, cells, Entropy(bytes([number]) * 32))
        collector.receive([Reply(number, round.id, drawn)])
    card = publish.publish(
        tmp_path / "out", Public(rows), asked, queries, collector, lambda *_: None
    )
    assert card["assumptions"][-2:] == [
        "at least 50 messages were made by this protocol",
        ONE_LEDGER,
    ]
    read = Page((tmp_path / "out/privacy.html").read_text())
    assert "20.0%, by coins of the clients" in read.text
