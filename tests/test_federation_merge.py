"""Folders of several servers of one round: counted together, each client and each folder once."""

import contextlib
import dataclasses
import json
import os

import numpy as np
import pytest

from rknn_jax._internal import disk
from rknn_jax.cli import federation
from rknn_jax.federation import merge as merges
from rknn_jax.federation import publish, round_folder, shared_rounds
from rknn_jax.federation.collector import ANSWERS, PUBLISHED, Collector
from rknn_jax.federation.inputs import read_public
from rknn_jax.federation.settings import Serve, asked
from tests.options import named_settings
from tests.test_federation import honest, replies_of

QUIET = lambda *line: None  # noqa: E731


@pytest.fixture
def settings(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "public.npz", embeddings=rng.normal(size=(12, 4)).astype(np.float32))
    return named_settings(
        Serve,
        tmp_path / "public.npz",
        1.0,
        9,
        tmp_path / "all",
        "3",
        mechanism="generalized_randomized_response",
        student="none",
        quorum=4,
    )


def collect(settings, name, first, count, question=None, *, collects=True):
    """Count answers of clients numbered from `first` in a folder, as a server does."""
    folder = settings.out.with_name(name)
    mine = read_public(settings.public, None)
    wanted = asked(settings)
    round, _ = round_folder.prepare(folder, mine, wanted, QUIET, question, collects=collects)
    with contextlib.closing(Collector(folder, round)) as collector:
        payloads = honest(round, 9)[first : first + count]
        assert set(collector.receive(replies_of(round, payloads, first))) == {"counted"}
        collector.receive(replies_of(round, payloads[:1], first))
    return folder, round


def content(*folders):
    return {path: path.read_bytes() for folder in folders for path in sorted(folder.glob("*"))}


def merged(settings, *parts):
    return federation.serve(dataclasses.replace(settings, merge=parts))


def test_a_second_server_asks_the_same_question_and_both_are_counted_together(settings):
    north, round = collect(settings, "north", 0, 2)
    south, same = collect(settings, "south", 2, 2, question=north)
    assert same.data == round.data
    card = merged(settings, north, south)
    assert (card["clients"], card["messages"], card["round"]) == (4, 4, round.id)
    assert card["rejected"] == {"again": 2}
    alone = Collector(settings.out.with_name("alone"), round)
    alone.receive(replies_of(round, honest(round, 9)[:4]))
    np.testing.assert_array_equal(np.load(settings.out / "queries.npz")["votes"], alone.counts()[0])
    for part in (north, south):
        with pytest.raises(ValueError, match="which was merged into"):
            collect(settings, part.name, 4, 1)
    with pytest.raises(ValueError, match="not over"):
        merged(settings, north, south)


def test_a_merge_of_too_few_is_kept_goes_on_and_is_merged_again(settings):
    north, _ = collect(settings, "north", 0, 2)
    south, _ = collect(settings, "south", 2, 1, question=north)
    west, _ = collect(settings, "west", 3, 2, question=north)
    few = dataclasses.replace(settings, out=settings.out.with_name("few"))
    for _ in range(2):  # the second time, it goes on where it was
        with pytest.raises(ValueError, match="quorum of 4 clients, got 3"):
            merged(few, north, south)
    with pytest.raises(ValueError, match="folders that .* was merged from"):
        merged(few, north, west)
    collect(settings, "few", 7, 1)  # a server goes on with it
    assert merged(settings, few.out, west)["clients"] == 6


def test_merged_answers_are_readable_by_their_owner_alone(settings):
    """Each answer has the number of its client."""
    north, _ = collect(settings, "north", 0, 2)
    south, _ = collect(settings, "south", 2, 2, question=north)
    merged(settings, north, south)
    assert (settings.out / ANSWERS).stat().st_mode & 0o077 == 0


