"""The hierarchy and the limits in the database, on both databases."""

from __future__ import annotations

import pytest

from forebay.clock import ManualClock
from forebay.config.models import Config
from forebay.ledger.accounts import UnknownAccount, check_account, check_labels
from forebay.ledger.database import Database
from forebay.ledger.directory import Directory
from forebay.ledger.in_force import in_force
from forebay.ledger.keystore import NewKey
from forebay.ledger.limitstore import UnknownLimit
from forebay.ledger.lists import BadField
from forebay.ledger.records import as_json, suspended_in
from forebay.ledger.rules import Level, Rule

NOW = 1_700_000_000.0
HOSTILE = ["Robert'); DROP TABLE keys;--", "a,b", "a\nb", "a\n", "\U0001f600", "", " ", "=1+1", "x" * 129, "a\x00"]
ACME = ("acme", "", "", "")
RESEARCH = ("acme", "research", "", "")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=NOW)


@pytest.fixture
def directory(database: Database, clock: ManualClock) -> Directory:
    database.migrate()
    found = Directory(database, clock.wall)
    found.keys.create(NewKey("one", organisation="acme", department="research", project="apollo", user="ann"))
    found.keys.create(NewKey("two", organisation="acme", user="bob"))
    found.keys.create(NewKey("three", organisation="globex", department="research"))
    return found


def test_the_list_has_every_level_with_its_valid_keys(directory: Directory, clock: ManualClock) -> None:
    brief = directory.keys.create(NewKey("brief", organisation="acme", department="research", expires=NOW + 5))[0]
    gone = directory.keys.create(NewKey("gone", organisation="acme", department="research"))[0]
    directory.keys.revoke(gone.id)
    assert [(x.account, x.keys) for x in directory.accounts.list()] == [
        (ACME, 3),
        (("acme", "", "", "bob"), 1),
        (RESEARCH, 2),
        (("acme", "research", "apollo", ""), 1),
        (("acme", "research", "apollo", "ann"), 1),
        (("globex", "", "", ""), 1),
        (("globex", "research", "", ""), 1),
    ]
    clock.advance(6)
    assert brief.expires is not None
    assert [x.keys for x in directory.accounts.list()] == [2, 1, 1, 1, 1, 1, 1]


def test_suspension_reaches_down_and_is_told_with_the_list(directory: Directory, clock: ManualClock) -> None:
    version = directory.version()
    clock.advance(1)
    assert directory.accounts.suspend(RESEARCH).suspended == NOW + 1
    clock.advance(1)
    assert directory.accounts.suspend(RESEARCH).suspended == NOW + 1  # the first time counts
    assert directory.version() == version + 1
    known = directory.known()
    assert (known.version, known.suspended) == (version + 1, (RESEARCH,))
    states = {k.name: as_json(k, NOW, known.suspended) for k in known.keys}
    assert {n: (s["state"], s["suspended_by"]) for n, s in states.items()} == {
        "one": ("suspended", "department"),
        "two": ("valid", None),
        "three": ("valid", None),
    }
    by = {x.account: x.suspended_by for x in directory.accounts.list()}
    assert by[("acme", "research", "apollo", "ann")] == "department"
    assert by[ACME] is by[("globex", "research", "", "")] is None
    directory.accounts.resume(RESEARCH)
    assert directory.known().suspended == ()


def test_the_outermost_suspended_level_is_the_reason() -> None:
    ann = ("acme", "", "", "ann")
    assert suspended_in(ann, {ann, ACME}) == ACME
    assert suspended_in(ann, {ann}) == ann
    assert suspended_in(ann, {RESEARCH, ("acme", "", "", "bob")}) is None


def test_a_renamed_account_keeps_its_keys_and_limits(directory: Directory) -> None:
    directory.limits.set({"organisation": "acme", "department": "research", "tokens_per_day": 10})
    directory.limits.set({"name": "both", "department": "research", "tokens_per_day": 20})
    directory.limits.set({"name": "ann", "user": "ann", "tokens_per_day": 30})
    level, warnings = directory.accounts.rename(RESEARCH, "labs", directory.limits.renamed)
    assert (level.account, level.keys) == (("acme", "labs", "", ""), 1)
    assert {k.name: k.department for k in directory.known().keys} == {"one": "labs", "two": None, "three": "research"}
    rules = {r.name: (r.organisation, r.department) for r in directory.known().rules}
    assert rules == {"department:acme/research": ("acme", "labs"), "both": ("", "research"), "ann": ("", "")}
    (warning,) = warnings
    assert "both fits other departments called research too" in warning
    level, warnings = directory.accounts.rename(("globex", "research", "", ""), "labs", directory.limits.renamed)
    assert warnings == []
    assert {r.name: r.department for r in directory.known().rules}["both"] == "labs"  # now it fits no other


