"""Admission as the gateway drives it, where real sockets would need luck."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.pure import pure

from forebay.api.openai import ChatBody
from forebay.config.admission import Admission as Section
from forebay.config.engine import Engine
from forebay.config.models import Class
from forebay.engines.base import EngineReport
from forebay.errors import Outcome
from forebay.gateway.prompts import NOTHING
from forebay.policy.admission import Admission
from forebay.policy.facts import Facts
from forebay.policy.prior import PrefillPrior

if TYPE_CHECKING:
    from forebay.gateway.admitting import Admitting, facts_of, rules_of
else:
    _module = pure("forebay.gateway.admitting")
    Admitting, facts_of, rules_of = _module.Admitting, _module.facts_of, _module.rules_of


class Exchange:
    """One that keeps what it is told."""

    def __init__(self, class_: Class, now: float) -> None:
        self.body = ChatBody(messages=b"[]")  # type: ignore[arg-type]
        self.front = SimpleNamespace(class_=class_, caller=None, explains=False, session=0)
        self.entry = SimpleNamespace(name="m", target="m", defaults={}, default_most=None)
        self.stream = True
        self.received_at = now
        self.counted, self.usage, self.events, self.outcome = NOTHING, None, 0, Outcome.CLIENT_GONE
        self.ask: Any = None
        self.told: list[str] = []

    def prompt(self) -> int:
        return 1

    def dispatch(self, name: str) -> None:
        self.told.append(name)

    def queued(self) -> None:
        self.told.append("queued")

    def refuse(self, refusal: Any) -> None:
        self.told.append(refusal.code)


def test_one_that_leaves_between_its_eviction_and_the_word_of_it_is_forgotten() -> None:
    async def scenario() -> Admitting:
        loop = asyncio.get_running_loop()
        section = Section.model_validate(
            {"enabled": True, "queue": {"requests": 1, "low_share": 1.0, "normal_share": 1.0}}
        )
        prior = PrefillPrior(
            base_s=0.02, per_token_s=1e-4, per_token_context_s=0.0, decode_step_s=0.02, per_sequence_s=0.0
        )
        policy = Admission(rules_of(section), {"e": Facts(kv_tokens=10_000, max_num_seqs=1, prefill=prior)})
        admitting = Admitting(section, loop, policy)
        made = [Exchange(c, loop.time()) for c in (Class.VIP, Class.LOW, Class.VIP)]
        for x in made:
            admitting.begin(x, ("e",))  # type: ignore[arg-type]
        assert [x.told for x in made] == [["e"], ["queued"], ["queued"]]
        for x in made:
            admitting.end(x)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        admitting.close()
        return admitting

    assert asyncio.run(scenario())._waiting == {}


def test_no_more_sequences_than_the_engine_says_it_runs() -> None:
    def most(concurrency: int | None, told: int | None) -> tuple[int, int | None]:
        config = Engine.model_validate({"name": "e", "url": "http://e", "max_num_seqs": 64, "concurrency": concurrency})
        facts = facts_of(SimpleNamespace(config=config, report=EngineReport(max_num_seqs=told)))  # type: ignore[arg-type]
        return facts.max_num_seqs, facts.concurrency

    assert most(None, None) == (64, None)
    assert most(32, 4) == (4, 4)
    assert most(32, 512) == (64, 32)
