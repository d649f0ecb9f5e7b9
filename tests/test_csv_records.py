"""Records of CSV files: one record is one row, whatever it holds and whatever stands beside it."""

import csv
import io
import random
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from rknn_jax.embedding import rows as embedding_rows
from rknn_jax.formats import Columns, FormatError, _csv_records
from rknn_jax.formats import csv as csv_format
from rknn_jax.release.shards import FileShard

NAMES = ("id", "text", "label")
INSIDE = "9,stolen card please,fraud\n" * 1000
"""Text of one record, which looks like a thousand others."""

PIECES = ("a", "7", " ", ",", '"', '""', "\n", "\r\n", '","', '\n"', "9,x,fraud\n", "é", "\0")


@pytest.fixture(params=[7, 50, 2**22], ids="{} bytes".format)
def at_once(request, monkeypatch):
    """Bytes that are read at once."""
    monkeypatch.setattr(_csv_records, "READ_AT_ONCE", request.param)
    return request.param


def read(content: bytes, names=NAMES):
    """Return the rows of a private file, each a tuple of bytes, and how many are broken."""
    file = io.BytesIO(content)
    assert _csv_records.header(file) == list(names)
    found = []
    num_broken = 0
    for table, broken in _csv_records.tables(file, names, refuse=False):
        num_broken += len(broken)
        found += zip(*(table.column(name).to_pylist() for name in names), strict=True)
    file.seek(0)
    _csv_records.header(file)
    assert _csv_records.num_records(file) == len(found)
    return found, num_broken


def python_writer(quoting, end):
    def write(records):
        buffer = io.StringIO(newline="")
        csv.writer(buffer, quoting=quoting, lineterminator=end).writerows([NAMES, *records])
        return buffer.getvalue().encode()

    return write


def arrow_writer(records):
    table = pa.table(dict(zip(NAMES, map(list, zip(*records, strict=True)), strict=True)))
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(table, sink)
    return sink.getvalue().to_pybytes()


WRITERS = {
    "minimal": python_writer(csv.QUOTE_MINIMAL, "\n"),
    "minimal, CRLF": python_writer(csv.QUOTE_MINIMAL, "\r\n"),
    "all": python_writer(csv.QUOTE_ALL, "\n"),
    "arrow": arrow_writer,
}


def random_record(draw: random.Random):
    return tuple("".join(draw.choices(PIECES, k=draw.randrange(6))) for _ in NAMES)


def as_bytes(records):
    return [tuple(field.encode() for field in record) for record in records]


@pytest.mark.long
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_what_a_writer_wrote_is_read_row_by_row(write, at_once):
    draw = random.Random(0)
    for _ in range(150):
        records = [random_record(draw) for _ in range(draw.randrange(1, 9))]
        assert read(write(records)) == (as_bytes(records), 0)


CLOSED = (
    b"",
    b"1,2",
    b"1,2,3,4",
    b'a "b" c,2,3',
    b'"a"b,2,3',
    b'"a,"b,2,3',
    b' "a",2,3',
    b'"a\n9,x,fraud\n9,x,fraud\nb"c,2,3',
    b'"a\n9,x,fraud\n",2',
    b'"a\n9,x,fraud\n",2,3,4',
    b"a\rb,2,3",
    b"\xff,2,3",
    b'"\xff\n9,x,fraud\n",2,3',
)
"""Broken records that close the quotes they open."""


def closed_record(draw: random.Random):
    """Return a valid or broken record as bytes, and its row."""
    if draw.random() < 0.3:
        return draw.choice(CLOSED), (b"", b"", b"")
    record = random_record(draw)
    return WRITERS["minimal"]([record]).split(b"\n", 1)[1][:-1], as_bytes([record])[0]


@pytest.mark.long
def test_a_closed_record_is_one_row_beside_all_others(at_once):
    draw = random.Random(1)
    for _ in range(300):
        made = [closed_record(draw) for _ in range(draw.randrange(1, 9))]
        content = b"\n".join([b"id,text,label", *(content for content, _ in made)]) + b"\n"
        found, _ = read(content)
        assert found == [row for _, row in made]
        place = draw.randrange(len(made))
        made[place] = closed_record(draw)
        content = b"\n".join([b"id,text,label", *(content for content, _ in made)]) + b"\n"
        other, _ = read(content)
        assert {i for i in range(len(made)) if found[i] != other[i]} <= {place}


