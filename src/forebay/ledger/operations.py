"""Everything that can be asked of keys, accounts and limits: the admin API on `admin.sock` without its HTTP, so that a
command finds the same behind the running admin process and, where none runs, in the database itself.

Only names: what each does is in `ledger.directory`, which takes time to import.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Operation:
    """One route; {id} in `path` is a key's."""

    name: str
    method: str
    path: str
    body: str = ""
    """What the body holds, for messages; "" where there is none."""
    status: int = 200
    makes: bool = False
    """It may be the first thing in a new database."""

    @property
    def changes(self) -> bool:
        return self.method != "GET"


_ACCOUNT = "the names of an account"
OPERATIONS: Final = (
    Operation("list keys", "GET", "/keys"),
    Operation("create key", "POST", "/keys", "the fields of a key", 201, makes=True),
    Operation("revoke key", "POST", "/keys/{id}/revoke"),
    Operation("rotate key", "POST", "/keys/{id}/rotate", "overlap"),
    Operation("expire key", "POST", "/keys/{id}/expire", "expires"),
    Operation("suspend key", "POST", "/keys/{id}/suspend"),
    Operation("resume key", "POST", "/keys/{id}/resume"),
    Operation("list accounts", "GET", "/accounts"),
    Operation("create account", "POST", "/accounts", _ACCOUNT, 201, makes=True),
    Operation("rename account", "POST", "/accounts/rename", f"{_ACCOUNT}, and to"),
    Operation("suspend account", "POST", "/accounts/suspend", _ACCOUNT),
    Operation("resume account", "POST", "/accounts/resume", _ACCOUNT),
    Operation("label account", "POST", "/accounts/labels", f"{_ACCOUNT}, and labels"),
    Operation("list limits", "GET", "/limits"),
    Operation("set limit", "POST", "/limits", "the fields of a limit", makes=True),
    Operation("remove limit", "POST", "/limits/remove", "name"),
)


def find(method: str, path: str) -> tuple[Operation, str] | None:
    """The operation of a request's path, and what stands for {id}."""
    parts = path.split("/")
    for operation in OPERATIONS:
        pattern = operation.path.split("/")
        if operation.method == method and len(pattern) == len(parts):
            pairs = [*zip(parts, pattern, strict=True)]
            if all(wanted in (part, "{id}") for part, wanted in pairs):
                return operation, next((part for part, wanted in pairs if wanted == "{id}"), "")
    return None
