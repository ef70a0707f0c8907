"""The admin process as a process: its life, what it says of the gateway, what it tells the workers."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from admin_process import HEALTHY, Admin, FakeWorker
from forebay.config.models import Address, Config
from forebay.ledger.database import DatabaseLock
from forebay.state.channel import CHANNEL_ENV, pack, unpack
from forebay.state.messages import Drain, Draining, Reload, SetKeys, Start, admin_socket, keys_snapshot, run_dir
from postgres_server import Postgres
from waiting import eventually


def ready(admin: Admin) -> bool:
    return admin.get("/ready").status == 200


def reasons(admin: Admin) -> list[str]:
    admin.get("/metrics")  # asks the workers for fresh snapshots
    answer = admin.get("/ready")
    found: list[str] = answer.json["reasons"]
    assert answer.json["ready"] == (not found)
    assert answer.status == (503 if found else 200)
    return found


# --- life ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["SIGTERM", "end of file"])
def test_it_leaves_cleanly(admin: Admin, worker: FakeWorker, how: str) -> None:
    admin.start()
    eventually(lambda: ready(admin))
    assert admin.process is not None
    if how == "SIGTERM":
        admin.process.send_signal(signal.SIGTERM)
    else:
        admin.channel.close()
    assert admin.process.wait(10) == 0
    assert not admin_socket(admin.state_dir).exists()
    assert "Traceback" not in admin.log.read_text()


def test_it_leaves_before_it_was_told_to_start(state_dir: Path) -> None:
    for leave in (signal.SIGTERM, None):
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "forebay.admin.main"],
                pass_fds=(theirs.fileno(),),
                env=os.environ | {CHANNEL_ENV: str(theirs.fileno())},
            )
        if leave is None:
            ours.close()
        else:  # wait until it reads, which is when it takes the signal
            eventually(lambda pid=process.pid: "SigCgt:\t0000000000004000" in _status(pid))
            process.send_signal(leave)
        assert process.wait(20) == 0
        ours.close()


def _status(pid: int) -> str:
    """/proc/PID/status with the caught signals cut down to SIGTERM's bit."""
    text = Path(f"/proc/{pid}/status").read_text()
    caught = next(int(line.split()[1], 16) for line in text.splitlines() if line.startswith("SigCgt"))
    return f"SigCgt:\t{caught & 1 << signal.SIGTERM - 1:016x}"


def test_ctrl_c_is_for_the_supervisor(admin: Admin) -> None:
    admin.start()
    assert admin.process is not None
    admin.process.send_signal(signal.SIGINT)
    admin.process.send_signal(signal.SIGHUP)
    assert admin.get("/health").status == 200
    assert admin.kill(signal.SIGTERM) == 0


def test_without_a_supervisor_it_says_how_it_is_started() -> None:
    environment = {k: v for k, v in os.environ.items() if k != CHANNEL_ENV}
    done = subprocess.run(
        [sys.executable, "-m", "forebay.admin.main"], env=environment, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert "is started by `forebay serve`" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Draining(), "the first message was Draining, not Start"),
        (Start(config='{"state_dir": "DIR"}', index=0, boot="b"), "one listening socket is needed, not 0"),
        (Start(config='{"callers": {"keys": [{"key": "geheim-geheim-geheim"}]}}', index=0, boot="b"), "is not valid"),
    ],
)
def test_a_start_that_makes_no_sense(state_dir: Path, message: Draining | Start, said: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay.admin.main"],
            pass_fds=(theirs.fileno(),),
            env=os.environ | {CHANNEL_ENV: str(theirs.fileno()), "XDG_STATE_HOME": str(state_dir)},
            stderr=subprocess.PIPE,
            text=True,
        )
        if isinstance(message, Start):
            message = msgspec.structs.replace(message, config=message.config.replace("DIR", str(state_dir)))
        ours.sendall(pack(message))
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 1
    assert said in stderr
    assert "Traceback" not in stderr
    assert "geheim" not in stderr


def test_two_gateways_do_not_share_a_state_dir(admin: Admin, config: Config) -> None:
    admin.start()
    second = Admin(config, boot="supervisor-2").start(wait=False)
    assert second.process is not None
    assert second.process.wait(20) == 1
    assert "another `forebay serve` uses this state_dir" in admin.log.read_text()
    assert admin.api("GET", "/keys").status in (200, 503)  # the first one's socket is untouched
    second.close()


