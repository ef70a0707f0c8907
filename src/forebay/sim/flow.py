"""One generating request from its submission to its last byte."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from forebay.sim import answers
from forebay.sim.asks import Generation
from forebay.sim.checks import Rejected
from forebay.sim.driver import Driver
from forebay.sim.faults import Books, Fault, Kind, Record
from forebay.sim.faulty import Out, reset
from forebay.sim.metrics import EngineMetrics
from forebay.sim.model import Ask, Event
from forebay.sim.model import Kind as EventKind
from forebay.sim.script import Script
from forebay.wire.reply import Reply

SSE_HEADERS: Final = b"server: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\n"
JSON_HEADERS: Final = b"server: uvicorn\r\ncontent-type: application/json\r\nvary: Origin\r\n"

_TOOL_KINDS: Final = frozenset({Kind.TOOL_WHOLE, Kind.TOOL_NO_ID, Kind.TOOL_EMPTY, Kind.TOOL_FINISH})
_AFTER_TOKENS: Final = frozenset({Kind.STALL_AFTER, Kind.CUT, Kind.RESET_AFTER, Kind.ERROR_EVENT})


def engine_died() -> Rejected:
    """What vLLM says when its engine core is gone."""
    text = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return Rejected(text, status=500, kind="InternalServerError")


class _Sequence:
    __slots__ = ("due", "first_at", "last_at", "script", "started", "submitted", "written")

    def __init__(self, script: Script, submitted: float) -> None:
        self.script = script
        self.submitted = submitted
        self.started = submitted
        self.first_at = 0.0
        self.last_at = 0.0
        self.due = 0  # tokens generated
        self.written = 0  # tokens sent


class Flow:
    """Mutable state: its sequences in the model, how far each is written, and its record, closed exactly once."""

    def __init__(
        self,
        ask: Generation,
        scripts: list[Script],
        reply: Reply,
        record: Record,
        *,
        request_id: str,
        extra_headers: bytes,
        fault: Fault | None,
        driver: Driver,
        metrics: EngineMetrics,
        books: Books,
    ) -> None:
        self._ask = ask
        self._scripts = scripts
        self._reply = reply
        self._record = record
        self._id = request_id
        self._extra = extra_headers
        self._fault = fault
        self._kind = fault.kind if fault is not None else None
        self._driver = driver
        self._metrics = metrics
        self._books = books
        self._created = int(time.time())
        self._format = answers.StreamFormat(ask, request_id, self._created)
        self._out = Out(reply, fault, asyncio.get_running_loop())
        self._sequences: dict[int, _Sequence] = {}
        self._unfinished = len(scripts)
        self._tokens = 0
        self._muted = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Head and role chunks go out at once, however long the request will wait (vLLM does so)."""
        reply = self._reply
        reply.on_gone = self._gone
        if self._ask.stream:
            reply.on_resume = self._resume
            wrong = self._kind in (Kind.SHORT_LENGTH, Kind.LONG_LENGTH)
            self._out.start(SSE_HEADERS + self._extra, self._out.wrong_length(self._whole_size()) if wrong else None)
            if self._ask.chat:
                for script in self._scripts:
                    self._out.write(self._format.role(script))
        if self._kind is Kind.ROLE_WAIT and self._fault is not None:
            self._timer = asyncio.get_running_loop().call_later(self._fault.arg, self._submit)
        else:
            self._submit()

    def _submit(self) -> None:
        self._timer = None
        if self._kind in _AFTER_TOKENS and self._fault is not None and self._fault.arg == 0:
            self._break()
            return
        for script in self._scripts:
            prompt = script.prompt.tokens
            cached = max(0, prompt - 1) if script.index % self._ask.n else 0  # choices of one prompt share its KV
            seq = self._driver.submit(Ask(prompt, script.length, self._ask.priority, cached), self)
            self._sequences[seq] = _Sequence(script, self._driver.now())

    # --- the model's events ------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        sequence = self._sequences[event.seq]
        metrics = self._metrics
        at = event.at
        if event.kind is EventKind.STARTED:
            sequence.started = at
            metrics.queue_time.observe(at - sequence.submitted)
            return
        metrics.generation_tokens += 1
        if event.n == 1:
            sequence.first_at = at
            metrics.prompt_tokens += sequence.script.prompt.tokens
            metrics.ttft.observe(at - sequence.submitted)
            metrics.prefill_time.observe(at - sequence.started)
        else:
            metrics.itl.observe(at - sequence.last_at)
        sequence.last_at = at
        sequence.due = event.n
        self._tokens += 1
        self._record.tokens = self._tokens
        if event.last:
            self._unfinished -= 1
            self._measure(sequence)
        if self._muted:
            return
        if self._ask.stream:
            self._flush(sequence)
        fault = self._fault
        if fault is not None and self._kind in _AFTER_TOKENS and self._tokens >= fault.arg:
            self._break()
        elif not self._unfinished:
            self._finish()

    def on_broken(self) -> None:
        self._leave("faulted")
        self._reply.abort()

    def _measure(self, sequence: _Sequence) -> None:
        metrics, script = self._metrics, sequence.script
        n, end = script.length, sequence.last_at
        decode = end - sequence.first_at
        metrics.success["length" if script.finish == "length" else "stop"] += 1
        metrics.e2e.observe(end - sequence.submitted)
        metrics.inference_time.observe(end - sequence.started)
        metrics.decode_time.observe(decode)
        metrics.tpot.observe(decode / (n - 1) if n > 1 else 0.0)
        metrics.request_prompt.observe(script.prompt.tokens)
        metrics.request_generation.observe(n)
        metrics.params_max_tokens.observe(self._ask.max_tokens)
        metrics.params_n.observe(self._ask.n)

    # --- writing -----------------------------------------------------------------------------------------------------

    def _flush(self, sequence: _Sequence) -> None:
        """What is due and not written. A client that does not take it costs no memory: it is made when it does."""
        reply = self._reply
        while sequence.written < sequence.due and not reply.paused:
            sequence.written += 1
            chunk = self._chunk(sequence.script, sequence.written)
            if chunk:
                self._out.write(chunk)

    def _chunk(self, script: Script, n: int) -> bytes:
        closing = script.index == len(self._scripts) - 1 and n == script.length
        if self._kind in _TOOL_KINDS and script.calls:
            delta = _bent_tool_delta(self._kind, script, n)
            if delta is None:
                return b""
            return self._format.raw_delta(script, n, delta, last=n == script.length, closing=closing)
        return self._format.token(script, n, closing=closing)

    def _resume(self) -> None:
        if self._muted:
            return
        for sequence in self._sequences.values():
            self._flush(sequence)
        if not self._unfinished:
            self._finish()

    def _finish(self) -> None:
        if not self._ask.stream:
            body = answers.body(
                self._ask, self._scripts, self._id, self._created, usage=self._kind is not Kind.NO_USAGE
            )
            self._out.whole(200, JSON_HEADERS + self._extra, body, self._finished)
            return
        if any(s.written < s.due for s in self._sequences.values()):
            return  # the client is behind; _resume comes back here
        self._out.write(self._tail())
        if self._out.paced:
            self._out.end(self._finished)
            return
        self._finished()
        if self._kind in (Kind.SHORT_LENGTH, Kind.LONG_LENGTH):
            self._out.end_wrong_length()
        else:
            self._out.end()

    def _tail(self) -> bytes:
        usage = self._ask.include_usage and self._kind is not Kind.NO_USAGE
        return (self._format.usage(sum(s.length for s in self._scripts)) if usage else b"") + answers.DONE

    def _whole_size(self) -> int:
        size = len(self._tail())
        for script in self._scripts:
            size += len(self._format.role(script)) if self._ask.chat else 0
            size += sum(len(self._chunk(script, n)) for n in range(1, script.length + 1))
        return size

    # --- ends that are not the good one ------------------------------------------------------------------------------

    def _break(self) -> None:
        """The fault's time has come."""
        kind = self._kind
        self._muted = True
        if not self._ask.stream and kind is not Kind.ERROR_EVENT:
            whole = answers.body(self._ask, self._scripts, self._id, self._created)
            self._reply.start(200, JSON_HEADERS + self._extra, len(whole))
            self._reply.write(whole[: len(whole) // 2])
        if kind is Kind.STALL_AFTER:
            return  # silence, with the slot held, until the client leaves
        self._leave("faulted")
        if kind is Kind.CUT:
            self._reply.abort()
        elif kind is Kind.RESET_AFTER:
            reset(self._reply)
        elif self._ask.stream:
            self._reply.write(b"data: " + engine_died().body() + b"\n\n" + answers.DONE)
            self._reply.end()
        else:
            self._reply.send(500, JSON_HEADERS + self._extra, engine_died().body())

    def _finished(self) -> None:
        self._leave("finished")

    def _gone(self) -> None:
        self._leave("aborted")

    def _leave(self, how: str) -> None:
        """Give back whatever is still held and close the record."""
        if not self._books.close(self._record, how, self._driver.now()):
            return
        self._muted = True
        if how != "finished":
            self._out.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for seq in self._sequences:
            self._driver.cancel(seq)

    def __repr__(self) -> str:
        return f"<Flow {self._id} {self._tokens} tokens, {self._unfinished} choices open>"


def _bent_tool_delta(kind: Kind | None, script: Script, n: int) -> dict[str, Any] | None:
    """The delta of token `n` in the shape of a fault; None: no chunk."""
    call = script.calls[0]
    last = n == script.length
    arguments = call.arguments[n - 2] if n > 1 else ""
    head = {"id": call.id, "type": "function", "index": 0, "function": {"name": call.name, "arguments": ""}}
    if kind is Kind.TOOL_WHOLE:
        if n == 1:
            return {"tool_calls": [{**head, "function": {"name": call.name, "arguments": "".join(call.arguments)}}]}
        return {} if last else None
    if kind is Kind.TOOL_NO_ID and n == 1:
        return {"tool_calls": [{"index": 0, "function": {"name": call.name, "arguments": ""}}]}
    if n == 1:
        return {"tool_calls": [head]}
    if kind is Kind.TOOL_EMPTY:
        arguments = ""
    delta: dict[str, Any] = {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}
    if kind is Kind.TOOL_FINISH and last:
        delta = {"content": "Done.", **delta}
    return delta
