"""The admin port: health, readiness, metrics, admission, usage. Read only, and without secrets."""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay import errors
from forebay.admin.admission import admission_page
from forebay.admin.keys import Keys, Unavailable
from forebay.admin.metrics import exposition
from forebay.admin.view import SCRAPE, GatewayState
from forebay.config.models import Address

MAX_BODY: Final = 65_536
Endpoint = Callable[[Request], Awaitable[Response]]


def public_app(state: GatewayState, keys: Keys, usage: Endpoint) -> ASGIApp:
    async def health(request: Request) -> Response:
        return JSONResponse(state.health(keys))

    async def ready(request: Request) -> Response:
        reasons = state.not_ready(keys)
        return JSONResponse({"ready": not reasons, "reasons": reasons}, status_code=503 if reasons else 200)

    async def metrics(request: Request) -> Response:
        body, content_type = exposition(await state.scrape(keys), ",".join(request.headers.getlist("accept")))
        return Response(body, headers={"content-type": content_type})

    async def engines(request: Request) -> Response:
        await state.workers.fresh(SCRAPE)
        return JSONResponse({"engines": [e.as_json() for e in state.engines()]})

    async def admission(request: Request) -> Response:
        return JSONResponse(await admission_page(state.workers, time.time()))

    app = build(
        {
            "/health": {"GET": health},
            "/ready": {"GET": ready},
            "/metrics": {"GET": metrics},
            "/admin/admission": {"GET": admission},
            "/admin/engines": {"GET": engines},
            "/admin/usage": {"GET": usage},
        }
    )
    return HostCheck(app, state.config.admin) if _checks_host(state.config.admin) else app


def build(routes: dict[str, dict[str, Endpoint]]) -> Starlette:
    """An application whose every refusal is in the error envelope. `routes`: path → method → endpoint."""
    paths = ", ".join(routes)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "GET")
            return refuse(errors.wrong_method(request.method, request.url.path, allowed))
        if error.status_code == 404:
            unknown = errors.no_route(request.method, request.url.path)
            unknown.message += f" There are {paths}."
            return refuse(unknown)
        phrase = error.detail or HTTPStatus(error.status_code).phrase
        return refuse(errors.Refusal(error.status_code, "bad_request", phrase, outcome=errors.Outcome.BAD_REQUEST))

    app = Starlette(
        routes=[Route(path, _by_method(methods), methods=[*methods]) for path, methods in routes.items()],
        exception_handlers={HTTPException: refused},
    )
    app.router.redirect_slashes = False  # to a URL made of the client's Host
    return app


def _by_method(methods: dict[str, Endpoint]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return await methods["GET" if request.method == "HEAD" else request.method](request)

    return endpoint


def explained(endpoint: Endpoint) -> Endpoint:
    """With its refusals, and a database that cannot be used, as answers."""

    async def endpoint_(request: Request) -> Response:
        try:
            return await endpoint(request)
        except errors.Refusal as e:
            return refuse(e)
        except Unavailable as e:
            return refuse(
                errors.Refusal(
                    503,
                    "database_unavailable",
                    f"The database cannot be used: {e}.",
                    outcome=errors.Outcome.INTERNAL,
                    headers=errors.retry_headers(1),
                )
            )

    return endpoint_


def refuse(refusal: errors.Refusal) -> Response:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in refusal.headers}
    return Response(refusal.body(), refusal.status, headers, "application/json")


async def json_object(request: Request, what: str) -> dict[str, Any]:
    """The body; `what` says in a refusal what it should hold. Raises Refusal."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise errors.bad_request(f"the body is over {MAX_BODY:,} bytes")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise errors.bad_json(errors.shown(e)) from e
    if not isinstance(found, dict):
        raise errors.bad_request(f"the body must be a JSON object with {what}")
    return found


def _checks_host(address: Address) -> bool:
    return address.loopback and not address.unix


class HostCheck:
    """Refuses a Host that is a name of somebody else's: a page whose name was made to point at this machine (DNS
    rebinding) could otherwise read a port that only this machine can reach."""

    def __init__(self, app: ASGIApp, address: Address) -> None:
        self._app = app
        self._names = {"localhost", address.host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == b"host" and not self._allowed(value.decode("latin-1")):
                    refusal = errors.Refusal(
                        403,
                        "host_not_allowed",
                        f"The host '{errors.shown(value.decode('latin-1'))}' is not served on this port; use localhost "
                        "or the machine's address.",
                        outcome=errors.Outcome.FORBIDDEN,
                    )
                    await refuse(refusal)(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    def _allowed(self, host: str) -> bool:
        name = host.strip().lower()
        if name.startswith("["):
            name, _, port = name[1:].partition("]")
            if port and not (port[0] == ":" and port[1:].isdigit()):
                return False
        else:
            name = name.partition(":")[0].removesuffix(".")
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
