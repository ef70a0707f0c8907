"""Engines over the Unix socket `admin.sock`: what `forebay engines` talks to.

`GET /engines` → {"engines": [row, …]}
`POST /engines` {name, url, …} → 201 {"engine": name, "workers": "informed" | "pending"}; ?replace=true: also
in the place of one added before
`POST /engines/{name}/drain`, `POST /engines/{name}/resume`, `DELETE /engines/{name}` → {"engine": name, "workers": …}
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from forebay.admin.engines import Engines
from forebay.admin.public import Endpoint, json_object, refuse
from forebay.errors import Refusal


def engine_routes(engines: Engines) -> dict[str, dict[str, Endpoint]]:
    async def listing(request: Request) -> Response:
        return JSONResponse({"engines": await engines.rows()})

    async def add(request: Request) -> Response:
        replace = request.query_params.get("replace") == "true"
        try:
            fields = await json_object(request, "the fields of an engine, as under engines in forebay.yaml")
            informed = await engines.add(fields, replace=replace)
        except Refusal as e:
            return refuse(e)
        return _answer(str(fields["name"]), informed, 201)

    def change(call: Callable[[str], Awaitable[bool]]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            name = request.path_params["name"]
            try:
                return _answer(name, await call(name))
            except Refusal as e:
                return refuse(e)

        return endpoint

    return {
        "/engines": {"GET": listing, "POST": add},
        "/engines/{name:path}/drain": {"POST": change(engines.drain)},
        "/engines/{name:path}/resume": {"POST": change(engines.resume)},
        "/engines/{name:path}": {"DELETE": change(engines.remove)},
    }


def _answer(name: str, informed: bool, status: int = 200) -> Response:
    return JSONResponse({"engine": name, "workers": "informed" if informed else "pending"}, status_code=status)
