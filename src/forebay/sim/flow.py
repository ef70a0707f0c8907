"""One generating request from its submission to its last byte."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from forebay.sim import answers, tokens
from forebay.sim.answers import Cached
from forebay.sim.asks import Generation
from forebay.sim.blocks import block_keys
from forebay.sim.checks import Rejected
from forebay.sim.driver import Driver, Follower
from forebay.sim.faults import Books, Fault, Kind, Record
from forebay.sim.faulty import Out, reset
from forebay.sim.handover import Handovers, Pull
from forebay.sim.jobs import Job, Refused
from forebay.sim.metrics import EngineMetrics
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


class _Choice(Follower):
    __slots__ = ("due", "first_at", "flow", "last_at", "script", "started", "submitted", "written")

    def __init__(self, flow: Flow, script: Script, job: Job, submitted: float) -> None:
        super().__init__(job)
        self.flow = flow
        self.script = script
        self.submitted = submitted
        self.started = submitted
        self.first_at = 0.0
        self.last_at = 0.0
        self.due = 0  # tokens generated
        self.written = 0  # tokens sent

    def on_scheduled(self, at: float) -> None:
        self.started = at
        self.flow.metrics.queue_time.observe(at - self.submitted)

    def on_tokens(self, n: int, at: float) -> None:
        self.flow.on_tokens(self, min(n, self.script.length - self.due), at)

    def on_broken(self) -> None:
        self.flow.on_broken()


class Flow:
    """Mutable state: its choices in the model, how far each is written, and its record, closed exactly once."""

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
        details: bool = False,
        handovers: Handovers | None = None,
    ) -> None:
        """`details`: usage says how many prompt tokens were cached."""
        self._ask = ask
        self._scripts = scripts
        self._reply = reply
        self._record = record
        self._id = request_id
        self._extra = extra_headers
        self._fault = fault
        self._kind = fault.kind if fault is not None else None
        self._driver = driver
        self.metrics = metrics
        self._books = books
        self._details = details
        self._handovers = handovers
        self._created = int(time.time())
        self._format = answers.StreamFormat(ask, request_id, self._created)
        self._out = Out(reply, fault, asyncio.get_running_loop())
        self._choices: list[_Choice] = []
        self._pull: Pull | None = None
        self._unfinished = len(scripts)
        self._tokens = 0
        self._muted = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Head and role chunks go out at once, however long the request will wait (vLLM does so). Raises QueueFull or
        TooLong, with nothing written."""
        reply = self._reply
        broken = self._kind in _AFTER_TOKENS and self._fault is not None and self._fault.arg == 0
        if not broken and self._kind is not Kind.ROLE_WAIT:
            self._submit()
        reply.on_gone = self._gone
        if self._ask.stream:
            reply.on_resume = self._resume
            wrong = self._kind in (Kind.SHORT_LENGTH, Kind.LONG_LENGTH)
            self._out.start(SSE_HEADERS + self._extra, self._out.wrong_length(self._whole_size()) if wrong else None)
            if self._ask.chat:
                for script in self._scripts:
                    self._out.write(self._format.role(script))
        if broken:
            self._break()
        elif self._kind is Kind.ROLE_WAIT and self._fault is not None:
            self._timer = asyncio.get_running_loop().call_later(self._fault.arg, self._submit_late)

    def _submit_late(self) -> None:
        self._timer = None
        try:
            self._submit()
        except Refused:
            self.on_broken()

    def _submit(self) -> None:
        """Raises QueueFull or TooLong, with nothing submitted."""
        handovers, asked = self._handovers, self._ask.kv_transfer
        hold = remote = False
        if handovers is not None and asked:
            hold = asked.get("do_remote_decode") is True
            self._pull = handovers.pull(asked)
            remote = self._pull is not None
        for script in self._scripts:
            job = Job(
                max(1, script.prompt.tokens),
                script.length,
                priority=self._ask.priority,
                prefix=self._prefix(script),
                remote=remote,
                hold=hold and script.index == 0,
            )
            choice = _Choice(self, script, job, self._driver.now())
            try:
                self._driver.submit(choice)
            except Refused:
                for one in self._choices:
                    self._driver.cancel(one)
                raise
            self._choices.append(choice)
        for prompt in self._ask.prompts:
            prompt.pieces.clear()
        if self._pull is not None:
            self._pull.begin(sum(p.tokens for p in self._ask.prompts))

    def _prefix(self, script: Script) -> tuple[tuple[int, int], ...]:
        """The blocks of the prompt and of the answer, which is known already: a later turn finds both."""
        settings = self._driver.engine.settings
        if not settings.enable_prefix_caching:
            return ()
        answer = [] if script.calls else tokens.pieces(script.text)
        if len(answer) != script.length:
            answer = []
        return block_keys(script.prompt.pieces + answer, settings.block_size, (self._ask.model, self._ask.cache_salt))

    # --- the model's events ------------------------------------------------------------------------------------------

    def on_tokens(self, choice: _Choice, n: int, at: float) -> None:
        metrics = self.metrics
        metrics.generation_tokens += n
        if choice.due == 0:
            choice.first_at = at
            self._count_prompt(choice)
            metrics.ttft.observe(at - choice.submitted)
            metrics.prefill_time.observe(at - choice.started)
        else:
            metrics.itl.observe(at - choice.last_at)
        choice.last_at = at
        choice.due += n
        self._tokens += n
        self._record.tokens = self._tokens
        if choice.due == choice.script.length:
            self._unfinished -= 1
            self._measure(choice)
        if self._muted:
            return
        fault = self._fault
        if fault is not None and self._kind in _AFTER_TOKENS and self._tokens >= fault.arg:
            choice.due -= self._tokens - int(fault.arg)
            if self._ask.stream:
                self._flush(choice)
            self._break()
            return
        if self._ask.stream:
            self._flush(choice)
        if not self._unfinished:
            self._finish()

    def _count_prompt(self, choice: _Choice) -> None:
        metrics, n = self.metrics, choice.script.prompt.tokens
        metrics.prompt_tokens += n
        if choice.job.remote:
            metrics.transferred_tokens += n - 1
        else:
            metrics.cached_tokens += choice.job.cached_tokens
            metrics.request_computed.observe(n - choice.job.cached_tokens)

    def _cached(self) -> Cached | None:
        """Prompts are counted once each; what is created are full blocks (as vLLM 0.32 answers)."""
        if not self._details:
            return None
        settings = self._driver.engine.settings
        found = created = 0
        for choice in self._choices[:: self._ask.n]:
            n, job = choice.script.prompt.tokens, choice.job
            hit = n - 1 if job.remote else job.cached_tokens
            found += hit
            if settings.enable_prefix_caching and not job.remote:
                created += n // settings.block_size * settings.block_size - hit
        return Cached(found, created)

    def on_broken(self) -> None:
        self._leave("faulted")
        self._reply.abort()

    def _measure(self, choice: _Choice) -> None:
        metrics, script = self.metrics, choice.script
        n, end = script.length, choice.last_at
        decode = end - choice.first_at
        metrics.success["length" if script.finish == "length" else "stop"] += 1
        metrics.e2e.observe(end - choice.submitted)
        metrics.inference_time.observe(end - choice.started)
        metrics.decode_time.observe(decode)
        metrics.tpot.observe(decode / (n - 1) if n > 1 else 0.0)
        metrics.request_prompt.observe(script.prompt.tokens)
        metrics.request_generation.observe(n)
        metrics.params_max_tokens.observe(self._ask.max_tokens)
        metrics.params_n.observe(self._ask.n)
        metrics.request_preemptions.observe(choice.job.preempted)

    # --- writing -----------------------------------------------------------------------------------------------------

    def _flush(self, choice: _Choice) -> None:
        """What is due and not written. A client that does not take it costs no memory: it is made when it does."""
        reply = self._reply
        while choice.written < choice.due and not reply.paused:
            choice.written += 1
            chunk = self._chunk(choice.script, choice.written)
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
        for choice in self._choices:
            self._flush(choice)
        if not self._unfinished:
            self._finish()

    def _finish(self) -> None:
        if not self._ask.stream:
            body = answers.body(
                self._ask,
                self._scripts,
                self._id,
                self._created,
                usage=self._kind is not Kind.NO_USAGE,
                cached=self._cached(),
                kv_transfer=self._handed_over(),
            )
            self._out.whole(200, JSON_HEADERS + self._extra, body, self._finished)
            return
        if any(c.written < c.due for c in self._choices):
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

    def _handed_over(self) -> dict[str, Any] | None:
        job = self._choices[0].job
        if not job.hold or self._handovers is None:
            return None
        return self._handovers.offer(self._id, job)

    def _tail(self) -> bytes:
        usage = self._ask.include_usage and self._kind is not Kind.NO_USAGE
        return (
            self._format.usage(sum(s.length for s in self._scripts), self._cached()) if usage else b""
        ) + answers.DONE

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
        for choice in self._choices:
            self._driver.cancel(choice)
        if self._pull is not None:
            self._pull.end()

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
