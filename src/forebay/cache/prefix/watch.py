"""What of requests' prompts is the same, and what breaks it.

Requests of one model and organisation are put into families, by the sentences of what they begin with; of each family
the last few are kept. A new one is compared with them, part by part (tools, then messages):

- *as sent*: how far it is the same as one of those. That is what a prefix cache that forgets nothing would find.
- *could be*: what is the same in all, what stands behind a variation with it. That is what it would find if what
  varies stood at the end. Of a conversation at least all up to its last answer, since that was in the request before.

What varies in the tools or in a system prompt is a break where much stands behind it; likewise in a user's message,
where what follows is too long to be chance (instructions behind the text that they are about). Where two do not go on
alike, the asker's own words begin, and nothing is broken.

Shares are of characters: tokens of all parts are taken to be as long. No clock, no I/O; not safe for threads.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from typing import Final, NamedTuple

import msgspec

from forebay.cache.prefix.compare import compare, roughly, shared
from forebay.cache.prefix.kinds import TEXT, unnumbered
from forebay.cache.prefix.request import Segment, canonical_tools, segments

GROUPS: Final = 256
"""Models and organisations watched at once."""
FAMILIES: Final = 8
"""Of one of them."""
KEPT: Final = 4
"""Requests of a family."""
LEAST: Final = 256
"""Characters of a prompt that is looked at; no engine caches much of a shorter one."""
LONGEST: Final = 131_072
"""Characters that are kept of one; what follows is taken to vary."""
_AFTER: Final = 64
"""Characters behind a variation that make it a break."""
_AFTER_USER: Final = 256
"""Characters that a user's message has behind variations, to be more than alike by chance."""
_PIECES: Final = re.compile(r"[\n.!?。！？；]+")
_PIECE: Final = 12
_MOST_PIECES: Final = 64
_ALIKE: Final = 0.5
_LOOKED_AT: Final = 3
"""Families whose texts are compared where no sentences tell: the last used."""


class Break(NamedTuple):
    where: str
    at: int
    """Character of that part, from 0."""
    kind: str
    """Of `kinds.KINDS`."""
    shape: str
    lost: float
    """Share of the request that stands behind it and would have been the same."""


class Seen(NamedTuple):
    """What one request was found to be. Shares, 0 to 1."""

    as_sent: float
    could_be: float
    breaks: tuple[Break, ...]


NOTHING: Final = Seen(0.0, 0.0, ())


class _Prompt(NamedTuple):
    parts: tuple[Segment, ...]
    size: int
    """Characters, those not kept too."""
    history: int
    """Characters up to the end of the last answer in it."""
    pieces: frozenset[int]
    """Of its head's sentences, hashed."""
    cost: int
    """Bytes it takes."""


class _Family:
    __slots__ = ("pieces", "prompts")

    def __init__(self, pieces: frozenset[int]) -> None:
        self.pieces = pieces
        self.prompts: deque[_Prompt] = deque(maxlen=KEPT)


class _Group:
    __slots__ = ("cost", "families")

    def __init__(self) -> None:
        self.families: list[_Family] = []
        """The last used first."""
        self.cost = 0