def test_a_mark_of_utf8_is_text_of_its_record_wherever_that_stands(at_once):
    """Arrow drops the mark of the first record that it gets, which others' lengths decide."""
    mark = b"\xef\xbb\xbf"
    marked = [mark + b"%d,x,y" % i for i in range(20)]
    rows = [(mark + b"%d" % i, b"x", b"y") for i in range(20)]
    for first, row in ((b"1,2,3", (b"1", b"2", b"3")), (b'1,"2222",3', (b"1", b"2222", b"3"))):
        content = b"\n".join([b"id,text,label", first, *marked]) + b"\n"
        assert read(content) == ([row, *rows], 0)
    assert read(b"\n".join([b"id,text,label", *marked]) + b"\n") == (rows, 0)


OPEN = (b'1,"open,3', b'"1,open,3', b'1,2,"', b'"', b'1,"a""', b'1,"a""b,3', b'"1","open,"3"')
"""Records of one line with a quote that is never closed."""


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL], ids=["minimal", "all"])
@pytest.mark.parametrize("broken", OPEN)
def test_an_open_quote_is_one_row_among_ordinary_records(broken, quoting, at_once):
    others = [(str(i), "plain" if i % 3 else f"a, {i}\nand more", "cat") for i in range(60)]
    head, *lines = (python_writer(quoting, "\n")([record]) for record in others)
    for place in (0, 20, 59):
        records = as_bytes(others)
        parts = [part.split(b"\n", 1)[1] for part in (head, *lines)]
        parts[place] = broken + b"\n"
        records[place] = (b"", b"", b"")
        assert read(b"id,text,label\n" + b"".join(parts)) == (records, 1)


def test_memory_is_bounded_where_a_quote_is_never_closed(monkeypatch):
    monkeypatch.setattr(_csv_records, "READ_AT_ONCE", 64)
    monkeypatch.setattr(_csv_records, "LONGEST", 256)
    plain = b"1,plain,cat\n" * 500
    good = [(b"1", b"plain", b"cat")]
    nothing = [(b"", b"", b"")]
    head = b"id,text,label\n"
    assert read(head + b'1,"open,cat\n' + plain) == (nothing + good * 500, 1)
    assert read(head + plain + b'1,"open,cat\n' + plain)[0] == (good * 500 + nothing + good * 500)
    quotes = b'1,"' + b'9,x,""fraud""\n' * 300 + b'",cat\n'
    assert read(head + quotes + plain) == (nothing + good * 500, 1)
    assert read(head + quotes.strip()) == (nothing, 1)
    peak = 0
    for part in _csv_records.records(io.BytesIO(b'1,"open\n' + plain)):
        peak = max(peak, len(part) if isinstance(part, bytes) else sum(map(len, part)))
    assert peak < 512


@pytest.mark.parametrize("end", [b"", b'x,"y\n'])
def test_a_file_of_broken_lines_is_searched_once(end):
    """Each line opens a quote that fails at the end of the file: minutes were spent on 50,000."""
    lines = [b'-"a%d,"b' % number for number in range(50_000)]
    found, broken = read(b"id,text,label\n" + b"\n".join(lines) + b"\n" + end)
    assert found == [(b"", b"", b"")] * (50_000 + bool(end))
    assert broken == len(found)


def test_a_truncated_file_and_one_without_a_last_line_break():
    assert read(b"id,text,label\n1,a,b\n2,c,d")[0] == [(b"1", b"a", b"b"), (b"2", b"c", b"d")]
    assert read(b'id,text,label\n1,a,b\n2,"c') == ([(b"1", b"a", b"b"), (b"", b"", b"")], 1)
    assert read(b'id,text,label\n1,"c\rd",e') == ([(b"1", b"c\rd", b"e")], 0)
    assert read(b"id,text,label\n") == read(b"id,text,label") == ([], 0)


