"""What an answer will say, settled before its first token: words, JSON or tool calls, cut where asked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from forebay.sim import schema, tokens, words
from forebay.sim.asks import Generation, Prompt

NATURAL_LOW: Final = 128
NATURAL_HIGH: Final = 256
"""Tokens of an answer that no max_tokens cuts, ignore_eos aside."""


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str
    arguments: list[str]
    """In tokens; the first delta, which carries the name, is a token of its own."""


@dataclass(slots=True)
class Script:
    """One choice. A token is one piece; tool calls follow one another in one row of tokens."""

    index: int
    prompt: Prompt
    pieces: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    finish: str = "stop"
    stopped_by: str | None = None

    @property
    def length(self) -> int:
        """Tokens it takes."""
        return len(self.pieces) + sum(1 + len(c.arguments) for c in self.calls)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def write_scripts(ask: Generation, seed: int, *, strange: bool = False) -> list[Script]:
    """A script a choice: `n` for each prompt. `strange` words are mostly beyond ASCII."""
    out = []
    for p, prompt in enumerate(ask.prompts):
        for i in range(ask.n):
            mixed = words.seed_of(seed, ask.seed, ask.model, prompt.text, i)
            script = Script(p * ask.n + i, prompt)
            _fill(script, ask, mixed, strange)
            _cut(script, ask)
            out.append(script)
    return out


def wants_tool(ask: Generation) -> bool:
    if not ask.tools or ask.tool_choice == "none":
        return False
    if ask.tool_choice != "auto":
        return True
    return not ask.after_tool and "weather" in ask.last_user.lower()


def _fill(script: Script, ask: Generation, seed: int, strange: bool) -> None:
    kind = ask.response_format.get("type")
    if wants_tool(ask):
        script.calls = [_call(ask, seed)]
        script.finish = "tool_calls"
    elif kind == "json_object":
        script.pieces = tokens.split(
            _json({"answer": "".join(words.sentences(seed, 8, whole=True)), "count": seed % 7})
        )
    elif kind == "json_schema":
        holder = ask.response_format.get("json_schema")
        wanted = holder.get("schema") if isinstance(holder, dict) else None
        script.pieces = tokens.split(
            _json(schema.value_for(wanted if wanted is not None else {"type": "object"}, seed))
        )
    else:
        natural = max(ask.min_tokens, words.draw_between(seed, NATURAL_LOW, NATURAL_HIGH))
        if ask.ignore_eos or natural >= ask.max_tokens:
            natural = ask.max_tokens
            script.finish = "length"
        write = words.strange if strange else words.sentences
        script.pieces = write(seed, natural, whole=script.finish == "stop")
    if ask.echo:
        script.pieces[0] = script.prompt.text + script.pieces[0]


def _call(ask: Generation, seed: int) -> ToolCall:
    functions: list[dict[str, Any]] = [t["function"] for t in ask.tools]
    if isinstance(ask.tool_choice, dict):
        functions = [f for f in functions if f["name"] == ask.tool_choice["name"]]
    elif ask.tool_choice == "auto":
        functions = [f for f in functions if "weather" in f["name"].lower()] or functions
    function = functions[0]
    wanted = function.get("parameters") or {"type": "object"}
    arguments = tokens.split(_json(schema.value_for(wanted, words.seed_of(seed, function["name"]))))
    return ToolCall(f"chatcmpl-tool-{words.seed_of(seed, 'call'):08x}{seed:08x}", function["name"], arguments)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(script: Script, ask: Generation) -> None:
    """At the first stop string, then at max_tokens."""
    if script.calls:
        if script.length > ask.max_tokens:
            del script.calls[0].arguments[max(0, ask.max_tokens - 1) :]
            script.finish = "length"
        return
    if ask.stop:
        text = script.text
        base = len(script.prompt.text) if ask.echo else 0
        found = [(at + len(s), at, s) for s in ask.stop if (at := text.find(s, base)) >= 0]
        if found:
            end, at, stop = min(found)
            _end_at(script, end, end if ask.keep_stop else at)
            script.finish = "stop"
            script.stopped_by = stop
    if len(script.pieces) > ask.max_tokens:
        del script.pieces[ask.max_tokens :]
        script.finish = "length"
        script.stopped_by = None


def _end_at(script: Script, end: int, visible: int) -> None:
    """Keep the tokens that reach character `end`, and of their text what is before `visible`."""
    kept: list[str] = []
    at = 0
    for piece in script.pieces:
        kept.append(piece[: max(0, visible - at)])
        at += len(piece)
        if at >= end:
            break
    script.pieces = kept
