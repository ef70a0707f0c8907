"""The gateway's front: routes, and what is decided before a request becomes an exchange."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from forebay import errors
from forebay.api import openai
from forebay.api.routes import ROUTES, Route
from forebay.config.models import Class, Config
from forebay.errors import Outcome, Refusal
from forebay.gateway.callers import Caller, Callers
from forebay.gateway.exchange import Exchange
from forebay.gateway.fleet import Fleet
from forebay.gateway.forwarding import RequestIds
from forebay.gateway.logs import RequestLog
from forebay.gateway.relay import Stream, Unary
from forebay.gateway.retries import RetryBudget
from forebay.gateway.telemetry import Telemetry
from forebay.policy.placement import Placement
from forebay.wire.head import media_type
from forebay.wire.message import Request
from forebay.wire.reply import Reply
from forebay.wire.ticker import Ticker

MODELS: Final = b"/v1/models"
_REQUESTS: Final = b"/v1/requests/"
_CANCEL: Final = b"/cancel"
_JSON: Final = b"content-type: application/json\r\n"
_EXPOSED: Final = b"x-request-id, retry-after, x-should-retry, x-forebay-reason"
BODY_SHOWN: Final = 4_096


class Gateway:
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
        self.config = config
        self.fleet = fleet
        self.callers = callers
        self.placement = placement
        self.telemetry = telemetry
        self.ticker = ticker
        self.retry_budget = RetryBudget(config.retries.budget)
        self.live: set[Exchange] = set()
        self._log = request_log
        self._ids = RequestIds()
        self._started = int(time.time())

    def configure(self, config: Config) -> None:
        """A reload: what is live goes on as it began."""
        self.config = config
        self.retry_budget.share = config.retries.budget
        self.callers.configure(config.callers, config.listeners)
        self.fleet.configure(config)
        self._log.configure(config.logging)

    # --- wire.server.Handler -----------------------------------------------------------------------------------------

    def on_head(self, request: Request) -> Refusal | None:
        try:
            self._screen(request)
        except Refusal as refusal:
            return refusal
        return None

    def on_request(self, request: Request, reply: Reply) -> None:
        seen: _Seen = request.context
        reply.extra = b"x-request-id: %b\r\n" % seen.request_id.encode() + self._cors(request)
        now = time.monotonic()
        try:
            if seen.route is not None and seen.caller is not None:
                self._exchange(request, reply, seen.route, seen.caller, seen.class_, seen.request_id, now).go()
                return
            status, headers, body = seen.answer(request) if seen.answer is not None else (204, b"", b"")
            reply.send(status, headers, body)
            self._plain(request, seen, status, Outcome.OK, now)
        except Refusal as refusal:
            reply.refuse(refusal)
            self._plain(request, seen, refusal.status, refusal.outcome, now)

    def on_refused(self, request: Request | None, refusal: Refusal) -> bytes:
        if request is None:
            self.telemetry.requests.series("-", "-", "-", refusal.outcome.value).add()
            return b""
        seen = self._seen(request)
        if refusal.status in (401, 403) or refusal.code == "too_many_failed_keys":
            self.telemetry.failed_keys.series(refusal.code).add()
        self._plain(request, seen, refusal.status, refusal.outcome, time.monotonic())
        return b"x-request-id: %b\r\n" % seen.request_id.encode() + self._cors(request)

    # --- before the body ---------------------------------------------------------------------------------------------

    def _seen(self, request: Request) -> _Seen:
        seen = request.context
        if seen is None:
            seen = request.context = _Seen(self._ids.of(request))
        return seen  # type: ignore[no-any-return]

    def _screen(self, request: Request) -> None:
        """Route, caller and class of a request. Raises Refusal."""
        seen = self._seen(request)
        path, method = request.path, request.method
        if method == b"OPTIONS":
            seen.answer = self._preflight
            return
        route = ROUTES.get(path)
        if route is not None:
            if method != b"POST":
                raise errors.wrong_method(method.decode(), path.decode("latin-1"), "POST")
            kind = request.fields.get(b"content-type")
            if kind is not None and kind != b"application/json" and media_type(kind) != b"application/json":
                raise errors.unsupported_media_type(kind.decode("latin-1"))
            if b"content-encoding" in request.fields:
                raise errors.unsupported_media_type("a compressed body (Content-Encoding)")
        seen.caller = caller = self.callers.identify(request, self.ticker.now)
        seen.class_ = caller.class_of(request)
        if route is not None:
            seen.route = route
            return
        if path == MODELS or path.startswith(MODELS + b"/"):
            if method not in (b"GET", b"HEAD"):
                raise errors.wrong_method(method.decode(), path.decode("latin-1"), "GET, HEAD")
            seen.answer = self._models
        elif path.startswith(_REQUESTS) and path.endswith(_CANCEL):
            if method != b"POST":
                raise errors.wrong_method(method.decode(), path.decode("latin-1"), "POST")
            seen.answer = self._cancel
        else:
            raise errors.no_route(method.decode(), path.decode("latin-1"))

    # --- small answers -----------------------------------------------------------------------------------------------

    def _models(self, request: Request) -> tuple[int, bytes, bytes]:
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

    def _cancel(self, request: Request) -> tuple[int, bytes, bytes]:
        caller: Caller = request.context.caller
        wanted = request.path[len(_REQUESTS) : -len(_CANCEL)].decode("latin-1")
        found = [x for x in self.live if x.request_id == wanted and x.caller.key_id == caller.key_id]
        if not found:
            raise errors.unknown_request(wanted)
        for exchange in found:
            exchange.end_with(errors.cancelled())
        return (
            200,
            _JSON,
            msgspec.json.encode({"id": wanted, "object": "request.cancellation", "cancelled": len(found)}),
        )

    def _preflight(self, request: Request) -> tuple[int, bytes, bytes]:
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

    def _exchange(
        self,
        request: Request,
        reply: Reply,
        route: Route,
        caller: Caller,
        class_: Class,
        request_id: str,
        now: float,
    ) -> Exchange:
        """Raises Refusal."""
        payload = request.body
        body = route.parse(payload)
        entry = self.fleet.resolve(openai.require_model(body.model), caller.may_use)
        self.retry_budget.request()
        if entry.renames or entry.defaults or payload.count(b'"model"') != 1:
            defaults = entry.defaults
            if body.max_completion_tokens is not None and "max_tokens" in defaults:
                defaults = {k: v for k, v in defaults.items() if k != "max_tokens"}
            payload = openai.rewritten(payload, {"model": entry.target_json}, defaults)
        if not (body.stream and route.streams):
            return Unary(self, request, reply, route, caller, class_, request_id, body, entry, payload, now)
        options = body.stream_options
        hide_usage = options is None or not (options.include_usage or options.continuous_usage_stats)
        if hide_usage:
            payload = openai.asking_for_usage(payload)
        return Stream(
            self, request, reply, route, caller, class_, request_id, body, entry, payload, now, hide_usage=hide_usage
        )

    def cut_all(self, refusal: Callable[[], Refusal]) -> None:
        """End everything that is live."""
        for exchange in tuple(self.live):
            exchange.end_with(refusal())

    # --- records -----------------------------------------------------------------------------------------------------

    def settled(self, x: Exchange) -> None:
        """One exchange has ended: count it, log it."""
        now = time.monotonic()
        model, class_, outcome = x.entry.name, x.class_.value, x.outcome.value
        self.telemetry.requests.series(x.route.name, model, class_, outcome).value += 1
        series = x.series
        series.total.observe(now - x.received_at)
        usage = x.usage
        if usage is not None:
            series.prompt.value += max(0, usage.prompt_tokens or 0)
            series.completion.value += max(0, usage.completion_tokens or 0)
        if not self._log.enabled:
            return
        request = x.request
        record: dict[str, Any] = {
            "ts": _stamp(),
            "level": "info",
            "msg": "request",
            "id": x.request_id,
            "method": "POST",
            "path": x.route.path.decode(),
            "status": x.status,
            "outcome": outcome,
            "model": model,
            "engine": x.engine,
            "key": x.caller.key_id,
            "org": x.caller.organisation,
            "class": class_,
            "stream": x.stream,
            "attempts": x.attempts,
            "ms": round((now - x.received_at) * 1000, 1),
            "bytes_in": len(request.body),
            "bytes_out": x.reply.sent,
            "peer": request.peer.address,
        }
        if x.first_content_at:
            record["ttft_ms"] = round((x.first_content_at - x.received_at) * 1000, 1)
        if usage is not None:
            record["tokens_in"] = usage.prompt_tokens
            record["tokens_out"] = usage.completion_tokens
            if usage.prompt_tokens_details is not None:
                record["tokens_cached"] = usage.cached_tokens
        if self.config.logging.bodies:
            record["body"] = request.body[:BODY_SHOWN].decode("utf-8", "replace")
        self._log.add(record)

    def _plain(self, request: Request, seen: _Seen, status: int, outcome: Outcome, began: float) -> None:
        """A request that never became an exchange."""
        route = seen.route.name if seen.route is not None else ("other" if seen.answer is not None else "-")
        self.telemetry.requests.series(route, "-", seen.class_.value, outcome.value).value += 1
        if self._log.enabled:
            self._log.add(
                {
                    "ts": _stamp(),
                    "level": "info",
                    "msg": "request",
                    "id": seen.request_id,
                    "method": request.method.decode("latin-1"),
                    "path": errors.shown(request.path.decode("latin-1"), 200),
                    "status": status,
                    "outcome": outcome.value,
                    "key": seen.caller.key_id if seen.caller is not None else "-",
                    "ms": round((time.monotonic() - began) * 1000, 1),
                    "peer": request.peer.address,
                }
            )

    def __repr__(self) -> str:
        return f"<Gateway {len(self.live)} live>"


class _Seen:
    """What was found out from a request's head."""

    __slots__ = ("answer", "caller", "class_", "request_id", "route")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.route: Route | None = None
        self.caller: Caller | None = None
        self.class_ = Class.LOW
        self.answer: Callable[[Request], tuple[int, bytes, bytes]] | None = None


def _stamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
