"""A worker's control socket: the admin process asks for snapshots and pushes keys."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from time import monotonic, time

from forebay.config.models import Class
from forebay.gateway.admission_view import admission_state, reasons
from forebay.gateway.app import Gateway
from forebay.gateway.booking import Booking
from forebay.gateway.fleet_view import engine_gauges, engine_states
from forebay.gateway.logs import LogWriter
from forebay.gateway.telemetry import counter_snapshot, gauge
from forebay.state.channel import Channel, ChannelBroken
from forebay.state.live import live_of
from forebay.state.messages import (
    AdmissionState,
    Budgets,
    Done,
    FamilySnapshot,
    Follow,
    Forget,
    GetAdmission,
    GetBudgets,
    GetPrefix,
    GetSnapshot,
    NoAdmission,
    PrefixState,
    SetEngines,
    SetKeys,
    SetUse,
    Snapshot,
)
from forebay.wire.server import Server
from forebay.wire.tasks import Tasks

log = logging.getLogger("forebay.worker")


class Control:
    """Mutable state: the open channels, so that they are closed at the end."""

    def __init__(self, gateway: Gateway, server: Server, writer: LogWriter, boot: str, index: int) -> None:
        self._gateway = gateway
        self._server = server
        self._writer = writer
        self._boot = boot
        self._index = index
        self._listener: asyncio.Server | None = None
        self._channels = Tasks()

    async def listen(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # noqa: ASYNC240 - one call, before the first request
        mask = os.umask(0o077)
        try:
            self._listener = await asyncio.start_unix_server(self._accept, str(path))
        finally:
            os.umask(mask)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await self._channels.drain()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._channels.spawn(self._serve(Channel(reader, writer)))

    async def _serve(self, channel: Channel) -> None:
        try:
            while (message := await channel.receive()) is not None:
                match message:
                    case GetSnapshot():
                        await channel.send(self.snapshot())
                    case GetAdmission():
                        await channel.send(self.admission())
                    case GetPrefix():
                        watching = self._gateway.watching
                        await channel.send(watching.state() if watching is not None else PrefixState(False))
                    case Forget():
                        if (caching := self._gateway.caching) is not None:
                            caching.forget(message)
                        await channel.send(Done())
                    case SetKeys():
                        self._gateway.take(message)
                        await channel.send(Done())
                    case SetEngines():
                        self._gateway.fleet.set_live(*live_of(message))
                        await channel.send(Done())
                    case Follow() if self._gateway.booking is not None:
                        await channel.send(await self._gateway.booking.follow(message))
                    case GetBudgets() if self._gateway.booking is not None:
                        await channel.send(await self._budgets(message.version, self._gateway.booking))
                    case SetUse() if self._gateway.holding is not None:
                        self._gateway.holding.others(message)
                        await channel.send(Done())
                    case _:
                        raise ChannelBroken(f"a worker is not asked for {type(message).__name__}")
        except ConnectionError:
            return
        except ChannelBroken as e:
            log.error("the admin process's channel broke: %s", e)
        finally:
            await channel.close()

    def snapshot(self) -> Snapshot:
        gateway, server = self._gateway, self._server
        return Snapshot(
            boot=self._boot,
            pid=os.getpid(),
            index=self._index,
            draining=server.draining,
            keys_version=gateway.callers.version,
            families=(
                *gateway.telemetry.snapshot(),
                counter_snapshot(gateway.disaggregating.decisions),
                *self._gauges(),
                *self._admission(),
                *self._placement(),
                *self._wire(),
                *(gateway.booking.snapshot() if gateway.booking is not None else ()),
                *(gateway.watching.snapshot() if gateway.watching is not None else ()),
                *(gateway.caching.telemetry.snapshot(gateway.caching) if gateway.caching is not None else ()),
            ),
            engines=tuple(engine_states(gateway.fleet)),
        )

    async def _budgets(self, known: int, booking: Booking) -> Budgets:
        if known < 0:
            await booking.all_on_disk()
        journal, holding = booking.journal, self._gateway.holding
        version, (rules, since) = (holding.version, holding.budgets) if holding is not None else (0, ((), {}))
        if version == known:
            return Budgets(version, journal.owner, journal.position)
        return Budgets(version, journal.owner, journal.position, rules, since)

    def admission(self) -> AdmissionState | NoAdmission:
        admitting = self._gateway.admitting
        if admitting is None or not admitting.gated:
            return NoAdmission()
        return admission_state(admitting.policy, self._served(), monotonic(), time())

    def _served(self) -> set[str]:
        return {entry.target for entry in self._gateway.fleet.catalog.values()}

    def _gauges(self) -> Iterable[FamilySnapshot]:
        yield counter_snapshot(self._gateway.aborts.counted)
        yield gauge("forebay_requests_live", "Requests that have not ended.", (), [((), len(self._gateway.live))])
        drained = len(self._gateway.drains)
        yield gauge("forebay_requests_drained", "Answers read on for their usage; nobody waits.", (), [((), drained)])
        yield gauge("forebay_client_connections", "Open client connections.", (), [((), len(self._server.connections))])
        yield from engine_gauges(self._gateway.fleet)

    def _placement(self) -> Iterable[FamilySnapshot]:
        admitting = self._gateway.admitting
        if admitting is None:
            return
        index = admitting.policy.placer.prefixes
        yield gauge("forebay_prefix_blocks", "Blocks of prompts whose engines are known.", (), [((), len(index))])
        yield counter_snapshot(admitting.prompt_tokens)

    def _admission(self) -> Iterable[FamilySnapshot]:
        admitting = self._gateway.admitting
        if admitting is None or not admitting.gated:
            return
        policy = admitting.policy
        books = tuple(policy.books.values())
        waiting = [((c.value,), policy.waiting(c)) for c in Class]
        yield counter_snapshot(admitting.decisions)
        yield gauge(
            "forebay_queue_requests",
            "Requests that wait for admission.",
            ("class",),
            [(c, float(n)) for c, (n, _) in waiting],
        )
        yield gauge(
            "forebay_queue_tokens", "Their prompt tokens.", ("class",), [(c, float(t)) for c, (_, t) in waiting]
        )
        now = monotonic()
        rows: tuple[tuple[str, str, list[float]], ...] = (
            (
                "forebay_engine_kv_predicted",
                "Predicted peak of the KV cache, share of its capacity.",
                [b.use() for b in books],
            ),
            ("forebay_engine_shed_level", "How far an engine sheds load, 0 to 1.", [b.shed.level for b in books]),
            (
                "forebay_engine_prefill_rate",
                "Prompt tokens a second, as learned.",
                [b.ttft.prefill_rate for b in books],
            ),
            ("forebay_engine_prefill_ahead", "Prompt tokens not prefilled yet.", [b.ttft.backlog(now) for b in books]),
        )
        for name, text, values in rows:
            labelled = [((b.name,), v) for b, v in zip(books, values, strict=True)]
            yield gauge(name, text, ("engine",), labelled)
        yield gauge(
            "forebay_engine_scale_factor",
            "What an engine's concurrency is multiplied by, where it has one.",
            ("engine",),
            [((b.name,), b.factor.value) for b in books if b.facts.concurrency is not None],
        )
        yield gauge(
            "forebay_engine_shedding",
            "1 where an engine sheds load for the reason.",
            ("engine", "reason"),
            reasons(books),
        )
        models = self._served() | policy.scaling.models.keys()
        yield gauge(
            "forebay_desired_replicas",
            "Engines of a model that would carry its load.",
            ("model",),
            [((model,), float(policy.scaling.desired(model))) for model in sorted(models)],
        )

    def _wire(self) -> Iterable[FamilySnapshot]:
        c = self._server.counters
        rows: tuple[tuple[str, str, int], ...] = (
            ("forebay_connections_accepted", "Client connections taken.", c.accepted),
            ("forebay_connections_turned_away", "Client connections over limits.connections.", c.turned_away),
            ("forebay_bad_http_requests", "Requests that were not HTTP.", c.bad_requests),
            ("forebay_bytes_received", "Bytes read from clients.", c.bytes_in),
            ("forebay_bytes_sent", "Bytes of answers handed to clients' sockets.", c.bytes_out),
            ("forebay_log_lines_dropped", "Log lines the writer could not take.", self._writer.dropped),
        )
        for name, text, value in rows:
            yield FamilySnapshot(name, text, "counter", (), values=(((), float(value)),))
