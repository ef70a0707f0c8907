"""What becomes of each kind of answer in the books: the table of docs/ledger.md, row by row, read from the database."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.client import chat, new_id, request
from e2e.conftest import Engines
from e2e.engine import DONE, ROLE, USAGE, Script, chunk, delta, event, says, stream_head, streams, whole
from e2e.gateway import Gateway
from forebay.gateway.exact import open_tokenizer
from tokenizer_file import make_tokenizer
from waiting import eventually, in_books

WORDS = [event(delta({"content": f"word {i} "})) for i in range(20)]
LAST = event(delta({}, "stop"))
TEXT = "The quick brown fox jumps over the lazy dog, and twelve more words of the same kind follow it here."


def answer(usage: Any) -> bytes:
    message = {"role": "assistant", "content": TEXT}
    body: dict[str, Any] = {"id": "x", "object": "chat.completion", "model": "raw"}
    body["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return json.dumps(body | ({"usage": usage} if usage is not None else {})).encode()


def usage_event(usage: dict[str, Any]) -> bytes:
    return event({"id": "x", "object": "chat.completion.chunk", "model": "raw", "choices": [], "usage": usage})


def counts(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class Case:
    """One request to an engine that plays a script, and its rows in the database."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.id = new_id("book")

    def rows(self, count: int = 1) -> list[dict[str, Any]]:
        def look() -> list[dict[str, Any]]:
            found = in_books(
                self.gateway.config["state_dir"],
                "SELECT e.*, d.engine, d.end_user AS who, d.labels, a.key_name FROM entries e "
                "JOIN dimensions d ON d.id = e.dimension_id JOIN accounts a ON a.id = d.account_id "
                "WHERE request_id = ? ORDER BY e.seq",
                (self.id,),
            )
            return found if len(found) >= count else []

        found = eventually(look)
        assert len(found) == count, found
        return found

    def row(self) -> dict[str, Any]:
        return self.rows()[0]


@pytest.fixture
def case(gateway: Gateway) -> Case:
    return Case(gateway)


def ask(case: Case, engines: Engines, script: Script, **fields: Any) -> None:
    engines.raw.scripts[case.id] = script
    case.gateway.ask(chat(**fields), x_test=case.id, x_request_id=case.id)


def test_the_engine_s_own_usage(case: Case, engines: Engines) -> None:
    usage = counts(100, 50) | {
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 30},
    }
    ask(case, engines, says(whole(200, answer(usage))), user="anna")
    row = case.row()
    found = {kind: row[kind] for kind in ("input", "cached", "output", "reasoning")}
    assert found == {"input": 40, "cached": 60, "output": 20, "reasoning": 30}
    assert (row["how"], row["outcome"], row["cost"], row["note"]) == ("unpriced", "ok", None, "")
    assert (row["key_name"], row["who"], row["engine"]) == ("e2e", "anna", "raw")


def test_a_stream_s_last_word(case: Case, engines: Engines) -> None:
    ask(case, engines, streams(ROLE, *WORDS, LAST, usage_event(counts(9, 41)), DONE), stream=True)
    row = case.row()
    assert (row["input"], row["output"], row["outcome"], row["note"]) == (9, 41, "ok", "")
    assert row["ttft"] > 0


def test_of_two_usages_the_last_counts(case: Case, engines: Engines) -> None:
    twice = (usage_event(counts(9, 20)), usage_event(counts(9, 21)))
    ask(case, engines, streams(ROLE, *WORDS, LAST, *twice, DONE), stream=True)
    assert (case.row()["input"], case.row()["output"]) == (9, 21)


def test_a_whole_answer_without_usage_is_counted_by_its_text(case: Case, engines: Engines) -> None:
    ask(case, engines, says(whole(200, answer(None))))
    row = case.row()
    assert 15 <= row["output"] <= 30  # 20 words
    assert row["input"] > 0


def test_a_stream_without_usage_is_counted_by_its_events(case: Case, engines: Engines) -> None:
    ask(case, engines, streams(ROLE, *WORDS, LAST, DONE), stream=True)
    assert 4 <= case.row()["output"] <= 60


