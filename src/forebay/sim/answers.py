"""The bytes of answers: bodies and stream chunks with vLLM 0.32's keys in vLLM's order.

A stream's chunks are templates: what changes from token to token is formatted in, nothing is encoded twice.
"""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple

from forebay.sim import words
from forebay.sim.asks import Generation
from forebay.sim.checks import compact
from forebay.sim.script import Script

FINGERPRINT: Final = "vllm-0.32.0-forebay0"
DONE: Final = b"data: [DONE]\n\n"


class Cached(NamedTuple):
    """Prompt tokens found in the prefix cache, and those put there."""

    found: int
    created: int


def details(cached: Cached | None) -> dict[str, int | None] | None:
    """usage.prompt_tokens_details of a whole answer."""
    if cached is None:
        return None
    return {"cached_tokens": cached.found, "created_cache_tokens": cached.created, "multimodal_tokens": None}


def quoted(text: str) -> bytes:
    return encode_basestring(text).encode("utf-8", "backslashreplace")


class StreamFormat:
    """The chunks of one streamed request. All methods return whole events."""

    __slots__ = ("_ask", "_head", "_prompt_tokens", "_tail_usage")

    def __init__(self, ask: Generation, request_id: str, created: int) -> None:
        self._ask = ask
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            quoted(request_id),
            kind.encode(),
            created,
            quoted(ask.model),
        )
        self._prompt_tokens = sum(p.tokens for p in ask.prompts)
        self._tail_usage = ask.continuous_usage

    def role(self, script: Script) -> bytes:
        usage = self._usage(script, 0) if self._tail_usage else b""
        return (
            b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]%b,'
            b'"prompt_token_ids":null,"prompt_text":null}\n\n' % (self._head, script.index, usage)
        )

    def token(self, script: Script, n: int, *, closing: bool) -> bytes:
        """The chunk of token `n` (from 1). `closing`: this is the request's last chunk but for usage."""
        last = n == script.length
        if script.calls:
            delta = b'"delta":%b' % self._tool_delta(script, n)
            return self._chunk(script, n, delta, b"null", last, closing)
        piece = script.pieces[n - 1]
        logprobs = b"null" if self._ask.top_logprobs is None else compact(self._logprobs(script, n))
        if self._ask.chat:
            return self._chunk(script, n, b'"delta":{"content":%b}' % quoted(piece), logprobs, last, closing)
        return self._chunk(script, n, b'"text":%b' % quoted(piece), logprobs, last, closing)

    def raw_delta(self, script: Script, n: int, delta: Any, *, last: bool, closing: bool) -> bytes:
        """A chunk whose delta is given: for faults that shape it."""
        return self._chunk(script, n, b'"delta":%b' % compact(delta), b"null", last, closing)

    def usage(self, completed: int, cached: Cached | None = None) -> bytes:
        details = b""
        if cached is not None:
            details = b',"prompt_tokens_details":{"cached_tokens":%d,"created_cache_tokens":%d}' % cached
        return (
            b'%b],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b},"system_fingerprint":"%b"}\n\n'
            % (
                self._head,
                self._prompt_tokens,
                self._prompt_tokens + completed,
                completed,
                details,
                FINGERPRINT.encode(),
            )
        )

    def _chunk(self, script: Script, n: int, delta: bytes, logprobs: bytes, last: bool, closing: bool) -> bytes:
        finish = b'"%b"' % script.finish.encode() if last else b"null"
        stop = quoted(script.stopped_by) if last and script.stopped_by is not None else b"null"
        usage = self._usage(script, n) if self._tail_usage else b""
        mark = b',"system_fingerprint":"%b"' % FINGERPRINT.encode() if closing and not self._ask.include_usage else b""
        if self._ask.chat:
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
        top = self._ask.top_logprobs or 0
        if self._ask.chat:
            return {"content": [_chat_logprob(script.pieces[n - 1], n, top)]}
        offset = sum(map(len, script.pieces[: n - 1]))
        return _text_logprobs(script.pieces[n - 1 : n], n, top, offset)


def body(
    ask: Generation,
    scripts: list[Script],
    request_id: str,
    created: int,
    *,
    usage: bool = True,
    cached: Cached | None = None,
    kv_transfer: dict[str, Any] | None = None,
) -> bytes:
    """A whole answer that is not streamed. `usage` false: without that key, for the fault of that name."""
    completed = sum(s.length for s in scripts)
    prompt_tokens = sum(p.tokens for p in ask.prompts)
    answer: dict[str, Any] = {
        "id": request_id,
        "object": "chat.completion" if ask.chat else "text_completion",
        "created": created,
        "model": ask.model,
        "choices": [_chat_choice(ask, s) if ask.chat else _text_choice(ask, s) for s in scripts],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completed,
            "completion_tokens": completed,
            "prompt_tokens_details": details(cached),
            "completion_tokens_details": None,
        },
    }
    if not usage:
        del answer["usage"]
    if ask.chat:
        answer |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
    answer |= {"kv_transfer_params": kv_transfer, "ec_transfer_params": None, "metrics": None}
    return compact(answer)


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
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": "".join(c.arguments)}}
            for c in script.calls
        ]
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


def _candidates(piece: str, n: int, top: int) -> list[tuple[str, float]]:
    """The chosen token first, then `top` - 1 others, each less likely: made up, the same every time."""
    seed = words.seed_of(piece, n)
    at = -0.05 - words.unit(seed)
    out = [(piece, at)]
    i = 0
    while len(out) < top:
        i += 1
        other = words.sentences(words.seed_of(seed, i), 2)[1]
        at -= 0.1 + words.unit(words.seed_of(seed, i, "gap"))
        if all(other != known for known, _ in out):
            out.append((other, at))
    return out


def _one_logprob(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "replace"))}


def _chat_logprob(piece: str, n: int, top: int) -> dict[str, Any]:
    candidates = _candidates(piece, n, top)
    return {**_one_logprob(*candidates[0]), "top_logprobs": [_one_logprob(*c) for c in candidates[:top]]}


def _text_logprobs(pieces: list[str], first: int, top: int, offset: int) -> dict[str, Any]:
    rows = [_candidates(p, n, top) for n, p in enumerate(pieces, first)]
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
