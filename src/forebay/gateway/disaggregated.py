"""Prefill on one engine, decode on another: which requests, and on which engines.

The engine that was chosen for a request (by admission, whose books hold its KV there, or in turn) is the one that
decodes. `policy.disaggregation` says whether another one computes the prompt; `legs.py` makes the two calls.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from forebay import errors
from forebay.api import openai
from forebay.config.disaggregation import Disaggregation as Section
from forebay.config.engine import Role
from forebay.counters import counters
from forebay.engines.handover import Handover, handover_of
from forebay.gateway.admitting import facts_of
from forebay.gateway.legs import Fields, Legs, Release
from forebay.gateway.prompt_cache import marked, told_of
from forebay.gateway.prompts import NOTHING, prompts_of
from forebay.gateway.roles import serves_alone
from forebay.gateway.tokens import Counted
from forebay.policy.disaggregation import Disaggregation, SplitRules, Whole

if TYPE_CHECKING:
    from forebay.gateway.app import Gateway
    from forebay.gateway.exchange import Exchange
    from forebay.gateway.handles import Handle

MOST_RELEASES: Final = 64
"""Under way at once; beyond it leases end by themselves."""
_OURS: Final = ("kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room")
"""Not the client's to set: they say which engine fetches memory from which."""
_PLAIN: Final = frozenset({b"null", b"false", b"0", b"1"})
_OF_THE_PROMPT: Final = ("echo", "prompt_logprobs", "best_of", "use_beam_search")
"""vLLM: what they ask for is made with the prompt, or of several sequences, and is no part of a handover."""

_fields: Final = msgspec.json.Decoder(Fields)


