"""What makes two requests share a prefix, or a session."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forebay.api.routes import CHAT, COMPLETIONS
from forebay.config.placement import Placement
from forebay.gateway.prefixes import Prefixes
from forebay.wire.message import Peer, Request

TEXT = "x" * 2_000


@pytest.fixture
def prefixes() -> Prefixes:
    return Prefixes(Placement(session_header="X-Session", session_cookie="sid"))


def chain(prefixes: Prefixes, tenant: str = "t", model: str = "m", **fields: Any) -> list[int]:
    asked = {"model": "m", "messages": [{"role": "user", "content": TEXT}], **fields}
    return prefixes.of(CHAT.parse(msgspec.json.encode(asked)), model, tenant)[0]


def test_the_same_prompt_of_one_tenant_is_one_prefix(prefixes: Prefixes) -> None:
    assert len(chain(prefixes)) == 3
    assert chain(prefixes) == chain(prefixes, temperature=0.5, max_tokens=7)
    assert not set(chain(prefixes)) & set(chain(prefixes, tenant="other"))
    assert not set(chain(prefixes)) & set(chain(prefixes, model="adapter"))


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"cache_salt": "mine"},
        {"extra_key": "mine"},
        {"documents": [{"text": "d"}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "high"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_an_engine_keeps_apart_is_apart(prefixes: Prefixes, fields: dict[str, Any]) -> None:
    """Else it would seem to have lost what it has, and six such answers empty the index for everybody."""
    assert chain(prefixes, **fields) == chain(prefixes, **fields)
    assert not set(chain(prefixes)) & set(chain(prefixes, **fields))


def test_a_prompt_that_is_computed_whole_has_no_prefix(prefixes: Prefixes) -> None:
    assert chain(prefixes, prompt_logprobs=1) == []
    assert chain(prefixes, prompt_logprobs=None) == chain(prefixes)
    body = {"model": "m", "prompt": TEXT, "prompt_logprobs": 0}
    assert prefixes.of(COMPLETIONS.parse(msgspec.json.encode(body)), "m", "t") == ([], 0.0)


def test_sessions_of_two_tenants_are_two(prefixes: Prefixes) -> None:
    def session(tenant: str, **fields: bytes) -> int:
        named = {k.replace("_", "-").encode(): v for k, v in fields.items()}
        return prefixes.session(Request(b"POST", b"/", b"", [], named, Peer("x"), False), tenant)

    assert session("a", x_session=b"1") == session("a", cookie=b"x=2; sid=1") != 0
    assert session("a", x_session=b"1") != session("b", x_session=b"1")
    assert session("a") == session("a", x_session=b"") == session("a", cookie=b"sid=") == 0
