from __future__ import annotations

import hashlib
import threading
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text

from forebay.clock import ManualClock
from forebay.config.models import Class
from forebay.ledger import keystore
from forebay.ledger.database import Database
from forebay.ledger.keystore import KeyStore, NewKey, UnknownKey, parse_overlap
from forebay.ledger.lists import BadField, parse_expiry
from forebay.ledger.records import OldText

NOW = 1_700_000_000.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=NOW)


@pytest.fixture
def store(database: Database, clock: ManualClock) -> KeyStore:
    database.migrate()
    return KeyStore(database, clock.wall)


def test_a_key_comes_back_as_it_was_asked_for(store: KeyStore) -> None:
    asked = {
        "name": "ci",
        "organisation": "acme",
        "department": "research",
        "project": "apollo",
        "user": "ann@acme.example",
        "models": ["llama", "qwen/qwen3", "llama"],
        "class": "vip",
        "may_raise_class": True,
        "expires": "30d",
    }
    record, shown_once = store.create(NewKey.check(asked, NOW))
    assert record.sha256 == hashlib.sha256(shown_once.encode()).digest()
    assert record.matches(hashlib.sha256(shown_once.encode()).digest())
    assert shown_once.startswith(f"fb-{record.id}-")
    assert (record.organisation, record.department, record.project, record.user) == (
        "acme",
        "research",
        "apollo",
        "ann@acme.example",
    )
    assert record.models == ("llama", "qwen/qwen3")
    assert (record.class_, record.may_raise_class) == ("vip", True)
    assert (record.created, record.expires, record.revoked) == (NOW, NOW + 30 * 86_400, None)
    assert store.get(record.id) == record
    assert store.list() == (2, (record,))


def test_what_is_not_given_has_safe_values(store: KeyStore) -> None:
    record, _ = store.create(NewKey("plain"))
    assert (record.organisation, record.department, record.project, record.user) == ("default", None, None, None)
    assert (record.models, record.class_, record.may_raise_class, record.expires) == ((), "normal", False, None)


def test_only_hashes_are_stored(database: Database, store: KeyStore, tmp_path: Path) -> None:
    _, shown_once = store.create(NewKey("secret"))
    secret = shown_once.split("-", 2)[2].encode()  # which may have a "-" itself
    database.close()
    if database.sqlite:
        for file in tmp_path.iterdir():
            assert secret not in file.read_bytes()
    else:
        with database.read() as connection:
            row = connection.execute(text("SELECT * FROM keys")).one()
        assert secret not in repr(row).encode()


def test_levels_are_shared_and_names_are_unique_within_their_parent(database: Database, store: KeyStore) -> None:
    store.create(NewKey("a", organisation="acme", project="apollo"))
    store.create(NewKey("b", organisation="acme", project="apollo"))
    store.create(NewKey("a", organisation="acme", department="research", project="apollo"))
    store.create(NewKey("a", organisation="globex", project="apollo"))
    with database.read() as connection:
        count = {
            t: connection.execute(text(f"SELECT count(*) FROM {t}")).scalar()
            for t in ("organisations", "departments", "projects", "users", "keys")
        }
    assert count == {"organisations": 2, "departments": 3, "projects": 3, "users": 3, "keys": 4}


def test_a_name_is_free_again_once_its_key_is_revoked(store: KeyStore) -> None:
    first, _ = store.create(NewKey("prod", user="bob"))
    with pytest.raises(BadField, match=f"name: 'prod' is taken by key {first.id} of the same owner"):
        store.create(NewKey("prod", user="bob"))
    version = store.version()
    store.revoke(first.id)
    second, _ = store.create(NewKey("prod", user="bob"))
    assert second.id != first.id
    assert store.version() == version + 2


def test_revoking_is_final_and_keeps_its_first_time(store: KeyStore, clock: ManualClock) -> None:
    record, _ = store.create(NewKey("a"))
    clock.advance(10)
    assert store.revoke(record.id).revoked == NOW + 10
    version = store.version()
    clock.advance(10)
    assert store.revoke(record.id).revoked == NOW + 10
    assert store.version() == version
    assert store.get(record.id).revoked == NOW + 10


@pytest.mark.parametrize("key_id", ["", "nope", "' OR 1=1 --", "\x1b[2J" * 99])
def test_an_unknown_id_is_said_to_be_one(store: KeyStore, key_id: str) -> None:
    for call in (store.get, store.revoke):
        with pytest.raises(UnknownKey, match="There is no key with the id") as e:
            call(key_id)
        assert str(e.value).isprintable()


