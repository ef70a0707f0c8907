from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cache import language
from forebay.cache.semantic.pairs import PairsError, read


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.tsv", "kind\ta\tb\tlabel\nnumber\tfirst\tsecond\t0\nform\tone \"x\t一\t1\n"),
        ("p.csv", 'category,s1,s2,label\nnumber,first,second,0\nform,"one ""x",一,1\n'),
        (
            "p.jsonl",
            '{"kind":"number","a":"first","b":"second","same_answer":false}\n\n'
            '{"kind":"form","a":"one \\"x","b":"一","label":1}\n',
        ),
    ],
)  # fmt: skip
def test_tables_in_their_forms(name: str, text: str, tmp_path: Path) -> None:
    found = read(written(tmp_path, name, text), language.of)
    assert [(p.kind, p.a, p.b, p.same) for p in found] == [
        ("number", "first", "second", False),
        ("form", 'one "x', "一", True),
    ]
    assert [p.language for p in found] == ["en", "zh"]


def test_families_give_every_pair_and_share_a_group(tmp_path: Path) -> None:
    text = (
        "# c\n== pin\n= change\nchange pin\nnew pin\n= forgot\nforgot pin\n== card\n= lost\nlost card\ncard is lost\n"
    )
    found = read(written(tmp_path, "f.txt", text), language.of)
    assert [(p.a, p.b, p.same, p.group) for p in found] == [
        ("change pin", "new pin", True, "pin"),
        ("change pin", "forgot pin", False, "pin"),
        ("new pin", "forgot pin", False, "pin"),
        ("lost card", "card is lost", True, "card"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.tsv", "a\tb\tlabel\nx\ty\tmaybe\n", r"p\.tsv:2: the label must be 0 or 1, not 'maybe'"),
        ("p.tsv", "q\tr\tlabel\nx\ty\t1\n", r"p\.tsv:2 needs the columns a, b and label"),
        ("p.tsv", "a\tb\tlabel\n", "has no pairs"),
        ("p.jsonl", "{\n", r"p\.jsonl:1 is not JSON"),
        ("p.jsonl", "[1]\n", r"p\.jsonl:1 is not a JSON object"),
        ("f.txt", "== x\nquestion\n", r"f\.txt:2: a question before the first line that begins with ="),
    ],
)
def test_what_cannot_be_read_is_named(name: str, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(PairsError, match=said):
        read(written(tmp_path, name, text), language.of)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "p.tsv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PairsError, match="is not UTF-8 text"):
        read(tmp_path / "p.tsv", language.of)
    with pytest.raises(PairsError, match="No such file"):
        read(tmp_path / "none.tsv", language.of)
