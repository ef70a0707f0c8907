"""What is read of an engine's whole answer before it is kept. Apart from `keeping`, which is compiled: structs of
msgspec are not."""

from __future__ import annotations

from typing import Any

import msgspec


class Said(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class Choice(msgspec.Struct, gc=False):
    index: int = 0
    message: Said | None = None
    text: str | None = None
    finish_reason: str | None = None


class Whole(msgspec.Struct, gc=False):
    id: str | None = None
    object: str | None = None
    choices: tuple[Choice, ...] = ()
    usage: msgspec.Raw = msgspec.Raw()
    """As it stands there; empty: there is none."""
    error: Any = None
