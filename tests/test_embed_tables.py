"""`rknn embed --table` and what tables of the world hold: missing values, mistakes, encodings."""

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rknn_jax import formats
from rknn_jax.embedding import table, table_files, table_fit
from rknn_jax.embedding.file_rows import FileRows
from rknn_jax.records.persons import person_names
from rknn_jax.release import adoption
from rknn_jax.settings import NamedColumns

AGES = ["20", "30.5", "40"] * 20


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, ages, towns):
    lines = [f"{age},{town}" for age, town in zip(ages, towns, strict=True)]
    Path(name).write_text("\n".join(["age,town", *lines]) + "\n")


def embeddings(name):
    return np.array(pq.read_table(name)["embeddings"].to_pylist(), np.float32)


@pytest.mark.parametrize("word", ["?", "NA", "n/a", "-", "NaN", "None", " ? ", "#N/A", "<NA>"])
def test_a_word_for_a_missing_number_leaves_a_column_of_numbers(rknn, word):
    for name, missing in (("word", word), ("empty", "")):
        write(f"{name}.csv", [missing, *AGES], ["a", *"abc" * 20])
        done = rknn("embed", "--table", f"{name}.csv", "--out", f"{name}.parquet")
        assert done.status == 0, done.err
    found = embeddings("word.parquet")
    assert found.shape == (61, 1 + 3)
    np.testing.assert_array_equal(found, embeddings("empty.parquet"))
    cards = [json.loads(Path(f"{name}.card.json").read_text()) for name in ("word", "empty")]
    assert cards[0]["model"] == cards[1]["model"]


def test_a_label_is_no_feature_though_the_public_table_had_such_a_column(rknn):
    """There it was somebody's guess, and here it is the truth."""
    for name in ("public", "private"):
        Path(f"{name}.csv").write_text("age,diagnosis\n20,1\n30,2\n40,1\n")
    assert rknn("embed", "--table", "public.csv", "--out", "p.parquet").status == 0
    done = rknn(
        *("embed", "--table", "private.csv", "--card", "p.card.json", "--private", "--json"),
        *("--label", "diagnosis", "--out", "r.parquet"),
    )
    assert done.status == 2
    assert "features without the label, got --label diagnosis" in done.json["error"]
    assert "of --card p.card.json, which saw no label" in done.json["error"]


def test_a_row_of_words_for_missing_numbers_has_no_values(rknn):
    Path("p.csv").write_text("a,b\n1.5,2\n2.5,1\n?,NA\n-,7.5\n")
    done = rknn("embed", "--table", "p.csv", "--out", "p.parquet", "--json")
    assert done.json["rows"] == 3
    assert "row 2 (no values)" in done.err


def test_a_category_may_be_a_word_for_a_missing_number(rknn):
    write("p.csv", AGES, ["?", "-", "Rome"] * 20)
    assert rknn("embed", "--table", "p.csv", "--out", "p.parquet").status == 0
    assert embeddings("p.parquet").shape == (60, 1 + 3)


def test_mistakes_that_make_a_column_of_numbers_one_hot_are_told(rknn):
    write("p.csv", ["4O", "ten", *AGES], ["a", "b", *"abc" * 20])
    done = rknn("embed", "--table", "p.csv", "--out", "p.parquet")
    told = " ".join(done.err.split())
    assert done.status == 0
    assert "column 'age' is one-hot, because of '4O', 'ten' in 2 of 62 values" in told
    assert "mend them" in told
    write("q.csv", ["low", "high", "20"] * 20, ["a", "b", "c"] * 20)
    assert "one-hot" not in rknn("embed", "--table", "q.csv", "--out", "q.parquet").err


def test_mistakes_among_many_numbers_are_named(rknn):
    write("p.csv", ["4O", *np.linspace(20, 70, 60)], ["a", *"abc" * 20])
    done = rknn("embed", "--table", "p.csv", "--out", "p.parquet")
    assert done.status == 2
    assert "Expected numbers in the column 'age', got '4O' in 1 of 61 values" in done.err


def test_what_is_told_of_a_column_is_not_in_the_card():
    write("p.csv", ["4O", *AGES], ["a", *"abc" * 20])
    model = table_fit.fit(Path("p.csv"), "--table", ("age", "town"), chosen=False)
    assert len(model.told) == 1
    assert table.of_card(json.loads(json.dumps(model.card))).columns == model.columns


