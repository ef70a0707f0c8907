"""`forebay key rotate|expire|suspend|resume`, `forebay account` and `forebay limit`, with the admin process running and
without."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from admin_process import Admin, FakeWorker, state_dir
from forebay.cli.main import run
from forebay.config.models import Config
from forebay.state.channel import unpack
from forebay.state.messages import SetKeys, keys_snapshot

__all__ = ["state_dir"]


class Done(NamedTuple):
    code: int
    out: str
    err: str


Forebay = Callable[..., Done]


@pytest.fixture
def forebay(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> Forebay:
    """`forebay ARGUMENTS --state-dir DIR`."""

    def call(*arguments: str) -> Done:
        code = run([*arguments, "--state-dir", str(state_dir)])
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture(params=["direct", "admin"])
def worker(request: pytest.FixtureRequest, state_dir: Path) -> Iterator[FakeWorker | None]:
    """Of an admin process; None without one."""
    if request.param == "direct":
        yield None
        return
    quotas = [{"name": "day", "tokens_per_day": 5, "organisation": "acme"}]
    config = {"state_dir": state_dir, "admin": "127.0.0.1:8081", "quotas": quotas}
    admin, worker = Admin(Config.model_validate(config)), FakeWorker(state_dir)
    try:
        admin.start()
        worker.keys()
        yield worker
    finally:
        admin.close()
        worker.kill()


def told(state_dir: Path, worker: FakeWorker | None) -> SetKeys:
    """What a worker knows: told, and in the snapshot it would start from."""
    snapshot = unpack(keys_snapshot(state_dir).read_bytes())
    assert isinstance(snapshot, SetKeys)
    if worker is not None:
        assert worker.lists[-1] == snapshot
    return snapshot


def test_a_key_is_rotated_expired_suspended_and_resumed(
    forebay: Forebay, worker: FakeWorker | None, state_dir: Path
) -> None:
    made = json.loads(forebay("key", "create", "--name", "ci", "--json").out)
    key_id, first = made["record"]["id"], hashlib.sha256(made["key"].encode()).digest()
    done = forebay("key", "rotate", key_id, "--overlap", "2h")
    assert (done.code, done.out[:16]) == (0, f"fb-{key_id}-")
    assert "has a new text; the one before counts until 20" in done.err
    (key,) = told(state_dir, worker).keys
    assert key.matches(hashlib.sha256(done.out.strip().encode()).digest())
    assert [old.sha256 for old in key.old] == [first]
    assert " valid, rotating " in forebay("key", "list").out
    again = json.loads(forebay("key", "rotate", key_id, "--overlap", "0", "--json").out)
    assert again["record"]["old_texts"] == []
    assert again["workers"] == ("not running" if worker is None else "informed")
    assert forebay("key", "rotate", key_id, "-q").err == ""

    assert "is suspended since 20" in forebay("key", "suspend", key_id).err
    assert told(state_dir, worker).keys[0].suspended is not None
    assert " suspended 20" in forebay("key", "list").out
    assert "is not suspended." in forebay("key", "resume", key_id).err
    assert told(state_dir, worker).keys[0].suspended is None

    assert "expires on 2199-01-01T00:00:00+00:00." in forebay("key", "expire", key_id, "2199-01-01").err
    assert "never expires." in forebay("key", "expire", key_id, "never").err
    assert "has expired on 20" in forebay("key", "expire", key_id, "now").err
    assert told(state_dir, worker).keys[0].expires is not None
    for arguments, code, message in (
        (("key", "expire", key_id, "soon"), 2, "forebay key: expires: write a duration like 30d"),
        (("key", "rotate", key_id), 2, f"id: key {key_id} has expired; `forebay key expire {key_id} WHEN`"),
        (("key", "rotate", key_id, "--overlap", "1y"), 2, "overlap: write a duration like 24h"),
        (("key", "suspend", "000000000000"), 1, "There is no key with the id"),
        (("key", "rotate", "../../limits"), 2, "is no id of a key"),
    ):
        refused = forebay(*arguments)
        assert (refused.code, refused.out) == (code, "")
        assert message in refused.err
        assert "Traceback" not in refused.err


def test_accounts(forebay: Forebay, worker: FakeWorker | None, state_dir: Path) -> None:
    forebay("key", "create", "-q", "--name", "k", "--organisation", "acme", "--department", "research", "--user", "ann")
    at = ("--organisation", "acme", "--department", "research")
    assert "The department acme / research is suspended since 20" in forebay("account", "suspend", *at).err
    assert told(state_dir, worker).suspended == (("acme", "research", "", ""),)
    assert "valid" not in forebay("key", "list").out
    made = forebay("key", "create", "--name", "l", *at)
    assert "warning: the department acme / research is suspended, and this key with it" in made.err
    key_id = json.loads(forebay("key", "list", "--json").out)[0]["id"]
    said = "is not suspended itself; its department is suspended: `forebay account resume`"
    assert said in forebay("key", "resume", key_id).err

    assert "cost-centre=4711, x=a=b" in forebay("account", "label", "cost-centre=4711", "x=a=b", *at).err
    tree = forebay("account", "list")
    assert [line.rstrip()[:60] for line in tree.out.splitlines()] == [
        "acme  organisation, 2 keys",
        "└── research  department, 2 keys  cost-centre=4711, x=a=b  s",
        "    └── ann  user, 1 key",
    ]
    renamed = forebay("account", "rename", "labs", *at)
    assert "The department acme / labs is its name from now on." in renamed.err
    assert told(state_dir, worker).suspended == (("acme", "labs", "", ""),)
    at = ("--organisation", "acme", "--department", "labs")
    assert "is not suspended." in forebay("account", "resume", *at).err
    assert told(state_dir, worker).suspended == ()
    new = json.loads(forebay("account", "create", "--organisation", "new", "--label", "a=b", "--json").out)
    assert (new["account"]["labels"], new["account"]["keys"]) == ({"a": "b"}, 0)
    listed = json.loads(forebay("account", "list", "--json").out)
    assert [a["level"] for a in listed] == ["organisation", "department", "user", "organisation"]
    for arguments, code, message in (
        (("suspend",), 2, "organisation: name the account, by one or more of organisation, department, project, user"),
        (("suspend", "--organisation", "acmé"), 2, "organisation: 1 to 128 letters, digits"),
        (("suspend", "--organisation", "acne"), 1, "There is no organisation 'acne'; did you mean 'acme'?"),
        (("rename", "new", "--organisation", "acme"), 2, "to: there is an account new already"),
        (("rename", "a;b", "--organisation", "acme"), 2, "to: 1 to 128 letters"),
        (("label", "nothing", "--organisation", "acme"), 2, "a label is NAME=VALUE"),
        (("label", "a b=c", "--organisation", "acme"), 2, "labels: a name has 1 to 64 letters"),
    ):
        refused = forebay("account", *arguments)
        assert (refused.code, refused.out) == (code, "")
        assert message in refused.err


def test_limits(forebay: Forebay, worker: FakeWorker | None, state_dir: Path) -> None:
    done = forebay("limit", "set", "--department", "research", "--tokens-per-day", "1M", "--money-per-month", "12.50")
    assert "The limit department:research is set: 1,000,000 tokens per day, 12.50 in money per month" in done.err
    assert "warning: no account in the database is research yet" in done.err
    (rule,) = told(state_dir, worker).rules
    assert (rule.tokens_per_day, rule.money_per_month, rule.department) == (1_000_000, 12_500_000_000, "research")
    forebay("limit", "set", "department:research", "--tokens-per-day", "none", "--each", "user", "--over", "warn")
    (rule,) = told(state_dir, worker).rules
    assert (rule.tokens_per_day, rule.each.value, rule.over.value) == (None, "user", "warn")
    set_ = forebay("limit", "set", "day", "--models", "a, b", "--requests-per-minute", "1.5k", "--set", "unpriced=pass")
    assert ("takes the place of the configuration's quota" in set_.err) == (worker is not None)
    rows = forebay("limit", "list").out.splitlines()
    assert rows[0].split() == ["name", "counted", "for", "limit", "over", "window", "changed"]
    assert "all callers, models a, b" in rows[1] and "1,500 requests per minute" in rows[1]
    assert "each user of department research" in rows[2]
    listed = json.loads(forebay("limit", "list", "--json").out)
    assert listed[0]["models"] == ["a", "b"] and listed[0]["unpriced"] == "pass"
    assert "The limit day is removed." in forebay("limit", "remove", "day").err
    assert len(told(state_dir, worker).rules) == 1
    for arguments, code, message in (
        (("remove", "day"), 1, "There is no limit 'day'"),
        (("set", "--tokens-per-day", "much"), 2, "--tokens-per-day: write a number like 500, 20k, 1.5M"),
        (("set", "--tokens-per-day", "1,5"), 2, "--tokens-per-day: write a number"),
        (("set", "--concurrent", "1.5"), 2, "concurrent: "),
        (("set", "--user", "ann"), 2, "limit: needs at least one of requests_per_minute"),
        (("set", "--user", "a\nb", "--concurrent", "1"), 2, "name: is missing"),
        (("set", "x", "--user", "a\nb", "--concurrent", "1"), 2, "user: 1 to 128 letters"),
        (("set", "x", "--concurrent", "1", "--set", "tokens"), 2, "--set takes FIELD=VALUE"),
        (("set", "x", "--concurrent", "1", "--set", "nope=1"), 2, "nope: is not a field of a limit"),
    ):
        refused = forebay("limit", *arguments)
        assert (refused.code, refused.out) == (code, "")
        assert message in refused.err
