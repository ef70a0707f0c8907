"""docs/reference.md, written from the code: `python -m forebay.cli.reference > docs/reference.md`."""

# ruff: noqa: E501 - a row of a Markdown table is one line

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import Any, Final

import forebay
from forebay import errors
from forebay.admin.alerts import make_alerting
from forebay.admin.ingest import Ingest
from forebay.admin.keys import Keys
from forebay.admin.metrics import exposition
from forebay.admin.view import GatewayState
from forebay.api.routes import ROUTES
from forebay.cli.main import COMMANDS, EX_CONFIG, USAGE
from forebay.cli.supervisor import EX_FAILED, EX_OK, EX_OSERR, EX_UNAVAILABLE
from forebay.clock import SystemClock
from forebay.config.cache import Cache
from forebay.config.cache_prefix import Prefix
from forebay.config.models import Config
from forebay.errors import Outcome, Refusal
from forebay.gateway import callers, forwarding
from forebay.gateway.admission_view import REASONS as SHED_REASONS
from forebay.gateway.admitting import REASONS, Admitting
from forebay.gateway.app import Gateway
from forebay.gateway.cache_telemetry import CacheTelemetry
from forebay.gateway.caching import Caching
from forebay.gateway.callers import Callers
from forebay.gateway.control import Control
from forebay.gateway.fleet import Fleet
from forebay.gateway.logs import LogWriter, RequestLog
from forebay.gateway.open_books import open_books
from forebay.gateway.prefix_watch import PromptWatch
from forebay.gateway.telemetry import Telemetry, histogram_snapshot
from forebay.ledger.pricing import PriceBook
from forebay.policy.placement import RoundRobin
from forebay.state.messages import FamilySnapshot
from forebay.wire.server import Server
from forebay.wire.tasks import Tasks
from forebay.wire.ticker import Ticker
from forebay.wire.upstream import Failure

_PACKAGE: Final = Path(forebay.__file__).parent

_ENDS: Final = MappingProxyType(
    {
        Outcome.OK: "The client has the whole answer.",
        Outcome.HIT: "Answered from a cache, or with an answer that another request's engine call brought.",
        Outcome.BAD_REQUEST: "The request cannot be understood or is over a limit.",
        Outcome.UNAUTHORIZED: "No key, or one that does not count.",
        Outcome.FORBIDDEN: "The key does not allow it; on the admin port, a strange Host.",
        Outcome.NOT_FOUND: "No such route, method, model or request.",
        Outcome.RATE_LIMITED: "Too many requests of one kind.",
        Outcome.OVERLOADED: "Contention: connections, engines or the queue are full, or a promise could not be kept.",
        Outcome.QUOTA: "A quota is used up. *Not yet.*",
        Outcome.NO_ENGINE: "No engine can take it.",
        Outcome.EXPIRED: "It waited for its admission as long as its class may.",
        Outcome.CLIENT_GONE: "The client left before the end.",
        Outcome.CANCELLED: "`POST /v1/requests/{id}/cancel`.",
        Outcome.ENGINE_REFUSED: "The engine answered with a 4xx of its own, which was passed on.",
        Outcome.ENGINE_ERROR: "The engine failed before the first byte, and so did the other tries.",
        Outcome.ENGINE_TIMEOUT: "The engine was too slow.",
        Outcome.ENGINE_CUT: "The answer stopped after its first byte.",
        Outcome.DRAINED: "The shutdown's deadline ended it.",
        Outcome.INTERNAL: "A defect of the gateway; its log has the trace.",
    }
)


def page() -> str:
    """The whole page, ending in a line end."""
    sections = (_routes(), _headers(), _refusals(), _outcomes(), _metrics(), _processes())
    return "\n".join(line for section in sections for line in section).rstrip("\n") + "\n"


# --- routes and headers ----------------------------------------------------------------------------------------------