def test_a_state_dir_too_long_for_a_socket_is_said(state_dir: Path) -> None:
    long = state_dir / ("x" * 120)
    long.mkdir()
    admin = Admin(Config(state_dir=long)).start(wait=False)
    assert admin.process is not None
    assert admin.process.wait(20) == 1
    assert "choose a shorter or another state_dir" in admin.log.read_text()
    admin.close()


def test_private_to_its_user(admin: Admin, worker: FakeWorker) -> None:
    run_dir(admin.state_dir).chmod(0o755)
    admin.start()
    worker.keys()
    admin.metric("forebay_database_up")
    assert run_dir(admin.state_dir).stat().st_mode & 0o777 == 0o700
    assert admin_socket(admin.state_dir).stat().st_mode & 0o777 == 0o600
    eventually(lambda: keys_snapshot(admin.state_dir).exists())
    for file in (keys_snapshot(admin.state_dir), run_dir(admin.state_dir) / "metrics.json"):
        assert file.stat().st_mode & 0o777 == 0o600


# --- readiness -------------------------------------------------------------------------------------------------------


def test_every_reason_not_to_be_ready(admin: Admin, state_dir: Path) -> None:
    admin.start()
    assert any(r.startswith("worker 0 does not answer: ") for r in reasons(admin))
    worker = FakeWorker(state_dir)
    eventually(lambda: ready(admin))
    worker.set(keys_version=0)
    eventually(lambda: reasons(admin) == ["worker 0 has no key list yet"])
    worker.set(keys_version=1, engines=())
    eventually(lambda: reasons(admin) == ["no engine is configured"])
    sick = msgspec.structs.replace(HEALTHY, healthy=False, why="connection refused", state="")
    worker.set(engines=(sick, msgspec.structs.replace(sick, name="two", why="")))
    eventually(lambda: reasons(admin) == ["no engine is healthy: one (connection refused), two (not checked yet)"])
    worker.set(engines=(sick, msgspec.structs.replace(HEALTHY, name="two")))
    eventually(lambda: ready(admin))
    worker.set(draining=True)
    eventually(lambda: reasons(admin) == ["worker 0 is draining"])
    worker.set(draining=False)
    eventually(lambda: ready(admin))
    worker.kill()
    eventually(lambda: [r for r in reasons(admin) if r.startswith("worker 0 does not answer")])


def test_not_ready_before_the_database_was_read(admin: Admin, worker: FakeWorker) -> None:
    """The worker has an older list, from the snapshot."""
    worker.set(keys_version=7)
    with DatabaseLock(admin.state_dir) as lock:
        assert lock.take()
        admin.start()
        eventually(lambda: "held by another process" in str(admin.get("/health").json["database"].get("why")))
        assert any(r.startswith("the key list was not read from the database yet: ") for r in reasons(admin))
        assert "meanwhile" not in admin.get("/health").json["database"]
    eventually(lambda: ready(admin))
    assert worker.snapshot.keys_version == 1  # ready came after the list


def test_draining_ends_readiness_at_once(admin: Admin, worker: FakeWorker) -> None:
    admin.start()
    eventually(lambda: ready(admin))
    admin.send(Draining())
    eventually(lambda: reasons(admin) == ["draining"])
    health = admin.get("/health")
    assert (health.status, health.json["draining"]) == (200, True)


def test_health_tells_of_every_part(admin: Admin, worker: FakeWorker) -> None:
    sick = msgspec.structs.replace(
        HEALTHY, name="two", url="http://127.0.0.1:10", healthy=False, why="HTTP 500", usable=False
    )
    worker.set(engines=(HEALTHY, sick))
    admin.start()
    eventually(lambda: ready(admin))
    eventually(lambda: admin.get("/health").json["database"] == {"up": True, "keys_version": 1})
    assert admin.process is not None
    health = admin.get("/health").json
    assert health["status"] == "degraded"  # for one engine of two
    assert [(p["role"], p["pid"], p["up"]) for p in health["processes"]] == [
        ("supervisor", os.getpid(), True),
        ("admin", admin.process.pid, True),
        ("worker-0", os.getpid(), True),
    ]
    one, two = health["engines"]
    assert one == {
        "name": "one",
        "url": "http://127.0.0.1:9",
        "healthy": True,
        "healthy_in_workers": 1,
        "state": "healthy",
        "usable": True,
        "source": "file",
        "models": ["m"],
        "in_flight": 3,
    }
    assert (two["healthy"], two["why"]) == (False, "HTTP 500")
    assert health["engine_count"] == {"all": 2, "healthy": 1, "usable": 1}
    worker.set(engines=(HEALTHY,))
    eventually(lambda: admin.get("/metrics") and admin.get("/health").json["status"] == "ok")
    worker.kill()
    eventually(lambda: admin.get("/health").json["status"] == "degraded")
    assert admin.get("/health").json["processes"][2]["up"] is False