def test_a_header_may_hold_line_breaks_and_must_be_whole():
    assert read(b'\xef\xbb\xbf"a\nb",c\r\n1,2\r\n', ("a\nb", "c"))[0] == [(b"1", b"2")]
    with pytest.raises(FormatError, match="Parquet"):
        _csv_records.header(io.BytesIO(b'"a,b\n1,2\n'))


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (b"1,2", "another number of fields in row 1"),
        (b'1,"a"b,3', "a quote or a carriage return that is not in quotes in row 1"),
        (b'1,"a,3', "not in quotes in row 1"),
        (b"1,\xff,3", "not UTF-8 in row 1"),
    ],
)
def test_a_broken_public_record_is_refused_by_its_row(tmp_path, record, words):
    path = tmp_path / "t.csv"
    path.write_bytes(b"id,text,label\n1,a,b\n" + record + b"\n3,c,d\n")
    with pytest.raises(ValueError, match=f"--text .*t.csv: .*{words}; repair it, or .* Parquet"):
        list(embedding_rows.TableFile(path, "--text", ("text",)).blocks(10))
    columns = Columns(("text",), "label", raw=True)
    with pytest.raises(ValueError, match=f"--public .*t.csv: .*{words}"):
        list(FileShard(str(path), "--public", columns._replace(public=True)).blocks(10))
    with pytest.warns(UserWarning, match=r"1 records of .*t.csv are broken and cast no vote"):
        (block,) = FileShard(str(path), "--private", columns).blocks(10)
    assert block.labels.tolist() == ["b", "", "d"]