def test_merged_answers_are_on_disk_before_they_have_their_name(settings, monkeypatch):
    """The parts are marked as merged: answers lost to a power cut would be in no sum."""
    north, _ = collect(settings, "north", 0, 2)
    south, _ = collect(settings, "south", 2, 2, question=north)
    answers = settings.out / ANSWERS
    synced = []

    def sync(descriptor):
        if not answers.exists():
            synced.append(os.fstat(descriptor))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        merged(settings, north, south)
    whole = sum((part / ANSWERS).stat().st_size for part in (north, south))
    assert (answers.stat().st_ino, whole) in [(one.st_ino, one.st_size) for one in synced]


@pytest.mark.parametrize("when", ["answers", "question", "marked"])
def test_a_merge_that_was_killed_is_done_again(settings, monkeypatch, when):
    north, _ = collect(settings, "north", 0, 3)
    south, _ = collect(settings, "south", 3, 3, question=north)
    write = disk.write_whole
    names = {
        "answers": round_folder.PARTS,
        "question": "question.bin",
        "marked": round_folder.MERGED,
    }

    def die(path, *rest):
        if path.name == names[when] and (when != "marked" or path.parent == south):
            raise KeyboardInterrupt
        write(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(merges, "write_whole", die)
        patch.setattr(round_folder, "write_whole", die)
        with pytest.raises(KeyboardInterrupt):
            merged(settings, north, south)
    assert merged(settings, north, south)["clients"] == 6


def test_a_client_in_two_folders_is_named_and_nothing_is_written(settings):
    north, _ = collect(settings, "north", 0, 3)
    south, _ = collect(settings, "south", 2, 3, question=north)
    before = content(north, south)
    with pytest.raises(ValueError, match=r"got 1 clients a second time in .*south, such as 2;"):
        merged(settings, north, south)
    assert content(north, south) == before
    assert list(settings.out.iterdir()) == []


def test_a_client_in_the_first_and_the_last_of_three_folders_is_named(settings):
    north, _ = collect(settings, "north", 0, 3)
    east, _ = collect(settings, "east", 3, 3, question=north)
    south, _ = collect(settings, "south", 2, 1, question=north)
    before = content(north, east, south)
    with pytest.raises(ValueError, match=r"got 1 clients a second time in .*south, such as 2;"):
        merged(settings, north, east, south)
    assert content(north, east, south) == before


def test_what_is_no_part_of_the_round_is_refused(settings, tmp_path):
    north, _ = collect(settings, "north", 0, 2)
    south, _ = collect(settings, "south", 2, 2, question=north)
    other, _ = collect(settings, "other", 4, 2)
    empty = tmp_path / "empty"
    empty.mkdir()
    for parts, words in (
        ((north,), "two or more folders"),
        ((north, north), "two or more folders"),
        ((north, other), "another round in"),
        ((north, empty), "without a whole question.bin"),
    ):
        with pytest.raises(ValueError, match=words):
            merged(settings, *parts)
    with (
        disk.locked(south, "busy"),
        pytest.raises(ValueError, match="no server has, got .*south"),
    ):
        merged(settings, north, south)
    with pytest.raises(ValueError, match="others for epsilon"):
        merged(dataclasses.replace(settings, epsilon=2.0), north, south)
    with pytest.raises(ValueError, match="others for keys; change"):
        round_folder.check_settings(north, dataclasses.replace(asked(settings), authenticated=True))
    summed = dataclasses.replace(settings, trust="central", honest=2, mechanism=None)
    with pytest.raises(ValueError, match="--merge, got --trust central"):
        merged(summed, north, south)
    with pytest.raises(ValueError, match="2 <= quorum <= clients"):
        federation.serve(dataclasses.replace(summed, quorum=1))
    data = bytearray((south / "answers.bin").read_bytes())
    data[20] ^= 1
    (south / "answers.bin").write_bytes(bytes(data) + b"more")
    with pytest.raises(ValueError, match=r"answers\.bin .*restore"):
        merged(settings, north, south)
    assert not (settings.out / "question.bin").exists()


@pytest.fixture
def shuffled(settings):
    return dataclasses.replace(
        settings, trust="shuffle", honest=2, amplification="general", delta=1e-3
    )


class Killed(BaseException):
    """A process that ends without a word."""


@pytest.mark.parametrize("writer", ["write_arrays", "write_whole", "report.write", "page"])
def test_from_the_first_result_on_no_answer_counts_whatever_happens(shuffled, writer, monkeypatch):
    """A table of four clients and one of five would show the fifth one's message."""
    folder, round = collect(shuffled, "all", 0, 4, collects=False)
    wanted = asked(shuffled)
    mine = read_public(shuffled.public, None)
    _, queries = round_folder.prepare(folder, mine, wanted, QUIET)
    owner = publish.report if writer == "report.write" else publish

    def die(*_, **__):
        raise Killed

    with contextlib.closing(Collector(folder, round)) as collector, monkeypatch.context() as patch:
        patch.setattr(owner, writer.rpartition(".")[2], die)
        with pytest.raises(Killed):
            publish.publish(folder, mine, wanted, queries, collector, QUIET)
    later = replies_of(round, honest(round, 9)[4:], 4)
    with contextlib.closing(Collector(folder, round)) as collector:
        assert collector.receive(later) == ["late"] * 5
        card = publish.publish(folder, mine, wanted, queries, collector, QUIET)
    assert card["clients"] == 4
    assert card["guarantee"] == round.guarantee(round.honest).asdict()
    assert card["guarantee"]["trust"] == "shuffle"
    with pytest.raises(ValueError, match="without results to merge"):
        merged(dataclasses.replace(shuffled, out=folder.with_name("more")), folder, folder / "..")


def test_fewer_messages_than_hide_one_are_not_published(shuffled):
    """Amplification was promised for as many honest ones."""
    believed = dataclasses.replace(shuffled, honest=6)
    folder, round = collect(believed, "all", 0, 4, collects=False)
    mine = read_public(believed.public, None)
    _, queries = round_folder.prepare(folder, mine, asked(believed), QUIET)
    with contextlib.closing(Collector(folder, round)) as collector:
        with pytest.raises(ValueError, match="at least 6 messages of votes, got 4"):
            publish.publish(folder, mine, asked(believed), queries, collector, QUIET)
    assert not (folder / "labels.npz").exists()


def test_too_few_clients_close_nothing(shuffled):
    folder, round = collect(shuffled, "all", 0, 3, collects=False)
    wanted = asked(shuffled)
    mine = read_public(shuffled.public, None)
    _, queries = round_folder.prepare(folder, mine, wanted, QUIET)
    with contextlib.closing(Collector(folder, round)) as collector:
        with pytest.raises(ValueError, match="quorum of 4") as refused:
            publish.publish(folder, mine, wanted, queries, collector, QUIET)
        assert "serve there" in str(refused.value)
        assert "merge" not in str(refused.value), "a shuffled round is merged once"
        assert collector.receive(replies_of(round, honest(round, 9)[3:4], 3)) == ["counted"]


@pytest.mark.parametrize("trust", ["shuffle", "local"])
def test_messages_that_were_promised_a_shuffle_do_not_outlive_it(settings, shuffled, trust):
    given = shuffled if trust == "shuffle" else settings
    north, _ = collect(given, "north", 0, 2)
    south, _ = collect(given, "south", 2, 2, question=north)
    for part in (north, south):
        assert (part / ANSWERS).stat().st_mode & 0o077 == 0, "nobody else reads it"
    merged(given, north, south)
    kept = [(part / ANSWERS).exists() for part in (north, south, given.out)]
    assert kept == [trust == "local"] * 3


def test_a_server_that_was_killed_at_its_end_removes_the_messages_when_it_is_started_again(
    shuffled, monkeypatch
):
    north, _ = collect(shuffled, "north", 0, 2)
    south, _ = collect(shuffled, "south", 2, 2, question=north)

    def die(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(round_folder, "_remove_shuffled", die)
        with pytest.raises(Killed):
            merged(shuffled, north, south)
    kept = [part / ANSWERS for part in (north, south, shuffled.out)]
    assert all(path.exists() for path in kept)
    with pytest.raises(ValueError, match="got a finished one"):
        merged(shuffled, north, south)
    assert not any(path.exists() for path in kept)


def test_a_folder_that_only_collects_keeps_its_messages(shuffled):
    folder, round = collect(shuffled, "north", 0, 2)
    round_folder.end(folder, round)
    assert (folder / ANSWERS).exists()


def test_results_of_a_part_keep_it_out_of_a_shuffle(shuffled):
    """The difference of two results would show the other part's messages, too few to hide in."""
    north, _ = collect(shuffled, "north", 0, 2)
    south, _ = collect(shuffled, "south", 2, 2, question=north)
    (south / PUBLISHED).write_text(json.dumps({}))
    with pytest.raises(ValueError, match="without results to merge.*collect_only"):
        merged(shuffled, north, south)
    (south / PUBLISHED).unlink()
    assert merged(shuffled, north, south)["clients"] == 4


def test_a_server_that_was_killed_at_its_first_file_begins_again(shuffled):
    north = shuffled.out.with_name("north")
    north.mkdir()
    (north / ".settings.json.17-0123abcd.rknn-new").write_text("{")
    collect(dataclasses.replace(shuffled, trust="local"), "north", 0, 1, collects=False)
    east = shuffled.out.with_name("east")
    east.mkdir()
    shared_rounds.share(east, None)
    collect(shuffled, "east", 0, 1)
    (east / "settings.json").rename(east / "mine.json")
    (east / "question.bin").unlink()
    with pytest.raises(ValueError, match="holds other files"):
        collect(shuffled, "east", 0, 1)


def test_no_shuffled_round_has_two_results(shuffled):
    """A client answers both servers by the same messages, and its ledger pays once."""
    mine = read_public(shuffled.public, None)

    def begun(name, question, collects):
        folder = shuffled.out.with_name(name)
        return round_folder.prepare(
            folder, mine, asked(shuffled), QUIET, question, collects=collects
        )

    alone, _ = collect(shuffled, "alone", 0, 2, collects=False)
    for collects in (True, False):  # the first server publishes
        with pytest.raises(ValueError, match="collect_only"):
            begun("south", alone, collects)
    north, _ = collect(shuffled, "north", 0, 2)
    with pytest.raises(ValueError, match="got a server that publishes"):
        begun("south", north, collects=False)
    assert not shuffled.out.with_name("south").exists()
    south, _ = collect(shuffled, "south", 2, 2, question=north)
    east, _ = collect(shuffled, "east", 4, 2, question=north)
    collect(shuffled, "east", 6, 1, question=north)  # started again
    for part in ("north", "south"):
        with pytest.raises(ValueError, match="got a server that publishes"):
            begun(part, None, collects=False)
    with pytest.raises(ValueError, match=f"name {north}"):  # which would not hear of this one
        begun("west", south, collects=True)
    assert not shuffled.out.with_name("west").exists()
    for parts in ((north, south), (south, east), (north, east)):
        with pytest.raises(ValueError, match="Expected all folders of a shuffled round"):
            merged(shuffled, *parts)
    assert not any(shuffled.out.iterdir())
    assert merged(shuffled, south, north, east)["clients"] == 7
    with pytest.raises(ValueError, match="collect_only"):  # of a round that is over
        begun("west", north, collects=True)


def test_a_question_of_other_settings_or_of_no_round_is_not_asked(settings, tmp_path):
    north, _ = collect(settings, "north", 0, 1)
    other = dataclasses.replace(settings, epsilon=2.0)
    with pytest.raises(ValueError, match="others for epsilon"):
        collect(other, "south", 1, 1, question=north)
    with pytest.raises(ValueError, match="without question.bin"):
        collect(settings, "west", 1, 1, question=tmp_path / "none")
    collect(settings, "east", 1, 1)
    with pytest.raises(ValueError, match="Expected the question of"):
        collect(settings, "east", 2, 1, question=north)
