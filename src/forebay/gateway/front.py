"""What a request's head says, found out once for all requests of a connection that have the same head."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from forebay.api.routes import CHAT, Route
from forebay.cache.key import ANYTHING, Facts, Wish
from forebay.config.cache import Cache
from forebay.config.models import Class
from forebay.gateway.callers import Caller
from forebay.gateway.handles import Entry
from forebay.gateway.labels import Labels
from forebay.gateway.telemetry import Series
from forebay.wire.message import Request

Answer = tuple[int, bytes, bytes]
"""Status, header block, body."""
NAMELESS: Final[tuple[tuple[str, ...], tuple[str, ...]]] = ((), ())


class Front:
    """`answer` is None for a request to an engine; `route` counts only then."""

    __slots__ = (
        "answer",
        "block",
        "caller",
        "class_",
        "cors",
        "entry",
        "explains",
        "explains_cache",
        "facts",
        "feedback",
        "generation",
        "given_id",
        "kept_as",
        "limited",
        "route",
        "series",
        "session",
        "tags",
        "usage",
        "wish",
    )

    def __init__(
        self,
        generation: int,
        given_id: bytes | None,
        cors: bytes,
        *,
        caller: Caller | None = None,
        class_: Class = Class.LOW,
        route: Route = CHAT,
        block: bytes = b"",
        explains: bool = False,
        explains_cache: bool = False,
        wish: Wish = ANYTHING,
        kept_as: tuple[tuple[str, ...], tuple[str, ...]] = NAMELESS,
        session: int = 0,
        tags: Labels = (),
        usage: bool = False,
        feedback: bool = False,
        answer: Callable[[Request], Answer] | None = None,
    ) -> None:
        self.generation = generation
        self.given_id = given_id
        self.cors = cors
        self.caller = caller
        self.class_ = class_
        self.route = route
        self.block = block
        self.explains = explains
        """Whether its answers are to say what admission decided."""
        self.explains_cache = explains_cache
        """Whether they are to say why caches had none."""
        self.wish = wish
        """What it asks of caches."""
        self.kept_as = kept_as
        """Tags and sources of its answers."""
        self.facts: tuple[Entry, Cache, Facts] | None = None
        """Of keys, for the last request's entry."""
        self.session = session
        """A number that the requests of its session share; 0: it is of none."""
        self.tags = tags
        """Of its header: what costs are allocated by."""
        self.feedback = feedback
        """It says what an answer of a cache was worth."""
        self.usage = usage
        """It asks what its caller has used."""
        self.answer = answer
        self.limited = caller is not None and caller.expires != float("inf")
        self.entry: Entry | None = None
        self.series: Series | None = None
        """Of the last request's entry: most ask for the same model again."""

    @property
    def goes_on(self) -> bool:
        """It is for an engine."""
        return self.answer is None and not self.usage and not self.feedback

    def lowered(self, class_: Class) -> Front:
        """The same, in another class: of one request."""
        other = Front(
            self.generation,
            given_id=self.given_id,
            cors=self.cors,
            caller=self.caller,
            class_=class_,
            route=self.route,
            block=self.block,
            explains=self.explains,
            explains_cache=self.explains_cache,
            wish=self.wish,
            kept_as=self.kept_as,
            session=self.session,
            tags=self.tags,
            usage=self.usage,
            feedback=self.feedback,
            answer=self.answer,
        )  # copy.copy cannot make a compiled object
        other.facts = self.facts
        return other

    def expired(self) -> bool:
        """Whether its caller's key has run out; asked only where `limited`."""
        return self.caller is not None and self.caller.expires <= time.time()

    def __repr__(self) -> str:
        return f"<Front {self.route.name if self.answer is None else 'answer'} {self.caller}>"