# --- reload ----------------------------------------------------------------------------------------------------------


def test_a_reload_takes_what_it_can_and_names_what_needs_a_restart(admin: Admin, config: Config) -> None:
    admin.start()
    assert "connected" not in admin.log.read_text()
    changed = config.model_copy(
        update={"admin": Address(host="127.0.0.1", port=9), "database": "postgresql://u:pw@h/x"}
    )
    admin.send(Reload(changed.model_dump_json(by_alias=True)))
    eventually(lambda: "a change of database needs a restart" in admin.log.read_text())
    assert "a change of admin needs a restart" in admin.log.read_text()
    assert "pw" not in admin.log.read_text()
    admin.send(Reload('{"listeners": 7}'))
    eventually(lambda: "the running configuration stays in force" in admin.log.read_text())
    admin.send(Drain(3.0))
    eventually(lambda: "the supervisor sent Drain" in admin.log.read_text())
    assert admin.get("/health").status == 200


# --- keys ------------------------------------------------------------------------------------------------------------


def test_a_new_key_is_known_to_the_worker_before_it_is_shown(admin: Admin, worker: FakeWorker) -> None:
    admin.start()
    worker.keys()
    asked = {"name": "ci", "user": "ann", "class": "vip", "models": ["m"], "expires": "30d"}
    made = eventually(lambda: (a := admin.api("POST", "/keys", asked)).status == 201 and a)
    pushed = worker.lists[-1]
    assert made.json["workers"] == "informed"
    (key,) = pushed.keys
    assert key.sha256 == hashlib.sha256(made.json["key"].encode()).digest()
    assert (key.id, key.class_, key.models, key.user) == (made.json["record"]["id"], "vip", ("m",), "ann")
    assert unpack(keys_snapshot(admin.state_dir).read_bytes()) == pushed
    assert made.json["key"] not in admin.log.read_text()


def test_a_revoked_key_stays_in_the_list_as_revoked(admin: Admin, worker: FakeWorker) -> None:
    admin.start()
    worker.keys()
    made = admin.api("POST", "/keys", {"name": "a"}).json["record"]
    gone = admin.api("POST", f"/keys/{made['id']}/revoke")
    assert (gone.status, gone.json["workers"], gone.json["record"]["state"]) == (200, "informed", "revoked")
    (key,) = worker.lists[-1].keys
    assert key.revoked is not None
    assert [k["state"] for k in admin.api("GET", "/keys").json["keys"]] == ["revoked"]


def test_a_worker_that_does_not_confirm_leaves_the_answer_pending(admin: Admin, worker: FakeWorker) -> None:
    admin.start()
    eventually(lambda: ready(admin))
    worker.answering.clear()
    made = admin.api("POST", "/keys", {"name": "a"})
    assert (made.status, made.json["workers"]) == (201, "pending")
    worker.answering.set()
    worker.keys(lambda k: len(k.keys) == 1)


def test_a_worker_that_restarts_gets_the_list(admin: Admin, worker: FakeWorker, state_dir: Path) -> None:
    admin.start()
    worker.keys()
    admin.api("POST", "/keys", {"name": "a"})
    worker.kill()
    again = FakeWorker(state_dir, boot="boot-2")
    try:
        assert len(again.keys().keys) == 1
    finally:
        again.kill()


def test_keys_outlive_a_killed_admin_process(admin: Admin, worker: FakeWorker) -> None:
    admin.start()
    worker.keys()
    made = admin.api("POST", "/keys", {"name": "a"}).json["record"]
    worker.lists.clear()
    admin.kill()
    admin.start()
    assert [k.id for k in worker.keys().keys] == [made["id"]]
    assert eventually(lambda: admin.api("POST", f"/keys/{made['id']}/revoke").status == 200)


def test_a_change_made_by_another_host_reaches_the_worker(admin: Admin, worker: FakeWorker) -> None:
    from forebay.ledger.database import Database
    from forebay.ledger.keystore import KeyStore, NewKey

    admin.start()
    worker.keys()
    database = Database("", admin.state_dir)
    record, _ = KeyStore(database, lambda: 1.0).create(NewKey("elsewhere"))
    database.close()
    assert [k.id for k in worker.keys(lambda k: len(k.keys) == 1).keys] == [record.id]


