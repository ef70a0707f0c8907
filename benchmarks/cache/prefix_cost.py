"""What the watch over prompt caches costs the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from forebay.api.openai import ChatBody, Usage
from forebay.api.routes import CHAT
from forebay.config.cache_prefix import Prefix
from forebay.config.models import Config
from forebay.errors import Outcome
from forebay.gateway.app import Gateway
from forebay.gateway.attempts import Attempts
from forebay.gateway.prefix_watch import PromptWatch
from forebay.gateway.prompt_cache import ToolOrder
from forebay.ledger.tokens import Tokens


def _body(**fields: Any) -> tuple[ChatBody, bytes]:
    messages = [{"role": "system", "content": "Be kind. " * 80}, {"role": "user", "content": "Why is it late?"}]
    payload = json.dumps({"model": "m", "messages": messages, **fields}).encode()
    return msgspec.json.decode(payload, type=ChatBody), payload


def counted() -> Callable[[], object]:
    """Counting one request that is not compared: one in thousands is, where many come."""
    loop = asyncio.new_event_loop()
    gateway = cast(Gateway, SimpleNamespace(fleet=SimpleNamespace(handles={}), config=Config()))
    watch = PromptWatch(Prefix(watch=True, interval=3_600), gateway, loop)
    usage = Usage(prompt_tokens=200, completion_tokens=5, prompt_tokens_details={"cached_tokens": 160})
    front = SimpleNamespace(route=CHAT, caller=SimpleNamespace(organisation="acme"))
    entry = SimpleNamespace(target="m")
    x = SimpleNamespace(
        usage=usage, outcome=Outcome.OK, front=front, entry=entry, body=_body()[0], engine="e", attempts=1
    )
    tokens = Tokens(40, 160, 0, 0, 5, 0)
    for _ in range(100):
        watch.settled(cast(Attempts, x), tokens)
    watch.close()
    loop.close()
    watch._next_at = float("inf")
    return lambda: watch.settled(cast(Attempts, x), tokens)


def ordered(tools: list[dict[str, Any]]) -> Callable[[], object]:
    body, payload = _body(tools=tools)
    return lambda: ToolOrder().apply(body, payload)
