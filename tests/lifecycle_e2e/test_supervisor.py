"""`forebay serve` as a service manager sees it: what dies comes back, what cannot start says why, nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ports import free_port
from stack import Engine, Forebay, call, chat, config_of, connect, folder, raw_request, self_signed, stack
from waiting import eventually, read_until

BUILT_IN = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")


@pytest.fixture
def where() -> Iterator[Path]:
    with folder() as path:
        yield path


@contextlib.contextmanager
def built_in(where: Path, **more: Any) -> Iterator[Forebay]:
    """Without a file: the emulated engine is a child."""
    with contextlib.closing(Forebay(where, None, *BUILT_IN, "--state-dir", str(where / "state"), **more)) as forebay:
        yield forebay


def family(forebay: Forebay) -> list[psutil.Process]:
    return psutil.Process(forebay.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def sockets_in(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob("*") if p.is_socket()]


def refused(*arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a `forebay serve` that ends by itself."""
    ran = subprocess.run(
        [sys.executable, "-m", "forebay", "serve", *arguments], capture_output=True, text=True, timeout=60
    )
    return ran.returncode, ran.stderr


# --- what dies comes back --------------------------------------------------------------------------------------------


def test_a_killed_worker_is_replaced_and_the_port_never_refuses() -> None:
    with stack("--decode-rate", "500") as (forebay, engine):
        admin, before = forebay.admin.pid, forebay.metric("forebay_requests_total")
        assert forebay.call("POST", "/v1/chat/completions", chat(3, stream=False))[0] == 200
        eventually(lambda: forebay.metric("forebay_requests_total") == before + 1)
        first = forebay.worker
        first.kill()
        statuses = [forebay.call("POST", "/v1/chat/completions", chat(3, stream=False))[0] for _ in range(10)]
        assert set(statuses) <= {200, 503} and statuses[-1] == 200, statuses
        assert forebay.worker.pid != first.pid
        assert forebay.admin.pid == admin
        assert "worker-0 ended (killed by SIGKILL); it is started again" in forebay.text
        eventually(lambda: forebay.metric("forebay_requests_total") >= before + 2)
        assert engine.books()["started"] >= 2