def test_a_name_that_is_taken_is_not_renamed_to(directory: Directory) -> None:
    version = directory.version()
    with pytest.raises(BadField, match="to: there is an account globex already; two cannot be merged"):
        directory.accounts.rename(ACME, "globex")
    directory.accounts.rename(ACME, "acme")
    assert directory.version() == version


def test_unknown_accounts_are_named_with_what_is_near(directory: Directory) -> None:
    for account, said in (
        (("acmee", "", "", ""), "There is no organisation 'acmee'; did you mean 'acme'?"),
        (("acme", "research", "apolo", ""), "There is no project 'apolo' in acme / research; did you mean 'apollo'?"),
        (("acme", "", "", "ann"), "There is no user 'ann' in acme; did you mean"),
        (("globex", "", "apollo", ""), "There is no such account in globex"),
    ):
        for call in (directory.accounts.suspend, directory.accounts.resume):
            with pytest.raises(UnknownAccount) as e:
                call(account)
            assert str(e.value).startswith(said.removesuffix("; did you mean") if account[3] else said)


def test_labels_are_set_and_taken_away(directory: Directory) -> None:
    set_ = directory.accounts.label(ACME, {"cost-centre": "4711", "owner": "Zoë, \U0001f600"})
    assert set_.labels == {"cost-centre": "4711", "owner": "Zoë, \U0001f600"}
    assert directory.accounts.label(ACME, {"owner": None, "x": "y"}).labels == {"cost-centre": "4711", "x": "y"}
    with pytest.raises(BadField, match="labels: at most 32 of an account, not 33"):
        directory.accounts.label(ACME, {f"n{i}": "v" for i in range(31)})


@pytest.mark.parametrize("labels", [None, {}, [], {"a b": "c"}, {"a": ""}, {"a": "x\ny"}, {"a": 7}, {"a": "x" * 257}])
def test_labels_that_are_refused(labels: object) -> None:
    with pytest.raises(BadField, match="labels: "):
        check_labels(labels)


def test_an_account_is_made_before_its_keys(directory: Directory) -> None:
    new = ("initech", "", "tps", "")
    assert directory.accounts.create(new, {"a": "b"}).labels == {"a": "b"}
    with pytest.raises(BadField, match="project: there is an account initech / tps already"):
        directory.accounts.create(new, {})
    assert directory.keys.create(NewKey("k", organisation="initech", project="tps"))[0].account == new


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_no_table_or_terminal_should_see(directory: Directory, name: str) -> None:
    """SQL, commas, line breaks, emoji: refused by one pattern wherever a name is given."""
    said = "1 to 128 letters, digits and . _ : / @ .*, starting with a letter or a digit"
    with pytest.raises(BadField, match=f"department: {said}"):
        check_account({"organisation": "acme", "department": name})
    with pytest.raises(BadField, match=f"name: {said}"):
        NewKey.check({"name": name}, NOW)
    with pytest.raises(BadField, match=f"(department|name): {said}"):
        directory.limits.set({"name": "a", "department": name, "tokens_per_day": 1})
    with pytest.raises(BadField, match=f"name: {said}") as e:
        directory.limits.set({"name": name, "tokens_per_day": 1})
    assert str(e.value).isprintable()
    assert len(directory.known().keys) == 3


