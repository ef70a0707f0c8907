"""The limits of callers in the gateway: what a request holds before it is sent, and what becomes of it for that.

A request that is let through may be changed: its max_tokens set or lowered to what its caller may still spend, its
class lowered, another model asked. Each is said in a header.
"""

from __future__ import annotations

import asyncio
import logging
import os
from math import ceil
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from forebay.api import openai
from forebay.config.models import Class, Config
from forebay.gateway.bounds import (
    answers_of,
    asked_tier,
    bounded,
    defaults_for,
    end_user_of,
    most_of,
    says_most,
    without_own_bound,
)
from forebay.gateway.callers import Caller
from forebay.gateway.front import Front
from forebay.gateway.usage_limits import LimitUse, limits_of
from forebay.ledger import limit_words
from forebay.ledger.enginepricing import Dearest
from forebay.ledger.gates import Gate
from forebay.ledger.in_force import in_force
from forebay.ledger.limit_state import BadSnapshot, Carried, others, snapshot
from forebay.ledger.limits import Denied, Held, Limits
from forebay.ledger.rules import Rule
from forebay.state.messages import SetUse

if TYPE_CHECKING:
    from forebay.gateway.app import Gateway
    from forebay.gateway.exchange import Exchange
    from forebay.gateway.handles import Entry
    from forebay.wire.reply import Reply

log = logging.getLogger("forebay.worker")
_LARGEST_MOST: Final = openai.MOST_TOKENS


class Asked:
    """A request as its limits let it through."""

    __slots__ = ("body", "entry", "front", "held", "payload")

    def __init__(self, body: openai.AnyBody, entry: Entry, front: Front, payload: bytes, held: Held) -> None:
        self.body = body
        self.entry = entry
        self.front = front
        self.payload = payload
        self.held = held


