"""Which database URLs are ours: looked at without the libraries that use them."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Final

from forebay.errors import shown

SQLITE: Final = ("sqlite", "sqlite+pysqlite")
POSTGRES: Final = ("postgresql", "postgres", "postgresql+psycopg")
ALLOWED: Final = "postgresql://user:password@host/name or sqlite:////path/forebay.db"

# The grammar of SQLAlchemy 2 (engine/url.py, _parse_url).
_URL: Final = re.compile(
    r"""(?P<driver>[\w+]+)://
        (?: [^:/]* (?: :[^@]* )? @ )?
        (?: (?P<host> \[[^/?]+\] | [^/:?]+ )? (?: :(?P<port>[^/?]*) )? )?
        (?: /(?P<database>[^?]*) )?
        (?: \?.* )?""",
    re.VERBOSE | re.DOTALL,
)


def unsupported(url: str) -> str:
    """Why the database cannot be used, without anything of the URL that may be secret; empty where it can. The empty
    URL stands for SQLite in the state directory."""
    if not url:
        return ""
    m = _URL.match(url)
    if m is None:
        return "not a URL"
    if m["driver"] in SQLITE:
        if m["host"] or not m["database"] or m["database"] == ":memory:":
            return "an SQLite URL names a file, after three slashes"
        return ""
    if m["driver"] not in POSTGRES:
        return f"'{shown(m['driver'])}' is not supported"
    if m["port"] and not m["port"].isdecimal():
        return "the port is not a number"
    if find_spec("psycopg") is None:
        return "PostgreSQL needs its driver; install forebay[postgres]"
    return ""
