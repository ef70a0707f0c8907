"""The JSONL of OpenAI's batch files: `custom_id`, `method`, `url` and `body`, a request a line.

A batch has texts, not tokens, and no times. What stands in for them:

- prompt tokens: a token for every four ASCII characters and one for every other character, rounded up for each message,
  and four for each message and three for the answer's head, as chat templates add; tools and response formats count as
  the JSON they are. An image or other part that is no text counts nothing, unless told how much;
- output tokens: `max_completion_tokens` or `max_tokens`, or a draw from a distribution, no more than these;
- arrivals: all at once, or as an arrival process says;
- prefix: equal leading messages (with equal model and tools) are equal prefixes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Final

import msgspec

from forebay.errors import shown
from forebay.sim.workload import Ask
from forebay.sim.workloads.bounds import MAX_TOKENS, bad_tokens
from forebay.sim.workloads.errors import BadRow
from forebay.sim.workloads.jsonrow import decoder

FIELDS: Final = "custom_id, method, url, body"
CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
_PER_MESSAGE: Final = 4
_ANSWER_HEAD: Final = 3
_ASCII: Final = re.compile(r"[\x00-\x7f]+")


class Part(msgspec.Struct, gc=False):
    type: str = "text"
    text: str = ""


class Message(msgspec.Struct, gc=False):
    role: str
    content: str | list[Part] | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"")


class Body(msgspec.Struct, gc=False):
    model: str = ""
    messages: list[Message] | None = None
    prompt: str | list[int | str] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")
    response_format: msgspec.Raw = msgspec.Raw(b"")


class Row(msgspec.Struct, gc=False):
    url: str
    body: Body
    custom_id: str
    method: str = "POST"


def parser(
    *, arrivals: Iterator[float] | None = None, output: Callable[[], int] | None = None, part_tokens: int = 0
) -> Callable[[bytes], Ask]:
    """`arrivals`: when each request comes, in seconds; without, all at 0. `output`: draws an answer's tokens.
    `part_tokens`: of an image or another part that is no text. The parser raises BadRow for what is no request."""
    decode = decoder(Row, "a row of a batch", FIELDS)

    def parse(line: bytes) -> Ask:
        row = decode(line)
        body = row.body
        if (body.n or 1) != 1:
            raise BadRow(f"body.n is {body.n}; a workload has one answer a request")
        if row.url == CHAT:
            prefix = _chat(body, part_tokens)
        elif row.url == TEXT:
            prefix = _completion(body)
        else:
            raise BadRow(f"url is '{shown(row.url)}'; allowed are {CHAT} and {TEXT}")
        prompt_tokens = sum(tokens for _, tokens in prefix) + (_ANSWER_HEAD if row.url == CHAT else 0)
        if not 1 <= prompt_tokens <= MAX_TOKENS:
            bad_tokens("the prompt's estimated size", prompt_tokens)
        most = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        if most is not None and not 1 <= most <= MAX_TOKENS:
            bad_tokens("body.max_tokens", most)
        if output is not None:
            answer = output() if most is None else min(most, output())
        elif most is not None:
            answer = most
        else:
            raise BadRow("body has neither max_tokens nor max_completion_tokens; give an output= distribution")
        return Ask(0.0 if arrivals is None else next(arrivals), prompt_tokens, answer, prefix)

    return parse


def estimate(text: str) -> int:
    """Tokens of a text: one for every four ASCII characters, one for every other character."""
    if text.isascii():
        return -(-len(text) // 4)
    others = len(_ASCII.sub("", text))
    return others - (others - len(text)) // 4


def _chat(body: Body, part_tokens: int) -> tuple[tuple[int | str, int], ...]:
    if not body.messages:
        raise BadRow("body.messages is missing or empty")
    identity = blake2b(body.model.encode("utf-8", "replace"), digest_size=8)
    head = bytes(body.tools) + bytes(body.response_format)
    identity.update(head)
    extra = estimate(head.decode())
    pieces: list[tuple[int | str, int]] = []
    for message in body.messages:
        tokens = _PER_MESSAGE + extra
        extra = 0
        identity.update(b"\0" + message.role.encode("utf-8", "replace") + b"\0")
        content = message.content
        for part in [Part(text=content)] if isinstance(content, str) else content or ():
            identity.update(part.type.encode("utf-8", "replace") + b"\1" + part.text.encode("utf-8", "replace"))
            tokens += estimate(part.text) if part.type == "text" else part_tokens
        calls = bytes(message.tool_calls)
        identity.update(calls)
        tokens += estimate(calls.decode())
        pieces.append((int.from_bytes(identity.digest(), "big"), tokens))
    return tuple(pieces)


def _completion(body: Body) -> tuple[tuple[int | str, int], ...]:
    prompt = body.prompt
    if not prompt:
        raise BadRow("body.prompt is missing or empty")
    if isinstance(prompt, str):
        tokens, content = estimate(prompt), prompt.encode("utf-8", "replace")
    elif all(isinstance(token, int) for token in prompt):
        tokens, content = len(prompt), msgspec.json.encode(prompt)
    elif len(prompt) == 1:
        text = str(prompt[0])
        tokens, content = estimate(text), text.encode("utf-8", "replace")
    else:
        raise BadRow(f"body.prompt is a list of {len(prompt):,} prompts; a workload has one a line")
    key = blake2b(body.model.encode("utf-8", "replace") + b"\0" + content, digest_size=8)
    return ((int.from_bytes(key.digest(), "big"), tokens),) if tokens else ()
