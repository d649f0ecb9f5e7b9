"""`rknn check` and the dry run tell what the type of a file cannot: whether labels are classes."""

import numpy as np
import pytest

from tests.test_cli import arguments
from tests.test_inputs import LABELS, PRIVATE, PUBLIC, frame, refused, save


@pytest.mark.long
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_text_labels_without_names_are_told_by_the_check_that_the_dry_run_names(
    rknn, tmp_path, form
):
    """Such a file has no types, so that only the curator may be told."""
    names = np.array(["benign", "malignant", "unclear"])
    tables = {"P": frame(PUBLIC), "R": frame(PRIVATE).assign(labels=names[LABELS])}
    for name, table in tables.items():
        path = tmp_path / f"{name}.{form}"
        if form == "csv":
            table.to_csv(path, index=False)
        else:
            table.to_json(path, orient="records", lines=True)
    dry = rknn(*arguments(public=f"P.{form}", private=f"R.{form}"), "--dry-run")
    assert dry.status == 0
    command = f"rknn check R.{form} --public P.{form} --classes 3"
    assert command in " ".join(dry.err.split())
    done = rknn(*command.split()[1:])
    told = " ".join(done.out.split())
    assert "90 labels are text, and --classes 3 is a number" in told
    assert "No record can be used" in told
    assert rknn(*command.split()[1:], "--json").json["advice"]
    named = rknn("check", *command.split()[2:-1], "benign,malignant,unclear")
    assert "advice" not in named.out


@pytest.mark.parametrize("form", ["parquet", "feather", "npz"])
def test_text_labels_without_names_are_refused_by_their_type(rknn, tmp_path, form):
    names = np.array(["benign", "malignant", "unclear"])[LABELS]
    refused(rknn, tmp_path, save(tmp_path, form, names), "--classes to name the text labels")
    done = rknn("check", f"R.{form}", "--public", f"P.{form}", "--classes", 3)
    assert done.status == 2
    assert "--classes to name the text labels" in done.err


def test_labels_that_count_from_1_are_told_by_the_check(rknn, tmp_path):
    save(tmp_path, "csv", LABELS + 1)
    done = rknn("check", "R.csv", "--classes", 3)
    assert "name the numbers, as in --classes 1,2,...,3" in " ".join(done.out.split())
    assert "advice" not in rknn("check", "R.csv", "--classes", "1,2,3").out