def test_a_key_of_the_database_is_known_to_the_new_worker_before_the_admin_process_speaks(where: Path) -> None:
    with contextlib.closing(Engine()) as engine:
        forebay = Forebay(where, config_of(where / "state", engine))
        with contextlib.closing(forebay):
            made = subprocess.run(
                [sys.executable, "-m", "forebay", "key", "create", "--name", "kept", "--config", str(forebay.file)],
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert made.returncode == 0, made.stderr
            key = next(word for word in (made.stdout + made.stderr).split() if word.startswith("fb-"))
            eventually(lambda: forebay.call("GET", "/v1/models", key=key)[0] == 200)
            forebay.admin.suspend()
            try:
                forebay.worker.kill()
                assert eventually(lambda: forebay.call("GET", "/v1/models", key=key)[0]) == 200
            finally:
                forebay.admin.resume()


def test_a_killed_admin_process_harms_no_stream_and_its_counters_do_not_fall() -> None:
    with stack("--decode-rate", "100") as (forebay, _):
        assert forebay.call("POST", "/v1/chat/completions", chat(3, stream=False))[0] == 200
        total = eventually(lambda: forebay.metric("forebay_requests_total"))
        with connect(forebay.port) as sock:
            sock.sendall(raw_request(chat(200)))
            data = read_until(sock, b'"content":"')
            worker, admin = forebay.worker.pid, forebay.admin
            admin.kill()
            eventually(lambda: forebay.admin.pid != admin.pid)
            forebay.wait_ready()
            assert forebay.metric("forebay_requests_total") >= total
            assert b"data: [DONE]" in read_until(sock, b"data: [DONE]", data)
        assert forebay.worker.pid == worker


def test_a_killed_built_in_engine_is_replaced(where: Path) -> None:
    with built_in(where) as forebay:
        engine = forebay.child("sim.main")
        engine.kill()
        eventually(lambda: forebay.child("sim.main").pid != engine.pid)
        ask = chat(3, stream=False)
        eventually(lambda: forebay.call("POST", "/v1/chat/completions", ask)[0] == 200)


def test_children_of_a_killed_supervisor_finish_their_work_and_leave() -> None:
    with stack("--decode-rate", "100") as (forebay, _):
        children = family(forebay)
        with connect(forebay.port) as sock:
            sock.sendall(raw_request(chat(100)))
            data = read_until(sock, b'"content":"')
            forebay.process.kill()
            forebay.process.wait(60)
            assert b"data: [DONE]" in read_until(sock, b"data: [DONE]", data)
        eventually(lambda: gone(children))
        with pytest.raises(ConnectionRefusedError):
            connect(forebay.port)


def test_the_built_in_engine_of_a_killed_supervisor_leaves_too(where: Path) -> None:
    with built_in(where) as forebay:
        children = family(forebay)
        assert len(children) == 3
        forebay.process.kill()
        forebay.process.wait(60)
        eventually(lambda: gone(children))


# --- what cannot start says why --------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["--listen", "--admin"])
def test_a_taken_port_is_named(where: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        other = "--admin" if which == "--listen" else "--listen"
        code, text = refused("--state-dir", str(where / "s"), which, address, other, "127.0.0.1:0")
    assert code == 71
    assert text == f"forebay serve: cannot listen on {address}: Address already in use\n"


def test_a_start_that_fails_leaves_no_socket_file(where: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        unix = where / "api.sock"
        code, text = refused("--state-dir", str(where / "s"), "--listen", f"unix:{unix}", "--admin", address)
    assert code == 71, text
    assert not unix.exists()


def test_a_second_instance_is_refused(where: Path) -> None:
    with built_in(where) as forebay:
        code, text = refused(*BUILT_IN, "--state-dir", str(forebay.state_dir))
        assert code == 69
        why = f"another Forebay runs with state_dir {forebay.state_dir}; give this one another by --state-dir"
        assert text == f"forebay serve: {why}\n"
        assert forebay.call("POST", "/v1/chat/completions", chat(3, stream=False))[0] == 200


def test_a_state_dir_that_cannot_be_made_is_named() -> None:
    code, text = refused(*BUILT_IN, "--state-dir", "/dev/null/state")
    assert code == 71
    assert text == "forebay serve: state_dir /dev/null/state cannot be used: Not a directory\n"


def test_a_bad_file_is_78_and_named(where: Path) -> None:
    file = where / "forebay.yaml"
    file.write_text("limits:\n  body_bytes: lots\n")
    code, text = refused("--config", str(file))
    assert code == 78
    assert f"{file}:2" in text and "limits.body_bytes" in text


def test_a_worker_that_cannot_start_any_more_ends_the_service_in_words(where: Path) -> None:
    """Its certificate went away while it ran: found when it is started again."""
    pem = self_signed(where)
    with contextlib.closing(Engine()) as engine:
        config = config_of(where / "state", engine)
        config["listeners"][0]["tls"] = {"cert": str(pem), "key": str(pem)}
        forebay = Forebay(where, config)
        with contextlib.closing(forebay):
            pem.unlink()
            forebay.worker.kill()
            assert forebay.process.wait(60) == 1
            assert "worker-0 failed 5 times in a row before it was ready: giving up" in forebay.text


# --- service managers, terminals, pipes ------------------------------------------------------------------------------


def test_systemd_is_told_ready_reloading_and_stopping(where: Path) -> None:
    path = where / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, contextlib.closing(Engine()) as engine:
        sock.bind(str(path))
        sock.settimeout(60)
        config = config_of(where / "state", engine)
        with contextlib.closing(Forebay(where, config, env={"NOTIFY_SOCKET": str(path)})) as forebay:
            assert sock.recv(4096).decode().splitlines() == ["READY=1", f"MAINPID={forebay.pid}"]
            forebay.hup(config)
            reloading = sock.recv(4096).decode().splitlines()
            assert reloading[0] == "RELOADING=1" and reloading[1].startswith("MONOTONIC_USEC=")
            assert abs(int(reloading[1].partition("=")[2]) / 1e6 - time.monotonic()) < 60
            assert sock.recv(4096) == b"READY=1"
            assert forebay.stop() == 0
            assert sock.recv(4096) == b"STOPPING=1"


def test_a_notify_socket_that_is_not_there_is_no_reason_to_die(where: Path) -> None:
    with built_in(where, env={"NOTIFY_SOCKET": str(where / "nobody")}) as forebay:
        assert forebay.stop() == 0


def test_without_a_terminal_and_with_standard_descriptors_closed(where: Path) -> None:
    """As a container's first process may be started: nothing on 0, 1 and 2, a session of its own."""
    script = f"exec {sys.executable} -m forebay serve --config {where}/forebay.yaml 0<&- 1>&- 2>&-"
    with contextlib.closing(Engine("--decode-rate", "500")) as engine:
        port, admin = free_port(), free_port()
        config = config_of(where / "state", engine)
        config |= {"listeners": [{"address": f"127.0.0.1:{port}"}], "admin": f"127.0.0.1:{admin}"}
        forebay = Forebay.__new__(Forebay)
        forebay.folder, forebay.file, forebay.log = where, where / "forebay.yaml", None
        forebay.write(config)
        forebay.process = subprocess.Popen(["sh", "-c", script], start_new_session=True)
        forebay.port, forebay.admin_port = port, admin
        with contextlib.closing(forebay):
            forebay.wait_ready()
            for _ in range(20):
                status, _, body = forebay.call("POST", "/v1/chat/completions", chat(5))
                assert status == 200 and body.endswith(b"data: [DONE]\n\n") and body.startswith(b"data: ")
            for process in (psutil.Process(forebay.pid), *family(forebay)):
                for n in range(3):
                    assert Path(f"/proc/{process.pid}/fd/{n}").readlink() == Path("/dev/null"), process
            assert forebay.stop() == 0


@pytest.mark.parametrize("how", ["closed", "full"])
def test_a_log_that_nobody_reads_stalls_no_stream(where: Path, how: str) -> None:
    read_end, write_end = os.pipe()
    with contextlib.closing(Engine("--decode-rate", "1000")) as engine:
        port, admin = free_port(), free_port()
        config = config_of(where / "state", engine, logging={"level": "debug"})
        config |= {"listeners": [{"address": f"127.0.0.1:{port}"}], "admin": f"127.0.0.1:{admin}"}
        forebay = Forebay(where, config, stderr=write_end, wait=False)
        forebay.port, forebay.admin_port = port, admin
        try:
            forebay.wait_ready()
            if how == "closed":
                os.close(write_end)
                os.close(read_end)
            else:
                os.set_blocking(write_end, False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        os.write(write_end, b"." * 4096)
                os.set_blocking(write_end, True)
            for _ in range(200):
                status, _, body = forebay.call("POST", "/v1/chat/completions", chat(3))
                assert status == 200 and body.endswith(b"data: [DONE]\n\n")
            assert call(forebay.admin_port, "GET", "/ready")[0] == 200
            assert forebay.stop() == 0
        finally:
            forebay.close()
            if how == "full":
                os.close(read_end)
                os.close(write_end)


def test_a_unix_listener_serves_and_leaves_no_file(where: Path) -> None:
    api, admin = where / "api.sock", where / "admin.sock"
    with contextlib.closing(Engine()) as engine:
        config = config_of(where / "state", engine)
        config |= {"listeners": [{"address": f"unix:{api}"}], "admin": f"unix:{admin}"}
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(api))  # a file that a dead process left
        forebay = Forebay(where, config, wait=False)
        with contextlib.closing(forebay):
            eventually(lambda: f"unix:{api}" in forebay.text)

            def asked() -> bytes:
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.connect(str(api))
                    sock.sendall(raw_request(chat(3)))
                    return read_until(sock, b"\r\n\r\n")

            assert eventually(lambda: b"200 OK" in asked())
            assert forebay.stop() == 0
        assert not api.exists() and not admin.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_drains(where: Path, number: int) -> None:
    with built_in(where, start_new_session=True) as forebay:
        children = family(forebay)
        with connect(forebay.port) as sock:
            sock.sendall(raw_request(chat(60)))
            data = read_until(sock, b'"content":"')
            os.killpg(forebay.pid, number)
            assert b"data: [DONE]" in read_until(sock, b"data: [DONE]", data)
        assert forebay.process.wait(60) == 0, forebay.text
        assert gone(children)
        assert not sockets_in(where)


@pytest.mark.parametrize("after", [0.15, 0.3, 0.45, 0.6, 0.8])
def test_a_signal_during_the_start_ends_it(where: Path, after: float) -> None:
    forebay = Forebay(where, None, *BUILT_IN, "--state-dir", str(where / "state"), wait=False, start_new_session=True)
    with contextlib.closing(forebay):
        timer = threading.Timer(after, forebay.kill, [signal.SIGTERM])
        timer.start()
        code = forebay.process.wait(60)
        timer.join()
        assert code in (0, -signal.SIGTERM), forebay.text
        group = [p for p in psutil.process_iter() if _group(p.pid) == forebay.pid]
        eventually(lambda: gone(group))
        assert "Traceback" not in forebay.text
        assert not sockets_in(where)


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
