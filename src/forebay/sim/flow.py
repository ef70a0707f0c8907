"""One generating request from its submission to its last byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from forebay.sim import tokens
from forebay.sim.answers import Prepared, Told
from forebay.sim.asks import Generation
from forebay.sim.blocks import block_keys
from forebay.sim.checks import Rejected
from forebay.sim.driver import Follower
from forebay.sim.faults import Books, Fault, Kind, Record
from forebay.sim.faulty import Out, bent_tool_delta, reset
from forebay.sim.gates import Gate
from forebay.sim.jobs import Job, Refused, State
from forebay.sim.script import Script
from forebay.wire.reply import Reply

if TYPE_CHECKING:
    from forebay.sim.faces.base import Face

_TOOL_KINDS: Final = frozenset({Kind.TOOL_WHOLE, Kind.TOOL_NO_ID, Kind.TOOL_EMPTY, Kind.TOOL_FINISH})
_AFTER_TOKENS: Final = frozenset({Kind.STALL_AFTER, Kind.CUT, Kind.RESET_AFTER, Kind.ERROR_EVENT})
_LENGTHS: Final = frozenset({Kind.SHORT_LENGTH, Kind.LONG_LENGTH})


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
        self.flow.tally.queue_time.observe(at - self.submitted)

    def on_tokens(self, n: int, at: float) -> None:
        self.flow.on_tokens(self, min(n, self.script.length - self.due), at)

    def on_broken(self) -> None:
        self.flow.on_broken()


class Flow:
    """Mutable state: its choices in the model, how far each is written, and its record, closed exactly once."""

    def __init__(
        self,
        face: Face,
        ask: Generation,
        scripts: list[Script],
        reply: Reply,
        record: Record,
        *,
        prepared: Prepared,
        fault: Fault | None,
        books: Books,
    ) -> None:
        self.face = face
        self.ask = ask
        self._scripts = scripts
        self._reply = reply
        self._record = record
        self._fault = fault
        self._kind = fault.kind if fault is not None else None
        self._driver = face.house.driver
        self.tally = face.house.tally
        self._books = books
        self.answer = face.answer(ask, scripts, prepared)
        self._loop = asyncio.get_running_loop()
        self._out = Out(reply, fault, self._loop)
        self._gate = face.gate(ask) or Gate()
        self._choices: list[_Choice] = []
        self._unfinished = len(scripts)
        self._tokens = 0
        self._muted = False
        self._opened = False
        self._deserted = False
        self._told_role = False
        self._spoke_at = 0.0
        self.begun = self._driver.now()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.then: Callable[[], None] | None = None
        """Called when it has ended."""

    @property
    def opened(self) -> bool:
        """The head of the answer has been sent."""
        return self._opened

    @property
    def deserted(self) -> bool:
        """The client has left, and the engine does not know yet."""
        return self._deserted

    @property
    def waiting(self) -> bool:
        """No token of it has been worked on."""
        return all(c.job.state is State.WAITING and c.job.scheduled_at < 0 for c in self._choices)

    @property
    def tokens(self) -> int:
        """Generated so far, by all choices."""
        return self._tokens

    def begin(self) -> None:
        """Raises QueueFull or TooLong, with nothing written."""
        reply = self._reply
        broken = self._kind in _AFTER_TOKENS and self._fault is not None and self._fault.arg == 0
        late = self._kind is Kind.ROLE_WAIT
        if not broken and not late and self._gate.start(self._submit_late, self.fail):
            try:
                self._submit()
            except Refused:
                self._gate.refused()
                raise
        self.face.house.live[self] = None
        self.face.on_begun(self)
        reply.on_gone = self._gone
        if self.ask.stream:
            reply.on_resume = self._resume
            if self.face.head_early or late:
                self._open(role=self.face.role_early or late)
        if broken:
            self._break()
        elif late and self._fault is not None:
            self._later("role", self._fault.arg, self._role_waited)

    def _open(self, *, role: bool) -> None:
        """Send the head, and the chunks with the roles, unless they are sent."""
        if not self._opened:
            self._opened = True
            wrong = self._kind in _LENGTHS
            length = self._out.wrong_length(self._whole_size()) if wrong else None
            self._out.start(self.answer.stream_head(), length)
            if self.face.ping is not None:
                self._later("ping", self.face.later(self.face.ping[0]), self._ping)
        if role and not self._told_role:
            self._told_role = True
            for script in self._scripts:
                self._write(self.answer.role(script))

    def _write(self, data: bytes) -> None:
        if data:
            self._spoke_at = self._loop.time()
            self._out.write(data)

    def _ping(self) -> None:
        if self.face.ping is None or self._out.paced or self._muted:
            return
        every, words = self.face.later(self.face.ping[0]), self.face.ping[1]
        quiet = self._loop.time() - self._spoke_at
        if quiet >= every:
            self._write(words)
            quiet = 0.0
        self._later("ping", every - quiet, self._ping)

    def _later(self, name: str, seconds: float, call: Any) -> None:
        timer = self._timers.get(name)
        if timer is not None:
            timer.cancel()
        self._timers[name] = self._loop.call_later(seconds, call)

    def _role_waited(self) -> None:
        if self._gate.start(self._submit_late, self.fail):
            self._submit_late()

    def _submit_late(self) -> None:
        try:
            self._submit()
        except Refused:
            self.on_broken()

    def _submit(self) -> None:
        """Raises QueueFull or TooLong, with nothing submitted."""
        gate = self._gate
        for script in self._scripts:
            job = Job(
                max(1, script.prompt.tokens),
                script.length,
                priority=self.ask.priority,
                prefix=self._prefix(script),
                remote=gate.remote,
                hold=gate.hold and script.index == 0,
            )
            choice = _Choice(self, script, job, self._driver.now())
            try:
                self._driver.submit(choice)
            except Refused:
                for one in self._choices:
                    self._driver.cancel(one)
                raise
            self._choices.append(choice)
        for prompt in self.ask.prompts:
            prompt.pieces.clear()
        gate.submitted(sum(p.tokens for p in self.ask.prompts))

    def _prefix(self, script: Script) -> tuple[tuple[int, int], ...]:
        """The blocks of the prompt and of the answer, which is known already: a later turn finds both."""
        settings = self._driver.engine.settings
        if not settings.enable_prefix_caching:
            return ()
        answer = [] if script.calls else tokens.pieces(script.text)
        if len(answer) != script.length:
            answer = []
        content = script.prompt.pieces + answer
        keys = block_keys(content, settings.block_size, (self.ask.model, self.ask.cache_salt))
        events = self.face.house.events
        if events is not None:
            events.learn(self, [key for key, _ in keys], content)
        return keys

    # --- the model's events ------------------------------------------------------------------------------------------

    def on_tokens(self, choice: _Choice, n: int, at: float) -> None:
        tally = self.tally
        tally.generation_tokens += n
        if choice.due == 0:
            choice.first_at = at
            self._count_prompt(choice)
            tally.ttft.observe(at - choice.submitted)
            tally.prefill_time.observe(at - choice.started)
        else:
            tally.itl.observe(at - choice.last_at)
        choice.last_at = at
        choice.due += n
        self._tokens += n
        self._record.tokens = self._tokens
        if choice.due == choice.script.length:
            self._unfinished -= 1
            self._measure(choice)
        if self._muted:
            return
        self.face.on_progress(self, self._tokens, self.ask.stream or not self._unfinished)
        if self._deserted:
            if not self._unfinished:
                self._leave("finished")
            return
        fault = self._fault
        if fault is not None and self._kind in _AFTER_TOKENS and self._tokens >= fault.arg:
            choice.due -= self._tokens - int(fault.arg)
            if self.ask.stream:
                self._flush(choice)
            self._break()
            return
        if self.ask.stream:
            self._flush(choice)
        if not self._unfinished:
            self._ended()

    def _count_prompt(self, choice: _Choice) -> None:
        tally, n = self.tally, choice.script.prompt.tokens
        tally.prompt_tokens += n
        if choice.job.remote:
            tally.transferred_tokens += n - 1
        else:
            tally.cached_tokens += choice.job.cached_tokens
            tally.request_computed.observe(n - choice.job.cached_tokens)

    def _told(self) -> Told:
        """Prompts are counted once each; what is kept are full blocks (as vLLM 0.32 answers)."""
        settings = self._driver.engine.settings
        found = kept = 0
        for choice in self._choices[:: self.ask.n]:
            n, job = choice.script.prompt.tokens, choice.job
            hit = n - 1 if job.remote else job.cached_tokens
            found += hit
            if settings.enable_prefix_caching and not job.remote:
                kept += n // settings.block_size * settings.block_size - hit
        if not self._choices or self._kind in _LENGTHS:  # the length was counted before the end was known
            return Told(found, kept)
        one = self._choices[0]
        return Told(found, kept, one.submitted, one.started, one.first_at, one.last_at)

    def on_broken(self) -> None:
        self._leave("faulted")
        self._reply.abort()

    def _measure(self, choice: _Choice) -> None:
        tally, script = self.tally, choice.script
        n, end = script.length, choice.last_at
        decode = end - choice.first_at
        tally.success["length" if script.finish == "length" else "stop"] += 1
        tally.e2e.observe(end - choice.submitted)
        tally.inference_time.observe(end - choice.started)
        tally.decode_time.observe(decode)
        tally.tpot.observe(decode / (n - 1) if n > 1 else 0.0)
        tally.request_prompt.observe(script.prompt.tokens)
        tally.request_generation.observe(n)
        tally.params_max_tokens.observe(self.ask.max_tokens)
        tally.params_n.observe(self.ask.n)
        tally.request_preemptions.observe(choice.job.preempted)
        tally.longest = max(tally.longest, script.prompt.tokens + n)

    # --- writing -----------------------------------------------------------------------------------------------------

    def _flush(self, choice: _Choice) -> None:
        """What is due and not written. A client that does not take it costs no memory: it is made when it does."""
        reply = self._reply
        if not self._told_role:
            self._open(role=True)
        while choice.written < choice.due and not reply.paused:
            choice.written += 1
            self._write(self._chunk(choice.script, choice.written))

    def _chunk(self, script: Script, n: int) -> bytes:
        closing = script.index == len(self._scripts) - 1 and n == script.length
        if self._kind in _TOOL_KINDS and script.calls:
            delta = bent_tool_delta(self._kind, script, n)
            if delta is None:
                return b""
            return self.answer.raw_delta(script, n, delta, last=n == script.length, closing=closing)
        return self.answer.token(script, n, closing=closing)

    def _resume(self) -> None:
        if self._muted:
            return
        for choice in self._choices:
            self._flush(choice)
        if not self._unfinished:
            self._ended()

    def _ended(self) -> None:
        """The model has done its part."""
        if self.ask.stream and any(c.written < c.due for c in self._choices):
            return  # the client is behind; _resume comes back here
        self._reply.on_resume = None
        if self._choices:
            self._gate.finished(self._choices[0].job, self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        if self._muted:
            return
        if self._deserted:
            self._leave("finished")
            return
        answer, told, usage = self.answer, self._told(), self._kind is not Kind.NO_USAGE
        if not self.ask.stream:
            handed = self._gate.handed_over(self._choices[0].job, answer.id) if self._choices else None
            body = answer.body(told, usage=usage, kv_transfer=handed)
            self._out.whole(200, answer.whole_head(told), body, self._finished)
            return
        self._write(answer.tail(told, usage=usage))
        if self._kind is Kind.AFTER_DONE and self._fault is not None:
            script = self._scripts[0]
            for _ in range(int(self._fault.arg)):
                self._write(answer.token(script, 1, closing=False))
        if self._out.paced:
            self._out.end(self._finished)
            return
        self._finished()
        if self._kind in _LENGTHS:
            self._out.end_wrong_length()
        else:
            self._out.end()

    def _whole_size(self) -> int:
        size = len(self.answer.tail(self._told(), usage=self._kind is not Kind.NO_USAGE))
        for script in self._scripts:
            size += len(self.answer.role(script))
            size += sum(len(self._chunk(script, n)) for n in range(1, script.length + 1))
        return size

    # --- ends that are not the good one ------------------------------------------------------------------------------

    def _break(self) -> None:
        """The fault's time has come."""
        kind = self._kind
        self._muted = True
        if self.ask.stream:
            self._open(role=True)
        elif kind is not Kind.ERROR_EVENT:
            whole = self.answer.body(self._told(), usage=True)
            self._reply.start(200, self.answer.whole_head(self._told()), len(whole))
            self._reply.write(whole[: len(whole) // 2])
        if kind is Kind.STALL_AFTER:
            return  # silence, with the slot held, until the client leaves
        if kind is Kind.ERROR_EVENT:
            self.fail(self.face.died())
            return
        self._leave("faulted")
        if kind is Kind.CUT:
            self._reply.abort()
        else:
            reset(self._reply)

    def fail(self, e: Rejected) -> None:
        """End it with this error, however far it is."""
        how = "rejected" if e.status < 500 or e.status == 503 else "faulted"
        if not self._leave(how):
            return
        if self.ask.stream and (self._opened or e.late):
            self._open(role=False)
            data = self.answer.error_event(e)
            if not data:
                self._reply.abort()
                return
            self._reply.write(data)
            self._reply.end()
        else:
            self._reply.send(*self.face.error(e))

    def cut_short(self, finish: str) -> None:
        """The engine ends it where it is, which is no error."""
        if self._muted or self._deserted:
            return
        due = {c.script.index: c.due for c in self._choices}
        for choice in self._choices:
            self._driver.cancel(choice)
        for script in self._scripts:
            n = due.get(script.index, 0)
            if n < script.length:
                script.finish, script.stopped_by = finish, None
                del script.pieces[n:]
                script.calls = []
        self._unfinished = 0
        if self.ask.stream:
            self._open(role=True)
            for choice in self._choices:
                self._flush(choice)
            if any(c.written < c.due for c in self._choices):
                return
        self._finish()

    def desert(self, seconds: float | None) -> None:
        """The client has left, which the engine notices in so many seconds of the wall, if the request is not done;
        None: the face will say when."""
        self._deserted = True
        if seconds is not None:
            self._later("gone", seconds, self.abandon)

    def abandon(self) -> None:
        """The engine knows that the client has left."""
        if self._leave("aborted"):
            self.tally.aborted += 1

    def _finished(self) -> None:
        self._leave("finished")

    def _gone(self) -> None:
        if self._muted:
            self.abandon()
        else:
            self.face.on_gone(self)

    def _leave(self, how: str) -> bool:
        """Give back whatever is still held and close the record. False where that is done already."""
        if not self._books.close(self._record, how, self._driver.now()):
            return False
        self._muted = True
        if how != "finished":
            self._out.stop()
        for timer in self._timers.values():
            timer.cancel()
        for choice in self._choices:
            self._driver.cancel(choice)
        self._gate.leave()
        house = self.face.house
        house.live.pop(self, None)
        if house.events is not None:
            house.events.forget(self)
        self.face.on_ended(self)
        if self.then is not None:
            self.then()
        return True

    def __repr__(self) -> str:
        return f"<Flow {self.answer.id} {self._tokens} tokens, {self._unfinished} choices open>"
