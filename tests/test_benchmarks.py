"""Programs of benchmarks/ that change recorded results."""

import json

import pytest

from benchmarks import rows


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
