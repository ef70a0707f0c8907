"""POST /v1/feedback: a caller's word on an answer that a cache gave it.

    {"entry": "0269de549e3d1d94", "good": false, "question": "…", "model": "…"}

`entry` is X-Forebay-Cache-Entry of that answer, `question` what was asked, `model` of whom. The last two may be left
out where this worker gave the answer lately. An answer that is said to be bad is not given again, and that the two
questions do not mean the same is learned. Of entries of others a caller has no say: they are not known to it.

Mutable state: answers that were given lately, by entry; how many each key said are bad.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic, time
from typing import TYPE_CHECKING, Final

import msgspec

from forebay import errors
from forebay.api import reading
from forebay.cache.key import Facts
from forebay.cache.memory import within
from forebay.cache.messages import Heard, Purge
from forebay.config.cache import Cache
from forebay.errors import Refusal
from forebay.gateway.callers import Caller, FailedKeys
from forebay.wire.message import Request
from forebay.wire.reply import Reply

if TYPE_CHECKING:
    from forebay.gateway.caching import Caching

PATH: Final = b"/v1/feedback"
WITHIN: Final = 2.0
"""Seconds the helper process has."""
MOST_GIVEN: Final = 4_096
"""Answers whose question and model are remembered, at least; twice as many, at most."""
LONGEST: Final = 4_096
"""Characters of a question that is remembered, or may be said; a longer one teaches nothing."""
PER_MINUTE: Final = 600
"""Answers that one key may say are bad: each is asked of an engine again, for everyone who shares it."""
_ENTRY: Final = re.compile(r"[0-9a-f]{16}")
_JSON: Final = b"content-type: application/json\r\n"
_FIX: Final = "the value of X-Forebay-Cache-Entry, 16 hexadecimal digits"


class Body(msgspec.Struct, frozen=True):
    entry: str | None = None
    good: bool | None = None
    question: str | None = None
    model: str | None = None


_decoder: Final = msgspec.json.Decoder(Body)


class Feedbacks:
    def __init__(self, caching: Caching) -> None:
        self._caching = caching
        self._given: dict[str, tuple[str, str]] = {}
        self._older: dict[str, tuple[str, str]] = {}
        """(partition, question)."""
        self._bad = FailedKeys(PER_MINUTE)

    def gave(self, entry: str, partition: str, question: str) -> None:
        if len(self._given) >= MOST_GIVEN:
            self._older, self._given = self._given, {}
        self._given[entry] = (partition, question if len(question) <= LONGEST else "")

    def take(self, request: Request, reply: Reply, caller: Caller, done: Callable[[int, Refusal | None], None]) -> None:
        """Answers, at once or when the helper process has; `done` is called once then, with the status and the refusal
        where it is one. Raises Refusal where it can be refused at once."""
        body: Body = reading.decode(request.body, _decoder)
        entry = body.entry
        if entry is None:
            raise errors.missing_field("entry", _FIX)
        if not _ENTRY.fullmatch(entry):
            raise errors.bad_request(f"'entry' must be {_FIX}.", param="entry", code="wrong_type")
        if body.good is None:
            raise errors.missing_field("good", "true or false")
        if body.question and len(body.question) > LONGEST:
            raise errors.bad_request(
                f"'question' has more than {LONGEST:,} characters: leave it out.", param="question", code="too_long"
            )
        good, caching = body.good, self._caching
        caching.shelf.flush()
        partition, question = self._of(caller, entry, body)
        if not partition:
            raise errors.unknown_entry(entry)
        if not good:
            wait = self._bad.failed(caller.key_id, monotonic())
            if wait:
                raise errors.rate_limited("feedback", wait, f"{PER_MINUTE:,} answers a minute may be said to be bad.")
            caching.memory.drop(Purge(0, entry=entry, partition=partition), time())
            caching.shelf.sweep()
        caching.telemetry.feedback.series("good" if good else "bad").value += 1

        def heard(answer: Heard | None) -> None:
            refusal = None
            if answer is None:
                refusal = errors.feedback_unavailable()
            elif not answer.known:
                refusal = errors.unknown_entry(entry)
            if refusal is not None:
                reply.refuse(refusal)
                done(refusal.status, refusal)
                return
            reply.send(200, _JSON, msgspec.json.encode({"object": "cache.feedback", "entry": entry, "good": good}))
            done(200, None)

        client = caching.client
        if client is None:
            heard(Heard(0, known=True))
        elif not client.feedback(entry, partition, good, question, WITHIN, heard):
            heard(None)

    def _of(self, caller: Caller, entry: str, body: Body) -> tuple[str, str]:
        """The entry's partition, as far as it is the caller's, and the question; "" where it is not known."""
        rules = self._caching.rules
        known, question = self._given.get(entry) or self._older.get(entry, ("", ""))
        if known and not within(known, tenant_of(rules, caller)):
            known = question = ""
        if not known and body.model:
            if self._caching.client is None:  # nobody else knows it
                return "", ""
            known = Facts(rules, caller.account, body.model, "").partition
        return known, body.question or question

    def __repr__(self) -> str:
        return f"<Feedbacks on {len(self._given) + len(self._older)} answers>"


def tenant_of(rules: Cache, caller: Caller) -> str:
    """What all partitions of a caller begin with."""
    return Facts(rules, caller.account, "", "").partition.rstrip("/")
