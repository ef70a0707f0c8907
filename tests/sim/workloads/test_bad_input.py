"""What is no workload: the error names the file, the line, what was found and what is allowed."""

from __future__ import annotations

import gzip
import json
import os
import resource
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.sim.workloads import Trace, WorkloadError, open_workload

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
GOOD = "2023-11-16 18:15:46,1,2\n"


def error(path: Path, content: bytes | str, spec: str = "{}") -> WorkloadError:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(WorkloadError) as caught:
        list(open_workload(spec.format(path)))
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2023-11-16 18:15:47,-5,2", "ContextTokens is -5; allowed are whole numbers from 1 to 20,000,000"),
        ("2023-11-16 18:15:47,5,0", "GeneratedTokens is 0; allowed"),
        ("2023-11-16 18:15:47,nan,2", "ContextTokens is nan; allowed"),
        ("2023-11-16 18:15:47,inf,2", "ContextTokens is inf; allowed"),
        ("2023-11-16 18:15:47,1.5,2", "ContextTokens is 1.5; allowed"),
        ("2023-11-16 18:15:47,99999999999,2", "ContextTokens is 99999999999; allowed"),
        ("2023-11-16 18:15:47,,2", "ContextTokens is ; allowed"),
        ("2023-11-16 18:15:47,1", "2 columns where the header has 3"),
        ("2023-11-16 18:15:47,1,2,3", "4 columns where the header has 3"),
        ("2023-11-16 18:61:47,1,2", "TIMESTAMP is '2023-11-16 18:61:47'; allowed are times like"),
        ("2023-11-16 18:15:nan,1,2", "TIMESTAMP is"),
        ("2023-11-16 18:15:60.0000000,1,2", "TIMESTAMP is"),
        ("yesterday,1,2", "TIMESTAMP is 'yesterday'"),
        ("2123-11-16 18:15:47,1,2", "is more than 316,224,000 seconds after the first"),
        ("2023-11-16 18:15:45,1,2", "arrives 1 s before the row above it; sort the file"),
        ('2023-11-16 18:15:47,"1,2', "not a row of CSV"),
    ],
)
def test_azure_rows(path: Path, row: str, said: str) -> None:
    caught = error(path, f"{HEADER}{GOOD}{row}\n")
    assert caught.line == 3
    assert said in caught.message


def test_missing_columns_are_named(path: Path) -> None:
    caught = error(path, f"TIMESTAMP,ContextTokens\n{GOOD}")
    assert caught.line == 1
    assert "the column GeneratedTokens is missing; the header is 'TIMESTAMP,ContextTokens'" in caught.message


def test_a_column_that_is_there_twice_is_named(path: Path) -> None:
    caught = error(path, f"{HEADER.strip()},contexttokens\n2023-11-16 18:15:46,1,2,9\n")
    assert (caught.line, caught.message.partition(";")[0]) == (1, "the column ContextTokens is there 2 times")


def test_blanks_beside_commas_are_nothing(path: Path) -> None:
    rows = ["2023-11-16 18:15:46.6805900, 10 ,20", "2023-11-16 18:15:47 ,\t11, 21", '"2023-11-16 18:15:48", "12", 22']
    path.write_text("TIMESTAMP, ContextTokens ,GeneratedTokens\n" + "\n".join(rows) + "\n")
    found = [(ask.prompt_tokens, ask.output_tokens) for ask in open_workload(path)]
    assert found == [(10, 20), (11, 21), (12, 22)]


def test_rows_that_are_all_bad_are_counted_and_the_first_is_named(path: Path) -> None:
    path.write_text(HEADER + "2023-11-16 18:15:46,-1,2\n\n2023-11-16 18:15:46,0,2\n")
    with pytest.raises(
        WorkloadError, match="none of its 2 rows is a request; the first is line 2: ContextTokens is -1"
    ):
        list(open_workload(f"{path},bad=skip"))


OWN = {"arrival": 0.5, "prompt_tokens": 10, "output_tokens": 10}
MOONCAKE = {"timestamp": 500, "input_length": 10, "output_length": 10, "hash_ids": [1]}
RUN = {"input_toks": 10, "output_toks": 10, "arrival_time": 1.5}
BATCH = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
}


