"""Key management over the Unix socket `admin.sock`, which only this user can open: what `forebay key` talks to.

`POST /keys` {name, …} → 201 {"key": text, "record": …, "workers": "informed" | "pending", "warnings": [text, …]}
`GET /keys` → {"keys": [record, …]}
`POST /keys/{id}/revoke` → {"record": …, "workers": …}

Beside them the routes of engineapi, alertapi and of usage.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from forebay import errors
from forebay.admin.engineapi import engine_routes
from forebay.admin.engines import Engines
from forebay.admin.keys import Keys
from forebay.admin.public import Endpoint, build, explained, json_object
from forebay.admin.view import GatewayState
from forebay.clock import Clock
from forebay.errors import Refusal
from forebay.ledger.records import as_json


def private_app(
    state: GatewayState, keys: Keys, engines: Engines, clock: Clock, *more: dict[str, dict[str, Endpoint]]
) -> Starlette:
    """`more`: other routes, as `public.build` takes them."""

    async def create(request: Request) -> Response:
        fields = await json_object(request, "the fields of a key")
        from forebay.ledger.keystore import BadField

        try:
            record, text, informed = await keys.create(fields)
        except BadField as e:
            raise errors.bad_request(f"{e}.", param=e.field) from e
        return JSONResponse(
            {
                "key": text,
                "record": as_json(record, clock.wall()),
                "workers": _told(informed),
                "warnings": state.unknown_models(record.models),
            },
            status_code=201,
        )

    async def listing(request: Request) -> Response:
        return JSONResponse({"keys": [as_json(record, clock.wall()) for record in await keys.list()]})

    async def revoke(request: Request) -> Response:
        from forebay.ledger.keystore import UnknownKey

        try:
            record, informed = await keys.revoke(request.path_params["id"])
        except UnknownKey as e:
            raise Refusal(404, "key_not_found", str(e), outcome=errors.Outcome.NOT_FOUND, param="id") from e
        return JSONResponse({"record": as_json(record, clock.wall()), "workers": _told(informed)})

    return build(
        {
            "/keys": {"GET": explained(listing), "POST": explained(create)},
            "/keys/{id}/revoke": {"POST": explained(revoke)},
            **engine_routes(engines),
            **{path: methods for routes in more for path, methods in routes.items()},
        }
    )


def _told(informed: bool) -> str:
    return "informed" if informed else "pending"
