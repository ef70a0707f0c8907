"""Whose request it is, by the list that the worker was told."""

from __future__ import annotations

import hashlib
import time

import msgspec
import pytest

from forebay.config.models import Callers as CallersConfig
from forebay.errors import Refusal
from forebay.gateway.callers import Caller, Callers
from forebay.ledger.records import KeyRecord, OldText
from forebay.state.messages import SetKeys
from forebay.wire.message import Peer, Request

CONFIGURED = "configured-key-0123456789"


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


RECORD = KeyRecord(id="k1", sha256=digest("new"), name="k", organisation="acme", department="d", user="ann")


def callers(record: KeyRecord = RECORD, *suspended: tuple[str, str, str, str]) -> Callers:
    config = CallersConfig.model_validate(
        {"keys": [{"name": "c", "key": CONFIGURED, "organisation": "acme"}], "anonymous": {"enabled": True}}
    )
    found = Callers(config)
    found.take(SetKeys(1, (record,), suspended))
    return found


def ask(found: Callers, text: str) -> Caller:
    fields = {b"authorization": f"Bearer {text}".encode()} if text else {}
    request = Request(b"GET", b"/", b"", [*fields.items()], fields, Peer("127.0.0.1"), False)
    return found.identify(request, 0.0)


def refusal(found: Callers, text: str) -> tuple[int, str, str]:
    with pytest.raises(Refusal) as e:
        ask(found, text)
    return e.value.status, e.value.code, e.value.key_id


def test_an_old_text_is_the_same_key_until_it_ends() -> None:
    ends = time.time() + 100
    found = callers(msgspec.structs.replace(RECORD, old=(OldText(digest("old"), ends), OldText(digest("older"), 5.0))))
    new, old = ask(found, "new"), ask(found, "old")
    assert old.key_id == new.key_id == "k1"
    assert (old.expires, new.expires) == (ends, float("inf"))
    assert refusal(found, "older") == (401, "rotated_api_key", "k1")


def test_an_old_text_lives_no_longer_than_its_key() -> None:
    over = time.time() - 1
    old = (OldText(digest("old"), time.time() + 100),)
    assert refusal(callers(msgspec.structs.replace(RECORD, expires=over, old=old)), "old")[1] == "expired_api_key"
    assert refusal(callers(msgspec.structs.replace(RECORD, revoked=1.0, old=old)), "old")[1] == "revoked_api_key"
    assert refusal(callers(msgspec.structs.replace(RECORD, suspended=1.0, old=old)), "old")[1] == "api_key_suspended"


@pytest.mark.parametrize(
    ("account", "level"),
    [
        (("acme", "", "", ""), "organisation 'acme'"),
        (("acme", "d", "", ""), "department 'd'"),
        (("acme", "d", "", "ann"), "user 'ann'"),
    ],
)
def test_every_level_above_a_key_suspends_it(account: tuple[str, str, str, str], level: str) -> None:
    found = callers(RECORD, account)
    assert refusal(found, "new") == (403, "account_suspended", "k1")
    with pytest.raises(Refusal, match=f"The {level}, which the API key belongs to, is suspended"):
        ask(found, "new")


def test_keys_of_the_configuration_and_those_without_one_are_suspended_alike() -> None:
    found = callers(RECORD, ("acme", "", "", ""), ("anonymous", "", "", ""))
    assert refusal(found, CONFIGURED) == (403, "account_suspended", "config:c")
    assert refusal(found, "") == (403, "account_suspended", "anonymous")
    generation = found.generation
    found.take(SetKeys(2, (RECORD,)))
    assert found.generation > generation  # kept connections are looked at anew
    assert [ask(found, text).key_id for text in ("new", CONFIGURED, "")] == ["k1", "config:c", "anonymous"]


def test_another_account_is_none_of_its_business() -> None:
    assert ask(callers(RECORD, ("acme", "other", "", ""), ("acme", "", "", "ann"), ("d", "", "", "")), "new").key_id
