"""Who is calling: keys, classes, addresses."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

import msgspec

from forebay import errors
from forebay.config.models import Callers as CallersConfig
from forebay.config.models import Class, Listener
from forebay.errors import Refusal
from forebay.ledger.gates import Gate, Who
from forebay.ledger.records import LEVELS, Account, KeyRecord, OldText, level_of, suspended_in
from forebay.ledger.rules import Rule
from forebay.state.messages import SetKeys
from forebay.wire.message import Request

CLASS_HEADERS: Final = (b"x-priority", b"x-user-tier")
_CLASS_WORDS: Final = MappingProxyType(
    {
        b"vip": Class.VIP,
        b"high": Class.VIP,
        b"premium": Class.VIP,
        b"normal": Class.NORMAL,
        b"default": Class.NORMAL,
        b"standard": Class.NORMAL,
        b"low": Class.LOW,
        b"batch": Class.LOW,
        b"free": Class.LOW,
    }
)
MAX_ADDRESSES: Final = 10_000
MAX_KEY: Final = 512


class Caller:
    """Who a request belongs to. `key_id` is "anonymous" where no key was shown."""

    __slots__ = (
        "account",
        "class_",
        "expires",
        "gate",
        "key_id",
        "logged",
        "may_raise_class",
        "models",
        "name",
        "organisation",
        "record",
        "suspended",
        "text",
    )

    def __init__(
        self, record: KeyRecord, text: OldText | None = None, suspended: Collection[Account] = frozenset()
    ) -> None:
        """`text`: the earlier one that it was called by; `suspended`: the accounts that are."""
        self.record = record
        self.text = text
        self.suspended = suspended_in(record.account, suspended)
        self.expires = record.expires if record.expires is not None else float("inf")
        if text is not None:
            self.expires = min(self.expires, text.ends)
        self.logged = b'"key":%b,"org":%b' % (msgspec.json.encode(record.id), msgspec.json.encode(record.organisation))
        """Its part of a log line."""
        self.account = (
            record.id,
            record.name,
            record.organisation,
            record.department or "",
            record.project or "",
            record.user or "",
        )
        """Whom its use is booked to: key, its name, then from the top down."""
        self.gate: Gate | None = None
        """Its limits, looked up with its first request."""
        self.key_id = record.id
        self.name = record.name
        self.organisation = record.organisation
        self.models = frozenset(record.models)
        self.class_ = Class(record.class_)
        self.may_raise_class = record.may_raise_class

    def who(self) -> Who:
        return Who(*self.account)

    def matches(self, digest: bytes) -> bool:
        """Constant-time comparison with the SHA-256 of a presented key."""
        return hmac.compare_digest(self.record.sha256 if self.text is None else self.text.sha256, digest)

    def may_use(self, model: str) -> bool:
        return not self.models or model in self.models

    def class_of(self, request: Request) -> Class:
        """The key's class, lowered by a header where there is one; raised only where the key allows."""
        fields = request.fields
        wanted: Class | None = None
        for name in CLASS_HEADERS:
            value = fields.get(name)
            if value is not None:
                word = value.strip().lower()
                found = _CLASS_WORDS.get(word)
                if found is None:
                    raise errors.bad_request(
                        f"{name.decode()} must be vip, normal or low, not '{errors.shown(value.decode('latin-1'))}'.",
                        param=name.decode(),
                        code="wrong_type",
                    )
                if wanted is None or found.rank > wanted.rank:
                    wanted = found
        if wanted is None or (wanted.rank < self.class_.rank and not self.may_raise_class):
            return self.class_
        return wanted

    def __repr__(self) -> str:
        return f"<Caller {self.key_id} {self.organisation} {self.class_.value}>"


class Trust:
    """The proxies of one listener."""

    def __init__(self, proxies: Iterable[str]) -> None:
        self._unix_socket = "unix" in proxies
        self._networks = [ipaddress.ip_network(p, strict=False) for p in proxies if p != "unix"]

    def __contains__(self, address: str) -> bool:
        if address == "unix":
            return self._unix_socket
        if not self._networks:
            return False
        ip = ipaddress.ip_address(address)
        return any(ip in network for network in self._networks)

    def __repr__(self) -> str:
        return f"<Trust {self._networks}{' unix' if self._unix_socket else ''}>"


