"""Programs of benchmarks/ that change recorded results."""

import json
import signal
from pathlib import Path

import pytest

from benchmarks import (
    _measure,
    _mutated,
    _planting,
    _sources,
    measured,
    planted_faults,
    rows,
    stale,
)
from benchmarks._faults import FAULTS
from benchmarks._tables import _format

ROOT = Path(__file__).parents[1]


def test_rows_that_are_not_named_stay_as_they_are(tmp_path, monkeypatch):
    path = tmp_path / "rows.json"
    earlier = [
        {"name": "UDA", "test_accuracy": 0.1, "date": "2026-01-02"},
        {"name": "M5", "test_accuracy": 0.2, "date": "2026-01-01"},
    ]
    path.write_text(json.dumps({"results": earlier}))

    def save(name, results, **about):
        path.write_text(json.dumps(about | {"results": results}))

    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    monkeypatch.setattr(rows, "save", save)
    monkeypatch.setattr(
        rows, "measure", lambda row, prepared: {"name": row.name, "test_accuracy": 0.9}
    )
    rows.main(["M5", "M3"])
    found = json.loads(path.read_text())["results"]
    assert [row["name"] for row in found] == ["M3", "M5", "UDA"], "the order is that of the table"
    assert found[2] == earlier[0]
    assert [row["test_accuracy"] for row in found[:2]] == [0.9, 0.9]
    assert min(row["date"] for row in found[:2]) > earlier[0]["date"]
    with pytest.raises(SystemExit, match="M9"):
        rows.main(["M9"])


def test_some_data_sets_alone_leave_the_results_of_all_as_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RKNN_STATE_DIR", "of the reader")
    monkeypatch.setattr(measured, "PARTS", tmp_path)
    monkeypatch.setattr(measured, "EPSILONS", (1.0,))
    monkeypatch.setattr(measured, "cell", lambda *of_release: {"off": 0.0})
    monkeypatch.setattr(measured, "save", lambda *saved, **about: pytest.fail("wrote results"))
    monkeypatch.setattr("sys.argv", ["measured", "--only", "digits"])
    measured.main()
    assert len(list(tmp_path.iterdir())) == len(measured.SEEDS)
    monkeypatch.setattr("sys.argv", ["measured", "--only", "numbers"])
    with pytest.raises(SystemExit):
        measured.main()
    assert "'breast cancer'" in capsys.readouterr().err


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
    assert stale.state(found) == "stale: rknn_jax/a.py of 1 files changed"
    file.unlink()
    assert "stale" in stale.state(found)
    assert stale.state({"date": "2026-11-20T"}) == "names no sources; measured 2026-11-20"


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
