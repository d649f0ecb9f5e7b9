"""Accounts of clients over several rounds, on the server's side."""

import pytest

from rknn_jax.federation import client_accounts
from rknn_jax.federation.settings import Serve, asked
from rknn_jax.mechanisms import make
from rknn_jax.privacy.accounting import compose
from tests.options import named_settings


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


@pytest.mark.parametrize("other", [{"trust": "central", "honest": 4}, {"collect_only": True}, {}])
def test_a_server_without_clients_results_or_keys_has_no_accounts(tmp_path, other):
    path = tmp_path / "accounts.jsonl"
    settings = named_settings(
        Serve, tmp_path / "P.npz", 1.0, 4, tmp_path / "out", "2", accounts=path, **other
    )
    with pytest.raises(ValueError, match="accounts"):
        asked(settings)