class Holding:
    def __init__(self, gateway: Gateway, config: Config) -> None:
        self.limits = Limits(config.limits.end_users)
        self.currency = config.ledger.currency
        self._gateway = gateway
        self._stored = gateway.callers.rules
        self._carried: Carried | None = None
        self._carries = False
        self._told = asyncio.Event()
        self.version = 0
        """Changes with `budgets`."""
        self.budgets: tuple[tuple[Rule, ...], dict[str, float]] = ((), {})
        """Rules whose use the books know too, and since when each is counted here: Unix time, by `Rule.id`."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        self._quotas, self._zone = config.quotas, config.ledger.zone
        self._apply()

    def set_stored(self, rules: tuple[Rule, ...]) -> None:
        """Those of the database, beside the configuration's, or in the place of its of the same name."""
        self._stored = rules
        self._apply()

    def carry(self, path: Path) -> None:
        """Go on with what a worker before this one left in a file, once: a second time it would be out of date."""
        try:
            data = path.read_bytes()
            path.unlink()
            self._carried = Carried(data)
            self._carries = True
        except FileNotFoundError:
            return
        except (OSError, BadSnapshot) as e:
            log.warning("what was used of quotas is not known from the last life, and begins anew: %s: %s", path, e)
            return
        self._apply()

    def keep(self, path: Path) -> None:
        """For the worker after this one."""
        new = path.with_name(f"{path.name}.new")
        try:
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(snapshot(self.limits, monotonic(), time()))
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError as e:
            log.error("what was used of quotas cannot be kept for the next life: %s: %s", path, e.strerror)

    def _apply(self) -> None:
        self.limits.configure(in_force(self._quotas, self._zone, self._stored), monotonic(), time())
        if self._carried is not None:
            self._carried.take(self.limits, monotonic(), time())
        scopes = self.limits.scopes
        rules = tuple(rule for rule in scopes.rules.values() if rule.has_budget)
        budgets = (rules, {rule.id: scopes.since[rule.id] for rule in rules})
        if budgets != self.budgets:
            self.budgets = budgets
            self.version += 1

    def others(self, said: SetUse) -> None:
        """What others have used, this worker's earlier lives among them."""
        others(self.limits, said.uses, monotonic(), time())
        if said.complete:
            self._told.set()

    async def hear(self, within: float) -> None:
        """Returns when it is known what is left of budgets, or after `within` seconds."""
        if self._carries or not self.budgets[0]:
            return
        try:
            async with asyncio.timeout(within):
                await self._told.wait()
        except TimeoutError:
            log.warning(
                "what was used of budgets before this start is not known yet: the books have not said it within %g s; "
                "until then budgets begin at none",
                within,
            )

    def ask(self, reply: Reply, front: Front, body: openai.AnyBody, entry: Entry, payload: bytes, prompt: int) -> Asked:
        """Hold what it may use. Raises Refusal."""
        caller = front.caller
        assert caller is not None
        now, wall = monotonic(), time()
        limits, end_user = self.limits, end_user_of(body)
        most = entry.default_most if not says_most(body) else most_of(body)
        if most is not None:
            most = min(most, _LARGEST_MOST)
        elif not front.route.streams:
            most = 0  # embeddings have no answer of tokens
        payload = without_own_bound(payload)
        copies, tier = answers_of(body), asked_tier(body)
        found = self._hold(caller, entry, prompt, most, end_user, now, wall, copies, tier)
        if isinstance(found, Held) and found.degrade_model:
            cheaper = self._gateway.fleet.catalog.get(found.degrade_model)
            if cheaper is not None and cheaper.candidates and caller.may_use(cheaper.name):
                limits.release(found, now)
                warned = found
                entry = cheaper
                payload = openai.rewritten(payload, {"model": entry.target_json}, defaults_for(body, entry.defaults))
                found = self._hold(caller, entry, prompt, most, end_user, now, wall, copies, tier, degraded=True)
                if isinstance(found, Held):
                    found.warnings = tuple(dict.fromkeys((*warned.warnings, *found.warnings)))
                    found.degrade_class = warned.degrade_class
                    reply.extra += b"x-forebay-degraded: model=%b\r\n" % entry.name.encode()
        if isinstance(found, Denied):
            raise limit_words.refusal(found, entry.name, self.currency, now, wall)
        if found.max_tokens is not None and front.route.streams:
            body, payload = bounded(body, payload, found.max_tokens, entry.defaults)
        if found.degrade_class:
            lower = Class(found.degrade_class)
            if lower.rank > front.class_.rank:
                front = front.lowered(lower)
                reply.extra += b"x-forebay-degraded: class=%b\r\n" % lower.value.encode()
        reply.extra += limit_words.block(found, now, wall)
        return Asked(body, entry, front, payload, found)

    def _hold(
        self,
        caller: Caller,
        entry: Entry,
        prompt: int,
        most: int | None,
        end_user: str,
        now: float,
        wall: float,
        copies: int,
        tier: str,
        *,
        degraded: bool = False,
    ) -> Held | Denied:
        return self.limits.hold(
            self._gate(caller),
            entry.target,
            prompt,
            most,
            self._price(entry, wall, tier),
            end_user,
            now,
            wall,
            predicted=self._predicted(entry, caller, most, copies),
            copies=copies,
            degraded=degraded,
        )

    def _gate(self, caller: Caller) -> Gate:
        gate = caller.gate
        if gate is None:
            gate = caller.gate = self.limits.gate(caller.who())
        return gate

    def end(self, x: Exchange, tokens: int, cost: int | None) -> None:
        """It has ended, after so many tokens of all kinds: what it did not use goes back."""
        held = x.held
        if held is None:
            return
        now = monotonic()
        if x.attempts:
            self.limits.settle(held, tokens, cost, now)
        else:
            self.limits.release(held, now)

    def standing(self, caller: Caller) -> list[LimitUse]:
        """What each limit of a caller is at; without those of its end users."""
        now, wall = monotonic(), time()
        return limits_of(self.limits, self._gate(caller), now, wall)

    def _predicted(self, entry: Entry, caller: Caller, most: int | None, copies: int) -> int | None:
        """Tokens of all its answers, as admission predicts them."""
        admitting = self._gateway.admitting
        if admitting is None or (most is not None and (not most or not self.limits.scopes.predicts)):
            return None
        mean, _ = admitting.policy.lengths.residual((entry.target, caller.organisation), 0, most)
        return ceil(mean) * copies

    def _price(self, entry: Entry, at: float, tier: str) -> Dearest | None:
        booking = self._gateway.booking
        return booking.dearest(entry, at, tier) if booking is not None else None
