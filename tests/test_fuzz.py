"""The fuzzer: it notices every kind of fault, keeps what failed, and its targets read their own
seeds.
"""

import json
import multiprocessing
import os
import time
from types import SimpleNamespace

import hypothesis
import pytest

from benchmarks import _fuzz_attempts, fuzz
from tests.fuzz.mutations import mutated

SEED = {"x": b'{"a": 1}'}


def a_target(reader, **fields):
    return SimpleNamespace(
        seeds=lambda: [SEED], readers=lambda folder: [lambda: reader(folder)], **fields
    )


def hog(folder):
    bytearray(_fuzz_attempts.MOST_MEMORY + 2**27)[:: 2**12] = b"x" * (2**18 + 2**15)


def refuse(words):
    def reader(folder):
        raise ValueError(words.format(folder=folder))

    return reader


@pytest.mark.parametrize(
    ("reader", "kind"),
    [
        (lambda folder: {}["x"], "KeyError at tests/test_fuzz.py"),
        (refuse(""), "ValueError without a message"),
        (refuse("damaged"), "ValueError that names no file"),
        (lambda folder: time.sleep(1), "Slow"),
        pytest.param(hog, "MemoryError", marks=pytest.mark.slow),
        (refuse("{folder} is damaged"), None),
        (lambda folder: (folder / "none").read_bytes(), None),
        (lambda folder: (folder / "x").read_bytes(), None),
    ],
)
def test_a_fault_is_noticed_and_a_sentence_is_none(tmp_path, monkeypatch, reader, kind):
    monkeypatch.setattr(_fuzz_attempts, "LONGEST", 0.05)
    if reader is hog:
        monkeypatch.setattr(_fuzz_attempts, "LONGEST", 60.0)
    tally = _fuzz_attempts.Tally()
    failures = _fuzz_attempts.attempt(a_target(reader), SEED, tmp_path / "files", tally)
    assert [found.startswith(kind) for found in failures] == ([] if kind is None else [True])
    assert tally.inputs == 1
    assert sum(tally.failures.values()) == len(failures)


def test_errors_of_given_types_need_name_no_file(tmp_path):
    target = a_target(refuse("damaged"), PATHLESS=(ValueError,))
    assert not _fuzz_attempts.attempt(target, SEED, tmp_path / "files", _fuzz_attempts.Tally())


def test_what_failed_is_kept_and_tried_again_by_one_command(tmp_path, monkeypatch, capsys):
    reader = {"now": lambda folder: {}["x"]}
    monkeypatch.setattr(fuzz, "named", lambda name: a_target(lambda folder: reader["now"](folder)))
    for number in range(fuzz.MOST_KEPT + 3):
        fuzz.keep(tmp_path, "some", {"x": bytes([number])}, "KeyError at a.py:1", "Traceback")
    assert len(list((tmp_path / "some").iterdir())) == fuzz.MOST_KEPT
    assert not fuzz.replay(tmp_path)
    assert "KeyError" in capsys.readouterr().out
    reader["now"] = lambda folder: None
    assert fuzz.replay(tmp_path)


@pytest.mark.parametrize(
    ("call", "argument", "words"),
    [
        (os._exit, 3, "a crash of status 3"),
        (time.sleep, 300, "a hang outside Python, or no memory"),
        (time.sleep, 0, None),
    ],
)
def test_a_process_that_dies_or_falls_silent_is_told(monkeypatch, call, argument, words):
    monkeypatch.setattr(fuzz, "SILENCE", 0.3 if argument == 300 else 100.0)
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=call, args=(argument,))
    process.start()
    theirs.close()
    assert fuzz._listen(process, mine, _fuzz_attempts.Tally()) == words
    assert not process.is_alive()


def test_rows_of_targets_that_were_not_run_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "ROOT", tmp_path)
    first, second = fuzz.names()[:2]
    assert fuzz.merged([fuzz.row(first, _fuzz_attempts.Tally())])[0]["target"] == first
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    saved = [fuzz.row(name, _fuzz_attempts.Tally(inputs=1)) for name in (first, second)]
    (tmp_path / "benchmarks/results/fuzz.json").write_text(json.dumps({"results": saved}))
    found = fuzz.merged([fuzz.row(second, _fuzz_attempts.Tally(inputs=2))])
    assert [row["inputs"] for row in found] == [1, 2]


@pytest.mark.slow  # `make fuzz` does, in CI
@pytest.mark.parametrize("name", fuzz.names())
def test_a_target_reads_its_seeds_and_what_is_made_of_them(tmp_path, name):
    target = fuzz.named(name)
    tally = _fuzz_attempts.Tally()
    seeds = target.seeds()
    failures = [_fuzz_attempts.attempt(target, seed, tmp_path / "files", tally) for seed in seeds]
    assert failures == [{}] * len(seeds)
    assert tally.outcomes[_fuzz_attempts.MARK] >= len(seeds) // 3, (
        "seeds that the reader refuses reach little of it"
    )

    @hypothesis.settings(max_examples=20, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(mutated(seeds))
    def survives(files):
        assert _fuzz_attempts.attempt(target, files, tmp_path / "files", tally) == {}

    survives()
