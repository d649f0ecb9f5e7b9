"""Noise of one client, round, block and release is independent of any other's.

Shared noise cancels: the difference of two answers is then released without any. So streams of
noise on equal records are compared, in pairs and with themselves at a lag. A sound run fails one
time in `1 / FALSE_ALARM`, by a bound on all correlations of a test. The keys are looked at too.
"""

import dataclasses
import itertools
import secrets

import numpy as np
import pytest
from scipy import stats

from rknn_jax.federation import client as clients
from rknn_jax.federation import messages
from rknn_jax.federation.agreement import Agreement
from rknn_jax.federation.client import Client
from rknn_jax.federation.rounds import Round
from rknn_jax.labelers import rknn
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.gaussian_shares import GaussianShares
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release import label, planning
from rknn_jax.release.settings import Settings
from tests.options import named_settings
from tests.test_federation import CLASSES, a_round
from tests.test_federation_sums import a_sum

FALSE_ALARM = 1e-6
RECORDS, CELLS, BLOCK = 2000, 12, 170
LAGS = (CELLS, BLOCK * CELLS)
ROW = np.random.default_rng(0).normal(size=(1, 5)).astype(np.float32)


def largest_correlation(streams, lags=()):
    """Return the largest correlation of streams `[s, n]`, over the largest of a sound run.

    Without shared noise, each is normal of deviation 1 / sqrt(n), nearly, for long streams.
    """
    streams = np.asarray(streams, np.float64)
    streams = (streams - streams.mean(axis=1, keepdims=True)) / streams.std(axis=1, keepdims=True)
    size = streams.shape[1]
    pairs = [abs(np.mean(a * b)) for a, b in itertools.combinations(streams, 2)]
    shifted = [
        abs(np.mean(one[lag:] * one[:-lag])) * np.sqrt((size - lag) / size)
        for one in streams
        for lag in lags
    ]
    most = stats.norm.isf(FALSE_ALARM / 2 / (len(pairs) + len(shifted))) / np.sqrt(size)
    return max(pairs + shifted) / most


def a_client(folder, **fields):
    """Return a client of equal records, whose votes every other client has too."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ledger.jsonl"
    ledger = Ledger.open(path, "d") if path.exists() else Ledger.create(path, "d", 9)
    rows = np.repeat(ROW, RECORDS, axis=0)
    return Client(rows, np.zeros(RECORDS, np.int32), ledger, folder / "rounds", **fields)


def bits(round, answer):
    """Return the bits of all messages, less what is the same in all, `[n]`."""
    found = np.unpackbits(np.frombuffer(answer[2], np.uint8)).reshape(RECORDS, -1).astype(float)
    found = found[:, found.std(axis=0) > 0]  # without the padding
    assert found.shape[1] == round.mechanism.num_cells == CELLS
    return (found - found.mean(axis=0)).ravel()


@pytest.fixture
def seeds(monkeypatch):
    """Seeds and numbers of all draws of words."""
    drawn = []
    words = Entropy.words

    def noted(self, *shape):
        drawn.append((self._seed, self._draws))
        return words(self, *shape)

    monkeypatch.setattr(Entropy, "words", noted)
    return drawn


def streams_of_messages(folder, monkeypatch):
    """Yield the bits of clients, of another round, and of a client that is started again."""
    given = {"epsilon": 0.2, "mechanism": "optimized_unary_encoding"}
    round, other = a_round(**given), a_round(**given)
    for name in ("a", "b", "c"):
        yield bits(round, a_client(folder / name).answer(round.data))
    yield bits(other, a_client(folder / "a").answer(other.data))

    def killed(*given, **_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(clients, "messages", killed)
        with pytest.raises(KeyboardInterrupt):
            a_client(folder / "d").answer(round.data)
    resumed = a_client(folder / "d")
    yield bits(round, resumed.answer(round.data))
    assert [entry.kind for entry in resumed.ledger.entries()] == ["create", "spend"]


def test_clients_rounds_blocks_and_resumed_runs_have_noise_of_their_own(
    tmp_path, monkeypatch, seeds
):
    """At the lags of a record and of a block. The client that was stopped had drawn its ticket, and
    draws it again.
    """
    monkeypatch.setattr(messages, "BITS_AT_ONCE", BLOCK * CELLS)
    streams = list(streams_of_messages(tmp_path, monkeypatch))
    assert largest_correlation(streams, LAGS) < 1
    assert len(seeds) == len(set(seeds)) + 1, "no counter of a seed is used twice"
    assert len({seed for seed, _ in seeds}) == len(streams)
    assert all(len(set(seed)) > 8 for seed, _ in seeds)


@pytest.mark.parametrize("fault", ["seed", "counter"])
def test_shared_noise_of_messages_is_found(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(messages, "BITS_AT_ONCE", BLOCK * CELLS)
    if fault == "seed":
        monkeypatch.setattr(secrets, "token_bytes", lambda size: bytes(range(size)))
    else:  # each block begins anew
        words = Entropy.words

        def again(self, *shape):
            self._draws = 1
            return words(self, *shape)

        monkeypatch.setattr(Entropy, "words", again)
    streams = list(streams_of_messages(tmp_path, monkeypatch))
    assert largest_correlation(streams, LAGS) > 3


@pytest.mark.long
def test_virtual_clients_have_noise_of_their_own(tmp_path):
    """Of a simulation, whose keys are those of the records' numbers."""
    round = a_round(epsilon=0.2, mechanism="optimized_unary_encoding", simulated=7)
    streams = []
    for number in range(3):
        client = dataclasses.replace(
            a_client(tmp_path / str(number), agreement=Agreement(simulated=True)),
            ledger=None,
            first=number * RECORDS,
        )
        streams.append(bits(round, client.answer(round.data)))
    assert largest_correlation(streams, LAGS[:1]) < 1