def test_a_cut_stream_is_what_was_delivered(case: Case, engines: Engines) -> None:
    ask(case, engines, streams(ROLE, *WORDS, end=False), stream=True)
    row = case.row()
    assert row["outcome"] == "engine_cut"
    assert 4 <= row["output"] <= 60  # what an event is worth is learned, also from the odd engines of other tests


PARAGRAPH = "The river rose in the night and the lower gates were opened one after another. " * 5
LONG = [event(delta({"content": PARAGRAPH})) for _ in range(20)]
"""80 tokens each."""


@pytest.mark.parametrize("tail", [(LAST, DONE), ()], ids=["whole", "cut"])
def test_a_stream_whose_events_hold_much_text_is_counted_by_its_bytes(
    case: Case, engines: Engines, tail: tuple[bytes, ...]
) -> None:
    ask(case, engines, streams(ROLE, *LONG, *tail, end=bool(tail)), stream=True, max_tokens=10_000)
    assert 400 <= case.row()["output"] <= 4_000  # by its 20 events: 60 at most; what a byte is worth is learned, too


@pytest.mark.parametrize("tail", [(LAST, DONE), ()], ids=["whole", "cut"])
def test_a_stream_without_usage_is_counted_by_its_model_s_tokenizer(
    case: Case, engines: Engines, tail: tuple[bytes, ...], tmp_path: Path
) -> None:
    script = streams(ROLE, *WORDS, *LONG, *tail, end=bool(tail))
    ask(case, engines, script, model="raw-counted", stream=True, max_tokens=100_000)
    text = "".join(f"word {i} " for i in range(20)) + PARAGRAPH * 20
    assert case.row()["output"] == open_tokenizer(make_tokenizer(tmp_path))(text)


def test_a_stream_without_usage_has_no_more_than_was_allowed(case: Case, engines: Engines) -> None:
    ask(case, engines, streams(ROLE, *LONG, LAST, DONE), stream=True, max_tokens=200)
    assert case.row()["output"] == 200


def test_a_client_that_leaves_pays_what_it_was_sent(case: Case, engines: Engines) -> None:
    engines.raw.scripts[case.id] = says(stream_head(), *map(chunk, (ROLE, *WORDS)), hang=True)
    with case.gateway.client() as client:
        client.send(request(chat(stream=True), x_test=case.id, x_request_id=case.id))
        client.head()
    row = case.row()
    assert row["outcome"] == "client_gone"
    assert row["input"] > 0
    assert 1 <= row["output"] <= 60


def test_a_client_that_leaves_at_done_had_it_all(case: Case, engines: Engines) -> None:
    """As the openai SDK does where the body's last chunk is not there yet."""
    events = (ROLE, *WORDS, LAST, usage_event(counts(9, 41)), DONE)
    engines.raw.scripts[case.id] = says(stream_head(), *map(chunk, events), hang=True)
    with case.gateway.client() as client:
        client.send(request(chat(stream=True), x_test=case.id, x_request_id=case.id))
        client.head()
        next(piece for piece in client.chunks() if b"[DONE]" in piece)
    row = case.row()
    assert (row["outcome"], row["input"], row["output"]) == ("ok", 9, 41)


def test_a_client_that_leaves_before_anything_pays_the_prompt(case: Case, engines: Engines) -> None:
    engines.raw.scripts[case.id] = lambda talk: talk.wait_gone()
    with case.gateway.client() as client:
        client.send(request(chat(), x_test=case.id, x_request_id=case.id))
        engines.raw.wait_for(case.id)
    row = case.row()
    assert (row["outcome"], row["output"]) == ("client_gone", 0)
    assert row["input"] > 0


@pytest.mark.parametrize(
    "script",
    [says(whole(400, b'{"error":{"message":"no"}}')), says(whole(500, b"{}")), lambda talk: talk.reset()],
    ids=["refused", "failed", "reset"],
)
def test_what_fails_before_its_first_content_costs_nothing(case: Case, engines: Engines, script: Script) -> None:
    ask(case, engines, script)
    row = case.row()
    assert (row["how"], row["cost"], row["input"], row["output"]) == ("exact", 0, 0, 0)


def test_usage_before_a_stream_failed_costs_nothing(case: Case, engines: Engines) -> None:
    ask(case, engines, streams(ROLE, usage_event(counts(9, 3)), end=False), stream=True)
    row = case.row()
    assert (row["outcome"], row["how"], row["cost"], row["input"]) == ("engine_error", "exact", 0, 0)


