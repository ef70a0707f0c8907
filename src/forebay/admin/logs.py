"""Log lines of this process on standard error: JSON, or plain for people."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from forebay.config.models import Logging


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": "admin",
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up(logging_: Logging) -> None:
    """Replaces what was set up before."""
    as_json = logging_.format == "json" or (logging_.format == "auto" and not sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter("%(levelname)-7s admin: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("forebay").setLevel(logging_.level.upper())
