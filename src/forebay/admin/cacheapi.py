"""Cached answers over the Unix socket `admin.sock`: what `forebay cache` talks to.

`GET /cache` ?partition= &most= → {"enabled", "share", "currency", "workers": {family: [{label: …, "value": …}, …]},
"money": {"saved_nano", "background_nano", "net_nano", "unpriced"},
"helper": what the helper process says of itself, or null, "why": why it says nothing; "" where it does,
"helper_process": {"up", "ended", "hung", "why"}, as the supervisor sees it}
`GET /cache/entries` ?entry= or ?partition= &like= &most= → {"entries": [entry, …]}
`POST /cache/purge` {entry, tag, source, partition, model, version, like, at_least}: all that fits all that is given;
{"all": true}: everything → {"purged": how many; null where there is no helper process, and the workers' memory
forgets}

The helper process is asked on `cache.sock`, by a connection for each question: people ask rarely.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from forebay import errors
from forebay.admin.keys import Keys
from forebay.admin.public import Endpoint, explained, json_object
from forebay.admin.view import GatewayState
from forebay.admin.workers import WorkerLink, why_not
from forebay.cache.messages import Answered, Failed, Look, Purge, Purged, Said, Seen, cache_socket
from forebay.errors import Outcome, Refusal
from forebay.state.channel import Channel, ChannelBroken
from forebay.state.messages import Done, FamilySnapshot, Forget

ANSWER: Final = 20.0
"""Seconds the helper process has: a purge by likeness reads every question."""
LARGEST: Final = 64 << 20
"""Bytes of its answer."""
MOST: Final = 1_000
"""Entries that can be asked for."""
WORKER: Final = 5.0
"""Seconds a worker has."""
_FAMILY: Final = "forebay_cache_"
_N: Final = 1
M = TypeVar("M")

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Answered).decode


class HelperAway(Exception):
    """It cannot be asked; says why."""


async def ask_helper(path: Path, message: Said, within: float = ANSWER) -> Answered:
    """Its answer. Raises HelperAway."""
    try:
        async with asyncio.timeout(within):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                data = _encode(message)
                writer.write(len(data).to_bytes(4, "big") + data)
                await writer.drain()
                while True:
                    answer = await _next(reader)
                    if getattr(answer, "n", None) == _N:
                        return answer
            finally:
                writer.transport.abort()
    except TimeoutError:
        raise HelperAway(f"the cache's helper process did not answer within {within:g} s") from None
    except (OSError, asyncio.IncompleteReadError):
        raise HelperAway(
            "the cache's helper process is not there, or is being started; the log says why (process cache, supervisor)"
        ) from None


async def _next(reader: asyncio.StreamReader) -> Answered:
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > LARGEST:
        raise HelperAway(f"the cache's helper process announced an answer of {size:,} bytes")
    try:
        return _decode(await reader.readexactly(size))
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise HelperAway(f"the cache's helper process gave an answer that is none: {e}") from None


class CacheAdmin:
    def __init__(self, state: GatewayState, keys: Keys) -> None:
        self._state = state
        self._keys = keys

    async def stats(self, partition: str, most: int) -> dict[str, Any]:
        config = self._state.config
        families = await self._state.scrape(self._keys)
        helper: Any = None
        why = ""
        try:
            helper = msgspec.json.decode((await self._ask(Look(_N, "stats", partition, most=most), Seen)).json)
        except Refusal as e:
            why = e.message
        workers = {f.name.removeprefix(_FAMILY): _rows(f) for f in families if f.name.startswith(_FAMILY)}
        return {
            "enabled": config.cache.enabled,
            "share": config.cache.share.value,
            "currency": config.ledger.currency,
            "workers": workers,
            "money": net(workers),
            "helper": helper,
            "why": why,
            "helper_process": msgspec.structs.asdict(self._state.helper),
        }

    async def entries(self, look: Look) -> Any:
        """Raises Refusal."""
        return msgspec.json.decode((await self._ask(look, Seen)).json)

    async def purge(self, purge: Purge) -> int | None:
        """How many; None: of the workers' memory alone, which does not count. Raises Refusal."""
        cache = self._state.config.cache
        if not cache.enabled or cache.helped or purge.like:
            return (await self._ask(purge, Purged)).count
        told = msgspec.convert(purge, Forget, from_attributes=True)
        answers = await asyncio.gather(*(_told(link, told) for link in self._state.workers.links))
        if silent := [why for why in answers if why]:
            raise _unavailable("; ".join(silent))
        return None

    async def _ask(self, message: Said, wanted: type[M]) -> M:
        """Raises Refusal."""
        cache = self._state.config.cache
        if not cache.enabled:
            raise Refusal(
                409, "cache_off", "No answers are cached: cache.enabled is false.", outcome=Outcome.BAD_REQUEST
            )
        if not cache.helped:
            raise Refusal(
                409,
                "cache_not_helped",
                "These answers are in the workers' memory alone, for cache.disk_bytes is 0 and neither cache.redis nor "
                "cache.semantic is set. They cannot be listed, and are purged by anything but likeness.",
                outcome=Outcome.BAD_REQUEST,
            )
        try:
            answer = await ask_helper(cache_socket(self._state.config.state_dir), message)
        except HelperAway as e:
            raise _unavailable(str(e)) from e
        if isinstance(answer, Failed):
            why = answer.why
            raise Refusal(409, "cache_failed", f"It could not be done: {why}.", outcome=Outcome.INTERNAL)
        if not isinstance(answer, wanted):
            raise _unavailable(
                f"the cache's helper process answered {type(answer).__name__}: are two versions running?"
            )
        return answer


