"""`forebay key`, with the admin process running and without."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from admin_process import Admin, FakeWorker, state_dir
from forebay.cli import reach as module
from forebay.cli.main import run
from forebay.config.models import Address, Config
from forebay.ledger.database import Database, DatabaseLock, database_file
from forebay.ledger.keystore import KeyStore
from forebay.state.channel import unpack
from forebay.state.messages import SetKeys, admin_socket, keys_snapshot
from postgres_server import Postgres
from waiting import eventually

__all__ = ["state_dir"]


class Done(NamedTuple):
    code: int
    out: str
    err: str


Key = Callable[..., Done]


@pytest.fixture
def key(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> Key:
    """`forebay key ARGUMENTS --state-dir DIR`."""

    def call(*arguments: str) -> Done:
        code = run(["key", *arguments, "--state-dir", str(state_dir)])
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture(params=["direct", "admin"])
def served(request: pytest.FixtureRequest, state_dir: Path) -> Iterator[FakeWorker | None]:
    """Without an admin process, and with one that has a worker."""
    if request.param == "direct":
        yield None
        return
    admin = Admin(Config(state_dir=state_dir, admin=Address(host="127.0.0.1", port=8081)))
    worker = FakeWorker(state_dir)
    try:
        admin.start()
        worker.keys()
        yield worker
    finally:
        admin.close()
        worker.kill()


@pytest.fixture(scope="module", params=["direct", "admin"])
def standing(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A state directory with one key, `taken`: for tests that change nothing."""
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        assert run(["key", "create", "-q", "--name", "taken", "--state-dir", folder]) == 0
        if request.param == "direct":
            yield Path(folder)
            return
        admin = Admin(Config(state_dir=Path(folder), admin=Address(host="127.0.0.1", port=8081)))
        try:
            admin.start()
            eventually(lambda: admin.get("/health").json["database"]["up"])
            yield Path(folder)
        finally:
            admin.close()


def test_the_key_alone_is_on_standard_output(key: Key, served: FakeWorker | None) -> None:
    done = key("create", "--name", "ci", "--user", "ann", "--models", "a, b", "--class", "vip", "--expires", "30d")
    assert done.code == 0
    assert re.fullmatch(r"fb-[0-9a-f]{12}-[A-Za-z0-9_-]{43}\n", done.out)
    assert "(ci) of default / ann, class vip" in done.err
    assert "models: a, b; expires: 20" in done.err
    assert "cannot be shown again" in done.err
    assert done.out.strip() not in done.err
    if served is not None:
        (pushed,) = served.lists[-1].keys
        assert pushed.matches(hashlib.sha256(done.out.strip().encode()).digest())


