"""vLLM's answers: bodies and stream chunks with vLLM 0.32's keys in vLLM's order, held to recorded ones.

A stream's chunks are templates: what changes from token to token is formatted in, nothing is encoded twice.
"""

from __future__ import annotations

from typing import Any, Final

from forebay.sim.answers import DONE, Answer, Prepared, Told, candidates, quoted, tool_calls
from forebay.sim.asks import Generation
from forebay.sim.checks import Rejected, compact
from forebay.sim.script import Script

FINGERPRINT: Final = "vllm-0.32.0-forebay0"


class VllmAnswer(Answer):
    sse = b"server: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\n"
    json = b"server: uvicorn\r\ncontent-type: application/json\r\nvary: Origin\r\n"

    def __init__(self, ask: Generation, scripts: list[Script], prepared: Prepared) -> None:
        super().__init__(ask, scripts, prepared)
        self.id = f"{'chatcmpl' if ask.chat else 'cmpl'}-{prepared.name}"
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            quoted(self.id),
            kind.encode(),
            prepared.created,
            quoted(ask.model),
        )
        self._tail_usage = ask.continuous_usage

    def role(self, script: Script) -> bytes:
        if not self.ask.chat:
            return b""
        usage = self._usage(script, 0) if self._tail_usage else b""
        return (
            b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]%b,'
            b'"prompt_token_ids":null,"prompt_text":null}\n\n' % (self._head, script.index, usage)
        )

    def token(self, script: Script, n: int, *, closing: bool) -> bytes:
        last = n == script.length
        if script.calls:
            delta = b'"delta":%b' % self._tool_delta(script, n)
            return self._chunk(script, n, delta, b"null", last, closing)
        piece = script.pieces[n - 1]
        logprobs = b"null" if self.ask.top_logprobs is None else compact(self._logprobs(script, n))
        if self.ask.chat:
            return self._chunk(script, n, b'"delta":{"content":%b}' % quoted(piece), logprobs, last, closing)
        return self._chunk(script, n, b'"text":%b' % quoted(piece), logprobs, last, closing)

    def raw_delta(self, script: Script, n: int, delta: Any, *, last: bool, closing: bool) -> bytes:
        return self._chunk(script, n, b'"delta":%b' % compact(delta), b"null", last, closing)

    def tail(self, told: Told, *, usage: bool) -> bytes:
        return (self._last_usage(told) if usage and self.ask.include_usage else b"") + DONE

    def error_event(self, e: Rejected) -> bytes:
        return b"data: " + e.body() + b"\n\n" + DONE

    def body(self, told: Told, *, usage: bool, kv_transfer: dict[str, Any] | None = None) -> bytes:
        ask, completed = self.ask, self.completed
        details = None
        if self.prepared.details:
            details = {"cached_tokens": told.found, "created_cache_tokens": told.kept, "multimodal_tokens": None}
        answer: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion" if ask.chat else "text_completion",
            "created": self.prepared.created,
            "model": ask.model,
            "choices": [_chat_choice(ask, s) if ask.chat else _text_choice(ask, s) for s in self.scripts],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "total_tokens": self.prompt_tokens + completed,
                "completion_tokens": completed,
                "prompt_tokens_details": details,
                "completion_tokens_details": None,
            },
        }
        if not usage:
            del answer["usage"]
        if ask.chat:
            answer |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        answer |= {"kv_transfer_params": kv_transfer, "ec_transfer_params": None, "metrics": None}
        return compact(answer)

    def _last_usage(self, told: Told) -> bytes:
        details = b""
        if self.prepared.details:
            details = b',"prompt_tokens_details":{"cached_tokens":%d,"created_cache_tokens":%d}' % (
                told.found,
                told.kept,
            )
        completed = self.completed
        return (
            b'%b],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b},"system_fingerprint":"%b"}\n\n'
            % (
                self._head,
                self.prompt_tokens,
                self.prompt_tokens + completed,
                completed,
                details,
                FINGERPRINT.encode(),
            )
        )

    def _chunk(self, script: Script, n: int, delta: bytes, logprobs: bytes, last: bool, closing: bool) -> bytes:
        finish = b'"%b"' % script.finish.encode() if last else b"null"
        stop = quoted(script.stopped_by) if last and script.stopped_by is not None else b"null"
        usage = self._usage(script, n) if self._tail_usage else b""
        mark = b',"system_fingerprint":"%b"' % FINGERPRINT.encode() if closing and not self.ask.include_usage else b""
        if self.ask.chat:
            middle = b'"finish_reason":%b,"stop_reason":%b' % (finish, stop) if last else b'"finish_reason":null'
            return b'%b{"index":%d,%b,"logprobs":%b,%b,"token_ids":null}]%b%b}\n\n' % (
                self._head,
                script.index,
                delta,
                logprobs,
                middle,
                usage,
                mark,
            )
        return (
            b'%b{"index":%d,%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b,"prompt_token_ids":null,'
            b'"token_ids":null}]%b%b}\n\n' % (self._head, script.index, delta, logprobs, finish, stop, usage, mark)
        )

    def _usage(self, script: Script, n: int) -> bytes:
        prompt = script.prompt.tokens
        return (
            b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"completion_tokens_details":null}'
            % (
                prompt,
                prompt + n,
                n,
            )
        )

    def _tool_delta(self, script: Script, n: int) -> bytes:
        call = script.calls[0]
        if n == 1:
            return b'{"tool_calls":[{"id":%b,"type":"function","index":0,"function":{"name":%b,"arguments":""}}]}' % (
                quoted(call.id),
                quoted(call.name),
            )
        return b'{"tool_calls":[{"index":0,"function":{"arguments":%b}}]}' % quoted(call.arguments[n - 2])

    def _logprobs(self, script: Script, n: int) -> dict[str, Any]:
        top = self.ask.top_logprobs or 0
        if self.ask.chat:
            return {"content": [_chat_logprob(script.pieces[n - 1], n, top)]}
        offset = sum(map(len, script.pieces[: n - 1]))
        return _text_logprobs(script.pieces[n - 1 : n], n, top, offset)


