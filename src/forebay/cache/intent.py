"""Questions whose answer depends on when, or by whom, they are asked."""

from __future__ import annotations

import re
from typing import Final

TIME: Final = "time"
PERSONAL: Final = "personal"

_TIME: Final = re.compile(
    r"\b(?:today|tomorrow|yesterday|right now|latest|currently)\b|今天|明天|昨天|现在|最新|目前", re.I
)
_PERSONAL: Final = re.compile(r"\b(?:what(?:'s| is)|how much is|show me) my\b|我的(?:余额|订单|账单)", re.I)


def of(text: str) -> str:
    """TIME, PERSONAL or ""."""
    if _TIME.search(text):
        return TIME
    if _PERSONAL.search(text):
        return PERSONAL
    return ""
