"""Which of `intent`'s English rules a text can meet at all, told by its words.

A rule is a search of dozens of alternatives, and takes 5 to 30 µs for a question of usual length. Each alternative
holds certain words in every text that it takes; so a rule is tried only where a word of one, and where that is a common
one another of its words, is there. What a text comes to is the same: tests hold these tables against the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

TIME: Final = 1
STATE: Final = 2
MY: Final = 4
MINE: Final = 8
I: Final = 16  # noqa: E741  # the word
KNOWN: Final = 32
PLACE: Final = 64
HERE: Final = 128
CHANCE: Final = 256
MORE: Final = 512

_UNITS: Final = "time date day month year"
_SPANS: Final = "days weeks months hours minutes long time"
_PERIODS: Final = (
    "night week weekend month quarter year season summer winter spring autumn fall monday tuesday wednesday thursday "
    "friday saturday sunday january february march april may june july august september october november december"
)
_OWN: Final = (
    "balance balances order orders bill bills invoice invoices statement statements transaction transactions payment "
    "payments deposit deposits withdrawal withdrawals account accounts credit limit subscription plan usage quota "
    "appointment appointments schedule calendar meeting meetings booking bookings reservation reservations flight "
    "flights ticket tickets seat gate shipment shipments package packages parcel parcels delivery deliveries refund "
    "refunds points miles rewards salary paycheck payslip pay bonus taxes grade grades score scores result results "
    "policy claim claims case cases application applications visa status progress phone address email emails inbox "
    "message messages name names birthday age password pin ip location manager boss team task tasks todo todos note "
    "notes file files document documents vacation sick leave holiday benefits contract bmi weight height blood "
    "prescription prescriptions medication doctor mortgage loan portfolio investment investments saving savings "
    "spending expense expenses budget debt debts"
)
_ROLES: Final = (
    "president minister pm ceo cfo cto chancellor king queen pope mayor governor champion champions coach manager "
    "captain leader chairman chairwoman chair owner director secretary richest tallest oldest youngest holder speaker "
    "ambassador"
)
_AREAS: Final = "area city town region neighborhood neighbourhood"
_ROWS: Final[tuple[tuple[int, str, str], ...]] = (
    # (rule, one of these words, and one of these; "": that is enough)
    (
        TIME,
        "today todays tonight tomorrow yesterday currently nowadays recently lately latest newest trending recent now "
        "breaking news headlines weather forecast ago current",
        "",
    ),
    (TIME, "these", "days"),
    (TIME, "at", "moment present"),
    (TIME, "this", "moment time of morning afternoon evening " + _PERIODS),
    (TIME, "last next", _PERIODS),
    (TIME, _UNITS, "what"),
    (TIME, "next", "train bus flight tram ferry holiday match game election eclipse full episode release launch"),
    (TIME, "worth", "how"),
    (TIME, "score", "what"),
    (TIME, "winning leading ahead", "who"),
    (TIME, "leading", "league race poll polls"),
    (TIME, "won", "who"),
    (TIME, "outage outages delay delays maintenance incident incidents update updates", "there"),
    (TIME, "live", "score scores price prices update updates stream news traffic"),
    (TIME, "until till left", _SPANS),
    (TIME, "old", "how"),
    (
        TIME,
        "still",
        "open closed available stock down working valid alive on running delayed playing president ceo",
    ),
    (TIME, "rate rates price prices", "what how"),
    (STATE, "who", _ROLES),
    (STATE, "who", "play work drive race"),
    (STATE, "price prices", ""),
    (STATE, "trading", "at"),
    (STATE, "dollar euro yen pound yuan rupee market markets nasdaq dow stock stocks traffic", "how"),
    (STATE, "temperature", "outside in at there"),
    (STATE, "quality", "air"),
    (STATE, "uv", "index"),
    (STATE, "pollen", "count"),
    (STATE, "sunset sunrise standings traffic theaters theatres cinemas", ""),
    (STATE, "moon", "phase"),
    (STATE, "wait", "time times"),
    (STATE, "hot cold warm humid windy raining snowing dark sunny", "it"),
    (STATE, "new happening going", "what"),
    (STATE, "ago since", "long many"),
    (STATE, "week", "what"),
    (STATE, "left online available remaining still logged", "many"),
    (STATE, "come back up released fixed resume reopen", "when"),
    (STATE, "last", "outage incident update release"),
    (STATE, "next", "launch eclipse race fight concert tour payday"),
    (STATE, "status", "what"),
    (MY, "my", _OWN),
    (MINE, "remind", "me"),
    (MINE, "did", "i you we"),
    (MINE, "me", "know have see called"),
    (MINE, "own live work sit paid", "i"),
    (MINE, "charged billed", "i"),
    (MINE, "debt", "am"),
    (MINE, "balance", ""),
    (I, "i", "owe earn have did am earned spent spend ordered bought paid live qualify"),
    (KNOWN, "me", "remember know recognize recognise"),
    (PLACE, "near nearest nearby around next close closest", "me here us my where"),
    (PLACE, "nearby", ""),
    (PLACE, "my", "country " + _AREAS),
    (HERE, "here nearest", ""),
    (HERE, "close", "by"),
    (HERE, "town", "in"),
    (HERE, "near", "this"),
    (HERE, "closest directions", ""),
    (HERE, "this", _AREAS),
    (HERE, "my", "state county country location zip postcode local " + _AREAS),
    (HERE, "within", "mile miles km"),
    (HERE, "am", "city county state country time timezone"),
    (
        CHANCE,
        "password passwords passphrase passphrases uuid uuids guid guids dice die coin lottery key keys token tokens "
        "secret secrets",
        "generate give pick choose create make suggest roll flip toss draw produce spin throw",
    ),
    (CHANCE, "joke jokes riddle riddles story stories fact facts", "tell"),
    (CHANCE, "surprise", "me"),
    (CHANCE, "another more different new", "me"),
    (CHANCE, "number card color colour word letter", "pick choose think guess"),
    (MORE, "heads", "tails"),
    (MORE, "tarot", ""),
    (MORE, "fun", "fact"),
    (MORE, "something", "interesting funny random"),
    (MORE, "pick", "one"),
    (MORE, "roll", ""),
    (MORE, "poem story joke haiku limerick riddle", "write make tell invent"),
)


class Try:
    """One rule, and what else a text must have. Immutable."""

    __slots__ = ("also", "rule")

    def __init__(self, rule: int, also: frozenset[str]) -> None:
        self.rule = rule
        self.also = also
        """Empty: nothing."""

    def __repr__(self) -> str:
        return f"<Try {self.rule} {' '.join(sorted(self.also))}>"


def _tries() -> dict[str, list[Try]]:
    found: dict[str, list[Try]] = {}
    for rule, words, also in _ROWS:
        one = Try(rule, frozenset(also.split()))
        for word in words.split():
            found.setdefault(word, []).append(one)
    return found


_TRIES: Final[Mapping[str, list[Try]]] = MappingProxyType(_tries())
_TOLD: Final = frozenset(_TRIES)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BEGIN: Final = _words("please try regenerate again retry redo continue go keep once rephrase say shuffle")
"""Those of MORE that take a text by its first word."""
_END: Final = _words("down offline delayed out stock online up")
"""Those of TIME that take one by its last."""
_BEFORE: Final = _words("is are was were s re has have of know see got received seen will")
"""Of these, one comes before the "my" or "our" that MINE takes, where that is not the first word."""
_ONLY: Final = _words("please give tell show me another one some more something else a different the next")
"""Those that take a text of no other words."""
_NUMBERED: Final = ("order", "ticket", "case", "tracking", "booking", "parcel")
"""What the first word begins with where MINE takes it for its number."""
_TRADED: Final = ("bitcoin", "btc", "eth", "gold", "silver", "oil", "gas", "petrol")


def worth(words: list[str], text: str) -> int:
    """The rules that are worth trying, each a bit. `words`: all of them, in lower case, without any sign; `text`:
    where they stand."""
    if not words:
        return 0
    found = 0
    for word in _TOLD.intersection(words):
        for one in _TRIES[word]:
            if found & one.rule == 0 and (not one.also or not one.also.isdisjoint(words)):
                found |= one.rule
    first = words[0]
    if first in _BEGIN or _ONLY.issuperset(words):
        found |= MORE
    if words[-1] in _END:
        found |= TIME
    if first.startswith(_NUMBERED) or (("my" in text or "our" in text) and _asked_for(words)):
        found |= MINE
    if "random" in text:  # and whatever begins with it
        found |= CHANCE | MORE
    if "much" in text and "much" in words and any(name in text for name in _TRADED):
        found |= STATE
    return found


def _asked_for(words: list[str]) -> bool:
    before = "is"
    for word in words:
        if (word == "my" or word == "our") and before in _BEFORE:
            return True
        before = word
    return False
