"""Admission in the gateway: tells `policy.admission` what happens, and wakes whom it lets go.

One timer, set for what the policy wants next; nothing polls. Mutable state: the policy, where those who wait stood at
first by the policy's key, and which engines it knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from math import inf
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from forebay import errors
from forebay.api.counts import MOST_TOKENS, cached_of
from forebay.api.openai import CompletionBody
from forebay.config.admission import Admission as Section
from forebay.config.models import Class
from forebay.config.placement import Placement as Placing
from forebay.config.placement import PlacementKind
from forebay.counters import counters
from forebay.errors import Outcome, Refusal
from forebay.gateway.admission_view import ShedLog
from forebay.gateway.explaining import AT_ONCE, Place, explain
from forebay.gateway.prefixes import Prefixes
from forebay.gateway.prompts import NOTHING, prompts_of
from forebay.gateway.tokens import TokenEstimates
from forebay.policy.admission import DEADLINE, Admission
from forebay.policy.asks import Ask, Stage
from forebay.policy.decisions import Admit, Decision, Refuse, Wait
from forebay.policy.facts import Facts, Report
from forebay.policy.prior import PrefillPrior
from forebay.policy.rules import PlacementRules, QueueRules, Rules, ScaleRules, ShedRules

if TYPE_CHECKING:
    from forebay.gateway.exchange import Exchange
    from forebay.gateway.handles import Handle
    from forebay.gateway.kv_events import KvFeeds

_DEFAULT: Final = Placing()
_BEST: Final = PlacementKind.BEST
_OK: Final = Outcome.OK  # reading a member off an Enum class is slow
_WAITING: Final = Stage.WAITING
REASONS: Final = MappingProxyType(
    {
        "slo": "The first token could not come in time: too much prefill is ahead of it",
        "deadline_passed": "No time is left for another try",
        "shed_kv": "The engines' KV caches are nearly full",
        "shed_preempting": "The engines are preempting requests",
        "queue_full": "The queue is full",
        "queue_held_back": "The rest of the queue is kept for better classes",
        "queue_class_full": "The class's part of the queue is full",
        "evicted": "Its place in the queue went to a request of a better class, or of a tenant with fewer",
        "reload": "The queue became smaller",
    }
)
"""Why admission refuses, by code; whoever waited too long is told by `errors.waited_too_long`."""


def rules_of(section: Section, placing: Placing = _DEFAULT) -> Rules:
    """What the configuration says, as the policy has it. Raises ValueError."""
    ttft, wait, ceilings, queue = section.ttft, section.wait, section.ceilings, section.queue
    shed, scale = section.shed, section.scale
    return Rules(
        gated=section.enabled,
        placement=placement_rules(placing),
        ttft={Class.VIP: ttft.vip, Class.NORMAL: ttft.normal, Class.LOW: ttft.low},
        ttft_multiple=section.ttft_multiple,
        tpot=section.tpot if section.tpot is not None else float("inf"),
        wait={Class.VIP: wait.vip, Class.NORMAL: wait.normal, Class.LOW: wait.low},
        ceilings={Class.VIP: ceilings.vip, Class.NORMAL: ceilings.normal, Class.LOW: ceilings.low},
        queue=QueueRules(
            requests=queue.requests,
            tokens=queue.tokens,
            normal_share=queue.normal_share,
            low_share=queue.low_share,
            low_starvation_s=queue.low_starvation,
            starved_share=queue.starved_share,
        ),
        shed=ShedRules(shed_at=shed.at, resume_at=shed.resume),
        scale=ScaleRules(
            every_s=scale.every,
            up=scale.up,
            down=scale.down,
            least=scale.least,
            most=scale.most,
            up_over=scale.up_over,
            down_under=scale.down_under,
            target=scale.target,
            settle_s=scale.settle,
            least_replicas=scale.least_replicas,
            most_replicas=scale.most_replicas,
        ),
    )


def placement_rules(section: Placing) -> PlacementRules:
    return PlacementRules(
        interference=section.interference,
        balance=section.balance,
        recompute=section.recompute,
        late=section.late,
        price=section.price,
        zone=section.zone or "",
        zone_penalty=section.zone_penalty,
        adapter_load=section.adapter_load,
        affinity=section.session_weight,
        index_bytes=section.index_bytes,
    )


class Admitting:
    def __init__(
        self,
        section: Section,
        loop: asyncio.AbstractEventLoop,
        policy: Admission | None = None,
        placing: Placing = _DEFAULT,
        eased: AbstractSet[str] = frozenset(),
        tokens: TokenEstimates | None = None,
    ) -> None:
        """`policy`: one that has these rules already. `eased`: names of engines that are to get less than their share
        now, as they come and go. `tokens`: where prompts are counted elsewhere, too."""
        self.policy = policy or Admission(rules_of(section, placing), {})
        self.gated = section.enabled
        """Whether requests wait and are refused; else they are only placed."""
        self.places = placing.policy is _BEST
        """Whether they are placed where nothing is gated; else they go in turn, and engines are watched all the same,
        so that a reload can change it."""
        self.prefixes = Prefixes(placing)
        self._eased = eased
        self.decisions = counters("forebay_admission", "Decisions over requests.", "class", "decision")
        self.prompt_tokens = counters(
            "forebay_placed_prompt_tokens",
            "Prompt tokens of placed requests: all as estimated, those believed to be cached on their engine, those "
            "that engines said were cached.",
            "tokens",
        )
        self._placed, self._believed, self._cached = (
            self.prompt_tokens.series(name) for name in ("all", "believed_cached", "cached")
        )
        self._admits = {cls: self.decisions.series(cls.value, "admit") for cls in Class}
        self.tokens = tokens or TokenEstimates()
        self._loop = loop
        self._keys = 0
        self._waiting: dict[int, Place] = {}
        self._streams: dict[int, Exchange] = {}
        self._handles: dict[str, Handle] = {}
        self._restarts: dict[str, int] = {}
        self._shed_log = ShedLog()
        self._timer: asyncio.TimerHandle | None = None
        self.feeds: KvFeeds | None = None
        """KV events, where an engine publishes them."""
        self._due = 0.0

    # --- a request ---------------------------------------------------------------------------------------------------

    def begin(self, x: Exchange, engines: tuple[str, ...]) -> None:
        """Decide over an attempt: dispatches it, refuses it, or lets it wait. `engines`: those it may go to."""
        now = monotonic()
        body, front, model = x.body, x.front, x.entry.target
        tokens = x.prompt()
        n = body.n
        if n is None or n < 1:
            n = 1
        prompts = prompts_of(body) if isinstance(body, CompletionBody) else 1
        if prompts > 1:
            tokens = -(-tokens // prompts)
        if n > 1 or prompts > 1:
            n = min(prompts * n, self._widest(engines))
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        if most is None or most <= 0:
            most = x.entry.default_most
        if most is not None and most > MOST_TOKENS:
            most = MOST_TOKENS
        self._keys += 1
        caller = front.caller
        tenant = caller.organisation if caller is not None else ""
        numbers, blocks = self.prefixes.of(body, model, tenant)
        x.ask = ask = Ask(
            self._keys,
            prompt_tokens=tokens,
            arrival=x.received_at,
            cls=front.class_,
            tenant=tenant,
            model=model,
            max_tokens=most,
            n=n,
            engines=engines,
            anonymous=caller is None or caller.key_id == "anonymous",
            streams=x.stream,
            prefix=numbers,
            block_tokens=tokens / blocks if numbers else 0.0,
            session=front.session,
            tag=x,
        )
        if self._eased:
            self._ease(now)
        decision = self.policy.offer(ask, now)
        if type(decision) is Admit:
            self._admits[front.class_].add()
            if front.explains:
                explain(x.reply, now - ask.arrival + decision.bound, AT_ONCE, now)
            self._dispatch(x, ask, decision.engine, now)
        else:
            self._carry_out(x, ask, decision, now)
        if self.policy.next_due() < inf:
            self._arm(now)

    def first_content(self, x: Exchange, now: float) -> None:
        ask = x.ask
        if ask is not None:
            self.policy.on_first_token(ask, now)
            if self.feeds is not None:
                self.feeds.first_token(ask.engine, ask.key, now)
            if x.stream:
                self._streams[ask.key] = x
            self._arm(now)

    def split(self, x: Exchange, prefill: str) -> None:
        """That engine computes its prompt."""
        if x.ask is not None:
            now = monotonic()
            self.policy.on_split(x.ask, prefill, now)
            self._arm(now)

    def end(self, x: Exchange) -> None:
        """The attempt is over, in whatever way."""
        ask, x.ask = x.ask, None
        if ask is None:
            return
        ask.tag = None
        now = monotonic()
        if x.stream:
            self._streams.pop(ask.key, None)
        if self._waiting:  # also one that was put out, and left before it was told
            self._waiting.pop(ask.key, None)
        usage = x.usage
        tokens = x.events // ask.n
        if usage is not None:
            if usage.completion_tokens:
                tokens = max(1, usage.completion_tokens // ask.n)
            if usage.prompt_tokens is not None and usage.prompt_tokens > 0:
                self.tokens.learn(ask.model, x.counted, usage.prompt_tokens)
                x.counted = NOTHING
        cached = cached_of(usage) if usage is not None else None
        if ask.engine:
            self._placed.value += ask.prompt_tokens
            x.believed = ask.cached.get(ask.engine, 0)
            self._believed.value += x.believed
            self._cached.value += cached or 0
        if self.feeds is not None:
            prompt = usage.prompt_tokens if usage is not None and x.outcome is _OK else None
            self.feeds.ended(ask.engine, ask.key, prompt, cached, now)
        self.policy.on_end(ask, now, tokens=tokens, whole=x.outcome is _OK, cached_tokens=cached)
        if self.policy.next_due() < inf:
            self._arm(now)

    # --- engines -----------------------------------------------------------------------------------------------------

    def sync(self, handles: Iterable[Handle]) -> None:
        """The engines that take requests, as they are now."""
        now = monotonic()
        healthy = {h.name: h for h in handles if h.usable}
        for name in [n for n, h in self._handles.items() if healthy.get(n) is not h]:
            del self._handles[name], self._restarts[name]
            self._shed_log.forget(name)
            self.policy.engine_gone(name, now)
        for name, handle in healthy.items():
            if name not in self._handles:
                self._handles[name] = handle
                self._restarts[name] = handle.look.restarts
                self.policy.engine_here(name, facts_of(handle), now)
        self._arm(now)

    def reported(self, handle: Handle) -> None:
        """A scrape came, or failed: then its report says nothing."""
        now = monotonic()
        r = handle.report
        counts = {
            key: x.events // ask.n
            for key, x in self._streams.items()
            if x.engine == handle.name and (ask := x.ask) is not None
        }
        if counts:
            self.policy.on_tokens(counts, now)
        self.policy.on_report(
            handle.name,
            Report(
                kv_used=r.kv_usage,
                kv_tokens=handle.config.kv_tokens or r.kv_capacity_tokens,
                preemptions=r.preemptions,
                adapters=r.loras,
                share=handle.share(now),
            ),
            now,
        )
        if self._restarts.get(handle.name, handle.look.restarts) != handle.look.restarts:
            self._restarts[handle.name] = handle.look.restarts
            self.policy.cache_cleared(handle.name, now)
        books = self.policy.books.get(handle.name)
        if books is not None:
            self._shed_log.look(handle.name, books.shed, now)
        self._arm(now)

    def configure(self, section: Section, placing: Placing) -> None:
        """A reload: those who wait are judged anew."""
        now = monotonic()
        self.gated = section.enabled
        self.places = placing.policy is _BEST
        self.prefixes.configure(placing)
        self._tell(self.policy.configure(rules_of(section, placing), now), now)
        self._arm(now)

    def close(self) -> None:
        self.tokens.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- inside ------------------------------------------------------------------------------------------------------

    def _ease(self, now: float) -> None:
        """What an engine is to be spared counts from now on, not from its next report on."""
        for name in self._eased:
            handle = self._handles.get(name)
            if handle is not None:
                self.policy.ease(name, handle.share(now), now)

    def _carry_out(self, x: Exchange, ask: Ask, decision: Decision, now: float) -> None:
        cls = ask.cls.value
        place = self._waiting.pop(ask.key, None)
        if isinstance(decision, Admit):
            self.decisions.series(cls, "admit").add()
            if x.front.explains:
                explain(x.reply, now - ask.arrival + decision.bound, place, now)
            self._dispatch(x, ask, decision.engine, now)
        elif isinstance(decision, Wait):
            self.decisions.series(cls, "wait").add()
            self._waiting[ask.key] = Place(decision.position, now, now - ask.arrival + decision.expected)
            x.queued()
        else:
            self.decisions.series(cls, decision.reason).add()
            if x.front.explains:
                expected = place.expected if place is not None else now - ask.arrival + decision.expected
                explain(x.reply, expected, place, now)
            if decision.reason == DEADLINE:
                x.refuse(errors.waited_too_long(self.policy.rules.wait[ask.cls], decision.retry_after))
            else:
                x.refuse(_refusal(decision, x.entry.name))

    def _dispatch(self, x: Exchange, ask: Ask, engine: str, now: float) -> None:
        if self.feeds is not None and ask.prefix:
            self.feeds.sent(engine, ask.key, ask.prefix, now)
        x.dispatch(engine)

    def _widest(self, engines: tuple[str, ...]) -> int:
        """Sequences that the largest of the engines runs at once. It takes more answers than that in turns."""
        handles = self._handles
        return max((handles[name].config.max_num_seqs for name in engines if name in handles), default=1)

    def _tell(self, found: Iterable[tuple[Ask, Decision]], now: float) -> None:
        for ask, decision in found:
            x: Exchange | None = ask.tag
            if x is not None and x.ask is ask:
                try:
                    self._carry_out(x, ask, decision, now)
                except Exception as e:  # the others are to hear theirs
                    x.fell(e)

    def _wake(self) -> None:
        self._timer = None
        now = monotonic()
        self._tell(self.policy.due(now), now)
        self._arm(now)

    def _arm(self, now: float) -> None:
        due = self.policy.next_due()
        if due == inf:
            return
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(max(0.0, due - now), self._wake)

    def __repr__(self) -> str:
        return f"<Admitting {len(self._waiting)} waiting, {self.policy!r}>"


def facts_of(handle: Handle) -> Facts:
    config, report = handle.config, handle.report
    most = min(config.max_num_seqs, report.max_num_seqs or config.max_num_seqs)
    token = 1 / config.prefill_tokens_per_s
    prior = PrefillPrior(
        base_s=config.decode_step,
        per_token_s=token,
        per_token_context_s=0.0,
        decode_step_s=config.decode_step,
        per_sequence_s=0.0,
        budget_tokens=config.max_num_batched_tokens,
    )
    return Facts(
        kv_tokens=config.kv_tokens or report.kv_capacity_tokens,
        block_size=report.block_size or 16,
        max_num_seqs=most,
        concurrency=None if config.concurrency is None else min(config.concurrency, most),
        prefill=prior,
        cost=config.cost,
        zone=config.zone or "",
    )


def _refusal(decision: Refuse, model: str) -> Refusal:
    if decision.reason == "no_engine":
        return errors.no_engine(model, "none of its engines is healthy")
    if decision.reason == "too_long":
        return errors.bad_request(
            "The prompt is longer than the KV cache of any engine of this model holds for this class.",
            code="context_length_exceeded",
        )
    return errors.overloaded(decision.reason, f"{REASONS[decision.reason]}.", decision.retry_after)
