"""Who may call, and how much: keys, accounts and limits of one database, and what becomes of `ledger.operations`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from forebay.errors import shown
from forebay.ledger.accounts import AccountStore, Level, check_account, check_labels
from forebay.ledger.database import Database
from forebay.ledger.keystore import KeyStore, NewKey, parse_overlap
from forebay.ledger.limitstore import LimitStore
from forebay.ledger.lists import BadField, check_name, parse_expiry, version_of
from forebay.ledger.operations import Operation
from forebay.ledger.records import LEVELS, Account, KeyRecord, as_json, level_of, shown_account, suspended_in
from forebay.ledger.rules import Rule


class Known(NamedTuple):
    """What workers are told, as `state.messages.SetKeys` has it."""

    version: int
    keys: tuple[KeyRecord, ...]
    suspended: tuple[Account, ...]
    rules: tuple[Rule, ...]


class Directory:
    """Calls block. Every call raises DatabaseError where the database cannot be used."""

    def __init__(self, database: Database, wall: Callable[[], float]) -> None:
        self.database = database
        self.wall = wall
        self.keys = KeyStore(database, wall)
        self.accounts = AccountStore(database, wall)
        self.limits = LimitStore(database, wall)

    def version(self) -> int:
        """A number that differs after every change of keys, accounts or limits."""
        return self.keys.version()

    def known(self) -> Known:
        """All of one moment."""
        with self.database.read() as connection:
            return Known(
                version_of(connection),
                self.keys.records(connection),
                tuple(sorted(self.accounts.suspended(connection))),
                tuple(limit.rule for limit in self.limits.listed(connection)),
            )

    def suspended(self) -> frozenset[Account]:
        with self.database.read() as connection:
            return self.accounts.suspended(connection)

    def run(self, operation: Operation, fields: Mapping[str, object], key_id: str) -> dict[str, Any]:
        """Do an operation with the fields of its body and what stands for {id}; returns its answer. Raises BadField,
        Missing."""
        return _RUN[operation.name](self, fields, key_id)

    def __repr__(self) -> str:
        return f"<Directory {self.database}>"


def _only(fields: Mapping[str, object], what: str, *known: str) -> None:
    """That there is no field but the known ones. Raises BadField."""
    for field in fields:
        if field not in known:
            raise BadField(shown(field), f"is not a field of {what}; there are {', '.join(known)}")


def _record(
    directory: Directory, record: KeyRecord, *, text: str | None = None, suspended: Collection[Account] | None = None
) -> dict[str, Any]:
    found = directory.suspended() if suspended is None else suspended
    answer: dict[str, Any] = {} if text is None else {"key": text}
    answer["record"] = as_json(record, directory.wall(), found)
    if text is not None:
        above = suspended_in(record.account, found)
        answer["warnings"] = (
            [f"the {level_of(above)} {shown_account(above)} is suspended, and this key with it"] if above else []
        )
    return answer


def _create_key(directory: Directory, fields: Mapping[str, object], _: str) -> dict[str, Any]:
    record, text = directory.keys.create(NewKey.check(fields, directory.wall()))
    return _record(directory, record, text=text)


def _list_keys(directory: Directory, _: Mapping[str, object], __: str) -> dict[str, Any]:
    known = directory.known()
    now = directory.wall()
    return {"keys": [as_json(record, now, known.suspended) for record in known.keys]}


def _revoke(directory: Directory, _: Mapping[str, object], key_id: str) -> dict[str, Any]:
    return _record(directory, directory.keys.revoke(key_id))


def _rotate(directory: Directory, fields: Mapping[str, object], key_id: str) -> dict[str, Any]:
    _only(fields, "a rotation", "overlap")
    record, text = directory.keys.rotate(key_id, parse_overlap(fields.get("overlap")))
    return _record(directory, record, text=text)


def _expire(directory: Directory, fields: Mapping[str, object], key_id: str) -> dict[str, Any]:
    _only(fields, "an expiry", "expires")
    if "expires" not in fields:
        raise BadField("expires", "is missing; write a time, a duration, now, or never")
    asked, now = fields["expires"], directory.wall()
    when = now if asked == "now" else None if asked == "never" else parse_expiry(asked, now)
    return _record(directory, directory.keys.expire(key_id, when))


def _suspend_key(directory: Directory, _: Mapping[str, object], key_id: str) -> dict[str, Any]:
    return _record(directory, directory.keys.suspend(key_id))


def _resume_key(directory: Directory, _: Mapping[str, object], key_id: str) -> dict[str, Any]:
    return _record(directory, directory.keys.resume(key_id))


def _account(level: Level) -> dict[str, Any]:
    return {"account": level.as_json()}


def _list_accounts(directory: Directory, _: Mapping[str, object], __: str) -> dict[str, Any]:
    return {"accounts": [level.as_json() for level in directory.accounts.list()]}


def _create_account(directory: Directory, fields: Mapping[str, object], _: str) -> dict[str, Any]:
    _only(fields, "an account", *LEVELS, "labels")
    labels = check_labels(fields["labels"]) if fields.get("labels") else {}
    return _account(directory.accounts.create(check_account(fields), labels))


def _rename_account(directory: Directory, fields: Mapping[str, object], _: str) -> dict[str, Any]:
    _only(fields, "a new name", *LEVELS, "to")
    if fields.get("to") is None:
        raise BadField("to", "is missing; give the new name")
    account, to = check_account(fields), check_name("to", fields["to"])
    level, warnings = directory.accounts.rename(account, to, directory.limits.renamed)
    return {**_account(level), "warnings": warnings}


def _suspend_account(directory: Directory, fields: Mapping[str, object], _: str) -> dict[str, Any]:
    _only(fields, "an account's name", *LEVELS)
    return _account(directory.accounts.suspend(check_account(fields)))


def _resume_account(directory: Directory, fields: Mapping[str, object], _: str) -> dict[str, Any]:
    _only(fields, "an account's name", *LEVELS)
    return _account(directory.accounts.resume(check_account(fields)))


def _label_account(directory: Directory, fields: Mapping[str, object], _: str) -> dict[str, Any]:
    _only(fields, "an account's labels", *LEVELS, "labels")
    return _account(directory.accounts.label(check_account(fields), check_labels(fields.get("labels"))))


def _list_limits(directory: Directory, _: Mapping[str, object], __: str) -> dict[str, Any]:
    return {"limits": [limit.as_json() for limit in directory.limits.list()]}


def _set_limit(directory: Directory, fields: Mapping[str, object], _: str) -> dict[str, Any]:
    limit, warnings = directory.limits.set(fields)
    return {"limit": limit.as_json(), "warnings": warnings}


def _remove_limit(directory: Directory, fields: Mapping[str, object], _: str) -> dict[str, Any]:
    _only(fields, "a limit to be removed", "name")
    return {"limit": directory.limits.remove(check_name("name", fields.get("name"))).as_json()}


_RUN: Final[Mapping[str, Callable[[Directory, Mapping[str, object], str], dict[str, Any]]]] = MappingProxyType(
    {
        "list keys": _list_keys,
        "create key": _create_key,
        "revoke key": _revoke,
        "rotate key": _rotate,
        "expire key": _expire,
        "suspend key": _suspend_key,
        "resume key": _resume_key,
        "list accounts": _list_accounts,
        "create account": _create_account,
        "rename account": _rename_account,
        "suspend account": _suspend_account,
        "resume account": _resume_account,
        "label account": _label_account,
        "list limits": _list_limits,
        "set limit": _set_limit,
        "remove limit": _remove_limit,
    }
)