def test_two_hosts_on_one_postgres_know_each_other_s_changes(
    config: Config, worker: FakeWorker, postgres: Postgres
) -> None:
    url, folder = postgres.new(), Path(tempfile.mkdtemp(prefix="fb-"))
    hosts = [Admin(config.model_copy(update={"database": url, "state_dir": d})) for d in (config.state_dir, folder)]
    far = FakeWorker(folder)
    try:
        for host in hosts:
            host.start()
        for one in (worker, far):
            one.keys()
        here, there = hosts
        made = eventually(lambda: (a := here.api("POST", "/keys", {"name": "a", "user": "u"})).status == 201 and a).json
        key_id = made["record"]["id"]
        # Changed by the other host before it was told of the key: the database is what counts.
        assert there.api("POST", f"/keys/{key_id}/rotate", {"overlap": "1h"}).status == 200
        assert there.api("POST", "/accounts/suspend", {"user": "u"}).json["account"]["suspended_by"] == "user"
        assert here.api("POST", "/limits", {"user": "u", "concurrent": 3}).json["workers"] == "informed"
        assert here.api("GET", "/accounts").json == there.api("GET", "/accounts").json
        for one in (worker, far):
            told = one.keys(lambda k: bool(k.rules) and bool(k.suspended))
            assert told.suspended == (("default", "", "", "u"),)
            assert [(r.user, r.concurrent) for r in told.rules] == [("u", 3)]
            assert [(k.id, len(k.old)) for k in told.keys] == [(key_id, 1)]
    finally:
        for host in hosts:
            host.close()
        far.kill()
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message", "param"),
    [
        ("POST", "/accounts", {}, 400, "organisation: name the account, by one or more of", "organisation"),
        ("POST", "/accounts", {"user": "a,b"}, 400, "user: 1 to 128 letters", "user"),
        ("POST", "/accounts/suspend", {"user": "nobody"}, 404, "There is no", "organisation"),
        ("POST", "/accounts/rename", {"user": "a", "too": "b"}, 400, "too: is not a field of a new name", "too"),
        ("POST", "/limits", {"tokens_per_day": -1}, 400, "tokens_per_day: input should be greater", "tokens_per_day"),
        ("POST", "/limits/remove", {"name": "none"}, 404, "There is no limit 'none'", "name"),
        ("POST", "/keys/zzz/rotate", {}, 404, "There is no key with the id 'zzz'", "id"),
        ("POST", "/keys/zzz/expire", {}, 400, "expires: is missing; write a time", "expires"),
        ("POST", "/keys", b"{", 400, "The body is not valid JSON", None),
        ("POST", "/keys", b"[" * 60_000, 400, "The body is not valid JSON", None),
        ("POST", "/keys", b"[]", 400, "the body must be a JSON object", None),
        ("POST", "/keys", b" " * 70_000, 400, "the body is over 65,536 bytes", None),
        ("POST", "/keys", {}, 400, "name: is missing; give the key a name.", "name"),
        ("POST", "/keys", {"name": "a", "class": "gold"}, 400, "class: one of vip, normal, low; not 'gold'.", "class"),
        ("POST", "/keys/zzz/revoke", None, 404, "There is no key with the id 'zzz'", "id"),
        (
            "GET",
            "/nope",
            None,
            404,
            "There is no GET /nope here. There are /keys, /keys/{id}/revoke, /keys/{id}/rotate",
            None,
        ),
        ("DELETE", "/keys", None, 405, "DELETE is not allowed on /keys; use ", None),
        ("GET", "/keys/a/revoke", None, 405, "GET is not allowed on /keys/a/revoke; use POST.", None),
    ],
)
def test_what_the_key_api_refuses(
    running: Admin, method: str, path: str, body: object, status: int, message: str, param: str | None
) -> None:
    answer = running.api(method, path, body)
    assert (answer.status, answer.error["param"]) == (status, param)
    assert answer.error["message"].startswith(message)
    assert running.get("/health").status == 200


def test_an_admin_port_on_a_unix_socket(config: Config, worker: FakeWorker) -> None:
    path = config.state_dir / "port.sock"
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    admin = Admin(config.model_copy(update={"admin": Address(unix=str(path))}), sock=sock)
    try:
        admin.start()
        eventually(lambda: ready(admin))
        assert admin.get("/health", host="any.name.example").status == 200
        assert admin.kill(signal.SIGTERM) == 0
    finally:
        admin.close()


def test_set_keys_of_the_snapshot_file_are_what_a_worker_would_read(admin: Admin, worker: FakeWorker) -> None:
    admin.start()
    eventually(lambda: keys_snapshot(admin.state_dir).exists())
    assert unpack(keys_snapshot(admin.state_dir).read_bytes()) == SetKeys(1, ())
