"""The gateway's front: routes, and what is decided before a request becomes an exchange."""

from __future__ import annotations

import time
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import msgspec

from forebay import errors
from forebay.api import openai, reading
from forebay.api.routes import ROUTES
from forebay.cache.key import ANYTHING, labels_of, wish_of
from forebay.config.cache_prefix import Reorder
from forebay.config.models import Config
from forebay.errors import Refusal
from forebay.gateway.aborts import Aborts
from forebay.gateway.admitting import Admitting
from forebay.gateway.booking import Booking
from forebay.gateway.bounds import defaults_for
from forebay.gateway.cached import TOLD as CACHE_TOLD
from forebay.gateway.caching import Caching
from forebay.gateway.callers import Caller, Callers
from forebay.gateway.disaggregated import Disaggregating
from forebay.gateway.draining import Drains
from forebay.gateway.exchange import Exchange
from forebay.gateway.explaining import ADMISSION, CACHE, TOLD, asks_for
from forebay.gateway.feedback import PATH as FEEDBACK
from forebay.gateway.fleet import Fleet
from forebay.gateway.forwarding import LIMITS, SAID, RequestIds, given_id, upstream_block
from forebay.gateway.front import NAMELESS, Answer, Front
from forebay.gateway.handles import Entry
from forebay.gateway.holding import Holding
from forebay.gateway.labels import tags_of
from forebay.gateway.logs import RequestLog
from forebay.gateway.prefix_watch import PromptWatch
from forebay.gateway.prompt_cache import ToolOrder
from forebay.gateway.prompts import NOTHING as UNCOUNTED
from forebay.gateway.relay import Stream, Unary
from forebay.gateway.retries import RetryBudget, Spread
from forebay.gateway.settling import Settling
from forebay.gateway.stalls import Stalls
from forebay.gateway.telemetry import Telemetry
from forebay.gateway.tokens import Counted, TokenEstimates
from forebay.gateway.usage_answer import UsageAnswers
from forebay.ledger.limits import Held
from forebay.ledger.pricing import PriceBook
from forebay.policy.placement import Placement
from forebay.state.messages import SetKeys
from forebay.wire.bounds import LimitValues
from forebay.wire.head import media_type
from forebay.wire.message import Request
from forebay.wire.reply import Reply
from forebay.wire.server import Handler
from forebay.wire.ticker import Ticker

MODELS: Final = b"/v1/models"
USAGE: Final = b"/v1/usage"
_REQUESTS: Final = b"/v1/requests/"
_CANCEL: Final = b"/cancel"
_JSON: Final = b"content-type: application/json\r\n"
_EXPOSED: Final = b", ".join(
    [
        b"x-request-id",
        b"retry-after",
        b"x-should-retry",
        b"x-forebay-reason",
        *SAID,
        *LIMITS,
        *sorted(TOLD),
        *CACHE_TOLD,
    ]
)


