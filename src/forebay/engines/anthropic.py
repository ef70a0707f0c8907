"""Anthropic's API, as far as an adapter goes: where it answers, its key, its refusals, its usage.

Sources: Claude API documentation, "Errors" (429 `rate_limit_error` with Retry-After; 529 `overloaded_error`; the same
objects in `event: error` inside a stream; 429 with the code `enforced_spend_limit_reached`: no waiting helps),
"Versioning" (`anthropic-version: 2023-06-01`), "List models" (`data[].id`), "Prompt caching"
(`usage.cache_read_input_tokens`, which `input_tokens` does not include).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from forebay.engines import pages
from forebay.engines.base import Notes
from forebay.engines.openai import OpenAIAdapter
from forebay.errors import Outcome

VERSION: Final = b"2023-06-01"


class AnthropicAdapter(OpenAIAdapter):
    kind = "anthropic"
    notes = Notes(
        title="Anthropic API",
        load="none: its own books alone",
        overload="529 `overloaded_error`, 429 `rate_limit_error` with Retry-After; also as an event in a stream",
        abort="closing the connection; what was generated may be billed",
        priority="none",
        cached="`usage.cache_read_input_tokens`, not part of `input_tokens`",
        capacity="not told: `max_num_seqs`",
        lora="none",
        restart="not seen",
        sources="Claude API documentation: errors, versioning, list models, prompt caching",
    )

    def refused(self, status: int, said: bytes = b"") -> Outcome | None:
        if b"enforced_spend_limit_reached" in said:
            return Outcome.ENGINE_ERROR
        if status == 529 or b'"overloaded_error"' in said or b'"rate_limit_error"' in said:
            return Outcome.OVERLOADED
        return super().refused(status, said)

    def credentials(self, api_key: str) -> bytes:
        return b"x-api-key: %b\r\nanthropic-version: %b\r\n" % (api_key.encode(), VERSION)

    def cached_tokens(self, answer: Mapping[str, object]) -> int | None:
        usage = pages.fields(answer.get("usage"))
        if not usage:  # the first event of a stream
            usage = pages.fields(pages.fields(answer.get("message")).get("usage"))
        return pages.tokens(usage.get("cache_read_input_tokens"))