def _routes() -> Iterator[str]:
    yield """\
# Reference

Written from the code by `python -m forebay.cli.reference > docs/reference.md`. The configuration is in
[configuration.md](configuration.md), the built-in engine's API in [engine.md](engine.md).

## API

On `listeners`. A key is sent as `Authorization: Bearer KEY`, or as `api-key` or `x-api-key`.

| route | label | |
|---|---|---|"""
    for route in ROUTES.values():
        streams = ', streamed with `"stream": true`' if route.streams else ""
        yield f"| `POST {route.path.decode()}` | `{route.name}` | To an engine{streams}. `model` and `{route.content}` are required. |"
    yield """\
| `GET /v1/models` | `other` | The models that the key may use, aliases among them. |
| `GET /v1/models/NAME` | `other` | One of them. |
| `GET /v1/usage` | `other` | The key's own use, and what its limits are at: [usage.md](usage.md#a-callers-own-usage). |
| `POST /v1/feedback` | `other` | What an answer of a cache was worth: [cache.md](cache.md#saying-that-an-answer-was-wrong). |
| `POST /v1/requests/ID/cancel` | `other` | Ends the running requests of the same key whose `X-Request-Id` is ID. |
| `OPTIONS` anything | `other` | CORS preflight, without a key. |

Bodies are JSON objects in UTF-8, not compressed. The gateway reads `model`, `stream`, `stream_options`, `n`,
`max_tokens`, `max_completion_tokens` and whether the content is there; the rest passes as it is, known or not. A body
changes only where it must: an alias is replaced by the engine's name, a model's `defaults` are filled in, and a stream
whose client did not ask for usage asks the engine for it (the usage event is then left out of the answer). Engines of
some kinds are [spoken to otherwise](architecture.md#engines-that-are-spoken-to-otherwise).

For models of the kind `anthropic` there are chats alone. `messages` (texts, pictures, PDF files, tool calls and their
results), `tools`, `tool_choice`, `parallel_tool_calls`, `stop`, `temperature` (to 1), `top_p`, `user`,
`response_format` (`json_schema`), `reasoning_effort` and the bound on tokens (8,192 without one) are translated;
Anthropic's own `thinking`, `top_k`, `cache_control` and `container` pass. Fields without a counterpart get 400, but for
those that change no answer (`seed`, `store`, `service_tier` and the like), which are left out. Thinking comes as
`reasoning_content`, and with its signatures as `thinking_blocks`: send the latter back with the assistant's message.

A stream's events pass byte for byte, in order. Those before the first content (a role, say) are held until content
comes. A stream that breaks ends in an error event and a closed connection, without `[DONE]` and without the final
chunk.

## Admin port

On `admin`. It asks for no key and shows no secret. On a loopback address it answers only to `localhost` and IP
addresses as Host.

| route | |
|---|---|
| `GET /health` | 200 while the admin process lives: state of processes, engines and database as JSON. `status` is `ok`, or `degraded` where an engine is unhealthy, a worker does not answer, the database cannot be used, or `/ready` is not 200. |
| `GET /ready` | 200 where work may be sent here, else 503; `reasons` says why not. |
| `GET /admin/engines` | Every engine with its `state`, what runs on it and why it gets no requests: [what that means](health.md#who-gets-requests). |
| `GET /admin/admission` | What admission is doing, as JSON: [what is on it](admission.md#looking-at-it). |
| `GET /admin/usage` | Who used what, and what it cost, as JSON or CSV: [what may be asked](usage.md#over-http). |
| `GET /metrics` | Prometheus text or OpenMetrics, as Accept asks; the sum of all processes. |

The Unix socket `run/admin.sock` in the state directory manages keys, accounts, limits and engines, for the user that
runs Forebay: [`/keys`, `/accounts`, `/limits`](keys.md#over-http); `GET /engines`, `POST /engines`, `POST
/engines/NAME/drain`, `POST /engines/NAME/resume`, `DELETE /engines/NAME`; `GET /alerts`, `POST /alerts/test`. `forebay
key`, `forebay account`, `forebay limit`, `forebay engines` and `forebay alerts` talk to it. `GET /usage` is the report of
the admin port; `GET /usage/key` is what workers ask."""