def test_the_list_puts_valid_keys_first_and_is_bounded(
    store: KeyStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked = store.create(NewKey("revoked"))[0]
    store.revoke(revoked.id)
    old = store.create(NewKey("old"))[0]
    clock.advance(1)
    expired = store.create(NewKey("expired", expires=NOW + 2))[0]
    clock.advance(1)
    new = store.create(NewKey("new"))[0]
    _, listed = store.list()
    assert [k.id for k in listed] == [new.id, old.id, expired.id, revoked.id]
    monkeypatch.setattr(keystore, "MAX_KEYS", 2)
    assert [k.id for k in store.list()[1]] == [new.id, old.id]
    with pytest.raises(BadField, match="there are 2 valid keys already; revoke some"):
        store.create(NewKey("more"))
    store.revoke(old.id)
    store.create(NewKey("more"))


def test_creates_at_once_are_all_kept(database: Database, store: KeyStore) -> None:
    failed: list[BaseException] = []

    def create(n: int) -> None:
        try:
            for i in range(5):
                store.create(NewKey(f"{n}-{i}", organisation=f"org-{i}", user="shared"))
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failed == []
    version, listed = store.list()
    assert len(listed) == 20
    assert len({k.sha256 for k in listed}) == 20
    assert version == 21


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "name: is missing; give the key a name"),
        ({"name": ""}, "name: 1 to 128 letters, digits"),
        ({"name": "a b"}, "name: .*not 'a b'"),
        ({"name": "x" * 129}, "name: 1 to 128"),
        ({"name": 7}, "name: .*not '7'"),
        ({"name": "a\n"}, "name: "),
        ({"name": "a", "organisation": "-"}, "organisation: 1 to 128"),
        ({"name": "a", "user": ["u"]}, "user: "),
        ({"name": "a", "models": "llama"}, "models: must be a list of model names, not 'llama'"),
        ({"name": "a", "models": ["ok", ""]}, "models: 1 to 128"),
        ({"name": "a", "models": ["m"] * 257}, "models: at most 256 models, not 257"),
        ({"name": "a", "class": "gold"}, "class: one of vip, normal, low; not 'gold'"),
        ({"name": "a", "class": ["vip"]}, "class: one of vip, normal, low"),
        ({"name": "a", "may_raise_class": "yes"}, "may_raise_class: true or false, not 'yes'"),
        ({"name": "a", "class_": "vip"}, "class_: is not a field of a key; there are name, organisation,"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(BadField, match=message) as e:
        NewKey.check(fields, NOW)
    assert str(e.value).startswith(e.value.field + ": ")


def test_class_is_one_of_the_configuration() -> None:
    assert [NewKey.check({"name": "a", "class": c.value}, NOW).class_ for c in Class] == list(Class)


@pytest.mark.parametrize(
    ("text", "after"),
    [("90s", 90), ("30m", 1_800), ("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600), (" 1 d ", 86_400)],
)
def test_expiry_as_a_duration(text: str, after: int) -> None:
    assert parse_expiry(text, NOW) == NOW + after


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T12:00", datetime(2027, 1, 31, 12, tzinfo=UTC)),
        ("2027-01-31T12:00Z", datetime(2027, 1, 31, 12, tzinfo=UTC)),
        ("2027-01-31T12:00:30+08:00", datetime(2027, 1, 31, 4, 0, 30, tzinfo=UTC)),
    ],
)
def test_expiry_as_a_date(text: str, when: datetime) -> None:
    assert parse_expiry(text, NOW) == when.timestamp()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("soon", "expires: write a duration like 30d, .*not 'soon'"),
        ("", "expires: write a duration"),
        ("-3d", "expires: write a duration"),
        ("1y", "expires: write a duration"),
        ("2027-13-01", "expires: write a duration"),
        ("999999999w", "after the year 2200"),
        ("9999-12-31", "after the year 2200"),
        ("0d", "'0d' is not in the future"),
        ("2001-01-01", "'2001-01-01' is not in the future"),
        (30, "expires: write a duration .*not '30'"),
        (True, "expires: write a duration"),
    ],
)
def test_expiry_that_is_refused(value: object, message: str) -> None:
    with pytest.raises(BadField, match=message):
        parse_expiry(value, NOW)


def test_no_expiry() -> None:
    assert parse_expiry(None, NOW) is None


