"""The table of docs/launch.md, from the tables in the code: `python -m forebay.engines.launching.page`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from forebay.config.launch import Launch
from forebay.engines.launching.commands import PROGRAMS
from forebay.engines.launching.table import SETTINGS, Choice, Flag, Setting


def rows() -> Iterator[str]:
    """Markdown: a row a field, a column an engine."""
    programs = PROGRAMS.values()
    yield "| " + " | ".join(["`launch`", *(p.title for p in programs)]) + " |"
    yield "|---" * (len(programs) + 1) + "|"
    for name in SETTINGS:
        yield "| " + " | ".join([f"`{name}`", *(_cell(p.settings[name]) for p in programs)]) + " |"
    yield "| " + " | ".join(["the entry's `api_key`", *(_cell(p.key) for p in programs)]) + " |"
    reports = (", ".join(f"`{flag}`" for flag in p.report(Launch(model="m", port=1))) or "–" for p in programs)
    yield "| " + " | ".join(["`report`", *reports]) + " |"


def _cell(setting: Setting) -> str:
    if not isinstance(setting, Choice):
        values = f" ({', '.join(setting.choices)})" if isinstance(setting, Flag) and setting.choices else ""
        return f"`{setting.name}`{values}"
    taken = [
        f"{_spelt(value)}: {' '.join(f'`{w}`' for w in words) or 'as it is'}" for value, words in setting.by.items()
    ]
    return "; ".join(taken) or "refused"


def _spelt(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.stdout.write("\n".join(rows()) + "\n")