def _chat_choice(ask: Generation, script: Script) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if script.calls else script.text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if script.calls:
        message["tool_calls"] = tool_calls(script)
    message["reasoning"] = None
    logprobs = None
    if ask.top_logprobs is not None:
        logprobs = {"content": [_chat_logprob(p, n, ask.top_logprobs) for n, p in enumerate(script.pieces, 1)]}
    return {
        "index": script.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": script.finish,
        "stop_reason": script.stopped_by,
        "token_ids": None,
        "routed_experts": None,
    }


def _text_choice(ask: Generation, script: Script) -> dict[str, Any]:
    top = ask.top_logprobs
    return {
        "index": script.index,
        "text": script.text,
        "logprobs": None if top is None else _text_logprobs(script.pieces, 1, top, 0),
        "finish_reason": script.finish,
        "stop_reason": script.stopped_by,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }


def _one_logprob(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "replace"))}


def _chat_logprob(piece: str, n: int, top: int) -> dict[str, Any]:
    found = candidates(piece, n, top)
    return {**_one_logprob(*found[0]), "top_logprobs": [_one_logprob(*c) for c in found[:top]]}


def _text_logprobs(pieces: list[str], first: int, top: int, offset: int) -> dict[str, Any]:
    rows = [candidates(p, n, top) for n, p in enumerate(pieces, first)]
    offsets = []
    for p in pieces:
        offsets.append(offset)
        offset += len(p)
    return {
        "text_offset": offsets,
        "token_logprobs": [r[0][1] for r in rows],
        "tokens": list(pieces),
        "top_logprobs": [dict(r[: max(1, top)]) for r in rows],
    }
