"""`rknn check` and the dry run tell what the type of a file cannot: whether labels are classes."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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
    assert "name the numbers, as in --classes 1,2,3" in " ".join(done.out.split())
    assert "advice" not in rknn("check", "R.csv", "--classes", "1,2,3").out


def test_columns_without_numbers_are_told_without_the_public_side(rknn, tmp_path):
    table = frame(PRIVATE).assign(labels=LABELS, ward=["a", "b", "c"] * 30)
    table["x0"] = ["?", *table["x0"].iloc[1:].astype(str)]
    table.to_csv(tmp_path / "R.csv", index=False)
    done = rknn("check", "R.csv", "--classes", 3)
    told = " ".join(done.out.split())
    assert "['ward'] hold no number in any record; leave them out with --drop" in told
    assert (
        "numbers with a decimal comma, a thousands separator or a unit, save them plainly" in told
    )
    assert "not finite numbers in 'x0' in 1 records" in told
    assert "ward" not in rknn("check", "R.csv", "--classes", 3, "--drop", "ward").out


def test_json_has_the_advice_that_is_printed(rknn, tmp_path):
    frame(PRIVATE).assign(labels="none of them").to_csv(tmp_path / "R.csv", index=False)
    printed = " ".join(rknn("check", "R.csv", "--classes", "a,b").out.split())
    advice = rknn("check", "R.csv", "--classes", "a,b", "--json").json["advice"]
    assert advice
    assert all(sentence in printed for sentence in advice)
    assert printed.count("advice") == len(advice)


@pytest.mark.parametrize("option", ["--public", "--classes", "--drop"])
def test_private_names_after_an_option_of_several_are_told(rknn, tmp_path, option):
    save(tmp_path, "csv", LABELS)
    done = rknn("check", option, "P.csv", "R.csv")
    assert done.status == 2
    assert "rknn check PRIVATE --public PUBLIC" in done.err


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_records_that_cannot_be_read_are_counted_by_reason(rknn, tmp_path, form):
    table = frame(PRIVATE).assign(labels="a", note="plain")
    if form == "csv":
        lines = table.to_csv(index=False).encode().splitlines()
        lines[3] = lines[3].replace(b"plain", b"caf\xe9")
        lines[4] = b"1,2"
        lines[5] = b'"open'
    else:
        lines = table.to_json(orient="records", lines=True).encode().splitlines()
        lines[3] = lines[3].decode().encode("utf-16")
        lines[4] = b"[1, 2]"
        lines[5] = lines[5].replace(b"plain", b"caf\xe9")
    (tmp_path / f"R.{form}").write_bytes(b"\n".join(lines))
    names = [name for name in table if name.startswith("x")]
    done = rknn("check", f"R.{form}", "--embedding", *names, "--classes", "a,b", "--json")
    reasons = done.json["reasons"]
    lost = {"csv": [0, 0, 0], "jsonl": [0, 0]}[form]
    assert done.json["usable"] == 90 - len(lost)
    assert reasons["broken record, bytes that are not UTF-8"] == 1
    assert sum(count for reason, count in reasons.items() if "broken" in reason) == 3
    advice, absent = done.json["advice"][::-1]
    assert "another encoding than UTF-8" in advice
    assert "is of class 'b'" in absent


def test_persons_that_are_no_exact_numbers_are_told(rknn, tmp_path):
    ids = 2.0**53 + 2.0 * np.arange(90)
    ids[0] = np.nan  # for which pandas made the column one of floats
    frame(PRIVATE).assign(labels=LABELS, who=ids).to_parquet(tmp_path / "R.parquet", index=False)
    done = rknn("check", "R.parquet", "--person", "who", "--classes", 3, "--json")
    assert done.json["reasons"] == {"person's number that is not exact": 89, "missing person": 1}
    assert ".astype('Int64')" in done.json["advice"][0]
    exact = frame(PRIVATE).assign(labels=LABELS, who=(2**53 + np.arange(90)))
    exact["who"] = exact["who"].astype("Int64").where(exact.index > 0)
    exact.to_parquet(tmp_path / "R.parquet", index=False)
    done = rknn("check", "R.parquet", "--person", "who", "--classes", 3, "--json")
    assert done.json["usable"] == 89


@pytest.mark.long
@pytest.mark.parametrize("form", ["csv", pytest.param("npz", marks=pytest.mark.long)])
def test_features_unlike_the_public_ones_are_told_to_the_curator(rknn, tmp_path, form):
    save(tmp_path, form, LABELS)
    words = ("check", f"R.{form}", "--public", f"P.{form}", "--classes", 3)
    assert "advice" not in rknn(*words).out
    odd = PRIVATE.copy()
    odd[:, 0] = odd[:, 0] * 1.8 + 60 * PUBLIC[:, 0].std()  # as in another unit
    odd[:, 2] = odd[0, 2]  # as a category that no public row has
    if form == "csv":
        frame(odd).assign(labels=LABELS).to_csv(tmp_path / "R.csv", index=False)
    else:
        np.savez(tmp_path / "R.npz", embeddings=odd, labels=LABELS)
    told = " ".join(rknn(*words).out.split())
    names = (", ['x0'],", ", ['x2'],") if form == "csv" else ("", "")
    assert f"1 of 4 features{names[0]} of private records lie on average more than 2" in told
    assert f"1 of 4 features{names[1]} vary less than 0.1 times as much" in told
    dry = rknn(*arguments(public=f"P.{form}", private=f"R.{form}"), "--dry-run")
    assert "from the public mean" not in dry.err


@pytest.mark.long
@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
@pytest.mark.parametrize(
    ("labels", "classes", "words"),
    [
        (LABELS == 1, "yes,no", ["False is read as 'yes', True as 'no'", "--classes False,True"]),
        (LABELS, "a,b,c", ["counted from 0: 0 is 'a', 1 is 'b', 2 is 'c'"]),
    ],
    ids=["bool", "numbers"],
)
def test_numbers_and_bools_are_told_as_the_names_they_are_read_as(
    rknn, tmp_path, form, labels, classes, words
):
    """Else such labels would be inverted, or of other classes, without a word."""
    changes = {**save(tmp_path, form, labels), "classes": classes}
    check = rknn("check", f"R.{form}", "--public", f"P.{form}", "--classes", classes)
    doors = [check]
    if form != "csv":  # a dry run knows types, and looks at no label
        doors.append(rknn(*arguments(**changes), "--dry-run"))
    for done in doors:
        told = " ".join((done.out + done.err).split())
        assert done.status == 0
        assert all(word in told for word in words), told
    names = ",".join(map(str, sorted({*labels.tolist()})))
    named = rknn("check", f"R.{form}", "--public", f"P.{form}", "--classes", names)
    assert "advice" not in named.out
    assert "is read as" not in rknn(*arguments(**changes | {"classes": names}), "--dry-run").err


@pytest.mark.parametrize(
    ("labels", "classes", "words"),
    [
        (LABELS + 1, "a,b,c", "as in --classes 1,2,3, or save the labels counted from 0"),
        (LABELS + 3, "a,b,c", "as in --classes 3,4,5,"),
        (LABELS + 3, "3", "as in --classes 3,4,5,"),
        (np.where(LABELS == 1, 1, -1), "2", "some are -1, which is read as no label"),
        (np.where(LABELS == 1, 1.0, -1.0), "ill,well", "as in --classes -1,1,"),
        (np.where(LABELS == 1, -1, LABELS), "3", None),
        (LABELS % 2, "3", None),
        (["5", *np.array(["a", "b"])[LABELS[1:] % 2]], "a,b", None),
    ],
)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_numbers_that_are_not_counted_from_0_are_told(rknn, tmp_path, form, labels, classes, words):
    save(tmp_path, form, labels)
    told = " ".join(rknn("check", f"R.{form}", "--classes", classes).out.split())
    if words is None:
        assert "No label is 0" not in told
        return
    assert "No label is 0" in told
    assert words in told


@pytest.mark.parametrize("sign", ["|", ", ", "/"])
@pytest.mark.parametrize("most", [None, 2])
def test_other_signs_between_several_labels_are_told(rknn, tmp_path, sign, most):
    names = np.array(["a", "b", "red fox"])
    both = [f"{names[one]}{sign}{names[one - 1]}" for one in LABELS]
    frame(PRIVATE).assign(labels=both).to_csv(tmp_path / "R.csv", index=False)
    more = [] if most is None else ["--labels-per-record", most]
    told = " ".join(rknn("check", "R.csv", "--classes", "a,b,red fox", *more).out.split())
    assert f"90 labels are names of classes with {sign.strip()!r} between them" in told
    assert "save them with ';' between the names" in told
    assert ("pass --labels-per-record" in told) == (most is None)
    assert "foreign 'a" in told


def test_several_labels_for_a_release_of_one_are_told(rknn, tmp_path):
    table = frame(PRIVATE).assign(labels=["a;b", "a", "b"] * 30)
    table.to_csv(tmp_path / "R.csv", index=False)
    told = " ".join(rknn("check", "R.csv", "--classes", "a,b").out.split())
    assert "30 labels are names of classes with ';' between them; pass --labels-per" in told


def mask_rows():
    return np.eye(3, dtype=int)[LABELS] + np.eye(3, dtype=int)[LABELS - 1]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_lists_of_0_and_1_that_look_like_masks_are_told_by_the_check(rknn, tmp_path, form):
    masks = mask_rows().tolist()
    save(tmp_path, "npz", LABELS)
    held = pa.table({"embeddings": PRIVATE.tolist(), "labels": masks})
    if form == "parquet":
        pq.write_table(held, tmp_path / "R.parquet")
    else:
        lines = "".join(f"{json.dumps(row)}\n" for row in held.to_pylist())
        (tmp_path / "R.jsonl").write_text(lines)
    words = ["check", f"R.{form}", "--public", "P.npz", "--labels-per-record", 2]
    told = " ".join(rknn(*words, "--classes", "a,b,c").out.split())
    assert "All lists of labels hold 3 numbers that are 0 or 1, as masks of 3 classes do" in told
    assert "lists of bool" in told
    assert "masks" not in rknn(*words, "--classes", "a,b,c,d").out
    changes = {"private": f"R.{form}", "classes": "a,b,c", "labels_per_record": 2}
    assert rknn(*arguments(**changes), "--dry-run").status == 0, "no content raises an error"


def test_lists_of_numbers_of_one_fixed_size_are_refused_like_arrays(rknn, tmp_path):
    save(tmp_path, "npz", LABELS)
    labels = pa.array(mask_rows().tolist(), pa.list_(pa.int64(), 3))
    pq.write_table(
        pa.table({"embeddings": PRIVATE.tolist(), "labels": labels}), tmp_path / "R.parquet"
    )
    changes = {"private": "R.parquet", "labels_per_record": 2, "classes": "a,b,c"}
    refused(rknn, tmp_path, changes, "which may be either; save a mask as bool")
    assert rknn(*arguments(**changes | {"classes": "a,b,c,d"}), "--dry-run").status == 0


@pytest.mark.long
@pytest.mark.parametrize("door", ["folder", "pattern"])
def test_one_data_set_in_two_formats_is_refused_by_the_names(rknn, tmp_path, door):
    """Every record would count twice, which epsilon does not cover."""
    save(tmp_path, "csv", LABELS)
    save(tmp_path, "parquet", LABELS)
    (tmp_path / "in").mkdir()
    for form in ("csv", "parquet"):
        (tmp_path / f"R.{form}").rename(tmp_path / f"in/R.{form}")
    changes = {"public": "P.csv", "private": "in" if door == "folder" else "in/R.*"}
    refused(rknn, tmp_path, changes, "which may hold the same records twice; move one of them away")
    assert rknn(*arguments(**changes | {"private": "in/R.csv"}), "--dry-run").status == 0


@pytest.mark.long
def test_files_that_hold_the_records_of_others_are_told_before_a_charge(rknn, tmp_path):
    save(tmp_path, "csv", LABELS)
    table = frame(PRIVATE).assign(labels=LABELS)
    (tmp_path / "in").mkdir()
    parts = {"all": table, "train": table[:60], "test": table[60:]}
    for name, part in parts.items():
        part.to_csv(tmp_path / f"in/{name}.csv", index=False)
    told = " ".join(rknn("check", "in", "--classes", 3).out.split())
    for name, part in parts.items():
        assert f"{len(part)} of {len(part)} records of {tmp_path / 'in' / name}.csv" in told
    assert "each counts. If files are copies" in told
    changes = {"public": "P.csv", "private": "in"}
    dry = " ".join(rknn(*arguments(**changes), "--dry-run").err.split())
    assert "whether files hold the same records is told to you alone by rknn check in" in dry
    (tmp_path / "in/all.csv").unlink()
    assert "advice" not in rknn("check", "in", "--classes", 3).out


@pytest.mark.long
def test_keys_that_no_json_line_has_are_told_by_the_check(rknn, tmp_path):
    save(tmp_path, "npz", LABELS)
    rows = [
        {"vector": row, "y": int(one)} for row, one in zip(PRIVATE.tolist(), LABELS, strict=True)
    ]
    (tmp_path / "R.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ["check", "R.jsonl", "--public", "P.npz", "--classes", 3]
    told = " ".join(rknn(*words).out.split())
    assert "No record at the beginning of R.jsonl has 'embeddings', 'labels'" in told
    assert "the records have vector, y. Name the columns with --embedding" in told
    dry = " ".join(rknn(*arguments(private="R.jsonl"), "--dry-run").err.split())
    assert "a dry run reads no labels and no keys of JSON lines" in dry
    assert "whether the columns are there is told to you alone by rknn check" in dry
    np.savez(tmp_path / "P.npz", vector=PUBLIC)
    named = rknn(*words, "--embedding", "vector", "--label", "y")
    assert "advice" not in named.out


def test_a_class_of_no_record_is_told_to_the_curator(rknn, tmp_path):
    frame(PRIVATE).assign(labels=np.array(["a", "b", "c"])[LABELS]).to_csv(
        tmp_path / "R.csv", index=False
    )
    told = rknn("check", "R.csv", "--classes", "a,b,c,d,e", "--json").json["advice"]
    [sentence] = [one for one in told if "is of class" in one]
    assert "'d', 'e'" in sentence
    assert "is of class" not in rknn("check", "R.csv", "--classes", "a,b,c").out


def test_labels_that_are_embedded_as_public_by_a_card_are_told(rknn, tmp_path):
    table = frame(PUBLIC).assign(labels="a")
    table.to_csv(tmp_path / "P.csv", index=False)
    table.drop(columns="labels").to_csv(tmp_path / "U.csv", index=False)
    assert rknn("embed", "--table", "P.csv", "--out", "p.parquet").status == 0
    card = ("--card", "p.card.json")
    for name, options, words in (
        ("P.csv", (), True),
        ("P.csv", ("--private",), False),
        ("U.csv", (), False),
    ):
        out = f"{name}{len(options)}.parquet"
        done = rknn("embed", "--table", name, *card, *options, "--out", out)
        assert done.status == 0
        assert ("pass --private" in " ".join(done.err.split())) == words
