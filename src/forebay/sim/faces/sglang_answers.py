"""SGLang's answers (sgl-project/sglang 0.5.23: srt/entrypoints/openai/serving_chat.py, serving_completions.py,
sse_utils.py, protocol.py, usage_processor.py).

In a chat stream the role comes with the first token and finish_reason in a chunk of its own, in completions it is on
the last token. `cached_tokens` need --enable-cache-report.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from forebay.sim.answers import DONE, Answer, Prepared, Told, event, quoted, tool_calls, tool_delta
from forebay.sim.asks import Generation
from forebay.sim.checks import Rejected, compact
from forebay.sim.script import Script

_EOS: Final = 2
"""A token number, as matched_stop has it where the model stopped by itself."""


class SglangAnswer(Answer):
    def __init__(self, ask: Generation, scripts: list[Script], prepared: Prepared) -> None:
        super().__init__(ask, scripts, prepared)
        self.id = ask.rid
        kind = b"chat.completion.chunk" if ask.chat else b"text_completion"
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            quoted(self.id),
            kind,
            prepared.created,
            quoted(ask.model),
        )

    # --- streams -----------------------------------------------------------------------------------------------------

    def role(self, script: Script) -> bytes:
        if not self.ask.chat:
            return b""
        return self._chat(script, b'"role":"assistant","content":""', b"null", b"null", 0)

    def token(self, script: Script, n: int, *, closing: bool) -> bytes:
        if script.calls:
            return self.raw_delta(script, n, tool_delta(script, n), last=False, closing=closing)
        piece = quoted(script.pieces[n - 1])
        if self.ask.chat:
            return self._chat(script, b'"content":%b' % piece, b"null", b"null", n)
        return self._text(script, piece, script.finish if n == script.length else None, n)

    def raw_delta(self, script: Script, n: int, delta: Any, *, last: bool, closing: bool) -> bytes:
        full = {"role": None, "content": None, "reasoning_content": None, **delta}
        choice = {
            "index": script.index,
            "delta": full,
            "logprobs": None,
            "finish_reason": None,
            "matched_stop": None,
        }
        return b'%b%b],"usage":null}\n\n' % (self._head, compact(choice))

    def tail(self, told: Told, *, usage: bool) -> bytes:
        out = b""
        for script in self.scripts:
            finish = b'"%b"' % script.finish.encode()
            if self.ask.chat:
                out += self._chat(script, b"", finish, _matched(script), script.length)
            elif script.finish == "abort":
                out += self._text(script, b'""', "abort", script.length)
        return out + self._usage_chunk(told, usage) + DONE

    def error_event(self, e: Rejected) -> bytes:
        error = {
            "object": "error",
            "message": e.message,
            "type": HTTPStatus(e.status).name,
            "param": None,
            "code": e.status,
        }
        return event({"error": error}) + self._usage_chunk(Told(), usage=True, empty=True) + DONE

    def _chat(self, script: Script, delta: bytes, finish: bytes, matched: bytes, n: int) -> bytes:
        delta = b"," + delta if delta else b""
        usage = b""
        if self.ask.continuous_usage:
            usage = b',"usage":' + compact(self._usage(script.prompt.tokens, n, None))
        return (
            b'%b{"index":%d,"delta":{"reasoning_content":null%b},"logprobs":null,"finish_reason":%b,'
            b'"matched_stop":%b}]%b}\n\n' % (self._head, script.index, delta, finish, matched, usage)
        )

    def _text(self, script: Script, piece: bytes, finish: str | None, n: int) -> bytes:
        usage = b"null"
        if self.ask.continuous_usage:
            usage = compact(self._usage(script.prompt.tokens, n, None))
        return b'%b{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b,"matched_stop":%b}],"usage":%b}\n\n' % (
            self._head,
            script.index,
            piece,
            b'"%b"' % finish.encode() if finish else b"null",
            _matched(script) if finish else b"null",
            usage,
        )

    def _usage_chunk(self, told: Told, usage: bool, *, empty: bool = False) -> bytes:
        if not (usage and self.ask.include_usage):
            return b""
        prompt, completed = (0, 0) if empty else (self.prompt_tokens, self.completed)
        value = self._usage(prompt, completed, told)
        if not self.ask.chat:  # without what is null
            value = {name: one for name, one in value.items() if one is not None}
        return b'%b],"usage":%b}\n\n' % (self._head, compact(value))

    # --- whole answers -----------------------------------------------------------------------------------------------

    def body(self, told: Told, *, usage: bool, kv_transfer: dict[str, Any] | None = None) -> bytes:
        answer = {
            "id": self.id,
            "object": "chat.completion" if self.ask.chat else "text_completion",
            "created": self.prepared.created,
            "model": self.ask.model,
            "choices": [self._choice(script) for script in self.scripts],
            "usage": self._usage(self.prompt_tokens, self.completed, told),
            "metadata": {"weight_version": "default"},
        }
        if not usage:
            del answer["usage"]
        return compact(answer)

    def _choice(self, script: Script) -> dict[str, Any]:
        out: dict[str, Any] = {"index": script.index}
        if self.ask.chat:
            message: dict[str, Any] = {
                "role": "assistant",
                "content": None if script.calls else script.text,
                "reasoning_content": None,
            }
            if script.calls:
                message["tool_calls"] = [{**call, "index": i} for i, call in enumerate(tool_calls(script))]
            out["message"] = message
        else:
            out["text"] = script.text
        matched = script.stopped_by if script.stopped_by is not None else _EOS if script.finish == "stop" else None
        return out | {"logprobs": None, "finish_reason": script.finish, "matched_stop": matched}

    def _usage(self, prompt: int, completed: int, told: Told | None) -> dict[str, Any]:
        details = {"cached_tokens": told.found} if self.prepared.details and told is not None else None
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completed,
            "completion_tokens": completed,
            "prompt_tokens_details": details,
            "reasoning_tokens": 0,
            "completion_tokens_details": None,
        }


def _matched(script: Script) -> bytes:
    if script.stopped_by is not None:
        return quoted(script.stopped_by)
    return b"%d" % _EOS if script.finish == "stop" else b"null"
