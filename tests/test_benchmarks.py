"""Programs of benchmarks/ that change recorded results."""

import contextlib
import json
import signal
import subprocess
from pathlib import Path

import pytest

from benchmarks import (
    _kept,
    _measure,
    _mutated,
    _planting,
    _sources,
    planted_faults,
    stale,
)
from benchmarks._faults import FAULTS
from benchmarks._tables import _format

ROOT = Path(__file__).parents[1]


@pytest.mark.long
def test_a_stopped_benchmark_continues_and_a_finished_one_begins_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(_kept, "RUNS", tmp_path)
    worked = []

    def measured(number, of):
        assert of == "a b"
        worked.append(number)
        if number == 2 and len(worked) == 3:
            raise KeyboardInterrupt
        yield {"number": number}

    def run():
        with _kept.parts("some") as folder:
            rows = _kept.cells(folder, measured, range(4), ["a b"])
            return [row for found in rows for row in found], _kept.cpu_seconds(folder)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert sorted(path.name for path in (tmp_path / "some").glob("*.json")) == [
        "0-a_b.json",
        "1-a_b.json",
    ]
    assert run() == ([{"number": number} for number in range(4)], 0)
    assert worked == [0, 1, 2, 2, 3]
    assert not (tmp_path / "some").exists()
    run()
    assert worked[5:] == [0, 1, 2, 3]


def test_parts_of_other_code_are_measured_again(tmp_path, monkeypatch, capsys):
    code = {"rknn_jax/a.py": "1"}
    monkeypatch.setattr(_kept, "RUNS", tmp_path)
    monkeypatch.setattr(_sources, "deciding", lambda: code)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "0.json").write_text('{"found": "by nobody knows which code"}')

    def found(name, value):
        with contextlib.suppress(KeyboardInterrupt), _kept.parts(name) as folder:
            worked.append(_kept.part(folder, "0", lambda: value))
            raise KeyboardInterrupt

    worked = []
    found("old", 1)
    found("old", 2)
    code["rknn_jax/a.py"] = "2"
    found("old", 3)
    assert worked == [1, 1, 3]
    assert capsys.readouterr().out.count("measuring them again") == 2


@pytest.mark.long
def test_what_decides_a_result_is_all_of_the_package_and_what_the_program_imported():
    code = _sources.deciding()
    assert {"rknn_jax/cli/federation.py", "train/distill.py", "benchmarks/_kept.py"} <= set(code)
    assert "benchmarks/soak.py" not in code
    assert all(code.values())


def test_mutants_are_planted_in_files_that_exist_and_in_all_that_privacy_stands_on():
    for path, words in _mutated.TESTS.items():
        files = [path, *(word for word in words if word.endswith(".py"))]
        assert all((ROOT / file).is_file() for file in files), path
        assert len(files) > 1, path
    for folder in _mutated.FOLDERS:
        whole = {f"{folder}/{file.name}" for file in (ROOT / folder).glob("*.py")}
        assert whole - {"rknn_jax/privacy/__init__.py"} <= set(_mutated.TESTS)
    for file in (ROOT / "rknn_jax/federation").glob("secure_sum*.py"):
        assert f"rknn_jax/federation/{file.name}" in _mutated.TESTS


def test_equivalent_mutants_are_of_lines_that_exist():
    for name in json.loads((ROOT / "benchmarks" / "equivalent_mutants.json").read_text()):
        path, change = name.split(": ", 1)
        assert path in _mutated.TESTS, name
        lines = [line.strip() for line in (ROOT / path).read_text().splitlines()]
        assert any(change.startswith(f"{line} -> ") for line in lines if line), name


def test_every_planted_fault_fits_the_source():
    for known in FAULTS:
        assert planted_faults.fault_of(known, ROOT).code, known.words
        assert all((ROOT / word).is_file() for word in known.tests), known.words
    assert len({known.words for known in FAULTS}) == len(FAULTS) >= 40


TEST = "tests/test_this.py::test_that"


