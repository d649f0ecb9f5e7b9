"""`rknn account` for the labelers that pay for every query: the papers' settings, votes, and
what cannot be.
"""

import functools
import json

import numpy as np
import pytest

from rknn_jax import mechanisms
from rknn_jax.mechanisms.gaussian import Gaussian
from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import Guarantee

STATED = {
    "private-knn": {"RDP, as published": 1.1786, "RDP": 0.9531, "PLD": 0.8833},
    "gnmax": {"RDP, as published": 3.1741, "analytic Gaussian": 2.5426, "PLD": 2.5426},
    "lnmax": {"moments, as published": 20.7565, "pure": 100, "PLD": 11.3478},
}


@pytest.mark.parametrize("system", STATED)
def test_the_papers_settings_for_mnist_are_the_defaults(rknn, system):
    relation = ("--relation", "add-remove") if system == "private-knn" else ()
    told = rknn("account", system, "--delta", 1e-5, *relation, "--json").json
    for name, epsilon in STATED[system].items():
        assert told["accountants"][name] == pytest.approx(epsilon, rel=1e-3)
    least = min(value for name, value in told["accountants"].items() if "published" not in name)
    assert told["epsilon"] == least
    assert "Differential privacy with epsilon" in told["statement"]


def test_private_knn_is_told_for_replaced_records_by_default(rknn):
    told = rknn("account", "private-knn", "--delta", 1e-5, "--json").json
    assert told["relation"] == "replace-one"
    assert list(told["accountants"]) == ["RDP", "PLD"]
    assert told["epsilon"] == pytest.approx(0.898, rel=1e-3)
    screened = ("--sampling-prob", 0.3, "--screens", 1000, "--answers", 1)
    screened += ("--screening-stddev", 10)
    dear = rknn("account", "private-knn", "--delta", 1e-5, *screened, "--json").json
    assert dear["accountants"]["PLD"] == pytest.approx(4.2552, rel=1e-3), "4.1457 if it were added"


@pytest.mark.parametrize("system", ["gnmax", "lnmax"])
def test_what_the_votes_would_say_is_told_as_private(rknn, system, tmp_path):
    votes = np.zeros((20, 10), np.int64)
    votes[:, 0] = 240
    votes[:, 1] = 10
    np.save(tmp_path / "votes.npy", votes)
    told = rknn(
        "account",
        system,
        "--delta",
        1e-5,
        "--votes",
        tmp_path / "votes.npy",
        "--answers",
        20,
        "--json",
    ).json
    assert any("private" in name for name in told["votes"])
    dependent, independent = (
        min(v for name, v in told["votes"].items() if name.startswith(f"data-{k}"))
        for k in ("dependent", "independent")
    )
    assert dependent < independent


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("private-knn", "--delta", 1e-5, "--sampling-prob", 0), "--sampling-prob 0.0"),
        (("private-knn", "--delta", 1e-5, "--sampling-prob", 1.5), "--sampling-prob 1.5"),
        (("private-knn", "--delta", 1e-5, "--answers", 0), "--answers 0"),
        (("private-knn", "--delta", 0), "delta"),
        (("gnmax", "--delta", 1e-5, "--aggregation-stddev", -1), "--aggregation-stddev -1.0"),
        (("gnmax", "--delta", 1e-5, "--votes", "nowhere.npy"), "nowhere.npy"),
        (("gnmax", "--delta", 1e-5, "--votes", "votes.npz"), "an .npy file of votes"),
        (("lnmax", "--delta", 1e-5, "--votes", "flat.npy"), "an .npy file of votes"),
        (("gnmax", "--delta", 1e-5, "--votes", "words.npy"), "an .npy file of votes, integers"),
        (("lnmax", "--delta", 1e-5, "--votes", "words.npy"), "an .npy file of votes, integers"),
        (("gnmax", "--delta", 1e-5, "--votes", "huge.npy"), "250 votes of each query"),
        (("gnmax", "--delta", 1e-5, "--votes", "uneven.npy"), "250 votes of each query"),
        (("lnmax", "--delta", 1e-5, "--scale", 0), "--scale 0.0"),
        (("lnmax", "--delta", 2), "--delta 2.0"),
    ],
)
def test_what_cannot_be_accounted_for_is_named(rknn, tmp_path, arguments, words):
    np.savez(tmp_path / "votes.npz", votes=np.full((2, 10), 25))
    np.save(tmp_path / "huge.npy", np.array([[2**63 - 1, 2**63 - 1, 252]]))  # 250 in 64 bits
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "flat.npy", np.full(10, 25))
    np.save(tmp_path / "uneven.npy", np.repeat([[26], [24]], 10, axis=1))
    done = rknn("account", *arguments, "--json")
    assert done.status == done.json["exit_status"] == 2
    assert words in done.json["error"]