# --- rotation, expiry, suspension -------------------------------------------------------------------------------------


def test_a_rotated_key_is_the_same_key_with_two_texts_for_a_while(store: KeyStore, clock: ManualClock) -> None:
    made, first = store.create(NewKey("prod", user="bob", class_=Class.VIP, expires=NOW + 1e6))
    clock.advance(10)
    rotated, second = store.rotate(made.id, 3_600)
    assert second.startswith(f"fb-{made.id}-") and second != first
    assert rotated.sha256 == hashlib.sha256(second.encode()).digest()
    assert rotated.old == (OldText(made.sha256, NOW + 10 + 3_600),)
    assert rotated.rotated == NOW + 10
    assert msgspec.structs.replace(rotated, sha256=made.sha256, old=(), rotated=None) == made
    assert store.list() == (3, (rotated,))


def test_rotating_again_ends_all_earlier_texts_in_time(store: KeyStore, clock: ManualClock) -> None:
    made, _ = store.create(NewKey("a"))
    second, _ = store.rotate(made.id, 3_600)
    third, _ = store.rotate(made.id, 60)
    assert third.old == tuple(
        sorted((OldText(made.sha256, NOW + 60), OldText(second.sha256, NOW + 60)), key=lambda old: old.sha256)
    )
    assert {old.ends for old in store.rotate(made.id, 0)[0].old} == {NOW}


def test_texts_of_a_key_are_bounded(store: KeyStore, clock: ManualClock) -> None:
    made, _ = store.create(NewKey("a"))
    for _ in range(keystore.MAX_OLD):
        clock.advance(1)
        store.rotate(made.id, 1_000)
    with pytest.raises(BadField, match=r"overlap: 8 earlier texts of key .* count still"):
        store.rotate(made.id, 1_000)
    clock.advance(2_000)  # all of them ended
    record = store.rotate(made.id, 1_000)[0]
    assert len(record.old) == keystore.MAX_OLD
    assert [old.ends > clock.wall() for old in record.old] == [True, *[False] * 7]
    assert len(store.rotate(made.id, 0)[0].old) == keystore.MAX_OLD


@pytest.mark.parametrize("change", ["rotate", "expire", "suspend", "resume"])
def test_what_is_over_cannot_be_changed(store: KeyStore, change: str) -> None:
    record, _ = store.create(NewKey("a"))
    store.revoke(record.id)
    calls = {
        "rotate": lambda key_id: store.rotate(key_id, 1),
        "expire": lambda key_id: store.expire(key_id, None),
        "suspend": store.suspend,
        "resume": store.resume,
    }
    with pytest.raises(BadField, match=f"id: key {record.id} is revoked, which is final"):
        calls[change](record.id)
    with pytest.raises(UnknownKey):
        calls[change]("nope")


def test_an_expired_key_needs_time_before_a_new_text(
    store: KeyStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, _ = store.create(NewKey("a", expires=NOW + 5))
    clock.advance(5)
    with pytest.raises(BadField, match=r"id: .* has expired"):
        store.rotate(record.id, 1)
    monkeypatch.setattr(keystore, "MAX_KEYS", 1)
    store.create(NewKey("b"))
    with pytest.raises(BadField, match="expires: there are 1 valid keys already"):
        store.expire(record.id, None)
    monkeypatch.undo()
    assert store.expire(record.id, None).expires is None
    assert store.rotate(record.id, 1)[0].id == record.id


def test_suspending_keeps_its_first_time_until_it_is_resumed(store: KeyStore, clock: ManualClock) -> None:
    record, _ = store.create(NewKey("a"))
    assert store.suspend(record.id).suspended == NOW
    version = store.version()
    clock.advance(5)
    assert store.suspend(record.id).suspended == NOW
    assert store.version() == version
    assert store.resume(record.id).suspended is None
    assert store.suspend(record.id).suspended == NOW + 5


@pytest.mark.parametrize(("value", "seconds"), [(None, 86_400), ("0", 0), ("0s", 0), ("24h", 86_400), ("7d", 604_800)])
def test_overlap(value: object, seconds: int) -> None:
    assert parse_overlap(value) == seconds


@pytest.mark.parametrize("value", ["", "soon", "-1h", 5, "53w", "1y", "2027-01-31"])
def test_overlap_that_is_refused(value: object) -> None:
    with pytest.raises(BadField, match="overlap: "):
        parse_overlap(value)