@pytest.mark.parametrize(
    ("row", "change", "said"),
    [
        (OWN, {"prompt_tokens": -1}, "prompt_tokens is -1; allowed are whole numbers from 1"),
        (OWN, {"prompt_tokens": 1.5}, "prompt_tokens: expected int, got float"),
        (OWN, {"output_tokens": 0}, "output_tokens is 0; allowed"),
        (OWN, {"output_tokens": None}, "the field output_tokens is missing; a row of Forebay's own form has arrival,"),
        (OWN, {"arrival": -1}, "arrival is -1.0; allowed are 0 to 316,224,000 seconds"),
        (OWN, {"arrival": 1787267980.5}, "arrival is 1787267980.5; allowed"),
        (OWN, {"arrival": 0.25}, "arrives 0.25 s before the row above it"),
        (OWN, {"arrival": "soon"}, "arrival: expected float, got str"),
        (OWN, {"prority": 5}, "the field prority is unknown; a row of Forebay's own form has arrival, prompt_tokens"),
        (OWN, {"class": "VIP"}, "class is 'VIP'; allowed are vip, normal, low"),
        (OWN, {"priority": 1 << 40}, "priority is 1099511627776; allowed are -2,147,483,648 to 2,147,483,647"),
        (OWN, {"prefix": [["a", 6], ["b", 5]]}, "the pieces of prefix hold 11 tokens; prompt_tokens is 10"),
        (OWN, {"prefix": [["a", 0]]}, "a piece of prefix is 0; allowed"),
        (OWN, {"prefix": [["a"]]}, "prefix[0]: expected array of length 2"),
        (OWN, {"tenant": "x" * 300}, "tenant has 300 characters"),
        (MOONCAKE, {"input_length": -4}, "input_length is -4; allowed"),
        (MOONCAKE, {"output_length": 10**9}, "output_length is 1000000000; allowed"),
        (MOONCAKE, {"timestamp": -4}, "timestamp is -4.0; allowed are 0 to 316,224,000,000 milliseconds"),
        (MOONCAKE, {"timestamp": None}, "the field timestamp is missing; a Mooncake row has timestamp, input_length"),
        (MOONCAKE, {"hash_ids": [1, 2]}, "hash_ids has 2 ids; input_length 10 has room for 1, one for each 512 tokens"),
        (RUN, {"input_toks": 0}, "input_toks is 0; allowed"),
        (RUN, {"arrival_time": 1e300}, "over 316,224,000 seconds after the first row's"),
        (RUN, {"arrival_time": 1.25}, "arrives 0.25 s before the row above it"),
        (BATCH, {"url": "/v1/embeddings"}, "url is '/v1/embeddings'; allowed are /v1/chat/completions and"),
        (BATCH, {"body": {}}, "body.messages is missing or empty"),
        (BATCH, {"body": {**BATCH["body"], "n": 3}}, "body.n is 3"),  # type: ignore[dict-item]
        (BATCH, {"body": {**BATCH["body"], "max_tokens": None}}, "give an output= distribution"),  # type: ignore[dict-item]
        (BATCH, {"body": {**BATCH["body"], "max_tokens": -2}}, "body.max_tokens is -2; allowed"),  # type: ignore[dict-item]
        (BATCH, {"custom_id": None}, "the field custom_id is missing"),
    ],
)
def test_json_rows(path: Path, row: dict[str, object], change: dict[str, object], said: str) -> None:
    bad = {key: value for key, value in {**row, **change}.items() if value is not None}
    caught = error(path, f"{json.dumps(row)}\n{json.dumps(bad)}\n")
    assert caught.line == 2
    assert said in caught.message


@pytest.mark.parametrize(
    "line", ['{"arrival": NaN}', '{"arrival": Infinity}', '{"arrival": 1e999}', '{"arrival"', "[1]", "null", "5"]
)
def test_what_is_not_json_or_no_object(path: Path, line: str) -> None:
    assert error(path, f"{json.dumps(OWN)}\n{line}\n").line == 2


def test_deep_nesting_is_refused(path: Path) -> None:
    assert error(path, f"{json.dumps(BATCH)}\n" + '{"body":' * 100_000).line == 2
    assert error(path, '{"body":' * 100_000).line == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"\n\r\n \n", "the file is empty"),
        (b"\xef\xbb\xbf", "the file is empty"),
        (HEADER.encode(), "the file has no requests"),
        (HEADER.encode("utf-16"), "the file is UTF-16; a workload is UTF-8 text"),
        (gzip.compress(HEADER.encode(), mtime=0), "the file is compressed with gzip"),
        (b"\x7fELF\x02\x01\x01\x00\x00\x00", "a NUL byte: the file is binary"),
        (HEADER.encode() + b"caf\xe9,1,2\n", "byte 4 (0xe9) is not UTF-8"),
        (b"a,b,c\n1,2,3\n", "the first line is 'a,b,c', of no known form: azure (TIMESTAMP, ContextTokens"),
        (b'{"a": 1}\n', "the first line has the fields a, of no known form: azure ("),
        (b'{"a": 1\n', "begins like JSON and is not"),
    ],
)
def test_files_that_are_none(path: Path, content: bytes, said: str) -> None:
    assert said in error(path, content).message


def test_a_line_of_gigabytes_costs_no_memory(path: Path) -> None:
    with path.open("wb") as file:
        file.write(HEADER.encode())
        file.truncate(3 << 30)
        file.seek(100)
        file.write(b"1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(WorkloadError, match=r":2: the line is longer than 16,777,216 bytes"):
        list(open_workload(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize(
    ("extra", "end", "fits"), [(0, "\n", True), (0, "\r\n", True), (0, "", True), (1, "\n", False)]
)
def test_the_bound_is_of_the_line_without_its_end(path: Path, extra: int, end: str, fits: bool) -> None:
    row = json.dumps(OWN)
    path.write_bytes((row + end).encode())
    trace = Trace(str(path), max_line=len(row) - extra)
    if fits:
        assert trace.check().name == "jsonl"
    else:
        with pytest.raises(WorkloadError, match="longer than"):
            trace.check()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for spec, said in (
        (tmp_path / "none.csv", "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (str(tmp_path / "none.csv"), "no such file, and no KIND:key=value,… of the kinds poisson"),
        (f"azure:{tmp_path}", "cannot be read: Is a directory"),
        (str(tmp_path), "is a folder; a workload is read from a file"),
        ("/dev/null", "is a pipe or a device, which can be read only once"),
        (f"poisson:rate=1,duration=9,prompt=cdf({pipe})", "cannot be read: is a pipe or a device"),
        (str(pipe), "is a pipe or a device, which can be read only once"),
        ("a\0b", "no such file"),
        ("", "no such file"),
    ):
        with pytest.raises(WorkloadError, match=said):
            open_workload(spec)


@given(st.binary(max_size=400), st.sampled_from([b"", HEADER.encode(), json.dumps(OWN).encode() + b"\n"]))
def test_any_bytes_are_asks_in_order_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes, head: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(head + tail)
    try:
        asks = list(open_workload(path))
    except WorkloadError as e:
        assert str(e).startswith(str(path))
    else:
        assert asks
        assert all(b.arrival >= a.arrival for a, b in pairwise(asks))
