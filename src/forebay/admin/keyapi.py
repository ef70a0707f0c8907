"""Key management over the Unix socket `admin.sock`, which only this user can open: what `forebay key` talks to.

`POST /keys` {name, …} → 201 {"key": text, "record": …, "workers": "informed" | "pending", "warnings": [text, …]}
`GET /keys` → {"keys": [record, …]}
`POST /keys/{id}/revoke` → {"record": …, "workers": …}
"""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from forebay import errors
from forebay.admin.keys import Keys, Unavailable
from forebay.admin.public import Endpoint, build, refuse
from forebay.admin.view import GatewayState
from forebay.clock import Clock
from forebay.errors import Refusal
from forebay.ledger.records import as_json

MAX_BODY: Final = 65_536


def key_app(state: GatewayState, keys: Keys, clock: Clock) -> Starlette:
    async def create(request: Request) -> Response:
        fields = await _json_object(request)
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
            "/keys": {"GET": _explained(listing), "POST": _explained(create)},
            "/keys/{id}/revoke": {"POST": _explained(revoke)},
        }
    )


def _told(informed: bool) -> str:
    return "informed" if informed else "pending"


def _explained(endpoint: Endpoint) -> Endpoint:
    async def explained(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Refusal as e:
            return refuse(e)
        except Unavailable as e:
            return refuse(
                Refusal(
                    503,
                    "database_unavailable",
                    f"The database cannot be used: {e}.",
                    outcome=errors.Outcome.INTERNAL,
                    headers=errors.retry_headers(1),
                )
            )

    return explained


async def _json_object(request: Request) -> dict[str, Any]:
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
        raise errors.bad_request("the body must be a JSON object with the fields of a key")
    return found
