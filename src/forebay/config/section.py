"""What every section of the configuration is made of."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")]
Secret = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
"""Fields of this type carry `repr=False`."""
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError
        raise ValueError("a time zone is named as in UTC, Europe/Berlin or Asia/Shanghai") from None
    return value


Zone = Annotated[str, AfterValidator(_zone)]


class Class(StrEnum):
    """Priority class, best first."""

    VIP = "vip"
    NORMAL = "normal"
    LOW = "low"

    @property
    def rank(self) -> int:
        """0 for the best; a larger rank gives way to a smaller one."""
        return _RANKS[self]


_RANKS: Final = MappingProxyType({Class.VIP: 0, Class.NORMAL: 1, Class.LOW: 2})


def clash(text: str) -> PydanticCustomError:
    """Fields that are each right and do not fit together. The loader finds these by itself, each with its line."""
    return PydanticCustomError("clash", "{text}", {"text": text})


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True)
