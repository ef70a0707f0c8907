"""Each form of a trace file, as asks."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from forebay.sim.workload import Ask
from forebay.sim.workloads import Listed, Tally, Trace, Workload, WorkloadError, open_workload, prescan, write

Make = Callable[[str | bytes], str]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture
def file(tmp_path: Path) -> Make:
    numbers = count()

    def make(content: str | bytes) -> str:
        path = tmp_path / f"trace{next(numbers)}"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return make


def rows(*given: dict[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in given)


def test_azure_times_count_from_the_first_row_to_its_seventh_decimal(file: Make) -> None:
    path = file(
        AZURE
        + "2023-11-16 18:15:46.6805900,374,44\n"
        + "2023-11-16 18:15:46.6805901,396,109\n"
        + "2023-11-17 00:00:00.0000000,1,1\n"
    )
    asks = list(open_workload(path))
    assert [a.arrival for a in asks] == pytest.approx([0, 1e-7, 20653.31941], abs=2e-9)
    assert [a[1:3] for a in asks] == [(374, 44), (396, 109), (1, 1)]


@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:01:00.009930+00:00", 60),
        ("2024-05-10T00:00:00Z", "2024-05-10T00:00:01.5Z", 1.5),
        ("2024-05-10 00:00:30+00:00", "2024-05-10 08:00:31+08:00", 1),
        ("2024-05-09 18:30:00-05:30", "2024-05-10 00:00:02Z", 2),
        ("2024-02-28 23:59:59.5", "2024-02-29 00:00:00.25", 0.75),
    ],
)
def test_azure_times_in_other_spellings(file: Make, first: str, second: str, seconds: float) -> None:
    asks = list(open_workload(file(f"{AZURE}{first},5,6\n{second},7,8\n")))
    assert [a.arrival for a in asks] == pytest.approx([0, seconds], abs=1e-9)


def test_azure_columns_in_any_order_quoted_and_more_of_them(file: Make) -> None:
    path = file('GeneratedTokens,"Model, size",ContextTokens,TIMESTAMP\n3,"a, b",5,2023-11-16 18:15:46\n')
    assert list(open_workload(path)) == [Ask(0.0, 5, 3)]


def test_mooncake_blocks_are_prefix_pieces_and_the_last_may_be_shorter(file: Make) -> None:
    path = file(
        rows(
            {"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [7, 8, 9]},
            {"timestamp": 1500, "input_length": 1024, "output_length": 6, "hash_ids": [7, 10]},
            {"timestamp": 1500, "input_length": 1024, "output_length": 6, "hash_ids": [7]},
            {"timestamp": 1500, "input_length": 3, "output_length": 6, "hash_ids": [], "extra": {}},
        )
    )
    assert list(open_workload(path)) == [
        Ask(0.0, 1030, 5, ((7, 512), (8, 512), (9, 6))),
        Ask(1.5, 1024, 6, ((7, 512), (10, 512))),
        Ask(1.5, 1024, 6, ((7, 512),)),
        Ask(1.5, 3, 6),
    ]


def test_own_form_holds_all_that_an_ask_is_made_of(file: Make) -> None:
    asks = [
        Ask(0.0, 10, 5),
        Ask(0.25, 900, 1, (("system/a", 100), (5, 300)), "a", "vip", -3, "session-1"),
        Ask(0.25, 900, 1, (("system/a", 100), ("session-1", 800)), "a", "low", 3, 12),
    ]
    path = file("")
    with Path(path).open("wb") as out:
        assert write(asks, out) == 3
    assert list(open_workload(path)) == asks


def test_own_form_needs_three_fields_only(file: Make) -> None:
    assert list(open_workload(file('{"arrival": 2, "prompt_tokens": 3, "output_tokens": 4}'))) == [Ask(2.0, 3, 4)]


def test_vllm_run_counts_from_its_first_arrival(file: Make) -> None:
    path = file(
        rows(
            {"request_id": "a", "input_toks": 5, "output_toks": 6, "arrival_time": 1787267980.25, "queued_ts": 1.5},
            {"request_id": "b", "input_toks": 7, "output_toks": 8, "arrival_time": 1787267981.5},
        )
    )
    assert list(open_workload(path)) == [Ask(0.0, 5, 6), Ask(1.25, 7, 8)]


def chat(*messages: tuple[str, str], **body: object) -> dict[str, object]:
    return {
        "custom_id": "x",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": r, "content": c} for r, c in messages], **body},
    }


def test_batch_estimates_prompts_and_finds_equal_leading_messages(file: Make) -> None:
    system = ("system", "x" * 400)
    path = file(
        rows(
            chat(system, ("user", "hello"), max_tokens=9),
            chat(system, ("user", "你好吗 ok"), max_completion_tokens=7),
            chat(("user", "hello"), max_tokens=9),
        )
    )
    a, b, c = open_workload(path)
    assert (a.arrival, b.arrival, a.output_tokens, b.output_tokens) == (0, 0, 9, 7)
    assert [tokens for _, tokens in a.prefix] == [104, 4 + 2]
    assert a.prompt_tokens == 104 + 6 + 3
    assert b.prompt_tokens == 104 + (4 + 3 + 1) + 3
    assert a.prefix[0] == b.prefix[0]
    assert len({a.prefix[1][0], b.prefix[1][0], c.prefix[0][0]}) == 3


def test_batch_texts_in_parts_tools_and_completions(file: Make) -> None:
    parts = [{"type": "text", "text": "abcd"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    request = chat(max_tokens=5, tools=[{"type": "function"}])
    request["body"]["messages"] = [{"role": "user", "content": parts}]  # type: ignore[index]
    completion = {"custom_id": "y", "url": "/v1/completions", "body": {"prompt": [1, 2, 3], "max_tokens": 5}}
    path = file(rows(request, completion))
    tools = -(-len('[{"type": "function"}]') // 4)
    assert [a.prompt_tokens for a in open_workload(f"batch:{path}")] == [4 + 1 + tools + 3, 3]
    assert [a.prompt_tokens for a in open_workload(f"{path},part_tokens=700")] == [4 + 701 + tools + 3, 3]


def test_batch_at_a_rate_with_drawn_answers(file: Make) -> None:
    path = file(rows(*[chat(("user", f"{i}"), max_tokens=50) for i in range(400)]))
    asks = list(open_workload(f"batch:{path},rate=20,output=uniform(10;90)"))
    assert asks == list(open_workload(f"batch:{path},rate=20,output=uniform(10;90)"))
    assert 15 < asks[-1].arrival < 26
    assert max(a.output_tokens for a in asks) == 50
    assert min(a.output_tokens for a in asks) < 15


def test_bom_crlf_blank_lines_and_no_last_line_end(file: Make) -> None:
    plain = list(open_workload(file(AZURE + "2023-11-16 18:15:46,1,2\n2023-11-16 18:15:47,3,4\n")))
    text = AZURE + "\n2023-11-16 18:15:46,1,2\n\n2023-11-16 18:15:47,3,4"
    assert list(open_workload(file(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()))) == plain


def test_late_rows_within_the_window_are_put_in_order(file: Make) -> None:
    stamps = [5, 7, 6, 4.5, 9, 8.2, 12]
    path = file(rows(*[{"input_toks": 1, "output_toks": n + 1, "arrival_time": t} for n, t in enumerate(stamps)]))
    asks = list(open_workload(f"{path},reorder=3"))
    assert [a.arrival for a in asks] == [t - 4.5 for t in sorted(stamps)]
    assert [a.output_tokens for a in asks] == [4, 1, 3, 2, 6, 5, 7]
    with pytest.raises(WorkloadError, match=r":4: arrives 2.5 s late; the reorder window is 0.5 s"):
        list(open_workload(f"{path},reorder=0.5"))


def test_a_file_can_be_streamed_again_and_in_part(file: Make) -> None:
    workload = open_workload(file(AZURE + "2023-11-16 18:15:46,1,2\n" * 5))
    first = iter(workload)
    next(first)
    assert len(list(workload)) == 5
    assert len(list(first)) == 4


def test_prescan_counts_lines_and_scales_tokens_up(file: Make) -> None:
    many = file(AZURE + "".join(f"2023-11-16 18:{n // 60:02}:{n % 60:02},10,{3}\n" for n in range(3000)))
    quick = prescan(Trace(many))
    assert (quick.requests, quick.duration, quick.prompt_tokens, quick.output_tokens) == (3000, 2999.0, 30_000, 9_000)
    assert not quick.exact
    assert prescan(Trace(many), exact=True).exact
    few = file(rows({"arrival": 3, "prompt_tokens": 4, "output_tokens": 5}))
    assert prescan(Trace(few)).exact
    workload = open_workload(f"{many},speed=2,duration=30m", scan=True)
    assert (workload.requests, workload.duration) == (3000, 1499.5)
    assert open_workload(many).requests is None


def test_rows_that_are_no_request_can_be_skipped_and_are_counted(file: Make) -> None:
    path = file(AZURE + "2023-11-16 18:15:46,1,2\n2023-11-16 18:15:47,-1,2\n2023-11-16 18:15:48,1\n")
    tally = Tally()
    assert len(list(open_workload(f"azure:{path},bad=skip").asks(tally))) == 1
    assert tally.notes() == ["2 rows skipped that were no request"]


def test_listed_asks_must_be_in_order() -> None:
    asks = (Ask(0.0, 1, 1), Ask(1.0, 1, 1))
    assert list(Workload("two", Listed(asks))) == list(asks)
    with pytest.raises(ValueError, match="in order"):
        Listed(asks[::-1])