class FailedKeys:
    """A bucket of failures an address: `per_minute` at once, refilled evenly. At most MAX_ADDRESSES are remembered."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def failed(self, address: str, now: float) -> float:
        """Count one failure. 0 where it was within the rate, else seconds until the next one would be."""
        rate = self.per_minute / 60
        spent, at = self._spent.pop(address, (0.0, now))
        spent = max(0.0, spent - (now - at) * rate)
        wait = 0.0 if spent + 1 <= self.per_minute else (spent + 1 - self.per_minute) / rate
        self._spent[address] = (spent if wait else spent + 1, now)
        if len(self._spent) > MAX_ADDRESSES:
            self._spent.popitem(last=False)
        return wait

    def __repr__(self) -> str:
        return f"<FailedKeys {len(self._spent)} addresses>"


class Callers:
    """The key list in force. `known` is False until one has arrived, from the admin process or its snapshot;
    `generation` changes whenever somebody's identity may have."""

    def __init__(self, config: CallersConfig, listeners: Iterable[Listener] = ()) -> None:
        self._stored: tuple[KeyRecord, ...] = ()
        self._suspended: frozenset[Account] = frozenset()
        self.rules: tuple[Rule, ...] = ()
        """Limits kept in the database."""
        self._by_digest: dict[bytes, Caller] = {}
        self.version = -1
        self.known = False
        self.generation = 0
        self.configure(config, listeners)

    def configure(self, config: CallersConfig, listeners: Iterable[Listener]) -> None:
        self._config = config
        self._failed = FailedKeys(config.failed_keys_per_minute)
        self._trusted_by = [Trust(x.trusted_proxies) for x in listeners]
        anonymous = config.anonymous
        self._anonymous = (
            Caller(
                KeyRecord(
                    id="anonymous",
                    sha256=b"",
                    name="anonymous",
                    organisation="anonymous",
                    models=anonymous.models,
                    class_=anonymous.class_.value,
                )
            )
            if anonymous.enabled
            else None
        )
        self._rebuild()

    def take(self, given: SetKeys) -> None:
        """What the database has now."""
        self._stored = given.keys
        self._suspended = frozenset(given.suspended)
        self.rules = given.rules
        self.version = given.version
        self.known = True
        self._rebuild()

    def _rebuild(self) -> None:
        records = list(self._stored)
        records += [
            KeyRecord(
                id=f"config:{k.name}",
                sha256=k.sha256(),
                name=k.name,
                organisation=k.organisation,
                department=k.department,
                project=k.project,
                user=k.user,
                models=k.models,
                class_=k.class_.value,
                may_raise_class=k.may_raise_class,
            )
            for k in self._config.keys
        ]
        gone = self._suspended
        self._by_digest = {old.sha256: Caller(r, old, gone) for r in self._stored for old in r.old}
        self._by_digest |= {r.sha256: Caller(r, None, gone) for r in records}
        if self._anonymous is not None:
            self._anonymous = Caller(self._anonymous.record, None, gone)
        self.generation += 1

    def identify(self, request: Request, now: float) -> Caller:
        """The caller of a request; `now` is monotonic seconds. Raises Refusal."""
        text = presented_key(request)
        if text is None:
            if self._anonymous is None:
                raise errors.no_key()
            return _not_suspended(self._anonymous)
        digest = hashlib.sha256(text).digest()
        caller = self._by_digest.get(digest)
        # The dictionary finds candidates by a hash of 256 secret bits; the comparison that decides is constant-time.
        if caller is not None and caller.matches(digest):
            record = caller.record
            if record.revoked is not None:
                raise _about(record, errors.revoked_key())
            if caller.expires <= time.time():
                when = datetime.fromtimestamp(caller.expires, UTC).strftime("%Y-%m-%d %H:%M UTC")
                expired = caller.expires == record.expires
                raise _about(record, errors.expired_key(when) if expired else errors.rotated_key(when))
            return _not_suspended(caller)
        if self._anonymous is not None and self._config.anonymous.any_key:
            return _not_suspended(self._anonymous)
        if not self.known:
            raise errors.keys_unknown()
        wait = self._failed.failed(self.address_of(request), now)
        if wait:
            raise errors.too_many_failed_keys(wait)
        raise errors.wrong_key()

    def address_of(self, request: Request) -> str:
        """The client's address: the peer's, or, where its listener trusts the peer as a proxy, the last address in
        X-Forwarded-For that is none."""
        peer = request.peer
        forwarded = request.fields.get(b"x-forwarded-for")
        if forwarded is None or peer.listener >= len(self._trusted_by):
            return peer.address
        trust = self._trusted_by[peer.listener]
        address = peer.address
        if address not in trust:
            return address
        hops = [v for n, v in request.headers if n == b"x-forwarded-for"]
        for hop in reversed(b",".join(hops).decode("latin-1").split(",")):
            found = _bare_address(hop)
            if found is None:
                return address
            if found not in trust:
                return found
            address = found
        return address

    def __repr__(self) -> str:
        return f"<Callers {len(self._by_digest)} keys, version {self.version}>"


def _not_suspended(caller: Caller) -> Caller:
    """Raises Refusal."""
    if caller.record.suspended is not None:
        raise _about(caller.record, errors.suspended_key())
    account = caller.suspended
    if account is not None:
        level = level_of(account)
        raise _about(caller.record, errors.suspended_account(level, account[LEVELS.index(level)]))
    return caller


def _about(record: KeyRecord, refusal: Refusal) -> Refusal:
    refusal.key_id = record.id
    return refusal


def presented_key(request: Request) -> bytes | None:
    """The key as sent: `Authorization: Bearer`, else `api-key` or `x-api-key`. Raises Refusal for another scheme."""
    fields = request.fields
    value = fields.get(b"authorization")
    if value is not None:
        if value[:7].lower() != b"bearer ":
            raise errors.bad_scheme()
        text = value[7:].strip()
    else:
        found = fields.get(b"api-key") or fields.get(b"x-api-key")
        if found is None:
            return None
        text = found.strip()
    return text[: MAX_KEY + 1] or None


def _bare_address(hop: str) -> str | None:
    """An address out of one X-Forwarded-For element, port and brackets dropped; None where it is none."""
    text = hop.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return None