class PrefixWatch:
    """Mutable state: groups, the longest unused first; and the bytes they take."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.cost = 0
        self._groups: OrderedDict[tuple[str, str], _Group] = OrderedDict()

    def look(self, group: tuple[str, str], messages: bytes, tools: bytes) -> Seen:
        """`group`: model and organisation. `messages`, `tools`: as for `request.segments`."""
        prompt = _read(messages, tools)
        if prompt is None:
            return NOTHING
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = _Group()
        self._groups.move_to_end(group)
        family = _family_of(known, prompt)
        seen = NOTHING if family is None else _seen(family, prompt)
        self._keep(known, family, prompt)
        return seen

    def _keep(self, group: _Group, family: _Family | None, prompt: _Prompt) -> None:
        before = group.cost
        if family is None:
            family = _Family(prompt.pieces)
            if len(group.families) >= FAMILIES:
                group.cost -= sum(old.cost for old in group.families.pop().prompts)
        else:
            group.families.remove(family)
        group.families.insert(0, family)
        family.pieces = prompt.pieces
        if len(family.prompts) == KEPT:
            group.cost -= family.prompts.popleft().cost
        family.prompts.append(prompt)
        group.cost += prompt.cost
        self.cost += group.cost - before
        while len(self._groups) > 1 and (self.cost > self.most_bytes or len(self._groups) > GROUPS):
            _, oldest = self._groups.popitem(last=False)
            self.cost -= oldest.cost

    def __len__(self) -> int:
        return len(self._groups)

    def __repr__(self) -> str:
        return f"<PrefixWatch {len(self._groups)} groups, {self.cost:,} bytes>"


def _read(messages: bytes, tools: bytes) -> _Prompt | None:
    parts = segments(messages, tools)
    size = sum(len(part.text) for part in parts)
    if size < LEAST:
        return None
    history = at = 0
    kept: list[Segment] = []
    for part in parts:
        room = LONGEST - at
        at += len(part.text)
        if part.role == "assistant":
            history = at
        if room > 0:
            kept.append(part if len(part.text) <= room else part._replace(text=part.text[:room]))
    head = "\n".join([part.text for part in kept if part.head]) or kept[0].text
    pieces = [piece for piece in _PIECES.split(unnumbered(head[:32_768])) if len(piece) >= _PIECE][:_MOST_PIECES]
    cost = sum(len(part.text) * (1 if part.text.isascii() else 2) + 120 for part in kept) + 64 * len(pieces) + 256
    return _Prompt(tuple(kept), size, history, frozenset(map(hash, pieces)), cost)


def _family_of(group: _Group, prompt: _Prompt) -> _Family | None:
    best, share = None, 0.0
    for family in group.families:
        either = len(family.pieces | prompt.pieces)
        alike = len(family.pieces & prompt.pieces) / either if either else 0.0
        if alike > share:
            best, share = family, alike
    if share >= _ALIKE:
        return best
    first = prompt.parts[0]
    for family in group.families[:_LOOKED_AT]:
        theirs = family.prompts[-1].parts[0]
        if theirs.role == first.role and roughly(theirs.text, first.text) >= _ALIKE * len(first.text):
            return family
    return best if share > 0 and best is not None and first.head else None


def _seen(family: _Family, prompt: _Prompt) -> Seen:
    same = max(_same(known, prompt) for known in family.prompts)
    common, breaks, intact = _common(family.prompts[-1], prompt)
    size = prompt.size
    could_be = max(common, same, prompt.history)
    as_sent = max(same, prompt.history) if intact else same
    return Seen(as_sent / size, could_be / size, tuple([b._replace(lost=b.lost / size) for b in breaks]))


def _same(known: _Prompt, prompt: _Prompt) -> int:
    """Characters up to the first difference."""
    at = 0
    for ours, theirs in zip(prompt.parts, known.parts, strict=False):
        if ours.role != theirs.role:
            break
        if ours.text != theirs.text:
            return at + shared(theirs.text, 0, ours.text, 0)
        at += len(ours.text)
    return at


def _common(known: _Prompt, prompt: _Prompt) -> tuple[int, list[Break], bool]:
    """(characters that are the same, variations with much behind them, whether nothing varies). `lost` is in
    characters here."""
    common = 0
    runs: list[tuple[str, int, str, str, int]] = []  # a variation, and what was common before it
    for ours, theirs in zip(prompt.parts, known.parts, strict=False):
        if ours.role != theirs.role:
            break
        if ours.text == theirs.text:
            common += len(ours.text)
            continue
        if ours.role == "tools" and (said := _same_tools(theirs.text, ours.text)):
            at = shared(theirs.text, 0, ours.text, 0)
            runs.append((ours.where, at, said, "", common + at))
            common += len(ours.text)
            continue
        if not ours.head and min(len(ours.text), len(theirs.text)) < _AFTER_USER:
            common += shared(theirs.text, 0, ours.text, 0)
            break
        found = compare(theirs.text, ours.text)
        if not ours.head and found.common - found.first < _AFTER_USER:
            common += found.first
            break
        upto = common + found.first
        for one in found.varying:
            runs.append((ours.where, one.at, one.kind, one.shape, upto))
            upto += one.after
        common += found.common
        if ours.head and not found.whole:
            runs.append((ours.where, found.end, TEXT, "", common))
        elif not found.whole:
            break
    breaks = [
        Break(where, at, kind, shape, common - before)
        for where, at, kind, shape, before in runs
        if common - before >= _AFTER
    ]
    return common, breaks, not runs


def _same_tools(known: str, tools: str) -> str:
    """`order` or `keys`, where they are the same tools in another order, or with their keys in another; else ""."""
    if len(known) != len(tools):
        return ""
    ours, theirs = tools.encode(), known.encode()
    if canonical_tools(ours) != canonical_tools(theirs):
        return ""
    return "order" if sorted(_split(ours)) == sorted(_split(theirs)) else "keys"


def _split(tools: bytes) -> list[bytes]:
    return [bytes(one) for one in _raws.decode(tools)]


_raws: Final = msgspec.json.Decoder(list[msgspec.Raw])