def _headers() -> Iterator[str]:
    words: dict[str, list[str]] = {}
    for word, class_ in callers._CLASS_WORDS.items():
        words.setdefault(class_.value, []).append(word.decode())
    classes = "; ".join(f"`{c}` ({', '.join(f'`{w}`' for w in ws if w != c)})" for c, ws in words.items())
    yield f"""
## Headers of a request

| header | |
|---|---|
| `X-Request-Id` | 1 to {forwarding.MAX_ID} letters, digits or `._:-`: used as it is; otherwise an id is made. It goes to the engine, into the log and back to the client. |
| `X-Priority`, `X-User-Tier` | The request's class: {classes}. Lowers the key's class; raises it only where the key may. The lower one of two counts; another word is 400. |
| `X-Forwarded-For` | Believed of `trusted_proxies`; decides whose failed keys are counted. |
| `Forebay-Explain: admission, cache` | The answer is to say what admission decided, see `Forebay-*` below, and why caches had none. A list of names; others are passed over. |
| `X-Forebay-Cache`, `X-Forebay-Knowledge`, `X-Forebay-Cache-Tags`, `X-Forebay-Cache-Sources`, `Cache-Control` | What it asks of caches: [cache.md](cache.md#what-a-caller-can-ask). |
| `Expect: 100-continue` | Answered once key and head are found good. |

To an engine go all headers of the client but these, hop-by-hop headers and names listed in `Connection`:
{_names(forwarding._NOT_UPSTREAM)}.
`Host`, `Content-Type`, `Content-Length`, `Accept-Encoding: identity`, `X-Request-Id` and the engine's own
`Authorization` are said anew.

## Headers of an answer

| header | |
|---|---|
| `X-Request-Id` | On every answer to a request whose head was understood. |
| `X-Forebay-Reason` | On every refusal of the gateway: its code. An engine's own 4xx has none. |
| `Retry-After` | Whole seconds, at most {errors.MAX_RETRY_AFTER}. |
| `X-Should-Retry: false` | The OpenAI SDKs then do not try again. |
| `Forebay-Predicted-TTFT-Ms` | Where `Forebay-Explain` asks and admission is enabled: milliseconds from its arrival within which its first token was promised when it was admitted. On a refusal: what was predicted when it came, where something was. |
| `Forebay-Queue-Position` | The same: how many were ahead of it when it came to wait; 0 where it went at once. Not on a refusal at the door. |
| `Forebay-Waited-Ms` | The same: milliseconds that it waited for its admission. |
| `X-Forebay-Cache` | Where `cache` is enabled: `exact`, `semantic`, `stale`, `flight`, `miss` or `bypass`. |
| `X-Forebay-Cache-Entry` | The answer's id; of a miss, the one under which it is kept, if it is. |
| `X-Forebay-Cache-Age`, `X-Forebay-Cache-Similarity` | Of a known answer, seconds; of `semantic` and of a near miss, the cosine. |
| `X-Forebay-Cache-Why` | Where `Forebay-Explain: cache` asks: why it was a miss or not looked for. |
| `Allow`, `WWW-Authenticate` | With 405 and 401. |
| `Access-Control-*` | For the origins in `cors.origins`. |

From an engine's answer everything is passed but:
{_names(forwarding._NOT_DOWNSTREAM)}."""


def _names(names: Iterable[bytes]) -> str:
    return _wrapped(", ".join(f"`{name.decode()}`" for name in sorted(names)))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


# --- refusals --------------------------------------------------------------------------------------------------------


class _Number(float):
    """Prints as N wherever a message shows it."""

    def __format__(self, spec: str) -> str:
        return "N"


def _refusals() -> Iterator[str]:
    yield """
## Refusals

`{"error": {"message", "type", "param", "code"}}`, as OpenAI's API. Words in capitals stand for what the case fills in.
"Then" is what the headers say about trying again; *closes* means that the connection is closed behind the answer. What
is marked *not yet* is in the vocabulary for rates, quotas and queues, and nothing says it so far.

| status | code | type | message | then |
|---|---|---|---|---|"""
    rows: dict[tuple[int, str], str] = {}
    for refusal, then in _vocabulary():
        rows.setdefault((refusal.status, refusal.code), _row(refusal, then))
    yield from (rows[key] for key in sorted(rows))


