"""Alerts over the Unix socket `admin.sock`: what `forebay alerts` talks to.

`GET /alerts` → {"alerts": [the generic payload and "waits_for": receivers that have still to get it, …] newest first,
"receivers": [row, …], "why": why past alerts cannot be read; "" where they can}
`POST /alerts/test` {"receivers": [name, …]}, all where none is named → {"tests": [{receiver, delivered, answer, …}, …]}
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from forebay import errors
from forebay.admin.alerting import Alerting
from forebay.admin.public import Endpoint, json_object, refuse
from forebay.errors import Refusal


def alert_routes(alerting: Alerting) -> dict[str, dict[str, Endpoint]]:
    async def listing(request: Request) -> Response:
        return JSONResponse(await alerting.rows())

    async def test(request: Request) -> Response:
        try:
            body = await json_object(request, 'the names of receivers: {"receivers": []}')
            names = body.get("receivers", [])
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise errors.bad_request("receivers: a list of names is needed.", param="receivers")
            try:
                return JSONResponse({"tests": await alerting.test(names)})
            except KeyError as e:
                raise errors.bad_request(f"receivers: {e.args[0]}.", param="receivers") from e
        except Refusal as e:
            return refuse(e)

    return {"/alerts": {"GET": listing}, "/alerts/test": {"POST": test}}
