"""Keys, accounts and limits over the Unix socket `admin.sock`, which only this user can open: what `forebay key`,
`forebay account` and `forebay limit` talk to. An answer to a change has "workers": "informed" | "pending".

`POST /keys` {name, …} → 201 {"key": text, "record": …, "warnings": [text, …]}
`GET /keys` → {"keys": [record, …]}
`POST /keys/{id}/rotate` {overlap} → {"key": text, "record": …, "warnings": …}
`POST /keys/{id}/expire` {expires}, `/keys/{id}/revoke`, `/keys/{id}/suspend`, `/keys/{id}/resume` → {"record": …}
`POST /accounts` {organisation, department, project, user, labels} → 201 {"account": …}
`GET /accounts` → {"accounts": [account, …]}
`POST /accounts/rename` {organisation, …, to} → {"account": …, "warnings": …}
`POST /accounts/labels` {organisation, …, labels}, `/accounts/suspend`, `/accounts/resume` {organisation, …} →
{"account": …}
`POST /limits` {name, …} → {"limit": …, "warnings": …}
`GET /limits` → {"limits": [limit, …]}
`POST /limits/remove` {name} → {"limit": …}

What each does is said in `ledger.directory`. Beside them the routes of engineapi, alertapi, cacheapi and of usage.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from forebay import errors
from forebay.admin.engineapi import engine_routes
from forebay.admin.engines import Engines
from forebay.admin.keys import Keys
from forebay.admin.public import Endpoint, build, explained, json_object
from forebay.admin.view import GatewayState
from forebay.config.models import Config
from forebay.errors import Refusal
from forebay.ledger.operations import OPERATIONS, Operation
from forebay.ledger.records import LEVELS


def private_app(state: GatewayState, keys: Keys, engines: Engines, *more: dict[str, dict[str, Endpoint]]) -> Starlette:
    """`more`: other routes, as `public.build` takes them."""
    routes: dict[str, dict[str, Endpoint]] = {}
    for operation in OPERATIONS:
        routes.setdefault(operation.path, {})[operation.method] = explained(_endpoint(operation, state, keys))
    for others in (engine_routes(engines), *more):
        routes |= others
    return build(routes)


def _endpoint(operation: Operation, state: GatewayState, keys: Keys) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        fields = await json_object(request, operation.body) if operation.body else {}
        from forebay.ledger.accounts import UnknownAccount
        from forebay.ledger.keystore import UnknownKey
        from forebay.ledger.limitstore import UnknownLimit
        from forebay.ledger.lists import BadField

        try:
            answer, informed = await keys.ask(operation, fields, request.path_params.get("id", ""))
        except BadField as e:
            raise errors.bad_request(f"{e}.", param=e.field) from e
        except UnknownKey as e:
            raise Refusal(404, "key_not_found", str(e), outcome=errors.Outcome.NOT_FOUND, param=e.field) from e
        except UnknownAccount as e:
            raise Refusal(404, "account_not_found", str(e), outcome=errors.Outcome.NOT_FOUND, param=e.field) from e
        except UnknownLimit as e:
            raise Refusal(404, "limit_not_found", str(e), outcome=errors.Outcome.NOT_FOUND, param=e.field) from e
        if operation.changes:
            answer["workers"] = "informed" if informed else "pending"
        if operation.name == "create key":
            answer["warnings"] += state.unknown_models(tuple(answer["record"]["models"]))
        if operation.name == "rename account":
            answer["warnings"] += _named_in(state.config, fields)
        if operation.name == "set limit" and answer["limit"]["name"] in {q.name for q in state.config.quotas}:
            answer["warnings"].append("it takes the place of the configuration's quota of the same name")
        return JSONResponse(answer, status_code=operation.status)

    return endpoint


def _named_in(config: Config, fields: Mapping[str, object]) -> list[str]:
    """A warning for each part of the configuration that goes on naming a renamed account."""
    names = {level: fields[level] for level in LEVELS if fields.get(level) is not None}
    names.setdefault("organisation", "default")
    keys = [k.name for k in config.callers.keys if all(getattr(k, level) == name for level, name in names.items())]
    some = ", ".join(keys[:10]) + (", …" if len(keys) > 10 else "")
    found = [f"the configuration's keys {some} name it still: change callers.keys, and reload"] if keys else []
    level = max(names, key=LEVELS.index)
    for quota in config.quotas:
        given = {x: getattr(quota, x) for x in LEVELS[: LEVELS.index(level) + 1] if getattr(quota, x) is not None}
        if level in given and all(names.get(x) == y for x, y in given.items()):
            found.append(f"the configuration's quota {quota.name} names it still: change quotas, and reload")
    return found