def _row(refusal: Refusal, then: list[str]) -> str:
    for name, _ in refusal.headers:
        if name == b"retry-after":
            then.append("`Retry-After`")
        elif name == b"x-should-retry":
            then.append("no retry")
    if refusal.close:
        then.append("closes")
    envelope: dict[str, Any] = refusal.envelope()["error"]  # type: ignore[assignment]
    message = refusal.message.replace("|", "\\|")
    return f"| {refusal.status} | `{refusal.code}` | `{envelope['type']}` | {message} | {', '.join(then)} |"


def _vocabulary() -> Iterator[tuple[Refusal, list[str]]]:
    """Each code in use with an example, the best words for it first; then the constructors that nobody calls."""
    calls = [call for module, call in _calls("Refusal", "overloaded", "bad_request") if module != "errors.py"]
    built = [refusal for call in calls if (refusal := _built(call)) is not None]
    spoken, codes = _spoken(), {refusal.code for refusal in built}
    idle: list[tuple[Refusal, list[str]]] = []
    for name, function in vars(errors).items():
        made = inspect.isfunction(function) and function.__annotations__.get("return") == "Refusal"
        if not made or name.startswith("_") or name in ("overloaded", "bad_request"):
            continue
        refusal = _example(function)
        if name in spoken:
            yield refusal, []
        else:
            idle.append((refusal, [] if refusal.code in codes else ["*not yet*"]))
    yield from ((refusal, []) for refusal in built if refusal.message != "…")
    yield from ((errors.overloaded(code, f"{text}.", 1.0), []) for code, text in REASONS.items())
    yield from idle
    yield from ((refusal, []) for refusal in built)
    yield errors.bad_request("What is wrong, and with which field."), []


def _example(function: FunctionType) -> Refusal:
    values: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is inspect.Parameter.empty:
            words = name.upper()
            values[name] = _Number(1) if parameter.annotation in ("float", "int") else words
            if parameter.annotation == "list[str]":
                values[name] = [words]
    made: Refusal = function(**values)
    return made


def _built(call: ast.Call) -> Refusal | None:
    """What a call with its code written out makes; None where the code is a variable."""
    options = {k.arg: k.value for k in call.keywords}
    headers = errors.retry_headers(1.0) if "retry_headers" in ast.dump(options.get("headers", call.func)) else ()
    message = _text(call.args[-1 if _name(call) == "Refusal" else 0]) if call.args else "…"
    match _name(call), call.args:
        case "overloaded", [ast.Constant(str(code)), words, *_]:
            return errors.overloaded(code, _text(words), 1.0)
        case "bad_request", [_] if isinstance(code_ := options.get("code"), ast.Constant):
            return errors.bad_request(message, code=str(code_.value))
        case "Refusal", [ast.Constant(int(status)), ast.Constant(str(code)), _]:
            # The status decides the type; how it is counted is not on the page.
            return Refusal(status, code, message, outcome=Outcome.INTERNAL, headers=headers)
        case _:
            return None


def _text(node: ast.expr) -> str:
    """A message as written, what it fills in in capitals; "…" for one that is made elsewhere."""
    match node:
        case ast.Constant(value):
            return str(value)
        case ast.JoinedStr(parts):
            return "".join(map(_text, parts))
        case ast.FormattedValue(value):
            names = [x.id for x in ast.walk(value) if isinstance(x, ast.Name) and x.id != "errors"]
            return names[0].upper() if names and len(names[0]) > 1 else "WHY"
        case _:
            return "…"


def _spoken() -> set[str]:
    """Names of the constructors that something outside errors.py calls or passes on."""
    names: set[str] = set()
    for module, tree in _modules():
        if module != "errors.py":
            names |= {x.attr for x in ast.walk(tree) if isinstance(x, ast.Attribute)}
            names |= {x.id for x in ast.walk(tree) if isinstance(x, ast.Name)}
    return names


def _calls(*names: str) -> Iterator[tuple[str, ast.Call]]:
    for module, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node) in names:
                yield module, node


def _modules() -> Iterator[tuple[str, ast.Module]]:
    """Everything but the emulated engine, which refuses in vLLM's words."""
    for path in sorted(_PACKAGE.rglob("*.py")):
        module = path.relative_to(_PACKAGE).as_posix()
        if not module.startswith("sim/") and path != Path(__file__):
            yield module, ast.parse(path.read_text())


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