def table_of(name, **columns):
    rows = zip(*columns.values(), strict=True)
    Path(name).write_text("\n".join([",".join(columns), *map(",".join, rows)]))


QUANTITIES = {
    "dates": ["07.11.2024", "31.12.24", "1.2.2023"],
    "dates ": ["2024-11-07", "2024/1/2", "2023-12-31T10:00:00"],
    "dates  ": ["7 Nov 2024", "12-Jan-23", "March 3 2020"],
    "times of day": ["14:00", "9:30", "23:59:01"],
    "numbers with a decimal comma or a thousands separator": ['"36,9"', '"1.200,5"', '"-0,25"'],
    "numbers with a unit or a sign": ["97 %", "35mg", "120 mmHg"],
    "numbers with a unit or a sign ": ["<1.5", "<0.2", "3"],
}


@pytest.mark.parametrize("kind", QUANTITIES)
@pytest.mark.parametrize("rows", [6, 80])
def test_quantities_that_are_text_are_no_categories(rknn, kind, rows):
    values = QUANTITIES[kind] * rows
    if rows == 80 and kind.strip() == "times of day":
        values = [f"{i // 60}:{i % 60:02}" for i in range(len(values))]
    table_of("p.csv", age=["20", "30", "44"] * rows, odd=[*values[:-1], "NA"])
    done = rknn("embed", "--table", "p.csv", "--out", "p.parquet")
    assert done.status == 2
    assert f"in the column 'odd', got {kind.strip()} such as" in done.err
    assert rknn("embed", "--table", "p.csv", "--drop", "odd", "--out", "p.parquet").status == 0


@pytest.mark.parametrize(
    "values",
    [["12A", "3B", "7C"], ["1st", "2nd", "3rd"], ["v1.2.3", "1.2.3", "a"], ["A1", "B2", "C"]],
)
def test_codes_are_categories(rknn, values):
    table_of("p.csv", age=["20", "30", "44"] * 9, code=values * 9)
    done = rknn("embed", "--table", "p.csv", "--out", "p.parquet")
    assert done.status == 0, done.err
    assert "numbers age; categories code (3 values)" in " ".join(done.err.split())


def test_a_category_of_dates_may_be_named(rknn):
    table_of("p.csv", age=["20", "30", "44"] * 9, day=QUANTITIES["dates"] * 9)
    named = ("--columns", "age", "day")
    assert rknn("embed", "--table", "p.csv", *named, "--out", "p.parquet").status == 0