class Disaggregating:
    """Mutable state: the policy, the attempts in two calls that have no content yet, and the releases under way."""

    def __init__(self, section: Section, gateway: Gateway) -> None:
        self.policy = Disaggregation(rules_of(section))
        self.decisions = counters(
            "forebay_disaggregation", "Requests for models with prefill engines, by where the prompt went.", "prompt"
        )
        self.waiting: set[Legs] = set()
        self.releasing: set[Release] = set()
        self.gateway = gateway
        self.first_byte = gateway.config.timeouts.first_byte
        self._split, self._whole = self.decisions.series("prefill_engine"), self.decisions.series("whole")
        self._keys = 0
        self._ticking = False

    def configure(self, section: Section) -> None:
        self.policy.rules = rules_of(section)
        self.first_byte = self.gateway.config.timeouts.first_byte

    def begin(self, x: Exchange, decode: Handle, payload: bytes) -> bool:
        """Send an attempt, for a model with prefill or decode engines. False: nothing was done, it goes as it is."""
        body = x.body
        told = told_of(decode.config, decode.adapter.kind)
        if told is not None:
            payload = marked(told, body, payload, x.front.caller)
        cleaned = without_ours(payload) if isinstance(body, openai.Body) and body.says_where else payload
        protocol = handover_of(decode.adapter.kind)
        must = not serves_alone(decode)
        prefills = self._prefills(x, decode, protocol)
        if must and not prefills:
            x.broken(errors.no_engine(x.entry.name, "none of its prefill engines is left"))
            return True
        if prefills and x.front.route.streams and self._send(x, decode, cleaned, prefills, protocol, must=must):
            return True
        if cleaned is payload:
            return False
        x.send(decode, cleaned)
        return True

    def _prefills(self, x: Exchange, decode: Handle, protocol: Handover | None) -> dict[str, Handle]:
        """Those that could compute a prompt for it."""
        if protocol is None or decode.config.role is Role.PREFILL:
            return {}
        if protocol is Handover.BOOTSTRAP and decode.config.role is not Role.DECODE:
            return {}
        kind = decode.adapter.kind
        return {p.name: p for p in x.entry.prefills if p.adapter.kind == kind and not x.has_tried(p.name)}

    def _send(
        self,
        x: Exchange,
        decode: Handle,
        payload: bytes,
        prefills: dict[str, Handle],
        protocol: Handover | None,
        *,
        must: bool,
    ) -> bool:
        """True: it was sent, in two calls or as a whole that is kept in the books."""
        policy, now = self.policy, monotonic()
        for handle in (*prefills.values(), decode):
            if handle.name not in policy.books:
                self._known(handle)
        ask = x.ask
        counted: Counted = NOTHING
        if ask is not None:
            tokens = ask.prompt_tokens
        else:
            tokens, counted = self.gateway.tokens.of(x.entry.target, x.body)
        whole = self._whole_on(x, decode, tokens, now)
        fields: Fields | None = None
        split = None
        if must:
            split = policy.soonest(tokens, tuple(prefills), now, resting=True)
        elif x.attempts == 1 and _one_answer(x):
            split = policy.decide(
                decode.name,
                tokens,
                whole,
                tuple(prefills),
                now,
                cached=ask.cached.get(decode.name, 0) if ask is not None else 0,
                cached_at=ask.cached if ask is not None else None,
                step=decode.config.decode_step,
            )
        if split is not None:
            fields = _fields.decode(payload)
            if protocol is Handover.BOOTSTRAP:
                fields.pop("rid", None)  # SGLang refuses one that is in flight, be it another client's
            if not must and any(bytes(fields.get(f, b"null")) not in _PLAIN for f in _OF_THE_PROMPT):
                split = None
        self._keys += 1
        legs = Legs(self, x, decode, self._keys, tokens, counted, whole.decoding)
        if split is None or fields is None:
            self._whole.add()
            if ask is not None:
                return False  # admission's books have it
            x.legs = legs
            legs.go_whole(payload, whole.ttft)
            return True
        self._split.add()
        x.legs = legs
        if ask is not None and self.gateway.admitting is not None:
            self.gateway.admitting.split(x, split.prefill)
        legs.go(prefills[split.prefill], fields)
        self.watch(legs)
        return True

    def _whole_on(self, x: Exchange, decode: Handle, tokens: int, now: float) -> Whole:
        """What it would be to compute the prompt where it decodes."""
        ask = x.ask
        if ask is not None and ask.holder is not None:
            books = ask.holder
            ttft = books.ttft
            cached = ask.cached.get(decode.name, 0)
            own = ttft.ideal(tokens - cached, context_tokens=cached) * ttft.pace
            return Whole(ttft.expected(ask.key), own, books.decoding)
        book = self.policy.books[decode.name]
        return self.policy.whole(decode.name, tokens, now, decoding=max(0, decode.in_flight - 1 - len(book)))

    def _known(self, handle: Handle) -> None:
        policy, handles = self.policy, self.gateway.fleet.handles
        for name in [name for name in policy.books if name not in handles]:
            policy.engine_gone(name)
        policy.engine_here(handle.name, facts_of(handle).prefill)

    def learn(self, x: Exchange, counted: Counted) -> None:
        """What an engine counted of a prompt that was estimated here."""
        usage = x.usage
        if counted is not NOTHING and usage is not None and usage.prompt_tokens is not None and usage.prompt_tokens > 0:
            self.gateway.tokens.learn(x.entry.target, counted, usage.prompt_tokens)

    # --- time-outs ---------------------------------------------------------------------------------------------------

    def watch(self, legs: Legs) -> None:
        if not self._ticking:
            self._ticking = True
            self.gateway.ticker.add(self._sweep)
        self.waiting.add(legs)

    def _sweep(self, now: float) -> None:
        for legs in [legs for legs in self.waiting if legs.deadline < now]:
            legs.late()

    # --- held KV that no decode engine knows of ----------------------------------------------------------------------

    def release(self, x: Exchange, fields: Fields, kind: str, not_on: str) -> None:
        """Have a decode engine tell the prefill engine that its KV is not wanted. Without any, its lease ends it."""
        if len(self.releasing) >= MOST_RELEASES:
            return
        for handle in x.entry.engines:
            if (
                handle.healthy
                and handle.name != not_on
                and handle.config.role is not Role.PREFILL
                and handle.adapter.kind == kind
            ):
                Release(self, x, handle, fields)
                return

    def __repr__(self) -> str:
        return f"<Disaggregating {len(self.waiting)} without content, {self.policy!r}>"


def rules_of(section: Section) -> SplitRules:
    """What the configuration says, as the policy has it."""
    return SplitRules(
        least_tokens=section.least_tokens,
        weight=section.weight,
        longest=section.longest,
        latency=section.transfer_latency,
        per_token=section.transfer_seconds_per_token,
    )


def without_ours(payload: bytes) -> bytes:
    """A request's body without the fields by which engines find each other's memory."""
    fields: Fields = _fields.decode(payload)
    return msgspec.json.encode({k: v for k, v in fields.items() if k not in _OURS})


def _one_answer(x: Exchange) -> bool:
    return x.body.n in (None, 1) and prompts_of(x.body) == 1