def test_a_retry_is_another_attempt_of_the_same_request(case: Case, engines: Engines) -> None:
    tried: list[str] = []

    def first(name: str) -> Callable[[Any], None]:
        def script(talk: Any) -> None:
            tried.append(name)
            talk.send(whole(500, b"{}") if len(tried) == 1 else whole(200, answer(USAGE)))

        return script

    for name, engine in (("left", engines.left), ("right", engines.right)):
        engine.scripts[case.id] = first(name)
    case.gateway.ask(chat("twin"), x_test=case.id, x_request_id=case.id)
    failed, answered = case.rows(2)
    assert [failed["engine"], answered["engine"]] == tried
    assert failed["request"] == answered["request"] == failed["seq"]
    assert (failed["how"], failed["cost"], failed["outcome"]) == ("exact", 0, "engine_error")
    assert (answered["input"], answered["output"], answered["outcome"]) == (7, 3, "ok")


@pytest.mark.parametrize(
    ("usage", "note"),
    [
        (counts(-5, 3), "usage_negative"),
        (counts(10**30, 3), "usage_absurd"),
        (counts(7, 900), "usage_absurd"),
        ({}, "usage_empty"),
    ],
    ids=["negative", "absurd", "over max_tokens", "empty"],
)
def test_usage_that_cannot_be_is_not_believed(case: Case, engines: Engines, usage: dict[str, Any], note: str) -> None:
    ask(case, engines, says(whole(200, answer(usage))), max_tokens=40)
    row = case.row()
    assert row["note"] == note
    assert 0 < row["input"] < 1_000
    assert 15 <= row["output"] <= 30  # by its text: 20 words


def test_usage_of_another_answer_is_not_believed(case: Case, engines: Engines) -> None:
    ask(case, engines, streams(ROLE, *WORDS, LAST, usage_event(counts(7, 0)), DONE), stream=True)
    row = case.row()
    assert row["note"] == "usage_unseen"
    assert row["output"] >= 4


@pytest.mark.parametrize("stream", [False, True])
def test_usage_of_fewer_tokens_than_its_words_can_have_is_not_believed(
    case: Case, engines: Engines, stream: bool
) -> None:
    long = PARAGRAPH * 100
    if stream:
        script = streams(ROLE, *[event(delta({"content": long}))] * 4, LAST, usage_event(counts(7, 9)), DONE)
    else:
        script = says(whole(200, answer(counts(7, 9)).replace(TEXT.encode(), long.encode())))
    ask(case, engines, script, stream=stream)
    row = case.row()
    assert (row["note"], row["how"]) == ("usage_unseen", "unpriced")
    assert row["output"] > 4_000


def test_a_whole_answer_of_no_tokens_is_not_believed(case: Case, engines: Engines) -> None:
    ask(case, engines, says(whole(200, answer(counts(7, 0)))))
    row = case.row()
    assert row["note"] == "usage_unseen" and 15 <= row["output"] <= 30


def test_an_answer_of_several_prompts_is_what_the_engine_says(case: Case, engines: Engines) -> None:
    engines.raw.scripts[case.id] = says(whole(200, answer(counts(100, 400))))
    body = {"model": "raw", "prompt": ["a"] * 40, "max_tokens": 10, "max_completion_tokens": 1}
    case.gateway.ask(body, path="/v1/completions", x_test=case.id, x_request_id=case.id)
    row = case.row()
    assert (row["input"], row["output"], row["how"], row["note"]) == (100, 400, "unpriced", "")


def test_usage_of_a_film_behind_an_address_is_believed(case: Case, engines: Engines) -> None:
    film = [{"type": "video_url", "video_url": {"url": "https://films.example/1.mp4"}}]
    script = says(whole(200, answer(counts(300_000, 10))))
    ask(case, engines, script, messages=[{"role": "user", "content": film}])
    assert (case.row()["input"], case.row()["note"]) == (300_000, "")