def test_numbers_far_from_all_others_and_ids_are_told(rknn):
    ages = [str(value) for value in np.linspace(20, 90, 60)]
    bits = ["0", "1"] * 30
    patients = [str(70_000 + 7 * (3 * row // 4)) for row in range(64)]
    columns = {
        "age": [*ages, "-9999", "-9999", "-9999", "33"],
        "income": [*ages, "9e6", "5", "6", "7"],
        "smokes": [*bits, "99", "99", "0", "1"],
        "visits": ["0"] * 50 + ["5", "6"] * 7,
        "PatID": patients,
        "grid": [str(row) for row in range(32)] * 2,
    }
    table_of("p.csv", **columns)
    told = " ".join(rknn("embed", "--table", "p.csv", "--out", "p.parquet").err.split())
    assert "column 'age' is -9999 in 3 of 64 rows, far from all other values (20 to 90)" in told
    assert "column 'smokes' is 99 in 2 of 64 rows" in told
    assert "column 'PatID' of whole numbers is named like an id" in told
    assert told.count("warning") == 3, told


def test_the_curator_is_told_of_values_that_the_public_table_does_not_have(rknn):
    ages = [str(value) for value in np.linspace(20, 90, 60)]
    table_of("p.csv", age=ages, heat=["36.5", "37", "38.1"] * 20, smokes=["yes", "no"] * 30)
    assert rknn("embed", "--table", "p.csv", "--out", "p.parquet").status == 0
    table_of("r.csv", age=ages[:40], heat=['"36,9"', "NA"] * 20, smokes=["ja", "no", "no", ""] * 10)
    private = ("embed", "--table", "r.csv", "--card", "p.card.json", "--private", "--out")
    told = " ".join(rknn(*private, "r.parquet").err.split())
    assert "20 of 20 values of column 'heat' are no numbers, such as '36,9'" in told
    assert (
        "(numbers with a decimal comma or a thousands separator: save the numbers plainly" in told
    )
    assert "10 of 30 values of column 'smokes' are in no public row, such as 'ja'" in told
    assert "'age'" not in told
    table_of("f.csv", age=ages[:40], heat=["98.1", "99.5"] * 20, smokes=["yes", "no"] * 20)
    told = " ".join(rknn(*private[:2], "f.csv", *private[3:], "f.parquet").err.split())
    assert "public standard deviations above the public mean on average" in told
    assert told.count("tell nobody") == 1
    assert "tell nobody" not in Path("f.card.json").read_text()


def test_categories_are_alike_but_for_capitals_and_white_space(rknn):
    ages = [str(value) for value in np.linspace(20, 90, 60)]
    table_of("p.csv", age=ages, steep=["True", "False"] * 30, sex=["m", "M", "w"] * 20)
    assert rknn("embed", "--table", "p.csv", "--out", "p.parquet").status == 0
    columns = {
        "age": np.linspace(20, 90, 60),
        "steep": [True, False] * 30,
        "sex": ["m", "M", "W "] * 20,
    }
    pq.write_table(pa.table(columns), "r.parquet")
    private = ("--card", "p.card.json", "--private", "--out", "o.parquet")
    done = rknn("embed", "--table", "r.parquet", *private)
    assert "tell nobody" not in done.err
    # `m` and `M` are two public values, and stay two.
    np.testing.assert_array_equal(embeddings("o.parquet"), embeddings("p.parquet"))
    either = table.Category("sex", ("M", "m", "w")).features(pa.chunked_array([["m", " m", "M "]]))
    assert either.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("suffix", [".ipc", ".arrows", ".arrow"])
def test_arrow_files_have_many_names(rknn, suffix):
    table = pa.table({"age": np.linspace(20, 90, 60), "town": ["a", "b"] * 30})
    for stream in (False, True):
        make = pa.ipc.new_stream if stream else pa.ipc.new_file
        with pa.OSFile(f"p{suffix}", "wb") as sink, make(sink, table.schema) as writer:
            writer.write_table(table)
        done = rknn("embed", "--table", f"p{suffix}", "--out", f"p{stream}.parquet")
        assert done.status == 0, done.err
    np.testing.assert_array_equal(embeddings("pFalse.parquet"), embeddings("pTrue.parquet"))


ROWS = pa.table({"age": ["20", "30.5", "44"] * 4, "town": ["a", "b", "c", "d"] * 3})


def save(name, found):
    """Write a table in the format and compression of a name."""
    path = Path(name.lower().removesuffix(".gz"))
    content = io.BytesIO()
    if path.suffix == ".csv":
        content.write(found.to_pandas().to_csv(index=False).encode())
    elif path.suffix == ".jsonl":
        content.write(b"\xef\xbb\xbf")  # the mark of UTF-8
        content.write(found.to_pandas().to_json(orient="records", lines=True).encode())
    elif path.suffix in (".parquet", ".pq"):
        pq.write_table(found, content)
    else:
        with pa.ipc.new_file(content, found.schema) as sink:
            sink.write_table(found)
    zipped = gzip.compress(content.getvalue()) if name.endswith(".gz") else content.getvalue()
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_bytes(zipped)


@pytest.mark.long
def test_every_table_that_label_reads_is_embedded(rknn):
    known = set(formats.suffixes()) - {".npy", ".npz"}  # which hold arrays
    assert known == set(table_files.SUFFIXES)
    save("rows.parquet", ROWS)
    assert rknn("embed", "--table", "rows.parquet", "--out", "o.parquet").status == 0
    expected = embeddings("o.parquet")
    several = ["x.CSV", "x.csv.gz", "x.jsonl.gz", "x.parquet.gz"]
    for name in [*(f"y{suffix}" for suffix in known), *several]:
        save(name, ROWS)
        done = rknn("embed", "--table", name, "--out", f"{name}.parquet")
        assert done.status == 0, done.err
        np.testing.assert_array_equal(embeddings(f"{name}.parquet"), expected)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".feather"])
def test_a_folder_or_pattern_of_tables_is_one_table(rknn, suffix):
    save("rows.parquet", ROWS)
    rknn("embed", "--table", "rows.parquet", "--out", "o.parquet")
    for part in range(3):
        save(f"parts/{part}{suffix}", ROWS.slice(4 * part, 4))
    Path(f"parts/_hidden{suffix}").write_text("no table")
    Path("parts/0.csv.ledger.jsonl").write_text("no record")
    for number, name in enumerate(("parts", f"parts/[0-9]{suffix}")):
        done = rknn("embed", "--table", name, "--out", f"{number}.parquet")
        assert done.status == 0, done.err
        assert pq.read_table(f"{number}.parquet").equals(pq.read_table("o.parquet"))


def test_a_file_of_a_folder_counts_once_whatever_its_names():
    """Each of its records would have as many rows, and votes, as it has names."""
    Path("d").mkdir()
    write("d/a.csv", [30, 40], ["Rome", "Oslo"])
    write("d/b.csv", [50, 60], ["Rome", "Oslo"])
    assert [one.name for one in table_files.files(Path("d"), "--table")] == ["a.csv", "b.csv"]
    for other, make in {
        "link.csv": lambda path: path.symlink_to("a.csv"),
        "hard.csv": lambda path: path.hardlink_to("d/a.csv"),
        "a.csv.gz": lambda path: path.write_bytes(gzip.compress(Path("d/a.csv").read_bytes())),
        "a.jsonl": lambda path: path.write_text('{"age": 30, "town": "Rome"}'),
    }.items():
        path = Path("d") / other
        make(path)
        for name in ("d", "d/*"):
            with pytest.raises(ValueError, match="twice"):
                table_files.files(Path(name), "--table")
        path.unlink()


def test_files_of_different_columns_are_no_table(rknn):
    save("parts/0.csv", ROWS)
    save("parts/1.csv", ROWS.rename_columns(["years", "town"]))
    done = rknn("embed", "--table", "parts", "--out", "o.parquet")
    assert done.status == 2
    assert "the same columns" in done.err


def test_a_private_csv_in_another_encoding_is_told_to_the_curator(rknn):
    Path("r.csv").write_bytes("text,labels\ncafé noir,a\nplain,b\n".encode("latin-1"))
    done = rknn("embed", "--text", "r.csv", "--private", "--out", "o.parquet")
    assert done.status == 0, done.err
    assert "row 0 (bytes that are not UTF-8)" in done.err
    assert np.isfinite(embeddings("o.parquet")).all(axis=1).tolist() == [False, True]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
@pytest.mark.parametrize("private", [True, False])
def test_a_header_in_another_encoding_is_refused_by_its_encoding(rknn, encoding, private):
    Path("r.csv").write_bytes("texte,âge,labels\nplain,1,a\n".encode(encoding))
    Path("p.csv").write_text("a,b\n1.5,2.5\n2.5,1.5\n")
    words = ["--private"] if private else []
    for command in (
        ["embed", "--text", "r.csv", *words, "--out", "o.parquet"],
        ["check", "r.csv", "--classes", "2"],
        ["label", "--public", "p.csv", "--private", "r.csv", "--epsilon", 1, "--classes", 2],
    ):
        done = rknn(*command)
        assert done.status == 2
        told = " ".join(done.err.split())
        assert "save the file in UTF-8, as by iconv" in told, told


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}])
def test_lists_and_objects_of_json_are_no_cells(rknn, value):
    """A public one is refused as in Parquet, and a private one is missing."""
    records = [{"a": i / 2, "b": "xyz"[i % 3]} for i in range(6)]
    Path("p.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert rknn("embed", "--table", "p.jsonl", "--out", "p.parquet").status == 0
    odd = [{**records[0], "b": value}, records[1]]
    Path("o.jsonl").write_text("".join(json.dumps(record) + "\n" for record in odd))
    done = rknn("embed", "--table", "o.jsonl", "--out", "o.parquet")
    assert done.status == 2
    assert "Expected text or a number in column 'b'" in " ".join(done.err.split())
    assert "in row 0" in done.err
    private = ("--card", "p.card.json", "--private")
    done = rknn("embed", "--table", "o.jsonl", *private, "--out", "r.parquet")
    assert done.status == 0, done.err
    assert embeddings("r.parquet")[0, 1:].tolist() == [0, 0, 0]


BOOLS = [True, False, None, True, False, False]


def bools(name, kind):
    """Write bools and numbers as a public or a private side has them."""
    ages = [20.5 + i for i in range(6)]
    words = {
        "json": json.dumps,
        "capitals": lambda one: str(one).upper(),
        "letter": lambda one: str(one)[0],
    }
    match kind:
        case "parquet":
            pq.write_table(pa.table({"age": ages, "smokes": pa.array(BOOLS)}), name)
        case "numbers" | "capitals" | "letter":
            say = words.get(kind, lambda one: str(int(one)))
            cells = ["" if one is None else say(one) for one in BOOLS]
            lines = [f"{age},{cell}\n" for age, cell in zip(ages, cells, strict=True)]
            Path(name).write_text("age,smokes\n" + "".join(lines))
        case _:
            pairs = zip(ages, BOOLS, strict=True)
            lines = [json.dumps({"age": age, "smokes": one}) + "\n" for age, one in pairs]
            Path(name).write_text("".join(lines))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("parquet", "r.parquet"),
        ("json", "r.jsonl"),
        ("capitals", "r.csv"),
        ("letter", "r.csv"),
        ("numbers", "r.csv"),
    ],
)
def test_bools_are_the_same_in_every_format_of_the_private_side(rknn, kind, name):
    bools("p.parquet", "parquet")
    assert rknn("embed", "--table", "p.parquet", "--out", "po.parquet").status == 0
    bools(name, kind)
    private = ("--card", "po.card.json", "--private")
    done = rknn("embed", "--table", name, *private, "--out", "ro.parquet")
    assert done.status == 0, done.err
    np.testing.assert_array_equal(embeddings("ro.parquet"), embeddings("po.parquet"))
    assert "are no numbers" not in done.err


