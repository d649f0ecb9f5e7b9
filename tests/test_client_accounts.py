"""Accounts of clients over several rounds, on the server's side."""

from dataclasses import replace

import numpy as np
import pytest

from rknn_jax.cli import federation
from rknn_jax.federation import client_accounts
from rknn_jax.federation.collector import QUESTION, Collector, Reply
from rknn_jax.federation.rounds import Round
from rknn_jax.federation.settings import Serve, asked
from rknn_jax.mechanisms import make
from rknn_jax.privacy.accounting import compose
from tests.options import named_settings
from tests.test_federation_http import free_port


def guaranteed(epsilon):
    mechanism = make("collision", epsilon=epsilon, num_queries=4, num_classes=2, num_neighbors=1)
    return mechanism.guarantee(100)


def test_clients_of_the_same_rounds_share_an_account(tmp_path):
    path = tmp_path / "accounts.jsonl"
    client_accounts.add(path, "a", guaranteed(1.0), {1, 2, 3})
    client_accounts.add(path, "b", guaranteed(0.5), {2, 3})
    client_accounts.add(path, "b", guaranteed(0.5), {2, 3})  # the server was started again
    both, one = client_accounts.accounts(path)
    assert (both.rounds, both.clients) == (2, 2)
    assert both.guarantees == (compose([guaranteed(1.0), guaranteed(0.5)]),)
    assert both.guarantees[0].epsilon == pytest.approx(1.5)
    assert (one.rounds, one.clients, one.guarantees[0].epsilon) == (1, 1, pytest.approx(1.0))
    assert path.stat().st_mode & 0o077 == 0


def test_rounds_of_another_trust_are_told_beside_the_others(tmp_path):
    path, local = tmp_path / "accounts.jsonl", guaranteed(0.5)
    shuffled = replace(guaranteed(0.2), trust="shuffle", delta=1e-6)
    for name, guarantee in (("a", local), ("b", shuffled), ("c", local)):
        client_accounts.add(path, name, guarantee, {1, 2})
    (both,) = client_accounts.accounts(path)
    assert both.rounds == 3
    told = {(one.trust, one.epsilon, one.delta) for one in both.guarantees}
    assert told == {("local", 1.0, 0.0), ("shuffle", 0.2, 1e-6)}


def test_all_servers_of_a_round_have_their_clients_there(tmp_path):
    """Two of one round, a merge of both, and one of them again: each client is counted once."""
    path = tmp_path / "accounts.jsonl"
    for name, clients in (("a", {1}), ("b", {1, 2}), ("b", {3}), ("b", {1, 2, 3, 4}), ("b", {3})):
        client_accounts.add(path, name, guaranteed(0.5), clients)
    found = client_accounts.accounts(path)
    assert [(one.rounds, one.clients) for one in found] == [(2, 1), (1, 3)]
    assert path.read_bytes().count(b"\n") == 4


@pytest.mark.parametrize("text", ["{", "[]", '{"round": "a"}', '{"round": 1, "clients": []}'])
def test_a_damaged_file_is_refused_and_kept(tmp_path, text):
    path = tmp_path / "accounts.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(ValueError, match="line 1 of"):
        client_accounts.add(path, "a", guaranteed(1.0), {1})
    assert path.read_text() == text + "\n"


@pytest.mark.parametrize("data", [b"PK\x03\x04 private records", b"a,b\n1,2", b"\n\x00\xff"])
def test_a_file_of_something_else_loses_no_byte_and_is_refused_before_anybody_is_asked(
    tmp_path, data
):
    path = tmp_path / "R.npz"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="R.npz"):
        client_accounts.check(path)
    with pytest.raises(ValueError, match="R.npz"):
        client_accounts.add(path, "a", guaranteed(1.0), {1})
    assert path.read_bytes() == data
    with pytest.raises(ValueError, match="make the folder"):
        client_accounts.check(tmp_path / "none" / "accounts.jsonl")
    client_accounts.check(tmp_path / "new.jsonl")


def test_a_line_that_was_cut_off_is_written_anew(tmp_path):
    path = tmp_path / "accounts.jsonl"
    client_accounts.add(path, "a", guaranteed(1.0), {1})
    client_accounts.add(path, "b", guaranteed(0.5), {1})
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    client_accounts.add(path, "b", guaranteed(0.5), {1})
    assert path.read_bytes() == whole


@pytest.mark.parametrize("checks", [0.0, 0.5])
def test_a_round_that_publishes_nothing_has_its_clients_there(tmp_path, checks):
    """Two clients had spent 2 in each of two rounds, and the accounts knew of one."""
    np.savez(tmp_path / "P.npz", embeddings=np.random.default_rng(0).normal(size=(40, 3)))
    settings = named_settings(
        Serve,
        tmp_path / "P.npz",
        epsilon=2.0,
        clients=3,
        classes="2",
        out=tmp_path / "out",
        accounts=tmp_path / "accounts.jsonl",
        make_test_certificates=tmp_path / "tls",
        mechanism="generalized_randomized_response",
        port=free_port(),
        deadline=0.01,
        check_share=checks,
    )
    with pytest.raises(ValueError, match="quorum of 3 clients, got 0"):
        federation.serve(settings)
    assert client_accounts.accounts(settings.accounts) == []
    round = Round.of((settings.out / QUESTION).read_bytes())
    collector = Collector(settings.out, round)
    message = b"" if checks else b"\0" * collector._size
    assert collector.receive([Reply(7, round.id, message), Reply(9, round.id, message)])[1] == (
        "counted"
    )
    collector.close()
    made = {"certificates": tmp_path / "tls", "keys": tmp_path / "tls/clients.pem"}
    settings = replace(settings, make_test_certificates=None, **made)
    for _ in range(2):
        with pytest.raises(ValueError, match="quorum of 3 clients, got 2"):
            federation.serve(settings)
        [one] = client_accounts.accounts(settings.accounts)
        assert (one.rounds, one.clients, one.guarantees[0].epsilon) == (1, 2, 2.0)


@pytest.mark.parametrize("other", [{"trust": "central", "honest": 4}, {"collect_only": True}, {}])
def test_a_server_without_clients_results_or_keys_has_no_accounts(tmp_path, other):
    path = tmp_path / "accounts.jsonl"
    settings = named_settings(
        Serve, tmp_path / "P.npz", 1.0, 4, tmp_path / "out", "2", accounts=path, **other
    )
    with pytest.raises(ValueError, match="accounts"):
        asked(settings)