# --- outcomes and metrics --------------------------------------------------------------------------------------------


def _outcomes() -> Iterator[str]:
    yield """
## Outcomes

How a request ended, in metrics and in the log.

| outcome | |
|---|---|"""
    yield from (f"| `{outcome.value}` | {_ENDS[outcome]} |" for outcome in Outcome)


def _metrics() -> Iterator[str]:
    families = {family.name: family for family in asyncio.run(_families())}
    build = re.search(r"^forebay_build_info\{(.*)\}", exposition((), "")[0].decode(), re.MULTILINE)
    labels = re.findall(r'(\w+)="', build[1]) if build else []
    yield """
## Metrics

Counters are summed over processes and do not fall when one restarts.

| metric | kind | labels | |
|---|---|---|---|"""
    yield f"| `forebay_build_info` | gauge | {_labels(labels)} | What runs here. |"
    for family in families.values():
        name = family.name.removesuffix("_total") + "_total" if family.kind == "counter" else family.name
        yield f"| `{name}` | {family.kind} | {_labels(family.labels)} | {family.help} |"
    routes = ", ".join(f"`{r.name}`" for r in ROUTES.values())
    failures = ", ".join(f"`{f.value}`" for f in Failure)
    edges = [f"`{f.name}`: {', '.join(f'{e:g}' for e in f.edges)}" for f in _timed()]
    values = f"""Values of labels: `route` is {routes}, `other`, or `-` where none was understood; `model` is the name asked
for, from the catalogue, or `-`; `class` is `vip`, `normal`, `low` or `-`; `outcome` as above; `engine` is its name in the
configuration; `kind` is `prompt` or `completion`; `decision` is `admit`, `wait` or the code of a refusal; `reason` is {", ".join(f"`{r}`" for r in SHED_REASONS)}; `failure` is {failures}, or what an answer showed: `status_3xx`,
`status_4xx`, `status_5xx`, `overloaded`, `error_event`, `empty_stream`, `not_json`, `not_foldable`, `coding`, `too_large`,
`event_too_large`, `error_too_large`, `other_model`, `stalled`; `event` is why a breaker opened, `failures` or `stalled`, or
`closed`; `prompt` is `prefill_engine` or `whole`; `reservation` is `safe`, `waited` or `degraded`; `tokens` is `all`, `believed_cached` or `cached`; `how` is `exact` or
`estimated`, and of aborts `told`, `failed` or `left_out`; `rule` is an [alert's type](alerts.md), `receiver` its name in the configuration, `result` is `delivered`, `again`, `refused` or `dropped`, and of caches [what they had](cache.md#what-a-caller-can-ask), why an answer was not kept, or what came of a look-up; `said` is `good` or `bad`; `code` is a refusal's; `state` is a state of
[lifecycle.py](../src/forebay/lifecycle.py), and of engines [one of these](health.md#who-gets-requests); `process` is `supervisor`, `admin` or
`worker-0`. A family holds at most 4,096 series a worker; what is beyond is counted under `_other`."""
    yield f"""
{_wrapped(values)}

Upper edges of the histograms in seconds, with the default `metrics` section (its two values are always edges):

- {chr(10).join(edges).replace(chr(10), chr(10) + "- ")}"""