@pytest.mark.parametrize(("kind", "name"), [("json", "p.jsonl"), ("capitals", "p.csv")])
def test_public_words_for_bools_are_found_in_a_private_column_of_bools(rknn, kind, name):
    bools(name, kind)
    assert rknn("embed", "--table", name, "--out", "po.parquet").status == 0
    bools("r.parquet", "parquet")
    private = ("--card", "po.card.json", "--private")
    assert rknn("embed", "--table", "r.parquet", *private, "--out", "ro.parquet").status == 0
    np.testing.assert_array_equal(embeddings("ro.parquet"), embeddings("po.parquet"))


def test_a_word_is_no_number_in_a_column_of_numbers(rknn):
    write("p.csv", AGES, ["a", "b", "c"] * 20)
    write("r.csv", ["true", "20"], ["a", "b"])
    rknn("embed", "--table", "p.csv", "--out", "p.parquet")
    private = ("--card", "p.card.json", "--private")
    done = rknn("embed", "--table", "r.csv", *private, "--out", "r.parquet")
    assert "1 of 2 values of column 'age' are no numbers" in " ".join(done.err.split())


def accented(name, count, others):
    """Write records in Windows-1252, and others that are the same bytes in UTF-8."""
    words = ["caf\u00e9 noir,a\n"] * count + ["plain,b\n"] * others
    Path(name).write_bytes("".join(["text,labels\n", *words]).encode("cp1252"))