def test_private_records_in_another_encoding_are_told_with_the_remedy(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("text,label\ncaf\u00e9,a\nplain,b\n".encode("cp1252"))
    columns = Columns(("text",), "label", raw=True)
    with pytest.warns(UserWarning, match="1 have bytes that are not UTF-8.*iconv -f ENCODING"):
        (block,) = FileShard(str(path), "--private", columns).blocks(10)
    assert block.labels.tolist() == ["", "b"]


def test_a_thousand_lines_inside_a_record_cast_one_vote(tmp_path):
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerows([NAMES, ["1", "hello", "ham"], ["2", INSIDE, "spam"], ["3", "bye", "ham"]])
    columns = Columns(("text",), "label", raw=True)
    shard = FileShard(str(path), "--private", columns)
    assert shard.num_rows() == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (block,) = shard.blocks(10)
    assert block.embeddings.tolist() == ["hello", INSIDE, "bye"]
    assert block.labels.tolist() == ["ham", "spam", "ham"]
    (labels,) = shard.labels(10)
    assert labels.tolist() == ["ham", "spam", "ham"]


def test_embed_writes_a_row_a_record(tmp_path, rknn):
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerows([NAMES, ["1", "hello", "ham"], ["2", INSIDE, "spam"], ["3", "bye", "ham"]])
    np.save(tmp_path / "v.npy", np.eye(8, 4))
    done = rknn("embed", "--text", path, "--label", "label", "--private", "--out", "o.parquet")
    assert done.status == 0, done.err
    assert pq.read_table("o.parquet")["labels"].to_pylist() == ["ham", "spam", "ham"]


def test_blocks_of_a_table_have_the_size_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(_csv_records, "READ_AT_ONCE", 40)
    path = tmp_path / "t.csv"
    path.write_text("text\n" + "".join(f'"a{i}\n"\n' for i in range(25)))
    source = embedding_rows.TableFile(path, "--text", ("text",))
    sizes = [len(block.names) for block in source.blocks(10)]
    assert (len(source), sizes) == (25, [10, 10, 5])
    texts = [text for block in source.blocks(10) for text in embedding_rows.texts(block.records)]
    assert texts == [f"a{i}\n" for i in range(25)]


@pytest.mark.long
def test_any_bytes_are_read_alike_in_parts_and_at_once(monkeypatch):
    draw = random.Random(2)
    alphabet = [b"a", b"1", b",", b",", b'"', b'"', b"\n", b"\n", b"\r", b"\xff", b"\0", b" "]
    for _ in range(150):
        content = b"id,text\n" + b"".join(draw.choices(alphabet, k=draw.randrange(60)))
        monkeypatch.setattr(_csv_records, "READ_AT_ONCE", 2**22)
        whole = read(content, NAMES[:2])
        for at_once in (1, 2, 3, 11):
            monkeypatch.setattr(_csv_records, "READ_AT_ONCE", at_once)
            assert read(content, NAMES[:2]) == whole, content
        monkeypatch.setattr(_csv_records, "LONGEST", 5)
        short, _ = read(content, NAMES[:2])
        for at_once in (1, 3, 2**22):  # which records are too long depends on no other one
            monkeypatch.setattr(_csv_records, "READ_AT_ONCE", at_once)
            assert read(content, NAMES[:2])[0] == short, content
        monkeypatch.undo()
        assert len(short) == len(whole[0]), content
        assert all(a in (b, (b"", b"")) for a, b in zip(short, whole[0], strict=True)), content


class Counted(io.BytesIO):
    """File that counts the bytes which are read, and knows the longest read."""

    total = 0
    longest = 0

    def _count(self, data):
        self.total += len(data)
        self.longest = max(self.longest, len(data))
        return data

    def read(self, size=-1):
        return self._count(super().read(size))

    def readline(self, size=-1):
        return self._count(super().readline(size))


def test_a_header_without_an_end_is_refused_early(monkeypatch):
    monkeypatch.setattr(_csv_records, "LONGEST_HEADER", 1000)
    file = Counted(b"1," * 10**6)
    with pytest.raises(FormatError, match="a line of more than"):
        _csv_records.header(file)
    assert file.total == 1000
    assert _csv_records.header(io.BytesIO(b"a" * 998 + b"\n")) == ["a" * 998]


@pytest.mark.parametrize("line", [b"1," * 4000, b'1,"' + b"x" * 8000, b"x" * 8000 + b'","y'])
@pytest.mark.parametrize("end", [b"", b"\n1,plain,cat\n"])
def test_a_line_without_an_end_is_one_broken_record(monkeypatch, line, end):
    monkeypatch.setattr(_csv_records, "READ_AT_ONCE", 64)
    monkeypatch.setattr(_csv_records, "LONGEST", 256)
    found, num_broken = read(b"id,text,label\n" + line + end)
    assert found == [(b"", b"", b"")] + ([(b"1", b"plain", b"cat")] if end else [])
    assert num_broken == 1
    file = Counted(b"id,text,label\n" + line + end)
    _csv_records.header(file)
    list(_csv_records.records(file))
    assert file.total <= 3 * (len(line) + 100), "each byte is read a few times at most"
    file = Counted(b"id,text,label\n" + line + end)
    _csv_records.header(file)
    with pytest.raises(FormatError, match="records of at most"):
        list(_csv_records.tables(file, NAMES, refuse=True))
    assert file.total < 1000, "a public file is refused early"


def test_all_columns_are_read_in_one_pass(monkeypatch):
    passes = []
    real = pa.compute.match_substring_regex
    monkeypatch.setattr(
        pa.compute, "match_substring_regex", lambda *a: passes.append(a) or real(*a)
    )
    values = np.random.default_rng(0).normal(size=(5, 700))
    rows = "\n".join(",".join(map(repr, row.tolist())) for row in values)
    content = ",".join(f"c{i}" for i in range(700)) + "\n" + rows + "\n"
    (block,) = csv_format.blocks(io.BytesIO(content.encode()), Columns(reads_label=False), 100)
    np.testing.assert_array_equal(block.embeddings, values)
    assert len(passes) == 1


def test_a_broken_private_record_stops_no_command_where_warnings_are_errors(tmp_path, rknn):
    """An error would show that record."""
    lines = ["a,b,labels", *["1,2,cat"] * 400, "1,2,3,cat"]
    (tmp_path / "R.csv").write_text("\n".join(lines))
    warnings.simplefilter("error")
    assert rknn("classes", "--private", "R.csv", "--epsilon", "1", "--delta", "1e-5").status == 0
    adopt = ("budget", "adopt", "R.csv.ledger.jsonl", "--private", "R.csv", "--reason", "the same")
    assert rknn(*adopt).status == 0