@pytest.mark.parametrize(
    ("status", "finder", "log", "expected"),
    [
        (0, None, "", "survived"),
        (1, TEST, "", "killed"),
        (2, "tests/test_this.py", "", "killed"),
        (4, None, "ImportError while loading conftest", "killed"),
        (255, None, "", "killed"),
        (-signal.SIGSEGV, None, "", "killed"),
        (-signal.SIGXCPU, None, "", "timeout"),
        (-signal.SIGKILL, None, "", "timeout"),
    ],
)
def test_a_process_that_does_not_end_well_has_found_the_fault(status, finder, log, expected):
    assert _planting.outcome(status, finder, log) == expected


@pytest.mark.parametrize(
    ("status", "log"),
    [
        (1, "the process did not start"),
        (2, "interrupted"),
        (4, "file or directory not found"),
        (5, "no tests ran"),
        (_planting.UNFIT, "the project was imported"),
    ],
)
def test_a_harness_that_fails_has_found_nothing(status, log):
    with pytest.raises(RuntimeError, match=f"got status {status}; (.|\n)*{log}"):
        _planting.outcome(status, None, log)


def test_a_result_is_stale_if_the_code_that_it_measures_says_something_else(tmp_path, monkeypatch):
    monkeypatch.setattr(_sources, "ROOT", tmp_path)
    (tmp_path / "rknn_jax").mkdir()
    file = tmp_path / "rknn_jax/a.py"
    file.write_text('"""Text."""\n\ndef f(x):\n    """More."""\n    return x + 1\n')
    found = {"sources": _sources.digests(["rknn_jax/a.py", "docs/a.md"]), "date": "2026-11-26"}
    assert list(found["sources"]) == ["rknn_jax/a.py"]
    file.write_text('"""Other text."""\n# why\ndef f(x):\n    return x + 1\n')
    assert stale.state(found) == "as the code is"
    file.write_text("def f(x):\n    return x + 2\n")
    assert stale.state(found) == "labels by the same code; rknn_jax/a.py changed"
    monkeypatch.setattr(_sources, "MEASURED", ("rknn_jax/a",))
    assert stale.state(found) == "stale: rknn_jax/a.py changed"
    file.unlink()
    assert stale.state(found) == "stale: rknn_jax/a.py changed"
    assert stale.state({"date": "2026-11-20T"}) == "names no sources; measured 2026-11-20"


def test_a_change_by_which_no_result_differs_is_listed_with_its_reason(tmp_path, monkeypatch):
    for path, one in _sources.equivalent().items():
        assert _sources.digests([path]) == {path: one["after"]}, "has changed since; remove it"
        assert one["why"].endswith(".")
    monkeypatch.setattr(_sources, "ROOT", tmp_path)
    monkeypatch.setattr(_sources, "MEASURED", ("rknn_jax/",))
    (tmp_path / "rknn_jax").mkdir()
    file = tmp_path / "rknn_jax/a.py"
    digests = []
    for text in ("x = 1", "x = 2", "x = 3"):
        file.write_text(text)
        digests.append(_sources.digests(["rknn_jax/a.py"])["rknn_jax/a.py"])
    listed = {"rknn_jax/a.py": {"before": digests[0], "after": digests[1], "why": "Same."}}
    monkeypatch.setattr(_sources, "equivalent", lambda: listed)
    found = {"sources": {"rknn_jax/a.py": digests[0]}}
    for text, state in (
        ("x = 1", "as the code is"),
        ("x = 2", "as the code is"),
        ("x = 3", "stale: rknn_jax/a.py changed"),
    ):
        file.write_text(text)
        assert stale.state(found) == state


def test_measuring_again_leaves_out_what_is_of_the_present_code(tmp_path, monkeypatch):
    for module in (stale, _format):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    commands = []

    def run(command, check):
        commands.append(command[1:])
        if command[-1] == "benchmarks.fails":
            raise subprocess.CalledProcessError(1, command)
        (tmp_path / f"{command[-1].partition('.')[2]}.json").write_text('{"sources": {}}')

    monkeypatch.setattr(stale.subprocess, "run", run)
    (tmp_path / "old.json").write_text('{"date": "2026-11-20T"}')
    (tmp_path / "new.json").write_text('{"sources": {}}')
    with pytest.raises(subprocess.CalledProcessError):
        stale.measure(["new", "old", "missing", "old", "fails", "later"])
    assert commands == [["-m", f"benchmarks.{name}"] for name in ("old", "missing", "fails")]


