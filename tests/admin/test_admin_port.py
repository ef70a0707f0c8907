"""The admin port over real sockets: metrics, methods, paths, hosts, rude clients."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from admin_process import Admin, FakeWorker
from waiting import eventually

OK = 'forebay_requests_total{outcome="ok"}'


def test_counters_never_fall_over_restarts_of_worker_and_admin(admin: Admin, state_dir: Path) -> None:
    first = FakeWorker(state_dir, boot="boot-1")
    first.count(10, (4, 6), in_flight=7)
    admin.start()
    eventually(lambda: admin.metric(OK) == 10)
    assert admin.metric("forebay_in_flight") == 7
    first.kill()
    eventually(lambda: admin.metric('forebay_worker_up{worker="0"}') == 0)
    assert admin.metric(OK) == 10
    assert admin.metric("forebay_in_flight") is None

    second = FakeWorker(state_dir, boot="boot-2")
    second.count(1, (1, 0), in_flight=1)
    eventually(lambda: admin.metric('forebay_worker_up{worker="0"}') == 1)
    assert admin.metric(OK) == 11
    assert admin.metric('forebay_ttft_seconds_bucket{le="0.5",outcome="ok"}') == 5
    assert admin.metric('forebay_ttft_seconds_count{outcome="ok"}') == 11
    assert admin.metric('forebay_ttft_seconds_sum{outcome="ok"}') == 3

    second.count(5, (5, 0))
    assert admin.metric(OK) == 15  # a scrape asks for a fresh snapshot
    admin.kill()
    second.kill()
    third = FakeWorker(state_dir, boot="boot-3")
    third.count(2, (2, 0))
    admin.start()
    eventually(lambda: admin.metric('forebay_worker_up{worker="0"}') == 1)
    assert admin.metric(OK) == 17
    third.kill()


def test_another_boot_of_the_supervisor_counts_from_zero(admin: Admin, worker: FakeWorker) -> None:
    worker.count(10)
    admin.start()
    eventually(lambda: admin.metric(OK) == 10)
    admin.kill()
    worker.set(boot="boot-2")
    worker.count(3)
    admin.boot = "supervisor-2"
    admin.start()
    eventually(lambda: admin.metric(OK) == 3)


def test_a_scrape_does_not_wait_for_a_worker_that_hangs(admin: Admin, worker: FakeWorker) -> None:
    worker.count(10)
    admin.start()
    eventually(lambda: admin.metric(OK) == 10)
    worker.answering.clear()
    worker.count(99)
    assert admin.metric(OK) == 10
    worker.answering.set()
    eventually(lambda: admin.metric(OK) == 99)


def test_both_formats_parse(admin: Admin, worker: FakeWorker) -> None:
    worker.count(10, (4, 6), in_flight=2)
    admin.start()
    eventually(lambda: admin.metric(OK) == 10)
    plain = admin.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    opened = admin.get("/metrics", Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert opened.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert opened.body.endswith(b"# EOF\n")
    for families in (
        {f.name: f for f in parse_text(plain.body.decode())},
        {f.name: f for f in parse_openmetrics(opened.body.decode())},
    ):
        assert families["forebay_requests"].type == "counter"
        assert families["forebay_ttft_seconds"].type == "histogram"
        processes = {s.labels["process"] for s in families["forebay_process_resident_memory_bytes"].samples}
        assert processes == {"supervisor", "admin", "worker-0"}
        assert all(s.value > 0 for s in families["forebay_process_open_fds"].samples)
        limits = {s.labels["process"]: s.value for s in families["forebay_process_max_fds"].samples}
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # which the processes inherit
        assert limits == dict.fromkeys(processes, float(soft))
        assert families["forebay_database_up"].samples
    assert admin.get("/metrics", method="HEAD").body == b""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"])
def test_other_methods(running: Admin, method: str) -> None:
    for path in ("/health", "/ready", "/metrics", "/admin/admission"):
        answer = running.get(path, method=method)
        if method == "BREW" and answer.status == 400:  # not a method that httptools knows
            continue
        assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
        assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_an_unknown_path_lists_the_known_ones(running: Admin) -> None:
    for path in ("/", "/healthz", "/metrics/", "/keys", "/%00", "/" + "x" * 5_000):
        answer = running.get(path)
        assert answer.status == 404
        assert answer.error["message"].endswith(
            " here. There are /health, /ready, /metrics, /admin/admission, /admin/engines, /admin/usage."
        )
        assert answer.error["message"].isprintable()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8081", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8081", 200),
        ("10.1.2.3", 200),
        ("", 403),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:8081", 403),
        ("[::1.evil", 403),
        ("[::1]evil.example", 403),
    ],
)
def test_hosts_on_a_loopback_port(running: Admin, host: str, status: int) -> None:
    answer = running.get("/metrics", host=host)
    assert answer.status == status
    if status == 403:
        assert answer.error["code"] == "host_not_allowed"


def _talk(running: Admin, data: bytes) -> bytes:
    with socket.create_connection(running.url, timeout=20) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while got := sock.recv(65_536):
            answer += got
        return answer


def test_rude_clients_get_an_answer_and_leave_it_standing(running: Admin) -> None:
    assert _talk(running, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
    for rude in (b"\x16\x03\x01\x02\x00garbage", b"GET / HTTP/9.9\r\n\r\n", b"GET /health HTTP/1.1\r\nHost"):
        assert b" 200 " not in _talk(running, rude)[:20]
    assert running.get("/health").status == 200


def test_a_body_flood_is_not_read_into_memory(running: Admin) -> None:
    assert running.process is not None
    chunk = b"x" * 65_536
    with socket.create_connection(running.url, timeout=5) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000000\r\n\r\n")
        sent = 0
        try:
            while sent < 200 << 20:
                sent += sock.send(chunk)
        except OSError:  # not read any more, or closed
            pass
    rss = int(Path(f"/proc/{running.process.pid}/statm").read_text().split()[1]) * 4_096
    assert rss < 150 << 20
    assert running.get("/health").status == 200
