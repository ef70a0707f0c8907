"""Breakpoints for Anthropic's prompt cache, which keeps only what is marked.

A breakpoint stands at the end of a prefix; there are four at most
(https://platform.claude.com/docs/en/build-with-claude/prompt-caching). Here: the end of the tools, the end of the
system prompt, and in a conversation the end of what was said so far, which the next turn begins with. A single question
is not marked: writing costs more than not caching, and nobody would read it again.
"""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]
_MARKABLE: Final = frozenset({"text", "image", "document", "tool_use", "tool_result"})


def mark(message: Json, ttl: str) -> None:
    """Mark a body for POST /v1/messages, in place; `ttl`: 5m or 1h. One that has marks of the client's own is left as
    it is."""
    tools, system, turns = message.get("tools") or [], message.get("system") or [], message["messages"]
    blocks = [block for turn in turns for block in turn["content"]]
    if "cache_control" in message or any("cache_control" in part for part in (*tools, *system, *blocks)):
        return
    control: Json = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    ends = [tools[-1:], system[-1:]]
    if any(turn["role"] == "assistant" for turn in turns):
        ends.append(turns[-1]["content"][-1:])
    for end in ends:
        for block in end:
            if block.get("type", "text") in _MARKABLE or "input_schema" in block:
                block["cache_control"] = control