@pytest.mark.parametrize("name", mechanisms.names("central"))
def test_rounds_are_accounted_for_with_every_central_mechanism(rknn, name):
    delta = 1e-6 if mechanisms.named(name).needs_delta else 0
    given = ("--epsilon", 0.3, "--rounds", 3, "--mechanism", name, "--release-delta", delta)
    told = rknn("account", "rounds", *given, "--json").json
    assert (told["epsilon"], told["delta"]) == (pytest.approx(0.9), pytest.approx(3 * delta))
    less = rknn("account", "rounds", *given, "--delta", 1e-5, "--votes-alone", "--json").json
    assert 0.4 < less["epsilon"] <= 0.9


@pytest.mark.parametrize(
    "kind",
    [
        (),
        pytest.param(("--person", "who"), marks=pytest.mark.long),
        ("--labeler", "prototypes", "--check-share", 0),
    ],
    ids=["checks", "persons", "prototypes"],
)
def test_rounds_cost_what_statements_of_such_releases_add_up_to(rknn, tmp_path, kind):
    """Votes of records alone cost less, 0.777: each cell has noise of its own."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "P.npz", embeddings=rng.normal(size=(40, 2)))
    private = {"embeddings": rng.normal(size=(30_000, 2)), "labels": np.arange(30_000) % 2}
    np.savez(tmp_path / "R.npz", **private, who=np.arange(30_000))
    done = rknn(
        *("label", "--public", tmp_path / "P.npz", "--private", tmp_path / "R.npz"),
        *("--epsilon", 0.1, "--budget", 1, "--classes", 2, "--out", tmp_path / "out", *kind),
    )
    assert done.status == 0
    one = Guarantee.of(json.loads((tmp_path / "out/privacy.json").read_text())["guarantee"])
    given = ("--epsilon", 0.1, "--rounds", 10, "--delta", 1e-5, "--json")
    told = rknn("account", "rounds", *given).json["epsilon"]
    assert told == pytest.approx(accounting.compose([one], 1e-5, 10).epsilon)
    assert told > rknn("account", "rounds", *given, "--votes-alone").json["epsilon"] + 0.2


def test_rounds_with_a_delta_add_up_unless_they_are_votes_alone(rknn):
    """A check by another noise spends their epsilon, and a ledger may add epsilons up."""
    given = ("--epsilon", 0.1, "--rounds", 10, "--delta", 1e-5, "--json")
    told = rknn(
        "account", "rounds", *given, *("--mechanism", "gaussian", "--release-delta", 1e-7)
    ).json
    assert (told["epsilon"], told["delta"]) == (pytest.approx(1), pytest.approx(1e-6))
    assert told["accountants"] == {}


def test_rounds_of_gaussian_noise_cost_what_their_discrete_noise_does(rknn):
    """By exact convolution; the continuous Gaussian costs 11.86 where the discrete one costs 13.06.

    One cell changes in each of five rounds. Both tails beyond 60 have less than 1e-300.
    """
    given = ("--epsilon", 5, "--release-delta", 1e-5, "--mechanism", "gaussian")
    given += ("--relation", "add-remove", "--rounds", 5, "--delta", 1e-4, "--json")
    told = rknn("account", "rounds", *given, "--votes-alone").json
    scale = Gaussian(5.0, 2, 2, relation="add-remove", delta=1e-5).noise_scale
    place = np.arange(-60, 61)
    noise = np.exp(-(place**2) / (2 * scale**2))
    noise /= noise.sum()
    total = functools.reduce(np.convolve, [noise] * 5)
    loss = (2 * np.arange(-300, 301) + 5) / (2 * scale**2)  # of a release at x: (2x + 1) / (2 s²)
    delta = total @ np.maximum(-np.expm1(np.minimum(told["epsilon"] - loss, 0)), 0)
    assert 0.98e-4 < delta <= 1e-4
    assert told["epsilon"] == pytest.approx(13.062, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mechanism", "collision"), "one of ['binomial', 'discrete_laplace', 'gaussian', "),
        (("--mechanism", "gaussian"), "--release-delta of more than 0"),
        (("--release-delta", 1e-6), "Expected --release-delta 0 with --mechanism discrete_lap"),
    ],
)
def test_a_mechanism_of_rounds_is_central_and_has_the_delta_that_it_needs(rknn, arguments, words):
    done = rknn("account", "rounds", "--epsilon", 1, "--rounds", 2, *arguments, "--json")
    assert done.status == 2
    assert words in done.json["error"]