@pytest.mark.parametrize("more", [{}, {"choices": [{"index": 0, "delta": {"content": "x"}}]}], ids=["bare", "choice"])
def test_absurd_usage_of_a_cut_stream_is_not_believed(case: Case, engines: Engines, more: dict[str, Any]) -> None:
    usage = event({"id": "x", "model": "raw", "choices": [], "usage": counts(5, 10**12)} | more)
    ask(case, engines, streams(ROLE, *WORDS, usage, end=False), stream=True)
    row = case.row()
    assert (row["outcome"], row["note"]) == ("engine_cut", "usage_absurd")
    assert 4 <= row["output"] <= 60  # what an event is worth is learned, also from the odd engines of other tests


def test_usage_that_content_follows_is_not_the_last_word(case: Case, engines: Engines) -> None:
    ask(case, engines, streams(ROLE, WORDS[0], usage_event(counts(9, 1)), *WORDS[:12], end=False), stream=True)
    row = case.row()
    assert row["input"] == 9
    assert row["output"] >= 3


def test_a_stream_that_says_nothing_has_its_usage(case: Case, engines: Engines) -> None:
    engines.raw.scripts[case.id] = streams(ROLE, usage_event(counts(9, 0)), DONE)
    got = case.gateway.ask(chat(stream=True), x_test=case.id, x_request_id=case.id)
    assert b'"usage"' not in got.body  # nobody asked for it
    row = case.row()
    assert (row["input"], row["output"], row["note"]) == (9, 0, "")


def test_an_empty_answer_is_no_other_one(case: Case, engines: Engines) -> None:
    ask(case, engines, streams(ROLE, LAST, usage_event(counts(9, 0)), DONE), stream=True)
    assert (case.row()["output"], case.row()["note"]) == (0, "")


def test_a_long_name_of_an_end_user_is_known_by_its_hash(case: Case, engines: Engines) -> None:
    ask(case, engines, says(whole(200, answer(USAGE))), user="a" * 300 + "b")
    other = Case(case.gateway)
    ask(other, engines, says(whole(200, answer(USAGE))), user="a" * 300 + "c")
    assert len(case.row()["who"]) == len(other.row()["who"]) == 64
    assert case.row()["who"] != other.row()["who"]


def test_who_leaves_a_long_whole_answer_pays_what_it_was_sent(case: Case, engines: Engines) -> None:
    begun = b'{"choices":[{"message":{"content":"' + b"word " * 300_000
    engines.raw.scripts[case.id] = says(whole(200, begun + b" " * 9)[:-9], hang=True)
    with case.gateway.client() as client:
        client.send(request(chat(max_tokens=200_000), x_test=case.id, x_request_id=case.id))
        client.head()
    row = case.row()
    assert row["outcome"] == "client_gone"
    assert 100_000 < row["output"] <= 200_000


# --- what makers call tiers of their service -------------------------------------------------------------------------

ORDINARY, FLEX, PRIORITY = 1_125_000, 562_500, 2_250_000
"""Nano-dollars of 100 tokens in and 100 out of gpt-5: 1.25 and 10 dollars a million, half of that, and twice."""


@pytest.mark.parametrize(
    ("asked", "said", "cost"),
    [
        (None, None, ORDINARY),
        (None, "default", ORDINARY),
        ("auto", "priority", PRIORITY),
        ("flex", "flex", FLEX),
        ("flex", "default", ORDINARY),
        ("flex", None, FLEX),
        ("auto", None, ORDINARY),
        (None, "scale", None),
        ("flex", {"not": "a tier"}, FLEX),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_the_price_of_the_tier_it_came_in(
    case: Case, engines: Engines, stream: bool, asked: str | None, said: Any, cost: int | None
) -> None:
    more = {"service_tier": asked} if asked is not None else {}
    tier = {"service_tier": said} if said is not None else {}
    if stream:
        word = event(delta({"content": "word "}) | tier)
        script = streams(ROLE, *[word] * 40, LAST, usage_event(counts(100, 100)), DONE)
    else:
        script = says(whole(200, json.dumps(json.loads(answer(counts(100, 100))) | tier).encode()))
    ask(case, engines, script, model="gpt-5", stream=stream, **more)
    row = case.row()
    assert (row["cost"], row["input"], row["output"]) == (cost, 100, 100)
    assert (row["how"], row["note"]) == (("exact", "") if cost is not None else ("unpriced", "service_tier"))
