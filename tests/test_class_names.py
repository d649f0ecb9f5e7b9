"""Names of classes with commas and spaces are one thing at every door that takes classes."""

import json
import os

import numpy as np
import pytest

from rknn_jax.federation import settings as federation
from rknn_jax.records.classes import Classes, given_classes
from tests.options import named_settings
from tests.test_cli import arguments, arrays, contents
from tests.test_inputs import LABELS, NO_NOISE, PRIVATE, PUBLIC, TRUTH, save

NAMES = ["no sepsis", "sepsis, severe", "unclear"]

UNCLEAR = [
    ["no sepsis,sepsis, severe"],
    ["a, b, c"],
    ["a ,b"],
    [" a,b"],
    ["a\t,b"],
    ["a,", "b"],
    ["a", ",b"],
]


def doors(words):
    """Return a command line of each door, as far as the names of the classes."""
    serve = ["serve", "--public", "P.npz", "--epsilon", 1, "--clients", 2, "--out", "round"]
    return [
        [*arguments(classes=None), *words],
        [*arguments(classes=None), "--dry-run", *words],
        ["check", "R.npz", *words],
        [*serve, "--dry-run", "--student", "none", *words],
    ]


@pytest.mark.long
@pytest.mark.parametrize("given", UNCLEAR, ids=str)
def test_a_space_beside_a_comma_is_refused_at_every_door(rknn, tmp_path, given):
    save(tmp_path, "npz", LABELS)
    before = contents(tmp_path)
    for words in doors(["--classes", *given]):
        done = rknn(*words)
        assert done.status == 2
        assert "--classes-file" in done.err
        assert "a list in a file of options" in " ".join(done.err.split())
    assert contents(tmp_path) == before


def test_a_name_in_bytes_that_are_no_utf_8_is_refused_at_every_door(rknn, tmp_path):
    """Python reads them as halves of surrogate pairs, which no label and no file of results has."""
    save(tmp_path, "npz", LABELS)
    before = contents(tmp_path)
    for words in doors(["--classes", "a", "b", os.fsdecode(b"M\xfcller")]):
        done = rknn(*words)
        assert done.status == 2
        assert "write them in UTF-8" in done.err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("form", ["csv", "feather", "npz"])
def test_a_name_that_is_longer_than_what_files_tell_of_a_label_is_that_label(rknn, tmp_path, form):
    names = [letter * 500 for letter in "abc"]
    labels = [names[label] for label in LABELS]
    changes = save(tmp_path, form, labels)
    done = rknn(*arguments(**changes, **NO_NOISE, classes=",".join(names)))
    assert done.status == 0, done.err
    np.testing.assert_array_equal(arrays(tmp_path / "new" / "labels.npz")["label"], TRUTH)


def test_names_that_files_do_not_tell_apart_are_refused():
    with pytest.raises(ValueError, match="without NUL at their end, got .*x"):
        Classes(3, ("x\0", "x", "y"))
    with pytest.raises(ValueError, match="the longest of 3,000,000 characters"):
        Classes(9, (*"abcdefgh", "x" * 3_000_000))
    with pytest.raises(ValueError, match="differ in their first 400 bytes"):
        Classes(3, ("a", "é" * 200 + "b", "é" * 200 + "c"))


def test_a_space_beside_a_comma_is_refused_in_a_file_of_options(rknn, tmp_path):
    save(tmp_path, "npz", LABELS)
    (tmp_path / "run.toml").write_text('classes = "a, b, c"')
    for words in doors(["--config", "run.toml"]):
        assert "may be a name or part of one" in " ".join(rknn(*words).err.split())


@pytest.mark.long
@pytest.mark.parametrize("form", ["words", "toml", "json options", "txt", "json"])
def test_names_with_commas_are_given_at_every_door(rknn, tmp_path, form):
    np.savez(tmp_path / "P.npz", embeddings=PUBLIC)
    np.savez(tmp_path / "R.npz", embeddings=PRIVATE, labels=np.array(NAMES)[LABELS])
    (tmp_path / "names.txt").write_text("\ufeff" + "\r\n".join(NAMES) + "\r\n\r\n")
    (tmp_path / "names.json").write_text(json.dumps(NAMES))
    (tmp_path / "run.toml").write_text(f"classes = {json.dumps(NAMES)}")
    (tmp_path / "run.json").write_text(json.dumps({"classes": NAMES}))
    words = {
        "words": ["--classes", *NAMES],
        "toml": ["--config", "run.toml"],
        "json options": ["--config", "run.json"],
        "txt": ["--classes-file", "names.txt"],
        "json": ["--classes-file", "names.json"],
    }[form]
    _, dry, check, serve = doors(words)
    for line in (dry, check, serve):
        done = rknn(*line)
        assert done.status == 0, done.err
    counts = rknn(*check, "--json").json["classes"]
    assert counts == {name: int(np.sum(i == LABELS)) for i, name in enumerate(NAMES)}
    release = [*arguments(classes=None, **NO_NOISE), *words]
    done = rknn(*release)
    assert done.status == 0, done.err
    found = arrays(tmp_path / "new" / "labels.npz")
    assert found["class_names"].tolist() == NAMES
    np.testing.assert_array_equal(found["label"], TRUTH)


def test_a_federation_asks_with_the_names_of_a_file(tmp_path):
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    given = named_settings(
        federation.Serve,
        tmp_path / "P.npz",
        1.0,
        3,
        tmp_path / "out",
        classes_file=tmp_path / "names.txt",
    )
    assert federation.asked(given).classes == tuple(NAMES)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--classes", "a,b", "--classes-file", "names.txt"], "got both"),
        (["--classes-file", "nowhere.txt"], "--classes-file nowhere.txt could not be read"),
        (["--classes-file", "one.txt"], "at least 2 classes"),
        ([], "--classes"),
    ],
    ids=["both", "absent", "one", "none"],
)
def test_files_of_names_that_cannot_be_used_are_refused(rknn, tmp_path, words, told):
    save(tmp_path, "npz", LABELS)
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    (tmp_path / "one.txt").write_text("a\n")
    before = contents(tmp_path)
    for line in doors(words):
        if "label" in line and "--dry-run" in line and not words:
            continue  # it assumes a number
        done = rknn(*line)
        assert done.status == 2
        assert told in " ".join(done.err.split())
    assert contents(tmp_path) == before


def test_a_file_may_hold_any_name(tmp_path):
    (tmp_path / "names.json").write_text('[" a,", ",b", 7]')
    assert given_classes(None, tmp_path / "names.json") == Classes(3, ("a,", ",b", "7"))
