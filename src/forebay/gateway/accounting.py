"""What an attempt came to, in tokens: as its engine says; where that is missing or cannot be, by what was delivered.

what happened                                       tokens
the engine's last word on usage came, and can be     its own, exact
it cost the engine nothing: not sent, refused        none, exact
it failed before its first content                   none, exact
whole, without usage                                 the prompt and the answer, estimated
cut, or its client left, after content came          the prompt and what was delivered, estimated
its client left, or it was ended here, before that   the prompt, estimated: the engine was working on it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from forebay.api.openai import MOST_TOKENS, AnyBody
from forebay.api.usage import CONTRADICTS, UNSEEN, doubted, tokens_of
from forebay.errors import Outcome
from forebay.gateway.bounds import answers_of, most_of
from forebay.ledger.tariff import completion_of, prompt_of
from forebay.ledger.tokens import NO_TOKENS, Tokens

if TYPE_CHECKING:
    from forebay.gateway.attempts import Attempts

_LEFT: Final = frozenset({Outcome.CLIENT_GONE, Outcome.CANCELLED, Outcome.DRAINED})
_BESIDE: Final = 65_536
"""Tokens a prompt may have beside its bytes: a template, tools spelt out, pictures."""
_REFERRED: Final = 1 << 24
"""The same, where it names pictures, films or files by an address."""
_LONGEST: Final = 1 << 22
"""Tokens of an answer that nothing bounds."""


_OK: Final = Outcome.OK
_counts: Final = msgspec.structs.astuple


class Count:
    __slots__ = ("completion", "counts", "exact", "note", "prompt", "tokens")

    def __init__(self, tokens: Tokens, exact: bool, note: str = "") -> None:
        """`note`: why the engine's own word was not taken."""
        counts: tuple[int, ...] = _counts(tokens)
        self.tokens = tokens
        self.counts = counts
        """By kind."""
        self.prompt = prompt_of(counts)
        self.completion = completion_of(counts)
        self.exact = exact
        self.note = note

    def __repr__(self) -> str:
        return f"<Count {self.tokens} {'exact' if self.exact else 'estimated'} {self.note}>"


NOTHING: Final = Count(NO_TOKENS, exact=True)


def streamed(events: int, words: int, per_event: float = 1.0, per_byte: float = 0.25) -> int:
    """About how many tokens a stream had whose events have so many bytes of words: by its events; where these hold more
    than twice the words that so many tokens have, by the words. The rates are its engine's, learned from streams that
    said their usage."""
    by_events, by_words = events * per_event, words * per_byte
    return round(by_words if by_words > 2 * by_events else by_events)


def count_of(x: Attempts, outcome: Outcome, said: int) -> Count:
    """`said`: tokens of an answer that were counted here, 0 where none were."""
    usage = x.usage
    note = ""
    begun = outcome is _OK or x.first_content_at or outcome in _LEFT
    if usage is not None and x.exact and begun:
        tokens, note = tokens_of(usage)
        if not note or note is CONTRADICTS:
            count = Count(tokens, True, note)
            doubt = _doubt(x, count, x.events)
            if not doubt:
                return count
            note = doubt
    elif usage is None and x.free:
        return NOTHING
    seen = x.events
    if not (begun or seen or said):
        return NOTHING
    prompt, completion = x.prompt(), said or min(x.delivered(), _allowed(x.body))
    cached = 0
    if usage is not None and not note:  # said on the way, by an answer that was cut
        tokens, note = tokens_of(usage)
        if not note or note is CONTRADICTS:
            count = Count(tokens, True, note)
            note = _doubt(x, count, 0) or note
            if not note or note is CONTRADICTS:
                prompt, cached = count.prompt or prompt, tokens.cached
                completion = max(completion, count.completion)
    return Count(Tokens(input=max(0, prompt - cached), cached=cached, output=completion), exact=False, note=note)


def _doubt(x: Attempts, count: Count, events: int) -> str:
    """Whether it can be: "" or a note."""
    body = x.request.body
    most = len(body) + _BESIDE
    if count.prompt > most and (b'_url"' in body or b'_id"' in body):
        most = len(body) + _REFERRED
    note = doubted(count.prompt, count.completion, prompt_most=most, answer_most=_allowed(x.body), events=events)
    return note or (UNSEEN if x.outcome is _OK and x.says_more(count.completion) else "")


def _allowed(body: AnyBody) -> int:
    """Completion tokens at most, of all answers that were asked for."""
    most = most_of(body)
    return min(_LONGEST if most is None else most, MOST_TOKENS) * answers_of(body)