def test_quiet_says_nothing_else(key: Key) -> None:
    done = key("create", "--name", "ci", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("fb-")


def test_json_for_programs(key: Key, served: FakeWorker | None, state_dir: Path) -> None:
    done = key("create", "--name", "ci", "--organisation", "acme", "--department", "d", "--project", "p", "--json")
    made = json.loads(done.out)
    assert made["record"]["organisation"] == "acme"
    if served is None:
        assert done.err == f"A new database was made: {database_file(state_dir)}\n"
    else:
        assert done.err == ""
    assert made["workers"] == ("not running" if served is None else "informed")
    assert made["key"].startswith(f"fb-{made['record']['id']}-")
    listed = json.loads(key("list", "--json").out)
    assert listed == [made["record"]]
    assert "sha256" not in listed[0]
    revoked = json.loads(key("revoke", made["record"]["id"], "--json").out)
    assert revoked["record"]["state"] == "revoked"
    assert revoked["workers"] == made["workers"]


def test_the_table_shows_valid_keys_and_counts_the_others(key: Key, served: FakeWorker | None) -> None:
    key("create", "--name", "first", "--may-raise-class", "--models", "m" * 100)
    second = json.loads(key("create", "--name", "second", "--json").out)["record"]["id"]
    revoked = key("revoke", second)
    assert re.search(rf"Key {second} \(second\) of default is revoked since 20", revoked.err)
    assert revoked.out == ""
    listed = key("list")
    head, line = listed.out.splitlines()
    assert head.split() == ["id", "name", "owner", "class", "models", "state", "created", "expires"]
    assert re.search(rf"first +default +normal \(may raise\) +{'m' * 100} +valid +20\d\d-\d\d-\d\d +never", line)
    assert listed.err == "1 key; 1 expired or revoked (--all shows them)\n"
    everything = key("list", "--all")
    assert len(everything.out.splitlines()) == 3
    assert "revoked 20" in everything.out


def test_no_keys_yet(key: Key, state_dir: Path, served: FakeWorker | None) -> None:
    if served is None:
        key("create", "--name", "a")
        key("revoke", json.loads(key("list", "--json").out)[0]["id"])
    listed = key("list")
    assert (listed.code, listed.out) == (0, "")
    assert listed.err.startswith("0 keys")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("create", "--name", "a b"), 2, "forebay key: name: 1 to 128 letters"),
        (("create", "--name", "a", "--class", "gold"), 2, "class: one of vip, normal, low; not 'gold'"),
        (("create", "--name", "a", "--expires", "soon"), 2, "expires: write a duration like 30d"),
        (("create", "--name", "a", "--models", "a,,b"), 2, "models: 1 to 128 letters"),
        (("create", "--name", "taken"), 2, "name: 'taken' is taken by key "),
        (("create",), 2, "--name"),
        (("revoke",), 2, "Missing argument"),
        (("revoke", "000000000000"), 1, "There is no key with the id '000000000000'"),
        (("forget",), 2, "forget"),
    ],
)
def test_mistakes(
    standing: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = Done(run(["key", *arguments, "--state-dir", str(standing)]), *capsys.readouterr())
    assert done.code == code
    assert message in done.err
    assert done.out == ""
    assert "Traceback" not in done.err


@pytest.mark.parametrize("key_id", ["../../keys", "a/b", "%2e", "", "a?b=c"])
def test_an_id_never_becomes_another_path(standing: Path, capsys: pytest.CaptureFixture[str], key_id: str) -> None:
    done = Done(run(["key", "revoke", key_id, "--state-dir", str(standing)]), *capsys.readouterr())
    assert done.code in (1, 2)
    assert "`forebay key list` shows the ids" in done.err


def test_a_wrong_folder_is_named_and_not_made(key: Key, state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["list"], ["revoke", "abc"]):
        assert run(["key", *arguments, "--state-dir", str(state_dir / "typo")]) == 69
        assert "is --config or --state-dir the right one?" in capsys.readouterr().err
        assert not (state_dir / "typo").exists()
        assert key(*arguments).code == 69
        assert not database_file(state_dir).exists()


def test_the_configuration_says_where(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = state_dir / "forebay.yaml"
    file.write_text(f"state_dir: {state_dir}/here\n")
    assert run(["key", "create", "--name", "a", "--config", str(file)]) == 0
    assert database_file(state_dir / "here").exists()
    file.write_text("state_dri: nowhere\n")
    assert run(["key", "list", "--config", str(file)]) == 78
    assert "state_dri" in capsys.readouterr().err
    assert run(["key", "list", "--config", str(state_dir / "none.yaml")]) == 78


def test_the_configuration_of_serve_is_obeyed(
    state_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = state_dir / "forebay.yaml"
    file.write_text(f"state_dir: {state_dir}/here\n")
    monkeypatch.setenv("FOREBAY_CONFIG", str(file))
    assert run(["key", "create", "--name", "a"]) == 0
    assert database_file(state_dir / "here").exists()
    assert run(["key", "create", "--name", "a", "--state-dir", str(state_dir / "there")]) == 0
    assert database_file(state_dir / "there").exists()
    capsys.readouterr()


def test_only_what_says_where_the_keys_are_is_read(
    state_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNSET_HERE", raising=False)
    file = state_dir / "forebay.yaml"
    file.write_text("state_dir: ${UNSET_HERE}\nengines: [{name: a, url: 'http://h', api_key: '${UNSET_HERE}'}]\n")
    there = ["--config", str(file), "--state-dir", str(state_dir / "there")]
    assert run(["key", "create", "--name", "a", *there]) == 0
    assert database_file(state_dir / "there").exists()
    file.write_text(f"state_dir: {state_dir}/here\ncallers: {{keys: [{{name: a, key: '${{UNSET_HERE}}'}}]}}\n")
    assert run(["key", "create", "--name", "a", "--config", str(file)]) == 0
    assert database_file(state_dir / "here").exists()
    file.write_text("database: postgresql://u:${UNSET_HERE}@h/x\n")
    capsys.readouterr()
    assert run(["key", "list", *there]) == 78
    err = capsys.readouterr().err
    assert "the environment variable UNSET_HERE is not set" in err
    assert "for the one in --state-dir give neither --config nor FOREBAY_CONFIG" in err


def test_a_running_gateway_needs_none_of_the_variables(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = state_dir / "forebay.yaml"
    file.write_text("database: postgresql://u:${UNSET_HERE}@h/x\n")
    admin = Admin(Config(state_dir=state_dir, admin=Address(host="127.0.0.1", port=8081)))
    try:
        admin.start()
        eventually(lambda: admin.get("/health").json["database"]["up"])
        assert run(["key", "create", "--name", "a", "-c", str(file), "--state-dir", str(state_dir)]) == 0
    finally:
        admin.close()
    assert capsys.readouterr().out.startswith("fb-")


def test_a_new_database_is_said(key: Key, state_dir: Path) -> None:
    said = f"A new database was made: {database_file(state_dir)}"
    assert said in key("create", "--name", "a").err
    assert said not in key("create", "--name", "b").err


def test_a_model_that_nobody_has_is_said(key: Key, state_dir: Path) -> None:
    models = {"m": {"aliases": ["short"]}}
    config = Config.model_validate({"state_dir": state_dir, "admin": "127.0.0.1:8081", "models": models})
    admin, worker = Admin(config), FakeWorker(state_dir)
    try:
        admin.start()
        eventually(lambda: admin.get("/ready").status == 200)
        done = key("create", "--name", "a", "--models", "m,short,typo")
        assert done.code == 0
        assert done.out.startswith("fb-")
        (said,) = [line for line in done.err.splitlines() if line.startswith("warning: ")]
        assert "no engine has a model 'typo'" in said
        assert said.endswith("known: m, short")
        assert "warning" not in key("create", "--name", "b", "--models", "short").err
        worker.set(engines=())
        eventually(lambda: admin.get("/metrics") and admin.get("/ready").status == 503)
        assert "warning" not in key("create", "--name", "c", "--models", "typo").err  # nobody can say
    finally:
        admin.close()
        worker.kill()


def test_a_change_without_a_gateway_is_in_the_snapshot(key: Key, state_dir: Path) -> None:
    made = json.loads(key("create", "--name", "a", "--json").out)["record"]["id"]
    first = unpack(keys_snapshot(state_dir).read_bytes())
    assert isinstance(first, SetKeys)
    assert [(k.id, k.revoked) for k in first.keys] == [(made, None)]
    assert keys_snapshot(state_dir).stat().st_mode & 0o777 == 0o600
    key("revoke", made)
    second = unpack(keys_snapshot(state_dir).read_bytes())
    assert isinstance(second, SetKeys)
    assert second.version > first.version
    assert second.keys[0].revoked is not None
    keys_snapshot(state_dir).unlink()
    keys_snapshot(state_dir).mkdir()  # which no file can replace
    done = key("create", "--name", "b")
    assert (done.code, done.out[:3]) == (0, "fb-")
    assert "keys.snapshot" in done.err and "cannot be written" in done.err


def test_a_worker_without_its_admin_process_is_said_to_be_told_later(key: Key, state_dir: Path) -> None:
    worker = FakeWorker(state_dir)
    try:
        assert "they will be told" in key("create", "--name", "a").err
    finally:
        worker.kill()
    assert "No gateway runs with this state directory" in key("create", "--name", "b").err


def test_a_database_that_is_not_supported_is_a_matter_of_configuration(
    state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = state_dir / "forebay.yaml"
    file.write_text(f"state_dir: {state_dir}\ndatabase: mysql://h/x\n")
    assert run(["key", "create", "--name", "a", "--config", str(file)]) == 78
    assert "'mysql' is not supported" in capsys.readouterr().err


def test_postgres_by_url(state_dir: Path, postgres: Postgres, capsys: pytest.CaptureFixture[str]) -> None:
    file = state_dir / "forebay.yaml"
    file.write_text(f"state_dir: {state_dir}\ndatabase: {postgres.new()}\n")
    assert run(["key", "create", "--name", "a", "--config", str(file)]) == 0
    capsys.readouterr()
    assert run(["key", "list", "--json", "--config", str(file)]) == 0
    assert [k["name"] for k in json.loads(capsys.readouterr().out)] == ["a"]
    assert not database_file(state_dir).exists()


def test_a_damaged_database(key: Key, state_dir: Path) -> None:
    database_file(state_dir).write_bytes(b"no database" * 1_000)
    for arguments in (("list",), ("create", "--name", "a"), ("revoke", "abc")):
        done = key(*arguments)
        assert done.code == 69
        assert "is damaged or is not an SQLite database" in done.err


def test_a_lock_that_stays_taken(key: Key, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT", 0.1)
    with DatabaseLock(state_dir) as lock:
        assert lock.take()
        done = key("create", "--name", "a")
    assert done.code == 69
    assert "another process holds" in done.err
    assert key("create", "--name", "a").code == 0


def test_an_admin_process_that_cannot_use_its_database(key: Key, state_dir: Path) -> None:
    database_file(state_dir).write_bytes(b"no database" * 1_000)
    admin = Admin(Config(state_dir=state_dir, admin=Address(host="127.0.0.1", port=8081)))
    try:
        admin.start()
        done = key("create", "--name", "a")
        assert done.code == 69
        assert "The database cannot be used: " in done.err
    finally:
        admin.close()


def test_a_socket_left_by_a_dead_admin_process(key: Key, state_dir: Path) -> None:
    admin = Admin(Config(state_dir=state_dir, admin=Address(host="127.0.0.1", port=8081)))
    admin.start()
    admin.kill()
    admin.close()
    assert admin_socket(state_dir).exists()
    assert key("create", "--name", "a").code == 0


@pytest.mark.parametrize("with_admin", [False, True])
def test_creates_at_once_all_succeed(state_dir: Path, with_admin: bool) -> None:
    """Six processes at once; where an admin process is there too, it starts and is killed among them."""

    def create(n: int) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "forebay", "key", "create", "-q", "--name", f"k{n}", "--state-dir", str(state_dir)],
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    admin = Admin(Config(state_dir=state_dir, admin=Address(host="127.0.0.1", port=8081)))
    try:
        with ThreadPoolExecutor(6) as pool:
            running = [pool.submit(create, n) for n in range(6)]
            if with_admin:
                admin.start()
            done = [r.result() for r in running]
    finally:
        admin.close()
    refused = [d for d in done if d.code == 69 and "The database cannot be used" in d.err]
    assert [d for d in done if d.code and d not in refused] == []
    assert with_admin or not refused
    database = Database("", state_dir)
    database.migrate()  # where all were refused while the admin process did so
    _, listed = KeyStore(database, lambda: 0.0).list()
    database.close()
    assert {hashlib.sha256(d.out.strip().encode()).digest() for d in done if not d.code} == {k.sha256 for k in listed}