@pytest.mark.long
@pytest.mark.parametrize(("count", "others"), [(10, 2), (20, 1000)])
def test_many_private_records_in_another_encoding_are_told_with_the_remedy(rknn, count, others):
    accented("r.csv", count, others)
    lines = Path("r.csv").read_bytes().splitlines()[1:]
    made = b"".join(b'{"text": "%s"}\n' % line.split(b",")[0] for line in lines)
    Path("r.jsonl").write_bytes(made)
    for name in ("r.csv", "r.jsonl"):
        done = rknn("embed", "--text", name, "--private", "--out", f"{name}.parquet")
        assert done.status == 0, done.err
        told = " ".join(done.err.split())
        assert f"{count} of {count + others:,} records hold bytes that are not UTF-8" in told
        assert "iconv -f WINDOWS-1252 -t UTF-8" in told


@pytest.mark.parametrize(("count", "others"), [(9, 0), (10, 1000)])
def test_few_private_records_in_another_encoding_are_no_encoding(rknn, count, others):
    accented("r.csv", count, others)
    done = rknn("embed", "--text", "r.csv", "--private", "--out", "o.parquet")
    assert done.status == 0, done.err
    assert "iconv" not in done.err


@pytest.mark.parametrize("private", [True, False])
def test_a_compression_that_cannot_be_read_is_named(rknn, private):
    """By the suffix, or by the first bytes of the header of CSV."""
    zstd = b"\x28\xb5\x2f\xfd\x04\x00\x41\x00\x00age,town\n1,a\n"
    for name in ("r.csv.zst", "r.jsonl.zst", "r.csv"):
        Path(name).write_bytes(zstd)
    Path("z.csv").write_bytes(gzip.compress(b"age,town\n1.5,a\n", mtime=0))
    Path("p.csv").write_text("a,b\n1.5,2.5\n2.5,1.5\n")
    words = ["--private"] if private else []
    for name in ("r.csv.zst", "r.jsonl.zst", "r.csv", "z.csv"):
        for command in (
            ["embed", "--text", name, *words, "--out", "o.parquet"],
            ["label", "--public", "p.csv", "--private", name, "--epsilon", 1, "--classes", 2],
        ):
            done = rknn(*command)
            assert done.status == 2, (name, command)
            told = " ".join(done.err.split())
            assert ("gzip" if name == "z.csv" else "zstd") in told, told
            assert "decompress" in told
            assert "UTF-16" not in told