async def _told(link: WorkerLink, message: Forget) -> str:
    """Why it has not forgotten; "": it has."""
    try:
        async with asyncio.timeout(WORKER):
            channel = await Channel.connect(str(link.path))
            try:
                answer = await channel.ask(message)
            finally:
                await channel.close()
        if not isinstance(answer, Done):
            raise ChannelBroken(f"answered {type(answer).__name__}, not Done")
    except (OSError, ChannelBroken, TimeoutError) as e:
        return f"worker {link.index} has not forgotten anything: {why_not(e, WORKER)}"
    return ""


def _unavailable(why: str) -> Refusal:
    return Refusal(503, "cache_unavailable", f"{why}.", outcome=Outcome.INTERNAL, headers=errors.retry_headers(1))


def cache_routes(state: GatewayState, keys: Keys) -> dict[str, dict[str, Endpoint]]:
    admin = CacheAdmin(state, keys)

    async def stats(request: Request) -> Response:
        asked = request.query_params
        return JSONResponse(await admin.stats(asked.get("partition", ""), _most(asked.get("most", "50"))))

    async def entries(request: Request) -> Response:
        asked = request.query_params
        texts = {name: asked.get(name, "") for name in ("partition", "like", "entry")}
        look = Look(_N, "entries", **texts, most=_most(asked.get("most", "50")))
        return JSONResponse({"entries": await admin.entries(look)})

    async def purge(request: Request) -> Response:
        return JSONResponse({"purged": await admin.purge(_purge_of(await json_object(request, "what to purge")))})

    return {
        "/cache": {"GET": explained(stats)},
        "/cache/entries": {"GET": explained(entries)},
        "/cache/purge": {"POST": explained(purge)},
    }


class _Purging(msgspec.Struct, forbid_unknown_fields=True):
    entry: str = ""
    tag: str = ""
    source: str = ""
    partition: str = ""
    model: str = ""
    version: str = ""
    like: str = ""
    at_least: float = 0.9
    all: bool = False


def _purge_of(fields: dict[str, Any]) -> Purge:
    """Raises Refusal."""
    try:
        asked = msgspec.convert(fields, _Purging)
    except msgspec.ValidationError as e:
        raise errors.bad_request(f"What to purge is not as expected: {e}.", code="wrong_type") from e
    if not 0 < asked.at_least <= 1:
        raise errors.bad_request(f"at_least must be above 0 and at most 1, not {asked.at_least:g}.", param="at_least")
    named = {name: value for name, value in msgspec.structs.asdict(asked).items() if type(value) is str and value}
    if not named and not asked.all:
        raise errors.bad_request(
            'Nothing is said of what to purge: entry, tag, source, partition, model, version or like; or {"all": true}.'
        )
    if named and asked.all:
        raise errors.bad_request(f'"all" is everything, but {", ".join(named)} is given, too.', param="all")
    return Purge(_N, **named, at_least=asked.at_least)


def _most(text: str) -> int:
    """Raises Refusal."""
    if not text.isdecimal() or not 1 <= int(text[:9]) <= MOST:
        raise errors.bad_request(f"most must be a number from 1 to {MOST:,}, not '{errors.shown(text)}'.", param="most")
    return int(text)


def net(workers: Mapping[str, list[dict[str, Any]]]) -> dict[str, int]:
    """What the caches saved, less what engine calls cost that no client waited for, in nano-units of the currency.
    `unpriced`: of those calls, how many have no price. Calls to a model as judge are its key's own usage."""

    def total(family: str) -> int:
        return int(sum(row["value"] for row in workers.get(family, ())))

    saved, spent = total("saved_nano"), total("background_nano")
    return {
        "saved_nano": saved,
        "background_nano": spent,
        "net_nano": saved - spent,
        "unpriced": total("background_unpriced"),
    }


def _rows(family: FamilySnapshot) -> list[dict[str, Any]]:
    rows = [{**dict(zip(family.labels, labels, strict=True)), "value": value} for labels, value in family.values]
    for labels, counts, total in family.histograms:
        rows.append({**dict(zip(family.labels, labels, strict=True)), "count": sum(counts), "sum": total})
    return rows
