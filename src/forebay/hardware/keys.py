"""The keys of a fitted profile's file, read one by one so that an error can name the key."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from forebay.errors import shown

MAX_POINTS: Final = 1_000


class FittedError(Exception):
    """A profile cannot be used: its file, the key, what was found, what is allowed."""


class Table:
    """A mapping of the file at its key. Its readers raise FittedError that names the key."""

    def __init__(self, at: str, value: object) -> None:
        if not isinstance(value, Mapping):
            raise FittedError(f"{at or 'the file'} must be a mapping, not {said(value)}")
        self._at = at
        self._value: Mapping[object, object] = value

    def _path(self, key: str) -> str:
        return f"{self._at}.{key}" if self._at else key

    def only(self, *known: str) -> Table:
        """Itself, where it has no other keys."""
        for key in self._value:
            if key not in known:
                here = self._at or "the file"
                raise FittedError(f"{self._path(shown(key))} is unknown; {here} has {', '.join(known)}")
        return self

    def get(self, key: str) -> object:
        return self._value.get(key)

    def date(self, key: str) -> str:
        value = self.get(key)
        if isinstance(value, datetime.date):
            return value.isoformat()
        if not isinstance(value, str) or not value:
            raise FittedError(f"{self._path(key)} must be a date, not {said(value)}")
        return value

    @property
    def keys(self) -> list[str]:
        return [str(k) for k in self._value]

    def table(self, key: str) -> Table:
        return Table(self._path(key), self.get(key))

    def text(self, key: str, optional: bool = False) -> Any:
        value = self.get(key)
        if value is None and optional:
            return None
        if not isinstance(value, str) or not value:
            raise FittedError(f"{self._path(key)} must be text, not {said(value)}")
        return value

    def whole(self, key: str, optional: bool = True) -> int | None:
        value = self.get(key)
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise FittedError(f"{self._path(key)} must be a whole number of at least 0, not {said(value)}")
        return value

    def flag(self, key: str) -> bool | None:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise FittedError(f"{self._path(key)} must be true, false or nothing, not {said(value)}")
        return value

    def number(self, key: str) -> float:
        return seconds_of(self._path(key), self.get(key))

    def items(self, key: str) -> Sequence[object]:
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or len(value) > MAX_POINTS:
            raise FittedError(f"{self._path(key)} must be a list of at most {MAX_POINTS:,}, not {said(value)}")
        return value


def seconds_of(at: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise FittedError(f"{at} must be a number, not {said(value)}")
    return float(value)


def point_of(at: str, value: object) -> tuple[int, float]:
    if not isinstance(value, list) or len(value) != 2 or isinstance(value[0], bool) or not isinstance(value[0], int):
        raise FittedError(f"{at} must be a pair of tokens and seconds, not {said(value)}")
    return value[0], seconds_of(at, value[1])


def text_of(at: str, value: object) -> str:
    if not isinstance(value, str):
        raise FittedError(f"{at} must be text, not {said(value)}")
    return value


def said(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value):,}"
    return "nothing" if value is None else f"'{shown(str(value))}'"