def test_a_name_of_a_column_may_begin_as_a_compression(rknn):
    Path("p.csv").write_text("BZh,PAR1\n1.5,2.5\n2.5,1\n")
    assert rknn("embed", "--table", "p.csv", "--out", "o.parquet").status == 0


SEPARATED = [
    ["5,133", "12,400", "900", "1,234,567"],
    ["5.133.000", "1.234,5"],
    ["5 133", "12'400.5"],
]


@pytest.mark.parametrize("values", SEPARATED)
def test_thousands_separators_are_named_with_the_remedy(rknn, values):
    table_of("p.csv", age=["20.5", "30", "44"] * 20, odd=[f'"{one}"' for one in values * 60][:60])
    done = rknn("embed", "--table", "p.csv", "--out", "p.parquet")
    assert done.status == 2
    told = " ".join(done.err.split())
    assert "numbers with a decimal comma or a thousands separator such as" in told
    assert "save the numbers plainly, such as 5133 or 5.133" in told


@pytest.mark.parametrize("typed", [False, True])
def test_points_that_may_separate_thousands_are_told(rknn, typed):
    random = np.random.default_rng(0)
    thousands = [f"{one:,}".replace(",", ".") for one in random.integers(300, 90_000, 60)]
    decimals = [f"{one:.3f}" for one in random.normal(0, 2, 60)]
    cents = [f"{one:.2f}" for one in random.uniform(1, 100, 60)]
    columns = {"income": thousands, "score": decimals, "price": cents}
    if typed:
        floats = {name: [*map(float, values)] for name, values in columns.items()}
        pq.write_table(pa.table(floats), "p.parquet")
    else:
        table_of("p.csv", **columns)
    name = "p.parquet" if typed else "p.csv"
    done = rknn("embed", "--table", name, "--out", "o.parquet")
    assert done.status == 0, done.err
    told = " ".join(done.err.split())
    assert "column 'income' has three digits after every point" in told
    assert told.count("warning") == 1, told


def test_sentences_that_many_columns_share_are_one(rknn):
    """Public refusals and what the curator is told."""
    random = np.random.default_rng(0)
    names = [f"f{i}" for i in range(30)]
    numbers = random.integers(2000, 90_000, (30, 60))
    commas = {name: [f'"{one:,}"' for one in row] for name, row in zip(names, numbers, strict=True)}
    plain = {name: [f"{one}.5" for one in row] for name, row in zip(names, numbers, strict=True)}
    table_of("c.csv", **commas)
    table_of("p.csv", **plain)
    refused = " ".join(rknn("embed", "--table", "c.csv", "--out", "c.parquet").err.split())
    assert refused.count("Expected") == 1
    assert "[and so in 29 other columns: 'f1', 'f2', 'f3', 'f4', 'f5', ...]" in refused
    assert rknn("embed", "--table", "p.csv", "--out", "p.parquet").status == 0
    private = ("--card", "p.card.json", "--private")
    told = rknn("embed", "--table", "c.csv", *private, "--out", "r.parquet")
    assert told.status == 0, told.err
    assert " ".join(told.err.split()).count("tell nobody)") == 1
    assert "[and so in 29 other columns" in " ".join(told.err.split())