@pytest.mark.parametrize("name", ["a.b_c:d/e@f+g-h", "4711", "ann@acme.example", "team/a"])
def test_names_that_are_allowed(name: str) -> None:
    assert check_account({"user": name}) == ("default", "", "", name)


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_limit_changes_where_it_is_said_and_is_taken_away(directory: Directory, clock: ManualClock) -> None:
    first, warnings = directory.limits.set({"department": "research", "tokens_per_day": 1_000_000, "over": "warn"})
    assert warnings == []
    assert first.rule == Rule(
        name="department:research",
        each=Level.DEPARTMENT,
        department="research",
        tokens_per_day=1_000_000,
        over=first.rule.over,
        zone="",
    )
    clock.advance(5)
    second, _ = directory.limits.set({"department": "research", "tokens_per_day": 2_000_000, "money_per_month": 12.5})
    assert (second.created, second.changed) == (NOW, NOW + 5)
    assert (second.rule.tokens_per_day, second.rule.money_per_month) == (2_000_000, 12_500_000_000)
    assert second.rule.over.value == "warn"
    third, _ = directory.limits.set({"name": "department:research", "tokens_per_day": None})
    assert (third.rule.tokens_per_day, third.rule.department) == (None, "research")
    with pytest.raises(BadField, match="limit: needs at least one of requests_per_minute"):
        directory.limits.set({"name": "department:research", "money_per_month": None})
    version = directory.version()
    assert directory.limits.remove("department:research").quota == third.quota
    assert (directory.known().rules, directory.version()) == ((), version + 1)
    with pytest.raises(UnknownLimit, match="There is no limit 'department:research'"):
        directory.limits.remove("department:research")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens_per_day": 0}, "tokens_per_day: input should be greater than or equal to 1; not '0'"),
        ({"tokens_per_day": "much"}, "tokens_per_day: input should be a valid integer"),
        ({"tokens_per_hour": 5}, "tokens_per_hour: is not a field of a limit; there are name, organisation,"),
        ({}, "limit: needs at least one of"),
        ({"tokens_per_day": 5, "each": "team"}, "each: input should be 'all', 'organisation'"),
        ({"tokens_per_day": 5, "each": "organisation", "user": "ann"}, "limit: each is above user"),
        ({"tokens_per_day": 5, "zone": "Mars"}, "zone: a time zone is named as in UTC"),
        ({"tokens_per_day": 5, "over": "degrade"}, "limit: over: degrade needs degrade_class or degrade_model"),
        ({"tokens_per_day": 5, "end_user": "a b"}, "name: is missing; what the limit counts makes no name"),
        ({"tokens_per_day": 5, "organisation": "o" * 120, "user": "u" * 20}, "name: is missing; what"),
    ],
)
def test_limits_that_make_no_sense(directory: Directory, fields: dict[str, object], message: str) -> None:
    with pytest.raises(BadField, match=message):
        directory.limits.set(fields)
    assert directory.known().rules == ()


def test_a_limit_for_nobody_is_said(directory: Directory) -> None:
    _, warnings = directory.limits.set({"organisation": "acme", "department": "nope", "concurrent": 1, "key": "other"})
    assert warnings == [
        "no account in the database is acme / nope yet",
        "no key in the database has the id or the name other yet",
    ]
    assert directory.limits.set({"key": "one", "concurrent": 1})[1] == []


def test_one_in_the_database_takes_the_place_of_a_quota_of_the_same_name(directory: Directory) -> None:
    quotas = [{"name": "a", "tokens_per_day": 1, "zone": "Asia/Shanghai"}, {"name": "b", "tokens_per_day": 2}]
    config = Config.model_validate({"quotas": quotas, "ledger": {"zone": "Europe/Berlin"}})
    directory.limits.set({"name": "b", "tokens_per_day": 3})
    directory.limits.set({"name": "c", "tokens_per_day": 4, "zone": "UTC"})
    rules = in_force(config.quotas, config.ledger.zone, directory.known().rules)
    assert {r.name: (r.tokens_per_day, r.zone) for r in rules} == {
        "a": (1, "Asia/Shanghai"),
        "b": (3, "Europe/Berlin"),
        "c": (4, "UTC"),
    }


def test_two_hosts_that_change_at_once_lose_nothing(directory: Directory, clock: ManualClock) -> None:
    import threading

    other = Directory(directory.database, clock.wall)
    failed: list[BaseException] = []

    def change(on: Directory, n: int) -> None:
        try:
            for i in range(4):
                on.limits.set({"name": f"{n}-{i}", "tokens_per_day": 1})
                on.accounts.label(ACME, {f"l{n}-{i}": "x"})
        except BaseException as e:
            failed.append(e)

    before = directory.version()
    threads = [threading.Thread(target=change, args=(d, n)) for n, d in enumerate((directory, other))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failed == []
    assert directory.version() == before + 16
    assert len(directory.known().rules) == 8
    assert len(next(x for x in directory.accounts.list() if x.account == ACME).labels) == 8