class Gateway(Handler):
    """The handler of a worker's server. Mutable state: `live`, the exchanges that are not settled."""

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        callers: Callers,
        placement: Placement,
        telemetry: Telemetry,
        request_log: RequestLog,
        ticker: Ticker,
    ) -> None:
        self._read(config)
        self.fleet = fleet
        self.callers = callers
        self.placement = placement
        self.telemetry = telemetry
        self.ticker = ticker
        self.retry_budget = RetryBudget(config.retries.budget)
        self.spread = Spread()
        self.live: set[Exchange] = set()
        self.admitting: Admitting | None = None
        self.booking: Booking | None = None
        self.holding: Holding | None = None
        self.caching: Caching | None = None
        self.usage: UsageAnswers | None = None
        self.watching: PromptWatch | None = None
        self.drains = Drains()
        self.aborts = Aborts()
        self.tokens = TokenEstimates()
        ticker.add(self.drains.sweep)
        self.disaggregating = Disaggregating(config.disaggregation, self)
        self._stalls = Stalls(self)
        fleet.lost = self._stalls.lost
        ticker.add(self._stalls.look)
        self.settling = Settling(self, telemetry, request_log)
        self._ids = RequestIds()
        self._started = int(time.time())

    def configure(self, config: Config, listed: int = 0, prices: PriceBook | None = None) -> None:
        """A reload: what is live goes on as it began. `listed`: how many of the engines are of the watched file."""
        self._read(config)
        self.retry_budget.share = config.retries.budget
        self.callers.configure(config.callers, config.listeners)
        self.fleet.configure(config, listed)
        self.settling.log.configure(config.logging)
        self.disaggregating.configure(config.disaggregation)
        self.watching = PromptWatch.reloaded(self.watching, config.cache.prefix, self)
        if self.admitting is not None:
            self.admitting.configure(config.admission, config.placement)
        if self.booking is not None and prices is not None:
            self.booking.configure(config.ledger, prices)
            for handle in self.fleet.handles.values():
                handle.prices = None
        if self.holding is not None:
            self.holding.configure(config)
        if self.caching is not None:
            self.caching.configure(config)

    def take(self, given: SetKeys) -> None:
        """Keys, suspended accounts and limits as the database has them now."""
        self.callers.take(given)
        if self.holding is not None:
            self.holding.set_stored(given.rules)

    def _read(self, config: Config) -> None:
        self.config = config
        self.limits = LimitValues.of(config.limits)
        self.shows_bodies = config.logging.bodies
        self._order = ToolOrder() if config.cache.prefix.reorder is Reorder.TOOLS else None

    # --- wire.server.Handler -----------------------------------------------------------------------------------------

    def on_head(self, request: Request) -> Refusal | None:
        front: Front | None = request.context
        if (
            front is not None
            and front.generation == self.callers.generation
            and not (front.limited and front.expired())
        ):
            return None
        try:
            request.context = self._screen(request)
        except Refusal as refusal:
            return refusal.with_traceback(None)  # whose frames hold the request, which will hold the refusal
        return None

    def on_request(self, request: Request, reply: Reply) -> None:
        front: Front = request.context
        request_id = front.given_id or self._ids.new()
        reply.extra = b"x-request-id: %b\r\n%b" % (request_id, front.cors)
        now = monotonic()
        try:
            if front.generation != self.callers.generation:  # keys changed while the body came, or it waited its turn
                front = request.context = self._screen(request)
            if front.usage:
                self._usage(request, reply, front, request_id, now)
                return
            if front.feedback:
                self._feedback(request, reply, front, request_id, now)
                return
            if front.answer is None:
                self._exchange(request, reply, front, request_id, now)
                return
            status, headers, body = front.answer(request)
            reply.send(status, headers, body)
            self.settling.plain(request, front, request_id, status, None, now)
        except Refusal as refusal:
            reply.refuse(refusal)
            self.settling.plain(request, front, request_id, refusal.status, refusal, now)

    def on_refused(self, request: Request | None, refusal: Refusal) -> bytes:
        if request is None:
            self.telemetry.requests.series("-", "-", "-", refusal.outcome.value).add()
            return b""
        request_id = given_id(request) or self._ids.new()
        if refusal.status in (401, 403) or refusal.code == "too_many_failed_keys":
            self.telemetry.failed_keys.series(refusal.code).add()
        self.settling.plain(request, request.context, request_id, refusal.status, refusal, monotonic())
        return b"x-request-id: %b\r\n%b" % (request_id, self._cors(request))

    # --- before the body ---------------------------------------------------------------------------------------------

    def _screen(self, request: Request) -> Front:
        """Route, caller and class of a request. Raises Refusal."""
        path, method = request.path, request.method
        generation = self.callers.generation
        given, cors = given_id(request), self._cors(request)
        if method == b"OPTIONS":
            return Front(generation, given, cors, answer=self._preflight)
        route = ROUTES.get(path)
        if route is not None:
            _require_method(request, b"POST")
            kind = request.fields.get(b"content-type")
            if kind is None and b"origin" in request.fields:
                raise errors.unsupported_media_type("nothing")  # a browser asks for leave only where it says JSON
            if kind is not None and kind != b"application/json" and media_type(kind) != b"application/json":
                raise errors.unsupported_media_type(kind.decode("latin-1"))
            if b"content-encoding" in request.fields:
                raise errors.unsupported_media_type("a compressed body (Content-Encoding)")
        caller = self.callers.identify(request, self.ticker.now)
        class_ = caller.class_of(request)
        if route is not None:
            block, explains = upstream_block(request), asks_for(request, ADMISSION)
            admitting = self.admitting
            caches = self.caching is not None and self.caching.on
            session = admitting.prefixes.session(request, caller.organisation) if admitting is not None else 0
            return Front(
                generation,
                given,
                cors,
                caller=caller,
                class_=class_,
                route=route,
                block=block,
                explains=explains,
                explains_cache=asks_for(request, CACHE),
                wish=wish_of(request.fields) if caches else ANYTHING,
                kept_as=labels_of(request.fields) if caches else NAMELESS,
                session=session,
                tags=tags_of(request, self.config.ledger.labels),
            )
        if path == MODELS or path.startswith(MODELS + b"/"):
            _require_method(request, b"GET", b"HEAD")
            answer = self._models
        elif path.startswith(_REQUESTS) and path.endswith(_CANCEL):
            _require_method(request, b"POST")
            answer = self._cancel
        elif path == USAGE and self.usage is not None:
            _require_method(request, b"GET")
            return Front(generation, given, cors, caller=caller, class_=class_, usage=True)
        elif path == FEEDBACK and self.caching is not None and self.caching.on:
            _require_method(request, b"POST")
            return Front(generation, given, cors, caller=caller, class_=class_, feedback=True)
        else:
            raise errors.no_route(method.decode(), path.decode("latin-1"))
        return Front(generation, given, cors, caller=caller, class_=class_, answer=answer)

    # --- small answers -----------------------------------------------------------------------------------------------

    def _models(self, request: Request) -> Answer:
        caller: Caller = request.context.caller
        names = sorted(n for n in self.fleet.catalog if caller.may_use(n))
        one = request.path.removeprefix(MODELS).removeprefix(b"/").decode("latin-1")
        if one:
            if one not in names:
                raise errors.unknown_model(one, names)
            return 200, _JSON, msgspec.json.encode(self._model(one))
        return 200, _JSON, msgspec.json.encode({"object": "list", "data": [self._model(n) for n in names]})

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "forebay"}

    def _cancel(self, request: Request) -> Answer:
        caller: Caller = request.context.caller
        wanted = request.path[len(_REQUESTS) : -len(_CANCEL)]
        found = [
            x
            for x in self.live
            if x.request_id == wanted and x.front.caller is not None and x.front.caller.key_id == caller.key_id
        ]
        if not found:
            raise errors.unknown_request(wanted.decode("latin-1"))
        for exchange in found:
            exchange.end_with(errors.cancelled())
        return (
            200,
            _JSON,
            msgspec.json.encode({"id": wanted.decode(), "object": "request.cancellation", "cancelled": len(found)}),
        )

    def _usage(self, request: Request, reply: Reply, front: Front, request_id: bytes, now: float) -> None:
        """Raises Refusal."""
        caller, usage = front.caller, self.usage
        assert caller is not None
        assert usage is not None
        holding, settling = self.holding, self.settling

        def done(status: int, refusal: Refusal | None) -> None:
            settling.plain(request, front, request_id, status, refusal, now)

        usage.answer(reply, caller, lambda: holding.standing(caller) if holding is not None else (), done)

    def _feedback(self, request: Request, reply: Reply, front: Front, request_id: bytes, now: float) -> None:
        """Raises Refusal."""
        caller, caching, settling = front.caller, self.caching, self.settling
        assert caller is not None
        assert caching is not None

        def done(status: int, refusal: Refusal | None) -> None:
            settling.plain(request, front, request_id, status, refusal, now)

        caching.feedbacks.take(request, reply, caller, done)

    def _preflight(self, request: Request) -> Answer:
        if not self._cors(request):
            return 204, b"allow: GET, HEAD, POST, OPTIONS\r\n", b""
        asked = request.fields.get(b"access-control-request-headers", b"authorization, content-type")
        return (
            204,
            b"access-control-allow-methods: GET, POST, OPTIONS\r\n"
            b"access-control-allow-headers: %b\r\naccess-control-max-age: 86400\r\n" % asked,
            b"",
        )

    def _cors(self, request: Request) -> bytes:
        origins = self.config.cors.origins
        if not origins:
            return b""
        origin = request.fields.get(b"origin")
        if origin is None or ("*" not in origins and origin.decode("latin-1") not in origins):
            return b""
        return b"access-control-allow-origin: %b\r\nvary: origin\r\naccess-control-expose-headers: %b\r\n" % (
            origin,
            _EXPOSED,
        )

    # --- a request to an engine --------------------------------------------------------------------------------------

    def _exchange(self, request: Request, reply: Reply, front: Front, request_id: bytes, now: float) -> None:
        """Begin it. Raises Refusal."""
        payload = request.body
        route = front.route
        body = route.parse(payload)
        entry = self.fleet.catalog.get(body.model or "")
        caller = front.caller
        if entry is None or not entry.candidates or (caller is not None and not caller.may_use(entry.name)):
            self.fleet.refuse(body.model or "", caller.may_use if caller is not None else None)
        if self.booking is not None:
            self.booking.check_room()
        self.retry_budget.requests += 1
        if self._order is not None:
            body, payload = self._order.apply(body, payload)
        if entry.renames or entry.defaults or reading.names_twice(payload):
            defaults = defaults_for(body, entry.defaults)
            payload = openai.rewritten(payload, {"model": entry.target_json}, defaults)
        whole = payload
        held: Held | None = None
        prompt = -1
        counted: Counted = UNCOUNTED
        holding = self.holding
        if holding is not None and holding.limits.active:
            prompt, counted = self.tokens.of(entry.target, body)
            asked = holding.ask(reply, front, body, entry, payload, prompt)
            if asked.entry is not entry:
                entry, whole = asked.entry, asked.payload
            body, front, payload, held = asked.body, asked.front, asked.payload, asked.held
        x = self.made(request, reply, front, request_id, body, entry, payload, now)
        x.held, x.prompt_tokens, x.counted = held, prompt, counted
        try:
            if self.caching is not None and self.caching.on and route.streams:
                self.caching.begin(x, whole)
            else:
                x.go()
        except Exception as e:
            x.fell(e)

    def made(
        self,
        request: Request,
        reply: Reply,
        front: Front,
        request_id: bytes,
        body: openai.AnyBody,
        entry: Entry,
        payload: bytes,
        now: float,
    ) -> Exchange:
        if not body.stream or not front.route.streams:
            return Unary(self, request, reply, front, request_id, body, entry, payload, now)
        options = body.stream_options
        hide_usage = options is None or not (options.include_usage or options.continuous_usage_stats)
        if hide_usage:
            payload = openai.asking_for_usage(payload)
        return Stream(self, request, reply, front, request_id, body, entry, payload, now, hide_usage=hide_usage)

    def new_id(self) -> bytes:
        return self._ids.new()

    def cut_all(self, refusal: Callable[[], Refusal]) -> None:
        """End everything that is live."""
        for exchange in tuple(self.live):
            exchange.end_with(refusal())

    def note_progress(self, now: float) -> None:
        """For the ticker."""
        if self.booking is not None:
            self.booking.progress(self.live, now)

    async def close(self) -> None:
        """Nothing is read on, and no engine is told anything, after the last request."""
        self.ticker.remove(self.drains.sweep)
        self.drains.close()
        if self.watching is not None:
            self.watching.close()
        await self.aborts.close()
        if self.caching is not None:
            await self.caching.close()

    def __repr__(self) -> str:
        return f"<Gateway {len(self.live)} live>"


def _require_method(request: Request, *allowed: bytes) -> None:
    """Raises Refusal."""
    if request.method not in allowed:
        names = b", ".join(allowed).decode()
        raise errors.wrong_method(request.method.decode(), request.path.decode("latin-1"), names)
