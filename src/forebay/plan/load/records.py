"""Each request of a run as a line of JSON, written as they end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay.plan.written import replacing


@contextmanager
def records(path: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """The file is there whole or as it was before. Raises OSError that names it."""
    with replacing(Path(path)) as file:
        failed: list[OSError] = []

        def write(record: dict[str, Any]) -> None:
            if failed:
                return
            try:
                file.write(json.dumps(record, separators=(",", ":")) + "\n")
            except OSError as e:  # the run goes on: its result is worth more than its records
                failed.append(e)

        yield write
        if failed:
            raise failed[0]