@pytest.mark.parametrize("folder", [False, True])
def test_a_row_of_totals_is_told(rknn, folder):
    lines = [f"{20 + i / 2},{i % 7},{i * 3.7:.1f},{i % 2},x" for i in range(50)]
    names = "age,visits,income,smokes,labels"
    Path("p").mkdir()
    Path("p/a.csv").write_text("\n".join([names, *lines, ",,4532.5,,"]) + "\n")
    if folder:
        Path("p/b.csv").write_text("\n".join([names, *lines, ",,4533.5,,"]) + "\n")
    path = "p" if folder else "p/a.csv"
    told = " ".join(rknn("embed", "--table", path, "--out", "o.parquet").err.split())
    assert "row 50, the last one of a.csv, is empty but for 'income', as a row of totals" in told
    assert told.count("as a row of totals") == 1 + folder
    assert ("row 101, the last one of b.csv," in told) is folder
    Path("q.csv").write_text("\n".join([names, ",,12.5,,", *lines, *[",,4.5,,"] * 9]) + "\n")
    sparse = " ".join(rknn("embed", "--table", "q.csv", "--out", "q.parquet").err.split())
    assert "totals" not in sparse
    Path("r.csv").write_text("\n".join([names, *lines, ",,4532.5,,"]) + "\n")
    private = ("--card", "q.card.json", "--private")
    done = rknn("embed", "--table", "r.csv", *private, "--out", "r.parquet")
    assert done.status == 0, done.err
    assert "totals" not in done.err


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(4)], ids=str)
def test_bytes_in_a_private_category_are_their_record_s_own_affair(rknn, kind):
    """One value that was no Unicode was an error, which told of its record."""
    write("p.csv", AGES, ["Rome", "Oslo"] * 30)
    assert rknn("embed", "--table", "p.csv", "--out", "p.parquet").status == 0
    made = {}
    for name, odd in (("plain", b"Rome"), ("odd", b"\xff\xfe\x80\xff")):
        towns = pa.array([odd, *[b"Oslo", b"Rome"] * 4], kind)
        pq.write_table(pa.table({"age": pa.array([20.0] * 9), "town": towns}), f"{name}.parquet")
        done = rknn(
            *("embed", "--table", f"{name}.parquet", "--card", "p.card.json", "--private"),
            *("--out", f"{name}-made.parquet"),
        )
        assert done.status == 0, done.err
        made[name] = embeddings(f"{name}-made.parquet")
    np.testing.assert_array_equal(made["odd"][1:], made["plain"][1:])
    assert made["odd"][0].tolist() == [made["plain"][0, 0], 0, 0]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([["Rome"]] * 3),
        pa.array([{"town": "Rome"}] * 3),
        pa.array([[("town", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
        pa.array([["Rome"]] * 3, pa.list_view(pa.string())),
        pa.array([(1, 2, 3)] * 3, pa.month_day_nano_interval()),
    ],
    ids=lambda column: str(column.type),
)
def test_a_private_column_of_another_type_is_refused_by_its_name_and_type(rknn, column):
    write("p.csv", AGES, ["Rome", "Oslo"] * 30)
    assert rknn("embed", "--table", "p.csv", "--out", "p.parquet").status == 0
    made = pa.table({"age": pa.array([20.0] * 3), "town": column})
    with pa.OSFile("r.arrow", "wb") as sink, pa.ipc.new_file(sink, made.schema) as out:
        out.write_table(made)
    private = ("--card", "p.card.json", "--private", "--out", "r.parquet")
    done = rknn("embed", "--table", "r.arrow", *private)
    assert done.status == 2, done.err
    assert f"Expected text in column 'town', as on the public side, got {column.type}" in " ".join(
        done.err.split()
    )
    assert "Rome" not in done.err
    assert not Path("r.parquet").exists()


@pytest.mark.parametrize("name", ["embeddings", "row", "labels"])
def test_a_kept_column_does_not_take_the_place_of_one_that_is_made(rknn, name):
    made = pa.table({"x": [1.0, 2.0], "class": ["a", "b"], name: [[0.0], [9.0]]})
    pq.write_table(made, "p.parquet")
    own = ("--columns", "x", "--label", "class", "--keep", name)
    done = rknn("embed", "--table", "p.parquet", *own, "--out", "q.parquet")
    assert done.status == 2
    assert f"does not write itself, got ['{name}']" in " ".join(done.err.split())


PERSONS = [
    *(7, 7.0, "7", " 07 ", 2**53 + 1, str(2**53 + 1), 1e22, float("inf"), float("nan"), -0.0, 0),
    *(True, "true", False, None, "", "NaN", "é", "e\u0301", "p", "P", "\0", "\ud800", "x" * 2000),
    *({"id": 7, "site": "A"}, {"site": "A", "id": 7}, {}, [7], ["7"], [], [[7]], 10**400),
]
"""Values of JSON, of which some name one person in several ways, and others nobody."""


def test_a_label_that_is_kept_is_a_label_too(rknn):
    write("p.csv", AGES, AGES[1:] + AGES[:1])
    assert rknn("embed", "--table", "p.csv", "--out", "p.parquet").status == 0
    records = [{"age": 20, "town": 30, "ill": ill} for ill in (True, ["a", "b"], "a")]
    Path("r.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    own = ("--card", "p.card.json", "--private", "--label", "ill", "--keep", "ill")
    assert rknn("embed", "--table", "r.jsonl", *own, "--out", "r.parquet").status == 0
    assert None not in pq.read_table("r.parquet")["labels"].to_pylist()


@pytest.mark.parametrize("door", ["--table", "--image-table"])
def test_a_kept_column_of_json_lines_names_whom_the_lines_name(rknn, door):
    """An object was text, so that one person was as many as its fields have orders."""
    write("p.csv", AGES, AGES[1:] + AGES[:1])
    assert rknn("embed", "--table", "p.csv", "--out", "p.parquet").status == 0
    numbers = {"age": 20, "town": 30}
    records = [numbers | {"file": str(n), "who": who} for n, who in enumerate(PERSONS)]
    Path("r.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    columns = NamedColumns(embedding=("age", "town"), person="who").read()
    [lines] = adoption.private_records(["r.jsonl"], columns).shards
    wanted, known = person_names(np.concatenate([*lines.persons(99)]), "r.jsonl")
    if door == "--table":
        own = ("--card", "p.card.json", "--private", "--keep", "who")
        done = rknn("embed", door, "r.jsonl", *own, "--out", "r.parquet")
        assert done.status == 0, done.err
        kept = pq.read_table("r.parquet")["who"].to_numpy()
    else:
        rows = FileRows.read(Path("r.jsonl"), door, "file", None, ("who",), private=True)
        kept = rows.columns["who"].to_numpy(zero_copy_only=False)
    found, named = person_names(kept, "r.parquet")
    bools = np.array([isinstance(who, bool) for who in PERSONS])  # text, once they are embedded
    assert named.tolist() == (known | bools).tolist()
    found, wanted = found[~bools], wanted[~bools]
    same = [(names[:, None] == names[None]).all(axis=2) for names in (found, wanted)]
    np.testing.assert_array_equal(*same)


def test_a_private_table_without_a_record_is_embedded_like_others(rknn):
    write("p.csv", AGES, ["Rome", "Oslo"] * 30)
    assert rknn("embed", "--table", "p.csv", "--out", "p.parquet").status == 0
    Path("r.csv").write_text("age,town\n")
    private = ("--card", "p.card.json", "--private", "--out", "r.parquet")
    done = rknn("embed", "--table", "r.csv", *private)
    assert done.status == 0, done.err
    assert pq.read_table("r.parquet").num_rows == 0


@pytest.mark.parametrize(
    ("column", "refused"),
    [
        (pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array(["a", "b"])), ""),
        (pa.array([["a"]] * 4, pa.list_view(pa.string())), ""),
        (pa.array([(1, 2, 3)] * 4, pa.month_day_nano_interval()), "got month_day_nano_interval"),
        (
            pa.UnionArray.from_sparse(pa.array([0] * 4, pa.int8()), [pa.array(range(4))]),
            "got sparse",
        ),
    ],
)
def test_a_kept_column_is_copied_or_refused_by_its_type(rknn, column, refused):
    made = pa.table({"x": [1.0, 2.0, 4.0, 8.0], "who": column})
    with pa.OSFile("p.arrow", "wb") as sink, pa.ipc.new_file(sink, made.schema) as out:
        out.write_table(made)
    done = rknn("embed", "--table", "p.arrow", "--keep", "who", "--out", "p.parquet")
    if refused:
        assert done.status == 2
        assert f"Expected a column of a type that Parquet has, {refused}" in " ".join(
            done.err.split()
        )
    else:
        assert done.status == 0, done.err
        assert pq.read_table("p.parquet")["who"].to_pylist() == made["who"].to_pylist()
