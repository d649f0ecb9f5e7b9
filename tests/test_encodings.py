"""Another encoding is told by how its words read, and none is named that does not fit."""

import io

import pytest

from rknn_jax.formats import FormatError, _csv_records, _encodings, jsonl
from tests.test_inputs import LABELS

WORDS = {
    "cp1252": ("größe,alter", "WINDOWS-1252"),
    "latin-1": ("texte,âge,labels", "WINDOWS-1252"),
    "cp1250": ("wiek,płeć,ciśnienie", "WINDOWS-1250"),
    "cp1251": ("возраст,пол,Метка", "WINDOWS-1251"),
    "koi8-r": ("возраст,пол,Метка", "KOI8-R"),
    "gb18030": ("年龄,性别,标签", "GB18030"),
    "big5": ("年齡,性別,標籤", "BIG5"),
    "shift_jis": ("年齢,性別,ラベル", "SHIFT_JIS"),
    "euc_jp": ("年齢,性別,ラベル", "EUC-JP"),
    "cp949": ("나이,성별,레이블", "EUC-KR"),
}


@pytest.mark.parametrize("codec", WORDS)
def test_words_are_told_in_their_encoding(codec):
    text, name = WORDS[codec]
    found = _encodings.readings([text.encode(codec)])
    assert found[name] in text
    if len(found) == 1:
        assert f"iconv -f {name} -t UTF-8" in _encodings.remedy([text.encode(codec)])
    else:
        assert "iconv -f ENCODING -t UTF-8" in _encodings.remedy([text.encode(codec)])
    assert ("WINDOWS-1252" in found) == (codec in ("cp1252", "latin-1", "cp1250"))


@pytest.mark.parametrize(
    ("codec", "name"),
    [
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
        ("utf-32", "UTF-32"),
        ("utf-32-be", "UTF-32BE"),
    ],
)
def test_bytes_of_wide_encodings_tell_them(codec, name):
    told = _encodings.remedy(["text,labels".encode(codec)])
    assert told.startswith(f"save the file in UTF-8, as by iconv -f {name} -t UTF-8")


@pytest.mark.parametrize("lines", [[], [b"\x98a\x98"], ["العمر".encode("cp1256")]], ids=repr)
def test_no_encoding_is_named_without_words(lines):
    told = _encodings.remedy(lines)
    assert told.startswith("save the file in UTF-8, as by iconv -f ENCODING -t UTF-8")


def test_headers_and_public_records_have_the_remedy():
    text, name = WORDS["cp1251"]
    with pytest.raises(FormatError, match=f"it reads as 'возраст' in {name}: if that is right"):
        _csv_records.header(io.BytesIO(text.encode("cp1251")))
    file = io.BytesIO(b"a,b,c\n" + text.encode("cp1251"))
    file.readline()
    with pytest.raises(FormatError, match=f"in row 0; .* as 'возраст' in {name}"):
        list(_csv_records.tables(file, ("a", "b", "c"), refuse=True))
    with pytest.raises(FormatError, match="in row 0; .* iconv -f UTF-16LE"):
        list(jsonl.parsed(['{"a": 1}'.encode("utf-16-le")], public=True))


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_the_curator_is_told_of_private_files(rknn, tmp_path, form):
    head = b"x,y,note,labels\n" if form == "csv" else b""
    line = "1,2,{},{}\n" if form == "csv" else '{{"x": 1, "y": 2, "note": "{}", "labels": "{}"}}\n'
    lines = [line.format("возраст", label).encode("cp1251") for label in LABELS]
    (tmp_path / f"R.{form}").write_bytes(head + b"".join(lines))
    words = (f"R.{form}", "--embedding", "x", "y", "--classes", 3)
    done = rknn("check", *words)
    told = " ".join((done.out + done.err).split())
    assert "90 records are in another encoding than UTF-8, or damaged: it reads as" in told, told
    assert "as 'возраст' in WINDOWS-1251" in told