RANDOM = np.random.default_rng(1)
SUMS = {
    "votes": lambda: Round(
        RANDOM.normal(size=(600, 5)).astype(np.float32),
        CLASSES,
        rknn.ReverseKNN(mechanism="binomial", trust="central", delta=1e-4),
        honest=3,
    ),
    "class sums": lambda: a_sum(queries=RANDOM.normal(size=(4, 700)).astype(np.float32)),
}


@pytest.mark.parametrize("kind", SUMS)
def test_the_parts_of_a_sum_have_noise_of_their_own(kind, tmp_path):
    """Those of three clients of equal records, in two rounds."""
    streams = []
    for question in (SUMS[kind](), SUMS[kind]()):
        width = question.queries.shape[1]
        for name in "abc":
            inputs = np.ones((4, width), np.float32)
            ledger = Ledger.create(tmp_path / f"{name}{len(streams)}", "d", 9, "1/100")
            folder = tmp_path / name
            party = Client(inputs, np.zeros(4, np.int32), ledger, folder, Agreement("central"))
            prepared = party.ready(question.data)
            part = prepared.vector().astype(np.float64)
            if kind == "class sums":
                part -= prepared.contribution.ravel()
            streams.append(part)
    assert largest_correlation(streams, lags=(1, 3)) < 1


@pytest.mark.long
def test_shares_and_curators_noise_do_not_repeat():
    """2,000 draws of three shares, and of three releases of each exact mechanism."""
    share = GaussianShares(1.0, 1e-5, 100.0, 3)
    zeros = np.zeros(2000, np.int64)
    for draw in (
        lambda: share.share((2000,)),
        lambda: exact_noise.discrete_laplace(zeros, 40.0),
        lambda: exact_noise.discrete_gaussian(zeros, 40.0),
        lambda: exact_noise.permute_and_flip(np.zeros((2000, 8), np.int64), 40.0),
    ):
        assert largest_correlation([draw() for _ in range(3)], lags=(1, 2, 64)) < 1


@pytest.mark.parametrize("labeler", ["rknn", "prototypes"])
def test_noise_is_drawn_once_for_all_shards(labeler, tmp_path, monkeypatch):
    """Three files have the noise of one, in one draw of the sum's shape."""
    rows = RANDOM.normal(size=(90, 3)).astype(np.float32)
    np.save(tmp_path / "P.npy", rows[:30])
    (tmp_path / "R").mkdir()
    for start in (30, 50, 70):
        part = {"embeddings": rows[start : start + 20], "labels": np.arange(20) % 2}
        np.savez(tmp_path / f"R/{start}.npz", **part)
    given = {"classes": "2", "smoothing": "none", "out": tmp_path / "out", "labeler": labeler}
    given |= {"ledger": tmp_path / "l.jsonl"} | ({"queries": 4} if labeler == "rknn" else {})
    drawn = []
    draw = exact_noise.discrete_laplace

    def noted(counts, scale):
        drawn.append(np.shape(counts))
        return draw(counts, scale)

    monkeypatch.setattr(exact_noise, "discrete_laplace", noted)
    plan = planning.prepare(
        named_settings(Settings, str(tmp_path / "P.npy"), str(tmp_path / "R"), epsilon=1.0, **given)
    )
    label.release(plan)
    assert drawn == [plan.question.tally.shape]