def _labels(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _timed() -> Iterator[FamilySnapshot]:
    telemetry = Telemetry(Config().metrics)
    for family in (telemetry.ttft, telemetry.itl, telemetry.total):
        family.series("-", "-", "-")
    hits = CacheTelemetry().seconds
    hits.series("-")
    return (f for f in (*telemetry.snapshot(), histogram_snapshot(hits)) if f.kind == "histogram")


async def _families() -> list[FamilySnapshot]:
    """What a worker and an admin process that serve nobody report."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config(state_dir=Path(folder))
        state = GatewayState(config, "-", 1)
        (Path(folder) / "run").mkdir()
        keys = Keys("", config.state_dir, state.workers, SystemClock())
        make_alerting(state, keys, SystemClock())
        state.ledger = Ingest("", config.state_dir, config.ledger.currency, 1, SystemClock(), lambda: "")
        writer, ticker = LogWriter(2), Ticker(asyncio.get_running_loop())
        gateway = Gateway(
            config,
            Fleet(Tasks(), ticker, time.monotonic),
            Callers(config.callers),
            RoundRobin(),
            Telemetry(config.metrics),
            RequestLog(writer, config.logging),
            ticker,
        )
        admission = config.admission.model_copy(update={"enabled": True})
        gateway.admitting = Admitting(admission, asyncio.get_running_loop())
        gateway.watching = PromptWatch(Prefix(watch=True), gateway, asyncio.get_running_loop())
        caches = config.model_copy(update={"cache": Cache(enabled=True)})
        gateway.caching = Caching(gateway, caches, asyncio.get_running_loop())
        gateway.booking = open_books(config, PriceBook(), 0, asyncio.get_running_loop())
        server = Server(gateway, config.limits, config.timeouts, ticker)
        found = [*Control(gateway, server, writer, "-", 0).snapshot().families, *await state.scrape(keys)]
        await server.close()
        await gateway.booking.close()
        await gateway.caching.close()
        gateway.watching.close()
    return found


# --- processes -------------------------------------------------------------------------------------------------------


def _processes() -> Iterator[str]:
    yield """
## Commands

`forebay COMMAND --help` has the options.

| command | |
|---|---|"""
    yield from (f"| `forebay {name}` | {command.summary} |" for name, command in COMMANDS.items())
    yield f"""
## Exit codes

| code | of `forebay serve` |
|---|---|
| {EX_OK} | A drain, by SIGTERM or SIGINT. |
| {EX_FAILED} | A worker or the admin process failed five times in a row before it was ready. |
| {USAGE} | The command line makes no sense. |
| {EX_UNAVAILABLE} | Another Forebay uses the state directory; or the local engine cannot be had. |
| {EX_OSERR} | An address is taken, or the state directory cannot be used. |
| {EX_CONFIG} | The configuration cannot be used. systemd: `RestartPreventExitStatus={EX_CONFIG}`. |

`forebay check`: {EX_OK} or {EX_CONFIG}. `forebay key`, `forebay account` and `forebay limit`: {EX_OK}; 1 for an id or a
name that does not exist; {USAGE} for a wrong field; {EX_UNAVAILABLE} where neither the admin process nor the database can be used; {EX_CONFIG} as above.
`forebay engines`: {EX_OK}; 1 for an engine that does not exist, or that the configuration has; {USAGE} for a wrong field;
{EX_UNAVAILABLE} where no gateway runs.
`forebay prices`: {EX_OK}; 1 where no price is known; {USAGE} for a wrong field; {EX_CONFIG} for a configuration or a
price file that cannot be used.
A command line that cannot be understood is {USAGE} for every command. `forebay bench`: {EX_OK}; 1 where no request completed; {USAGE} where the load could not be made; 130 interrupted.
`forebay simulate`: {EX_OK}; {USAGE} where the workload or a setting cannot be used, or a result cannot be written; 130
interrupted, after a report of what was done. `forebay calibrate`: {EX_OK}; {USAGE} where there is no profile.
`forebay replay`: {EX_OK}; 1 where a decision differs or the file was changed; {USAGE} where it cannot be read or
simulated; {EX_CONFIG} for `--rules` that cannot be used.
`forebay launch`: {EX_OK} after a signal; {EX_FAILED} where an engine was given up; {USAGE} for an engine that is not there; {EX_UNAVAILABLE} where
something is in the way of one, {EX_OSERR} where only a port is; {EX_CONFIG} as above, and for what an engine does not support.
`forebay engine`: see [engine.md](engine.md).

## Signals

To the supervisor, which is the process that `forebay serve` started. The other processes are told by it.

| signal | |
|---|---|
| SIGTERM, SIGINT | Readiness goes false; after `timeouts.drain_delay` no new work is taken; what runs may finish within `timeouts.drain`. |
| a second one | What still runs is killed at once. |
| SIGHUP | The file is read again; certificates too. A file that cannot be used changes nothing. |"""


if __name__ == "__main__":
    sys.stdout.write(page())
