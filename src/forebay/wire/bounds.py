"""Limits and time-outs as plain slots: a pydantic model's fields cost ten times as much on the token path."""

from __future__ import annotations

from dataclasses import dataclass, fields

from forebay.config.models import Limits, Timeouts


@dataclass(frozen=True, slots=True)
class LimitValues:
    """`config.models.Limits`, read out once."""

    header_bytes: int
    header_count: int
    body_bytes: int
    response_bytes: int
    error_bytes: int
    event_bytes: int
    write_buffer_bytes: int
    connections: int
    pipelined: int
    end_users: int

    @classmethod
    def of(cls, limits: Limits) -> LimitValues:
        return cls(**{field.name: getattr(limits, field.name) for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class TimeoutValues:
    """`config.models.Timeouts`, read out once; seconds."""

    header: float
    body: float
    idle: float
    write: float
    connect: float
    first_byte: float
    stream_idle: float
    upstream_idle: float
    upstream_age: float
    drain: float
    drain_delay: float

    @classmethod
    def of(cls, timeouts: Timeouts) -> TimeoutValues:
        return cls(**timeouts.model_dump())