def test_a_table_says_that_its_code_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(_sources, "ROOT", tmp_path)
    monkeypatch.setattr(_format, "RESULTS", tmp_path)
    (tmp_path / "rknn_jax" / "answers").mkdir(parents=True)
    code = tmp_path / "rknn_jax" / "answers" / "a.py"
    told = tmp_path / "rknn_jax" / "told.py"
    about = {"command": "c", "date": "2026-11-26", "device": "cpu", "cores": 2}

    def mark(sources):
        found = about | {"versions": {"jax": "1"}, **sources}
        (tmp_path / "one.json").write_text(json.dumps(found))
        return _format.table(["a"], [["1"]], "one").rpartition("jax 1.")[2]

    code.write_text("x = 1")
    told.write_text("y = 1")
    sources = {"sources": _sources.digests(["rknn_jax/answers/a.py", "rknn_jax/told.py"])}
    assert mark({}) == " Which code it ran was not recorded."
    assert mark(sources) == ""
    told.write_text("y = 2")
    assert mark(sources) == ""
    code.write_text("x = 2  # a comment")
    assert mark(sources) == " The code that it measures has changed since."


@pytest.mark.long
def test_every_result_from_now_on_names_its_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(_measure, "RESULTS", tmp_path)
    _measure.save("a", [1])
    found = json.loads((tmp_path / "a.json").read_text())
    assert {"rknn_jax/types.py", "benchmarks/_measure.py"} <= set(found["sources"])
    assert found["load"] >= 0
    assert stale.state(found) == "as the code is"


def test_a_part_measured_again_has_its_own_sources_and_the_others_keep_theirs(
    tmp_path, monkeypatch
):
    old = {"command": "c", "date": "2026-11-20T", "device": "cpu", "cores": 2, "results": {}}
    new = {"rknn_jax/types.py": _sources.digests(["rknn_jax/types.py"])["rknn_jax/types.py"]}
    for module in (_measure, _format):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(_sources, "loaded", lambda: new)
    monkeypatch.setattr(_measure, "environment", lambda: old | {"date": "2026-11-29T"})
    (tmp_path / "one.json").write_text(json.dumps(old | {"results": {"a": 1, "b": 2, "c": 3}}))

    def source(part=None):
        return _format.source("one", part).partition("`, ")[2].replace("cpu with 2 cores, ", "")

    monkeypatch.setitem(old, "versions", {"jax": "1"})
    for part, result in (("b", 4), ("d", 5)):
        _measure.save_part("one", part, result)
    found = _format.load("one")
    assert found["results"] == {"a": 1, "b": 4, "c": 3, "d": 5}
    unknown = "names no sources; measured 2026-11-20"
    assert stale.state(found) == f"a, c: {unknown}; b, d: as the code is"
    assert source("a") == "2026-11-20, jax 1. Which code it ran was not recorded."
    assert source("b") == "2026-11-29, jax 1."
    both = "2026-11-20 to 2026-11-29, jax 1. Which code it ran was not recorded for 2 of 4 parts."
    assert source() == both
    monkeypatch.setitem(new, "rknn_jax/types.py", "another")
    _measure.save_part("one", "a", 6)
    monkeypatch.setattr(_sources, "MEASURED", ("rknn_jax/types",))
    assert stale.state(_format.load("one")).startswith("a: stale: rknn_jax/types.py changed; b, d")
    assert source("a") == "2026-11-29, jax 1. The code that it measures has changed since."


@pytest.mark.long
def test_parts_of_a_result_measured_as_a_whole_have_its_sources(tmp_path, monkeypatch):
    for module in (_measure, _format):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    _measure.save("one", {"a": 1, "b": 2})
    whole = _format.load("one")
    _measure.save_part("one", "b", 3)
    parts = _format.load("one")["parts"]
    assert parts["a"] == {key: whole[key] for key in ("date", "load", "sources")}
